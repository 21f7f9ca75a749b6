"""Schedules for the reference, which executes operations one after another: few operations are best."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.dataflow.nodes import SUMMED
from tilewright.dtypes import FP8
from tilewright.errors import DTypeError
from tilewright.ir.mma import MmaAtom
from tilewright.schedule.question import Candidate, Question, widened
from tilewright.schedule.schedule import Schedule
from tilewright.targets.atoms import MMA_F64, MMA_F64_M16K4, TENSOR_CORE, fma

SUPPORTED = ("f64", "f32", "f16", "bf16", *(made.name for made in FP8), "i8")
"""Element types that are multiplied without a conversion."""

INTEGERS = ("u32", "u64")
"""Wider integers, in which `matmul` multiplies all other integers; no matrix unit supports them."""

LARGE = 96
"""Rows or columns of a result up to which tiles have 32 of them, not 64."""


def tensor_core(question: Question) -> MmaAtom | None:
    """The atom of ``mma.sync`` for the operands of a product, if it has the requested precision.

    Raises:
        DTypeError: no product of this dtype is supported.
    """
    dtype = question.dtype
    if dtype.name not in (*SUPPORTED, *INTEGERS):
        raise DTypeError(f"no product of {dtype} yet; nearest: {', '.join(SUPPORTED)}")
    if dtype.name == "f64":
        # Hopper multiplies tiles of 8 x 8 at half of its rate.
        return MMA_F64_M16K4 if MMA_F64_M16K4.feature in question.arch.features else MMA_F64
    if dtype.name == "f32" and question.form.precision != "tf32":
        return None
    return TENSOR_CORE.get(dtype.name)


def candidates(question: Question) -> Iterator[Candidate]:
    """One small tile, or a larger one for large results: the fewer operations, the less time."""
    known = question.dtype.name in (*SUPPORTED, *INTEGERS)
    atom = (tensor_core(question) if known else None) or fma(question.dtype)
    m, n, k = atom.shape
    warps = (2, 2) if m > 1 else (1, 1)
    rows, columns = (32 if extent <= LARGE else 64 for extent in question.shape[:2])
    small = Schedule(atom, (max(rows, m * warps[0]), max(columns, n * warps[1]), max(32, k)), warps)
    if question.decodes:
        small = replace(small, tile=(*small.tile[:2], max(32, 2 * k)), stages=3, staging="fragments")
    summed = question.form.precision == SUMMED and atom.sum_bits is not None
    yield Candidate(widened(replace(small, promote=int(summed)), question), 1.0, "a small tile")
