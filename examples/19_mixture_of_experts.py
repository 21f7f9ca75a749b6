"""A mixture of experts: rows gathered while loading, gated products in groups, results scattered and summed.

    python examples/19_mixture_of_experts.py [--small] [--target cuda|cpu|reference]

Every token goes to a few experts.  Pairs of a token and an expert are sorted by expert, so that the rows of
an expert are neighbours, and integers in memory say to which token a row belongs.  No copy of a token is ever
stored.  Every element is compared with float64.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.testing import device_get, device_put, do_bench, parse_args

# Tokens, their elements, experts, and elements of an expert's inner layer.
SHAPES = {"cuda": (4096, 4096, 64, 1408), "cpu": (256, 128, 8, 192), "reference": (40, 32, 4, 48)}
SMALL = {"cuda": (200, 256, 8, 320), "cpu": (50, 40, 4, 72), "reference": (20, 24, 3, 40)}

TOP = 2
"""Experts of a token."""

U = 2.0**-11
"""Relative error of rounding to f16."""


@tw.kernel(X="T K", U="E N K", G="E N K", token="M", ends="E", H="M N")
def gated(X, U, G, token, ends, H):
    for e, m, n in tw.tiles(H, groups=ends):
        up, gate = tw.zeros(), tw.zeros()
        for k in tw.steps(X.shape[1]):
            x = X[token[m], k]
            up += x @ U[e, n, k].T
            gate += x @ G[e, n, k].T
        H[m, n] = up * gate / (1 + tw.exp(-gate))


@tw.kernel(H="M N", D="E K N", place="M", ends="E", Y="P K")
def down(H, D, place, ends, Y):
    for e, m, k in tw.tiles((H.shape[0], D.shape[1]), groups=ends):
        acc = tw.zeros()
        for n in tw.steps(H.shape[1]):
            acc += H[m, n] @ D[e, k, n].T
        Y[place[m], k] = acc


@tw.kernel(W="T one P", Y="T P K", O="T one K")
def weighted(W, Y, O):
    for t, i, k in tw.tiles(O):
        acc = tw.zeros()
        for p in tw.steps(Y.shape[1]):
            acc += W[t, i, p] @ Y[t, p, k]
        O[t, i, k] = acc


def exact(x, u, g, d, chosen, weights):
    """Return the results in float64 from the f16 inner layer, and the bound of each."""
    out, room = np.zeros(x.shape), np.zeros(x.shape)
    for expert, (up, gate, back) in enumerate(zip(u, g, d, strict=True)):
        at, pick = np.nonzero(chosen == expert)
        a, b = (x[at].astype(np.float64) @ w.T.astype(np.float64) for w in (up, gate))
        inner = a * b / (1 + np.exp(-b))
        w = weights[at, pick, None].astype(np.float64)
        np.add.at(out, at, w * (inner @ back.T.astype(np.float64)))
        # The inner layer, the stored products and the result are rounded to f16.
        sizes = np.abs(inner) @ np.abs(back.T.astype(np.float64))
        np.add.at(room, at, 4 * U * w * sizes + 1e-5)
    return out, room


def main():
    asked = parse_args(__doc__, SHAPES, SMALL)
    (tokens, depth, experts, inner), target = asked.shape, asked.target
    rng = np.random.default_rng(0)
    x = rng.standard_normal((tokens, depth)).astype(np.float16)
    u, g = ((rng.standard_normal((experts, inner, depth)) / depth**0.5).astype(np.float16) for _ in "ug")
    d = (rng.standard_normal((experts, depth, inner)) / inner**0.5).astype(np.float16)
    chosen = rng.random((tokens, experts)).argsort(axis=1)[:, :TOP]
    weights = rng.random((tokens, TOP)).astype(np.float16)
    order = chosen.reshape(-1).argsort(kind="stable").astype(np.int32)
    ends = np.bincount(chosen.reshape(-1), minlength=experts).cumsum().astype(np.int32)
    h, y = np.empty((tokens * TOP, inner), np.float16), np.empty((tokens * TOP, depth), np.float16)
    given = {"x": x, "u": u, "g": g, "d": d, "token": order // TOP, "place": order, "ends": ends, "h": h}
    there = {name: device_put(one, target) for name, one in given.items()}
    y, w, o = (device_put(one, target) for one in (y, weights, np.full_like(x, np.nan)))

    def layer():
        gated(*(there[name] for name in ("x", "u", "g", "token", "ends", "h")), target=target)
        down(there["h"], there["d"], there["place"], there["ends"], y, target=target)
        parts = w.reshape(tokens, 1, TOP), y.reshape(tokens, TOP, depth), o.reshape(tokens, 1, depth)
        weighted(*parts, target=target)

    layer()
    expected, room = exact(x, u, g, d, chosen, weights)
    off = np.abs(device_get(o).astype(np.float64) - expected)
    assert (off <= room).all(), f"an element is off by {off.max()}"
    print(f"mixture of experts<{target}, f16>: all {o.shape[0]} x {depth} elements are right")
    if target != "reference":
        ms, flops = do_bench(layer, target), 6 * tokens * TOP * depth * inner
        print(f"Perf: {ms:.4f} ms, {1e-9 * flops / ms:.3f} TFlops, mixture of experts<{target}>")


if __name__ == "__main__":
    main()
