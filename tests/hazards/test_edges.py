"""Elements beyond an array's edge that change a result are found; correct variants have no findings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.targets.reference.findings import Kind

TILE = (8, 64)


@tw.kernel(X="M N", Y="M N")
def rows(X, Y, *, compute, other=0):
    """Compute a function of the rows of X; ``inside`` is the mask of the columns inside of X."""
    m = tw.block_index(tw.ceil_div(X.shape[0], 8))
    x = tw.load(X.tile(TILE, (m, 0)).partition((8, 4)), other=other)
    y = compute(x, tw.coordinates(x, 1) < X.shape[1], X.shape[1])
    tw.copy(y + tw.fragment(x, fill=0) if y.shape != x.shape else y, Y.tile(TILE, (m, 0)))


def findings(kernel: Any, *arrays: np.ndarray, **constants: Any) -> list[Any]:
    return list(kernel.bind(**constants).check(*arrays).findings)


def arrays(shape: tuple[int, int] = (13, 50), dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal(shape) + 3
    return x.astype(dtype), np.zeros(shape, dtype)


WRONG = {
    "softmax": lambda x, inside, n: tw.exp(x) / tw.reduce_sum(tw.exp(x), 1),
    "maximum": lambda x, inside, n: x - tw.reduce_max(x, 1),
    "minimum": lambda x, inside, n: x - tw.reduce_min(x, 1),
    "variance": lambda x, inside, n: tw.reduce_sum((x - 3.0) ** 2, 1) / n,
    "count": lambda x, inside, n: x + tw.reduce_sum((x > -9.0).to(tw.f32), 1),
    "after a mask of something else": lambda x, inside, n: (
        x / tw.reduce_sum(tw.where(x < 9.0, x + 1.0, 0.0), 1)
    ),
    "in two steps": lambda x, inside, n: x / tw.reduce_sum(tw.reduce_sum(tw.exp(x), 1, per_thread=True), 1),
    "another map": lambda x, inside, n: (
        x + tw.redistribute(tw.reduce_sum(tw.redistribute(tw.exp(x), x), 1), like=tw.reduce_sum(x, 1))
    ),
    "moved": lambda x, inside, n: x / tw.reduce_sum(tw.exp(tw.fragment(x, fill=0).assign(x)), 1),
    "in place": lambda x, inside, n: x / tw.reduce_sum(tw.fragment(x, fill=0).assign(tw.exp(x)), 1),
}
RIGHT = {
    "sum of zeros": lambda x, inside, n: tw.reduce_sum(x, 1) / n,
    "sum of squares": lambda x, inside, n: tw.reduce_sum(x * x, 1) / n,
    "masked": lambda x, inside, n: tw.exp(x) / tw.reduce_sum(tw.where(inside, tw.exp(x), 0.0), 1),
    "multiplied by a mask": lambda x, inside, n: x / tw.reduce_sum(tw.exp(x) * inside.to(tw.f32), 1),
    "masked first": lambda x, inside, n: x - tw.reduce_max(tw.where(inside, x, -math.inf), 1),
    "masked by a finite number": lambda x, inside, n: x - tw.reduce_max(tw.where(inside, x, -1e30), 1),
    "masked by a number of usual size": lambda x, inside, n: (
        x - tw.reduce_max(tw.where(inside, x * 2.0, -7.0) + 1.0, 1)
    ),
    "sums of rows with a mask": lambda x, inside, n: x - tw.reduce_sum(tw.where(inside, x + 1.0, 0.5), 1),
    "least of what is masked": lambda x, inside, n: x - tw.reduce_min(tw.where(inside, x, 6e4), 1),
    "masked in place": lambda x, inside, n: (
        x - tw.reduce_max(tw.fragment(x, fill=0).assign(tw.where(inside, x, -1e30)) * 2.0, 1)
    ),
    "largest size": lambda x, inside, n: x / tw.reduce_max(abs(x), 1),
    "largest after relu": lambda x, inside, n: x / tw.reduce_max(tw.maximum(x, 0.0), 1),
    "largest square": lambda x, inside, n: x / tw.reduce_max(x * x, 1),
    "nothing is reduced": lambda x, inside, n: tw.exp(x) + 1.0,
    "variance": lambda x, inside, n: tw.reduce_sum(tw.where(inside, (x - 3.0) ** 2, 0.0), 1) / n,
    "in two steps": lambda x, inside, n: x / tw.reduce_sum(tw.reduce_sum(x, 1, per_thread=True), 1),
}


PADDING = TILE[1]


def variance(x: Any, n: Any, take_off: Any) -> Any:
    """``take_off`` subtracts the padding's share from the sum of squares around the mean."""
    mean = tw.reduce_sum(x, 1) / n
    squares = tw.reduce_sum((x - mean) * (x - mean), 1)
    return (x - mean) * tw.rsqrt(take_off(squares, mean) / n + 1e-5)


TAKEN_OFF = {
    "subtracted": lambda x, inside, n: variance(x, n, lambda s, m: s - m * m * (PADDING - n)),
    "added": lambda x, inside, n: variance(x, n, lambda s, m: s + m * m * (n - PADDING)),
    "by an fma": lambda x, inside, n: variance(x, n, lambda s, m: tw.fma(m * m, n - PADDING + 0 * m, s)),
    "of exponentials": lambda x, inside, n: x / (tw.reduce_sum(tw.exp(x), 1) - (PADDING - n)),
    "in place": lambda x, inside, n: variance(
        x, n, lambda s, m: tw.fragment(s, fill=0).assign(s - m * m * (PADDING - n))
    ),
}
LEFT_IN = {
    "all of it": lambda x, inside, n: variance(x, n, lambda s, m: s * 1.0),
    "all of it, as 0 is taken off": lambda x, inside, n: variance(x, n, lambda s, m: s - 0.0),
    "one element's": lambda x, inside, n: variance(x, n, lambda s, m: s - m * m * (PADDING - n - 1)),
    "one element's too much": lambda x, inside, n: variance(x, n, lambda s, m: s - m * m * (PADDING - n + 1)),
    "added instead": lambda x, inside, n: variance(x, n, lambda s, m: s + m * m * (PADDING - n)),
    "another number": lambda x, inside, n: variance(x, n, lambda s, m: s - m * (PADDING - n)),
    "used before": lambda x, inside, n: variance(x, n, lambda s, m: (s - m * m * (PADDING - n)) + 0.0 * s),
    "of a whole tile's sum": lambda x, inside, n: x - tw.reduce_sum(tw.exp(x), 1),
    "of a maximum": lambda x, inside, n: x / (tw.reduce_max(tw.exp(x - 9.0), 1) - 1.0),
}


@pytest.mark.parametrize("compute", TAKEN_OFF.values(), ids=TAKEN_OFF)
@pytest.mark.parametrize("columns", [1, 50, 63])
def test_the_paddings_share_may_be_taken_off_by_the_next_operation(compute: Any, columns: int) -> None:
    assert findings(rows, *arrays((13, columns)), compute=compute) == []


@pytest.mark.parametrize("compute", LEFT_IN.values(), ids=LEFT_IN)
def test_what_is_left_of_the_paddings_share_is_found(compute: Any) -> None:
    assert {finding.kind for finding in findings(rows, *arrays(), compute=compute)} == {Kind.EDGE}
    assert findings(rows, *arrays((16, 64)), compute=compute) == []


def test_a_small_share_that_is_left_in_is_found() -> None:
    """One element of padding adds 1e-4 to a sum of 63, which is less than the sum's rounding errors."""
    x, y = arrays((13, 63))
    x += 0.01 - x.mean(1, keepdims=True)
    assert {
        finding.kind for finding in findings(rows, x, y, compute=LEFT_IN["all of it, as 0 is taken off"])
    } == {Kind.EDGE}
    for compute in TAKEN_OFF.values():
        assert findings(rows, x, y, compute=compute) == []


@tw.kernel(X="M N", Y="M N")
def shifted_sums(X, Y, *, taken):
    x = tw.load(X.tile((8, 64), (0, 0)).partition((8, 4)))
    tw.copy(x - (tw.reduce_sum(x + 1.0, 1) - taken), Y.tile((8, 64), (0, 0)))


@pytest.mark.parametrize(("dtype", "off"), [(np.float32, 1e-4), (np.float64, 1e-12)])
def test_a_share_is_compared_in_the_precision_of_the_sum(dtype: type, off: float) -> None:
    x, y = arrays((8, 50), dtype)
    for taken, found in ((PADDING - 50.0, set()), (PADDING - 50 + off, {Kind.EDGE})):
        assert {finding.kind for finding in shifted_sums.check(x, y, taken=taken).findings} == found


def test_a_share_of_narrow_floats_is_found_as_it_cannot_be_compared() -> None:
    """A sum of 64 numbers of 11 bits is too inexact to detect one element of padding."""
    x, y = arrays(dtype=np.float16)
    assert {f.kind for f in findings(rows, x, y, compute=TAKEN_OFF["of exponentials"])} == {Kind.EDGE}


@pytest.mark.parametrize("compute", WRONG.values(), ids=WRONG)
def test_what_changes_a_result_is_found(compute: Any) -> None:
    found = findings(rows, *arrays(), compute=compute)
    assert {finding.kind for finding in found} == {Kind.EDGE}
    assert all("beyond the edge of an array and is " in str(finding) for finding in found)


@pytest.mark.parametrize("compute", WRONG.values(), ids=WRONG)
def test_whole_tiles_have_no_edge(compute: Any) -> None:
    assert findings(rows, *arrays((16, 64)), compute=compute) == []


@pytest.mark.parametrize("compute", WRONG.values(), ids=WRONG)
def test_rows_past_the_last_are_left_alone(compute: Any) -> None:
    assert findings(rows, *arrays((13, 64)), compute=compute) == []


@pytest.mark.parametrize("compute", RIGHT.values(), ids=RIGHT)
def test_what_changes_nothing_is_no_finding(compute: Any) -> None:
    assert findings(rows, *arrays(), compute=compute) == []


def test_a_finding_says_where_and_what_to_do() -> None:
    [found] = findings(rows, *arrays(), compute=WRONG["softmax"])
    text = str(found)
    assert "element beyond an edge in a result on registers exp_1[0, 50], 182 elements in all" in text
    assert "is 1, which changes the sum of elements inside" in text
    assert (
        "tw.where(inside, exp_1, 0), or use tw.load(..., other=...) with a value that becomes 0 here" in text
    )
    assert "tw.reduce_sum(tw.exp(x), 1)" in text


@pytest.mark.parametrize(
    ("other", "name", "is_clean"),
    [
        (-math.inf, "softmax", True),
        (-math.inf, "maximum", True),
        (math.inf, "minimum", True),
        (3, "variance", True),
        (1, "sum of zeros", False),
        (-1, "largest size", False),
        (-math.inf, "minimum", False),
    ],
)
def test_other_is_right_where_it_becomes_neutral(other: float, name: str, is_clean: bool) -> None:
    compute = {**RIGHT, **WRONG}[name]
    if name == "variance":
        compute = WRONG["variance"]
    assert (findings(rows, *arrays(), compute=compute, other=other) == []) == is_clean


def test_integers_have_a_least_number() -> None:
    x, y = arrays(dtype=np.int32)
    compute = WRONG["maximum"]
    assert findings(rows, x, y, compute=compute) != []
    assert findings(rows, x, y, compute=compute, other=-(2**31)) == []
    x, y = arrays(dtype=np.uint8)
    assert findings(rows, x, y, compute=compute) == []  # no number is below 0


@tw.kernel(X="M N", Y="M N")
def through_shared(X, Y, *, compute, background=False):
    m = tw.block_index(tw.ceil_div(X.shape[0], 8))
    held = tw.shared(TILE, X.dtype)
    if background:
        tw.copy_async(X.tile(TILE, (m, 0)), held, threads=(8, 4))
        tw.async_commit()
        tw.async_wait(0)
    else:
        tw.copy(X.tile(TILE, (m, 0)), held, threads=(8, 4))
    tw.barrier()
    x = tw.load(held.partition((8, 4)))
    y = compute(x, tw.coordinates(x, 1) < X.shape[1], X.shape[1])
    tw.copy(y + tw.fragment(x, fill=0) if y.shape != x.shape else y, Y.tile(TILE, (m, 0)))


@pytest.mark.parametrize("background", [False, True])
def test_marks_go_through_shared_memory(background: bool) -> None:
    wrong = findings(through_shared, *arrays(), compute=WRONG["softmax"], background=background)
    assert {finding.kind for finding in wrong} == {Kind.EDGE}
    assert findings(through_shared, *arrays(), compute=RIGHT["masked"], background=background) == []


@tw.kernel(X="M N", Y="M N")
def across_warps(X, Y, *, masked):
    m = tw.block_index(tw.ceil_div(X.shape[0], 8))
    spread = tw.raked((8, 256), (1, 128), 1, 1)
    x = tw.exp(tw.load(X.tile((8, 256), (m, 0)), spread))
    if masked:
        x = tw.where(tw.coordinates(x, 1) < X.shape[1], x, 0.0)
    total = tw.reduce_sum(x, 1, scratch=tw.shared((8, 4), tw.f32))
    tw.copy(x / total, Y.tile((8, 256), (m, 0)))


@pytest.mark.parametrize("columns", [100, 150, 255])
def test_reductions_of_several_warps(columns: int) -> None:
    x, y = arrays((13, columns))
    assert {f.kind for f in findings(across_warps, x, y, masked=False)} == {Kind.EDGE}
    assert findings(across_warps, x, y, masked=True) == []


MMA = tw.TiledMma(tw.atoms.MMA_F16, (2, 1), (1, 2))


@tw.kernel(A="M K", B="N K", C="M N")
def product(A, B, C, *, change=None, in_registers=False, reduced=None):
    m, n, k = (*MMA.tile[:2], 32)
    at = tw.block_index(tw.ceil_div(C.shape, (m, n)))
    sA, sB = tw.shared((m, k), A.dtype), tw.shared((n, k), B.dtype)
    acc = tw.accumulator(MMA)
    for turn in tw.range(tw.ceil_div(A.shape[1], k)):
        a = tw.load(A.tile((m, k), (at[0], turn)).partition((16, 4)))
        tw.copy(a if change is None else change(a), sA)
        tw.copy(B.tile((n, k), (at[1], turn)), sB, threads=(16, 4))
        tw.barrier()
        if in_registers:
            tw.mma(tw.load(sA, tw.operand_a(MMA, k)), tw.load(sB, tw.operand_b(MMA, k)), acc)
        else:
            tw.mma(sA, sB, acc)
        tw.barrier()
    if reduced is not None:
        inside = tw.coordinates(acc, 1) + at[1] * n < C.shape[1]
        acc = acc - reduced(acc, inside)
    tw.copy(acc, C.tile((m, n), at))


def operands(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, k)).astype(np.float16) for rows in (m, n))
    return a, b, np.zeros((m, n), np.float32)


@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(40, 20, 50), (32, 16, 64), (5, 3, 7)])
def test_products_of_zeros_are_no_finding(m: int, n: int, k: int, in_registers: bool) -> None:
    assert findings(product, *operands(m, n, k), in_registers=in_registers) == []
    # exp(0) = 1, but the other operand is 0 there
    assert findings(product, *operands(m, n, k), change=tw.exp, in_registers=in_registers) == []


def test_products_past_the_end_of_k_are_found() -> None:
    @tw.kernel(A="M K", C="M N")
    def squares(A, C):
        m, n, k = (*MMA.tile[:2], 32)
        a, b = (tw.load(A.tile((rows, k), (0, 0)), like) for rows, like in ((m, MMA.a(k)), (n, MMA.b(k))))
        acc = tw.accumulator(MMA)
        tw.mma(tw.exp(a), tw.exp(b), acc)
        tw.copy(acc, C.tile((m, n), (0, 0)))

    a, _, c = operands(32, 16, 20)
    found = findings(squares, a, c)
    assert {finding.kind for finding in found} == {Kind.EDGE}
    assert "which is multiplied into sums of elements inside" in str(found[0])
    assert findings(squares, operands(32, 16, 32)[0], c) == []
    assert findings(squares, operands(20, 16, 32)[0], operands(20, 16, 32)[2]) == []


def test_columns_of_sums_beyond_the_edge_are_marked() -> None:
    """As in attention, the scores of keys that do not exist are marked."""
    given = operands(40, 20, 48)
    assert {f.kind for f in findings(product, *given, reduced=lambda x, i: tw.reduce_max(x, 1))} == {
        Kind.EDGE
    }
    masked = lambda x, i: tw.reduce_max(tw.where(i, x, -math.inf), 1)  # noqa: E731
    assert findings(product, *given, reduced=masked) == []


@tw.kernel(X="M N", Y="M")
def added_up(X, Y, *, how):
    """Add up tiles along N element by element, and at the end the rows of the sum."""
    m = tw.block_index(tw.ceil_div(X.shape[0], 8))
    spread = tw.blocked((8, 32), (8, 4))
    total = tw.fragment(spread, X.dtype, fill=-math.inf if how == "least" else 0)
    for n in tw.range(tw.ceil_div(X.shape[1], 32)):
        x = tw.load(X.tile((8, 32), (m, n)), spread)
        match how:
            case "sum":
                total += x
            case "squares":
                total.assign(tw.fma(x, x, total))
            case "largest size":
                total.assign(tw.maximum(total, abs(x)))
            case "exp":
                total += tw.exp(x)
            case "least":
                total.assign(tw.maximum(total, x - 20.0))
    rows = tw.reduce_sum(total, 1) if how in ("sum", "squares", "exp") else tw.reduce_max(total, 1)
    tw.copy(rows, Y.tile((8,), (m,)).unmerge(0, (8, 1)))


@pytest.mark.parametrize(
    ("how", "is_clean"),
    [("sum", True), ("squares", True), ("largest size", True), ("exp", False), ("least", False)],
)
@pytest.mark.parametrize("columns", [20, 50, 96])
def test_tiles_that_are_added_up_keep_what_0_leaves_as_it_is(columns, how, is_clean) -> None:
    x = arrays((13, columns))[0]
    report = added_up.check(x, np.zeros(13, np.float32), how=how)
    assert {finding.kind for finding in report.findings} <= {Kind.EDGE}
    assert report.is_clean == (is_clean or columns % 32 == 0), report


@tw.kernel(A="T N", rows="M", codes="M N", table="E", X="L", chosen="N", decoded="M", windows="Q")
def zeros_of_views(A, rows, codes, table, X, chosen, decoded, windows, *, what):
    if what == "rows":
        for n in tw.tiles(chosen):
            top = tw.full((n,), -math.inf, tw.f32)
            for m in tw.steps(rows.shape[0]):
                top.assign(tw.maximum(top, A.rows(rows, padded=True)[m, n].max(axis=0)))
            chosen[n] = top
    if what == "codes":
        for m in tw.tiles(decoded):
            top = tw.full((m,), -math.inf, tw.f32)
            for n in tw.steps(codes.shape[1]):
                top.assign(tw.maximum(top, tw.take(table, codes[m, n]).max(axis=1)))
            decoded[m] = top
    if what == "windows":
        taps = X.embed(0, (windows.shape[0], 5), (1, 1), 2)
        for q in tw.tiles(windows):
            windows[q] = taps[q].max(axis=1)


@pytest.mark.parametrize("what", ["rows", "codes", "windows"])
def test_zeros_that_belong_to_a_view_are_no_finding(what: str) -> None:
    """Chosen rows outside of the array, codes outside of the table and padding of windows are 0."""
    rng = np.random.default_rng(0)
    a, table, x = (rng.uniform(-4, -1, shape).astype(np.float32) for shape in ((19, 23), 10, 50))
    rows, codes = rng.integers(-2, 22, 41, np.int32), rng.integers(-2, 12, (41, 23), np.int32)
    results = [np.full(extent, np.nan, np.float32) for extent in (23, 41, 50)]
    kernel = zeros_of_views.bind(what=what)
    report = kernel.check(a, rows, codes, table, x, *results)
    assert report.is_clean, report
    kernel(a, rows, codes, table, x, *results, target="reference")
    exact = (
        np.vstack([np.zeros(23), a])[np.where((rows >= 0) & (rows < 19), rows + 1, 0)].max(0),
        np.append(0, table)[np.where((codes >= 0) & (codes < 10), codes + 1, 0)].max(1),
        np.lib.stride_tricks.sliding_window_view(np.pad(x, 2), 5).max(1),
    )
    at = ["rows", "codes", "windows"].index(what)
    assert (results[at] == exact[at]).all()


@tw.kernel(A="T N", rows="M", X="L", Y="N")
def past_the_edge(A, rows, X, Y, *, what):
    """Sums of powers of a tile that reaches past the last chosen row, or past the last window."""
    if what == "windows":
        whole = X.embed(0, (X.shape[0], 8), (1, 1), 1)
    else:
        chosen = rows.tile((64,), (0,)) if what == "rows of a tile" else rows
        whole = A.rows(chosen, padded=True)
    x = tw.load(whole.tile((64, 8), (0, 0)).permute(1, 0).partition((8, 4)))
    tw.copy(tw.reduce_sum(tw.exp(x), 1), Y.tile((8,), (0,)).unmerge(0, (8, 1)))


@pytest.mark.parametrize("what", ["rows", "rows of a tile", "windows"])
def test_edges_of_tiles_of_such_views_are_found(what: str) -> None:
    a, x = arrays((19, 8))[0], arrays((1, 50))[0][0]
    rows = np.arange(-1, 49, dtype=np.int32)
    found = findings(past_the_edge, a, rows, x, np.zeros(8, np.float32), what=what)
    assert [one.kind for one in found] == [Kind.EDGE], found
