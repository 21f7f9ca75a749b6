"""The schedules that each target's rules propose, fitted to grouped rows, to scales, and to reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import gcd

from tilewright.schedule.choose import Candidate, Question
from tilewright.schedule.classes import coarse
from tilewright.schedule.legality import reasons
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.settle import settle
from tilewright.targets.target import CPU, CUDA, HIP, REFERENCE, TargetParts, owner

Chooser = Callable[[Question], Iterator[Candidate]]
"""Proposes schedules for a dataflow kernel on one target; the first is the choice."""


def _reference() -> Chooser:
    from tilewright.schedule.choose_reference import candidates

    return candidates


def _cpu() -> Chooser:
    from tilewright.schedule.choose_cpu import candidates

    return candidates


def _cuda() -> Chooser:
    from tilewright.schedule.choose_cuda import candidates

    return candidates


def _hip() -> Chooser:
    from tilewright.schedule.choose_hip import candidates

    return candidates


CHOOSERS: TargetParts[Chooser] = TargetParts(
    {REFERENCE.name: _reference, CPU.name: _cpu, CUDA.name: _cuda, HIP.name: _hip}
)
"""The chooser of each target."""

MOST_STAGES = 16
"""Of a ring whose tiles are less deep than what was proposed."""


def proposals(question: Question) -> Iterator[Candidate]:
    """What the rules of the question's target propose, one after the other; the first is the choice.

    They are made when they are asked for, and nobody has asked yet whether they are legal.
    """
    found = CHOOSERS[owner(question.arch.name).name](question)
    if question.across:
        found = _across(found)
    if question.form.scaled_every:
        found = _of_scales(question, found)
    return found if question.form.flow.grouped is None else _of_groups(question, found)


def _across(found: Iterator[Candidate]) -> Iterator[Candidate]:
    """What is proposed where tiles reduce a part each."""
    seen: set[Schedule] = set()
    for one in found:
        made = replace(one.schedule, across=True, cluster=(1, 1))
        if made not in seen:
            seen.add(made)
            yield replace(one, schedule=made)


def _of_groups(question: Question, found: Iterator[Candidate]) -> Iterator[Candidate]:
    """What is proposed for rows in groups, whose sizes only the running kernel knows."""
    seen: set[Schedule] = set()
    begins_anywhere = question.majors[0] == "mn"
    for one in found:
        made = replace(one.schedule, balanced=False, cluster=(1, 1), batches=1)
        if begins_anywhere and made.staging in ("cp_async", "fragments"):
            made = replace(made, staging="registers", stages=1)
        if made.roles != "ping-pong" and made not in seen:
            seen.add(made)
            yield replace(one, schedule=made)


SCALED_BAND = 16
"""Rows of tiles that follow each other where sums have scales: on an H200 1 to 5 per cent faster than 8."""


def _of_scales(question: Question, found: Iterator[Candidate]) -> Iterator[Candidate]:
    """What is proposed for sums that are multiplied by scales: as deep as these allow, with as many bytes."""
    every, seen = question.form.scaled_every, set[Schedule]()
    for one in found:
        made = one.schedule
        depth = gcd(made.block_k, every)
        if depth < made.block_k:
            stages = made.stages if made.stages == 1 else made.stages * made.block_k // depth
            made = replace(made, tile=(*made.tile[:2], depth), stages=min(stages, MOST_STAGES))
        if not made.promote or every // depth % made.promote:
            made = replace(made, promote=every // depth)
        if made.group_m:
            made = replace(made, group_m=SCALED_BAND)
        asked = question.form, question.specs, question.arch
        # Scales that come with their operand may leave room for one stage less.
        fewer = replace(made, stages=max(made.stages - 1, 1)) if made.staging == "tma" else made
        legal = (tried for tried in (made, fewer) if not reasons(settle(tried, *asked)[0], *asked))
        if (fitting := next(legal, None)) is not None and fitting not in seen:
            seen.add(fitting)
            yield replace(one, schedule=fitting)


def choose(question: Question) -> Schedule:
    """A good schedule for a problem on a machine."""
    return next(proposals(question)).schedule


def candidates(question: Question) -> tuple[Candidate, ...]:
    """What a problem may be computed by, the choice first; what is refused says why.

    Args:
        question: the problem, on a machine.

    Returns:
        The proposals of the rules in their order, each once, as it would run: with another engine where bulk
        copies cannot carry an array.  ``against`` of one that is not legal has every reason.
    """
    found: dict[object, Candidate] = {}
    for proposed in _settled(question):
        found.setdefault(proposed.schedule, proposed)
    return tuple(found.values())


def _settled(question: Question) -> Iterator[Candidate]:
    form, arch = question.form, question.arch
    specs = {name: coarse(spec, arch) for name, spec in question.specs.items()}
    for proposed in proposals(question):
        schedule, _ = settle(proposed.schedule, form, specs, arch)
        rule = proposed.rule
        if schedule != proposed.schedule:
            rule += f", with staging {schedule.staging}, as bulk copies cannot carry an array"
        broken = [f"{reason.message}; {reason.nearest}" for reason in reasons(schedule, form, specs, arch)]
        yield replace(proposed, schedule=schedule, rule=rule, against=(*proposed.against, *broken))
