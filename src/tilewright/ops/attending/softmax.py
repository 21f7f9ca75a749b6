"""The softmax of rows whose scores come in tiles: what every kernel of attention does between its products.

Of each row it keeps the largest exponent so far and the sum of the weights so far, and says by how much what
was summed up before shrinks: the fold of ``flow.py``, in registers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.dtypes import f32
from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.control import when
from tilewright.lang.exact_functions import fma, maximum, where
from tilewright.lang.fragments import Fragment, Number
from tilewright.lang.functions import exp2, log2
from tilewright.lang.scalars import Index
from tilewright.lang.tile_arithmetic import causal_mask, coordinates, reduce_max, reduce_sum


@dataclass(frozen=True)
class BySoftmax:
    """Weights are the exponentials of scores over their sum.

    Args:
        negated: whether the scale is negative.
    """

    negated: bool

    def begin(self, mma: TiledMma, exponent: Number) -> Softmax:
        """The state of the rows of a tile; see `Softmax`."""
        return Softmax(mma, exponent, negated=self.negated)


class Softmax:
    """The state of the rows of one tile of queries.

    Args:
        mma: what multiplies queries by keys; its accumulator is a tile of scores.
        exponent: ``abs(scale) * log2(e)``, more than 0, as weights are powers of two.
        negated: whether the scale is negative.
    """

    def __init__(self, mma: TiledMma, exponent: Number, *, negated: bool) -> None:
        rows, self.keys = mma.c().shape
        self.exponent, self.negated = exponent, negated
        self.largest = tw.fragment(mma.c().projected((rows, 1)), f32, -math.inf)
        self.total = tw.fragment(self.largest, fill=0)
        self.decay = tw.fragment(self.largest, fill=1)

    def hide(self, scores: Fragment, begin: Index, keys: Index, seen: Index | None) -> None:
        """Hide keys that do not exist, and those that a row does not see.

        Args:
            scores: a tile of scores.
            begin: the number of its first key.
            keys: how many there are in all.
            seen: the last key that the tile's first row sees; the next row sees one more.  None: every row
                sees all of them.
        """
        if self.negated:
            scores.assign(-scores)
        with when(begin + self.keys > keys):
            scores.assign(where(coordinates(scores, 1) < keys - begin, scores, -math.inf))
        if seen is not None:
            with when(begin + self.keys > seen + 1):
                scores.assign(causal_mask(scores, seen, begin))

    def weigh(self, scores: Fragment) -> None:
        """Make weights of a tile of scores; `decay` is by how much sums with earlier weights shrink."""
        highest = maximum(self.largest, self.exponent * reduce_max(scores, 1))
        base = where(highest == -math.inf, 0.0, highest)  # of a row that has seen no key
        scores.assign(exp2(fma(scores, self.exponent, -base)))
        self.decay.assign(exp2(self.largest - base))
        self.total.assign(fma(self.total, self.decay, reduce_sum(scores, 1)))
        self.largest.assign(highest)

    def averages(self, sums: Fragment) -> Fragment:
        """The weighted averages of the values, of their weighted sums: 0 in a row that has seen no key.

        A row has one division, of 1 by its sum: one for each element is sixteen instructions and a branch
        each, of which a GPU begins none before the last one has ended.
        """
        made: Fragment = where(self.total == 0, 0.0, sums * (1.0 / self.total))
        return made

    def log_sum_exp(self) -> Fragment:
        """``log(sum(exp(scale * scores)))`` of each row: -inf in a row that has seen no key."""
        made: Fragment = (log2(self.total) + self.largest) * math.log(2)
        return made
