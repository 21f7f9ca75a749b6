"""Sums of a matrix unit: addends are aligned to the largest one and cut off, on NumPy arrays, bit by bit.

A unit adds the products of a group of neighbouring k to the accumulator at once.  It aligns all addends to
the largest exponent among them, cuts each off towards zero ``bits`` places below that exponent, adds what is
left exactly, and rounds the sum.  The exponent of a product is the sum of the exponents of its factors, one
less than that of its leading bit if the product of both mantissas is 2 or more; a denormal factor has the
exponent of the least normal number.

Source: Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021, sections 3.3-3.6;
exponents and groups as `benchmarks/sum_bits.py` measured them on an H100.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.dtypes import DType
from tilewright.functions.conversions import Array, rounded, widen


@dataclass(frozen=True)
class AlignedSum:
    """How a matrix unit adds products to an accumulator.

    Args:
        bits: places below the largest exponent that are kept of each addend.
        group: neighbouring k whose products are added at once.
        rounding: how the sum is rounded, ``"truncate"`` or ``"nearest"``.
        fraction: fraction bits of the sum; None: those of the accumulator's dtype.
        zeros: whether a factor of zero has an exponent, that of the least normal number, so that its product
            may be the largest addend.
    """

    bits: int
    group: int
    rounding: str = "truncate"
    fraction: int | None = None
    zeros: bool = True

    def lost(self, products: int, element: DType) -> float:
        """What sums of so many products lose at most, as a share of the sum of the products' sizes.

        In each group every product and the accumulator lose up to ``2**-bits`` of the largest addend, and the
        sum is truncated.  No addend is larger than the sum of all sizes so far.

        Args:
            products: how many are added to one accumulator.
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
            b: (N, K), likewise.
            c: (M, N), an array of the accumulator.
            dtypes: those of A, B and the accumulator.

        Example:
            >>> from tilewright.dtypes import f16, f32
            >>> a, b = np.array([[1.0, 2.0**-13, 2.0**-13]]), np.array([[1.0, 2.0**-12, 2.0**-13]])
            >>> AlignedSum(25, 3).add(a, b, np.float32([[-1]]), (f16, f16, f32)).tolist() == [[2.0**-25]]
            True
        """
        for start in range(0, a.shape[1], self.group):
            part = slice(start, start + self.group)
            c = self._add_group(a[:, part], b[:, part], c, dtypes)
        return c

    def _add_group(self, a: Array, b: Array, c: Array, dtypes: tuple[DType, DType, DType]) -> Array:
        *least, smallest = (2.0 ** ml_dtypes.finfo(kind.numpy).minexp for kind in dtypes)  # type: ignore[no-untyped-call]
        wide = widen(c, dtypes[2]).astype(np.float64)
        left, right = (np.ascontiguousarray(x.T) for x in (a, b))
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
            made = self._round(total, dtypes[2], smallest)
            return made if plain is None else np.where(np.isfinite(plain), made, rounded(plain, dtypes[2]))

    def _round(self, total: Array, element: DType, smallest: float) -> Array:
        """A sum as a number of the accumulator; beyond the largest one infinite."""
        if self.rounding == "nearest":
            return rounded(total, element)
        fraction = element.mantissa if self.fraction is None else self.fraction
        unit = _power(total, smallest) * 2.0**-fraction
        return rounded(np.trunc(total / unit) * unit, element)


def _power(values: Array, least: float) -> Array:
    """The largest power of two that is no larger than each number in size, and at least ``least``."""
    exponents: Any = values.view(np.int64) & np.int64(0x7FF << 52)
    return np.asarray(np.maximum(exponents.view(np.float64), least))
