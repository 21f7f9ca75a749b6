"""Reductions across tiles: each block writes its tile's partial result, and the last block combines them.

It combines the partial results of one row (or column) in the order of the tiles, so the bits do not depend on
which block was last.  The sum of ``exp(x - max of x)`` follows from the maximum and the sum of each tile: a
tile's sum is multiplied by ``exp(m - M)``, where m is the maximum of the tile and M the maximum of all.
"""

from __future__ import annotations

import math
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
from tilewright.lang.tile_arithmetic import coordinates
from tilewright.schedule.epilogue.reductions import Reductions, neutral, wide
from tilewright.schedule.epilogue.values import TilePlace, Values
from tilewright.schedule.form import Form, shift_of
from tilewright.schedule.provenance import made_by
from tilewright.schedule.schedule import Schedule
from tilewright.threads.distribution import Distribution, Mode

COMBINE = {"sum": "add", "max": "max", "min": "min"}
"""The function that combines two partial results, for each reduction."""


AT_ONCE = 4
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
    shape[dim] = count * AT_ONCE
    return Distribution(tuple(shape), tuple(threads), (*one.values, Mode(AT_ONCE, dim, count)))


def reductions_of(store: Store, nodes: tuple[Reduce, ...]) -> list[Reduce]:
    """The given reductions from which a result is computed."""
    inner = {id(node) for node in walk(store.value)}
    return [node for node in nodes if id(node) in inner]
