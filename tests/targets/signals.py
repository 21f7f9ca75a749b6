"""Kernels whose blocks signal to each other, for all targets, mutants and GPU tests."""

from __future__ import annotations

import tilewright as tw


@tw.kernel(A="M K", B="N K", C="M N")
def turnstile(A, B, C, *, mma, tile, splits, threads):
    """``C = A Bᵀ``; K is divided among ``splits`` blocks, which add to C in turn: the bits never change."""
    tile_m, tile_n, tile_k = tile
    tiles = tw.ceil_div(C.shape, (tile_m, tile_n))
    m, n, split = tw.block_index((*tiles, splits))  # the blocks of a tile in the order of K
    turns = tw.counter(tiles)
    sA = tw.shared((tile_m, tile_k), A.dtype)
    sB = tw.shared((tile_n, tile_k), B.dtype)
    acc = tw.accumulator(mma)
    steps = tw.ceil_div(A.shape[1], tile_k)
    each = tw.ceil_div(steps, splits)
    for k in tw.range(each * split, tw.minimum(each * (split + 1), steps), provenance="mainloop"):
        tw.copy(A.tile((tile_m, tile_k), (m, k)), sA, threads=threads)
        tw.copy(B.tile((tile_n, tile_k), (n, k)), sB, threads=threads)
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    result = C.tile((tile_m, tile_n), (m, n))
    tw.await_(turns[m, n], split)
    with tw.when(split > 0):
        acc += tw.load(result, acc)
    tw.copy(acc, result)
    tw.signal(turns[m, n], of=splits)


@tw.kernel(X="N", Y="K")
def last_block_sum(X, Y, *, chunk=256):
    """``Y[0] = sum(X)``: every block leaves a sum, and the last block adds them up in their order."""
    blocks = tw.ceil_div(X.shape[0], chunk)
    block = tw.block_index(blocks)
    parts, done = tw.workspace(blocks, tw.f32), tw.counter(1)
    x = tw.load(X.tile((chunk,), (block,)).partition((64,)))
    tw.copy(tw.reduce_sum(x, dim=0, scratch=tw.shared((2,), tw.f32)), parts[block : block + 1])
    with tw.when(tw.ticket(done[0], of=blocks) == blocks - 1):
        total = tw.fragment(tw.blocked((1,), (1,)), tw.f32, 0)
        for part in tw.range(blocks):
            total += tw.load(parts[part : part + 1], total)
        tw.copy(total, Y.tile((1,), (0,)))


@tw.kernel(X="N", H="K")
def histogram(X, H, *, bins=64, rows=32, chunks=4):
    """``H[b] += the number of i with X[i] == b``, by all blocks into one array."""
    block = tw.block_index(tw.ceil_div(X.shape[0], rows * chunks))
    spread = tw.blocked((rows, bins), (1, 32))
    counts = tw.fragment(spread, tw.i32, 0)
    for chunk in tw.range(chunks):
        x = tw.load(X.tile((rows,), (block * chunks + chunk,)).broadcast(1, bins), spread, other=-1)
        counts += tw.where(x == tw.coordinates(x, 1), counts + 1, counts) - counts
    tw.copy(tw.reduce_sum(counts, dim=0), H.tile((bins,), (0,)).broadcast(0, 1), reduction="add")


@tw.kernel(X="N", Y="N")
def hand_over(X, Y):
    """``Y[:64] = X[:64]`` by block 0; ``Y[64:] = X[64:] + Y[:64]`` by block 1, which waits for it."""
    block, ready = tw.block_index(2), tw.counter(1)
    spread = tw.blocked((64,), (64,))
    with tw.when(block == 0):
        tw.copy(tw.load(X.tile((64,), (0,)), spread), Y.tile((64,), (0,)))
        tw.signal(ready[0])
    with tw.otherwise():
        tw.await_(ready[0], 1)
        tw.copy(
            tw.load(X.tile((64,), (1,)), spread) + tw.load(Y.tile((64,), (0,)), spread), Y.tile((64,), (1,))
        )
        tw.reset(ready[0])


@tw.kernel(X="N", Y="N")
def around(X, Y, *, blocks):
    """``Y[b] = X[b] + X[b + 1]`` of tiles, through a workspace: every block waits for all blocks."""
    block = tw.block_index(blocks)
    held, came, left = tw.workspace(blocks * 64, tw.f32), tw.counter(1), tw.counter(1)
    spread = tw.blocked((64,), (64,))
    x = tw.load(X.tile((64,), (block,)), spread)
    tw.copy(x, held.tile((64,), (block,)))
    tw.signal(came[0])
    tw.await_(came[0], blocks)
    tw.copy(x + tw.load(held.tile((64,), ((block + 1) % blocks,)), spread), Y.tile((64,), (block,)))
    with tw.when(tw.ticket(left[0], of=blocks) == blocks - 1):
        tw.reset(came[0])


@tw.kernel(X="N", Y="M N")
def hand_over_by_tma(X, Y):
    """Block 0 writes rows of Y by its threads; block 1 reads them by TMA and writes them below."""
    block, ready = tw.block_index(2), tw.counter(1)
    tile = tw.shared((8, 64), Y.dtype, swizzle=128)
    full = tw.hopper.mbarrier(1, arrivals=1)
    spread = tw.blocked((8, 64), (4, 8))
    tw.barrier()
    with tw.when(block == 0):
        tw.copy(tw.load(X.tile((64,), (0,)).broadcast(0, 8), spread), Y.tile((8, 64), (0, 0)))
        tw.signal(ready[0])
    with tw.otherwise():
        tw.await_(ready[0], 1)
        tw.hopper.fence_async("global")
        tw.hopper.arrive(full[0], expect_bytes=8 * 64 * Y.dtype.bytes)
        tw.hopper.tma_load(Y.tile((8, 64), (0, 0)), tile, full[0])
        tw.hopper.wait(full[0], 0)
        tw.copy(tw.load(tile, spread), Y.tile((8, 64), (1, 0)))
        tw.reset(ready[0])


FMA = tw.TiledMma(tw.atoms.fma(tw.f32), warps=(2, 2), repeats=(4, 2))
SMALL_TURNSTILE = turnstile.bind(mma=FMA, tile=(32, 32, 16), splits=3, threads=128)
"""The split-K GEMM in f32, in tiles so small that every target runs it fast."""
