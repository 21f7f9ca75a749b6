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


def slopes(
    moved: Moved,
    rows: QueryRows,
    keys: KeyLoop,
    n: Any,
    exponent: Any,
    diagonal: Any,
    scores: Scores,
    factor: float,
    *,
    of_keys: bool = False,
    of_products: bool = True,
) -> tuple[Any, Any]:
    """Return the weights P of a tile before dropout, and ``dS = P (dO Vᵀ - delta)``.

    Args:
        moved: what they depend on besides queries, keys and values.
        rows: the queries of one head.
        keys: the keys and values of one head.
        n: the keys of the tile.
        exponent: `BySoftmax.of`'s exponent.
        diagonal: the mask's first diagonal.
        scores: how scores are computed.
        factor: their last factor.
        of_keys: whether a row of the tile is a key, not a query.
        of_products: whether dS is the derivative by products, and not by scores after their bound.
    """
    at, (dout, shift, delta, _) = (*rows.at, rows.m), moved
    s, dp = zeros(dtype=f32), zeros(dtype=f32)

    def along(value: Any, rows: bool) -> Any:
        """Values of queries, or of keys, along the tile's rows or columns."""
        return value[:, None] if rows != of_keys else value

    for c in steps(rows.q.shape[-1]):
        pair = rows.q[(*at, c)], keys.k[(*keys.at, n, c)]
        s += pair[of_keys] @ pair[not of_keys].T
    for e in steps(keys.v.shape[-1]):
        pair = dout[(*at, e)], keys.v[(*keys.at, n, e)]
        dp += pair[of_keys] @ pair[not of_keys].T
    added = None if rows.bias is None else rows.bias[(*at, n)]
    if added is not None:
        added = (added.T if of_keys else added).to(f32)
    last, key_numbers = along(rows.numbers, True), along(keys.numbers(n), False)
    s, bent = scores_of(s, added, last + diagonal, key_numbers, scores, factor)
    power = maximum(exponent, NEVER_0)  # it is positive: a hidden score weighs 0
    p = minimum(exp2(fma(s, power, -along(shift[at], True))), 1.0)  # shifts are rounded
    if rows.dropped is not None:
        dp = rows.dropped.drop(dp, along(positions(rows.m), True), along(positions(n), False))
    ds = p * (dp - along(delta[at], True))
    return p, ds if bent is None or not of_products else ds * fma(-bent, bent, 1.0)


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
    dq = zeros((rows.m, d), f32)
    for n in keys.loop:
        _, ds = slopes(moved, rows, keys, n, exponent, diagonal, scores, factor)
        dq.assign(dq + ds.to(keys.k.dtype) @ keys.k[(*keys.at, n, d)])
    result[(*rows.at, rows.m, d)] = dq * moved.step


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
    (dK, d), (dV, e), (Q, dout) = of_keys, of_values, (rows.q, moved.dout)
    dk, dv = zeros((n, d), f32), zeros((n, e), f32)
    for r, m in keys.loop:
        head = rows._replace(at=(*rows.at, r), m=m)
        if rows.dropped is not None:
            first = rows.dropped.first + positions(r).to(u64) * Q.shape[-2]
            head = head._replace(dropped=rows.dropped._replace(first=first))
        weights, ds = slopes(moved, head, keys, n, exponent, diagonal, scores, factor, of_keys=True)
        if head.dropped is not None:
            weights = head.dropped.drop(weights, positions(m), positions(n)[:, None])
        dv.assign(dv + weights.to(dout.dtype) @ dout[(*head.at, m, e)])
        dk.assign(dk + ds.to(Q.dtype) @ Q[(*head.at, m, d)])
    dK[(*keys.at, n, d)], dV[(*keys.at, n, e)] = dk * moved.step, dv


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
