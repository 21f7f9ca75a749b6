"""Epilogues that store through shared memory, slice by slice, so that they write whole rows.

Separate warps may store one tile while the next one is multiplied (`OverlappedEpilogue`).  The buffers of a
group of warps are then a ring: the group fills buffers, and a warp stores them.  The group waits for a free
buffer, writes it, and signals the warp.  After its last buffer the group begins the next tile immediately.
With buffers for a whole tile, it waits only for stores of the previous tile.

The epilogue may read an array with the shape of the result, e.g. a residual, or C itself.  The warp that
stores loads a slice of it into a free buffer first.  Each thread reads its addends there, and writes the sums
to the same place.  The array needs the dtype and order of the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import TypeGuard

from tilewright.arch import BULK
from tilewright.dataflow.nodes import ArrayPart, Span, Store
from tilewright.errors import TraceError
from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import acquire_map, bulk_commit, bulk_wait, fence_async, tma_load
from tilewright.lang.control import unroll, when
from tilewright.lang.roles import role, role_barrier
from tilewright.lang.scalars import Index
from tilewright.lang.tracer import current
from tilewright.lang.transaction_barriers import arrive, wait
from tilewright.layout.limits import divisor_at_most
from tilewright.schedule.bulk_views import against_tiles
from tilewright.schedule.epilogue.buffers import (
    PanelBuffers,
    RowBuffers,
    StagedArray,
    StagedResult,
    result_tiles,
    why_no_bulk,
)
from tilewright.schedule.epilogue.direct import (
    AT_ONCE,
    DirectEpilogue,
    Helper,
    in_parts,
    own_slices,
    shared_columns,
)
from tilewright.schedule.epilogue.values import Arguments, TilePlace, Values
from tilewright.schedule.facts import Reasons, ScheduleFacts
from tilewright.schedule.form import Form, above_sums, has_slices
from tilewright.schedule.needs import ROW_BYTES, Buffer, Needs, barriers
from tilewright.schedule.partition import Partition
from tilewright.schedule.registers_ring import meet_all
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.work import Work


class StagedEpilogue(DirectEpilogue):
    """An epilogue that stores through buffers in shared memory.

    If warps have roles, each group of warps stores its tile in slices with rows of 128 bytes: bulk copies
    store one slice while the group computes the next one.  If bulk copies cannot store an array (its rows are
    not multiples of 16 bytes), the group's threads store it in whole rows.  Without roles, all threads store
    the whole tile in whole rows, or slice by slice if warps are interleaved.  Alternating groups do the same,
    each with its own rows of the tile; a barrier of all threads precedes each slice.
    """

    is_buffered = True

    def __init__(self, form: Form, schedule: Schedule, arguments: Arguments, partition: Partition) -> None:
        super().__init__(form, schedule, arguments, partition)
        self.roles = schedule.stores_by_groups
        self.buffers = self.buffers_for(form, schedule, self.count)
        self.held: list[PanelBuffers | RowBuffers] = []
        shape, results = (schedule.mma.tile[0], self.columns), [side.result for side in self.sides]
        buffers = self.buffers_of(form, schedule, schedule.mma, results, self.columns)
        for side, buffer in zip(self.sides, buffers, strict=True):
            swizzled = buffer.is_swizzled
            self.held.append(PanelBuffers(side, shape, buffer) if swizzled else RowBuffers(side, buffer))
        self.bulk = any(held.by_bulk for held in self.held)

    @cached_property
    def sides(self) -> list[StagedArray]:
        """The results that pass through shared memory."""
        return [StagedArray(self.views, store.operand, store.at, added=store.added) for store in self.blocks]

    def _slice(self) -> int:
        """Columns of a slice."""
        results = [side.result for side in self.sides]
        return self.columns_of(self.form, self.schedule, self.schedule.mma, results)

    @classmethod
    def columns_of(
        cls, form: Form, schedule: Schedule, mma: TiledMma, results: Sequence[StagedResult]
    ) -> int:
        """Columns of the slices in which a tile passes through shared memory.

        With roles, a slice has rows of 128 bytes of the narrowest elements.  If all results are contiguous
        along the rows of the tile, as in a transposed product, slices that groups store themselves have half
        that width: two fit into the memory of one, and blocks that share a tile get a slice each.

        Without roles, interleaved warps store as soon as their atoms fill rows of 128 bytes; other warps
        store all columns, or the columns of a share.

        Args:
            form: the form of the computation.
            schedule: how it is computed.
            mma: the tiled MMA of one group.
            results: the results that pass through shared memory.
        """
        spread = mma.c()
        if schedule.stores_by_groups:
            widths = sorted({ROW_BYTES // result.dtype.bytes for result in results}, reverse=True)
            if not cls.hands_over and all(result.along_rows for result in results):
                widths = [AT_ONCE]
            return next((width for width in widths if in_parts(spread, width)), spread.shape[1])
        whole, columns = shared_columns(form, schedule, spread), schedule.atom.shape[1] * schedule.warps[1]
        if not schedule.interleaved or whole != spread.shape[1]:
            return whole
        narrowest = min(store.operand.dtype.bytes for store in form.stores)
        while columns * narrowest < ROW_BYTES and columns < whole:
            columns *= 2
        return columns if in_parts(spread, columns) else whole

    @classmethod
    def buffers_for(cls, form: Form, schedule: Schedule, slices: int) -> int:
        """Number of buffers of each group of warps."""
        return min(schedule.buffers, own_slices(form, schedule, slices))

    @classmethod
    def buffers_of(
        cls, form: Form, schedule: Schedule, mma: TiledMma, results: Sequence[StagedResult], columns: int
    ) -> list[Buffer]:
        """The buffers of each result.  The arguments are those of `columns_of`, and a slice's columns."""
        count = cls.buffers_for(form, schedule, mma.tile[1] // columns)
        size = (mma.tile[0], columns), schedule.storing_groups, count
        return [result_tiles(result, *size, roles=schedule.stores_by_groups) for result in results]

    @classmethod
    def slice_columns(cls, facts: ScheduleFacts) -> int:
        """Number of columns of a slice, from the schedule's facts, without arrays."""
        results = [result for _, result in results_of(facts)]
        return cls.columns_of(facts.form, facts.schedule, facts.mma, results)

    @classmethod
    def needs(cls, facts: ScheduleFacts) -> Needs:
        """The needs of the base class, and the buffers of each result."""
        found, results = super().needs(facts), [result for _, result in results_of(facts)]
        asked = facts.form, facts.schedule, facts.mma, results
        buffers = cls.buffers_of(*asked, cls.columns_of(*asked))
        return replace(found, buffers=(*found.buffers, *buffers))

    @classmethod
    def stores_slices(cls, facts: ScheduleFacts, columns: int) -> bool:
        """Whether groups with roles store a slice of this width before the next slice is complete."""
        schedule = facts.schedule
        if not schedule.stores_by_groups or schedule.is_split or not has_slices(facts.form):
            return False
        return columns % cls.slice_columns(facts) == 0

    @classmethod
    def against_bulk(cls, facts: ScheduleFacts) -> Iterator[tuple[Store, str]]:
        """A reason for each result that threads store in whole rows because bulk copies cannot."""
        form, rows, columns = facts.form, facts.mma.tile[0], cls.slice_columns(facts)
        for store, (_, dtype, along_rows) in results_of(facts):
            name, width, unit = store.operand.name, ROW_BYTES // dtype.bytes, store_unit(facts, store)
            inner, outer = (rows, columns) if along_rows else (columns, rows)
            spans = (form.n, form.m) if along_rows else (form.m, form.n)
            reasons = [
                text
                for text, _ in against_tiles(
                    form.flow, store.operand, store.at, spans, facts.specs, (outer, width), stored=True
                )
            ]
            if form.lists and cls.hands_over:
                text = "are made by the warps that compute, and other warps would store with them"
                reasons.append(f"tensor maps of the arrays of {name} {text}")
            if (cut := form.flow.grouped) is not None:
                text = f"groups of {cut.name} may end at any row of {name}, and bulk copies store whole boxes"
                reasons.append(text)
            if unit not in (None, form.m, form.n):
                reasons.append(f"{name} is contiguous along {unit.name}")
            if inner % width:
                reasons.append(f"a slice of {inner} {dtype} is no multiple of a row of {ROW_BYTES} bytes")
            if outer > BULK.extent:
                reasons.append(f"slices of {outer} rows; bulk copies store at most {BULK.extent}")
            yield from ((store, text) for text in reasons)

    def begin(self, tile: Values) -> None:
        """Wait for the copies to the ring, which may share memory with the buffers."""
        if self.held and self.schedule.copies_in_background:
            tw.async_wait(0)

    def store_slice(self, values: Values, j: int) -> None:
        """Compute one slice into its buffers, and store them.

        A buffer is overwritten only after its last store has read it.  Without roles the first buffer may lie
        in the memory of the ring, so a barrier ensures that all warps have read the ring.
        """
        if not self.held:
            return
        buffer, group = j % self.buffers, values.place.work.group
        if values.loads(self.blocks):
            # Compute before the wait for a buffer; only the first result, because registers are few.
            values.stored(self.blocks[0])
        if self.bulk:
            # Stores of later slices, of this tile or the previous one, may still read their buffers.
            alike = [i for i in range(self.count) if i % self.buffers == buffer]
            last = j - self.buffers if j >= self.buffers else alike[-1] - self.count
            bulk_wait(j - last - 1)
        over_ring = j == 0 and not self.roles
        if self.bulk or self.buffers == 1 or self.count % self.buffers or over_ring:
            self.meet(group)
        for store, held in zip(self.blocks, self.held, strict=True):
            tw.copy(values.stored(store), held.tile(group, buffer))
        if self.bulk:
            fence_async()
        self.meet(group)
        if j == 0:  # acquire the tensor maps in global memory, one for each batch item
            maps = [held.side.block(values.place) for held in self.held if held.by_bulk and held.side.has_map]
            with when(values.place.work.begins) if maps else nullcontext():
                for block in maps:
                    acquire_map(block)
        for store, held in zip(self.blocks, self.held, strict=True):
            with self.stored(store, values.place.work):
                held.send(group, buffer, values.place, self.schedule.mma.threads)
        if self.bulk:
            bulk_commit()

    def drain(self) -> None:
        """Wait for all bulk stores."""
        if self.bulk:
            bulk_wait(0)

    def meet(self, group: Index) -> None:
        """Synchronise all warps that compute the tile."""
        if self.roles:
            role_barrier(1 + group, threads=self.schedule.mma.threads)
        elif self.schedule.alternates:
            meet_all(self.schedule)
        else:
            tw.barrier()


# ---------------------------------------------------------------- stores by warps of their own


class OverlappedEpilogue(StagedEpilogue):
    """An epilogue through shared memory in which separate warps load residuals and store the results.

    Args:
        form: the form of the computation.
        schedule: how it is computed; its warps have roles.
        arguments: the kernel's arguments.
        partition: the tiles of a block.
    """

    hands_over, without_helpers = True, "staged"

    def __init__(self, form: Form, schedule: Schedule, arguments: Arguments, partition: Partition) -> None:
        super().__init__(form, schedule, arguments, partition)
        if not self.roles:
            raise TraceError(
                'epilogue="overlapped" needs separate warps that store, and roles="none" has no separate '
                "warps",
                form.stores[0].location,
                'roles="cooperative", or epilogue="staged"',
            )
        self.handed_over = bool(self.held) and all_panels(self.held)
        if not self.handed_over:
            return  # bulk copies cannot store the results, so the group's threads do
        self.brought = [self._brought(store) for store in self.blocks]
        slots = schedule.groups * self.buffers
        free = barriers("free", slots).barriers(arrivals=1)
        written = barriers("written", slots).barriers(arrivals=schedule.mma.threads // current().lanes)
        self.free, self.written = free, written

    @classmethod
    def buffers_for(cls, form: Form, schedule: Schedule, slices: int) -> int:
        """Number of buffers of each group: a divisor of the slices, so that a slice always has one buffer."""
        return divisor_at_most(slices, schedule.buffers)

    @classmethod
    def storing_warps(cls, facts: ScheduleFacts) -> int:
        """One warp for each group, if bulk copies store all results."""
        if not facts.schedule.stores_by_groups or not any(True for _ in results_of(facts)):
            return 0
        return 0 if any(True for _ in cls.against_bulk(facts)) else facts.schedule.groups

    @classmethod
    def needs(cls, facts: ScheduleFacts) -> Needs:
        """The needs of the base class, barriers for each buffer, and the warps that store."""
        found, schedule, warps = super().needs(facts), facts.schedule, cls.storing_warps(facts)
        if not warps:
            return found
        slots = math.prod(found.buffers[-1].shape[:2])
        pair = tuple(barriers(name, slots) for name in ("free", "written"))
        # If roles exchange registers, the copying role is a whole warpgroup, and has warps to spare.
        return replace(found, barriers=pair, threads=0 if schedule.registers else warps * facts.arch.lanes)

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """Reasons to refuse a schedule: separate warps need roles, and a block that has the complete sums."""
        schedule, store = facts.schedule, facts.form.stores[0]
        if schedule.roles == "none":
            text = (
                'epilogue="overlapped" needs separate warps that store, and roles="none" has no '
                "separate warps"
            )
            yield "epilogue", text, 'epilogue="staged"', store
        if schedule.is_split:
            text = (
                'epilogue="overlapped" with split K; the storing warps do not know which block has the '
                "complete sums"
            )
            yield "epilogue", text, 'epilogue="staged"', store

    def _brought(self, store: Store) -> tuple[ArrayPart, StagedArray] | None:
        """The array, e.g. a residual, whose slices are loaded into the buffers of a store; or None."""
        rows = self.schedule.mma.tile[0]
        own = self.sides[self.blocks.index(store)]
        for node in above_sums(store.value):
            if not isinstance(node, ArrayPart) or len(self.views.along(node.at)) < 2:
                continue
            side = StagedArray(self.views, node.operand, node.at)
            alike = (side.along_rows, side.operand.dtype) == (own.along_rows, own.operand.dtype)
            if alike and not why_no_bulk(side, (rows, self.columns), stored=False):
                return node, side
        return None

    @property
    def brings(self) -> bool:
        """Whether arrays are loaded into the buffers before results are written there."""
        return any(brought is not None for brought in self.brought)

    def slot(self, group: Index, j: int) -> Index:
        """The index of a slice's buffer among the barriers."""
        return group * self.buffers + j % self.buffers

    def use(self, work: Work, j: int) -> Index:
        """Number of earlier uses of the buffer of a slice."""
        return work.item * (self.count // self.buffers) + j // self.buffers

    def part(self, tile: Values, j: int) -> Values:
        """The values of a slice; arrays that were loaded into its buffers are read there."""
        values = super().part(tile, j)
        if self.handed_over:
            for held, pair in zip(self.panels, self.brought, strict=True):
                if pair is not None:
                    part, side = pair
                    where = held.tile(tile.place.work.group, j % self.buffers)
                    values.brought[id(part)] = partial(
                        tw.load, where, values.spread, name=f"r{side.operand.name}"
                    )
        return values

    def store_slice(self, values: Values, j: int) -> None:
        """Compute one slice into its buffers, and signal the storing warp."""
        if not self.handed_over:
            super().store_slice(values, j)
            return
        work, b = values.place.work, j % self.buffers
        slot, use = self.slot(work.group, j), self.use(work, j)
        if self.brings:
            wait(self.free[slot], use % 2)
            made = [values.stored(store) for store in self.blocks]
            tw.warp_barrier()  # lanes may write elements that other lanes of the warp have just read
        else:
            made = [values.stored(store) for store in self.blocks]
            wait(self.free[slot], 1 - use % 2)
        for fragment, held in zip(made, self.panels, strict=True):
            tw.copy(fragment, held.tile(work.group, b))
        fence_async()
        arrive(self.written[slot], each="warp")

    @property
    def panels(self) -> list[PanelBuffers]:
        """The buffers of all results, which bulk copies store."""
        assert all_panels(self.held)
        return self.held

    def drain(self) -> None:
        """Wait for the group's stores, if its own threads store."""
        if not self.handed_over:
            super().drain()

    def helpers(self) -> list[Helper]:
        """The storing warps."""
        return [Storer(self)] if self.handed_over else []


class Storer:
    """The storing warps: one for each group of warps that multiply."""

    def __init__(self, epilogue: OverlappedEpilogue) -> None:
        self.epilogue = epilogue
        schedule = epilogue.schedule
        self.each = schedule.groups if schedule.roles == "ping-pong" else 1
        self.lag = min(1, epilogue.buffers - 1)
        """Slices whose stores may still run when the buffer of an earlier slice is released."""

    @contextmanager
    def role(self) -> Iterator[Index]:
        """Record operations of the storing warps; yield the number of the group."""
        with role(warps=1, groups=self.epilogue.schedule.groups) as g:
            yield g

    def serve(self, work: Work) -> None:
        """Store each slice of a tile after it is written; release its buffer after the store has read it."""
        epilogue = self.epilogue
        place = epilogue.place(work)
        if epilogue.brings:
            for j in unroll(epilogue.buffers):
                self._bring(place, j)
        for j in unroll(epilogue.count):
            slot, use = epilogue.slot(work.group, j), epilogue.use(work, j)
            wait(epilogue.written[slot], use % 2)
            for store, held in zip(epilogue.blocks, epilogue.panels, strict=True):
                with epilogue.stored(store, work):
                    held.send(work.group, j % epilogue.buffers, epilogue.slice_at(place, j), 0)
            bulk_commit()
            if j >= self.lag:
                bulk_wait(self.lag)
                self._release(place, j - self.lag)
        bulk_wait(0)
        for j in range(epilogue.count - self.lag, epilogue.count):
            self._release(place, j)

    def _release(self, place: TilePlace, j: int) -> None:
        """Release the buffer of a slice to the group, or load the array of a later slice into it."""
        epilogue = self.epilogue
        if not epilogue.brings:
            arrive(epilogue.free[epilogue.slot(place.work.group, j)])
        elif j + epilogue.buffers < epilogue.count:
            self._bring(place, j + epilogue.buffers)

    def _bring(self, place: TilePlace, j: int) -> None:
        epilogue, group = self.epilogue, place.work.group
        pairs = [
            (held, brought[1])
            for held, brought in zip(epilogue.panels, epilogue.brought, strict=True)
            if brought is not None
        ]
        free = epilogue.free[epilogue.slot(group, j)]
        arrive(free, expect_bytes=sum(held.bytes for held, _ in pairs))
        for held, side in pairs:
            for target, source in held.pairs(group, j % epilogue.buffers, epilogue.slice_at(place, j), side):
                tma_load(source, target, free)


def results_of(facts: ScheduleFacts) -> Iterator[tuple[Store, StagedResult]]:
    """The results with rows and columns, which pass through shared memory."""
    for store in facts.form.blocks:
        along_rows = store_unit(facts, store) == facts.form.m
        yield store, StagedResult(f"s{store.operand.name}", store.operand.dtype, along_rows)


def store_unit(facts: ScheduleFacts, store: Store) -> Span | None:
    """The span along which a result is contiguous."""
    unit = facts.form.spec(store.operand, facts.specs).unit_dim
    return None if unit is None else store.at[unit]


def all_panels(held: list[PanelBuffers | RowBuffers]) -> TypeGuard[list[PanelBuffers]]:
    """Whether bulk copies store from all buffers."""
    return all(isinstance(one, PanelBuffers) and one.by_bulk for one in held)
