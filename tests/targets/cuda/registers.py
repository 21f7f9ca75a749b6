"""A GEMM whose asynchronous MMA takes A from registers: C = A Bᵀ, A loaded from global or shared memory."""

from __future__ import annotations

import tilewright as tw

DEPTH = 64


@tw.kernel(A="M K", B="N K", C="M N")
def register_gemm(A, B, C, *, mma, through):
    """Every block multiplies one tile; ``through`` names the memory from which A's fragment is loaded."""
    tile_m, tile_n = mma.tile[:2]
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sB = tw.shared((tile_n, DEPTH), B.dtype, swizzle=128)
    threads = (mma.threads // 8, 8)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], DEPTH)):
        tw.copy(B.tile((tile_n, DEPTH), (n, k)), sB, threads=threads)
        source = A.tile((tile_m, DEPTH), (m, k))
        if through == "shared":
            sA = tw.shared((tile_m, DEPTH), A.dtype, swizzle=128)
            tw.copy(source, sA, threads=threads)
            source = sA
        tw.hopper.fence_async()
        tw.barrier()
        a = tw.load(source, like=tw.operand_a(mma, DEPTH))
        tw.hopper.mma_fence()
        tw.hopper.mma_async(a, sB, acc)
        tw.hopper.mma_commit()
        tw.hopper.mma_wait(0)
        tw.barrier()
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))
