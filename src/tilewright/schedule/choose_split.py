"""Splitting K: what the schedules that the rules propose become where that is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from tilewright.schedule.choose import Candidate, Question
from tilewright.schedule.choose_by_target import candidates
from tilewright.schedule.choose_occupancy import spills
from tilewright.schedule.choose_ways import legal_way, ways_to_split
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.split_refusal import refusal

Doubts: TypeAlias = tuple[bool, bool, bool]

INSTRUCTIONS = ("wgmma", "mma", "mfma", "wmma", "fma")
"""What multiplies, the fastest first."""

SHARED = ("reduce-scatter", "cluster")
"""Ways in which all blocks of a tile add up a share of it."""


def split_candidates(question: Question) -> Iterator[Candidate]:
    """What is proposed for a problem whose K is to be split, in the order of the estimates.

    Args:
        question: the problem, with the way in which K is to be split.

    Raises:
        LaunchError: nothing that the rules propose can split K so.
    """
    wanted = question.splitting
    assert wanted is not None
    plain = (one for one in candidates(replace(question, splitting=None)) if one.schedule.split_k == 1)
    ways = [(one, way) for one in plain for way in ways_to_split(question, one, wanted)]
    found = _legal(question, ways)
    first = next(found, None)
    if first is None:
        raise refusal(question)
    if wanted.batch_invariant:
        yield from _in_one_order([first, *found])
    else:
        yield first
        yield from found


def _legal(question: Question, ways: Sequence[tuple[Candidate, Candidate]]) -> Iterator[Candidate]:
    """Of schedules that do not split K, and ways to do so, the legal ways in the order of their estimates.

    Whether one is legal is asked when it is its turn; if its ring is shorter then, its turn comes again.
    """

    def turn(way: Candidate, number: int) -> tuple[Doubts, float, int]:
        return _doubts(question, way.schedule), way.estimate, number

    waiting = [(turn(way, number), plain, way) for number, (plain, way) in enumerate(ways)]
    judged: set[int] = set()
    heapify(waiting)
    while waiting:
        (_, _, number), plain, way = heappop(waiting)
        made = way if number in judged else legal_way(question, plain, way)
        if made is way:
            yield way
        elif made is not None:
            judged.add(number)
            heappush(waiting, (turn(made, number), plain, made))


def _doubts(question: Question, schedule: Schedule) -> Doubts:
    """Why an estimate says less than those of others: what spills, or what it was not fitted to.

    That is what has no bulk copies, and, without them, blocks that meet otherwise than in a workspace.
    """
    is_copied = schedule.staging != "tma"
    is_guessed = schedule.reduction in SHARED and (is_copied or question.arch.rates is None)
    return spills(question, schedule), is_copied, is_guessed


def _in_one_order(found: list[Candidate]) -> list[Candidate]:
    """Those whose sums one instruction adds up and promotes as often, whatever the number of rows."""

    def order(one: Candidate) -> tuple[int, int, int]:
        atom, period = one.schedule.atom, one.schedule.promote * one.schedule.block_k
        return INSTRUCTIONS.index(atom.instruction.partition(".")[0]), -atom.shape[2], -period

    best = min(map(order, found), default=None)
    return [one for one in found if order(one) == best]
