"""Partitions: which tiles of the result a block computes, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.lang.control import let
from tilewright.lang.control import range as traced_range
from tilewright.lang.launch import batch_index, block_index, cluster_index, derived
from tilewright.lang.scalars import Index, ceil_div, maximum, minimum
from tilewright.lang.tensors import Tensor


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
    tile: tuple[Index, Index, int]

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


@dataclass(frozen=True)
class Order:
    """The order of tiles: bands of them follow each other, so that neighbours share operands.

    Args:
        group: tiles across a band.
        along: what a band cuts into pieces: ``"m"`` or ``"n"``.
    """

    group: int
    along: str = "m"

    def place(self, index: Index, tiles_m: Index, tiles_n: Index) -> tuple[Index, Index]:
        """Number -> (m, n)."""
        if self.along == "m":
            return banded(index, tiles_m, tiles_n, self.group)
        n, m = banded(index, tiles_n, tiles_m, self.group)
        return m, n


def banded(index: Index, tiles_m: Index, tiles_n: Index, group: int) -> tuple[Index, Index]:
    """Number -> (m, n): bands of ``group`` rows of tiles, column by column."""
    band = let(index // (group * tiles_n) * group)
    rows = let(minimum(tiles_m - band, group))
    m = let(band + index % (group * tiles_n) % rows)
    n = let(index % (group * tiles_n) // rows)
    return m, n


class Partition:
    """What partitions have in common.

    Args:
        problem: what is computed.
        order: of tiles; of a block for each tile it may be the grid's own, None.
        cluster: blocks along M and along N that run together and take neighbouring tiles.
    """

    def __init__(self, problem: Problem, order: Order | None, cluster: tuple[int, int]) -> None:
        self.problem, self.order, self.cluster = problem, order, cluster
        self.steps = problem.steps
        self.rank: tuple[Index, Index] = (0, 0)
        tiles = problem.tiles
        # Those of a cluster count as one.
        self.tiles_m: Index = tiles[0] if cluster == (1, 1) else ceil_div(tiles[0], cluster[0])
        self.tiles_n: Index = tiles[1] if cluster == (1, 1) else ceil_div(tiles[1], cluster[1])

    def _declare(self, count: Index) -> Index:
        """The number of this block's cluster among ``count``."""
        if self.cluster == (1, 1):
            block: Index = block_index(count)
            return block
        across, beside = self.cluster
        place = block_index((count * across, beside))
        self.rank = cluster_index(self.cluster)
        return let(place[0] // across)

    def _tile(self, index: Index) -> tuple[Index, Index]:
        """The tile of a block, by the number of its cluster's."""
        assert self.order is not None, "numbers have an order"
        m, n = self.order.place(index, self.tiles_m, self.tiles_n)
        if self.cluster == (1, 1):
            return m, n
        return m * self.cluster[0] + self.rank[0], n * self.cluster[1] + self.rank[1]


class DataParallel(Partition):
    """A block for each tile."""

    def __init__(self, problem: Problem, order: Order | None, cluster: tuple[int, int]) -> None:
        super().__init__(problem, order, cluster)
        if order is None:
            m, n = block_index((self.tiles_m, self.tiles_n))
        else:
            m, n = self._tile(self._declare(self.tiles_m * self.tiles_n))
        self.place: tuple[Index, Index] = m, n
        self.batch = _batch(problem.batch)

    def items(self, each: int = 1, group: Index = 0) -> Iterator[Work]:
        """The block's tile."""
        m, n = self.place
        yield Work(self.batch, m, n, 0, self.steps, 0, group)


class Shares(DataParallel):
    """A block for each of equal shares of the rows and of the columns; none is larger than a tile.

    What a block computes is the one tile of a problem of its own: `of` gives its part of each array.

    Args:
        problem: what is computed.
        units: shares are multiples of so many rows and columns.
    """

    def __init__(self, problem: Problem, units: tuple[int, int]) -> None:
        sides = zip((problem.m, problem.n), problem.tile[:2], units, strict=True)
        rows, columns = shares = [derived(share(extent, tile, unit)) for extent, tile, unit in sides]
        super().__init__(replace(problem, tile=(rows, columns, problem.tile[2])), None, (1, 1))
        self.spans = []
        for place, size, extent in zip(self.place, shares, (problem.m, problem.n), strict=True):
            begin = place * size
            self.spans.append(slice(begin, minimum(begin + size, extent)))

    def items(self, each: int = 1, group: Index = 0) -> Iterator[Work]:
        """The block's share."""
        yield Work(self.batch, 0, 0, 0, self.steps, 0, group)

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


class Persistent(Partition):
    """As many blocks as finish together; each computes one tile after the other.

    Args:
        problem: what is computed.
        order: of tiles.
        cluster: blocks along M and along N that run together.
        most: how many there are at most.
    """

    def __init__(self, problem: Problem, order: Order, cluster: tuple[int, int], most: int) -> None:
        super().__init__(problem, order, cluster)
        self.total = self.tiles_m * self.tiles_n
        for extent in problem.batch:
            self.total = self.total * extent
        most = max(most // (cluster[0] * cluster[1]), 1)
        rounds = maximum(ceil_div(self.total, most), 1)
        blocks = derived(maximum(minimum(ceil_div(self.total, rounds), most), 1))
        self.blocks: Index = blocks
        self.block = self._declare(self.blocks)
        self.turns = ceil_div(self.total - self.block, self.blocks)

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
        m, n = self._tile(index)
        return Work(batch, m, n, turn * self.steps, self.steps, item, group)
