"""Functions of fragments, element by element, that no operator of Python stands for."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.lang.fragments import (
    Fragment,
    Number,
    Operand,
    element_type,
    elementwise,
    number,
    of_integer,
)
from tilewright.lang.scalars import Condition, Scalar
from tilewright.lang.scalars import maximum as integer_maximum
from tilewright.lang.scalars import minimum as integer_minimum
from tilewright.lang.verbs import inline, verb

__all__ = [
    "absolute",
    "bitcast",
    "clamp",
    "cos",
    "erf",
    "exp",
    "exp2",
    "floor",
    "fma",
    "log",
    "log2",
    "maximum",
    "minimum",
    "round",
    "rsqrt",
    "sigmoid",
    "sin",
    "sqrt",
    "tanh",
    "where",
]


@verb
def exp(x: Fragment | Number | Scalar) -> Any:
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
def exp2(x: Fragment | Number | Scalar) -> Any:
    """``2 ** x``; results below the least normal number may be 0."""
    return _made("exp2", x)


@verb
def log(x: Fragment | Number | Scalar) -> Any:
    """The natural logarithm; see `exp`."""
    return _made("log", x)


@verb
def sqrt(x: Fragment | Number | Scalar) -> Any:
    """The square root, correctly rounded; see `exp`."""
    return _made("sqrt", x)


@verb
def rsqrt(x: Fragment | Number | Scalar) -> Any:
    """``1 / sqrt(x)``; see `exp`."""
    return _made("rsqrt", x)


@verb
def tanh(x: Fragment | Number | Scalar) -> Any:
    """The hyperbolic tangent; see `exp`."""
    return _made("tanh", x)


@verb
def erf(x: Fragment | Number | Scalar) -> Any:
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
def sin(x: Fragment | Number | Scalar) -> Any:
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
def cos(x: Fragment | Number | Scalar) -> Any:
    """The cosine of x in radians; see `sin`."""
    return _made("cos", x)


@verb
def log2(x: Fragment | Number | Scalar) -> Any:
    """The logarithm to base 2; see `floor`."""
    return _made("log2", x)


@verb
def floor(x: Fragment | Number) -> Any:
    """The greatest integer that is not above x, as a float; of floats.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="N")
        ... def exponent(X, Y):
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     tw.copy(tw.floor(tw.log2(x)), Y.tile((32,), (0,)))
        >>> y = np.empty(3, np.float32)
        >>> exponent(np.float32([0.75, 8, 1000]), y, target="reference").target
        'reference'
        >>> y.tolist()
        [-1.0, 3.0, 9.0]
    """
    return _made("floor", x)


@verb
def round(x: Fragment | Number) -> Any:  # noqa: A001
    """The nearest integer, as a float, ties to the even one; of floats.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Q="N", scale=tw.f32)
        ... def quantise(X, Q, scale):
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     tw.copy(tw.clamp(tw.round(x / scale), -127, 127).to(tw.i8), Q.tile((32,), (0,)))
        >>> q = np.empty(4, np.int8)
        >>> quantise(np.float32([0.5, 1.5, -2.6, 1e6]), q, 1.0, target="reference").target
        'reference'
        >>> q.tolist()
        [0, 2, -3, 127]
    """
    return _made("round", x)


@verb
def clamp(x: Any, low: Any, high: Any) -> Any:
    """``minimum(maximum(x, low), high)``: what of ``[low, high]`` is nearest to x; NaN stays; see `round`."""
    return minimum(maximum(x, low), high)


@verb
def bitcast(x: Fragment | Number, dtype: DType | str) -> Any:
    """The number of another dtype that has the same bits.

    Raises:
        DTypeError: the dtypes have not equally many bits, or one of them is no real number of whole bytes.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="N")
        ... def magnitude(X, Y):
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     bits = tw.bitcast(x, tw.u32) & 0x7FFFFFFF
        ...     tw.copy(tw.bitcast(bits, tw.f32), Y.tile((32,), (0,)))
        >>> y = np.empty(2, np.float32)
        >>> magnitude(np.float32([-1.5, 2]), y, target="reference").target, y.tolist()
        ('reference', [1.5, 2.0])
    """
    return elementwise("bitcast", x, dtype=element_type(dtype))


@verb
def sigmoid(x: Fragment | Number) -> Any:
    """``1 / (1 + e ** -x)``, within 5 units in the last place, and without overflow; of floats.

    Types narrower than f32 compute in f32 and round once.

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
    wide = x.to("f32") if x.dtype.bits < 32 and x.dtype.is_float else x
    small = exp(-absolute(wide))
    made = where(wide < 0, small, 1.0) / (1.0 + small)
    return made if wide is x else made.to(x.dtype)


@verb
def absolute(x: Fragment | Number | Scalar) -> Any:
    """``|x|``."""
    return _made("abs", x)


@inline
def maximum(x: Any, y: Any) -> Any:
    """The greater of two, element by element: of fragments, numbers and integers alike.

    NaN where one of them is NaN, as in NumPy.  Of two integers it is an integer, which may be an extent or an
    index.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="N")
        ... def relu(X, Y):
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     tw.copy(tw.maximum(x, 0.0), Y.tile((32,), (0,)))
        >>> y = np.empty(3, np.float32)
        >>> relu(np.float32([-1, np.nan, 2]), y, target="reference").target
        'reference'
        >>> y.tolist()
        [0.0, nan, 2.0]
    """
    return _extreme("max", integer_maximum, max, x, y)


@inline
def minimum(x: Any, y: Any) -> Any:
    """The lesser of two, element by element; see `maximum`."""
    return _extreme("min", integer_minimum, min, x, y)


def _extreme(function: str, of_integers: Any, of_floats: Any, x: Any, y: Any) -> Any:
    kinds = [value for value in (x, y) if isinstance(value, Fragment | Number)]
    if kinds:
        return elementwise(function, x, y)
    given = [value.item() if isinstance(value, np.generic) else value for value in (x, y)]
    if not any(isinstance(value, float) for value in given):
        return of_integers(*given)
    if not any(isinstance(value, Scalar) for value in given):
        plain = [number(value) for value in given]
        return next((value for value in plain if value != value), of_floats(plain))
    numbers = [of_integer(v.expr) if isinstance(v, Scalar) else v for v in given]
    return elementwise(function, *numbers).to("f32")


@verb
def fma(x: Operand, y: Operand, z: Operand) -> Any:
    """``x * y + z``, rounded once: of f32 or f64.

    ``x * y + z`` in operators rounds twice, and no target fuses it.
    """
    return _made("fma", x, y, z)


@verb
def where(condition: Fragment | Number | Condition, x: Operand | bool, y: Operand | bool) -> Any:
    """``x`` where the condition holds, else ``y``, element by element; also of numbers."""
    return _made("select", condition, x, y)


def _made(function: str, *operands: object) -> Any:
    return elementwise(function, *operands)
