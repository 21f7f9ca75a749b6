"""A layer with an adapter of low rank, and norms before a layer: each is one kernel of about ten lines.

    python examples/20_adapters_and_norms.py [--small] [--target cuda|cpu|reference]

The sums along K and along the rank share one set of accumulators.  RMSNorm and LayerNorm need sums of
squares; the kernel computes them from the tiles of x that it multiplies.  The factor of a row then multiplies
its product, so no normalised row is ever stored.  Every element is compared with float64.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.testing import device_get, device_put, do_bench, parse_args

# Rows, outputs, inputs, and the rank of the adapter.
SHAPES = {"cuda": (4096, 4096, 4096, 16), "cpu": (256, 512, 512, 16), "reference": (70, 72, 96, 8)}
SMALL = {"cuda": (300, 520, 264, 8), "cpu": (90, 120, 200, 4), "reference": (40, 33, 50, 3)}

EPS = 1e-3


@tw.kernel(X="M K", W="N K", T="M R", B="N R", Y="M N", s=tw.f32)
def adapted(X, W, T, B, Y, s):
    for m, n in tw.tiles(Y):
        acc, low = tw.zeros(), tw.zeros()
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[n, k].T
        for r in tw.steps(T.shape[1]):
            low += T[m, r] @ B[n, r].T
        Y[m, n] = acc + s * low


@tw.kernel(X="M K", W="N K", Y="M N", eps=tw.f32)
def rms_norm(X, W, Y, eps):
    """The caller multiplies the weight of the norm along k into W."""
    for m, n in tw.tiles(Y):
        acc, square = tw.zeros(), tw.zeros((m,), tw.f32)
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[n, k].T
            x = X[m, k].to(tw.f32)
            square += (x * x).sum(axis=1)
        Y[m, n] = acc * tw.rsqrt(square / X.shape[1] + eps)[:, None]


@tw.kernel(X="M K", W="N K", sums="N", bias="N", Y="M N", eps=tw.f32)
def layer_norm(X, W, sums, bias, Y, eps):
    """``sums`` has the sums of W along k, and ``bias`` the product of the norm's bias and W."""
    for m, n in tw.tiles(Y):
        acc, total, square = tw.zeros(), tw.zeros((m,), tw.f32), tw.zeros((m,), tw.f32)
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[n, k].T
            x = X[m, k].to(tw.f32)
            total += x.sum(axis=1)
            square += (x * x).sum(axis=1)
        mean = total / X.shape[1]
        spread = tw.rsqrt(square / X.shape[1] - mean * mean + eps)
        Y[m, n] = (acc - mean[:, None] * sums[n]) * spread[:, None] + bias[n]


def main():
    asked = parse_args(__doc__, SHAPES, SMALL)
    (rows, columns, depth, rank), target = asked.shape, asked.target
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal((rows, depth)), rng.standard_normal((rows, rank))
    w, b = rng.standard_normal((columns, depth)) / depth**0.5, rng.standard_normal((columns, rank))
    g, bias = rng.uniform(0.5, 2, depth), rng.standard_normal(columns)
    x, t, w, b = (one.astype(np.float16) for one in (x, t, w, b))
    weighted = (w * g).astype(np.float16)
    sums, bias = weighted.astype(np.float32).sum(axis=1), bias.astype(np.float32)
    given = {"x": x, "w": w, "t": t, "b": b, "weighted": weighted, "sums": sums, "bias": bias}
    given |= {name: np.full((rows, columns), np.nan, np.float32) for name in ("lora", "rms", "layer")}
    there = {name: device_put(one, target) for name, one in given.items()}

    def adapter():
        adapted(*(there[name] for name in ("x", "w", "t", "b", "lora")), 0.5, target=target)

    def rms():
        rms_norm(there["x"], there["weighted"], there["rms"], EPS, target=target)

    def layer():
        layer_norm(*(there[name] for name in ("x", "weighted", "sums", "bias", "layer")), EPS, target=target)

    for call in (adapter, rms, layer):
        call()
    x, w, t, b, weighted = (one.astype(np.float64) for one in (x, w, t, b, weighted))
    centred = x - x.mean(axis=1, keepdims=True)
    exact = {
        "lora": x @ w.T + 0.5 * t @ b.T,
        "rms": x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPS) @ weighted.T,
        "layer": centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + EPS) @ weighted.T + bias,
    }
    # Sums of f32 in any order, also of tensor cores, which truncate.
    room = 4 * (depth + rank) * 2.0**-23 * (np.abs(x) @ np.abs(w).T * g.max() + 1)
    room = room + np.abs(t) @ np.abs(b).T * 2.0**-20
    for name, wanted in exact.items():
        off = np.abs(device_get(there[name]).astype(np.float64) - wanted)
        assert (off <= room).all(), f"{name}: an element is off by {off.max()}"
        print(f"{name}<{target}, f16>: all {rows} x {columns} elements are right")
    if target != "reference":
        for name, call in (("adapter", adapter), ("RMSNorm", rms), ("LayerNorm", layer)):
            ms, flops = do_bench(call, target), 2 * rows * columns * (depth + rank * (call is adapter))
            print(f"Perf: {ms:.4f} ms, {1e-9 * flops / ms:.3f} TFlops, {name}<{target}>")


if __name__ == "__main__":
    main()
