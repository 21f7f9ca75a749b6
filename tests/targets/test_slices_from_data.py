"""Slices at integers from memory or arguments: elements outside read as 0, and are not written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.targets.hip.executed import launched

import tilewright as tw
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cuda
from tilewright.targets.reference import Kind

Array = np.ndarray[Any, Any]
ROWS, COLUMNS, EACH = 5, 32, 2
READING = ("read", "async")
WAYS = ("write", "add", "read", "async", "rest", "chain", "loop", "variable")


@tw.kernel(X="S N", rows="R", Y="T N")
def at_rows(X, rows, Y, *, way):
    """For each row of X, two rows of Y at its number are read into X, or written from X."""
    m = tw.block_index(rows.shape[0])
    spread = tw.blocked((EACH, COLUMNS), (1, 32))
    mine = X.tile((EACH, COLUMNS), (m, 0))
    r = tw.index(rows[m])
    if way == "write":
        tw.copy(tw.load(mine, spread), Y[r : r + EACH, 0:COLUMNS])
    elif way == "add":
        tw.copy(tw.load(mine, spread), Y[r : r + EACH, 0:COLUMNS], reduction="add")
    elif way == "read":
        tw.copy(tw.load(Y[r : r + EACH, 0:COLUMNS], spread), mine)
    elif way == "async":
        staged = tw.shared((EACH, COLUMNS), Y.dtype)
        tw.copy_async(Y[r : r + EACH].tile((EACH, COLUMNS), (0, 0)), staged, threads=(1, 32))
        tw.async_commit()
        tw.async_wait(0)
        tw.barrier()
        tw.copy(staged, mine, threads=(1, 32))
    elif way == "rest":
        tw.copy(tw.load(mine, spread), Y[tw.let(r + 1) - 1 :].tile((EACH, COLUMNS), (0, 0)))
    elif way == "chain":
        again = tw.index(rows[r])
        tw.copy(tw.load(mine, spread), Y[again : again + EACH, 0:COLUMNS], reduction="add")
    elif way == "loop":
        for row in tw.range(r, r + EACH):
            one = tw.blocked((1, COLUMNS), (1, 32))
            tw.copy(tw.load(X[m : m + 1, 0:COLUMNS], one), Y[row : row + 1, 0:COLUMNS])
    else:
        at = tw.var(r).get()
        tw.copy(tw.load(mine, spread), Y[at : at + EACH, 0:COLUMNS])


@tw.kernel(X="M N", Y="T N", start=int)
def at_argument(X, Y, start):
    """Two rows from the caller's index on, once as a slice and once as an index."""
    spread = tw.blocked((EACH, COLUMNS), (1, 32))
    tw.copy(tw.load(X.tile((EACH, COLUMNS), (0, 0)), spread), Y[start : start + EACH, 0:COLUMNS])
    tw.copy(tw.load(X[0, 0:COLUMNS], tw.blocked((COLUMNS,), (32,))), Y[start, 0:COLUMNS])


@tw.kernel(X="T", rows="R", Y="R", start=int)
def followed(X, rows, Y, start, *, way):
    """Each element of Y is that of X at a number from memory, a counter or a count."""
    one, (place, taken) = tw.blocked((1,), (1,)), (tw.var(0), tw.counter(1))
    for m in tw.range(rows.shape[0]):
        at = tw.let(place.get())  # which the turn before has set
        if way == "ticket":
            at = tw.ticket(taken[0], of=rows.shape[0])
        elif way == "derived":
            at = tw.derived(start + 1)
        tw.copy(tw.load(X[at : at + 1], one), Y.tile((1,), (m,)))
        if way == "set":
            place.set(tw.index(rows[m]))
        else:
            for _ in tw.range(tw.index(rows[m], 0, 9)):
                place.set(place.get() + 1)


PLACES_THAT_FOLLOW = {
    "set": [0, 3, 5, 1],
    "count": [0, 3, 8, 9],
    "ticket": [0, 1, 2, 3],
    "derived": [8, 8, 8, 8],
}
"""The numbers that `followed` comes to; X has 3 elements."""


@pytest.mark.parametrize("way", PLACES_THAT_FOLLOW)
def test_what_follows_from_data_is_not_read_outside(way: str) -> None:
    whole, rows, y = 1 + np.arange(12, dtype=np.float32), np.array([3, 5, 1, 2], np.int32), np.zeros(4, "f4")
    x = whole[:3]
    assert followed(x, rows, y, 7, way=way, target="cpu").target == "cpu"
    assert y.tolist() == [x[at] if at < 3 else 0 for at in PLACES_THAT_FOLLOW[way]]
    findings = followed.check(x, rows, y, 7, way=way).findings
    assert {finding.kind for finding in findings} == {Kind.OUT_OF_BOUNDS}


def numbers(dtype: str) -> Array:
    """Return numbers of rows of `ROWS`, all different, and the extreme ones of the dtype.

    The last number times the length of a row is 0 in the dtype.
    """
    kind = tw.dtype(dtype).numpy
    least, most = (int(end) for end in (np.iinfo(kind).min, np.iinfo(kind).max))
    far = [least, least + 1, most, most - 1, (most + 1) // (COLUMNS // 2)]
    return np.array([0, -2, 2, ROWS, ROWS - 1, *far], kind)


def arguments(way: str, rows: Array) -> tuple[Array, Array, Array]:
    """Return X, Y and the matrix around Y, whose rest must not change."""
    x = 1 + np.arange(len(rows) * EACH * COLUMNS, dtype=np.float32).reshape(-1, COLUMNS)
    whole = np.arange((ROWS + 8) * COLUMNS, dtype=np.float32).reshape(-1, COLUMNS)
    return (np.zeros_like(x) if way in READING else x), whole[4 : 4 + ROWS], whole


def expected(way: str, rows: Array) -> tuple[Array, Array]:
    """Return X and the matrix around Y after a launch, computed one row after the other."""
    x, y, whole = arguments(way, rows)
    for m, number in enumerate(map(int, rows)):
        first = number if way != "chain" else int(rows[number]) if 0 <= number < len(rows) else 0
        for i in range(EACH):
            if not 0 <= first + i < ROWS:
                continue
            if way in READING:
                x[EACH * m + i] = y[first + i]
            elif way in ("add", "chain"):
                y[first + i] += x[EACH * m + i]
            else:
                y[first + i] = x[m if way == "loop" else EACH * m + i]
    return x, whole


def compared(way: str, rows: Array, found: tuple[Array, Array]) -> None:
    for one, wanted in zip(found, expected(way, rows), strict=True):
        np.testing.assert_array_equal(one, wanted)


@pytest.mark.parametrize("dtype", ["i32", "i64"])
@pytest.mark.parametrize("way", WAYS)
def test_a_processor_reads_0_outside_and_writes_nothing(way: str, dtype: str) -> None:
    rows = numbers(dtype)
    x, y, whole = arguments(way, rows)
    assert at_rows(x, rows, y, way=way, target="cpu").target == "cpu"
    compared(way, rows, (x, whole))


@pytest.mark.parametrize("way", WAYS)
def test_the_reference_finds_each(way: str) -> None:
    rows, inside = numbers("i32"), np.zeros(1, np.int32)
    x, y, _ = arguments(way, inside)
    assert at_rows.check(x, inside, y, way=way, partial="X" if way in READING else "Y").is_clean
    outside = (rows < 0) | (
        rows > (ROWS if way == "rest" else ROWS - EACH)
    )  # the rest may be short, or empty
    for number in rows[outside]:
        x, y, whole = arguments(way, inside)
        found = at_rows.check(x, number[None], y, way=way, partial="X" if way in READING else "Y").findings
        assert {finding.kind for finding in found} == {Kind.OUT_OF_BOUNDS}, (number, found)
        np.testing.assert_array_equal(whole, arguments(way, inside)[2])


PLACES = (0, 3, ROWS - 1, ROWS, -1, -2, -(2**31), 2**31 - 1, 2**31 - 2, 2**27)


@pytest.mark.parametrize("start", PLACES)
def test_an_argument_is_no_other(start: int) -> None:
    x, y, whole = arguments("write", np.zeros(1, np.int32))
    assert at_argument(x, y, start, target="cpu").target == "cpu"
    np.testing.assert_array_equal(whole, after_argument(start))
    is_inside = start >= 0 and start + EACH <= ROWS
    x, y, _ = arguments("write", np.zeros(1, np.int32))
    report = at_argument.check(x, y, start, partial="Y")
    assert is_inside is not any(finding.kind is Kind.OUT_OF_BOUNDS for finding in report.findings)


def after_argument(start: int) -> Array:
    x, y, whole = arguments("write", np.zeros(1, np.int32))
    for i in range(EACH):
        if 0 <= start + i < ROWS:
            y[start + i] = x[i]
    return whole


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("way", [way for way in WAYS if way != "async"])
def test_listings_for_gfx942_keep_inside(way: str) -> None:
    rows = numbers("i64")
    x, y, whole = arguments(way, rows)
    arrays = {"X": x, "rows": rows, "Y": y}
    launched(at_rows.bind(way=way), "gfx942", arrays)
    compared(way, rows, (x, whole))


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("dtype", ["i32", "i64"])
@pytest.mark.parametrize("way", WAYS)
def test_the_text_for_gpus_asks_before_each_access(way: str, dtype: str) -> None:
    rows = numbers(dtype)
    x, y, _ = arguments(way, rows)
    text = cuda.emit(at_rows.trace(x, rows, y, way=way), "sm_90a").text
    assert compile_text(text, "sm_90a")
    assert "< T" in text


@tw.kernel(rows="R", Y="T N")
def over(rows, Y, *, before, behind, step=1, stop=None, named=False):
    """Write ones in the rows of Y around a number from memory."""
    r = tw.index(rows[tw.block_index(rows.shape[0])], None if stop is None else 0, stop)
    ones = tw.fragment(tw.blocked((1, COLUMNS), (1, 32)), tw.f32, 1)
    end = tw.let(r + behind) if named else r + behind
    for row in tw.range(r - before, end, step):
        tw.copy(ones, Y[row : row + 1, 0:COLUMNS])


@pytest.mark.parametrize(
    ("dtype", "words", "wanted"),
    [
        ("i32", {}, "const long long row_end = (long long)r + 2"),
        ("i64", {}, "min_int(r, 9223372036854775805) + 2"),
        ("i32", {"named": True}, "= (long long)r + 2"),
        ("i64", {"before": 2}, "row = max_int(r, -9223372036854775806) - 2"),
        ("i32", {"stop": 9}, "int row_end = r + 2"),
        ("i64", {"step": 3}, "min_int(r, 9223372036854775803) + 2"),
        ("i8", {}, "int row_end = r + 2"),
    ],
    ids=str,
)
def test_the_end_of_a_range_does_not_overflow(dtype: str, words: dict[str, Any], wanted: str) -> None:
    """Adding 2 to the largest integer of a dtype would overflow, and the loop might never end."""
    kind = tw.dtype(dtype).numpy
    words = {"before": 0, "behind": 2, **words}
    rows, y = np.zeros(3, kind), np.zeros((ROWS, COLUMNS), np.float32)
    kernel = over.trace(rows, y, **words)
    text = cuda.emit(kernel, "sm_90a").text
    assert wanted in text
    assert compile_text(text, "sm_90a")
    assert ("for (long long row" in text) is ("int(" in wanted or "long)" in wanted)


@pytest.mark.parametrize("dtype", ["i32", "i64"])
def test_ranges_around_the_ends_of_a_dtype_write_what_lies_inside(dtype: str) -> None:
    ends = np.iinfo(tw.dtype(dtype).numpy)
    for before, behind, step in ((0, 2, 1), (2, 2, 1), (1, 3, 2)):
        rows = np.array([ends.max, ends.max - 1, ends.min, ends.min + 1, 3], tw.dtype(dtype).numpy)
        y = np.zeros((ROWS, COLUMNS), np.float32)
        bound = over.bind(before=before, behind=behind, step=step)
        wanted = [float(row in range(3 - before, 3 + behind, step)) for row in range(ROWS)]
        launched(bound, "gfx942", {"rows": rows, "Y": y})
        assert np.array_equal(y, np.repeat(wanted, COLUMNS).reshape(y.shape))


def test_an_index_that_is_declared_to_lie_inside_is_not_asked_about() -> None:
    arrays = np.zeros((4, COLUMNS), np.float32), np.zeros(4, np.int32), np.zeros((ROWS, COLUMNS), np.float32)
    assert "< T" not in cuda.emit(declared.trace(*arrays), "sm_90a").text


@tw.kernel(X="R N", rows="R", Y="T N")
def declared(X, rows, Y):
    """One row of Y, at a number that the author declares to be in range."""
    m = tw.block_index(rows.shape[0])
    r = tw.index(rows[m], 0, Y.shape[0])
    tw.copy(tw.load(X[m, 0:COLUMNS], tw.blocked((COLUMNS,), (32,))), Y[r, 0:COLUMNS])
