"""The epilogue that stores from registers, reductions across tiles, and the interface of all epilogues."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from tilewright.dataflow.nodes import ArrayPart, Reduce, Store, walk
from tilewright.dtypes import DType, u32
from tilewright.errors import LayoutError, TraceError
from tilewright.lang import operations as tw
from tilewright.lang.control import let, unroll, when
from tilewright.lang.control import range as traced_range
from tilewright.lang.fragments import Fragment, elementwise
from tilewright.lang.launch import launcher_memory
from tilewright.lang.scalars import Condition, Index, ceil_div, maximum
from tilewright.lang.signals import ticket
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import coordinates
from tilewright.lang.tracer import located
from tilewright.schedule.epilogue.reductions import Reductions, neutral, reduced_tiles, scratch_shape, wide
from tilewright.schedule.epilogue.values import Arguments, TilePlace, Values, Views
from tilewright.schedule.facts import Reasons, ScheduleFacts
from tilewright.schedule.fixup import LEAST_SHARE
from tilewright.schedule.form import (
    Form,
    above_sums,
    added_arrivals,
    extent_of,
    has_slices,
    reduced_in_parts,
    shift_of,
)
from tilewright.schedule.needs import PARTIAL, Buffer, Needs, tickets
from tilewright.schedule.partition import Partition
from tilewright.schedule.provenance import made_by
from tilewright.schedule.schedule import EpilogueTraits, Schedule
from tilewright.schedule.skipping import square
from tilewright.schedule.work import Work
from tilewright.threads.distribution import Distribution, Mode

# ---------------------------------------------------------------- reductions across tiles
#
# Each block writes its tile's partial result, and the last block combines them.  It combines the partial
# results of one row (or column) in the order of the tiles, so the bits do not depend on which block was last.
# The sum of ``exp(x - max of x)`` follows from the maximum and the sum of each tile: a tile's sum is
# multiplied by ``exp(m - M)``, where m is the maximum of the tile and M the maximum of all.

COMBINE = {"sum": "add", "max": "max", "min": "min"}
"""The function that combines two partial results, for each reduction."""


PARTS_AT_ONCE = 4
"""Partial results that each thread reads together, so that it waits for memory once."""


class Across:
    """Reductions along one dimension across tiles, with the global memory of their partial results.

    Args:
        form: the form of the computation.
        schedule: how it is computed.
        nodes: the reductions.
        dim: dimension along which they reduce: 0 for rows, 1 for columns.
        extents: rows and columns of the result.
        batch: extents of its leading dimensions.
        reductions: combines the partial results of threads.
    """

    def __init__(
        self,
        form: Form,
        schedule: Schedule,
        nodes: list[Reduce],
        dim: int,
        extents: tuple[Index, Index],
        batch: tuple[Index, ...],
        reductions: Reductions,
    ) -> None:
        self.form, self.schedule, self.nodes, self.dim = form, schedule, nodes, dim
        self.reductions = reductions
        counts: list[Index] = [
            ceil_div(maximum(extent, 1), length)
            for extent, length in zip(extents, schedule.tile, strict=False)
        ]
        counts[0] = counts[0] * schedule.cooperating
        self.parts, lines = counts[dim], counts[1 - dim]
        length = schedule.mma.tile[1 - dim]
        self.held = {}
        for node in nodes:
            parts = launcher_memory((*batch, self.parts, lines * length), wide(node.dtype))
            self.held[id(node)] = parts
        arrived = launcher_memory((*batch, lines), u32, resets=True)
        self.arrived = arrived

    def store(self, tile: Values, stores: list[Store], epilogue: Any) -> None:
        """Write a tile's partial results; the last tile of the row, or column, combines all and stores."""
        place = tile.place
        with made_by("across"):
            own = {id(node): tile.value(node) for node in self.nodes}
            if self.schedule.roles == "none":  # wait until the ring's memory is free for other uses
                if self.schedule.copies_in_background:
                    tw.async_wait(0)
                tw.barrier()
            for node in self.nodes:
                tw.copy(own[id(node)].to(wide(node.dtype)), self._part(node, place, place.at[self.dim]))
            counter = self.arrived[(*place.work.batch, place.at[1 - self.dim])]
            barrier = None if self.schedule.roles == "none" else 1 + place.work.group
            number = ticket(counter, of=self.parts, barrier=barrier)
        with when(number == self.parts - 1):
            made: dict[int, Fragment] = {}
            with made_by("across"):
                # A sum of powers of ``x - maximum`` needs the maximum first.
                for node in sorted(self.nodes, key=lambda one: shift_of(one) is not None):
                    made[id(node)] = self._combined(node, own[id(node)], place, made)
            whole = tile.of_parts(made)
            epilogue.store_from(whole, stores)

    def _combined(
        self, node: Reduce, like: Fragment, place: TilePlace, made: dict[int, Fragment]
    ) -> Fragment:
        """Combine all parts of a reduction: first each thread combines some, then threads combine theirs."""
        kind, shift = wide(node.dtype), shift_of(node)
        spread = several(like.distribution, self.dim)
        total = tw.fragment(spread, kind, neutral(node.combine, kind), name="combined")
        count = spread.shape[self.dim]
        for number in traced_range(ceil_div(self.parts, count)):
            part = self._several(node, place, number, spread)
            if shift is not None:
                top, power = shift
                own, whole = self._several(top, place, number, spread), made[id(top)]
                # If nothing is finite, both are -inf, and their difference would be NaN.
                factor = elementwise(power, own - whole)
                part = elementwise("select", own == whole, part, part * factor)
                # A tile of -inf alone has the sum NaN; it adds 0 if another tile has a larger element.
                part = elementwise("select", (own == -math.inf) & (whole > own), 0, part)
                exists = coordinates(spread, self.dim) < self.parts - number * count
                part = elementwise("select", exists, part, 0)  # NaN for rows that have NaN
            total.assign(elementwise(COMBINE[node.combine], total, part))
        return self.reductions.of_threads(node.combine, total, self.dim, place.work)

    def _part(self, node: Reduce, place: TilePlace, number: Index) -> Tensor:
        """The partial result of tile ``number`` along the dimension, as (rows, 1) or (1, columns)."""
        length = self.schedule.mma.tile[1 - self.dim]
        line = self.held[id(node)][(*place.work.batch, number)]
        tile = line.tile((length,), (place.at[1 - self.dim],))
        return tile.unmerge(0, (length, 1) if self.dim == 1 else (1, length))

    def _several(self, node: Reduce, place: TilePlace, number: Index, spread: Distribution) -> Fragment:
        """Load as many parts as a map has room for; parts that do not exist are the neutral element."""
        shape = spread.shape[self.dim], spread.shape[1 - self.dim]
        tile = self.held[id(node)][place.work.batch].tile(shape, (number, place.at[1 - self.dim]))
        other = neutral(node.combine, wide(node.dtype))
        return tw.load(tile if self.dim == 0 else tile.permute(1, 0), spread, other=other)


def several(one: Distribution, dim: int) -> Distribution:
    """A map for several parts: threads that hold copies in the map of one part get different parts.

    Args:
        one: the map of one part; it has extent 1 along the dimension.
        dim: the dimension.

    Example:
        >>> one = Distribution((8, 1), (Mode(4, None, 0), Mode(8, 0, 1)), ())
        >>> several(one, 1).shape, several(one, 1).threads[0]
        ((8, 16), Mode(extent=4, dim=1, step=1))
    """
    threads, count = list[Mode](), 1
    for mode in one.threads:
        threads.append(Mode(mode.extent, dim, count) if mode.dim is None else mode)
        count *= mode.extent if mode.dim is None else 1
    shape = list(one.shape)
    shape[dim] = count * PARTS_AT_ONCE
    return Distribution(tuple(shape), tuple(threads), (*one.values, Mode(PARTS_AT_ONCE, dim, count)))


def reductions_of(store: Store, nodes: tuple[Reduce, ...]) -> list[Reduce]:
    """The given reductions from which a result is computed."""
    inner = {id(node) for node in walk(store.value)}
    return [node for node in nodes if id(node) in inner]


# ---------------------------------------------------------------- the epilogue

AT_ONCE = 32
"""Columns that are computed at once if the epilogue reads arrays."""


class Helper(Protocol):
    """Warps that do not multiply, but help with the epilogue."""

    each: int
    """Each group of these warps takes every n-th tile of the block, with this n."""

    def role(self) -> AbstractContextManager[Index]:
        """Record operations that only these warps execute; yields the number of their group."""

    def serve(self, work: Work) -> None:
        """Record the work of these warps for a tile."""


class DirectEpilogue(EpilogueTraits):
    """An epilogue in which every thread stores its elements from registers.

    A subclass declares its needs and its reasons to refuse schedules, and stores slices in its own way.

    Args:
        form: the form of the computation.
        schedule: how it is computed.
        arguments: the kernel's arguments.
        partition: the tiles of a block.
    """

    @classmethod
    def needs(cls, facts: ScheduleFacts) -> Needs:
        """Needs of the epilogue: shared memory for reductions across warps and tiles."""
        schedule, form = facts.schedule, facts.form
        lanes = facts.arch.lanes if schedule.atom.asynchronous else schedule.atom.lanes
        scratch: dict[tuple[tuple[int, ...], DType], Buffer] = {}
        for node, held, dim in reduced_tiles(form, facts.mma):
            if (shape := scratch_shape(held, dim, lanes)) is not None:
                kind = wide(node.dtype)
                scratch[shape, kind] = Buffer("partial", PARTIAL, (schedule.storing_groups, *shape), kind)
        # Each dimension with a reduction across tiles has a ticket, by which threads learn who is last.
        nodes = reduced_in_parts(form) if schedule.across else ()
        dims = {node.argument.axes[node.axis] for node in nodes}
        return Needs(tuple(scratch.values()), tickets=(tickets(schedule.storing_groups),) * len(dims))

    @classmethod
    def storing_warps(cls, facts: ScheduleFacts) -> int:
        """Number of warps that only store."""
        return 0

    @classmethod
    def stores_slices(cls, facts: ScheduleFacts, columns: int) -> bool:
        """Whether a slice of this width is stored before the sums of the next slice are complete."""
        return False

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """Reasons of this epilogue to refuse a schedule."""
        return iter(())

    @classmethod
    def against_bulk(cls, facts: ScheduleFacts) -> Iterator[tuple[Store, str]]:
        """A reason for each result that threads store because bulk copies cannot."""
        return iter(())

    def __init__(self, form: Form, schedule: Schedule, arguments: Arguments, partition: Partition) -> None:
        self.form, self.schedule = form, schedule
        self.views = Views(form, arguments, partition)
        extents = (extent_of(form, arguments, form.m), extent_of(form, arguments, form.n))
        self.reductions = Reductions(form, schedule, extents)
        self.blocks = form.blocks
        self.lines = form.lines
        """The results with only rows or only columns."""

        self.across: list[tuple[Across, list[Store]]] = []
        """The memory of reductions across tiles along each dimension, with the results computed from them."""

        batch = tuple(extent_of(form, arguments, span) for span in form.batch) if schedule.across else ()
        for dim, span in enumerate((form.m, form.n) if schedule.across else ()):
            own = [node for node in reduced_in_parts(form) if node.argument.axes[node.axis] == span]
            if own:
                stores = [store for store in self.lines if reductions_of(store, tuple(own))]
                memory = Across(form, schedule, own, dim, extents, batch, self.reductions)
                self.across.append((memory, stores))
        if schedule.balanced and self.lines:
            raise TraceError(
                f"{self.lines[0].operand.name} has one dimension, and a balanced partition has no first "
                "tile that would store it",
                self.lines[0].location,
                "balanced=False",
            )
        self.columns = self._slice()
        """Columns of a slice, the part of a tile that is computed at once."""
        self.count = schedule.mma.tile[1] // self.columns

    def _slice(self) -> int:
        """Columns of a slice: few if the epilogue reads arrays, which need registers besides the sums.

        A block of one thread has its tile in memory, and computes it as one slice.
        """
        if self.schedule.mma.threads == 1:
            return self.schedule.mma.tile[1]
        columns = shared_columns(self.form, self.schedule, self.schedule.mma.c())
        if not any(isinstance(node, ArrayPart) for store in self.blocks for node in above_sums(store.value)):
            return columns
        width = AT_ONCE
        while width < columns and not in_parts(self.schedule.mma.c(), width):
            width *= 2
        return min(width, columns)

    def slices(self, work: Work) -> tuple[Values, list[Values]]:
        """The values of a group's tile, and of each of its slices; nothing is computed yet."""
        tile = Values(self.views, self.reductions, self.place(work), self.schedule.mma.c())
        return tile, [self.part(tile, j) for j in range(self.count)]

    def prepare(self, parts: Sequence[Values]) -> None:
        """Read the arrays of a tile's first slice while the tile's last product runs."""
        parts[0].fetch(self.blocks)

    def store(self, tile: Values, parts: Sequence[Values], sums: tuple[Fragment, ...]) -> None:
        """Compute the results of a group's tile from its sums, and store them slice by slice."""
        tile.sums = sums
        self.store_lines(tile)
        self.begin(tile)
        for j in unroll(self.count):
            if j + 1 < self.count and self.fetches_ahead:
                parts[j + 1].fetch(self.blocks)
            self.store_slice(parts[j], j)

    @property
    def fetches_ahead(self) -> bool:
        """Whether the arrays of a slice are read before the previous slice is stored.

        A single array always is.  Several arrays are not if they are parts of ranks: these would fill the
        registers.
        """
        read = [node for store in self.blocks for node in above_sums(store.value)]
        arrays = {node.operand for node in read if isinstance(node, ArrayPart) and len(node.at) > 1}
        return len(arrays) == 1 or not added_arrivals(self.form)

    @property
    def shares(self) -> int:
        """Number of shares into which a group's tile can be divided between blocks."""
        return self.count if has_slices(self.form) else 1

    def store_share(self, work: Work, blocks: Index, sums: Callable[[Distribution, Index], Fragment]) -> None:
        """Compute and store this block's share of a group's tile: every ``blocks``-th of its slices.

        A reduction, or a result along one dimension, needs the whole tile.  Then the first block computes it.

        Args:
            work: the tile, and the number of this block's part of it.
            blocks: number of blocks that share the tile.
            sums: returns the sums of a slice, given the slice's map and number.
        """
        rank, spread = work.segment.part, self.schedule.mma.c()
        if self.shares == 1:
            with when(rank == 0):
                self.store(*self.slices(work), (sums(spread, 0),))
            return
        whole, shape = self.place(work), (self.schedule.mma.tile[0], self.columns)
        with located():
            spread = spread.slice((0, 0), shape)

        def store(j: Index, turn: int) -> None:
            values = Values(self.views, self.reductions, self.slice_at(whole, j), spread, (sums(spread, j),))
            self.store_slice(values, turn)

        if not isinstance(blocks, int):
            for later in traced_range(ceil_div(self.count - rank, blocks)):
                store(let(later * blocks + rank), 0)
            return
        for turn in unroll(own_slices(self.form, self.schedule, self.count)):
            j = let(turn * blocks + rank)
            # If the blocks divide the slices, every block has a slice in the last round.
            with when(j < self.count) if self.count % blocks else nullcontext():
                store(j, turn)

    def begin(self, tile: Values) -> None:
        """Do nothing: slices need no preparation."""

    def store_slice(self, values: Values, j: int) -> None:
        """Compute and store a slice."""
        self.store_from(values, self.blocks)

    def part(self, tile: Values, j: int) -> Values:
        """The values of a slice."""
        if self.count == 1:
            return tile
        return tile.part(self.slice_at(tile.place, j), slice(j * self.columns, (j + 1) * self.columns))

    def slice_at(self, whole: TilePlace, j: Index) -> TilePlace:
        """The place of a slice of a tile."""
        (row, column), (rows, _) = whole.at, whole.shape
        return TilePlace(whole.work, (rows, self.columns), (row, column * self.count + j))

    def drain(self) -> None:
        """Do nothing: no store is in flight."""

    def helpers(self) -> list[Helper]:
        """Return no warps: the computing warps store."""
        return []

    def place(self, work: Work) -> TilePlace:
        """The place of a group's tile."""
        (rows, columns, _), groups = self.schedule.mma.tile, self.schedule.cooperating
        row = work.m * groups + work.group if groups > 1 else work.m
        return TilePlace(work, (rows, columns), (row, work.n))

    def read_first(self, values: Values, stores: Sequence[Store]) -> None:
        """Read the parts of arrays that a result needs, and that an earlier store may overwrite."""
        for at, store in enumerate(stores):
            replaced = {one.operand.name for one in stores[:at]}
            for node in above_sums(store.value) if replaced else ():
                if isinstance(node, ArrayPart) and node.operand.name in replaced:
                    values.value(node)

    def store_from(self, values: Values, stores: Sequence[Store]) -> None:
        """Store from registers."""
        self.read_first(values, stores)
        for store in stores:
            made = values.stored(store)
            with self.stored(store, values.place.work):
                # The tensor has no name, because a branch must not rebind a variable of an earlier store.
                tw.copy(
                    made,
                    self.views.block(store.operand, store.at, values.place),
                    reduction="add" if store.added else None,
                )

    def stored(self, store: Store, work: Work) -> AbstractContextManager[None]:
        """Record operations for the tiles of a store; a mirrored store writes those below the diagonal."""
        if store not in self.form.mirrored:
            return nullcontext()
        (rows, columns), (blocks_m, blocks_n) = self.schedule.tile[:2], self.schedule.cluster
        side = square((rows * blocks_m, columns * blocks_n))
        return when(work.m * rows // side > work.n * columns // side)

    def store_lines(self, tile: Values) -> None:
        """Store the results along one dimension, in the first tile along the other one.

        If they need a reduction across tiles, the last tile to arrive stores them.
        """
        for across, stores in self.across:
            across.store(tile, stores, self)
        made = {id(store) for _, stores in self.across for store in stores}
        lines = [one for one in self.lines if id(one) not in made]
        self.read_first(tile, lines)
        for store in lines:
            along = self.views.along(store.at)
            first: Condition | bool = True
            for span, at in zip((self.form.m, self.form.n), tile.place.at, strict=True):
                if span not in along:
                    first = (at == 0) & first
            tile.value(store.value)  # all threads take part in reductions
            with nullcontext() if first is True else when(first):
                self.store_from(tile, [store])


def own_slices(form: Form, schedule: Schedule, count: int) -> int:
    """Most slices of a tile that a block computes: its share if blocks share the tile, otherwise all."""
    if not schedule.has_shares or not isinstance(schedule.split_k, int) or not has_slices(form):
        return count
    return -(-count // schedule.split_k)


def shared_columns(form: Form, schedule: Schedule, spread: Distribution) -> int:
    """Columns of a slice if blocks share the tile, one slice each; else all columns."""
    columns = spread.shape[1]
    if not schedule.has_shares or not has_slices(form):
        return columns
    if not schedule.is_clustered:
        widths = (width for width in range(LEAST_SHARE, columns, LEAST_SHARE) if in_parts(spread, width))
        return next(widths, columns)
    # A cluster needs an integer split.  Legality refuses others, but calls this function first.
    blocks = schedule.split_k if isinstance(schedule.split_k, int) else 1
    for count in range(min(blocks, columns // AT_ONCE), 1, -1):
        if columns % count == 0 and in_parts(spread, columns // count):
            return columns // count
    return columns


def in_parts(spread: Distribution, columns: int) -> bool:
    """Whether slices of this width divide a tile, and each thread's values, into equal parts."""
    if spread.shape[1] % columns:
        return False
    try:
        spread.slice((0, 0), (spread.shape[0], columns))
    except LayoutError:
        return False
    return True
