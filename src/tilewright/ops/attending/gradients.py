"""Gradients of attention as dataflow kernels.

They are two loops, each of which computes the weights again: `gradient_of_queries` over keys,
`gradients_of_keys` over queries.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tilewright.dtypes import f32, u64
from tilewright.lang.dataflow.indexing import positions
from tilewright.lang.dataflow.loops import steps, tiles, zeros
from tilewright.lang.exact_functions import fma, maximum, minimum, where
from tilewright.lang.functions import exp2
from tilewright.ops.attending.flow import DRAWN, NEVER_0, Dropped, KeyLoop, QueryRows, Scores, scores_of
from tilewright.runtime.kernel import kernel

WEIGHED: dict[str, Any] = {
    "Q": "B G R M D",
    "K": "B G N D",
    "V": "B G N E",
    "dO": "B G R M E",
    "shift": "B G R M",
    "delta": "B G R M",
    "bias": "B G R M N",
}
"""Arrays that both gradients read: `prepare` writes ``shift`` and ``delta``."""

STEPPED: dict[str, Any] = {"exponent": f32, "step": f32, "diagonal": int, **DRAWN}
"""Their numbers: `BySoftmax.of`'s exponent, the derivative of a score by a product, the mask's diagonal, and
those of dropout."""


@kernel(dO="B H M E", O="B H M E", L="B H M", shift="B H M", delta="B H M")
def prepare(dO: Any, O: Any, L: Any, shift: Any, delta: Any) -> None:
    """``delta = sum_e dO O``; shift is L as an exponent of two, and inf in rows that see no key."""
    for b, h, m in tiles(delta, batch=2):
        total = zeros((m,), f32)
        for e in steps(O.shape[3]):
            total.assign(total + (dO[b, h, m, e].to(f32) * O[b, h, m, e].to(f32)).sum(axis=1))
        delta[b, h, m] = total
        shift[b, h, m] = where(L[b, h, m] == -math.inf, math.inf, L[b, h, m] * math.log2(math.e))


@kernel(**WEIGHED, dQ="B G R M D", **STEPPED)
def gradient_of_queries(
    Q: Any,
    K: Any,
    V: Any,
    dO: Any,
    shift: Any,
    delta: Any,
    bias: Any,
    dQ: Any,
    exponent: Any,
    step: Any,
    diagonal: Any,
    seed: Any,
    offset: Any,
    threshold: Any,
    kept: Any,
    *,
    scores: Scores,
    factor: float,
    drops: bool,
    has_bias: bool,
) -> None:
    """``dQ = step dS K`` with ``dS = P (dO Vᵀ - delta)``, the gradient of products of queries and keys."""
    for b, g, r, m, d in tiles(dQ):
        rows = QueryRows(Q, None, None, (b, g, r), m, bias if has_bias else None)
        if drops:
            head = (positions(b).to(u64) * Q.shape[1] + positions(g).to(u64)) * Q.shape[2]
            first = (head + positions(r).to(u64)) * Q.shape[3]
            rows = rows._replace(dropped=Dropped((seed, offset, threshold, kept), first, K.shape[2]))
        keys = KeyLoop(K, V, (b, g), steps(K.shape[2]))
        _queries(Moved(dO, shift, delta, step), rows, keys, dQ, d, exponent, diagonal, scores, factor)


class Moved(NamedTuple):
    """What the gradients of both loops depend on besides queries, keys and values.

    Args:
        dout: the derivative of the loss by the result.
        shift: what `prepare` writes.
        delta: likewise.
        step: the derivative of a score by a product.
    """

    dout: Any
    shift: Any
    delta: Any
    step: Any


def _queries(
    moved: Moved,
    rows: QueryRows,
    keys: KeyLoop,
    result: Any,
    d: Any,
    exponent: Any,
    diagonal: Any,
    scores: Scores,
    factor: float,
) -> None:
    """Store the gradient of some queries of one head."""
    m, (dout, shift, delta, step) = rows.m, moved
    exponent = maximum(exponent, NEVER_0)  # it is positive: a hidden score weighs 0
    dq = zeros((m, d), f32)
    for n in keys.loop:
        s, dp = zeros(dtype=f32), zeros(dtype=f32)
        for c in steps(rows.q.shape[-1]):
            s += rows.q[(*rows.at, m, c)] @ keys.k[(*keys.at, n, c)].T
        for e in steps(keys.v.shape[-1]):
            dp += dout[(*rows.at, m, e)] @ keys.v[(*keys.at, n, e)].T
        added = None if rows.bias is None else rows.bias[(*rows.at, m, n)].to(f32)
        s, bent = scores_of(s, added, rows.numbers[:, None] + diagonal, keys.numbers(n), scores, factor)
        p = minimum(exp2(fma(s, exponent, -shift[(*rows.at, m)][:, None])), 1.0)  # shifts are rounded
        if rows.dropped is not None:
            dp = rows.dropped.drop(dp, positions(m)[:, None], positions(n))
        ds = p * (dp - delta[(*rows.at, m)][:, None])
        ds = ds if bent is None else ds * fma(-bent, bent, 1.0)
        dq.assign(dq + ds.to(keys.k.dtype) @ keys.k[(*keys.at, n, d)])
    result[(*rows.at, m, d)] = dq * step


@kernel(**WEIGHED, dK="B G N D", dV="B G N E", **STEPPED)
def gradients_of_keys(
    Q: Any,
    K: Any,
    V: Any,
    dO: Any,
    shift: Any,
    delta: Any,
    bias: Any,
    dK: Any,
    dV: Any,
    exponent: Any,
    step: Any,
    diagonal: Any,
    seed: Any,
    offset: Any,
    threshold: Any,
    kept: Any,
    *,
    scores: Scores,
    factor: float,
    drops: bool,
    has_bias: bool,
) -> None:
    """``dK = step dSᵀ Q`` and ``dV = Pᵀ dO``, sums over all heads of queries that share a head of keys."""
    for b, g, n, d, e in tiles((*dK.shape, dV.shape[3]), batch=2):
        rows = QueryRows(Q, None, None, (b, g), None, bias if has_bias else None)
        if drops:
            first = (positions(b).to(u64) * Q.shape[1] + positions(g).to(u64)) * Q.shape[2]
            dropped = Dropped((seed, offset, threshold, kept), first * Q.shape[3], K.shape[2])
            rows = rows._replace(dropped=dropped)
        keys = KeyLoop(K, V, (b, g), steps(Q.shape[2:4]))
        moved = Moved(dO, shift, delta, step)
        _keys(moved, rows, keys, n, (dK, d), (dV, e), exponent, diagonal, scores, factor)


def _keys(
    moved: Moved,
    rows: QueryRows,
    keys: KeyLoop,
    n: Any,
    of_keys: tuple[Any, Any],
    of_values: tuple[Any, Any],
    exponent: Any,
    diagonal: Any,
    scores: Scores,
    factor: float,
) -> None:
    """Store the gradients of some keys and values of one head.

    Args:
        moved: what they depend on besides queries, keys and values.
        rows: the queries of all heads that share the keys.
        keys: the keys and values, with the loop over heads and queries.
        n: the keys.
        of_keys: the gradient of keys, and its columns.
        of_values: the gradient of values, and its columns.
        exponent: `BySoftmax.of`'s exponent.
        diagonal: the mask's first diagonal.
        scores: how scores are computed.
        factor: their last factor.
    """
    (Q, K, V), (dout, shift, delta, step) = (rows.q, keys.k, keys.v), moved
    (dK, d), (dV, e) = of_keys, of_values
    exponent = maximum(exponent, NEVER_0)
    dk, dv = zeros((n, d), f32), zeros((n, e), f32)
    for r, m in keys.loop:
        at = (*rows.at, r, m)
        s, dp = zeros(dtype=f32), zeros(dtype=f32)
        for c in steps(Q.shape[-1]):
            s += K[(*keys.at, n, c)] @ Q[(*at, c)].T
        for c in steps(V.shape[-1]):
            dp += V[(*keys.at, n, c)] @ dout[(*at, c)].T
        added = None if rows.bias is None else rows.bias[(*at, n)].T.to(f32)
        last = positions(m) if rows.first is None else positions(m) - rows.first
        s, bent = scores_of(s, added, last + diagonal, keys.numbers(n)[:, None], scores, factor)
        p = weights = minimum(exp2(fma(s, exponent, -shift[at])), 1.0)
        if rows.dropped is not None:
            head = rows.dropped._replace(first=rows.dropped.first + positions(r).to(u64) * Q.shape[-2])
            weights = head.drop(p, positions(m), positions(n)[:, None])
            dp = head.drop(dp, positions(m), positions(n)[:, None])
        ds = p * (dp - delta[at])
        ds = ds if bent is None else ds * fma(-bent, bent, 1.0)
        dv.assign(dv + weights.to(dout.dtype) @ dout[(*at, e)])
        dk.assign(dk + ds.to(Q.dtype) @ Q[(*at, d)])
    dK[(*keys.at, n, d)], dV[(*keys.at, n, e)] = dk * step, dv


PACKED_WEIGHED: dict[str, Any] = {
    "Q": "G R T D",
    "K": "G U D",
    "V": "G U E",
    "dO": "G R T E",
    "shift": "G R T",
    "delta": "G R T",
    **dict.fromkeys(("q_starts", "q_ends", "k_starts", "k_ends"), "B"),
}
"""Arrays that both gradients of packed sequences read."""


@kernel(**PACKED_WEIGHED, dQ="G R T D", **STEPPED)
def packed_gradient_of_queries(
    Q: Any,
    K: Any,
    V: Any,
    dO: Any,
    shift: Any,
    delta: Any,
    q_starts: Any,
    q_ends: Any,
    k_starts: Any,
    k_ends: Any,
    dQ: Any,
    exponent: Any,
    step: Any,
    diagonal: Any,
    seed: Any,
    offset: Any,
    threshold: Any,
    kept: Any,
    *,
    scores: Scores,
    factor: float,
    drops: bool,
    from_last: bool,
) -> None:
    """`gradient_of_queries` of each sequence b, as `packed_attention` has them."""
    for b, g, r, m, d in tiles(dQ, groups=(q_starts, q_ends)):
        first = (q_ends[b], k_ends[b]) if from_last else (q_starts[b], k_starts[b])
        rows = QueryRows(Q, None, None, (g, r), m, None, first[0])
        if drops:
            head = positions(g).to(u64) * Q.shape[1] + positions(r).to(u64)
            dropped = Dropped((seed, offset, threshold, kept), head * Q.shape[2], K.shape[1])
            rows = rows._replace(dropped=dropped)
        loop = steps(K.shape[1], begin=k_starts[b], end=k_ends[b])
        keys = KeyLoop(K, V, (g,), loop, first[1])
        _queries(Moved(dO, shift, delta, step), rows, keys, dQ, d, exponent, diagonal, scores, factor)


@kernel(**PACKED_WEIGHED, dK="G U D", dV="G U E", **STEPPED)
def packed_gradients_of_keys(
    Q: Any,
    K: Any,
    V: Any,
    dO: Any,
    shift: Any,
    delta: Any,
    q_starts: Any,
    q_ends: Any,
    k_starts: Any,
    k_ends: Any,
    dK: Any,
    dV: Any,
    exponent: Any,
    step: Any,
    diagonal: Any,
    seed: Any,
    offset: Any,
    threshold: Any,
    kept: Any,
    *,
    scores: Scores,
    factor: float,
    drops: bool,
    from_last: bool,
) -> None:
    """`gradients_of_keys` of each sequence b, likewise."""
    for b, g, n, d, e in tiles((*dK.shape, dV.shape[2]), batch=1, groups=(k_starts, k_ends)):
        first = (q_ends[b], k_ends[b]) if from_last else (q_starts[b], k_starts[b])
        rows = QueryRows(Q, None, None, (g,), None, None, first[0])
        if drops:
            head = positions(g).to(u64) * Q.shape[1]
            dropped = Dropped((seed, offset, threshold, kept), head * Q.shape[2], K.shape[1])
            rows = rows._replace(dropped=dropped)
        loop = steps(Q.shape[1:3], begin=q_starts[b], end=q_ends[b])
        keys, moved = KeyLoop(K, V, (g,), loop, first[1]), Moved(dO, shift, delta, step)
        _keys(moved, rows, keys, n, (dK, d), (dV, e), exponent, diagonal, scores, factor)
