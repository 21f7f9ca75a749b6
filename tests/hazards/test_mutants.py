"""Every mutant of a correct GEMM is found, or is equivalent for a reason that is named here."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.errors import LegalityError
from tilewright.ir import verify
from tilewright.runtime.compare import Accumulation, compare_gemm
from tilewright.targets.atoms import MMA_F16, fma
from tilewright.targets.reference import Kind, Report, run

from .kernels import gemm_arrays
from .ladder import traced
from .mutate import Mutant, mutants

MMA = tw.TiledMma(fma(tw.f32, each=(2, 2)), warps=(2, 1), repeats=(2, 2))
TENSOR = tw.TiledMma(MMA_F16, warps=(2, 1), repeats=(1, 4))

CASES = {
    # At least 2 * stages + 1 tiles of K, the last one ragged; ragged edges and several blocks along M and N.
    "basic_gemm": (
        gemm_arrays(61, 45, 43),
        {"tile": (32, 32, 16), "threads": (16, 4), "mma": MMA, "vector": 1},
    ),
    "pipelined_gemm": (
        gemm_arrays(61, 45, 74, "f16"),
        {"tile": (32, 32, 16), "threads": (16, 4), "mma": TENSOR, "vector": 2},
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
}

PAST_THE_EDGE = "a tile past the edge is invalid: it reads as zeros, which add nothing"
NEVER_READ = "mma -> barrier -> copy_async: the stage is released, and no later turn reads the zeros in it"
OTHER_THREADS = "copy -> barrier -> mma: the barrier orders the copy, whichever thread makes it"
OTHER_ISSUERS = (
    "copy_async -> async_wait -> barrier -> mma: whichever thread makes the copy also waits for it"
)
NARROWER = "copy -> barrier -> mma: the barrier orders the copy, however many accesses it makes"
NARROWER_FIRST = "the thread that loads a value is the one that stores it, in its own order"
THROUGH_SHARED = "copy -> barrier -> copy: the barrier orders the accumulator's way through sC"
NARROWER_LAST = "barrier -> copy: the barrier orders all of sC, whichever thread takes it to C"
WAITS_FOR_MORE = "copy_async -> async_wait(0) -> barrier -> mma: it only waits for the next stage as well"

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
    },
}
"""Mutants that compute the same without a hazard, and the happens-before edge or the zeros behind it."""


RACES = {Kind.READ_WRITE, Kind.WRITE_READ, Kind.IN_FLIGHT, Kind.UNWRITTEN}


def outcome(name: str, mutant: Mutant) -> str:
    """``"refused"``, ``"legality"``, ``"finding"``, ``"wrong result"`` or ``"survived"``."""
    if mutant.kernel is None:
        return "refused"
    if verify.violations(mutant.kernel):
        return "legality"
    arrays, _ = CASES[name]
    arrays = {**arrays, "C": arrays["C"].copy()}
    try:
        report = run(mutant.kernel, arrays)
    except LegalityError:
        return "legality"
    if report.findings:
        return "finding"
    how = Accumulation.of(CASES[name][1]["mma"].atom)
    right = compare_gemm(arrays["A"], arrays["B"].T, arrays["C"], how)
    return "survived" if right.ok else "wrong result"


def executed(name: str, change: str) -> Report:
    [mutant] = [mutant for mutant in every_mutant(name) if mutant.name == change]
    assert mutant.kernel is not None
    arrays, _ = CASES[name]
    return run(mutant.kernel, {**arrays, "C": arrays["C"].copy()})


def every_mutant(name: str) -> list[Mutant]:
    arrays, constants = CASES[name]
    return list(mutants(traced(name, arrays, **constants)))


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_itself_is_clean(name) -> None:
    arrays, constants = CASES[name]
    arrays = {**arrays, "C": arrays["C"].copy()}
    kernel = traced(name, arrays, **constants)
    assert not verify.violations(kernel)
    report = run(kernel, arrays)
    report.raise_if_any()
    assert report.uncovered == {"C": 0}
    how = Accumulation.of(constants["mma"].atom)
    compare_gemm(arrays["A"], arrays["B"].T, arrays["C"], how).raise_if_wrong()


@pytest.mark.parametrize("name", CASES)
def test_every_mutant_is_found_or_equivalent_for_a_named_reason(name) -> None:
    outcomes = {mutant.name: outcome(name, mutant) for mutant in every_mutant(name)}
    assert len(outcomes) >= 40
    assert {mutant for mutant, found in outcomes.items() if found == "survived"} == set(EQUIVALENT[name])


BARRIERS = {"basic_gemm": 2, "pipelined_gemm": 2, "optimized_gemm": 4}


@pytest.mark.parametrize(
    ("name", "change"),
    [(name, f"barrier {n}: removed") for name, count in BARRIERS.items() for n in range(count)],
)
def test_a_missing_barrier_is_a_race(name, change) -> None:
    report = executed(name, change)
    assert {finding.kind for finding in report.findings} <= RACES
    assert report.findings


@pytest.mark.parametrize("name", CASES)
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
