"""Groups of rows whose first row is not the first row of the array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw


@tw.kernel(starts="G", ends="G", X="M N", W="N", bias="G N", C="M N")
def elements(starts, ends, X, W, bias, C):
    """Elements that are added to the old ones."""
    for g, m, n in tw.tiles(C, groups=(starts, ends)):
        C[m, n] = C[m, n] + X[m, n] * bias[g, n] + W[n]


@tw.kernel(starts="G", ends="G", X="M K", W="N K", bias="G N", C="M N")
def products(starts, ends, X, W, bias, C):
    """Products that are added to the old elements."""
    for g, m, n in tw.tiles(C, groups=(starts, ends)):
        acc = tw.zeros()
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[n, k].T
        C[m, n] = C[m, n] + acc + bias[g, n]


@tw.kernel(starts="G", ends="G", X="M K", W="N K", bias="G N", C="M N")
def loops(starts, ends, X, W, bias, C):
    """Products in the steps of a loop that carries a state."""
    for g, m, n in tw.tiles(C, groups=(starts, ends)):
        acc = tw.zeros((m, n), tw.f32)
        for k in tw.steps(X.shape[1]):
            acc.assign(acc + tw.relu(X[m, k]) @ W[n, k].T)
        C[m, n] = C[m, n] + acc + bias[g, n]


M, N = 160, 16
BOUNDS = [
    ([0, 100], [40, 160]),
    ([1, 100], [9, 120]),
    ([64, 64], [64, 70]),
    ([70, 130], [130, 131]),
    ([130, 130], [130, 160]),
]


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize(("starts", "ends"), BOUNDS)
@pytest.mark.parametrize("kernel", [elements, products, loops], ids=lambda one: one.program.name)
def test_each_row_of_a_group_is_computed_once(
    kernel: Any, starts: list[int], ends: list[int], target: str
) -> None:
    """No block computes the rows before the first group, and none computes its first tile again."""
    rng = np.random.default_rng(1)
    shapes = (M, N), (2, N), (M, N), (N,) if kernel is elements else (N, N)
    x, bias, old, w = (rng.integers(-2, 3, shape).astype(np.float32) for shape in shapes)
    c, exact = old.copy(), old.copy()
    for at, (start, end) in enumerate(zip(starts, ends, strict=True)):
        rows = x[start:end]
        if kernel is elements:
            exact[start:end] += rows * bias[at] + w
        else:
            exact[start:end] += np.maximum(rows, 0 if kernel is loops else -9) @ w.T + bias[at]
    kernel(np.int32(starts), np.int32(ends), x, w, bias, c, target=target)
    assert (c == exact).all()
