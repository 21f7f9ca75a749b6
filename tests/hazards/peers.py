"""Kernels whose blocks read, write and reduce into each other's shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw

ROWS, COLUMNS, THREADS = 32, 64, 128
WAYS = ("read", "add", "store", "index")
BARRIERS = {"read": 2, "add": 2, "store": 2, "index": 2}
"""How many barriers of the cluster each way has."""


@tw.kernel(X="M N", Y="R N")
def exchange(X, Y, *, across, way, without=-1, halves=False):
    """Store the sum of the tiles of a cluster's blocks, or the tile of the block before.

    Args:
        X: (M, N), f32 or i32.
        Y: (R, N); `expected` says what it holds.
        across: blocks of a cluster, along M.
        way: how they meet, one of `WAYS`.
        without: the number of the barrier of the cluster that is left out.
        halves: whether the blocks meet in two steps.
    """
    n, b = tw.block_index((tw.ceil_div(X.shape[1], COLUMNS), clusters(X.shape[0], across) * across))
    rank = tw.hopper.cluster_index((1, across))[1]
    x = tw.load(X.tile((ROWS, COLUMNS), (b, n)).partition(THREADS))
    held = tw.shared((ROWS, COLUMNS), X.dtype)
    group = b // across

    def meet(number: int) -> None:
        if number == without:
            tw.barrier()
        elif halves:
            tw.hopper.cluster_arrive()
            tw.hopper.cluster_wait()
        else:
            tw.hopper.cluster_barrier()

    if way == "read":
        tw.copy(x, held)
        meet(0)
        mine = (ROWS // across, COLUMNS)
        spread = tw.blocked(mine, (mine[0], THREADS // mine[0]))
        total = tw.fragment(spread, X.dtype, 0)
        for other in tw.range(across):
            total += tw.load(tw.hopper.peer(held, other).tile(mine, (rank, 0)), spread)
        tw.copy(total, Y.tile(mine, (group * across + rank, n)))
        meet(1)
    elif way == "add":
        tw.copy(tw.fragment(x, fill=0), held)
        meet(0)
        tw.copy(x, tw.hopper.peer(held, (0, 0)), reduction="add")
        meet(1)
        with tw.when(rank == 0):
            tw.copy(held, Y.tile((ROWS, COLUMNS), (group, n)), threads=THREADS)
    elif way == "store":
        meet(0)
        tw.copy(x, tw.hopper.peer(held, (rank + 1) % across))
        meet(1)
        tw.copy(held, Y.tile((ROWS, COLUMNS), (b, n)), threads=THREADS)
    else:
        # The first element of the next block's tile says which row of X is copied.
        tw.copy(x, held)
        meet(0)
        row = tw.index(tw.hopper.peer(held, (rank + 1) % across)[0, 0], 0, X.shape[0])
        spread, box = tw.blocked((1, COLUMNS), (1, 16)), (1, COLUMNS)
        chosen = tw.load(X[row : row + 1, :].tile(box, (0, n)), spread)
        tw.copy(chosen, Y[b : b + 1, :].tile(box, (0, n)))
        meet(1)


def clusters(rows: Any, across: int) -> Any:
    """Return the number of clusters for a matrix with a number of rows."""
    return tw.ceil_div(rows, ROWS * across)


def arguments(shape: tuple[int, int], across: int, way: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return X and a poisoned Y."""
    rng, count = np.random.default_rng(seed), clusters(shape[0], across)
    rows = {"read": ROWS, "add": ROWS, "store": ROWS * across, "index": across}[way] * count
    if way == "index":
        x = rng.integers(0, shape[0], shape).astype(np.int32)
        return x, np.full((rows, shape[1]), -7, np.int32)
    return rng.standard_normal(shape).astype(np.float32), np.full((rows, shape[1]), np.nan, np.float32)


def check(x: np.ndarray, y: np.ndarray, across: int, way: str) -> None:
    """Compare with NumPy, element by element."""
    count = clusters(x.shape[0], across)
    tiles = np.zeros((count, across, ROWS, x.shape[1]), np.float64)
    tiles.reshape(-1, x.shape[1])[: x.shape[0]] = x
    if way == "store":
        np.testing.assert_array_equal(y, np.roll(tiles, 1, axis=1).reshape(y.shape))
    elif way == "index":
        check_index(x, y, tiles)
    else:
        wanted, size = (np.sum(part, axis=1).reshape(y.shape) for part in (tiles, np.abs(tiles)))
        assert (np.abs(y - wanted) <= across * 2.0**-23 * size).all()


def check_index(x: np.ndarray, y: np.ndarray, tiles: np.ndarray) -> None:
    """Each block of a column of tiles copies the row whose number is the first element of the next block."""
    for n in range(0, x.shape[1], COLUMNS):
        rows = np.roll(tiles[:, :, 0, n], -1, axis=1).astype(int).ravel()
        np.testing.assert_array_equal(y[:, n : n + COLUMNS], x[rows][:, n : n + COLUMNS])


@tw.kernel(A="M K", B="N K", C="M N")
def split_k(A, B, C, *, mma, tile_k, across, without=-1):
    """``C = A @ B.T``; the blocks of a cluster split K, and add up in shared memory of the first block."""
    tile_m, tile_n, _ = mma.tile
    m, n, _ = tw.block_index((*tw.ceil_div(C.shape, (tile_m, tile_n)), across))
    rank = tw.hopper.cluster_index((1, 1, across))[2]
    sA, sB = tw.shared((tile_m, tile_k), A.dtype), tw.shared((tile_n, tile_k), B.dtype)
    sums = tw.shared((tile_m, tile_n), tw.f32)
    acc = tw.accumulator(mma)
    tw.copy(acc, sums)  # zeros
    if without != 0:
        tw.hopper.cluster_barrier()
    steps = tw.ceil_div(A.shape[1], tile_k)
    for k in tw.range(tw.ceil_div(steps - rank, across), provenance="mainloop"):
        tw.copy(A.tile((tile_m, tile_k), (m, k * across + rank)), sA, threads=THREADS)
        tw.copy(B.tile((tile_n, tile_k), (n, k * across + rank)), sB, threads=THREADS)
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, tw.hopper.peer(sums, 0), reduction="add")
    if without != 1:
        tw.hopper.cluster_barrier()
    with tw.when(rank == 0):
        tw.copy(sums, C.tile((tile_m, tile_n), (m, n)), threads=THREADS)


MMA = tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 2), repeats=(2, 4))


def operands(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return A, B, and a poisoned C."""
    rng = np.random.default_rng(m + n + k)
    a, b = (rng.standard_normal((rows, k)).astype(np.float16) for rows in (m, n))
    return a, b, np.full((m, n), np.nan, np.float32)
