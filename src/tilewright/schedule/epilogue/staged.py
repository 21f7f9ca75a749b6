"""Epilogues through shared memory to global memory, slice by slice, so that whole rows are written at once.

Stores may go on under the next tile's multiplications, by warps of their own (`OverlappedEpilogue`).  The
buffers of a group of warps then are a ring between the group, which fills them, and a warp that stores them.
The group waits for a free buffer and signals when it is written; its next tile begins at once.  With buffers
for a whole tile, it waits for stores that began a tile ago.

An array of the size of the result that is read, such as a residual, or C itself, comes the other way: the
warp that stores loads its slice into the free buffer, and each thread finds the addend where it then writes
the sum.  The array needs the dtype and order of the one that is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TypeGuard

from tilewright.dataflow.nodes import ArrayPart, Store
from tilewright.errors import TraceError
from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import acquire_map, bulk_commit, bulk_wait, fence_async, tma_load
from tilewright.lang.control import unroll, when
from tilewright.lang.roles import role, role_barrier
from tilewright.lang.scalars import Index
from tilewright.lang.tracer import current
from tilewright.lang.transaction_barriers import arrive, wait
from tilewright.layout.limits import divisor_at_most
from tilewright.schedule.epilogue.buffers import PanelBuffers, RowBuffers, StagedArray, in_panels, why_no_bulk
from tilewright.schedule.epilogue.direct import (
    DirectEpilogue,
    Helper,
    bulk_columns,
    own_slices,
    staged_columns,
)
from tilewright.schedule.epilogue.values import Arguments, TilePlace, Values, above_sums
from tilewright.schedule.form import Form
from tilewright.schedule.needs import barriers
from tilewright.schedule.partition import Work
from tilewright.schedule.registers_ring import meet_all
from tilewright.schedule.schedule import Schedule


class StagedEpilogue(DirectEpilogue):
    """Through buffers in shared memory.

    Where warps have roles, each group of warps goes through its tile by slices of 128 bytes of columns, and
    bulk copies take one slice while the next one is computed.  An array that bulk copies do not store (rows
    that are no multiples of 16 bytes, which they would write beyond) is stored by the group's threads, in
    whole rows.  Without roles all threads store the whole tile in that way, or slices where warps take turns;
    so do groups that load and multiply in turns, each its own tile, and all of them meet for each slice.
    """

    def __init__(self, form: Form, schedule: Schedule, arguments: Arguments) -> None:
        super().__init__(form, schedule, arguments)
        self.roles = schedule.stores_by_groups
        self.sides = [StagedArray(self.views, store.operand, store.at) for store in self.blocks]
        self.buffers = self.buffers_for(self.count)
        shape = schedule.mma.tile[0], self.columns
        groups = schedule.groups if self.roles else schedule.cooperating
        self.held = [self._buffers(side, shape, groups) for side in self.sides]
        self.bulk = any(held.by_bulk for held in self.held)

    def buffers_for(self, count: int) -> int:
        """How many buffers each group has for its slices."""
        return min(self.schedule.buffers, own_slices(self.form, self.schedule, count))

    def _slice(self, columns: int) -> int:
        """Columns of a slice."""
        if not self.schedule.stores_by_groups:
            return staged_columns(self.form, self.schedule, self.schedule.mma.c())
        sides = [StagedArray(self.views, store.operand, store.at) for store in self.blocks]
        results = [(side.operand.dtype, side.along_rows) for side in sides]
        return bulk_columns(self.schedule, self.schedule.mma.c(), results)

    def _buffers(self, side: StagedArray, shape: tuple[int, int], groups: int) -> PanelBuffers | RowBuffers:
        kind = PanelBuffers if self.roles and in_panels(side, shape) else RowBuffers
        return kind(side, shape, groups, self.buffers)

    def begin(self, tile: Values) -> None:
        """The ring may lie in the same memory as the buffers: its copies have come to an end."""
        if self.held and self.schedule.copies_in_background:
            tw.async_wait(0)

    def store_slice(self, values: Values, j: int) -> None:
        """Compute one slice into its buffers, and store them.

        A buffer is written again when its last store has read it.  The first of a block without roles may
        lie where the ring was, which all have read then.
        """
        if not self.held:
            return
        buffer, group = j % self.buffers, values.place.work.group
        made = [values.stored(store) for store in self.blocks] if values.loads(self.blocks) else None
        if self.bulk:
            bulk_wait(self._pending(j))
        over_ring = j == 0 and not self.roles
        if self.bulk or self.buffers == 1 or self.count % self.buffers or over_ring:
            self.meet(group)
        for i, (store, held) in enumerate(zip(self.blocks, self.held, strict=True)):
            tw.copy(values.stored(store) if made is None else made[i], held.tile(group, buffer))
        if self.bulk:
            fence_async()
        self.meet(group)
        if j == 0:
            self._acquire(values.place)
        for held in self.held:
            held.send(group, buffer, values.place, self.schedule.mma.threads)
        if self.bulk:
            bulk_commit()

    def _acquire(self, place: TilePlace) -> None:
        """See the tensor maps that lie in memory, one for each batch item, of the arrays to be stored to."""
        maps = [held.side.block(place) for held in self.held if held.by_bulk and held.side.has_map]
        if maps:
            with when(place.work.begins):
                for block in maps:
                    acquire_map(block)

    def drain(self) -> None:
        """Wait for the stores that are under way."""
        if self.bulk:
            bulk_wait(0)

    def _pending(self, j: int) -> int:
        """How many slices may still be read from their buffers when slice ``j`` is written to its own."""
        before = next((i for i in range(j - 1, -1, -1) if i % self.buffers == j % self.buffers), None)
        if before is not None:
            return j - before - 1
        last = max(i for i in range(self.count) if i % self.buffers == j % self.buffers)
        return self.count - last - 1 + j  # it was used by the tile before

    def meet(self, group: Index) -> None:
        """Wait for all warps that compute the tile."""
        if self.roles:
            role_barrier(1 + group, threads=self.schedule.mma.threads)
        elif self.schedule.alternates:
            meet_all(self.schedule)
        else:
            tw.barrier()


# ---------------------------------------------------------------- stores by warps of their own


class OverlappedEpilogue(StagedEpilogue):
    """Through buffers that warps of their own store from, and bring residuals to.

    Args:
        form: what is computed.
        schedule: how; its warps have roles.
        arguments: the kernel's.
    """

    def __init__(self, form: Form, schedule: Schedule, arguments: Arguments) -> None:
        super().__init__(form, schedule, arguments)
        if not self.roles:
            raise TraceError(
                'epilogue="overlapped" stores by warps that do not multiply, and roles="none" has none; '
                'nearest legal choice: roles="cooperative", or epilogue="staged"',
                form.stores[0].location,
            )
        self.handed_over = bool(self.held) and all_panels(self.held)
        if not self.handed_over:
            return  # what bulk copies do not store, the group's threads do
        self.brought = [self._brought(store) for store in self.blocks]
        slots = schedule.groups * self.buffers
        free = barriers("free", slots).barriers(arrivals=1)
        written = barriers("written", slots).barriers(arrivals=schedule.mma.threads // current().lanes)
        self.free, self.written = free, written

    def buffers_for(self, count: int) -> int:
        """A number that divides that of the slices, so that each slice has its buffer."""
        return divisor_at_most(count, self.schedule.buffers)

    def _brought(self, store: Store) -> tuple[ArrayPart, StagedArray] | None:
        """The array whose slices come into the buffers of a store before they are written."""
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
        """Whether buffers are filled before they are written."""
        return any(brought is not None for brought in self.brought)

    def slot(self, group: Index, j: int) -> Index:
        """The barriers of the buffer of a slice."""
        return group * self.buffers + j % self.buffers

    def use(self, work: Work, j: int) -> Index:
        """How many times the buffer of a slice was used before."""
        return work.item * (self.count // self.buffers) + j // self.buffers

    def part(self, tile: Values, j: int) -> Values:
        """The values of a slice; what was brought for it is read from its buffers."""
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
        """Compute one slice into its buffers, and hand them over."""
        if not self.handed_over:
            super().store_slice(values, j)
            return
        work, b = values.place.work, j % self.buffers
        slot, use = self.slot(work.group, j), self.use(work, j)
        if self.brings:
            wait(self.free[slot], use % 2)
            made = [values.stored(store) for store in self.blocks]
            tw.warp_barrier()  # the lanes of a warp may write for each other what they read alone
        else:
            made = [values.stored(store) for store in self.blocks]
            wait(self.free[slot], 1 - use % 2)
        for fragment, held in zip(made, self.panels, strict=True):
            tw.copy(fragment, held.tile(work.group, b))
        fence_async()
        arrive(self.written[slot], each="warp")

    @property
    def panels(self) -> list[PanelBuffers]:
        """The buffers."""
        assert all_panels(self.held)
        return self.held

    def drain(self) -> None:
        """Nothing of the group's own is under way."""
        if not self.handed_over:
            super().drain()

    def helpers(self) -> list[Helper]:
        """The warps that store."""
        return [Storer(self)] if self.handed_over else []


class Storer:
    """For each group of warps that multiply one warp that stores what they have computed."""

    def __init__(self, epilogue: OverlappedEpilogue) -> None:
        self.epilogue = epilogue
        schedule = epilogue.schedule
        self.each = schedule.groups if schedule.roles == "ping-pong" else 1
        self.lag = min(1, epilogue.buffers - 1)
        """Slices whose stores may go on when the buffer of the one before them is given back."""

    @contextmanager
    def role(self) -> Iterator[Index]:
        """A warp for each group."""
        with role(warps=1, groups=self.epilogue.schedule.groups) as g:
            yield g

    def serve(self, work: Work) -> None:
        """Store the slices of a tile when they are written; give each buffer back when it has been read."""
        epilogue = self.epilogue
        place = epilogue.place(work)
        if epilogue.brings:
            for j in unroll(epilogue.buffers):
                self._bring(place, j)
        for j in unroll(epilogue.count):
            slot, use = epilogue.slot(work.group, j), epilogue.use(work, j)
            wait(epilogue.written[slot], use % 2)
            for held in epilogue.panels:
                held.send(work.group, j % epilogue.buffers, epilogue.slice_at(place, j), 0)
            bulk_commit()
            if j >= self.lag:
                bulk_wait(self.lag)
                self._give_back(place, j - self.lag)
        bulk_wait(0)
        for j in range(epilogue.count - self.lag, epilogue.count):
            self._give_back(place, j)

    def _give_back(self, place: TilePlace, j: int) -> None:
        """The buffer of a slice is free: for the group, or for what is brought for the slice that is next."""
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


def all_panels(held: list[PanelBuffers | RowBuffers]) -> TypeGuard[list[PanelBuffers]]:
    """Whether bulk copies store from all buffers."""
    return all(isinstance(one, PanelBuffers) and one.by_bulk for one in held)


EPILOGUES: Mapping[str, Callable[[Form, Schedule, Arguments], DirectEpilogue]] = {
    "direct": DirectEpilogue,
    "staged": StagedEpilogue,
    "overlapped": OverlappedEpilogue,
}
