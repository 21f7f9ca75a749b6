"""Copies onto themselves: what one operation reads and writes at different places of a tile."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.targets.reference import Kind

from .test_aliases import matrix

ROWS = (32, 1)
"""Threads: one lane for each row, so that no two threads touch one element."""


@tw.kernel(X="M N", Y="M N")
def shifted(X, Y, *, by, loaded):
    """Eight columns of a shared tile ``by`` columns further, each row by one lane."""
    held = tw.shared((32, 16), X.dtype)
    tw.copy(X.tile((32, 16), (0, 0)), held, threads=ROWS)
    if loaded:
        tw.copy(tw.load(held[:, 0:8].partition(ROWS)), held[:, by : by + 8])
    else:
        tw.copy(held[:, 0:8], held[:, by : by + 8], threads=ROWS)
    tw.copy(held, Y.tile((32, 16), (0, 0)), threads=ROWS)


@tw.kernel(X="M N", Y="M N")
def moved(X, Y):
    tw.copy(X.tile((32, 16), (0, 0)), Y.tile((32, 16), (0, 0)), threads=ROWS)


def want(x, by):
    y = x.copy()
    y[:, by : by + 8] = x[:, :8]
    return y


@pytest.mark.parametrize("by", [0, 8])
def test_a_copy_to_where_it_is_or_past_itself_is_clean(by) -> None:
    x = matrix(32, 16)
    assert shifted.check(x, np.zeros_like(x), by=by, loaded=False).is_clean


@pytest.mark.parametrize("by", [1, 3, 7])
def test_a_shifted_copy_onto_itself_is_found_though_each_lane_keeps_to_its_row(by) -> None:
    x = matrix(32, 16)
    [finding] = shifted.check(x, np.zeros_like(x), by=by, loaded=False).findings
    assert (finding.kind, finding.tensor, finding.element) == (Kind.OVERLAP, "held", (0, by))
    assert finding.count == 32 * (8 - by)
    assert "copy onto itself on shared held" in str(finding)
    assert "with tw.load" in str(finding)


@pytest.mark.parametrize("by", [1, 7])
def test_by_way_of_registers_it_is_clean_and_every_target_agrees(by) -> None:
    x = matrix(32, 16)
    assert shifted.check(x, np.zeros_like(x), by=by, loaded=True).is_clean
    for target in ("reference", "cpu"):
        y = np.zeros_like(x)
        shifted(x, y, by=by, loaded=True, target=target)
        assert np.array_equal(y, want(x, by)), target


def test_arguments_that_overlap_are_one_tensor_here_too() -> None:
    x = matrix(32, 40)
    assert moved.check(x[:, :16], x[:, 16:32]).is_clean
    assert moved.check(x[:, :16], x[:, :16]).is_clean
    [finding] = moved.check(x[:, :16], x[:, 2:18]).findings
    assert (finding.kind, finding.count) == (Kind.OVERLAP, 32 * 14)
