"""The checker's findings in kernels with asynchronous operations, and their messages."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.targets.reference import Kind, Report, run

from .background import trace
from .hopper import constants, operands
from .hopper import trace as trace_hopper
from .mutate import mutants

ROWS = 7 * 8 - 3
MMA = tw.TiledMma(tw.atoms.wgmma(tw.f16, 64), (1, 1))


def moved(name, wrong="", rows=ROWS) -> tuple[Report, bool]:
    """Return the report, and whether all rows arrived."""
    x = np.random.default_rng(0).integers(-9, 9, (rows, 64)).astype(np.float16)
    arrays = {"X": x, "Y": np.full_like(x, np.nan)}
    report = run(trace(name, arrays, wrong=wrong), arrays)
    return report, bool((arrays["Y"] == x).all())


def multiplied(wrong="") -> tuple[Report, bool]:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, (64, 64)).astype(np.float16) for _ in range(2))
    arrays = {"A": a, "B": b, "C": np.full((64, 64), np.nan, np.float32)}
    report = run(trace("multiply", arrays, mma=MMA, wrong=wrong), arrays)
    return report, bool((arrays["C"] == 2 * (a.astype(np.float32) @ b.astype(np.float32).T)).all())


def found(report: Report) -> set[tuple[Kind, str]]:
    return {(finding.kind, finding.tensor) for finding in report.findings}


@pytest.mark.parametrize("rows", [0, 3, 8, ROWS])
@pytest.mark.parametrize("name", ["relay", "staged_store"])
def test_the_kernels_themselves_are_clean(name, rows) -> None:
    report, right = moved(name, rows=rows)
    report.raise_if_any()
    assert right


def test_who_did_not_wait_does_not_learn_from_who_did() -> None:
    """A wait that passes at once gets no ordering from another warp that ends the phase at the same time."""
    report, right = moved("two_readers", rows=8)
    report.raise_if_any()
    assert right
    report, _ = moved("two_readers", "the other parity", rows=8)
    assert "held" in {finding.tensor for finding in report.findings}


def test_the_product_itself_is_clean() -> None:
    report, right = multiplied()
    report.raise_if_any()
    assert right


RELAY = {
    "no barrier": {(Kind.UNINITIALISED, "full"), (Kind.UNINITIALISED, "empty")},
    "no wait for empty": {(Kind.PHASE, "full"), (Kind.IN_FLIGHT, "held")},
    "no wait for full": {(Kind.UNWRITTEN, "held"), (Kind.PHASE, "empty")},
    "too few bytes": {(Kind.TRANSACTION, "full"), (Kind.IN_FLIGHT, "held")},
    "too many": {(Kind.DEADLOCK, "")},
    "half a box": {(Kind.DEADLOCK, "")},
    "two copies": {(Kind.TRANSACTION, "full"), (Kind.IN_FLIGHT, "held")},
    "two arrivals": {(Kind.PHASE, "full")},
    "barrier in a role": {(Kind.DEADLOCK, "")},
    "last tile is left": {(Kind.UNFINISHED, "")},
    "a stage that is not there": {(Kind.OUT_OF_BOUNDS, "full")},
    "no fence": {(Kind.PROXY, "held")},
    "no arrival": {(Kind.DEADLOCK, "")},
    "one arrival too few": {(Kind.PHASE, "empty")},
    "first thread alone": {(Kind.READ_WRITE, "held"), (Kind.OVERTAKEN, "full")},
}


@pytest.mark.parametrize("wrong", RELAY)
def test_what_is_wrong_with_a_relay(wrong) -> None:
    report, _ = moved("relay", wrong)
    assert RELAY[wrong] <= found(report)


STORE = {
    "no wait before the next tile": {(Kind.IN_FLIGHT, "held")},
    "waits for one group too few": {(Kind.IN_FLIGHT, "held")},
    "no barrier after the wait": {(Kind.READ_WRITE, "held")},
    "no fence": {(Kind.PROXY, "held")},
    "no barrier before the store": {(Kind.WRITE_READ, "held")},
    "no commit": {(Kind.IN_FLIGHT, "held"), (Kind.UNFINISHED, "")},
    "no wait at the end": {(Kind.UNFINISHED, "")},
    "reads what it stored": {(Kind.IN_FLIGHT, "Y")},
}


@pytest.mark.parametrize("wrong", STORE)
def test_what_is_wrong_with_a_store(wrong) -> None:
    report, _ = moved("staged_store", wrong)
    assert STORE[wrong] <= found(report)


def test_barriers_of_different_numbers_are_different_barriers() -> None:
    report, right = moved("staged_store", "another number")
    report.raise_if_any()
    assert right


PRODUCT = {
    "no proxy fence": {(Kind.PROXY, "sA"), (Kind.PROXY, "sB")},
    "no barrier": {(Kind.WRITE_READ, "sA"), (Kind.WRITE_READ, "sB")},
    "no mma_fence": {(Kind.UNFENCED, "acc"), (Kind.UNFENCED, "a")},
    "A is overwritten": {(Kind.IN_FLIGHT, "a")},
    "the accumulator is filled": {(Kind.IN_FLIGHT, "acc")},
    "touched between two": {(Kind.UNFENCED, "acc")},
    "no commit": {(Kind.IN_FLIGHT, "acc"), (Kind.UNFINISHED, "")},
    "no wait": {(Kind.IN_FLIGHT, "acc"), (Kind.UNFINISHED, "")},
    "waits for one group too few": {(Kind.IN_FLIGHT, "acc")},
}


@pytest.mark.parametrize("wrong", PRODUCT)
def test_what_is_wrong_with_a_product(wrong) -> None:
    report, _ = multiplied(wrong)
    assert PRODUCT[wrong] <= found(report)


@pytest.mark.parametrize("wrong", ["no commit", "no wait", "waits for one group too few", "A is overwritten"])
def test_what_was_not_waited_for_is_not_there(wrong) -> None:
    assert not multiplied(wrong)[1]


def test_operands_may_be_overwritten_by_any_warp_of_a_group_that_waited() -> None:
    report, right = multiplied("B is overwritten")
    report.raise_if_any()
    assert right


@pytest.mark.parametrize(
    ("row", "column", "kinds"),
    [
        (0, 0, set()),
        (0, 8, {Kind.MISALIGNED}),
        (4, 0, {Kind.MISALIGNED}),
        (16, 0, {Kind.OUT_OF_BOUNDS}),
    ],
)
def test_boxes_lie_where_they_can(row, column, kinds) -> None:
    x = np.ones((16, 64), np.float16)
    arrays = {"X": x, "Y": np.zeros_like(x)}
    report = run(trace("crooked_box", arrays, row=row, column=column), arrays)
    assert {finding.kind for finding in report.findings} == kinds


# ---------------------------------------------------------------- in words


def hopper_mutant(change: str) -> Report:
    arrays = operands(133, 72, 4 * 64 + 24)
    kernel = trace_hopper(arrays, **constants(stages=2, blocks=3))
    [mutant] = mutants(kernel, {change})
    assert mutant.kernel is not None
    return run(mutant.kernel, arrays, blocks=[(0,)])


TEXTS = {
    "arrive 0: bytes +16": (Kind.DEADLOCK, "deadlock_bytes.txt"),
    "arrive 0: bytes -16": (Kind.TRANSACTION, "expected_bytes.txt"),
    "mbarrier 1: arrivals -1": (Kind.PHASE, "phase.txt"),
    "mma_wait 0: one more pending": (Kind.IN_FLIGHT, "stage_overwritten.txt"),
    "mma_wait 1: removed": (Kind.IN_FLIGHT, "accumulator_in_flight.txt"),
    "fence_async 0: removed": (Kind.PROXY, "proxy_fence.txt"),
    "mma_fence 0: removed": (Kind.UNFENCED, "mma_fence.txt"),
    "bulk_wait 1: removed": (Kind.UNFINISHED, "unfinished.txt"),
}


@pytest.mark.parametrize("change", TEXTS)
def test_what_authors_are_told(golden, change) -> None:
    kind, name = TEXTS[change]
    first = next(finding for finding in hopper_mutant(change).findings if finding.kind is kind)
    golden(str(first) + "\n", name)


def test_a_box_of_the_wrong_shape_is_a_deadlock_with_the_bytes_that_came() -> None:
    report, _ = moved("relay", "half a box")
    assert "full[0] phase 0: 1 of 1 arrivals, 512 of 1024 bytes" in str(report)


@pytest.mark.parametrize("wrong", ["no wait for empty", "two arrivals", "too few bytes", "last tile is left"])
def test_who_does_not_ask_is_not_told(wrong) -> None:
    x = np.ones((ROWS, 64), np.float16)
    arrays = {"X": x, "Y": np.zeros_like(x)}
    kinds = {f.kind for f in run(trace("relay", arrays, wrong=wrong), arrays, check=False).findings}
    assert kinds <= {Kind.DEADLOCK}


def test_a_deadlock_says_what_everyone_waits_for() -> None:
    text = str(hopper_mutant("arrive 0: removed"))
    assert "9 of 12 warps wait for events that never happen" in text
    assert "warp 0 waits for empty[0] phase 0: 0 of 8 arrivals" in text
    assert "warps 4 to 11 wait for full[0] phase 0: 0 of 1 arrivals" in text
