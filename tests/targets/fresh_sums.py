"""A GEMM whose sums begin with the first products, without clearing the accumulator."""

from __future__ import annotations

import tilewright as tw


@tw.kernel(A="M K", B="N K", C="M N")
def fresh_gemm(A, B, C, *, mma, period=None, poison=None):
    """``C = A Bᵀ``; with a period, sums of that many steps are added to sums in f32."""
    (tile_m, tile_n, _), tile_k = mma.tile, 128 // A.dtype.bytes
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sA = tw.shared((tile_m, tile_k), A.dtype, swizzle=128)
    sB = tw.shared((tile_n, tile_k), B.dtype, swizzle=128)
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.barrier()
    acc = tw.accumulator(mma, poison)
    total = tw.accumulator(mma) if period else acc
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        tw.hopper.arrive(full[0], expect_bytes=(tile_m + tile_n) * 128)
        tw.hopper.tma_load(A.tile((tile_m, tile_k), (m, k)), sA, full[0])
        tw.hopper.tma_load(B.tile((tile_n, tile_k), (n, k)), sB, full[0])
        tw.hopper.wait(full[0], k % 2)
        tw.hopper.mma_fence()
        tw.hopper.mma_async(sA, sB, acc, fresh=True if period == 1 else k % (period or 1 << 30) == 0)
        tw.hopper.mma_commit()
        tw.hopper.mma_wait(0)
        if period:
            with tw.when((k + 1) % period == 0):
                total.assign(total + acc)
        tw.barrier()
    if period and period > 1:
        with tw.when(tw.ceil_div(A.shape[1], tile_k) % period > 0):
            total.assign(total + acc)
    tw.copy(total, C.tile((tile_m, tile_n), (m, n)))


CASES = {
    "once": ("bf16", 64, (1, 1), (1, 1), None),
    "repeated along both": ("f16", 32, (1, 1), (2, 2), None),
    "two warpgroups": ("f32", 64, (2, 1), (1, 1), None),
    "bytes": ("i8", 64, (1, 1), (1, 1), None),
    "every step": ("f8e4m3", 64, (1, 1), (1, 1), 1),
    "every other step": ("f8e4m3", 128, (1, 1), (1, 1), 2),
}


def bind(name, **more):
    """Bind the kernel of a case, with its period if it has one."""
    dtype, columns, warps, repeats, period = CASES[name]
    mma = tw.TiledMma(tw.atoms.wgmma(dtype, columns), warps, repeats)
    return fresh_gemm.bind(mma=mma, period=period, **more)


def out_of(dtype):
    """Return the dtype of C."""
    return "i32" if dtype == "i8" else "f32"
