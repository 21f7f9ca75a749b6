"""Numbers of f32 as two halves of 11 bits each, which tensor cores multiply: the kernel that makes them.

Each row, along which is summed, is scaled by a power of 4 so that its largest number lies in [2**13, 2**15).
Each number x of it becomes ``high = f16(x)`` and ``low = f16(x - high)``: ``high + low`` differs from x by at
most ``2**-22 |x|``, or ``2**-25`` where the low half is subnormal, that is ``2**-38`` of the largest.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tilewright import dtypes
from tilewright.lang import operations as tw
from tilewright.lang.control import range as traced_range
from tilewright.lang.exact_functions import absolute, bitcast, maximum, minimum, where
from tilewright.lang.launch import batch_index, block_index
from tilewright.lang.scalars import ceil_div
from tilewright.lang.tile_arithmetic import reduce_max
from tilewright.ops.grades import MOST_RANK
from tilewright.runtime.decorator import kernel
from tilewright.runtime.kernel import Kernel
from tilewright.threads.distribution import Distribution, raked

ALONG_K = raked((8, 512), (8, 32), 4, 1)
"""Which threads split what of a matrix whose rows are contiguous: a warp for each row."""

ALONG_ROWS = raked((32, 128), (8, 32), 4, 0)
"""Which threads split what of a matrix whose columns are contiguous."""

WARPS = 8
"""Of a block."""

FINITE = 3.4028234663852886e38
"""The largest number of f32."""

BIAS = 127
"""Of the exponent in the bits of an f32, which begin at bit 23."""

TOP = 14
"""The exponent of the largest scaled number, or one less, for the scale is a power of 4."""


@lru_cache(maxsize=MOST_RANK + 1)
def split(rank: int) -> Kernel:
    """``X[..., r, k] = (high + low)[..., r, k] * unit[..., r] ** 2`` with so many dimensions of batches.

    Infinities and NaN are found in ``high``, and scale nothing.  ``low`` is not written without ``both``.
    """
    lead = "".join(f"B{dim} " for dim in range(rank))

    @kernel(X=f"{lead}R K", high=f"{lead}R K", low=f"{lead}R K", unit=f"{lead}R")
    def split_in_halves(X: Any, high: Any, low: Any, unit: Any, *, spread: Distribution, both: bool) -> None:
        r = block_index(ceil_div(X.shape[-2], spread.shape[0]))  # on the longest axis of a grid
        batch = tuple(batch_index(extent) for extent in X.shape[:-2])
        tile, turns = spread.shape, ceil_div(X.shape[-1], spread.shape[1])
        largest = tw.fragment(spread, dtypes.f32, 0)
        for k in traced_range(turns):
            size = absolute(tw.load(X[batch].tile(tile, (r, k)), spread))
            largest.assign(maximum(largest, where(size <= FINITE, size, 0.0)))
        # Of a row that several warps hold, they tell each other.
        told = tw.shared((tile[0], WARPS), dtypes.f32) if spread is ALONG_ROWS else None
        exponent = maximum(bitcast(reduce_max(largest, 1, scratch=told), dtypes.i32) >> 23, 1)
        half = minimum((TOP + BIAS - exponent) >> 1, BIAS // 2)
        scale = bitcast((BIAS + 2 * half) << 23, dtypes.f32)
        units = unit[batch].tile((tile[0],), (r,)).unmerge(0, (tile[0], 1))
        tw.copy(bitcast((BIAS - half) << 23, dtypes.f32), units)
        for k in traced_range(turns):
            x = tw.load(X[batch].tile(tile, (r, k)), spread)
            scaled = x * scale
            first = scaled.to(dtypes.f16)
            tw.copy(first, high[batch].tile(tile, (r, k)))
            if both:
                rest = where(absolute(x) <= FINITE, scaled - first.to(dtypes.f32), 0.0)
                tw.copy(rest.to(dtypes.f16), low[batch].tile(tile, (r, k)))

    return split_in_halves
