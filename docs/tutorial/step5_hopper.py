"""Step 5 of 6: Hopper by hand: warps with roles, bulk copies, asynchronous multiplies.

    python docs/tutorial/step5_hopper.py [--small]

Share of cuBLAS on an H200 (bf16): 1.00 at 4096³.

A Hopper GPU has two asynchronous engines.  The tensor memory accelerator (TMA) copies whole boxes: one thread
issues a copy, and a barrier in shared memory counts the bytes that have arrived.  `wgmma` multiplies tiles
straight out of shared memory: a warpgroup, which is four warps, issues it and does not wait.  To keep both
engines busy, warps have different roles:

- One warp loads.  For each step it waits until a stage of the ring is *empty*, and issues TMA copies into it.
  TMA marks the stage *full* when the bytes have arrived.
- Two warpgroups multiply, each 64 rows of the tile.  They wait until a stage is full and issue `wgmma`.  One
  step later, when that product is complete, they mark the stage empty.
- At the end of a tile the two warpgroups copy the result into shared memory, and TMA stores it.  Meanwhile
  the loading warp has started on the next tile: blocks are persistent, and each computes many tiles.

`empty` and `full` are arrays of barriers with phases.  A wait names the parity of the phase that it waits
for.  Most bugs of these kernels are in the arithmetic on stage and parity, which this kernel spells out.  The
checker runs it without a GPU, with TMA and the matrix unit as separate agents.  It reports the line of a
wrong parity, a missing arrival or a stage that is refilled too early.

The eight lines of step 2, under the schedule below, become this kernel: this program asserts that both have
the same operations.  `examples/03_hopper_gemm.py` is the same kernel for all dtypes that `wgmma` multiplies.
"""

from __future__ import annotations

import sys
from collections import Counter

import tilewright as tw

WARPS, GROUPS = 4, 2  # warps in a warpgroup; number of warpgroups that multiply
WIDTH = 64  # elements of bf16 in the 128 bytes of a row of shared memory


def tile_order(index, tiles_m, tiles_n, group):
    """Tile number -> (m, n): bands of ``group`` rows, column by column, so that neighbours share operands."""
    band = tw.let(index // (group * tiles_n) * group)
    rows = tw.let(tw.minimum(tiles_m - band, group))
    m = tw.let(band + index % (group * tiles_n) % rows)
    n = tw.let(index % (group * tiles_n) // rows)
    return m, n


@tw.kernel(A="M K", B="N K", C="M N")
def hopper_gemm(A, B, C, *, mma, stages, buffers, blocks, group):
    rows, columns = mma.tile[:2]
    block = tw.block_index(blocks)
    tiles_m, tiles_n = tw.ceil_div(C.shape, (GROUPS * rows, columns))
    steps = tw.ceil_div(A.shape[1], WIDTH)
    turns = tw.ceil_div(tiles_m * tiles_n - block, blocks)

    sA = tw.shared((stages, GROUPS, rows, WIDTH), A.dtype, swizzle=128)
    sB = tw.shared((stages, columns, WIDTH), B.dtype, swizzle=128)
    sC = tw.shared((GROUPS, buffers, rows, WIDTH), C.dtype, swizzle=128)
    full = tw.hopper.mbarrier(stages, arrivals=1)
    empty = tw.hopper.mbarrier(stages, arrivals=GROUPS * WARPS)
    tw.barrier()

    with tw.role(warps=WARPS, registers=40), tw.role(warps=1):
        for turn in tw.range(turns):
            m, n = tile_order(block + turn * blocks, tiles_m, tiles_n, group)
            for k in tw.range(steps):
                step = tw.let(turn * steps + k)
                stage = tw.let(step % stages)
                tw.hopper.wait(empty[stage], 1 - step // stages % 2)
                tw.hopper.arrive(full[stage], expect_bytes=(GROUPS * rows + columns) * WIDTH * A.dtype.bytes)
                tw.hopper.tma_load(A.tile((GROUPS * rows, WIDTH), (m, k)), sA[stage].merge(0), full[stage])
                tw.hopper.tma_load(B.tile((columns, WIDTH), (n, k)), sB[stage], full[stage])

    with tw.role(warps=WARPS, groups=GROUPS, registers=232) as g:
        for turn in tw.range(turns):
            m, n = tile_order(block + turn * blocks, tiles_m, tiles_n, group)
            acc = tw.accumulator(mma)
            for k in tw.range(steps):
                step = tw.let(turn * steps + k)
                stage = tw.let(step % stages)
                tw.hopper.wait(full[stage], step // stages % 2)
                tw.hopper.mma_fence()
                tw.hopper.mma_async(sA[stage, g], sB[stage], acc)
                tw.hopper.mma_commit()
                tw.hopper.mma_wait(1)  # the previous step has finished reading its stage
                with tw.when(k > 0):
                    tw.hopper.arrive(empty[(step - 1) % stages], each="warp")
            tw.hopper.mma_wait(0)
            with tw.when(steps > 0):
                tw.hopper.arrive(empty[(turn * steps + steps - 1) % stages], each="warp")

            for j in tw.unroll(columns // WIDTH):
                buffer = sC[g, j % buffers]
                tw.hopper.bulk_wait(buffers - 1)  # an earlier store has finished reading this buffer
                tw.role_barrier(1 + g, threads=mma.threads)
                tw.copy(acc[:, j * WIDTH : (j + 1) * WIDTH], buffer)
                tw.hopper.fence_async()
                tw.role_barrier(1 + g, threads=mma.threads)
                at = (m * GROUPS + g, n * (columns // WIDTH) + j)
                tw.hopper.tma_store(buffer, C.tile((rows, WIDTH), at))
                tw.hopper.bulk_commit()
        tw.hopper.bulk_wait(0)


@tw.kernel(A="M K", B="N K", C="M N")
def product(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc


def bind(columns, stages, buffers, blocks):
    """Bind the hand-written kernel, and the eight lines to the same schedule."""
    atom = tw.atoms.wgmma("bf16", columns)
    by_hand = {"mma": tw.TiledMma(atom), "stages": stages, "buffers": buffers, "blocks": blocks, "group": 8}
    schedule = tw.Schedule(
        atom,
        (128, columns, WIDTH),
        stages=stages,
        staging="tma",
        roles="cooperative",
        groups=GROUPS,
        blocks=blocks,
        group_m=8,
        epilogue="staged",
        buffers=buffers,
    )
    return hopper_gemm.bind(**by_hand), product.bind(schedule=schedule)


# A tile of 128 x 256 for the 132 multiprocessors of an H200; four stages of 48 KiB fill its shared memory.
MEASURED, AS_EIGHT_LINES = bind(columns=256, stages=4, buffers=2, blocks=132)


def hopper_operations(bound):
    """Count a kernel's copies, multiplies, waits and arrivals."""
    text = tw.ir.print_kernel(bound.trace(*[tw.like("bf16", (512, 512))] * 3, target="cuda", arch="sm_90a"))
    words = (line.strip().partition("(")[0] for line in text.splitlines())
    return Counter(
        word
        for word in words
        if word.startswith(("arrive", "wait", "mma", "copy", "bulk", "fence", "role_barrier"))
    )


def main():
    print(dict(hopper_operations(MEASURED)))
    assert hopper_operations(MEASURED) == hopper_operations(AS_EIGHT_LINES)

    # Check small tiles in a ring of three stages, which wraps around twice.
    bound, _ = bind(columns=64, stages=3, buffers=1, blocks=2)
    made = tw.testing.operands("integers", tw.bf16, (264, 72, 392), layout="nt")
    trial = tw.testing.Trial(bound, made, "reference", tw.atoms.wgmma("bf16", 64), "264x72x392", tw.bf16)
    assert trial.run()[0].target == "reference"
    trial.verify().raise_if_wrong()
    report = bound.check(made.a, made.b.T, trial.result())
    print(report)
    assert report.is_clean

    if not tw.device_count():
        try:
            compiled = MEASURED.compile(*[tw.like("bf16", (4096, 4096))] * 3, target="cuda", arch="sm_90a")
            print(f"no GPU here; compiled for {compiled.arch}: {dict(compiled.resources)}")
        except tw.ToolchainError as missing:
            print(missing)
        return
    for n in (512,) if "--small" in sys.argv else (4096, 8192):
        made = tw.testing.operands("random", tw.bf16, (n, n, n), layout="nt")
        for kernel in (MEASURED, AS_EIGHT_LINES):
            trial = tw.testing.Trial(kernel, made, "cuda", tw.atoms.wgmma("bf16", 256), f"{n}³", tw.bf16)
            assert trial.run()[0].target == "cuda"
            trial.verify().raise_if_wrong()
            print(trial.perf())


if __name__ == "__main__":
    main()
