"""Weights in 8 bits, y = silu(s * (x W) + b): widened on their way to the multiplication, in one kernel.

    python examples/13_scaled_mm.py [--small] [--target cuda|cpu|reference]

A layer's weights are stored as fp8 or as i8, with a scale for each output.  The kernel reads them as narrow
as they are; on Hopper they are widened in registers, behind the bulk copies that brought them.  Its lines
stand below, beside the op that the library has for it: both give the same numbers.  Shown are how far they
are from the layer of unrounded weights, and how many bytes the weights take.
"""

from __future__ import annotations

import argparse

import numpy as np

import tilewright as tw

SHAPES = {"cuda": (16, 14336, 4096), "cpu": (16, 1024, 1024), "reference": (8, 64, 128)}
SMALL = {"cuda": (16, 512, 1024), "cpu": (16, 256, 512), "reference": (8, 32, 64)}
LARGEST = {"f8e4m3": 448.0, "f8e5m2": 57344.0, "i8": 127.0}


@tw.kernel(X="M K", W="K N", scale="N", bias="N", Y="M N")
def layer(X, W, scale, bias, Y):
    for m, n in tw.tiles(Y):
        acc = tw.zeros()
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[k, n].to(X.dtype)
        Y[m, n] = tw.silu(acc * scale[n] + bias[n])


def quantised(weights, kind):
    """Weights (K, N) in 8 bits, and a scale for each column, whose largest becomes the largest of 8 bits."""
    scale = (np.abs(weights).max(axis=0) / LARGEST[kind]).astype(np.float32)
    narrow = weights / scale
    return (np.rint(narrow) if kind == "i8" else narrow).astype(tw.dtype(kind).numpy), scale


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


if __name__ == "__main__":
    main()
