"""All schedules that the rules propose for a problem, each settled and judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.schedule.choose import Candidate, Question, proposals
from tilewright.schedule.classes import coarse
from tilewright.schedule.legality import reasons
from tilewright.schedule.settle import settle


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
