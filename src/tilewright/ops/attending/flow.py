"""Attention and chains as dataflow kernels: loops over keys. Attention's loop carries a state.

The explicit kernels of this room are compared with them.
"""

from __future__ import annotations

import math
from typing import Any

from tilewright.dtypes import f32
from tilewright.lang.dataflow.loops import full, steps, tiles, zeros
from tilewright.lang.exact_functions import maximum, where
from tilewright.lang.functions import exp, log
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
def attention(Q: Any, K: Any, V: Any, mask: Any, O: Any, L: Any, scale: Any) -> None:
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


@kernel(A="M K", B="K N", C="N P", D="M P")
def gemm_chain(A: Any, B: Any, C: Any, D: Any, *, activation: str | None) -> None:
    """``D = activation(A B) C``, with the first product rounded to the dtype of C."""
    for m, p in tiles(D):
        out = zeros((m, p), f32)
        for n in steps(C.shape[0]):
            s = zeros(dtype=f32)
            for k in steps(A.shape[1]):
                s += A[m, k] @ B[k, n]
            weights = s if activation is None else ACTIVATIONS[activation](s)
            out.assign(out + weights.to(C.dtype) @ C[n, p])
        D[m, p] = out
