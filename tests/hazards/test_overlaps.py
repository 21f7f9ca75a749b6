"""One operation accesses an element twice: at different coordinates, or by writing it twice."""

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
    """Move eight columns of a shared tile by ``by`` columns, each row by one lane."""
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


LANES = {"rows": (32, 1), "columns": (1, 8), "both": (4, 8)}
"""Threads of a (32, 8) tile: a lane has a row, a column, or some rows of one column."""


@tw.kernel(X="M N", Y="M N")
def broadcast_writes(X, Y, *, along, threads, memory="shared", how="copy", vector=None):
    """Write a (32, 8) tile to a view that may be broadcast along a dimension of its (32, 8) tensor."""
    held = tw.shared((32, 8), X.dtype)
    whole = held if memory == "shared" else Y.tile((32, 8), (0, 0))
    view = {
        "": lambda: whole,
        "columns": lambda: whole[:, 0].broadcast(1, 8),
        "rows": lambda: whole[0, :].broadcast(0, 32),
    }[along]()
    x = X.tile((32, 8), (0, 0))
    if how == "sum":
        tw.copy(tw.fragment(tw.blocked((32, 8), threads), X.dtype, 0), whole)
        tw.barrier()
        tw.copy(tw.load(x, tw.blocked((32, 8), threads)), view, reduction="add")
    elif how == "async":
        tw.copy_async(x, view, threads=threads, vector=vector)
        tw.async_commit()
        tw.async_wait(0)
    else:
        tw.copy(x, view, threads=threads, vector=vector)
    if memory == "shared":
        tw.barrier()
        read = held if how == "sum" else view  # a view that is broadcast may be read
        tw.copy(read, Y.tile((32, 8), (0, 0)), threads=(32, 1))


def kinds_of(**how) -> set[Kind]:
    x = matrix(32, 8)
    given = {"along": "", "threads": (32, 1), **how}
    partial = "Y" if given.get("memory") == "global" else ()
    return {f.kind for f in broadcast_writes.check(x, np.zeros_like(x), partial=partial, **given).findings}


@pytest.mark.parametrize("memory", ["shared", "global"])
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("along", ["rows", "columns"])
def test_values_that_are_written_to_one_element_are_found_whichever_lanes_have_them(
    along, lanes, memory
) -> None:
    found = kinds_of(along=along, threads=LANES[lanes], memory=memory)
    if lanes == {"rows": "columns", "columns": "rows"}[along]:
        assert found == {Kind.DUPLICATE}, "one lane has all values of an element"
    else:
        assert Kind.WRITE_WRITE in found, "several lanes have them"
        assert (Kind.DUPLICATE in found) == (lanes == "both" and along == "rows")
    assert kinds_of(threads=LANES[lanes], memory=memory) == set()


@pytest.mark.parametrize("vector", [1, 4])
def test_copies_in_the_background_and_vectors_write_once_too(vector) -> None:
    """Each lane has eight rows of four columns, and all rows have the same place."""
    for how in ("copy", "async"):
        assert kinds_of(threads=(4, 2), how=how, vector=vector) == set()
        assert Kind.DUPLICATE in kinds_of(along="rows", threads=(4, 2), how=how, vector=vector)


@pytest.mark.parametrize("lanes", LANES)
def test_what_is_added_up_may_meet_in_one_element(lanes) -> None:
    assert kinds_of(along="columns", threads=LANES[lanes], how="sum") == set()


def test_the_finding_says_what_to_write_instead() -> None:
    x = matrix(32, 8)
    (found,) = broadcast_writes.check(x, np.zeros_like(x), along="columns", threads=(32, 1)).findings
    assert (found.tensor, found.element, found.access.lane, found.count) == ("held", (0, 0), 0, 32)
    assert "one thread writes several values to this element" in found.reason
    assert "tw.reduce_max" in found.reason


@tw.kernel(X="M N", Y="M N")
def reduced(X, Y, *, threads):
    """Store a row's largest element in all of its columns: lanes that hold one value write it once."""
    held = tw.shared((32, 1), X.dtype)
    tw.copy(tw.reduce_max(tw.load(X.tile((32, 8), (0, 0)), tw.blocked((32, 8), threads)), 1), held)
    tw.barrier()
    tw.copy(held[:, 0].broadcast(1, 8), Y.tile((32, 8), (0, 0)), threads=(32, 1))


@pytest.mark.parametrize("lanes", LANES)
def test_a_value_that_several_lanes_hold_is_written_once(lanes) -> None:
    x = matrix(32, 8)
    y = np.zeros_like(x)
    assert reduced.check(x, y, threads=LANES[lanes]).is_clean
    reduced(x, y, threads=LANES[lanes], target="reference")
    np.testing.assert_array_equal(y, np.broadcast_to(x.max(1, keepdims=True), y.shape))
