"""Attention and chains as dataflow kernels: loops over keys. The loop of attention carries a state.

`definition` is the shortest form, with which tests compare all kernels.  `attention` is the form that is
launched: its exponentials are powers of two, and its state never is infinite; see
`tilewright.ops.attending.softmax`, whose formulas it has.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tilewright.dtypes import f32
from tilewright.lang.dataflow.indexing import positions
from tilewright.lang.dataflow.loops import full, steps, tiles, zeros
from tilewright.lang.exact_functions import absolute, fma, maximum, where
from tilewright.lang.functions import exp, exp2, log, log2, tanh
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
    _attend((Q, K, V, O, L), None, exponent, diagonal, scores, between, with_lse)


@kernel(**ARRAYS, bias="B G R M N", **NUMBERS)
def biased_attention(
    Q: Any,
    K: Any,
    V: Any,
    O: Any,
    L: Any,
    bias: Any,
    exponent: Any,
    diagonal: Any,
    *,
    scores: Scores,
    between: BySoftmax,
    with_lse: bool,
) -> None:
    """``O = softmax(scale Q Kᵀ + bias) V``, likewise."""
    _attend((Q, K, V, O, L), bias, exponent, diagonal, scores, between, with_lse)


def _attend(
    arrays: tuple[Any, Any, Any, Any, Any],
    bias: Any,
    exponent: Any,
    diagonal: Any,
    scores: Scores,
    between: BySoftmax,
    with_lse: bool,
) -> None:
    (Q, K, V, O, L), (causal, window, soft_cap, scale) = arrays, scores
    factor, power = between.factor, between.power
    exponent = maximum(exponent, NEVER_0)  # it is positive: a hidden score weighs 0
    for b, g, r, m, e in tiles(O):
        top, base = full((m,), LOWEST, f32), full((m,), LOWEST * power, f32)
        total, out = zeros((m,), f32), zeros((m, e), f32)
        for n in steps(K.shape[2]):
            s = zeros(dtype=f32)
            for d in steps(Q.shape[4]):
                s += Q[b, g, r, m, d] @ K[b, g, n, d].T
            if soft_cap is not None:
                s = soft_cap[1] * tanh(s * soft_cap[0])
            if scale is not None:
                s = s * scale
            if bias is not None:
                s = s + bias[b, g, r, m, n].to(f32)
            if factor != 1:
                s = s * factor
            if causal:
                last = positions(m)[:, None] + diagonal
                seen = positions(n) <= last
                seen = seen if window is None else seen & (positions(n) >= last - (window - 1))
                s = where(seen, s, -math.inf)
            new = maximum(top, s.max(axis=1))
            if power:
                steep = where(absolute(new * exponent) < STEEP, exponent, power)
                shift = new * steep
                p, keep = exp2(fma(s, steep[:, None], -shift[:, None])), exp2(base - shift)
                base.assign(shift)
            else:
                p, keep = exp2((s - new[:, None]) * exponent), exp2((top - new) * exponent)
            total.assign(fma(total, keep, p.sum(axis=1)))
            out.assign(out * keep[:, None] + p.to(V.dtype) @ V[b, g, n, e])
            top.assign(new)
        O[b, g, r, m, e] = where(total[:, None] == 0, 0.0, out * (1.0 / total)[:, None])
        if with_lse and power:
            L[b, g, r, m] = (log2(total) + top * exponent) * math.log(2)
        elif with_lse:  # the product of the largest score and the exponent may overflow
            L[b, g, r, m] = fma(top, exponent * math.log(2), log2(total) * math.log(2))


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
