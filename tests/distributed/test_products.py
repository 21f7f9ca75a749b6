"""Products over 2, 3 and 4 processes, compared with float64 on every rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.distributed import cases
from tests.distributed.faults import comes_late
from tests.distributed.ranks import failures, run_ranks

CASES = {
    2: cases.CASES,
    3: [
        cases.gathers,
        cases.scatters,
        cases.narrow_parts,
        cases.repeated,
        cases.orders,
        cases.gradients,
        cases.disagreements,
        cases.alone_refused,
        cases.decisions,
        comes_late,
    ],
    4: [cases.gathers, cases.scatters, cases.equal_bits, cases.invariant, cases.threads],
}
"""Two ranks run every case; others run those in which the number of ranks matters most."""


@pytest.mark.parametrize("size", CASES)
def test_ranks(size: int, tmp_path: Path) -> None:
    chosen = CASES[size]
    failed = failures([case.__name__ for case in chosen], run_ranks(size, tmp_path, chosen))
    assert not failed, failed
