"""From registers to global memory: what needs no shared memory, and what is stored along one dimension."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from tilewright.dataflow.nodes import Store
from tilewright.errors import LayoutError
from tilewright.lang import operations as tw
from tilewright.lang.control import unroll, when
from tilewright.lang.fragments import Fragment
from tilewright.lang.scalars import Condition, Index
from tilewright.schedule.epilogue.reductions import Reductions
from tilewright.schedule.epilogue.values import Arguments, Place, Values, Views
from tilewright.schedule.form import Form, extent_of
from tilewright.schedule.partition import Work
from tilewright.schedule.schedule import Schedule
from tilewright.threads.distribution import Distribution

AT_ONCE = 32
"""Columns that are computed at once where arrays are read."""


class Helper(Protocol):
    """Warps that do not multiply, and do a part of the epilogue."""

    each: int
    """Of the block's tiles they take one in so many."""

    def role(self) -> AbstractContextManager[Index]:
        """What they are among the block's warps; names their group."""

    def serve(self, work: Work) -> None:
        """What they do for a tile."""


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
        for part in self._parts(tile):
            self.store_from(part, self.blocks)

    def _parts(self, tile: Values) -> Iterator[Values]:
        """What is computed at once: a few columns, so that what is read for them fits into registers too."""
        rows, columns = tile.place.shape
        at_once = self._at_once(tile) if tile.loads(self.blocks) else columns
        if at_once == columns:
            yield tile
            return
        (row, column), count = tile.place.at, columns // at_once
        for j in unroll(count):
            place = Place(tile.place.work, (rows, at_once), (row, column * count + j))
            yield tile.part(place, slice(j * at_once, (j + 1) * at_once))

    def _at_once(self, tile: Values) -> int:
        """The fewest columns, from some on, that are the same part of every thread's values."""
        columns, width = tile.place.shape[1], AT_ONCE
        while width < columns and not in_parts(tile.spread, width):
            width *= 2
        return min(width, columns)

    def drain(self) -> None:
        """Nothing is under way."""

    def helpers(self) -> list[Helper]:
        """Those who store what others have computed: nobody."""
        return []

    def tile(self, work: Work, sums: Fragment) -> Values:
        """The values of a group's tile."""
        return Values(self.views, self.reductions, self.place(work), sums.distribution, sums)

    def place(self, work: Work) -> Place:
        """Where a group's tile is."""
        rows, columns, _ = self.schedule.mma.tile
        return Place(work, (rows, columns), (self.row(work), work.n))

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


def in_parts(spread: Distribution, columns: int) -> bool:
    """Whether parts of so many columns make up a tile, and are the same part of every thread's values."""
    if spread.shape[1] % columns:
        return False
    try:
        spread.slice((0, 0), (spread.shape[0], columns))
    except LayoutError:
        return False
    return True
