"""The checker finds every mutant of a correct GEMM, or it is equivalent for a reason given here."""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.ir import verify
from tilewright.targets.atoms import MMA_F16, fma
from tilewright.targets.reference import Kind, Report, run

from . import mutate
from .kernels import gemm_arrays
from .ladder import example, traced
from .mutate import Mutant, mutants

pytestmark = pytest.mark.in_turns(3)

LADDER_05 = example("05_im2col.py")
MMA = tw.TiledMma(fma(tw.f32, each=(2, 2)), warps=(2, 1), repeats=(2, 2))
TENSOR = tw.TiledMma(MMA_F16, warps=(2, 1), repeats=(1, 4))

CASES = {
    # At least 2 * stages + 1 tiles of K, the last one ragged; ragged edges and several blocks along M and N.
    "basic_gemm": (
        gemm_arrays(61, 45, 43),
        {"tile": (32, 32, 16), "threads": tw.row_major((16, 4)), "mma": MMA, "vector": 1},
    ),
    "pipelined_gemm": (
        gemm_arrays(61, 45, 74, "f16"),
        {"tile": (32, 32, 16), "threads": tw.row_major((16, 4)), "mma": TENSOR, "vector": 2},
    ),
    "optimized_gemm": (
        gemm_arrays(61, 45, 74, "f16", "f16"),
        {
            "tile": (32, 32, 16),
            "threads": tw.Layout((2, 32, 1), (1, 2, 1)),
            "mma": TENSOR,
            "vector": 2,
            "k1": 8,
        },
    ),
    "im2col": (
        {
            "X": np.random.default_rng(0).standard_normal((2, 3, 4, 6, 2, 4), np.float32),
            "Y": np.full((2, 2 * 3 * 2 * 4, 12 * 4), np.nan, np.float32),
        },
        {
            "taps": (2, 2, 3),
            "tile": (32, 8),
            "threads": tw.row_major((8, 2)),
            "vector": 4,
            "stride": (1, 1, 1),
            "padding": ((1, 0), 0, 0),
            "dilation": (1, 2, 1),
        },
    ),
    **{
        name: (gemm_arrays(45, 29, k, "f16"), {"tile": (32, 32, 32), "mma": TENSOR, **more})
        for name, k, more in (
            ("warp_tiles_gemm", 90, {}),
            ("serial", 90, {}),
            ("buffered", 154, {}),
            ("prefetched", 218, {"stages": 3}),
        )
    },
}

PAST_THE_EDGE = "a tile past the edge is invalid: it reads as zeros, which add nothing"
NEVER_READ = "mma -> barrier -> copy_async: the stage is released, and no later turn reads the zeros in it"
OTHER_THREADS = "copy -> barrier -> mma: the barrier orders the copy, whichever thread makes it"
OTHER_ISSUERS = (
    "copy_async -> async_wait -> barrier -> mma: whichever thread makes the copy also waits for it"
)
NARROWER = "copy -> barrier -> mma: the barrier orders the copy, however many accesses it makes"
NARROWER_FIRST = "the thread that loads a value is the one that stores it, in its own order"
ONE_COPY = "the end of the kernel orders its only copy, whichever thread makes it in however many accesses"
THROUGH_SHARED = "copy -> barrier -> copy: the barrier orders the accumulator's way through sC"
NARROWER_LAST = "barrier -> copy: the barrier orders all of sC, whichever thread takes it to C"
WAITS_FOR_MORE = "copy_async -> async_wait(0) -> barrier -> mma: it only waits for the next stage as well"
NARROWER_REGISTERS = "the thread that loads its part of an operand is the one that multiplies it"
ONE_STAGE = "there is one stage: the one before it, and the one after it, is itself"
SPARED = "the layout spares a row: each element still has a place of its own"
WAITS_LONGER = "copy_async -> async_wait -> barrier -> copy: it only waits for later stages as well"

EQUIVALENT = {
    "basic_gemm": {
        "for 0: stops one later": PAST_THE_EDGE,
        "copy 0: threads in another order": OTHER_THREADS,
        "copy 1: threads in another order": OTHER_THREADS,
    },
    "pipelined_gemm": {
        "if 0: always": NEVER_READ,
        "async_wait 0: one fewer pending": WAITS_FOR_MORE,
        **{f"copy_async {number}: threads in another order": OTHER_ISSUERS for number in range(4)},
    },
    "optimized_gemm": {
        "for 0: stops one later": PAST_THE_EDGE,
        **{f"copy {number}: vector halved": NARROWER_FIRST for number in (0, 1, 4, 5)},
        **{f"copy {number}: vector halved": NARROWER for number in (2, 3, 6, 7)},
        "copy 8: vector halved": THROUGH_SHARED,
        "copy 9: threads in another order": NARROWER_LAST,
        **{f"shared {number}: stride 0 -1": SPARED for number in (0, 1)},
    },
    "im2col": {
        "copy 0: vector halved": ONE_COPY,
        "copy 0: threads in another order": ONE_COPY,
    },
    "warp_tiles_gemm": {
        "for 0: stops one later": PAST_THE_EDGE,
        **{f"copy {number}: vector halved": NARROWER_REGISTERS for number in (0, 1)},
    },
    "serial": {
        "for 0: stops one later": PAST_THE_EDGE,
        **{f"copy {number}: threads in another order": OTHER_THREADS for number in (0, 1)},
        **{f"copy {number}: vector halved": NARROWER for number in (0, 1)},
        **{f"copy {number}: vector halved": NARROWER_REGISTERS for number in (2, 3, 4, 5)},
        **{
            f"view {n}: slice 0 {how}": ONE_STAGE for n in (2, 4, 5, 7, 9, 11) for how in ("-1", "one around")
        },
    },
    "buffered": {
        "for 0: stops one later": PAST_THE_EDGE,
        **{f"copy_async {number}: threads in another order": OTHER_ISSUERS for number in range(4)},
        **{f"copy {number}: vector halved": NARROWER_REGISTERS for number in range(4)},
    },
    "prefetched": {
        "for 0: stops one later": PAST_THE_EDGE,
        **{f"async_wait {number}: one fewer pending": WAITS_LONGER for number in (0, 1)},
        **{f"copy_async {number}: threads in another order": OTHER_ISSUERS for number in range(6)},
        **{f"copy {number}: vector halved": NARROWER_REGISTERS for number in range(6)},
    },
}
"""Mutants that compute the same without a hazard, and the happens-before edge or the zeros behind it."""


RESULT = {"im2col": "Y"}
LEAST = {"im2col": 45, "basic_gemm": 75, "warp_tiles_gemm": 100, "pipelined_gemm": 125}
"""Mutants at least."""

RACES = {Kind.READ_WRITE, Kind.WRITE_READ, Kind.IN_FLIGHT, Kind.UNWRITTEN}


def outcome(name: str, mutant: Mutant) -> str:
    """Return the finding that shows that a mutant is wrong, or ``"survived"``."""
    arrays = fresh(name)
    return mutate.outcome(mutant, lambda kernel: run(kernel, arrays), lambda: is_right(name, arrays))


def is_right(name: str, arrays: dict[str, np.ndarray]) -> bool:
    """Return whether the result equals that of a plain computation."""
    if name == "im2col":
        windows, constants = LADDER_05["windows"], CASES[name][1]
        geometry = {key: constants[key] for key in ("taps", "stride", "dilation", "padding")}
        return np.array_equal(arrays["Y"], LADDER_05["matrix_of"](windows(arrays["X"], **geometry)))
    how = Accumulation.of(CASES[name][1]["mma"].atom)
    return compare_gemm(arrays["A"], arrays["B"].T, arrays["C"], how).ok


def fresh(name: str) -> dict[str, np.ndarray]:
    """Return the arrays of a case, with a poisoned result."""
    arrays, _ = CASES[name]
    return {**arrays, RESULT.get(name, "C"): arrays[RESULT.get(name, "C")].copy()}


def executed(name: str, change: str) -> Report:
    [mutant] = every_mutant(name, {change})
    assert mutant.kernel is not None
    return run(mutant.kernel, fresh(name))


def every_mutant(name: str, wanted: Container[str] | None = None) -> list[Mutant]:
    arrays, constants = CASES[name]
    return list(mutants(traced(name, arrays, **constants), wanted))


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_itself_is_clean(name) -> None:
    arrays, constants = fresh(name), CASES[name][1]
    kernel = traced(name, arrays, **constants)
    assert not verify.violations(kernel)
    report = run(kernel, arrays)
    report.raise_if_any()
    assert report.uncovered == {RESULT.get(name, "C"): 0}
    assert is_right(name, arrays)


@pytest.mark.in_turns(5)
@pytest.mark.parametrize("name", CASES)
def test_every_mutant_is_found_or_equivalent_for_a_named_reason(name) -> None:
    outcomes = {mutant.name: outcome(name, mutant) for mutant in every_mutant(name)}
    assert len(outcomes) >= LEAST.get(name, 195)
    assert {mutant for mutant, found in outcomes.items() if found == "survived"} == set(EQUIVALENT[name])


BARRIERS = {
    "basic_gemm": 2,
    "pipelined_gemm": 2,
    "optimized_gemm": 4,
    "serial": 2,
    "buffered": 1,
    "prefetched": 2,
}


@pytest.mark.parametrize(
    ("name", "change"),
    [(name, f"barrier {n}: removed") for name, count in BARRIERS.items() for n in range(count)],
)
def test_a_missing_barrier_is_a_race(name, change) -> None:
    report = executed(name, change)
    assert {finding.kind for finding in report.findings} <= RACES
    assert report.findings


@pytest.mark.parametrize("name", BARRIERS)
@pytest.mark.parametrize(
    "change", [f"shared {n}: {how}" for n in (0, 1) for how in ("one element short", "half")]
)
def test_a_short_allocation_is_found_by_running_too(name, change) -> None:
    report = executed(name, change)
    assert Kind.OUT_OF_BOUNDS in {finding.kind for finding in report.findings}


@pytest.mark.parametrize("change", ["async_wait 0: removed", "async_wait 0: one more pending"])
def test_a_missing_wait_is_an_access_in_flight(change) -> None:
    report = executed("pipelined_gemm", change)
    assert report.findings[0].kind is Kind.IN_FLIGHT
    assert "has not waited for its copy" in str(report.findings[0])


def test_the_published_pipelines_missing_barrier_is_named_with_both_lines() -> None:
    """Warps race between the multiplications of a tile and the next asynchronous copy over it."""
    races = [f for f in executed("buffered", "barrier 0: removed").findings if f.kind is Kind.READ_WRITE]
    assert {finding.tensor for finding in races} == {"sA", "sB"}
    for finding in races:
        assert finding.earlier is not None
        assert (finding.earlier.op.verb, finding.access.op.verb) == ("copy", "copy_async")
        text = str(finding)
        assert "tw.load(" in text
        assert "tw.copy_async(self.tiles[k]" in text
        assert "no barrier" in text
