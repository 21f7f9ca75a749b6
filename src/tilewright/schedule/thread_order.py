"""Tiles in global memory in the order of the threads that hold them, so that warps access whole lines."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.lang.tensors import Tensor
from tilewright.threads.distribution import Distribution, Mode


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
