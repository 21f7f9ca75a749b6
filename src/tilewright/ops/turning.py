"""Products of f32 as tf32 by Hopper's multiply, which takes operands along K alone.

Others are written first, along K and rounded to tf32, by the launch that writes planes of complex operands.
What lies along K already is multiplied as it lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from tilewright import dtypes
from tilewright.arch import Arch
from tilewright.dataflow.nodes import TF32
from tilewright.ops.grades import pays
from tilewright.ops.launching import OWN, Call, Launch, LaunchPlan
from tilewright.ops.plane_kernels import REAL
from tilewright.ops.planes import Planes, is_dense, prepass_of
from tilewright.ops.prepasses import gains
from tilewright.ops.problem import Problem
from tilewright.ops.products import combined, plain
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.frameworks import Strided
from tilewright.schedule.question import Splitting
from tilewright.schedule.schedule import Schedule

AS_THEY_LIE = 0.32
"""Of the highest rate, what ``mma.sync`` reaches where an operand does not lie along K: an H200 at 4096³."""

OPERANDS = {"a": -1, "b": -2}
"""Which dimension of each is K."""

PLAIN = (*OPERANDS, "out")
"""The arrays of the kernel of a product and nothing else."""

ARRAYS = (*OPERANDS, "c", "bias", "residual", "out")
"""Those of the kernel that does something with the sums."""


def turned(
    infos: Mapping[str, ArrayInfo],
    problem: Problem,
    how: Schedule | Splitting | None,
    machine: tuple[Arch, int],
) -> tuple[Planes, ...]:
    """The operands that are written along K first; none where that is estimated not to pay.

    With a schedule of the caller's none is, nor where bits must not depend on the number of rows.

    Args:
        infos: the arrays of the call.
        problem: what they pose.
        how: what is known of the schedule.
        machine: its architecture, and how many processors there are.
    """
    if "wgmma" not in machine[0].features or isinstance(how, Schedule) or (how and how.batch_invariant):
        return ()
    if any(info.dtype == dtypes.f64 for info in infos.values()) or infos["a"].dtype != dtypes.f32:
        return ()
    if not pays(problem, batch_invariant=False):
        return ()
    seen = as_matrices(infos, problem)
    if all(seen[name].strides[along] == 1 for name, along in OPERANDS.items()):
        return ()
    planes = written(seen)
    moved = sum(one.moved_bytes for one in planes)
    flops = 2.0 * prod(problem.batch) * problem.m * problem.n * problem.k
    return planes if gains(flops, TF32, moved, AS_THEY_LIE, machine) else ()


def as_matrices(infos: Mapping[str, ArrayInfo], problem: Problem) -> dict[str, ArrayInfo]:
    """The operands as a problem has them."""
    pairs = ((name, problem.operands[name]) for name in OPERANDS)
    return {name: replace(infos[name], shape=one.shape, strides=one.strides) for name, one in pairs}


def written(seen: Mapping[str, ArrayInfo]) -> tuple[Planes, ...]:
    """The operands that bulk copies do not carry along K, as they are written.

    Args:
        seen: what they are, as matrices, by name.
    """
    return tuple(
        Planes.of(name, seen[name], REAL, len(seen[name].shape) + along, rounded=True)
        for name, along in OPERANDS.items()
        if not is_dense(seen[name], along)
    )


def plan_product(
    planes: tuple[Planes, ...],
    call: Call,
    seen: Mapping[str, Strided],
    problem: Problem,
    asked: Mapping[str, Any],
) -> LaunchPlan:
    """The launches that write operands along K, and multiply.

    Args:
        planes: the operands that are written.
        call: the arrays of the call.
        seen: the arrays of the kernel of a product with something done to the sums, by its names.
        problem: what they pose.
        asked: ``terms``, ``activation``, ``schedule``, ``alpha``, ``beta`` and ``on_host``.
    """
    rank, words = len(problem.batch), {"precision": TF32, "schedule": asked["schedule"]}
    names: tuple[str, ...] = PLAIN
    numbers: tuple[complex, ...] = ()
    if asked["terms"]:
        names, numbers = ARRAYS, (asked["alpha"], asked["beta"])
        kernel = combined(rank, dtypes.f32).bind(
            **words, terms=asked["terms"], activation=asked["activation"]
        )
    else:
        kernel = plain(rank).bind(**words)
    before = prepass_of(planes, seen, 0, on_host=asked["on_host"])
    arrays = tuple(before.made.get(name, seen[name]) for name in names)
    given = call.stand_ins(names)
    places = tuple(OWN if name in before.made else one for name, one in zip(names, given, strict=True))
    size, reason = sum(one.size_bytes for one in planes), "tensor cores take tf32 along K alone"
    product = Launch(kernel, arrays, places, numbers)
    return call.plan(before.launch, product, scratch_bytes=size, reason=reason)
