"""`attention_backward`: the gradients of `attention`, by a small prepass and two loops that carry sums.

A loop over keys computes the gradient of the queries.  A loop over queries computes the gradients of keys and
values.  Gradients of a bias and of sinks have separate launches.  Each element is summed in a fixed order, so
repeated calls give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from tilewright.calls import launches
from tilewright.ops.attending.choice import AttentionQuestion, by_head_of_keys
from tilewright.ops.attending.gradients import (
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
    check_terms,
    heads_first,
    in_columns,
    in_four,
    within_keys,
)
from tilewright.ops.attending.term_gradients import (
    BiasTerm,
    ScratchLayout,
    gradient_of_sinks,
    packed_gradient_of_sinks,
    sum_of_heads,
)
from tilewright.ops.launching import OWN, Call, Launch, LaunchPlan
from tilewright.ops.replay import Done, Located, Replay, called, repeated
from tilewright.ops.wanted import dropout_of
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.plans import Plans

ARRAYS = (
    *("q", "k", "v", "out", "lse", "dout", "bias", "dq", "dk", "dv", "q_offsets", "k_offsets"),
    *("sinks", "dbias", "dsinks"),
)
"""The arrays of `attention_backward`."""

GRADIENTS = {"dq": "q", "dk": "k", "dv": "v"}
"""The results of every call, each with the array that has its shape."""

OF_TERMS = {"dbias": "bias", "dsinks": "sinks"}
"""The optional results, each with the array that has its shape."""

ROW_UNIT = 4
"""Rows in scratch memory begin at multiples of this number of f32 elements: bulk copies need 16 bytes."""


def returned(wanted: Sequence[bool]) -> tuple[str, ...]:
    """Return the names of the results: those of `GRADIENTS`, then those of `OF_TERMS` that are wanted."""
    return (*GRADIENTS, *(name for name, asks in zip(OF_TERMS, wanted, strict=True) if asks))


_RESULTS = {
    wanted: itemgetter(*map(ARRAYS.index, returned(wanted))) for wanted in product((False, True), repeat=2)
}

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
    sinks: Any = None,
    dropout: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    scale: float | None = None,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    dbias: Any = None,
    dsinks: Any = None,
    return_dbias: bool = False,
    return_dsinks: bool = False,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """``dq, dk, dv``: the gradients of ``sum(dout * out)`` for the ``out`` of `attention`.

    Let ``s`` be the scores, ``p[i, j] = exp(s[i, j] - lse[i])`` the weights, ``delta[i] = sum_e dout[i, e] *
    out[i, e]``, and ``ds[i, j] = p[i, j] * (sum_e dout[i, e] * v[j, e] - delta[i])``.  Then ``dq[i] = scale *
    sum_j ds[i, j] * k[j]``, ``dk[j] = scale * sum_i ds[i, j] * q[i]`` and ``dv[j] = sum_i p[i, j] *
    dout[i]``.  ``dk`` and ``dv`` are sums over all heads of ``q`` that share the head.  With ``soft_cap=c``,
    ``ds`` has another factor ``1 - (s / c)**2``, where s has no bias and no mask.  ``dbias`` is ds without
    this factor, summed along the dimensions that the bias is broadcast along, and ``dsinks[h] = -sum_i
    exp(sinks[h] - lse[i]) * delta[i]``, over the rows of head h in all batches.

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
        causal: as `attention` takes it, like the next eleven.
        diagonal: offset of the mask.
        window: number of keys that a row sees at most.
        soft_cap: a bound of the scores.
        bias: array that is added to the scores.
        q_offsets: offsets of packed sequences.  Gradients of rows outside of all sequences stay unwritten.
        k_offsets: offsets of their keys.
        sinks: the sinks; only their own gradient reads them, because ``lse`` has them for the others.
        dropout: probability that a weight is 0.
        seed: the key of the random numbers.
        offset: a second number that selects them.
        scale: factor of the scores; default: ``1 / sqrt(D)``.
        dq: array with the shape of ``q`` to write, of any strides, of f16, bf16 or f32; default: a new array
            of the framework and the dtype of ``q``.
        dk: likewise for ``k``.
        dv: likewise for ``v``.
        dbias: array with the shape of ``bias`` to write its gradient to.
        dsinks: likewise for ``sinks``.
        return_dbias: whether to return ``dbias`` too; it is a new array of the dtype of ``bias`` if ``dbias``
            is not given.
        return_dsinks: likewise for ``dsinks``.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``; default: where the arrays lie.
        stream: the CUDA stream; default: the framework's current stream.

    Returns:
        ``(dq, dk, dv)``, then ``dbias`` and ``dsinks`` as wanted.  A row that sees no key is 0 in ``dq``, and
        adds nothing to other gradients.  A key that no row sees is 0 in ``dk`` and ``dv``.

    Raises:
        LaunchError: shapes or devices do not fit, a result shares memory with another array, offsets in host
            memory do not fit, ``diagonal`` or ``window`` is given without ``causal``, or a gradient is wanted
            of a bias or sinks that are not given.
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

        The gradient of a bias of each key, as a fourth result:

        >>> bias, dout = np.zeros(3, np.float32), np.eye(2, 3, dtype=np.float32)
        >>> out, lse = tw.attention(q, k, v, bias=bias, return_lse=True, target="reference")
        >>> *_, dbias = tw.attention_backward(
        ...     q, k, v, out, lse, dout, bias=bias, return_dbias=True, target="reference"
        ... )
        >>> bool(np.abs(dbias - [1 / 9, 1 / 9, -2 / 9]).max() < 1e-6)
        True
    """
    arrays = (q, k, v, out, lse, dout, bias, dq, dk, dv, q_offsets, k_offsets, sinks, dbias, dsinks)
    words = AttentionWords(
        causal, diagonal, scale, target=target, window=window, soft_cap=soft_cap, op="attention_backward"
    )
    dropped = dropout_of(words.op, dropout, seed, offset)
    wanted = bool(return_dbias), bool(return_dsinks)

    def first(located: Sequence[Located]) -> Done:
        asked = words._replace(dropped=dropped)
        return plan_attention_backward(arrays, asked, located, wanted=wanted).launch(stream)

    checked = are_checked(q_offsets=q_offsets, k_offsets=k_offsets)
    kept = None if checked else (*words, *wanted, dropped.words)
    numbers = dropped.numbers if dropped.probability else ()
    return called(_PLANS, arrays, kept, numbers, stream, first, _RESULTS[wanted])


def plan_attention_backward(
    given: Sequence[Any],
    words: AttentionWords,
    located: Sequence[Located] = (),
    *,
    wanted: Sequence[bool] = (False, False),
) -> LaunchPlan:
    """Check the arguments of `attention_backward`, and plan its launches, with its results.

    Args:
        given: the arrays in the order of `ARRAYS`; None for an absent one.
        words: the other arguments of the call.
        located: the keys and addresses of the arrays, if the caller has read them.
        wanted: whether to make arrays for the gradients of `OF_TERMS`.

    Raises:
        LaunchError: shapes, devices or arguments do not fit.
        DTypeError: an unsupported dtype or mixture.
    """
    words.check()
    call = Call.of(words.op, dict(zip(ARRAYS, given, strict=True)), ARRAYS[:6], located)
    check_terms(call.infos, OF_TERMS, wanted)
    check_gradients(call.infos, GRADIENTS | OF_TERMS)
    call.serve(words.target)
    for made, of in GRADIENTS.items():
        call.make(made, call.infos[of].shape, call.infos["q"].dtype)
    for (made, of), asks in zip(OF_TERMS.items(), wanted, strict=True):
        if asks:
            call.make(made, call.infos[of].shape, call.infos[of].dtype)
    for made in (*GRADIENTS, *OF_TERMS):
        if made in call.infos:
            call.check_apart(made)
    sequences = call.infos["q_offsets"].shape[0] - 1 if "q_offsets" in call.infos else None
    results = tuple(call.arrays[name] for name in returned(wanted))
    of_terms = {"bias", "sinks", *OF_TERMS}
    given_infos = {name: info for name, info in call.infos.items() if name not in (of_terms | {*OFFSETS})}
    if sequences is not None:
        given_infos = {name: heads_first(info) for name, info in given_infos.items()}
    infos = {name: in_four(info) for name, info in given_infos.items() if name != "lse"}
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
    scratch = ScratchLayout()
    for name in ("shift", "delta"):
        infos[name] = scratch.take(infos["lse"], rows, ROW_UNIT)
    held = {"shift": OWN, "delta": OWN, "terms": OWN, **({} if has_bias else {"bias": "lse"})}
    inside: dict[str, tuple[str, int]] = {}
    call.inside = inside

    def launch(
        kernel: Any,
        seen: Mapping[str, ArrayInfo],
        *numbers: Any,
        of: Mapping[str, str] = MappingProxyType({}),
        own: tuple[int, ...] = (),
    ) -> Launch:
        """A launch on views of the call's arrays; ``of`` maps a view's name to its array's if they differ."""
        places, arrays = [], []
        for name, info in seen.items():
            place = whole = of.get(name, held.get(name, name))
            if whole != OWN and (apart := info.pointer - call.infos[whole].pointer):
                place = f"{whole} + {apart}"
                inside[place] = (whole, apart)
            places.append(place)
            arrays.append(Strided(call.arrays[whole or "lse"], info))
        return Launch(kernel, tuple(arrays), tuple(places), numbers, own)

    by_head = {
        name: info if name in ("k", "v", "dk", "dv") else by_head_of_keys(info, k)
        for name, info in infos.items()
        if k.shape[1]
    }
    drops = bool(words.dropped.probability)
    bound: dict[str, Any] = {"scores": question.scores, "factor": between.factor, "drops": drops}
    of_bounds: Mapping[str, str] = {}
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
        of_bounds = {name: one.of for name, one in bounds.items()}
        by_head |= {name: one.info for name, one in bounds.items()}
        weighed += bounds
    keys = max(min(question.diagonal or 0, k.shape[2]), -q.shape[2])
    numbers = (exponent, question.scale, keys)
    drawn = words.dropped.numbers
    launches_: list[Launch] = []
    if 0 not in rows and sequences != 0:
        seen = {name: infos[name] for name in ("dout", "out", "lse", "shift", "delta")}
        launches_.append(launch(prepare.bind(), seen))
    for kernel, stored in zip(kernels, (("dq",), ("dk", "dv")), strict=True):
        if 0 not in infos[stored[0]].shape and sequences != 0:
            seen = {name: by_head[name] for name in (*weighed, *stored)}
            launches_.append(launch(kernel.bind(**bound), seen, *numbers, *drawn, of=of_bounds))
    if "dbias" in call.infos and 0 not in call.infos["dbias"].shape:
        result = call.infos["dbias"]
        missing = (1,) * (4 - len(result.shape))
        result = replace(result, shape=(*missing, *result.shape), strides=(*missing, *result.strides))
        of_bias = {name: one for name, one in bound.items() if name != "has_bias"}
        term = BiasTerm(infos, result, of_bias, (*numbers, *drawn), launch, scratch)
        launches_ += term.launches()
    if "dsinks" in call.infos and call.infos["dsinks"].shape[0]:
        seen = {"shift": infos["shift"], "delta": infos["delta"], "sinks": call.infos["sinks"]}
        batches, of_sinks = rows[0], gradient_of_sinks
        if sequences is not None:
            of_sinks, batches = packed_gradient_of_sinks, sequences
            seen = {
                name: replace(info, shape=info.shape[-2:], strides=info.strides[-2:])
                if name != "sinks"
                else info
                for name, info in seen.items()
            }
            seen |= {name: by_head[name] for name in ("q_offsets", "q_offsets, ends")}
        heads = rows[1]
        parts = scratch.take(infos["lse"], (batches, heads))
        if batches:
            launches_.append(launch(of_sinks.bind(), {**seen, "terms": parts}, of=of_bounds))
        parts = replace(parts, shape=(1, 1, 1, heads, batches), strides=(0, 0, 0, 1, heads))
        whole = call.infos["dsinks"]
        whole = replace(whole, shape=(1, 1, heads), strides=(0, 0, *whole.strides))
        launches_.append(launch(sum_of_heads.bind(), {"terms": parts, "dsinks": whole}))
    return call.plan(
        *launches_,
        result=results,
        numbers=numbers if drops else (*numbers, *drawn),
        takes_more=drops,
        scratch_bytes=scratch.bytes,
        reason="rows of delta, then a loop over keys for dq, and one over queries for dk and dv",
    )
