"""Products of two matrices with a function of each element between them: what stands in a softmax's place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.ir.mma import TiledMma
from tilewright.lang.fragments import Fragment
from tilewright.lang.scalars import Index
from tilewright.ops.ending import ACTIVATIONS


@dataclass(frozen=True)
class ByActivation:
    """Weights are a function of the scores; rows have no state.

    Args:
        activation: the name of the function; None: scores themselves.
    """

    activation: str | None
    decay = None
    """Sums with earlier weights stay as they are."""

    def begin(self, mma: TiledMma, exponent: Any) -> ByActivation:
        """What does the work for a tile: the same for all of them."""
        return self

    def hide(self, scores: Fragment, begin: Index, keys: Index, seen: Index | None) -> None:
        """Nothing: rows of the second matrix that do not exist are zeros."""

    def weigh(self, scores: Fragment) -> None:
        """Apply the function."""
        if self.activation is not None:
            scores.assign(ACTIVATIONS[self.activation](scores))

    def averages(self, sums: Fragment) -> Fragment:
        """The sums are the result."""
        return sums
