"""A copy was cut at an edge and its reader was not: the reader finds elements of an earlier iteration."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.targets.reference import Kind

from .test_aliases import matrix


@tw.kernel(X="M N", Y="N")
def column_sums(X, Y, *, cut_write, cut_read):
    """``Y[n] = sum_m X[m, n]``, 16 rows at a time through shared memory; the last time fewer rows."""
    held = tw.shared((16, 32), X.dtype)
    total = tw.fragment(tw.blocked((1, 32), (1, 32)), X.dtype, fill=0)
    for k in tw.range(tw.ceil_div(X.shape[0], 16)):
        rows = tw.let(tw.minimum(X.shape[0] - 16 * k, 16))
        part = held[0:rows].tile((16, 32), (0, 0))
        tw.copy(X.tile((16, 32), (k, 0)), part if cut_write else held, threads=(1, 32))
        tw.barrier()
        source = part if cut_read else held
        values = tw.load(source.partition((1, 32)))
        total += tw.reduce_sum(values, 0)
        tw.barrier()
    tw.copy(total, Y.broadcast(0, 1).tile((1, 32), (0, 0)))


@tw.kernel(X="M N", Y="M N")
def trailing(X, Y):
    """Iteration k writes only rows from k on, by a tile that crosses the edge; the end reads all rows."""
    held = tw.shared((16, 32), X.dtype)
    for k in tw.range(4):
        tw.copy(X.tile((16, 32), (0, 0)), held[k:].tile((16, 32), (0, 0)), threads=(1, 32))
        tw.barrier()
    tw.copy(held, Y.tile((16, 32), (0, 0)), threads=(1, 32))


@tw.kernel(X="M N", Y="R N")
def window(X, Y):
    """A ring of three stages; each iteration writes one and reads all."""
    held = tw.shared((48, 32), X.dtype)
    tw.copy(X.tile((48, 32), (0, 0)), held, threads=(1, 32))
    tw.barrier()
    for k in tw.range(4):
        tw.copy(X.tile((16, 32), (k, 0)), held.tile((16, 32), (k % 3, 0)), threads=(1, 32))
        tw.barrier()
        tw.copy(held, Y.tile((48, 32), (0, 0)), threads=(1, 32))
        tw.barrier()


def checked(rows, **how):
    return column_sums.check(matrix(rows, 32), np.zeros(32, np.float32), **how)


@pytest.mark.parametrize(("cut_write", "cut_read"), [(False, False), (True, True), (False, True)])
@pytest.mark.parametrize("rows", [16, 20, 32, 41])
def test_all_of_a_tile_is_written_or_no_more_is_read(rows, cut_write, cut_read) -> None:
    x, y = matrix(rows, 32), np.zeros(32, np.float32)
    how = {"cut_write": cut_write, "cut_read": cut_read}
    assert column_sums.check(x, y, **how).is_clean
    column_sums(x, y, target="reference", **how)
    assert np.array_equal(y, x.sum(axis=0))


@pytest.mark.parametrize("rows", [20, 41])
def test_rows_of_an_earlier_turn_are_found(rows) -> None:
    [finding] = checked(rows, cut_write=True, cut_read=False).findings
    left = 16 - rows % 16
    assert (finding.kind, finding.tensor, finding.element) == (Kind.STALE, "held", (rows % 16, 0))
    assert finding.count == 32 * left
    assert finding.earlier is not None
    assert (finding.earlier.action, finding.access.action) == ("write", "read")
    assert "the value is from an earlier iteration" in str(finding)


def test_whole_turns_leave_nothing() -> None:
    assert checked(48, cut_write=True, cut_read=False).is_clean


def test_rows_that_nothing_wrote_are_unwritten_not_stale() -> None:
    kinds = {finding.kind for finding in checked(10, cut_write=True, cut_read=False).findings}
    assert kinds == {Kind.UNWRITTEN}


def test_what_hangs_over_the_tensor_has_no_place_in_it() -> None:
    x = matrix(16, 32)
    assert trailing.check(x, np.zeros_like(x)).is_clean


def test_a_window_over_earlier_turns_is_meant() -> None:
    assert window.check(matrix(64, 32), np.zeros((48, 32), np.float32)).is_clean
