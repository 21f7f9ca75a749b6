"""Hopper's GEMM by hand, C = A Bᵀ: persistent blocks, warp roles, TMA, transaction barriers, wgmma.

    python examples/03_hopper_gemm.py [--small]

One warpgroup loads tiles into a ring of stages, two multiply; the next tile's loads run under the epilogue.
Ragged M, N and K are cut by TMA; rows must be multiples of 16 bytes.  Without a GPU the kernel is compiled
for sm_90a all the same.
"""

from __future__ import annotations

import argparse

import tilewright as tw
from tilewright.ops.sample import operands
from tilewright.runtime.cuda import device_count
from tilewright.tune.measure import QUICK
from tilewright.tune.trial import OURS, Trial

WARPS = 4  # of a warpgroup
COLUMNS = 64  # 16-bit elements in a row of 128 bytes, which is what the swizzle takes


def tile_order(index, tiles_m, tiles_n, group):
    """Tile number -> (m, n): bands of ``group`` rows, column by column: neighbours share operands."""
    band = tw.let(index // (group * tiles_n) * group)
    rows = tw.let(tw.minimum(tiles_m - band, group))
    m = tw.let(band + index % (group * tiles_n) % rows)
    n = tw.let(index % (group * tiles_n) // rows)
    return m, n


@tw.kernel(A="M K", B="N K", C="M N")
def hopper_gemm(A, B, C, *, tile, mma, stages, blocks, group):
    tile_m, tile_n, tile_k = tile
    consumers = WARPS * mma.warps[0] * mma.warps[1]
    block = tw.block_index(blocks)
    tiles_m, tiles_n = tw.ceil_div(C.shape, (tile_m, tile_n))
    steps = tw.ceil_div(A.shape[1], tile_k)
    turns = tw.ceil_div(tiles_m * tiles_n - block, blocks)

    sA = tw.shared((stages, tile_m, tile_k), A.dtype, swizzle=128)
    sB = tw.shared((stages, tile_n, tile_k), B.dtype, swizzle=128)
    sC = tw.shared((tile_n // COLUMNS, tile_m, COLUMNS), C.dtype, swizzle=128)
    full = tw.mbarrier(stages, arrivals=1)
    empty = tw.mbarrier(stages, arrivals=consumers)
    tw.barrier()

    with tw.role(warps=WARPS, registers=40), tw.role(warps=1):
        for turn in tw.range(turns):
            m, n = tile_order(block + turn * blocks, tiles_m, tiles_n, group)
            for k in tw.range(steps):
                step = tw.let(turn * steps + k)
                stage = tw.let(step % stages)
                tw.wait(empty[stage], 1 - step // stages % 2)
                tw.arrive(full[stage], expect_bytes=(tile_m + tile_n) * tile_k * A.dtype.bytes)
                tw.tma_load(A, (m * tile_m, k * tile_k), sA[stage], full[stage])
                tw.tma_load(B, (n * tile_n, k * tile_k), sB[stage], full[stage])

    with tw.role(warps=consumers, registers=232):
        for turn in tw.range(turns):
            m, n = tile_order(block + turn * blocks, tiles_m, tiles_n, group)
            acc = tw.accumulator(mma)
            for k in tw.range(steps, provenance="mainloop"):
                step = tw.let(turn * steps + k)
                stage = tw.let(step % stages)
                tw.wait(full[stage], step // stages % 2)
                tw.mma_fence()
                tw.mma_async(sA[stage], sB[stage], acc)
                tw.mma_commit()
                tw.mma_wait(1)  # the step before this one has left its stage
                with tw.when(k > 0):
                    tw.arrive(empty[(step - 1) % stages], each="warp")
            tw.mma_wait(0)
            with tw.when(steps > 0):
                tw.arrive(empty[(turn * steps + steps - 1) % stages], each="warp")

            tw.bulk_wait(0)  # the stores of the tile before have left sC
            tw.role_barrier(1, threads=mma.threads)
            tw.copy(acc, sC.permute(1, 0, 2).merge(1))
            tw.fence_async()
            tw.role_barrier(1, threads=mma.threads)
            for j in tw.unroll(tile_n // COLUMNS):
                tw.tma_store(sC[j], C, (m * tile_m, n * tile_n + j * COLUMNS))
            tw.bulk_commit()
        tw.bulk_wait(0)


def bind(dtype, shape=None, *, columns=256, stages=3, blocks=132, group=8):
    """The kernel with tiles of 128 x ``columns`` x 64; two warpgroups multiply 64 rows each.

    With a shape, the rest is chosen: narrow tiles where there are few, and as many blocks, up to one for each
    of the H200's 132 multiprocessors, as finish together.
    """
    if shape is not None:
        m, n, _ = shape
        columns, stages = (128, 5) if m * n <= 2048 * 2048 else (192, 4) if m * n >= 8192 * 8192 else (256, 3)
        tiles = tw.ceil_div(m, 128) * tw.ceil_div(n, columns)
        blocks = tw.ceil_div(tiles, tw.ceil_div(tiles, 132))
    mma = tw.TiledMma(tw.atoms.wgmma(dtype, columns), warps=(2, 1))
    return hopper_gemm.bind(tile=(128, columns, COLUMNS), mma=mma, stages=stages, blocks=blocks, group=group)


SHAPES = ((2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (8192, 14336, 4096))
SMALL = ((512, 768, 320), (136, 264, 72))


def attempt(dtype, shape):
    """Run the kernel, verify every element, and print the time of a call."""
    m, n, k = shape
    bound = bind(dtype, shape)
    mma = bound.constants["mma"]
    trial = Trial(bound, operands("random", dtype, shape, layout="nt"), "cuda", mma.atom, f"{m}x{n}x{k}")
    executable, _ = trial.run()
    assert executable.target == "cuda", f"{executable.target} ran instead of cuda"
    comparison = trial.verify()
    comparison.raise_if_wrong()
    print(f"{trial.name} on {executable.arch}: {comparison}")
    print(trial.perf(trial.time(QUICK)[OURS].us.median))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="small matrices")
    asked = parser.parse_args()
    if not device_count():
        spec = tw.TensorSpec(tw.bf16, 2, 1, (256, 256), (16, 1), 16, False)
        compiled = bind(tw.bf16).compile(spec, spec, spec, target="cuda", arch="sm_90a")
        print(f"no GPU here; compiled for {compiled.arch}: {dict(compiled.resources)}")
        return
    for dtype in (tw.bf16, tw.f16):
        for shape in SMALL if asked.small else SHAPES:
            attempt(dtype, shape)


if __name__ == "__main__":
    main()
