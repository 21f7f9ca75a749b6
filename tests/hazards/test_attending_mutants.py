"""The checker finds synchronisation mistakes in the loops of `tw.attention`, by warps and by warpgroups."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.ops.attending import Problem
from tests.ops.test_attention import poisoned
from tests.ops.test_attention_backward import Backward, causal, flows, numbers_of
from tests.schedule.folding import scores
from tests.schedule.whole_rows import of_rows, softmax

import tilewright as tw
from tilewright.ir.kernel import Kernel
from tilewright.ops.attending import flow, gradients
from tilewright.ops.attending.flow import BySoftmax
from tilewright.schedule.folds import group_products
from tilewright.schedule.schedule import Schedule
from tilewright.targets.reference import Report, run

from .mutate import mutants, names, outcome
from .test_hopper_attention_mutants import LAST_FENCE, OWN_ROWS
from .test_hopper_mutants import WAITS_FOR_ALL

NEXT_TILE = "barrier {}: removed"
"""barrier -> copy: what was read of the weights of one tile was read before the barrier of the next."""

ALL_COPIES = "async_wait 0: removed"
"""copy_async -> async_wait 1 -> barrier 1: the waits for parts of the depth wait for all copies."""

MMA = Schedule(tw.atoms.MMA_F16, (32, 16, 16), (2, 1), 2, "cp_async", width=16, resident=True)
FMA = Schedule(tw.atoms.fma("f32", each=(2, 2)), (32, 16, 16), (2, 1), 2, "cp_async", width=16, resident=True)
WORDS: dict[str, Any] = {"scores": flow.Scores(causal=True), "between": BySoftmax(), "with_lse": True}
LOOPS = {
    "mma.sync": (tw.f16, MMA, False, 2, ()),
    "three stages": (tw.f16, replace(MMA, stages=3), False, 2, ()),
    "keys by column": (tw.f16, replace(MMA, stages=1, staging="direct"), True, 2, ()),
    "at once": (tw.f16, replace(MMA, stages=1, staging="direct"), False, 2, ()),
    "depth in parts": (tw.f16, replace(MMA, tile=(32, 16, 16), resident=False), False, 4, (ALL_COPIES,)),
    # Weights go through shared memory, with a barrier before they are read and one behind.
    "multiply-adds": (tw.f32, FMA, False, 4, (NEXT_TILE.format(2),)),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_with_a_state_needs_its_waits_and_barriers(name: str) -> None:
    element, schedule, by_column, count, harmless = LOOPS[name]
    problem = Problem((1, 1, 1), (45, 69), (30 if name == "depth in parts" else 16, 16), element, diagonal=24)
    if by_column:
        problem.k = problem.k.swapaxes(2, 3).copy().swapaxes(2, 3)
    out, lse = poisoned(problem), np.empty((1, 1, 1, 45), np.float32)
    exponent = problem.by * math.log2(math.e)
    q, into = problem.q[:, :, None], out[:, :, None]
    kernel = flow.attention.bind(
        scores=flow.Scores(causal=True), between=BySoftmax(), with_lse=True, schedule=schedule
    ).trace(q, problem.k, problem.v, into, lse, exponent, problem.diagonal)

    def execute(kernel: Kernel) -> Report:
        arrays: dict[str, Any] = {"Q": q, "K": problem.k, "V": problem.v, "O": into, "L": lse}
        return run(kernel, arrays, {"diagonal": problem.diagonal}, {"exponent": exponent})

    report = execute(kernel)
    report.raise_if_any()
    assert set(report.uncovered.values()) == {0}
    problem.check(out)
    wanted = {name for name in names(kernel) if name.split()[0] in ("barrier", "async_wait")}
    removed = {name for name in wanted if name.endswith("removed")}
    assert len(removed) == count
    outcomes = {mutant.name: outcome(mutant, execute, lambda: True) for mutant in mutants(kernel, removed)}
    survived = {mutant for mutant, found in outcomes.items() if found != "finding"}
    assert survived == set(harmless)


GROUPS = Schedule(
    tw.atoms.wgmma("f16", 16),
    (128, 16, 16),
    stages=2,
    staging="tma",
    roles="cooperative",
    groups=2,
    width=16,
    resident=True,
    epilogue="staged",
)
ONE_GROUP = replace(GROUPS, tile=(64, 16, 16), groups=1, blocks=1, group_n=1)
SEVERAL = Problem((1, 1, 1), (230, 75), (16, 16), diagonal=-100)
"""Four tiles of rows: of five, five, two and no steps, in this order.  The third begins at an odd parity."""

ALWAYS = {"mma_fence 2: removed": LAST_FENCE, "mma_wait 1: one fewer pending": WAITS_FOR_ALL}
OWN = ALWAYS | {"role_barrier 0: removed": OWN_ROWS}

THIS_PARITY = "the one tile without steps is the fourth, and waits for this parity"

BY_GROUPS: dict[str, tuple[Schedule, Problem, int, dict[str, str]]] = {
    # One block has no steps; two groups see different numbers of tiles, and a ring comes round twice.
    "a tile for each block": (
        GROUPS,
        Problem((1, 1, 1), (260, 75), (16, 16), diagonal=-180),
        40,
        {"wait 6: always parity 0": "a block has one tile"} | OWN,
    ),
    "persistent": (ONE_GROUP, SEVERAL, 45, {"wait 3: always parity 0": THIS_PARITY} | OWN),
    "persistent, overlapped": (
        replace(ONE_GROUP, epilogue="overlapped"),
        SEVERAL,
        45,
        {"wait 3: always parity 0": THIS_PARITY} | ALWAYS,
    ),
}
"""Schedule, problem, least number of mutants, and those that compute the same without a hazard, with why."""


@pytest.mark.parametrize("name", BY_GROUPS)
def test_a_loop_by_warpgroups_needs_its_synchronisation(name: str) -> None:
    schedule, problem, least, harmless = BY_GROUPS[name]
    rows = problem.rows[0]
    out, lse = poisoned(problem), np.empty((1, 1, 1, rows), np.float32)
    exponent = problem.by * math.log2(math.e)
    q, into = problem.q[:, :, None], out[:, :, None]
    kernel = flow.attention.bind(
        scores=flow.Scores(causal=True), between=BySoftmax(), with_lse=True, schedule=schedule
    ).trace(q, problem.k, problem.v, into, lse, exponent, problem.diagonal)

    def execute(kernel: Kernel) -> Report:
        out[...] = lse[...] = np.nan
        arrays: dict[str, Any] = {"Q": q, "K": problem.k, "V": problem.v, "O": into, "L": lse}
        return run(kernel, arrays, {"diagonal": problem.diagonal}, {"exponent": exponent})

    def is_right() -> bool:
        try:
            problem.check(out)
            problem.check_lse(lse[:, :, 0])
        except AssertionError:
            return False
        return True

    report = execute(kernel)
    report.raise_if_any()
    assert set(report.uncovered.values()) == {0}
    assert is_right()
    assert survivors(kernel, least, execute, is_right) == set(harmless)


def survivors(kernel: Kernel, least: int, execute: Any, is_right: Any) -> set[str]:
    """Return the mutants of synchronisation that compute the same results without a hazard.

    Args:
        kernel: the kernel.
        least: there are more mutants.
        execute: function that runs a kernel.
        is_right: whether the results of the last run are right.
    """
    verbs = (
        "wait",
        "mma_wait",
        "mma_fence",
        "mma_commit",
        "arrive",
        "role_barrier",
        "fence_async",
        "bulk_wait",
    )
    kinds = [
        *("removed", "one fewer pending", "one more pending", "always parity 0", "always parity 1"),
        *("other parity", "next stage", "each role"),
    ]
    wanted = {one for one in names(kernel) if one.split()[0] in verbs and one.endswith(tuple(kinds))}
    wanted |= {one for one in names(kernel) if one.split()[0] in ("signal", "await_")}
    assert len(wanted) > least
    outcomes = {mutant.name: outcome(mutant, execute, is_right) for mutant in mutants(kernel, wanted)}
    return {mutant for mutant, found in outcomes.items() if found == "survived"}


FIRST_FENCE = "the fence of the first score of the step stands, and since then nothing touched registers"
FREED_LAST = "arrive(Q) -> wait(Q): the loading warp has waited for these queries, which are freed last"
FREED_ROWS = (
    "arrive(Q) -> wait(Q): the last scores are complete before the queries of the step before are freed"
)
FREED_FIRST = "arrive(K) -> wait(K): all products with these rows are complete when the rows of K are freed"

GRADIENTS: dict[str, tuple[Schedule, int, dict[str, str]]] = {
    "late": (
        replace(ONE_GROUP, group_n=0, epilogue="overlapped"),
        group_products.SUMS,
        {
            **dict.fromkeys((f"mma_fence {n}: removed" for n in (1, 3, 4)), FIRST_FENCE),
            **dict.fromkeys((f"mma_wait {n}: one fewer pending" for n in (0, 2, 3)), WAITS_FOR_ALL),
            "wait 1: removed": FREED_ROWS,
            **dict.fromkeys((f"wait {n}: removed" for n in (2, 6)), FREED_FIRST),
            **dict.fromkeys((f"wait {n}: removed" for n in (3, 4)), FREED_LAST),
        },
    ),
    "at once": (
        replace(ONE_GROUP, group_n=0),
        0,
        {
            "mma_fence 1: removed": FIRST_FENCE,
            **dict.fromkeys((f"mma_wait {n}: one fewer pending" for n in (0, 1)), WAITS_FOR_ALL),
            **dict.fromkeys((f"role_barrier {n}: removed" for n in (0, 2)), OWN_ROWS),
            **dict.fromkeys((f"wait {n}: removed" for n in (4, 6)), FREED_FIRST),
            **dict.fromkeys((f"wait {n}: removed" for n in (1, 2)), FREED_LAST),
        },
    ),
}
"""Schedule, registers for sums, which decide whether mixtures are late, and harmless mutants, with why."""


TWO_PASSES = dict.fromkeys((f"mma_wait {n}: one fewer pending" for n in (0, 2)), WAITS_FOR_ALL)
"""Harmless mutants of two passes, with why."""


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_by_warpgroups_need_their_synchronisation(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block has three tiles of keys. The loop over queries has two iterations, and copies rows."""
    schedule, most, harmless = GRADIENTS[name]
    monkeypatch.setattr(group_products, "SUMS", most)
    problem = Backward((1, 2, 1), (40, 150), (16, 16), tw.f16, causal(70))
    scores, numbers = numbers_of(problem)
    bound, given = flows(problem, scores, schedule=schedule)[1]
    read = [*given[:4], *(np.empty((1, 1, 2, 40), np.float32) for _ in range(2)), given[6]]
    rows = problem.arrays
    gradients.prepare(
        rows["dout"], rows["out"], rows["lse"], read[4][:, 0], read[5][:, 0], target="reference"
    )
    results = [np.empty_like(one) for one in given[7:9]]
    kernel = bound.trace(*read, *results, *numbers)
    names_of = ("Q", "K", "V", "dO", "shift", "delta", "bias", "dK", "dV")

    def execute(kernel: Kernel) -> Report:
        for one in results:
            one[...] = np.nan
        arrays = dict(zip(names_of, (*read, *results), strict=True))
        passed = dict(zip(("exponent", "step", "diagonal", *flow.DRAWN), numbers, strict=True))
        return run(kernel, arrays, {"diagonal": passed.pop("diagonal")}, passed)

    right = {key: one for key, one in problem.gradients().items() if key != "dq"}

    def is_right() -> bool:
        found = zip(results, right.values(), strict=True)
        return all((np.abs(one.astype(np.float64) - wanted) <= room).all() for one, (wanted, room) in found)

    report = execute(kernel)
    report.raise_if_any()
    assert set(report.uncovered.values()) == {0}
    assert is_right()
    assert survivors(kernel, 45, execute, is_right) == set(harmless)


IN_PARTS = replace(
    ONE_GROUP,
    atom=tw.atoms.wgmma("f16", 64),
    tile=(64, 64, 64),
    width=0,
    resident=False,
    epilogue="direct",
    group_n=0,
)


KEPT = {
    "wait 1: removed": "the rings of both operands fill at about the same time",
    "mma_wait 0: one fewer pending": "it waits longer",
    "role_barrier 1: removed": "the next barrier follows at once",
    "await_ 0: after role_barrier 1": "the next barrier follows at once",
    "role_barrier 2: removed": "the barrier before it comes after the wait",
}
"""Harmless mutants of kept steps, with why."""


def test_two_passes_by_warpgroups_need_their_synchronisation() -> None:
    """There are three tiles of rows. Both passes have two steps, each with two tiles of operands."""
    x, w, s, off = scores(np.random.default_rng(2), 150, 72, 120, "f2")
    case = of_rows(softmax, {"X": x, "W": w}, s, off, "f2")
    given = case.arguments()
    kernel = softmax.bind(schedule=IN_PARTS).trace(*given.values())

    def execute(kernel: Kernel) -> Report:
        given["Y"][...] = np.nan
        return run(kernel, given, {}, {})

    def is_right() -> bool:
        return case.wrong({"Y": given["Y"]}) == []

    report = execute(kernel)
    report.raise_if_any()
    assert set(report.uncovered.values()) == {0}
    assert is_right()
    assert survivors(kernel, 30, execute, is_right) == set(TWO_PASSES)


def test_kept_steps_by_warpgroups_need_their_synchronisation() -> None:
    """Two tiles of rows, each of two blocks that wait for each other; a step has two tiles of operands."""
    x, w, s, off = scores(np.random.default_rng(2), 70, 72, 120, "f2")
    case = of_rows(softmax, {"X": x, "W": w}, s, off, "f2")
    given = case.arguments()
    schedule = replace(IN_PARTS, fold="kept", split_k="auto", blocks=2)
    kernel = softmax.bind(schedule=schedule).trace(*given.values())

    def execute(kernel: Kernel) -> Report:
        given["Y"][...] = np.nan
        return run(kernel, given, {}, {})

    def is_right() -> bool:
        return case.wrong({"Y": given["Y"]}) == []

    report = execute(kernel)
    report.raise_if_any()
    assert set(report.uncovered.values()) == {0}
    assert is_right()
    assert survivors(kernel, 30, execute, is_right) == set(KEPT)
