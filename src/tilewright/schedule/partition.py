"""Partitions: which tiles of the result a block computes, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.lang.control import let, var
from tilewright.lang.control import range as traced_range
from tilewright.lang.launch import batch_index, block_index, cluster_index, derived
from tilewright.lang.scalars import Condition, Index, ceil_div, maximum, minimum
from tilewright.lang.tensors import Tensor
from tilewright.schedule.groups import RowGroups, natural

MOST_SPLITS = 4096
"""Parts of K."""

LEAST_STEPS = 4
"""Steps of a part of K with a block of its own, at least."""


@dataclass(frozen=True)
class Segment:
    """A part of a tile's K.

    Args:
        begin: its first step along K.
        tile: the number of the tile, of all whose K is split.
        part: its number among the parts of the tile.
        parts: how many there are.
        slot: part -> where among all parts of all tiles it is kept.
        end: the first k behind it; None: nobody asks.
    """

    begin: Index = 0
    tile: Index = 0
    part: Index = 0
    parts: Index = 1
    slot: Callable[[Index], Index] = lambda part: part
    end: Index | None = None


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
        segment: which part of K it is; all of it if K is not split.
        cuts: which of the rows, and of the columns, belong to its group; None: all of them.
        begins: whether the block's tile before is none of the same batch item; True where nobody says.
    """

    batch: tuple[Index, ...]
    m: Index
    n: Index
    first: Index
    steps: Index
    item: Index
    group: Index
    segment: Segment = Segment()
    cuts: tuple[slice | None, slice | None] = (None, None)
    begins: Condition | bool = True


@dataclass(frozen=True)
class TiledProblem:
    """Extents of what is computed, in elements.

    Args:
        batch: of each leading dimension.
        m: rows of the result.
        n: columns.
        k: what is summed along.
        tile: extents (m, n, k) of a tile.
        groups: those that its rows or columns fall into; instead of batches.
        least: how many steps along K are taken at least, of zeros if there are none.
    """

    batch: tuple[Index, ...]
    m: Index
    n: Index
    k: Index
    tile: tuple[Index, Index, int]
    groups: RowGroups | None = None
    least: int = 0

    @property
    def tiles(self) -> tuple[Index, Index]:
        """Tiles along the rows and along the columns."""
        made: list[Index] = [*ceil_div((self.m, self.n), self.tile[:2])]
        if self.groups is not None:
            made[self.groups.dim] = self.groups.numbers
        return made[0], made[1]

    @property
    def batches(self) -> Index:
        """Products of one launch."""
        count: Index = 1
        for extent in self.batch:
            count = count * extent
        return count

    @property
    def steps(self) -> Index:
        """Tiles along K."""
        return self.at_least(ceil_div(self.k, self.tile[2]))

    def at_least(self, steps: Index) -> Index:
        """So many steps, or as many as are taken at least."""
        return maximum(steps, self.least) if self.least else steps


@dataclass(frozen=True)
class TileOrder:
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


class TilePartition:
    """The base of all partitions.

    Args:
        problem: what is computed.
        order: of tiles; of a block for each tile it may be the grid's own, None.
        cluster: blocks along M and along N that run together and take neighbouring tiles.
    """

    def __init__(self, problem: TiledProblem, order: TileOrder | None, cluster: tuple[int, int]) -> None:
        self.problem, self.order, self.cluster = problem, order, cluster
        self.steps = problem.steps
        self.split: tuple[Index, Index] | None = None
        """The split tiles and all their parts, if the partition splits K."""
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

    def _of_group(self, work: Work) -> Work:
        """A tile by its number among those of all groups."""
        groups = self.problem.groups
        if groups is None:
            return work
        found = groups.find(work.n if groups.dim else work.m)
        m, n = (work.m, found.at) if groups.dim else (found.at, work.n)
        cuts = (None, found.rows) if groups.dim else (found.rows, None)
        steps = let(work.steps * minimum(found.count, 1))
        return replace(work, batch=(found.group,), m=m, n=n, steps=steps, cuts=cuts)


class DataParallel(TilePartition):
    """A block for each tile, or for each part of a tile's K.

    Args:
        problem: what is computed.
        order: of tiles.
        cluster: blocks along M and along N that run together.
        splits: parts of K; 0: all of K is one.
        unit: steps of which parts are multiples, but for the last one.
        clustered: whether the blocks of a tile's parts are a cluster; of a number of parts that is known.
        among: groups of warps of a block that have a part of K each; with one part for each block.
    """

    def __init__(
        self,
        problem: TiledProblem,
        order: TileOrder | None,
        cluster: tuple[int, int],
        splits: Index = 0,
        unit: int = 1,
        *,
        clustered: bool = False,
        among: int = 1,
    ) -> None:
        super().__init__(problem, order, cluster)
        self.parts = 1 if isinstance(splits, int) and splits == 0 else splits
        self.clustered, self.among = clustered, among
        self.segment = Segment()
        if order is None:
            m, n = block_index((self.tiles_m, self.tiles_n * self.parts))
            part = self._part(n, 1)
            n = n if part is None else let(n // self.parts)
        else:
            index = self._declare(self.tiles_m * self.tiles_n * self.parts)
            part = self._part(index, 0)
            m, n = self._tile(index if part is None else let(index // self.parts))
        self.place: tuple[Index, Index] = m, n
        self.batch = self._batch()
        if part is not None:
            self._split_k(part, unit)
        elif among > 1:
            self.each, self.more = self._shares(self.steps, among)

    def _batch(self) -> tuple[Index, ...]:
        """The block's index along each leading dimension."""
        extents = self.problem.batch
        return unflattened(batch_index(self.problem.batches), extents) if extents else ()

    def _part(self, index: Index, axis: int) -> Index | None:
        """The number of this block's part; the parts of a tile have neighbouring blocks.

        Args:
            index: the block's index along the axis of the grid that has the parts.
            axis: which one that is.
        """
        if isinstance(self.parts, int) and self.parts == 1:
            return None
        if self.clustered:
            assert isinstance(self.parts, int), "the cluster's extent"
            part: Index = cluster_index((1,) * axis + (self.parts,))[axis]
            return part
        return let(index % self.parts)

    def _split_k(self, part: Index, unit: int) -> None:
        """Parts that differ by a unit at most."""
        units = ceil_div(self.steps, unit)
        each, more = self._shares(units, self.parts)
        number: Index = 0
        for index, extent in zip(self.batch, self.problem.batch, strict=True):
            number = number * extent + index
        tiles_m, tiles_n = self.tiles_m * self.cluster[0], self.tiles_n * self.cluster[1]
        tile = let((number * tiles_m + self.place[0]) * tiles_n + self.place[1])
        begin = let((part * each + minimum(part, more)) * unit)
        own = (each + minimum(maximum(more - part, 0), 1)) * unit
        own = own if unit == 1 else minimum(own, maximum(self.steps - begin, 0))
        self.steps = let(self.problem.at_least(own))
        self.segment = Segment(begin, tile, part, self.parts, lambda p: tile * self.parts + p)
        tiles = tiles_m * tiles_n * self.problem.batches
        self.split = tiles, tiles * self.parts

    def _shares(self, count: Index, parts: Index) -> tuple[Index, Index]:
        """The steps of each part, and the number of parts with one step more."""
        each, more = (derived(natural(value)) for value in (count // parts, count % parts))
        return each, more

    def items(self, each: int = 1, group: Index = 0) -> Iterator[Work]:
        """The block's tile; of groups that share its K each one's part."""
        m, n = self.place
        steps, segment = self.steps, self.segment
        if self.among > 1:
            begin = let(group * self.each + minimum(group, self.more))
            steps = let(self.each + minimum(maximum(self.more - group, 0), 1))
            segment = Segment(begin)
        yield self._of_group(Work(self.batch, m, n, 0, steps, 0, group, segment))


def unflattened(index: Index, extents: Sequence[Index]) -> tuple[Index, ...]:
    """A number as an index along each dimension, the last one fastest."""
    found: list[Index] = []
    for extent in reversed(extents[1:]):
        found.insert(0, index % extent)
        index = index // extent
    return (index, *found)


class Persistent(TilePartition):
    """A persistent grid: as many blocks as finish together, each with one tile after the other.

    Args:
        problem: what is computed.
        order: of tiles.
        cluster: blocks along M and along N that run together.
        most: how many there are at most.
    """

    def __init__(self, problem: TiledProblem, order: TileOrder, cluster: tuple[int, int], most: int) -> None:
        super().__init__(problem, order, cluster)
        self.total = self.tiles_m * self.tiles_n
        for extent in problem.batch:
            self.total = self.total * extent
        self.blocks = self._blocks(max(most // (cluster[0] * cluster[1]), 1))
        self.block = self._declare(self.blocks)
        self.turns = ceil_div(self.total - self.block, self.blocks)

    def _blocks(self, most: int) -> Index:
        """How many blocks there are."""
        rounds = maximum(ceil_div(self.total, most), 1)
        blocks = derived(maximum(minimum(ceil_div(self.total, rounds), most), 1))
        return blocks  # noqa: RET504 the kernel's parameter is named after it

    def items(self, each: int = 1, group: Index = 0) -> Iterator[Work]:
        """The block's tiles; of groups that take turns each one's own, every ``each``-th."""
        turns = self.turns if each == 1 else (self.turns + each - 1 - group) // each
        done = var(0) if self.problem.groups is not None else None
        for turn in traced_range(turns):
            number = turn if each == 1 else let(turn * each + group)
            work = self._of_group(self._work(number, turn, group))
            if done is not None:  # what has no rows takes no steps
                work = replace(work, first=let(done.get()))
                done.set(done.get() + work.steps)
            yield work

    def _work(self, turn: Index, item: Index, group: Index) -> Work:
        batch, m, n = self._numbered(self.block + turn * self.blocks)
        return Work(batch, m, n, turn * self.steps, self.steps, item, group)

    def _numbered(self, index: Index) -> tuple[tuple[Index, ...], Index, Index]:
        """The batch, row and column of a tile."""
        batch: tuple[Index, ...] = ()
        if self.problem.batch:
            index = let(index)
            batch = unflattened(let(index // (self.tiles_m * self.tiles_n)), self.problem.batch)
            index = index % (self.tiles_m * self.tiles_n)
        m, n = self._tile(index)
        return batch, m, n


def parts_of_k(tiles: Index, steps: Index, blocks: int) -> Index:
    """Into how many parts K is split, so that as many blocks as run at once have one.

    ``min(blocks // tiles, steps // LEAST_STEPS)``, and 1 at least: a part of fewer steps costs more to add to
    the others than it saves.

    Args:
        tiles: of the result.
        steps: along K.
        blocks: that run at once.

    Example:
        >>> parts_of_k(1, 1024, 132), parts_of_k(40, 64, 132), parts_of_k(132, 64, 132), parts_of_k(1, 6, 132)
        (132, 3, 1, 1)
    """
    wanted: Index = minimum(blocks // maximum(tiles, 1), steps // LEAST_STEPS)
    return maximum(wanted, 1)


# ---------------------------------------------------------------- equal shares, a block for each


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


# ---------------------------------------------------------------- stream-K


class Stream(Persistent):
    """The steps of tiles, one tile behind the other, dealt out to the blocks in equal shares.

    Of more tiles than two for each block, all but so many are computed as a whole: each block has its share
    of the steps of the first tiles, then whole tiles.  A block's share begins in one tile and ends in
    another, so that it has a part of each at most.

    Args:
        problem: what is computed.
        order: of tiles.
        most: how many blocks there are at most.

    Source: Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix
    Multiplication on the GPU", 2023.
    """

    def __init__(self, problem: TiledProblem, order: TileOrder, most: int) -> None:
        super().__init__(problem, order, (1, 1), most)
        rounds = derived(natural(self.total // self.blocks - minimum(self.total % self.blocks, 1)))
        streamed = derived(natural(self.total - rounds * self.blocks))
        depth = derived(natural(maximum(self.steps, 1)))
        share = derived(natural(streamed * depth // self.blocks))
        longer = derived(natural(streamed * depth % self.blocks))
        self.streamed, self.depth = streamed, depth
        """Tiles whose steps are dealt out, and how many steps each of them has."""
        self.share, self.longer = share, longer
        """Steps of a block's share, and how many blocks have one more."""
        self.begin = let(self.block * share + minimum(self.block, longer))
        self.own = let(share + minimum(maximum(longer - self.block, 0), 1))
        self.first = let(self.begin // depth)
        self.segments = let(maximum(ceil_div(self.begin + self.own, depth) - self.first, 0))
        self.turns = self.segments + rounds
        self.split = streamed, 2 * self.blocks

    def _blocks(self, most: int) -> Index:
        blocks = derived(maximum(minimum(self.total * maximum(self.steps, 1), most), 1))
        return blocks  # noqa: RET504 as above

    def _owner(self, step: Index) -> Index:
        """The block in whose share a step is."""
        of_longer = self.longer * (self.share + 1)
        behind = maximum(step - of_longer, 0) // maximum(self.share, 1)
        return minimum(step // (self.share + 1), self.longer) + behind

    def _work(self, turn: Index, item: Index, group: Index) -> Work:
        streams = let(minimum(maximum(self.segments - turn, 0), 1))  # 0: the tile is computed as a whole
        after = let(maximum(turn - self.segments, 0))
        whole = self.streamed + after * self.blocks + self.block
        tile = let(streams * (self.first + turn) + (1 - streams) * whole)
        start = let(tile * self.depth)
        begin = let(streams * maximum(self.begin - start, 0))
        past = streams * maximum(start + self.depth - self.begin - self.own, 0)
        steps = let(maximum(minimum(self.steps, self.depth - past) - begin, 0))
        before = streams * maximum(start + begin - self.begin, 0)
        first = let(before + (1 - streams) * (self.own + after * self.steps))
        owner = let(self._owner(start))
        parts = let(1 + streams * maximum(self._owner(start + self.depth - 1) - owner, 0))
        part = let(streams * maximum(self.block - owner, 0))

        def slot(number: Index) -> Index:
            """The slot of a block for the tile in which its share begins, or for the one in which it ends."""
            return 2 * (owner + number) + 1 - minimum(number, 1)

        batch, m, n = self._numbered(tile)
        return Work(batch, m, n, first, steps, item, group, Segment(begin, tile, part, parts, slot))


# ---------------------------------------------------------------- several batch items for a block


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
