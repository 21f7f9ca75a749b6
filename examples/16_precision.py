"""Products of f32 at each precision grade: their errors and their times.

    python examples/16_precision.py [--small] [--target cuda|cpu|reference]

"exact" multiplies the numbers as they are.  "f32" multiplies two halves of 11 bits each on tensor cores, and
is as accurate as a sum in f32.  "tf32" and "f16" multiply 11 bits.  Rows of A differ by powers of 2 up to
2**40, because every grade keeps the range of f32.  If a target has no matrix units for a grade, it computes a
more accurate one.  Each element is compared with float64 under the bound of docs/precision.md.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.testing import device_get, device_put, do_bench, parse_args

SHAPES = {"cuda": (2048, 2048, 2048), "cpu": (384, 384, 384), "reference": (48, 40, 64)}
SMALL = {"cuda": (700, 700, 700), "cpu": (65, 70, 130), "reference": (20, 24, 40)}
GRADES = {"exact": 2.0**-24, "f32": 12 * 2.0**-24, "tf32": 2.0**-10, "f16": 2.0**-10}
"""Largest relative error of a product, without the error of sums."""


def room(a, b, grade):
    """Return the error bound of each element: for products, for sums, and relative to the rows' maxima."""
    sizes, depth = np.abs(a).astype(float) @ np.abs(b).astype(float), a.shape[1]
    sums = 2 * (depth + 1) * 2.0**-24 * sizes
    largest = np.abs(a).max(1, keepdims=True) * np.abs(b).sum(0, keepdims=True, dtype=float)
    largest += np.abs(b).max(0, keepdims=True) * np.abs(a).sum(1, keepdims=True, dtype=float)
    return GRADES[grade] * sizes + sums + (2.0**-38 if grade == "f32" else 2.0**-25) * largest


def main():
    asked = parse_args(__doc__, SHAPES, SMALL)
    (m, n, k), target = asked.shape, asked.target
    rng = np.random.default_rng(0)
    a = (rng.standard_normal((m, k)) * np.exp2(rng.integers(-40, 1, (m, 1)))).astype(np.float32)
    b = rng.standard_normal((k, n)).astype(np.float32)
    exact, sizes = a.astype(float) @ b.astype(float), np.abs(a).astype(float) @ np.abs(b).astype(float)
    A, B = device_put(a, target), device_put(b, target)
    for grade in GRADES:
        C = device_put(np.full((m, n), np.nan, np.float32), target)
        tw.matmul(A, B, out=C, precision=grade, target=target)
        off = np.abs(device_get(C) - exact)
        assert (off <= room(a, b, grade)).all(), f"{grade}: an element is off by {off.max()}"
        text = (
            f"{grade:5}: all {m} x {n} are right; the largest error is {(off / sizes).max():.1e} of its sum"
        )
        if target != "reference":
            ms = do_bench(
                lambda C=C, grade=grade: tw.matmul(A, B, out=C, precision=grade, target=target), target
            )
            text += f"; {ms:.3f} ms, {2e-9 * m * n * k / ms:.3f} TFlops"
        print(f"matmul<{target}, f32>, {text}")


if __name__ == "__main__":
    main()
