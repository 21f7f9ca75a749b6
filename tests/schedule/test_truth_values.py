"""Reductions of truth values: counts, whether any holds, and whether all hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

RNG = np.random.default_rng(7)


@tw.kernel(A="M N", count="M", some="M", every="M", t=tw.f32)
def of_tiles(A, count, some, every, t):
    for m, n in tw.tiles(A):
        above = A[m, n] > t
        count[m] = above.sum(axis=1)
        some[m] = above.max(axis=1).to(tw.i32)
        every[m] = tw.where(above.min(axis=1), 1, 0)


@tw.kernel(A="M N", count="M", some="M", every="M", t=tw.f32)
def of_rows(A, count, some, every, t):
    for m in tw.tiles(count):
        above = A[m] > t
        count[m], some[m] = above.sum(axis=1), above.max(axis=1).to(tw.i32)
        every[m] = above.min(axis=1).to(tw.i32)


@tw.kernel(A="M N", count="M", some="M", every="M", t=tw.f32)
def of_steps(A, count, some, every, t):
    for m in tw.tiles(count):
        total, found, held = tw.zeros((m,), tw.i32), tw.zeros((m,), tw.i32), tw.full((m,), 1, tw.i32)
        for n in tw.steps(A.shape[1]):
            above = A[m, n] > t
            total.assign(total + above.sum(axis=1))
            found.assign(tw.where(above.max(axis=1), 1, found))
            held.assign(tw.where(above.min(axis=1), held, 0))
        count[m], some[m], every[m] = total, found, held


@pytest.mark.parametrize("kernel", [of_tiles, of_rows, of_steps], ids=["tiles", "rows", "steps"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("shape", [(37, 13), (1, 1), (0, 3), (3, 0), (5, 1300)])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_counts_and_quantifiers(kernel: Any, dtype: str, shape: tuple[int, int], target: str) -> None:
    a = RNG.standard_normal(shape).astype(tw.dtype(dtype).numbers)
    a[1::4] += 10
    a[2::4] -= 10
    given = [np.full(shape[0], -7, np.int32) for _ in range(3)]
    kernel(a, *given, 0.5, target=target)
    above = a.astype(np.float32) > 0.5
    for found, exact in zip(given, (above.sum(1), above.any(1), above.all(1)), strict=True):
        assert (found == exact).all()


@tw.kernel(A="M K", B="N K", rows="M", columns="N", t=tw.i32)
def counts_of_a_product(A, B, rows, columns, t):
    for m, n in tw.tiles((A.shape[0], B.shape[0])):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        rows[m] = (acc > t).sum(axis=1)
        columns[n] = (acc > t).max(axis=0).to(tw.i32)


@pytest.mark.parametrize("shape", [(37, 13, 11), (1, 1, 1), (5, 3, 0), (130, 65, 70)])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_counts_of_a_product(shape: tuple[int, int, int], target: str) -> None:
    m, n, k = shape
    a, b = (RNG.integers(-4, 5, one).astype(np.int8) for one in ((m, k), (n, k)))
    rows, columns = np.full(m, -7, np.int32), np.full(n, -7, np.int32)
    counts_of_a_product(a, b, rows, columns, 20, target=target)
    above = a.astype(int) @ b.T.astype(int) > 20
    assert (rows == above.sum(1)).all()
    assert (columns == above.any(0)).all()


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_counts_compile_for_gpus(arch: str) -> None:
    given = tw.like("i8", 4096, 256), tw.like("i8", 4096, 256), tw.like("i32", 4096), tw.like("i32", 4096)
    made = counts_of_a_product.compile(*given, 20, target="cuda", arch=arch)
    assert made.resources["spill_store_bytes"] == 0


@tw.kernel(A="M N", a="M", b="M", c="M", d="M", P="M N")
def named(A, a, b, c, d, P):
    """The forms that errors name for NumPy's reductions."""
    for m, n in tw.tiles(A):
        x = A[m, n]
        a[m] = (x != 0).sum(axis=1).to(tw.f32)
        b[m] = tw.where((x != 0).max(axis=1), 1.0, 0.0)
        c[m] = tw.sqrt((x * x).sum(axis=1))
        d[m] = tw.exp(tw.log(x + 1).sum(axis=1))
        P[m, n] = tw.exp(tw.log(x + 1).cumsum(axis=1))


@pytest.mark.parametrize("name", ["count_nonzero", "any", "all", "norm", "prod", "cumprod", "cummax"])
def test_errors_name_a_form_for_other_reductions(name: str) -> None:
    @tw.kernel(A="M N", y="M")
    def reduced(A, y):
        for m, n in tw.tiles(A):
            y[m] = getattr(A[m, n], name)(axis=1)

    near = {"cummax": "an explicit kernel", "norm": r"tw\.sqrt\(\(x \* x\)"}.get(name, r"x|tw\.exp")
    with pytest.raises(AttributeError, match=f"{name}'; nearest: .*{near}"):
        reduced(np.ones((3, 2), np.float32), np.empty(3, np.float32), target="reference")


@pytest.mark.parametrize("name", ["any", "all"])
def test_truth_values_are_not_compared_with_zero(name: str) -> None:
    """``(mask != 0)`` is refused, so the error names the reduction of the truth values themselves."""

    @tw.kernel(A="M N", y="M")
    def reduced(A, y):
        for m, n in tw.tiles(A):
            y[m] = getattr(A[m, n] > 0, name)(axis=1)

    with pytest.raises(AttributeError, match=r"nearest: x\.m(ax|in)\(axis\) of truth values, such as"):
        reduced(np.ones((3, 2), np.float32), np.empty(3, np.float32), target="reference")


@pytest.mark.parametrize("shape", [(37, 13), (1, 1), (0, 3), (5, 70)])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_forms_that_errors_name(shape: tuple[int, int], target: str) -> None:
    a = (RNG.random(shape, np.float32) * (RNG.random(shape) < 0.7)).astype(np.float32)
    found = [np.full(shape[0], np.nan, np.float32) for _ in range(4)]
    powers, wide = np.full(shape, np.nan, np.float32), a.astype(np.float64)
    named(a, *found, powers, target=target)
    u, n = tw.f32.unit_roundoff, shape[1]
    # x + 1 is rounded; each logarithm is below 1, and sums of n of them have n roundings.
    room = np.expm1((2 * n + n * n + 8) * u)
    exact = np.multiply.accumulate(wide + 1, 1)
    assert (found[0] == (a != 0).sum(1)).all()
    assert (found[1] == (a != 0).any(1)).all()
    assert (np.abs(found[2] - np.sqrt((wide**2).sum(1))) <= (n + 4) * u * np.sqrt((wide**2).sum(1))).all()
    assert (np.abs(found[3] - exact[:, -1]) <= room * exact[:, -1]).all()
    assert (np.abs(powers - exact) <= room * exact).all()
