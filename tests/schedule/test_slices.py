"""Slices with a step, as operands and as results: ``A[::2]``, ``A[:, ::-1]``, ``A[m, 1::2]``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

from .folding import Array, FoldCase, U, poison, strided
from .test_folds import run


@tw.kernel(A="T K", B="N L", bias="N", C="M N")
def product(A, B, bias, C):
    """Every second row of A from the second one, and every third column of B."""
    tw.require(C.shape[0] == tw.ceil_div(A.shape[0] - 1, 2), "a row for every second one")
    tw.require(A.shape[1] == tw.ceil_div(B.shape[1], 3), "an element for every third column")
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[1::2][m, k] @ B[:, ::3][n, k].T
        C[m, n] = acc + bias[::-1][n]


@tw.kernel(X="M N", C="M P", total="M")
def elementwise(X, C, total):
    """Every second column, forwards and backwards, and the sum of a row from its end."""
    tw.require(C.shape[1] == tw.ceil_div(X.shape[1] - 1, 2), "a column for every second one")
    for m, p in tw.tiles(C):
        C[m, p] = 2 * X[:, 1::2][m, p].to(tw.f32) - X[:, -1:0:-2][m, p].to(tw.f32)
        total[m] = X[m, 1::2].to(tw.f32).sum(axis=1)


@tw.kernel(X="M H", Y="M H", C="M N")
def interleaved(X, Y, C):
    """Two arrays as the even and the odd columns of a result, from its last row on."""
    tw.require(C.shape[1] == 2 * X.shape[1], "two columns for each")
    for m, h in tw.tiles(X):
        C[::-1, ::2][m, h] = X[m, h]
        C[::-1, 1::2][m, h] = Y[m, h]


@tw.kernel(Q="M D", K="N D", V="N E", O="M E")
def attention(Q, K, V, O):
    """Attention to every second key."""
    for m in tw.tiles(O.shape[0]):
        O[m] = tw.softmax(Q[m] @ K[::2].T) @ V[::2]


def products_case(
    rng: np.random.Generator,
    M: int,
    N: int,
    K: int,
    kind: str,
    *,
    last: int = 0,
    gap: int = 0,
    order: str = "C",
) -> FoldCase:
    """Return a random problem of `product`; what no step meets is NaN."""
    a, b = (
        rng.standard_normal((2 * M + last, K)).astype(kind),
        rng.standard_normal((N, 3 * K - last)).astype(kind),
    )
    bias = rng.standard_normal(N).astype("f4")
    wide, other = a[1::2].astype(np.float64), b[:, ::3].astype(np.float64)
    right = wide @ other.T + bias[::-1]
    room = 4 * (K + 4) * U * (np.abs(wide) @ np.abs(other).T + np.abs(bias[::-1]))
    a[::2] = np.nan
    b[:, 1::3], b[:, 2::3] = np.nan, np.nan
    a, b = (strided(one, gap) if order == "C" else one.copy("F") for one in (a, b))
    given = {"A": a, "B": b, "bias": bias}
    return FoldCase(product, given, {"C": poison("f4", M, N)}, {"C": right}, {"C": room})


def elements_case(
    rng: np.random.Generator, M: int, N: int, kind: str, *, gap: int = 0, order: str = "C"
) -> FoldCase:
    """Return a random problem of `elementwise`."""
    x = rng.integers(-9, 10, (M, N)).astype(kind)
    x = strided(x, gap) if order == "C" else x.copy("F")
    wide = x.astype(np.float64)
    right = 2 * wide[:, 1::2] - wide[:, -1:0:-2]
    results = {"C": poison("f4", *right.shape), "total": poison("f4", M)}
    exact = {"C": right, "total": wide[:, 1::2].sum(axis=1)}
    return FoldCase(elementwise, {"X": x}, results, exact, {"C": 0, "total": 0})


def interleaved_case(rng: np.random.Generator, M: int, H: int, kind: str, *, order: str = "C") -> FoldCase:
    """Return a random problem of `interleaved`."""
    x, y = (rng.integers(-9, 10, (M, H)).astype(kind, order=order) for _ in range(2))
    right = np.empty((M, 2 * H))
    right[::-1, ::2], right[::-1, 1::2] = x, y
    return FoldCase(
        interleaved, {"X": x, "Y": y}, {"C": poison("f4", M, 2 * H).copy(order)}, {"C": right}, {"C": 0}
    )


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("kind", ["f2", "f4"])
def test_operands_and_results(kind: str, target: str) -> None:
    rng = np.random.default_rng(0)
    for M, N, K in ((5, 7, 9), (33, 40, 50)):
        run(products_case(rng, M, N, K, kind, last=1, gap=3), target)
        run(products_case(rng, M, N, K, kind, order="F"), target)
        run(elements_case(rng, M, N, kind, gap=1), target)
        run(elements_case(rng, M, N + 1, kind, order="F"), target)
        run(interleaved_case(rng, M, N, kind), target)
    run(interleaved_case(rng, 20, 9, kind, order="F"), target)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_whole_rows_of_a_slice(target: str) -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal(shape).astype("f4") for shape in ((9, 8), (71, 8), (71, 12)))
    o = poison("f4", 9, 12)
    attention(q, k, v, o, target=target)
    s = q.astype(np.float64) @ k[::2].astype(np.float64).T
    p = np.exp(s - s.max(axis=1, keepdims=True))
    assert np.abs(o - p / p.sum(axis=1, keepdims=True) @ v[::2]).max() <= 1e-5


def test_slices_of_slices_in_explicit_kernels() -> None:
    @tw.kernel(X="N", Y="M")
    def every_third(X, Y):
        view = X[2:-1][::-3]
        tw.require(view.shape[0] == Y.shape[0], "an element for every third one")
        tw.copy(view.tile((64,), (0,)), Y.tile((64,), (0,)), threads=32)

    for N in (5, 6, 7, 100):
        x = np.arange(N, dtype=np.float32)
        right = x[2:-1][::-3]
        for target in ("reference", "cpu"):
            y = poison("f4", len(right))
            every_third(x, y, target=target)
            assert (y == right).all()


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_an_integer_index_of_the_only_row(target: str) -> None:
    """The row is chosen, and its dimension is gone, although the whole array is read."""

    @tw.kernel(X="N", Y="M")
    def every_second(X, Y):
        view = X.unmerge(0, (1, X.shape[0]))[0, ::2]
        tw.require(view.shape[0] == Y.shape[0], "an element for every second one")
        for m in tw.tiles(Y):
            Y[m] = view[m]

    for N in (0, 1, 8, 33):
        x, y = np.arange(N, dtype=np.float32), poison("f4", (N + 1) // 2)
        every_second(x, y, target=target)
        assert (y == x[::2]).all()


def test_the_flow_has_one_meaning_and_no_hazards() -> None:
    rng = np.random.default_rng(2)
    for case in (
        products_case(rng, 9, 7, 11, "f4"),
        elements_case(rng, 9, 21, "f4"),
        interleaved_case(rng, 9, 21, "f4"),
    ):
        given = case.arguments()
        flow = case.kernel.flow(**given)
        assert tw.ir.parse_flow(tw.ir.print_flow(flow)) == flow
        assert case.wrong(tw.ir.evaluate(flow, given)) == []
        assert not case.kernel.check(**given, outputs=(*case.results,)).findings


@pytest.mark.parametrize(("target", "arch"), [("cuda", "sm_80"), ("cuda", "sm_90a"), ("hip", "gfx942")])
def test_gpus_compile(target: str, arch: str) -> None:
    a, b = tw.like("bf16", 2048, 512), tw.like("bf16", 1024, 1536)
    made = product.compile(a, b, tw.like("f32", 1024), tw.like("bf16", 1024, 1024), target=target, arch=arch)
    used = made.resources
    assert used.get("spill_store_bytes", 0) + used.get("spilled_registers", 0) == 0


@pytest.mark.parametrize("step", [2, np.int64(-2), np.uint8(3)])
def test_steps_are_integers_of_python_and_numpy(step: Any) -> None:
    @tw.kernel(X="M N", C="P N")
    def taken(X, C):
        tw.require(C.shape[0] == tw.ceil_div(X.shape[0], abs(int(step))), "a row for each step")
        for m, n in tw.tiles(C):
            C[m, n] = X[::step][m, n]

    x = np.random.default_rng(5).standard_normal((13, 9)).astype("f4")
    c = np.full(x[::step].shape, np.nan, "f4")
    taken(x, c, target="cpu")
    assert (c == x[::step]).all()


def refused(kernel: Any, *arrays: Array, match: str) -> None:
    with pytest.raises(tw.TilewrightError, match=match):
        kernel(*arrays, target="reference")


def test_refusals() -> None:
    x, c = np.ones((4, 8), "f4"), np.zeros((4, 8), "f4")

    @tw.kernel(X="M N", C="M N")
    def no_step(X, C):
        for m, n in tw.tiles(C):
            C[m, n] = X[::0][m, n]

    refused(no_step, x, c, match=r"slice step 0; nearest legal choice: an integer other than 0")

    @tw.kernel(X="M N", C="M N", step=int)
    def any_step(X, C, step):
        for m, n in tw.tiles(C):
            C[m, n] = X[::step][m, n]

    refused(any_step, x, c, 2, match=r"slice step step; nearest .* known while the kernel is traced")

    @tw.kernel(X="M H", C="M N")
    def stored_twice(X, C):
        tw.require(C.shape[1] == 2 * X.shape[1], "two columns for each")
        for m, h in tw.tiles(X):
            C[:, ::2][m, h] = X[m, h]
            C[:, ::2][m, h] = X[m, h]

    refused(stored_twice, x[:, :4], c, match="C is stored twice")

    @tw.kernel(X="M H", C="M N")
    def read_elsewhere(X, C):
        tw.require(C.shape[1] == 2 * X.shape[1], "two columns for each")
        for m, h in tw.tiles(X):
            C[:, ::2][m, h] = C[:, 1::2][m, h]

    refused(read_elsewhere, x[:, :4], c, match="is read and .* is stored: the order of the tiles")


# ---------------------------------------------------------------- extents that are constants


@tw.kernel(A="M K", B="N K", C="M N")
def first_columns(A, B, C, *, depth, rows):
    for m, n in tw.tiles(C[:rows]):
        acc = tw.zeros()
        for k in tw.steps(depth):
            acc += A[:rows, :depth][m, k] @ B[:, :depth][n, k].T
        C[:rows][m, n] = acc


@tw.kernel(Q="M D", K="N D", V="N E", O="M E")
def first_keys(Q, K, V, O, *, count):
    for m, e in tw.tiles(O):
        total = tw.zeros((m, e), tw.f32)
        for n in tw.steps(count):
            s = Q[m] @ K[:count][n].T
            s = tw.where(tw.positions(n) <= tw.positions(m)[:, None], s, 0.0)
            total.assign(total + s.to(V.dtype) @ V[:count][n, e])
        O[m, e] = total


CHOSEN_FOR = [("cuda", "sm_80"), ("cuda", "sm_90a"), ("hip", "gfx942"), ("hip", "gfx1100")]


def numbers(kind: str, *shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(tw.dtype(kind).numpy)


def under_chosen_schedules(kernel: Any, arrays: list[Array], exact: Array, **constants: int) -> None:
    """Run the schedules that GPUs have on the reference; sums of small integers are exact."""
    *given, result = arrays
    for target, arch in CHOSEN_FOR:
        schedule = kernel.bind(**constants).schedule_for(*arrays, target=target, arch=arch)
        own = kernel.bind(**constants, schedule=schedule)
        own.compile(*arrays, target=target, arch=arch)
        if not schedule.by_bulk or arch == "sm_90a":
            found = np.full_like(result, np.nan)
            own(*given, found, target="reference")
            assert np.array_equal(found[: len(exact)], exact), (arch, schedule)
            assert np.isnan(found[len(exact) :]).all()


@pytest.mark.parametrize("kind", ["f16", "f32"])
@pytest.mark.parametrize(("depth", "rows"), [(1, 70), (64, 7), (100, 70), (200, 1)])
def test_products_whose_depth_is_a_constant(depth: int, rows: int, kind: str) -> None:
    """Rings load tiles past the last one, of which tracing knows here that they are past the array."""
    a, b, c = numbers(kind, 70, 200), numbers(kind, 40, 200), np.empty((70, 40), np.float32)
    exact = a[:rows, :depth].astype(np.float64) @ b[:, :depth].T.astype(np.float64)
    under_chosen_schedules(first_columns, [a, b, c], exact, depth=depth, rows=rows)


@pytest.mark.parametrize("kind", ["f16", "f32"])
@pytest.mark.parametrize("count", [1, 30, 64])
def test_loops_with_a_state_whose_extent_is_a_constant(count: int, kind: str) -> None:
    q, k, v, o = (
        numbers(kind, 50, 16),
        numbers(kind, 64, 16),
        numbers(kind, 64, 8),
        np.empty((50, 8), np.float32),
    )
    s = q.astype(np.float64) @ k[:count].T.astype(np.float64)
    exact = np.tril(s) @ v[:count].astype(np.float64)
    under_chosen_schedules(first_keys, [q, k, v, o], exact, count=count)


@tw.kernel(A="M K", B="N K", C="M N")
def first_band(A, B, C, *, rows, depth):
    a, b = A[:rows, :depth], B[:, :depth]
    for m, n in tw.tiles(C[:rows]):
        acc = tw.zeros()
        for k in tw.steps(depth):
            acc += a[m, k] @ b[n, k].T
        below = tw.positions(m)[:, None] - tw.positions(n)
        C[:rows][m, n] = tw.where((below >= 0) & (below < 3), acc, 0)


@pytest.mark.parametrize(("rows", "depth"), [(33, 17), (130, 129)])
def test_masked_products_whose_extents_are_constants(rows: int, depth: int) -> None:
    """Steps are counted at run time, and the first tile is known to be whole."""
    a, b, c = numbers("f32", 150, 150), numbers("f32", 70, 150), np.empty((150, 70), np.float32)
    full = a[:rows, :depth].astype(np.float64) @ b[:, :depth].T.astype(np.float64)
    under_chosen_schedules(first_band, [a, b, c], np.tril(full) - np.tril(full, -3), rows=rows, depth=depth)


def test_parts_of_a_result_whose_extents_are_constants() -> None:
    """Blocks add up parts of few tiles; loops over parts are guarded by branches."""
    given = [tw.like("f32", 4096, 256), tw.like("f32", 64, 256), tw.like("f32", 4096, 64)]
    for depth in (100, 192):
        kernel = first_columns.bind(depth=depth, rows=100)
        schedule = kernel.schedule_for(*given, target="cuda", arch="sm_80")
        assert schedule.is_split
        kernel.compile(*given, target="cuda", arch="sm_80")
