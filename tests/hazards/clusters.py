"""The Hopper GEMM in clusters: each block that shares a tile of A or B loads one part of it for all of them.

With one block per cluster it is the kernel of examples/03_hopper_gemm.py.
"""

from __future__ import annotations

import tilewright as tw

WARPS = 4  # of a warpgroup
GROUPS = 2  # warpgroups that multiply
COLUMNS = 64  # 16-bit elements in a row of 128 bytes, which is what the swizzle takes


def tile_order(index, tiles_m, tiles_n, group):
    """Tile number -> (m, n): bands of ``group`` rows, column by column, so that neighbours share operands."""
    band = tw.let(index // (group * tiles_n) * group)
    rows = tw.let(tw.minimum(tiles_m - band, group))
    m = tw.let(band + index % (group * tiles_n) % rows)
    n = tw.let(index % (group * tiles_n) // rows)
    return m, n


@tw.kernel(A="M K", B="N K", C="M N")
def cluster_gemm(A, B, C, *, mma, stages, buffers, blocks, group, cluster):
    rows, tile_n, tile_k = mma.tile[0], mma.tile[1], COLUMNS
    tile_m = GROUPS * rows
    across, along = cluster  # its blocks along M, which share B, and along N, which share A
    part_m, part_n = tile_m // along, tile_n // across  # what each of them loads
    clusters = blocks // (across * along)
    block = tw.block_index((clusters * across, along))
    row, column = tw.hopper.cluster_index(cluster)
    first = tw.let(block[0] // across)
    tiles_m, tiles_n = tw.ceil_div(C.shape, (tile_m * across, tile_n * along))  # of a cluster
    steps = tw.ceil_div(A.shape[1], tile_k)
    turns = tw.ceil_div(tiles_m * tiles_n - first, clusters)
    store_by_tma = C.shape[1] * C.dtype.bytes % 16 == 0  # True, or a condition that nothing is known of

    sA = tw.shared((stages, GROUPS, rows, tile_k), A.dtype, swizzle=128)
    sB = tw.shared((stages, tile_n, tile_k), B.dtype, swizzle=128)
    sC = tw.shared((GROUPS, buffers, rows, COLUMNS), C.dtype, swizzle=128)
    full = tw.hopper.mbarrier(stages, arrivals=1)
    empty = tw.hopper.mbarrier(stages, arrivals=GROUPS * WARPS * (across + along - 1))
    tw.hopper.cluster_barrier()

    def tile_of(turn):
        """The first row and column of this block's tile."""
        m, n = tile_order(first + turn * clusters, tiles_m, tiles_n, group)
        return (m * across + row) * tile_m, (n * along + column) * tile_n

    def release(step):
        """Let every block that writes to this stage write again: the blocks in its row and in its column."""
        for i in tw.unroll(across):
            tw.hopper.arrive(empty[step % stages], each="warp", block=((row + i) % across, column))
        for j in tw.unroll(along - 1):
            tw.hopper.arrive(empty[step % stages], each="warp", block=(row, (column + 1 + j) % along))

    with tw.role(warps=WARPS, registers=40), tw.role(warps=1):
        for turn in tw.range(turns):
            m, n = tile_of(turn)
            for k in tw.range(steps):
                step = tw.let(turn * steps + k)
                stage = tw.let(step % stages)
                tw.hopper.wait(empty[stage], 1 - step // stages % 2)
                tw.hopper.arrive(full[stage], expect_bytes=(tile_m + tile_n) * tile_k * A.dtype.bytes)
                part_a = sA[stage].merge(0).tile((part_m, tile_k), (column, 0))
                part_b = sB[stage].tile((part_n, tile_k), (row, 0))
                from_a = A.tile((part_m, tile_k), (m // part_m + column, k))
                from_b = B.tile((part_n, tile_k), (n // part_n + row, k))
                tw.hopper.tma_load(from_a, part_a, full[stage], multicast=1)
                tw.hopper.tma_load(from_b, part_b, full[stage], multicast=0)

    for g in tw.unroll(GROUPS):
        with tw.role(warps=WARPS, registers=232):
            for turn in tw.range(turns):
                m, n = tile_of(turn)
                acc = tw.accumulator(mma)
                for k in tw.range(steps, provenance="mainloop"):
                    step = tw.let(turn * steps + k)
                    stage = tw.let(step % stages)
                    tw.hopper.wait(full[stage], step // stages % 2)
                    tw.hopper.mma_fence()
                    tw.hopper.mma_async(sA[stage, g], sB[stage], acc)
                    tw.hopper.mma_commit()
                    tw.hopper.mma_wait(1)  # the step before this one has left its stage
                    with tw.when(k > 0):
                        release(step - 1)
                tw.hopper.mma_wait(0)
                with tw.when(steps > 0):
                    release(turn * steps + steps - 1)

                for j in tw.unroll(tile_n // COLUMNS):
                    target = C.tile((rows, COLUMNS), (m // rows + g, n // COLUMNS + j))
                    if store_by_tma is not True:
                        tw.copy(acc[:, j * COLUMNS : (j + 1) * COLUMNS], target)
                        continue
                    buffer = sC[g, j % buffers]
                    tw.hopper.bulk_wait(buffers - 1)  # the store before the last has left its buffer
                    tw.role_barrier(1 + g, threads=mma.threads)
                    tw.copy(acc[:, j * COLUMNS : (j + 1) * COLUMNS], buffer)
                    tw.hopper.fence_async()
                    tw.role_barrier(1 + g, threads=mma.threads)
                    tw.hopper.tma_store(buffer, target)
                    tw.hopper.bulk_commit()
            tw.hopper.bulk_wait(0)
    tw.hopper.cluster_barrier()  # no block ends while another one still arrives at its barriers
