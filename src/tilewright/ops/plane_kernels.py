"""The kernels that write planes of one operand of a product, or of both at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from tilewright.dtypes import DType, f32, i32
from tilewright.lang.asynchrony import let_next_begin
from tilewright.lang.control import otherwise, when
from tilewright.lang.exact_functions import absolute, bitcast, where
from tilewright.lang.fragments import Fragment
from tilewright.lang.launch import block_index
from tilewright.lang.operations import barrier, copy, load, shared
from tilewright.lang.scalars import Index, ceil_div
from tilewright.lang.tensors import Tensor
from tilewright.layout.layout import Layout
from tilewright.ops.complex_pairs import parted
from tilewright.ops.splitting import FINITE
from tilewright.runtime.kernel import Kernel, kernel
from tilewright.threads.distribution import Distribution, raked

ROWS, COLUMNS = 32, 64
"""Of the tile of a block."""

THREADS = 128
"""Of a block, where it is not one."""

FEW_BLOCKS = 4096
"""So many let the product begin beside them: on an H200 2 % faster to 2048³, 2 % slower at 4096³."""

VECTOR_BYTES = 16
"""That a thread writes of a plane at once."""

TF32_UNIT = 1 << 13
"""The last bit of a number of tf32 among those of f32."""

TF32_END = 2.0**128 - 2.0**116
"""The least number of f32 that is nearer to 2**128, which is none, than to the largest number of tf32."""

PLANES = ("", "_im", "_sum")
"""What ends the names of planes: of real parts, of imaginary parts, and of their sums or differences."""

REAL = PLANES[:1]
"""The planes of an operand of real numbers, which has no imaginary parts to read."""

ARRAYS = ("re", "im", "first", "second", "both")
"""Of an operand: what is read, and the planes."""


def sources_of(kept: tuple[str, ...]) -> tuple[str, ...]:
    """What ends the names of the arrays that are read, for planes of some endings."""
    return REAL if kept == REAL else PLANES[:2]


@dataclass(frozen=True)
class Writing:
    """How the planes of an operand are written.

    Args:
        kept: which of `PLANES`.
        part: the dtype of real and imaginary parts.
        negative: whether the third plane is the difference, as of a conjugate.
        turned: whether planes are contiguous along the other dimension than what is read.
        packed: whether both parts are read as one array of pairs.
        on_host: whether a block is one thread.
        rounded: whether numbers of f32 are rounded to tf32, which Hopper's multiply would cut off to.
    """

    kept: tuple[str, ...]
    part: DType
    negative: bool
    turned: bool
    packed: bool
    on_host: bool
    rounded: bool = False

    def spread(self, shape: tuple[int, int]) -> Distribution:
        """Which threads take what of a tile."""
        if self.on_host:
            return raked(shape, (1, 1), 1, 1)
        vector = VECTOR_BYTES // self.part.bytes
        across = shape[1] // vector
        return raked(shape, (THREADS // across, across), vector, 1)


@lru_cache(maxsize=16)
def splitting(rank: int) -> Kernel:
    """The kernel that writes the planes of an operand, read row after row.

    Args:
        rank: how many dimensions of batches there are.
    """
    lead = "".join(f"B{dim} " for dim in range(rank))
    declared: dict[str, Any] = dict.fromkeys(ARRAYS, f"{lead}S F")

    @kernel(**declared)
    def planes(re: Any, im: Any, first: Any, second: Any, both: Any, *, how: Writing) -> None:
        let_next_begin(_blocks(first) <= FEW_BLOCKS)
        _write((re, im, first, second, both), block_index(_blocks(first)), how)

    return planes


@lru_cache(maxsize=16)
def splitting_of_two(rank: int) -> Kernel:
    """The kernel that writes the planes of both operands.

    Args:
        rank: how many dimensions of batches each has.
    """
    declared: dict[str, Any] = {}
    for name in "ab":
        lead = "".join(f"{name.upper()}{dim} " for dim in range(rank))
        declared |= {f"{name}_{array}": f"{lead}S{name} F{name}" for array in ARRAYS}

    @kernel(**declared)
    def planes_of_both(
        a_re: Any,
        a_im: Any,
        a_first: Any,
        a_second: Any,
        a_both: Any,
        b_re: Any,
        b_im: Any,
        b_first: Any,
        b_second: Any,
        b_both: Any,
        *,
        hows: tuple[Writing, Writing],
    ) -> None:
        blocks_a, blocks_b = _blocks(a_first), _blocks(b_first)
        let_next_begin(blocks_a + blocks_b <= FEW_BLOCKS)
        number = block_index(blocks_a + blocks_b)
        with when(number < blocks_a):
            _write((a_re, a_im, a_first, a_second, a_both), number, hows[0])
        with otherwise():
            _write((b_re, b_im, b_first, b_second, b_both), number - blocks_a, hows[1])

    return planes_of_both


def _blocks(plane: Tensor) -> Index:
    """How many blocks an operand takes."""
    *batch, rows, columns = plane.shape
    count: Index = ceil_div(columns, COLUMNS) * ceil_div(rows, ROWS) * prod(batch)
    return count


def _write(arrays: Sequence[Tensor], number: Index, how: Writing) -> None:
    """Write one tile of each plane."""
    *batch, rows, columns = arrays[2].shape
    across, down, tile = ceil_div(columns, COLUMNS), ceil_div(rows, ROWS), (ROWS, COLUMNS)
    place = number // across % down, number % across
    number, places = number // (across * down), list[Index]()
    for extent in reversed(batch):
        places.insert(0, number % extent)
        number = number // extent
    re, im, *planes = (array[tuple(places)] if batch else array for array in arrays)
    values = _parts([part.tile(tile, place) for part in (re, im)], how)
    targets = [plane.tile(tile, place) for plane in planes]
    if how.turned:
        held = [shared(tile, how.part, layout=Layout(tile, (COLUMNS + 1, 1))) for _ in values]
        for value, there in zip(values, held, strict=True):
            copy(value, there)
        barrier()
        values = [load(there.permute(1, 0), how.spread((COLUMNS, ROWS))) for there in held]
        targets = [target.permute(1, 0) for target in targets]
    if PLANES[2] in how.kept:
        values.append(values[0] - values[1] if how.negative else values[0] + values[1])
    for end, value, target in zip(PLANES, values, targets, strict=False):
        if end in how.kept:
            copy(_as_tf32(value) if how.rounded else value, target)


def _as_tf32(value: Fragment) -> Fragment:
    """Numbers of f32 rounded to nearest, ties away from zero; or cut off where that would be infinite."""
    size, bits = absolute(value), bitcast(value, i32)
    near, cut = (bitcast(bits + half & -TF32_UNIT, f32) for half in (TF32_UNIT >> 1, 0))
    found: Fragment = where(size < TF32_END, near, where(size <= FINITE, cut, value))
    return found


def _parts(given: Sequence[Tensor], how: Writing) -> list[Fragment]:
    """Real and imaginary parts of a tile, or what it holds of real numbers."""
    spread = how.spread((ROWS, COLUMNS))
    if how.packed:
        return list(parted(load(given[0], spread), how.part))
    return [load(part, spread) for part in given[: len(sources_of(how.kept))]]
