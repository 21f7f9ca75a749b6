"""A rank that ends, ends the calls of the others, with an error that names it; `faults.py` has a late one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.distributed import faults
from tests.distributed.ranks import Failed, run_ranks


@pytest.mark.parametrize(
    ("case", "status", "awaited"),
    [
        (faults.ends_before, 7, "its header"),
        (faults.ends_during, 8, "partial sums"),
        (faults.ends_before_sends, 8, "partial sums"),
    ],
)
def test_a_rank_that_ends(case: Callable[[int, int], Any], status: int, awaited: str, tmp_path: Path) -> None:
    [[(said, seconds), gone]] = run_ranks(2, tmp_path, [case])
    assert isinstance(gone, Failed)
    assert f"exit status {status}" in gone.why
    assert "matmul_all_reduce (call 1 of the group) on rank 0, at faults.py:" in said, said
    assert "rank 1 ended, or left the call with an error; this rank waited" in said, said
    assert f"for {awaited}." in said, said
    assert seconds < 20
