"""Kernels with whole rows, on random arrays, with results in f64 and error bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

import tilewright as tw

from .folding import Array, FoldCase, U, poison, scores


@tw.kernel(Q="M D", K="N D", V="N E", mask="M N", O="M E", scale=tw.f32)
def attention(Q, K, V, mask, O, scale):
    for m, e in tw.tiles(O):
        O[m, e] = tw.softmax(scale * Q[m] @ K.T + mask[m]).to(V.dtype) @ V[:, e]


@tw.kernel(Q="M D", K="N D", V="N E", mask="M N", O="M E", scale=tw.f32)
def attention_of_rows(Q, K, V, mask, O, scale):
    for m in tw.tiles(O.shape[0]):
        O[m] = tw.softmax(scale * Q[m] @ K.T + mask[m]).to(V.dtype) @ V


@tw.kernel(Q="B H M D", K="B H N D", V="B H N E", O="B H M E", scale=tw.f32, shift=int)
def causal(Q, K, V, O, scale, shift):
    for b, h, m, e in tw.tiles(O):
        s = scale * (Q[b, h, m] @ K[b, h].T)
        s = tw.where(tw.positions(s) <= tw.positions(m)[:, None] + shift, s, -math.inf)
        O[b, h, m, e] = tw.softmax(s).to(V.dtype) @ V[b, h, :, e]


@tw.kernel(Q="M D", K="N D", V="N E", O="M E", L="M", scale=tw.f32)
def by_powers(Q, K, V, O, L, scale):
    """Weights written as powers of two, with a factor of the exponent, and their total."""
    for m, e in tw.tiles(O):
        s = Q[m] @ K.T
        top = tw.maximum(s.max(axis=1), -1e30)
        p = tw.exp2((s - top[:, None]) * scale)
        total = p.sum(axis=1)
        O[m, e] = (p.to(V.dtype) @ V[:, e]) / total[:, None]
        L[m] = tw.log2(total) + top * scale


@tw.kernel(X="M K", W="K N", word="M", loss="M", best="M")
def cross_entropy(X, W, word, loss, best):
    for m in tw.tiles(loss):
        s = X[m] @ W
        top = s.max(axis=1)
        hit = tw.where(tw.positions(s) == word[m][:, None], s, 0.0).sum(axis=1)
        loss[m] = tw.log(tw.exp(s - top[:, None]).sum(axis=1)) + top - hit
        best[m] = top


@tw.kernel(X="M K", W="N K", word="M", dX="M K", factor=tw.f32)
def gradient(X, W, word, dX, factor):
    """The gradient of `cross_entropy` with respect to X, times a factor."""
    for m, k in tw.tiles(dX):
        s = X[m] @ W.T
        hit = tw.where(tw.positions(s) == word[m][:, None], 1.0, 0.0).to(W.dtype)
        dX[m, k] = factor * (tw.softmax(s).to(W.dtype) @ W[:, k] - hit @ W[:, k])


@tw.kernel(X="M N", mean="M", variance="M", least="M")
def moments(X, mean, variance, least):
    for m in tw.tiles(mean):
        x = X[m].to(tw.f32)
        mu = x.sum(axis=1) / X.shape[1]
        mean[m], variance[m] = mu, (x * x).sum(axis=1) / X.shape[1] - mu * mu
        least[m] = x.min(axis=1)


@tw.kernel(X="M K", W="K N", Y="M N")
def softmax(X, W, Y):
    for m, n in tw.tiles(Y):
        Y[m, n] = tw.softmax(X[m] @ W)


@tw.kernel(X="B M K", W="B K N", bias="N", Y="B M N", lse="B M")
def logarithms(X, W, bias, Y, lse):
    """The logarithm of the softmax, and of the sum of exponentials."""
    for b, m, n in tw.tiles(Y):
        s = X[b, m] @ W[b] + bias
        top = s.max(axis=1)
        total = tw.log(tw.exp(s - top[:, None]).sum(axis=1)) + top
        Y[b, m, n] = s - total[:, None]
        lse[b, m] = total


@tw.kernel(X="M K", W="N K", word="M", Y="M N", scale=tw.f32)
def of_scores(X, W, word, Y, scale):
    """The gradient of `cross_entropy` with respect to its scores."""
    for m in tw.tiles(Y.shape[0]):
        s = scale * X[m] @ W.T
        Y[m] = tw.softmax(s) - tw.where(tw.positions(s) == word[m][:, None], 1.0, 0.0)


@tw.kernel(X="M N", Y="M N")
def normalised(X, Y):
    """The softmax of an array of powers of two, without a product."""
    for m in tw.tiles(Y.shape[0]):
        x = X[m].to(tw.f32)
        p = tw.exp2(x - x.max(axis=1)[:, None])
        Y[m] = p / p.sum(axis=1)[:, None]


@tw.kernel(X="M N", W="N E", Y="M E", spread="M")
def projected(X, W, Y, spread):
    """Rows minus their mean, over the root of their variance, times a matrix: three loops along a row."""
    for m, e in tw.tiles(Y):
        x = X[m].to(tw.f32)
        far = x - (x.sum(axis=1) / X.shape[1])[:, None]
        variance = (far * far).sum(axis=1) / X.shape[1]
        Y[m, e] = (far * tw.rsqrt(variance)[:, None]).to(W.dtype) @ W[:, e]
        spread[m] = variance


def weighed(s: Array, v: Array, off: Any, kind: str) -> tuple[Array, Array]:
    """Return averages of values by the softmax of scores, and the largest error of each.

    Args:
        s: the scores.
        v: the values.
        off: the largest error of a score of each row.
        kind: dtype of the weights and of the results.
    """
    seen = np.isfinite(s).any(1)
    top = np.where(seen, s.max(1, initial=-np.inf), 0)
    p = np.exp(s - top[:, None])
    total = np.maximum(p.sum(1), 1e-300)[:, None]
    wide, u = v.astype(np.float64), tw.dtype(np.dtype(kind)).unit_roundoff
    # A change d of all scores is a relative change of exp(2 d) - 1 at most; exponents are rounded, and the
    # sums have N terms, each rescaled once.  Weights below the normal numbers of f16 are off by 2**-25.
    rel = np.expm1(4 * off)[:, None] + (2 * s.shape[1] + 160) * U + 2 * u
    made = p @ wide / total
    return made, rel * (p @ np.abs(wide) / total) + u * np.abs(made) + 2.0**-24 * np.abs(wide).sum(0)


def cases(seed: int, *, ragged: bool = True) -> Iterator[tuple[str, FoldCase]]:
    """Return random problems of every kind.

    Args:
        seed: of the numbers.
        ragged: whether no extent is a multiple of a tile.
    """
    rng = np.random.default_rng(seed)
    M, N = (37, 94) if ragged else (64, 128)
    scale = 0.25
    for kernel, kind, D, E in (
        (attention, "f2", 24, 40),
        (attention, "f2", 64, 64),
        (attention, "f4", 24, 40),
        (attention_of_rows, "f2", 48, 40),
    ):
        q, k, s, off = scores(rng, M, D, N, kind)
        v = rng.standard_normal((N, E)).astype(kind)
        mask = rng.standard_normal((M, N)).astype(np.float32)
        mask[rng.random((M, N)) < 0.2] = -np.inf
        mask[3], mask[5, :70] = -np.inf, -np.inf  # a row without scores, and one whose first step has none
        made, room = weighed(scale * s + mask, v, scale * off, kind)
        yield (
            f"{kernel.__name__}, {kind}, {D}, {E}",
            FoldCase(
                kernel,
                {"Q": q, "K": np.ascontiguousarray(k.T), "V": v, "mask": mask, "scale": scale},
                {"O": poison(kind, M, E)},
                {"O": made},
                {"O": room},
            ),
        )
    shift = -2
    q, k, s, off = scores(rng, M, 32, N, "f2")
    v = rng.standard_normal((N, 24)).astype(np.float16)
    seen = np.arange(N) <= np.arange(M)[:, None] + shift
    made, room = weighed(np.where(seen, scale * s, -np.inf), v, scale * off, "f2")
    yield (
        "causal",
        FoldCase(
            causal,
            {"Q": q[None, None], "K": np.ascontiguousarray(k.T)[None, None], "V": v[None, None]}
            | {"scale": scale, "shift": shift},
            {"O": poison("f2", 1, 1, M, 24)},
            {"O": made},
            {"O": room},
        ),
    )
    q, k, s, off = scores(rng, M, 24, N, "f2")
    v = rng.standard_normal((N, 40)).astype(np.float16)
    base = scale * math.log(2)
    made, room = weighed(base * s, v, base * off, "f2")
    yield (
        "powers of two",
        FoldCase(
            by_powers,
            {"Q": q, "K": np.ascontiguousarray(k.T), "V": v, "scale": scale},
            {"O": poison("f2", M, 40), "L": poison("f4", M)},
            {"O": made, "L": np.logaddexp2.reduce(scale * s, axis=1)},
            {"O": room, "L": 2 * scale * off + (N + 64) * U * (np.abs(scale * s).max(1) + 8)},
        ),
    )
    for kind, K in (("f2", 24), ("f2", 300), ("f4", 40)):
        x, w, s, off = scores(rng, M, K, N, kind)
        words = rng.integers(0, N, M).astype(np.int32)
        lse = np.logaddexp.reduce(s, axis=1)
        room = 2 * off + (N + 16) * U + 16 * U * (np.abs(s).max(axis=1) + np.abs(lse) + 1)
        yield (
            f"cross entropy, {kind}, K = {K}",
            FoldCase(
                cross_entropy,
                {"X": x, "W": w, "word": words},
                {"loss": poison("f4", M), "best": poison("f4", M)},
                {"loss": lse - s[np.arange(M), words], "best": s.max(axis=1)},
                {"loss": room, "best": off},
            ),
        )
    x, w, s, off = scores(rng, M, 48, N, "f2")
    words, factor = rng.integers(0, N, M).astype(np.int32), 0.5
    rows = np.ascontiguousarray(w.T)
    made, room = weighed(s, rows, off, "f2")
    yield (
        "gradient of cross entropy",
        FoldCase(
            gradient,
            {"X": x, "W": rows, "word": words, "factor": factor},
            {"dX": poison("f4", M, 48)},
            {"dX": factor * (made - rows[words].astype(np.float64))},
            {"dX": factor * room + 4 * U * (np.abs(made) + np.abs(rows[words]))},
        ),
    )
    half = rng.standard_normal((M, N)).astype(np.float16)
    wide = half.astype(np.float64)
    sums = (N + 4) * U * np.abs(wide).mean(axis=1), (2 * N + 8) * U * (wide**2).mean(axis=1)
    yield (
        "moments",
        FoldCase(
            moments,
            {"X": half},
            {name: poison("f4", M) for name in ("mean", "variance", "least")},
            {"mean": wide.mean(axis=1), "variance": wide.var(axis=1), "least": wide.min(axis=1)},
            {"mean": sums[0], "variance": sums[1] + 4 * sums[0] * np.abs(wide).max(), "least": 0},
        ),
    )
    far, matrix = (100 + wide).astype(np.float16), rng.standard_normal((N, 40)).astype(np.float16)
    about = far - far.astype(np.float64).mean(axis=1)[:, None]
    spread = (about**2).mean(axis=1)
    units = about / np.sqrt(spread)[:, None]
    small = (N + 8) * U * np.abs(far.astype(np.float64)).mean(axis=1)  # error of the mean
    lost = 4 * small / np.sqrt(spread) + (N + 8) * U
    sizes = np.abs(units) @ np.abs(matrix.astype(np.float64))
    yield (
        "about the mean",
        FoldCase(
            projected,
            {"X": far, "W": matrix},
            {"Y": poison("f4", M, 40), "spread": poison("f4", M)},
            {"Y": units @ matrix.astype(np.float64), "spread": spread},
            {
                "Y": (2.0**-11 + lost[:, None]) * (sizes + np.abs(matrix.astype(np.float64)).sum(axis=0)),
                "spread": (N + 8) * U * spread + 4 * small * np.sqrt(spread) + small**2,
            },
        ),
    )
    for kind, K in (("f2", 24), ("f2", 300), ("f4", 40)):
        x, w, s, off = scores(rng, M, K, N, kind)
        yield f"softmax, {kind}, K = {K}", of_rows(softmax, {"X": x, "W": w}, s, off, kind)
    x, w, s, off = scores(rng, M, 24, N, "f2")
    words, scale = rng.integers(0, N, M).astype(np.int32), 0.5
    case = of_rows(of_scores, {"X": x, "W": np.ascontiguousarray(w.T)}, scale * s, scale * off, "f4")
    case.given.update(word=words, scale=scale)
    case.expected["Y"][np.arange(M), words] -= 1
    case.room["Y"] += 2 * U
    yield "gradient of scores", case
    half = (8 * rng.standard_normal((M, N))).astype(np.float16)
    yield (
        "of an array",
        of_rows(normalised, {"X": half}, math.log(2) * half.astype(np.float64), np.zeros(M), "f2"),
    )
    bias = rng.standard_normal(N).astype(np.float32)
    two = [scores(rng, M, 24, N, "f2") for _ in range(2)]
    s = np.stack([one[2] for one in two]) + bias
    lse = np.logaddexp.reduce(s, axis=2)
    off = np.stack([one[3] for one in two]) + 2 * U * np.abs(s).max(axis=2)
    room = 2 * off + (N + 16) * U + 16 * U * (np.abs(s).max(axis=2) + np.abs(lse) + 1)
    yield (
        "logarithms",
        FoldCase(
            logarithms,
            {"X": np.stack([one[0] for one in two]), "W": np.stack([one[1] for one in two]), "bias": bias},
            {"Y": poison("f4", 2, M, N), "lse": poison("f4", 2, M)},
            {"Y": s - lse[..., None], "lse": lse},
            {"Y": (room + off)[..., None] + 4 * U * np.abs(s), "lse": room},
        ),
    )


def of_rows(kernel: Any, given: dict[str, Any], s: Array, off: Array, kind: str) -> FoldCase:
    """Return the softmax Y of scores; ``off`` bounds the error of the scores of each row."""
    p = np.exp(s - s.max(axis=1)[:, None])
    p /= p.sum(axis=1)[:, None]
    u = tw.dtype(np.dtype(kind)).unit_roundoff
    room = (np.expm1(4 * off)[:, None] + (2 * s.shape[1] + 160) * U + u) * p + 2.0**-25
    return FoldCase(kernel, given, {"Y": poison(kind, *s.shape)}, {"Y": p}, {"Y": room})
