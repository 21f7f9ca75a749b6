"""Decides whether a prepass rewrites the operands of a product in memory first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

from tilewright import dtypes
from tilewright.arch import Arch
from tilewright.dataflow.nodes import TF32
from tilewright.namespaces import part
from tilewright.ops.problem import Problem
from tilewright.ops.wanted import HALVES_OF
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.backends import arch_of
from tilewright.runtime.executable import Backend
from tilewright.schedule.question import Splitting
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import CUDA, TARGETS

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
    copied = moved_bytes / (board.copied_gbytes_per_s or board.memory_gbytes_per_s) / 1e3
    return work / DENSE_SHARE + copied + LAUNCH_US < work / share


# ----------------------------------------------------------------
#
# Products of f32 on tensor cores, and the sizes from which their prepasses pay.


MOST_RANK = 2
"""Most batch dimensions of an operand that is split."""

FASTER_FROM = 2.0**28
"""Least number of multiplications for which splitting the operands is faster than multiply-adds of f32."""


MOST_ITEMS = 65535
"""Most batches along one dimension: the limit of a grid axis."""

IN_HALVES = "tilewright.ops.halves:plan_product"
"""Plans a product of operands split in halves. Imported when the first is planned."""

PLANES, FROM_PLANES = "tilewright.ops.planes:planes_of", "tilewright.ops.planes:plan_product"
"""Choose the operands to rewrite in scratch memory, and plan their product. Imported at the first use."""

LEAST_REWRITTEN = 2.0**26
"""Least number of multiplications for which anything is rewritten; fewer take less time than a launch."""


def is_split(
    infos: Mapping[str, ArrayInfo],
    problem: Problem,
    precision: str,
    how: Schedule | Splitting | None,
    target: str,
    from_size: float = FASTER_FROM,
) -> bool:
    """Whether to split operands of f32 in halves, which tensor cores multiply.

    Args:
        infos: the arrays.
        problem: the product of these arrays.
        precision: the caller's precision.
        how: the caller's schedule, or constraints on one.
        target: name of the target.
        from_size: least number of multiplications for which splitting is faster.
    """
    if precision not in HALVES_OF or infos["a"].dtype != dtypes.f32:
        return False
    if isinstance(how, Schedule):
        return how.atom.a_dtype == dtypes.f16
    is_wide = any(info.dtype == dtypes.f64 for info in infos.values())
    has_units = TARGETS[target].warps and TARGETS[target].machine_code
    invariant = how is not None and how.batch_invariant
    return bool(has_units) and not is_wide and pays(problem, from_size, batch_invariant=invariant)


def pays(problem: Problem, from_size: float = FASTER_FROM, *, batch_invariant: bool) -> bool:
    """Whether a product on tensor cores with a prepass is faster than multiply-adds of f32.

    Args:
        problem: the product.
        from_size: least number of multiplications for which it is.
        batch_invariant: whether the answer must not depend on the number of rows.
    """
    return is_flat(problem) and (batch_invariant or multiplications(problem) >= from_size)


def is_flat(problem: Problem) -> bool:
    """Whether the batches of both operands have few dimensions, each of which an axis of a grid can have."""
    operands = (problem.operands["a"], problem.operands["b"])
    ranks = (len(one.shape) - 2 for one in operands)
    return max(ranks) <= MOST_RANK and max(problem.batch, default=0) <= MOST_ITEMS


def multiplications(problem: Problem) -> int:
    """Number of multiplications of a product."""
    return prod(problem.batch) * problem.m * problem.n * problem.k


def multiplying(
    infos: Mapping[str, ArrayInfo],
    problem: Problem,
    precision: str,
    how: Schedule | Splitting | None,
    backend: Backend,
) -> Callable[..., Any] | None:
    """Return the planner of a product with a prepass; None if one kernel reads the operands as they lie.

    Args:
        infos: the arrays of `matmul`.
        problem: the product of these arrays.
        precision: the caller's precision.
        how: the caller's schedule, or constraints on one.
        backend: the backend of the call.
    """
    if is_split(infos, problem, precision, how, backend.name):
        made: Callable[..., Any] = part(IN_HALVES)
        return made
    if backend.name != CUDA.name or multiplications(problem) < LEAST_REWRITTEN:
        return None
    if infos["a"].dtype == dtypes.f32 and precision != TF32:
        return None
    machine = arch_of(backend, None), backend.processors()
    planes = part(PLANES)(infos, problem, precision, how, machine)
    return partial(part(FROM_PLANES), planes) if planes else None
