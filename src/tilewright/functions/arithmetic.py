"""Arithmetic, bits, comparisons and conversions: rows, and what NumPy does not say of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from tilewright.functions.function import ANY, BITS, FUSED, INTEGERS, NUMBERS, REAL_NUMBERS, Function

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def _shift(function: Callable[..., Any], left: Array, count: Array) -> Array:
    """``left`` shifted; a count outside of its bits, negative or large, shifts all of them out."""
    bits = left.dtype.itemsize * 8
    count = np.asarray(count, left.dtype)
    inside = (count >= 0) & (count < bits)
    near = function(left, np.where(inside, count, np.asarray(bits - 1, left.dtype)))
    away = near if function is np.right_shift and left.dtype.kind == "i" else np.zeros_like(near)
    return np.asarray(np.where(inside, near, away), left.dtype)


def _rounding_down(function: Callable[..., Any], left: Array, right: Array) -> Array:
    """Quotient or rest as Python has them; of integers divided by 0, 0."""
    if left.dtype.kind not in "iu":
        return np.asarray(function(left, right))
    zero = np.equal(right, 0)
    made = function(left, np.where(zero, np.asarray(1, right.dtype), right))
    return np.asarray(np.where(zero, 0, made), left.dtype)


def fma(x: Array, y: Array, z: Array) -> Array:
    """``x * y + z`` of f32 or f64 arrays, rounded once.

    Example:
        >>> one = np.float32([1 + 2**-23])
        >>> float((one * one - one)[0]), float(fma(one, one, -one)[0])
        (1.1920928955078125e-07, 1.1920930376163597e-07)
    """
    x, y, z = np.broadcast_arrays(x, y, z)
    plain: Array = np.asarray(x.astype(np.float64) * y + z)
    finite = np.asarray(np.isfinite(x) & np.isfinite(y) & np.isfinite(z))
    if x.dtype == np.float64:
        for at in (at for at in np.ndindex(plain.shape) if finite[at]):
            (a, i), (b, j), (c, k) = (float(value[at]).as_integer_ratio() for value in (x, y, z))
            plain[at] = _nearest(a * b * k + c * i * j, i * j * k, zero=float(plain[at]))
        return plain
    # The product is exact; an odd last bit of the sum keeps the second rounding from seeing a tie.
    product = x.astype(np.float64) * y
    other = plain - product
    lost = np.where(finite, (product - (plain - other)) + (z - other), 0.0)
    even = plain.view(np.int64) % 2 == 0
    odd = np.where((lost != 0) & even, np.nextafter(plain, np.copysign(np.inf, lost)), plain)
    return np.asarray(odd.astype(x.dtype))


def _nearest(above: int, below: int, zero: float) -> float:
    """The f64 nearest to a fraction; of 0, that with the right sign."""
    try:
        return above / below if above else zero
    except OverflowError:
        return math.inf if above > 0 else -math.inf


ARITHMETIC = (
    # Integers wrap.
    Function("add", 2, NUMBERS, np.add, keeps_sign=all),
    Function("sub", 2, NUMBERS, np.subtract),
    Function("mul", 2, NUMBERS, np.multiply, keeps_sign=all),
    # A maximum or minimum with a NaN is NaN.
    Function("min", 2, NUMBERS, np.minimum, keeps_sign=all),
    Function("max", 2, NUMBERS, np.maximum, keeps_sign=any),
    Function("neg", 1, NUMBERS, np.negative),
    Function("abs", 1, NUMBERS, np.abs, c="fabs", non_negative=True),
    # The quotient rounded down, and the rest, which has the divisor's sign.  Integers divided by 0 give 0
    # for both; the least integer divided by -1 gives itself.
    Function("floordiv", 2, REAL_NUMBERS, partial(_rounding_down, np.floor_divide)),
    Function("mod", 2, REAL_NUMBERS, partial(_rounding_down, np.remainder)),
    Function("fma", 3, FUSED, fma, c="fma", keeps_sign=all),
    Function("and", 2, BITS, np.bitwise_and),
    Function("or", 2, BITS, np.bitwise_or),
    Function("xor", 2, BITS, np.bitwise_xor),
    Function("invert", 1, BITS, np.invert),
    # A count outside of the dtype's bits shifts all of them out: the result is 0, or -1 where a negative
    # integer goes right.
    Function("shift_left", 2, INTEGERS, partial(_shift, np.left_shift)),
    Function("shift_right", 2, INTEGERS, partial(_shift, np.right_shift)),
    Function("less", 2, ANY, np.less, gives="truth"),
    Function("less_equal", 2, ANY, np.less_equal, gives="truth"),
    Function("equal", 2, ANY, np.equal, gives="truth"),
    Function("not_equal", 2, ANY, np.not_equal, gives="truth"),
    Function("convert", 1, ANY, gives="asked"),
    Function("saturate", 1, ANY, gives="asked"),
    Function("bitcast", 1, ANY, gives="asked"),
    Function("select", 3, ANY),
)
