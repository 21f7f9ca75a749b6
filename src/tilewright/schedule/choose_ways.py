"""The ways to split K under one schedule: those that are legal, and how long they are estimated to take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.schedule.choose import Candidate, Question, Splitting
from tilewright.schedule.choose_fma_time import fma_us, is_known
from tilewright.schedule.choose_occupancy import resident
from tilewright.schedule.choose_parts import (
    parts_under,
    period_of,
    rule_of,
    sharing,
    split_schedule,
    tiles_of,
)
from tilewright.schedule.choose_ring_time import is_ring, ring_us
from tilewright.schedule.choose_time import bulk_us, meeting_us
from tilewright.schedule.classes import coarse
from tilewright.schedule.fixup import FAN, WAITING, is_clustered
from tilewright.schedule.legality import reasons
from tilewright.schedule.partition import MOST_SPLITS
from tilewright.schedule.schedule import SPLITS, Schedule
from tilewright.schedule.settle import settle

CLUSTERS = (2, 4, 8)
"""Parts of K that are tried where the blocks that compute them are a cluster."""


PAYS = 0.9
"""What more blocks for each multiprocessor must be estimated to take of the time of one, but of exact f32."""


def ways_to_split(question: Question, plain: Candidate, wanted: Splitting) -> Iterator[Candidate]:
    """The ways to split K under a schedule, of which nobody has asked yet whether they are legal.

    Args:
        question: the problem.
        plain: the schedule that does not, with its estimate.
        wanted: how K is to be split.
    """
    for asked in () if plain.against else schedules_of(question, plain.schedule, wanted):
        if runs_at_once(question, asked):
            rule = f"{plain.rule}, {rule_of(question, asked)}"
            yield Candidate(asked, estimated(question, plain, asked), rule)


def legal_way(question: Question, plain: Candidate, way: Candidate) -> Candidate | None:
    """One of the ways to split K as it is legal, which may have a shorter ring; None if it is not.

    Args:
        question: the problem.
        plain: the schedule that does not split K.
        way: the one that does.
    """
    form, arch = question.form, question.arch
    specs = {name: coarse(spec, arch) for name, spec in question.specs.items()}
    tried = _stages_of(way.schedule)
    schedule = next((one for one in tried if not reasons(one, form, specs, arch)), None)
    if schedule is None or schedule == way.schedule:
        return None if schedule is None else way
    return replace(way, schedule=schedule, estimate=estimated(question, plain, schedule))


def _stages_of(schedule: Schedule) -> Iterator[Schedule]:
    """The schedule; of a cluster, whose blocks hold sums beside the ring, also with a shorter ring."""
    yield schedule
    if is_clustered(schedule):
        for stages in range(schedule.stages - 1, 1, -1):
            yield replace(schedule, stages=stages)


def schedules_of(question: Question, plain: Schedule, wanted: Splitting) -> Iterator[Schedule]:
    """The ways to split K under a schedule, of which nobody has asked yet whether they are legal.

    Args:
        question: the problem.
        plain: the schedule that does not.
        wanted: how K is to be split.
    """
    for reduction in wanted.reductions:
        for made in _added_up(question, plain, replace(wanted, reduction=reduction)):
            yield from with_more_blocks(question, made)
            if wanted.reduction is None and made.staging == "tma" and not wanted.batch_invariant:
                yield from sharing(question, made)


def _added_up(question: Question, plain: Schedule, wanted: Splitting) -> Iterator[Schedule]:
    """The ways to split K whose sums come together in the way that is wanted."""
    reduction, is_fixed = wanted.reductions[0], isinstance(wanted.split_k, int)
    if wanted.batch_invariant:
        depth, arch = question.shape[2], question.arch
        # Which instruction it is must not depend on how rows of A are aligned.
        specs = {name: coarse(spec, arch) for name, spec in question.specs.items()}
        plain, _ = settle(plain, question.form, specs, arch)
        if not plain.promote:  # sums of few bits are promoted more often, and always as often
            plain = replace(plain, promote=period_of(depth) // plain.block_k)
        if wanted.split_k is None:
            yield plain
        wanted = replace(wanted, split_k=_parts_of_periods(plain, depth, wanted))
    tried: tuple[int | str, ...] = SPLITS if wanted.split_k is None else (wanted.split_k,)
    if reduction == "cluster" and wanted.split_k in (None, "auto"):
        tried = CLUSTERS
    if reduction == "reduce-scatter" and wanted.split_k is None:
        tried = ("auto",)  # whose blocks run at once
    for split_k in tried:
        made = split_schedule(plain, split_k, question.processors, reduction)
        if made is not None and not is_fixed and not runs_at_once(question, made):
            made = replace(plain, reduction=reduction)  # periods are added in the same order in one part
        if made is not None:
            yield made


def runs_at_once(question: Question, schedule: Schedule) -> bool:
    """Whether a GPU certainly runs all blocks at once, if they wait for each other.

    Args:
        question: the problem.
        schedule: how it is computed.
    """
    if schedule.reduction not in WAITING or schedule.blocks or question.processors <= 1:
        return True
    parts = parts_under(question, schedule)
    return parts == 1 or tiles_of(question, schedule) * parts <= question.processors


def _parts_of_periods(plain: Schedule, depth: int, wanted: Splitting) -> int | str:
    """A part for each period, so that sums are added in the order in which one block adds them."""
    if isinstance(wanted.split_k, int):
        return wanted.split_k
    if wanted.reduction == "cluster":
        return CLUSTERS[-1]
    periods = -(-depth // (plain.promote * plain.block_k))
    return MOST_SPLITS if periods <= FAN else 1


def with_more_blocks(question: Question, schedule: Schedule) -> Iterator[Schedule]:
    """A schedule that deals K out to blocks: to one for each multiprocessor, and to more of them.

    They are no more than run at once, about, and none where all must certainly do so.

    Args:
        question: the problem.
        schedule: with a block for each multiprocessor, or none that are counted.
    """
    yield schedule
    if not schedule.blocks or schedule.reduction in WAITING or not is_ring(question, schedule):
        return
    is_fitted, alone = is_known(question, schedule), ring_us(question, schedule)
    for beside in range(2, resident(question, schedule) + 1):
        made = replace(schedule, blocks=beside * schedule.blocks)
        if is_fitted or ring_us(question, made) < PAYS * alone:
            yield made


def estimated(question: Question, plain: Candidate, schedule: Schedule) -> float:
    """Estimated time of a schedule that splits K, or does not.

    Args:
        question: the problem.
        plain: the schedule that it is made of, with its estimate.
        schedule: how K is split.
    """
    if question.form.is_single:  # of several products these times know nothing
        if schedule.staging == "tma":
            return plain.estimate if schedule.split_k == 1 else bulk_us(question, schedule)
        if is_known(question, schedule):
            return fma_us(question, schedule)
        if is_ring(question, schedule):
            return ring_us(question, schedule)
    parts, tiles, blocks = parts_under(question, schedule), tiles_of(question, schedule), question.processors
    if schedule.split_k == 1:
        return plain.estimate
    rounds = max(-(-tiles // blocks), 1)
    if schedule.split_k == "stream":
        shared = max(tiles / blocks, 1 / parts) / rounds
    else:
        shared = -(-tiles * parts // blocks) / parts / rounds
    return plain.estimate * shared + meeting_us(question, schedule)
