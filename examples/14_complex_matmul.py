"""Complex products in one kernel for both parts: by `tw.complex_matmul`, and by a dataflow kernel.

    python examples/14_complex_matmul.py [--small] [--target cuda|cpu|reference] [verify init time [M N K]]

The program computes the signals of M sensors at N times, y = steering @ sources, and the beams of K sources,
z = conj(steering).T @ y: first in complex64, with interleaved real and imaginary parts, then in planes of
real numbers. The three numbers are those of Composable Kernel's `cgemm_xdl`; the default is `1 2 1`. verify:
compare each element with NumPy's complex128 (0 or 1); init: fill the matrices with integers (1) or random
numbers (2); time: measure the time of the product (0 or 1).
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.testing import device_get, device_put, do_bench, parse_args

SHAPES = {"cuda": (512, 4096, 256), "cpu": (128, 1000, 64), "reference": (16, 40, 24)}
SMALL = {"cuda": (64, 200, 48), "cpu": (32, 60, 24), "reference": (8, 20, 12)}


@tw.kernel(Ar="M K", Ai="M K", Br="K N", Bi="K N", Cr="M N", Ci="M N")
def planar(Ar, Ai, Br, Bi, Cr, Ci):
    """Multiply matrices in planes; each operand tile is loaded once, for two products."""
    for m, n in tw.tiles(Cr):
        re, im = tw.zeros(), tw.zeros()
        for k in tw.steps(Ar.shape[1]):
            re += Ar[m, k] @ Br[k, n]
            re -= Ai[m, k] @ Bi[k, n]
            im += Ar[m, k] @ Bi[k, n]
            im += Ai[m, k] @ Br[k, n]
        Cr[m, n] = re
        Ci[m, n] = im


def check(result, a, b):
    """Assert that each error is within the roundings of 2 K products in f32."""
    exact = a.astype(np.complex128) @ b.astype(np.complex128)
    bound = 8 * np.sqrt(2 * a.shape[1]) * 2.0**-24 * (np.abs(a) @ np.abs(b)) + 2.0**-23 * np.abs(exact)
    off = np.abs(result - exact)
    assert (off <= bound).all(), f"an element is off by {off.max()}"


def drawn(rng, init, *shape):
    """Draw complex numbers: their parts are integers from -4 to 4, or normally distributed."""
    whole = init == "integers"
    parts = rng.integers(-4, 5, (*shape, 2)) if whole else rng.standard_normal((*shape, 2))
    return parts.astype(np.float32).view(np.complex64)[..., 0]


def main():
    asked = parse_args(__doc__, SHAPES, SMALL, "M N K")
    (sensors, times, beams), target, how = asked.shape, asked.target, asked.how
    rng = np.random.default_rng(0)
    steering, sources = drawn(rng, how["init"], sensors, beams), drawn(rng, how["init"], beams, times)
    A, B = device_put(steering, target), device_put(sources, target)
    Y = device_put(np.full((sensors, times), np.nan, np.complex64), target)

    def measured():
        return tw.complex_matmul(A, B, out=Y, target=target)

    def verify(message, result, a, b):
        if how["verify"]:
            check(result, a, b)
            print(message)

    measured()
    y = device_get(Y)
    signals = f"all {sensors} x {times} signals are right"
    verify(f"complex_matmul<{target}, c64>: {signals}", y, steering, sources)

    parts = [np.ascontiguousarray(part) for x in (steering, sources) for part in (x.real, x.imag)]
    made = [device_put(np.full((sensors, times), np.nan, np.float32), target) for _ in range(2)]
    given = [device_put(part, target) for part in parts]
    assert planar(*given, *made, target=target).target == target
    planes = device_get(made[0]) + 1j * device_get(made[1])
    verify(f"planar<{target}, f32>: {signals}, in planes, by a dataflow kernel", planes, steering, sources)

    three = device_put(np.full((sensors, times), np.nan, np.complex64), target)
    tw.complex_matmul(A, B, out=three, method="3m", target=target)
    verify(f"3m: {signals}, by three real products instead of four", device_get(three), steering, sources)

    # A transpose only changes strides, and a conjugate only a sign; nothing is copied.
    Z = device_put(np.full((beams, times), np.nan, np.complex64), target)
    tw.complex_matmul(A.T, Y, out=Z, conjugate_a=True, target=target)
    z = device_get(Z)
    power = np.mean(np.abs(z) ** 2, axis=1)
    strongest = f"power of the strongest {power.max():.3f}"
    verify(f"beams: all {beams} x {times} are right; {strongest}", z, steering.conj().T, y)
    if how["time"] and target != "reference":
        ms = do_bench(measured, target)
        print(
            f"Perf: {ms:.4f} ms, {8e-9 * sensors * times * beams / ms:.3f} TFlops, complex_matmul<{target}>"
        )


if __name__ == "__main__":
    main()
