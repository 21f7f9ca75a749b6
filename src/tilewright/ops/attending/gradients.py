"""Gradients of attention as dataflow kernels.

There are two loops, and each computes the weights again: `gradient_of_queries` over keys, and
`gradients_of_keys` over queries.
"""

from __future__ import annotations

import math
from typing import Any

from tilewright.dtypes import f32, u64
from tilewright.lang.dataflow.indexing import positions
from tilewright.lang.dataflow.loops import steps, tiles, zeros
from tilewright.lang.exact_functions import fma, maximum, minimum, where
from tilewright.lang.functions import exp2
from tilewright.ops.attending.flow import (
    BOUNDS,
    DRAWN,
    NEVER_0,
    Dropped,
    KeyLoop,
    QueryRows,
    Scores,
    first_of_sequence,
    scores_of,
)
from tilewright.ops.tiled_product import kernel_by_name
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
"""Scalar arguments of both gradients: `BySoftmax.of`'s exponent, the derivative of a score with respect to a
product, the mask's diagonal, and those of dropout."""


@kernel(dO="B H M E", O="B H M E", L="B H M", shift="B H M", delta="B H M")
def prepare(dO: Any, O: Any, L: Any, shift: Any, delta: Any) -> None:
    """``delta = sum_e dO O``; shift is L as an exponent of two, and inf in rows that see no key."""
    for b, h, m in tiles(delta, batch=2):
        total = zeros((m,), f32)
        for e in steps(O.shape[3]):
            total.assign(total + (dO[b, h, m, e].to(f32) * O[b, h, m, e].to(f32)).sum(axis=1))
        delta[b, h, m] = total
        shift[b, h, m] = where(L[b, h, m] == -math.inf, math.inf, L[b, h, m] * math.log2(math.e))


@kernel_by_name(**WEIGHED, dQ="B G R M D", **STEPPED)
def gradient_of_queries(given: Any, *, scores: Scores, factor: float, drops: bool, has_bias: bool) -> None:
    """``dQ = step dS K`` with ``dS = P (dO Vᵀ - delta)``, the gradient of products of queries and keys."""
    for b, g, r, m, d in tiles(given.dQ):
        rows = rows_of(given, (b, g, r), m, drops, given.bias if has_bias else None)
        keys = KeyLoop(given.K, given.V, (b, g), steps(given.K.shape[2]))
        _queries(given, rows, keys, d, scores, factor)


def rows_of(given: Any, at: tuple[Any, ...], m: Any, drops: bool, bias: Any, first: Any = None) -> QueryRows:
    """Return the queries of a head, or of several heads.

    Args:
        given: the arrays and numbers of the kernel.
        at: the spans of the batch and the head, or of the heads.
        m: the rows; None for several heads.
        drops: whether weights are dropped.
        bias: the array that is added to the scores, or None.
        first: the row from which the mask counts; None: the first one.
    """
    dropped = Dropped.of(given, at, given.K) if drops else None
    return QueryRows(given.Q, None, None, at, m, bias, first, dropped=dropped)


def slopes(
    given: Any,
    rows: QueryRows,
    keys: KeyLoop,
    n: Any,
    scores: Scores,
    factor: float,
    *,
    of_keys: bool = False,
    of_products: bool = True,
) -> tuple[Any, Any]:
    """Return the weights P of a tile before dropout, and ``dS = P (dO Vᵀ - delta)``.

    Args:
        given: the arrays and numbers of the kernel: those of `WEIGHED` and `STEPPED`.
        rows: the queries of one head.
        keys: the keys and values of one head.
        n: the keys of the tile.
        scores: how scores are computed.
        factor: their last factor.
        of_keys: whether a row of the tile is a key, not a query.
        of_products: whether dS is the derivative with respect to products, not to scores after the soft cap.
    """
    at, dout = (*rows.at, rows.m), given.dO
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
    added = None if rows.bias is None else rows.bias[(*rows.at, rows.m, n)]
    if added is not None:
        added = (added.T if of_keys else added).to(f32)
    last, key_numbers = along(rows.numbers, True), along(keys.numbers(n), False)
    s, bent = scores_of(s, added, last + given.diagonal, key_numbers, scores, factor)
    power = maximum(given.exponent, NEVER_0)  # positive, because a hidden score is -inf, and -inf * 0 is NaN
    # A weight is at most 1, but shifts are rounded.
    p = minimum(exp2(fma(s, power, -along(given.shift[at], True))), 1.0)
    if rows.dropped is not None:
        dp = rows.dropped.drop(dp, along(positions(rows.m), True), along(positions(n), False))
    ds = p * (dp - along(given.delta[at], True))
    return p, ds if bent is None or not of_products else ds * fma(-bent, bent, 1.0)


def _queries(given: Any, rows: QueryRows, keys: KeyLoop, d: Any, scores: Scores, factor: float) -> None:
    """Store the gradient of some queries of one head."""
    dq = zeros((rows.m, d), f32)
    for n in keys.loop:
        _, ds = slopes(given, rows, keys, n, scores, factor)
        dq.assign(dq + ds.to(keys.k.dtype) @ keys.k[(*keys.at, n, d)])
    given.dQ[(*rows.at, rows.m, d)] = dq * given.step


@kernel_by_name(**WEIGHED, dK="B G N D", dV="B G N E", **STEPPED)
def gradients_of_keys(given: Any, *, scores: Scores, factor: float, drops: bool, has_bias: bool) -> None:
    """``dK = step dSᵀ Q`` and ``dV = Pᵀ dO``, sums over all heads of queries that share a head of keys."""
    for b, g, n, d, e in tiles((*given.dK.shape, given.dV.shape[3]), batch=2):
        rows = rows_of(given, (b, g), None, drops, given.bias if has_bias else None)
        keys = KeyLoop(given.K, given.V, (b, g), steps(given.Q.shape[2:4]))
        _keys(given, rows, keys, n, (d, e), scores, factor)


def _keys(
    given: Any,
    rows: QueryRows,
    keys: KeyLoop,
    n: Any,
    columns: tuple[Any, Any],
    scores: Scores,
    factor: float,
) -> None:
    """Store the gradients of some keys and values of one head.

    Args:
        given: the arrays and numbers of the kernel.
        rows: the queries of all heads that share the keys.
        keys: the keys and values, with the loop over heads and queries.
        n: the keys.
        columns: the columns of the keys and of the values.
        scores: how scores are computed.
        factor: their last factor.
    """
    (d, e), Q, dout = columns, rows.q, given.dO
    dk, dv = zeros((n, d), f32), zeros((n, e), f32)
    for r, m in keys.loop:
        head = rows._replace(at=(*rows.at, r), m=m)
        if rows.dropped is not None:
            first = rows.dropped.first + positions(r).to(u64) * Q.shape[-2]
            head = head._replace(dropped=rows.dropped._replace(first=first))
        weights, ds = slopes(given, head, keys, n, scores, factor, of_keys=True)
        if head.dropped is not None:
            weights = head.dropped.drop(weights, positions(m), positions(n)[:, None])
        dv.assign(dv + weights.to(dout.dtype) @ dout[(*head.at, m, e)])
        dk.assign(dk + ds.to(Q.dtype) @ Q[(*head.at, m, d)])
    given.dK[(*keys.at, n, d)], given.dV[(*keys.at, n, e)] = dk * given.step, dv


PACKED_WEIGHED: dict[str, Any] = {
    "Q": "G R T D",
    "K": "G U D",
    "V": "G U E",
    "dO": "G R T E",
    "shift": "G R T",
    "delta": "G R T",
    **dict.fromkeys(BOUNDS, "B"),
}
"""Arrays that both gradients of packed sequences read."""


@kernel_by_name(**PACKED_WEIGHED, dQ="G R T D", **STEPPED)
def packed_gradient_of_queries(
    given: Any, *, scores: Scores, factor: float, drops: bool, from_last: bool
) -> None:
    """`gradient_of_queries` for each packed sequence b; see `packed_attention`."""
    for b, g, r, m, d in tiles(given.dQ, groups=(given.q_starts, given.q_ends)):
        first_row, first_key = first_of_sequence(given, b, from_last)
        rows = rows_of(given, (g, r), m, drops, None, first_row)
        loop = steps(given.K.shape[1], begin=given.k_starts[b], end=given.k_ends[b])
        _queries(given, rows, KeyLoop(given.K, given.V, (g,), loop, first_key), d, scores, factor)


@kernel_by_name(**PACKED_WEIGHED, dK="G U D", dV="G U E", **STEPPED)
def packed_gradients_of_keys(
    given: Any, *, scores: Scores, factor: float, drops: bool, from_last: bool
) -> None:
    """`gradients_of_keys` for each packed sequence b; see `packed_attention`."""
    columns, groups = (*given.dK.shape, given.dV.shape[2]), (given.k_starts, given.k_ends)
    for b, g, n, d, e in tiles(columns, batch=1, groups=groups):
        first_row, first_key = first_of_sequence(given, b, from_last)
        rows = rows_of(given, (g,), None, drops, None, first_row)
        loop = steps(given.Q.shape[1:3], begin=given.q_starts[b], end=given.q_ends[b])
        _keys(given, rows, KeyLoop(given.K, given.V, (g,), loop, first_key), n, (d, e), scores, factor)
