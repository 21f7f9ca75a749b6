"""Partitions: which tiles of the result a block computes, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.lang.control import let
from tilewright.lang.control import range as traced_range
from tilewright.lang.launch import batch_index, block_index
from tilewright.lang.scalars import Index, ceil_div, minimum


@dataclass(frozen=True)
class Work:
    """One tile of the result.

    Args:
        batch: its index along each leading dimension.
        m: its place along the rows.
        n: its place along the columns.
        first: how many steps along K the block has done before.
        steps: how many there are.
        item: how many tiles those who take it took before.
        group: which group of warps takes it.
    """

    batch: tuple[Index, ...]
    m: Index
    n: Index
    first: Index
    steps: Index
    item: Index
    group: Index


@dataclass(frozen=True)
class Problem:
    """Extents of what is computed, in elements.

    Args:
        batch: of each leading dimension.
        m: rows of the result.
        n: columns.
        k: what is summed along.
        tile: extents (m, n, k) of a tile.
    """

    batch: tuple[Index, ...]
    m: Index
    n: Index
    k: Index
    tile: tuple[int, int, int]

    @property
    def tiles(self) -> tuple[Index, Index]:
        """Tiles along the rows and along the columns."""
        made = ceil_div((self.m, self.n), self.tile[:2])
        return made[0], made[1]

    @property
    def steps(self) -> Index:
        """Tiles along K."""
        count: Index = ceil_div(self.k, self.tile[2])
        return count


def banded(index: Index, tiles_m: Index, tiles_n: Index, group: int) -> tuple[Index, Index]:
    """Number -> (m, n): bands of ``group`` rows of tiles, column by column: neighbours share operands."""
    band = let(index // (group * tiles_n) * group)
    rows = let(minimum(tiles_m - band, group))
    m = let(band + index % (group * tiles_n) % rows)
    n = let(index % (group * tiles_n) // rows)
    return m, n


class DataParallel:
    """A block for each tile; blocks that run together lie in bands."""

    def __init__(self, problem: Problem, group: int) -> None:
        self.problem, self.group = problem, group
        self.tiles_m, self.tiles_n = problem.tiles
        if group:
            self.index = block_index(self.tiles_m * self.tiles_n)
        else:
            self.place = block_index((self.tiles_m, self.tiles_n))
        self.batch = _batch(problem.batch)
        self.steps = problem.steps

    def items(self, each: int = 1, group: Index = 0) -> Iterator[Work]:
        """The block's tile."""
        if self.group:
            m, n = banded(self.index, self.tiles_m, self.tiles_n, self.group)
        else:
            m, n = self.place
        yield Work(self.batch, m, n, 0, self.steps, 0, group)


def _batch(extents: Sequence[Index]) -> tuple[Index, ...]:
    """The block's index along each leading dimension."""
    if not extents:
        return ()
    total = extents[0]
    for extent in extents[1:]:
        total = total * extent
    return _split(batch_index(total), extents)


def _split(index: Index, extents: Sequence[Index]) -> tuple[Index, ...]:
    """A number as an index along each dimension, the last one fastest."""
    found: list[Index] = []
    for extent in reversed(extents[1:]):
        found.insert(0, index % extent)
        index = index // extent
    return (index, *found)


class Persistent:
    """As many blocks as run together; each computes one tile after the other.

    Args:
        problem: what is computed.
        group: rows of tiles of a band.
        blocks: how many.
    """

    def __init__(self, problem: Problem, group: int, blocks: int) -> None:
        self.problem, self.group, self.blocks = problem, group, blocks
        self.block = block_index(blocks)
        self.tiles_m, self.tiles_n = problem.tiles
        self.steps = problem.steps
        self.total = self.tiles_m * self.tiles_n
        for extent in problem.batch:
            self.total = self.total * extent
        self.turns = ceil_div(self.total - self.block, blocks)

    def items(self, each: int = 1, group: Index = 0) -> Iterator[Work]:
        """The block's tiles; of groups that take turns each one's own, every ``each``-th."""
        turns = self.turns if each == 1 else (self.turns + each - 1 - group) // each
        for turn in traced_range(turns):
            number = turn if each == 1 else let(turn * each + group)
            yield self._work(number, turn, group)

    def _work(self, turn: Index, item: Index, group: Index) -> Work:
        index = self.block + turn * self.blocks
        batch: tuple[Index, ...] = ()
        if self.problem.batch:
            index = let(index)
            batch = _split(let(index // (self.tiles_m * self.tiles_n)), self.problem.batch)
            index = index % (self.tiles_m * self.tiles_n)
        m, n = banded(index, self.tiles_m, self.tiles_n, self.group)
        return Work(batch, m, n, turn * self.steps, self.steps, item, group)
