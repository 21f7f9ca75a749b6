"""Weights that are widened in memory before they are multiplied, which pays where many rows share them.

One pass reads the narrow numbers and writes them, exactly, in the dtype of the multiplication; the product
then is one of two operands of one width, which bulk copies bring and ``wgmma`` takes as they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from tilewright.dtypes import DType
from tilewright.lang import operations as tw
from tilewright.lang.launch import batch_index, block_index
from tilewright.lang.scalars import ceil_div
from tilewright.ops.grades import MOST_RANK
from tilewright.ops.halves import Part, once
from tilewright.ops.launching import Launch, LaunchPlan
from tilewright.ops.recalled import OWN
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.kernel import Bound, Kernel, kernel
from tilewright.threads.distribution import raked

SPREAD = raked((8, 512), (8, 32), 16, 1)
"""Which threads widen what: a warp for each row, 16 bytes of narrow numbers at once for each thread."""

UNIT = 8
"""Elements that rows are a multiple of, as bulk copies ask."""


@lru_cache(maxsize=MOST_RANK + 1)
def widen(rank: int) -> Kernel:
    """``Y[..., r, c] = X[..., r, c]``, in the dtype of Y, with so many dimensions of batches."""
    lead = "".join(f"B{dim} " for dim in range(rank))

    @kernel(X=f"{lead}R C", Y=f"{lead}R C")
    def widened_in_memory(X: Any, Y: Any) -> None:
        tile = SPREAD.shape
        r, c = block_index(ceil_div(X.shape[-2:], tile))
        batch = tuple(batch_index(extent) for extent in X.shape[:-2])
        tw.copy(tw.load(X[batch].tile(tile, (r, c)), SPREAD).to(Y.dtype), Y[batch].tile(tile, (r, c)))

    return widened_in_memory


@dataclass(frozen=True)
class Wide:
    """An operand and its wide copy, both as (batches, rows, columns) with contiguous rows.

    Args:
        given: the operand.
        copy: what lies in scratch memory.
        turned: whether rows and columns are those of the operand exchanged.
    """

    given: Strided
    copy: Part
    turned: bool

    @staticmethod
    def of(seen: Strided, dtype: DType) -> Wide:
        """The wide copy of an operand, in the order of memory that it has."""
        info = seen.info
        turned = info.strides[-2] == 1 and info.strides[-1] != 1
        shape, strides = (_turned(values, turned) for values in (info.shape, info.strides))
        *batch, rows, columns = shape
        pitch = -(-columns // UNIT) * UNIT
        own = [extent if step else 1 for extent, step in zip(batch, strides, strict=False)]
        lead = [step and pitch * rows * prod(own[at + 1 :]) for at, step in enumerate(strides[:-2])]
        given = Strided(seen.array, replace(info, shape=shape, strides=strides))
        return Wide(given, Part(dtype, shape, (*lead, pitch, 1)), turned)

    def launch(self) -> Launch:
        """The launch that widens it; what repeats along a batch is widened once."""
        rank = len(self.copy.shape) - 2
        arrays = tuple(once(one, rank) for one in (self.given, self.copy.at(0, self.given)))
        return Launch(widen(rank).bind(), arrays, (1, OWN))

    def seen(self) -> Strided:
        """The wide copy with the extents of the operand."""
        placed = self.copy.at(0, self.given)
        shape, strides = (_turned(of, self.turned) for of in (placed.info.shape, placed.info.strides))
        return Strided(placed.array, replace(placed.info, shape=shape, strides=strides))


def _turned(values: tuple[int, ...], turned: bool) -> tuple[int, ...]:
    return (*values[:-2], values[-1], values[-2]) if turned else tuple(values)


REASON = "a pass widens narrow weights once for all rows"


def plan_product(bound: Bound, seen: Sequence[Strided], numbers: tuple[complex, ...]) -> LaunchPlan:
    """The launches that widen operand B, and multiply.

    Args:
        bound: the kernel of the product, which multiplies operands of one dtype.
        seen: its arrays, the operands first.
        numbers: its numbers.
    """
    a, b, *rest = seen
    wide = Wide.of(b, a.info.dtype)
    places = (0, OWN, *range(2, 2 + len(rest)))
    launches = wide.launch(), Launch(bound, (a, wide.seen(), *rest), places, numbers)
    return LaunchPlan(launches, tuple(seen), wide.copy.bytes, REASON)
