"""Reductions across tiles: each tile writes its part, and who comes last makes the result of all parts.

The parts of one row (or column) of tiles are taken in the order of the tiles, so that the bits do not depend
on which block was last.  The sum of powers above their maximum, ``sum of exp(x - max of x)``, is made of the
tiles' own maxima and sums: that of a tile is multiplied by ``exp(m - M)``, with m its maximum, M that of all.
"""

from __future__ import annotations

from typing import Any

from tilewright.dataflow.nodes import Reduce, Store, walk
from tilewright.dtypes import u32
from tilewright.lang import operations as tw
from tilewright.lang.control import range as traced_range
from tilewright.lang.control import when
from tilewright.lang.fragments import Fragment, elementwise
from tilewright.lang.launch import launcher_memory
from tilewright.lang.scalars import Index, ceil_div, maximum
from tilewright.lang.signals import ticket
from tilewright.lang.tensors import Tensor
from tilewright.schedule.crossing import shift_of
from tilewright.schedule.epilogue.reductions import neutral, wide
from tilewright.schedule.epilogue.values import Place, Values
from tilewright.schedule.form import Form
from tilewright.schedule.partition import Work
from tilewright.schedule.provenance import made_by
from tilewright.schedule.schedule import Schedule

COMBINE = {"sum": "add", "max": "max", "min": "min"}
"""The function of two parts, by what reduces."""


class Across:
    """The memory of the parts of some reductions along one dimension.

    Args:
        form: what is computed.
        schedule: how.
        nodes: the reductions.
        dim: 0: of the rows of a result; 1: of its columns.
        extents: of the rows and columns of the result.
        batch: of its leading dimensions.
    """

    def __init__(
        self,
        form: Form,
        schedule: Schedule,
        nodes: list[Reduce],
        dim: int,
        extents: tuple[Index, Index],
        batch: tuple[Index, ...],
    ) -> None:
        self.form, self.schedule, self.nodes, self.dim = form, schedule, nodes, dim
        groups = schedule.groups if schedule.roles == "cooperative" else 1
        counts: list[Index] = [
            ceil_div(maximum(extent, 1), length)
            for extent, length in zip(extents, schedule.tile, strict=False)
        ]
        counts[0] = counts[0] * groups
        self.parts, lines = counts[dim], counts[1 - dim]
        length = schedule.mma.tile[1 - dim]
        self.held = {}
        for node in nodes:
            parts = launcher_memory((*batch, self.parts, lines * length), wide(node.dtype))
            self.held[id(node)] = parts
        arrived = launcher_memory((*batch, lines), u32, resets=True)
        self.arrived = arrived

    def store(self, tile: Values, stores: list[Store], epilogue: Any) -> None:
        """Write the parts of a tile; the last of its row, or column, stores what becomes of all of them."""
        place = tile.place
        with made_by("across"):
            own = {id(node): tile.value(node) for node in self.nodes}
            self._quiet()
            for node in self.nodes:
                tw.copy(own[id(node)].to(wide(node.dtype)), self._part(node, place, place.at[self.dim]))
            counter = self.arrived[(*place.work.batch, place.at[1 - self.dim])]
            number = ticket(counter, of=self.parts, barrier=self._barrier(place.work))
        with when(number == self.parts - 1):
            made: dict[int, Fragment] = {}
            with made_by("across"):
                # A sum above a maximum is made when the maximum is.
                for node in sorted(self.nodes, key=lambda one: shift_of(one) is not None):
                    made[id(node)] = self._combined(node, own[id(node)], place, made)
            whole = tile.of_parts(made)
            epilogue.store_from(whole, stores)

    def _combined(self, node: Reduce, like: Fragment, place: Place, made: dict[int, Fragment]) -> Fragment:
        """All parts of a reduction, in order."""
        kind, shift = wide(node.dtype), shift_of(node)
        total = tw.fragment(like.distribution, kind, neutral(node.combine, kind), name="combined")
        for number in traced_range(self.parts):
            part = tw.load(self._part(node, place, number), like.distribution)
            if shift is not None:
                top, power = shift
                own, whole = tw.load(self._part(top, place, number), like.distribution), made[id(top)]
                # Of -inf, where nothing is finite, the difference would be NaN.
                factor = elementwise(power, own - whole)
                part = elementwise("select", own == whole, part, part * factor)
            total.assign(elementwise(COMBINE[node.combine], total, part))
        return total

    def _part(self, node: Reduce, place: Place, number: Index) -> Tensor:
        """(rows, columns), of which one is 1: the part of one of the tiles along the dimension."""
        length = self.schedule.mma.tile[1 - self.dim]
        line = self.held[id(node)][(*place.work.batch, number)]
        tile = line.tile((length,), (place.at[1 - self.dim],))
        return tile.unmerge(0, (length, 1) if self.dim == 1 else (1, length))

    def _barrier(self, work: Work) -> Index | None:
        return None if self.schedule.roles == "none" else 1 + work.group

    def _quiet(self) -> None:
        """Without roles: the ring is still, for what comes now may lie where it lay."""
        if self.schedule.roles == "none":
            if self.schedule.staging in ("cp_async", "fragments"):
                tw.async_wait(0)
            tw.barrier()


def reductions_of(store: Store, nodes: tuple[Reduce, ...]) -> list[Reduce]:
    """Those of some reductions that a result is computed from."""
    inner = {id(node) for node in walk(store.value)}
    return [node for node in nodes if id(node) in inner]
