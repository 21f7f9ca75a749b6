"""The order of schedules with bulk copies where blocks are few, or wait for memory: few rows, deep K.

There a form's rate of multiplication says little.  Forms for few rows stand beside the others then, and each
that leaves multiprocessors idle also with its K in parts, all by the estimates of `choose_time`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from tilewright.schedule.choose import Candidate, Question
from tilewright.schedule.choose_few_rows import candidates as few_rows
from tilewright.schedule.choose_few_rows import has_few_rows
from tilewright.schedule.choose_parts import parts_under, rule_of, sharing, split_schedule, tiles_of
from tilewright.schedule.choose_time import bulk_us
from tilewright.schedule.choose_ways import CLUSTERS
from tilewright.schedule.classes import coarse
from tilewright.schedule.legality import reasons
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.settle import settle

PAYS = 0.8
"""What parts of K must be estimated to save of forms whose own model says more than that of waiting."""

WAYS: tuple[tuple[int | str, str], ...] = (
    ("auto", "workspace"),
    ("auto", "reduce-scatter"),
    *((parts, "cluster") for parts in CLUSTERS),
)
"""In which K is split where nobody asks for it; streams were never the fastest."""

DOUBT = 1.02
"""Less than that is not believed to be saved by parts of K."""

SHORTEST_BYTES = 8192
"""Along K, of what is split where nobody asks for it; with less, parts cost more than they saved."""


def without_waiting(question: Question, whole: Sequence[Candidate], promoted: int) -> Iterator[Candidate]:
    """Forms in the order in which they are tried: the given order, or that of the waiting for memory.

    Args:
        question: the problem, whose operands ``wgmma`` takes.
        whole: forms for any number of rows, the fastest by their own estimates first.
        promoted: elements along K after which sums are added to others; 0: never.
    """
    rated = [replace(one, estimate=bulk_us(question, one.schedule)) for one in whole]
    if has_few_rows(question):
        yield from _parted(question, rated, [*few_rows(question, promoted)], inf)
        return
    least = min((one.estimate for one in rated), default=0.0)
    yield from (one for one in _parted(question, rated, [], PAYS * least) if one.schedule.split_k != 1)
    yield from whole


def _parted(
    question: Question, whole: Sequence[Candidate], few: Sequence[Candidate], most: float
) -> Iterator[Candidate]:
    """The schedules, and those with K in parts that are estimated to take less than `most`, all in order.

    Whether the latter, and forms for few rows, are legal is asked when it is their turn.
    """
    parted = (made for one in (*whole, *few) for made in _parts(question, one) if made.estimate < most)
    found = [*whole, *few, *parted]
    for one in sorted(found, key=lambda one: one.estimate * (1 if one.schedule.split_k == 1 else DOUBT)):
        if one in whole or is_carried(question, one.schedule):
            yield one


def _parts(question: Question, whole: Candidate) -> Iterator[Candidate]:
    """A schedule with K in parts, if half of the multiprocessors are idle without; it need not be legal."""
    for split_k, reduction in WAYS if _is_idle(question, whole.schedule) else ():
        made = split_schedule(whole.schedule, split_k, question.processors, reduction)
        for one in () if made is None else (made, *sharing(question, made)):
            if parts_under(question, one) > 1:
                rule = f"{whole.rule}, {rule_of(question, one)}"
                yield Candidate(one, bulk_us(question, one), rule)


def _is_idle(question: Question, schedule: Schedule) -> bool:
    """Whether half of the multiprocessors are idle, and K is long enough for more blocks."""
    if schedule.blocks or question.form.flow.grouped is not None:
        return False
    long = question.shape[2] * question.dtype.bytes >= SHORTEST_BYTES
    return long and tiles_of(question, schedule) * 2 <= question.processors


def is_carried(question: Question, schedule: Schedule) -> bool:
    """Whether a schedule is legal as it stands, and bulk copies carry the operands."""
    form, arch = question.form, question.arch
    specs = {name: coarse(spec, arch) for name, spec in question.specs.items()}
    return settle(schedule, form, specs, arch)[0] == schedule and not reasons(schedule, form, specs, arch)
