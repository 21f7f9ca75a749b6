"""The split of f32 numbers into two halves of 11 bits each, which tensor cores multiply.

Each row along K is scaled by a power of 4 so that its largest number lies in [2**13, 2**15). Each scaled
number x becomes ``high = f16(x)`` and ``low = f16(x - high)``.  ``high + low`` differs from x by at most
``2**-22 |x|``, or, if the low half is subnormal, by ``2**-25``, which is ``2**-38`` of the row's largest
number. One launch splits both operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any

from tilewright import dtypes
from tilewright.dtypes import DType
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
from tilewright.ops.launching import OWN, Call, Launch, LaunchPlan
from tilewright.ops.problem import MatrixBatch
from tilewright.ops.tiled_product import kernel_by_name
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.gpu_memory import ALIGNMENT
from tilewright.runtime.kernel import Bound, Kernel
from tilewright.threads.distribution import Distribution, raked

THREADS, LANES = 256, 32
"""Threads of a block, and lanes of a warp."""

VECTOR = 4
"""Neighbours that a thread reads at once."""

SHALLOW = 1024
"""Largest depth of operands that threads keep in registers between both passes."""

FEW = 4096
"""Largest number of rows for which blocks have fewer rows each, so that there are more blocks."""

FINITE = 3.4028234663852886e38
"""The largest number of f32."""

BIAS = 127
"""Bias of the exponent of an f32, which begins at bit 23."""

TOP = 14
"""Exponent of the largest number of a scaled row; it may be one less, because scales are powers of 4."""


@dataclass(frozen=True)
class Tiling:
    """The tiles in which a block splits rows of an operand, one after the other along K.

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

    The high half of an infinity or NaN is the number itself; these numbers do not affect the scale.  Without
    ``both`` the low halves are not written.

    Args:
        rank_a: number of batch dimensions of A.
        rank_b: number of batch dimensions of B.
    """
    declared: dict[str, Any] = {}
    for name, rank in (("a", rank_a), ("b", rank_b)):
        rows = rows_of(name, rank)
        declared |= dict.fromkeys((name, f"{name}_high", f"{name}_low"), f"{rows} K") | {f"{name}_unit": rows}

    @kernel_by_name(**declared)
    def split_in_halves(given: Any, *, tilings: tuple[Tiling, Tiling], both: bool) -> None:
        arrays = operands_of(given, ("", "_high", "_low", "_unit"))
        blocks = [blocks_of(own[-1], one.rows) for own, one in zip(arrays, tilings, strict=True)]
        number = block_of_both(blocks, FEW_BLOCKS)
        for_both(number, blocks, lambda which, own: _split(arrays[which], own, tilings[which], both))

    return split_in_halves


def rows_of(name: str, rank: int) -> str:
    """Return the dimensions of an array with one element for each row of an operand.

    Args:
        name: the operand.
        rank: number of its batch dimensions.

    Example:
        >>> rows_of("a", 2)
        'A0 A1 Ra'
    """
    return "".join(f"{name.upper()}{dim} " for dim in range(rank)) + f"R{name}"


def operands_of(given: Any, suffixes: Sequence[str]) -> list[list[Tensor]]:
    """Return the arrays of A and of B, whose names begin with that of the operand.

    Args:
        given: has the arrays as attributes.
        suffixes: the ends of their names.
    """
    return [[getattr(given, f"{name}{suffix}") for suffix in suffixes] for name in "ab"]


def block_of_both(blocks: Sequence[Index], few: int) -> Index:
    """Return the number of a block in a launch that has blocks for two operands.

    Args:
        blocks: number of blocks of each operand.
        few: number of blocks up to which the next launch may start early.
    """
    count = blocks[0] + blocks[1]
    let_next_begin(count <= few)
    number: Index = block_index(count)
    return number


def for_both(number: Index, blocks: Sequence[Index], work: Callable[[int, Index], None]) -> None:
    """Do the work of one block, which belongs to the first or to the second operand.

    Args:
        number: from `block_of_both`.
        blocks: number of blocks of each operand.
        work: takes the operand, 0 or 1, and the number of the block among those of this operand.
    """
    with when(number < blocks[0]):
        work(0, number)
    with otherwise():
        work(1, number - blocks[0])


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


def _split(arrays: Sequence[Tensor], number: Index, tiling: Tiling, both: bool) -> None:
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
    # Warps that hold parts of a row exchange their maxima through shared memory.
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


UNIT = 8
"""Rows of halves have a multiple of this number of elements, because bulk copies require it."""


@dataclass(frozen=True)
class Part:
    """An array in scratch memory.

    Args:
        dtype: dtype of its elements.
        shape: its extents.
        strides: its strides, in elements; 0 along broadcast dimensions.
    """

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @cached_property
    def bytes(self) -> int:
        """Bytes of scratch memory, a multiple of `ALIGNMENT`."""
        last = sum((extent - 1) * step for extent, step in zip(self.shape, self.strides, strict=True))
        return -(-(last + 1) * self.dtype.bytes // ALIGNMENT) * ALIGNMENT

    def at(self, pointer: int, given: Strided) -> Strided:
        """The array at an address, as kernels take it, on the device of another array."""
        info = replace(given.info, pointer=pointer, shape=self.shape, strides=self.strides, dtype=self.dtype)
        return Strided(given.array, replace(info, readonly=False))


@dataclass(frozen=True)
class Split:
    """An operand with rows along M or N, and the layouts of its halves.

    Args:
        given: the operand (batches, rows, K).
        halves: the layout of each half.
        units: the layout of the units, one for each row.
    """

    given: Strided
    halves: Part
    units: Part

    @staticmethod
    def of(array: Any, info: ArrayInfo, matrices: MatrixBatch, is_turned: bool) -> Split:
        """Return an operand with layouts for its halves; the same dimension is contiguous in both."""
        *batch, rows, depth = turned(matrices.shape, is_turned)
        *lead, row_step, depth_step = turned(matrices.strides, is_turned)
        # A batch with stride 0 is stored once.
        own = [extent if step else 1 for extent, step in zip(batch, lead, strict=True)]
        along_rows = row_step == 1 and depth_step != 1
        pitch = -(-(rows if along_rows else depth) // UNIT) * UNIT
        inner = (1, pitch) if along_rows else (pitch, 1)
        whole = pitch * (depth if along_rows else rows)
        steps = [step and whole * prod(own[at + 1 :]) for at, step in enumerate(lead)]
        unit_steps = [step and rows * prod(own[at + 1 :]) for at, step in enumerate(lead)]
        shape = (*batch, rows, depth)
        seen = replace(info, shape=shape, strides=(*lead, row_step, depth_step))
        return Split(
            Strided(array, seen),
            Part(dtypes.f16, shape, (*steps, *inner)),
            Part(dtypes.f32, (*batch, rows), (*unit_steps, 1)),
        )

    @property
    def bytes(self) -> int:
        """Bytes of both halves and the units."""
        return 2 * self.halves.bytes + self.units.bytes

    def placed(self, start: int) -> tuple[Strided, Strided, Strided]:
        """Both halves and the units, from an address on."""
        second = start + self.halves.bytes
        high, low = (self.halves.at(at, self.given) for at in (start, second))
        return high, low, self.units.at(second + self.halves.bytes, self.given)

    @property
    def tiling(self) -> Tiling:
        """The tiling with which blocks split the operand."""
        rows, depth = self.halves.shape[-2:]
        row_step, depth_step = self.halves.strides[-2:]
        return Tiling.of(rows, depth, along_rows=row_step == 1 and depth_step != 1)


def turned(values: tuple[int, ...], is_turned: bool) -> tuple[int, ...]:
    """Extents or strides of an operand with rows before K; the columns of B are its rows here.

    Example:
        >>> turned((2, 3, 4), True)
        (2, 4, 3)
    """
    return (*values[:-2], values[-1], values[-2]) if is_turned else values


def once(given: Strided, rank: int) -> Strided:
    """Return an array with extent 1 along its broadcast batch dimensions."""
    info = given.info
    pairs = zip(info.shape[:rank], info.strides[:rank], strict=True)
    lead = tuple(extent if step else min(extent, 1) for extent, step in pairs)
    return Strided(given.array, replace(info, shape=(*lead, *info.shape[rank:])))


def plan_of_halves(
    call: Call,
    operands: Mapping[str, tuple[Strided, MatrixBatch]],
    kernel: Bound,
    rest: Mapping[str, Strided],
    numbers: tuple[Any, ...],
    both: bool,
) -> LaunchPlan:
    """The launches that split both operands, and multiply their halves by a kernel.

    An operand that is broadcast along a batch is split once.

    Args:
        call: the arrays of the call.
        operands: ``a`` and ``b``, with their matrices.
        kernel: takes both halves of A, those of B, the units of both, and the other arrays.
        rest: the other arrays, by name.
        numbers: numbers of the kernel.
        both: whether low halves are written and multiplied.
    """
    a, b = (
        Split.of(one.array, one.info, matrices, is_turned=name == "b")
        for name, (one, matrices) in operands.items()
    )
    of_a, of_b = a.placed(0), b.placed(a.bytes)
    ranks = [len(one.halves.shape) - 2 for one in (a, b)]
    split = splitting_of_both(*ranks).bind(tilings=(a.tiling, b.tiling), both=both)
    given = [
        *(once(one, ranks[0]) for one in (a.given, *of_a)),
        *(once(one, ranks[1]) for one in (b.given, *of_b)),
    ]
    own = (OWN,) * len(of_a)
    first = Launch(split, tuple(given), ("a", *own, "b", *own))
    arrays = (*of_a[:2], *(transposed(one) for one in of_b[:2]), of_a[2], of_b[2], *rest.values())
    product = Launch(kernel, arrays, (*own, *own, *call.stand_ins(rest)), numbers)
    reason = "tensor cores multiply the f16 halves of the operands"
    return call.plan(first, product, scratch_bytes=a.bytes + b.bytes, reason=reason)


def transposed(given: Strided) -> Strided:
    """An array with its last two dimensions exchanged."""
    info = given.info
    seen = replace(info, shape=turned(info.shape, True), strides=turned(info.strides, True))
    return Strided(given.array, seen)
