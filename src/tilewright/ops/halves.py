"""Products of f32 on tensor cores of f16: operands are split in halves first, see `splitting`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.ops.launching import OWN, Call, Launch, LaunchPlan
from tilewright.ops.problem import Matrices
from tilewright.ops.splitting import Tiling, splitting_of_both
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.gpu_memory import ALIGNMENT
from tilewright.runtime.kernel import Bound

UNIT = 8
"""Rows of halves have a multiple of this number of elements, because bulk copies require it."""


@dataclass(frozen=True)
class Part:
    """An array in scratch memory.

    Args:
        dtype: dtype of its elements.
        shape: its extents.
        strides: its strides, in elements; 0 repeats.
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
    def of(array: Any, info: ArrayInfo, matrices: Matrices, is_turned: bool) -> Split:
        """Return an operand with layouts for its halves; the same dimension is contiguous in both."""
        *batch, rows, depth = turned(matrices.shape, is_turned)
        *lead, row_step, depth_step = turned(matrices.strides, is_turned)
        own = [extent if step else 1 for extent, step in zip(batch, lead, strict=True)]  # one of what repeats
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
        """How blocks split the operand."""
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
    operands: Mapping[str, tuple[Strided, Matrices]],
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
