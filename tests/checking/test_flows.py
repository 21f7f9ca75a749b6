"""A flow's results in any order of operations are accepted, and slightly larger errors are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow


@tw.kernel(A="M K", B="N K", bias="N", R="M N", C="M N", D="M", alpha=tw.f32)
def layer(A, B, bias, R, C, D, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        y = tw.tanh(alpha * acc + bias[n])
        C[m, n] = tw.where(y < 0.25, y, R[m, n])
        D[m] = acc.sum(axis=1)


@tw.kernel(A="M K", B="N K", C="M N", D="M N")
def integers(A, B, C, D):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc
        D[m, n] = acc.to(D.dtype, saturate=True)


def problem(out: Any, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arguments, and the results of an f32 kernel that adds one product after the other."""
    rng = np.random.default_rng(seed)
    shapes = {"A": (33, 70), "B": (21, 70), "bias": (21,), "R": (33, 21)}
    given = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    acc = np.zeros((33, 21), np.float32)
    for k in range(70):
        acc += given["A"][:, k, None] * given["B"][:, k]
    y = np.tanh(np.float32(0.3) * acc + given["bias"])
    stored = {"C": np.where(y < 0.25, y, given["R"]).astype(out), "D": acc[:, ::-1].sum(axis=1)}
    return given, stored


@pytest.mark.parametrize("out", [np.float32, np.float16])
@pytest.mark.parametrize("seed", range(20))
def test_what_a_kernel_of_f32_computes_is_right(out: Any, seed: int) -> None:
    given, stored = problem(out, seed)
    flow = layer.flow(*given.values(), *stored.values(), 0.3)
    found = compare_flow(flow, stored, given, {"alpha": 0.3})
    assert found.ok, found
    assert found.size == 33 * 22


@pytest.mark.parametrize("name", ["C", "D"])
@pytest.mark.parametrize("seed", range(10))
def test_one_element_that_is_off_is_found(name: str, seed: int) -> None:
    given, stored = problem(np.float32, seed)
    flow = layer.flow(*given.values(), *stored.values(), 0.3)
    rng = np.random.default_rng(seed)
    at = tuple(rng.integers(0, extent) for extent in stored[name].shape)
    stored[name][at] += np.float32(4e-3)
    found = compare_flow(flow, stored, given, {"alpha": 0.3})
    assert (found.wrong, found.name, found.index) == (1, name, at)
    with pytest.raises(tw.WrongResultError, match="1 of 726 elements"):
        found.raise_if_wrong()


def test_an_error_that_is_stated_of_the_operand_is_allowed_for() -> None:
    @tw.kernel(A="M K", B="N K", C="M N")
    def activated(A, B, C):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[n, k].T
            C[m, n] = tw.gelu(acc)

    a, b = np.float32([[-5]]), np.float32([[1]])
    exact = np.float32([[-5 * 2.866515719235352e-07]])
    for units, right in ((0, True), (2, True), (20, False)):
        c = exact + np.float32(units * 5 * 2**-23)
        assert compare_flow(activated.flow(a, b, c), {"C": c}, {"A": a, "B": b}).ok is right


def test_a_lost_product_is_found() -> None:
    given, stored = problem(np.float32)
    flow = layer.flow(*given.values(), *stored.values(), 0.3)
    given["A"][:, 3] = 0
    assert compare_flow(flow, stored, given, {"alpha": 0.3}).wrong > 100


def test_what_nobody_wrote_is_found() -> None:
    given, stored = problem(np.float32)
    stored["C"][5, 7] = np.nan
    flow = layer.flow(*given.values(), *stored.values(), 0.3)
    assert compare_flow(flow, stored, given, {"alpha": 0.3}).index == (5, 7)


def test_integers_are_equal_to_the_bit() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-128, 128, (rows, 90)).astype(np.int8) for rows in (9, 11))
    exact = a.astype(np.int64) @ b.T.astype(np.int64)
    stored = {"C": exact.astype(np.int32), "D": np.clip(exact, -128, 127).astype(np.int8)}
    flow = integers.flow(a, b, *stored.values())
    assert compare_flow(flow, stored, {"A": a, "B": b}).ok
    stored["C"][2, 3] += 1
    assert compare_flow(flow, stored, {"A": a, "B": b}).wrong == 1


def test_operands_are_rounded_as_the_atom_rounds_them() -> None:
    @tw.kernel(A="M K", B="N K", C="M N")
    def product(A, B, C):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[n, k].T
            C[m, n] = acc

    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((rows, 64)).astype(np.float32) for rows in (8, 8))
    kept = [(x.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32) for x in (a, b)]
    c = kept[0] @ kept[1].T
    flow = product.flow(a, b, c)
    how = Accumulation.of(tw.atoms.MMA_TF32)
    assert compare_flow(flow, {"C": c}, {"A": a, "B": b}, how=how).ok
    assert not compare_flow(flow, {"C": c}, {"A": a, "B": b}).ok


def test_what_a_gpu_flushes_may_be_zero_and_nothing_larger() -> None:
    """sigmoid(-95) is 5.5e-42, below the smallest normal number of f32."""

    @tw.kernel(A="M K", B="K N", C="M N")
    def gate(A, B, C):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[k, n]
            C[m, n] = tw.sigmoid(acc)

    a, b = np.full((3, 5), -19, np.float32), np.ones((5, 4), np.float32)
    flow = gate.flow(a, b, np.zeros((3, 4), np.float32))
    for value, is_right in ((0.0, True), (5.5e-42, True), (1e-30, False)):
        found = compare_flow(flow, {"C": np.full((3, 4), value, np.float32)}, {"A": a, "B": b})
        assert found.ok is is_right


def test_what_f64_computes_is_rounded_to_f16_once() -> None:
    """Values are just below a midpoint of two f16 numbers, nearer than f32 can represent."""

    @tw.kernel(A="M K", B="K N", bias="N", C="M N")
    def layer(A, B, bias, C):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[k, n]
            C[m, n] = tw.sigmoid(acc.to(tw.f64) + bias[n])

    a, b = np.full((1, 16), 0.5, np.float16), np.ones((16, 2), np.float16)
    middle = 1 - 2.0**-12
    bias = np.log(middle / (1 - middle)) - 8 + np.array([-1e-5, 1e-5])
    right = np.array([[1 - 2.0**-11, 1]], np.float16)
    flow = layer.flow(a, b, bias, right)
    given = {"A": a, "B": b, "bias": bias}
    # Products and sums are exact in f32; the bound allows for sums that are not.
    exact = Accumulation(k_step=16)
    assert compare_flow(flow, {"C": right}, given, how=exact).ok
    for stored in (right[:, ::-1], np.float16([[1, 1]]), np.float16([[1 - 2.0**-11] * 2])):
        assert not compare_flow(flow, {"C": stored}, given, how=exact).ok


def test_the_largest_number_of_a_type_without_infinities_may_stand_for_what_is_near_it() -> None:
    @tw.kernel(A="M K", B="K N", D="M N")
    def saturating(A, B, D):
        for m, n in tw.tiles(D):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[k, n]
            D[m, n] = acc.to(tw.f8e4m3, saturate=True)

    kind = tw.f8e4m3.numpy
    a, b = np.float32([[450, 1], [2, 3]]), np.float32([[1, 0], [0, 1]])
    flow = saturating.flow(a, b, np.empty((2, 2), kind))
    for largest, ok in ((448, True), (416, True), (256, False)):
        made = np.array([[largest, 1], [2, 3]], np.float32).astype(kind)
        wide = replace(Accumulation.default(tw.f32), sum_bits=6)
        assert compare_flow(flow, {"D": made}, {"A": a, "B": b}, how=wide).ok == ok


# ---------------------------------------------------------------- loops that carry a state


@tw.kernel(Q="M D", K="N D", V="N E", O="M E", lse="M", scale=tw.f32)
def attention(Q, K, V, O, lse, scale):
    for m, e in tw.tiles(O):
        top, total = tw.full((m,), -1e38, tw.f32), tw.zeros((m,), tw.f32)
        out = tw.zeros((m, e), tw.f32)
        for n in tw.steps(K.shape[0]):
            s = tw.zeros(dtype=tw.f32)
            for d in tw.steps(Q.shape[1]):
                s += Q[m, d] @ K[n, d].T
            new = tw.maximum(top, scale * s.max(axis=1))
            p, keep = tw.exp(scale * s - new[:, None]), tw.exp(top - new)
            total.assign(total * keep + p.sum(axis=1))
            out.assign(out * keep[:, None] + p.to(V.dtype) @ V[n, e])
            top.assign(new)
        O[m, e] = out / total[:, None]
        lse[m] = tw.log(total) + top


def attended(run: int, seed: int, *, forgets: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of `attention`, and what a kernel with steps of some length stores.

    Args:
        run: elements of a step.
        seed: of the arrays.
        forgets: whether one step does not rescale the sums.
    """
    rng = np.random.default_rng(seed)
    given = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    q, k, v = given.values()
    scale = np.float32(0.5)
    top, total = np.full(19, -1e38, np.float32), np.zeros(19, np.float32)
    out = np.zeros((19, 9), np.float32)
    for begin in range(0, 83, run):
        s = scale * (q @ k[begin : begin + run].T)
        new = np.maximum(top, s.max(axis=1))
        keep = np.ones_like(top) if forgets and begin == 2 * run else np.exp(top - new)
        p = np.exp(s - new[:, None])
        total, out = total * keep + p.sum(axis=1), out * keep[:, None] + p @ v[begin : begin + run]
        top = new
    return given, {"O": out / total[:, None], "lse": np.log(total) + top}


SHAPES = {"Q": (19, 12), "K": (83, 12), "V": (83, 9)}


@pytest.mark.parametrize("run", [1, 8, 50, 100])
@pytest.mark.parametrize("seed", range(3))
def test_the_error_of_a_state_is_carried_from_step_to_step(run: int, seed: int) -> None:
    given, stored = attended(run, seed)
    flow = attention.flow(*given.values(), *stored.values(), 0.5)
    assert compare_flow(flow, stored, given, {"scale": 0.5}, run=run).ok
    for name in ("O", "lse"):
        off = {one: array.copy() for one, array in stored.items()}
        off[name].flat[5] += np.float32(2e-3)
        found = compare_flow(flow, off, given, {"scale": 0.5}, run=run)
        assert (found.wrong, found.name) == (1, name)


@pytest.mark.parametrize("seed", range(5))
def test_a_step_that_does_not_rescale_is_found(seed: int) -> None:
    given, stored = attended(8, seed, forgets=True)
    flow = attention.flow(*given.values(), *stored.values(), 0.5)
    assert compare_flow(flow, stored, given, {"scale": 0.5}, run=8).wrong > 9


def test_sums_of_small_whole_numbers_are_exact() -> None:
    """One unit in the last place is an error, which the bound of a rounded sum allows."""
    given, _ = problem(np.float32)
    rng = np.random.default_rng(1)
    given["A"], given["B"] = (rng.integers(-4, 5, given[one].shape).astype(np.float32) for one in "AB")

    @tw.kernel(A="M K", B="N K", C="M N")
    def product(A, B, C):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[n, k].T
            C[m, n] = acc

    c = given["A"] @ given["B"].T
    flow, read = product.flow(given["A"], given["B"], c), {name: given[name] for name in "AB"}
    assert compare_flow(flow, {"C": c}, read).ok
    c[3, 4] = np.nextafter(c[3, 4], np.float32(99))
    assert compare_flow(flow, {"C": c}, read).wrong == 1
    half = {"A": read["A"] / 3, "B": read["B"]}
    c = half["A"] @ half["B"].T
    c[3, 4] = np.nextafter(c[3, 4], np.float32(99))
    assert compare_flow(product.flow(half["A"], half["B"], c), {"C": c}, half).ok
