"""Two multiplying warpgroups take turns at one ring of stages: a kernel with a bug that is hard to see.

Without ``ordered``, each warpgroup waits for its next tile as soon as it has stored its last one, while the
other is still multiplying.  It then waits more than a phase ahead, where a barrier's parity says nothing: on
a GPU the kernel reads stages too early and hangs.
"""

from __future__ import annotations

import tilewright as tw

WARPS, COLUMNS = 4, 64


@tw.kernel(A="M K", B="N K", C="M N")
def pingpong_gemm(A, B, C, *, tile, mma, stages, blocks, ordered):
    tile_m, tile_n, tile_k = tile
    block = tw.block_index(blocks)
    tiles_m, tiles_n = tw.ceil_div(C.shape, (tile_m, tile_n))
    steps = tw.ceil_div(A.shape[1], tile_k)
    turns = tw.ceil_div(tiles_m * tiles_n - block, blocks)

    sA = tw.shared((stages, tile_m, tile_k), A.dtype, swizzle=128)
    sB = tw.shared((stages, tile_n, tile_k), B.dtype, swizzle=128)
    sC = tw.shared((2, tile_n // COLUMNS, tile_m, COLUMNS), C.dtype, swizzle=128)
    full = tw.hopper.mbarrier(stages, arrivals=1)
    empty = tw.hopper.mbarrier(stages, arrivals=WARPS)
    done = tw.hopper.mbarrier(2, arrivals=WARPS)
    tw.barrier()

    with tw.role(warps=WARPS, registers=40), tw.role(warps=1):
        for turn in tw.range(turns):
            index = tw.let(block + turn * blocks)
            for k in tw.range(steps):
                step = tw.let(turn * steps + k)
                stage = tw.let(step % stages)
                tw.hopper.wait(empty[stage], 1 - step // stages % 2)
                tw.hopper.arrive(full[stage], expect_bytes=(tile_m + tile_n) * tile_k * A.dtype.bytes)
                tw.hopper.tma_load(A.tile((tile_m, tile_k), (index // tiles_n, k)), sA[stage], full[stage])
                tw.hopper.tma_load(B.tile((tile_n, tile_k), (index % tiles_n, k)), sB[stage], full[stage])

    for w in tw.unroll(2):
        with tw.role(warps=WARPS, registers=232):
            for pair in tw.range((turns + 1 - w) // 2):
                turn = tw.let(pair * 2 + w)
                index = tw.let(block + turn * blocks)
                acc = tw.accumulator(mma)
                if ordered:  # the other warpgroup has waited for its last stage
                    tw.hopper.wait(done[1 - w], (pair + 1 - w) % 2)
                for k in tw.range(steps):
                    step = tw.let(turn * steps + k)
                    stage = tw.let(step % stages)
                    tw.hopper.wait(full[stage], step // stages % 2)
                    tw.hopper.mma_fence()
                    tw.hopper.mma_async(sA[stage], sB[stage], acc)
                    tw.hopper.mma_commit()
                    tw.hopper.mma_wait(0)
                    tw.hopper.arrive(empty[stage], each="warp")
                tw.hopper.arrive(done[w], each="warp")
                tw.hopper.bulk_wait(0)
                tw.role_barrier(1 + w, threads=mma.threads)
                tw.copy(acc, sC[w].permute(1, 0, 2).merge(1))
                tw.hopper.fence_async()
                tw.role_barrier(1 + w, threads=mma.threads)
                for j in tw.unroll(tile_n // COLUMNS):
                    place = (index // tiles_n, index % tiles_n * (tile_n // COLUMNS) + j)
                    tw.hopper.tma_store(sC[w, j], C.tile((tile_m, COLUMNS), place))
                tw.hopper.bulk_commit()
            tw.hopper.bulk_wait(0)
