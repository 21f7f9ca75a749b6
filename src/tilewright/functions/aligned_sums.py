"""Sums of a matrix unit: addends are aligned to the largest one and cut off, on NumPy arrays, bit by bit.

A unit adds the products of a group of neighbouring k to the accumulator at once.  It aligns all addends to
the largest exponent among them, cuts each off towards zero ``bits`` places below that exponent, adds what is
left exactly, and rounds the sum to the accumulator's dtype.  The exponent of a product is the sum of the
exponents of its factors, which may be one less than that of its leading bit.

Source: Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021, sections 3.3-3.6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.functions.conversions import Array, rounded, widen


@dataclass(frozen=True)
class AlignedSum:
    """How a matrix unit adds products to an accumulator.

    Args:
        bits: places below the largest exponent that are kept of each addend.
        group: neighbouring k whose products are added at once.
        rounding: how the sum becomes a number of the accumulator, ``"truncate"`` or ``"nearest"``.
        by_factors: whether a product's exponent is the sum of those of its factors, not that of its leading
            bit.
    """

    bits: int
    group: int
    rounding: str = "truncate"
    by_factors: bool = True

    def add(self, a: Array, b: Array, c: Array, element: DType) -> Array:
        """``c + a @ b.T``, one group along K after the other.

        Args:
            a: (M, K) in f64, whose products with B's elements are exact in f64.
            b: (N, K), likewise.
            c: (M, N), an array of the accumulator.
            element: dtype of the accumulator.
        """
        depth = a.shape[1]
        for start in range(0, depth, self.group):
            part = slice(start, start + self.group)
            c = self._add_group(a[:, part], b[:, part], c, element)
        return c

    def _add_group(self, a: Array, b: Array, c: Array, element: DType) -> Array:
        wide = widen(c, element).astype(np.float64)
        with np.errstate(all="ignore"):
            products = a[:, None, :] * b[None, :, :]
            powers = _power(a)[:, None, :] * _power(b)[None, :, :]
            sizes = powers if self.by_factors else _power(products)
            top = np.maximum(sizes.max(axis=2, initial=0.0), _power(wide))
            places = np.where(top > 0, 2.0**self.bits / top, 1.0)
            kept = np.trunc(products * places[..., None]).sum(axis=2) + np.trunc(wide * places)
            total = kept / places
            made = _truncated(total, element) if self.rounding == "truncate" else rounded(total, element)
            is_finite = np.isfinite(products).all(axis=2) & np.isfinite(wide)
            if is_finite.all():
                return made
            return np.where(is_finite, made, rounded(products.sum(axis=2) + wide, element))


def _power(values: Array) -> Array:
    """The largest power of two that is no larger than each number in size; 0 of zero."""
    mantissa, exponent = np.frexp(values)
    return np.where(mantissa != 0, np.ldexp(0.5, exponent), 0.0)


def _truncated(values: Array, element: DType) -> Array:
    """Numbers of f64 as those of a dtype, towards zero; beyond its largest number infinite."""
    near = rounded(values, element)
    back: Any = widen(near, element).astype(np.float64)
    integers = near.view(np.uint16 if element.bits == 16 else np.uint32)
    too_large = (np.abs(back) > np.abs(values)) & np.isfinite(back)
    made: Array = (integers - too_large.astype(integers.dtype)).view(near.dtype)
    return made
