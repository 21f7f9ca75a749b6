"""Derivatives of the activations, composed of the other functions, so that every target has them.

A derivative near 0 is a product of small numbers, not a difference of nearly equal ones.  Terms cancel only
where a derivative crosses 0, and for ``gelu`` far below 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from tilewright.functions.table import FUNCTIONS

Call: TypeAlias = Callable[..., Any]
"""Computes a row of the table, by its name."""

_BEND = 0.044715
"""Cubic coefficient in `gelu` with the hyperbolic tangent."""


def _sigmoid(x: Any, call: Call) -> Any:
    """s(x) s(-x), with s the sigmoid."""
    return call("sigmoid", x) * call("sigmoid", -x)


def _silu(x: Any, call: Call) -> Any:
    """s(x) + x s(x) s(-x)."""
    x = _within(x, 1000.0, call)
    return call("sigmoid", x) * (1.0 + x * call("sigmoid", -x))


def _gelu(x: Any, call: Call) -> Any:
    """P(x) + x p(x), of the normal distribution."""
    x = _within(x, 40.0, call)
    density = call("exp", -0.5 * (x * x)) * (1 / math.sqrt(2 * math.pi))
    return 0.5 + 0.5 * call("erf", x * math.sqrt(0.5)) + x * density


def _gelu_tanh(x: Any, call: Call) -> Any:
    """s(t) + x s(t) s(-t) t', where gelu is x s(t)."""
    x = _within(x, 16.0, call)
    scale, square = 2 * math.sqrt(2 / math.pi), x * x
    t = scale * (x + _BEND * (square * x))
    slope = scale * (1.0 + 3 * _BEND * square)
    return call("sigmoid", t) * (1.0 + x * slope * call("sigmoid", -t))


def _within(x: Any, most: float, call: Call) -> Any:
    """Clamp x to a range outside of which the derivative is 0 or 1: infinity times 0 would be NaN."""
    return call("max", call("min", x, most), -most)


DERIVATIVES: dict[str, Callable[[Any, Call], Any]] = {
    "relu": lambda x, call: -call("floor", -call("min", call("max", x, 0.0), 1.0)),  # 1 above 0, else 0
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
    "sigmoid": _sigmoid,
    "tanh": lambda x, call: 4.0 * _sigmoid(2.0 * x, call),  # 1 - tanh(x)**2 = 4 s(2x) s(-2x)
}
"""Derivatives by the name of the activation."""


def derivative_of(name: str, x: Any) -> Any:
    """Return the derivative of an activation for each element of an array.

    Args:
        name: name of the activation.
        x: an array of f32 or f64.

    Example:
        >>> derivative_of("silu", np.float64([0, 1])).round(4).tolist()
        [0.5, 0.9277]
    """

    def call(function: str, *given: Any) -> Any:
        return np.asarray(FUNCTIONS[function].meaning(*(np.asarray(one, x.dtype) for one in given)))  # type: ignore[misc]

    return np.asarray(DERIVATIVES[name](np.asarray(x), call))
