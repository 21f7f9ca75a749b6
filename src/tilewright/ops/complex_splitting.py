"""The kernel that splits complex numbers of f32 into halves of 11 bits, which tensor cores multiply.

This differs from `splitting` in two ways.  Real and imaginary parts of a row share a scale, because their
products are added up together.  The halves are contiguous along the rows, so that stages of 32 elements along
K consist of whole lines of 128 bytes.  One launch splits both operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tilewright import dtypes
from tilewright.lang import operations as tw
from tilewright.lang.control import range as traced_range
from tilewright.lang.exact_functions import absolute, bitcast, maximum, where
from tilewright.lang.fragments import Fragment
from tilewright.lang.scalars import Index, ceil_div
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import reduce_max
from tilewright.layout.layout import Layout
from tilewright.ops.splitting import (
    FEW_BLOCKS,
    FINITE,
    block_of_both,
    blocks_of,
    for_both,
    operands_of,
    place_of,
    rows_of,
    units_of,
)
from tilewright.ops.tiled_product import kernel_by_name
from tilewright.runtime.kernel import Kernel
from tilewright.threads.distribution import Distribution, raked

LANES = 32
"""Lanes of a warp."""

SHALLOW = 1024
"""Largest K of operands that few blocks split, in deeper tiles of fewer rows."""

GAP = 2
"""Padding of each row of a tile in shared memory, in halves, which puts neighbours along K in other banks."""


@dataclass(frozen=True)
class PartsTiling:
    """The tiles in which a block splits rows of an operand, one after the other along K.

    Args:
        rows: rows of a tile.
        depth: depth of a tile.
        warps: warps of a block.
        turned: whether the operand is contiguous along K, so that halves are transposed in shared memory.
        packed: whether an array of 64 bits holds real and imaginary parts side by side.
    """

    rows: int
    depth: int
    warps: int
    turned: bool
    packed: bool

    @staticmethod
    def of(depth: int, *, turned: bool, packed: bool) -> PartsTiling:
        """The tiling for an operand of this depth."""
        if depth <= SHALLOW:
            return PartsTiling(16, 256, 16, turned, packed)
        return PartsTiling(32, 128, 8, turned, packed)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of a tile."""
        return self.rows, self.depth

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * LANES

    @property
    def spread(self) -> Distribution:
        """Threads that read a tile: a warp for each row, or neighbouring threads along the rows."""
        if self.turned:
            return raked(self.shape, (self.warps, LANES), 2, 1)
        return self._along_rows(2)

    @property
    def written(self) -> Distribution:
        """Threads that write a transposed tile."""
        return self._along_rows(2)

    def _along_rows(self, vector: int) -> Distribution:
        across = self.rows // vector
        return raked(self.shape, (across, self.threads // across), vector, 0)


ARRAYS = ("re", "im", "re_high", "re_low", "im_high", "im_low")
"""Arrays of an operand: its parts, and the halves of each."""


@lru_cache(maxsize=16)
def splitting_of_both(rank_a: int, rank_b: int) -> Kernel:
    """``x[..., r, k] = (x_high + x_low)[..., r, k] * x_unit[..., r] ** 2`` of both parts of both operands.

    The first half of an infinity or NaN is the number itself; these numbers do not affect the scale.  Without
    ``both`` the second halves are not written.

    Args:
        rank_a: number of batch dimensions of A.
        rank_b: number of batch dimensions of B.
    """
    declared: dict[str, Any] = {}
    for name, rank in (("a", rank_a), ("b", rank_b)):
        rows = rows_of(name, rank)
        declared |= {f"{name}_{array}": f"{rows} K" for array in ARRAYS} | {f"{name}_unit": rows}

    @kernel_by_name(**declared)
    def complex_halves(given: Any, *, tilings: tuple[PartsTiling, PartsTiling], both: bool = True) -> None:
        halves = ARRAYS[2 :: 1 if both else 2]
        arrays = operands_of(given, [f"_{name}" for name in (*ARRAYS[:2], *halves, "unit")])
        blocks = [blocks_of(own[-1], one.rows) for own, one in zip(arrays, tilings, strict=True)]
        number, turning = block_of_both(blocks, FEW_BLOCKS), list[Tensor]()
        if any(tiling.turned for tiling in tilings):
            shape = tilings[0].shape
            rows = Layout(shape, (1, shape[0] + GAP))
            turning += [tw.shared(shape, dtypes.f16, layout=rows) for _ in halves]
        for_both(number, blocks, lambda which, own: _split(arrays[which], own, tilings[which], turning))

    return complex_halves


def _split(arrays: Sequence[Tensor], number: Index, tiling: PartsTiling, turning: Sequence[Tensor]) -> None:
    """Split the rows of one block: first their largest number, then their halves.

    Args:
        arrays: the arrays of the operand in the order of `ARRAYS`, perhaps without the second halves, and its
            units.
        number: number of the block.
        tiling: the tiling of the operand.
        turning: a tile in shared memory for each half, in which it is transposed.
    """
    batch, r = place_of(arrays[-1], tiling.rows, number)
    re, im, *halves, unit = (array[batch] if batch else array for array in arrays)
    tile, count = tiling.shape, ceil_div(re.shape[-1], tiling.depth)
    largest = tw.fragment(tiling.spread, dtypes.f32, 0)
    for k in traced_range(count):
        for part in _parts(re, im, (r, k), tiling):
            size = absolute(part)
            largest.assign(maximum(largest, where(size <= FINITE, size, 0.0)))
    # Warps that hold parts of a row exchange their maxima through shared memory.
    told = None if tiling.turned else tw.shared((tiling.rows, tiling.warps), dtypes.f32)
    scale, one = units_of(reduce_max(largest, 1, scratch=told))
    tw.copy(one, unit.tile((tiling.rows,), (r,)).unmerge(0, (tiling.rows, 1)))
    for k in traced_range(count):
        parts = _parts(re, im, (r, k), tiling)
        made = list[Fragment]()
        for part in parts:
            scaled = part * scale
            first = scaled.to(dtypes.f16)
            made.append(first)
            if len(halves) > 2:
                rest = where(absolute(part) <= FINITE, scaled - first.to(dtypes.f32), 0.0)
                made.append(rest.to(dtypes.f16))
        if tiling.turned:
            tw.barrier()  # all threads have read the previous contents
            for half, place in zip(made, turning, strict=True):
                tw.copy(half, place)
            tw.barrier()
            made = [tw.load(place, tiling.written) for place in turning]
        for half, array in zip(made, halves, strict=True):
            tw.copy(half, array.tile(tile, (r, k)))


def _parts(
    re: Tensor, im: Tensor, place: tuple[Index, Index], tiling: PartsTiling
) -> tuple[Fragment, Fragment]:
    """Real and imaginary parts of a tile."""
    tile, spread = tiling.shape, tiling.spread
    if not tiling.packed:
        return tw.load(re.tile(tile, place), spread), tw.load(im.tile(tile, place), spread)
    both = tw.load(re.tile(tile, place), spread)
    low, high = both.to(dtypes.i32), (both >> 32).to(dtypes.i32)
    return bitcast(low, dtypes.f32), bitcast(high, dtypes.f32)
