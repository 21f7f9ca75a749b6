"""The checker finds faults that only some schedules show, whatever schedule it executes."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.lang.program import Program
from tilewright.targets.reference import Kind, run

from .interleavings import Search, Small
from .kernels import spec
from .small_kernels import check, disagreement

A, B, C = 0, 1, 2
TWINS = {
    "a phase that ends while a warp has yet to see that the one before has": (
        Small(
            ((1, 1), (1, 1)),
            1,
            ((("arrive", A, 0, 0), ("wait", B, 0, 1), ("arrive", A, 0, 0)), (("wait", A, 0, 0),)),
        ),
        Small(
            ((1, 1), (1, 1)),
            1,
            (
                (("arrive", A, 0, 0), ("wait", B, 0, 0), ("arrive", A, 0, 0)),
                (("wait", A, 0, 0), ("arrive", B, 0, 0)),
            ),
        ),
        Kind.OVERTAKEN,
    ),
    "a copy that lands before its own warp comes to a wait": (
        Small(
            ((1, 1),), 1, ((("arrive", A, 0, 1), ("load", 0, A, 0), ("wait", A, 0, 1)), (("wait", A, 0, 0),))
        ),
        Small(
            ((1, 1),), 1, ((("wait", A, 0, 1), ("arrive", A, 0, 1), ("load", 0, A, 0)), (("wait", A, 0, 0),))
        ),
        Kind.OVERTAKEN,
    ),
    "a copy that may count for the phase before": (
        Small(
            ((1, 1), (1, 1)),
            2,
            (
                (("arrive", A, 0, 1), ("wait", A, 0, 0), ("arrive", A, 0, 1), ("wait", A, 0, 1)),
                (("load", 0, A, 0), ("wait", B, 0, 0), ("load", 1, A, 0)),
                (("arrive", B, 0, 0),),
            ),
        ),
        Small(
            ((1, 1), (1, 1)),
            2,
            (
                (
                    ("arrive", A, 0, 1),
                    ("wait", A, 0, 0),
                    ("arrive", B, 0, 0),
                    ("arrive", A, 0, 1),
                    ("wait", A, 0, 1),
                ),
                (("load", 0, A, 0), ("wait", B, 0, 0), ("load", 1, A, 0)),
            ),
        ),
        Kind.PHASE,
    ),
}
"""What it is, a wrong program, a right one that differs by little, and the kind of what is found."""


@pytest.mark.parametrize("name", TWINS)
def test_what_another_schedule_would_show_is_found_in_this_one(name) -> None:
    wrong, right, kind = TWINS[name]
    assert Search(wrong).run()
    assert kind in {finding.kind for finding in check(wrong).findings}
    assert Search(right).run() is None
    check(right).raise_if_any()


def test_who_announces_bytes_may_wait_before_the_copy() -> None:
    """The copy was issued before the wait, so its bytes arrive after the wait and cannot miss the phase."""
    producer = ("arrive", A, 0, 1), ("wait", B, 0, 1), ("load", 0, A, 0)
    consumer = ("wait", A, 0, 0), ("read", 0), ("arrive", B, 0, 0)
    program = Small(((1, 1), (1, 1)), 1, (producer, consumer))
    assert Search(program).run() is None
    check(program).raise_if_any()


def test_who_comes_after_every_arrival_of_a_phase_comes_after_the_phase() -> None:
    """A producer waits one stage ahead: the second stage is released after the first."""
    producer = (
        ("wait", B, 1, 1),
        ("wait", B, 0, 1),
        ("write", 0),
        ("arrive", A, 0, 0),
        ("write", 1),
        ("arrive", A, 1, 0),
    )
    producer += ("wait", B, 1, 0), ("write", 0), ("arrive", A, 0, 0)
    steps = [
        ("wait", A, 0, 0),
        ("read", 0),
        ("arrive", B, 0, 0),
        ("wait", A, 1, 0),
        ("read", 1),
        ("arrive", B, 1, 0),
    ]
    steps += [("wait", A, 0, 1), ("read", 0), ("arrive", B, 0, 0)]
    program = Small(((2, 1), (2, 2)), 2, (producer, tuple(steps), tuple(steps)))
    assert Search(program).run() is None
    check(program).raise_if_any()


def one_ahead(X, *, tiles, consumers, wrong=False):
    """Consumers of a ring of two stages wait for the next tile before they take this one."""
    held = tw.shared((2, 32), tw.f32)
    full, empty = tw.hopper.mbarrier(2, arrivals=1), tw.hopper.mbarrier(2, arrivals=consumers)
    tw.barrier()
    with tw.role(warps=1):
        for t in tw.range(tiles):
            tw.hopper.wait(empty[t % 2], 1 - t // 2 % 2)
            tw.copy(X[0:1], held[t % 2 : t % 2 + 1], threads=(1, 32))
            tw.hopper.arrive(full[t % 2], each="warp")
    for _ in tw.unroll(consumers):
        with tw.role(warps=1):
            tw.hopper.wait(full[0], 0)
            for t in tw.range(tiles):
                with tw.when(t + 1 < tiles):
                    tw.hopper.wait(full[(t + 1) % 2], (t if wrong else t + 1) // 2 % 2)
                tw.hopper.arrive(empty[t % 2], each="warp")


@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize("tiles", [3, 4, 5, 6])
def test_a_ring_that_waits_one_stage_ahead(tiles, consumers) -> None:
    """With the parity of its own tile, a wait passes for the stage's earlier contents, or never."""
    x = np.zeros((1, 32), np.float32)
    for wrong in (False, True):
        program = Program(one_ahead, {"X": "M N"})
        constants = {"tiles": tiles, "consumers": consumers, "wrong": wrong}
        report = run(program.trace({"X": spec(x)}, constants), {"X": x})
        kinds = {finding.kind for finding in report.findings}
        assert Kind.OVERTAKEN in kinds if wrong else not kinds


def announced_twice(X, *, wrong):
    """One warp ends two phases, and another one waits for the first of them."""
    m, q = tw.hopper.mbarrier(1, arrivals=1), tw.hopper.mbarrier(1, arrivals=1)
    tw.barrier()
    with tw.role(warps=1):
        tw.hopper.arrive(m[0])
        tw.hopper.wait(q[0], 1 if wrong else 0)
        tw.hopper.arrive(m[0])
    with tw.role(warps=1):
        tw.hopper.wait(m[0], 0)
        if not wrong:
            tw.hopper.arrive(q[0])


def test_a_hang_that_the_schedule_in_turns_does_not_show() -> None:
    x = np.zeros((1, 32), np.float32)
    for wrong in (False, True):
        kernel = Program(announced_twice, {"X": "M N"}).trace({"X": spec(x)}, {"wrong": wrong})
        report = run(kernel, {"X": x})
        assert [finding.kind for finding in report.findings] == [Kind.OVERTAKEN] * wrong


def test_random_programs_are_clean_exactly_if_no_schedule_of_them_goes_wrong(fuzz_seed: int) -> None:
    """``scripts/try_schedules.py`` tries any number of programs."""
    first = fuzz_seed * 1_000
    wrong = [seed for seed in range(first, first + 1_000) if disagreement(seed)]
    assert not wrong, f"the checker and the search of all schedules disagree on the seeds {wrong}"


def one_lane_writes(X, Y, *, order):
    """One lane overwrites what all lanes of its warp read, and arrives; this orders only other warps."""
    held, m = tw.shared((1, 32), X.dtype), tw.hopper.mbarrier(1, arrivals=1)
    tw.barrier()
    with tw.role(warps=1):
        tw.copy(X.tile((1, 32), (0, 0)), held, threads=(1, 1))
        if "arrive" in order:
            tw.hopper.arrive(m[0])
        if "wait" in order:
            tw.hopper.wait(m[0], 0)
        tw.copy(held, Y.tile((1, 32), (0, 0)), threads=(1, 32))


@pytest.mark.parametrize(("order", "is_race"), [("", True), ("arrive", True), ("arrive, wait", False)])
def test_an_arrival_teaches_its_own_warp_nothing(order, is_race) -> None:
    arrays = {"X": np.ones((1, 32), np.float32), "Y": np.zeros((1, 32), np.float32)}
    specs = {name: spec(array) for name, array in arrays.items()}
    report = run(Program(one_lane_writes, {"X": "M N", "Y": "M N"}).trace(specs, {"order": order}), arrays)
    assert [finding.kind for finding in report.findings] == [Kind.WRITE_READ] * is_race
