"""Attention and chains as dataflow kernels: loops over keys.

`definition` is the shortest form, with which tests compare all kernels.  `attention` is the form that is
launched: its exponentials are powers of two, and its state is never infinite.  For each row, its loop keeps
the largest score and the sum of the weights so far, and computes the factor that rescales earlier sums.

A weight is ``exp2(fma(score, exponent, -base))`` with ``base = round(largest * exponent)``: one instruction
before the exponential.  The rounding error of the base multiplies all weights of a row by the same factor, so
it cancels in their average.  The factor is at most 2**4 while the base is below `STEEP`; above, it would grow
to infinity or shrink to 0.  Above `STEEP`, exponents of neighbouring f32 scores differ by 8 or more, so every
score but the largest weighs less than 2**-7.  There the exponent of the row is rounded up to a power of two:
its product with the largest score is exact, and the largest weight is 1.

If the exponent is above 1, that product could overflow.  Then the largest score is subtracted first, which
costs one more instruction for each score.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from tilewright.dtypes import f32, limits, u32, u64
from tilewright.lang.dataflow.indexing import positions
from tilewright.lang.dataflow.loops import full, steps, tiles, zeros
from tilewright.lang.exact_functions import absolute, fma, maximum, where
from tilewright.lang.functions import dropout, exp, exp2, log, log2, tanh
from tilewright.lang.launch import require
from tilewright.lang.scalars import ceil_div
from tilewright.ops.ending import ACTIVATIONS
from tilewright.ops.tiled_product import kernel_by_name
from tilewright.runtime.kernel import kernel

FAINT = 2.0**-64
"""Scales below this multiply scores in two steps, so that the exponent fits f32."""

NEVER_0 = 2.0**-100
"""Replaces a scale of 0 in the second step: its product with an f32 score after the first is below 2**-36."""

STEEP = 2.0**27
"""Least base for which the exponent of a row is rounded up to a power of two."""

LOWEST = limits(f32)[0]
"""Initial largest score of a row. With -inf instead, the difference to a hidden score would be NaN."""


@dataclass(frozen=True)
class BySoftmax:
    """Weights are the exponentials of scores over their sum.

    Args:
        factor: the first factor of the scale, which multiplies scores before anything else: 1, or -1 for a
            negative scale, times `FAINT` for a scale close to 0.
        power: a power of two not below the exponent; 0 if the exponent exceeds 1.
    """

    factor: float = 1.0
    power: float = 1.0

    @staticmethod
    def of(scale: float) -> tuple[BySoftmax, float]:
        """Return the softmax of scaled scores, and the exponent argument of its kernels.

        The exponent is ``abs(scale) * log2(e)`` without the first factor.  It is more than 0: a score that
        is hidden is -inf, which times 0 is NaN.
        """
        size, factor = (abs(scale), 1.0) if abs(scale) >= FAINT else (abs(scale) / FAINT, FAINT)
        exponent = max(size, NEVER_0) * math.log2(math.e)
        power = 0.0 if exponent > 1 else 2.0 ** math.ceil(math.log2(exponent))
        return BySoftmax(math.copysign(factor, scale), power), exponent


@kernel(Q="B G R M D", K="B G N D", V="B G N E", mask="M N", O="B G R M E", L="B G R M", scale=f32)
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
    """The rules by which scores follow from products of queries and keys.

    Args:
        causal: whether row i sees the keys up to ``i + diagonal`` only.
        window: number of keys that a row sees at most; None: all of these.
        soft_cap: (a, b): scores are ``b tanh(a s)`` for products s; None: there is no soft cap.
        scale: factor of the products if it cannot be part of the exponent; else None.
    """

    causal: bool
    window: int | None = None
    soft_cap: tuple[float, float] | None = None
    scale: float | None = None


ARRAYS = {"Q": "B G R M D", "K": "B G N D", "V": "B G N E", "O": "B G R M E", "L": "B G R M"}
NUMBERS: dict[str, Any] = {"exponent": f32, "diagonal": int}
"""Parameters of attention: `BySoftmax.of`'s exponent, and the mask's first diagonal."""


@kernel_by_name(**ARRAYS, **NUMBERS)
def attention(given: Any, *, scores: Scores, between: BySoftmax, with_lse: bool) -> None:
    """``O = softmax(scale Q Kᵀ) V`` for R heads of queries that share a head of keys, and L."""
    for b, g, r, m, e in tiles(given.O):
        rows = QueryRows(given.Q, given.O, given.L if with_lse else None, (b, g, r), m)
        keys = KeyLoop(given.K, given.V, (b, g), steps(given.K.shape[2]))
        _attend(rows, keys, e, given, scores, between)


DRAWN: dict[str, Any] = {"seed": u64, "offset": u64, "threshold": u32, "kept": f32}
"""Scalar arguments of dropout; see `tilewright.ops.wanted.Dropout`."""


@kernel_by_name(**ARRAYS, bias="B G R M N", sinks="G R", lengths="B", **NUMBERS, **DRAWN)
def attention_with_terms(
    given: Any, *, scores: Scores, between: BySoftmax, with_lse: bool, from_last: bool, terms: frozenset[str]
) -> None:
    """``O = dropout(softmax(scale Q Kᵀ + bias)) V`` and L, with a sink for each head of queries.

    Args:
        given: the arrays and numbers of `attention`; ``bias``, which is added to the scores; ``sinks``, a
            score of each head that joins the sum of its weights; ``lengths``, the number of keys of each
            batch; and the numbers of dropout. Those of absent terms are not read.
        scores: how scores are computed.
        between: the softmax.
        with_lse: whether L is stored.
        from_last: whether the mask counts from the last row, and from the last key of the batch.
        terms: the terms that the call has: ``"bias"``, ``"sinks"``, ``"lengths"`` and ``"dropout"``.
    """
    out = given.O, given.L if with_lse else None
    _attend_to_caches(given, given.K, given.V, out, from_last, terms, scores, between)


def _attend_to_caches(
    given: Any,
    K: Any,
    V: Any,
    out: tuple[Any, Any],
    from_last: bool,
    terms: frozenset[str],
    scores: Scores,
    between: BySoftmax,
) -> None:
    """Store the attention of all rows to the keys of their batch."""
    Q = given.Q
    for b, g, r, m, e in tiles(given.O):
        end = given.lengths[b] if "lengths" in terms else None
        first = (Q.shape[3], end) if from_last else (None, None)
        rows = QueryRows(
            *(Q, *out, (b, g, r), m),
            bias=given.bias if "bias" in terms else None,
            first=first[0],
            sink=given.sinks[g, r].to(f32) if "sinks" in terms else None,
            dropped=Dropped.of(given, (b, g, r), K) if "dropout" in terms else None,
        )
        keys = KeyLoop(K, V, (b, g), steps(K.shape[2], end=end), first[1])
        _attend(rows, keys, e, given, scores, between)


PAGED = ARRAYS | {"K": "P S G D", "V": "P S G E", "sinks": "G R", "lengths": "B", "pages": "B T"}
"""Arrays whose keys and values lie in pages of S rows, with the page numbers of each batch."""


@kernel_by_name(**PAGED, **NUMBERS, **DRAWN)
def paged_attention(
    given: Any,
    *,
    page: int,
    scores: Scores,
    between: BySoftmax,
    with_lse: bool,
    from_last: bool,
    terms: frozenset[str],
) -> None:
    """`attention_with_terms`, where key n of batch b is ``K[pages[b, n // page], n % page]``."""
    require(given.K.shape[1] == page, f"pages have {page} rows")
    k, v = (one[:, :page].rows(given.pages).merge(1).permute(0, 2, 1, 3) for one in (given.K, given.V))
    out = given.O, given.L if with_lse else None
    _attend_to_caches(given, k, v, out, from_last, terms, scores, between)


BOUNDS = ("q_starts", "q_ends", "k_starts", "k_ends")
"""Arrays with the first row of each sequence, and the end of its rows, for queries and for keys."""

PACKED: dict[str, Any] = {
    "Q": "G R T D",
    "K": "G U D",
    "V": "G U E",
    "O": "G R T E",
    "L": "G R T",
    "sinks": "G R",
    **dict.fromkeys(BOUNDS, "B"),
}
"""Arrays of sequences that follow each other, and the bounds of their queries and keys."""


def first_of_sequence(given: Any, b: Any, from_last: bool) -> tuple[Any, Any]:
    """Return the row and the key of a sequence from which the mask counts."""
    if from_last:
        return given.q_ends[b], given.k_ends[b]
    return given.q_starts[b], given.k_starts[b]


@kernel_by_name(**PACKED, **NUMBERS, **DRAWN)
def packed_attention(
    given: Any, *, scores: Scores, between: BySoftmax, with_lse: bool, from_last: bool, terms: frozenset[str]
) -> None:
    """Attention of each sequence b to its own keys; the mask counts from the sequence's first or last row."""
    Q, K = given.Q, given.K
    for b, g, r, m, e in tiles(given.O, groups=(given.q_starts, given.q_ends)):
        first_row, first_key = first_of_sequence(given, b, from_last)
        rows = QueryRows(
            *(Q, given.O, given.L if with_lse else None, (g, r), m),
            first=first_row,
            sink=given.sinks[g, r].to(f32) if "sinks" in terms else None,
            dropped=Dropped.of(given, (g, r), K) if "dropout" in terms else None,
        )
        loop = steps(K.shape[1], begin=given.k_starts[b], end=given.k_ends[b])
        _attend(rows, KeyLoop(K, given.V, (g,), loop, first_key), e, given, scores, between)


class Dropped(NamedTuple):
    """The dropout of weights: random numbers choose the weights that become 0, and the others are scaled.

    The weight of a query i and a key j has the number ``(head M + i) P + j``, where P is N rounded up to a
    multiple of 4: four neighbours share one call of the random number generator.

    Args:
        drawn: the kernel's arguments, with the numbers of `DRAWN`.
        first: ``head M`` for all M queries of a head.
        keys: N.
    """

    drawn: Any
    first: Any
    keys: Any

    @staticmethod
    def of(given: Any, at: tuple[Any, ...], keys: Any) -> Dropped:
        """Return the dropout of a head, or of the first of several heads.

        Args:
            given: the queries, and the numbers of `DRAWN`.
            at: the spans of the batch and the head, or of the heads.
            keys: all keys.
        """
        (place, *inner), extents = at, given.Q.shape
        first = positions(place).to(u64)
        for place, extent in zip(inner, extents[1:], strict=False):
            first = first * extent + positions(place).to(u64)
        for extent in extents[len(at) : -1]:
            first = first * extent
        return Dropped(given, first, keys.shape[-2])

    def drop(self, weights: Any, i: Any, j: Any) -> Any:
        """Return weights of queries i and keys j, with the dropped ones set to 0."""
        index = (self.first + i.to(u64)) * (ceil_div(self.keys, 4) * 4) + j.to(u64)
        drawn = self.drawn
        return dropout(weights, index, drawn.threshold, drawn.kept, drawn.seed, drawn.offset)


class QueryRows(NamedTuple):
    """Queries of one head, and the arrays of their results.

    Args:
        q: all queries.
        out: all results.
        lse: all logarithms of sums; None: they are not stored.
        at: the spans of the batch and the head.
        m: the rows.
        bias: the array that is added to the scores of all queries, or None.
        first: the row from which the mask counts; None: the first one.
        sink: a score that joins the sum of the weights of each row, or None.
        dropped: the dropout of weights, or None.
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
        """The index of each row, counted from the mask's first row."""
        return positions(self.m) if self.first is None else positions(self.m) - self.first


class KeyLoop(NamedTuple):
    """Keys and values of one head.

    Args:
        k: all keys.
        v: all values.
        at: the spans of the batch and the head.
        loop: the loop over the keys.
        first: the key from which the mask counts; None: the first one.
    """

    k: Any
    v: Any
    at: tuple[Any, ...]
    loop: Any
    first: Any = None

    def numbers(self, n: Any) -> Any:
        """The index of each key of a step, counted from the mask's first key."""
        return positions(n) if self.first is None else positions(n) - self.first


def _attend(rows: QueryRows, keys: KeyLoop, e: Any, given: Any, scores: Scores, between: BySoftmax) -> None:
    """Store the attention of some rows of one head, and the logarithms of their sums."""
    m, factor, power = rows.m, between.factor, between.power
    exponent = maximum(given.exponent, NEVER_0)  # positive: a hidden score is -inf, and -inf * 0 is NaN
    top, base = full((m,), LOWEST, f32), full((m,), LOWEST * power, f32)
    total, out = zeros((m,), f32), zeros((m, e), f32)
    for n in keys.loop:
        s = zeros(dtype=f32)
        for d in steps(keys.k.shape[-1]):
            s += rows.q[(*rows.at, m, d)] @ keys.k[(*keys.at, n, d)].T
        added = None if rows.bias is None else rows.bias[(*rows.at, m, n)].to(f32)
        s, _ = scores_of(s, added, rows.numbers[:, None] + given.diagonal, keys.numbers(n), scores, factor)
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
        share = 1.0 / (1.0 + exp(rows.sink - lse))  # the keys' share of the sum with the sink
        joined = maximum(lse, rows.sink) + log(1.0 + exp(-above))
        mean = where(total[:, None] == 0, 0.0, mean * share[:, None])
        lse = where(total == 0, rows.sink, joined)
    rows.out[(*rows.at, m, e)] = mean
    if rows.lse is not None:
        rows.lse[(*rows.at, m)] = lse


def scores_of(s: Any, bias: Any, last: Any, at: Any, scores: Scores, factor: float) -> tuple[Any, Any]:
    """Return the scores of products ``s``, -inf for hidden keys; and the tanh of the soft cap, or None.

    Args:
        s: products of queries and keys.
        bias: the tile that is added to scores, or None.
        last: the last key that each query sees under a causal mask.
        at: the index of the key of each score.
        scores: how scores are computed.
        factor: the last factor of scores.
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
