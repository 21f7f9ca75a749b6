"""The flow that a loop over tiles records."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.dataflow.nodes import ArrayPart, Map, Rearrange, Sum
from tilewright.lang.program import Program

from .flows import recorded, spec

DIMS = {"A": "M K", "B": "N K", "bias": "N", "C": "M N", "alpha": tw.f32}


def linear(A, B, bias, C, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        y = alpha * acc + bias[n]
        C[m, n] = y * tw.sigmoid(y)


def test_a_linear_layer() -> None:
    flow = recorded(linear, DIMS)
    assert [span.name for span in flow.tiles] == ["m", "n"]
    assert [parameter.name for parameter in flow.parameters] == ["A", "B", "bias", "C", "alpha"]
    [product] = flow.sums
    assert (product.span.name, product.dtype, product.variable) == ("k", tw.f32, "acc")
    assert isinstance(product.a, ArrayPart)
    assert isinstance(product.b, Rearrange)
    [store] = flow.stores
    assert isinstance(store.value, Map)
    assert store.value.function == "mul"
    assert store.location is not None
    assert store.location.frame.function == "linear"


def test_what_is_computed_twice_is_recorded_once() -> None:
    flow = recorded(linear, DIMS)
    biases = [node for node in flow.walk() if isinstance(node, ArrayPart) and node.operand.name == "bias"]
    assert len(biases) == 1


def test_the_dtype_of_a_sum_follows_from_its_operands() -> None:
    def product(A, B, C):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[n, k].T
            C[m, n] = acc

    dims = {"A": "M K", "B": "N K", "C": "M N"}
    for given, made in [(tw.f16, tw.f32), (tw.f64, tw.f64), (tw.i8, tw.i32), (tw.c64, tw.c64)]:
        [found] = recorded(product, dims, A=spec(given), B=spec(given), C=spec(made)).sums
        assert isinstance(found, Sum)
        assert found.dtype == made


def test_a_flow_is_no_explicit_kernel() -> None:
    program = Program(linear, DIMS)
    specs = {p.name: spec(rank=len(p.dims)) for p in program.parameters if p.kind == "tensor"}
    with pytest.raises(tw.TraceError, match="a schedule must first expand it"):
        program.trace(specs)


def test_parts_of_one_array_are_stored_apart() -> None:
    """Different integer indices name different elements, but those with different signs may name the same."""

    @tw.kernel(A="M K", B="N K", C="M T N")
    def two(A, B, C, *, second: int):
        for m, n in tw.tiles((C.shape[0], C.shape[2])):
            acc = tw.zeros(dtype=tw.f32)
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[n, k].T
            C[m, 0, n] = acc
            C[m, second, n] = tw.relu(acc)

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (rows, 30)).astype(np.float32) for rows in (40, 50))
    right = a @ b.T
    for target in ("reference", "cpu"):
        c = np.full((40, 3, 50), np.nan, np.float32)
        two.bind(second=1)(a, b, c, target=target)
        assert (c[:, 0] == right).all()
        assert (c[:, 1] == np.maximum(right, 0)).all()
        assert np.isnan(c[:, 2]).all()
    flow = two.bind(second=1).flow(a, b, c)
    assert tw.ir.parse_flow(tw.ir.print_flow(flow)) == flow
    found = tw.ir.evaluate(flow, {"A": a, "B": b, "C": np.full_like(c, np.nan)})["C"]
    assert np.array_equal(found, c, equal_nan=True)
    for second in (0, -3):
        with pytest.raises(tw.TraceError, match="C is stored twice"):
            two.bind(second=second).flow(a, b, c)


@pytest.mark.parametrize("view", ["slices", "unmerged"])
def test_halves_of_a_result_are_stored_apart(view: str) -> None:
    @tw.kernel(X="S D", c="S H", s="S H", Y="S D")
    def rotary(X, c, s, Y):
        half = c.shape[1]
        tw.require(X.shape[1] == 2 * half, "two halves")
        if view == "slices":
            low, high, first, second = X[:, :half], X[:, half:], Y[:, :half], Y[:, half:]
        else:
            low, high, first, second = (A.unmerge(1, (2, half))[:, i] for A in (X, Y) for i in (0, 1))
        for i, e in tw.tiles(c):
            first[i, e] = low[i, e] * c[i, e] - high[i, e] * s[i, e]
            second[i, e] = high[i, e] * c[i, e] + low[i, e] * s[i, e]

    rng = np.random.default_rng(0)
    for rows, half in ((37, 11), (64, 32), (1, 1)):
        x, y = (
            rng.integers(-4, 5, (rows, 2 * half)).astype(np.float32),
            np.full((rows, 2 * half), np.nan, "f4"),
        )
        c, s = rng.integers(-4, 5, (2, rows, half)).astype(np.float32)
        low, high = x[:, :half], x[:, half:]
        right = np.concatenate([low * c - high * s, high * c + low * s], 1)
        for target in ("reference", "cpu"):
            y[...] = np.nan
            rotary(x, c, s, y, target=target)
            assert (y == right).all()
        flow = rotary.flow(x, c, s, y)
        assert tw.ir.parse_flow(tw.ir.print_flow(flow)) == flow


def test_a_view_that_is_read_where_another_is_stored_is_an_argument_of_its_own() -> None:
    @tw.kernel(X="S D", c="S H")
    def exchanged(X, c):
        tw.require(X.shape[1] == 2 * c.shape[1], "two halves")
        for i, e in tw.tiles(c):
            low, high = X[:, : c.shape[1]][i, e], X[:, c.shape[1] :][i, e]
            X[:, : c.shape[1]][i, e] = high * c[i, e]
            X[:, c.shape[1] :][i, e] = low * c[i, e]

    @tw.kernel(low="S H", high="S H", c="S H")
    def exchanged_arguments(low, high, c):
        for i, e in tw.tiles(c):
            first, second = low[i, e], high[i, e]
            low[i, e] = second * c[i, e]
            high[i, e] = first * c[i, e]

    rng = np.random.default_rng(0)
    x, c = rng.integers(-4, 5, (37, 22)).astype(np.float32), rng.integers(-4, 5, (37, 11)).astype(np.float32)
    with pytest.raises(tw.TraceError, match="pass each view of the array as its own argument"):
        exchanged.flow(x, c)
    right = np.concatenate([x[:, 11:] * c, x[:, :11] * c], 1)
    for target in ("reference", "cpu"):
        y = x.copy()
        exchanged_arguments(y[:, :11], y[:, 11:], c, target=target)
        assert (y == right).all()


@pytest.mark.parametrize(("first", "second"), [((0, 5), (4, 9)), ((3, 8), (0, 5)), ((1, 6), (1, 6))])
def test_slices_that_overlap_are_not_stored_apart(first: tuple[int, int], second: tuple[int, int]) -> None:
    @tw.kernel(X="M N", Y="M K")
    def two(X, Y):
        tw.require(X.shape[1] == 5, "five columns")
        for m, n in tw.tiles((X.shape[0], 5)):
            Y[:, slice(*first)][m, n] = X[m, n]
            Y[:, slice(*second)][m, n] = X[m, n]

    x = np.ones((3, 5), np.float32)
    y = np.ones((3, 9), np.float32)
    near = "Y is stored twice, by views that may share elements.*views without common elements"
    with pytest.raises(tw.TraceError, match=near):
        two.flow(x, y)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_slices_with_a_step_of_two_rows_are_stored_apart(target: str) -> None:
    @tw.kernel(X="N", C="P Q")
    def two_rows(X, C):
        tw.require(C.shape[1] == 2 * X.shape[0], "every second column")
        for n in tw.tiles(X):
            C[0, ::2][n] = X[n]
            C[1, ::2][n] = 2 * X[n]

    x, c = np.arange(1, 38, dtype=np.float32), np.zeros((2, 74), np.float32)
    two_rows(x, c, target=target)
    assert (c[:, ::2] == [x, 2 * x]).all()
    assert (c[:, 1::2] == 0).all()


def test_whole_rows_in_place_are_refused_with_a_form_that_works() -> None:
    @tw.kernel(Y="M N")
    def rows(Y):
        for m in tw.tiles(Y.shape[0]):
            Y[m] = Y[m] - Y[m].max(axis=1)[:, None]

    @tw.kernel(Y="M N")
    def tiles(Y):
        for m, n in tw.tiles(Y):
            Y[m, n] = Y[m, n] - Y[m, n].max(axis=1)[:, None]

    y = np.float32([[1, 5, 3], [9, 2, 4]])
    with pytest.raises(tw.TraceError, match=r"index Y with a span of tw\.tiles\(Y\) for each dimension"):
        rows.flow(y)
    tiles(y, target="cpu")
    assert y.tolist() == [[-4, 0, -2], [0, -7, -5]]


# ---------------------------------------------------------------- sizes that the author requires


@pytest.mark.parametrize("view", ["slices", "unmerged"])
def test_a_required_equation_makes_extents_equal_and_the_launcher_checks_it(view: str) -> None:
    @tw.kernel(X="M K", W="P K", Y="M N")
    def gated(X, W, Y):
        columns = Y.shape[1]
        tw.require(W.shape[0] == 2 * columns, "rows of the gate and of the sum")
        halves = W.unmerge(0, (2, columns)) if view == "unmerged" else (W[:columns], W[columns:])
        for m, n in tw.tiles(Y):
            gate, up = tw.zeros(), tw.zeros()
            for k in tw.steps(X.shape[1]):
                gate += X[m, k] @ halves[0][n, k].T
                up += X[m, k] @ halves[1][n, k].T
            Y[m, n] = tw.maximum(gate, 0) * up

    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((13, 21)), rng.standard_normal((2 * 9, 21))
    gate, up = np.maximum(x @ w[:9].T, 0), x @ w[9:].T
    # Two sums of 21 products are multiplied: (K + 1) roundings of each, in f64.
    bound = 2 * 23 * 2.0**-53 * (np.abs(x) @ np.abs(w[:9]).T) * (np.abs(x) @ np.abs(w[9:]).T)
    for target in ("reference", "cpu"):
        y = np.full((13, 9), np.nan)
        assert gated(x, w, y, target=target).target == target
        assert (np.abs(y - gate * up) <= bound).all()
    with pytest.raises(tw.LaunchError, match="rows of the gate and of the sum"):
        gated(x, w[:-1], np.empty((13, 9)), target="cpu")


def test_a_quotient_that_is_required_to_divide_splits_a_dimension() -> None:
    @tw.kernel(Q="H M", K="G M", O="H M")
    def heads(Q, K, O):
        groups = K.shape[0]
        tw.require(Q.shape[0] % groups == 0, "heads in groups of one size")
        source, result = (x.unmerge(0, (groups, x.shape[0] // groups)) for x in (Q, O))
        for g, h, m in tw.tiles(result):
            result[g, h, m] = source[g, h, m] + K[g, None, m]

    q, k = np.arange(12.0).reshape(6, 2), np.array([[100.0, 200], [300, 400]])
    out = np.empty_like(q)
    assert heads(q, k, out, target="cpu").target == "cpu"
    assert (out == q + k.repeat(3, axis=0)).all()
    with pytest.raises(tw.LaunchError, match="heads in groups of one size"):
        heads(q[:5], k, out[:5], target="cpu")


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_slice_or_an_index_beyond_an_array_is_refused_before_the_launch(target: str) -> None:
    @tw.kernel(X="P N", Y="M N")
    def second_half(X, Y):
        rows = Y.shape[0]
        for m, n in tw.tiles(Y):
            Y[m, n] = X[rows : 2 * rows][m, n]

    x, y = np.arange(21.0).reshape(7, 3), np.empty((3, 3))
    assert second_half(x, y, target=target).target == target
    assert (y == x[3:6]).all()
    with pytest.raises(tw.LaunchError, match="slice 3:6 of dimension 0 of X, whose extent is 5"):
        second_half(x[:5], y, target=target)

    @tw.kernel(X="M N", Y="P M N")
    def into_second(X, Y):
        for m, n in tw.tiles(X):
            Y[1, m, n] = X[m, n]

    y = np.zeros((2, 7, 3))
    into_second(x, y, target=target)
    assert (y[1] == x).all()
    with pytest.raises(tw.LaunchError, match="index 1 of dimension 0 of Y, whose extent is 1"):
        into_second(x, y[:1], target=target)


def test_an_array_may_stand_on_either_side_of_a_whole_row() -> None:
    @tw.kernel(X="M K", C="N K", half="N", near="M")
    def nearest(X, C, half, near):
        for m in tw.tiles(near):
            far = half - X[m] @ C.T
            near[m] = tw.where(far == far.min(axis=1)[:, None], tw.positions(far), C.shape[0]).min(axis=1)

    @tw.kernel(x="K", W="K N", y="N")
    def vector_by_matrix(x, W, y):
        for n in tw.tiles(y):
            y[n] = x @ W[:, n]

    rng = np.random.default_rng(1)
    x, c = rng.integers(-4, 5, (17, 5)).astype("f8"), rng.integers(-4, 5, (11, 5)).astype("f8")
    half = (c * c).sum(1) / 2
    near, y = np.empty(17, np.int32), np.empty(17)
    assert nearest(x, c, half, near, target="cpu").target == "cpu"
    assert (near == (half - x @ c.T).argmin(1)).all()
    assert vector_by_matrix(c[0], x.T, y, target="cpu").target == "cpu"
    assert (y == x @ c[0]).all()
