"""The projections of an attention layer as contractions: one kernel each, with the heads in any order.

    python examples/15_einsum.py [--small] [--target cuda|cpu|reference]

x (batch, position, channel) times W (channel, head, element) gives queries in the order (batch, head,
position, element), which attention needs.  NumPy needs a product, an addition and a permuted copy for this.
The projection back sums over heads and elements, which have two strides.  The kernel below is the first
contraction as a dataflow kernel.  Every element is compared with NumPy.  The program also adds dropout, and
reduces the rows of a product that it does not store.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.testing import device_get, device_put, do_bench, parse_args

SHAPES = {"cuda": (2, 2048, 4096, 32, 128), "cpu": (2, 192, 256, 8, 32), "reference": (2, 9, 24, 3, 8)}
SMALL = {"cuda": (2, 256, 128, 4, 64), "cpu": (2, 33, 48, 3, 16), "reference": (2, 5, 8, 2, 8)}


@tw.kernel(X="B S C", W="C N", bias="N", Q="B H S D")
def heads(X, W, bias, Q, *, depth):
    """Project to heads.  ``depth``, the size of a head, is a constant, so that tiles of Q are whole boxes."""
    tw.require(Q.shape[3] == depth, "a head has the elements that the kernel was made for")
    tw.require(Q.shape[1] * depth == W.shape[1], "W has a column for each element of each head")
    rows = Q[:, :, :, :depth].permute(0, 2, 1, 3).merge(2)  # (batch, position, head and element)
    for b, m, n in tw.tiles(rows):
        acc = tw.zeros()
        for k in tw.steps(X.shape[2]):
            acc += X[b, m, k] @ W[k, n]
        rows[b, m, n] = acc + bias[n]


def check(result, subscripts, a, b, bias, summed):
    """Assert that each error is within the roundings of ``summed`` sums in f32, and of the result to f16."""
    wide = a.astype(np.float64), b.astype(np.float64)
    exact = np.einsum(subscripts, *wide, optimize=True) + bias
    size = np.einsum(subscripts, *map(np.abs, wide), optimize=True) + np.abs(bias)
    bound = 8 * np.sqrt(summed) * 2.0**-24 * size + 2.0**-11 * np.abs(exact) + 2.0**-25
    off = np.abs(result.astype(np.float64) - exact)
    assert (off <= bound).all(), f"an element is off by {off.max()}"


def main():
    asked = parse_args(__doc__, SHAPES, SMALL)
    target, (batch, positions, channels, count, depth) = asked.target, asked.shape
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, positions, channels)).astype(np.float16)
    w = (rng.standard_normal((channels, count, depth)) / np.sqrt(channels)).astype(np.float16)
    back = (rng.standard_normal((count, depth, channels)) / np.sqrt(channels)).astype(np.float16)
    bias = rng.standard_normal((count, 1, depth)).astype(np.float16)
    X, W, Back, Bias = (device_put(array, target) for array in (x, w, back, bias))
    Q = device_put(np.full((batch, count, positions, depth), np.nan, np.float16), target)

    project = lambda: tw.einsum("bsc,chd->bhsd", X, W, Q, bias=Bias, target=target)  # noqa: E731
    project()
    check(device_get(Q), "bsc,chd->bhsd", x, w, bias, channels)
    Y = tw.einsum("bhsd,hdc->bsc", Q, Back, target=target)
    check(device_get(Y), "bhsd,hdc->bsc", device_get(Q), back, 0, count * depth)

    same = device_put(np.full((batch, count, positions, depth), np.nan, np.float16), target)
    flat = device_put(w.reshape(channels, -1), target), device_put(bias.reshape(-1), target)
    ran = heads.bind(depth=depth)(X, *flat, same, target=target)
    check(device_get(same), "bsc,chd->bhsd", x, w, bias, channels)
    print(f"einsum<{ran.target}, f16, bsc,chd->bhsd>: all {same.size} elements are right; by {ran.schedule}")

    # The mask depends only on an element's index in the result, so a backward pass has the same mask.
    chance, seed, q = 0.25, 7, device_get(Q).astype(np.float64)
    dropped = tw.einsum("bsc,chd->bhsd", X, W, bias=Bias, dropout=chance, seed=seed, target=target)
    kept = tw.testing.philox(np.arange(q.size).reshape(q.shape), seed) >= chance * 2**32
    off = np.abs(device_get(dropped) - np.where(kept, q / (1 - chance), 0))
    assert (off <= 2.0**-9 * np.abs(q) + 2.0**-24).all(), f"an element is off by {off.max()}"
    print(f"dropout: {np.mean(~kept):.3f} of the elements are 0, and they are the right ones")

    # The logarithm of a softmax's denominator over all outputs; the product itself is not stored.
    total = tw.reduced_matmul(X, flat[0], "logsumexp", target=target)
    exact = np.log(np.exp(x.astype(np.float64) @ w.reshape(channels, -1)).sum(-1))
    assert np.allclose(device_get(total), exact, rtol=1e-4, atol=1e-4)
    print(f"reduced_matmul: the logarithms of {total.size} sums of exponentials are right")
    if target != "reference":
        ms = do_bench(project, target)
        tflops = 2e-9 * batch * positions * channels * count * depth
        print(f"Perf: {ms:.4f} ms, {tflops / ms:.3f} TFlops")


if __name__ == "__main__":
    main()
