"""A GEMM from global memory to registers, C = A Bᵀ: warp tiles with row and column reuse, no shared memory.

    python examples/06_warp_tiles_gemm.py [--small] [--target cuda|cpu|reference] [verify init time [M N K]]

2 x 2 warps share a tile of C. Warps in one row of this grid load the same rows of A, those in one column the
same rows of B (columns of Bᵀ). Each warp multiplies the elements that it holds. No thread needs another's
registers, so there is no shared memory and no barrier. Elements past the edges of A and B are 0.
"""

from __future__ import annotations

import tilewright as tw


@tw.kernel(A="M K", B="N K", C="M N")
def warp_tiles_gemm(A, B, C, *, tile, mma):
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    part_a = tw.by_warps((tile_m, tile_k), mma.atom.a, mma.warps, reuse="row")
    part_b = tw.by_warps((tile_n, tile_k), mma.atom.b, mma.warps, reuse="column", along=0)
    tiles_a = A.tiles((tile_m, tile_k))[m, :]
    tiles_b = B.tiles((tile_n, tile_k))[n, :]
    acc = tw.accumulator(mma)
    for k in tw.range(tiles_a.shape[0], provenance="mainloop"):
        rA = tw.load(tiles_a[k], part_a)
        rB = tw.load(tiles_b[k], part_b)
        tw.mma(rA, rB, acc)
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


# Each warp computes 64 x 32 of the tile of 128 x 64, with 4 x 4 instructions of 16 x 8 x 16.
BOUND = {
    dtype: warp_tiles_gemm.bind(tile=(128, 64, 32), mma=tw.TiledMma(atom, tile=(128, 64), warps=(2, 2)))
    for dtype, atom in ((tw.f16, tw.atoms.MMA_F16), (tw.bf16, tw.atoms.MMA_BF16))
}
SHAPES = {"cuda": (3840, 4096, 4096), "cpu": (1280, 1024, 1024), "reference": (256, 128, 96)}
SMALL = {"cuda": (512, 384, 320), "cpu": (512, 384, 320), "reference": (256, 128, 64)}
RAGGED = (129, 129, 67)


def main():
    asked = tw.testing.parse_args(__doc__, SHAPES, SMALL, "M N K")
    for dtype, bound in BOUND.items():
        for shape in (asked.shape, RAGGED):
            print(tw.testing.run_gemm(bound, dtype, shape, asked.target, **asked.how))


if __name__ == "__main__":
    main()
