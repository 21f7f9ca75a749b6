"""A rank that ends, or does not come, ends the calls of the others, with an error that names it."""

from __future__ import annotations

from pathlib import Path

from tests.distributed import faults
from tests.distributed.ranks import Failed, run_ranks


def test_a_rank_that_ends_before_the_call(tmp_path: Path) -> None:
    [[one, other, gone]] = run_ranks(3, tmp_path, [faults.ends_before])
    assert isinstance(gone, Failed)
    assert "exit status 7" in gone.why
    for said, seconds in (one, other):
        assert "matmul_all_reduce (call 1 of the group)" in said, said
        assert "rank 2 ended, or left the call with an error; this rank waited" in said, said
        assert "faults.py:" in said
        assert seconds < 20


def test_a_rank_that_ends_during_the_call(tmp_path: Path) -> None:
    [[one, gone]] = run_ranks(2, tmp_path, [faults.ends_during])
    assert isinstance(gone, Failed)
    assert "exit status 8" in gone.why
    assert "rank 1 ended, or left the call with an error" in one[0], one
    assert "for partial sums" in one[0]
    assert one[1] < 20


def test_a_rank_that_does_not_come(tmp_path: Path) -> None:
    [[(said, seconds, again), other, _]] = run_ranks(3, tmp_path, [faults.comes_late])
    assert "rank 2 did not come; this rank waited 2.0 s of at most 2 s (timeout=)" in said, said
    assert faults.LATE_S <= seconds < faults.LATE_S + 10
    assert "this group cannot be used after an earlier failure" in again
    assert "rank 2" in other[0]
