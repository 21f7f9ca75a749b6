"""Cost of an access pattern in banks and sectors, and the thread map that touches the fewest sectors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tilewright.arch import REFERENCE
from tilewright.errors import LayoutError
from tilewright.layout.tuples import integers
from tilewright.symbolic.nodes import Sym, bounds
from tilewright.symbolic.rebuilding import substitute, symbols
from tilewright.threads.distribution import Distribution, Mode
from tilewright.views.view import View

Array: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

WORD_BYTES = REFERENCE.bank_bytes
SECTOR_BYTES = REFERENCE.sector_bytes
MOST_INSTANCES = 256
"""Maximum number of combinations of unknown indices (a stage, a loop step) that are tried."""


def bank_conflicts(
    view: View,
    distribution: Distribution,
    vector: int,
    element_bytes: int,
    banks: int = REFERENCE.banks,
    lanes: int = REFERENCE.lanes,
    phase: int | None = None,
    at: Mapping[Sym, int] | None = None,
) -> int:
    """Return the largest number of passes that one shared-memory access of a warp needs; 1 means no conflict.

    Hardware splits a warp's access into phases.  The vectors of one phase fill all banks at most once: for a
    warp of 32, a phase is a quarter warp with 128-bit vectors and a half warp with 64-bit vectors.  The
    number of passes of a phase is the largest number of different words in one bank.

    Args:
        view: the view of the tensor in shared memory, over the tile's coordinates.
        distribution: which thread accesses which coordinates, in which order.
        vector: elements per access: that many consecutive values of a thread, neighbours in memory.
        element_bytes: size of an element.
        banks: number of banks; each is four bytes wide.
        lanes: threads per warp.
        phase: lanes that access together; default: as above.
        at: values of symbols other than coordinates; all values of other bounded symbols are tried.

    Raises:
        LayoutError: the distribution is for another tile, the vectors are not contiguous or not aligned, or a
            symbol has no bounds.

    Example:
        >>> from tilewright.threads.distribution import blocked
        >>> from tilewright.views.transforms import Swizzle
        >>> rows = View.strided((32, 64), (64, 1))
        >>> columns = blocked((32, 64), threads=(32, 8), order=(0, 1))
        >>> bank_conflicts(rows, columns, vector=8, element_bytes=2)
        8
        >>> bank_conflicts(Swizzle(3, 3, 3).apply(rows), columns, vector=8, element_bytes=2)
        1
    """
    width = vector * element_bytes
    together = phase or lanes_together(width, banks, lanes)
    worst = 1
    for env in _instances(view, at):
        for first_byte, exists in accesses(view, distribution, vector, element_bytes, env):
            parts = served_together(np.where(exists, first_byte, ABSENT), together, lanes)
            worst = max(worst, int(bank_passes(parts, width, banks).max(initial=0)))
    return worst


ABSENT = -1
"""Address of a lane that does not take part in an access."""


def served_together(first_byte: Array, together: int, lanes: int = REFERENCE.lanes) -> Array:
    """Split the lanes of each warp into groups that shared memory serves at once: shape (groups, together).

    Args:
        first_byte: the address of each thread's access, or `ABSENT`; the last axis counts the threads.
        together: number of lanes served at once, from `lanes_together`.
        lanes: threads per warp.

    Example:
        >>> served_together(np.arange(6), together=4, lanes=6).tolist()
        [[0, 1, 2, 3], [4, 5, -1, -1]]
    """
    warps = _padded(first_byte.reshape(-1, first_byte.shape[-1]), lanes).reshape(-1, lanes)
    return _padded(warps, together).reshape(-1, together)


def _padded(rows: Array, unit: int) -> Array:
    short = -rows.shape[1] % unit
    return np.pad(rows, ((0, 0), (0, short)), constant_values=ABSENT) if short else rows


def bank_passes(first_byte: Array, width: int, banks: int = REFERENCE.banks) -> Array:
    """Return the passes of each request: the largest number of different words in one bank, or 0 if empty.

    Args:
        first_byte: the address of each lane's access, or `ABSENT`; of shape (requests, lanes).
        width: bytes of one lane's access, aligned to it.
        banks: number of banks.

    Example:
        Eight lanes read 16 bytes each: next to one another, then 128 bytes apart.

        >>> bank_passes(np.arange(8)[None] * np.array([[16], [128]]), 16).tolist()
        [1, 8]
    """
    requests = len(first_byte)
    words = np.where(first_byte[..., None] < 0, ABSENT, _units(first_byte, width, WORD_BYTES))
    words = words.reshape(requests, -1)
    words.sort(axis=1)
    new = words >= 0
    new[:, 1:] &= words[:, 1:] != words[:, :-1]
    bank = words % banks + np.arange(requests)[:, None] * banks
    counts = np.bincount(bank[new], minlength=requests * banks)
    found: Array = counts.reshape(requests, banks).max(axis=1, initial=0)
    return found


def _units(first_byte: Array, width: int, unit: int) -> Array:
    """Return the units (words, sectors) that each access of ``width`` bytes touches, on a new last axis."""
    first = first_byte[..., None]
    if width % unit == 0 or unit % width == 0:
        return np.asarray(first // unit + np.arange(max(width // unit, 1)))
    # Include the last byte: a width that is not a power of two may end in the next unit.
    return np.asarray((first + np.append(np.arange(0, width, unit), width - 1)) // unit)


def lanes_together(access_bytes: int, banks: int = REFERENCE.banks, lanes: int = REFERENCE.lanes) -> int:
    """Return how many lanes of a warp access shared memory at once with ``access_bytes`` each.

    Example:
        >>> lanes_together(4), lanes_together(8), lanes_together(16)
        (32, 16, 8)
    """
    return max(1, min(lanes, banks, banks * WORD_BYTES // access_bytes))


class Sectors(NamedTuple):
    """The cost of all accesses of a tile to global memory.

    Args:
        requests: number of warp accesses.
        sectors: number of 32-byte sectors that they touch, summed over the requests.
        minimum: smallest number of sectors for the same bytes.
    """

    requests: int
    sectors: int
    minimum: int


def coalescing(
    view: View,
    distribution: Distribution,
    vector: int,
    element_bytes: int,
    lanes: int = REFERENCE.lanes,
    at: Mapping[Sym, int] | None = None,
) -> Sectors:
    """Count the 32-byte sectors that the warps' accesses to global memory touch, and the minimum.

    Args:
        view: the view of the tensor in global memory, over the tile's coordinates.
        distribution: which thread accesses which coordinates, in which order.
        vector: elements per access: that many consecutive values of a thread, neighbours in memory.
        element_bytes: size of an element.
        lanes: threads per warp.
        at: values of symbols other than coordinates, for example extents; all values of other bounded
            symbols are tried, and the result is the worst.

    Raises:
        LayoutError: the distribution is for another tile, the vectors are not contiguous or not aligned, or a
            symbol has no bounds.

    Example:
        >>> from tilewright.threads.distribution import blocked
        >>> rows = View.strided((32, 64), (64, 1))
        >>> coalescing(rows, blocked((32, 64), (4, 8), order=(1, 0)), vector=8, element_bytes=2)
        Sectors(requests=8, sectors=128, minimum=128)
        >>> coalescing(rows, blocked((32, 64), (32, 1), order=(1, 0)), vector=8, element_bytes=2)
        Sectors(requests=8, sectors=256, minimum=128)
    """
    totals = []
    for env in _instances(view, at):
        total = Sectors(0, 0, 0)
        for first_byte, exists in accesses(view, distribution, vector, element_bytes, env):
            for start in range(0, len(first_byte), lanes):
                active = first_byte[start : start + lanes][exists[start : start + lanes]]
                if active.size:
                    size = vector * element_bytes
                    needed = -(-np.unique(active).size * size // SECTOR_BYTES)
                    touched = np.unique(_units(active, size, SECTOR_BYTES)).size
                    total = Sectors(total.requests + 1, total.sectors + touched, total.minimum + needed)
        totals.append(total)
    return max(totals, key=lambda total: total.sectors - total.minimum)


def accesses(
    view: View, distribution: Distribution, vector: int, element_bytes: int, env: Mapping[Sym, int]
) -> Iterator[tuple[Array, Array]]:
    """Yield, for each access in order, the first byte of every thread and whether it exists.

    Args:
        view: the view of the tensor, over the tile's coordinates.
        distribution: which thread accesses which coordinates, in which order.
        vector: elements per access.
        element_bytes: size of an element.
        env: values of symbols other than coordinates.

    Raises:
        LayoutError: the distribution is for another tile, or the vectors are not contiguous or not aligned.
    """
    if distribution.shape != view.shape:
        raise LayoutError(f"a distribution of a tile of {distribution.shape} for a view of {view.shape}")
    if vector < 1 or distribution.size_values % vector:
        raise LayoutError(
            f"{distribution.size_values} values per thread are not a multiple of vectors of {vector}"
        )
    fixed = View(view.shape, substitute(view.offset, env), view.elems, substitute(view.valid, env))
    index = tuple(np.moveaxis(distribution.table, -1, 0))
    shape = index[0].shape if index else (distribution.size_threads, distribution.size_values)
    offset = np.broadcast_to(fixed.at(index), shape).reshape(shape[0], -1, vector)
    exists = np.broadcast_to(fixed.valid_at(index), shape).reshape(shape[0], -1, vector)
    first = offset[:, :, :1]
    if not np.array_equal(offset, first + np.arange(vector)):
        raise LayoutError(f"{vector} consecutive values of a thread are not contiguous in the view {view}")
    if (first % vector).any():
        unit = math.gcd(vector, *first.ravel().tolist())
        raise LayoutError(f"vectors of {vector} start at multiples of {unit} only; nearest legal: {unit}")
    if not np.array_equal(exists, np.broadcast_to(exists[:, :, :1], exists.shape)):
        raise LayoutError(f"an edge cuts vectors of {vector}: in the view {view}")
    for access in range(offset.shape[1]):
        yield offset[:, access, 0] * element_bytes, exists[:, access, 0]


def _instances(view: View, at: Mapping[Sym, int] | None) -> Iterator[dict[Sym, int]]:
    """Yield values of all symbols except coordinates: the given ones with all combinations of the others."""
    given = dict(at or {})
    free = sorted((symbols(view.offset) | symbols(view.valid)) - set(view.coords) - given.keys(), key=str)
    spans = [_values(sym, given) for sym in free]
    if math.prod(map(len, spans)) > MOST_INSTANCES:
        raise LayoutError(f"too many values of {', '.join(map(str, free))} to try; give some as `at`")
    for chosen in itertools.product(*spans):
        yield {**given, **dict(zip(free, chosen, strict=True))}


def _values(sym: Sym, given: Mapping[Sym, int]) -> range:
    low, high = bounds(sym)
    stop = None if sym.stop is None else substitute(sym.stop, given)
    last = min(high, math.inf if stop is None else bounds(stop)[1] - 1)
    if abs(low) == math.inf or last == math.inf:
        raise LayoutError(f"the symbol {sym} is not bounded; give its value as `at`")
    return range(int(low), int(last) + 1, sym.divisor)


# ---------------------------------------------------------------- maps with the fewest sectors


MOST_THREADS = 1 << 16
"""Upper limit on threads, above that of any block; larger numbers are clamped before counts are tried."""


def coalesced(
    tile: Sequence[int],
    threads: int,
    order: Sequence[int] | None = None,
    vector: int = 1,
    element_bytes: int = 1,
    strides: Sequence[int | None] | None = None,
    least: int = 1,
    lanes: int = REFERENCE.lanes,
) -> Distribution:
    """Consecutive threads take consecutive vectors; each thread's next vector lies ``threads`` vectors on.

    If the extents do not allow this number of threads or this vector width, the map with the fewest 32-byte
    sectors is chosen.  Ties go to the fewest accesses per thread, then to the most threads, then to the map
    with each row in one warp, so that a reduction along the row stays in the warp.

    Args:
        tile: extents of the tile.
        threads: number of threads; fewer take part if the tile does not fit all of them.
        order: the dimensions, the contiguous one first; default: the last dimension first, as in NumPy.
        vector: largest number of elements that a thread takes at once along the first dimension of ``order``.
        element_bytes: size of an element.
        strides: elements between neighbours along each dimension, None if unknown; default: 1 along the first
            dimension of ``order``, the others unknown.
        least: smallest number of elements that a thread takes at once.
        lanes: threads of a warp; they share the sectors that they touch together.

    Raises:
        LayoutError: the number of threads is not positive.

    Example:
        128 threads, four to a row of 64 bytes, take 32 rows at once:

        >>> made = coalesced((64, 32), 128, vector=8, element_bytes=2)
        >>> made.coordinate(1, 0), made.coordinate(4, 0), made.coordinate(0, 8)
        ((0, 8), (1, 0), (32, 0))
    """
    extents = integers("tile", tile)
    if not extents:
        raise LayoutError("a tile of no dimension", "(1,)")
    if threads < 1:
        raise LayoutError(f"threads={threads}", "threads=1")
    rank = len(extents)
    chosen = tuple(reversed(range(rank))) if order is None else tuple(order)
    steps = tuple(1 if dim == chosen[0] else None for dim in range(rank)) if strides is None else strides
    widths = tuple(n for n in range(least, vector + 1) if n == least or n & (n - 1) == 0)
    return _fewest(extents, min(threads, MOST_THREADS), chosen, widths, element_bytes, tuple(steps), lanes)


@lru_cache(maxsize=1024)
def _fewest(
    tile: tuple[int, ...],
    threads: int,
    order: tuple[int, ...],
    widths: tuple[int, ...],
    element_bytes: int,
    strides: tuple[int | None, ...],
    lanes: int,
) -> Distribution:
    def cost(made: Distribution) -> tuple[float, int, int, int, bool, int]:
        width, along = made.values[0].extent, made.threads[0].extent
        touched = _sectors(made, width * element_bytes, element_bytes, strides, lanes)
        sectors = touched / (made.size_threads * width)
        return sectors, made.size_values // width, -made.size_threads, -width, along > lanes, -along

    return min(_candidates(tile, threads, order, widths), key=cost)


def _candidates(
    tile: tuple[int, ...], threads: int, order: tuple[int, ...], widths: tuple[int, ...]
) -> Iterator[Distribution]:
    """Yield the largest thread map for each vector width and each thread count along the first dimension."""
    first, *rest = order
    for width in (width for width in widths if tile[first] % width == 0):
        for along in _divisors(tile[first] // width, threads):
            counts = _most([tile[dim] for dim in rest], threads // along)
            spread, steps = [], []
            for dim, count in zip(order, (along, *counts), strict=True):
                unit = width if dim == first else 1
                spread.append(Mode(count, dim, unit))
                steps.append(Mode(tile[dim] // (count * unit), dim, count * unit))
            yield Distribution(tile, tuple(spread), (Mode(width, first, 1), *steps))


def _most(extents: Sequence[int], threads: int) -> tuple[int, ...]:
    """Return counts that divide the extents with the largest product; ties go to large first counts."""
    choices = itertools.product(*(_divisors(extent, threads) for extent in extents))
    return max(
        (counts for counts in choices if math.prod(counts) <= threads), key=lambda c: (math.prod(c), c)
    )


def _divisors(extent: int, most: int) -> list[int]:
    return [count for count in range(1, min(extent, most) + 1) if extent % count == 0]


def _sectors(
    made: Distribution, access_bytes: int, element_bytes: int, strides: tuple[int | None, ...], lanes: int
) -> int:
    """Return the number of sectors that the warps' first accesses touch, summed over the warps."""
    places = made.table[:, 0, :]
    known = [0 if step is None else step * element_bytes for step in strides]
    # Elements along a dimension of unknown stride never share a sector.
    apart = places[:, [dim for dim, step in enumerate(strides) if step is None]]
    total = 0
    for last in range(0, access_bytes, min(SECTOR_BYTES, access_bytes)):
        sectors = np.column_stack((apart, (places @ np.array(known, np.int64) + last) // SECTOR_BYTES))
        total += sum(
            len(np.unique(sectors[start : start + lanes], axis=0)) for start in range(0, len(sectors), lanes)
        )
    return total
