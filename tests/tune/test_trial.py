"""One kernel on one problem: its name, its counts, its errors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.sample import operands
from tilewright.ops.launching import LaunchPlan
from tilewright.runtime.executable import Executable
from tilewright.targets.atoms import fma
from tilewright.tune.measure import Effort
from tilewright.tune.rivals import rivals
from tilewright.tune.trial import OURS, PlannedTrial, Trial

SHAPE = (40, 50, 60)
MMA = tw.TiledMma(fma(tw.f32), (1, 1), (8, 4))


@tw.kernel(A="M K", B="N K", C="M N")
def partial_gemm(A, B, C, *, tile, mma, skipped):
    """A GEMM that forgets the last block, or the last step of K."""
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sA, sB = tw.shared((tile_m, tile_k), A.dtype), tw.shared((tile_n, tile_k), B.dtype)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k) - int(skipped == "step")):
        tw.copy(A.tile((tile_m, tile_k), (m, k)), sA, threads=(8, 4))
        tw.copy(B.tile((tile_n, tile_k), (n, k)), sB, threads=(8, 4))
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    with tw.when(m + 1 < tw.ceil_div(C.shape[0], tile_m) if skipped == "block" else m < C.shape[0]):
        tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


def partial(skipped: str) -> Trial:
    bound = partial_gemm.bind(tile=(32, 32, 8), mma=MMA, skipped=skipped)
    return Trial(bound, operands("random", tw.f32, SHAPE), "reference", MMA.atom, "partial")


def test_one_kernel_is_timed_without_the_preparation_of_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = PlannedTrial(operands("random", tw.f32, SHAPE), "cpu")
    monkeypatch.setattr(LaunchPlan, "start", lambda *given: pytest.fail("prepared again"))
    assert trial.launch().target == "cpu"
    assert trial.verify().ok


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_right_kernel_is_verified(target: str) -> None:
    trial = PlannedTrial(operands("random", tw.f32, SHAPE), target)
    executable, seconds = trial.run()
    assert executable.target == target
    assert seconds > 0
    assert trial.verify().ok


@pytest.mark.parametrize("skipped", ["block", "step"])
def test_what_a_kernel_leaves_out_is_found(skipped: str) -> None:
    trial = partial(skipped)
    trial.run()
    assert not trial.verify().ok
    assert np.isnan(trial.result()).any() == (skipped == "block")


def test_without_a_run_nothing_is_right() -> None:
    assert not PlannedTrial(operands("random", tw.f32, SHAPE), "cpu").verify().ok
    assert not PlannedTrial(operands("random", tw.i8, SHAPE), "cpu").verify().ok


def test_another_target_than_asked_for_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = PlannedTrial(operands("random", tw.f32, SHAPE), "cpu")
    other = Executable("reference", "numpy", trial.trace())
    monkeypatch.setattr(trial, "launch", lambda: other)
    with pytest.raises(tw.TilewrightError, match="asked for target cpu, but reference ran"):
        trial.run()


def test_perf_counts_operations_and_bytes() -> None:
    trial = PlannedTrial(operands("random", tw.i8, (100, 200, 300)), "cpu")
    assert trial.flops == 2 * 100 * 200 * 300
    assert trial.bytes == 100 * 300 + 300 * 200 + 4 * 100 * 200
    line = trial.perf(1000.0)
    assert line.startswith("Perf: 1 ms, 0.012 TFlops, 0.17 GB/s, gemm<cpu, i8, ")
    assert re.search(r"\d+x\d+x\d+, fma\.\S+, stages \d>$", line)


def test_a_schedule_of_ones_own() -> None:
    schedule = tw.Schedule(fma(tw.f32), (16, 16, 8))
    trial = PlannedTrial(operands("random", tw.f32, SHAPE), "reference", schedule=schedule)
    assert trial.schedule == schedule
    assert "16x16x8" in trial.name
    trial.run()
    assert trial.verify().ok


def test_a_dataflow_kernel_is_tried_by_its_schedule() -> None:
    """The schedule gives the atom and the period of promotion; B is (K, N), as the kernel names it."""

    @tw.kernel(A="M K", B="K N", C="M N")
    def product(A, B, C):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[k, n]
            C[m, n] = acc

    atom = tw.atoms.MMA_E4M3
    bound = product.bind(schedule=tw.Schedule(atom, (32, 32, 32), promote=2))
    trial = Trial(bound, operands("random", tw.f8e4m3, (40, 50, 160)), "reference")
    assert (trial.atom, trial.period) == (atom, 64)
    assert trial.name == "product<reference, f8e4m3, 32x32x32, mma.m16n8k32.f32.e4m3, stages 1>"
    trial.run()
    assert trial.verify().ok


def test_an_explicit_kernel_needs_its_atom() -> None:
    bound = partial_gemm.bind(tile=(32, 32, 8), mma=MMA, skipped="")
    with pytest.raises(tw.LaunchError, match="kernel partial_gemm is explicit; nearest legal choice: atom="):
        Trial(bound, operands("random", tw.f32, SHAPE), "reference")


def test_it_is_timed_in_turns_with_numpy() -> None:
    trial = PlannedTrial(operands("random", tw.f32, SHAPE), "cpu")
    trial.run()
    taken = trial.time(Effort(seconds=0.0, warm_up_seconds=0.0, least=3))
    assert [timing.name for timing in taken.timings] == [OURS, "NumPy"]


@pytest.mark.parametrize(
    ("dtype", "name"), [(tw.f64, "NumPy"), (tw.f16, "NumPy, in f32"), (tw.i8, "NumPy, in f32")]
)
def test_the_rival_computes_the_same(dtype: Any, name: str) -> None:
    made = operands("integers", dtype, SHAPE)
    (found,) = rivals(made.a, made.b, None, "cpu").items()
    assert found[0] == name
    assert np.array_equal(found[1](), made.a.astype(np.float64) @ made.b.astype(np.float64))
