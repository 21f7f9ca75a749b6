"""Stores that go on under the next tile's multiplications, by warps of their own.

The buffers of a group of warps are a ring between the group, which fills them, and a warp that stores them.
The group waits for a buffer to be free and says when it is written; nothing else of the way to global memory
is its concern, so that its next tile begins at once.  With buffers for a whole tile, the wait is for stores
that were begun a tile ago.

An array that is read along rows and columns, such as a residual, or C itself where it is scaled and added to,
comes the other way: the warp that stores brings its slice into the free buffer, and each thread finds what it
adds where it then writes the sum.  That needs an array of the dtype and order of the one that is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeGuard

from tilewright.dataflow.nodes import Part, Store
from tilewright.errors import TraceError
from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import bulk_commit, bulk_wait, fence_async, tma_load
from tilewright.lang.control import unroll
from tilewright.lang.roles import role
from tilewright.lang.scalars import Index
from tilewright.lang.tracer import current
from tilewright.lang.transaction_barriers import arrive, wait
from tilewright.layout.limits import divisor_at_most
from tilewright.schedule.epilogue.buffers import PanelBuffers, RowBuffers, StagedArray, why_no_bulk
from tilewright.schedule.epilogue.direct import Helper
from tilewright.schedule.epilogue.staged import StagedEpilogue
from tilewright.schedule.epilogue.values import Arguments, TilePlace, Values, above_sums
from tilewright.schedule.form import Form
from tilewright.schedule.needs import barriers
from tilewright.schedule.partition import Work
from tilewright.schedule.schedule import Schedule


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

    def _brought(self, store: Store) -> tuple[Part, StagedArray] | None:
        """The array whose slices come into the buffers of a store before they are written."""
        rows = self.schedule.mma.tile[0]
        own = self.sides[self.blocks.index(store)]
        for node in above_sums(store.value):
            if not isinstance(node, Part) or len(self.views.along(node.at)) < 2:
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
        """Those who store."""
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
