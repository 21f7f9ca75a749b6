"""Step 1 of 6: a GEMM in eight lines.

    python docs/tutorial/step1_eight_lines.py [--small]

Share of cuBLAS on an H200 (bf16): 1.01 at 4096³.

The kernel below computes C = silu(A Bᵀ + bias), and says nothing else.  It names no threads, no shared
memory and no size of a tile.  Read it as NumPy on parts of arrays:

- `for m, n in tw.tiles(C)` goes over the tiles of the result.  `m` is a run of rows, `n` a run of columns;
  how long they are is not the kernel's business.
- `for k in tw.steps(K)` goes along the dimension that is summed, in steps of any length.
- `A[m, k] @ B[n, k].T` is a product of two parts.  `acc` is the sum of these products over all steps, in
  f32.
- `acc + bias[n]` broadcasts as in NumPy: `bias[n]` is a row that is added to every row of the tile.
- `C[m, n] = ...` rounds once to the dtype of C, and stores.

The body runs once, when the kernel first meets arrays of some kind, and what it does is recorded as a small
graph: the *flow*.  It prints, and it has a meaning in NumPy, `tw.ir.evaluate`, that no machine and no size
of a tile enters.  This program compares the result with it.

How the flow is computed is a value as well, a `tw.Schedule`.  For the shapes of your arrays and your
machine one is chosen, and the executable that ran tells which.  Step 2 takes the choice over.
"""

from __future__ import annotations

import sys

import numpy as np

import tilewright as tw


@tw.kernel(A="M K", B="N K", bias="N", C="M N")
def linear(A, B, bias, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = tw.silu(acc + bias[n])


@tw.kernel(A="M K", B="N K", C="M N")
def product(A, B, C):
    """The same without bias and activation, which is what the shares of cuBLAS are measured with."""
    for m, n in tw.tiles(C):
        acc = tw.zeros(tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc


MEASURED = product.bind()


def main():
    m, n, k = (200, 136, 72) if "--small" in sys.argv else (1000, 1200, 800)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, k), np.float32) for rows in (m, n))
    bias, c = rng.standard_normal(n, np.float32), np.full((m, n), np.nan, np.float32)

    # The flow: one line for each value, with its dtype and the spans that it extends along.
    flow = linear.flow(a, b, bias, c)
    print(tw.ir.print_flow(flow))

    # A launch on the caller's own arrays; the first one compiles.
    executable = linear(a, b, bias, c)
    print(f"ran on {executable.target} ({executable.arch}), by\n{executable.schedule}\n")

    # The meaning of the flow, in wider numbers.  A sum of K products in f32, in whatever order, is off by at
    # most (K + 1) roundings of the sum of their magnitudes; silu makes of a difference at most 1.1 times as
    # much, and adds a few roundings of its own.
    exact = tw.ir.evaluate(flow, {"A": a, "B": b, "bias": bias})["C"]
    rounding = 2.0**-24
    magnitudes = np.abs(a).astype(np.float64) @ np.abs(b.T) + np.abs(bias)
    bound = rounding * (1.1 * (k + 2) * magnitudes + 8 * np.abs(exact))
    error = np.abs(c - exact)
    assert (error <= bound).all(), "an element is wrong"
    print(
        f"all {c.size} elements are right: largest error {error.max():.2g}, "
        f"{(error / bound).max():.2g} of its bound"
    )

    # Other arrays, the same kernel: here those that a Hopper GPU would get, which need not be there.
    arrays = [tw.like("bf16", shape) for shape in ((8192, 8192), (8192, 8192), (8192,), (8192, 8192))]
    try:
        print(f"\nfor an H200, by\n{linear.compile(*arrays, target='cuda', arch='sm_90a').schedule}")
    except tw.ToolchainError as missing:
        print(missing)


if __name__ == "__main__":
    main()
