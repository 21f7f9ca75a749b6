"""The basic GEMM, C = A Bᵀ: every tile, copy, barrier and multiply is written by hand.

    python examples/02_basic_gemm.py [--small] [--target cuda|cpu|reference] [verify init time [M N K]]

First fp16, with a tile of 256 x 128 x 32 and 256 threads (3840 x 4096 x 4096 on a GPU). Then 129 x 129 x 67,
which no tile divides, in f32, f16 and int8. Every element is compared with a product of higher precision.
"""

from __future__ import annotations

import tilewright as tw


@tw.kernel(A="M K", B="N K", C="M N")
def basic_gemm(A, B, C, *, tile, mma, threads=None, vector=None):
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sA = tw.shared((tile_m, tile_k), A.dtype)
    sB = tw.shared((tile_n, tile_k), B.dtype)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k), provenance="mainloop"):
        tw.copy(A.tile((tile_m, tile_k), (m, k)), sA, threads=threads, vector=vector)
        tw.copy(B.tile((tile_n, tile_k), (n, k)), sB, threads=threads, vector=vector)
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


# 4 x 2 warps share the tile; each multiplies with 4 x 8 instructions of 16 x 8 x 16.  All threads copy it,
# with accesses as wide as the arrays allow.
LARGE = basic_gemm.bind(tile=(256, 128, 32), mma=tw.TiledMma(tw.atoms.MMA_F16, tile=(256, 128), warps=(4, 2)))
SHAPES = {"cuda": (3840, 4096, 4096), "cpu": (1280, 1024, 1024), "reference": (256, 128, 96)}
SMALL = {"cuda": (512, 384, 320), "cpu": (512, 384, 320), "reference": (256, 128, 64)}

# Any extents work: rows of 67 elements are not aligned, so threads copy them one element at a time.
PADDED = (129, 129, 67)
ATOMS = {tw.f32: tw.atoms.fma(tw.f32), tw.f16: tw.atoms.MMA_F16, tw.i8: tw.atoms.MMA_I8}


def padded(atom):
    """Bind the kernel to a tile of 64 x 64 for 2 x 2 warps."""
    return basic_gemm.bind(tile=(64, 64, 32), mma=tw.TiledMma(atom, tile=(64, 64), warps=(2, 2)))


def main():
    asked = tw.testing.parse_args(__doc__, SHAPES, SMALL, "M N K")
    print(tw.testing.run_gemm(LARGE, tw.f16, asked.shape, asked.target, **asked.how))
    for dtype, atom in ATOMS.items():
        print(tw.testing.run_gemm(padded(atom), dtype, PADDED, asked.target, **asked.how))


if __name__ == "__main__":
    main()
