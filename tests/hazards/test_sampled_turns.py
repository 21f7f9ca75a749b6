"""Sampled iterations of a loop have the findings of all iterations."""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import pytest
from tests.turns import Turns, recorded

import tilewright as tw
from tilewright.errors import LegalityError
from tilewright.ir import verify
from tilewright.targets.reference import run
from tilewright.targets.reference.equivalence import Gap, gap

from .hopper import EXAMPLE, operands, trace
from .mutate import FoundError, ended_by_the_first_finding, mutants, names
from .test_hopper_mutants import CASES, CONSTANTS

SAID = "loop iterations that are equal up to their place were omitted"


@pytest.mark.parametrize(
    ("turns", "found"),
    [
        ("abbbbbbc", Gap(3, 1, 3)),
        ("abbbc", None),
        ("abababababab", Gap(4, 2, 3)),
        ("xabcabcabcabcaby", Gap(7, 3, 1)),
        ("aaaabaaaaaaa", Gap(7, 1, 4)),
        ("abcdefghijkl", None),
        ("", None),
    ],
)
def test_whole_periods_between_the_first_two_and_the_last_are_left_out(turns: str, found: Gap | None) -> None:
    assert gap([ord(turn) for turn in turns]) == found


def kernel(seed: int):
    """Tiles through a ring of stages by persistent blocks, with barriers and places at random."""
    draw = random.Random(seed)
    stages, steps, blocks = draw.randint(1, 3), draw.randint(4, 13), draw.randint(1, 3)
    tiles = blocks * draw.randint(3, 12) - draw.randint(0, 1)
    how = draw.choice(
        ["always", "always", "always", "never", "one step", "one turn", "one tile", "last turns"]
    )
    where = draw.choice(["own", "own", "own", "folded", "late", "turned"])
    at, odd = draw.randint(0, steps - 1), draw.randint(0, tiles // blocks)
    single = draw.random() < 0.5  # one barrier a step: enough for two stages and more
    rows = tiles * 8 - draw.choice([0, 0, 3])

    @tw.kernel(X="M N", Y="M N")
    def moved(X, Y):
        count = tw.ceil_div(X.shape[0], 8)
        block = tw.block_index(blocks)
        held = tw.shared((stages, 8, 32), X.dtype)
        for turn in tw.range(tw.ceil_div(count - block, blocks)):
            tile = tw.let(block + turn * blocks)
            match where:
                case "folded":
                    to = tile % max(tiles - 2, 1)
                case "late":
                    to = tw.minimum(tile, tiles // 2)
                case "turned":
                    to = count - 1 - tile
                case _:
                    to = tile
            for k in tw.range(tw.ceil_div(X.shape[1], 32)):
                stage = tw.let((turn * steps + k) % stages)
                tw.copy(X.tile((8, 32), (tile, k)), held[stage], threads=64)
                match how:
                    case "always":
                        tw.barrier()
                    case "one step":
                        with tw.when(k != at):
                            tw.barrier()
                    case "one turn":
                        with tw.when(turn != odd):
                            tw.barrier()
                    case "one tile":
                        with tw.when(tile != at):
                            tw.barrier()
                    case "last turns":
                        with tw.when(turn < odd):
                            tw.barrier()
                tw.copy(held[stage], Y.tile((8, 32), (to, k)), threads=(8, 8))
                if not single:
                    tw.barrier()

    return moved, [np.ones((rows, steps * 32), np.float32), np.zeros((rows, steps * 32), np.float32)]


def kinds(report) -> set[str]:
    return {finding.kind.value for finding in report.findings}


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("seed", range(48))
def test_the_same_is_found(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    moved, arrays = kernel(seed)
    whole = moved.check(*arrays, blocks="all")
    monkeypatch.setattr("tilewright.runtime.reference.WORK", 1)
    sampled = moved.check(*arrays)
    assert sampled.is_clean == whole.is_clean
    assert kinds(sampled) <= kinds(whole)
    assert ("elements never written" in kinds(sampled)) == ("elements never written" in kinds(whole))
    assert sampled.uncovered == whole.uncovered


def test_turns_are_left_out_of_many_of_these_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.runtime.reference.WORK", 1)
    said = 0
    for seed in range(12):
        moved, arrays = kernel(seed)
        said += SAID in str(moved.check(*arrays))
    assert said >= 3


@tw.kernel(X="M N", Y="P N")
def packed(X, Y, *, without):
    """Write all tiles of X but one, side by side; where one is left out, two blocks write one tile."""
    count, block = tw.ceil_div(X.shape[0], 8), tw.block_index(2)
    for turn in tw.range(tw.ceil_div(count - block, 2)):
        tile = tw.let(block + turn * 2)
        to = tile - tw.minimum(tw.maximum(tile - without, 0), 1)
        tw.copy(X.tile((8, 32), (tile, 0)), Y.tile((8, 32), (to, 0)), threads=32)


@tw.kernel(X="M N", Y="M N")
def masked(X, Y, *, wrong, where, blocks):
    """Sums of rows of exponentials; in turns in the middle the mask leaves in what lies past the edge."""
    spread = tw.blocked((8, 64), (8, 4))
    block = tw.block_index(blocks)
    before = tw.coordinates(spread, 1)
    for turn in tw.range(tw.ceil_div(tw.ceil_div(X.shape[0], 8), blocks)):
        tile = tw.let(block + turn * blocks)
        x = tw.load(X.tile((8, 64), (tile, 0)), spread)
        more = tw.let(wrong * ((turn // 20) % 2))
        match where:
            case "before the loop":
                inside = before < X.shape[1] + more
            case "shifted":
                inside = tw.coordinates(x, 1) - more < X.shape[1]
            case "turned":
                inside = -tw.coordinates(x, 1) * 2 > -2 * X.shape[1] - 2 * more
            case "equal":
                inside = (before < X.shape[1]) | (before == X.shape[1] - 1 + more)
            case _:
                inside = tw.coordinates(x, 1) <= X.shape[1] - 1 + more
        tw.copy(x + tw.reduce_sum(tw.where(inside, tw.exp(x), 0.0), 1), Y.tile((8, 64), (tile, 0)))


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("where", ["before the loop", "in the loop", "shifted", "turned", "equal"])
def test_a_mask_that_differs_in_turns_in_the_middle_is_looked_at(
    where: str, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.runtime.reference.WORK", 1)
    rows = 8 * 60 * blocks - 3
    arrays = np.ones((rows, 50), np.float32), np.zeros((rows, 50), np.float32)
    right = masked.check(*arrays, wrong=0, where=where, blocks=blocks)
    assert right.is_clean
    assert SAID in str(right)
    found = masked.check(*arrays, wrong=8, where=where, blocks=blocks)
    assert kinds(found) == {"element beyond an edge in a result"}


@pytest.mark.parametrize("without", [1, 20, 45])
def test_two_blocks_that_meet_in_one_turn_alone_are_found(
    without: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They meet in the middle of their iterations, which differ in nothing from the others."""
    monkeypatch.setattr("tilewright.runtime.reference.WORK", 1)
    x, y = np.ones((8 * 48, 32), np.float32), np.zeros((8 * 47, 32), np.float32)
    assert kinds(packed.bind(without=without).check(x, y)) == {"write-write race"}
    whole = packed.bind(without=48).check(x, x.copy())
    assert whole.is_clean
    assert SAID in str(whole)


@tw.kernel(X="M N", Y="M N")
def handed_over(X, Y, *, fewer=0, later=0):
    """One warp fills a ring and another empties it, ``fewer`` times, from the stage ``later`` ahead."""
    held = tw.shared((2, 8, 32), X.dtype)
    full, empty = tw.hopper.mbarrier(2, arrivals=1), tw.hopper.mbarrier(2, arrivals=1)
    tw.barrier()
    turns = tw.ceil_div(X.shape[0], 8)
    with tw.role(warps=1):
        for t in tw.range(turns):
            tw.hopper.wait(empty[t % 2], 1 - t // 2 % 2)
            tw.copy(X.tile((8, 32), (t, 0)), held[t % 2], threads=32)
            tw.hopper.arrive(full[t % 2], each="warp")
    with tw.role(warps=1):
        for t in tw.range(turns - fewer):
            tw.hopper.wait(full[t % 2], t // 2 % 2)
            tw.copy(held[(t + later) % 2], Y.tile((8, 32), (t, 0)), threads=32)
            tw.hopper.arrive(empty[t % 2], each="warp")


@pytest.mark.parametrize("turns", [30, 31, 32, 33])
def test_roles_leave_out_the_same_turns_or_none(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who fills a ring and who empties it must not both be cut down to the same number of turns."""
    monkeypatch.setattr("tilewright.runtime.reference.WORK", 1)
    x = np.ones((8 * turns, 32), np.float32)
    right = handed_over.check(x, x.copy())
    assert right.is_clean
    assert SAID in str(right)
    for wrong in ({"fewer": 4}, {"fewer": -4}, {"fewer": 8}, {"fewer": -8}, {"later": 1}):
        report = handed_over.check(x, x.copy(), partial="Y", **wrong)
        whole = handed_over.check(x, x.copy(), partial="Y", blocks="all", **wrong)
        assert (kinds(report), report.is_clean) == (kinds(whole), whole.is_clean), wrong
    assert not handed_over.check(x, x.copy(), partial="Y", fewer=-4).is_clean


BIG = operands(4 * 128, 3 * 128, 21 * 64)
"""Four turns for each of three blocks, and 21 steps through a ring of two stages."""


def test_every_mutant_of_the_hopper_gemm_that_a_run_finds_is_found_with_turns_left_out(turns: Turns) -> None:
    traced = trace(BIG, **CONSTANTS)
    right = run(traced, {**BIG, "C": BIG["C"].copy()}, work=1)
    assert right.is_clean
    assert SAID in str(right)
    before = recorded(Path(__file__).parent / "golden" / "hopper_mutants.txt")
    missed = []
    for mutant in mutants(traced, turns.among(names(traced))):
        outcome = before[mutant.name][len(mutant.name) :].strip()
        if outcome.startswith(("equivalent", "legality", "refused", "wrong result")):
            continue
        if outcome.endswith(tuple(f"({case})" for case in CASES if case)):
            continue  # other sizes show it
        assert mutant.kernel is not None
        assert not verify.violations(mutant.kernel)
        try:
            with ended_by_the_first_finding():
                run(mutant.kernel, {**BIG, "C": BIG["C"].copy()}, work=1)
            missed.append(mutant.name)
        except (LegalityError, FoundError):
            pass
    assert missed == []


@tw.kernel(A="M K", B="N K", bias="N", C="M N")
def linear(A, B, bias, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = tw.silu(acc + bias[n])


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (4000, 4096, 4096), (2048, 8192, 2048)])
@pytest.mark.parametrize("by_hand", [True, False])
def test_a_large_problem_of_persistent_blocks_is_checked_in_seconds(shape, by_hand) -> None:
    m, n, k = shape
    a, b, bias, c = (tw.like("bf16", extents) for extents in ((m, k), (n, k), (n,), (m, n)))
    begin = time.process_time()
    if by_hand:
        report = EXAMPLE["bind"](tw.bf16).check(a, b, c)
    else:
        report = linear.check(a, b, bias, c, target="cuda", arch="sm_90a")
    assert time.process_time() - begin < 40  # 5 on a quiet machine; with all turns 120
    assert report.is_clean
    assert SAID in str(report)
    assert report.blocks < 16
    assert report.uncovered == {"C": 0}
