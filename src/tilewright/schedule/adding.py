"""Adding up the sums of parts of K, in their order."""

from __future__ import annotations

from collections.abc import Callable

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
    """Of each thread, for as many values."""
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
