"""The optimised GEMM, C = A Bᵀ: the next tile is loaded into registers while this one is multiplied.

    python examples/04_optimized_gemm.py [--small] [--target cuda|cpu|reference] [verify init time [M N K]]

Each operand has one buffer in shared memory, laid out as (K0, M, K1) with one extra K1 after each K0, which
avoids bank conflicts of ldmatrix.  C is stored through shared memory, 16 bytes at a time.  First fp16, with a
tile of 256 x 128 x 32 and 256 threads (3840 x 4096 x 4096 on a GPU); then 129 x 129 x 67, which no tile
divides, in f32, f16 and int8.  Products are added in the order of example 02, so results have the same bits.
"""

from __future__ import annotations

import tilewright as tw


def pieces(tensor, k1):
    """View (M, K) as (K0, M, K1), with runs of ``k1`` along K."""
    return tensor.unmerge(1, (tensor.shape[1] // k1, k1)).permute(1, 0, 2)


def shared_pieces(rows, depth, k1, dtype):
    """Allocate a tile in shared memory as (K0, M, K1), with one extra K1 after each K0."""
    layout = tw.Layout((depth // k1, rows, k1), ((rows + 1) * k1, k1, 1))
    return tw.shared(layout.shape, dtype, layout=layout)


def rows_of(shared):
    """View (K0, M, K1) as (M, K), the form that `tw.mma` takes."""
    return shared.permute(1, 0, 2).merge(1)


@tw.kernel(A="M K", B="N K", C="M N")
def optimized_gemm(A, B, C, *, tile, threads, mma, vector, k1):
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sA = shared_pieces(tile_m, tile_k, k1, A.dtype)
    sB = shared_pieces(tile_n, tile_k, k1, B.dtype)
    sC = tw.shared((tile_m, tile_n), C.dtype)
    acc = tw.accumulator(mma)

    rA = tw.load(pieces(A.tile((tile_m, tile_k), (m, 0)), k1).partition(threads), vector=vector)
    rB = tw.load(pieces(B.tile((tile_n, tile_k), (n, 0)), k1).partition(threads), vector=vector)
    tw.copy(rA, sA)
    tw.copy(rB, sB)
    tw.barrier()
    for k in tw.range(1, tw.ceil_div(A.shape[1], tile_k), provenance="mainloop"):
        tw.copy(pieces(A.tile((tile_m, tile_k), (m, k)), k1), rA, vector=vector)
        tw.copy(pieces(B.tile((tile_n, tile_k), (n, k)), k1), rB, vector=vector)
        tw.mma(rows_of(sA), rows_of(sB), acc)
        tw.barrier()  # every warp has read the tile that is overwritten below
        tw.copy(rA, sA)
        tw.copy(rB, sB)
        tw.barrier()
    tw.mma(rows_of(sA), rows_of(sB), acc)

    tw.copy(acc, sC)
    tw.barrier()
    tw.copy(sC, C.tile((tile_m, tile_n), (m, n)), threads=mma.threads)


# Threads run along K0 first: four of them read 64 consecutive bytes, and write to different banks.
LARGE = optimized_gemm.bind(
    tile=(256, 128, 32),
    threads=tw.Layout((4, 64, 1), (1, 4, 1)),
    mma=tw.TiledMma(tw.atoms.MMA_F16, tile=(256, 128), warps=(4, 2)),
    vector=8,
    k1=8,
)
SHAPES = {"cuda": (3840, 4096, 4096), "cpu": (1280, 1024, 1024), "reference": (256, 128, 96)}
SMALL = {"cuda": (512, 384, 320), "cpu": (512, 384, 320), "reference": (256, 128, 64)}

PADDED = (129, 129, 67)
ATOMS = {tw.f32: tw.atoms.fma(tw.f32), tw.f16: tw.atoms.MMA_F16, tw.i8: tw.atoms.MMA_I8}


def padded(atom):
    """Bind the kernel for rows of any alignment: threads access global memory one element at a time."""
    mma = tw.TiledMma(atom, tile=(64, 64), warps=(2, 2))
    k1 = 16 // atom.a_dtype.bytes
    return optimized_gemm.bind(tile=(64, 64, 32), threads=128, mma=mma, vector=1, k1=k1)


def main():
    asked = tw.testing.parse_args(__doc__, SHAPES, SMALL, "M N K")
    print(tw.testing.run_gemm(LARGE, tw.f16, asked.shape, asked.target, **asked.how))
    for dtype, atom in ATOMS.items():
        print(tw.testing.run_gemm(padded(atom), dtype, PADDED, asked.target, **asked.how))


if __name__ == "__main__":
    main()
