"""Arithmetic of the hardware that NumPy lacks: fused multiply-adds and conversions, exact to the bit."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def _towards_odd(total: Array, error: Array) -> Array:
    """A sum in f64 and its rounding error, rounded to odd: rounding it to half as many bits is then exact."""
    bits = total.view(np.int64)
    step = np.where((error > 0) == (total > 0), 1, -1)
    mend = (error != 0) & np.isfinite(total) & (bits & 1 == 0) & np.isfinite(error)
    return np.asarray(np.where(mend, bits + step, bits).view(np.float64))


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    product = a * b
    splitter = 134217729.0
    a_high = (t := splitter * a) - (t - a)
    b_high = (t := splitter * b) - (t - b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def fma(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` of f32 or f16, rounded once."""
    kind = np.result_type(a, b, c)
    if kind == np.float64:
        return fma64(a, b, c)
    product = np.asarray(a.astype(np.float64) * b.astype(np.float64))
    total, error = _two_sum(product, np.asarray(c.astype(np.float64)))
    return _towards_odd(total, error).astype(kind)


def fma64(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` of f64, rounded once."""
    a, b, c = np.broadcast_arrays(a, b, c)
    high, low = _two_product(a, b)
    middle, low_error = _two_sum(c, low)
    total, error = _two_sum(high, middle)
    rest, rest_error = _two_sum(low_error, error)
    made = np.asarray(total + _towards_odd(rest, rest_error))
    plain = np.asarray(a * b + c)
    size = np.abs(high)
    # Where nothing is lost below the least number, and nothing grows beyond the largest.
    safe = (size > 2.0**-900) & (size < 2.0**960) & (np.maximum(np.abs(a), np.abs(b)) < 2.0**960)
    safe &= np.abs(c) < 2.0**960
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    made = np.where(safe, made, plain)
    for at in np.argwhere(finite & ~safe & (a != 0) & (b != 0)):
        made[tuple(at)] = _rational(float(a[tuple(at)]), float(b[tuple(at)]), float(c[tuple(at)]))
    return made


def _rational(a: float, b: float, c: float) -> float:
    """``a * b + c`` by integers."""
    (i, p), (j, q), (k, r) = (value.as_integer_ratio() for value in (a, b, c))
    above, below = i * j * r + k * p * q, p * q * r
    try:
        return above / below if above else a * b + c
    except OverflowError:
        return math.inf if above > 0 else -math.inf


def to_integer(value: Array, low: int, high: int) -> Array:
    """Floating-point numbers as integers: towards zero, clamped to the range, NaN as 0."""
    wide = np.trunc(value.astype(np.float64))
    wide = np.where(np.isnan(wide), 0.0, np.clip(wide, float(low), float(high)))
    return wide.astype(np.int64)


def bf16_bits(value: Array) -> Array:
    """f32 as the 16 bits of bf16, to the nearest, ties to even."""
    return value.astype(ml_dtypes.bfloat16).view(np.uint16)


def from_bf16(bits: Array) -> Array:
    """The f32 of 16 bits of bf16."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


FP8 = {
    "fp8": ml_dtypes.float8_e4m3fnuz,
    "bf8": ml_dtypes.float8_e5m2fnuz,
    "fp8_ocp": ml_dtypes.float8_e4m3fn,
    "bf8_ocp": ml_dtypes.float8_e5m2,
}
"""The 8-bit formats of gfx942, whose only NaN is the negative zero, and the OCP's, which gfx950 has."""


def _fp8_table(name: str) -> Array:
    every = np.arange(256, dtype=np.uint8).view(FP8[name])
    return np.asarray(every.astype(np.float32))


FP8_VALUES = {name: _fp8_table(name) for name in FP8}
LARGEST = {"fp8": 240.0, "bf8": 57344.0}


def to_fp8(value: Array, name: str) -> Array:
    """f32 as the 8 bits of a format: to the nearest, ties to even; beyond the largest number is NaN.

    Hardware does so while ``SH_MEM``-style clamping (``FP16_OVFL``) is off, as it is where a kernel begins.
    """
    with np.errstate(all="ignore"):
        return value.astype(FP8[name]).view(np.uint8)


F16_VALUES = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
"""The f32 of every f16, by its bits: faster than NumPy's conversion."""


def larger(a: Array, b: Array) -> Array:
    """The larger of two numbers, the number if one is NaN, +0 before -0."""
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    same = np.asarray(a == b)
    both = np.asarray(a.view(unsigned) & b.view(unsigned)).view(a.dtype)
    return np.where(same, both, np.fmax(a, b))


def smaller(a: Array, b: Array) -> Array:
    """The smaller of two numbers, the number if one is NaN, -0 before +0."""
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    same = np.asarray(a == b)
    either = np.asarray(a.view(unsigned) | b.view(unsigned)).view(a.dtype)
    return np.where(same, either, np.fmin(a, b))
