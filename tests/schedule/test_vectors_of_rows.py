"""Computed rows times a vector, columns plus a vector, and several products of whole rows in one step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

Array = np.ndarray[Any, Any]
U = tw.f32.unit_roundoff
DTYPES = ["f32", "f16", "bf16"]
RNG = np.random.default_rng(5)


def normal(dtype: str, *shape: int) -> Array:
    return RNG.standard_normal(shape).astype(tw.dtype(dtype).numbers)


def wide(array: Array) -> Array:
    return np.asarray(array, np.float64)


@tw.kernel(X="M D", C="N D", xx="M", cc="N", w="N", y="M", g=tw.f32)
def by_gaussians(X, C, xx, cc, w, y, g):
    for m in tw.tiles(y):
        y[m] = tw.exp(-g * (xx[m][:, None] + cc - 2 * (X[m] @ C.T))) @ w


@tw.kernel(X="M D", C="N D", xx="M", cc="N", w="N", y="M", g=tw.f32)
def by_gaussians_in_steps(X, C, xx, cc, w, y, g):
    for m in tw.tiles(y):
        total = tw.zeros((m,), tw.f32)
        for n in tw.steps(C.shape[0]):
            s = tw.zeros(dtype=tw.f32)
            for d in tw.steps(X.shape[1]):
                s += X[m, d] @ C[n, d].T
            total.assign(total + tw.exp(-g * (xx[m][:, None] + cc[n] - 2 * s)) @ w[n])
        y[m] = total


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", [by_gaussians, by_gaussians_in_steps], ids=["rows", "steps"])
@pytest.mark.parametrize("shape", [(37, 13, 11), (1, 1, 1), (0, 5, 3), (5, 0, 3), (5, 3, 0), (70, 65, 130)])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_matrix_of_gaussians_times_a_vector(kernel: Any, dtype: str, shape: Any, target: str) -> None:
    rows, columns, depth = shape
    x, c, w = normal(dtype, rows, depth), normal(dtype, columns, depth), normal(dtype, columns)
    xx, cc = (np.float32((wide(one) ** 2).sum(1)) for one in (x, c))
    g = np.float32(0.5 / max(depth, 1))
    y = np.full(rows, np.nan, np.float32)
    kernel(x, c, xx, cc, w, y, float(g), target=target)
    inner, sizes = wide(x) @ wide(c).T, np.abs(wide(x)) @ np.abs(wide(c)).T
    exponent = float(g) * (xx[:, None].astype(float) + cc - 2 * inner)
    largest = float(g) * (xx[:, None].astype(float) + cc + 2 * sizes)
    terms = np.exp(-exponent) * np.abs(wide(w))
    # The sum of products, the factors 2 and -g and two sums; 4 for the power; one product and N additions.
    room = (terms * np.expm1((depth + 6) * U * largest + (columns + 6) * U)).sum(1)
    assert (np.abs(y - np.exp(-exponent) @ wide(w)) <= room + 1e-37).all()


@tw.kernel(S="M N", v="N", o="M")
def weighted(S, v, o):
    for m in tw.tiles(o):
        o[m] = tw.softmax(S[m]) @ v


@tw.kernel(A="M K", B="K N", x="N", y="M")
def chain(A, B, x, y):
    for m in tw.tiles(y):
        y[m] = A[m] @ B @ x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(37, 13), (1, 1), (0, 3), (6, 1300)])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_softmax_times_a_vector(dtype: str, shape: tuple[int, int], target: str) -> None:
    s, v = normal(dtype, *shape), normal(dtype, shape[1])
    o = np.full(shape[0], np.nan, np.float32)
    weighted(s, v, o, target=target)
    power = np.exp(wide(s) - wide(s).max(1, keepdims=True))
    p = power / power.sum(1, keepdims=True)
    kept = tw.dtype(dtype).unit_roundoff if dtype != "f32" else 0  # softmax returns the dtype of its argument
    relative = (2 * shape[1] + 16 + 2 * (wide(s).max(1) - wide(s).min(1))) * U + kept
    assert (np.abs(o - p @ wide(v)) <= relative * (p @ np.abs(wide(v)))).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(37, 13, 11), (1, 1, 1), (5, 0, 3), (5, 3, 0), (70, 65, 130)])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_product_times_a_vector(dtype: str, shape: tuple[int, int, int], target: str) -> None:
    rows, columns, depth = shape
    a, b, x = normal(dtype, rows, depth), normal(dtype, depth, columns), normal(dtype, columns)
    y = np.full(rows, np.nan, np.float32)
    chain(a, b, x, y, target=target)
    sizes = np.abs(wide(a)) @ np.abs(wide(b)) @ np.abs(wide(x))
    assert (np.abs(y - wide(a) @ wide(b) @ wide(x)) <= (depth + columns + 2) * U * sizes).all()


@tw.kernel(x="M", c="N", D="M N")
def differences(x, c, D):
    for m in tw.tiles(D.shape[0]):
        D[m] = tw.where(c > x[m][:, None], c - x[m][:, None], x[m][:, None] - c)


@pytest.mark.parametrize("shape", [(37, 13), (1, 1), (0, 3), (3, 0), (70, 130)])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_column_and_a_vector_make_rows(shape: tuple[int, int], target: str) -> None:
    x, c = normal("f32", shape[0]), normal("f32", shape[1])
    found = np.full(shape, np.nan, np.float32)
    differences(x, c, found, target=target)
    assert (found == np.abs(c - x[:, None])).all()


@tw.kernel(dY="M N", X="M N", mean="M", rstd="M", dw="N", db="N")
def gradients_of_norm(dY, X, mean, rstd, dw, db):
    for n in tw.tiles(dw):
        dw[n] = (dY[:, n] * (X[:, n] - mean[:, None]) * rstd[:, None]).sum(axis=0)
        db[n] = dY[:, n].sum(axis=0)


@pytest.mark.parametrize("shape", [(37, 13), (1, 1), (0, 3), (3, 0), (70, 130)])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_vector_with_a_new_axis_has_an_element_for_each_row_of_whole_columns(
    shape: tuple[int, int], target: str
) -> None:
    rng = np.random.default_rng(0)
    dy, x = rng.integers(-3, 4, (2, *shape)).astype(np.float32)
    mean, rstd = rng.integers(-3, 4, (2, shape[0])).astype(np.float32)
    dw, db = np.full((2, shape[1]), np.nan, np.float32)
    gradients_of_norm(dy, x, mean, rstd, dw, db, target=target)
    assert (dw == (dy * (x - mean[:, None]) * rstd[:, None]).sum(0)).all()
    assert (db == dy.sum(0)).all()


def test_refusals_that_new_users_meet_say_what_to_write() -> None:
    @tw.kernel(X="T N", offsets="H", Y="G N")
    def segments(X, offsets, Y):
        tw.require(offsets.shape[0] == Y.shape[0] + 1, "an end for each start")
        for g, n in tw.tiles(Y, batch=1):
            total = tw.zeros((n,), tw.f32)
            for t in tw.steps(X.shape[0], begin=offsets[:-1][g], end=offsets[1:][g]):
                total.assign(total + X[t, n].sum(axis=0))
            Y[g, n] = total

    x, y = np.ones((4, 3), np.float32), np.ones((2, 3), np.float32)
    with pytest.raises(tw.TraceError, match=r"call the kernel with offsets\[:-1\] and offsets\[1:\]"):
        segments.flow(x, np.int32([0, 1, 4]), y)

    @tw.kernel(X="N", p=tw.f32)
    def dropped(X, p):
        for n in tw.tiles(X):
            X[n] = tw.dropout(X[n], p, 7, 2.0, 1)

    with pytest.raises(tw.TraceError, match=r"a tile, such as x\[m, n\] or tw.positions\(n\)"):
        dropped.flow(x[0], 0.5)

    @tw.kernel(X="B N", Y="B K")
    def cosines(X, Y):
        for b, k in tw.tiles(Y):
            acc = tw.zeros()
            for t in tw.steps(X.shape[1]):
                acc += X[b, t] @ tw.cos((tw.positions(t)[:, None] * tw.positions(k)).to(tw.f32))
            Y[b, k] = acc

    with pytest.raises(tw.TraceError, match="an array of the computed values, which another kernel stores"):
        cosines(x, x.copy(), target="cpu")


def test_refusals_of_batches_and_states_name_a_form_that_works() -> None:
    @tw.kernel(x="B N", K="B N M", z="B M", H="B M N", y="B N")
    def update(x, K, z, H, y):
        for b, i in tw.tiles(y, batch=1):
            y[b, i] = x[b, i] + K[b, i] @ (z[b] - H[b] @ x[b])

    x, z, gain = np.ones((2, 3), "f4"), np.ones((2, 4), "f4"), np.ones((2, 3, 4), "f4")
    with pytest.raises(tw.TraceError, match="a kernel of its own that stores this product"):
        update(x, gain, z, gain.swapaxes(1, 2), x.copy(), target="cpu")

    @tw.kernel(X="M N", S="M G")
    def largest(X, S, *, batch):
        tw.require(X.shape[1] == 32 * S.shape[1], "groups of 32")
        for m, g in tw.tiles(S, batch=batch):
            S[m, g] = X.unmerge(1, (S.shape[1], 32))[m, g].max(axis=-1)

    groups, found = np.arange(128, dtype=np.float32).reshape(2, 64) % 37, np.empty((2, 2), np.float32)
    with pytest.raises(tw.TraceError, match=r"batch=1 of tw\.tiles, so that m is a batch, and g are"):
        largest.bind(batch=0)(groups, found, target="cpu")
    largest.bind(batch=1)(groups, found, target="cpu")
    assert (found == groups.reshape(2, 2, 32).max(2)).all()

    @tw.kernel(x="P", ends="M", y="M")
    def sums_of_rows(x, ends, y, *, is_view):
        rows = y.unmerge(0, (y.shape[0], 1)) if is_view else y
        for m, *j in tw.tiles(rows, batch=1):
            total = tw.zeros(tuple(j), tw.f32)
            for p in tw.steps(x.shape[0], begin=None, end=ends[m]):
                total.assign(total + x[p].sum(axis=0))
            rows[(m, *j)] = total

    y = np.empty(2, np.float32)
    with pytest.raises(tw.TraceError, match=r"or a view with a last dimension of 1, such as y.unmerge"):
        sums_of_rows.bind(is_view=False)(groups[0], np.int32([5, 64]), y, target="cpu")
    sums_of_rows.bind(is_view=True)(groups[0], np.int32([5, 64]), y, target="cpu")
    assert y.tolist() == [groups[0, :5].sum(), groups[0, 5:].sum()]

    @tw.kernel(Q="N D", K="N D", V="N E", a="N", O="N E")
    def decayed(Q, K, V, a, O):
        for e in tw.tiles(V.shape[1]):
            S, last = tw.zeros((Q.shape[1], e), tw.f32), tw.zeros((e,), tw.f32)
            for n in tw.steps(Q.shape[0]):
                i = tw.alias(n)
                O[i, e] = (Q[i] @ S) * (a[i][:, None] - last)
                S.assign(S + K[n].T @ V[n, e])
                last.assign(last + V[n, e].sum(axis=0))

    with pytest.raises(
        tw.TraceError, match=r"last has the axes \(e,\) in a loop that stores the rows of its"
    ):
        decayed(gain[0], gain[0], gain[0], gain[0, :, 0], gain[1], target="cpu")


@tw.kernel(Wr="B N", Wi="B N", Xr="N T", Xi="N T", power="B")
def beam_power(Wr, Wi, Xr, Xi, power):
    for b in tw.tiles(power):
        re = Wr[b] @ Xr + Wi[b] @ Xi
        im = Wr[b] @ Xi - Wi[b] @ Xr
        power[b] = (re * re + im * im).sum(axis=1) / Xr.shape[1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_four_products_of_a_step_fit_the_registers(dtype: str, arch: str) -> None:
    given = [tw.like(dtype, 512, 256)] * 2 + [tw.like(dtype, 256, 65536)] * 2
    made = beam_power.compile(*given, tw.like("f32", 512), target="cuda", arch=arch)
    assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("arch", ["sm_90a", None])
def test_power_of_beams(dtype: str, arch: str | None) -> None:
    """Also with the schedule for Hopper, executed by the reference."""
    beams, elements, times = 70, 33, 130
    w, x = normal(dtype, 2, beams, elements), normal(dtype, 2, elements, times)
    given = *w, *x, np.full(beams, np.nan, np.float32)
    bound = beam_power.bind()
    if arch is not None:
        bound = beam_power.bind(schedule=bound.schedule_for(*given, target="cuda", arch=arch))
    bound(*given, target="reference" if arch else "cpu")
    weights, signals = (wide(one[0]) + 1j * wide(one[1]) for one in (w, x))
    size = (np.abs(wide(w)).sum(0) @ np.abs(wide(x)).sum(0)) ** 2  # at least |re|**2 + |im|**2
    exact = (np.abs(weights.conj() @ signals) ** 2).mean(1)
    assert (np.abs(given[-1] - exact) <= (2 * (2 * elements + 2) + times + 4) * U * size.mean(1)).all()


@tw.kernel(Q="H M D", K="H N D", V="H N E", table="H R", O="H M E", scale=tw.f32)
def relative_attention(Q, K, V, table, O, scale):
    """Attention with a bias for each distance, which is the view that a refusal of `tw.take` names."""
    bias = table[:, ::-1].embed(1, (Q.shape[1], K.shape[1]), (1, 1), 0)[:, ::-1]
    for h, m in tw.tiles(O.shape[:2], batch=1):
        s = scale * (Q[h, m] @ K[h].T) + bias[h, m]
        O[h, m] = tw.softmax(s) @ V[h]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 37, 29, 13), (1, 1, 1, 1), (2, 70, 130, 16)])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_table_by_distance_is_a_view(dtype: str, shape: tuple[int, ...], target: str) -> None:
    heads, rows, keys, depth = shape
    q, k = normal(dtype, heads, rows, depth), normal(dtype, heads, keys, depth)
    v = normal("f32", heads, keys, 5)
    table = normal("f32", heads, rows + keys - 1)
    o = np.full((heads, rows, 5), np.nan, np.float32)
    relative_attention(q, k, v, table, o, 0.25, target=target)
    far = np.arange(rows)[:, None] - np.arange(keys) + keys - 1
    bias = wide(table)[:, far]
    s = 0.25 * (wide(q) @ wide(k).swapaxes(1, 2)) + bias
    largest = 0.25 * (np.abs(wide(q)) @ np.abs(wide(k)).swapaxes(1, 2)) + np.abs(bias)
    power = np.exp(s - s.max(2, keepdims=True))
    p = power / power.sum(2, keepdims=True)
    # Errors of the scores, of their differences, and of the powers, in numerator and denominator.
    relative = 2 * ((depth + 6) * U * largest.max(2) + 4 * U * np.abs(s).max(2) + (keys + 8) * U)
    assert (np.abs(o - p @ wide(v)) <= relative[..., None] * (p @ np.abs(wide(v)))).all()


@tw.kernel(X="T D", w="T", y="T", G="D D", r="D")
def weighted_squares_refused(X, w, y, G, r):
    for i, j in tw.tiles(G):
        acc, right = tw.zeros(), tw.zeros()
        for t in tw.steps(X.shape[0]):
            x = X[t, i] * w[t][:, None]
            acc += x.T @ X[t, j]
            right += x.T @ y[t]
        G[i, j] = acc
        r[i] = right


@tw.kernel(X="T D", w="T", y="T", G="D D", r="D")
def weighted_squares(X, w, y, G, r):
    for i, j in tw.tiles(G):
        acc, right = tw.zeros(), tw.zeros((i,), tw.f32)
        for t in tw.steps(X.shape[0]):
            x = X[t, i] * w[t][:, None]
            acc += x.T @ X[t, j]
            right += (x * y[t][:, None]).sum(axis=0)
        G[i, j] = acc
        r[i] = right


def test_a_vector_in_a_kernel_with_columns_is_refused() -> None:
    given = (np.ones(shape, np.float32) for shape in ((5, 3), (5,), (5,), (3, 3), (3,)))
    near = r"over t multiplies a vector.*nearest legal choice: a sum of rows, total \+= .*\.sum\(axis=0\)"
    with pytest.raises(tw.TraceError, match=near):
        weighted_squares_refused(*given, target="reference")


@tw.kernel(A="M K", B="K N", x="K", C="M N", r="M")
def rows_refused(A, B, x, C, r):
    for m, n in tw.tiles(C):
        acc, right = tw.zeros(), tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
            right += A[m, k] @ x[k]
        C[m, n], r[m] = acc, right


@tw.kernel(A="M K", B="K N", x="K", C="M N", r="M")
def rows_as_named(A, B, x, C, r):
    for m, n in tw.tiles(C):
        acc, right = tw.zeros(), tw.zeros((m,), tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
            right += (A[m, k] * x[k]).sum(axis=1)
        C[m, n], r[m] = acc, right


@tw.kernel(A="M K", B="K N", x="K", C="M N", r="N")
def columns_refused(A, B, x, C, r):
    for m, n in tw.tiles(C):
        acc, right = tw.zeros(), tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
            right += x[k] @ B[k, n]
        C[m, n], r[n] = acc, right


def test_refusals_of_a_vector_name_a_form_for_its_side() -> None:
    a, b, x = (RNG.integers(-3, 4, shape).astype(np.float32) for shape in ((5, 4), (4, 7), (4,)))
    c, rows, columns = (np.full(shape, np.nan, np.float32) for shape in ((5, 7), (5,), (7,)))
    with pytest.raises(
        tw.TraceError, match=r"along n; .* \(a \* x\)\.sum\(axis=1\) .*tw\.zeros\(\(m,\), tw\.f32\)"
    ):
        rows_refused(a, b, x, c, rows, target="reference")
    rows_as_named(a, b, x, c, rows, target="reference")
    assert (rows == a @ x).all()
    assert (c == a @ b).all()
    with pytest.raises(tw.TraceError, match=r"rows along m; .* a kernel of its own, .* along n alone"):
        columns_refused(a, b, x, c, columns, target="reference")


@pytest.mark.parametrize("shape", [(37, 13), (1, 1), (0, 3), (300, 40)])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_the_sum_of_rows_that_the_refusal_names(shape: tuple[int, int], target: str) -> None:
    x, w, y = normal("f32", *shape), normal("f32", shape[0]), normal("f32", shape[0])
    gram, right = np.full((shape[1],) * 2, np.nan, np.float32), np.full(shape[1], np.nan, np.float32)
    weighted_squares(x, w, y, gram, right, target=target)
    scaled = wide(x) * wide(w)[:, None]
    room = (shape[0] + 3) * U
    assert (np.abs(gram - scaled.T @ wide(x)) <= room * (np.abs(scaled).T @ np.abs(wide(x)))).all()
    assert (np.abs(right - scaled.T @ wide(y)) <= room * (np.abs(scaled).T @ np.abs(wide(y)))).all()


@tw.kernel(u="M", v="N", x="N", y="M")
def by_distances(u, v, x, y):
    for m in tw.tiles(y):
        y[m] = tw.absolute(u[m][:, None] - v) @ x


@tw.kernel(u="M", v="N", x="N", y="M")
def by_distances_in_steps(u, v, x, y):
    for m in tw.tiles(y):
        total = tw.zeros((m,), tw.f32)
        for n in tw.steps(v.shape[0]):
            total += tw.absolute(u[m][:, None] - v[n]) @ x[n]
        y[m] = total


@pytest.mark.parametrize("kernel", [by_distances, by_distances_in_steps], ids=["rows", "steps"])
@pytest.mark.parametrize("shape", [(37, 13), (1, 1), (0, 3), (3, 0), (70, 1300)])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_matrix_of_two_vectors_times_a_vector(kernel: Any, shape: tuple[int, int], target: str) -> None:
    u, v, x = normal("f32", shape[0]), normal("f32", shape[1]), normal("f32", shape[1])
    y = np.full(shape[0], np.nan, np.float32)
    kernel(u, v, x, y, target=target)
    apart = np.abs(wide(u)[:, None] - wide(v))
    assert (np.abs(y - apart @ wide(x)) <= (shape[1] + 3) * U * (apart @ np.abs(wide(x)))).all()


@tw.kernel(F="S S", x="B S", H="O S", y="B O")
def observed_in_batches(F, x, H, y):
    for b, i in tw.tiles(y, batch=1):
        y[b, i] = H[i] @ (x[b] @ F.T)


@tw.kernel(F="S S", x="B S", H="O S", y="B O")
def observed_by_turned(F, x, H, y):
    for b, i in tw.tiles(y, batch=1):
        y[b, i] = (x[b] @ F.T) @ H[i]


@tw.kernel(F="S S", x="B S", H="O S", y="B O")
def observed(F, x, H, y):
    for b, i in tw.tiles(y):
        y[b, i] = x[b] @ F.T @ H[i].T


@tw.kernel(F="S S", x="B S", H="O S", y="B O")
def rows_by_rows(F, x, H, y):
    for b in tw.tiles(y.shape[0]):
        y[b, 0] = x[b] @ x[b]


@pytest.mark.parametrize(
    ("kernel", "near"),
    [
        (observed_in_batches, r"the axes \(s_1,\).*: batch=0 of tw.tiles, so that b are rows: \(b, s_1\)"),
        (observed_by_turned, r"\[s_1\] @ \[i, s\]: .*; nearest legal choice: \[s_1\] @ \[i, s\]\.T"),
        (rows_by_rows, r"\[b, s\] @ \[b, s\]: .*; nearest legal choice: \(a \* b\)\.sum\(axis=1\)"),
    ],
)
def test_products_of_vectors_that_are_refused(kernel: Any, near: str) -> None:
    given = (np.ones(shape, np.float32) for shape in ((3, 3), (5, 3), (2, 3), (5, 2)))
    with pytest.raises(tw.TraceError, match=f"(?s){near}"):
        kernel(*given, target="reference")


@pytest.mark.parametrize("shape", [(37, 9, 4), (1, 1, 1), (0, 3, 2), (70, 33, 65)])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_rows_in_place_of_a_batch(shape: tuple[int, int, int], target: str) -> None:
    rows, states, seen = shape
    f, x, h = normal("f32", states, states), normal("f32", rows, states), normal("f32", seen, states)
    y = np.full((rows, seen), np.nan, np.float32)
    observed(f, x, h, y, target=target)
    sizes = np.abs(wide(x)) @ np.abs(wide(f)).T @ np.abs(wide(h)).T
    assert (np.abs(y - wide(x) @ wide(f).T @ wide(h).T) <= (2 * states + 2) * U * sizes).all()
