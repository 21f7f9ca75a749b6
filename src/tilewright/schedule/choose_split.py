"""Splitting K: what the schedules that the rules propose become where that is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.schedule.candidates import candidates
from tilewright.schedule.choose import Candidate, Question
from tilewright.schedule.choose_refused import refusal
from tilewright.schedule.choose_ways import ways_to_split

INSTRUCTIONS = ("wgmma", "mma", "fma")
"""What multiplies, the fastest first."""

SHARED = ("reduce-scatter", "cluster")
"""Ways in which all blocks of a tile add up a share of it."""


def split_candidates(question: Question) -> Iterator[Candidate]:
    """What is proposed for a problem whose K is to be split, in the order of the estimates.

    Behind all others stand those whose blocks add up shares of a tile, unless they are asked for.

    Args:
        question: the problem, with the way in which K is to be split.

    Raises:
        LaunchError: nothing that the rules propose can split K so.
    """
    wanted = question.splitting
    assert wanted is not None
    found = _sorted(question)
    if not found:
        raise refusal(question)
    yield from found
    if wanted.reduction == "workspace" and not wanted.batch_invariant:
        number = wanted.split_k if isinstance(wanted.split_k, int) else None
        for reduction in SHARED:
            shared = replace(wanted, split_k=number, reduction=reduction)
            yield from _sorted(replace(question, splitting=shared))


def _sorted(question: Question) -> list[Candidate]:
    """Of other kernels than those with bulk copies what is estimated is what no kernel falls below."""
    wanted = question.splitting
    assert wanted is not None
    plain = (one for one in candidates(replace(question, splitting=None)) if one.schedule.split_k == 1)
    found = [made for one in plain for made in ways_to_split(question, one, wanted)]
    if wanted.batch_invariant:
        found = _of_one_instruction(found)
    return sorted(found, key=lambda one: (one.schedule.staging != "tma", one.estimate))


def _of_one_instruction(found: list[Candidate]) -> list[Candidate]:
    """Those whose products are added up by the same instruction, whatever the number of rows."""

    def instruction(one: Candidate) -> tuple[int, int]:
        atom = one.schedule.atom
        return INSTRUCTIONS.index(atom.instruction.partition(".")[0]), -atom.shape[2]

    best = min(map(instruction, found), default=None)
    return [one for one in found if instruction(one) == best]
