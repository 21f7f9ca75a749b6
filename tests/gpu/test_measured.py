"""Nsight Compute counts on a GPU what `inspect` predicts. The test fails without `ncu`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tilewright.inspect.comparison import (
    ASYNC_PASSES,
    CONFLICTS,
    DURATION,
    LOAD_PASSES,
    LOADS,
    MATRIX_LOAD_PASSES,
    MATRIX_LOADS,
    MATRIX_STORE_PASSES,
    MATRIX_STORES,
    METRICS,
    PASSES,
    REGISTERS,
    STORE_PASSES,
    STORES,
    compare,
    require_gpu,
)

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import conflicts

pytestmark = pytest.mark.gpu

COUNTED = (
    *(LOADS, LOAD_PASSES, MATRIX_LOADS, MATRIX_LOAD_PASSES),
    *(STORES, STORE_PASSES, MATRIX_STORES, MATRIX_STORE_PASSES),
    *(ASYNC_PASSES, PASSES, CONFLICTS, REGISTERS),
)


@pytest.mark.parametrize("name", conflicts.CASES)
def test_what_is_counted_is_exactly_what_was_predicted(name: str) -> None:
    """Tiles are whole: a cut tile stores fewer elements."""
    case = conflicts.CASES[name]
    found = compare(case.subject(quick=True), require_gpu(), case.arguments(quick=True))
    assert not found.unknown
    asynchronous = found.measured[ASYNC_PASSES] > 0
    assert set(METRICS.values()) <= set(found.measured)
    assert found.measured[DURATION] > 0
    unpredicted = {ASYNC_PASSES, PASSES, CONFLICTS} if asynchronous else set()
    if name.split()[0] in ("03", "10"):  # Nsight Compute adds what `wgmma` reads to the sum
        unpredicted = {PASSES}
    assert set(COUNTED) - set(found.predicted) == unpredicted
    counted = {figure: found.measured[figure] for figure in COUNTED if figure in found.predicted}
    assert counted == {figure: found.predicted[figure] for figure in counted}
