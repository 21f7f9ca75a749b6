"""Errors of dataflow kernels name the line, and the advice in each message works."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

RNG = np.random.default_rng(5)


def integers(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return RNG.integers(-3, 4, shape).astype(dtype)


@tw.kernel(X="M K", W="K N", T="M R", B="R N", C="M N")
def two_loops(X, W, T, B, C):
    for m, n in tw.tiles(C):
        acc, low = tw.zeros(dtype=tw.f32), tw.zeros(dtype=tw.f32)
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[k, n]
        for r in tw.steps(T.shape[1]):
            low += T[m, r] @ B[r, n]
        C[m, n] = acc + 0.5 * low


@tw.kernel(X="M K", W="K N", L="M N", C="M N")
def one_loop_and_an_array(X, W, L, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[k, n]
        C[m, n] = acc + 0.5 * L[m, n]


def test_two_loops_are_one_kernel_or_two() -> None:
    x, w, t, b = integers(37, 29), integers(29, 41), integers(37, 7), integers(7, 41)
    c = np.full((37, 41), np.nan, np.float32)
    assert two_loops(x, w, t, b, c, target="cpu").target == "cpu"
    np.testing.assert_array_equal(c, x @ w + 0.5 * (t @ b))
    c[...] = np.nan
    one_loop_and_an_array(x, w, tw.matmul(t, b), c, target="cpu")
    np.testing.assert_array_equal(c, x @ w + 0.5 * (t @ b))


@tw.kernel(X="M K", W="K N", C="M N")
def normalised(X, W, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        squares = tw.zeros((m,), tw.f32)
        for k in tw.steps(X.shape[1]):
            x = X[m, k]
            acc += x @ W[k, n]
            squares.assign(squares + (x * x).sum(axis=1))
        C[m, n] = acc * squares[:, None]


@tw.kernel(X="M K", W="K N", squares="M", C="M N")
def by_an_array(X, W, squares, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[k, n]
        C[m, n] = acc * squares[m][:, None]


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_a_loop_with_a_state_and_an_array_agree(target: str) -> None:
    x, w = integers(37, 29), integers(29, 41)
    c = np.full((37, 41), np.nan, np.float32)
    squares = (x * x).sum(1)
    assert normalised(x, w, c, target=target).target == target
    np.testing.assert_array_equal(c, (x @ w) * squares[:, None])
    c.fill(np.nan)
    by_an_array(x, w, squares, c, target=target)
    np.testing.assert_array_equal(c, (x @ w) * squares[:, None])


@tw.kernel(Q="M D", K="N D", V="N E", O="M E")
def product_of_a_product(Q, K, V, O):
    for m, e in tw.tiles(O):
        out = tw.zeros()
        for n in tw.steps(K.shape[0]):
            s = tw.zeros()
            for d in tw.steps(Q.shape[1]):
                s += Q[m, d] @ K[n, d].T
            out += tw.relu(s).to(V.dtype) @ V[n, e]
        O[m, e] = out


def test_a_product_of_a_product_and_the_operations_for_it_agree() -> None:
    q, k, v = integers(20, 16), integers(24, 16), integers(24, 8)
    out = np.full((20, 8), np.nan, np.float32)
    assert product_of_a_product(q, k, v, out, target="cpu").target == "cpu"
    np.testing.assert_array_equal(out, np.maximum(q @ k.T, 0) @ v)
    chained = tw.gemm_chain(q, k.T, v, activation="relu", target="cpu")
    np.testing.assert_array_equal(chained, np.maximum(q @ k.T, 0) @ v)
    scores = q @ k.T / 4
    weights = np.exp(scores - scores.max(1, keepdims=True))
    wanted = weights / weights.sum(1, keepdims=True) @ v
    np.testing.assert_allclose(tw.attention(q, k, v, target="cpu"), wanted, rtol=1e-4, atol=1e-4)


@tw.kernel(A="M K", x="K", y="M")
def by_vector(A, x, y):
    for m in tw.tiles(y):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(x.shape[0]):
            acc += A[m, k] @ x[k]
        y[m] = acc


@tw.kernel(A="M K", x="K P", y="M P")
def by_column(A, x, y):
    for m, n in tw.tiles(y):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ x[k, n]
        y[m, n] = acc


@tw.kernel(x="M", y="N", C="M N")
def outer(x, y, C):
    for m, n in tw.tiles(C):
        C[m, n] = x[m][:, None] * y[n]


def test_a_vector_is_a_matrix_of_one_column() -> None:
    a, x, y, z = integers(37, 29), integers(29), *(np.full(37, np.nan, np.float32) for _ in range(2))
    by_vector(a, x, z, target="cpu")
    by_column(a, x[:, None], y[:, None], target="cpu")
    np.testing.assert_array_equal(y, a @ x)
    np.testing.assert_array_equal(z, a @ x)
    x, y, z = integers(3), integers(4), np.full((3, 4), np.nan, np.float32)
    outer(x, y, z, target="cpu")
    np.testing.assert_array_equal(z, np.outer(x, y))


@tw.kernel(X="M K", W="K N", C="M N")
def softmax(X, W, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[k, n]
        e = tw.exp(acc - acc.max(axis=1)[:, None])
        C[m, n] = e / e.sum(axis=1)[:, None]


@tw.kernel(X="M K", W="K N", lse="M")
def logarithms(X, W, lse):
    for m, n in tw.tiles((X.shape[0], W.shape[1])):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[k, n]
        top = acc.max(axis=1)
        lse[m] = top + tw.log(tw.exp(acc - top[:, None]).sum(axis=1))


@tw.kernel(X="M K", W="K N", lse="M", C="M N")
def weights(X, W, lse, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[k, n]
        C[m, n] = tw.exp(acc - lse[m][:, None])


def test_a_softmax_of_more_columns_than_a_tile_is_a_loop_or_two_kernels() -> None:
    def shapes(columns: int) -> dict[str, Any]:
        return {"X": tw.like("f16", 512, 64), "W": tw.like("f16", 64, columns)}

    how = {"target": "cuda", "arch": "sm_90a"}
    whole = tw.Schedule(tw.atoms.MMA_F16, (64, 1024, 64), (2, 2))
    with pytest.raises(
        tw.ScheduleError, match=r"covers all of n, because the kernel reduces along it.*in a first"
    ):
        softmax.bind(schedule=whole).compile(**shapes(1024), C=tw.like("f16", 512, 1024), **how)
    made = softmax.compile(**shapes(1024), C=tw.like("f16", 512, 1024), **how)
    assert made.schedule is not None
    assert made.schedule.tile[1] < 1024, "a loop along the row"
    softmax.compile(**shapes(128), C=tw.like("f16", 512, 128), **how)  # the smaller tile that covers n
    logarithms.compile(**shapes(1024), lse=tw.like("f32", 512), **how)
    weights.compile(**shapes(1024), lse=tw.like("f32", 512), C=tw.like("f16", 512, 1024), **how)
    x, w = RNG.standard_normal((33, 40)), RNG.standard_normal((40, 1024))
    x, w = x.astype(np.float32), w.astype(np.float32)
    lse, c = np.full(33, np.nan, np.float32), np.full((33, 1024), np.nan, np.float32)
    logarithms(x, w, lse, target="cpu")
    weights(x, w, lse, c, target="cpu")
    powers = np.exp(x.astype(float) @ w.astype(float))
    np.testing.assert_allclose(c, powers / powers.sum(1, keepdims=True), rtol=2e-4, atol=1e-9)


@tw.kernel(X="N H W C", F="G T O", Y="G P O")
def of_groups(X, F, Y, *, taps, groups):
    image = X.im2col(spatial=(1, 2), filter=taps, groups=groups)
    tw.require(F.shape[0] == groups, "groups")
    tw.require(Y.shape[1] == image.shape[1], "places")
    tw.require(F.shape[1] == image.shape[2], "taps")
    for c, m, o in tw.tiles(Y):
        acc = tw.zeros()
        for k in tw.steps(F.shape[1]):
            acc += image[c, m, k] @ F[c, k, o]
        Y[c, m, o] = acc


@tw.kernel(X="N H W G C", F="G T O", Y="G P O")
def of_a_dimension(X, F, Y, *, taps):
    image = X.im2col(spatial=(1, 2), channel=4, group=3, filter=taps)
    tw.require(Y.shape[1] == image.shape[1], "places")
    tw.require(F.shape[1] == image.shape[2], "taps")
    for c, m, o in tw.tiles(Y):
        acc = tw.zeros()
        for k in tw.steps(F.shape[1]):
            acc += image[c, m, k] @ F[c, k, o]
        Y[c, m, o] = acc


def test_a_depthwise_convolution_has_a_dimension_of_groups() -> None:
    """Both ways to say it; for `groups=`, the launch proves that they divide the channels."""
    x, f = integers(2, 8, 9, 6), integers(6, 9, 1)
    wanted = sum(x[:, i : i + 6, j : j + 7] * f[:, 3 * i + j, 0] for i in range(3) for j in range(3))
    for kernel, words in ((of_groups, {"groups": 6}), (of_a_dimension, {})):
        y = np.full((6, 2 * 6 * 7, 1), np.nan, np.float32)
        given = x[..., None] if kernel is of_a_dimension else x
        assert kernel(given, f, y, taps=(3, 3), target="cpu", **words).target == "cpu"
        np.testing.assert_array_equal(y[..., 0].T.reshape(wanted.shape), wanted)
    with pytest.raises(tw.LaunchError, match="groups"):
        of_groups(integers(2, 8, 9, 7), f, y, taps=(3, 3), groups=6, target="reference")
