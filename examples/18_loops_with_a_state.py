"""Loops that carry a state: attention, the cross-entropy of a linear layer and its gradient, moments, argmax.

    python examples/18_loops_with_a_state.py [--small] [--target cuda|cpu|reference]

Each kernel says what is computed in one pass over the keys, words or classes, and nothing about hardware.  No
score is ever stored.  `attention_of_rows` and `gradient` compute with whole rows, and the library makes the
loop.  The others write the loop and its state.  Examples 09 and 10 write attention by hand.  Every element is
compared with float64.
"""

from __future__ import annotations

import math

import numpy as np

import tilewright as tw
from tilewright.testing import device_get, device_put, do_bench, parse_args, softmax_attention

# Positions, elements of a head, and words.
SHAPES = {"cuda": (4096, 128, 32000), "cpu": (512, 64, 1000), "reference": (70, 32, 150)}
SMALL = {"cuda": (300, 64, 1000), "cpu": (90, 32, 200), "reference": (40, 16, 70)}

U = 2.0**-11
"""Relative error of rounding to f16."""


@tw.kernel(Q="M D", K="N D", V="N E", O="M E", scale=tw.f32)
def attention(Q, K, V, O, scale):
    for m, e in tw.tiles(O):
        top, total, out = tw.full((m,), -1e38, tw.f32), tw.zeros((m,), tw.f32), tw.zeros((m, e), tw.f32)
        for n in tw.steps(K.shape[0]):
            s = tw.zeros(dtype=tw.f32)
            for d in tw.steps(Q.shape[1]):
                s += Q[m, d] @ K[n, d].T
            s = tw.where(tw.positions(n) <= tw.positions(m)[:, None], s * scale, -math.inf)
            new = tw.maximum(top, s.max(axis=1))
            p, keep = tw.exp(s - new[:, None]), tw.exp(top - new)
            total.assign(total * keep + p.sum(axis=1))
            out.assign(out * keep[:, None] + p.to(V.dtype) @ V[n, e])
            top.assign(new)
        O[m, e] = out / total[:, None]


@tw.kernel(Q="M D", K="N D", V="N E", O="M E", scale=tw.f32)
def attention_of_rows(Q, K, V, O, scale):
    for m, e in tw.tiles(O):
        s = scale * Q[m] @ K.T
        s = tw.where(tw.positions(s) <= tw.positions(m)[:, None], s, -math.inf)
        O[m, e] = tw.softmax(s).to(V.dtype) @ V[:, e]


@tw.kernel(X="M K", W="N K", word="M", loss="M")
def cross_entropy(X, W, word, loss):
    for m in tw.tiles(loss):
        top, total, hit = tw.full((m,), -1e38, tw.f32), tw.zeros((m,), tw.f32), tw.zeros((m,), tw.f32)
        for n in tw.steps(W.shape[0]):
            s = tw.zeros(dtype=tw.f32)
            for k in tw.steps(X.shape[1]):
                s += X[m, k] @ W[n, k].T
            new = tw.maximum(top, s.max(axis=1))
            total.assign(total * tw.exp(top - new) + tw.exp(s - new[:, None]).sum(axis=1))
            hit.assign(hit + tw.where(tw.positions(n) == word[m][:, None], s, 0.0).sum(axis=1))
            top.assign(new)
        loss[m] = tw.log(total) + top - hit


@tw.kernel(X="M K", W="N K", word="M", dX="M K")
def gradient(X, W, word, dX):
    """The gradient of the cross-entropy with respect to X."""
    for m, k in tw.tiles(dX):
        s = X[m] @ W.T
        hit = tw.where(tw.positions(s) == word[m][:, None], 1.0, 0.0).to(W.dtype)
        dX[m, k] = tw.softmax(s).to(W.dtype) @ W[:, k] - hit @ W[:, k]


def chan(a, b):
    """The moments of two samples: blocks that share a row merge their states by this formula."""
    (count, mu, squares), (more, other, rest) = a, b
    both, apart = count + more, other - mu
    return both, mu + apart * (more / both), squares + rest + apart * apart * (count * more / both)


@tw.kernel(X="M N", mean="M", variance="M")
def moments(X, mean, variance):
    """Welford's formulas: the moments of a step are about its own mean, so that nothing large cancels."""
    for m in tw.tiles(mean):
        count, mu, squares = (tw.zeros((m,), tw.f32) for _ in range(3))
        for n in tw.steps(X.shape[1], state=(count, mu, squares), merge=chan):
            x = X[m, n].to(tw.f32)
            more = (0 * x + 1).sum(axis=1)
            here = x.sum(axis=1) / more
            far, apart, both = x - here[:, None], here - mu, count + more
            squares.assign(squares + (far * far).sum(axis=1) + apart * apart * (count * more / both))
            mu.assign(mu + apart * (more / both))
            count.assign(both)
        mean[m], variance[m] = mu, squares / count


@tw.kernel(X="M K", W="N K", best="M", at="M")
def argmax(X, W, best, at):
    for m in tw.tiles(best):
        top, place = tw.full((m,), -math.inf, tw.f32), tw.full((m,), 0, tw.i32)
        for n in tw.steps(W.shape[0]):
            s = tw.zeros(dtype=tw.f32)
            for k in tw.steps(X.shape[1]):
                s += X[m, k] @ W[n, k].T
            here = s.max(axis=1)
            first = tw.where(s == here[:, None], tw.positions(n), 2**30).min(axis=1)
            place.assign(tw.where(here > top, first, place))
            top.assign(tw.maximum(top, here))
        best[m], at[m] = top, place


def check(name, found, exact, room):
    """Compare each element with its bound."""
    off = np.abs(np.asarray(found, np.float64) - exact)
    assert (off <= room).all(), f"{name}: an element is off by {off.max()}"


def main():
    asked = parse_args(__doc__, SHAPES, SMALL)
    (positions, depth, words), target = asked.shape, asked.target
    rng = np.random.default_rng(0)
    x, k, v = (rng.standard_normal((positions, depth)).astype(np.float16) for _ in range(3))
    w = (rng.standard_normal((words, depth)) / math.sqrt(depth)).astype(np.float16)
    word = rng.integers(0, words, positions).astype(np.int32)
    scores = x.astype(np.float64) @ w.astype(np.float64).T
    scale = 1 / math.sqrt(depth)
    far = (100 + rng.standard_normal((positions, words))).astype(np.float16)
    results = {
        **{name: np.full_like(v, np.nan) for name in ("out", "of rows")},
        "dX": np.full(x.shape, np.nan, np.float32),
        **{name: np.full(positions, np.nan, np.float32) for name in ("loss", "best", "mean", "variance")},
        "at": np.full(positions, -1, np.int32),
    }
    given = {"x": x, "k": k, "v": v, "w": w, "word": word, "far": far}
    there = {name: device_put(one, target) for name, one in (results | given).items()}

    def attend():
        attention(there["x"], there["k"], there["v"], there["out"], scale, target=target)

    def lose():
        cross_entropy(there["x"], there["w"], there["word"], there["loss"], target=target)

    for call in (attend, lose):
        call()
    attention_of_rows(there["x"], there["k"], there["v"], there["of rows"], scale, target=target)
    gradient(there["x"], there["w"], there["word"], there["dX"], target=target)
    moments(there["far"], there["mean"], there["variance"], target=target)
    argmax(there["x"], there["w"], there["best"], there["at"], target=target)
    found = {name: device_get(there[name]) for name in results}
    for name in ("out", "of rows"):
        check("attention", found[name], softmax_attention(x, k, v, scale, shift=0), 4 * U * np.abs(v).max())
    top = scores.max(axis=1)
    lse = np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top
    check("cross entropy", found["loss"], lse - scores[np.arange(positions), word], 1e-4)
    wide = w.astype(np.float64)
    weights = np.exp(scores - lse[:, None])
    check("gradient", found["dX"], weights @ wide - wide[word], 4 * U * np.abs(wide).max())
    about = far.astype(np.float64)
    check("mean", found["mean"], about.mean(axis=1), 1e-3)
    check("variance", found["variance"], about.var(axis=1), 1e-3 * about.var(axis=1))
    check("largest", found["best"], top, 1e-4)
    # The place of a score that f32 cannot tell from the largest may be found.
    check("argmax", scores[np.arange(positions), found["at"]], top, 1e-4)
    print(
        f"attention, cross entropy, its gradient, moments and argmax<{target}, f16>: all elements are right"
    )
    if target != "reference":
        for name, call, flops in (
            ("attention", attend, 2 * depth * positions**2),
            ("cross entropy", lose, 2 * depth * positions * words),
        ):
            ms = do_bench(call, target)
            print(f"Perf: {ms:.4f} ms, {1e-9 * flops / ms:.3f} TFlops, {name}<{target}>")


if __name__ == "__main__":
    main()
