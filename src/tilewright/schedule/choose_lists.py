"""Choosing a schedule for products of lists of arrays, whose tiles a grid of a known size goes through.

What is proposed for the items of a batch is changed to that.  Where tensor maps can be made of all arrays,
bulk copies load them.  Where not, threads copy for the same asynchronous multiply, if rows begin at multiples
of 4 bytes, and else for the multiplies of a warp.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.schedule.choose import Candidate, Question
from tilewright.schedule.choose_by_target import proposals
from tilewright.schedule.legality import reasons
from tilewright.schedule.resources import Case
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.settle import width
from tilewright.targets.atoms import wgmma

BESIDE = 2
"""Blocks for each processor that go through the tiles of lists of arrays, at most."""

ROWS, COLUMNS, STAGES, BAND = 64, 128, 4, 8
"""Of tiles that threads copy: rows of a group of four warps, columns, stages, rows of tiles that follow each
other; measured on an H200."""


def schedule_of_lists(question: Question) -> Schedule:
    """The first legal schedule for products of lists; where none is, one that is refused with its reasons."""
    found = list_proposals(question)
    first = next(found)
    for one in (first, *found):
        if not one.against and not reasons(one.schedule, question.form, question.specs, question.arch):
            return one.schedule
    return first.schedule


def list_proposals(question: Question) -> Iterator[Candidate]:
    """What the rules of the question's target propose for lists, the first legal one being the choice.

    Args:
        question: the problem, of a form of lists; its extents are those of a typical product.
    """
    by_bulk: Candidate | None = None
    later: list[Candidate] = []
    for one in proposals(replace(question, form=replace(question.form, lists=False))):
        made = replace(one.schedule, balanced=False, cluster=(1, 1), batches=1)
        if made.split_k != 1:
            continue
        if made.staging == "tma":
            by_bulk = by_bulk or one
            found = replace(one, schedule=replace(made, blocks=_resident(question, made)))
            if made.blocks or question.shape[0] <= ROWS:
                yield found
            else:  # one that is made to take a tile alone has all the same to take one after the other
                later.append(found)
            continue
        if by_bulk is not None:
            yield from later
            yield from _by_threads(question, by_bulk)
            by_bulk = None
        yield replace(one, schedule=replace(made, blocks=BESIDE * question.processors))


def _resident(question: Question, schedule: Schedule) -> int:
    """As many blocks as shared memory holds at once, and no more than `BESIDE` for each processor."""
    taken = Case(schedule, question.form, question.specs, question.arch).shared_bytes
    return question.processors * max(min(question.arch.shared_bytes // max(taken, 1), BESIDE), 1)


def _by_threads(question: Question, by_bulk: Candidate) -> Iterator[Candidate]:
    """The asynchronous multiply of a schedule, with operands that threads copy in the background."""
    case = Case(by_bulk.schedule, question.form, question.specs, question.arch)
    if min(width(side.spec) for side in case.sides) < min(question.arch.async_bytes, default=0):
        return
    groups = 1 if question.shape[0] <= ROWS else 2
    made = Schedule(
        wgmma(question.dtype, COLUMNS),
        (ROWS * groups, COLUMNS, by_bulk.schedule.block_k),
        (groups, 1),
        stages=STAGES,
        staging="cp_async",
        blocks=question.processors,
        group_m=BAND,
        promote=by_bulk.schedule.promote,
    )
    yield replace(by_bulk, schedule=made, rule="wgmma, with copies by threads in the background")
