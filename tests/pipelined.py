"""A hand-written GEMM with asynchronous copies, for tests of explicit kernels."""

from __future__ import annotations

import tilewright as tw


@tw.kernel(A="M K", B="N K", C="M N")
def gemm(A, B, C, *, tile, mma, stages):
    """``C[m, n] = sum_k A[m, k] * B[n, k]``; one stage alternates copies and products, more copy ahead."""
    m, n = tw.block_index(tw.ceil_div(C.shape, tile[:2]))
    tw.copy(main_loop(A, B, (m, n), tile=tile, mma=mma, stages=stages), C.tile(tile[:2], (m, n)))


def main_loop(A, B, at, *, tile, mma, stages):
    """Return the sums of one tile."""
    sides = ((A, at[0], tile[0]), (B, at[1], tile[1]))
    rings = [ring(source, rows, tile[2], stages) for source, _, rows in sides]
    acc, count = tw.accumulator(mma), tw.ceil_div(A.shape[1], tile[2])

    def parts(k):
        return [
            (source.tile((rows, tile[2]), (row, k)), stage[k % stages])
            for (source, row, rows), stage in zip(sides, rings, strict=True)
        ]

    def start(k):
        with tw.when(k < count):
            for part, stage in parts(k):
                tw.copy_async(part, stage, threads=mma.threads)
        tw.async_commit()

    if stages == 1:
        for k in tw.range(count, provenance="mainloop"):
            for part, stage in parts(k):
                tw.copy(part, stage, threads=mma.threads)
            tw.barrier()
            tw.mma(*(stage for _, stage in parts(k)), acc)
            tw.barrier()
        return acc
    for stage in tw.unroll(stages - 1):
        start(stage)
    for k in tw.range(count, provenance="mainloop"):
        tw.async_wait(stages - 2)
        tw.barrier()
        start(k + stages - 1)
        tw.mma(*(stage for _, stage in parts(k)), acc)
    return acc


def ring(source, rows, depth, stages):
    """Return stages in shared memory with the contiguous dimension of global memory."""
    strides = (1, rows) if source.unit_dim == 0 else (depth, 1)
    view = tw.View.strided((stages, rows, depth), (rows * depth, *strides))
    return tw.shared(view.shape, source.dtype, layout=view, name=f"s{source.value.name}")
