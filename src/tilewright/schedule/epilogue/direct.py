"""From registers to global memory: what needs no shared memory, and what is stored along one dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from tilewright.dataflow.nodes import ArrayPart, Store
from tilewright.dtypes import DType
from tilewright.errors import LayoutError, TraceError
from tilewright.lang import operations as tw
from tilewright.lang.control import let, unroll, when
from tilewright.lang.control import range as traced_range
from tilewright.lang.fragments import Fragment
from tilewright.lang.scalars import Condition, Index, ceil_div
from tilewright.lang.tracer import located
from tilewright.schedule.epilogue.across import Across, reductions_of
from tilewright.schedule.epilogue.reductions import Reductions
from tilewright.schedule.epilogue.values import Arguments, TilePlace, Values, Views, above_sums
from tilewright.schedule.fixup import LEAST_SHARE, has_shares, is_clustered
from tilewright.schedule.form import Form, extent_of, has_slices, reduced_in_parts
from tilewright.schedule.needs import ROW_BYTES
from tilewright.schedule.partition import Work
from tilewright.schedule.schedule import Schedule
from tilewright.threads.distribution import Distribution

AT_ONCE = 32
"""Columns that are computed at once where arrays are read."""


class Helper(Protocol):
    """Warps that do not multiply, and do a part of the epilogue."""

    each: int
    """They take every tile of the block, or one in this number of tiles."""

    def role(self) -> AbstractContextManager[Index]:
        """Record operations of these warps alone; gives the number of their group."""

    def serve(self, work: Work) -> None:
        """Do their part for a tile."""


class DirectEpilogue:
    """Every thread stores what it holds.

    Args:
        form: what is computed.
        schedule: how.
        arguments: the kernel's.
    """

    def __init__(self, form: Form, schedule: Schedule, arguments: Arguments) -> None:
        self.form, self.schedule = form, schedule
        self.views = Views(form, arguments)
        extents = (extent_of(form, arguments, form.m), extent_of(form, arguments, form.n))
        self.reductions = Reductions(form, schedule, extents)
        whole = [len(self.views.along(store.at)) == 2 for store in form.stores]
        self.blocks = [store for store, is_whole in zip(form.stores, whole, strict=True) if is_whole]
        self.lines = [store for store, is_whole in zip(form.stores, whole, strict=True) if not is_whole]
        """The results that are stored along rows or columns alone."""

        self.across = self._across(extents) if schedule.across else []
        """The memory of reductions across tiles, each with the results that are made of them."""

        if schedule.balanced and self.lines:
            raise TraceError(
                f"{self.lines[0].operand.name} is stored along one dimension, of which a balanced partition "
                "does not know its first tile; nearest legal choice: balanced=False",
                self.lines[0].location,
            )
        self.columns = self._slice(schedule.mma.tile[1])
        """Columns of a slice, which is computed at once."""
        self.count = schedule.mma.tile[1] // self.columns

    def _slice(self, columns: int) -> int:
        """Few columns where arrays are read, so that they fit into registers beside the sums.

        One thread that holds the whole tile has it in memory, and computes it in one go.
        """
        if self.schedule.mma.threads == 1:
            return columns
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
        """When the last product of a tile is under way: read what its first slice is computed from."""
        parts[0].fetch(self.blocks)

    def store(self, tile: Values, parts: Sequence[Values], sums: tuple[Fragment, ...]) -> None:
        """Compute and store what becomes of the totals of a group's tile, slice by slice."""
        tile.sums = sums
        self.store_lines(tile)
        self.begin(tile)
        for j in unroll(self.count):
            if j + 1 < self.count:
                parts[j + 1].fetch(self.blocks)
            self.store_slice(parts[j], j)

    @property
    def shares(self) -> int:
        """Shares of a group's tile, for blocks that share it."""
        return self.count if has_slices(self.form) else 1

    def store_share(self, work: Work, blocks: Index, sums: Callable[[Distribution, Index], Fragment]) -> None:
        """Compute and store this block's share of a group's tile, whose slices are dealt out to some blocks.

        What is reduced, or stored along one dimension, is known of a whole tile alone: the first block then
        computes all of it.

        Args:
            work: the tile; the number of its part is that of the block.
            blocks: how many share the tile.
            sums: the sums of a slice, of which there are as many as of a distribution fit into the tile.
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
            # Of whole rounds of slices every block has as many.
            with when(j < self.count) if self.count % blocks else nullcontext():
                store(j, turn)

    def begin(self, tile: Values) -> None:
        """Before the slices of a tile: nothing."""

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
        """Nothing is under way."""

    def helpers(self) -> list[Helper]:
        """Warps that only store: none."""
        return []

    def place(self, work: Work) -> TilePlace:
        """The place of a group's tile."""
        rows, columns, _ = self.schedule.mma.tile
        return TilePlace(work, (rows, columns), (self.row(work), work.n))

    def row(self, work: Work) -> Index:
        """The row of a group's tile, counted in such tiles."""
        groups = self.schedule.cooperating
        return work.m * groups + work.group if groups > 1 else work.m

    def store_from(self, values: Values, stores: Sequence[Store]) -> None:
        """Store from registers."""
        for store in stores:
            tw.copy(values.stored(store), self.views.block(store.operand, store.at, values.place))

    def _across(self, extents: tuple[Index, Index]) -> list[tuple[Across, list[Store]]]:
        """For rows and for columns what is reduced across tiles."""
        nodes, found = reduced_in_parts(self.form), []
        batch = tuple(extent_of(self.form, self.views.arguments, span) for span in self.form.batch)
        for dim, span in enumerate((self.form.m, self.form.n)):
            own = [node for node in nodes if node.argument.axes[node.axis] == span]
            if own:
                stores = [store for store in self.lines if reductions_of(store, tuple(own))]
                found.append(
                    (Across(self.form, self.schedule, own, dim, extents, batch, self.reductions), stores)
                )
        return found

    def store_lines(self, tile: Values) -> None:
        """Store the results along one dimension, in the first or the last tile along the other one."""
        for across, stores in self.across:
            across.store(tile, stores, self)
        made = {id(store) for _, stores in self.across for store in stores}
        for store in (one for one in self.lines if id(one) not in made):
            along = self.views.along(store.at)
            first: Condition | bool = True
            for span, at in zip((self.form.m, self.form.n), tile.place.at, strict=True):
                if span not in along:
                    first = (at == 0) & first
            tile.value(store.value)  # all threads take part in reductions
            if first is True:
                self.store_from(tile, [store])
                continue
            with when(first):
                self.store_from(tile, [store])


def own_slices(form: Form, schedule: Schedule, count: int) -> int:
    """How many of a tile's slices a block computes, at most: its share, where blocks share the tile."""
    if not has_shares(schedule) or not isinstance(schedule.split_k, int) or not has_slices(form):
        return count
    return -(-count // schedule.split_k)


def shared_columns(form: Form, schedule: Schedule, spread: Distribution) -> int:
    """Columns of the slices of a tile, of which each block that shares it has one.

    All of them where blocks share no tile.
    """
    columns = spread.shape[1]
    most = columns // AT_ONCE
    if not has_shares(schedule) or not has_slices(form):
        return columns
    if not is_clustered(schedule):
        widths = (width for width in range(LEAST_SHARE, columns, LEAST_SHARE) if in_parts(spread, width))
        return next(widths, columns)
    # Blocks of a cluster have a number; the rules refuse another split, and ask for the columns meanwhile.
    blocks = schedule.split_k if isinstance(schedule.split_k, int) else 1
    for count in range(min(blocks, most), 1, -1):
        if columns % count == 0 and in_parts(spread, columns // count):
            return columns // count
    return columns


def staged_columns(form: Form, schedule: Schedule, spread: Distribution) -> int:
    """Columns of the slices in which a tile goes through shared memory where warps have no roles.

    Where warps take turns at the atoms of a tile, as few turns as make rows of 128 bytes; else all of them,
    or those of a share.
    """
    whole, columns = shared_columns(form, schedule, spread), schedule.atom.shape[1] * schedule.warps[1]
    if not schedule.interleaved or whole != spread.shape[1]:
        return whole
    narrowest = min(store.operand.dtype.bytes for store in form.stores)
    while columns * narrowest < ROW_BYTES and columns < whole:
        columns *= 2
    return columns if in_parts(spread, columns) else whole


def bulk_columns(schedule: Schedule, spread: Distribution, results: Sequence[tuple[DType, bool]]) -> int:
    """Columns of the slices in which a group's tile goes through shared memory where warps have roles.

    Rows of 128 bytes of the narrowest elements.  Where these rows are columns of the tile, as of all results
    of exchanged operands, slices that groups store themselves are narrow: two of them take the memory of one,
    and blocks that share a tile have one each.

    Args:
        schedule: how the tile is computed.
        spread: which threads hold which elements of the tile.
        results: the dtype of each result, and whether it is contiguous along the tile's rows.
    """
    widths = sorted({ROW_BYTES // dtype.bytes for dtype, _ in results}, reverse=True)
    if schedule.epilogue == "staged" and all(along_rows for _, along_rows in results):
        widths = [AT_ONCE]
    return next((width for width in widths if in_parts(spread, width)), spread.shape[1])


def in_parts(spread: Distribution, columns: int) -> bool:
    """Whether parts of so many columns make up a tile, and are the same part of every thread's values."""
    if spread.shape[1] % columns:
        return False
    try:
        spread.slice((0, 0), (spread.shape[0], columns))
    except LayoutError:
        return False
    return True
