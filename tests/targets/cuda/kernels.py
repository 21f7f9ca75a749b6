"""Kernels that together use every operation, dtype and path of CUDA; `cases.py` traces them."""

from __future__ import annotations

from typing import Any

from tests.pipelined import main_loop

import tilewright as tw


@tw.kernel(A="M K", B="N K", C="M N")
def basic_gemm(A, B, C, *, tile, threads, mma, vector):
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sA = tw.shared((tile_m, tile_k), A.dtype)
    sB = tw.shared((tile_n, tile_k), B.dtype)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k), provenance="mainloop"):
        tw.copy(A.tile((tile_m, tile_k), (m, k)), sA, threads=threads, vector=vector)
        tw.copy(B.tile((tile_n, tile_k), (n, k)), sB, threads=threads, vector=vector)
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


@tw.kernel(A="M K", B="N K", C="M N")
def pipelined_gemm(A, B, C, *, tile, mma, stages):
    m, n = tw.block_index(tw.ceil_div(C.shape, tile[:2]))
    acc = main_loop(A, B, (m, n), tile=tile, mma=mma, stages=stages)
    tw.copy(acc, C.tile(tile[:2], (m, n)))


@tw.kernel(X="M N", Y="M N")
def elementwise(X, Y, *, tile, threads, functions):
    m, n = tw.block_index(tw.ceil_div(X.shape, tile))
    x = tw.load(X.tile(tile, (m, n)).partition(threads))
    for function in functions:
        x = function(x)
    tw.copy(x, Y.tile(tile, (m, n)))


@tw.kernel(X="M N", Y="M N")
def through_shared(X, Y, *, tile, threads, back):
    m, n = tw.block_index(tw.ceil_div(X.shape, tile))
    staged = tw.shared(tile, X.dtype)
    tw.copy(X.tile(tile, (m, n)), staged, threads=threads)
    tw.barrier()
    tw.copy(staged, Y.tile(tile, (m, n)), threads=back)


@tw.kernel(X="M N", Y="M N")
def through_everything(X, Y, *, tile, threads):
    m, n = tw.block_index(tw.ceil_div(X.shape, tile))
    first = tw.shared(tile, X.dtype)
    second = tw.shared(tile, Y.dtype)
    x = tw.load(X.tile(tile, (m, n)).partition(threads))
    tw.copy(x, first)
    tw.warp_barrier()
    tw.barrier()
    tw.copy(first, second, threads=threads)
    tw.barrier()
    y = tw.load(second.partition(threads))
    z = tw.fragment(y, fill=1)
    z.assign(y)
    tw.copy(z, Y.tile(tile, (m, n)))


@tw.kernel(X="M N", Y="M N", alpha=tw.f32, count=int)
def control(X, Y, alpha, count, *, tile, threads):
    m, n = tw.block_index(tw.ceil_div(X.shape, tile))
    x = tw.load(X.tile(tile, (m, n)).partition(threads))
    total = tw.fragment(x, fill=0.5)
    turn = tw.var(0)
    for _ in tw.range(count):
        parity = tw.let(turn.get() % 2)
        with tw.when(parity == 0):
            total += x * alpha
        with tw.otherwise():
            total -= x
        turn.set(turn.get() + 1)
    tw.fill(x, alpha)
    tw.copy(total + x, Y.tile(tile, (m, n)))


@tw.kernel(X="B M N", Y="B M N")
def batched(X, Y, *, tile, threads):
    m, n = tw.block_index(tw.ceil_div(X.shape[1:], tile))
    b = tw.batch_index(X.shape[0])
    tw.copy(X[b].tile(tile, (m, n)), Y[b].tile(tile, (m, n)), threads=threads)


@tw.kernel(X="M N", V="N", Y="M N")
def replicated(X, V, Y, *, tile, threads):
    m, n = tw.block_index(tw.ceil_div(X.shape, tile))
    part = X.tile(tile, (m, n)).partition(threads)
    x = tw.load(part)
    row = tw.shared((tile[1],), V.dtype)
    v = tw.load(V.tile((tile[1],), (n,)).partition(threads, projection=(None, 1)))
    tw.copy(v, row)
    tw.barrier()
    spread = tw.load(row.broadcast(0, tile[0]), like=x)
    tw.copy(x + spread.to(x.dtype), Y.tile(tile, (m, n)))


@tw.kernel(X="M N", Y="M N")
def in_slices(X, Y, *, mma):
    """Quarters of an accumulator change places: first columns within a row of blocks, then rows."""
    m, n = tw.block_index(tw.ceil_div(X.shape, mma.tile[:2]))
    x, y = (T.tile(mma.tile[:2], (m, n)) for T in (X, Y))
    acc = tw.load(x, like=mma.c())
    half = mma.tile[1] // 2
    tw.copy(acc[:, half:] + 1.0, y[:, :half])
    left = acc[:, :half]
    for i in tw.unroll(2):
        tw.copy(left[8 * i : 8 * i + 8], y[8 - 8 * i : 16 - 8 * i, half:])


@tw.kernel(X="M N", Y="M N")
def in_clusters(X, Y, *, tile, threads, blocks):
    m, n = tw.block_index(tw.ceil_div(X.shape, tile))
    rank = tw.hopper.cluster_index(blocks)
    sums = tw.workspace((4,), tw.f32, zeroed=True)
    x = tw.load(X.tile(tile, (m, n)).partition(threads))
    tw.copy(x, Y.tile(tile, (m, n)))
    with tw.when(rank == 0):
        ones = tw.load(sums.partition((4,)))
        tw.copy(ones + 1.0, sums)


@tw.kernel(X="M N", Y="M N")
def dependent(X, Y, *, tile, threads):
    m, n = tw.block_index(tw.ceil_div(X.shape, tile))
    tw.hopper.prior_grid_wait()
    x = tw.load(X.tile(tile, (m, n)).partition(threads))
    tw.hopper.launch_dependents()
    tw.copy(x + 1.0, Y.tile(tile, (m, n)))


@tw.kernel(X="M N", Y="N M")
def transpose(X, Y, *, tile, threads):
    m, n = tw.block_index(tw.ceil_div(X.shape, tile))
    staged = tw.shared(tile, X.dtype)
    tw.copy(X.tile(tile, (m, n)), staged, threads=threads)
    tw.barrier()
    tw.copy(staged.permute(1, 0), Y.tile((tile[1], tile[0]), (n, m)), threads=threads)


@tw.kernel(X="M N", Y="M N")
def through_matrices(X, Y, *, tile, mma, columns):
    m, n = tw.block_index(tw.ceil_div(X.shape, tile))
    strides = (1, tile[0]) if columns else (tile[1], 1)
    staged = tw.shared(tile, Y.dtype, layout=tw.Layout(tile, strides))
    tw.copy(tw.load(X.tile(tile, (m, n)), mma.c()), staged)
    tw.barrier()
    tw.copy(staged, Y.tile(tile, (m, n)), threads=(32, 4))


@tw.kernel(X="M N", Y="M N")
def tiles(X, Y, *, spread):
    """Reductions within and across warps, broadcasts, coordinates, saturation."""
    m, n = tw.block_index(tw.ceil_div(X.shape, spread.shape))
    x = tw.load(X.tile(spread.shape, (m, n)), like=spread)
    rows = tw.reduce_max(x, 1, scratch=_scratch(x, 1))
    columns = tw.reduce_sum(x, 0, scratch=_scratch(x, 0))
    y = tw.where(tw.coordinates(x, 0) + 64 * m <= tw.coordinates(x, 1) + n, rows - x + columns, columns)
    tw.copy(y.to(Y.dtype, saturate=True), Y.tile(spread.shape, (m, n)))


@tw.kernel(X="M N", Y="M N")
def maps(X, Y, *, spread):
    """Redistribute to one result for each thread, and to registers in another order."""
    m, n = tw.block_index(tw.ceil_div(X.shape, spread.shape))
    x = tw.load(X.tile(spread.shape, (m, n)), like=spread)
    least = tw.reduce_min(tw.reduce_min(x, 1, per_thread=True), 1, scratch=_scratch(x, 1))
    moved = tw.redistribute(x, tw.Distribution(spread.shape, spread.threads, spread.values[::-1]))
    tw.copy((tw.redistribute(moved + moved, spread) + least).to(Y.dtype), Y.tile(spread.shape, (m, n)))


def _scratch(x: Any, dim: int) -> Any:
    """Return shared memory for a reduction, if several warps share the tile along a dimension."""
    warps, weight = 1, 1
    for mode in x.distribution.threads:
        warps *= mode.extent // min(max(32 // weight, 1), mode.extent) if mode.dim == dim else 1
        weight *= mode.extent
    wide = tw.f32 if x.dtype.is_float and x.dtype.bits < 32 else x.dtype
    shape = tuple(warps if d == dim else extent for d, extent in enumerate(x.shape))
    return tw.shared(shape, wide, name=f"scratch{dim}") if warps > 1 else None


@tw.kernel(A="M K", W="N K", C="B N", D="M B")
def fused(A, W, C, D, *, first, second):
    """Two products; the first stays in registers."""
    (m, n, _), p = first.tile, second.tile[1]
    i, j = tw.block_index(tw.ceil_div(D.shape, (m, p)))
    sA, sB, sC = tw.shared((m, 32), A.dtype), tw.shared((n, 32), A.dtype), tw.shared((p, n), A.dtype)
    acc = tw.accumulator(second)
    for step in tw.range(tw.ceil_div(W.shape[0], n)):
        product = tw.accumulator(first)
        for k in tw.range(tw.ceil_div(A.shape[1], 32)):
            tw.copy(A.tile((m, 32), (i, k)), sA, threads=(16, 4))
            tw.copy(W.tile((n, 32), (step, k)), sB, threads=(16, 4))
            tw.barrier()
            tw.mma(sA, sB, product)
            tw.barrier()
        tw.copy(C.tile((p, n), (j, step)), sC, threads=(16, 4))
        tw.barrier()
        tw.mma(tw.redistribute(product.to(A.dtype), tw.operand_a(second, n)), sC, acc)
        tw.barrier()
    tw.copy(acc, D.tile((m, p), (i, j)))


@tw.kernel(X="B M N K", Y="P T")
def im2col(X, Y, *, stride, dilation, padding):
    """Read a matrix of windows; the addresses are divided by sizes that only the launcher knows."""
    matrix = X.im2col((1, 2), (3, 2), stride=stride, dilation=dilation, padding=padding)
    i, j = tw.block_index(tw.ceil_div(Y.shape, (16, 32)))
    tw.copy(matrix.tile((16, 32), (i, j)), Y.tile((16, 32), (i, j)), threads=(8, 8))


@tw.kernel(X="M N", I="P", Y="P N")
def rows(X, I, Y, *, tile, threads):
    """``Y[p] = X[I[p]]`` or -1; if the first index of a tile is positive, ``X[I[p] + 1]`` replaces it."""
    p, n = tw.block_index(tw.ceil_div(Y.shape, tile))
    staged = tw.shared(tile, X.dtype)
    chosen = X.rows(I, padded=True).tile(tile, (p, n))
    tw.copy(chosen, staged, threads=threads, other=-1)
    tw.barrier()
    tw.copy(staged, Y.tile(tile, (p, n)), threads=threads)
    first = tw.index(I[p * tile[0]])
    for k in tw.range(tw.maximum(first, 0)):
        tw.copy(X.tile((1, tile[1]), (k, n)), Y.rows(I).tile((1, tile[1]), (p * tile[0], n)), threads=(1, 8))


@tw.kernel(W="M N", V="M N")
def doubled_and_rounded(W, V, *, tile, threads):
    m, n = tw.block_index(tw.ceil_div(W.shape, tile))
    x = tw.load(W.tile(tile, (m, n)).partition(threads), element=tw.f16)
    tw.copy(x + x, V.tile(tile, (m, n)))


@tw.kernel(X="M N", Y="M N")
def running(X, Y, *, spread):
    """Prefix sums of rows, which lanes share, and several warps, too, if the map says so."""
    m, n = tw.block_index(tw.ceil_div(X.shape, spread.shape))
    x = tw.load(X.tile(spread.shape, (m, n)), like=spread)
    tw.copy(tw.prefix_sum(x, 1, scratch=_scratch(x, 1)), Y.tile(spread.shape, (m, n)))
