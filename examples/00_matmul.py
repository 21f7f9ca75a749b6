"""Multiply two NumPy arrays, time two calls, and verify the result.

    python examples/00_matmul.py [--small]

The first call traces, checks and compiles the kernel.  The second call, with arrays of the same kind, only
launches it.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import tilewright as tw


def main():
    n = 192 if "--small" in sys.argv else 1024
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, n, n), np.float32)
    c = np.empty((n, n), np.float32)
    for call in ("first", "second"):
        begin = time.perf_counter()
        tw.matmul(a, b, c)
        print(f"{call} call: {1e3 * (time.perf_counter() - begin):.2f} ms")
    print(tw.testing.compare_gemm(a, b, c))


if __name__ == "__main__":
    main()
