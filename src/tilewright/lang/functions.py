"""Functions of fragments, element by element, that no operator of Python stands for."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.lang.fragments import Fragment, Number, Operand, elementwise, of_integer
from tilewright.lang.scalars import Scalar
from tilewright.lang.scalars import maximum as integer_maximum
from tilewright.lang.scalars import minimum as integer_minimum
from tilewright.lang.verbs import inline, verb

__all__ = [
    "absolute",
    "exp",
    "exp2",
    "fma",
    "log",
    "maximum",
    "minimum",
    "rsqrt",
    "sqrt",
    "tanh",
    "where",
]


@verb
def exp(x: Fragment) -> Fragment:
    """``e ** x``."""
    return _fragment("exp", x)


@verb
def exp2(x: Fragment) -> Fragment:
    """``2 ** x``; results below the least normal number may be 0."""
    return _fragment("exp2", x)


@verb
def log(x: Fragment) -> Fragment:
    """The natural logarithm."""
    return _fragment("log", x)


@verb
def sqrt(x: Fragment) -> Fragment:
    """The square root, correctly rounded."""
    return _fragment("sqrt", x)


@verb
def rsqrt(x: Fragment) -> Fragment:
    """``1 / sqrt(x)``."""
    return _fragment("rsqrt", x)


@verb
def tanh(x: Fragment) -> Fragment:
    """The hyperbolic tangent."""
    return _fragment("tanh", x)


@verb
def absolute(x: Fragment) -> Fragment:
    """``|x|``."""
    return _fragment("abs", x)


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
        return next((value for value in given if value != value), of_floats(given))
    numbers = [of_integer(v.expr) if isinstance(v, Scalar) else v for v in given]
    return elementwise(function, *numbers).to("f32")


@verb
def fma(x: Operand, y: Operand, z: Operand) -> Fragment:
    """``x * y + z``, rounded once: of f32 or f64.

    ``x * y + z`` in operators rounds twice, and no target fuses it.
    """
    return _fragment("fma", x, y, z)


@verb
def where(condition: Fragment, x: Operand, y: Operand) -> Fragment:
    """``x`` where the condition holds, else ``y``, element by element."""
    return _fragment("select", condition, x, y)


def _fragment(function: str, *operands: Operand) -> Fragment:
    made: Fragment = elementwise(function, *operands)
    return made
