"""`attention` for JAX, with gradients by kernels that store no scores, and a rule for `vmap`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap

from tilewright.errors import LaunchError
from tilewright.jax.calls import Made, Read, alike, call, integer, number, zeros_like
from tilewright.jax.products import looped, reduced_to
from tilewright.ops.attending.problem import MOST_OF_GRADIENTS


class AttentionOptions(NamedTuple):
    """The arguments of attention other than arrays."""

    causal: bool
    diagonal: int
    window: int | None
    soft_cap: float | None
    dropout: float
    seed: int
    offset: int
    scale: float | None


def _batched(
    function: Callable[..., tuple[Array, ...]], size: int, are: Any, arrays: tuple[Array, ...], terms: Any
) -> tuple[tuple[Array, ...], tuple[bool, ...]]:
    """Call attention, or its gradients, once on a batch of problems, joined with their own batches."""
    rank = arrays[0].ndim - are[0][0]
    if rank == 4 or any(jax.tree.leaves(are[1])):
        batch = arrays[0].shape[are[0][0]] if rank == 4 else 0
        if any(jax.tree.leaves(are[1])) or ("bias" in terms and batch not in (0, 1)):
            found = looped(function, are, arrays, terms)
            return found, (True,) * len(found)
    # Ranks with batch and heads: 3 of `lse`, 4 of every other array.
    ranks = [4 - (rank - (one.ndim - is_batched)) for one, is_batched in zip(arrays, are[0], strict=True)]
    given = []  # arrays with the new batch and their own one joined, heads and matrices
    for one, is_batched, own in zip(arrays, are[0], ranks, strict=True):
        whole = one if is_batched else jnp.broadcast_to(one, (size, *one.shape))
        whole = whole.reshape(size, *(1,) * (own + 1 - whole.ndim), *whole.shape[1:])
        given.append(whole.reshape(size * whole.shape[1], *whole.shape[2:]))
    found = function(tuple(given), terms)
    shapes = (one.shape[1:] if rank == 4 else one.shape[4 - rank :] for one in found)
    own = (given[0].shape[0] // size,) if rank == 4 else ()
    made = tuple(one.reshape(size, *own, *shape) for one, shape in zip(found, shapes, strict=True))
    return made, (True,) * len(made)


@lru_cache(maxsize=256)
def _attention(words: AttentionOptions) -> Callable[..., Array]:
    """Return attention with gradients, for some options."""
    given = words._asdict()

    @custom_vmap
    def launched(arrays: tuple[Array, ...], terms: dict[str, Array]) -> tuple[Array, ...]:
        q, k, v = arrays
        operands = [Read(name, one) for name, one in {"q": q, "k": k, "v": v, **terms}.items()]
        shape = (*q.shape[:-1], v.shape[-1])
        made = [Made("out", shape, q.dtype), Made("lse", shape[:-1], jnp.float32)]
        return call("attention", operands, made, **given)

    @custom_vmap
    def gradients(arrays: tuple[Array, ...], terms: dict[str, Array]) -> tuple[Array, ...]:
        names = ("q", "k", "v", "out", "lse", "dout")
        operands = [Read(name, one) for name, one in zip(names, arrays, strict=True)]
        operands += [Read(name, one) for name, one in terms.items()]
        made = [Made(f"d{name}", one.shape, one.dtype) for name, one in zip("qkv", arrays, strict=False)]
        return call("attention_backward", operands, made, **given)

    @launched.def_vmap
    def batched(size: int, are: Any, arrays: Any, terms: Any) -> Any:
        return _batched(launched, size, are, arrays, terms)

    @gradients.def_vmap
    def batched_gradients(size: int, are: Any, arrays: Any, terms: Any) -> Any:
        return _batched(gradients, size, are, arrays, terms)

    @jax.custom_vjp
    def attend(q: Array, k: Array, v: Array, terms: dict[str, Array]) -> tuple[Array, ...]:
        return launched((q, k, v), terms)

    def forward(q: Array, k: Array, v: Array, terms: dict[str, Array]) -> tuple[tuple[Array, ...], Any]:
        for name, columns in (("q", q.shape[-1]), ("v", v.shape[-1])):
            if columns > MOST_OF_GRADIENTS:
                raise LaunchError(
                    f"tilewright.jax.attention: {name} has {columns} columns, and a gradient is wanted",
                    f"{MOST_OF_GRADIENTS} columns, or jax.lax.stop_gradient",
                )
        out, lse = attend(q, k, v, terms)  # another derivative differentiates this rule
        return (out, lse), (q, k, v, terms, out, lse)

    @jax.custom_vjp
    def by_kernels(
        q: Array, k: Array, v: Array, terms: dict[str, Array], out: Array, lse: Array, dy: Array
    ) -> tuple[Array, Array, Array, dict[str, Array]]:
        own = {name: one for name, one in terms.items() if name == "bias"}  # sinks enter by `lse` alone
        d_q, d_k, d_v = gradients((q, k, v, out, lse, dy.astype(q.dtype)), own)
        found = dict[str, Array]()
        delta = (dy.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1)
        if "sinks" in terms:
            sinks = terms["sinks"]
            by_head = sinks[:, None] if q.ndim > 2 else sinks
            weights = jnp.exp(by_head.astype(jnp.float32) - jnp.where(lse == -jnp.inf, 0, lse))
            found["sinks"] = reduced_to(-weights * delta, by_head.shape, sinks.dtype).reshape(sinks.shape)
        if "bias" in terms:
            # From stored scores; XLA drops the computation if nothing uses it.
            bias = terms["bias"]
            scores, values = _scores(words, q, k, v)
            weights = jnp.exp(scores + bias - jnp.where(lse == -jnp.inf, 0, lse)[..., None])
            if words.causal:
                weights = jnp.where(_seen(words, q.shape[-2], k.shape[-2]), weights, 0)
            d_weights = jnp.matmul(dy.astype(jnp.float32), values.swapaxes(-1, -2), precision="highest")
            d_scores = jnp.where(weights == 0, 0, weights * (d_weights - delta[..., None]))
            found["bias"] = reduced_to(d_scores, bias.shape, bias.dtype)
        return d_q, d_k, d_v, found

    def forward_again(*args: Any) -> tuple[Any, Any]:
        if words.dropout:
            raise LaunchError(
                f"tilewright.jax.attention: a second derivative is wanted, and dropout={words.dropout}",
                "dropout=0",
            )
        return by_kernels(*args), args

    def backward_again(kept: Any, dys: Any) -> Any:
        """Return the derivative of the gradients: JAX differentiates attention with stored scores twice."""
        *given, out, lse, dy = kept

        def gradients_with_scores(*args: Any) -> Any:
            *arrays, dy = args
            return jax.vjp(partial(_with_scores, words), *arrays)[1](dy)

        *found, d_dy = jax.vjp(gradients_with_scores, *given, dy)[1](dys)
        # `out` and `lse` follow from the other arguments.
        return *found, zeros_like(out), zeros_like(lse), d_dy

    by_kernels.defvjp(forward_again, backward_again)
    attend.defvjp(forward, lambda kept, dys: by_kernels(*kept, dys[0]))
    return lambda *args: attend(*args)[0]


def _scores(words: AttentionOptions, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Return the scores before bias and masks, and the values repeated for each query head, in f32."""
    groups = q.shape[-3] // k.shape[-3] if q.ndim > 2 else 1
    q, k, v = (one.astype(jnp.float32) for one in (q, k, v))
    keys, values = (jnp.repeat(one, groups, -3) if groups > 1 else one for one in (k, v))
    factor = 1 / math.sqrt(q.shape[-1]) if words.scale is None else words.scale
    scores = factor * jnp.matmul(q, keys.swapaxes(-1, -2), precision="highest")
    return scores if words.soft_cap is None else words.soft_cap * jnp.tanh(scores / words.soft_cap), values


def _with_scores(words: AttentionOptions, q: Array, k: Array, v: Array, terms: dict[str, Array]) -> Array:
    """Compute attention without dropout by JAX in f32; it stores the scores."""
    wide = jnp.float32
    scores, values = _scores(words, q, k, v)
    if "bias" in terms:
        scores = scores + terms["bias"].astype(wide)
    seen = jnp.isfinite(scores) & _seen(words, q.shape[-2], k.shape[-2])
    scores = jnp.where(seen, scores, 0)
    most = jnp.max(jnp.where(seen, scores, -jnp.inf), -1, keepdims=True)
    shift = jax.lax.stop_gradient(jnp.where(jnp.isfinite(most), most, 0))
    weights = jnp.where(seen, jnp.exp(scores - shift), 0)
    total = jnp.sum(weights, -1, keepdims=True)
    if "sinks" in terms:
        sinks = terms["sinks"].astype(wide)
        total = total + jnp.exp((sinks[:, None, None] if q.ndim > 2 else sinks) - shift)
    weights = weights / jnp.where(total == 0, 1, total)
    return jnp.matmul(weights, values, precision="highest").astype(q.dtype)


def _seen(words: AttentionOptions, rows: int, keys: int) -> Array:
    """Return a mask, True if a row sees a key."""
    columns = jnp.arange(keys)
    if not words.causal:
        return jnp.ones((rows, keys), bool)
    last = jnp.arange(rows)[:, None] + words.diagonal
    seen = columns <= last
    return seen if words.window is None else seen & (columns > last - words.window)


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    bias: Array | None = None,
    sinks: Array | None = None,
    causal: bool = False,
    diagonal: int | str = 0,
    window: int | None = None,
    soft_cap: float | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    scale: float | None = None,
) -> Array:
    """``dropout(softmax(scale * q @ kᵀ + bias)) @ v`` for every batch and head, with gradients.

    Neither the kernel nor its gradient kernels store the scores; the gradient of ``bias`` does.

    Args:
        q: array (B, H, M, D) of float16, bfloat16 or float32; (H, M, D) or (M, D) likewise. D and E are at
            most 512, and 256 if a gradient is wanted.
        k: array (B, G, N, D); G divides H.
        v: array (B, G, N, E).
        bias: array that is broadcast to (B, H, M, N).
        sinks: array (H,): an extra score of each head; its weight joins the sum, but multiplies no value.
        causal: whether row i sees only the keys up to ``i + diagonal``.
        diagonal: offset of the mask; with ``"last"`` the last row sees every key.
        window: number of keys that a row sees at most; needs ``causal``.
        soft_cap: a bound of the scores.
        dropout: probability that a weight is 0, as in `tilewright.attention`; not with ``bias``.
        seed: the key of the random numbers, not traced.
        offset: a second number that selects them, likewise.
        scale: a number, not traced; default: ``1 / sqrt(D)``.

    Returns:
        An array (B, H, M, E).

    Raises:
        LaunchError: both a bias and dropout, a traced number, or gradients of more than 256 columns.

    Example:
        >>> q = jnp.zeros((2, 8))
        >>> attention(q, q, jnp.eye(2), causal=True).tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """
    dropped = number("attention", "dropout", dropout)
    if bias is not None and dropped:
        raise LaunchError(
            f"tilewright.jax.attention: bias and dropout={dropout}, whose gradients need the random numbers",
            "dropout=0, or no bias",
        )
    apart = k.shape[-2] - q.shape[-2] if diagonal == "last" else diagonal
    if isinstance(apart, str):
        raise LaunchError(f"tilewright.jax.attention: diagonal={diagonal!r}", "'last', or a number")
    cap = soft_cap if soft_cap is None else number("attention", "soft_cap", soft_cap)
    factor = scale if scale is None else number("attention", "scale", scale)
    given = {"causal": causal, "diagonal": apart, "seed": seed, "offset": offset}
    integers = {name: integer("attention", name, one) for name, one in given.items()}
    words = AttentionOptions(
        bool(integers["causal"]),
        integers["diagonal"],
        window if window is None else integer("attention", "window", window),
        cap,
        dropped,
        integers["seed"],
        integers["offset"],
        factor,
    )
    terms = {name: one for name, one in (("bias", bias), ("sinks", sinks)) if one is not None}
    return _attention(words)(*alike((q, k, v, terms)))
