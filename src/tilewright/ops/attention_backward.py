"""`attention_backward`: the gradients of `attention`, by a small prepass and two loops that carry sums.

A loop over keys computes the gradient of queries, and one over queries those of keys and values.  Each
element has one sum in a fixed order, so repeated calls give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from tilewright.calls import launches
from tilewright.dtypes import f32
from tilewright.ops.attending.choice import AttentionQuestion, by_head_of_keys
from tilewright.ops.attending.flow import (
    gradient_of_queries,
    gradients_of_keys,
    packed_gradient_of_queries,
    packed_gradients_of_keys,
    prepare,
)
from tilewright.ops.attending.problem import (
    LAST,
    OFFSETS,
    AttentionWords,
    are_checked,
    bounds_of,
    broadcast,
    check_gradients,
    heads_first,
    in_columns,
    in_four,
    within_keys,
)
from tilewright.ops.launching import OWN, Call, Launch, LaunchPlan
from tilewright.ops.replay import Done, Located, Replay, called, repeated
from tilewright.ops.wanted import dropout_of
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.plans import Plans

ARRAYS = ("q", "k", "v", "out", "lse", "dout", "bias", "dq", "dk", "dv", "q_offsets", "k_offsets")
"""The arrays of `attention_backward`."""

GRADIENTS = {"dq": "q", "dk": "k", "dv": "v"}
"""Its results, each with the shape of an array."""

ROW_UNIT = 4
"""Numbers of f32 of which rows in scratch memory begin at multiples: bulk copies need 16 bytes."""

ALIGNED = 256
"""Bytes of which offsets of arrays in scratch memory are multiples."""

_RESULTS = itemgetter(*map(ARRAYS.index, GRADIENTS))

_PLANS: Plans[Replay] = Plans()


@repeated(_PLANS, ARRAYS)
@launches
def attention_backward(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    dout: Any,
    *,
    causal: bool = False,
    diagonal: int | str = 0,
    window: int | None = None,
    soft_cap: float | None = None,
    bias: Any = None,
    q_offsets: Any = None,
    k_offsets: Any = None,
    dropout: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    scale: float | None = None,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """``dq, dk, dv``: the gradients of ``sum(dout * out)`` for the ``out`` of `attention`.

    Let ``s`` be the scores, ``p[i, j] = exp(s[i, j] - lse[i])`` the weights, ``delta[i] = sum_e dout[i, e] *
    out[i, e]``, and ``ds[i, j] = p[i, j] * (sum_e dout[i, e] * v[j, e] - delta[i])``.  Then ``dq[i] = scale *
    sum_j ds[i, j] * k[j]``, ``dk[j] = scale * sum_i ds[i, j] * q[i]`` and ``dv[j] = sum_i p[i, j] *
    dout[i]``.  ``dk`` and ``dv`` are sums over all heads of ``q`` that share the head.  With ``soft_cap=c``,
    ``ds`` has another factor ``1 - (s / c)**2``, where s has no bias and no mask.

    Two loops, over keys for ``dq`` and over queries for ``dk`` and ``dv``, compute the weights again; a small
    launch before them computes ``delta``.  Repeated calls give the same bits.  Products are exact, sums are
    in f32, ``p`` and ``ds`` are rounded to the arrays' dtype before they multiply, and results are rounded
    once.  The page on attention has the bound of the error.

    Args:
        q: array (B, H, M, D), as `attention` takes it.
        k: array (B, G, N, D).
        v: array (B, G, N, E).
        out: array (B, H, M, E) that `attention` returned for the same arguments, of f16, bf16 or f32.
        lse: f32 array (B, H, M) that it returned.
        dout: array (B, H, M, E) of the dtype of ``q``: the derivative of a loss by ``out``.
        causal: as `attention` takes it, like the next ten.
        diagonal: offset of the mask.
        window: number of keys that a row sees at most.
        soft_cap: a bound of the scores.
        bias: array that is added to the scores; its own gradient is not computed.
        q_offsets: offsets of packed sequences.  Gradients of rows of no sequence are not written.
        k_offsets: offsets of their keys.
        dropout: probability that a weight is 0.
        seed: the key of the random numbers.
        offset: another number of them.
        scale: factor of the scores; default: ``1 / sqrt(D)``.
        dq: array with the shape of ``q`` to write, of any strides, of f16, bf16 or f32; default: a new array
            of the framework and the dtype of ``q``.
        dk: likewise for ``k``.
        dv: likewise for ``v``.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``; default: where the arrays lie.
        stream: the CUDA stream; default: the framework's current stream.

    Returns:
        ``(dq, dk, dv)``.  A row that sees no key is 0 in ``dq``, and adds nothing to ``dk`` and ``dv``.  A
        key that no row sees is 0 in both.

    Raises:
        LaunchError: shapes or devices do not fit, a result shares memory with another array, offsets in host
            memory do not fit, or ``diagonal`` or ``window`` is given without ``causal``.
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> q, k, v = np.zeros((2, 8), np.float32), np.ones((3, 8), np.float32), np.eye(3, dtype=np.float32)
        >>> out, lse = tw.attention(q, k, v, causal=True, return_lse=True, target="reference")
        >>> dq, dk, dv = tw.attention_backward(
        ...     q, k, v, out, lse, np.ones((2, 3), np.float32), causal=True, target="reference"
        ... )
        >>> dv[:, 0].tolist()
        [1.5, 0.5, 0.0]
    """
    arrays = (q, k, v, out, lse, dout, bias, dq, dk, dv, q_offsets, k_offsets)
    words = AttentionWords(
        causal, diagonal, scale, target=target, window=window, soft_cap=soft_cap, op="attention_backward"
    )
    dropped = dropout_of(words.op, dropout, seed, offset)

    def first(located: Sequence[Located]) -> Done:
        return plan_attention_backward(arrays, words._replace(dropped=dropped), located).launch(stream)

    kept = None if are_checked(q_offsets, k_offsets) else (*words, dropped.words)
    numbers = dropped.numbers if dropped.probability else ()
    return called(_PLANS, arrays, kept, numbers, stream, first, _RESULTS)


def plan_attention_backward(
    given: Sequence[Any], words: AttentionWords, located: Sequence[Located] = ()
) -> LaunchPlan:
    """Check the arguments of `attention_backward`, and plan its launches, with all three results.

    Args:
        given: the arrays in the order of `ARRAYS`; None for an absent one.
        words: the other arguments of the call.
        located: the keys and addresses of the arrays, if the caller has read them.

    Raises:
        LaunchError: shapes, devices or arguments do not fit.
        DTypeError: an unsupported dtype or mixture.
    """
    words.check()
    call = Call.of(words.op, dict(zip(ARRAYS, given, strict=True)), ARRAYS[:6], located)
    check_gradients(call.infos, GRADIENTS)
    call.serve(words.target)
    for made, of in GRADIENTS.items():
        call.make(made, call.infos[of].shape, call.infos["q"].dtype)
    for made in GRADIENTS:
        call.check_apart(made)
    sequences = call.infos["q_offsets"].shape[0] - 1 if "q_offsets" in call.infos else None
    results = tuple(call.arrays[name] for name in GRADIENTS)
    if sequences == 0:
        return call.plan(result=results)
    given_infos = {name: info for name, info in call.infos.items() if name not in OFFSETS}
    if sequences is not None:
        given_infos = {name: heads_first(info) for name, info in given_infos.items()}
    infos = {name: in_four(info) for name, info in given_infos.items() if name not in ("lse", "bias")}
    q, k = infos["q"], infos["k"]
    rows = q.shape[:3]
    lse = in_four(in_columns(given_infos["lse"]))
    infos["lse"] = replace(lse, shape=lse.shape[:-1], strides=lse.strides[:-1])
    from_last = sequences is not None and words.diagonal == LAST
    if from_last:
        words = words._replace(diagonal=0)
    diagonal, window = within_keys(words, q.shape[2], k.shape[2])
    has_bias = "bias" in call.infos
    added = call.infos["bias"] if has_bias else replace(infos["lse"], shape=(1,), strides=(0,))
    infos["bias"] = broadcast(added, (*rows, k.shape[2]))
    question = AttentionQuestion(
        {name: infos[name] for name in ("q", "k", "v", "out")},
        *call.machine,
        1 / math.sqrt(q.shape[-1]) if words.scale is None else float(words.scale),
        diagonal,
        True,
        window,
        words.soft_cap,
        frozenset({"bias"} if has_bias else ()),
        sequences,
        from_last,
    )
    between, exponent = question.softmax
    apart = -(-rows[2] // ROW_UNIT) * ROW_UNIT
    size = rows[0] * rows[1] * apart * f32.bytes
    steps = (rows[1] * apart, apart, 1)
    own = replace(infos["lse"], shape=rows, strides=steps, readonly=False)
    for at, name in enumerate(("shift", "delta")):
        infos[name] = replace(own, pointer=at * -(-size // ALIGNED) * ALIGNED)

    def launch(kernel: Any, names: Sequence[str], seen: Mapping[str, ArrayInfo], *numbers: Any) -> Launch:
        held = {"shift": OWN, "delta": OWN, **({} if has_bias else {"bias": "lse"})}
        of = [held.get(name, name) for name in names]
        whole = [(call.inside or {}).get(name, (name, 0))[0] or "lse" for name in of]
        arrays = (Strided(call.arrays[one], seen[name]) for one, name in zip(whole, names, strict=True))
        return Launch(kernel, tuple(arrays), tuple(of), numbers)

    by_head = {
        name: info if name in ("k", "v", "dk", "dv") else by_head_of_keys(info, k)
        for name, info in infos.items()
        if k.shape[1]
    }
    drops = bool(words.dropped.probability)
    bound: dict[str, Any] = {"scores": question.scores, "factor": between.factor, "drops": drops}
    kernels: tuple[Any, Any] = gradient_of_queries, gradients_of_keys
    weighed = ["q", "k", "v", "dout", "shift", "delta"]
    if sequences is None:
        bound["has_bias"] = has_bias
        weighed.append("bias")
    else:  # all sequences are one batch
        bound["from_last"] = from_last
        kernels = packed_gradient_of_queries, packed_gradients_of_keys
        by_head = {
            name: replace(info, shape=info.shape[1:], strides=info.strides[1:])
            for name, info in by_head.items()
        }
        bounds = bounds_of(call.infos)
        call.inside = {name: (one.of, one.inside) for name, one in bounds.items()}
        by_head |= {name: one.info for name, one in bounds.items()}
        weighed += bounds
    keys = max(min(question.diagonal or 0, k.shape[2]), -q.shape[2])
    numbers = (exponent, question.scale, keys)
    drawn = words.dropped.numbers
    launches_: list[Launch] = []
    if 0 not in rows:
        launches_.append(launch(prepare.bind(), ("dout", "out", "lse", "shift", "delta"), infos))
    for kernel, stored in zip(kernels, (("dq",), ("dk", "dv")), strict=True):
        if 0 not in infos[stored[0]].shape:
            launches_.append(launch(kernel.bind(**bound), (*weighed, *stored), by_head, *numbers, *drawn))
    return call.plan(
        *launches_,
        result=results,
        numbers=numbers if drops else (*numbers, *drawn),
        takes_more=drops,
        scratch_bytes=2 * -(-size // ALIGNED) * ALIGNED,
        reason="rows of delta, then a loop over keys for dq, and one over queries for dk and dv",
    )
