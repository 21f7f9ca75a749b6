"""Thread counts and vector widths that divide a tile: the nearest legal choices in error messages."""

from __future__ import annotations

import math
from collections.abc import Sequence


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
