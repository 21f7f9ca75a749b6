"""Functions of fragments, element by element: exponentials, logarithms, roots, and those of circles."""

from __future__ import annotations

from typing import Any

from tilewright.lang.dataflow.tiles import Tile
from tilewright.lang.exact_functions import maximum
from tilewright.lang.fragments import Fragment, Number, elementwise
from tilewright.lang.scalars import Scalar
from tilewright.lang.verbs import verb

__all__ = [
    "cos",
    "erf",
    "exp",
    "exp2",
    "gelu",
    "log",
    "log2",
    "relu",
    "rsqrt",
    "sigmoid",
    "silu",
    "sin",
    "sqrt",
    "tanh",
]


@verb
def exp(x: Fragment | Tile | Number | Scalar) -> Any:
    """``e ** x``.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def soften(X):
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     tw.copy(tw.log(1 + tw.exp(x)) + tw.tanh(x) * tw.rsqrt(x) * tw.sqrt(x), X.tile((32,), (0,)))
        >>> x = np.ones(3, np.float32)
        >>> soften(x, target="reference").target
        'reference'
        >>> bool(abs(x - (np.log(1 + np.e) + np.tanh(1))).max() < 1e-6)
        True
    """
    return _made("exp", x)


@verb
def exp2(x: Fragment | Tile | Number | Scalar) -> Any:
    """``2 ** x``; results below the least normal number may be 0.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def powers(X):
        ...     part = X.tile((32,), (0,)).partition((32,))
        ...     x = tw.load(part)
        ...     tw.copy(tw.exp2(x), part)
        >>> x = np.float32([-1, 0, 3, 10])
        >>> powers(x, target="reference").target, x.tolist()
        ('reference', [0.5, 1.0, 8.0, 1024.0])
    """
    return _made("exp2", x)


@verb
def log(x: Fragment | Tile | Number | Scalar) -> Any:
    """The natural logarithm.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def digits(X):
        ...     part = X.tile((32,), (0,)).partition((32,))
        ...     x = tw.load(part)
        ...     tw.copy(tw.log(x) / float(np.log(10)), part)
        >>> x = np.float32([1, 10, 1000])
        >>> digits(x, target="reference").target, x.round(6).tolist()
        ('reference', [0.0, 1.0, 3.0])
    """
    return _made("log", x)


@verb
def sqrt(x: Fragment | Tile | Number | Scalar) -> Any:
    """The square root, correctly rounded.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def roots(X):
        ...     part = X.tile((32,), (0,)).partition((32,))
        ...     x = tw.load(part)
        ...     tw.copy(tw.sqrt(x), part)
        >>> x = np.float32([0, 2.25, 144])
        >>> roots(x, target="reference").target, x.tolist()
        ('reference', [0.0, 1.5, 12.0])
    """
    return _made("sqrt", x)


@verb
def rsqrt(x: Fragment | Tile | Number | Scalar) -> Any:
    """``1 / sqrt(x)``, within 2 units in the last place.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def unit(X):
        ...     part = X.tile((32,), (0,)).partition((32,))
        ...     x = tw.load(part)
        ...     tw.copy(x * tw.rsqrt(tw.reduce_sum(x * x, dim=0)), part)
        >>> x = np.float32([3, 4])
        >>> unit(x, target="reference").target, x.round(6).astype(float).round(6).tolist()
        ('reference', [0.6, 0.8])
    """
    return _made("rsqrt", x)


@verb
def tanh(x: Fragment | Tile | Number | Scalar) -> Any:
    """The hyperbolic tangent.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def squash(X):
        ...     part = X.tile((32,), (0,)).partition((32,))
        ...     x = tw.load(part)
        ...     tw.copy(tw.tanh(x), part)
        >>> x = np.float32([-100, 0, 0.5])
        >>> squash(x, target="reference").target, x.astype(float).round(4).tolist()
        ('reference', [-1.0, 0.0, 0.4621])
    """
    return _made("tanh", x)


@verb
def erf(x: Fragment | Tile | Number | Scalar) -> Any:
    """The error function, ``2 / sqrt(pi)`` times the integral of ``e ** -t**2`` from 0 to x.

    Within 2 units in the last place of f32 or f64, on every target.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def gelu(X):
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     tw.copy(x * (0.5 + 0.5 * tw.erf(x * 0.5**0.5)), X.tile((32,), (0,)))
        >>> x = np.float32([-1, 0, 1])
        >>> gelu(x, target="reference").target
        'reference'
        >>> x.round(4).tolist()
        [-0.1587000..., 0.0, 0.8413000...]
    """
    return _made("erf", x)


@verb
def sin(x: Fragment | Tile | Number | Scalar) -> Any:
    """The sine of x in radians, within 2 units in the last place for x of every size; NaN for infinities.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="N")
        ... def turned(X, Y):
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     y = tw.load(Y.tile((32,), (0,)).partition((32,)))
        ...     tw.copy(x * tw.cos(y) - tw.floor(x) * tw.sin(y), Y.tile((32,), (0,)))
        >>> x, y = np.float32([1, 2]), np.float32([0, 1e9])
        >>> turned(x, y, target="reference").target
        'reference'
        >>> bool(np.abs(y - [1, 2 * np.cos(1e9) - 2 * np.sin(1e9)]).max() < 1e-6)
        True
    """
    return _made("sin", x)


@verb
def cos(x: Fragment | Tile | Number | Scalar) -> Any:
    """The cosine of x in radians; as precise as `sin`.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def turned(X):
        ...     part = X.tile((32,), (0,)).partition((32,))
        ...     x = tw.load(part)
        ...     tw.copy(tw.cos(x), part)
        >>> x = np.float32([0, np.pi / 3, np.pi])
        >>> turned(x, target="reference").target, x.round(6).tolist()
        ('reference', [1.0, 0.5, -1.0])
    """
    return _made("cos", x)


@verb
def log2(x: Fragment | Tile | Number | Scalar) -> Any:
    """The logarithm to base 2; `floor` of it is the exponent.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def bits(X):
        ...     part = X.tile((32,), (0,)).partition((32,))
        ...     x = tw.load(part)
        ...     tw.copy(tw.log2(x), part)
        >>> x = np.float32([0.25, 1, 4096])
        >>> bits(x, target="reference").target, x.tolist()
        ('reference', [-2.0, 0.0, 12.0])
    """
    return _made("log2", x)


@verb
def sigmoid(x: Fragment | Tile | Number | Scalar) -> Any:
    """``1 / (1 + e ** -x)``, within 5 units in the last place, and without overflow; floats only.

    Results below the least normal number may be 0.  Types narrower than f32 compute in f32 and round once.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def swish(X):
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     tw.copy(x * tw.sigmoid(x), X.tile((32,), (0,)))
        >>> x = np.float32([-1000, 0, 1000])
        >>> swish(x, target="reference").target
        'reference'
        >>> x.tolist()
        [-0.0, 0.0, 1000.0]
    """
    return _made("sigmoid", x)


@verb
def silu(x: Fragment | Tile | Number | Scalar) -> Any:
    """``x * sigmoid(x)``, which is ``x / (1 + e ** -x)`` without overflow; floats only.

    The error is at most ``2**-21 |x|`` in f32, ``2**-50 |x|`` in f64.  Types narrower than f32 compute in f32
    and round once.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def swish(X):
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     tw.copy(tw.silu(x), X.tile((32,), (0,)))
        >>> x = np.float32([-1, 0, 1])
        >>> swish(x, target="reference").target, x.round(4).astype(float).round(4).tolist()
        ('reference', [-0.2689, 0.0, 0.7311])
    """
    return _made("silu", x)


@verb
def relu(x: Fragment | Tile | Number) -> Any:
    """``maximum(x, 0)``; NaN stays.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def positive(X):
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     tw.copy(tw.relu(x), X.tile((32,), (0,)))
        >>> x = np.float32([-1, 0, 2.5])
        >>> positive(x, target="reference").target, x.tolist()
        ('reference', [0.0, 0.0, 2.5])
    """
    return maximum(x, 0)


@verb
def gelu(x: Fragment | Tile | Number | Scalar, *, approximate: bool = False) -> Any:
    """``x * (1 + erf(x / sqrt(2))) / 2``: x times the normal cumulative distribution at x; floats only.

    The error is at most ``2**-21 |x|`` in f32, ``2**-50 |x|`` in f64.  Types narrower than f32 compute in f32
    and round once.

    Args:
        x: the values.
        approximate: ``x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2`` instead; it
            differs by up to 5e-4.

    Source: D. Hendrycks, K. Gimpel, "Gaussian error linear units", arXiv:1606.08415.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def activate(X):
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     tw.copy(tw.gelu(x), X.tile((32,), (0,)))
        >>> x = np.float32([-1, 0, 1])
        >>> activate(x, target="reference").target, x.astype(float).round(4).tolist()
        ('reference', [-0.1587, 0.0, 0.8413])
    """
    return _made("gelu_tanh" if approximate else "gelu", x)


def _made(function: str, x: object) -> Any:
    return elementwise(function, x)
