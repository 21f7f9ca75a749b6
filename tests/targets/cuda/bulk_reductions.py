"""Blocks combine their tiles in one array by TMA: sums, minima, maxima, and, or."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
from tests.movers.random_movers import Array, Placed

import tilewright as tw
from tilewright.ir.async_legality import BULK_REDUCTIONS

BLOCKS, ROWS = 5, 16
CASES = [(kind, name) for kind, names in BULK_REDUCTIONS.items() for name in names]
COMBINED = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


@tw.kernel(X="T M N", Y="M N")
def combine(X, Y, *, kind, fence=True):
    """``Y = kind(Y, X[0], X[1], ...)``; each block adds one of them, in any order."""
    block, column = tw.block_index((BLOCKS, 2))
    held = tw.shared((ROWS, 128 // X.dtype.bytes), X.dtype, swizzle=128)
    tw.copy(X[block].tile(held.shape, (0, column)), held, threads=128)
    if fence:
        tw.hopper.fence_async()
    tw.barrier()
    tw.hopper.tma_store(held, Y.tile(held.shape, (0, column)), reduction=kind)
    tw.hopper.bulk_commit()
    tw.hopper.bulk_wait(0)


def made(name: str) -> tuple[Array, Array]:
    """Return whole numbers, whose sums are exact in each type; the last rows of the tiles do not exist."""
    kind = tw.dtype(name)
    columns = 128 // kind.bytes + 16 // kind.bytes
    rng = np.random.default_rng(7)
    x = Array((BLOCKS, ROWS - 3, columns), Placed(((ROWS - 3) * columns, columns, 1), 0), kind)
    y = Array((ROWS - 3, columns), Placed((columns, 1), 16 // kind.bytes), kind)
    x.array[...] = rng.integers(-20, 20, x.array.shape)
    y.array[...] = rng.integers(-20, 20, y.array.shape)
    return x, y


def expected(kind: str, x: Array, y: Array) -> Any:
    return reduce(COMBINED[kind], x.array, y.array.copy())
