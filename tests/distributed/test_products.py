"""Products over 2, 3 and 4 processes, compared with float64 on every rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.distributed.cases import CASES
from tests.distributed.ranks import failures, run_ranks


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks(size: int, tmp_path: Path) -> None:
    failed = failures([case.__name__ for case in CASES], run_ranks(size, tmp_path, CASES))
    assert not failed, failed
