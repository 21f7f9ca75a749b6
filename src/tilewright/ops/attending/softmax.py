"""Constants of the online softmax that ``flow.py`` computes between the two products of attention.

For each row, the loop keeps the largest score and the sum of the weights so far, and computes the factor that
rescales earlier sums.

A weight is ``exp2(fma(score, exponent, -base))`` with ``base = round(largest * exponent)``: one instruction
before the exponential.  The rounding error of the base is a factor that all weights of a row share, at most
2**4 while the base is below `STEEP`, and so cancels in their average.  Above it the error would grow to
infinity or 0.  There neighbours among the numbers of f32 lie 8 or more apart as exponents, so every score but
the largest weighs less than 2**-7, and the exponent of the row is rounded up to a power of two: its product
with the largest score is exact, and the largest weight is 1.

An exponent above 1 could overflow in that product.  Then the largest score is subtracted first, which costs
one more instruction for each score.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.dtypes import f32, limits

FAINT = 2.0**-64
"""Scales below this multiply scores in two steps, so that the exponent fits f32."""

NEVER_0 = 2.0**-100
"""Replaces a scale of 0 in the second step: its product with an f32 score after the first is below 2**-36."""

STEEP = 2.0**27
"""Least base for which the exponent of a row is rounded up to a power of two."""

LOWEST = limits(f32)[0]
"""Initial largest score of a row. With -inf instead, the difference to a hidden score would be NaN."""


@dataclass(frozen=True)
class BySoftmax:
    """Weights are the exponentials of scores over their sum.

    Args:
        factor: the first factor of the scale, which multiplies scores before anything else: 1, or -1 for a
            negative scale, times `FAINT` for a scale close to 0.
        power: a power of two not below the exponent; 0 if the exponent exceeds 1.
    """

    factor: float = 1.0
    power: float = 1.0

    @staticmethod
    def of(scale: float) -> tuple[BySoftmax, float]:
        """Return the softmax of scaled scores, and the exponent argument of its kernels.

        The exponent is ``abs(scale) * log2(e)`` without the first factor.  It is more than 0: a score that
        is hidden is -inf, which times 0 is NaN.
        """
        size, factor = (abs(scale), 1.0) if abs(scale) >= FAINT else (abs(scale) / FAINT, FAINT)
        exponent = max(size, NEVER_0) * math.log2(math.e)
        power = 0.0 if exponent > 1 else 2.0 ** math.ceil(math.log2(exponent))
        return BySoftmax(math.copysign(factor, scale), power), exponent
