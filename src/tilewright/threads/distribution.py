"""Distributions: which thread holds which coordinates of a tile, and in which register.

A `Distribution` maps (thread, value) to a coordinate of a tile.  Both indices are mixed-radix numbers, with
modes listed fastest first.  Each mode moves one coordinate by a step per unit.  A mode with ``dim=None``
moves no coordinate: its threads hold copies.  This is CuTe's thread-value layout with coordinates as strides,
so no linear index must be split again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from tilewright.argument_checks import is_integer
from tilewright.calls import layouts
from tilewright.errors import LayoutError, shown
from tilewright.layout.layout import Drawable
from tilewright.layout.limits import check_pairs, check_rank, check_tile, divisor_at_most, fitting
from tilewright.layout.tuples import integer, integers
from tilewright.symbolic.nodes import Place, hashed_once

# ---------------------------------------------------------------- modes of a thread map


class Mode(NamedTuple):
    """``extent`` steps of ``step`` along ``dim``; ``dim`` None means replication.

    Example:
        >>> Mode(4, 0, 2)
        Mode(extent=4, dim=0, step=2)
    """

    extent: int
    dim: int | None
    step: int


def merge(modes: Iterable[Mode]) -> tuple[Mode, ...]:
    """Return the same walk in the fewest modes: join neighbouring modes that continue each other.

    Example:
        >>> merge([Mode(8, 0, 1), Mode(2, 0, 8), Mode(1, 1, 4), Mode(2, 1, 8)])
        (Mode(extent=16, dim=0, step=1), Mode(extent=2, dim=1, step=8))
    """
    merged: list[Mode] = []
    for mode in modes:
        if mode.extent == 1:
            continue
        last = merged[-1] if merged else None
        continues = last is not None and last.dim == mode.dim
        if last is not None and continues and (mode.dim is None or mode.step == last.step * last.extent):
            merged[-1] = Mode(last.extent * mode.extent, last.dim, last.step)
        else:
            merged.append(mode)
    return tuple(merged)


def take(modes: Sequence[Mode], count: int) -> tuple[tuple[Mode, ...], tuple[Mode, ...]] | None:
    """Split off the fastest ``count`` steps of a walk; None if the modes cannot be cut there.

    Example:
        >>> take([Mode(2, 1, 8), Mode(8, 0, 8)], 4)
        ((Mode(extent=2, dim=1, step=8), Mode(extent=2, dim=0, step=8)), (Mode(extent=4, dim=0, step=16),))
    """
    taken: list[Mode] = []
    left = list(modes)
    while count > 1:
        if not left:
            return None
        mode = left.pop(0)
        if count % mode.extent == 0:
            taken.append(mode)
            count //= mode.extent
        elif mode.extent % count == 0:
            taken.append(Mode(count, mode.dim, mode.step))
            left.insert(0, Mode(mode.extent // count, mode.dim, mode.step * count))
            count = 1
        else:
            return None
    return tuple(taken), tuple(left)


def check_modes(modes: Iterable[Mode], rank: int) -> None:
    """Refuse modes that are illegal in a map of a tile of this rank.

    Raises:
        LayoutError: an extent is below 1, the tile has no such dimension, or a number is not an integer.
    """
    for mode in modes:
        extent, dim, step = mode
        if not (is_integer(extent) and is_integer(step) and (dim is None or is_integer(dim))):
            raise LayoutError(f"{shown(mode)}: extent and step are integers, and dim is one or None")
        if extent < 1 or (dim is not None and not 0 <= dim < rank):
            raise LayoutError(
                f"{mode} of a map of a tile of rank {rank}: the extent is at least 1, and dim one of the "
                f"tile's dimensions, 0 to {rank - 1}, or None"
            )


__all__ = ["Distribution", "Mode", "blocked", "merge", "raked", "registers"]


@layouts
@hashed_once
@dataclass(frozen=True, repr=False)
class Distribution(Drawable):
    """A map (thread, value) -> coordinate of a tile of ``shape``.

    Args:
        shape: extents of the tile.
        threads: modes of the thread index, fastest first.
        values: modes of the value index, fastest first.

    Example:
        A 4x8 tile on 4 threads, each holding a row of two groups of four:

        >>> rows = Distribution((4, 8), (Mode(4, 0, 1),), (Mode(8, 1, 1),))
        >>> rows.coordinate(2, 5)
        (2, 5)
        >>> rows.size_threads, rows.size_values
        (4, 8)
    """

    shape: tuple[int, ...]
    threads: tuple[Mode, ...]
    values: tuple[Mode, ...]

    def __post_init__(self) -> None:
        check_tile(self.shape)
        check_modes(self.threads, len(self.shape))
        check_modes(self.values, len(self.shape))
        check_pairs(self.size_threads, self.size_values)

    @property
    def rank(self) -> int:
        """Dimensions of the tile."""
        return len(self.shape)

    @cached_property
    def size_threads(self) -> int:
        """Number of threads."""
        return math.prod(mode.extent for mode in self.threads)

    @cached_property
    def size_values(self) -> int:
        """Values held by each thread."""
        return math.prod(mode.extent for mode in self.values)

    @layouts
    def coordinate(self, thread: Place, value: Place) -> tuple[Any, ...]:
        """The coordinate of a (thread, value) pair: integers, NumPy arrays or symbolic integers."""
        total: list[Any] = [0] * self.rank
        for index, modes in ((thread, self.threads), (value, self.values)):
            rest = index
            for at, mode in enumerate(modes):
                last = at == len(modes) - 1
                digit = rest if last else rest % mode.extent
                rest = rest if last else rest // mode.extent
                if mode.dim is not None:
                    total[mode.dim] = total[mode.dim] + digit * mode.step
        return tuple(total)

    @cached_property
    def table(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """All coordinates, as an array of shape (threads, values, rank)."""
        thread = np.arange(self.size_threads).reshape(-1, 1)
        value = np.arange(self.size_values).reshape(1, -1)
        parts = [
            np.broadcast_to(part, (self.size_threads, self.size_values))
            for part in self.coordinate(thread, value)
        ]
        return np.stack(parts, axis=-1).astype(np.int64)

    @property
    def is_exact(self) -> bool:
        """Whether each coordinate is held by exactly one (thread, value) pair, not counting copies.

        Copies are threads that differ only in replicated modes.
        """
        return not self.flaw

    @cached_property
    def flaw(self) -> str:
        """Return why the map is not exact, for the first wrong coordinate; empty if it is exact.

        Example:
            >>> Distribution((4, 8), (Mode(4, 0, 1),), (Mode(4, 1, 1),)).flaw
            'no thread holds (0, 4)'
        """
        counts = np.zeros(self.shape, dtype=np.int64)
        inside = np.all((self.table >= 0) & (self.table < np.array(self.shape)), axis=-1)
        if not inside.all():
            thread, value = (int(i) for i in np.argwhere(~inside)[0])
            return (
                f"value {value} of thread {thread} is {self.coordinate(thread, value)}, outside of the tile"
            )
        np.add.at(counts, tuple(np.moveaxis(self.table, -1, 0)), 1)
        wrong = np.argwhere(counts != self.copies)
        if not len(wrong):
            return ""
        at = tuple(wrong[0].tolist())
        return f"{counts[at]} values are {at}" if counts[at] else f"no thread holds {at}"

    @cached_property
    def copies(self) -> int:
        """Number of threads that hold each value."""
        return math.prod(mode.extent for mode in self.threads if mode.dim is None)

    def __str__(self) -> str:
        parts = []
        for what, modes in (("threads", self.canonical.threads), ("values", self.canonical.values)):
            steps = [
                f"{m.extent} copies" if m.dim is None else f"{m.extent} along {m.dim} by {m.step}"
                for m in modes
            ]
            parts.append(f"{what} ({', '.join(steps)})")
        return ", ".join(parts)

    def __repr__(self) -> str:
        return f"Distribution({self.shape}: {self})"

    @layouts
    def slice(self, start: Sequence[int], shape: Sequence[int]) -> Distribution:
        """Return the map of the box of ``shape`` at ``start``; each thread keeps its own values.

        Raises:
            LayoutError: the box needs different values in different threads; names the nearest shape.

        Example:
            >>> rows = Distribution((4, 8), (Mode(4, 0, 1),), (Mode(8, 1, 1),))
            >>> rows.slice((0, 4), (4, 2)).values
            (Mode(extent=2, dim=1, step=1),)
        """
        check_rank("box", shape, self.rank)
        check_rank("start", start, self.rank)
        box = tuple(zip(start, shape, self.shape, strict=True))
        if any(at < 0 or extent < 1 or at + extent > whole for at, extent, whole in box):
            raise LayoutError(f"box of {tuple(shape)} at {tuple(start)} is not inside a tile of {self.shape}")
        made = _part(self, tuple(start), tuple(shape))
        if made is None:
            nearest = tuple(self._nearest(dim, extent) for dim, extent in enumerate(shape))
            text = f"box of {tuple(shape)} at {tuple(start)} is not the same part of every thread's values"
            raise LayoutError(text, f"boxes of {nearest} at multiples of their extents")
        return made

    def _nearest(self, dim: int, wanted: int) -> int:
        """Return the smallest legal extent of a slice along a dimension, at least the wanted extent."""
        for extent in range(wanted, self.shape[dim]):
            shape = (*self.shape[:dim], extent, *self.shape[dim + 1 :])
            if self.shape[dim] % extent == 0 and _part(self, (0,) * self.rank, shape) is not None:
                return extent
        return self.shape[dim]

    @cached_property
    def canonical(self) -> Distribution:
        """Return the same map in the fewest modes. Equal maps have equal canonical forms."""
        return Distribution(self.shape, merge(self.threads), merge(self.values))

    @layouts
    def projected(self, shape: Sequence[int]) -> Distribution:
        """Return the map of a tile with extent 1 along some dimensions that broadcasts to this tile.

        Threads along those dimensions hold copies, and values along them are dropped.

        Raises:
            LayoutError: an extent is neither 1 nor the tile's.

        Example:
            >>> tile = Distribution((4, 8), (Mode(4, 0, 1), Mode(2, 1, 4)), (Mode(4, 1, 1),))
            >>> tile.projected((4, 1)).threads
            (Mode(extent=4, dim=0, step=1), Mode(extent=2, dim=None, step=0))
        """
        check_rank("projected: shape", shape, self.rank)
        if any(new not in (1, old) for new, old in zip(shape, self.shape, strict=True)):
            nearest = tuple(1 if new == 1 else old for new, old in zip(shape, self.shape, strict=True))
            raise LayoutError(
                f"{tuple(shape)} is not a projection of a tile of shape {self.shape}: each extent is 1 or "
                "stays",
                nearest,
            )
        gone = {d for d, (new, old) in enumerate(zip(shape, self.shape, strict=True)) if new == 1 != old}
        threads = tuple(Mode(m.extent, None, 0) if m.dim in gone else m for m in self.threads)
        return Distribution(tuple(shape), threads, tuple(m for m in self.values if m.dim not in gone))

    def vector(self) -> tuple[int, int]:
        """``(dim, width)`` of the run of neighbours in consecutive values of one thread.

        Example:
            >>> Distribution((4, 8), (Mode(4, 0, 1),), (Mode(4, 1, 1), Mode(1, 0, 1), Mode(2, 1, 4))).vector()
            (1, 8)
        """
        moving = [mode for mode in self.values if mode.extent > 1]
        if not moving or moving[0].dim is None or moving[0].step != 1:
            return self.rank - 1, 1
        dim, width = moving[0].dim, 1
        for mode in moving:
            if mode.dim != dim or mode.step != width:
                break
            width *= mode.extent
        return dim, width


@lru_cache(maxsize=4096)
def _part(source: Distribution, start: tuple[int, ...], shape: tuple[int, ...]) -> Distribution | None:
    """Return the map of a box of a tile, or None if threads would need different values for it."""
    values = []
    for mode in source.values:
        inside = mode.extent
        if mode.dim is not None:
            inside = min(max(shape[mode.dim] // max(mode.step, 1), 1), mode.extent)
        values.append(Mode(inside, mode.dim, mode.step))
    made = Distribution(shape, source.threads, tuple(mode for mode in values if mode.extent > 1))
    return made if made.is_exact and registers(source, made, start) is not None else None


def registers(source: Distribution, target: Distribution, start: Sequence[int]) -> tuple[int, ...] | None:
    """Return the source register of each target register; the target tile begins at ``start`` of the source.

    Returns:
        One list for all threads.  None if the tile is not inside the source's, if a thread lacks a value, or
        if threads hold the same value in different registers.

    Example:
        >>> rows = Distribution((4, 8), (Mode(4, 0, 1),), (Mode(8, 1, 1),))
        >>> registers(rows, rows.slice((0, 4), (4, 2)), (0, 4))
        (4, 5)
    """
    if target.size_threads > source.size_threads or target.rank != source.rank:
        return None
    if any(at < 0 or at + t > s for at, t, s in zip(start, target.shape, source.shape, strict=True)):
        return None
    weights = np.cumprod([1, *reversed(source.shape)])[-2::-1]
    wanted = (target.table + np.array(start)) @ weights
    held = source.table[: target.size_threads] @ weights
    order = np.argsort(held[0], kind="stable")
    found = order[np.searchsorted(held[0], wanted[0], sorter=order).clip(max=len(order) - 1)]
    return tuple(found.tolist()) if (held[:, found] == wanted).all() else None


@layouts
def blocked(
    tile: Sequence[int],
    threads: Sequence[int],
    order: Sequence[int] | None = None,
    vector_dim: int | None = None,
    access_order: Sequence[int] | None = None,
    vector: int | None = None,
) -> Distribution:
    """Each thread takes one contiguous chunk of ``tile[d] / threads[d]`` elements per dimension.

    Args:
        tile: extents of the tile.
        threads: number of threads along each dimension.
        order: the dimensions in the order in which threads are numbered, fastest first; default: the first
            dimension fastest, as in a compact `Layout`.
        vector_dim: the dimension along which a thread's consecutive values lie; default: the last.
        access_order: the dimensions in the order in which a thread visits its chunk, fastest first; default:
            ``vector_dim``, then from the last to the first.
        vector: number of values that a thread takes along ``vector_dim`` before it follows ``access_order``;
            default: its chunk.

    Raises:
        LayoutError: the threads do not divide the tile, the vector does not divide the chunk, or the order is
            not a permutation; the message gives the nearest legal choice.

    Example:
        >>> blocked((256, 32), (64, 4), order=(1, 0)).coordinate(5, 9)
        (5, 9)
    """
    tile, threads = integers("tile", tile), integers("threads", threads)
    order = tuple(range(len(tile))) if order is None else order
    if not len(tile) == len(threads) == len(order):
        raise LayoutError(
            f"tile {tuple(tile)}, threads {tuple(threads)} and order {tuple(order)} differ in rank"
        )
    if sorted(order) != list(range(len(tile))):
        text = f"order={tuple(order)} does not name each of {len(tile)} dimensions once"
        raise LayoutError(text, f"order={tuple(range(len(tile)))}, the first dimension fastest")
    for dim, (extent, count) in enumerate(zip(tile, threads, strict=True)):
        if extent % count:
            nearest = divisor_at_most(extent, count)
            raise LayoutError(
                f"threads x slice must equal the tile: {count} threads do not divide the extent {extent} of "
                f"dimension {dim}; nearest legal number of threads: {nearest}"
            )
    chunk = [extent // count for extent, count in zip(tile, threads, strict=True)]
    first = len(tile) - 1 if vector_dim is None else _dim("vector_dim", vector_dim, len(tile))
    thread_modes = tuple(Mode(threads[dim], int(dim), chunk[dim]) for dim in order)
    return Distribution(tile, thread_modes, _visited(chunk, first, access_order, vector))


def _dim(what: str, dim: Any, rank: int) -> int:
    if isinstance(dim, int | np.integer) and 0 <= dim < rank:
        return int(dim)
    nearest = f"{what}={0 if dim < 0 else rank - 1}" if isinstance(dim, int) else None
    raise LayoutError(f"{what}={dim!r} of a tile of rank {rank}", nearest)


def _visited(
    chunk: Sequence[int], first: int, access_order: Sequence[int] | None, vector: int | None
) -> tuple[Mode, ...]:
    """Return the values of a thread in the order in which it visits its chunk."""
    if access_order is None:
        fastest = [first, *(dim for dim in reversed(range(len(chunk))) if dim != first)]
        return tuple(Mode(chunk[dim], dim, 1) for dim in fastest)
    if sorted(access_order) != list(range(len(chunk))):
        nearest = (first, *(dim for dim in reversed(range(len(chunk))) if dim != first))
        text = f"access_order={tuple(access_order)} does not name each of {len(chunk)} dimensions once"
        raise LayoutError(text, f"access_order={nearest}")
    run = chunk[first] if vector is None else int(vector)
    if run < 1 or chunk[first] % run:
        nearest_run = divisor_at_most(chunk[first], run)
        text = f"vectors of {run} do not divide a thread's {chunk[first]} values along dimension {first}"
        raise LayoutError(text, f"vector={nearest_run}")
    steps = [
        Mode(chunk[dim] // run, dim, run) if dim == first else Mode(chunk[dim], dim, 1)
        for dim in map(int, access_order)
    ]
    return (Mode(run, first, 1), *steps)


@layouts
def raked(tile: Sequence[int], threads: Sequence[int], vector: int, vector_dim: int) -> Distribution:
    """Neighbouring threads take neighbouring vectors; each thread then advances by the span of all threads.

    Args:
        tile: extents of the tile.
        threads: number of threads along each dimension.
        vector: neighbours along ``vector_dim`` that a thread takes at once.
        vector_dim: the dimension of the vectors.  It is also the fastest dimension of the thread index; the
            others follow from the last to the first.

    Raises:
        LayoutError: the threads and vectors do not divide the tile.

    Example:
        >>> raked((128, 32), (32, 4), 8, 1).coordinate(5, 9)
        (33, 9)
    """
    tile, threads = integers("tile", tile), integers("threads", threads)
    if not len(tile) == len(threads):
        raise LayoutError(f"tile {tile} and threads {threads} differ in rank")
    vector_dim, vector = _dim("vector_dim", vector_dim, len(tile)), integer("vector", vector)
    units = [vector if dim == vector_dim else 1 for dim in range(len(tile))]
    for dim, (extent, count, unit) in enumerate(zip(tile, threads, units, strict=True)):
        if extent % (count * unit):
            raise LayoutError(
                f"{count} threads with vectors of {unit} do not divide the extent {extent} of dimension "
                f"{dim}",
                fitting(extent, count, unit),
            )
    order = [vector_dim, *(dim for dim in reversed(range(len(tile))) if dim != vector_dim)]
    thread_modes = tuple(Mode(threads[dim], dim, units[dim]) for dim in order)
    steps = [Mode(tile[dim] // (threads[dim] * units[dim]), dim, threads[dim] * units[dim]) for dim in order]
    return Distribution(tile, thread_modes, (Mode(vector, vector_dim, 1), *steps))
