"""Attention, its gradients, and chains as dataflow kernels: loops over keys, or over queries.

`definition` is the shortest form, with which tests compare all kernels.  `attention` is the form that is
launched: its exponentials are powers of two, and its state never is infinite; see
`tilewright.ops.attending.softmax`, whose formulas it has.  The gradients are two loops, each of which
computes the weights again: `gradient_of_queries` over keys, `gradients_of_keys` over queries.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tilewright.dtypes import f32, u32, u64
from tilewright.lang.dataflow.indexing import positions
from tilewright.lang.dataflow.loops import full, steps, tiles, zeros
from tilewright.lang.exact_functions import absolute, fma, maximum, minimum, where
from tilewright.lang.functions import dropout, exp, exp2, log, log2, tanh
from tilewright.lang.launch import require
from tilewright.lang.scalars import ceil_div
from tilewright.ops.attending.softmax import LOWEST, NEVER_0, STEEP, BySoftmax
from tilewright.ops.ending import ACTIVATIONS
from tilewright.runtime.kernel import kernel


@kernel(
    Q="B G R M D",
    K="B G N D",
    V="B G N E",
    mask="M N",
    O="B G R M E",
    L="B G R M",
    scale=f32,
)
def definition(Q: Any, K: Any, V: Any, mask: Any, O: Any, L: Any, scale: Any) -> None:
    """``O = softmax(scale Q Kᵀ + mask) V`` for R heads of queries that share a head of keys, and L."""
    for b, g, r, m, e in tiles(O):
        top, total, out = full((m,), -math.inf, f32), zeros((m,), f32), zeros((m, e), f32)
        for n in steps(K.shape[2]):
            s = zeros(dtype=f32)
            for d in steps(Q.shape[4]):
                s += Q[b, g, r, m, d] @ K[b, g, n, d].T
            s = scale * s + mask[m, n]
            new = maximum(top, s.max(axis=1))
            base = where(new == -math.inf, 0.0, new)
            p, keep = exp(s - base[:, None]), exp(top - base)
            total.assign(total * keep + p.sum(axis=1))
            out.assign(out * keep[:, None] + p @ V[b, g, n, e].to(f32))
            top.assign(new)
        O[b, g, r, m, e] = where(total[:, None] == 0, 0.0, out / total[:, None])
        L[b, g, r, m] = log(total) + top


class Scores(NamedTuple):
    """How scores are computed from products of queries and keys, besides their scale.

    Args:
        causal: whether row i sees the keys up to ``i + diagonal`` only.
        window: number of keys that a row sees at most; None: all of these.
        soft_cap: (a, b), for which scores are ``b tanh(a s)`` of products s; None: they are the products.
        scale: factor of the products if it cannot be part of the exponent; else None.
    """

    causal: bool
    window: int | None = None
    soft_cap: tuple[float, float] | None = None
    scale: float | None = None


ARRAYS = {"Q": "B G R M D", "K": "B G N D", "V": "B G N E", "O": "B G R M E", "L": "B G R M"}
NUMBERS: dict[str, Any] = {"exponent": f32, "diagonal": int}
"""Parameters of attention: `BySoftmax.of`'s exponent, and the mask's first diagonal."""


@kernel(**ARRAYS, **NUMBERS)
def attention(
    Q: Any,
    K: Any,
    V: Any,
    O: Any,
    L: Any,
    exponent: Any,
    diagonal: Any,
    *,
    scores: Scores,
    between: BySoftmax,
    with_lse: bool,
) -> None:
    """``O = softmax(scale Q Kᵀ) V`` for R heads of queries that share a head of keys, and L."""
    for b, g, r, m, e in tiles(O):
        rows = QueryRows(Q, O, L if with_lse else None, (b, g, r), m)
        keys = KeyLoop(K, V, (b, g), steps(K.shape[2]))
        _attend(rows, keys, e, exponent, diagonal, scores, between)


DRAWN: dict[str, Any] = {"seed": u64, "offset": u64, "threshold": u32, "kept": f32}
"""Numbers of dropout, as `tilewright.ops.wanted.Dropout` has them."""


@kernel(**ARRAYS, bias="B G R M N", sinks="G R", lengths="B", **NUMBERS, **DRAWN)
def attention_with_terms(
    Q: Any,
    K: Any,
    V: Any,
    O: Any,
    L: Any,
    bias: Any,
    sinks: Any,
    lengths: Any,
    exponent: Any,
    diagonal: Any,
    seed: Any,
    offset: Any,
    threshold: Any,
    kept: Any,
    *,
    scores: Scores,
    between: BySoftmax,
    with_lse: bool,
    from_last: bool,
    terms: frozenset[str],
) -> None:
    """``O = dropout(softmax(scale Q Kᵀ + bias)) V``, likewise, with a sink for each head of queries.

    Args:
        Q: queries, and so on: see `attention`.
        K: keys.
        V: values.
        O: results.
        L: logarithms of sums.
        bias: is added to the scores, if ``"bias"`` is one of the terms; otherwise it is not read.
        sinks: a score of each head that joins the sum of its weights, if ``"sinks"`` is one.
        lengths: numbers of the keys of each batch, if ``"lengths"`` is one.
        exponent: `BySoftmax.of`'s exponent.
        diagonal: the mask's first diagonal.
        seed: the numbers of dropout, if ``"dropout"`` is one.
        offset: likewise.
        threshold: likewise.
        kept: likewise.
        scores: how scores are computed.
        between: the softmax.
        with_lse: whether L is stored.
        from_last: whether the mask counts from the last row, and from the last key of the batch.
        terms: the terms that the call has.
    """
    given = Terms(terms, bias, sinks, lengths, (seed, offset, threshold, kept), from_last)
    _attend_to_caches(Q, K, V, O, L if with_lse else None, given, exponent, diagonal, scores, between)


class Terms(NamedTuple):
    """What enters attention besides queries, keys and values.

    Args:
        names: ``"bias"``, ``"sinks"``, ``"lengths"`` and ``"dropout"``, if the call has them.
        bias: is added to the scores.
        sinks: a score of each head that joins the sum of its weights.
        lengths: numbers of the keys of each batch.
        drawn: the numbers of dropout.
        from_last: whether the mask counts from the last row, and from the last key of the batch.
    """

    names: frozenset[str]
    bias: Any
    sinks: Any
    lengths: Any
    drawn: tuple[Any, Any, Any, Any]
    from_last: bool


def _attend_to_caches(
    Q: Any,
    K: Any,
    V: Any,
    O: Any,
    L: Any,
    given: Terms,
    exponent: Any,
    diagonal: Any,
    scores: Scores,
    between: BySoftmax,
) -> None:
    """Store the attention of all rows to the keys of their batch."""
    terms = given.names
    for b, g, r, m, e in tiles(O):
        end = given.lengths[b] if "lengths" in terms else None
        first = (Q.shape[3], end) if given.from_last else (None, None)
        head = (positions(b).to(u64) * Q.shape[1] + positions(g).to(u64)) * Q.shape[2] + positions(r).to(u64)
        dropped = Dropped(given.drawn, head * Q.shape[3], K.shape[2])
        rows = QueryRows(
            Q,
            O,
            L,
            (b, g, r),
            m,
            given.bias if "bias" in terms else None,
            first=first[0],
            sink=given.sinks[g, r].to(f32) if "sinks" in terms else None,
            dropped=dropped if "dropout" in terms else None,
        )
        keys = KeyLoop(K, V, (b, g), steps(K.shape[2], end=end), first[1])
        _attend(rows, keys, e, exponent, diagonal, scores, between)


PAGED = ARRAYS | {"K": "P S G D", "V": "P S G E", "sinks": "G R", "lengths": "B", "pages": "B T"}
"""Arrays whose keys and values lie in pages of S rows, with the numbers of the pages of each batch."""


@kernel(**PAGED, **NUMBERS, **DRAWN)
def paged_attention(
    Q: Any,
    K: Any,
    V: Any,
    O: Any,
    L: Any,
    sinks: Any,
    lengths: Any,
    pages: Any,
    exponent: Any,
    diagonal: Any,
    seed: Any,
    offset: Any,
    threshold: Any,
    kept: Any,
    *,
    page: int,
    scores: Scores,
    between: BySoftmax,
    with_lse: bool,
    from_last: bool,
    terms: frozenset[str],
) -> None:
    """`attention_with_terms`, where key n of batch b is ``K[pages[b, n // page], n % page]``."""
    require(K.shape[1] == page, f"pages have {page} rows")
    k, v = (one[:, :page].rows(pages).merge(1).permute(0, 2, 1, 3) for one in (K, V))
    given = Terms(terms, None, sinks, lengths, (seed, offset, threshold, kept), from_last)
    _attend_to_caches(Q, k, v, O, L if with_lse else None, given, exponent, diagonal, scores, between)


PACKED: dict[str, Any] = {
    "Q": "G R T D",
    "K": "G U D",
    "V": "G U E",
    "O": "G R T E",
    "L": "G R T",
    "sinks": "G R",
    **dict.fromkeys(("q_starts", "q_ends", "k_starts", "k_ends"), "B"),
}
"""Arrays of sequences that follow each other, and the bounds of their queries and keys."""


@kernel(**PACKED, **NUMBERS, **DRAWN)
def packed_attention(
    Q: Any,
    K: Any,
    V: Any,
    O: Any,
    L: Any,
    sinks: Any,
    q_starts: Any,
    q_ends: Any,
    k_starts: Any,
    k_ends: Any,
    exponent: Any,
    diagonal: Any,
    seed: Any,
    offset: Any,
    threshold: Any,
    kept: Any,
    *,
    scores: Scores,
    between: BySoftmax,
    with_lse: bool,
    from_last: bool,
    terms: frozenset[str],
) -> None:
    """Attention of each sequence b to its own keys; queries and keys are counted from its first or last."""
    for b, g, r, m, e in tiles(O, groups=(q_starts, q_ends)):
        first = (q_ends[b], k_ends[b]) if from_last else (q_starts[b], k_starts[b])
        head = positions(g).to(u64) * Q.shape[1] + positions(r).to(u64)
        dropped = Dropped((seed, offset, threshold, kept), head * Q.shape[2], K.shape[1])
        rows = QueryRows(
            Q,
            O,
            L if with_lse else None,
            (g, r),
            m,
            first=first[0],
            sink=sinks[g, r].to(f32) if "sinks" in terms else None,
            dropped=dropped if "dropout" in terms else None,
        )
        loop = steps(K.shape[1], begin=k_starts[b], end=k_ends[b])
        _attend(rows, KeyLoop(K, V, (g,), loop, first[1]), e, exponent, diagonal, scores, between)


class Dropped(NamedTuple):
    """Weights that are set to 0 by random numbers of their place; the others are multiplied by a number.

    The weight of a query i and a key j has the number ``(head M + i) P + j``, where P is N rounded up to a
    multiple of 4: four neighbours share a generation of random numbers.

    Args:
        numbers: seed, offset, threshold, and the factor of the others.
        first: ``head M`` for all M queries of a head.
        keys: N.
    """

    numbers: tuple[Any, Any, Any, Any]
    first: Any
    keys: Any

    def drop(self, weights: Any, i: Any, j: Any) -> Any:
        """Return weights of queries i and keys j, some of which are 0."""
        index = (self.first + i.to(u64)) * (ceil_div(self.keys, 4) * 4) + j.to(u64)
        seed, offset, threshold, kept = self.numbers
        return dropout(weights, index, threshold, kept, seed, offset)


class QueryRows(NamedTuple):
    """Queries of one head, and where their results go.

    Args:
        q: all queries.
        out: all results.
        lse: all logarithms of sums; None: they are not stored.
        at: the place of the head.
        m: the rows.
        bias: is added to the scores of all queries; None: nothing.
        first: the row from which the mask counts; None: the first one.
        sink: a score that joins the sum of the weights of each row; None: none does.
        dropped: which weights are 0; None: none is.
    """

    q: Any
    out: Any
    lse: Any
    at: tuple[Any, ...]
    m: Any
    bias: Any = None
    first: Any = None
    sink: Any = None
    dropped: Dropped | None = None

    @property
    def numbers(self) -> Any:
        """The number of each row in the mask."""
        return positions(self.m) if self.first is None else positions(self.m) - self.first


class KeyLoop(NamedTuple):
    """Keys and values of one head.

    Args:
        k: all keys.
        v: all values.
        at: the place of the head.
        loop: the loop over the keys.
        first: the key from which the mask counts; None: the first one.
    """

    k: Any
    v: Any
    at: tuple[Any, ...]
    loop: Any
    first: Any = None

    def numbers(self, n: Any) -> Any:
        """The number of each key of a step in the mask."""
        return positions(n) if self.first is None else positions(n) - self.first


def _attend(
    rows: QueryRows, keys: KeyLoop, e: Any, exponent: Any, diagonal: Any, scores: Scores, between: BySoftmax
) -> None:
    """Store the attention of some rows of one head, and the logarithms of their sums."""
    m, factor, power = rows.m, between.factor, between.power
    exponent = maximum(exponent, NEVER_0)  # it is positive: a hidden score weighs 0
    top, base = full((m,), LOWEST, f32), full((m,), LOWEST * power, f32)
    total, out = zeros((m,), f32), zeros((m, e), f32)
    for n in keys.loop:
        s = zeros(dtype=f32)
        for d in steps(keys.k.shape[-1]):
            s += rows.q[(*rows.at, m, d)] @ keys.k[(*keys.at, n, d)].T
        added = None if rows.bias is None else rows.bias[(*rows.at, m, n)].to(f32)
        s, _ = scores_of(s, added, rows.numbers[:, None] + diagonal, keys.numbers(n), scores, factor)
        new = maximum(top, s.max(axis=1))
        if power:
            steep = where(absolute(new * exponent) < STEEP, exponent, power)
            shift = new * steep
            p, keep = exp2(fma(s, steep[:, None], -shift[:, None])), exp2(base - shift)
            base.assign(shift)
        else:
            p, keep = exp2((s - new[:, None]) * exponent), exp2((top - new) * exponent)
        total.assign(fma(total, keep, p.sum(axis=1)))
        weights = p if rows.dropped is None else rows.dropped.drop(p, positions(m)[:, None], positions(n))
        out.assign(out * keep[:, None] + weights.to(keys.v.dtype) @ keys.v[(*keys.at, n, e)])
        top.assign(new)
    mean = where(total[:, None] == 0, 0.0, out * (1.0 / total)[:, None])
    if power:
        lse = (log2(total) + top * exponent) * math.log(2)
    else:  # the product of the largest score and the exponent may overflow
        lse = fma(top, exponent * math.log(2), log2(total) * math.log(2))
    if rows.sink is not None:
        above = absolute(lse - rows.sink)
        share = 1.0 / (1.0 + exp(rows.sink - lse))  # of the keys
        joined = maximum(lse, rows.sink) + log(1.0 + exp(-above))
        mean = where(total[:, None] == 0, 0.0, mean * share[:, None])
        lse = where(total == 0, rows.sink, joined)
    rows.out[(*rows.at, m, e)] = mean
    if rows.lse is not None:
        rows.lse[(*rows.at, m)] = lse


def scores_of(s: Any, bias: Any, last: Any, at: Any, scores: Scores, factor: float) -> tuple[Any, Any]:
    """Return scores of products ``s``, -inf where a key is hidden, and the tanh of their bound, or None.

    Args:
        s: products of queries and keys.
        bias: is added; None: nothing.
        last: the last key that each query sees behind a mask.
        at: the key of each score.
        scores: how scores are computed.
        factor: multiplies scores last.
    """
    bent = None
    if scores.soft_cap is not None:
        bent = tanh(s * scores.soft_cap[0])
        s = scores.soft_cap[1] * bent
    if scores.scale is not None:
        s = s * scores.scale
    if bias is not None:
        s = s + bias
    if factor != 1:
        s = s * factor
    if scores.causal:
        seen = at <= last
        seen = seen if scores.window is None else seen & (at >= last - (scores.window - 1))
        s = where(seen, s, -math.inf)
    return s, bent


# ---------------------------------------------------------------- gradients

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


@kernel(A="B G R M K", B="B G N K", C="B G N P", D="B G R M P")
def gemm_chain(A: Any, B: Any, C: Any, D: Any, *, activation: str | None) -> None:
    """``D = activation(A Bᵀ) C``, with the first product rounded to the dtype of C."""
    for b, g, r, m, p in tiles(D):
        out = zeros((m, p), f32)
        for n in steps(C.shape[2]):
            s = zeros(dtype=f32)
            for k in steps(A.shape[4]):
                s += A[b, g, r, m, k] @ B[b, g, n, k].T
            weights = s if activation is None else ACTIVATIONS[activation](s)
            out.assign(out + weights.to(C.dtype) @ C[b, g, n, p])
        D[b, g, r, m, p] = out
