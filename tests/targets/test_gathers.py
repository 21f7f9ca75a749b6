"""Rows chosen by integers in memory: NumPy's gathers and scatters, on every target that runs here."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.targets.gathered import COLUMNS, ROWS, Strided, columns, expected_rows, gather, scatter

import tilewright as tw
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cuda

pytestmark = pytest.mark.in_turns(3)

TARGETS = pytest.mark.parametrize("target", ["reference", "cpu"])
WAYS = ("shared", "async", "registers")


def numbers(rng: np.random.Generator, rows: int, count: int, dtype: str) -> np.ndarray:
    """Return numbers of rows, some of which do not exist."""
    low = 0 if dtype == "u8" else -2
    return rng.integers(low, rows + 2, count).astype(tw.dtype(dtype).numpy)  # of u64 up to 2**64 - 1


SIZES = st.tuples(*(st.integers(0, most) for most in (45, 35, 30, 4, 2**31)))
GATHERS = [
    ("shared", "global", "i32", 2.5),
    ("async", "shared", "i64", 0.0),
    ("registers", "global", "u8", -1.0),
    ("registers", "global", "u64", -1.0),
]


@TARGETS
@pytest.mark.parametrize("unit", [1, 8], ids=["odd", "whole"])
@pytest.mark.parametrize(("way", "index", "dtype", "outside"), GATHERS)
@settings(max_examples=5, deadline=None, derandomize=True)
@given(sizes=SIZES)
def test_gathering_is_numpys(
    sizes: tuple[int, ...], way: str, index: str, dtype: str, outside: float, unit: int, target: str
) -> None:
    rows, count, width, gap = (extent(size, unit) for size in sizes[:4])
    rng = np.random.default_rng(sizes[4])
    x, chosen = rng.standard_normal((rows, width)).astype(np.float32), numbers(rng, rows, count, dtype)
    source, found = Strided(x, gap - unit), Strided(np.full((count, width), 9, np.float32), 0)
    done = gather(source.array, chosen, found.array, way=way, index=index, outside=outside, target=target)
    assert done.target == target
    np.testing.assert_array_equal(found.array, expected_rows(x, chosen, outside))
    assert found.is_untouched


def extent(size: int, unit: int) -> int:
    """Draw a multiple of the unit; for unit 1 an odd number, so that all arrays of a test have one class."""
    return 2 * size + 1 if unit == 1 else unit * (size % 8 + 1)


@TARGETS
@pytest.mark.parametrize(("way", "dtype"), [("registers", "i64"), ("direct", "u8"), ("direct", "u64")])
@settings(max_examples=6, deadline=None, derandomize=True)
@given(sizes=SIZES)
def test_scattering_is_numpys(sizes: tuple[int, ...], way: str, dtype: str, target: str) -> None:
    more, count, width, gap = (extent(size, 1) for size in sizes[:4])
    rows, rng = count + more - 1, np.random.default_rng(sizes[4])
    x = rng.standard_normal((count, width)).astype(np.float32)
    index = rng.permutation(rows)[:count].astype(tw.dtype(dtype).numpy)
    missing = rng.random(count) < 0.2
    index[missing] = {"u8": 255, "u64": 2**64 - 1, "i64": -1}[dtype]
    y = Strided(np.full((rows, width), 5, np.float32), gap - 1)
    expected = y.array.copy()
    expected[index[~missing]] = x[~missing]
    assert scatter(x, index, y.array, way=way, target=target).target == target
    np.testing.assert_array_equal(y.array, expected)
    assert y.is_untouched


@TARGETS
@pytest.mark.parametrize("way", ["registers", "direct"])
@pytest.mark.parametrize("reduction", ["add", "max"])
def test_rows_that_are_named_twice_may_be_reduced(reduction: str, way: str, target: str) -> None:
    rng = np.random.default_rng(8)
    x, index = rng.integers(-9, 9, (75, 53)).astype(np.int32), rng.integers(-1, 20, 75)
    y = Strided(rng.integers(-9, 9, (19, 53)).astype(np.int32), 4)
    expected, inside = y.array.copy(), (index >= 0) & (index < 19)
    combine = np.add if reduction == "add" else np.maximum
    combine.at(expected, index[inside], x[inside])
    done = scatter(x, index, y.array, way=way, reduction=reduction, target=target)
    assert done.target == target
    np.testing.assert_array_equal(y.array, expected)
    assert y.is_untouched
    assert not scatter.check(x, index, y.array, way=way, reduction=reduction, partial=("Y",)).findings


@TARGETS
def test_columns_are_gathered_along_their_dimension(target: str) -> None:
    rng = np.random.default_rng(2)
    x, index = rng.standard_normal((70, 41)).astype(np.float32), rng.integers(0, 41, 50)
    y = np.full((70, 50), np.nan, np.float32)
    assert columns(x, index, y, target=target).target == target
    np.testing.assert_array_equal(y, x[:, index])


@tw.kernel(X="P S N", I="B T", Y="B R N")
def pages(X, I, Y, *, rows):
    """``Y[b] = X[I[b]]``, with the rows of the pages one after the other."""
    b, r = tw.block_index((Y.shape[0], tw.ceil_div(Y.shape[1], ROWS)))
    held = tw.shared((ROWS, COLUMNS), X.dtype)
    tw.copy(X[:, :rows].rows(I, padded=True).merge(1)[b].tile((ROWS, COLUMNS), (r, 0)), held, threads=96)
    tw.barrier()
    tw.copy(held, Y[b].tile((ROWS, COLUMNS), (r, 0)), threads=96)


@TARGETS
@pytest.mark.parametrize(
    ("rows", "read"), [(8, "int chosen[4];"), (5, "int chosen[8];"), (64, "const int chosen =")]
)
def test_an_index_of_two_dimensions_chooses_pages(rows: int, read: str, target: str) -> None:
    """A thread reads the number of a page once for all of its rows in the page, if their places are known."""
    rng = np.random.default_rng(rows)
    x, index = (
        rng.standard_normal((9, rows, 21)).astype(np.float32),
        rng.integers(0, 9, (3, 6)).astype(np.int32),
    )
    index[1, 2:4] = -1, 9
    y = np.full((3, 6 * rows, 21), np.nan, np.float32)
    assert pages(x, index, y, rows=rows, target=target).target == target
    wanted = np.concatenate([x, np.zeros_like(x[:1])])[np.where(index < 0, 9, index)]
    np.testing.assert_array_equal(y, wanted.reshape(3, 6 * rows, 21))
    text = cuda.emit(pages.trace(x, index, y, rows=rows), "sm_90a").text
    assert read in text
    assert compile_text(text, "sm_90a")


@tw.kernel(X="M N", I="R", Y="R N")
def nibbles(X, I, Y):
    """``Y[r] = X[I[r]]`` of elements of 4 bits, through shared memory and registers."""
    r = tw.block_index(tw.ceil_div(I.shape[0], 16))
    held = tw.shared((16, 64), X.dtype)
    tw.copy(X.rows(I, padded=True).tile((16, 64), (r, 0)), held, threads=32)
    tw.barrier()
    tw.copy(held, Y.tile((16, 64), (r, 0)), threads=32)


@TARGETS
def test_rows_of_elements_of_4_bits(target: str) -> None:
    rng = np.random.default_rng(6)
    x, index = rng.integers(0, 256, (50, 31)).astype(np.uint8), numbers(rng, 50, 45, "i32")
    y = np.full((45, 31), 0xA5, np.uint8)
    assert nibbles(tw.packed(x, tw.i4), index, tw.packed(y, tw.i4), target=target).target == target
    np.testing.assert_array_equal(y, expected_rows(x, index, 0))
    kernel = nibbles.trace(tw.packed(x, tw.i4), index, tw.packed(y, tw.i4))
    text = cuda.emit(kernel, "sm_90a").text
    assert text[text.index("extern") :].count("I[") == 1
    assert compile_text(text, "sm_90a")


def test_the_text_reads_each_row_once_and_moves_16_bytes() -> None:
    x, index = np.zeros((64, 48), np.float32), np.zeros(64, np.int32)
    for way in WAYS:
        text = cuda.emit(gather.trace(x, index, x, way=way), "sm_90a").text
        kernel = text[text.index("extern") :]
        assert kernel.count("I[") == 1
        assert "16 bytes at a time" in kernel
        assert compile_text(text, "sm_90a")
    assert "copy_async<16>" in cuda.emit(gather.trace(x, index, x, way="async"), "sm_90a").text


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("index", ["global", "shared"])
def test_nothing_is_found_in_what_is_right(way: str, index: str) -> None:
    rng = np.random.default_rng(4)
    x, given_rows = rng.standard_normal((50, 30)).astype(np.float32), numbers(rng, 50, 40, "i32")
    y = np.zeros((40, 30), np.float32)
    assert not gather.check(x, given_rows, y, way=way, index=index).findings


@tw.kernel(X="M N", I="R", Y="R N")
def strict(X, I, Y, *, barrier=True, threads=32):
    """`gather` without rows outside; the index goes through shared memory."""
    r = tw.block_index(tw.ceil_div(I.shape[0], 32))
    staged = tw.shared((32,), I.dtype)
    tw.copy(I.tile((32,), (r,)), staged, threads=32)
    if barrier:
        tw.barrier()
    tw.copy(X[staged, :][:, 0:8], Y.tile((32, 8), (r, 0)), threads=threads)


def test_an_index_that_is_not_ready_is_found() -> None:
    x, y, index = np.zeros((9, 8), np.float32), np.zeros((32, 8), np.float32), np.zeros(32, np.int32)
    assert not strict.check(x, index, y).findings
    found = strict.check(x, index, y, barrier=False).findings
    assert {finding.kind.value for finding in found} == {"write-read race"}
    assert {finding.tensor for finding in found} == {"staged"}


def test_rows_outside_are_found_unless_they_are_meant() -> None:
    x, y, index = np.zeros((9, 8), np.float32), np.zeros((32, 8), np.float32), np.zeros(32, np.int32)
    index[7] = 9
    [found] = strict.check(x, index, y).findings
    assert found.kind.value == "integer outside of its range"
    assert "row 9 of X" in found.reason
    index[7] = -1
    [found] = strict.check(x, index, y).findings
    assert "row -1 of X" in found.reason
    far = np.zeros(32, np.uint64)
    far[7] = 2**64 - 1
    [found] = strict.check(x, far, y).findings
    assert f"row {2**64 - 1} of X" in found.reason


# Two rows of one thread or of two lanes of a warp, of two warps, of two blocks.
@pytest.mark.parametrize("pair", [(3, 19), (3, 4), (3, 31), (3, 40)], ids=str)
@pytest.mark.parametrize("way", ["registers", "direct"])
def test_rows_that_are_scattered_twice_are_found(pair: tuple[int, int], way: str) -> None:
    x, index = np.ones((50, 24), np.float32), np.arange(50)
    y = np.zeros((60, 24), np.float32)
    assert not scatter.check(x, index, y, way=way, partial=("Y",)).findings
    index[pair[1]] = index[pair[0]]
    found = scatter.check(x, index, y, way=way, partial=("Y",)).findings
    assert {finding.kind.value for finding in found} == {"one element written twice"}
    assert all("reduction=" in finding.reason for finding in found)


@tw.kernel(X="M N", I="R", F="R")
def misused(X, I, F, *, how):
    if how == "floats":
        X[F]
    elif how == "rank":
        X[X]
    elif how == "two":
        X[I, I]
    elif how == "dim":
        X.rows(I, 2)
    elif how == "again":
        X.rows(I).rows(I, 1)
    elif how == "chosen":
        X.rows(I.rows(I))
    elif how == "element":
        tw.index(I[I][0])
    else:
        mma = tw.TiledMma(tw.atoms.fma(tw.f32, tw.f32, (4, 8), (1, 1)))
        s = tw.shared((8, 8), tw.f32)
        tw.mma(s[0:4, :], s.rows(I.tile((8,), (0,))), tw.accumulator(mma))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("floats", "of rank 1 and f32; nearest"),
        ("rank", "of rank 2"),
        ("two", "one tensor gathers rows"),
        ("dim", "dimension 2 of X"),
        ("again", "a copy of it in shared memory"),
        ("chosen", "a copy of it in shared memory"),
        ("element", "is itself indexed by integers in memory, I"),
        ("mma", r"are chosen by I\.tile\(\(8,\), \(0,\)\)"),
    ],
)
def test_refusals_say_what_to_write(how: str, message: str) -> None:
    x, i, f = np.zeros((8, 8), np.float32), np.zeros(8, np.int32), np.zeros(8, np.float32)
    with pytest.raises(tw.TilewrightError, match=message):
        misused(x, i, f, how=how, target="reference")
