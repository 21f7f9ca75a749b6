"""Integers that a kernel reads from memory: bounds of loops, indices, conditions, coordinates of boxes."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cuda

TARGETS = pytest.mark.parametrize("target", ["reference", "cpu"])
INTEGERS = pytest.mark.parametrize("dtype", ["i32", "i64", "u8", "u16", "i16", "u32"])
TILE = 16


@tw.kernel(X="M N", offsets="O", sums="G N", empty="G")
def segments(X, offsets, sums, empty):
    """``sums[g] = sum(X[offsets[g]:offsets[g + 1]])``; ``empty[g]`` says whether there are none."""
    n, g = tw.block_index((tw.ceil_div(X.shape[1], TILE), sums.shape[0]))
    rows = tw.blocked((1, TILE), (1, TILE))
    total = tw.fragment(rows, tw.f32, 0)
    first = tw.index(offsets[g], 0, X.shape[0] + 1)
    last = tw.index(offsets[g + 1], 0, X.shape[0] + 1)
    for row in tw.range(first, last):
        total += tw.load(X.tile((1, TILE), (row, n)), rows)
    tw.copy(total, sums.tile((1, TILE), (g, n)))
    with tw.when((n == 0) & (first == last)):
        tw.copy(tw.fragment(tw.blocked((1,), (1,)), tw.i32, 1), empty[g : g + 1])


def case(dtype: str, seed: int, groups: int = 7, shape: tuple[int, int] = (40, 37)):
    rng = np.random.default_rng(seed)
    offsets = np.sort(rng.integers(0, shape[0] + 1, groups + 1)).astype(tw.dtype(dtype).numpy)
    offsets[3] = offsets[2]  # an empty group
    wide = rng.standard_normal((shape[0], shape[1] + 3)).astype(np.float32)
    sums = np.full((groups, shape[1]), np.nan, np.float32)
    return wide[:, 1 : shape[1] + 1], offsets, sums, np.zeros(groups, np.int32)


@TARGETS
@INTEGERS
def test_trip_counts_and_rows_from_memory(dtype: str, target: str) -> None:
    x, offsets, sums, empty = case(dtype, seed=len(dtype))
    assert segments(x, offsets, sums, empty, target=target).target == target
    for g in range(len(sums)):
        rows = x[int(offsets[g]) : int(offsets[g + 1])].astype(np.float64)
        bound = 2.0**-20 * np.abs(rows).sum(0) + 1e-30
        assert (np.abs(sums[g] - rows.sum(0)) <= bound).all()
        assert empty[g] == (len(rows) == 0)


def test_the_text_reads_each_integer_once_and_as_wide_as_it_is() -> None:
    x, offsets, sums, empty = case("i32", 0)
    text = cuda.emit(segments.trace(x, offsets, sums, empty), "sm_90a").text
    assert "const int first = offsets[g];" in text
    assert "for (int row = first; row < last; ++row)" in text
    assert compile_text(text, "sm_90a")
    wide = cuda.emit(first_element.trace(np.zeros(3, np.int64), np.zeros(32, np.int32)), "sm_90a").text
    assert "const long long value = integers[1];" in wide
    assert compile_text(wide, "sm_90a")


@tw.kernel(integers="N", Y="M")
def first_element(integers, Y):
    """``Y[0], Y[1] = integers[1] // 2**20, integers[1] % 2**20``."""
    value = tw.index(integers[1])
    spread = tw.blocked((32,), (32,))
    zero, at = tw.fragment(spread, tw.i32, 0), tw.coordinates(spread, 0)
    high, low = zero + tw.let(value // 2**20), zero + tw.let(value % 2**20)
    tw.copy(tw.where(at == 0, high, low), Y.tile((32,), (0,)))


@TARGETS
@pytest.mark.parametrize("value", [0, 5, -7, 2**31 + 9, 2**50 + 2**20 + 3, -(2**40) - 1])
def test_integers_of_64_bits(value: int, target: str) -> None:
    y = np.full(32, 77, np.int32)
    integers = np.array([1, value, 2], np.int64)
    assert first_element(integers, y, target=target).target == target
    assert int(y[0]) * 2**20 + int(y[1]) == value


@tw.kernel(X="N", table="T", Y="M")
def through_shared(X, table, Y, *, fenced=True):
    """``Y = X[32*table[block]:]``; the table goes through shared memory."""
    m = tw.block_index(tw.ceil_div(Y.shape[0], 32))
    staged = tw.shared((8,), tw.i32)
    tw.copy(table.tile((8,), (0,)), staged, threads=8)
    if fenced:
        tw.barrier()
    at = tw.index(staged[m % 8], 0, multiple=2)
    spread = tw.blocked((32,), (32,))
    tw.copy(tw.load(X.tile((32,), (at,)), spread, other=-1.0), Y.tile((32,), (m,)))


@TARGETS
def test_integers_from_shared_memory(target: str) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal(150).astype(np.float32), np.full(230, np.nan, np.float32)
    table = np.array([2, 0, 4, 2, 6, 0, 2, 4], np.int32)
    assert through_shared(x, table, y, target=target).target == target
    padded = np.concatenate([x, np.full(300, -1, np.float32)])
    expected = np.concatenate([padded[32 * t : 32 * t + 32] for t in table])[:230]
    np.testing.assert_array_equal(y, expected)


def test_a_missing_barrier_is_found() -> None:
    x, y, table = np.ones(64, np.float32), np.zeros(96, np.float32), np.zeros(8, np.int32)
    assert not through_shared.check(x, table, y).findings
    found = through_shared.check(x, table, y, fenced=False).findings
    assert {finding.kind.value for finding in found} == {"write-read race"}
    assert {finding.access.op.name for finding in found} == {"read_index"}


@tw.kernel(X="N")
def overwritten(X, *, fenced):
    """Read an integer of shared memory, and write it again."""
    staged = tw.shared((32,), tw.i32)
    part = X.tile((32,), (0,)).partition((32,))
    x = tw.load(part)
    tw.copy(x, staged)
    tw.barrier()
    first = tw.index(staged[5], 0, 100)
    if fenced:
        tw.barrier()
    tw.copy(x + first, staged)
    tw.barrier()
    second = tw.index(staged[5], 0, 200)
    tw.copy(x * 0 + second, part)


@pytest.mark.parametrize("fenced", [True, False])
def test_a_write_after_the_read_waits_for_all_lanes(fenced: bool) -> None:
    x = np.full(32, 7, np.int32)
    report = overwritten.check(x, fenced=fenced)
    assert [finding.kind.value for finding in report.findings] == ([] if fenced else ["read-write race"])
    assert overwritten(x, fenced=True, target="reference").target == "reference"
    assert (x == 14).all()


def test_values_outside_of_what_is_declared_are_found() -> None:
    x, offsets, sums, empty = case("i32", 1)
    offsets[-1] = 41
    [found] = segments.check(x, offsets, sums, empty, partial=("empty",)).findings
    assert found.kind.value == "integer outside of its range"
    assert "41 is read, which is not less than 41" in found.reason
    offsets[-1], offsets[0] = 40, -1
    [found] = segments.check(x, offsets, sums, empty, partial=("empty",)).findings
    assert "-1 is read, which is less than 0" in found.reason
    y, table = np.zeros(96, np.float32), np.ones(8, np.int32)
    [found] = through_shared.check(np.ones(64, np.float32), table, y).findings
    assert "no multiple of 2" in found.reason


@tw.kernel(Y="N")
def unwritten(Y):
    staged = tw.shared((4,), tw.u32)
    for _ in tw.range(tw.index(staged[0])):
        tw.copy(tw.fragment(tw.blocked((32,), (32,)), tw.f32, 1), Y.tile((32,), (0,)))


def test_what_nothing_has_written_is_found_and_counts_for_0() -> None:
    found = unwritten.check(np.zeros(32, np.float32), partial=("Y",)).findings
    assert [finding.kind.value for finding in found] == ["unwritten read"]


@tw.kernel(X="M N", tiles="T", Y="R N")
def boxes(X, tiles, Y):
    """``Y[64*t:] = X[64*tiles[t]:]`` by TMA in roles: the coordinate of the box is in memory."""
    t = tw.block_index(tiles.shape[0])
    sX = tw.shared((64, 64), X.dtype, swizzle=128)
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.barrier()
    with tw.role(warps=1):
        tw.hopper.arrive(full[0], expect_bytes=64 * 128)
        tw.hopper.tma_load(X.tile((64, 64), (tw.index(tiles[t], 0), 0)), sX, full[0])
    with tw.role(warps=4):
        tw.hopper.wait(full[0], 0)
        with tw.when(tw.index(tiles[t]) < 100):
            tw.copy(sX, Y.tile((64, 64), (t, 0)), threads=128)


def test_boxes_begin_where_memory_says() -> None:
    x = np.random.default_rng(5).standard_normal((300, 64)).astype(np.float16)
    tiles, y = np.array([3, 0, 4, 1], np.int32), np.full((256, 64), np.nan, np.float16)
    assert not boxes.check(x, tiles, y).findings
    boxes(x, tiles, y, target="reference")
    padded = np.concatenate([x, np.zeros((64, 64), np.float16)])
    np.testing.assert_array_equal(y, np.concatenate([padded[64 * t : 64 * t + 64] for t in tiles]))
    assert compile_text(cuda.emit(boxes.trace(x, tiles, y), "sm_90a").text, "sm_90a")


@tw.kernel(X="M N")
def misused(X, *, how):
    if how == "rank":
        tw.index(X[0])
    elif how == "float":
        tw.index(X[0, 0])
    elif how == "range":
        tw.index(tw.shared((2,), tw.i32)[0], 5, 5)
    elif how == "multiple":
        tw.index(tw.shared((2,), tw.i32)[0], multiple=0)
    else:
        X.tile((8, 8), (tw.shared((2,), tw.i32)[0], 0))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("rank", "is not a single element"),
        ("float", "is f32"),
        ("range", "no integer lies in"),
        ("multiple", "1 or more"),
        ("tensor", "tw.index"),
    ],
)
def test_refusals_say_what_to_write(how: str, message: str) -> None:
    with pytest.raises(tw.TilewrightError, match=message):
        misused(np.zeros((8, 8), np.float32), how=how, target="reference")
