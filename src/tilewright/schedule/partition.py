"""Partitions: which tiles of the result a block computes, and in which order.

Each partition is a class.  It declares the schedules that it serves (`takes`) and the reasons against them.
It records the code that computes the places of a block's tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.dataflow.nodes import ArrayPart, Arrival
from tilewright.lang.control import let
from tilewright.lang.control import range as traced_range
from tilewright.lang.launch import batch_index, block_index, cluster_index, derived
from tilewright.lang.scalars import Index, ceil_div, maximum, minimum
from tilewright.lang.tensors import Tensor
from tilewright.schedule.facts import Reasons, ScheduleFacts
from tilewright.schedule.form import Form, added_arrivals, extent_of, integer_in
from tilewright.schedule.inner import schedule_of
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.skipping import NeededTiles, Skips
from tilewright.schedule.work import RowGroups, Segment, ShardOrder, Shards, Work, natural

MOST_SPLITS = 4096
"""Most parts of K."""

LEAST_STEPS = 4
"""Fewest steps along K in a part that has its own block."""


@dataclass(frozen=True)
class TiledProblem:
    """Extents of a computation, in elements.

    Args:
        batch: extents of the leading dimensions.
        m: rows of the result.
        n: columns.
        depths: elements along K, for each loop.
        of_steps: elements along K of a step, for each loop; one step has all columns of an inner product.
        tile: extents (m, n, k) of a tile.
        groups: groups of its rows or columns, instead of batches.
        along_k: groups along K, and the index of the leading dimension that numbers them.
        least: smallest number of steps along K; missing steps add zeros.
        skips: the tiles and steps that masks leave out; None: all tiles take all steps.
        mirrored: whether tiles below the diagonal are stored above it too.
        shards: the shards of each operand that arrives.
        order: the order of tiles by the shards of an array; None: that of the schedule.
    """

    batch: tuple[Index, ...]
    m: Index
    n: Index
    depths: tuple[Index, ...]
    of_steps: tuple[int, ...]
    tile: tuple[Index, Index, int]
    groups: RowGroups | None = None
    along_k: tuple[RowGroups, int] | None = None
    least: int = 0
    skips: Skips | None = None
    mirrored: bool = False
    shards: tuple[Shards, ...] = ()
    order: ShardOrder | None = None

    @staticmethod
    def of(form: Form, schedule: Schedule, arguments: Mapping[str, Any]) -> TiledProblem:
        """The problem of a kernel.

        Args:
            form: the form of the computation.
            schedule: how it is computed.
            arguments: the kernel's arguments, by name.
        """
        leading = form.batch if form.flow.grouped is None else ()
        spans = (*leading, form.m, form.n, *form.depths)
        extents = {span: extent_of(form, arguments, span) for span in spans}
        # A result along rows alone is stored even if there are no columns: one tile of columns counts.
        m, n = (
            extents[span] if all(span in store.at for store in form.stores) else maximum(extents[span], 1)
            for span in (form.m, form.n)
        )
        groups = None
        for dim, span in enumerate((form.m, form.n)):
            if groups is None and span.groups is not None:
                extent = extent_of(form, arguments, span)
                groups = RowGroups.of(span.groups, arguments, dim, extent, schedule.tile[dim])
        # If a branch can skip a loop that decodes, ptxas serializes its wgmma: take at least one step.
        least = int(schedule.atom.asynchronous and not all(factor.is_plain for factor in form.factors))
        batch = tuple(extents[span] for span in leading)
        depths = tuple(extents[span] for span in form.depths)
        of_steps = tuple(schedule_of(loop, schedule).tile[2] for loop in form.loops)
        skips = Skips.of(form, arguments)
        mirrored = bool(form.mirrored)
        along_k = None
        if form.bounded is not None and (cut := form.bounded.groups) is not None:
            bounds = RowGroups.of(cut, arguments, 2, depths[0], schedule.tile[2])
            along_k = bounds, form.batch.index(cut.index)
        arrivals = (_shards(form, schedule, arguments, one) for one in form.flow.arrivals)
        shards = tuple(one for several in arrivals for one in several)
        order = shards[0].order if shards else None
        if (made := form.flow.departure) is not None:
            order = ShardOrder(2, 1, 1, integer_in(form.flow, arguments, made.first))
        cuts = groups, along_k, least, skips, mirrored, shards, order
        return TiledProblem(batch, m, n, depths, of_steps, schedule.tile, *cuts)

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
        """Tiles along K, of all loops."""
        return self.at_least(sum(self.steps_of_loops))

    @property
    def steps_of_loops(self) -> tuple[Index, ...]:
        """Tiles along K of each loop."""
        return tuple(map(ceil_div, self.depths, self.of_steps))

    def pieces(self, work: Work) -> list[Work]:
        """A tile as one piece for each loop, in their order; a piece counts steps from the loop's first."""
        *counts, _ = self.steps_of_loops
        if not counts:
            return [work]
        found, begin, end = [], work.segment.begin, work.segment.begin + work.steps
        first: Index = 0
        for count in (*counts, None):
            is_whole = isinstance(begin, int) and begin == 0
            low: Index = 0 if is_whole else let(natural(begin - first))
            high = end - first if count is None else minimum(end - first, count)
            done = first if is_whole else natural(first + low - begin)
            steps, segment = let(natural(high - low)), replace(work.segment, begin=low)
            found.append(replace(work, first=let(work.first + done), steps=steps, segment=segment))
            first = first if count is None else first + count
        return found

    def at_least(self, steps: Index) -> Index:
        """A number of steps, but not less than `least`."""
        return maximum(steps, self.least) if self.least else steps


def _shards(form: Form, schedule: Schedule, arguments: Mapping[str, Any], made: Arrival) -> Iterator[Shards]:
    """The shards of an array that arrives, for each dimension of tiles that reads it."""
    counters, extent = arguments[made.counters.name], arguments[made.operand.name].shape[0]
    value, first = (integer_in(form.flow, arguments, one) for one in (made.value, made.first))
    rows = derived(maximum(ceil_div(extent, maximum(counters.shape[0], 1)), 1))
    parts = (one for one in form.flow.walk() if isinstance(one, ArrayPart))
    places = [one.at[0] for one in parts if one.operand == made.operand]
    in_ending = made in added_arrivals(form)
    for along in sorted(dict.fromkeys(places), key=form.flow.tiles.index):
        dim = (form.m, form.n, *form.batch).index(along)
        order = ShardOrder(dim, rows, schedule.tile[dim] if dim < 2 else 1, first)
        yield Shards(order, counters, value, extent, in_ending, made)


@dataclass(frozen=True)
class TileOrder:
    """The order of tiles: bands of them follow each other, so that neighbours share operands.

    Args:
        group: tiles across a band.
        along: dimension that bands divide: ``"m"`` or ``"n"``.
    """

    group: int
    along: str = "m"

    @staticmethod
    def of(schedule: Schedule, shards: ShardOrder | None = None) -> TileOrder:
        """The order of a schedule; bands divide the rows of an operand that arrives in shards."""
        if shards is not None and shards.dim == 0:
            return TileOrder(schedule.group_m or 1, "m")
        if shards is not None and shards.dim == 1:
            return TileOrder(schedule.group_n or 1, "n")
        return TileOrder(schedule.group_n, "n") if schedule.group_n else TileOrder(schedule.group_m or 1, "m")

    def place(self, index: Index, tiles_m: Index, tiles_n: Index) -> tuple[Index, Index]:
        """Number -> (m, n): bands of ``group`` rows of tiles, column by column."""
        if self.along == "n":
            tiles_m, tiles_n = tiles_n, tiles_m
        group = self.group
        band = let(index // (group * tiles_n) * group)
        rows = let(minimum(tiles_m - band, group))
        m = let(band + index % (group * tiles_n) % rows)
        n = let(index % (group * tiles_n) // rows)
        return (n, m) if self.along == "n" else (m, n)


class Partition:
    """The tiles of a block, one after the other; this base class has no tiles.

    A subclass declares the schedules that it serves and the reasons against them, and yields `Work`.
    """

    cuts_arrays = False
    """Whether a block sees a part of each array, or one array of several."""

    problem: TiledProblem | None = None
    """The extents of the computation; None if only the running kernel knows them."""

    split: tuple[Index, Index] | None = None
    """Number of tiles whose K is split, and of all their parts; None: no tile is split."""

    rank: tuple[Index, Index] = (0, 0)
    """The block's place in its cluster."""

    begins: tuple[Index, Index] = (0, 0)
    """First row and column of the block's part of the arrays."""

    tiles_m: Index = 0
    tiles_n: Index = 0
    """Tiles along the rows and columns; those of a cluster count as one."""

    @classmethod
    def takes(cls, form: Form, schedule: Schedule) -> bool:
        """Whether this partition serves a schedule, if no earlier one in the table does."""
        return True

    @classmethod
    def of(cls, form: Form, schedule: Schedule, arguments: Mapping[str, Any]) -> Partition:
        """Return the partition of the traced kernel.

        Args:
            form: the form of the computation.
            schedule: how it is computed.
            arguments: the kernel's arguments, by name.
        """
        return cls()

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """Reasons to refuse a schedule that asks for this partition."""
        return iter(())

    def items(self, each: int = 1, group: Index = 0) -> Iterator[Work]:
        """The block's tiles; if groups take turns, every ``each``-th tile from the group's first on."""
        return iter(())

    def part_of(self, matrix: Tensor, rows: int | None = None, columns: int | None = None) -> Tensor:
        """The block's part of an array.

        Args:
            matrix: the array, without batches.
            rows: its dimension along the rows of the result.
            columns: its dimension along the columns.
        """
        return matrix


def against_unknown_tiles(facts: ScheduleFacts, what: str, near: str, batches: str) -> Reasons:
    """Reasons against fields that need the number of tiles before the launch.

    Args:
        facts: the schedule on a machine.
        what: the facts that are known only on the device.
        near: the reason why neighbouring blocks share nothing.
        batches: the reason against several batch items for a block.
    """
    schedule, product = facts.schedule, facts.form.sum
    if schedule.balanced:
        text = f"balanced=True; {what}, and equal shares are computed before the launch"
        yield "balanced", text, "balanced=False", product
    if schedule.cluster != (1, 1):
        text = f"cluster={schedule.cluster}; {what}, and {near}"
        yield "cluster", text, "cluster=(1, 1)", product
    if schedule.is_split:
        rule = f"{what}, and splitting K needs the number of tiles before the launch"
        text = f"split_k={schedule.split_k!r}; {rule}"
        yield "split_k", text, "split_k=1", product
    if schedule.batches != 1:
        yield "batches", f"batches={schedule.batches}; {batches}", "batches=1", product


class TilePartition(Partition):
    """Base class of the partitions of a single problem.

    Args:
        problem: the extents of the computation.
        schedule: how it is computed.
    """

    in_clusters = True
    """Whether blocks of a cluster take neighbouring tiles."""

    takes_whole_tiles = True
    """Whether all steps of a tile belong to one block."""

    problem: TiledProblem

    @classmethod
    def of(cls, form: Form, schedule: Schedule, arguments: Mapping[str, Any]) -> Partition:
        """The partition of a kernel."""
        return cls(TiledProblem.of(form, schedule, arguments), schedule)

    def __init__(self, problem: TiledProblem, schedule: Schedule) -> None:
        self.problem, self.schedule = problem, schedule
        self.cluster = schedule.cluster if self.in_clusters else (1, 1)
        self.steps = problem.steps
        tiles = problem.tiles
        self.tiles_m = tiles[0] if self.cluster == (1, 1) else ceil_div(tiles[0], self.cluster[0])
        self.tiles_n = tiles[1] if self.cluster == (1, 1) else ceil_div(tiles[1], self.cluster[1])
        is_whole = self.takes_whole_tiles and not schedule.is_split and schedule.along_k == 1
        self.skips = problem.skips if is_whole else None
        self.kept = self._kept()
        """The tiles that masks do not leave out, if they are numbered first; or those below the diagonal."""

        self.needed: Index = 0
        """The number of those tiles."""

        self.count = self.tiles_m * self.tiles_n
        """Number of tiles that blocks take, in each batch item."""

        if self.kept is not None and problem.mirrored:
            self.count = self.needed = self.kept.needed_at_launch
        elif self.kept is not None:
            self.needed = let(natural(self.kept.needed))

    def _kept(self) -> NeededTiles | None:
        """The needed tiles, or None; the tiles of a cluster count as one."""
        rows, columns = self.problem.tile[:2]
        skips = self.skips
        if not (isinstance(rows, int) and isinstance(columns, int)):
            return None
        across, beside = self.cluster
        order, tile = TileOrder.of(self.schedule), (rows * across, columns * beside)
        band, tiles = (order.group, order.along == "n"), (self.tiles_m, self.tiles_n)
        if self.problem.mirrored:
            return NeededTiles.below_diagonal(tile, tiles, band)
        if skips is None or self.problem.order is not None:
            return None
        return NeededTiles.of(skips.form, skips.arguments, tile, tiles, band)

    def _declare(self, count: Index) -> Index:
        """Declare a grid of ``count`` clusters; return the number of this block's cluster."""
        if self.cluster == (1, 1):
            block: Index = block_index(count)
            return block
        across, beside = self.cluster
        place = block_index((count * across, beside))
        self.rank = cluster_index(self.cluster)
        return let(place[0] // across)

    def _tile(self, index: Index) -> tuple[Index, Index]:
        """The tile of a block, given the number of its cluster's tile."""
        order = self.problem.order
        if self.kept is not None:
            m, n = self.kept.place(let(index), self.needed)
        else:
            m, n = TileOrder.of(self.schedule, order).place(index, self.tiles_m, self.tiles_n)
        if order is not None and order.dim == 0:
            m = order.turned(m, self.tiles_m, self.cluster[0])
        if order is not None and order.dim == 1:
            n = order.turned(n, self.tiles_n, self.cluster[1])
        if self.cluster == (1, 1):
            return m, n
        return m * self.cluster[0] + self.rank[0], n * self.cluster[1] + self.rank[1]

    def _turned(self, batch: tuple[Index, ...]) -> tuple[Index, ...]:
        """The index along each leading dimension, if the items of a chosen shard come first."""
        if (order := self.problem.order) is None or order.dim < 2:
            return batch
        at = order.dim - 2
        return (*batch[:at], order.turned(batch[at], self.problem.batch[at]), *batch[at + 1 :])

    def _steps_of(self, m: Index, n: Index) -> tuple[Index, Index]:
        """The first step that the masks of a tile need, and the number of steps up to the last needed one.

        Blocks of a cluster share the copies of operands, so that they take the same steps.
        """
        if self.skips is None:
            return 0, self.steps
        across, beside = self.cluster
        rows, columns, depth = self.problem.tile
        at = (m // across, n // beside) if self.cluster != (1, 1) else (m, n)
        depths = self.problem.depths
        whole = depths[0] if len(depths) == 1 else self.steps * depth
        first, end = self.skips.range_of_k(at, (rows * across, columns * beside), whole)
        unit = depth * max(self.schedule.promote, 1)
        begin = let(natural(first // unit * (unit // depth)))
        return begin, let(self.problem.at_least(natural(ceil_div(end, depth) - begin)))

    def _of_group(self, work: Work) -> Work:
        """Return a tile with its place in its group: the group's rows or columns, or its range of K."""
        groups = self.problem.groups
        if self.problem.along_k is not None:
            bounds, number = self.problem.along_k
            cut = bounds.bounds(work.batch[number])
            steps = natural(ceil_div(cut.stop - cut.start, bounds.tile))
            return replace(work, steps=let(self.problem.at_least(steps)), cuts=(None, None, cut))
        if groups is None:
            return work
        found = groups.find(work.n if groups.dim else work.m)
        m, n = (work.m, found.at) if groups.dim else (found.at, work.n)
        cuts = (None, found.rows, None) if groups.dim else (found.rows, None, None)
        steps = let(work.steps * minimum(found.count, 1))
        return replace(work, batch=(found.group,), m=m, n=n, steps=steps, cuts=cuts)


def unflattened(index: Index, extents: Sequence[Index]) -> tuple[Index, ...]:
    """A number as an index along each dimension, the last one fastest."""
    found: list[Index] = []
    for extent in reversed(extents[1:]):
        found.insert(0, index % extent)
        index = index // extent
    return (index, *found)


# ---------------------------------------------------------------- parts of K


def parts_of_k(tiles: Index, steps: Index, blocks: int) -> Index:
    """Number of parts of K with which each block that runs at once gets one part.

    ``min(blocks // tiles, steps // LEAST_STEPS)``, and 1 at least: a part of fewer steps costs more to add to
    the others than it saves.

    Args:
        tiles: tiles of the result.
        steps: steps along K.
        blocks: blocks that run at once.

    Example:
        >>> parts_of_k(1, 1024, 132), parts_of_k(40, 64, 132), parts_of_k(132, 64, 132), parts_of_k(1, 6, 132)
        (132, 3, 1, 1)
    """
    wanted: Index = minimum(blocks // maximum(tiles, 1), steps // LEAST_STEPS)
    return maximum(wanted, 1)


def split_parts(problem: TiledProblem, schedule: Schedule) -> Index | None:
    """Parts of K; None if it is not split."""
    split = schedule.split_k
    if not schedule.is_split:
        return None
    pairs = zip(problem.tiles, schedule.cluster, strict=True)
    # Tiles that only fill a cluster count too.
    rows, columns = (count if blocks == 1 else ceil_div(count, blocks) * blocks for count, blocks in pairs)
    if schedule.is_clustered and isinstance(split, int):
        return split  # a cluster has a fixed size: some parts may have no steps
    tiles = rows * columns * problem.batches
    wanted = parts_of_k(tiles, problem.steps, schedule.blocks) if isinstance(split, str) else split
    units = ceil_div(problem.steps, max(schedule.promote, 1))
    parts = derived(maximum(minimum(wanted, minimum(units, MOST_SPLITS)), 1))
    return parts  # noqa: RET504 the kernel's parameter is named after it


# ---------------------------------------------------------------- a block for each tile


class DataParallel(TilePartition):
    """A block for each tile, or for each part of a tile's K.

    Args:
        problem: the extents of the computation.
        schedule: how it is computed.
        parts: parts of K; None: the schedule's.
    """

    def __init__(self, problem: TiledProblem, schedule: Schedule, parts: Index | None = None) -> None:
        super().__init__(problem, schedule)
        parts = split_parts(problem, schedule) if parts is None else parts
        self.parts: Index = 1 if parts is None else parts
        self.segment = Segment()
        is_banded = bool(schedule.group_m or schedule.group_n or problem.order)
        if is_banded or self.cluster != (1, 1) or self.kept is not None:
            index = self._declare(self.count * self.parts)
            part = self._part(index, 0)
            m, n = self._tile(index if part is None else let(index // self.parts))
        else:  # the grid's own order
            m, n = block_index((self.tiles_m, self.tiles_n * self.parts))
            part = self._part(n, 1)
            n = n if part is None else let(n // self.parts)
        self.place: tuple[Index, Index] = m, n
        self.batch = self._batch()
        if part is not None:  # parts differ by a unit at most, the steps between two promotions
            unit = max(schedule.promote, 1)
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
        elif schedule.along_k > 1:
            self.each, self.more = self._shares(self.steps, schedule.along_k)
        elif self.skips is not None:
            begin, self.steps = self._steps_of(m, n)
            self.segment = Segment(begin)

    def _batch(self) -> tuple[Index, ...]:
        """The block's index along each leading dimension."""
        extents = self.problem.batch
        return self._turned(unflattened(batch_index(self.problem.batches), extents)) if extents else ()

    def _part(self, index: Index, axis: int) -> Index | None:
        """Return this block's part of K; None without split K. Neighbouring blocks sum the parts of a tile.

        Args:
            index: the block's index along the axis of the grid that has the parts.
            axis: that axis.
        """
        if isinstance(self.parts, int) and self.parts == 1:
            return None
        if self.schedule.is_clustered:
            assert isinstance(self.parts, int), "the cluster's extent"
            part: Index = cluster_index((1,) * axis + (self.parts,))[axis]
            return part
        return let(index % self.parts)

    def _shares(self, count: Index, parts: Index) -> tuple[Index, Index]:
        """The steps of each part, and the number of parts with one step more."""
        each, more = (derived(natural(value)) for value in (count // parts, count % parts))
        return each, more

    def items(self, each: int = 1, group: Index = 0) -> Iterator[Work]:
        """The block's tile; if groups share its K, the group's part of it."""
        m, n = self.place
        steps, segment = self.steps, self.segment
        if self.schedule.along_k > 1:
            begin = let(group * self.each + minimum(group, self.more))
            steps = let(self.each + minimum(maximum(self.more - group, 0), 1))
            segment = Segment(begin)
        yield self._of_group(Work(self.batch, m, n, 0, steps, 0, group, segment))


class Batches(DataParallel):
    """A block for each tile of several batch items that follow each other in memory."""

    @classmethod
    def takes(cls, form: Form, schedule: Schedule) -> bool:
        """Whether blocks take several batch items."""
        return schedule.batches > 1 and bool(form.batch) and form.flow.grouped is None

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """There are batch items, and a block takes them whole."""
        schedule, product = facts.schedule, facts.form.sum
        if schedule.batches == 1:
            return
        items = f"batches={schedule.batches}"
        if not facts.form.batch:
            text = f"{items}; the kernel has no batch dimensions"
            yield "batches", text, "batches=1", product
        if schedule.blocks or schedule.balanced or schedule.is_split:
            what = "not the tiles of a persistent grid, a balanced share or a part of K"
            text = f"{items}; a block takes one tile of several items, {what}"
            yield "batches", text, "batches=1, or blocks=0, balanced=False and split_k=1", product

    def _batch(self) -> tuple[Index, ...]:
        """Set the first batch item, and return (): a loop over the items computes their indices."""
        each = self.schedule.batches
        self.first = let(batch_index(ceil_div(self.problem.batches, each)) * each)
        return ()

    def items(self, each: int = 1, group: Index = 0) -> Iterator[Work]:
        """The block's tile of one batch item after the other; the last block has the items that are left."""
        (m, n), extents = self.place, self.problem.batch
        for number in traced_range(minimum(self.problem.batches - self.first, self.schedule.batches)):
            item = self.first + number
            batch = unflattened(item if len(extents) == 1 else let(item), extents)
            yield Work(batch, m, n, number * self.steps, self.steps, number, group, self.segment)


class Shares(DataParallel):
    """A block for each of equal shares of the rows and of the columns; none is larger than a tile.

    The share of a block is a separate problem of one tile; `part_of` gives the block's part of each array.
    """

    cuts_arrays, in_clusters = True, False

    @classmethod
    def takes(cls, form: Form, schedule: Schedule) -> bool:
        """Whether blocks get equal shares."""
        return schedule.balanced

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """A share of the rows and columns is a separate problem, for one block."""
        schedule, product = facts.schedule, facts.form.sum
        if not schedule.balanced:
            return
        if facts.is_persistent or schedule.group_m or schedule.group_n or schedule.cluster != (1, 1):
            text = "balanced=True; each block computes one equal share, in the order of the grid"
            nearest = "balanced=False, or leave out blocks, group_m, group_n and cluster"
            yield "balanced", text, nearest, product
        if facts.is_bulk or schedule.epilogue_class.is_buffered:
            text = "balanced=True; bulk copies need whole tiles"
            yield "balanced", text, 'balanced=False, or staging="cp_async" and epilogue="direct"', product
        if facts.form.reductions:
            text = "balanced=True; reductions need whole tiles"
            yield "balanced", text, "balanced=False", product

    def __init__(self, problem: TiledProblem, schedule: Schedule) -> None:
        parts, extents = split_parts(problem, schedule), (problem.m, problem.n)
        units = [shape * warps for shape, warps in zip(schedule.atom.shape, schedule.warps, strict=False)]
        sides = zip(extents, problem.tile[:2], units, strict=True)
        rows, columns = sizes = [derived(share(extent, tile, unit)) for extent, tile, unit in sides]
        super().__init__(replace(problem, tile=(rows, columns, problem.tile[2])), schedule, parts)
        self.spans = []
        for place, size, extent in zip(self.place, sizes, extents, strict=True):
            begin = place * size
            self.spans.append(slice(begin, minimum(begin + size, extent)))
        self.begins = self.spans[0].start, self.spans[1].start

    def items(self, each: int = 1, group: Index = 0) -> Iterator[Work]:
        """The block's share."""
        yield self._of_group(Work(self.batch, 0, 0, 0, self.steps, 0, group, self.segment))

    def part_of(self, matrix: Tensor, rows: int | None = None, columns: int | None = None) -> Tensor:
        """The block's rows and columns of an array."""
        taken = {rows: self.spans[0], columns: self.spans[1]}
        return matrix[tuple(taken.get(dim, slice(None)) for dim in range(len(matrix.shape)))]


def share(extent: Index, tile: Index, unit: int) -> Index:
    """The size of equal shares of an extent in whole units: as few shares as fit a tile each.

    Example:
        >>> share(1000, 768, 12), share(100, 768, 12), share(0, 768, 12)
        (504, 108, 12)
    """
    count = maximum(ceil_div(extent, tile), 1)
    found: Index = maximum(ceil_div(ceil_div(extent, count), unit), 1) * unit
    return found
