"""Why nothing that the rules propose splits K as it is asked for, and what comes nearest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewright.errors import LaunchError, Violation
from tilewright.schedule.choose import Question, Splitting
from tilewright.schedule.choose_by_target import candidates
from tilewright.schedule.choose_parts import parts_under, tiles_of
from tilewright.schedule.choose_ways import runs_at_once, schedules_of
from tilewright.schedule.classes import coarse
from tilewright.schedule.legality import reasons
from tilewright.schedule.schedule import Schedule

OF_PARTS = ("reduction", "split_k")
"""Fields of which a broken rule speaks of what was asked for, not of the schedule that it was asked of."""

WORKSPACE = 'reduction="workspace"'
"""What every machine has, for any number of parts."""

NO_SPLIT = "split_k=1"
"""What is near where no way to split K will do."""

ANOTHER = "split_k=None, or a schedule of your own"
"""What is near where nothing better is known."""


def refusal(question: Question) -> LaunchError:
    """The error that says why nothing that the rules propose splits K as it is asked for.

    Args:
        question: the problem, with the way in which K is to be split, for which there is no schedule.
    """
    wanted = question.splitting
    assert wanted is not None
    said = f"kernel {question.form.flow.name}: no schedule that is known splits K with {_said(wanted)}"
    tried = [*_tried(question, wanted)]
    waiting = [one for one, broken in tried if not broken and not runs_at_once(question, one)]
    why, nearest = _of_waiting(question, waiting) if waiting else _of_rules(question, tried)
    return LaunchError(f"{said}: {why}; nearest legal choice: {nearest}")


def _tried(question: Question, wanted: Splitting) -> Iterator[tuple[Schedule, list[Violation]]]:
    """The schedules that would split K so, each with the rules that it breaks."""
    form, arch = question.form, question.arch
    specs = {name: coarse(spec, arch) for name, spec in question.specs.items()}
    for plain in candidates(replace(question, splitting=None)):
        if not plain.against and plain.schedule.split_k == 1:
            for one in schedules_of(question, plain.schedule, wanted):
                yield one, reasons(one, form, specs, arch)


def _of_waiting(question: Question, waiting: Sequence[Schedule]) -> tuple[str, str]:
    """Of schedules whose only fault is that a GPU does not run all of their blocks at once."""

    def blocks(one: Schedule) -> int:
        return tiles_of(question, one) * parts_under(question, one)

    least, at_once = min(waiting, key=blocks), question.processors
    tiles, parts = tiles_of(question, least), parts_under(question, least)
    why = (
        f"its blocks wait for each other, so that all of them must run at once; {parts} parts of {tiles} "
        f"tile{'s' if tiles != 1 else ''} are {tiles * parts} blocks at least, and {at_once} run at once, "
        "one on each multiprocessor"
    )
    most = max(at_once // tiles_of(question, one) for one in waiting)
    return why, f"split_k={most}, or {WORKSPACE}" if most > 1 else WORKSPACE


def _of_rules(question: Question, tried: Sequence[tuple[Schedule, list[Violation]]]) -> tuple[str, str]:
    """Of schedules that break rules: one that speaks of parts, and is kept by no split or by a workspace."""
    found = [reason for _, broken in tried for reason in broken]
    if not found:
        plain = candidates(replace(question, splitting=None))
        why = next((why for one in plain for why in one.against), "")
        return why or "its blocks take turns, or share operands in clusters", ANOTHER
    counts = Counter(reason.rule for reason in found)
    ways_out = (NO_SPLIT, WORKSPACE)
    first = min(
        found,
        key=lambda one: (
            one.rule not in OF_PARTS,
            ways_out.index(one.nearest) if one.nearest in ways_out else len(ways_out),
            -counts[one.rule],
        ),
    )
    return first.message, first.nearest or ANOTHER


def _said(wanted: Splitting) -> str:
    named = {"split_k": wanted.split_k, "reduction": wanted.reduction}
    said = [f"{name}={value!r}" for name, value in named.items() if value is not None]
    return ", ".join([*said, f"batch_invariant={wanted.batch_invariant}"])
