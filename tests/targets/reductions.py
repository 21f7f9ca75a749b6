"""Kernels whose copies reduce into global memory, and NumPy's results for them."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw
from tilewright.dtypes import dtype as dtype_of
from tilewright.ir.copies import REDUCTIONS

EVERY = [(kind, name) for kind, names in REDUCTIONS.items() for name in names]
"""Every kind of reduction with every element type that it takes."""

COMBINED = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


@tw.kernel(X="M N", Y="K N")
def over_rows(X, Y, *, kind, vector=None, through=False):
    """``Y[i, n] = combine over rows i, i + 16, ... of X[:, n]``; all blocks reduce into one tile."""
    part = X.tile((16, 64), (tw.block_index(tw.ceil_div(X.shape[0], 16)), 0))
    target = Y.tile((16, 64), (0, 0))
    if through:
        tw.copy(part, target, threads=32, vector=vector, reduction=kind)
    else:
        tw.copy(tw.load(part.partition(32, vector=vector)), target, vector=vector, reduction=kind)


@tw.kernel(X="M N", Y="N")
def into_one_row(X, Y, *, kind):
    """``Y[n] = combine over all rows``: several threads of a block reduce into one element."""
    x = tw.load(X.tile((16, 64), (tw.block_index(tw.ceil_div(X.shape[0], 16)), 0)).partition((8, 4)))
    tw.copy(x, Y.tile((64,), (0,)).broadcast(0, 16), reduction=kind)


def values(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Return numbers whose sums are exact in their dtype, so that the order does not matter."""
    rng, kind = np.random.default_rng(seed), dtype_of(name)
    low = 0 if kind.kind == "uint" else -8
    whole = rng.integers(low, 9, shape) if kind.is_float else rng.integers(low, 1 << 20, shape)
    return whole.astype(kind.numpy)


def expected(kind: str, x: np.ndarray[Any, Any], start: np.ndarray[Any, Any], rows: int = 16) -> Any:
    """Combine every ``rows``-th row, beginning with ``start``; rows past the last one read as 0."""
    wide = start.astype(np.float64 if start.dtype.kind not in "iu" else start.dtype)
    tiles = np.zeros((-(-len(x) // rows), *start.shape), wide.dtype)
    tiles.reshape(-1, *start.shape[1:])[: len(x)] = x.astype(wide.dtype)
    return COMBINED[kind].reduce(np.concatenate([wide[None], tiles]), axis=0).astype(start.dtype)
