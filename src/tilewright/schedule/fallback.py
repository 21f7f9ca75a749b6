"""The fallback engine: another way to load if bulk copies cannot carry an array, with a note for each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tilewright.arch import Arch
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.form import Form
from tilewright.schedule.legality import reasons
from tilewright.schedule.placement_rules import against_groups
from tilewright.schedule.question import Question
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.schedule.schedule import Schedule


def with_fallback(
    schedule: Schedule, form: Form, specs: Mapping[str, TensorSpec], arch: Arch
) -> tuple[Schedule, tuple[str, ...]]:
    """Replace bulk copies by the fallback engine if they cannot carry an operand.

    The instruction and the tile stay.  The groups of warps that multiplied become one group that also copies:
    by ``cp.async`` if rows begin at multiples of 4 bytes, else through registers.  The ring keeps the stages
    for which shared memory has room in addition to the epilogue's buffers.

    Args:
        schedule: the schedule.
        form: the form.
        specs: the classes of the arrays, by name.
        arch: the machine.

    Returns:
        The schedule, and a note for each array that bulk copies do not move.  The schedule is unchanged, and
        will be refused, if no other engine is legal or the machine has no bulk copies.
    """
    case = ScheduleOnMachine(schedule, form, specs, arch)
    if not case.is_bulk or arch.bulk is None:
        return schedule, ()
    obstacles = {side.factor.name: next(case.against_load(side), None) for side in case.sides}
    kept = [reason for reason, _ in filter(None, obstacles.values())]
    kept += filter(None, (against_groups(case, side) for side in case.sides))
    if not kept:  # results that threads store have notes alone
        why: dict[str, str] = {}
        for store, reason in case.epilogue.against_bulk(case):
            why.setdefault(store.operand.name, reason)
        by = "is stored by threads, row by row, instead of TMA"
        return schedule, tuple(f"{name} {by}: {reason}" for name, reason in why.items())
    warps = (schedule.warps[0] * schedule.cooperating, schedule.warps[1])
    alone = replace(schedule, roles="none", groups=1, warps=warps, cluster=(1, 1))
    widest, least = min(width(side.spec) for side in case.sides), min(arch.async_bytes, default=math.inf)
    epilogues = dict.fromkeys((schedule.epilogue_without_helpers, "direct"))
    tried = [
        replace(alone, staging="cp_async", stages=stages, epilogue=epilogue)
        for stages in range(schedule.stages, 1, -1)
        for epilogue in epilogues
        if widest >= least
    ]
    plain = replace(alone, stages=1, epilogue="direct")
    tried += [replace(plain, staging=staging) for staging in ("registers", "direct")]
    found = next((one for one in tried if not reasons(one, form, specs, arch)), None)
    if found is None:
        return schedule, ()
    by = "through registers" if found.staging_class.through_registers else f"by {found.staging}"
    way = f"{' and '.join(side.factor.name for side in case.sides)} are loaded {by} instead of TMA"
    return found, tuple(f"{way}: {reason}" for reason in kept)


def width(spec: TensorSpec) -> int:
    """Bytes of the widest access to which the beginning of every row of an array is aligned."""
    size = spec.dtype.bytes
    if spec.unit_dim is None:
        return size
    steps = [divisor for dim, divisor in enumerate(spec.stride_divisors) if dim != spec.unit_dim]
    return math.gcd(spec.align, *(divisor // spec.dtype.per_byte * size for divisor in steps))


def is_carried(question: Question, schedule: Schedule) -> bool:
    """Whether a schedule is legal for a problem, and needs no fallback engine."""
    asked = question.form, question.classes, question.arch
    return with_fallback(schedule, *asked)[0] == schedule and not reasons(schedule, *asked)
