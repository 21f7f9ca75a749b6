"""Step 3 of 6: the same product in the explicit language, tile by tile.

    python docs/tutorial/step3_explicit.py [--small]

Share of cuBLAS on an H200 (bf16): 0.23 at 4096³.

You can write by hand every kernel that a schedule makes.  This step writes the simplest.  An explicit kernel
describes the work of one thread block:

- `tw.block_index` sets the grid and returns the index of this block.
- `A.tile(shape, at)` is the `at`-th tile of an array.  Elements beyond the array read as 0 and are never
  written, so extents need not be multiples of the tile.
- `tw.shared` allocates shared memory.  `tw.copy` moves a tile between any two memories: neighbouring threads
  copy neighbouring bytes, with accesses as wide as the arrays allow.
- `tw.accumulator(mma)` allocates an accumulator in registers, with the thread layout of the MMA instruction.
  `tw.mma(sA, sB, acc)` adds the product of two tiles to it.
- `tw.barrier()` makes every thread wait until all threads of the block have arrived.

Each iteration has two barriers.  The first keeps threads from multiplying a tile before it is loaded.  The
second keeps threads from overwriting a tile while others still multiply it.  Leave one out, and
`kernel.check` names the tensor, both accesses and the line where the barrier belongs.

With `sync="auto"` the library places the barriers: as few as order all accesses.  The second kernel is the
first without its barriers.  This program asserts that the library places two barriers there, too.

This kernel is slow because it never overlaps copies with multiplications.  Step 4 overlaps them.
"""

from __future__ import annotations

import sys

import numpy as np

import tilewright as tw


@tw.kernel(A="M K", B="N K", C="M N")
def basic_gemm(A, B, C, *, tile, mma):
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sA = tw.shared((tile_m, tile_k), A.dtype)
    sB = tw.shared((tile_n, tile_k), B.dtype)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        tw.copy(A.tile((tile_m, tile_k), (m, k)), sA)
        tw.copy(B.tile((tile_n, tile_k), (n, k)), sB)
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


@tw.kernel(A="M K", B="N K", C="M N", sync="auto")
def automatic_gemm(A, B, C, *, tile, mma):
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sA = tw.shared((tile_m, tile_k), A.dtype)
    sB = tw.shared((tile_n, tile_k), B.dtype)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        tw.copy(A.tile((tile_m, tile_k), (m, k)), sA)
        tw.copy(B.tile((tile_n, tile_k), (n, k)), sB)
        tw.mma(sA, sB, acc)
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


def bind(kernel, tile, warps):
    """Bind a kernel to a tile that a grid of ``warps`` computes."""
    return kernel.bind(tile=tile, mma=tw.TiledMma(tw.atoms.MMA_BF16, tile=tile[:2], warps=warps))


MEASURED = bind(basic_gemm, (256, 128, 32), (4, 2))


def operations(bound):
    """Return the names of a kernel's copies, barriers, multiplies and loops, in order."""
    arrays = [tw.like("bf16", (512, 512))] * 3
    text = tw.ir.print_kernel(bound.trace(*arrays))
    words = [line.strip().rpartition(" = ")[2].partition("(")[0] for line in text.splitlines()]
    return [word for word in words if word in ("copy", "barrier", "mma") or word.startswith("for ")]


def main():
    by_hand, automatic = (bind(kernel, (64, 64, 32), (2, 2)) for kernel in (basic_gemm, automatic_gemm))
    print("both do:", ", ".join(operations(by_hand)))
    assert operations(by_hand).count("barrier") == operations(automatic).count("barrier") == 2

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (rows, 100)).astype(tw.bf16.numpy) for rows in (70, 90))
    for bound in (by_hand, automatic):
        c = np.full((70, 90), np.nan, np.float32)
        report = bound.check(a, b, c)
        print(report)
        assert report.is_clean

    target = "cuda" if tw.device_count() else "cpu"
    shape = (
        (256, 384, 320) if "--small" in sys.argv else (4096, 4096, 4096) if target == "cuda" else (1024,) * 3
    )
    for bound in (MEASURED, bind(automatic_gemm, (256, 128, 32), (4, 2))):
        print(tw.testing.run_gemm(bound, tw.bf16, shape, target))


if __name__ == "__main__":
    main()
