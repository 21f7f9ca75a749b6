"""The online softmax that kernels of attention compute between their two products.

For each row, it keeps the largest score and the sum of the weights so far, and computes the factor that
rescales earlier sums.  It is the fold of ``flow.py``, in registers.

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
from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.control import when
from tilewright.lang.exact_functions import absolute, fma, maximum, where
from tilewright.lang.fragments import Fragment, Number
from tilewright.lang.functions import exp2, log2
from tilewright.lang.scalars import Index
from tilewright.lang.tile_arithmetic import causal_mask, coordinates, reduce_max, reduce_sum

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

    def begin(self, mma: TiledMma, exponent: Number) -> Softmax:
        """Return the initial state of the rows of a tile."""
        return Softmax(mma, exponent, factor=self.factor, power=self.power)


class Softmax:
    """The state of the rows of one tile of queries.

    Args:
        mma: the MMA of queries and keys; its accumulator is a tile of scores.
        exponent: multiplies differences of scores, as weights are powers of two; more than 0.
        factor: multiplies scores first.
        power: see `BySoftmax`.
    """

    def __init__(self, mma: TiledMma, exponent: Number, *, factor: float, power: float) -> None:
        rows, self.keys = mma.c().shape
        self.exponent, self.factor, self.power = exponent, factor, power
        self.largest = tw.fragment(mma.c().projected((rows, 1)), f32, LOWEST)
        self.base = tw.fragment(self.largest, fill=LOWEST * power) if power else None
        self.total = tw.fragment(self.largest, fill=0)
        self.decay = tw.fragment(self.largest, fill=1)

    def hide(self, scores: Fragment, begin: Index, keys: Index, seen: Index | None) -> None:
        """Set the scores of keys that do not exist, or that a row does not see, to -inf.

        Args:
            scores: a tile of scores.
            begin: the number of its first key.
            keys: the number of keys.
            seen: the last key that the tile's first row sees; the next row sees one more.  None: every row
                sees all of them.
        """
        if self.factor != 1:
            scores.assign(-scores if self.factor == -1 else scores * self.factor)
        with when(begin + self.keys > keys):
            scores.assign(where(coordinates(scores, 1) < keys - begin, scores, -math.inf))
        if seen is not None:
            with when(begin + self.keys > seen + 1):
                scores.assign(causal_mask(scores, seen, begin))

    def weigh(self, scores: Fragment) -> None:
        """Turn a tile of scores into weights, and set `decay`, the factor that rescales earlier sums."""
        highest = maximum(self.largest, reduce_max(scores, 1))
        if self.base is None:
            scores.assign(exp2((scores - highest) * self.exponent))
            self.decay.assign(exp2((self.largest - highest) * self.exponent))
        else:
            exponent = where(absolute(highest * self.exponent) < STEEP, self.exponent, self.power)
            base = highest * exponent
            scores.assign(exp2(fma(scores, exponent, -base)))
            self.decay.assign(exp2(self.base - base))
            self.base.assign(base)
        self.total.assign(fma(self.total, self.decay, reduce_sum(scores, 1)))
        self.largest.assign(highest)

    def averages(self, sums: Fragment) -> Fragment:
        """Divide weighted sums of values by the sums of weights; 0 in a row that has seen no key.

        Each row has one division, 1 by its sum.  A division takes sixteen instructions and a branch, and a
        GPU does not overlap divisions, so one for each element would be slow.
        """
        made: Fragment = where(self.total == 0, 0.0, sums * (1.0 / self.total))
        return made

    def log_sum_exp(self) -> Fragment:
        """``log(sum(exp(scale * scores)))`` of each row: -inf in a row that has seen no key."""
        made: Fragment
        if self.base is None:  # the product of the largest score and the exponent may overflow
            made = fma(self.largest, self.exponent * math.log(2), log2(self.total) * math.log(2))
        else:
            made = (log2(self.total) + self.largest * self.exponent) * math.log(2)
        return made
