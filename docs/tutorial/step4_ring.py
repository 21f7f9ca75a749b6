"""Step 4 of 6: copies that overlap the multiplications.

    python docs/tutorial/step4_ring.py [--small]

Share of cuBLAS on an H200 (bf16): 0.51 at 4096³.

Shared memory now holds several tiles of A and B, a *ring* of stages.  `tw.copy_async` starts a copy and does
not wait for it (`cp.async` on a GPU).  While the kernel multiplies tile k, the copies of tiles k + 1, k + 2
and k + 3 are in flight.

Without `sync="auto"` a ring needs three more kinds of lines.  `tw.async_commit` closes a group of copies.
`tw.async_wait(n)` makes a thread wait until at most n of its groups are unfinished.  A barrier then makes the
copied data visible to all threads.  The number n is easily off by one, and the result is then still right
most of the time.  With `sync="auto"` the library places all three; `tilewright inspect --passes` lists them
with the reasons.

The kernel fills the ring before the loop.  The last iterations load tiles beyond the end of K.  These tiles
are all zeros, and no iteration multiplies them.  Loading them costs little.

The eight lines of step 2, under `staging="cp_async"`, become this kernel: this program asserts that both
have the same groups, waits and barriers.
"""

from __future__ import annotations

import sys

import tilewright as tw


@tw.kernel(A="M K", B="N K", C="M N", sync="auto")
def ring_gemm(A, B, C, *, tile, mma, stages):
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sA = tw.shared((stages, tile_m, tile_k), A.dtype)
    sB = tw.shared((stages, tile_n, tile_k), B.dtype)
    acc = tw.accumulator(mma)

    def load(k):
        tw.copy_async(A.tile((tile_m, tile_k), (m, k)), sA[k % stages])
        tw.copy_async(B.tile((tile_n, tile_k), (n, k)), sB[k % stages])

    for k in tw.unroll(stages - 1):
        load(k)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        load(k + stages - 1)
        tw.mma(sA[k % stages], sB[k % stages], acc)
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


@tw.kernel(A="M K", B="N K", C="M N")
def product(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc


def bind(tile, warps, stages):
    """Bind the kernel to a tile that a grid of ``warps`` computes."""
    mma = tw.TiledMma(tw.atoms.MMA_BF16, tile=tile[:2], warps=warps)
    return ring_gemm.bind(tile=tile, mma=mma, stages=stages)


MEASURED = bind((128, 128, 32), (2, 2), 4)


def ordering(bound):
    """Return the operations that order a kernel's memory accesses, in program order."""
    text = tw.ir.print_kernel(bound.trace(*[tw.like("bf16", (512, 512))] * 3, target="cuda", arch="sm_80"))
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line.startswith(("async_commit", "async_wait", "barrier"))]


def main():
    schedule = tw.Schedule(tw.atoms.MMA_BF16, (128, 128, 32), warps=(2, 2), stages=4, staging="cp_async")
    expanded = ordering(product.bind(schedule=schedule))
    print("placed:", ", ".join(expanded))
    assert ordering(MEASURED) == expanded

    small = bind((32, 32, 32), (2, 2), 3)
    made = tw.testing.operands("integers", tw.bf16, (40, 72, 200), layout="nt")
    trial = tw.testing.Trial(small, made, "reference", tw.atoms.MMA_BF16, "40x72x200")
    trial.run()
    trial.verify().raise_if_wrong()
    report = small.check(made.a, made.b.T, trial.result())
    print(report)
    assert report.is_clean

    target = "cuda" if tw.device_count() else "cpu"
    shape = (
        (256, 384, 320) if "--small" in sys.argv else (4096, 4096, 4096) if target == "cuda" else (1024,) * 3
    )
    print(tw.testing.run_gemm(MEASURED, tw.bf16, shape, target))


if __name__ == "__main__":
    main()
