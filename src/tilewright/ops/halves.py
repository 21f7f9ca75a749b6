"""Products of f32 on tensor cores of f16: operands are split in halves first, see `splitting`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.ops.grades import HALVES_OF
from tilewright.ops.launching import Placed, Step
from tilewright.ops.launching import launched as behind_each_other
from tilewright.ops.problem import Matrices, Problem
from tilewright.ops.products import in_halves
from tilewright.ops.recalled import OWN, Several
from tilewright.ops.splitting import Tiling, splitting_of_both
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.kernel import Bound
from tilewright.runtime.scratch import ALIGNMENT
from tilewright.runtime.strided import Strided

UNIT = 8
"""Elements that rows of halves are a multiple of, as bulk copies ask."""


@dataclass(frozen=True)
class Part:
    """An array in scratch memory.

    Args:
        dtype: of its elements.
        shape: its extents.
        strides: its strides, in elements; 0 repeats.
    """

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @cached_property
    def bytes(self) -> int:
        """That it takes, in whole units of `ALIGNMENT`."""
        last = sum((extent - 1) * step for extent, step in zip(self.shape, self.strides, strict=True))
        return -(-(last + 1) * self.dtype.bytes // ALIGNMENT) * ALIGNMENT

    def at(self, pointer: int, given: Strided) -> Strided:
        """It as an array that kernels take, on the device of another array."""
        info = replace(given.info, pointer=pointer, shape=self.shape, strides=self.strides, dtype=self.dtype)
        return Strided(given.array, replace(info, readonly=False))


@dataclass(frozen=True)
class Split:
    """An operand with rows along M or N, and its halves.

    Args:
        given: (batches, rows, K).
        halves: the layout of each of its halves.
        units: that of the units of its rows.
    """

    given: Strided
    halves: Part
    units: Part

    @staticmethod
    def of(array: Any, info: ArrayInfo, matrices: Matrices, is_turned: bool) -> Split:
        """The halves of an operand, in the order of memory that the operand has."""
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
        """Of both halves and the units."""
        return 2 * self.halves.bytes + self.units.bytes

    def placed(self, start: int) -> tuple[Strided, Strided, Strided]:
        """Both halves and the units, from an address on."""
        second = start + self.halves.bytes
        high, low = (self.halves.at(at, self.given) for at in (start, second))
        return high, low, self.units.at(second + self.halves.bytes, self.given)

    @property
    def tiling(self) -> Tiling:
        """How blocks split it."""
        rows, depth = self.halves.shape[-2:]
        row_step, depth_step = self.halves.strides[-2:]
        return Tiling.of(rows, depth, along_rows=row_step == 1 and depth_step != 1)


def turned(values: tuple[int, ...], is_turned: bool) -> tuple[int, ...]:
    """Extents or strides of an operand with rows first: those of B are its columns.

    Example:
        >>> turned((2, 3, 4), True)
        (2, 4, 3)
    """
    return (*values[:-2], values[-1], values[-2]) if is_turned else values


def once(given: Strided, rank: int) -> Strided:
    """An array with one index along those batches that repeat it."""
    info = given.info
    pairs = zip(info.shape[:rank], info.strides[:rank], strict=True)
    lead = tuple(extent if step else min(extent, 1) for extent, step in pairs)
    return Strided(given.array, replace(info, shape=(*lead, *info.shape[rank:])))


def splitting(
    operands: tuple[Split, Split],
    placed: tuple[Sequence[Strided], Sequence[Strided]],
    both: bool,
    backend: str,
) -> Step:
    """What splits both operands; what repeats along a batch is split once.

    Args:
        operands: A and B.
        placed: their halves and units.
        both: whether low halves are written.
        backend: the target.
    """
    ranks = [len(one.halves.shape) - 2 for one in operands]
    arrays = [
        once(array, rank)
        for one, places, rank in zip(operands, placed, ranks, strict=True)
        for array in (one.given, *places)
    ]
    a, b = operands
    kernel = splitting_of_both(*ranks).bind(tilings=(a.tiling, b.tiling), both=both)
    return Step.of(kernel, arrays, (), backend)


def multiply(
    seen: Mapping[str, Strided], problem: Problem, asked: Mapping[str, Any], backend: str, stream: Any
) -> Several | None:
    """Split both operands, and multiply their halves; returns what does so again, if anything can.

    Args:
        seen: the arrays of the kernel of a product with something done to the sums, by its names.
        problem: what they pose.
        asked: ``grade``, ``terms``, ``activation``, ``schedule``, ``alpha`` and ``beta``.
        backend: the target.
        stream: the CUDA stream; None: the framework's current one.
    """
    a = Split.of(seen["a"].array, seen["a"].info, problem.operands["a"], is_turned=False)
    b = Split.of(seen["b"].array, seen["b"].info, problem.operands["b"], is_turned=True)
    both = HALVES_OF[asked["grade"]] == 2
    kernel = in_halves(len(problem.batch), dtypes.f32).bind(
        both=both, terms=asked["terms"], activation=asked["activation"], schedule=asked["schedule"]
    )
    rest = [seen[name] for name in ("c", "bias", "residual", "out")]
    return launched((a, b), kernel, rest, (asked["alpha"], asked["beta"]), both, backend, stream)


def launched(
    operands: tuple[Split, Split],
    kernel: Bound,
    rest: Sequence[Strided],
    numbers: tuple[complex, ...],
    both: bool,
    backend: str,
    stream: Any,
) -> Several | None:
    """Split both operands, and launch a kernel of their halves; returns what does so again, if anything can.

    Args:
        operands: A and B.
        kernel: takes both halves of A, those of B, the units of both, and what follows.
        rest: the arrays behind them.
        numbers: those behind the arrays.
        both: whether low halves are multiplied.
        backend: the target.
        stream: the CUDA stream; None: the framework's current one.
    """
    a, b = operands

    def steps(start: int) -> Iterator[Placed]:
        of_a, of_b = a.placed(start), b.placed(start + a.bytes)
        own = (OWN,) * len(of_a)
        yield splitting((a, b), (of_a, of_b), both, backend), (0, *own, 1, *own)
        arrays = (*of_a[:2], *(transposed(one) for one in of_b[:2]), of_a[2], of_b[2], *rest)
        yield Step.of(kernel, arrays, numbers, backend), (*own, *own, *(2 + at for at in range(len(rest))))

    return behind_each_other(steps, a.bytes + b.bytes, (a.given, b.given, *rest), backend, stream)


def transposed(given: Strided) -> Strided:
    """An array with its last two dimensions exchanged."""
    info = given.info
    seen = replace(info, shape=turned(info.shape, True), strides=turned(info.strides, True))
    return Strided(given.array, seen)
