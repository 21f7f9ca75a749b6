"""Other schedules of what was executed: they show what they should, also without the checker's clocks."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.targets.reference import Kind, machine, run, standstill
from tilewright.targets.reference.checker import Checker
from tilewright.targets.reference.schedules import (
    MOST_STATES,
    SEEDS,
    Fault,
    Skeleton,
    SyncStep,
    try_schedules,
)

from . import hopper
from .interleavings import Search, Small, random_program
from .small_kernels import build, check
from .test_interleavings import TWINS


@pytest.fixture
def executed(monkeypatch):
    """Return the steps of a program if it ended, whatever was found, or else None."""
    kept: list[Skeleton] = []
    monkeypatch.setattr(machine, "report_schedules", lambda checker, cluster: kept.append(cluster.skeleton))

    def execute(program: Small) -> Skeleton | None:
        kept.clear()
        check(program)
        return kept[0] if kept else None

    return execute


def test_every_order_of_a_small_program_shows_what_a_search_shows(executed) -> None:
    compared = 0
    for seed in range(400):
        program = random_program(seed)
        truth, skeleton = Search(program).run(), executed(program)
        if skeleton is not None and truth in (None, "phase", "hang"):
            compared += 1
            assert (try_schedules(skeleton) is None) == (truth is None), f"seed {seed}\n{program}"
    assert compared > 100


@pytest.mark.parametrize("name", TWINS)
def test_a_fault_comes_with_the_order_of_steps_that_shows_it(name, executed) -> None:
    wrong, right, _ = TWINS[name]
    skeleton = executed(wrong)
    assert skeleton is not None
    fault = try_schedules(skeleton)
    assert fault == try_schedules(skeleton), "the same every time"
    assert fault is not None
    assert fault.schedule or fault.order
    assert try_schedules(executed(right)) is None


def long_program(turns: int) -> Skeleton:
    """Two warps pass many phases of a barrier to each other, then miss one if the second is slow."""
    op = build(Small(((1, 1),), 1, ())).body.ops[0]
    skeleton = Skeleton(arrivals={"m": 1, "q": 1})
    for turn in range(turns):
        skeleton.note("one", SyncStep("arrive", "m", 0, turn, op))
        skeleton.note("one", SyncStep("wait", "q", turn % 2, turn + 1, op))
        skeleton.note("two", SyncStep("wait", "m", turn % 2, turn + 1, op))
        skeleton.note("two", SyncStep("arrive", "q", 0, turn, op))
    skeleton.note("one", SyncStep("arrive", "m", 0, turns, op))
    skeleton.note("one", SyncStep("arrive", "m", 0, turns + 1, op))
    skeleton.note("two", SyncStep("wait", "m", turns % 2, turns + 1, op))
    return skeleton


def test_a_long_program_is_tried_in_some_orders_and_the_fault_names_which() -> None:
    skeleton = long_program(40)
    assert MOST_STATES < (2 * 40) ** 2
    fault = try_schedules(skeleton)
    assert isinstance(fault, Fault)
    assert fault.warp == "two"
    assert fault.what == "waits for what never happens"
    assert "order" in fault.schedule
    assert len(SEEDS) == 2


def test_a_fault_is_said_where_it_is(monkeypatch) -> None:
    """The test disables the clocks, so only the schedules can find the fault."""
    monkeypatch.setattr(Checker, "barrier", lambda *arguments: None)
    wrong, _, _ = TWINS["a phase that ends while a warp has yet to see that the one before has"]
    [finding] = check(wrong).findings
    assert finding.kind is Kind.DEADLOCK
    assert "waits for what never happens: warp 1 in" in finding.reason


def test_schedules_of_the_hopper_gemm_take_a_small_part_of_its_check(monkeypatch) -> None:
    kept = []
    monkeypatch.setattr(
        standstill, "try_schedules", lambda skeleton: kept.append(sum(map(len, skeleton.warps.values())))
    )
    arrays = hopper.operands(133, 67, 4 * 64 + 24)
    kernel = hopper.trace(arrays, **hopper.constants())
    assert run(kernel, arrays).is_clean
    assert len(kept) == 1, "of the first block"
    assert not np.isnan(arrays["C"].astype(np.float32)).any()
