"""Contractions of f32 on tensor cores of f16: operands are split in halves first, see `splitting`."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from tilewright.dtypes import f16, f32, f64
from tilewright.errors import LaunchError
from tilewright.ops.contraction import Contraction, Posed
from tilewright.ops.contractions import IN_KERNEL, Ending, contraction_in_halves
from tilewright.ops.grades import FASTER_FROM, HALVES_OF, MOST_ITEMS, MOST_RANK
from tilewright.ops.halves import Split, plan_of_halves
from tilewright.ops.launching import LaunchPlan
from tilewright.ops.planning import Wanted
from tilewright.ops.problem import Matrices
from tilewright.runtime.frameworks import Strided
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import TARGETS


def against_halves(made: Contraction) -> str:
    """Why operands are not split in halves, whose rows are those of matrices; empty if they are."""
    for name in "ab":
        seen = made.of(name)
        if any(inner for _, inner in seen.groups):
            return f"{name} is seen through a view"
        if len(seen.batch) > MOST_RANK:
            return f"{name} has {len(seen.batch)} dimensions of batches"
    return ""


def is_split(problem: Posed, wanted: Wanted, target: str) -> bool:
    """Whether operands of f32 are split in halves, which tensor cores multiply.

    Args:
        problem: the contraction.
        wanted: what is asked for.
        target: where it runs.

    Raises:
        LaunchError: a schedule asks for it, and an operand is none that is split.
    """
    infos = problem.infos
    if wanted.precision not in HALVES_OF or infos["a"].dtype != f32:
        return False
    against = against_halves(problem.contraction)
    if isinstance(wanted.how, Schedule):
        if wanted.how.atom.a_dtype == f16 and against:
            raise LaunchError(
                f"einsum: precision={wanted.precision!r} by {wanted.how.atom.name}, where {against}: it is "
                'not split in halves; nearest legal choice: precision="exact" or "tf32"'
            )
        return wanted.how.atom.a_dtype == f16
    has_units = TARGETS[target].warps and TARGETS[target].machine_code
    out, depth = infos["out"].shape, infos["a"].shape[-1]
    is_wide = any(info.dtype == f64 for info in infos.values())
    large = (
        prod(out) * depth >= FASTER_FROM and max(out[: problem.contraction.batch], default=0) <= MOST_ITEMS
    )
    return bool(has_units) and large and not against and not is_wide


def plan_product(
    problem: Posed,
    seen: Mapping[str, Strided],
    wanted: Wanted,
    ending: Ending,
    numbers: tuple[Any, ...],
) -> LaunchPlan:
    """The launches that split both operands, and contract their halves.

    Args:
        problem: the contraction.
        seen: its arrays.
        wanted: what is asked for.
        ending: what is done with the sums.
        numbers: of the kernel.
    """
    a, b = (
        Split.of(
            seen[name].array,
            seen[name].info,
            Matrices(seen[name].info.shape, seen[name].info.strides),
            is_turned=name == "b",
        )
        for name in "ab"
    )
    both = HALVES_OF[wanted.precision] == 2
    kernel = contraction_in_halves(problem.contraction).bind(both=both, ending=ending, schedule=wanted.how)
    rest = [seen.get(name, seen["out"]) for name in IN_KERNEL[2:]]
    return plan_of_halves((a, b), kernel, rest, numbers, both)
