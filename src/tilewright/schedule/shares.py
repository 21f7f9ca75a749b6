"""Equal shares of the rows and of the columns, a block for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.lang.launch import derived
from tilewright.lang.scalars import Index, ceil_div, maximum, minimum
from tilewright.lang.tensors import Tensor
from tilewright.schedule.partition import DataParallel, TiledProblem, Work


class Shares(DataParallel):
    """A block for each of equal shares of the rows and of the columns; none is larger than a tile.

    What a block computes is the one tile of a problem of its own: `of` gives its part of each array.

    Args:
        problem: what is computed.
        units: shares are multiples of so many rows and columns.
        splits: parts of K; 0: all of K is one.
        unit: steps of which parts are multiples, but for the last one.
        clustered: whether the blocks of a share's parts are a cluster.
    """

    def __init__(
        self,
        problem: TiledProblem,
        units: tuple[int, int],
        splits: Index = 0,
        unit: int = 1,
        *,
        clustered: bool = False,
    ) -> None:
        sides = zip((problem.m, problem.n), problem.tile[:2], units, strict=True)
        rows, columns = shares = [derived(share(extent, tile, unit)) for extent, tile, unit in sides]
        shared = replace(problem, tile=(rows, columns, problem.tile[2]))
        super().__init__(shared, None, (1, 1), splits, unit, clustered=clustered)
        self.spans = []
        for place, size, extent in zip(self.place, shares, (problem.m, problem.n), strict=True):
            begin = place * size
            self.spans.append(slice(begin, minimum(begin + size, extent)))

    def items(self, each: int = 1, group: Index = 0) -> Iterator[Work]:
        """The block's share."""
        yield Work(self.batch, 0, 0, 0, self.steps, 0, group, self.segment)

    def of(self, matrix: Tensor, rows: int | None = None, columns: int | None = None) -> Tensor:
        """The block's part of an array.

        Args:
            matrix: the array, without batches.
            rows: its dimension along the rows of the result.
            columns: its dimension along the columns.
        """
        taken = {rows: self.spans[0], columns: self.spans[1]}
        return matrix[tuple(taken.get(dim, slice(None)) for dim in range(len(matrix.shape)))]


def share(extent: Index, tile: Index, unit: int) -> Index:
    """The size of equal shares of an extent, in whole units, as few as are no larger than a tile.

    Example:
        >>> share(1000, 768, 12), share(100, 768, 12), share(0, 768, 12)
        (504, 108, 12)
    """
    count = maximum(ceil_div(extent, tile), 1)
    found: Index = maximum(ceil_div(ceil_div(extent, count), unit), 1) * unit
    return found
