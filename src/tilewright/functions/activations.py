"""Activations of neural networks: rows, and what their values are made of.

Those that are x times a share between 0 and 1 are computed as ``x / (1 + 2**t)``: no difference of nearly
equal numbers is taken, and where ``2**t`` overflows the result is 0.  The share of -inf is 0, and -inf times
0 would be NaN: the factor x is `LOWEST` at least.  NaN stays NaN, as its share is NaN too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from tilewright.dtypes import DType, f32, f64, limits
from tilewright.functions.floats import erf
from tilewright.functions.function import FLOATS, Function

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

LOWEST: dict[DType, float] = {kind: limits(kind)[0] for kind in (f32, f64)}
"""The lowest finite number, which stands for -inf where a share multiplies it."""

SILU_SLOPE = -1 / math.log(2)
"""``t / x`` of silu."""

GELU_TANH = tuple(-2 / math.log(2) * math.sqrt(2 / math.pi) * c for c in (1.0, 0.044715))
"""``t / x`` of gelu with the hyperbolic tangent, a polynomial in ``x**2``, the lowest coefficient first."""

GELU = (
    *(-2.3022093772888184, -0.10483512282371521, 9.404923184774816e-05, 0.000159579940373078),
    *(-1.1439833542681299e-05, 3.8163125282153487e-07, -5.0672355200731545e-09),
)
"""``t / x`` of gelu in f32, likewise.

``t`` is near log2 of the quotient of what a normal distribution has above x and below.  The largest error of
``1 / (1 + 2**t)`` is 2**-25, the least that a polynomial of this degree has.  The last coefficient is
negative, so that large numbers need no care."""


def _through_f64(function: Callable[[Array], Any]) -> Callable[[Array], Array]:
    """Of f32 too in f64."""
    return lambda x: np.asarray(function(np.asarray(x, np.result_type(x, np.float64))), x.dtype)


@np.errstate(over="ignore")
def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, small, 1.0) / (1.0 + small))


def _finite_below(x: Array) -> Array:
    """``maximum(x, LOWEST)``, NaN where x is NaN."""
    return np.asarray(np.maximum(x, np.finfo(x.dtype).min))


@np.errstate(over="ignore", invalid="ignore")
def _gelu_tanh(x: Array) -> Array:
    linear, cubic = GELU_TANH
    return np.asarray(_finite_below(x) / (1.0 + np.exp2(x * (linear + cubic * (x * x)))))


@np.errstate(invalid="ignore")
def _gelu(x: Array) -> Array:
    return np.asarray(_finite_below(x) * (0.5 + 0.5 * erf(x * math.sqrt(0.5))))


@np.errstate(invalid="ignore")
def _silu(x: Array) -> Array:
    return np.asarray(_finite_below(x) * _sigmoid(x))


ACTIVATIONS = (
    Function("sigmoid", 1, FLOATS, _through_f64(_sigmoid), ulp=5.0, non_negative=True),
    Function("silu", 1, FLOATS, _through_f64(_silu), ulp=4.0, of_operand=True, keeps_sign=all),
    Function("gelu", 1, FLOATS, _through_f64(_gelu), ulp=4.0, of_operand=True, keeps_sign=all),
    Function("gelu_tanh", 1, FLOATS, _through_f64(_gelu_tanh), ulp=4.0, of_operand=True, keeps_sign=all),
)
