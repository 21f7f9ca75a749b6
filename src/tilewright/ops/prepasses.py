"""Products of several launches: whether a prepass rewrites operands first, and long dot products."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from tilewright import dtypes
from tilewright.arch import Arch
from tilewright.dataflow.nodes import EXACT, TF32
from tilewright.dtypes import f32
from tilewright.lang.fragments import Fragment
from tilewright.lang.launch import block_index
from tilewright.lang.operations import copy, load
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import reduce_sum
from tilewright.namespaces import part
from tilewright.ops.launching import OWN, Call, Launch, LaunchPlan
from tilewright.ops.problem import Problem
from tilewright.ops.products import plain
from tilewright.ops.wanted import HALVES_OF
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.backends import arch_of
from tilewright.runtime.executable import Backend
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.kernel import kernel
from tilewright.schedule.question import Splitting
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import CUDA, TARGETS
from tilewright.threads.distribution import raked

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


# ----------------------------------------------------------------
#
# Dot products of long vectors: two launches that read the vectors as matrices.
#
# A product of one row by one column fills tiles with rows that do not exist.  The first launch multiplies the
# vectors as matrices of `DOT_ROWS` rows, each a part of its vector, with results in f32.  The second one adds
# up the diagonal of the result, and the products of the last elements, which fill no row.  All other elements
# of the result are wasted, but multiplications are cheap: the memory limits both launches.


DOT_ROWS = 64
"""Rows of the matrices: as many as a tile of Hopper's multiply has."""

DOT_UNIT_BYTES = 16
"""Unit of the length of a row, in bytes: bulk copies need it."""

DOT_LANES = 32
"""Threads of a block of the second launch."""

DOT_FROM = 2**19
"""Least length of vectors that are read as matrices: an H200 needs 90 us for 2**22 elements as they are."""

DOT_DTYPES = (dtypes.f16, dtypes.bf16, dtypes.f32)
"""Dtypes whose products are added up in f32."""

DOT_LEFT = DOT_ROWS * DOT_UNIT_BYTES // min(kind.bytes for kind in DOT_DTYPES)
"""Elements of a vector that fill no row, at most."""


@kernel(squares="L R", a="L T", b="L T", out="L U")
def diagonal_sum(squares: Any, a: Any, b: Any, out: Any, *, on_host: bool) -> None:
    """``out[l, 0] = sum_r squares[l, r] + sum_t a[l, t] * b[l, t]``.

    Args:
        squares: the diagonals (L, R).
        a: the last elements of the vectors on the left, (L, T).
        b: those of the vectors on the right, (L, T).
        out: the results (L, 1).
        on_host: whether a block is one thread.
    """
    item = block_index(out.shape[0])

    def row(array: Tensor, length: int) -> Fragment:
        spread = raked((1, length), (1, 1 if on_host else DOT_LANES), 1, 1)
        held: Fragment = load(array.tile((1, length), (item, 0)), spread).to(f32)
        return held

    total = reduce_sum(row(squares, DOT_ROWS), 1) + reduce_sum(row(a, DOT_LEFT) * row(b, DOT_LEFT), 1)
    copy(total.to(out.dtype), out.tile((1, 1), (item, 0)))


def is_long_dot(infos: Mapping[str, ArrayInfo], problem: Problem) -> bool:
    """Whether a product is dot products of long vectors that bulk copies can load.

    Args:
        infos: the arrays of the call.
        problem: the product of these arrays.
    """
    kind, (a, b) = infos["a"].dtype, (problem.operands[name] for name in ("a", "b"))
    if (problem.m, problem.n) != (1, 1) or problem.k < DOT_FROM or len(problem.batch) > 1:
        return False
    if kind not in DOT_DTYPES or infos["b"].dtype != kind or prod(problem.batch) > MOST_ITEMS:
        return False
    unit, steps = DOT_UNIT_BYTES // kind.bytes, (*a.strides[:-2], *b.strides[:-2])
    starts = all(infos[name].pointer % DOT_UNIT_BYTES == 0 for name in ("a", "b"))
    return (a.strides[-1], b.strides[-2]) == (1, 1) and starts and all(step % unit == 0 for step in steps)


def plan_dot(call: Call, problem: Problem, asked: Mapping[str, Any]) -> LaunchPlan:
    """Plan the product of the vectors as matrices, and the sum of its diagonal.

    Args:
        call: the arrays of the call.
        problem: the product of these arrays.
        asked: ``arrays``, those of the kernel by name; ``on_host``.
    """
    seen, rank, items = asked["arrays"], len(problem.batch), prod(problem.batch)
    kind = seen["a"].info.dtype
    unit = DOT_UNIT_BYTES // kind.bytes
    length = problem.k // (DOT_ROWS * unit) * unit
    left, shape = problem.k - DOT_ROWS * length, (*problem.batch, DOT_ROWS, DOT_ROWS)
    matrices, tails, offset = list[Strided](), list[Strided](), DOT_ROWS * length * kind.bytes
    for name in ("a", "b"):
        array, info = seen[name].array, seen[name].info
        lead, steps = info.strides[:rank], (length, 1)
        extents = (DOT_ROWS, length)
        if name == "b":
            extents, steps = extents[::-1], steps[::-1]
        rows = replace(info, shape=(*problem.batch, *extents), strides=(*lead, *steps))
        matrices.append(Strided(array, rows))
        step = lead[0] if rank else 0
        last = replace(info, shape=(items, left), strides=(step, 1), pointer=info.pointer + offset)
        tails.append(Strided(array, last))
    given = seen["out"]
    square = replace(given.info, pointer=0, dtype=f32, shape=shape, readonly=False)
    wasted = replace(square, strides=(*(DOT_ROWS * DOT_ROWS,) * rank, DOT_ROWS, 1))
    diagonal = replace(square, shape=(items, DOT_ROWS), strides=(DOT_ROWS * DOT_ROWS, DOT_ROWS + 1))
    step = given.info.strides[0] if rank else 0
    out = Strided(given.array, replace(given.info, shape=(items, 1), strides=(step, 0)))
    first = Launch(
        plain(rank).bind(precision=EXACT, schedule=None),
        (*matrices, Strided(given.array, wasted)),
        ("a", "b", OWN),
    )
    second = Launch(
        diagonal_sum.bind(on_host=asked["on_host"]),
        (Strided(given.array, diagonal), *tails, out),
        (OWN, "a_left", "b_left", "out"),
    )
    call.inside = {**(call.inside or {}), "a_left": ("a", offset), "b_left": ("b", offset)}
    size = items * DOT_ROWS * DOT_ROWS * f32.bytes
    reason = f"vectors are multiplied as matrices of {DOT_ROWS} rows, of whose product the diagonal counts"
    return call.plan(first, second, scratch_bytes=size, reason=reason)


# ----------------------------------------------------------------
#
# The choice for a product.


def multiplying(
    infos: Mapping[str, ArrayInfo],
    problem: Problem,
    precision: str,
    how: Schedule | Splitting | None,
    backend: Backend,
    *,
    is_plain: bool = True,
) -> Callable[..., Any] | None:
    """Return the planner of a product with several launches; None if one kernel computes it.

    Args:
        infos: the arrays of `matmul`.
        problem: the product of these arrays.
        precision: the caller's precision.
        how: the caller's schedule, or constraints on one.
        backend: the backend of the call.
        is_plain: whether there are no terms after the sums.
    """
    if is_split(infos, problem, precision, how, backend.name):
        made: Callable[..., Any] = part(IN_HALVES)
        return made
    is_dot = (problem.m, problem.n) == (1, 1) and is_plain and how is None
    if is_dot and backend.name == CUDA.name and is_long_dot(infos, problem):
        return plan_dot
    if backend.name != CUDA.name or multiplications(problem) < LEAST_REWRITTEN:
        return None
    if infos["a"].dtype == dtypes.f32 and precision != TF32:
        return None
    machine = arch_of(backend, None), backend.processors()
    planes = part(PLANES)(infos, problem, precision, how, machine)
    return partial(part(FROM_PLANES), planes) if planes else None
