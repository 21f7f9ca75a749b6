"""Random problems of each member of the GEMM family, computed by several processes."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from tilewright.targets.target import REFERENCE

from . import (
    attention_problems,
    complex_kernels,
    complex_problems,
    einsum_problems,
    elementwise_problems,
    flow_problems,
    fold_problems,
    gated_problems,
    grade_problems,
    group_problems,
    masked_problems,
    random_kernels,
    rank_problems,
    reduced_problems,
    scaled_problems,
    weights_problems,
    window_problems,
)
from .sets import SETS

MEMBERS: dict[str, Callable[[int, str], str]] = {
    "scaled_mm": scaled_problems.carried_out,
    "scaled_mm in groups": weights_problems.carried_out,
    "scaled_mm by blocks": scaled_problems.carried_out_by_blocks,
    "attention": attention_problems.attention,
    "attention to caches": attention_problems.caches,
    "attention_backward": fold_problems.backward,
    "loops with a state": fold_problems.loops,
    "largest of rows": fold_problems.lists,
    "largest of rows in parts": fold_problems.lists_in_parts,
    "recurrences": fold_problems.recurrences,
    "recurrences that go on": fold_problems.going_on,
    "places of extremes": fold_problems.places,
    "slices with a step": fold_problems.slices,
    "whole rows": fold_problems.rows,
    "gemm_chain": attention_problems.chain,
    "complex_matmul": complex_problems.carried_out,
    "matmul by grades": grade_problems.carried_out,
    "einsum": einsum_problems.carried_out,
    "gated_matmul": gated_problems.carried_out,
    "reduced_matmul": reduced_problems.carried_out,
    "masked products": masked_problems.carried_out,
    "groups along K": group_problems.carried_out,
    "added rows": group_problems.added,
    "windows": window_problems.carried_out,
    "several loops": flow_problems.several_loops,
    "sums of rows": flow_problems.row_sums,
    "products of products": flow_problems.inner_products,
    "flows without a product": elementwise_problems.carried_out,
    "reductions without a product": elementwise_problems.reduced,
    "prefix sums": elementwise_problems.scanned,
    "rows added in order": elementwise_problems.in_order,
    "random kernels": random_kernels.carried_out,
    "random complex kernels": complex_kernels.carried_out,
    "products that wait for shards": rank_problems.ranks,
}
"""What carries out a problem of each, given its number and a target, and says what is wrong with it."""

ON_REFERENCE = {"products that wait for shards"}
"""Members that only the reference computes: it runs several ranks in one process."""

TOGETHER = 20
"""Problems of the reference that one process carries out one after the other."""


@dataclass
class Tally:
    """Outcomes of the problems of a member.

    Args:
        count: number of problems.
        failures: errors in words, by the problems' numbers.
        seconds: processor time.
    """

    count: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, other: Tally) -> None:
        """Add another tally."""
        self.count += other.count
        self.failures |= other.failures
        self.seconds += other.seconds


def attempt(member: str, numbers: Sequence[int], target: str, deadline: float) -> Tally:
    """Run problems one after the other, until the time is used up."""
    made, begin = Tally(), time.monotonic()
    for number in numbers:
        if time.time() > deadline:
            break
        try:
            with patch("tilewright.runtime.scheduled.first_legal", lambda question: None):
                wrong = MEMBERS[member](number, target)
        except AssertionError as error:
            wrong = str(error) or traceback.format_exc(limit=-4)
        except Exception as error:  # noqa: BLE001 whatever it is, it is a failure of this problem
            wrong = f"{error!r}: {traceback.format_exc(limit=-4)}"
        made.count += 1
        if wrong:
            made.failures[number] = wrong
    made.seconds = time.monotonic() - begin
    return made


def groups(first: int, count: int, target: str) -> Iterator[range]:
    """Yield the numbers in groups for one process each: problems of a set share kernels."""
    numbers = range(first, first + count)
    if target == REFERENCE.name:
        yield from (numbers[start : start + TOGETHER] for start in range(0, count, TOGETHER))
    else:
        yield from (numbers[start :: SETS[target]] for start in range(min(SETS[target], count)))


def campaign(
    members: Sequence[str], first: int, count: int, target: str, jobs: int = 1, seconds: float = 1e9
) -> dict[str, Tally]:
    """Run problems of members.

    Args:
        members: which, by name.
        first: the first number.
        count: how many of each.
        target: where.
        jobs: processes.
        seconds: after which no further problem is begun.
    """
    deadline, made = time.time() + seconds, {member: Tally() for member in members}
    # The groups of all members take turns, so that each gets its share if time is up.
    asked = [
        (member, numbers, target, deadline) for numbers in groups(first, count, target) for member in members
    ]
    if jobs == 1:
        for one in asked:
            made[one[0]].add(attempt(*one))
        return made
    # Products of NumPy's that each ask for all processors made comparisons take six times as long.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A GPU's context does not survive a fork.
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        waiting: list[tuple[str, Any]] = [(one[0], pool.apply_async(attempt, one)) for one in asked]
        for member, one in waiting:
            made[member].add(one.get())
    return made
