"""The checker's findings and their messages, and what it does not find."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import HazardError
from tilewright.ir import verify
from tilewright.targets.atoms import MMA_F16
from tilewright.targets.reference import Kind, Report, run
from tilewright.targets.reference.findings import Findings
from tilewright.targets.reference.report import Counters

from .kernels import gemm_arrays, trace

MMA = tw.TiledMma(MMA_F16, warps=(1, 2), repeats=(2, 2))
TILES = {"tile": (32, 32, 16), "threads": tw.row_major((16, 4)), "mma": MMA, "vector": 2}
TURNS = 5 * 16 - 6


def findings(name, arrays, lanes=None, **constants):
    return run(trace(name, arrays, **constants), arrays, lanes=lanes).findings


def kinds(found):
    return {finding.kind for finding in found}


def gemm(name, **constants):
    return findings(name, gemm_arrays(40, 33, TURNS, "f16"), **{**TILES, **constants})


def square(rows=32, columns=32):
    return {
        "X": np.arange(rows * columns, dtype=np.float32).reshape(rows, columns),
        "Y": np.zeros((rows, columns), np.float32),
    }


def test_the_basic_gemm_is_clean() -> None:
    assert gemm("basic_gemm") == ()


def test_the_published_gemm_overwrites_what_others_still_read(golden) -> None:
    found = gemm("seed_gemm")
    assert {Kind.READ_WRITE, Kind.WRITE_READ} == kinds(found)
    races = {finding.tensor: finding for finding in found if finding.kind is Kind.READ_WRITE}
    assert set(races) == {"sA", "sB"}
    for finding in races.values():
        assert finding.earlier is not None
        assert (finding.earlier.op.name, finding.access.op.name) == ("mma", "copy")
        text = str(finding)
        assert "tw.mma(sA, sB, acc)" in text
        assert f"tw.copy({finding.tensor[1]}.tile(" in text
        assert "no barrier" in text
    assert "no barrier between the two accesses" in str(races["sA"])
    golden(str(races["sA"]) + "\n", "published_gemm.txt")


def test_the_pipelined_gemm_is_clean() -> None:
    assert gemm("pipelined_gemm") == ()
    assert gemm("pipelined_gemm", pending=0) == ()


def test_waiting_for_one_group_too_few_leaves_copies_in_flight(golden) -> None:
    found = gemm("pipelined_gemm", pending=2)
    assert kinds(found) == {Kind.IN_FLIGHT}
    golden(str(found[0]) + "\n", "in_flight.txt")


def test_a_stage_filled_before_its_release_is_found() -> None:
    found = gemm("pipelined_gemm", early=True)
    assert Kind.IN_FLIGHT in kinds(found)
    assert any(f.access.action == "read" and f.access.op.name == "mma" for f in found)


def test_a_short_allocation_is_refused_and_found(golden) -> None:
    """The tutorial's optimised GEMM allocates 8196 elements, and its layout reaches 8216."""
    arrays = {"A": np.ones((256, 32), np.float16), "B": np.zeros((256, 32), np.float16)}
    assert findings("padded_layout", arrays, elems=8216) == ()
    assert (arrays["B"] == 1).all()
    kernel = trace("padded_layout", arrays, elems=8196)
    assert [v.rule for v in verify.violations(kernel)] == ["shared allocation"]
    found = run(kernel, arrays).findings
    assert kinds(found) == {Kind.OUT_OF_BOUNDS}
    assert [(f.access.action, f.count) for f in found] == [("write", 20), ("read", 20)]
    golden(str(found[0]) + "\n", "out_of_bounds.txt")


def test_lanes_of_one_warp_race_without_a_warp_barrier(golden) -> None:
    arrays = square()
    assert findings("exchange", arrays, ordered=True) == ()
    assert (arrays["Y"] == arrays["X"]).all()
    [finding] = findings("exchange", square(), ordered=False)
    assert finding.kind is Kind.WRITE_READ
    assert finding.earlier is not None
    assert finding.earlier.warp == finding.access.warp
    golden(str(finding) + "\n", "one_warp.txt")


def test_warps_of_sixteen_lanes_need_more_than_a_warp_barrier() -> None:
    found = findings("exchange", square(), lanes=16, ordered=True)
    assert kinds(found) == {Kind.UNWRITTEN, Kind.READ_WRITE, Kind.WRITE_READ}
    assert any("no barrier between the two accesses" in str(finding) for finding in found)


def test_reading_what_no_one_wrote_is_found(golden) -> None:
    assert findings("half_written", square(columns=8), rows=32) == ()
    [finding] = findings("half_written", square(columns=8), rows=16)
    assert finding.kind is Kind.UNWRITTEN
    assert finding.element == (16, 0)
    assert finding.count == 16 * 8
    golden(str(finding) + "\n", "unwritten.txt")


def test_blocks_that_write_the_same_rows_are_found() -> None:
    arrays = {"X": np.ones((64, 8), np.float32), "Y": np.zeros((256, 8), np.float32)}
    assert findings("overlapping_blocks", arrays, step=64) == ()
    [finding] = findings("overlapping_blocks", arrays, step=63)
    assert finding.kind is Kind.WRITE_WRITE
    assert finding.count == 3 * 8
    assert "nothing orders two blocks" in str(finding)
    assert finding.earlier is not None
    assert (finding.earlier.block, finding.access.block) == ((0,), (1,))


def test_a_report_raises_what_it_found() -> None:
    arrays = square(columns=8)
    report = run(trace("half_written", arrays, rows=16), arrays)
    assert not report.is_clean
    with pytest.raises(
        HazardError, match=r"(?s)1 finding\nran 1 block .*\n\nunwritten read on shared held\[16, 0\]"
    ):
        report.raise_if_any()


def test_what_is_not_checked_is_executed_all_the_same() -> None:
    arrays = gemm_arrays(40, 33, TURNS, "f16")
    report = run(trace("seed_gemm", arrays, **TILES), arrays, check=False)
    assert report.is_clean
    assert report.counters.banks == ()


def test_a_report_says_how_much_it_leaves_out() -> None:
    found = Findings(limit=1)
    [one, *_] = gemm("seed_gemm")
    for key in ("a", "b", "a", "c"):
        if found.is_new((key,), 10):
            found.add((key,), one)
    assert [finding.count for finding in found.all()] == [20]
    report = Report("k", found.all(), found.omitted, Counters(), {}, 1)
    assert str(report).startswith("kernel k: 3 findings\n")
    assert str(report).endswith("and 2 more")
