"""A GEMM through all three memories, C = A Bᵀ, at three levels; each overlaps more than the one before.

    python examples/07_three_levels_gemm.py [--small] [--target cuda|cpu|reference] [verify init time [M N K]]

serial      copies a tile, multiplies it, and only then copies the next one
buffered    has two stages in shared memory, and copies the next tile while it multiplies this one
prefetched  has a ring of stages, filled asynchronously, and two sets of registers: while it multiplies one
            slice of K, it loads the next one from shared memory

Elements past the edges of A and B are 0, so no level needs a special case for the last tile.
"""

from __future__ import annotations

import tilewright as tw


class Operand:
    """A or B for one block: its tiles along K, their stages in shared memory, and the slices that warps load.

    Args:
        source: array (rows, K) in global memory.
        at: index of the tile along the rows.
        tile: extents of a tile (rows, k).
        stages: number of tiles that shared memory holds.
        part: distribution over the warps of a slice, the part of a tile that is multiplied at once.
    """

    def __init__(self, source, at, tile, stages, part):
        self.tiles = source.tiles(tile)[at, :]
        self.shared = tw.shared((stages, *tile), source.dtype, name=f"s{source.value.name}")
        self.part, self.stages = part, stages

    def copy(self, k):
        """Copy tile ``k`` to its stage."""
        tw.copy(self.tiles[k], self.shared[k % self.stages])

    def start(self, k):
        """Start copying tile ``k`` to its stage."""
        tw.copy_async(self.tiles[k], self.shared[k % self.stages])

    def slice(self, k, s):
        """Return slice ``s`` of tile ``k``, in shared memory."""
        return self.shared[k % self.stages].tiles(self.part.shape)[0, s]


def begin(A, B, C, tile, mma, stages):
    """Return this block's tile of C, its operands, the number of tiles along K, and of slices in a tile."""
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    depth = mma.tile[2]
    a = Operand(A, m, (tile_m, tile_k), stages, tw.operand_a(mma, depth))
    b = Operand(B, n, (tile_n, tile_k), stages, tw.operand_b(mma, depth))
    return C.tile((tile_m, tile_n), (m, n)), a, b, a.tiles.shape[0], tile_k // depth


def multiply(a, b, acc, k, slices):
    """Multiply all slices of tile ``k``, one after the other."""
    for s in tw.unroll(slices):
        rA = tw.load(a.slice(k, s), a.part)
        rB = tw.load(b.slice(k, s), b.part)
        tw.mma(rA, rB, acc)


@tw.kernel(A="M K", B="N K", C="M N")
def serial(A, B, C, *, tile, mma):
    out, a, b, count, slices = begin(A, B, C, tile, mma, stages=1)
    acc = tw.accumulator(mma)
    for k in tw.range(count, provenance="mainloop"):
        a.copy(k)
        b.copy(k)
        tw.barrier()
        multiply(a, b, acc, k, slices)
        tw.barrier()  # all threads have read the stage; the next tile may overwrite it
    tw.copy(acc, out)


@tw.kernel(A="M K", B="N K", C="M N")
def buffered(A, B, C, *, tile, mma):
    out, a, b, count, slices = begin(A, B, C, tile, mma, stages=2)
    acc = tw.accumulator(mma)
    a.start(0)
    b.start(0)
    tw.async_commit()
    for k in tw.range(count, provenance="mainloop"):
        tw.async_wait(0)
        tw.barrier()  # all threads see tile k, and have read tile k - 1
        a.start(k + 1)
        b.start(k + 1)
        tw.async_commit()
        multiply(a, b, acc, k, slices)
    tw.copy(acc, out)


@tw.kernel(A="M K", B="N K", C="M N")
def prefetched(A, B, C, *, tile, mma, stages):
    out, a, b, count, slices = begin(A, B, C, tile, mma, stages)
    assert slices % 2 == 0, "two sets of registers take turns: a tile has an even number of slices"
    rA = [tw.fragment(a.part, A.dtype, name="rA") for _ in range(2)]
    rB = [tw.fragment(b.part, B.dtype, name="rB") for _ in range(2)]
    acc = tw.accumulator(mma)
    for k in tw.unroll(stages - 1):
        a.start(k)
        b.start(k)
        tw.async_commit()
    tw.async_wait(stages - 2)
    tw.barrier()
    tw.copy(a.slice(0, 0), rA[0])
    tw.copy(b.slice(0, 0), rB[0])
    for k in tw.range(count, provenance="mainloop"):
        for s in tw.unroll(slices):
            if s == slices - 1:
                tw.async_wait(stages - 2)
                tw.barrier()  # all threads see tile k + 1, and have read tile k
            after = s + 1
            tw.copy(a.slice(k + after // slices, after % slices), rA[after % 2])
            tw.copy(b.slice(k + after // slices, after % slices), rB[after % 2])
            if s == 0:
                a.start(k + stages - 1)
                b.start(k + stages - 1)
                tw.async_commit()
            tw.mma(rA[s % 2], rB[s % 2], acc)
    tw.copy(acc, out)


def bind(level, dtype=tw.f16, *, tile=(128, 128, 32), warps=(2, 2), stages=4):
    """Bind a level to a tile; by default each of 2 x 2 warps multiplies 64 x 64 of 128 x 128."""
    mma = tw.TiledMma(tw.atoms.TENSOR_CORE[dtype.name], warps, tile=tile[:2])
    more = {"stages": stages} if level is prefetched else {}
    return level.bind(tile=tile, mma=mma, **more)


LEVELS = (serial, buffered, prefetched)
SHAPES = {"cuda": (3840, 4096, 4096), "cpu": (1280, 1024, 1024), "reference": (256, 128, 96)}
SMALL = {"cuda": (512, 384, 320), "cpu": (512, 384, 320), "reference": (256, 128, 64)}
RAGGED = (129, 129, 67)


def main():
    asked = tw.testing.parse_args(__doc__, SHAPES, SMALL, "M N K")
    for level in LEVELS:
        for dtype, shape in ((tw.f16, asked.shape), (tw.bf16, RAGGED)):
            print(tw.testing.run_gemm(bind(level, dtype), dtype, shape, asked.target, **asked.how))


if __name__ == "__main__":
    main()
