"""From registers to global memory: what needs no shared memory, and what is stored along one dimension."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dataflow.nodes import Store
from tilewright.lang import operations as tw
from tilewright.lang.control import when
from tilewright.lang.fragments import Fragment
from tilewright.lang.scalars import Condition, Index
from tilewright.schedule.epilogue.reductions import Reductions
from tilewright.schedule.epilogue.values import Arguments, Place, Values, Views
from tilewright.schedule.form import Form, extent_of
from tilewright.schedule.partition import Work
from tilewright.schedule.schedule import Schedule


class Direct:
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
        """What is stored along rows or columns alone."""

    def store(self, work: Work, sums: Fragment) -> None:
        """Compute and store what becomes of the sums of a group's tile."""
        tile = self.tile(work, sums)
        self.store_lines(tile)
        self.store_from(tile, self.blocks)

    def drain(self) -> None:
        """Nothing is under way."""

    def tile(self, work: Work, sums: Fragment) -> Values:
        """The values of a group's tile."""
        rows, columns, _ = self.schedule.mma.tile
        place = Place(work, (rows, columns), (self.row(work), work.n))
        return Values(self.views, self.reductions, place, sums.distribution, sums)

    def row(self, work: Work) -> Index:
        """Which rows of a group's tiles."""
        shared = self.schedule.roles == "cooperative" and self.schedule.groups > 1
        return work.m * self.schedule.groups + work.group if shared else work.m

    def store_from(self, values: Values, stores: Sequence[Store]) -> None:
        """Store from registers."""
        for store in stores:
            tw.copy(values.stored(store), self.views.block(store.operand, store.at, values.place))

    def store_lines(self, tile: Values) -> None:
        """What is stored along one dimension: by the first of the tiles along the other."""
        for store in self.lines:
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
