"""Addition of the sums of parts of K, in their order, and the layout of those sums in global memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.lang import operations as tw
from tilewright.lang.control import otherwise, when
from tilewright.lang.control import range as traced_range
from tilewright.lang.fragments import Fragment
from tilewright.lang.scalars import Index, ceil_div
from tilewright.lang.tensors import Tensor
from tilewright.threads.distribution import Distribution, Mode

IN_FLIGHT = 64
"""Registers of each thread that hold values of other parts before the first of them is added."""

STACKED = 128
"""The same where the sums that a block has multiplied are not in registers any more."""

REGISTER_BYTES = 4


def add_parts(total: Fragment, count: Index, most: int, part: Callable[[Index], Tensor]) -> None:
    """Add up so many parts, in their order; several are read before the first of them is added.

    A branch stands around what is read, so that a compiler that saves registers does not add in between.

    Args:
        total: what they are added up in.
        count: of parts.
        most: how many there are at most.
        part: number -> where it lies.
    """
    at_once = parts_at_once(count, min(IN_FLIGHT // _registers(total), most))
    is_whole = isinstance(count, int) and at_once == count
    tw.fill(total, 0)
    for turn in traced_range(ceil_div(count, at_once)):
        first = turn * at_once
        held = [tw.fragment(total.distribution, total.dtype, 0, name="part") for _ in range(at_once)]
        with when(first + at_once <= count):
            for i in range(at_once):
                tw.copy(part(first + i), held[i])
        if not is_whole:
            with otherwise():
                for i in range(at_once - 1):
                    with when(first + i < count):
                        tw.copy(part(first + i), held[i])
        for i in range(at_once):
            total.assign(total + held[i])


def add_slices(
    total: Fragment, count: Index, most: int, number: Index, tile: Callable[[Index], Tensor]
) -> None:
    """Add up so many parts of a tile, of some of its columns, in their order.

    Args:
        total: what they are added up in, of so many columns.
        count: of parts.
        most: how many there are at most.
        number: which of the tile's equal slices it is.
        tile: part -> where all of it lies, (rows, columns).
    """
    columns = total.shape[1]

    def slice_of(part: Index) -> Tensor:
        whole = tile(part)
        return whole.unmerge(1, (int(whole.shape[1]) // columns, columns))[:, number]

    add_parts(total, count, most, slice_of)


def add_stack(total: Fragment, count: Index, most: int, stack: Callable[[Index, Index], Tensor]) -> None:
    """Add up so many parts, in their order, that lie beside each other; several come by one copy.

    Args:
        total: what they are added up in.
        count: of parts.
        most: how many there are at most.
        stack: (first, how many) -> (rows, columns of each of so many parts).
    """
    spread, columns = total.distribution, total.shape[1]
    at_once = parts_at_once(count, min(STACKED // _registers(total), most))
    several = Mode(at_once, 1, columns)
    wide = Distribution((spread.shape[0], at_once * columns), spread.threads, (*spread.values, several))
    tw.fill(total, 0)
    for turn in traced_range(ceil_div(count, at_once)):
        first = turn * at_once
        held = tw.fragment(wide, total.dtype, name="parts")
        with when(first + at_once <= count):
            tw.copy(stack(first, at_once), held)
        with otherwise():
            tw.copy(stack(first, count - first).tile(wide.shape, (0, 0)), held)
        for i in range(at_once):
            total.assign(total + held[:, i * columns : (i + 1) * columns])


def _registers(total: Fragment) -> int:
    """Registers of each thread for the values of a total."""
    return max(total.distribution.size_values * total.dtype.bytes // REGISTER_BYTES, 1)


def parts_at_once(count: Index, limit: int) -> int:
    """How many parts are read at once: all of a known number, or a power of 2.

    Example:
        >>> parts_at_once(7, 16), parts_at_once(7, 4), parts_at_once(7, 0)
        (7, 4, 1)
    """
    if isinstance(count, int) and count <= limit:
        return count
    return next((size for size in (32, 16, 8, 4, 2) if size <= limit), 1)


# ---------------------------------------------------------------- tiles in the order of threads


@dataclass(frozen=True)
class ThreadOrder:
    """How a tile lies in memory: what neighbouring threads hold is beside each other.

    Args:
        extents: of the memory, the last of them fastest.
        rows: which of its dimensions make up the rows of the tile, the slowest first.
        columns: which of them make up the columns.
    """

    extents: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def tile(self, memory: Tensor) -> Tensor:
        """(rows, columns) of memory of these extents."""
        if len(self.extents) == 2:
            return memory
        ordered = memory.permute(*self.rows, *self.columns)
        if len(self.rows) > 1:
            ordered = ordered.merge(0, len(self.rows))
        return ordered.merge(1, len(self.columns)) if len(self.columns) > 1 else ordered

    def stack(self, memory: Tensor) -> Tensor:
        """(rows, several, columns) of memory of several such tiles, one behind the other."""
        if len(self.extents) == 2:
            return memory.permute(1, 0, 2)
        rows, columns = ([1 + dim for dim in dims] for dims in (self.rows, self.columns))
        ordered = memory.permute(*rows, 0, *columns)
        if len(rows) > 1:
            ordered = ordered.merge(0, len(rows))
        return ordered.merge(2, len(columns)) if len(columns) > 1 else ordered


def in_order_of_threads(spread: Distribution) -> ThreadOrder:
    """The order for a tile that is held so; row by row where threads hold copies, or there is one of them.

    Args:
        spread: which threads hold which elements.

    Example:
        Of a 16 x 8 accumulator each of 32 threads holds two neighbours of a row and of the eighth row below.
        Memory has the two halves of the rows behind each other, each thread by thread:

        >>> from tilewright.public import atoms
        >>> in_order_of_threads(atoms.MMA_F16.c)
        ThreadOrder(extents=(2, 8, 4, 2), rows=(0, 1), columns=(2, 3))
    """
    plain = ThreadOrder(spread.shape, (0,), (1,))
    values, threads = [*spread.values], [*spread.threads]
    if spread.size_threads == 1 or spread.copies > 1:
        return plain
    first = [values.pop(0)] if values and values[0].dim == 1 and values[0].step == 1 else []
    modes = [mode for mode in (*reversed(values), *reversed(threads), *first) if mode.extent > 1]
    rows, columns = (_digits(modes, dim) for dim in (0, 1))
    if not _whole(modes, rows, spread.shape[0]) or not _whole(modes, columns, spread.shape[1]):
        return plain
    return ThreadOrder(tuple(mode.extent for mode in modes), rows, columns)


def _digits(modes: list[Mode], dim: int) -> tuple[int, ...]:
    """The modes along a dimension, those of the longest steps first."""
    return tuple(sorted((i for i, mode in enumerate(modes) if mode.dim == dim), key=lambda i: -modes[i].step))


def _whole(modes: list[Mode], digits: tuple[int, ...], extent: int) -> bool:
    """Whether modes are the digits of a number that goes once through a dimension."""
    steps = [math.prod(modes[i].extent for i in digits[at + 1 :]) for at in range(len(digits))]
    count = math.prod(modes[i].extent for i in digits)
    return bool(digits) and count == extent and steps == [modes[i].step for i in digits]
