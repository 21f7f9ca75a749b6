"""Conversions of numbers between dtypes, and sums as a matrix unit computes them, on NumPy arrays.

Types narrower than f32 compute in f32 and round once; f64 computes in f64.  Integers wrap.  Conversions of
floats to integers truncate and saturate; NaN becomes 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from tilewright.dtypes import DType, f16, f32, limits
from tilewright.packing import patterns

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def clamped_in(computed: DType, target: DType) -> DType:
    """Return the dtype in which a saturating conversion clamps: the wider float, which holds both ranges.

    Args:
        computed: the dtype in which the source computes.
        target: the dtype to convert to.

    Example:
        >>> from tilewright.dtypes import f16, f64, i8
        >>> clamped_in(f32, f64), clamped_in(f32, f16), clamped_in(i8, f64)
        (f64, f32, i8)
    """
    widens = computed.is_float and target.is_float and target.bits > computed.bits
    return target if widens else computed


def saturation(computed: DType, target: DType) -> tuple[float, float] | None:
    """Return the bounds to which a saturating conversion clamps; None if it need not clamp.

    Args:
        computed: the dtype in which it clamps, of `clamped_in`.
        target: the dtype to convert to.

    Example:
        >>> from tilewright.dtypes import f8e4m3, i8, i32, u8
        >>> saturation(f32, f8e4m3), saturation(i8, u8), saturation(i32, f8e4m3), saturation(f32, i8)
        ((-448.0, 448.0), (0, 127), (-448, 448), None)
    """
    if {"bool"} & {computed.kind, target.kind} or max(target.components, computed.components) > 1:
        return None
    low, high = limits(target)
    if computed.is_float:
        return (low, high) if target.is_float else None
    least, most = limits(computed)
    ends = int(max(low, least)), int(min(high, most))
    return None if low <= least and most <= high else ends


@np.errstate(all="ignore")
def widen(values: Array, dtype: DType) -> Array:
    """Convert an array exactly to the dtype in which its ``dtype`` computes."""
    if dtype.name == "c32":
        pair: Array = np.empty(values.shape, np.complex64)
        pair.real, pair.imag = values["re"], values["im"]
        return pair
    return values.astype(dtype.computed.numpy)


def convert(values: Array, source: DType, target: DType) -> Array:
    """``target(values)``, rounded once to nearest even.

    Args:
        values: array of ``source.numpy``.
        source: the dtype of the values.
        target: the dtype to convert to.

    Example:
        >>> from tilewright.dtypes import f16, f32, i8
        >>> convert(np.float32([2049.0, -1.75]), f32, f16).tolist()
        [2048.0, -1.75]
        >>> convert(np.float32([300.0, -1.75, np.nan]), f32, i8).tolist()
        [127, -1, 0]
    """
    if source == target:
        return values
    return rounded(widen(values, source), target)


@np.errstate(all="ignore")
def rounded(wide: Array, target: DType) -> Array:
    """Round numbers of a computing dtype once to ``target``, to nearest even.

    Example:
        >>> from tilewright.dtypes import f16, i8
        >>> rounded(np.float64([2049.0, 1e9]), f16).tolist(), rounded(np.float64([-300.0]), i8).tolist()
        ([2048.0, inf], [-128])
    """
    if target.is_packed:  # floats beyond its range are clamped, and integers wrap
        if target.is_float or wide.dtype.kind == "f":
            bits = patterns(_f64(wide), target)
        else:
            bits = (wide.astype(np.int64) & (1 << target.bits) - 1).astype(np.uint8)
        signed = bits if target.is_float else (bits.astype(np.int8) << 4 >> 4).view(np.uint8)
        return np.asarray(signed).view(target.numbers)
    if target.components == 2:
        if target.name != "c32":
            return wide.astype(target.numpy)
        pair = np.empty(wide.shape, target.numpy)
        pair["re"], pair["im"] = rounded(wide.real, f16), rounded(wide.imag, f16)
        return pair
    if np.iscomplexobj(wide):
        wide = wide.real
    if target.kind == "bool":
        return np.asarray(wide != 0)
    if target.is_float:
        # ml_dtypes rounds through f32, as NumPy does from longdouble to f16; an odd last bit on the way keeps
        # the second rounding from seeing a tie.
        if target.bits < 32 and target != f16 and wide.dtype.itemsize > 2:
            wide = _odd(_f64(wide), np.float32)
        elif wide.dtype == np.longdouble and target == f16:
            wide = _f64(wide)
        return wide.astype(target.numpy)
    if wide.dtype.kind != "f":
        return np.asarray(wide, target.numpy)
    ends = np.iinfo(target.numpy)
    inside = np.nan_to_num(wide, nan=0.0, posinf=np.inf, neginf=-np.inf)
    result: Array = np.array(np.clip(inside, float(ends.min), float(ends.max)), target.numpy)
    # The largest 64-bit integer is no float, so numbers from the next power of two on are set separately.
    result[inside >= float(ends.max)] = ends.max
    return result


def number(value: float | int, target: DType) -> Array:
    """Convert a plain number to ``target``, rounded once; for a complex target the imaginary part is 0.

    Example:
        >>> from tilewright.dtypes import c32, f32
        >>> number(1e300, f32).item(), number(2, c32).item()
        (inf, (2.0, 0.0))
    """
    if not target.is_float:
        return np.asarray(value, target.numpy)
    return rounded(np.asarray(value, np.float64), target)


def _f64(wide: Array) -> Array:
    """Convert numbers to f64, rounded to odd: the last bit is set if any bit was lost."""
    if wide.dtype == np.longdouble:
        return _odd(wide, np.float64)
    if wide.dtype not in (np.int64, np.uint64):
        return wide.astype(np.float64)
    size = np.abs(wide).view(np.uint64)
    odd = (size & ~np.uint64(0x7FF)) | (((size & np.uint64(0x7FF)) != 0).astype(np.uint64) << np.uint64(11))
    return np.where(wide < 0, -1.0, 1.0) * np.where(size >> np.uint64(53), odd, size).astype(np.float64)


def _odd(wide: Array, narrow: type[np.float32 | np.float64]) -> Array:
    """Narrow floats, rounded to odd: truncated, and the last bit is set if any bit was lost."""
    near = wide.astype(narrow)
    bits = near.view(np.uint32 if narrow is np.float32 else np.uint64)
    away = np.isfinite(near) & (np.abs(near) > np.abs(wide))
    lost = np.isfinite(near) & (near != wide)
    odd: Array = ((bits - away.astype(bits.dtype)) | lost.astype(bits.dtype)).view(narrow)
    return odd


def narrowed(wide: Array, target: DType) -> Array:
    """Round numbers once, to the NumPy dtype that computes for ``target``."""
    return wide if wide.dtype == target.numpy else rounded(wide, target)


@np.errstate(all="ignore")
def saturated(values: Array, source: DType, target: DType) -> Array:
    """``target(values)`` clamped to its finite range first; NaN stays NaN where the target has one.

    Example:
        >>> from tilewright.dtypes import f8e4m3, f32, i8, i32
        >>> saturated(np.float32([1000.0, -np.inf, 1.0]), f32, f8e4m3).tolist()
        [448.0, -448.0, 1.0]
        >>> saturated(np.int32([300, -300]), i32, i8).tolist()
        [127, -128]
    """
    kind = clamped_in(f32 if source.is_float and source.bits < 32 else source, target)
    ends = saturation(kind, target)
    if ends is None:
        return convert(values, source, target)
    wide = widen(values, source).astype(kind.numpy)
    low, high = (wide.dtype.type(end) for end in ends)
    return rounded(np.where(wide > high, high, np.where(wide < low, low, wide)), target)


def keep_fraction(values: Array, bits: int, rounding: str = "nearest") -> Array:
    """Return f32 values with ``bits`` fraction bits: rounded to nearest, ties away from zero, or truncated.

    Numbers that rounding would make infinite are truncated instead.  The instruction ``cvt.rna.tf32.f32`` of
    the PTX ISA makes them infinite.

    Example:
        >>> keep_fraction(np.float32([1 + 2**-11, 1 + 2**-12]), 10).tolist()
        [1.0009765625, 1.0]
        >>> keep_fraction(np.float32([1 + 2**-11, 1 + 2**-10]), 10, "truncate").tolist()
        [1.0, 1.0009765625]
        >>> bool(np.isfinite(keep_fraction(np.finfo(np.float32).max, 10)))
        True
    """
    dropped = 23 - bits
    raw = np.asarray(values, np.float32).view(np.uint32)
    half = np.uint32(1 << (dropped - 1) if rounding == "nearest" else 0)
    is_below = raw & np.uint32(0x7FFFFFFF) < np.uint32(0x7F800000) - half
    rounded = (raw + np.where(is_below, half, np.uint32(0))) & np.uint32((0xFFFFFFFF << dropped) & 0xFFFFFFFF)
    return np.where(np.isfinite(values), rounded, raw).view(np.float32)


# ---------------------------------------------------------------- sums of a matrix unit
# Addends are aligned to the largest one and truncated; the result has the bits of the hardware.
#
# A unit adds the products of a group of neighbouring k to the accumulator at once. It aligns all addends to
# the largest exponent among them, truncates each ``bits`` places below that exponent, adds the truncated
# numbers exactly, and rounds the sum. The exponent of a product is the sum of the exponents of its factors,
# one less than that of its leading bit if the product of both mantissas is 2 or more; a denormal factor has
# the exponent of the least normal number.
#
# Source: Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021, sections
# 3.3-3.6; exponents and groups as `benchmarks/sum_bits.py` measured them on an H100.


@dataclass(frozen=True)
class AlignedSum:
    """Parameters of the addition of products to an accumulator by a matrix unit.

    Args:
        bits: binary places below the largest exponent to which each addend is truncated.
        group: number of neighbouring k whose products are added at once.
        rounding: how the sum is rounded, ``"truncate"`` or ``"nearest"``.
        fraction: fraction bits of the sum; None: those of the accumulator's dtype.
        zeros: whether a zero factor has the exponent of the least normal number, so that its product may be
            the largest addend.
    """

    bits: int
    group: int
    rounding: str = "truncate"
    fraction: int | None = None
    zeros: bool = True

    def lost(self, products: int, element: DType) -> float:
        """Return the largest error of a sum, relative to the sum of the absolute values of its products.

        In each group every product and the accumulator lose up to ``2**-bits`` of the largest addend, and the
        sum is truncated.  No addend is larger than the sum of the absolute values so far.

        Args:
            products: number of products that are added to one accumulator.
            element: dtype of the accumulator.

        Example:
            >>> from tilewright.dtypes import f32
            >>> AlignedSum(25, 16).lost(16, f32) * 2**24
            10.5
        """
        fraction = element.mantissa if self.fraction is None else self.fraction
        groups = -(-products // self.group)
        return groups * ((self.group + 1) * 2.0**-self.bits + 2.0**-fraction)

    def add(self, a: Array, b: Array, c: Array, dtypes: tuple[DType, DType, DType]) -> Array:
        """``c + a @ b.T``, one group along K after the other.

        Args:
            a: (M, K) in f64, numbers of A's dtype, whose products with B's are exact in f64.
            b: (N, K), in f64, as ``a``.
            c: (M, N), an array of the accumulator.
            dtypes: the dtypes of A, B and the accumulator.

        Example:
            >>> from tilewright.dtypes import f16, f32
            >>> a, b = np.array([[1.0, 2.0**-13, 2.0**-13]]), np.array([[1.0, 2.0**-12, 2.0**-13]])
            >>> AlignedSum(25, 3).add(a, b, np.float32([[-1]]), (f16, f16, f32)).tolist() == [[2.0**-25]]
            True
        """
        element = dtypes[2]
        *least, smallest = (2.0 ** ml_dtypes.finfo(kind.numpy).minexp for kind in dtypes)  # type: ignore[no-untyped-call]
        fraction = element.mantissa if self.fraction is None else self.fraction
        for start in range(0, a.shape[1], self.group):
            wide = widen(c, element).astype(np.float64)
            left, right = (np.ascontiguousarray(x[:, start : start + self.group].T) for x in (a, b))
            with np.errstate(all="ignore"):
                products = left[:, :, None] * right[:, None, :]
                is_finite = all(np.isfinite(x).all() for x in (left, right, wide))
                plain = None if is_finite else products.sum(axis=0) + wide
                powers = _power(left, least[0])[:, :, None] * _power(right, least[1])[:, None, :]
                if not self.zeros:
                    powers *= products != 0
                top = np.maximum(powers.max(axis=0), _power(wide, smallest))
                places = 2.0**self.bits / top
                np.multiply(products, places, out=products)
                np.trunc(products, out=products)
                total = (products.sum(axis=0) + np.trunc(wide * places)) / places
                if self.rounding == "truncate":
                    unit = _power(total, smallest) * 2.0**-fraction
                    total = np.trunc(total / unit) * unit
                c = rounded(total, element)  # sums beyond its range become infinite
                if plain is not None:
                    c = np.where(np.isfinite(plain), c, rounded(plain, element))
        return c


def _power(values: Array, least: float) -> Array:
    """Return the largest power of two that is at most ``abs(x)``, but at least ``least``, for each number."""
    exponents: Any = values.view(np.int64) & np.int64(0x7FF << 52)
    return np.asarray(np.maximum(exponents.view(np.float64), least))
