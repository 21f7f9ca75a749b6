"""Small products: a block computes the same tile of several batch items, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.lang.control import let
from tilewright.lang.control import range as traced_range
from tilewright.lang.launch import batch_index
from tilewright.lang.scalars import Index, ceil_div, minimum
from tilewright.schedule.partition import DataParallel, TiledProblem, TileOrder, Work, unflattened


class Batches(DataParallel):
    """A block for each tile of several batch items that follow each other in memory.

    Args:
        problem: what is computed; it has leading dimensions.
        order: of tiles; None: the grid's own.
        cluster: blocks along M and along N that run together.
        each: how many batch items a block computes, of which the last block has what is left.
    """

    def __init__(
        self, problem: TiledProblem, order: TileOrder | None, cluster: tuple[int, int], each: int
    ) -> None:
        self.each = each
        super().__init__(problem, order, cluster)

    def _batch(self) -> tuple[Index, ...]:
        """Nothing yet: the items are counted in a loop."""
        self.first = let(batch_index(ceil_div(self.problem.batches, self.each)) * self.each)
        return ()

    def items(self, each: int = 1, group: Index = 0) -> Iterator[Work]:
        """The block's tile of one batch item after the other."""
        (m, n), extents = self.place, self.problem.batch
        for number in traced_range(minimum(self.problem.batches - self.first, self.each)):
            item = self.first + number
            batch = unflattened(item if len(extents) == 1 else let(item), extents)
            yield Work(batch, m, n, number * self.steps, self.steps, number, group, self.segment)
