"""Steps and rules that several operations use to plan launches."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.arch import Arch
from tilewright.dataflow.nodes import EXACT, SUMMED, TF32
from tilewright.dtypes import FP8, DType
from tilewright.errors import LaunchError, shown
from tilewright.ops.launching import Call
from tilewright.ops.problem import MatrixBatch, Problem, check_broadcast
from tilewright.ops.wanted import HALVES_OF, Wanted
from tilewright.schedule.question import Splitting
from tilewright.schedule.schedule import Schedule
from tilewright.targets.matrix_cores import nearest
from tilewright.targets.target import TARGETS

UPDATED = ("c", "residual")
"""Arrays that may be the result: a thread reads an element of them before it stores that element."""


def check_real(op: str, wanted: Wanted) -> None:
    """Refuse a complex alpha or beta of real arrays.

    Args:
        op: the operation's name in messages.
        wanted: the arguments of the call besides its arrays.
    """
    for name in ("alpha", "beta"):
        given = getattr(wanted, name)
        if isinstance(given, complex | np.complexfloating):
            text = f"{op}: {name}={shown(given)} is complex and the arrays are real"
            raise LaunchError(text, f"{name}={given.real:g}, or complex arrays")


def widened_on(dtype: DType, features: frozenset[str]) -> tuple[DType, ...]:
    """Return ``(f16,)`` if matrix cores can multiply an fp8 dtype only as f16, else ``()``.

    Args:
        dtype: dtype of the operands.
        features: features of the architecture; matrix cores are AMD's.

    Example:
        >>> widened_on(dtypes.f8e4m3, frozenset({"gfx11"})), widened_on(dtypes.f8e4m3, frozenset({"gfx12"}))
        ((f16,), ())
    """
    lacks = dtype in FP8 and nearest(dtype, dtypes.f32, features) is None
    return (dtypes.f16,) if lacks and nearest(dtypes.f16, dtypes.f32, features) else ()


def of_sums(precision: str, dtype: DType) -> str:
    """Precision of the sums in a kernel that multiplies a dtype without conversion."""
    if dtype == dtypes.f32:
        return precision if precision == TF32 else EXACT
    return SUMMED if precision == SUMMED and dtype.is_float and dtype.bits < 32 else EXACT


def as_parameter(name: str, matrices: MatrixBatch) -> MatrixBatch:
    """Return an array as a kernel takes it: scales and biases have fewer dimensions than the matrices.

    Args:
        name: the parameter of the kernel.
        matrices: the array in the problem.
    """
    if name == "scale_a":
        return matrices.without(-1)
    if name.startswith("scale_"):
        return matrices.without(-2)
    return matrices.without(*range(len(matrices.shape) - 1)) if name.startswith("bias") else matrices


def scale_of_c(call: Call, beta: Any) -> Any:
    """The factor of ``c``; without ``c`` it multiplies ``out``, which is added to the arrays as ``c``."""
    if beta is None:
        return 1.0
    if beta != 0 and "c" not in call.arrays:
        if "out" not in call.arrays:
            raise LaunchError(f"{call.op}: beta={beta} needs c or out, and neither is given", "c=")
        call.arrays["c"], call.infos["c"] = call.arrays["out"], call.infos["out"]
    return beta


def drop_unread_c(call: Call, beta: Any, shape: tuple[int, ...]) -> None:
    """Check the shape of ``c``, and remove it from the call if ``beta`` is 0.

    Args:
        call: the arrays of the call.
        beta: the factor of ``c``.
        shape: the shape of the result.

    Raises:
        LaunchError: ``c`` is not broadcast to the result.
    """
    if "c" in call.infos and beta == 0:
        check_broadcast("c", call.infos.pop("c").shape, shape)
        del call.arrays["c"]


# ---------------------------------------------------------------- prepasses that rewrite operands in memory


LAUNCH_US = 4.0
"""Overhead of one more kernel launch, in µs."""

DENSE_SHARE = 0.7
"""Fraction of the peak rate that products of dense operands reach.

Measured on an H200: f16 and tf32 reach 0.44 to 0.52 at 1024, where the launch counts, and 0.67 to 0.78 at
2048 to 8192; multiply-adds of f32 reach 0.66 to 0.69.
"""


def prepass_pays(
    flops: float, kind: str, moved_bytes: float, share: float, machine: tuple[Arch, int]
) -> bool:
    """Estimate whether a prepass that makes operands dense saves more time than it takes.

    Args:
        flops: additions and multiplications of the product.
        kind: name of the multiplied dtype.
        moved_bytes: bytes that the prepass reads and writes.
        share: fraction of the peak rate that the product reaches without the prepass.
        machine: architecture and number of processors.
    """
    arch, processors = machine
    if arch.rates is None:
        return False
    board = arch.rates.boards[0]
    units = arch.rates.tensor_flops if kind in arch.rates.tensor_flops else arch.rates.fma_flops
    work = flops / (units[kind] * (processors or board.multiprocessors) * board.clock_mhz)
    return work / DENSE_SHARE + copied_us(moved_bytes, arch) + LAUNCH_US < work / share


def copied_us(moved_bytes: float, arch: Arch) -> float:
    """Time to read and write a number of bytes, in µs; 0 if the rate is not known."""
    if arch.rates is None:
        return 0.0
    board = arch.rates.boards[0]
    return moved_bytes / (board.copied_gbytes_per_s or board.memory_gbytes_per_s) / 1e3


# ----------------------------------------------------------------
#
# Products of f32 on tensor cores, and the sizes from which their prepasses pay.


MOST_RANK = 2
"""Most batch dimensions of an operand that is split."""

FASTER_FROM = 2.0**28
"""Least number of multiplications for which splitting the operands is faster than multiply-adds of f32."""


MOST_ITEMS = 65535
"""Most batches along one dimension: the limit of a grid axis."""


def is_split(
    kinds: Mapping[str, DType],
    precision: str,
    how: Schedule | Splitting | None,
    target: str,
    size: float,
    *,
    fits: bool = True,
    from_size: float = FASTER_FROM,
) -> bool:
    """Whether to split operands of f32 in halves, which tensor cores multiply.

    Args:
        kinds: dtypes of the arrays, by name.
        precision: the caller's precision.
        how: the caller's schedule, or constraints on one.
        target: name of the target.
        size: number of multiplications.
        fits: whether the prepass can split the operands, unless the caller's schedule asks for it.
        from_size: least number of multiplications for which splitting is faster.
    """
    if precision not in HALVES_OF or kinds["a"] != dtypes.f32:
        return False
    if isinstance(how, Schedule):
        return how.atom.a_dtype == dtypes.f16
    is_wide = dtypes.f64 in kinds.values()
    has_units = TARGETS[target].warps and TARGETS[target].machine_code
    is_large = size >= from_size or (how is not None and how.batch_invariant)
    return bool(has_units) and not is_wide and fits and is_large


def pays(problem: Problem, *, batch_invariant: bool) -> bool:
    """Whether a product on tensor cores with a prepass is faster than multiply-adds of f32.

    Args:
        problem: the product.
        batch_invariant: whether the answer must not depend on the number of rows.
    """
    return is_flat(problem) and (batch_invariant or multiplications(problem) >= FASTER_FROM)


def is_flat(problem: Problem) -> bool:
    """Whether each dimension of the batches of both operands can be an axis of the grid."""
    operands = (problem.operands["a"], problem.operands["b"])
    ranks = (len(one.shape) - 2 for one in operands)
    return max(ranks) <= MOST_RANK and max(problem.batch, default=0) <= MOST_ITEMS


def multiplications(problem: Problem) -> int:
    """Number of multiplications of a product."""
    return prod(problem.batch) * problem.m * problem.n * problem.k
