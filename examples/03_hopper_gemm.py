"""A GEMM for Hopper, C = A Bᵀ, by hand: persistent blocks, warp roles, TMA, transaction barriers, wgmma.

    python examples/03_hopper_gemm.py [--small]

One warpgroup loads tiles into a ring of stages, and two multiply.  Loads of the next tile overlap the
epilogue.  A and B may have any dtype that wgmma multiplies: 16-bit floats, f32 as tf32, 8-bit floats, i8 and
u8.  TMA handles ragged M, N and K.  The row strides of A and B must be multiples of 16 bytes.  If that of C
is not, C is written from registers, because TMA stores whole units of 16 bytes.  Without a GPU the kernel is
only compiled, for sm_90a.
"""

from __future__ import annotations

import argparse
import sys

import tilewright as tw
from tilewright.testing import Trial, operands

WARPS = 4  # in a warpgroup
GROUPS = 2  # warpgroups that multiply
ROW_BYTES = 128  # of a row in shared memory; the swizzle needs 128


def tile_order(index, tiles_m, tiles_n, group):
    """Tile number -> (m, n): bands of ``group`` rows, column by column, so that neighbours share operands."""
    band = tw.let(index // (group * tiles_n) * group)
    rows = tw.let(tw.minimum(tiles_m - band, group))
    m = tw.let(band + index % (group * tiles_n) % rows)
    n = tw.let(index % (group * tiles_n) // rows)
    return m, n


def finishing_together(tiles, most):
    """The fewest blocks that need no more rounds than ``most`` would; they finish at about the same time."""
    turns = tw.maximum(tw.ceil_div(tiles, most), 1)
    return tw.derived(tw.maximum(tw.minimum(tw.ceil_div(tiles, turns), most), 1))


@tw.kernel(A="M K", B="N K", C="M N")
def hopper_gemm(A, B, C, *, mma, stages, buffers, blocks, group, period=None):
    rows, tile_n, tile_k = mma.tile[0], mma.tile[1], ROW_BYTES // A.dtype.bytes
    tile_m, columns = GROUPS * rows, ROW_BYTES // C.dtype.bytes
    tiles_m, tiles_n = tw.ceil_div(C.shape, (tile_m, tile_n))
    steps = tw.ceil_div(A.shape[1], tile_k)
    grid = finishing_together(tiles_m * tiles_n, blocks)
    block = tw.block_index(grid)
    turns = tw.ceil_div(tiles_m * tiles_n - block, grid)
    store_by_tma = C.shape[1] * C.dtype.bytes % 16 == 0  # True, or a condition that is known only at launch

    sA = tw.shared((stages, GROUPS, rows, tile_k), A.dtype, swizzle=128)
    sB = tw.shared((stages, tile_n, tile_k), B.dtype, swizzle=128)
    sC = tw.shared((GROUPS, buffers, rows, columns), C.dtype, swizzle=128)
    full = tw.hopper.mbarrier(stages, arrivals=1)
    empty = tw.hopper.mbarrier(stages, arrivals=GROUPS * WARPS)
    tw.barrier()

    with tw.role(warps=WARPS, registers=40), tw.role(warps=1):
        for turn in tw.range(turns):
            m, n = tile_order(block + turn * grid, tiles_m, tiles_n, group)
            for k in tw.range(steps):
                step = tw.let(turn * steps + k)
                stage = tw.let(step % stages)
                tw.hopper.wait(empty[stage], 1 - step // stages % 2)
                tw.hopper.arrive(full[stage], expect_bytes=(tile_m + tile_n) * tile_k * A.dtype.bytes)
                tw.hopper.tma_load(A.tile((tile_m, tile_k), (m, k)), sA[stage].merge(0), full[stage])
                tw.hopper.tma_load(B.tile((tile_n, tile_k), (n, k)), sB[stage], full[stage])

    with tw.role(warps=WARPS, groups=GROUPS, registers=232) as g:
        for turn in tw.range(turns):
            m, n = tile_order(block + turn * grid, tiles_m, tiles_n, group)
            acc = tw.accumulator(mma, fill=None if period else 0)
            total = tw.accumulator(mma) if period else acc
            for k in tw.range(steps, provenance="mainloop"):
                step = tw.let(turn * steps + k)
                stage = tw.let(step % stages)
                tw.hopper.wait(full[stage], step // stages % 2)
                tw.hopper.mma_fence()
                tw.hopper.mma_async(sA[stage, g], sB[stage], acc, fresh=bool(period) and k % period == 0)
                tw.hopper.mma_commit()
                tw.hopper.mma_wait(1)  # the previous step has finished reading its stage
                with tw.when(k > 0):
                    tw.hopper.arrive(empty[(step - 1) % stages], each="warp")
                if period:  # acc keeps few bits: add it to a sum in full f32
                    with tw.when((k + 1) % period == 0):
                        tw.hopper.mma_wait(0)
                        total.assign(total + acc)
            tw.hopper.mma_wait(0)
            with tw.when(steps > 0):
                tw.hopper.arrive(empty[(turn * steps + steps - 1) % stages], each="warp")

            if period and period > 1:
                with tw.when(steps % period != 0):
                    total.assign(total + acc)

            for j in tw.unroll(tile_n // columns):
                part = slice(j * columns, (j + 1) * columns)
                target = C.tile((rows, columns), (m * GROUPS + g, n * (tile_n // columns) + j))
                if store_by_tma is not True:
                    tw.copy(total[:, part], target)
                    continue
                buffer = sC[g, j % buffers]
                tw.hopper.bulk_wait(buffers - 1)  # an earlier store has finished reading this buffer
                tw.role_barrier(1 + g, threads=mma.threads)
                tw.copy(total[:, part], buffer)
                tw.hopper.fence_async()
                tw.role_barrier(1 + g, threads=mma.threads)
                tw.hopper.tma_store(buffer, target)
                tw.hopper.bulk_commit()
        tw.hopper.bulk_wait(0)


STAGES = {192: (4, 3), 256: (4, 2), 128: (6, 2), 64: (8, 1)}
"""Columns of a tile -> (stages of the ring, epilogue buffers per warpgroup) that fit into shared memory."""

PROMOTED = (128, 64)
"""Columns of a tile for which two accumulators fit into registers."""

OUT = {"f32": tw.f32, "f8e4m3": tw.bf16, "f8e5m2": tw.bf16, "i8": tw.i32, "u8": tw.i32}
"""The dtype of C in `attempt`; default: that of A."""


def bind(dtype, *, columns=None, stages=None, blocks=132, group=8, period=None):
    """Bind the kernel to tiles of 128 x ``columns`` x 128 bytes; two warpgroups multiply 64 rows each.

    The library's schedules choose a tile for each problem; here the caller chooses it.

    Args:
        dtype: dtype of A and B.
        columns: columns of a tile; None: 256, or 128 with ``period``.
        stages: stages of the ring; None: as many as shared memory holds.
        blocks: maximum number of blocks.
        group: rows of tiles in a band; see `tile_order`.
        period: steps after which sums of 8-bit floats are added to f32 accumulators; None: never.
    """
    columns = columns or (PROMOTED[0] if period else 256)
    most, buffers = STAGES[columns]
    mma = tw.TiledMma(tw.atoms.wgmma(dtype, columns))
    fixed = {"mma": mma, "stages": stages or most, "buffers": buffers, "blocks": blocks, "group": group}
    return hopper_gemm.bind(**fixed, **({"period": period} if period else {}))


SHAPES = ((2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (8192, 14336, 4096))
SMALL = ((512, 768, 320), (136, 264, 80))


def attempt(dtype, shape, period=None):
    """Run the kernel, verify every element, and print the time of a call."""
    m, n, k = shape
    bound = bind(dtype, columns=128 if period or m * n < 2048 * 2048 else 256, period=period)
    atom, made = bound.constants["mma"].atom, operands("random", dtype, shape, layout="nt")
    about = f"{m}x{n}x{k}" + (f", promoted every {period} steps" if period else "")
    trial = Trial(
        bound, made, "cuda", atom, about, OUT.get(dtype.name), period and period * ROW_BYTES // dtype.bytes
    )
    executable, _ = trial.run()
    assert executable.target == "cuda", f"{executable.target} ran instead of cuda"
    comparison = trial.verify()
    comparison.raise_if_wrong()
    print(f"{trial.name} on {executable.arch}: {comparison}")
    print(trial.perf())


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="small matrices")
    asked = parser.parse_args()
    if not tw.device_count():
        spec = tw.TensorSpec(tw.bf16, 2, 1, (256, 256), (16, 1), 16, False)
        compiled = bind(tw.bf16).compile(spec, spec, spec, target="cuda", arch="sm_90a")
        print(f"no GPU here; compiled for {compiled.arch}: {dict(compiled.resources)}")
        return
    for dtype in (tw.bf16, tw.f16, tw.f32, tw.f8e4m3, tw.i8):
        for shape in SMALL if asked.small else SHAPES:
            attempt(dtype, shape)
            if dtype is tw.f8e4m3:
                attempt(dtype, shape, period=1)


if __name__ == "__main__":
    try:
        main()
    except tw.ToolchainError as missing:  # without NVRTC there is nothing to compile with
        sys.exit(str(missing))
