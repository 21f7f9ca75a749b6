"""`attention` for PyTorch; its gradients are kernels that store no scores, or products with stored scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tilewright.errors import LaunchError
from tilewright.functions.philox import MULTIPLIERS, ROUNDS, WEYL
from tilewright.ops import attention as of_attention
from tilewright.ops import attention_backward as of_gradients
from tilewright.ops.attending.problem import LAST, MOST_OF_GRADIENTS
from tilewright.ops.wanted import Dropout
from tilewright.torch.products import matmul
from tilewright.torch.registry import Operation, apply_of, direct, is_new, recorded
from tilewright.torch.terms import drawn_seed, present, reduced_to

LARGEST_SEED = 2**63 - 1
"""Largest seed and offset: integers of PyTorch's operations have 64 bits with a sign."""


class Words(NamedTuple):
    """Arguments of attention other than tensors, in the order of the operation's schema."""

    causal: bool
    diagonal: int
    from_last: bool
    window: int | None
    soft_cap: float | None
    dropout: float
    seed: int
    offset: int
    scale: float | None

    @property
    def named(self) -> dict[str, Any]:
        """The arguments by their names in `tilewright.attention`."""
        found = self._asdict()
        return found | {"diagonal": LAST if found.pop("from_last") else self.diagonal}


WORDS = (
    "bool causal, int diagonal, bool from_last, int? window, float? soft_cap, float dropout, SymInt seed, "
    "SymInt offset, float? scale"
)


# ---------------------------------------------------------------- gradients by stored scores


class Places(NamedTuple):
    """For each query or key, its sequence (-1 if it has none) and its index in that sequence."""

    sequence: torch.Tensor
    number: torch.Tensor


def _places(rows: int, offsets: torch.Tensor) -> Places:
    every = torch.arange(rows, device=offsets.device)
    found = torch.bucketize(every, offsets, right=True) - 1
    inside = (found >= 0) & (found < offsets.shape[0] - 1)
    sequence = torch.where(inside, found, -1)
    return Places(sequence, every - offsets[sequence.clamp(min=0)])


def _seen(
    rows: int,
    keys: int,
    words: Words,
    offsets: tuple[torch.Tensor, torch.Tensor] | None,
    lengths: torch.Tensor | None,
    device: Any,
) -> torch.Tensor | None:
    """Return a mask, True if a query sees a key; None if every query sees every key.

    Args:
        rows: number of queries.
        keys: number of keys.
        words: the masks.
        offsets: offsets of packed sequences, for the queries and for the keys.
        lengths: number of keys of each batch, with three more dimensions unless there is one batch.
        device: the device of the result.
    """
    if offsets is None:
        i, j = torch.arange(rows, device=device)[:, None], torch.arange(keys, device=device)
        last: Any = i + ((keys if lengths is None else lengths) - rows if words.from_last else words.diagonal)
        seen = None if lengths is None else j < lengths
    else:
        queries, others = _places(rows, offsets[0]), _places(keys, offsets[1])
        seen = (queries.sequence[:, None] == others.sequence) & (queries.sequence >= 0)[:, None]
        j = others.number
        of_queries, of_keys = offsets[0].diff(), offsets[1].diff()
        apart = (of_keys - of_queries)[queries.sequence.clamp(min=0)] if words.from_last else words.diagonal
        last = (queries.number + apart)[:, None]
    if not words.causal:
        return seen
    under = j <= last
    if words.window is not None:
        under = under & (j > last - words.window)
    return under if seen is None else seen & under


def random_bits(index: torch.Tensor, seed: int, offset: int) -> torch.Tensor:
    """Return 32 random bits for each index, as `tilewright.testing.philox` does, as int64.

    Args:
        index: int64 tensor of numbers that are not negative.
        seed: the key.
        offset: the upper half of the counter.

    Example:
        >>> random_bits(torch.arange(2), 0, 0).tolist() == [0x6627E8D5, 0xE169C58D]
        True
    """
    low = 2**32 - 1
    block = index >> 2
    zero = torch.zeros_like(block)
    words = [block & low, block >> 32, zero + offset % 2**32, zero + offset // 2**32]
    for turn in range(ROUNDS):
        keys = [
            (own + turn * step) % 2**32 for own, step in zip((seed % 2**32, seed // 2**32), WEYL, strict=True)
        ]
        # A product of two 32-bit words wraps around in int64, and keeps all of its bits.
        first, second = (words[2 * at] * MULTIPLIERS[at] for at in range(2))
        words = [
            ((second >> 32) & low) ^ words[1] ^ keys[0],
            second & low,
            ((first >> 32) & low) ^ words[3] ^ keys[1],
            first & low,
        ]
    return torch.stack(words, -1).gather(-1, (index & 3)[..., None])[..., 0]


def _kept(shape: torch.Size, words: Words, device: Any) -> torch.Tensor:
    """Return dropout's factor of each weight (..., M, N): 0, or the factor of the weights that stay."""
    *heads, rows, keys = shape
    lines = torch.arange(math.prod(heads) * rows, device=device)[:, None] * (-(-keys // 4) * 4)
    index = (lines + torch.arange(keys, device=device)).reshape(shape)
    seed, offset, threshold, kept = Dropout(words.dropout, words.seed, words.offset).numbers
    return (random_bits(index, seed, offset) >= threshold) * torch.full(
        (), kept, dtype=torch.float32, device=device
    )


class AttentionGradient(torch.autograd.Function):
    """Attention and the logarithms of its sums, with gradients by kernels, or by products."""

    @staticmethod
    def forward(observed: bool, *args: Any) -> Any:
        """Compute both in one kernel, through the dispatcher if something observes the call."""
        return (ATTENTION.inside if observed else ATTENTION.run)(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Save the arrays, the result and the logarithms for the gradients."""
        ctx.words = Words(*inputs[10:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[1:9], *output)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor | None, d_lse: torch.Tensor | None) -> Any:
        """Return the gradients.

        Kernels compute the gradients through the result, up to 256 columns, and have no gradients themselves.
        Wider arrays, lengths of keys, gradients of gradients, and gradients through ``lse`` need products
        with the scores, which are computed again and stored.  Sinks enter through the logarithms alone.
        """
        q, k, v, bias, sinks, q_offsets, k_offsets, k_lengths, out, lse = ctx.saved_tensors
        words, needs, wide = ctx.words, ctx.needs_input_grad[1:], torch.float32
        is_packed = q_offsets is not None
        dy = torch.zeros_like(out) if dy is None else dy
        is_served = max(q.shape[-1], v.shape[-1]) <= MOST_OF_GRADIENTS and k_lengths is None
        if d_lse is None and is_served and not torch.is_grad_enabled():
            given = (q, k, v, out, lse, dy.to(q.dtype), bias, sinks, q_offsets, k_offsets)
            *made, d_bias, d_sinks = ATTENTION_BACKWARD(*given, needs[3], needs[4], *words)
            made += [d_bias if needs[3] else None, d_sinks if needs[4] else None]
            return None, *made, *(None,) * (4 + len(words))
        # A row that sees nothing has the logarithm -inf, and weights of 0.
        total = lse.masked_fill(lse == -math.inf, 0)
        d_sinks = None
        mean = (dy.to(wide) * out.to(wide)).sum(-1)
        mean = mean if d_lse is None else mean - d_lse
        if needs[4]:
            by_head = sinks if is_packed or q.dim() == 2 else sinks[:, None]
            shares = torch.exp(by_head.to(wide) - total).masked_fill(lse == -math.inf, 0)
            d_sinks = reduced_to(-shares * mean, by_head).reshape(sinks.shape)
        if is_packed:  # heads before rows
            q, k, v, dy = (one.transpose(0, 1) for one in (q, k, v, dy))
            total, mean = total.mT, mean.mT
        factor = 1 / math.sqrt(q.shape[-1]) if words.scale is None else words.scale
        groups = q.shape[-3] // k.shape[-3] if q.dim() > 2 and k.shape[-3] else 1
        keys, values = (one.repeat_interleave(groups, -3) if groups > 1 else one for one in (k, v))
        scores = matmul(q, keys.mT, alpha=factor, out_dtype=wide)
        slope = None
        if words.soft_cap is not None:
            bent = torch.tanh(scores / words.soft_cap)
            scores, slope = words.soft_cap * bent, 1 - bent * bent
        if bias is not None:
            scores = scores + bias
        offsets = (q_offsets, q_offsets if k_offsets is None else k_offsets) if is_packed else None
        lengths = k_lengths
        if lengths is not None:
            lengths = lengths.reshape((-1, 1, 1, 1) if q.dim() == 4 else ())
        seen = _seen(q.shape[-2], k.shape[-2], words, offsets, lengths, q.device)
        if seen is not None:
            scores = scores.masked_fill(~seen, -math.inf)
        weights = torch.exp(scores - total[..., None])
        d_weights = matmul(dy.to(v.dtype), values.mT, out_dtype=wide)
        whole = weights
        if words.dropout:
            kept = _kept(weights.shape, words, q.device)
            d_weights, whole = d_weights * kept, weights * kept
        d_scores = (weights * (d_weights - mean[..., None])).masked_fill(weights == 0, 0)
        d_bias = reduced_to(d_scores, bias) if needs[3] else None
        if slope is not None:
            d_scores = d_scores * slope
        rounded, whole = d_scores.to(q.dtype), whole.to(v.dtype)
        d_q = matmul(rounded, keys, alpha=factor) if needs[0] else None
        d_k = _shared(matmul(rounded.mT, q, alpha=factor), k, groups) if needs[1] else None
        d_v = _shared(matmul(whole.mT, dy.to(v.dtype)), v, groups) if needs[2] else None
        if is_packed:
            d_q, d_k, d_v = (one if one is None else one.transpose(0, 1) for one in (d_q, d_k, d_v))
        return None, d_q, d_k, d_v, d_bias, d_sinks, *(None,) * (4 + len(words))


def _shared(gradient: torch.Tensor, one: torch.Tensor, groups: int) -> torch.Tensor:
    """Sum the gradients of the neighbouring query heads that share a head of keys or values."""
    if groups == 1:
        return gradient
    wide = gradient.unflatten(-3, (one.shape[-3], groups)).to(torch.float32)
    return wide.sum(-3).to(one.dtype)


# ---------------------------------------------------------------- operations


def _as_heads_of(one: torch.Tensor, columns: int) -> torch.Tensor:
    """Return a new tensor with the extents of a tensor (..., H, M, D), apart from the number of columns.

    If heads have a smaller stride than rows, as in a view of (B, M, H, D), they have in the result too: a
    model can then join the heads without a copy.
    """
    if one.dim() < 3 or one.stride(-3) >= one.stride(-2):
        return one.new_empty((*one.shape[:-1], columns))
    *batch, heads, rows, _ = one.shape
    return one.new_empty((*batch, rows, heads, columns)).transpose(-3, -2)


def _run_attention_backward(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    dy: Any,
    bias: Any,
    sinks: Any,
    q_offsets: Any,
    k_offsets: Any,
    of_bias: bool,
    of_sinks: bool,
    *words: Any,
) -> Any:
    given = present(bias=bias, sinks=sinks, q_offsets=q_offsets, k_offsets=k_offsets)
    for name, one in (("q", q), ("k", k), ("v", v)):  # the kernels leave out rows of no sequence
        given[f"d{name}"] = (
            is_new(_as_heads_of(one, one.shape[-1])) if q_offsets is None else torch.zeros_like(one)
        )
    wanted: dict[str, Any] = {"return_dbias": of_bias, "return_dsinks": of_sinks}
    made = of_gradients.attention_backward(q, k, v, out, lse, dy, **given, **wanted, **Words(*words).named)
    terms, rest = made[:3], iter(made[3:])
    return *terms, *(next(rest) if want else q.new_empty(0) for want in (of_bias, of_sinks))


def _fake_attention_backward(q: Any, k: Any, v: Any, *rest: Any) -> Any:
    bias, sinks, _, _, of_bias, of_sinks = rest[3:9]
    terms = (
        one.new_empty(one.shape) if want else q.new_empty(0)
        for one, want in ((bias, of_bias), (sinks, of_sinks))
    )
    like = torch.empty_like if rest[5] is not None else lambda one: _as_heads_of(one, one.shape[-1])
    return *map(like, (q, k, v)), *terms


ATTENTION_BACKWARD = Operation(
    "attention_backward(Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor dy, Tensor? bias, "
    f"Tensor? sinks, Tensor? q_offsets, Tensor? k_offsets, bool of_bias, bool of_sinks, {WORDS}) -> (Tensor, "
    "Tensor, Tensor, Tensor, Tensor)",
    _run_attention_backward,
    _fake_attention_backward,
    refusal="the kernels of attention's gradients have no gradients; nearest legal choice: attention, and "
    "torch.autograd.grad(create_graph=True)",
)


def _run_attention(
    q: Any,
    k: Any,
    v: Any,
    bias: Any,
    sinks: Any,
    q_offsets: Any,
    k_offsets: Any,
    k_lengths: Any,
    k_pages: Any,
    *words: Any,
) -> Any:
    given = present(bias=bias, sinks=sinks, q_offsets=q_offsets, k_offsets=k_offsets)
    given |= present(k_lengths=k_lengths, k_pages=k_pages)
    if q_offsets is not None and q.dim() == v.dim() == 3:  # the kernel leaves out rows of no sequence
        given["out"] = q.new_zeros((*q.shape[:2], v.shape[2]))
        given["lse"] = q.new_full(q.shape[:2], -math.inf, dtype=torch.float32)
    elif v.dim() == q.dim() > 2:
        given["out"] = is_new(_as_heads_of(q, v.shape[-1]))
    return of_attention.attention(q, k, v, return_lse=True, **given, **Words(*words).named)


def _attention_with_gradient(*args: Any) -> Any:
    if args[8] is not None:
        raise LaunchError(
            "tilewright.torch.attention: a gradient is wanted, and keys in pages (k_pages) have none",
            "the call under torch.no_grad(), or keys and values without pages",
        )
    return recorded(AttentionGradient, True, *args)


def _attention_recorded(*args: Any) -> Any:
    """Compute attention of plain tensors with gradients, if nothing observes the call."""
    if args[8] is not None:
        raise LaunchError("keys in pages have no gradient")
    return _apply_attention(False, *args)


_apply_attention = apply_of(AttentionGradient)

ATTENTION = Operation(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? sinks, Tensor? q_offsets, Tensor? "
    f"k_offsets, Tensor? k_lengths, Tensor? k_pages, {WORDS}) -> (Tensor, Tensor)",
    _run_attention,
    lambda q, k, v, *rest: (
        _as_heads_of(q, v.shape[-1]) if rest[2] is None else q.new_empty((*q.shape[:2], v.shape[2])),
        q.new_empty(q.shape[:-1], dtype=torch.float32),
    ),
    _attention_with_gradient,
    cast=range(5),
)


def _attention_by_kernels(
    q: Any, k: Any, v: Any, *, q_offsets: Any = None, dropout: float = 0.0, **words: Any
) -> Any:
    """Compute attention without a gradient; packed sequences and dropout need the operation."""
    if q_offsets is not None or dropout:
        raise LaunchError("packed sequences and dropout need the operation")
    has_heads = isinstance(q, torch.Tensor) and isinstance(v, torch.Tensor) and q.dim() == v.dim() > 2
    return of_attention.attention(q, k, v, out=_as_heads_of(q, v.shape[-1]) if has_heads else None, **words)


def _attention_by(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Return `attention` computed by a function of the arguments of `ATTENTION`."""

    def attention(
        q: Any,
        k: Any,
        v: Any,
        *,
        bias: Any = None,
        sinks: Any = None,
        q_offsets: Any = None,
        k_offsets: Any = None,
        k_lengths: Any = None,
        k_pages: Any = None,
        causal: bool = False,
        diagonal: Any = 0,
        window: int | None = None,
        soft_cap: float | None = None,
        dropout: float = 0.0,
        seed: Any = None,
        offset: Any = 0,
        scale: float | None = None,
        return_lse: bool = False,
    ) -> Any:
        if seed is None:
            seed = drawn_seed("attention", LARGEST_SEED) if dropout else 0
        for name, number in (("seed", seed), ("offset", offset)):
            if not isinstance(number, int | torch.SymInt):
                raise LaunchError(
                    f"tilewright.torch.attention: {name}={number!r}", f"an integer from 0 to {LARGEST_SEED}"
                )
            if number > LARGEST_SEED:
                raise LaunchError(f"tilewright.torch.attention: {name}={number}", LARGEST_SEED)
        if isinstance(diagonal, str) and diagonal != LAST:
            raise LaunchError(f"tilewright.torch.attention: diagonal={diagonal!r}", f"{LAST!r}, or a number")
        of_words = 0 if isinstance(diagonal, str) else diagonal, isinstance(diagonal, str), window, soft_cap
        words = Words(causal, *of_words, dropout, seed, offset, scale)
        out, lse = operation(q, k, v, bias, sinks, q_offsets, k_offsets, k_lengths, k_pages, *words)
        return (out, lse) if return_lse else out

    return attention


@direct(_attention_by_kernels, _attention_by(_attention_recorded))
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    q_offsets: torch.Tensor | None = None,
    k_offsets: torch.Tensor | None = None,
    k_lengths: torch.Tensor | None = None,
    k_pages: torch.Tensor | None = None,
    causal: bool = False,
    diagonal: int | str = 0,
    window: int | None = None,
    soft_cap: float | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    scale: float | None = None,
    return_lse: bool = False,
) -> Any:
    """``dropout(softmax(scale * q @ kᵀ + bias)) @ v`` for every batch and head, with gradients.

    Neither the kernel nor its gradient kernels store the scores.  Four kinds of gradients are products with
    the scores, which are computed again and stored: gradients through ``lse``, gradients of gradients, those
    with lengths of keys, and those of more than 256 columns.  They take memory for M x N scores of each head,
    or for T x U of packed sequences.

    Args:
        q: tensor (B, H, M, D) of float16, bfloat16 or float32, D at most 512; (H, M, D) or (M, D) likewise.
        k: tensor (B, G, N, D); G divides H.
        v: tensor (B, G, N, E), E at most 512.
        bias: tensor that is broadcast to (B, H, M, N).
        sinks: tensor (H,): a score of each head that joins the sum of its weights, and has no value.
        q_offsets: int32 or int64 tensor (B + 1,) for sequences that follow each other without padding, as in
            `tilewright.attention`: ``q`` is then (T, H, D), ``k`` (U, G, D), ``v`` (U, G, E). A row of no
            sequence is a row that sees no key, and has gradients of 0.
        k_offsets: likewise for ``k`` and ``v``; default: ``q_offsets``.
        k_lengths: int32 or int64 tensor (B,): batch b has only the first ``k_lengths[b]`` keys.
        k_pages: int32 or int64 tensor (B, T), for keys and values in pages of S rows: ``k`` is then (P, S, G,
            D), ``v`` (P, S, G, E), and key n of batch b is ``k[k_pages[b, n // S], n % S]``.  Without
            gradients.
        causal: whether row i sees only the keys up to ``i + diagonal``.
        diagonal: offset of the mask; with ``"last"`` the last row sees every key.
        window: number of keys that a row sees at most; needs ``causal``.
        soft_cap: a bound of the scores.
        dropout: probability that a weight is 0, as in `tilewright.attention`.
        seed: the key of the random numbers of dropout; default: a number that PyTorch's generator of the CPU
            draws.  Inside of `torch.compile` give a seed.
        offset: a second key of the random numbers, e.g. the step of a training.
        scale: a number; default: ``1 / sqrt(D)``.
        return_lse: whether to return the logarithms of the sums too.

    Returns:
        A new tensor (B, H, M, E), or this and a float32 tensor (B, H, M); (T, H, E) and (T, H) for packed
        sequences.  Unless sequences are packed, the result has heads and rows in the order in which ``q`` has
        them in memory, as with `torch.nn.functional.scaled_dot_product_attention`.  A gradient that a kernel
        computes has them in the order of its tensor.

    Raises:
        LaunchError: shapes or devices do not fit, or a gradient is wanted with pages of keys.
        DTypeError: an unsupported dtype or mixture.

    Example:
        >>> q = torch.zeros(2, 8, requires_grad=True)
        >>> y = attention(q, torch.zeros(2, 8), torch.eye(2), causal=True)
        >>> y.tolist()
        [[1.0, 0.0], [0.5, 0.5]]

        Sequences of 2 and 3 rows, with one head:

        >>> q, v = torch.zeros(5, 1, 8), torch.arange(5.0).reshape(5, 1, 1)
        >>> attention(q, q, v, q_offsets=torch.tensor([0, 2, 5])).flatten().tolist()
        [0.5, 0.5, 3.0, 3.0, 3.0]
    """
    words: dict[str, Any] = {"causal": causal, "diagonal": diagonal, "window": window, "soft_cap": soft_cap}
    words |= {"dropout": dropout, "seed": seed, "offset": offset, "scale": scale, "return_lse": return_lse}
    pages = {"k_lengths": k_lengths, "k_pages": k_pages}
    return _ATTENTION(
        q, k, v, bias=bias, sinks=sinks, q_offsets=q_offsets, k_offsets=k_offsets, **pages, **words
    )


_ATTENTION = _attention_by(ATTENTION)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return attention as models of `transformers` call it: (B, M, H, E), and no weights.

    A mask is True for the keys that a query sees, or numbers that are added to the scores.  Without a mask,
    query i of several sees the keys 0 to i in a causal model, and a single query sees all keys.
    """
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    words: dict[str, Any] = {"dropout": dropout, "scale": scaling, "soft_cap": softcap, "sinks": s_aux}
    words["causal"] = bool(is_causal and attention_mask is None and query.shape[2] > 1)
    bias = attention_mask
    if bias is not None and bias.dtype == torch.bool:
        bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill(~bias, -math.inf)
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    out = attention(query, key, value, bias=bias, **words)
    return out.transpose(1, 2), None
