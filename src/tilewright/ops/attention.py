"""`attention`: looks up or plans a launch for the arrays, and launches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from tilewright.calls import launches
from tilewright.dtypes import DType, f32
from tilewright.ops.attending.choice import AttentionQuestion, chosen
from tilewright.ops.attending.problem import (
    LAST,
    LENGTHS,
    PAGES,
    AttentionWords,
    are_checked,
    bounds_of,
    broadcast,
    check_offsets,
    check_pages,
    first_column,
    heads_as_rows,
    heads_first,
    in_columns,
    in_four,
    in_pages,
    result_dtype,
    result_shape,
    shares_rows,
    stand_in,
    within_keys,
)
from tilewright.ops.launching import Call, Launch, LaunchPlan
from tilewright.ops.replay import Done, Located, Replay, called, repeated
from tilewright.ops.wanted import dropout_of
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.plans import Plans

ARRAYS = ("q", "k", "v", "out", "lse", "bias", "q_offsets", "k_offsets", "sinks", LENGTHS, PAGES)
OUT, LSE = ARRAYS.index("out"), ARRAYS.index("lse")

_RESULTS = itemgetter(OUT, LSE)

_PLANS: Plans[Replay] = Plans()


@repeated(_PLANS, ARRAYS)
@launches
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    diagonal: int | str = 0,
    window: int | None = None,
    soft_cap: float | None = None,
    bias: Any = None,
    q_offsets: Any = None,
    k_offsets: Any = None,
    k_lengths: Any = None,
    k_pages: Any = None,
    sinks: Any = None,
    dropout: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    scale: float | None = None,
    out: Any = None,
    lse: Any = None,
    return_lse: bool = False,
    out_dtype: DType | str | None = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """``out = softmax(scale * q @ kᵀ + bias) @ v`` for every batch and head, in one pass over the keys.

    Let ``s[i, j] = scale * sum_d q[i, d] * k[j, d]``, ``lse[i] = log(sum_j exp(s[i, j]))`` and ``p[i, j] =
    exp(s[i, j] - lse[i])``.  Then ``out[i] = sum_j p[i, j] * v[j]``.  Scores never leave registers.

    Products are exact and sums are in f32.  Weights are rounded to the arrays' dtype before they multiply
    values, and the result is rounded once.  Let ``u`` be the unit roundoff of f32 and ``w`` that of the
    dtype.  The error of an element is at most ``2 e sum_j p[i, j] |v[j]| + w |out[i]|``, where ``e = w + u (2
    (D + 1) |scale| max_j sum_d |q[i, d] k[j, d]| + 2 N + 124)``.

    Args:
        q: array (B, H, M, D) of f16, bf16 or f32, of any strides; D is at most 512.  (H, M, D) is one batch,
            (M, D) one head.
        k: array (B, G, N, D) of the same dtype.  H is a multiple of G: ``H // G`` neighbouring heads of ``q``
            share a head of keys and values.
        v: array (B, G, N, E); E is at most 512, and may differ from D.
        causal: whether row i sees only the keys up to ``i + diagonal``.
        diagonal: offset of the mask; default: 0, as in PyTorch.  With ``N - M``, or ``"last"``, the last row
            sees every key; use this if the keys of earlier rows are cached.
        window: number of keys that a row sees at most: row i sees those from ``i + diagonal - window + 1``
            to ``i + diagonal``; needs ``causal``.  Tiles of keys that no row of a tile sees are left out.
        soft_cap: a bound c of the scores, which become ``c tanh(s / c)`` before the mask; default: none.
        bias: array (B, H, M, N), or of a shape that NumPy broadcasts to it, of f16, bf16 or f32.  It is added
            to the scores after their bound and before the mask; -inf hides a key.
        q_offsets: integers (B + 1,) of i32 or i64, for sequences that follow each other without padding: the
            arrays are then ``q`` (T, H, D), ``k`` (U, G, D), ``v`` (U, G, E), ``out`` (T, H, E) and ``lse``
            (T, H), and sequence b has the rows of ``q`` from ``q_offsets[b]`` up to ``q_offsets[b + 1]``.  It
            may be empty.  The mask counts rows and keys from the first of the sequence, or with
            ``diagonal="last"`` from its last.  Rows outside of all sequences stay unwritten.
        k_offsets: likewise for ``k`` and ``v``; default: ``q_offsets``.
        k_lengths: integers (B,) of i32 or i64: batch b has only the first ``k_lengths[b]`` keys, none with 0.
            With ``diagonal="last"`` the last row sees the last of these.
        k_pages: integers (B, T) of i32 or i64, for keys and values in pages of S rows: ``k`` is then (P, S,
            G, D), ``v`` (P, S, G, E), and key n of batch b is ``k[k_pages[b, n // S], n % S]``.  N is T * S.
            Pages beyond the keys of a batch are not read, whatever their numbers are.
        sinks: array (H,) of f16, bf16 or f32: an extra score of each head, whose weight joins the sum but
            multiplies no value: ``lse[i] = log(exp(sinks) + sum_j exp(s[i, j]))``.
        dropout: probability that a weight is 0 before it multiplies a value; the others are multiplied by
            ``1 / (1 - dropout)``.  ``lse`` does not depend on dropout.  The random numbers depend on seed,
            offset and the indices of batch, head, row and key alone; the page on attention defines them.
        seed: the key of the random numbers, an integer of at least 0.
        offset: a second number that selects the random numbers, e.g. the training step.
        scale: a number; default: ``1 / sqrt(D)``.
        out: array (B, H, M, E) to write, of any strides, of f16, bf16 or f32; default: a new array of the
            framework of ``q``.
        lse: f32 array (B, H, M) to write ``lse`` to, of any strides.  It is needed to combine results for
            separate parts of the keys.
        return_lse: whether to return ``lse`` too; it is a new array if ``lse`` is not given.
        out_dtype: dtype of a new result: f16, bf16 or f32, e.g. f32 to combine results for parts of the keys;
            default: that of ``q``.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``; default: where the arrays lie.
        stream: the CUDA stream; default: the framework's current stream.

    Returns:
        ``out``, or ``(out, lse)``.  A row that sees no key, or whose scores are all -inf, is 0 in ``out`` and
        -inf in ``lse``.

    Raises:
        LaunchError: shapes or devices do not fit, ``out`` shares memory with an array that is read, offsets
            in host memory descend or lie outside of the rows, lengths exceed the keys, pages do not exist, or
            ``diagonal`` or ``window`` is given without ``causal``.
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> q, k, v = np.zeros((2, 8), np.float32), np.ones((3, 8), np.float32), np.eye(3, dtype=np.float32)
        >>> tw.attention(q, k, v, causal=True, target="reference").tolist()
        [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]

        Four heads of queries share two of keys:

        >>> q, k = np.ones((4, 5, 16), np.float16), np.ones((2, 7, 16), np.float16)
        >>> out, lse = tw.attention(q, k, k, return_lse=True, target="reference")
        >>> out.shape, lse.shape, float(out[3, 4, 15])
        ((4, 5, 16), (4, 5), 1.0)

        Sequences of 2 and 3 rows, with one head:

        >>> q, v = np.zeros((5, 1, 8), np.float32), np.arange(5, dtype=np.float32).reshape(5, 1, 1)
        >>> tw.attention(q, q, v, q_offsets=np.int32([0, 2, 5]), target="reference")[:, 0, 0].tolist()
        [0.5, 0.5, 3.0, 3.0, 3.0]
    """
    arrays = (q, k, v, out, lse, bias, q_offsets, k_offsets, sinks, k_lengths, k_pages)
    dropped = dropout_of("attention", dropout, seed, offset)
    given = (causal, diagonal, scale, return_lse, target, out_dtype, window, soft_cap)

    def first(located: Sequence[Located]) -> Done:
        words = AttentionWords(*given, dropped=dropped)
        return plan_attention(arrays, words, located).launch(stream)

    integers = {"q_offsets": q_offsets, "k_offsets": k_offsets, LENGTHS: k_lengths, PAGES: k_pages}
    kept = None if are_checked(**integers) else (*given, dropped.words)
    numbers = dropped.numbers if dropped.probability else ()
    made = called(_PLANS, arrays, kept, numbers, stream, first, _RESULTS)
    return made if return_lse else made[0]


def plan_attention(
    given: Sequence[Any], words: AttentionWords, located: Sequence[Located] = ()
) -> LaunchPlan:
    """Check the arguments of `attention`, and plan its launches, with both results.

    Args:
        given: the arrays in the order of `ARRAYS`; None for an absent one.
        words: the other arguments of the call.
        located: the keys and addresses of the arrays, if the caller has read them.

    Raises:
        LaunchError: shapes, devices or arguments do not fit.
        DTypeError: an unsupported dtype or mixture.
    """
    words.check()
    call = Call.of("attention", dict(zip(ARRAYS, given, strict=True)), ARRAYS[:OUT], located)
    infos = call.infos
    caches = in_pages(infos) if PAGES in infos else {}
    shape = result_shape({**infos, **caches})
    check_offsets(infos)
    check_pages(infos)
    call.serve(words.target)
    call.make("out", shape, result_dtype(infos, words.out_dtype))
    if words.return_lse:
        call.make("lse", shape[:-1], f32)
    results = (call.arrays["out"], call.arrays.get("lse"))
    has_lse = "lse" in infos
    for written in ("out", "lse")[: 1 + has_lse]:
        call.check_apart(written)
    sequences = infos["q_offsets"].shape[0] - 1 if "q_offsets" in infos else None
    if 0 in shape or sequences == 0:
        return call.plan(result=results)
    given_infos = {**infos, **caches}
    if sequences is not None:
        given_infos = {name: heads_first(infos[name]) for name in ARRAYS[: LSE + has_lse]}
    seen = {name: in_four(given_infos[name]) for name in ARRAYS[:LSE]}
    # Without lse, a column of the result takes its place in the call; the kernel does not access it.
    seen["lse"] = in_four(in_columns(given_infos["lse"])) if has_lse else first_column(seen["out"])
    from_last = (sequences is not None or LENGTHS in infos) and words.diagonal == LAST
    if from_last:
        words = words._replace(diagonal=0)
        if sequences is None and seen["q"].shape[2] == 1 and words.window is None:  # it sees every key
            from_last, words = False, words._replace(causal=False)
    diagonal, window = within_keys(words, *(seen[name].shape[2] for name in "qk"))
    terms = {"bias", "sinks"} & infos.keys() | ({"dropout"} if words.dropped.probability else set())
    is_free = window is None and not terms and not from_last and (diagonal is None or PAGES not in infos)
    if sequences is None and is_free and shares_rows(seen, diagonal):
        seen, diagonal = heads_as_rows(seen, diagonal), None
    terms |= {"lengths"} if LENGTHS in infos else set()
    if terms and sequences is None and PAGES not in infos:
        rows = *seen["q"].shape[:3], seen["k"].shape[2]
        seen["bias"] = broadcast(infos["bias"], rows) if "bias" in infos else stand_in(infos["out"], rows)
    question = AttentionQuestion(
        {name: seen[name] for name in ARRAYS[:LSE]},
        *call.machine,
        1 / math.sqrt(infos["q"].shape[-1]) if words.scale is None else float(words.scale),
        diagonal,
        has_lse,
        window,
        words.soft_cap,
        frozenset(terms),
        sequences,
        from_last,
        infos["k"].shape[1] if PAGES in infos else 0,
    )
    answer = chosen(question)
    views, numbers = answer.views(seen), answer.numbers
    if PAGES in infos:
        views |= {name: infos[name] for name in "kv"}
    if terms or sequences is not None or PAGES in infos:
        groups, ratio = seen["k"].shape[1], seen["q"].shape[1] // max(seen["k"].shape[1], 1)
        sinks = infos.get("sinks", stand_in(infos["out"], (groups * ratio,)))
        [step] = sinks.strides
        views["sinks"] = replace(sinks, shape=(groups, ratio), strides=(step * ratio, step))
        if sequences is None:
            views[LENGTHS] = infos.get(LENGTHS, stand_in(infos["out"], seen["q"].shape[:1]))
        views |= {PAGES: infos[PAGES]} if PAGES in infos else {}
        numbers = (*numbers, *words.dropped.numbers)
    tensors = [Strided(call.arrays.get(name, results[0]), info) for name, info in views.items()]
    places = call.stand_ins(views)
    if sequences is not None:
        bounds = bounds_of(infos)
        call.inside = {name: (one.of, one.inside) for name, one in bounds.items()}
        tensors += [Strided(call.arrays[one.of], one.info) for one in bounds.values()]
        places += (*bounds,)
    launch = Launch(answer.kernel, tuple(tensors), places, numbers)
    if words.dropped.probability:
        return call.plan(launch, result=results, numbers=answer.numbers, takes_more=True)
    return call.plan(launch, result=results, numbers=numbers)
