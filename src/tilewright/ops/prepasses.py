"""Prepasses of products: whether operands are written anew in memory first, by the size of a product."""

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
"""What one more kernel takes before it does anything."""

DENSE_SHARE = 0.7
"""Of the highest rate, what is reached on dense operands: measured on an H200, in f16 and tf32, 0.44 to 0.52
at 1024, where a launch counts, 0.67 to 0.78 at 2048 to 8192; by multiply-adds of f32 0.66 to 0.69."""


def prepass_pays(
    flops: float, kind: str, moved_bytes: float, share: float, machine: tuple[Arch, int]
) -> bool:
    """Whether a product is estimated to be faster with operands that are dense, and written so before.

    Args:
        flops: additions and multiplications of the product.
        kind: what is multiplied.
        moved_bytes: bytes that the prepass reads and writes.
        share: of the highest rate, what is reached on the operands as they are.
        machine: its architecture, and how many processors there are.
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
# How exactly f32 is multiplied on tensor cores, and from what size on operands are written anew for it.


MOST_RANK = 2
"""Dimensions of batches of an operand that is split."""

FASTER_FROM = 2.0**28
"""Multiplications from which splitting the operands is faster than multiply-adds of f32."""


MOST_ITEMS = 65535
"""Along a dimension of batches, of which an axis of a grid has no more."""

IN_HALVES = "tilewright.ops.halves:plan_product"
"""Plans a product of operands that are split; loaded when it is asked for."""

TF32_PLANES, ALONG_K = "tilewright.ops.planes:tf32_planes", "tilewright.ops.planes:plan_product"
"""Choose the operands that are written along K for tf32, and plan their product; likewise."""


def is_split(
    infos: Mapping[str, ArrayInfo],
    problem: Problem,
    precision: str,
    how: Schedule | Splitting | None,
    target: str,
    from_size: float = FASTER_FROM,
) -> bool:
    """Whether operands of f32 are split in halves, which tensor cores multiply.

    Args:
        infos: the arrays.
        problem: what they pose.
        precision: what is asked for.
        how: what is known of the schedule.
        target: where it runs.
        from_size: multiplications from which that is faster.
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
    """Whether tensor cores are faster with operands that are split first.

    Args:
        problem: what is multiplied.
        from_size: multiplications from which they are.
        batch_invariant: whether the answer must not depend on how many rows there are.
    """
    operands = (problem.operands["a"], problem.operands["b"])
    is_flat = all(len(one.shape) - 2 <= MOST_RANK for one in operands)
    if not is_flat or max(problem.batch, default=0) > MOST_ITEMS:
        return False
    return batch_invariant or prod(problem.batch) * problem.m * problem.n * problem.k >= from_size


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
        problem: what they pose.
        precision: what is asked for.
        how: what is known of the schedule.
        backend: what serves the call.
    """
    if is_split(infos, problem, precision, how, backend.name):
        made: Callable[..., Any] = part(IN_HALVES)
        return made
    if precision != TF32 or backend.name != CUDA.name:
        return None
    planes = part(TF32_PLANES)(infos, problem, how, (arch_of(backend, None), backend.processors()))
    return partial(part(ALONG_K), planes) if planes else None
