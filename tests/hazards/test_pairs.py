"""The checker's findings in clusters, and their messages."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.targets.reference import Kind, Report, run

from .pairs import ROWS, trace

TILES = 5


def moved(wrong: str = "", tiles: int = TILES, check: bool = True) -> tuple[Report, bool]:
    """Return the report, and whether each block loaded all rows."""
    x = np.random.default_rng(0).integers(-9, 9, (tiles * ROWS, 64)).astype(np.float16)
    arrays = {"X": x, "Y": np.full((2 * len(x), 64), np.nan, np.float16)}
    report = run(trace(arrays, wrong), arrays, check=check)
    return report, bool((arrays["Y"] == np.concatenate([x, x])).all())


@pytest.mark.parametrize("tiles", [0, 1, 2, TILES])
@pytest.mark.parametrize("variant", ["", "waits for its last stages instead"])
def test_the_kernels_themselves_are_clean_and_right(tiles, variant) -> None:
    report, right = moved(variant, tiles)
    report.raise_if_any()
    assert right
    assert report.blocks == 2


WRONG = {
    "no cluster barrier at the start": (
        Kind.UNINITIALISED,
        "full",
        "no cluster_barrier between the initialisation of full of block (1,), by one thread, and its use by",
    ),
    "no cluster barrier at the end": (
        Kind.ENDED,
        "",
        "block (0,) may have ended before this arrival at its empty[0]: it does not wait for that phase",
    ),
    "one block passes the last barrier by": (
        Kind.DIVERGENCE,
        "",
        "warps 0, 1, 2 of block (1,) ended without arriving at the cluster_barrier that the others wait at",
    ),
    "releases one block": (
        Kind.DEADLOCK,
        "",
        "warp 0 of block (1,) waits for empty[0] phase 0: 2 of 4 arrivals",
    ),
    "counts one block": (Kind.PHASE, "empty", "the barrier is that of block ("),
    "releases and counts one block": (
        Kind.READ_WRITE,
        "held",
        "nothing orders the two blocks here: no arrive at a barrier of the other block and wait there",
    ),
    "no wait for empty": (
        Kind.TRANSACTION,
        "full",
        "write by block (0,) of rank 0 in its cluster, TMA load into block (1,) of warp 0",
    ),
    "expects half": (
        Kind.TRANSACTION,
        "full",
        "phase 0 waits for 1024 bytes, but copies of 2048 bytes count for it",
    ),
    "expects too much": (
        Kind.DEADLOCK,
        "",
        "warps 1 to 2 of block (0,) wait for full[0] phase 0: 1 of 1 arrivals, 2048 of 2064 bytes",
    ),
    "to one block": (
        Kind.DEADLOCK,
        "",
        "warps 1 to 2 of block (1,) wait for full[0] phase 0: 1 of 1 arrivals, 1024 of 2048 bytes",
    ),
    "one block leaves the last tile": (
        Kind.ENDED,
        "",
        "block (1,) ends before the copy has: nothing waits for full[0] phase 2",
    ),
    "a block that is not there": (
        Kind.OUT_OF_BOUNDS,
        "",
        "rank 2 in a cluster of the ranks 0 to 1",
    ),
    "no fence": (Kind.PROXY, "held", "no fence_async of warp 1 of block ("),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_with_a_pair(wrong) -> None:
    kind, tensor, text = WRONG[wrong]
    report, _ = moved(wrong)
    told = [str(f) for f in report.findings if (f.kind, f.tensor) == (kind, tensor)]
    assert any(text in each for each in told), str(report)


@pytest.mark.parametrize("wrong", WRONG)
def test_findings_name_the_block(wrong) -> None:
    report, _ = moved(wrong)
    assert report.findings
    for finding in report.findings:
        assert finding.access.rank == finding.access.block[0]
        assert f"block {finding.access.block} of rank {finding.access.rank} in its cluster" in str(finding)


def test_a_standstill_says_who_waits_for_what(golden) -> None:
    golden(str(moved("releases one block")[0]) + "\n", "cluster_deadlock.txt")


def test_an_overwritten_stage_of_another_block(golden) -> None:
    report, _ = moved("releases and counts one block")
    first = next(finding for finding in report.findings if finding.kind is Kind.READ_WRITE)
    golden(str(first) + "\n", "cluster_overwritten.txt")


@pytest.mark.parametrize("wrong", ["no cluster barrier at the end", "no cluster barrier at the start"])
def test_who_does_not_ask_is_not_told(wrong) -> None:
    report, _ = moved(wrong, check=False)
    assert report.is_clean
