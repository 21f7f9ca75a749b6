"""Products of grouped rows, as in a mixture of experts: only the device knows the groups' sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw

MMA = tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 2), repeats=(2, 4))
THREADS = 128


@tw.kernel(A="T K", offsets="O", tokens="R", B="G N K", C="R N")
def grouped(A, offsets, tokens, B, C, *, mma=MMA, tile_k=32, gathered=False):
    """``C[r] = A[r] @ B[g].T`` for the rows r of each group g, ``offsets[g] <= r < offsets[g + 1]``.

    The grid has as many tiles as there can be at most; each finds its group in the offsets.

    Args:
        A: (T, K), f16.
        offsets: (G + 1,), ascending integers.
        tokens: (R,), rows of A: with ``gathered``, row r is ``A[tokens[r]]``.
        B: (G, N, K), f16.
        C: (R, N), f32.
        mma: the tiled multiply.
        tile_k: how deep the tiles are.
        gathered: whether rows of A are chosen.
    """
    tile_m, tile_n, _ = mma.tile
    groups, rows = B.shape[0], C.shape[0]
    n, t = tw.block_index((tw.ceil_div(C.shape[1], tile_n), tw.ceil_div(rows, tile_m) + groups))
    group, first, passed = tw.var(-1), tw.var(0), tw.var(0)
    for g in tw.range(groups):
        begin, end = (tw.index(offsets[at], 0, rows + 1) for at in (g, g + 1))
        tiles = tw.ceil_div(end - begin, tile_m)
        before = passed.get()
        with tw.when((before <= t) & (t < before + tiles)):
            group.set(g)
            first.set(begin + (t - before) * tile_m)
        passed.set(before + tiles)
    chosen = group.get()
    with tw.when(chosen >= 0):
        start, stop = first.get(), tw.index(offsets[chosen + 1], 0, rows + 1)
        a = A.rows(tokens[start:stop]) if gathered else A[start:stop, :]
        sA, sB = tw.shared((tile_m, tile_k), A.dtype), tw.shared((tile_n, tile_k), B.dtype)
        acc = tw.accumulator(mma)
        for k in tw.range(tw.ceil_div(A.shape[1], tile_k), provenance="mainloop"):
            tw.copy(a.tile((tile_m, tile_k), (0, k)), sA, threads=THREADS)
            tw.copy(B[chosen].tile((tile_n, tile_k), (n, k)), sB, threads=THREADS)
            tw.barrier()
            tw.mma(sA, sB, acc)
            tw.barrier()
        tw.copy(acc, C[start:stop, :].tile((tile_m, tile_n), (0, n)))


def arguments(
    sizes: tuple[int, ...], columns: int, depth: int, gathered: bool, seed: int = 0
) -> tuple[np.ndarray[Any, Any], ...]:
    """Return A, offsets, tokens, B, and a poisoned C."""
    rng = np.random.default_rng(seed)
    rows = sum(sizes)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    given = max(rows // 2, 1) if gathered else rows
    a = rng.standard_normal((given, depth)).astype(np.float16)
    tokens = rng.integers(0, given, rows)
    b = rng.standard_normal((len(sizes), columns, depth)).astype(np.float16)
    return a, offsets, tokens, b, np.full((rows, columns), np.nan, np.float32)


def check(arrays: tuple[np.ndarray[Any, Any], ...], found: np.ndarray[Any, Any], gathered: bool) -> None:
    """Compare with NumPy in f64, element by element, within the bound of sums in f32."""
    a, offsets, tokens, b, _ = arrays
    rows = (a[tokens] if gathered else a).astype(np.float64)
    for g in range(len(b)):
        mine, there = rows[offsets[g] : offsets[g + 1]], b[g].astype(np.float64).T
        bound = (b.shape[2] + 8) * 2.0**-24 * (np.abs(mine) @ np.abs(there)) + 1e-30
        error = np.abs(found[offsets[g] : offsets[g + 1]] - mine @ there)
        assert (error <= bound).all(), f"group {g}: {(error / bound).max()} of the bound"
