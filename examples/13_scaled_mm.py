"""A layer with 8-bit weights, y = silu(s * (x W) + b): the kernel widens them while it loads them.

    python examples/13_scaled_mm.py [--small] [--target cuda|cpu|reference]

A layer's weights are stored as fp8 or i8, with a scale for each output.  The kernel reads them from memory in
8 bits; on Hopper, TMA loads them and threads widen them in registers.  The layer is computed twice, by the
dataflow kernel below and by `tw.scaled_mm`; both give the same numbers.  The program prints the error that is
due to rounding the weights, and the bytes that the weights take.

Two more products follow: by 4-bit weights, with a scale for 32 neighbours along K, and of fp8 by fp8, with a
scale for each block of 128 elements along K, as in fp8 training.
"""

from __future__ import annotations

import argparse

import numpy as np

import tilewright as tw

SHAPES = {"cuda": (16, 14336, 4096), "cpu": (16, 1024, 1024), "reference": (8, 64, 160)}
SMALL = {"cuda": (16, 512, 1024), "cpu": (16, 256, 512), "reference": (8, 32, 64)}
GROUP, BLOCK = 32, 128
LARGEST = {"f8e4m3": 448.0, "f8e5m2": 57344.0, "i8": 127.0}


@tw.kernel(X="M K", W="K N", scale="N", bias="N", Y="M N")
def layer(X, W, scale, bias, Y):
    for m, n in tw.tiles(Y):
        acc = tw.zeros()
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[k, n].to(X.dtype)
        Y[m, n] = tw.silu(acc * scale[n] + bias[n])


def quantised(weights, kind):
    """Return weights (K, N) in 8 bits, and scales that map each column's maximum to the format's maximum."""
    scale = (np.abs(weights).max(axis=0) / LARGEST[kind]).astype(np.float32)
    narrow = weights / scale
    return (np.rint(narrow) if kind == "i8" else narrow).astype(tw.dtype(kind).numpy), scale


def in_groups(x, weights, target):
    """Multiply by 4-bit weights in groups; return the result, the operands in f64, and the weights' bytes."""
    k, n = weights.shape
    groups = weights.reshape(k // GROUP, GROUP, n)
    scale = (np.abs(groups).max(axis=1) / 7).astype(np.float16)
    codes = np.rint(groups / scale[:, None]).clip(-8, 7).astype(np.int8).reshape(k, n)
    bits = tw.testing.device_put(tw.pack(codes.T, tw.i4), target)
    given = [tw.testing.device_put(array, target) for array in (x, scale)]
    out = tw.testing.device_put(np.full((len(x), n), np.nan, np.float16), target)
    tw.scaled_mm(given[0], tw.packed(bits.T, tw.i4), out, scale_b=given[1], group=GROUP, target=target)
    meant = codes * scale.astype(np.float64).repeat(GROUP, axis=0)
    return tw.testing.device_get(out), x.astype(np.float64), meant, bits.nbytes + scale.nbytes


def by_blocks(x, weights, target):
    """Multiply fp8 by fp8, with a scale for each row and block of x, and each square block of weights."""
    k, n = weights.shape
    at_k, at_n = range(0, k, BLOCK), range(0, n, BLOCK)
    largest = LARGEST["f8e4m3"]
    left = (np.maximum.reduceat(np.abs(x), at_k, axis=1) / largest).astype(np.float32)
    right = np.maximum.reduceat(np.maximum.reduceat(np.abs(weights), at_k, axis=0), at_n, axis=1)
    right = (right / largest).astype(np.float32)
    of_x, of_w = left.repeat(BLOCK, 1)[:, :k], right.repeat(BLOCK, 0)[:k].repeat(BLOCK, 1)[:, :n]
    narrow = [(x / of_x).astype(tw.f8e4m3.numpy), np.asfortranarray(weights / of_w).astype(tw.f8e4m3.numpy)]
    given = [tw.testing.device_put(array, target) for array in (*narrow, left, right)]
    out = tw.testing.device_put(np.full((len(x), n), np.nan, np.float32), target)
    tw.scaled_mm(*given[:2], out, scale_a=given[2], scale_b=given[3], target=target)
    wide = narrow[0] * of_x.astype(np.float64), narrow[1] * of_w.astype(np.float64)
    return tw.testing.device_get(out), *wide, narrow[1].nbytes + right.nbytes


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="a small layer")
    there = "cuda" if tw.device_count() else "cpu"
    parser.add_argument("--target", choices=SHAPES, default=there, help=f"default here: {there}")
    asked = parser.parse_args()
    target = asked.target
    m, n, k = (SMALL if asked.small else SHAPES)[target]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((m, k)).astype(np.float16)
    weights = rng.standard_normal((n, k)).astype(np.float32).T / np.sqrt(k)
    bias = rng.standard_normal(n).astype(np.float32)
    exact = x.astype(np.float64) @ weights + bias
    exact = exact / (1 + np.exp(-exact))
    print(f"{m} rows of {k}, {n} outputs, on {target}; weights of f16 take {2 * n * k / 1e6:.3g} MB")
    for kind in LARGEST:
        narrow, scale = quantised(weights, kind)
        given = [tw.testing.device_put(array, target) for array in (x, narrow, scale, bias)]
        y, same = (tw.testing.device_put(np.full((m, n), np.nan, np.float16), target) for _ in range(2))
        ran = layer(*given, y, target=target)
        assert ran.target == target
        words = {"bias": given[3], "activation": "silu", "target": target}
        made = tw.scaled_mm(*given[:2], same, scale_b=given[2], **words)
        y, made = (tw.testing.device_get(array).astype(np.float64) for array in (y, made))
        assert np.abs(y - made).max() <= 2.0**-9 * (1 + np.abs(made).max()), "two ways to say the same"
        off = np.linalg.norm(made - exact) / np.linalg.norm(exact)
        print(f"  {kind}: {narrow.nbytes / 1e6:.3g} MB, relative error {off:.2g}, {ran.schedule.staging}")
    for name, made in (("i4 in groups", in_groups), ("f8e4m3 by blocks", by_blocks)):
        y, left, right, size = made(x, weights, target)
        exact, sizes = left @ right, np.abs(left) @ np.abs(right)
        assert (np.abs(y - exact) <= 2.0**-9 * sizes).all(), f"{name}: an element is wrong"
        off = np.linalg.norm(exact - x.astype(np.float64) @ weights) / np.linalg.norm(exact)
        print(f"  {name}: {size / 1e6:.3g} MB, all {y.size} elements are right; rounding costs {off:.2g}")


if __name__ == "__main__":
    main()
