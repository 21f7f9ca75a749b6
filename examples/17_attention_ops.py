"""Attention and a chain of two products by one call each, which launches one kernel.

    python examples/17_attention_ops.py [--small] [--target cuda|cpu|reference]

Four heads of queries share a head of keys and values, and see only the keys up to their own position.  A
feed-forward layer follows, silu(X W1) W2, whose first product is never stored.  Every element is compared
with float64.  Examples 08 to 10 write such kernels by hand.
"""

from __future__ import annotations

import math

import numpy as np

import tilewright as tw
from tilewright.testing import device_get, device_put, do_bench, parse_args, softmax_attention

# Batches, heads of queries, positions, and elements of a head.
SHAPES = {"cuda": (2, 16, 2048, 128), "cpu": (1, 8, 256, 64), "reference": (1, 4, 40, 32)}
SMALL = {"cuda": (1, 4, 200, 64), "cpu": (1, 4, 70, 32), "reference": (1, 4, 20, 16)}
SHARED = 4
"""Heads of queries that share a head of keys."""

U = 2.0**-11
"""Relative error of rounding to f16."""


def attend(q, k, v, target):
    """Compute attention with a causal mask, and compare each element with float64."""
    placed = [device_put(x, target) for x in (q, k, v, np.full_like(q, np.nan))]

    def call():
        return tw.attention(*placed[:3], out=placed[3], causal=True, target=target)

    call()
    found = device_get(placed[3])
    keys, values = (np.repeat(x, SHARED, axis=1) for x in (k, v))
    exact = softmax_attention(q, keys, values, 1 / math.sqrt(q.shape[-1]), shift=0)
    # Weights and the result are rounded; the weights add up to 1.
    off = np.abs(found - exact)
    assert (off <= 4 * U * np.abs(values).max()).all(), f"an element is off by {off.max()}"
    return found, call


def feed(x, w1, w2, target):
    """Compute a layer of two products, and compare each element with float64."""
    placed = [device_put(one, target) for one in (x, w1, w2, np.full((len(x), w2.shape[1]), np.nan, x.dtype))]

    def call():
        return tw.gemm_chain(*placed[:3], activation="silu", out=placed[3], target=target)

    call()
    found = device_get(placed[3])
    inner = x.astype(float) @ w1.astype(float)
    inner /= 1 + np.exp(-inner)
    sizes = np.abs(inner) @ np.abs(w2).astype(float)
    off = np.abs(found - inner @ w2.astype(float))
    assert (off <= 2 * U * sizes + 2.0**-14).all(), f"an element is off by {off.max()}"
    return call


def main():
    asked = parse_args(__doc__, SHAPES, SMALL)
    (batches, heads, positions, depth), target = asked.shape, asked.target
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float16)

    q = normal(batches, heads, positions, depth)
    k, v = (normal(batches, heads // SHARED, positions, depth) for _ in range(2))
    found, attention = attend(q, k, v, target)
    print(f"attention<{target}, causal f16>: all {found.size} elements are right")
    x = np.ascontiguousarray(found[0, 0])
    w1, w2 = normal(depth, 4 * depth), normal(4 * depth, depth)
    chain = feed(x, w1 / np.float16(math.sqrt(depth)), w2 / np.float16(2 * math.sqrt(depth)), target)
    print(f"gemm_chain<{target}, silu f16>: all {positions} x {depth} elements are right")
    if target != "reference":
        for name, call, flops in (
            ("attention", attention, 2 * q.size * positions),
            ("gemm_chain", chain, 16 * positions * depth * depth),
        ):
            ms = do_bench(call, target)
            print(f"Perf: {ms:.4f} ms, {1e-9 * flops / ms:.3f} TFlops, {name}<{target}>")


if __name__ == "__main__":
    main()
