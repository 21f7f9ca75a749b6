"""The thread map of a tile that touches the fewest sectors of global memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from tilewright.arch import REFERENCE
from tilewright.errors import LayoutError
from tilewright.layout.tuples import integers
from tilewright.threads.distribution import Distribution, Mode

SECTOR_BYTES = REFERENCE.sector_bytes
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
        raise LayoutError("a tile of no dimension; nearest legal choice: (1,)")
    if threads < 1:
        raise LayoutError(f"threads={threads}; nearest legal choice: threads=1")
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
            yield _cyclic(tile, order, (along, *counts), width)


def _cyclic(
    tile: tuple[int, ...], order: tuple[int, ...], counts: tuple[int, ...], width: int
) -> Distribution:
    spread, steps = [], []
    for dim, count in zip(order, counts, strict=True):
        unit = width if dim == order[0] else 1
        spread.append(Mode(count, dim, unit))
        steps.append(Mode(tile[dim] // (count * unit), dim, count * unit))
    return Distribution(tile, tuple(spread), (Mode(width, order[0], 1), *steps))


def _most(extents: Sequence[int], threads: int) -> tuple[int, ...]:
    """Return counts that divide the extents with the largest product; ties go to large first counts."""
    choices = itertools.product(*(_divisors(extent, threads) for extent in extents))
    return max(
        (counts for counts in choices if math.prod(counts) <= threads), key=lambda c: (math.prod(c), c)
    )


def _divisors(extent: int, most: int) -> list[int]:
    return [count for count in range(1, min(extent, most) + 1) if extent % count == 0]


def _sectors(
    made: Distribution,
    access_bytes: int,
    element_bytes: int,
    strides: tuple[int | None, ...],
    lanes: int,
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
