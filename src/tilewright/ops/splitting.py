"""Numbers of f32 as two halves of 11 bits each, which tensor cores multiply: the kernel that makes them.

Each row along K is scaled by a power of 4 so that its largest number lies in [2**13, 2**15). Each number x of
it becomes ``high = f16(x)`` and ``low = f16(x - high)``: ``high + low`` differs from x by at most ``2**-22
|x|``, or ``2**-25`` where the low half is subnormal, that is ``2**-38`` of the largest. One launch splits
both operands.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from tilewright import dtypes
from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import let_next_begin
from tilewright.lang.control import otherwise, when
from tilewright.lang.control import range as traced_range
from tilewright.lang.exact_functions import absolute, bitcast, maximum, minimum, where
from tilewright.lang.fragments import Fragment
from tilewright.lang.launch import block_index, require
from tilewright.lang.scalars import Index, ceil_div
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import reduce_max
from tilewright.lang.tracer import current
from tilewright.runtime.kernel import Kernel, kernel
from tilewright.threads.distribution import Distribution, raked

THREADS, LANES = 256, 32
"""Threads of a block, and lanes of a warp."""

VECTOR = 4
"""Neighbours that a thread reads at once."""

SHALLOW = 1024
"""Largest depth of operands that threads keep in registers between both passes."""

FEW = 4096
"""Largest number of rows that are dealt out to more blocks with fewer rows each."""

FINITE = 3.4028234663852886e38
"""The largest number of f32."""

BIAS = 127
"""Bias of the exponent of an f32, which begins at bit 23."""

TOP = 14
"""The exponent of the largest scaled number, or one less, for the scale is a power of 4."""


@dataclass(frozen=True)
class Tiling:
    """How a block of threads splits rows of an operand, tile after tile along K.

    Args:
        rows: rows of a tile.
        depth: depth of a tile.
        along_rows: whether neighbours in memory are neighbours along the rows, not along K.
        is_whole: whether a tile is as deep as the operand, and is read only once.
        threads: threads of a block.
    """

    rows: int
    depth: int
    along_rows: bool
    is_whole: bool = False
    threads: int = THREADS

    @staticmethod
    def of(rows: int, depth: int, *, along_rows: bool) -> Tiling:
        """The tiling of an operand."""
        if depth <= SHALLOW:
            whole = max(1 << max(depth - 1, 0).bit_length(), LANES * VECTOR)
            return Tiling(16, whole, along_rows, is_whole=True, threads=2 * THREADS)
        if along_rows:
            return Tiling(16, 256, along_rows) if rows <= FEW else Tiling(32, 128, along_rows)
        return Tiling(8, 512, along_rows)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of a tile."""
        return self.rows, self.depth

    @property
    def spread(self) -> Distribution:
        """Threads that split a tile: a warp for each row, or neighbouring threads along the rows."""
        across = self.rows // VECTOR if self.along_rows else self.threads // LANES
        return raked(self.shape, (across, self.threads // across), VECTOR, int(not self.along_rows))


FEW_BLOCKS = 512
"""Most blocks for which the product may start early: on an H200 6 % faster at 1024³, 2 % slower at 4096³."""


@lru_cache(maxsize=16)
def splitting_of_both(rank_a: int, rank_b: int) -> Kernel:
    """``x[..., r, k] = (x_high + x_low)[..., r, k] * x_unit[..., r] ** 2`` of both operands, in one launch.

    Infinities and NaN are found in the high halves, and scale nothing.  Low ones are not written without
    ``both``.

    Args:
        rank_a: number of batch dimensions of A.
        rank_b: number of batch dimensions of B.
    """
    declared: dict[str, Any] = {}
    for name, rank in (("a", rank_a), ("b", rank_b)):
        lead = "".join(f"{name.upper()}{dim} " for dim in range(rank))
        rows = f"{lead}R{name}"
        declared |= dict.fromkeys((name, f"{name}_high", f"{name}_low"), f"{rows} K") | {f"{name}_unit": rows}

    @kernel(**declared)
    def split_in_halves(
        a: Any,
        a_high: Any,
        a_low: Any,
        a_unit: Any,
        b: Any,
        b_high: Any,
        b_low: Any,
        b_unit: Any,
        *,
        tilings: tuple[Tiling, Tiling],
        both: bool,
    ) -> None:
        blocks_a, blocks_b = (
            blocks_of(unit, one.rows) for unit, one in zip((a_unit, b_unit), tilings, strict=True)
        )
        let_next_begin(blocks_a + blocks_b <= FEW_BLOCKS)
        number = block_index(blocks_a + blocks_b)
        with when(number < blocks_a):
            _split((a, a_high, a_low, a_unit), number, tilings[0], both)
        with otherwise():
            _split((b, b_high, b_low, b_unit), number - blocks_a, tilings[1], both)

    return split_in_halves


def blocks_of(unit: Tensor, rows: int) -> Index:
    """Return the number of blocks for an operand, by its units: one for each row."""
    *batch, extent = unit.shape
    count: Index = ceil_div(extent, rows) * prod(batch)
    return count


def place_of(unit: Tensor, rows: int, number: Index) -> tuple[tuple[Index, ...], Index]:
    """Return the batch of a block, and the number of its tile of rows."""
    *batch, extent = unit.shape
    count = ceil_div(extent, rows)
    places, r, number = list[Index](), number % count, number // count
    for one in reversed(batch):
        places.insert(0, number % one)
        number = number // one
    return tuple(places), r


def _split(arrays: tuple[Tensor, ...], number: Index, tiling: Tiling, both: bool) -> None:
    """Split the rows of one block: first their largest number, then their halves.

    Args:
        arrays: an operand, its halves, and the units of its rows.
        number: number of the block.
        tiling: the tiling of the operand.
        both: whether the low halves are written.
    """
    batch, r = place_of(arrays[-1], tiling.rows, number)
    x, high, low, unit = (array[batch] if batch else array for array in arrays)
    spread, tile, turns = tiling.spread, tiling.shape, ceil_div(x.shape[-1], tiling.depth)
    largest, held = tw.fragment(spread, dtypes.f32, 0), list[Fragment]()
    if tiling.is_whole:
        require(x.shape[-1] <= tiling.depth, f"K must be at most {tiling.depth}, the depth of the tile")
        held.append(tw.load(x.tile(tile, (r, 0)), spread))
        largest.assign(maximum(largest, _finite(held[0])))
    else:
        for k in traced_range(turns):
            largest.assign(maximum(largest, _finite(tw.load(x.tile(tile, (r, k)), spread))))
    # Of a row that several warps hold, they tell each other.
    warps = tiling.threads // current().lanes
    told = tw.shared((tiling.rows, warps), dtypes.f32) if tiling.along_rows else None
    scale, one = units_of(reduce_max(largest, 1, scratch=told))
    tw.copy(one, unit.tile((tiling.rows,), (r,)).unmerge(0, (tiling.rows, 1)))

    def write(given: Fragment, k: Index | int) -> None:
        scaled = given * scale
        first = scaled.to(dtypes.f16)
        tw.copy(first, high.tile(tile, (r, k)))
        if both:
            rest = where(absolute(given) <= FINITE, scaled - first.to(dtypes.f32), 0.0)
            tw.copy(rest.to(dtypes.f16), low.tile(tile, (r, k)))

    for part in held:
        write(part, 0)
    if not held:
        for k in traced_range(turns):
            write(tw.load(x.tile(tile, (r, k)), spread), k)


def _finite(given: Fragment) -> Fragment:
    """Absolute values; 0 for numbers that are not finite."""
    size = absolute(given)
    found: Fragment = where(size <= FINITE, size, 0.0)
    return found


def units_of(largest: Fragment) -> tuple[Fragment, Fragment]:
    """Factors of rows, from their largest numbers, and the square roots of the inverse factors."""
    exponent = maximum(bitcast(largest, dtypes.i32) >> 23, 1)
    half = minimum((TOP + BIAS - exponent) >> 1, BIAS // 2)
    scale = bitcast((BIAS + 2 * half) << 23, dtypes.f32)
    return scale, bitcast((BIAS - half) << 23, dtypes.f32)
