"""Kernels whose loops carry a state, on random arrays, with results in f64 and error bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.checking.references import attention_room
from tilewright.runtime.kernel import Kernel

Array = np.ndarray[Any, Any]
U = tw.f32.unit_roundoff


@tw.kernel(A="M K", x="K", y="M")
def largest(A, x, y):
    for m in tw.tiles(y):
        top = tw.full((m,), -float("inf"), tw.f64)
        for k in tw.steps(x.shape[0]):
            top.assign(tw.maximum(top, (A[m, k] * x[k]).max(axis=1)))
        y[m] = top


@tw.kernel(X="M N", mean="M", variance="M")
def moments(X, mean, variance):
    for m in tw.tiles(mean):
        total, squares = tw.zeros((m,), tw.f32), tw.zeros((m,), tw.f32)
        for n in tw.steps(X.shape[1]):
            x = X[m, n].to(tw.f32)
            total.assign(total + x.sum(axis=1))
            squares.assign(squares + (x * x).sum(axis=1))
        mu = total / X.shape[1]
        mean[m] = mu
        variance[m] = squares / X.shape[1] - mu * mu


@tw.kernel(X="M K", W="K N", word="M", loss="M")
def cross_entropy(X, W, word, loss):
    for m in tw.tiles(loss):
        top, total, hit = tw.full((m,), -math.inf, tw.f32), tw.zeros((m,), tw.f32), tw.zeros((m,), tw.f32)
        for n in tw.steps(W.shape[1]):
            s = tw.zeros(dtype=tw.f32)
            for k in tw.steps(X.shape[1]):
                s += X[m, k] @ W[k, n]
            new = tw.maximum(top, s.max(axis=1))
            total.assign(total * tw.exp(top - new) + tw.exp(s - new[:, None]).sum(axis=1))
            hit.assign(hit + tw.where(tw.positions(n) == word[m][:, None], s, 0.0).sum(axis=1))
            top.assign(new)
        loss[m] = tw.log(total) + top - hit


@tw.kernel(X="M K", W="K N", best="M", at="M")
def argmax(X, W, best, at):
    for m in tw.tiles(best):
        top, place = tw.full((m,), -math.inf, tw.f32), tw.full((m,), 0, tw.i32)
        for n in tw.steps(W.shape[1]):
            s = tw.zeros(dtype=tw.f32)
            for k in tw.steps(X.shape[1]):
                s += X[m, k] @ W[k, n]
            here = s.max(axis=1)
            first = tw.where(s == here[:, None], tw.positions(n), 2**30).min(axis=1)
            place.assign(tw.where(here > top, first, place))
            top.assign(tw.maximum(top, here))
        best[m] = top
        at[m] = place


@tw.kernel(A="M K", B="K N", C="N P", D="M P")
def chain(A, B, C, D):
    for m, p in tw.tiles(D):
        out = tw.zeros((m, p), tw.f32)
        for n in tw.steps(C.shape[0]):
            s = tw.zeros(dtype=tw.f32)
            for k in tw.steps(A.shape[1]):
                s += A[m, k] @ B[k, n]
            out.assign(out + tw.maximum(s, 0).to(C.dtype) @ C[n, p])
        D[m, p] = out


@tw.kernel(Q="B H M D", K="B H N D", V="B H N E", O="B H M E", scale=tw.f32)
def attention(Q, K, V, O, scale):
    for b, h, m, e in tw.tiles(O):
        top, total, out = tw.full((m,), -math.inf, tw.f32), tw.zeros((m,), tw.f32), tw.zeros((m, e), tw.f32)
        for n in tw.steps(K.shape[2]):
            s = tw.zeros(dtype=tw.f32)
            for d in tw.steps(Q.shape[3]):
                s += Q[b, h, m, d] @ K[b, h, n, d].T
            new = tw.maximum(top, scale * s.max(axis=1))
            p, keep = tw.exp(scale * s - new[:, None]), tw.exp(top - new)
            total.assign(total * keep + p.sum(axis=1))
            out.assign(out * keep[:, None] + p.to(V.dtype) @ V[b, h, n, e])
            top.assign(new)
        O[b, h, m, e] = out / total[:, None]


@tw.kernel(Q="M D", K="N D", V="N E", O="M E", scale=tw.f32, shift=int, window=int)
def windowed(Q, K, V, O, scale, shift, window):
    """Row i sees the keys from ``i + shift - window`` up to ``i + shift``."""
    for m, e in tw.tiles(O):
        top, total, out = tw.full((m,), -math.inf, tw.f32), tw.zeros((m,), tw.f32), tw.zeros((m, e), tw.f32)
        for n in tw.steps(K.shape[0]):
            s = tw.zeros(dtype=tw.f32)
            for d in tw.steps(Q.shape[1]):
                s += Q[m, d] @ K[n, d].T
            last = tw.positions(m)[:, None] + shift
            seen = (tw.positions(n) <= last) & (tw.positions(n) + window >= last)
            s = tw.where(seen, scale * s, -math.inf)
            new = tw.maximum(top, s.max(axis=1))
            base = tw.where(new == -math.inf, 0.0, new)
            p, keep = tw.exp(s - base[:, None]), tw.exp(top - base)
            total.assign(total * keep + p.sum(axis=1))
            out.assign(out * keep[:, None] + p.to(V.dtype) @ V[n, e])
            top.assign(new)
        O[m, e] = tw.where(total[:, None] == 0, 0.0, out / total[:, None])


@tw.kernel(X="M N", W="N E", Y="M E")
def normalised(X, W, Y):
    """Divide the rows of a product by the root mean square of X's rows, and by their largest element."""
    for m, e in tw.tiles(Y):
        squares, out = tw.zeros((m,), tw.f32), tw.zeros((m, e), tw.f32)
        for n in tw.steps(X.shape[1]):
            x = X[m, n].to(tw.f32)
            squares.assign(squares + (x * x).sum(axis=1))
            out.assign(out + (x * 2).to(W.dtype) @ tw.absolute(W[n, e]))
        made = out * tw.rsqrt(squares / X.shape[1])[:, None]
        Y[m, e] = made / tw.absolute(made).max(axis=1)[:, None]


@tw.kernel(X="M K", W="N K", best="M T", at="M T")
def top_k(X, W, best, at):
    """The largest scores of each row in their order, and their places; of equal scores the first."""
    for m, t in tw.tiles(best):
        values, places = tw.full((m, t), -math.inf, tw.f32), tw.full((m, t), 0, tw.i32)
        for n in tw.steps(W.shape[0]):
            s, old, kept = tw.zeros(dtype=tw.f32), tw.zeros((m, t), tw.f32), tw.zeros((m, t), tw.i32)
            for d in tw.steps(X.shape[1]):
                s += X[m, d] @ W[n, d].T
            old.assign(values)
            kept.assign(places)
            for i, _ in tw.steps((best.shape[1], 1)):  # the largest that is left in the list or in the step
                known, new = old.max(axis=1), s.max(axis=1)
                before = tw.where(old == known[:, None], kept, 2**30).min(axis=1)
                first = tw.where(s == new[:, None], tw.positions(n), 2**30).min(axis=1)
                place, here = tw.where(known >= new, before, first), tw.positions(t) == tw.positions(i)
                values.assign(tw.where(here, tw.maximum(known, new)[:, None], values))
                places.assign(tw.where(here, place[:, None], places))
                old.assign(tw.where(kept == place[:, None], -math.inf, old))
                s.assign(tw.where(tw.positions(n) == place[:, None], -math.inf, s))
        best[m, t], at[m, t] = values, places


def longest(one, other, m, t, n, count):
    """The largest of two lists with their places, in order; of equal values those of the first list."""
    (left, known), (right, later) = one, other
    old, rest = tw.zeros((m, t), tw.f32), tw.zeros((m, n), tw.f32)
    values, places = tw.full((m, t), -math.inf, tw.f32), tw.full((m, t), 0, tw.i32)
    old.assign(left)
    rest.assign(right)
    for i, _ in tw.steps((count, 1)):  # the largest that is left in either
        a, b = old.max(axis=1), rest.max(axis=1)
        before = tw.where(old == a[:, None], known, 2**30).min(axis=1)
        behind = tw.where(rest == b[:, None], later, 2**30).min(axis=1)
        top, here = tw.maximum(a, b), tw.positions(t) == tw.positions(i)
        place = tw.where(top > -math.inf, tw.where(a >= b, before, behind), 0)
        values.assign(tw.where(here, top[:, None], values))
        places.assign(tw.where(here, place[:, None], places))
        old.assign(tw.where(known == place[:, None], -math.inf, old))
        rest.assign(tw.where(later == place[:, None], -math.inf, rest))
    return values, places


@tw.kernel(X="M K", W="N K", best="M T", at="M T")
def top_k_in_parts(X, W, best, at):
    """The largest scores of each row in their order, and their places; of equal scores the first."""
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


def add_moments(x, count, mu, squares):
    """Merge a step of values into the moments of a row: Welford's formulas about the mean of the step."""
    more = (0 * x + 1).sum(axis=1)
    here = x.sum(axis=1) / more
    far, apart, both = x - here[:, None], here - mu, count + more
    squares.assign(squares + (far * far).sum(axis=1) + apart * apart * (count * more / both))
    mu.assign(mu + apart * (more / both))
    count.assign(both)


@dataclass(frozen=True)
class FoldCase:
    """A kernel, its arguments, and its expected results.

    Args:
        kernel: the kernel.
        given: the arrays that it reads, and numbers, by name.
        results: dtype and shape of each array that it stores.
        expected: computes right results in f64 or integers from the arrays.
        room: the largest error of each result.
    """

    kernel: Kernel
    given: dict[str, Any]
    results: dict[str, Array]
    expected: dict[str, Array]
    room: dict[str, Any]

    def arguments(self, change: Callable[[Array], Any] = lambda array: array) -> dict[str, Any]:
        """All arguments by name; results are poisoned."""
        known = {**self.given, **{name: array.copy("K") for name, array in self.results.items()}}
        return {
            name: change(value) if isinstance(value, np.ndarray) else value for name, value in known.items()
        }

    def wrong(self, found: dict[str, Array]) -> list[str]:
        """Return descriptions of wrong results."""
        texts = []
        for name, right in self.expected.items():
            error = np.abs(np.asarray(found[name], np.float64) - right)
            bad = ~(error <= self.room[name])
            if bad.any():
                at = tuple(int(one[0]) for one in np.nonzero(bad))
                texts.append(f"{name}: {bad.sum()} wrong, {at} is {found[name][at]}, not {right[at]}")
        return texts


def poison(dtype: str, *shape: int) -> Array:
    made = np.empty(shape, dtype)
    made.fill(np.nan if made.dtype.kind == "f" else -77)
    return made


def strided(array: Array, gap: int) -> Array:
    """Return the same numbers, with gaps of ``gap`` elements between rows."""
    wide = np.zeros((*array.shape[:-1], array.shape[-1] + gap), array.dtype)
    wide[..., : array.shape[-1]] = array
    return wide[..., : array.shape[-1]]


def scores(rng: Any, M: int, K: int, N: int, kind: str) -> tuple[Array, Array, Array, Array]:
    """Return two factors, their product in f64, and the largest error of each row of it."""
    x, w = (rng.standard_normal(shape).astype(kind) for shape in ((M, K), (K, N)))
    s = x.astype(np.float64) @ w.astype(np.float64)
    # Tensor cores keep two bits less than f32 of each sum.
    room = 4 * (K + 4) * U * (np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64)).max(axis=1)
    return x, w, s, room


def cases(seed: int, *, ragged: bool = True) -> Iterator[tuple[str, FoldCase]]:
    """Return random problems of every kind.

    Args:
        seed: of the numbers.
        ragged: whether no extent is a multiple of a tile.
    """
    rng = np.random.default_rng(seed)
    M, N = (37, 94) if ragged else (64, 128)
    a, x = rng.standard_normal((M, N)), rng.standard_normal(N)
    yield (
        "largest",
        FoldCase(
            largest,
            {"A": a, "x": x},
            {"y": poison("f8", M)},
            {"y": (a * x).max(axis=1)},
            {"y": 0},
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
            {"mean": poison("f4", M), "variance": poison("f4", M)},
            {"mean": wide.mean(axis=1), "variance": wide.var(axis=1)},
            {"mean": sums[0], "variance": sums[1] + 4 * sums[0] * np.abs(wide).max()},
        ),
    )
    for kind, K in (("f2", 24), ("f2", 300), ("f4", 40), ("f4", 290)):
        left, right, s, room = scores(rng, M, K, N, kind)
        words = rng.integers(0, N, M).astype(np.int32)
        lse = np.logaddexp.reduce(s, axis=1)
        off = 2 * room + (N + 16) * U + 16 * U * (np.abs(s).max(axis=1) + np.abs(lse) + 1)
        yield (
            f"cross entropy, {kind}, K = {K}",
            FoldCase(
                cross_entropy,
                {"X": left, "W": right, "word": words},
                {"loss": poison("f4", M)},
                {"loss": lse - s[np.arange(M), words]},
                {"loss": off},
            ),
        )
    left, right = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((M, 20), (20, N)))
    s = left.astype(np.float64) @ right.astype(np.float64)  # many are equal: the first one counts
    yield (
        "argmax",
        FoldCase(
            argmax,
            {"X": left, "W": right},
            {"best": poison("f4", M), "at": poison("i4", M)},
            {"best": s.max(axis=1), "at": s.argmax(axis=1)},
            {"best": 0, "at": 0},
        ),
    )
    for P in (40, 300):
        factors = [rng.integers(-3, 4, shape).astype(np.float16) for shape in ((M, 20), (20, N), (N, P))]
        first = np.maximum(factors[0].astype(np.float64) @ factors[1], 0)
        yield (
            f"chain, P = {P}",
            FoldCase(
                chain,
                dict(zip("ABC", factors, strict=True)),
                {"D": poison("f4", M, P)},
                {"D": first @ factors[2].astype(np.float64)},  # f32 holds every sum
                {"D": 0},
            ),
        )
    for kind, D, E in (("f2", 24, 40), ("f2", 64, 64), ("f4", 24, 40), ("f2", 80, 264)):
        q, k, v = (rng.standard_normal((1, 2, *shape)).astype(kind) for shape in ((M, D), (N, D), (N, E)))
        scale = 0.25
        yield (
            f"attention, {kind}, {D}, {E}",
            FoldCase(
                attention,
                {"Q": q, "K": k, "V": v, "scale": scale},
                {"O": poison(kind, 1, 2, M, E)},
                {"O": tw.testing.softmax_attention(q, k, v, scale)},
                {"O": attention_room(q, k, v, scale)},
            ),
        )
    factors = [rng.integers(1, 4, shape).astype(np.float16) for shape in ((M, N), (N, 40))]
    factors[1] *= rng.choice([-1, 1], factors[1].shape).astype(np.float16)
    made = 2 * factors[0].astype(np.float64) @ np.abs(factors[1].astype(np.float64))
    yield (
        "normalised",
        FoldCase(
            normalised,
            dict(zip("XW", factors, strict=True)),
            {"Y": poison("f4", M, 40)},
            {"Y": made / made.max(axis=1)[:, None]},
            {"Y": 16 * U},
        ),
    )
