"""Each block passes an integer to the next block: the begin of the next block's rows."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw

ROWS, COLUMNS = 16, 32


@tw.kernel(X="M N", counts="B", Y="R N")
def chained(X, counts, Y, *, awaits=True, signals=True):
    """Copy the first ``counts[b]`` rows of each tile b of X, one tile after the other, without gaps."""
    blocks = counts.shape[0]
    block, turn = tw.block_index(blocks), tw.counter(1)
    ends = tw.workspace((blocks,), tw.i32)
    count = tw.index(counts[block], 0, ROWS + 1)
    if awaits:
        tw.await_(turn[0], block)
    first = tw.var(0)
    with tw.when(block > 0):
        first.set(tw.index(ends[block - 1], 0, Y.shape[0] + 1))
    begin = first.get()
    one = tw.fragment(tw.blocked((1,), (1,)), tw.i32, 0)
    tw.copy(one + (begin + count), ends[block : block + 1])
    if signals:
        tw.signal(turn[0], of=blocks)
    rows = tw.load(X.tile((ROWS, COLUMNS), (block, 0)).partition(64))
    tw.copy(rows, Y[begin : begin + count, :].tile((ROWS, COLUMNS), (0, 0)))


def arguments(blocks: int, seed: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Return X, counts, and a poisoned Y with spare room."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((blocks * ROWS, 29)).astype(np.float32)
    counts = rng.integers(0, ROWS + 1, blocks).astype(np.int32)
    return x, counts, np.full((int(counts.sum()) + 3, 29), 7, np.float32)


def expected(x: np.ndarray[Any, Any], counts: np.ndarray[Any, Any], rows: int) -> np.ndarray[Any, Any]:
    """Return the kept rows one after the other; the rest keeps its old contents."""
    found = np.full((rows, x.shape[1]), 7, np.float32)
    kept = [x[b * ROWS : b * ROWS + int(n)] for b, n in enumerate(counts)]
    found[: int(counts.sum())] = np.concatenate(kept)
    return found
