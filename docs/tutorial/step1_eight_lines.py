"""Step 1 of 6: a GEMM in eight lines.

    python docs/tutorial/step1_eight_lines.py [--small]

Share of cuBLAS on an H200 (bf16): 1.01 at 4096³.

The kernel below computes C = silu(A Bᵀ + bias).  It names no threads, no shared memory and no tile size.
Read it as NumPy on parts of arrays:

- `for m, n in tw.tiles(C)` iterates over the tiles of the result.  `m` is a range of rows, `n` a range of
  columns.  The schedule sets their lengths, not the kernel.
- `for k in tw.steps(K)` iterates over the summed dimension, in steps of any length.
- `A[m, k] @ B[n, k].T` multiplies two tiles.  `acc` adds these products over all steps, in f32.
- `acc + bias[n]` broadcasts as in NumPy: it adds the row `bias[n]` to every row of the tile.
- `C[m, n] = ...` rounds once to the dtype of C, and stores.

The body runs once, on the first call with a new class of arguments.  Tracing records its operations as a
small graph: the *flow*.  You can print a flow.  `tw.ir.evaluate` computes it in NumPy, independently of
machine and tile size.  This program compares the kernel's result with the result of `tw.ir.evaluate`.

A `tw.Schedule` says how the hardware computes the flow.  The library chooses one for the shapes of your
arrays and your machine.  A launch returns an executable, whose `schedule` is this choice.  In step 2 you pass
a schedule yourself.
"""

from __future__ import annotations

import sys

import numpy as np

import tilewright as tw


@tw.kernel(A="M K", B="N K", bias="N", C="M N")
def linear(A, B, bias, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = tw.silu(acc + bias[n])


@tw.kernel(A="M K", B="N K", C="M N")
def product(A, B, C):
    """The same without bias and activation; the benchmark compares this kernel with cuBLAS."""
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc


MEASURED = product.bind()


def main():
    m, n, k = (200, 136, 72) if "--small" in sys.argv else (1000, 1200, 800)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, k), np.float32) for rows in (m, n))
    bias, c = rng.standard_normal(n, np.float32), np.full((m, n), np.nan, np.float32)

    # Print the flow: one line for each value, with its dtype and its axes.
    flow = linear.flow(a, b, bias, c)
    print(tw.ir.print_flow(flow))

    # Launch on the caller's own arrays; the first launch compiles.
    executable = linear(a, b, bias, c)
    print(f"ran on {executable.target} ({executable.arch}), by\n{executable.schedule}\n")

    # Evaluate the flow in wider numbers.  A sum of K products in f32, in any order, is off by at most
    # (K + 1) roundings of the sum of the magnitudes.  silu scales this error by at most 1.1, and adds a few
    # roundings of its own.
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

    # Compile the same kernel for the arrays of a Hopper GPU, which this machine need not have.
    arrays = [tw.like("bf16", shape) for shape in ((8192, 8192), (8192, 8192), (8192,), (8192, 8192))]
    try:
        print(f"\nfor an H200, by\n{linear.compile(*arrays, target='cuda', arch='sm_90a').schedule}")
    except tw.ToolchainError as missing:
        print(missing)


if __name__ == "__main__":
    main()
