"""Complex numbers: one kernel for both parts, as a dataflow kernel and by `tw.complex_matmul`.

    python examples/14_complex_matmul.py [--small] [--target cuda|cpu|reference]

The signals of sensors, y = steering @ sources, and what beams make of them: powers of conj(weights).T @ y.
The numbers are complex64, whose real and imaginary parts lie side by side, and planes of real numbers; each
element is compared with NumPy's complex128.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.testing import device_get, device_put, do_bench, parse_args

SHAPES = {"cuda": (512, 4096, 256), "cpu": (128, 1000, 64), "reference": (16, 40, 24)}
SMALL = {"cuda": (64, 200, 48), "cpu": (32, 60, 24), "reference": (8, 20, 12)}


@tw.kernel(Ar="M K", Ai="M K", Br="K N", Bi="K N", Cr="M N", Ci="M N")
def planar(Ar, Ai, Br, Bi, Cr, Ci):
    """Real and imaginary parts as arrays of their own: operands are loaded once, for two products each."""
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
    """Each element is off by less than rounding explains: of 2 K products in f32."""
    exact = a.astype(np.complex128) @ b.astype(np.complex128)
    bound = 8 * np.sqrt(2 * a.shape[1]) * 2.0**-24 * (np.abs(a) @ np.abs(b)) + 2.0**-23 * np.abs(exact)
    off = np.abs(result - exact)
    assert (off <= bound).all(), f"an element is off by {off.max()}"


def normal(rng, *shape):
    return rng.standard_normal((*shape, 2), np.float32).view(np.complex64)[..., 0]


def main():
    asked = parse_args(__doc__, SHAPES, SMALL)
    (sensors, times, beams), target = asked.shape, asked.target
    rng = np.random.default_rng(0)
    steering, sources = normal(rng, sensors, beams) / np.float32(np.sqrt(sensors)), normal(rng, beams, times)
    A, B = device_put(steering, target), device_put(sources, target)
    Y = device_put(np.full((sensors, times), np.nan, np.complex64), target)

    def measured():
        return tw.complex_matmul(A, B, out=Y, target=target)

    measured()
    y = device_get(Y)
    check(y, steering, sources)
    print(f"complex_matmul<{target}, c64>: all {sensors} x {times} signals are right")

    parts = [np.ascontiguousarray(part) for x in (steering, sources) for part in (x.real, x.imag)]
    made = [device_put(np.full((sensors, times), np.nan, np.float32), target) for _ in range(2)]
    given = [device_put(part, target) for part in parts]
    assert planar(*given, *made, target=target).target == target
    check(device_get(made[0]) + 1j * device_get(made[1]), steering, sources)
    print(f"planar<{target}, f32>: the same of planes, by a dataflow kernel")

    three = device_put(np.full((sensors, times), np.nan, np.complex64), target)
    tw.complex_matmul(A, B, out=three, method="3m", target=target)
    check(device_get(three), steering, sources)
    print("3m: the same by three real products in place of four")

    # A transpose is other strides, a conjugate another sign of a product: nothing is copied.
    Z = device_put(np.full((beams, times), np.nan, np.complex64), target)
    tw.complex_matmul(A.T, Y, out=Z, conjugate_a=True, target=target)
    z = device_get(Z)
    check(z, steering.conj().T, y)
    power = np.mean(np.abs(z) ** 2, axis=1)
    print(f"beams: all {beams} x {times} are right; power of the strongest {power.max():.3f}")
    if target != "reference":
        ms = do_bench(measured, target)
        print(
            f"Perf: {ms:.4f} ms, {8e-9 * sensors * times * beams / ms:.3f} TFlops, complex_matmul<{target}>"
        )


if __name__ == "__main__":
    main()
