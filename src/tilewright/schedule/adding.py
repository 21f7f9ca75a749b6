"""Adds the partial sums of K in order; the layout of partial sums in global memory."""

from __future__ import annotations

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
"""Registers of each thread for values of other parts that are read before the first of them is added."""

STACKED = 128
"""Like `IN_FLIGHT`, if the sums of the block's own part are no longer in registers."""

REGISTER_BYTES = 4


def add_parts(total: Fragment, count: Index, most: int, part: Callable[[Index], Tensor]) -> None:
    """Add up ``count`` parts, in their order; several are read before the first of them is added.

    The reads are in a branch, so that the compiler cannot save registers by additions between them.

    Args:
        total: the result.
        count: number of parts.
        most: largest possible number of parts.
        part: number of a part -> its memory.
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


def add_stack(total: Fragment, count: Index, most: int, stack: Callable[[Index, Index], Tensor]) -> None:
    """Add up ``count`` parts that are neighbours in memory, in their order; one copy reads several.

    Args:
        total: the result.
        count: number of parts.
        most: largest possible number of parts.
        stack: (first part, number of parts) -> their memory, (rows, columns of one part after the other).
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
    """Number of parts that are read at once: all if their number is known and small, or a power of 2.

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
    """Layout of a tile in memory in which the elements of neighbouring threads are neighbours.

    Args:
        extents: extents of the memory, the fastest last.
        rows: dimensions of the memory that make up the rows of the tile, the slowest first.
        columns: dimensions that make up the columns.
    """

    extents: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def tile(self, memory: Tensor) -> Tensor:
        """The memory of a tile, as (rows, columns)."""
        return memory if len(self.extents) == 2 else self._ordered(memory, ())

    def stack(self, memory: Tensor) -> Tensor:
        """The memory of several tiles, one after the other, as (rows, tile, columns)."""
        return memory.permute(1, 0, 2) if len(self.extents) == 2 else self._ordered(memory, (0,))

    def _ordered(self, memory: Tensor, between: tuple[int, ...]) -> Tensor:
        """The memory as (rows, leading dimensions, columns)."""
        leading = len(between)
        rows, columns = ([leading + dim for dim in dims] for dims in (self.rows, self.columns))
        ordered = memory.permute(*rows, *between, *columns)
        if len(rows) > 1:
            ordered = ordered.merge(0, len(rows))
        return ordered.merge(1 + leading, len(columns)) if len(columns) > 1 else ordered


def in_order_of_threads(spread: Distribution) -> ThreadOrder:
    """The order for a tile in registers; row-major for a single thread, or if threads hold copies.

    Args:
        spread: threads that hold the elements.

    Example:
        Each of 32 threads holds two neighbours of a row of a 16 x 8 accumulator, and two eight rows below.
        Memory has first the upper half of the rows, thread by thread, then the lower half:

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
    found = []
    for dim in (0, 1):
        digits = [at for at, mode in enumerate(modes) if mode.dim == dim]
        digits.sort(key=lambda at: -modes[at].step)
        # The modes must be the digits of a number that goes through the dimension once.
        count = 1
        for at in reversed(digits):
            if modes[at].step != count:
                return plain
            count *= modes[at].extent
        if not digits or count != spread.shape[dim]:
            return plain
        found.append(tuple(digits))
    return ThreadOrder(tuple(mode.extent for mode in modes), *found)
