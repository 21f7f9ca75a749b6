"""The checker finds elements that are never written, and outputs that are read before they are written."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import LaunchError
from tilewright.targets.reference import Kind

from .test_aliases import matrix


@tw.kernel(X="M N", Y="M N")
def doubled(X, Y, *, missing=0):
    """Double tiles of 32 rows; the grid lacks the last tiles."""
    m = tw.block_index(tw.ceil_div(X.shape[0], 32) - missing)
    tw.copy(tw.load(X.tile((32, 8), (m, 0)).partition((32, 1))) * 2, Y.tile((32, 8), (m, 0)))


@tw.kernel(A="M N", C="M N", beta=tw.f32)
def scaled_sum(A, C, beta):
    """``C = A + beta C``; it reads C even if beta is 0."""
    m = tw.block_index(tw.ceil_div(A.shape[0], 32))
    a, c = (tw.load(T.tile((32, 8), (m, 0)).partition((32, 1))) for T in (A, C))
    tw.copy(a + c * beta, C.tile((32, 8), (m, 0)))


@tw.kernel(X="M N", W="M N", Y="M N")
def through_workspace(X, W, Y, *, first):
    """Copy through a workspace of the caller in which only the ``first`` rows were written."""
    tw.copy(X.tile((first, 8), (0, 0)), W.tile((first, 8), (0, 0)), threads=(first, 1))
    tw.barrier()
    tw.copy(W.tile((32, 8), (0, 0)), Y.tile((32, 8), (0, 0)), threads=(32, 1))


@pytest.mark.parametrize("rows", [64, 70, 96])
def test_a_grid_that_covers_all_is_clean_and_one_too_small_is_not(rows) -> None:
    x = matrix(rows, 8)
    assert doubled.check(x, np.zeros_like(x)).is_clean
    report = doubled.check(x, np.zeros_like(x), missing=1)
    [finding] = report.findings
    first = (rows - 1) // 32 * 32
    assert (finding.kind, finding.tensor, finding.element) == (Kind.UNCOVERED, "Y", (first, 0))
    assert finding.count == (rows - first) * 8 == report.uncovered["Y"]
    text = str(finding)
    assert text.startswith(f"elements never written on global Y[{first}, 0], {finding.count} elements in all")
    assert "test_coverage.py" in text
    assert 'check(..., partial=("Y",))' in text


def test_no_block_at_all_leaves_everything() -> None:
    x = matrix(32, 8)
    [finding] = doubled.check(x, np.zeros_like(x), missing=1).findings
    assert finding.count == 32 * 8


def test_what_is_meant_to_be_partial_is_clean() -> None:
    x = matrix(64, 8)
    assert doubled.check(x, np.zeros_like(x), missing=1, partial=("Y",)).is_clean
    assert doubled.check(x, np.zeros_like(x), missing=1, partial="Y").uncovered == {"Y": 256}


def test_a_launch_on_the_reference_may_be_partial() -> None:
    x = matrix(64, 8)
    y = np.zeros_like(x)
    doubled(x, y, missing=1, target="reference")
    assert np.array_equal(y, np.concatenate([2 * x[:32], 0 * x[32:]]))


def test_an_output_that_is_read_first_is_found_where_it_is_named() -> None:
    a, c = matrix(64, 8), np.full((64, 8), np.nan, np.float32)
    assert scaled_sum.check(a, c, 1.0).is_clean, "C may hold numbers, which the sum is meant to read"
    [finding] = scaled_sum.check(a, c, 0.0, outputs="C").findings
    assert (finding.kind, finding.tensor, finding.count) == (Kind.UNWRITTEN, "C", 64 * 8)
    assert doubled.check(a, c, outputs=("Y",)).is_clean


def test_a_workspace_that_is_read_before_it_is_written_is_found() -> None:
    x = matrix(32, 8)
    for first, count in ((32, 0), (16, 16 * 8)):
        kernel = through_workspace.bind(first=first)
        assert kernel.check(x, np.zeros_like(x), np.zeros_like(x), partial="W").is_clean
        found = kernel.check(x, np.zeros_like(x), np.zeros_like(x), outputs="W", partial="W").findings
        assert [(f.kind, f.tensor, f.count) for f in found] == [(Kind.UNWRITTEN, "W", count)] * bool(count)


def test_what_no_kernel_writes_is_no_output() -> None:
    x = matrix(32, 8)
    with pytest.raises(
        LaunchError, match=r"outputs='X' is not an array that the kernel writes; nearest legal choice: Y"
    ):
        doubled.check(x, np.zeros_like(x), outputs="X")
    with pytest.raises(LaunchError, match="partial='Z'"):
        doubled.check(x, np.zeros_like(x), partial=("Y", "Z"))
    with pytest.raises(LaunchError, match=r"Y is listed in outputs=, .* but it shares memory with X"):
        doubled.check(x, x, outputs="Y")
