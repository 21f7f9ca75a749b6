"""Messages about what a loop over tiles cannot express, word for word.

`pytest tests/dataflow/test_refusals.py --update-golden` writes the messages anew; read the diff as a user
would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw

from .flows import recorded, spec
from .refused import CASES, DIMS


@pytest.mark.parametrize("kernel", CASES, ids=lambda kernel: kernel.__name__)
def test_refusal(kernel: Callable[..., Any], golden: Callable[[str, str], None]) -> None:
    with pytest.raises(tw.TilewrightError) as caught:
        recorded(kernel, DIMS, index=spec(tw.i32, 1))
    golden(f"{type(caught.value).__name__}: {caught.value}\n", f"{kernel.__name__}.txt")


def test_every_refusal_shows_the_author_s_line() -> None:
    for kernel in CASES:
        with pytest.raises(tw.TilewrightError) as caught:
            recorded(kernel, DIMS, index=spec(tw.i32, 1))
        assert "refused.py" in str(caught.value), kernel.__name__
        assert "^" in str(caught.value), kernel.__name__


def test_batches_of_different_numbers() -> None:
    def batched(A, B, C):
        for *batch, m, n in tw.tiles(C):
            C[*batch, m, n] = A[*batch, m, n] + B[*batch, m, n]

    dims = dict.fromkeys("ABC", "... M N")
    with pytest.raises(tw.LaunchError, match=r"A has 1, B has 0, C has 1 of the dimensions \.\.\."):
        recorded(batched, dims, A=spec(rank=3), B=spec(rank=2), C=spec(rank=3))
    with pytest.raises(tw.LaunchError, match=r"rank 1, but is declared as .* of rank 2 at least"):
        recorded(batched, dims, A=spec(rank=1), B=spec(rank=1), C=spec(rank=1))


def test_a_store_leaves_out_no_batch() -> None:
    def summed(X, y):
        for b, m, n in tw.tiles(X):
            y[m] = X[b, m, n].sum(axis=1)

    with pytest.raises(tw.TraceError, match=r"nearest legal choice: y\[b, m\]"):
        recorded(summed, {"X": "B M N", "y": "M"})


def test_a_function_that_is_asked_for_as_a_method_is_named() -> None:
    def method(X, Y):
        for m, n in tw.tiles(Y):
            Y[m, n] = X[m, n].tanh()

    with pytest.raises(
        AttributeError, match=r"'Tile' object has no attribute 'tanh'; nearest: tw\.tanh\(x\)"
    ):
        recorded(method, dict.fromkeys("XY", "M N"))

    def mean(X, y):
        for m, n in tw.tiles(X):
            y[m] = X[m, n].mean(axis=1)

    with pytest.raises(AttributeError, match=r"'mean'; nearest: x\.sum\(axis\) / x\.shape\[axis\]$"):
        recorded(mean, {"X": "M N", "y": "M"})

    def largest(X, y):
        for m, n in tw.tiles(X):
            y[m] = np.argmax(X[m, n], axis=1)

    with pytest.raises(tw.TraceError, match=r"nearest legal choice: x\.argmax\(axis\)"):
        recorded(largest, {"X": "M N", "y": "M"})

    def of_a_fragment(X, y):
        for m, n in tw.tiles(X):
            y[m] = tw.argmax(X[m, n], dim=1)

    with pytest.raises(tw.TraceError, match=r"nearest legal choice: x\.argmax\(axis=1\)"):
        recorded(of_a_fragment, {"X": "M N", "y": "M"})


def test_the_mean_that_the_refusal_names_is_right() -> None:
    @tw.kernel(X="M N", y="M")
    def mean(X, y):
        for m, n in tw.tiles(X):
            x = X[m, n]
            y[m] = x.sum(axis=1) / x.shape[1]

    x, y = np.random.default_rng(0).standard_normal((9, 21)), np.empty(9)
    mean(x, y, target="cpu")
    assert np.allclose(y, x.mean(axis=1), rtol=0, atol=21 * 2.0**-52)
