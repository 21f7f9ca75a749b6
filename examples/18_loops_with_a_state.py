"""Loops that carry a state: attention, cross-entropy, their gradients, moments, largest scores, recurrences.

    python examples/18_loops_with_a_state.py [--small] [--target cuda|cpu|reference]

Each kernel makes one pass over keys, words or classes, and says nothing about hardware.  No kernel stores
scores.  `attention_of_rows` and most gradients compute with whole rows, and the library makes the loop.  The
other kernels write the loop and its state.  `moments` and `top_k` also say how the states of two parts of a
row merge.  `linear_attention` stores results in each step, and its state has other rows than its result.
Examples 09 and 10 write attention by hand.  Every element is compared with float64.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

import tilewright as tw
from tilewright.testing import device_get, device_put, do_bench, parse_args, softmax_attention

# Positions, elements of a head, and words.
SHAPES = {"cuda": (4096, 128, 32000), "cpu": (512, 64, 1000), "reference": (70, 32, 150)}
SMALL = {"cuda": (300, 64, 1000), "cpu": (90, 32, 200), "reference": (40, 16, 70)}

LARGEST = 8
"""Scores of each row that `top_k` finds."""

RATE = -0.125
"""Decay of linear attention: a position weighs 2**RATE times as much as the next one."""

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


@tw.kernel(Q="M D", K="N D", V="N E", dO="M E", L="M", delta="M", dQ="M D", scale=tw.f32)
def gradient_of_queries(Q, K, V, dO, L, delta, dQ, scale):
    for m, d in tw.tiles(dQ):
        s = scale * (Q[m] @ K.T)
        p = tw.where(tw.positions(s) <= tw.positions(m)[:, None], tw.exp(s - L[m][:, None]), 0.0)
        ds = p * (dO[m] @ V.T - delta[m][:, None])
        dQ[m, d] = scale * (ds.to(K.dtype) @ K[:, d])


@tw.kernel(Q="M D", K="N D", V="N E", dO="M E", L="M", delta="M", dK="N D", dV="N E", scale=tw.f32)
def gradients_of_keys(Q, K, V, dO, L, delta, dK, dV, scale):
    for n, d, e in tw.tiles((*dK.shape, dV.shape[1]), batch=0):
        s = scale * (K[n] @ Q.T)
        p = tw.where(tw.positions(n)[:, None] <= tw.positions(s), tw.exp(s - L), 0.0)
        ds = p * (V[n] @ dO.T - delta)
        dK[n, d] = scale * (ds.to(Q.dtype) @ Q[:, d])
        dV[n, e] = p.to(dO.dtype) @ dO[:, e]


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


@tw.kernel(X="M K", W="N K", word="M", lse="M", dW="N K")
def gradient_of_words(X, W, word, lse, dW):
    """The gradient of the cross-entropy with respect to W; ``lse`` has the logarithm of each row's sum."""
    for n, k in tw.tiles(dW):
        dw = tw.zeros((n, k), tw.f32)
        for m in tw.steps(X.shape[0]):
            s = tw.zeros(dtype=tw.f32)
            for d in tw.steps(X.shape[1]):
                s += W[n, d] @ X[m, d].T
            hit = tw.where(tw.positions(n)[:, None] == word[m], 1.0, 0.0)
            dw.assign(dw + (tw.exp(s - lse[m]) - hit).to(X.dtype) @ X[m, k])
        dW[n, k] = dw


def chan(a, b):
    """Merge the moments of two samples, by Chan's formula, for blocks that share a row."""
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


def longest(one, other, m, t, n, count):
    """Merge two lists into one of the largest values and their indices; of equal values the first list's."""
    (left, known), (right, later) = one, other
    old, rest = tw.zeros((m, t), tw.f32), tw.zeros((m, n), tw.f32)
    values, places = tw.full((m, t), -math.inf, tw.f32), tw.full((m, t), 0, tw.i32)
    old.assign(left)
    rest.assign(right)
    for i, _ in tw.steps((count, 1)):  # take the largest value left in either list
        a, b = old.max(axis=1), rest.max(axis=1)
        at_left = tw.where(old == a[:, None], known, 2**30).min(axis=1)
        at_right = tw.where(rest == b[:, None], later, 2**30).min(axis=1)
        top, here = tw.maximum(a, b), tw.positions(t) == tw.positions(i)
        place = tw.where(top > -math.inf, tw.where(a >= b, at_left, at_right), 0)
        values.assign(tw.where(here, top[:, None], values))
        places.assign(tw.where(here, place[:, None], places))
        old.assign(tw.where(known == place[:, None], -math.inf, old))
        rest.assign(tw.where(later == place[:, None], -math.inf, rest))
    return values, places


@tw.kernel(X="M K", W="N K", best="M T", at="M T")
def top_k(X, W, best, at):
    """The largest scores of each row in descending order, and their indices; of equal scores the first."""
    for m, t in tw.tiles(best):
        values, places = tw.full((m, t), -math.inf, tw.f32), tw.full((m, t), 0, tw.i32)
        merge = partial(longest, m=m, t=t, n=t, count=best.shape[1])
        for n in tw.steps(W.shape[0], state=(values, places), merge=merge):
            s = tw.zeros(dtype=tw.f32)
            for d in tw.steps(X.shape[1]):
                s += X[m, d] @ W[n, d].T
            made, found = longest((values, places), (s, tw.positions(n)), m, t, n, best.shape[1])
            values.assign(made)
            places.assign(found)
        best[m, t], at[m, t] = values, places


@tw.kernel(Q="N D", K="N D", V="N E", O="N E", rate=tw.f32)
def linear_attention(Q, K, V, O, rate):
    """``O[i] = sum_j 2^(rate (i - j)) (Q[i] K[j]) V[j]`` over j up to i; the state has D rows, and decays."""
    for e in tw.tiles(V.shape[1]):
        state = tw.zeros((Q.shape[1], e), tw.f32)
        for n in tw.steps(Q.shape[0]):
            i = tw.alias(n)  # the rows of a step, n its columns
            row, column = tw.positions(i)[:, None], tw.positions(n)
            first, last = column.min(axis=0), column.max(axis=0)
            s = Q[i] @ K[n].T
            s = tw.where(column <= row, s * tw.exp2(rate * (row - column).to(tw.f32)), 0.0).to(V.dtype)
            seen = tw.exp2(rate * (row - first + 1).to(tw.f32)) * (Q[i] @ state.to(V.dtype))
            O[i, e] = s @ V[n, e] + seen
            k = K[n] * tw.exp2(rate * (last - column).to(tw.f32))[:, None].to(K.dtype)
            state.assign(state * tw.exp2(rate * (last - first + 1).to(tw.f32)) + k.T @ V[n, e])


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
        **{name: np.full(x.shape, np.nan, np.float32) for name in ("dX", "dQ", "dK", "dV", "linear")},
        "dW": np.full(w.shape, np.nan, np.float32),
        "largest": np.full((positions, LARGEST), np.nan, np.float32),
        "places": np.full((positions, LARGEST), -1, np.int32),
        **{name: np.full(positions, np.nan, np.float32) for name in ("loss", "best", "mean", "variance")},
        "at": np.full(positions, -1, np.int32),
    }
    wide, keys, values = (one.astype(np.float64) for one in (w, k, v))
    lse = np.logaddexp.reduce(scores, axis=1)
    hidden = np.tril(np.ones((positions, positions), bool))
    seen = np.where(hidden, scale * x.astype(np.float64) @ keys.T, -np.inf)
    sums = np.logaddexp.reduce(seen, axis=1)
    weights = np.exp(seen - sums[:, None])
    dout = rng.standard_normal(v.shape).astype(np.float16)
    delta = (dout * (weights @ values)).sum(axis=1)
    given = {"x": x, "k": k, "v": v, "w": w, "word": word, "far": far, "dout": dout}
    given |= {"lse": lse.astype(np.float32), "sums": sums.astype(np.float32)}
    given |= {"delta": delta.astype(np.float32)}
    there = {name: device_put(one, target) for name, one in (results | given).items()}

    def attend():
        attention(there["x"], there["k"], there["v"], there["out"], scale, target=target)

    def lose():
        cross_entropy(there["x"], there["w"], there["word"], there["loss"], target=target)

    def recur():
        linear_attention(*(there[name] for name in ("x", "k", "v", "linear")), RATE, target=target)

    for call in (attend, lose, recur):
        call()
    attention_of_rows(there["x"], there["k"], there["v"], there["of rows"], scale, target=target)
    gradient(there["x"], there["w"], there["word"], there["dX"], target=target)
    moments(there["far"], there["mean"], there["variance"], target=target)
    gradient_of_words(*(there[name] for name in ("x", "w", "word", "lse", "dW")), target=target)
    read = [there[name] for name in ("x", "k", "v", "dout", "sums", "delta")]
    gradient_of_queries(*read, there["dQ"], scale, target=target)
    gradients_of_keys(*read, there["dK"], there["dV"], scale, target=target)
    argmax(there["x"], there["w"], there["best"], there["at"], target=target)
    top_k(there["x"], there["w"], there["largest"], there["places"], target=target)
    found = {name: device_get(there[name]) for name in results}
    for name in ("out", "of rows"):
        check("attention", found[name], softmax_attention(x, k, v, scale, shift=0), 4 * U * np.abs(v).max())
    apart = np.subtract.outer(np.arange(positions), np.arange(positions))
    decay = np.where(hidden, np.exp2(RATE * np.maximum(apart, 0)), 0.0)
    linear = (decay * (x.astype(np.float64) @ keys.T)) @ values
    sizes = (decay * (np.abs(x).astype(np.float64) @ np.abs(keys).T)) @ np.abs(values)
    check("linear attention", found["linear"], linear, 4 * U * sizes + 1e-4)
    ds = weights * (dout.astype(np.float64) @ values.T - delta[:, None])
    for name, exact, sizes in (
        ("dQ", scale * ds @ keys, np.abs(ds) @ np.abs(keys)),
        ("dK", scale * ds.T @ x.astype(np.float64), np.abs(ds).T @ np.abs(x)),
        ("dV", weights.T @ dout.astype(np.float64), weights.T @ np.abs(dout)),
    ):
        check(name, found[name], exact, 4 * U * sizes + 1e-4)
    top = scores.max(axis=1)
    check("cross entropy", found["loss"], lse - scores[np.arange(positions), word], 1e-4)
    weights = np.exp(scores - lse[:, None])
    check("gradient", found["dX"], weights @ wide - wide[word], 4 * U * np.abs(wide).max())
    weights[np.arange(positions), word] -= 1
    room = 4 * U * np.abs(weights).T @ np.abs(x) + 1e-4
    check("gradient of words", found["dW"], weights.T @ x.astype(np.float64), room)
    about = far.astype(np.float64)
    check("mean", found["mean"], about.mean(axis=1), 1e-3)
    check("variance", found["variance"], about.var(axis=1), 1e-3 * about.var(axis=1))
    check("largest", found["best"], top, 1e-4)
    # The kernel may return the index of another score that equals the largest in f32.
    check("argmax", scores[np.arange(positions), found["at"]], top, 1e-4)
    largest = -np.sort(-scores, axis=1)[:, :LARGEST]
    check("largest scores", found["largest"], largest, 1e-4)
    check("their places", np.take_along_axis(scores, found["places"], axis=1), largest, 1e-4)
    names = "attention, cross entropy, their gradients, moments, argmax, recurrence and the largest scores"
    print(f"{names}<{target}, f16>: all elements are right")
    if target != "reference":
        for name, call, flops in (
            ("attention", attend, 2 * depth * positions**2),
            ("cross entropy", lose, 2 * depth * positions * words),
            ("linear attention", recur, 8 * depth**2 * positions),
        ):
            ms = do_bench(call, target)
            print(f"Perf: {ms:.4f} ms, {1e-9 * flops / ms:.3f} TFlops, {name}<{target}>")


if __name__ == "__main__":
    main()
