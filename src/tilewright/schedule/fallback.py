"""The fallback engine: another way to load if bulk copies cannot carry an array, with a note for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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
    """The schedule with the fallback engine for bulk copies, if these cannot carry an operand.

    The instruction stays, and so do the depth and width of its tile.  The groups of warps that multiplied
    become one group that also copies: by ``cp.async`` if rows begin at multiples of 4 bytes at least, else
    through registers.  The ring keeps the stages that shared memory holds besides the epilogue's buffers.

    Args:
        schedule: the schedule.
        form: what is computed.
        specs: the classes of the arrays, by name.
        arch: the machine.

    Returns:
        The schedule, and a note for each array that bulk copies do not move.  If no other engine is legal, or
        the machine has no bulk copies at all, the schedule as it is, to be refused.
    """
    case = ScheduleOnMachine(schedule, form, specs, arch)
    if not case.is_bulk or arch.bulk is None:
        return schedule, ()
    obstacles = {side.factor.name: next(case.against_load(side), None) for side in case.sides}
    kept = [reason for reason, _ in filter(None, obstacles.values())]
    kept += filter(None, (against_groups(case, side) for side in case.sides))
    if not kept:
        return schedule, tuple(_stored_otherwise(case))
    found = next((one for one in _others(case) if not reasons(one, form, specs, arch)), None)
    if found is None:
        return schedule, ()
    by = "through registers" if found.staging == "registers" else f"by {found.staging}"
    way = f"{' and '.join(side.factor.name for side in case.sides)} come {by}, not by tma"
    return found, tuple(f"{way}: {reason}" for reason in kept)


def _stored_otherwise(case: ScheduleOnMachine) -> Iterator[str]:
    """The reason for each result that threads store instead of bulk copies."""
    if case.schedule.epilogue == "direct":
        return
    for store in case.leaving.blocks:
        reason = next(case.leaving.against_bulk(store), None)
        if reason is not None:
            yield f"{store.operand.name} is stored by threads in whole rows, not by tma: {reason}"


def _others(case: ScheduleOnMachine) -> Iterator[Schedule]:
    """Schedules without bulk copies, the best first."""
    schedule = case.schedule
    side_by_side = (schedule.warps[0] * case.schedule.cooperating, schedule.warps[1])
    alone = replace(schedule, roles="none", groups=1, warps=side_by_side, cluster=(1, 1))
    widest = min(width(side.spec) for side in case.sides)
    least = min(case.arch.async_bytes, default=math.inf)
    for stages in range(schedule.stages, 1, -1) if widest >= least else ():
        for epilogue in dict.fromkeys(("direct" if schedule.epilogue == "direct" else "staged", "direct")):
            yield replace(alone, staging="cp_async", stages=stages, epilogue=epilogue)
    for staging in ("registers", "direct"):
        yield replace(alone, staging=staging, stages=1, epilogue="direct")


def width(spec: TensorSpec) -> int:
    """Bytes of the widest access that every row of an array begins at a multiple of.

    Args:
        spec: the array's class.
    """
    size = spec.dtype.bytes
    if spec.unit_dim is None:
        return size
    steps = [divisor for dim, divisor in enumerate(spec.stride_divisors) if dim != spec.unit_dim]
    return math.gcd(spec.align, *(divisor // spec.dtype.per_byte * size for divisor in steps))


def is_carried(question: Question, schedule: Schedule) -> bool:
    """Whether a schedule is legal for a problem, and needs no fallback engine."""
    asked = question.form, question.classes, question.arch
    return with_fallback(schedule, *asked)[0] == schedule and not reasons(schedule, *asked)
