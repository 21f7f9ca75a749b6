"""Upper limits on tiles and thread maps, and nearest legal counts for error messages."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.calls import Most
from tilewright.errors import LayoutError, shown

PAIRS = 1 << 22
"""(thread, value) pairs of one map. The check that a map is exact tables all of them."""

ELEMENTS = 1 << 24
"""Elements of one tile. Checks table all of them."""

THREADS = 1 << 16
"""Threads of one block. A GPU allows 1024; the reference runs each thread separately."""

SHARED_BYTES = 1 << 26
"""Bytes of one tensor in shared memory. No target has a hundredth of it; the reference allocates it."""

SWIZZLE_BITS = 40
"""Highest offset bit, in elements, that a swizzle may reach. No memory has larger offsets."""

WARPS = Most(1024, "a block of a GPU has 1024 threads at most")
REPEATS = Most(4096, "each needs its own registers")
UNROLLED = Most(1 << 16, "the body is traced once for each, and repeated in the generated text")
COPIES = Most(64, "the machine code has a copy of the loop's body for each")
BARRIERS = Most(4096, "each takes 8 bytes of shared memory")
ARRIVALS = Most((1 << 20) - 1, "the hardware counter ends there")
WIDEST = Most(128, "no access is wider than a line of 128 bytes")
LANES = Most(1024, "a block of a GPU has 1024 threads at most")
STAGES = Most(256, "each holds a tile of every operand in shared memory, and the first loads are unrolled")


def check_tile(shape: Sequence[int]) -> None:
    """Refuse a tile with an illegal extent or too many elements.

    Raises:
        LayoutError: an extent below 1, or more than `ELEMENTS` in all.
    """
    if any(extent < 1 for extent in shape):
        raise LayoutError(f"a tile of shape {tuple(shape)}; every extent is at least 1")
    if math.prod(shape) > ELEMENTS:
        rule = f"a map of threads takes at most {ELEMENTS}, because a check visits each"
        text = f"a tile of shape {shown(tuple(shape))} has {shown(math.prod(shape))} elements; {rule}"
        raise LayoutError(text)


def check_rank(what: str, given: Sequence[object], rank: int) -> None:
    """Refuse a shape or index whose rank differs from the tile's."""
    if len(given) != rank:
        raise LayoutError(f"{what} {shown(tuple(given))} of rank {len(given)} for a tile of rank {rank}")


def check_pairs(threads: int, values: int) -> None:
    """Refuse a map with more threads than a block may have, or with too many pairs of thread and value.

    Raises:
        LayoutError: more than `THREADS` threads, or more than `PAIRS` pairs.
    """
    if threads > THREADS:
        raise LayoutError(f"{shown(threads)} threads share a tile; at most {THREADS} threads are possible")
    if threads * values > PAIRS:
        rule = f"a map has at most {PAIRS} pairs of thread and value, because a check visits each"
        text = f"{threads} threads hold {shown(values)} values each; {rule}"
        raise LayoutError(text, f"{PAIRS // threads} values")


# ---------------------------------------------------------------- nearest divisors


def dealt(tile: Sequence[int], threads: int) -> tuple[int, ...]:
    """Distribute ``threads`` over the dimensions of a tile: each count divides its extent, first dims first.

    Example:
        >>> dealt((64, 32), 128), dealt((6, 8), 32)
        ((64, 2), (2, 8))
    """
    counts = []
    for extent in tile:
        counts.append(math.gcd(extent, threads))
        threads //= counts[-1]
    return tuple(counts)


def divisor_at_most(value: int, most: int) -> int:
    """Return the largest divisor of a positive integer that is at most ``most``, in bounded time.

    For values beyond 2**32 only divisors up to 2**16 and their cofactors are tried.

    Example:
        >>> divisor_at_most(60, 8), divisor_at_most(60, 2**40), divisor_at_most(2**60 + 2, 5)
        (6, 60, 3)
    """
    small = (n for n in range(1, min(math.isqrt(value), 1 << 16) + 1) if value % n == 0)
    return max((d for n in small for d in (n, value // n) if d <= most), default=1)


def fitting(extent: int, threads: int, vector: int) -> str:
    """Return the text of a smaller vector or fewer threads that divide an extent.

    Example:
        >>> fitting(60, 4, 8), fitting(60, 8, 4)
        ('vector=1', '5 threads')
    """
    if extent % threads == 0:
        fewer = max(n for n in (1, 2, 4, 8, 16) if n == 1 or (n <= vector and extent % (threads * n) == 0))
        return f"vector={fewer}"
    if extent % vector == 0:
        fewer = divisor_at_most(extent // vector, threads - 1)
        return f"{fewer} thread{'s' * (fewer > 1)}"
    fewer = divisor_at_most(extent, threads - 1)
    return f"{fewer} thread{'s' * (fewer > 1)} with vector=1"
