"""Vector instructions in floating point: arithmetic, conversions and comparisons.

Functions such as ``v_exp_f32`` give the nearest number.  Hardware may differ from it in the last place.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.amdgcn.readers import DTYPES
from tilewright.amdgcn.state import Array
from tilewright.amdgcn.steps import OpcodeRow, Partly, row, tracked

# ----------------------------------------------------------------
#
# Fused multiply-adds and conversions, exact to the bit.  NumPy lacks them.


def _towards_odd(total: Array, error: Array) -> Array:
    """Round a sum in f64 and its error to odd, so that a second rounding to half the bits is exact."""
    bits = total.view(np.int64)
    step = np.where((error > 0) == (total > 0), 1, -1)
    mend = (error != 0) & np.isfinite(total) & (bits & 1 == 0) & np.isfinite(error)
    return np.asarray(np.where(mend, bits + step, bits).view(np.float64))


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def fma(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c``, rounded once."""
    kind = np.result_type(a, b, c)
    if kind != np.float64:
        product = np.asarray(a.astype(np.float64) * b.astype(np.float64))
        total, error = _two_sum(product, np.asarray(c.astype(np.float64)))
        return _towards_odd(total, error).astype(kind)
    a, b, c = np.broadcast_arrays(a, b, c)
    high = a * b
    splitter = 134217729.0
    a_high = (t := splitter * a) - (t - a)
    b_high = (t := splitter * b) - (t - b)
    a_low, b_low = a - a_high, b - b_high
    low = ((a_high * b_high - high) + a_high * b_low + a_low * b_high) + a_low * b_low
    middle, low_error = _two_sum(c, low)
    total, error = _two_sum(high, middle)
    rest, rest_error = _two_sum(low_error, error)
    made = np.asarray(total + _towards_odd(rest, rest_error))
    # The sum is exact unless parts of it underflow or overflow.
    size = np.abs(high)
    safe = (size > 2.0**-900) & (size < 2.0**960) & (np.maximum(np.abs(a), np.abs(b)) < 2.0**960)
    safe &= np.abs(c) < 2.0**960
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    made = np.where(safe, made, np.asarray(a * b + c))
    for at in map(tuple, np.argwhere(finite & ~safe & (a != 0) & (b != 0))):
        (i, p), (j, q), (k, r) = (float(value[at]).as_integer_ratio() for value in (a, b, c))
        above, below = i * j * r + k * p * q, p * q * r
        try:
            if above:
                made[at] = above / below
        except OverflowError:
            made[at] = math.inf if above > 0 else -math.inf
    return made


def to_integer(value: Array, low: int, high: int) -> Array:
    """Return floating-point numbers as integers: towards zero, clamped to the range, NaN as 0."""
    wide = np.trunc(value.astype(np.float64))
    wide = np.where(np.isnan(wide), 0.0, np.clip(wide, float(low), float(high)))
    return wide.astype(np.int64)


def bf16_bits(value: Array) -> Array:
    """Return f32 numbers as the 16 bits of bf16, rounded to nearest, ties to even."""
    return value.astype(ml_dtypes.bfloat16).view(np.uint16)


def from_bf16(bits: Array) -> Array:
    """Return the f32 of 16 bits of bf16."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


FP8 = {
    "fp8": ml_dtypes.float8_e4m3fnuz,
    "bf8": ml_dtypes.float8_e5m2fnuz,
    "fp8_ocp": ml_dtypes.float8_e4m3fn,
    "bf8_ocp": ml_dtypes.float8_e5m2,
}
"""The 8-bit formats of gfx942, whose only NaN is the negative zero, and the OCP's, of gfx950."""


FP8_VALUES = {
    name: np.asarray(np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32))
    for name, dtype in FP8.items()
}


def to_fp8(value: Array, name: str) -> Array:
    """Return f32 as the 8 bits of a format: to nearest, ties to even; beyond the largest number is NaN.

    Hardware overflows to NaN while clamping (``FP16_OVFL``) is off, which is the state at the begin of a
    kernel.
    """
    with np.errstate(all="ignore"):
        return value.astype(FP8[name]).view(np.uint8)


F16_VALUES = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
"""The f32 of each f16, by its bits; a look-up is faster than NumPy's conversion."""


def larger(a: Array, b: Array) -> Array:
    """Return the larger of two numbers; if one is NaN, the other one; +0 is larger than -0."""
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    same = np.asarray(a == b)
    both = np.asarray(a.view(unsigned) & b.view(unsigned)).view(a.dtype)
    return np.where(same, both, np.fmax(a, b))


def smaller(a: Array, b: Array) -> Array:
    """Return the smaller of two numbers; if one is NaN, the other one; -0 is smaller than +0."""
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    same = np.asarray(a == b)
    either = np.asarray(a.view(unsigned) | b.view(unsigned)).view(a.dtype)
    return np.where(same, either, np.fmin(a, b))


# ---------------------------------------------------------------- rows


RANGES = {"u32": (0, 2**32 - 1), "i32": (-(2**31), 2**31 - 1), "u16": (0, 65535), "i16": (-32768, 32767)}


def _through_f64(function: Any) -> Any:
    """Return a function of f32 or f16, computed in f64: wrong only for numbers close to a tie."""
    return lambda a: function(a.astype(np.float64)).astype(a.dtype)


def _scaled(a: Any, exponent: Any) -> Any:
    if a.dtype == np.float64:
        return np.ldexp(a, exponent)
    exponent = np.clip(exponent, -2000, 2000).astype(np.int32)
    return np.ldexp(a.astype(np.float64), exponent).astype(a.dtype)


def towards_zero(value: Any) -> Any:
    """Return f32 numbers as f16, rounded towards zero."""
    near = value.astype(np.float16)
    over = np.abs(near.astype(np.float32)) > np.abs(value)
    bits = near.view(np.uint16)
    return np.where(over & ~np.isinf(value), bits - np.uint16(1), bits)


def _pair(low: Any, high: Any) -> Any:
    return low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16))


def _normal(value: Any) -> Any:
    scaled = np.rint(np.nan_to_num(value.astype(np.float64)) * 32767.0)
    return np.clip(scaled, -32767, 32767).astype(np.int64) & 0xFFFF


def classes(value: Any) -> Any:
    """Return a number's class, as a word with one of ten bits set."""
    bits = value.view(np.dtype(f"u{value.dtype.itemsize}"))
    negative = np.signbit(value)
    info = np.finfo(value.dtype)
    quiet = (bits >> bits.dtype.type(info.nmant - 1)) & bits.dtype.type(1) == 1
    kind = np.where(np.isinf(value), 0, np.where(value == 0, 3, np.where(np.abs(value) < info.tiny, 2, 1)))
    place = np.where(negative, 2 + kind, 9 - kind)
    return np.uint32(1) << np.where(np.isnan(value), quiet.astype(np.int64), place).astype(np.uint32)


def division_scale(a: Any, denominator: Any, numerator: Any) -> tuple[Any, Any]:
    """Scale one operand of a division so that the quotient and the reciprocal are normal numbers."""
    step, limit, low = (64, 96, 23) if a.dtype == np.float32 else (128, 768, 53)
    info = np.finfo(a.dtype)
    exponent_n, exponent_d = np.frexp(numerator)[1], np.frexp(denominator)[1]
    difference = exponent_n - exponent_d
    quotient_tiny = np.abs(numerator / denominator) < info.tiny
    reciprocal_tiny = np.abs(1 / denominator.astype(np.float64)).astype(np.float64) < info.tiny
    of_denominator, of_numerator = a == denominator, a == numerator
    up, down = np.ldexp(a, step), np.ldexp(a, -step)
    result, mark = a, np.zeros(np.broadcast_shapes(a.shape, denominator.shape, numerator.shape), np.bool_)
    invalid = (numerator == 0) | (denominator == 0)
    tiny_n = exponent_n - 1 + info.maxexp - 1 <= low
    conditions = [
        (invalid, np.full_like(a, np.nan), False),
        (difference >= limit, np.where(of_denominator, up, a), True),
        (np.abs(denominator) < info.tiny, up, False),
        (reciprocal_tiny & quotient_tiny, np.where(of_denominator, up, a), True),
        (reciprocal_tiny, down, False),
        (quotient_tiny, np.where(of_numerator, up, a), True),
        (tiny_n, up, False),
    ]
    for condition, value, marked in reversed(conditions):
        result = np.where(condition, value, result)
        mark = np.where(condition, marked, mark)
    return result.astype(a.dtype), mark


def division_fixup(quotient: Any, denominator: Any, numerator: Any) -> Any:
    """Return the quotient of a division, with its special results for zeros, infinities and NaN.

    A quotient beyond the largest number arrives as NaN and becomes infinity (assumed).
    """
    sign = np.signbit(denominator) ^ np.signbit(numerator)
    one = np.where(sign, -1.0, 1.0).astype(quotient.dtype)
    both_zero = (denominator == 0) & (numerator == 0)
    both_infinite = np.isinf(denominator) & np.isinf(numerator)
    zero = (numerator == 0) | np.isinf(denominator)
    infinite = (denominator == 0) | np.isinf(numerator)
    result = np.where(infinite, one * np.inf, np.where(zero, one * 0.0, np.copysign(np.abs(quotient), one)))
    result = np.where(np.isnan(result), one * np.inf, result)
    result = np.where(both_zero | both_infinite, np.nan, result)
    result = np.where(np.isnan(denominator), denominator, result)
    return np.where(np.isnan(numerator), numerator, result).astype(quotient.dtype)


def _fmas(scale: int) -> Any:
    """Return ``v_div_fmas``, the last step of a division, which undoes the scaling of ``v_div_scale``."""

    def compute(a: Any, b: Any, c: Any, mark: Any) -> Any:
        plain = fma(a, b, c)
        return np.where(mark, np.ldexp(plain, np.where(np.abs(c) >= 2, scale, -scale)), plain).astype(a.dtype)

    return compute


FUNCTIONS: dict[str, Any] = {
    "exp": _through_f64(np.exp2),
    "log": _through_f64(np.log2),
    "rcp": _through_f64(np.reciprocal),
    "rsq": _through_f64(lambda a: 1 / np.sqrt(a)),
    "sqrt": _through_f64(np.sqrt),
    "sin": _through_f64(lambda a: np.sin(2 * np.pi * a)),
    "cos": _through_f64(lambda a: np.cos(2 * np.pi * a)),
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rndne": np.rint,
    "fract": lambda a: (a - np.floor(a)).astype(a.dtype),
    "frexp_mant": lambda a: np.where(np.isfinite(a), np.asarray(np.frexp(a)[0]), a).astype(a.dtype),
}


def _plain_rows() -> dict[str, OpcodeRow]:
    rows: dict[str, OpcodeRow] = {}
    for kind in ("f16", "f32", "f64"):
        two, three = f"{kind} = {kind} {kind}", f"{kind} = {kind} {kind} {kind}"
        rows |= {
            f"v_add_{kind}": row(two, np.add),
            f"v_sub_{kind}": row(two, np.subtract),
            f"v_subrev_{kind}": row(two, lambda a, b: b - a),
            f"v_mul_{kind}": row(two, np.multiply),
            f"v_fma_{kind}": row(three, fma, keeps=True),
            f"v_fmac_{kind}": row(f"{kind} += {kind} {kind}", fma),
            f"v_fmamk_{kind}": row(three, lambda a, k, b: fma(a, k, b)),
            f"v_fmaak_{kind}": row(three, fma),
            f"v_max_{kind}": row(two, larger),
            f"v_min_{kind}": row(two, smaller),
            f"v_max3_{kind}": row(three, lambda a, b, c: larger(larger(a, b), c), keeps=True),
            f"v_min3_{kind}": row(three, lambda a, b, c: smaller(smaller(a, b), c), keeps=True),
            f"v_maxmin_{kind}": row(three, lambda a, b, c: smaller(larger(a, b), c), keeps=True),
            f"v_minmax_{kind}": row(three, lambda a, b, c: larger(smaller(a, b), c), keeps=True),
            f"v_med3_{kind}": row(
                three,
                lambda a, b, c: np.where(
                    np.isnan(a) | np.isnan(b) | np.isnan(c),
                    smaller(smaller(a, b), c),
                    larger(smaller(a, b), smaller(larger(a, b), c)),
                ),
                keeps=True,
            ),
            f"v_ldexp_{kind}": row(f"{kind} = {kind} {'i16' if kind == 'f16' else 'i32'}", _scaled),
            f"v_frexp_exp_{'i16' if kind == 'f16' else 'i32'}_{kind}": row(
                f"i32 = {kind}", lambda a: np.where(np.isfinite(a), np.frexp(a)[1], 0).astype(np.int32)
            ),
            f"v_div_fixup_{kind}": row(three, division_fixup, keeps=True),
        }
        for name, function in FUNCTIONS.items():
            rows[f"v_{name}_{kind}"] = row(f"{kind} = {kind}", function)
        rows[f"v_max_num_{kind}"], rows[f"v_min_num_{kind}"] = rows[f"v_max_{kind}"], rows[f"v_min_{kind}"]
    rows["v_div_scale_f32"] = row("f32 mask = f32 f32 f32", division_scale)
    rows["v_div_scale_f64"] = row("f64 mask = f64 f64 f64", division_scale)
    rows["v_div_fmas_f32"] = row("f32 = f32 f32 f32 mask", _fmas(64))
    rows["v_div_fmas_f64"] = row("f64 = f64 f64 f64 mask", _fmas(128))
    rows["v_rcp_iflag_f32"] = rows["v_rcp_f32"]
    rows["v_mul_legacy_f32"] = rows["v_mul_dx9_zero_f32"] = row(
        "f32 = f32 f32", lambda a, b: np.where((a == 0) | (b == 0), a.dtype.type(0), a * b)
    )
    return rows


def _any16(unknown: Any) -> Any:
    return np.where(unknown != 0, np.uint32(0xFFFF), np.uint32(0))


def _put_byte(value: Any, place: Any, old: Any) -> Any:
    byte = to_integer(value, 0, 255).astype(np.uint32)
    shift = (place & np.uint32(3)) * np.uint32(8)
    return (old & ~(np.uint32(255) << shift)) | (byte << shift)


def _conversions() -> dict[str, OpcodeRow]:
    rows: dict[str, OpcodeRow] = {}
    for to in ("f32", "f64"):
        for source in ("u32", "i32"):
            rows[f"v_cvt_{to}_{source}"] = row(f"{to} = {source}", lambda a, t=DTYPES[to]: a.astype(t))
    for to in ("u32", "i32"):
        for source in ("f32", "f64"):
            low, high = RANGES[to]
            rows[f"v_cvt_{to}_{source}"] = row(
                f"{to} = {source}", lambda a, t=DTYPES[to], l=low, h=high: to_integer(a, l, h).astype(t)
            )
    for whole in ("u16", "i16"):
        low, high = RANGES[whole]
        rows[f"v_cvt_f16_{whole}"] = row(f"f16 = {whole}", lambda a: a.astype(np.float16))
        rows[f"v_cvt_{whole}_f16"] = row(
            f"{whole} = f16", lambda a, t=DTYPES[whole], l=low, h=high: to_integer(a, l, h).astype(t)
        )
    for to, source in (("f16", "f32"), ("f32", "f16"), ("f64", "f32"), ("f32", "f64")):
        rows[f"v_cvt_{to}_{source}"] = row(f"{to} = {source}", lambda a, t=DTYPES[to]: a.astype(t))
    both = tracked(lambda a, b: Partly(0, _pair(_any16(a.unknown), _any16(b.unknown))))
    for name in ("v_cvt_pkrtz_f16_f32", "v_cvt_pk_rtz_f16_f32"):
        rows[name] = row("u32 = f32 f32", lambda a, b: _pair(towards_zero(a), towards_zero(b)), both)
    rows["v_cvt_pk_bf16_f32"] = row("u32 = f32 f32", lambda a, b: _pair(bf16_bits(a), bf16_bits(b)), both)
    rows["v_cvt_nearest_i32_f32"] = rows["v_cvt_rpi_i32_f32"] = row(
        "i32 = f32", lambda a: to_integer(np.floor(a + np.float32(0.5)), *RANGES["i32"]).astype(np.int32)
    )
    rows["v_cvt_floor_i32_f32"] = rows["v_cvt_flr_i32_f32"] = row(
        "i32 = f32", lambda a: to_integer(np.floor(a), *RANGES["i32"]).astype(np.int32)
    )
    for name, low, high, kind in (("i16", -32768, 32767, "i32"), ("u16", 0, 65535, "u32")):
        rows[f"v_cvt_pk_{name}_{kind}"] = row(
            f"u32 = {kind} {kind}",
            lambda a, b, l=low, h=high: _pair(
                np.clip(a, l, h).astype(np.int64) & 0xFFFF, np.clip(b, l, h).astype(np.int64) & 0xFFFF
            ),
        )
        rows[f"v_cvt_pk_{name}_f32"] = row(
            "u32 = f32 f32",
            lambda a, b, l=low, h=high: _pair(to_integer(a, l, h) & 0xFFFF, to_integer(b, l, h) & 0xFFFF),
        )
    rows["v_cvt_pknorm_i16_f32"] = rows["v_cvt_pk_norm_i16_f32"] = row(
        "u32 = f32 f32", lambda a, b: _pair(_normal(a), _normal(b))
    )
    rows["v_cvt_pk_u8_f32"] = row("u32 = f32 u32 u32", _put_byte)
    return rows


def narrow_pair(name: str) -> Any:
    """Return two f32 as two bytes of 8-bit floating point, in the lower bits of a word."""
    return lambda a, b: (
        to_fp8(a, name).astype(np.uint16) | (to_fp8(b, name).astype(np.uint16) << np.uint16(8))
    )


def widen(name: str, select: int = 0) -> Any:
    """Return one byte of 8-bit floating point as f32."""
    return lambda a: FP8_VALUES[name][(a >> np.uint32(8 * select)) & np.uint32(255)]


def widen_pair(name: str) -> Any:
    """Return two bytes of 8-bit floating point as two f32, in 64 bits."""

    def widened(half: Any) -> Any:
        low, high = (
            FP8_VALUES[name][(half >> np.uint16(8 * i)) & np.uint16(255)].view(np.uint32) for i in (0, 1)
        )
        return low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))

    return widened


FLOATS = {**_plain_rows(), **_conversions()}


# ---------------------------------------------------------------- comparisons: one bit for each lane


_INTEGER: dict[str, Any] = {
    "f": lambda a, b: np.zeros(np.broadcast_shapes(a.shape, b.shape), np.bool_),
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "ne": np.not_equal,
    "ge": np.greater_equal,
    "t": lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), np.bool_),
}
_FLOAT: dict[str, Any] = {
    **{name: _INTEGER[name] for name in ("f", "lt", "eq", "le", "gt", "ge", "t")},
    "tru": _INTEGER["t"],
    "lg": lambda a, b: (a < b) | (a > b),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b),
    "neq": lambda a, b: ~(a == b),
    "nlt": lambda a, b: ~(a < b),
}


def _rows() -> dict[str, tuple[tuple[str, str], Any]]:
    rows: dict[str, tuple[tuple[str, str], Any]] = {}
    for kind in ("f16", "f32", "f64"):
        for name, function in _FLOAT.items():
            rows[f"{name}_{kind}"] = ((kind, kind), function)
        rows[f"class_{kind}"] = (
            (kind, "u16" if kind == "f16" else "u32"),
            lambda a, mask: (classes(a) & mask.astype(np.uint32)) != 0,
        )
    for kind in ("u16", "i16", "u32", "i32", "u64", "i64"):
        for name, function in _INTEGER.items():
            rows[f"{name}_{kind}"] = ((kind, kind), function)
    return rows


COMPARISONS = _rows()
"""Kinds of both operands, and the function, by the name after ``v_cmp_`` or ``v_cmpx_``."""
