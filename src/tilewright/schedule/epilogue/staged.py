"""Through shared memory to global memory, slice by slice, so that whole rows are written at once."""

from __future__ import annotations

from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import acquire_map, bulk_commit, bulk_wait, fence_async
from tilewright.lang.control import when
from tilewright.lang.roles import role_barrier
from tilewright.lang.scalars import Index
from tilewright.schedule.epilogue.buffers import PanelBuffers, RowBuffers, StagedArray, in_panels
from tilewright.schedule.epilogue.direct import DirectEpilogue, bulk_columns, own_slices, staged_columns
from tilewright.schedule.epilogue.values import Arguments, TilePlace, Values
from tilewright.schedule.form import Form
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
        if self.held and self.schedule.staging in ("cp_async", "fragments"):
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
        """Those who compute a tile wait for each other."""
        if self.roles:
            role_barrier(1 + group, threads=self.schedule.mma.threads)
        elif self.schedule.alternates:
            meet_all(self.schedule)
        else:
            tw.barrier()
