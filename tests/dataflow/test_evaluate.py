"""The meaning of flows, compared with NumPy code that knows nothing of flows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.dataflow.evaluate import evaluate
from tilewright.dataflow.nodes import Folded, Sum
from tilewright.dataflow.parser import parse_flow
from tilewright.dataflow.printer import print_flow
from tilewright.dtypes import limits

from .flows import recorded, spec

RANDOM = np.random.default_rng(11)
DIMS = {"A": "M K", "B": "N K", "C": "M N"}


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.asarray(RANDOM.standard_normal(shape)).astype(dtype)


def close(found: Any, wanted: Any, bound: Any) -> None:
    """Element by element, in f64."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert found.shape == wanted.shape
    assert np.all(np.abs(found - wanted) <= bound), np.max(np.abs(found - wanted) - bound)


# ---------------------------------------------------------------- products


def product(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc


@pytest.mark.parametrize("dtype", [tw.f32, tw.f16, tw.bf16, tw.f8e4m3, tw.f8e5m2])
@pytest.mark.parametrize(("m", "n", "k"), [(5, 7, 11), (1, 1, 1), (3, 4, 0), (0, 4, 3)])
def test_products_of_floats(dtype: tw.DType, m: int, n: int, k: int) -> None:
    a, b = (normal(*shape).astype(dtype.numpy) for shape in ((m, k), (n, k)))
    flow = recorded(product, DIMS, A=spec(dtype), B=spec(dtype), C=spec(tw.f32))
    [c] = evaluate(flow, {"A": a, "B": b, "C": np.empty((m, n), np.float32)}).values()
    exact = np.einsum("mk,nk->mn", a.astype(np.float64), b.astype(np.float64))
    assert c.dtype == np.float32
    size = np.einsum("mk,nk->mn", np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)))
    close(c, exact, 2**-24 * np.abs(exact) + 2 * k * 2**-53 * size + 2**-149)


def test_products_of_f64_are_wider() -> None:
    a, b = normal(4, 50, dtype=np.float64), normal(3, 50, dtype=np.float64)
    flow = recorded(product, DIMS, A=spec(tw.f64), B=spec(tw.f64), C=spec(tw.f64))
    [c] = evaluate(flow, {"A": a, "B": b, "C": np.empty((4, 3))}, rounded=False).values()
    assert c.dtype == np.longdouble
    exact = [[sum(int(x * 2**60) * int(y * 2**60) for x, y in zip(r, s, strict=True)) for s in b] for r in a]
    wanted = np.array([[np.longdouble(v >> 60) / np.longdouble(2) ** 60 for v in row] for row in exact])
    assert np.all(np.abs(c - wanted) < 1e-16)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        *((dtype, dtype) for dtype in (tw.i8, tw.u8, tw.i16, tw.u16, tw.i32)),
        (tw.u16, tw.u32),
        (tw.i64, tw.u8),
    ],
    ids=str,
)
def test_products_of_integers_wrap(left: tw.DType, right: tw.DType) -> None:
    """This holds also if only one factor is narrow, and f64 does not hold the sums."""
    a, b = (
        RANDOM.integers(limits(kind)[0], limits(kind)[1] + 1, (rows, 300)).astype(kind.numpy)
        for kind, rows in ((left, 4), (right, 5))
    )
    flow = recorded(product, DIMS, A=spec(left), B=spec(right), C=spec(tw.i32))
    [c] = evaluate(flow, {"A": a, "B": b, "C": np.empty((4, 5), np.int32)}).values()
    wanted = [[sum(int(x) * int(y) for x, y in zip(r, s, strict=True)) for s in b] for r in a]
    assert c.tolist() == [[(v + 2**31) % 2**32 - 2**31 for v in row] for row in wanted]


def test_complex_products() -> None:
    a, b = (normal(*s, dtype=np.complex64) + 1j * normal(*s) for s in ((4, 9), (5, 9)))
    flow = recorded(product, DIMS, A=spec(tw.c64), B=spec(tw.c64), C=spec(tw.c64))
    [c] = evaluate(flow, {"A": a, "B": b, "C": np.empty((4, 5), np.complex64)}, rounded=False).values()
    assert np.allclose(c, a.astype(np.complex128) @ b.astype(np.complex128).T, rtol=1e-14, atol=1e-14)


def test_tf32_products() -> None:
    flow = recorded(product, DIMS, A=spec(tw.f32), B=spec(tw.f32), C=spec(tw.f32))
    [store] = flow.stores
    assert isinstance(store.value, Sum)
    quick = replace(flow, stores=(replace(store, value=replace(store.value, precision="tf32")),))
    assert quick != flow
    assert parse_flow(print_flow(quick)) == quick
    a, b = np.float32([[1 + 2**-11, 1 + 2**-12]]), np.float32([[1, 1], [2, 0]])
    [c] = evaluate(quick, {"A": a, "B": b}, rounded=False).values()
    assert c.tolist() == [[2 + 2**-10, 2 + 2**-9]]


# ---------------------------------------------------------------- epilogues


def gemm(A, B, C, alpha, beta):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = alpha * acc + beta * C[m, n]


def test_in_place_with_numbers() -> None:
    a, b, c = normal(5, 8), normal(8, 6), normal(5, 6)
    dims = {"A": "M K", "B": "K N", "C": "M N", "alpha": tw.f32, "beta": tw.f32}
    flow = recorded(gemm, dims, A=spec(tw.f32), B=spec(tw.f32), C=spec(tw.f32))
    before = c.copy()
    [found] = evaluate(flow, {"A": a, "B": b, "C": c}, {"alpha": 0.5, "beta": -2.0}, rounded=False).values()
    close(found, 0.5 * (a.astype(np.float64) @ b) - 2.0 * c.astype(np.float64), 1e-14)
    assert np.array_equal(c, before)


def several(A, B, bias, scale, C, D, r, top, mask):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        y = acc * scale[m, None] + bias[n]
        C[m, n] = tw.where(mask[m, n] != 0, tw.gelu(y), -1.0)
        D[m, n] = (y * 16).to(tw.i8, saturate=True)
        r[m] = y.sum(axis=1)
        top[n] = tw.maximum(y, 0.0).max(axis=0)


def test_several_stores_broadcasts_and_reductions() -> None:
    m, n, k = 6, 5, 9
    a, b, bias, scale = (normal(*s, dtype=np.float16) for s in ((m, k), (n, k), (n,), (m,)))
    mask = RANDOM.integers(0, 2, (m, n)).astype(np.int32)
    dims = {
        "A": "M K",
        "B": "N K",
        "bias": "N",
        "scale": "M",
        "C": "M N",
        "D": "M N",
        "r": "M",
        "top": "N",
        "mask": "M N",
    }
    flow = recorded(several, dims, D=spec(tw.i8), mask=spec(tw.i32), r=spec(tw.f32, 1), top=spec(tw.f32, 1))
    given = {"A": a, "B": b, "bias": bias, "scale": scale, "mask": mask}
    found = evaluate(flow, given, rounded=False)
    a, b, bias, scale = (x.astype(np.float64) for x in (a, b, bias, scale))
    y = (a @ b.T) * scale[:, None] + bias
    gelu = 0.5 * y * (1 + np.vectorize(lambda x: __import__("math").erf(x / 2**0.5))(y))
    close(found["C"], np.where(mask != 0, gelu, -1.0), 1e-6)
    assert np.abs(found["D"] - np.clip(np.trunc(y * 16), -128, 127)).max() <= 1
    close(found["r"], y.sum(1), 1e-12)
    close(found["top"], np.maximum(y, 0).max(0), 1e-12)
    rounded = evaluate(flow, given)
    assert [rounded[name].dtype for name in "CD"] == [np.float16, np.int8]


def test_narrow_tiles_are_rounded_as_fragments_are() -> None:
    def halves(X, Y, Z):
        for m, n in tw.tiles(Z):
            Z[m, n] = X[m, n] * Y[m, n] + X[m, n]

    x, y = normal(20, 20, dtype=np.float16), normal(20, 20, dtype=np.float16)
    flow = recorded(halves, {"X": "M N", "Y": "M N", "Z": "M N"})
    [z] = evaluate(flow, {"X": x, "Y": y}).values()

    @tw.kernel(X="M N", Y="M N", Z="M N")
    def explicit(X, Y, Z):
        x, y = (tw.load(one.tile((32, 32), (0, 0)).partition((8, 4))) for one in (X, Y))
        tw.copy(x * y + x, Z.tile((32, 32), (0, 0)))

    wanted = np.empty_like(z)
    assert explicit(x, y, wanted, target="reference").target == "reference"
    assert np.array_equal(z, wanted)


def leaky(C, alpha, count):
    slope = alpha * 2 + count
    for m, n in tw.tiles(C):
        x = C[m, n]
        C[m, n] += tw.where(x > 0, x, slope * x) * count


def test_numbers_that_are_passed_are_computed_with() -> None:
    flow = recorded(leaky, {"C": "M N", "alpha": tw.f32, "count": int}, C=spec(tw.f32))
    assert parse_flow(print_flow(flow)) == flow
    c = normal(4, 5)
    [found] = evaluate(flow, {"C": c}, {"alpha": 0.25, "count": 3}, rounded=False).values()
    x = c.astype(float)
    close(found, x + 3 * np.where(x > 0, x, 3.5 * x), 1e-14)


@pytest.mark.parametrize("dtype", [tw.f64, tw.f32, tw.f16, tw.bf16], ids=str)
def test_numbers_are_rounded_before_they_are_computed_with(dtype: tw.DType) -> None:
    """Numbers in the text take the dtype of the arithmetic, arguments the dtype of their parameter.

    No dtype here has 0.1, 1 / 3, or a number just above a tie of f16.
    """
    tie = 1 + 2.0**-11 + 2.0**-30

    def plain(X, Y, alpha):
        for m, n in tw.tiles(Y):
            Y[m, n] = X[m, n] * 0.1

    def passed(X, Y, alpha):
        for m, n in tw.tiles(Y):
            Y[m, n] = X[m, n] * alpha

    def chosen(X, Y, alpha):
        for m, n in tw.tiles(Y):
            Y[m, n] = tw.where(X[m, n] > 0.1, X[m, n], -1 / 3)

    x = normal(5, 6).astype(dtype.numpy)
    x[-1] = 0.1
    wide, arithmetic = (np.longdouble, np.float64) if dtype == tw.f64 else (np.float64, np.float32)
    held = x.astype(wide)
    one_tenth, third = (wide(arithmetic(value)) for value in (0.1, -1 / 3))
    cases = [(plain, 0.0, held * one_tenth), (chosen, 0.0, np.where(held > one_tenth, held, third))]
    cases += [(passed, alpha, held * wide(dtype.numpy.type(alpha))) for alpha in (0.1, -1 / 3, tie)]
    for function, alpha, wanted in cases:
        flow = recorded(function, {"X": "M N", "Y": "M N", "alpha": dtype}, X=spec(dtype), Y=spec(dtype))
        [found] = evaluate(flow, {"X": x}, {"alpha": alpha}, rounded=False).values()
        # Products of narrow numbers are rounded to them; those of f32 are exact in f64.
        exact = wanted if arithmetic is np.float64 or dtype == tw.f32 else wanted.astype(dtype.numpy)
        np.testing.assert_array_equal(found, exact.astype(wide), err_msg=function.__name__)


def test_an_argument_of_a_narrow_dtype_is_what_kernels_are_given() -> None:
    @tw.kernel(A="M K", B="N K", C="M N", alpha=tw.f16)
    def scaled(A, B, C, alpha):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[n, k].T
            C[m, n] = acc.to(A.dtype) * alpha

    a, b = normal(21, 1, dtype=np.float16), np.ones((19, 1), np.float16)
    for target in ("reference", "cpu"):
        for alpha in (0.1, 1 + 2.0**-11 + 2.0**-30):
            c = np.empty((21, 19), np.float16)
            flow = scaled(a, b, c, alpha, target=target).flow
            assert flow is not None
            np.testing.assert_array_equal(c, evaluate(flow, {"A": a, "B": b}, {"alpha": alpha})["C"])


# ---------------------------------------------------------------- groups of rows


@pytest.mark.parametrize(
    "ends",
    [[4, 4, 11], [6, 2, 11], [6, 2, 4, 9], [9, 5, 7, 1], [-3, 5, 3, 99], [99, 4], [-5, -7], []],
    ids=str,
)
def test_a_group_begins_where_the_one_before_it_ends(ends: list[int]) -> None:
    """If ends descend, a group has no rows, and earlier groups keep theirs."""

    def by_groups(A, B, ends, C):
        for g, m, n in tw.tiles(C, groups=ends):
            acc = tw.zeros()
            for k in tw.steps(A.shape[-1]):
                acc += A[m, k] @ B[g, k, n]
            C[m, n] = acc

    rows, k, n = 11, 7, 5
    a, b = normal(rows, k), normal(len(ends), k, n)
    dims = {"A": "T K", "B": "G K N", "ends": "G", "C": "T N"}
    specs = {"A": spec(tw.f32), "B": spec(tw.f32, 3), "ends": spec(tw.i32, 1), "C": spec(tw.f32)}
    before = normal(rows, n)
    given = {"A": a, "B": b, "ends": np.asarray(ends, np.int32), "C": before}
    [found] = evaluate(recorded(by_groups, dims, **specs), given, rounded=False).values()
    for row in range(rows):
        # The first group that ends behind the row has it.
        group = next((g for g, end in enumerate(ends) if row < end), None)
        if group is None:
            np.testing.assert_array_equal(found[row], before[row])
        else:
            own, other = a[row].astype(np.float64), b[group].astype(np.float64)
            close(found[row], own @ other, 2 * k * 2**-53 * (np.abs(own) @ np.abs(other)))


# ---------------------------------------------------------------- batches, vectors, views


def batched(A, B, C):
    for *batch, m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[-1]):
            acc += A[*batch, m, k] @ B[*batch, n, k].T
        C[*batch, m, n] = acc


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_any_number_of_batches(batch: tuple[int, ...]) -> None:
    rank = 2 + len(batch)
    specs = {name: spec(tw.f32, rank) for name in "ABC"}
    flow = recorded(batched, {"A": "... M K", "B": "... N K", "C": "... M N"}, **specs)
    a, b = normal(*batch, 4, 6), normal(*batch, 5, 6)
    [c] = evaluate(flow, {"A": a, "B": b}, rounded=False).values()
    close(c, np.einsum("...mk,...nk->...mn", a.astype(np.float64), b.astype(np.float64)), 1e-13)


def shared_weights(A, B, bias, C):
    for b, m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[2]):
            acc += A[m, b, k] @ B[k, n]
        C[b, m, n] = acc + bias[b, n]


def test_batches_at_any_place_and_broadcast() -> None:
    a, b, bias = normal(4, 3, 6), normal(6, 5), normal(3, 5)
    dims = {"A": "M B K", "B": "K N", "bias": "B N", "C": "B M N"}
    specs = {name: spec(tw.f32, len(dim.split())) for name, dim in dims.items()}
    flow = recorded(shared_weights, dims, **specs)
    [c] = evaluate(flow, {"A": a, "B": b, "bias": bias}, rounded=False).values()
    close(c, np.einsum("mbk,kn->bmn", a.astype(float), b.astype(float)) + bias[:, None], 1e-13)


def matvec(A, x, y):
    for m in tw.tiles(y):
        acc = tw.zeros()
        for k in tw.steps(x.shape[0]):
            acc += A[m, k] @ x[k]
        y[m] = acc / x.shape[0]


def test_vectors_and_integers_as_numbers() -> None:
    a, x = normal(7, 9), normal(9)
    specs = {"A": spec(tw.f32), "x": spec(tw.f32, 1), "y": spec(tw.f32, 1)}
    flow = recorded(matvec, {"A": "M K", "x": "K", "y": "M"}, **specs)
    [y] = evaluate(flow, {"A": a, "x": x}, rounded=False).values()
    close(y, a.astype(float) @ x.astype(float) / 9, 1e-14)


def views(A, B, C):
    head = A.permute(1, 0)[1:, :]
    for m, n in tw.tiles(C[:, 2:]):
        acc = tw.zeros()
        for k in tw.steps(head.shape[1]):
            acc += head[m, k] @ B[2, k, n]
        C[:, 2:][m, n] = acc


def test_views_of_arrays() -> None:
    a, b, c = normal(6, 5), normal(4, 6, 3), normal(4, 5)
    specs = {"A": spec(tw.f32), "B": spec(tw.f32, 3), "C": spec(tw.f32)}
    with pytest.raises(tw.TraceError, match="m runs over P"):
        recorded(views, {"A": "K M", "B": "R K N", "C": "P N"}, **specs)

    def fitting(A, B, C):
        head = A.permute(1, 0)[1:, :]
        tail = C[:, 2:]
        for m, n in tw.tiles((head.shape[0], B.shape[2])):
            acc = tw.zeros()
            for k in tw.steps(head.shape[1]):
                acc += head[m, k] @ B[2, k, n]
            D = tail[0 : head.shape[0], 0 : B.shape[2]]
            D[m, n] = acc

    flow = recorded(fitting, {"A": "K M", "B": "R K N", "C": "P Q"}, **specs)
    assert parse_flow(print_flow(flow)) == flow
    [found] = evaluate(flow, {"A": a, "B": b, "C": c}).values()
    wanted = c.copy()
    wanted[0:4, 2:5] = a.T[1:] @ b[2]
    close(found, wanted, 1e-5)


# ---------------------------------------------------------------- accumulation


def complex_by_parts(Ar, Ai, Br, Bi, Cr, Ci):
    for m, n in tw.tiles(Cr):
        real, imaginary = tw.zeros(dtype=tw.f32), tw.zeros(dtype=tw.f32)
        for k in tw.steps(Ar.shape[1]):
            real += Ar[m, k] @ Br[k, n] - Ai[m, k] @ Bi[k, n]
            imaginary += Ar[m, k] @ Bi[k, n]
            imaginary += Ai[m, k] @ Br[k, n]
        Cr[m, n] = real
        Ci[m, n] = imaginary


def test_several_sums_of_several_products() -> None:
    parts = {name: normal(*((4, 6) if name[0] == "A" else (6, 5))) for name in ("Ar", "Ai", "Br", "Bi")}
    dims = {"Ar": "M K", "Ai": "M K", "Br": "K N", "Bi": "K N", "Cr": "M N", "Ci": "M N"}
    flow = recorded(complex_by_parts, dims, **{name: spec(tw.f32) for name in dims})
    assert len(flow.sums) == 4
    found = evaluate(flow, parts, rounded=False)
    a, b = (parts[f"{x}r"].astype(float) + 1j * parts[f"{x}i"].astype(float) for x in "AB")
    close(found["Cr"], (a @ b).real, 1e-13)
    close(found["Ci"], (a @ b).imag, 1e-13)


def scaled_operands(A, B, s, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc -= (s[k] * A[m, k].to(tw.f32)) @ B[n, k].to(tw.f32).T
        acc *= 2
        acc += 1
        C[m, n] = acc


def test_operand_views() -> None:
    a, b, s = RANDOM.integers(-9, 9, (4, 8)).astype(np.int8), normal(5, 8, dtype=np.float16), normal(8)
    specs = {"A": spec(tw.i8), "B": spec(tw.f16), "s": spec(tw.f32, 1), "C": spec(tw.f32)}
    flow = recorded(scaled_operands, {"A": "M K", "B": "N K", "s": "K", "C": "M N"}, **specs)
    [found] = evaluate(flow, {"A": a, "B": b, "s": s}, rounded=False).values()
    close(found, 1 - 2 * (a * s.astype(float)) @ b.astype(float).T, 1e-12)


@pytest.mark.parametrize("run", [None, 1, 3])
def test_a_loop_with_turns(run: int | None) -> None:
    """The loop keeps its accumulators between iterations, in order; `positions` counts them."""

    def turned(A, B, C, best):
        for m, n in tw.tiles(C):
            top, out = tw.full((m,), -float("inf"), tw.f32), tw.zeros((m, n), tw.f32)
            for r, s, k in tw.steps(A.shape[:2] + A.shape[3:]):
                a = A[r, s, m, k] * (1 + tw.positions(r).to(tw.f32))
                out.assign(2 * out + a @ B[r, s, k, n])
                top.assign(tw.maximum(top, a.max(axis=1)))
            C[m, n], best[m] = out, top

    a, b = normal(2, 3, 4, 6), normal(2, 3, 6, 5)
    dims = {"A": "R S M K", "B": "R S K N", "C": "M N", "best": "M"}
    flow = recorded(turned, dims, **{name: spec(tw.f32, len(shape.split())) for name, shape in dims.items()})
    text = print_flow(flow)
    assert "r = turn(" in text
    assert "fold((r, s, k), " in text
    assert print_flow(parse_flow(text)) == text
    found = evaluate(flow, {"A": a, "B": b}, rounded=False, run=run)
    scaled = a.astype(np.float64) * np.arange(1, 3).reshape(2, 1, 1, 1)
    wanted, step = np.zeros((4, 5)), run or 6
    for r, s, k in np.ndindex(2, 3, 6 // step):
        part = slice(k * step, (k + 1) * step)
        wanted = 2 * wanted + scaled[r, s, :, part] @ b[r, s, part].astype(np.float64)
    close(found["C"], wanted, 1e-9)
    close(found["best"], scaled.max(axis=(0, 1, 3)), 0)


def attention(Q, K, V, O, scale):
    for m, e in tw.tiles(O):
        top = tw.full((m,), -float("inf"), tw.f32)
        total = tw.zeros((m,), tw.f32)
        out = tw.zeros((m, e), tw.f32)
        for n in tw.steps(K.shape[0]):
            s = tw.zeros(dtype=tw.f32)
            for d in tw.steps(Q.shape[1]):
                s += Q[m, d] @ K[n, d].T
            s *= scale
            new = tw.maximum(top, s.max(axis=1))
            p = tw.exp(s - new[:, None])
            keep = tw.exp(top - new)
            total.assign(total * keep + p.sum(axis=1))
            out.assign(out * keep[:, None] + p @ V[n, e].to(tw.f32))
            top.assign(new)
        O[m, e] = out / total[:, None]


@pytest.mark.parametrize("dtype", [tw.f32, "f32"])
def test_full_refuses_the_order_of_value_dtype_along(dtype: Any) -> None:
    def reversed_order(C):
        for m, n in tw.tiles(C):
            C[m, n] = tw.full(0.5, dtype, (m, n))

    said = r"full\(0\.5, .*f32.*, .*\): the order is \(along, value, dtype\); nearest legal choice: full\("
    with pytest.raises(tw.TraceError, match=said):
        recorded(reversed_order, {"C": "M N"}, C=spec(tw.f32))


@pytest.mark.parametrize("run", [None, 1, 4, 5])
def test_a_fold_of_any_step(run: int | None) -> None:
    q, k, v = normal(5, 8), normal(9, 8), normal(9, 6)
    dims = {"Q": "M D", "K": "N D", "V": "N E", "O": "M E", "scale": tw.f32}
    flow = recorded(attention, dims, **{name: spec(tw.f32) for name in "QKVO"})
    assert len([node for node in flow.walk() if isinstance(node, Folded)]) == 2
    assert len([node for node in flow.walk() if isinstance(node, Sum)]) == 2
    assert parse_flow(print_flow(flow)) == flow
    [o] = evaluate(flow, {"Q": q, "K": k, "V": v}, {"scale": 0.25}, rounded=False, run=run).values()
    s = 0.25 * q.astype(float) @ k.astype(float).T
    p = np.exp(s - s.max(1, keepdims=True))
    close(o, p / p.sum(1, keepdims=True) @ v, 1e-14)


# ---------------------------------------------------------------- arguments


def test_arguments_that_do_not_fit() -> None:
    flow = recorded(product, DIMS, C=spec(tw.f32))
    a, b = normal(4, 8), normal(5, 9)
    with pytest.raises(tw.LaunchError, match="B has K = 9, another array 8"):
        evaluate(flow, {"A": a, "B": b})
    with pytest.raises(tw.LaunchError, match="A has rank 1"):
        evaluate(flow, {"A": a[0], "B": b})
    with pytest.raises(tw.LaunchError, match="the array B is missing"):
        evaluate(flow, {"A": a})
    fixed = parse_flow(print_flow(flow).replace("array(f16, (M, K))", "array(f16, (M, 8))"))
    with pytest.raises(tw.LaunchError, match="A has an extent of 7, and is declared with 8"):
        evaluate(fixed, {"A": a[:, :7], "B": b[:, :8]})
    evaluate(fixed, {"A": a, "B": b[:, :8]})


BEHIND = """# tilewright flow 1
flow('behind')
M = size()
C = array(f32, (M,))
m = tile(M)
k = steps(M - 8)
x: f32[m, k] = literal(1.0)
y: f32[m] = reduce('sum', x, axis=1)
C[m] = y
"""


def test_a_value_has_no_negative_extent() -> None:
    """One of several extents may be negative, so their product is no large number."""
    flow = parse_flow(BEHIND)
    assert evaluate(flow, {"C": np.ones(9)})["C"].tolist() == [1] * 9
    with pytest.raises(tw.LaunchError, match="a value of 5 x -3 elements; a value has 0 to"):
        evaluate(flow, {"C": np.ones(5)})


def test_ml_dtypes_are_rounded_once() -> None:
    def narrow(X, Y):
        for m in tw.tiles(Y):
            Y[m] = X[m] * 1.0

    flow = recorded(narrow, {"X": "M", "Y": "M"}, X=spec(tw.f32, 1), Y=spec(tw.bf16, 1))
    x = np.float32([1 + 2**-8 + 2**-20, 1 + 2**-8, 3e38])
    [y] = evaluate(flow, {"X": x}).values()
    assert y.dtype == ml_dtypes.bfloat16
    assert y.astype(float).tolist() == [1 + 2**-7, 1.0, float(np.float32(3e38).astype(ml_dtypes.bfloat16))]


@pytest.mark.parametrize("whole", [tw.i32, tw.i64], ids=str)
def test_integers_become_floats_without_rounding(whole: tw.DType) -> None:
    def shifted(X, Y):
        for m in tw.tiles(Y):
            Y[m] = X[m].to(tw.f32) - 2.0**24

    flow = recorded(shifted, {"X": "M", "Y": "M"}, X=spec(whole, 1), Y=spec(tw.f32, 1))
    numbers = RANDOM.integers(2**24, 2**31, 50).astype(whole.numpy) | 1
    [y] = evaluate(flow, {"X": numbers}, rounded=False).values()
    np.testing.assert_array_equal(y, numbers.astype(np.float64) - 2**24)


@pytest.mark.parametrize("narrow", [tw.f8e4m3, tw.f8e5m2, tw.bf16, tw.f16, tw.f32], ids=str)
@pytest.mark.parametrize("least", [2.0**-28, 2.0**-48, 2.0**-61])
def test_f64_is_rounded_once(narrow: tw.DType, least: float) -> None:
    """Values are next to a midpoint of two numbers, at distances that f32 or f64 cannot represent."""

    def added(X, Z, Y):
        for m in tw.tiles(Y):
            Y[m] = X[m] + Z[m]

    wide = spec(tw.f64, 1)
    flow = recorded(added, dict.fromkeys("XZY", "M"), X=wide, Z=wide, Y=spec(narrow, 1))
    ulp = 2.0**-narrow.mantissa
    x = 1 + ulp * np.array([0.5, 0.5, 1.5, 1.5])
    z = least * np.array([-1, 1, -1, 1])
    for sign in (1, -1):
        [y] = evaluate(flow, {"X": sign * x, "Z": sign * z}).values()
        assert (y.astype(float) == sign * (1 + ulp * np.array([0, 1, 1, 2]))).all()
