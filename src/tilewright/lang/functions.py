"""Elementwise functions: exponentials, roots, circular functions, activations, derivatives, random bits."""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import f32, u32, u64
from tilewright.errors import TraceError, close_to, shown
from tilewright.functions.table import DERIVATIVES
from tilewright.lang.dataflow.tiles import Tile
from tilewright.lang.exact_functions import maximum, where
from tilewright.lang.fragments import Fragment, Number, elementwise
from tilewright.lang.scalars import Scalar
from tilewright.lang.source import here
from tilewright.lang.tracer import verb

__all__ = [
    "cos",
    "derivative",
    "dropout",
    "erf",
    "exp",
    "exp2",
    "gelu",
    "log",
    "log2",
    "random_bits",
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
    return elementwise("exp", x)


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
    return elementwise("exp2", x)


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
    return elementwise("log", x)


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
    return elementwise("sqrt", x)


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
    return elementwise("rsqrt", x)


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
    return elementwise("tanh", x)


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
    return elementwise("erf", x)


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
    return elementwise("sin", x)


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
    return elementwise("cos", x)


@verb
def log2(x: Fragment | Tile | Number | Scalar) -> Any:
    """The logarithm to base 2; its `floor` is the exponent of x.

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
    return elementwise("log2", x)


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
    return elementwise("sigmoid", x)


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
    return elementwise("silu", x)


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
    return elementwise("gelu_tanh" if approximate else "gelu", x)


# ---------------------------------------------------------------- derivatives of activations


@verb
def derivative(activation: str, x: Fragment | Tile) -> Any:
    """``activation'(x)``: the factor by which an activation multiplies the gradient in a backward pass.

    The derivative of relu at 0 is 0.  It is composed of the other functions, computed in f32 or wider, and
    rounded once to the dtype of x.  Infinities give the limit, and NaN gives NaN.  In f32 the error is at
    most ``2**-19``.

    Args:
        activation: ``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"``, ``"sigmoid"`` or ``"tanh"``.
        x: the values that the activation was applied to.

    Raises:
        TraceError: the activation is unknown.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def slopes(X):
        ...     part = X.tile((32,), (0,)).partition((32,))
        ...     tw.copy(tw.derivative("silu", tw.load(part)), part)
        >>> x = np.float32([-1, 0, 1])
        >>> slopes(x, target="reference").target, x.astype(float).round(4).tolist()
        ('reference', [0.0723, 0.5, 0.9277])
    """
    if activation not in DERIVATIVES:
        near = close_to(activation, DERIVATIVES)
        raise TraceError(
            f"derivative of {shown(activation)}; choose one of {', '.join(DERIVATIVES)}{near}", here()
        )
    is_narrow = x.dtype.is_float and x.dtype.bits < f32.bits
    made = DERIVATIVES[activation](x.to(f32) if is_narrow else x, elementwise)
    return made.to(x.dtype) if is_narrow else made


# ---------------------------------------------------------------- random numbers


@verb
def random_bits(index: Fragment | Tile, seed: Number | int, offset: Number | int = 0) -> Any:
    """32 random bits for each index, in u32: the same for the same seed, offset and index, on every target.

    The result is word ``index % 4`` of Philox 4x32-10 with the key ``seed`` and the counter ``(index // 4,
    offset)``, each of 64 bits, the low half first.  `testing.philox` computes the same with NumPy.

    Args:
        index: the number of each element: integers, not negative.  Positions and results of arithmetic on
            them are i32; use ``positions(m).to(tw.u64)`` if there may be more than 2**31 elements.
        seed: the key; a number of the kernel in u64, or an integer.
        offset: a number that differs between launches; a number of the kernel in u64, or an integer.

    Raises:
        TraceError: the index is not an integer.

    Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(Y="N")
        ... def bits(Y):
        ...     tile = Y.tile((32,), (0,))
        ...     like = tw.fragment(tw.blocked((32,), (32,)), tw.u32)
        ...     tw.copy(tw.random_bits(tw.coordinates(like, 0), 7), tile)
        >>> y = np.empty(4, np.uint32)
        >>> bits(y, target="reference").target, np.array_equal(y, tw.testing.philox(np.arange(4), 7))
        ('reference', True)
    """
    _check_index(index)
    return elementwise("random_bits", index.to(u64), seed, offset).to(u32)


@verb
def dropout(
    x: Fragment | Tile,
    index: Fragment | Tile,
    threshold: Number | int,
    scale: Number | float,
    seed: Number | int,
    offset: Number | int = 0,
) -> Any:
    """``x * scale`` if `random_bits` of the index is at least a threshold, else 0.

    An element is dropped with probability ``threshold / 2**32``.  With ``scale = 1 / (1 - probability)`` the
    mean does not change.  The choice depends only on seed, offset and index, not on tile, block or target.

    Args:
        x: the values, of a float dtype.
        index: the number of each element, as in `random_bits`.
        threshold: elements with smaller random bits are dropped; an integer, or a kernel's number in u32.
        scale: factor of all other elements.
        seed: as in `random_bits`.
        offset: as in `random_bits`.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def halved(X):
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     tw.copy(tw.dropout(x, tw.coordinates(x, 0), 1 << 31, 2.0, seed=7), X.tile((32,), (0,)))
        >>> x = np.ones(8, np.float32)
        >>> halved(x, target="reference").target
        'reference'
        >>> np.array_equal(x, np.where(tw.testing.philox(np.arange(8), 7) >= 1 << 31, 2, 0))
        True
    """
    if not x.dtype.is_float:
        raise TraceError(f"dropout of {x.dtype}", here(), f"floats, .to(tw.{f32})")
    _check_index(index)
    least = threshold.to(u64) if isinstance(threshold, Number) else int(threshold)
    kept = elementwise("random_at_least", index.to(u64), seed, offset, least)
    return where(kept, x * scale, 0)


def _check_index(index: Fragment | Tile) -> None:
    if index.dtype.is_float or index.dtype.kind == "bool":
        raise TraceError(f"random bits of an index of {index.dtype}", here(), ".to(tw.i32)")
