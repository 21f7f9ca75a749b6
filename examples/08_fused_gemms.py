"""Two fused GEMMs, D = (A Bᵀ) Cᵀ: the first product stays in registers and is operand A of the second.

    python examples/08_fused_gemms.py [--small] [--target cuda|cpu|reference]

A (M, K), B (N, K), C (P, N), D (M, P).  A block loops over N in steps.  Each step computes a tile of A Bᵀ
over all of K, rounds it to the inputs' dtype, and multiplies it by the step's tile of C.  Elements past the
edges are 0.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.testing import device_get, device_put, do_bench


@tw.kernel(A="M K", B="N K", C="P N", D="M P")
def fused_gemms(A, B, C, D, *, tile, atom, warps):
    tw.require(A.shape[1] > 0, "K is 0, and so is D")
    tile_m, tile_n, tile_k, tile_p = tile
    rows, columns, _ = atom.shape
    first, second = (
        tw.TiledMma(atom, (warps, 1), (tile_m // rows // warps, n // columns)) for n in (tile_n, tile_p)
    )
    m, p = tw.block_index(tw.ceil_div(D.shape, (tile_m, tile_p)))
    sA = tw.shared((2, tile_m, tile_k), A.dtype)
    sB = tw.shared((2, tile_n, tile_k), B.dtype)
    sC = tw.shared((tile_p, tile_n), C.dtype)
    # mma.sync's accumulator has the thread layout of operand A; other atoms exchange through memory.
    scratch = None if atom.instruction == "mma.sync" else tw.shared((tile_m, tile_n), A.dtype)
    steps = tw.ceil_div(A.shape[1], tile_k)

    def fetch(source, target, at):
        tw.copy_async(source.tile(target.shape, at), target, threads=first.threads)

    acc = tw.accumulator(second)
    for n in tw.range(tw.ceil_div(B.shape[0], tile_n), provenance="mainloop"):
        fetch(C, sC, (p, n))
        fetch(A, sA[0], (m, 0))
        fetch(B, sB[0], (n, 0))
        tw.async_commit()
        product = tw.accumulator(first)
        for k in tw.range(steps):
            tw.async_wait(0)
            tw.barrier()  # all threads see tile k, and have read tile k - 1
            with tw.when(k + 1 < steps):
                fetch(A, sA[(k + 1) % 2], (m, k + 1))
                fetch(B, sB[(k + 1) % 2], (n, k + 1))
            tw.async_commit()
            tw.mma(sA[k % 2], sB[k % 2], product)
        operand = tw.redistribute(product.to(A.dtype), tw.operand_a(second, tile_n), scratch=scratch)
        tw.mma(operand, sC, acc)
        tw.barrier()  # all threads have read the tiles; the next step may overwrite them
    tw.copy(acc, D.tile((tile_m, tile_p), (m, p)))


ATOMS = {"f16": tw.atoms.MMA_F16, "bf16": tw.atoms.MMA_BF16}


def bound(dtype):
    """Bind the kernel for a dtype."""
    return fused_gemms.bind(tile=(64, 64, 32, 128), atom=ATOMS[str(tw.dtype(dtype))], warps=4)


SHAPES = {"cuda": (4096, 512, 512, 512), "cpu": (1024, 256, 256, 256), "reference": (130, 72, 56, 136)}
SMALL = {"cuda": (500, 200, 136, 264), "cpu": (150, 72, 56, 136), "reference": (70, 72, 40, 130)}


def attempt(target, shape, dtype):
    """Run small integers, whose sums are exact; verify every element; print the time."""
    m, n, k, p = shape
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-2, 3, extents).astype(dtype.numpy) for extents in ((m, k), (n, k), (p, n)))
    arrays = [device_put(x, target) for x in (a, b, c, np.full((m, p), np.nan, np.float32))]
    kernel = bound(dtype)
    ran = kernel(*arrays, target=target).target
    assert ran == target, f"{ran} ran instead of {target}"
    product = (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float32).astype(dtype.numpy)
    wrong = device_get(arrays[3]) != product.astype(np.float64) @ c.astype(np.float64).T
    assert not wrong.any(), f"{wrong.sum()} elements are wrong"
    name = f"fused_gemms<{target}, {dtype} {'x'.join(map(str, shape))}>: correct"
    if target != "reference":  # the reference checks thread by thread; its time means nothing
        ms = do_bench(lambda: kernel(*arrays, target=target), target)
        name += f"; {2 * m * n * (k + p) / ms / 1e6:.0f} Gflop/s"
    print(name)


def main():
    asked = tw.testing.parse_args(__doc__, SHAPES, SMALL)
    for dtype in (tw.f16, tw.bf16):
        attempt(asked.target, asked.shape, dtype)


if __name__ == "__main__":
    main()
