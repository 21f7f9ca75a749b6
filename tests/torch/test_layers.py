"""Attention, chains, gates, groups, scaled products and images in PyTorch, compared with PyTorch in f64."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.torch.test_products import compare, drawn

import tilewright as tw
import tilewright.torch as tt
from tilewright.errors import LaunchError
from tilewright.torch import attending
from tilewright.torch.layers import two_layers
from tilewright.torch.terms import ACTIVATIONS

f64 = torch.float64


def like_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    causal: bool = False,
    diagonal: int = 0,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
    kept: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention as its formula says; a row that sees nothing is 0, and `kept` are the factors of weights."""
    groups = q.shape[-3] // k.shape[-3]
    k, v = (one.repeat_interleave(groups, -3) for one in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    if bias is not None:
        scores = scores + bias
    if causal:
        last = torch.arange(q.shape[-2])[:, None] + diagonal
        columns = torch.arange(k.shape[-2])
        hidden = (columns > last) | (columns <= last - (window or 10**6))
        scores = scores.masked_fill(hidden, -math.inf)
    if sinks is not None:
        column = sinks[:, None, None].expand(*scores.shape[:-1], 1)
        lse = torch.logsumexp(torch.cat([scores, column], -1), -1)
        weights = torch.exp(scores - lse[..., None])
    else:
        lse = torch.logsumexp(scores, -1)
        nothing = (lse == -math.inf)[..., None]
        weights = torch.softmax(scores.masked_fill(nothing, 0), -1).masked_fill(nothing, 0)
    return (weights if kept is None else weights * kept) @ v, lse


def factors(heads: int, rows: int, keys: int, probability: float, seed: int, offset: int) -> torch.Tensor:
    """The factors of all weights (heads, rows, keys) under dropout, from the published generator."""
    across = -(-keys // 4) * 4
    index = np.arange(heads * rows)[:, None] * across + np.arange(keys)
    kept = tw.testing.philox(index, seed, offset) >= round(probability * 2**32)
    made = torch.from_numpy(kept / (1 - probability)).reshape(heads, rows, keys)
    return made.to(torch.get_default_device())


def gradients_of(
    call: Callable[..., Any],
    arrays: Sequence[torch.Tensor],
    dy: torch.Tensor,
    dtype: torch.dtype,
    d_lse: torch.Tensor | None = None,
    *,
    twice: bool = False,
) -> list[torch.Tensor]:
    """Return results and gradients; if `twice`, also the gradients of the squares of the gradients."""
    leaves = [one.to(dtype).requires_grad_() for one in arrays]
    out, lse = call(*leaves)
    total = (out.double() * dy).sum()
    if d_lse is not None:
        total = total + (lse.double() * d_lse).sum()
    first = torch.autograd.grad(total, leaves, create_graph=twice)
    if twice:
        first = torch.autograd.grad(sum(one.double().square().sum() for one in first), leaves)
    return [out.detach(), lse.detach(), *first]


@pytest.mark.parametrize(
    ("heads", "rows", "keys", "with_bias", "words"),
    [
        ((2, 2), 33, 33, False, {}),
        ((4, 2), 20, 37, False, {"causal": True, "diagonal": 17}),
        ((2, 1), 37, 20, True, {"causal": True, "diagonal": -3, "window": 9}),
        ((2, 2), 17, 19, True, {"soft_cap": 2.0}),
    ],
)
def test_attention(
    heads: tuple[int, int], rows: int, keys: int, with_bias: bool, words: dict[str, Any]
) -> None:
    """Results and gradients in f32; a row whose scores are all hidden has no gradient."""
    q, k, v = drawn(2, heads[0], rows, 24), drawn(2, heads[1], keys, 24), drawn(2, heads[1], keys, 16)
    bias = [drawn(heads[0], 1, keys)] if with_bias else []
    dy, d_lse = drawn(2, heads[0], rows, 16, seed=3), drawn(2, heads[0], rows, seed=4)

    def gradients(call: Callable[..., Any], dtype: torch.dtype) -> list[torch.Tensor]:
        arrays = [one.to(dtype).requires_grad_() for one in (q, k, v, *bias)]
        out, lse = call(*arrays)
        sees = (lse != -math.inf).detach()
        total = (out.double() * dy).sum() + (lse.double()[sees] * d_lse[sees]).sum()
        return [out, lse, *torch.autograd.grad(total, arrays)]

    def call(*arrays: torch.Tensor) -> Any:
        added = {"bias": arrays[3]} if with_bias else {}
        return tt.attention(*arrays[:3], **added, **words, return_lse=True)

    found = gradients(call, torch.float32)
    with torch.no_grad():  # a call of the kernels alone
        for one, other in zip(call(*(one.float() for one in (q, k, v, *bias))), found[:2], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    expected = gradients(lambda *arrays: like_attention(*arrays, **words), f64)
    for one, other in zip(found, expected, strict=True):
        # At most 40 weights of 1 together, times numbers below 40: 2**-24 times a few hundred.
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("heads", "of_bias", "words"),
    [
        ((4, 2), None, {"causal": True, "diagonal": 4, "window": 9}),
        ((2, 2), (2, 1, 25), {}),
        ((4, 2), (2, 1, 21, 25), {"causal": True, "diagonal": 4, "soft_cap": 2.0}),
    ],
)
def test_gradients_of_attention_by_kernels(
    heads: tuple[int, int],
    of_bias: tuple[int, ...] | None,
    words: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernels compute gradients of the result alone, also of a bias; products compute second derivatives."""
    given = [drawn(2, heads[0], 21, 16), *(drawn(2, heads[1], 25, 16, seed=at) for at in (1, 2))]
    given += [] if of_bias is None else [drawn(*of_bias, seed=4)]
    dy = drawn(2, heads[0], 21, 16, seed=3)
    calls = list[str]()
    run = attending.ATTENTION_BACKWARD.run
    monkeypatch.setattr(
        attending.ATTENTION_BACKWARD, "run", lambda *args: calls.append("kernels") or run(*args)
    )

    def gradients(call: Callable[..., Any], dtype: torch.dtype, *, twice: bool) -> Sequence[torch.Tensor]:
        arrays = [one.to(dtype).requires_grad_() for one in given]
        first = torch.autograd.grad(call(*arrays), arrays, dy.to(dtype), create_graph=twice)
        if not twice:
            return first
        return torch.autograd.grad(sum(one.square().sum() for one in first), arrays)

    def call(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        return tt.attention(q, k, v, bias=bias, **words)

    for twice in (False, True):
        found = gradients(call, torch.float32, twice=twice)
        expected = gradients(lambda *arrays: like_attention(*arrays, **words)[0], f64, twice=twice)
        for one, other in zip(found, expected, strict=True):
            close = 1e-5 * (1 + 20 * twice)
            torch.testing.assert_close(one.double(), other, rtol=close, atol=close)
        assert calls == ["kernels"]


@pytest.mark.parametrize(("of_keys", "of_values"), [(264, 8), (16, 260)])
def test_gradients_of_wide_attention(of_keys: int, of_values: int) -> None:
    """More columns than the kernels of gradients take: products with stored scores compute the gradients."""
    given = [drawn(2, 5, of_keys), drawn(2, 7, of_keys, seed=1), drawn(2, 7, of_values, seed=2)]
    dy, words = drawn(2, 5, of_values, seed=3), {"causal": True, "diagonal": 1}

    def gradients(call: Callable[..., Any], dtype: torch.dtype) -> Sequence[torch.Tensor]:
        arrays = [one.to(dtype).requires_grad_() for one in given]
        return torch.autograd.grad(call(*arrays, **words), arrays, dy.to(dtype))

    found = gradients(tt.attention, torch.float32)
    expected = gradients(lambda *arrays, **words: like_attention(*arrays, **words)[0], f64)
    for one, other in zip(found, expected, strict=True):
        # Scores are sums of up to 264 products: 2**-24 times a few hundred.
        torch.testing.assert_close(one.double(), other, rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize("how", ["kernels", "lse", "twice"])
@pytest.mark.parametrize("words", [{"causal": True, "diagonal": 4, "window": 9}, {"soft_cap": 3.0}])
def test_sinks_and_dropout(how: str, words: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels compute gradients of sinks, and under dropout; products do so through `lse`, or twice."""
    q, *others = (
        drawn(2, 4, 21, 16),
        drawn(2, 2, 25, 16, seed=1),
        drawn(2, 2, 25, 8, seed=2),
        drawn(4, seed=5),
    )
    dy, d_lse = drawn(2, 4, 21, 8, seed=3), drawn(2, 4, 21, seed=4) if how == "lse" else None
    kept = factors(8, 21, 25, 0.3, 2**40 + 5, 7).reshape(2, 4, 21, 25)
    calls = list[str]()
    run = attending.ATTENTION_BACKWARD.run
    monkeypatch.setattr(
        attending.ATTENTION_BACKWARD, "run", lambda *args: calls.append("kernels") or run(*args)
    )

    def call(q: Any, k: Any, v: Any, sinks: Any) -> Any:
        dropped: dict[str, Any] = {"dropout": 0.3, "seed": 2**40 + 5, "offset": 7}
        return tt.attention(q, k, v, sinks=sinks, **dropped, **words, return_lse=True)

    def like(q: Any, k: Any, v: Any, sinks: Any) -> Any:
        return like_attention(q, k, v, sinks=sinks, kept=kept, **words)

    found = gradients_of(call, (q, *others), dy, torch.float32, d_lse, twice=how == "twice")
    expected = gradients_of(like, (q, *others), dy, f64, d_lse, twice=how == "twice")
    close = 1e-5 * (1 + 30 * (how == "twice"))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=close, atol=close)
    assert calls == ["kernels"] * (how == "kernels")


@pytest.mark.parametrize("how", ["kernels", "lse"])
@pytest.mark.parametrize("words", [{"causal": True, "diagonal": "last", "window": 9}, {}])
def test_packed_sequences(how: str, words: dict[str, Any]) -> None:
    """Each sequence is a problem of its own; other rows have no gradient, not even through ``lse``."""
    of_rows, of_keys = [2, 9, 9, 20], [1, 13, 15, 21]
    arrays = drawn(24, 4, 16), drawn(23, 2, 16, seed=1), drawn(23, 2, 8, seed=2), drawn(4, seed=5)
    dy, d_lse = drawn(24, 4, 8, seed=3), drawn(24, 4, seed=4) if how == "lse" else None
    kept = factors(4, 24, 23, 0.25, 3, 0)

    def call(q: Any, k: Any, v: Any, sinks: Any) -> Any:
        offsets = [torch.tensor(one) for one in (of_rows, of_keys)]
        dropped: dict[str, Any] = {"dropout": 0.25, "seed": 3, "sinks": sinks}
        out, lse = tt.attention(
            q, k, v, q_offsets=offsets[0], k_offsets=offsets[1], **dropped, **words, return_lse=True
        )
        assert lse[of_rows[-1] :].eq(-math.inf).all()
        return out, lse

    def like(q: Any, k: Any, v: Any, sinks: Any) -> Any:
        out, lse = torch.zeros(24, 4, 8, dtype=f64), torch.full((24, 4), -math.inf, dtype=f64)
        for at in range(len(of_rows) - 1):
            rows, keys = (slice(one[at], one[at + 1]) for one in (of_rows, of_keys))
            own = [one.transpose(0, 1) for one in (q[rows], k[keys], v[keys])]
            how = dict(words)
            if "diagonal" in how:
                how["diagonal"] = own[1].shape[1] - own[0].shape[1]
            made, total = like_attention(*own, sinks=sinks, kept=kept[:, rows, keys], **how)
            out[rows], lse[rows] = made.transpose(0, 1), total.mT
        return out, lse

    found = gradients_of(call, arrays, dy, torch.float32, d_lse)
    expected = gradients_of(like, arrays, dy, f64, d_lse)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-5)


def test_seeds_of_dropout() -> None:
    """PyTorch's generator draws a seed that is not given; a seed beyond 63 bits is refused."""
    q = drawn(2, 3, 20, 32).float()
    torch.manual_seed(5)
    first, second = (tt.attention(q, q, q, dropout=0.5) for _ in range(2))
    torch.manual_seed(5)
    assert torch.equal(tt.attention(q, q, q, dropout=0.5), first)
    assert not torch.equal(first, second)
    with pytest.raises(LaunchError, match="nearest legal choice: 9223372036854775807"):
        tt.attention(q, q, q, dropout=0.5, seed=2**63)
    with pytest.raises(LaunchError, match="seed='a'; nearest legal choice: an integer"):
        tt.attention(q, q, q, dropout=0.5, seed="a")
    with pytest.raises(LaunchError, match="diagonal='first'"):
        tt.attention(q, q, q, causal=True, diagonal="first")
    compiled = torch.compile(tt.attention, fullgraph=True, dynamic=True, backend="aot_eager")
    for seed in (3, 4):
        again = compiled(q, q, q, dropout=0.5, seed=seed)
        torch.testing.assert_close(again, tt.attention(q, q, q, dropout=0.5, seed=seed))


def batch_by_batch(
    lengths: Sequence[int], q: Any, k: Any, v: Any, bias: Any = None, *, from_last: bool = False, **words: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of each batch to the first of its keys; a batch without keys is 0."""
    made = []
    for at, length in enumerate(lengths):
        own = q[at], k[at, :, :length], v[at, :, :length], bias if bias is None else bias[..., :length]
        if from_last:
            words["diagonal"] = length - q.shape[-2]
        empty = torch.full(q.shape[1:3], -math.inf, dtype=q.dtype)
        made.append(like_attention(*own, **words) if length else (0 * q[at] @ v[at, 0].mT @ v[at, 0], empty))
    return torch.stack([one for one, _ in made]), torch.stack([one for _, one in made])


@pytest.mark.parametrize(
    ("lengths", "biased", "words"),
    [
        ((7, 0, 19), False, {}),
        ((19, 3, 11), True, {"soft_cap": 2.0}),
        ((8, 19, 5), False, {"causal": True, "diagonal": "last", "window": 6}),
    ],
)
def test_lengths_of_keys(lengths: Sequence[int], biased: bool, words: dict[str, Any]) -> None:
    """Each batch sees the first of its keys, with gradients, which are 0 for the others."""
    q, k, v = (drawn(3, *shape) for shape in ((4, 5, 16), (2, 19, 16), (2, 19, 16)))
    given = [q, k, v, *([drawn(4, 1, 19)] if biased else [])]
    how = {name: one for name, one in words.items() if one != "last"}
    counts, dy = torch.tensor(lengths), drawn(3, 4, 5, 16, seed=1)

    def own(*arrays: Any) -> Any:
        bias = arrays[3] if biased else None
        return tt.attention(*arrays[:3], bias=bias, k_lengths=counts, **words, return_lse=True)

    narrow = [one.float().requires_grad_() for one in given]
    exact = [one.clone().requires_grad_() for one in given]
    y, lse = own(*narrow)
    expected, logarithms = batch_by_batch(lengths, *exact, from_last="diagonal" in words, **how)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), logarithms, rtol=1e-5, atol=1e-5)
    found = torch.autograd.grad(y, narrow, dy.float())
    for one, other in zip(found, torch.autograd.grad(expected, exact, dy), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-5)
    assert not found[1][lengths.index(min(lengths)), :, min(lengths) :].any()
    compiled = torch.compile(own, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(*narrow)[0], own(*narrow)[0])


def test_keys_in_pages() -> None:
    """Pages hold the keys of the batches in any order; pages beyond a batch's keys need not exist."""
    q, k, v = (drawn(2, *shape).float() for shape in ((4, 3, 16), (2, 32, 16), (2, 32, 16)))
    lengths = torch.tensor([9, 27])
    table = torch.tensor([[5, 0, 99, -7], [2, 6, 1, 4]])
    caches = []
    for one in (k, v):
        cache = torch.full((7, 8, 2, 16), math.nan)
        for batch, row in enumerate(table.tolist()):
            for at, page in enumerate(row):
                if 0 <= page < 7:
                    cache[page] = one[batch, :, 8 * at : 8 * at + 8].transpose(0, 1)
        caches.append(cache)
    words: dict[str, Any] = {"k_lengths": lengths, "causal": True, "diagonal": "last"}
    found = tt.attention(q, *caches, k_pages=table, **words)
    torch.testing.assert_close(found, tt.attention(q, k, v, **words), rtol=1e-5, atol=1e-5)
    torch.library.opcheck(
        attending.ATTENTION.overload,
        (q, *caches, None, None, None, None, lengths, table, True, 0, True, None, None, 0.0, 0, 0, None),
    )
    with pytest.raises(LaunchError, match=r"keys in pages \(k_pages\) have none; nearest legal choice"):
        tt.attention(q.requires_grad_(), *caches, k_pages=table, **words)
    if not q.is_cuda:  # no call waits for a GPU to read lengths there
        with pytest.raises(LaunchError, match=r"k_lengths\[1\] is 33; k has 32 keys"):
            tt.attention(q.detach(), k, v, k_lengths=torch.tensor([9, 33]))


def test_attention_is_that_of_pytorch() -> None:
    q, k, v = (drawn(2, 3, 20, 32).float() for _ in range(3))
    like = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(tt.attention(q, k, v, causal=True), like, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_gemm_chain(activation: str | None) -> None:
    act = {None: lambda x: x, "relu": torch.relu, "gelu": torch.nn.functional.gelu}[activation]
    arrays = (drawn(2, 5, 4), drawn(4, 6), drawn(6, 3), drawn(6), drawn(3))
    compare(
        lambda a, b, c, p, q: tt.gemm_chain(a, b, c, bias_b=p, bias_c=q, activation=activation),
        lambda a, b, c, p, q: act(a @ b + p) @ c + q,
        *arrays,
    )
    if activation is not None:  # what is kept is not computed again, but for a second derivative

        def call(a: Any, b: Any, c: Any, p: Any, q: Any) -> Any:
            return two_layers(a, b, c, p, q, activation)

        def like(a: Any, b: Any, c: Any, p: Any, q: Any) -> Any:
            return act(a @ b + p) @ c + q

        compare(call, like, *arrays, twice=activation == "gelu")
        given = [one.clone().requires_grad_() for one in arrays]
        once, kept = (torch.autograd.grad(one(*given).square().sum(), given) for one in (like, call))
        for one, other in zip(once, kept, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_matmul(activation: str) -> None:
    """Gradients by one kernel for both gates, and, with ``create_graph``, by PyTorch."""
    arrays = (drawn(2, 5, 4), drawn(4, 6), drawn(4, 6), drawn(6), drawn(6))
    silu = ACTIVATIONS[activation]

    def like(a: Any, b: Any, c: Any, p: Any, q: Any) -> Any:
        return silu(a @ b + p) * (a @ c + q)

    def call(a: Any, b: Any, c: Any, p: Any, q: Any) -> Any:
        return tt.gated_matmul(a, b, c, bias_b=p, bias_c=q, activation=activation)

    compare(call, like, *arrays, twice=activation == "silu")
    given = [one.clone().requires_grad_() for one in arrays]
    found, expected = (torch.autograd.grad(one(*given).square().sum(), given) for one in (call, like))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(call(*arrays), like(*arrays), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ends", [[2, 2, 7, 9], [0, 4, 4, 6], [9, 9, 9, 9]])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_grouped_matmul(ends: Sequence[int], activation: str | None) -> None:
    """Groups may be empty, and rows after the last end have no gradient."""
    starts = [0, *ends[:-1]]

    def like(a: Any, b: Any, bias: Any) -> Any:
        pairs = enumerate(zip(starts, ends, strict=True))
        sums = torch.cat([a[i:j] @ b[g] + bias[g] for g, (i, j) in pairs])
        return sums if activation is None else torch.nn.functional.silu(sums)

    def call(a: Any, b: Any, bias: Any) -> Any:
        made = tt.grouped_matmul(a, b, torch.tensor(ends), bias=bias, activation=activation)
        return made[: ends[-1]]

    twice = activation is None and ends[-1] == 6
    compare(call, like, drawn(9, 4), drawn(4, 4, 5), drawn(4, 5), twice=twice)


@pytest.mark.parametrize("reduce", ["sum", "max", "min", "logsumexp"])
def test_reduced_matmul(reduce: str) -> None:
    arrays = drawn(2, 5, 4), drawn(4, 6), drawn(6)
    names = {"max": "amax", "min": "amin"}
    for axis, activation in ((-1, "silu"), (-2, None)):

        def like(a: Any, b: Any, bias: Any, axis: int = axis, activation: Any = activation) -> Any:
            y = 0.5 * (a @ b) + bias
            return getattr(torch, names.get(reduce, reduce))(
                ACTIVATIONS[activation](y) if activation else y, axis
            )

        def call(a: Any, b: Any, bias: Any, axis: int = axis, activation: Any = activation) -> Any:
            return tt.reduced_matmul(a, b, reduce, axis, alpha=0.5, bias=bias, activation=activation)

        compare(call, like, *arrays, twice=axis == -1)
    with pytest.raises(LaunchError, match="one name of a reduction"):
        tt.reduced_matmul(*arrays[:2], (reduce,))  # type: ignore[arg-type]
    equal = torch.ones(2, 3, dtype=f64).requires_grad_()
    (found,) = torch.autograd.grad(tt.reduced_matmul(equal, torch.eye(3, dtype=f64), reduce).sum(), equal)
    assert torch.allclose(found, torch.full((2, 3), 1.0 if reduce == "sum" else 1 / 3, dtype=f64))


def integers(low: int, high: int, shape: tuple[int, int], *, seed: int) -> torch.Tensor:
    made = torch.Generator("cpu").manual_seed(seed)
    return torch.randint(low, high, shape, generator=made, device="cpu").to(torch.get_default_device())


def test_no_groups() -> None:
    """All rows lie after the last end, and have no gradient."""
    a, b = drawn(3, 4).requires_grad_(), drawn(0, 4, 5).requires_grad_()
    y = tt.grouped_matmul(a, b, torch.zeros(0, dtype=torch.int32))
    found = torch.autograd.grad(y.sum(), (a, b))
    assert [tuple(one.shape) for one in found] == [(3, 4), (0, 4, 5)]
    assert not bool(found[0].any())


def test_scaled_mm() -> None:
    x = drawn(5, 64).half()
    codes = integers(-127, 128, (64, 8), seed=1).to(torch.int8)
    scales = drawn(8).abs().float()
    found = tt.scaled_mm(x, codes, scale_b=scales, bias=scales, out_dtype=torch.float32)
    exact = (x.double() @ codes.double()) * scales.double() + scales.double()
    bound = 70 * 2.0**-23 * ((x.double().abs() @ codes.double().abs()) * scales.double() + scales)
    assert bool(((found.double() - exact).abs() <= bound).all())
    fp8 = codes.float().div(16).to(torch.float8_e4m3fn)
    torch.testing.assert_close(
        tt.scaled_mm(x, fp8, scale_b=scales, scale_a=0.5).double(),
        0.5 * (x.double() @ fp8.double()) * scales.double(),
        rtol=2e-3,
        atol=2e-3,
    )
    assert tt.scaled_mm(x, fp8).dtype == torch.float16
    numbers = integers(-8, 8, (8, 64), seed=2)
    packed = torch.from_numpy(tw.pack(numbers.cpu().numpy(), tw.i4)).to(numbers.device).mT
    by_group = drawn(2, 8).abs().half()
    found = tt.scaled_mm(x, packed, scale_b=by_group, group=32, packed="i4", out_dtype=torch.float32)
    weights = (numbers.mT.half() * by_group.repeat_interleave(32, 0)).double()  # rounded once to f16
    bound = 70 * 2.0**-23 * (x.double().abs() @ weights.abs())
    assert bool(((found.double() - x.double() @ weights).abs() <= bound).all())
    with pytest.raises(LaunchError, match="scale_b has no gradient"):
        tt.scaled_mm(x, codes, scale_b=scales.requires_grad_())


@pytest.mark.parametrize("form", ["columns", "number", "blocks", "i4", "f4e2m1", "nf4"])
def test_gradients_of_activations_beside_codes(form: str) -> None:
    """They are those of a product with the numbers that codes and scales stand for."""
    x, bias, factor = drawn(2, 5, 192).float(), drawn(8).float(), drawn(5, 8).float()
    words: dict[str, Any] = {"scale_a": 0.5, "activation": "gelu", "out_dtype": torch.float32}
    if form in ("columns", "number", "blocks"):
        codes = integers(-127, 128, (192, 8), seed=1).to(torch.int8)
        scales = {"columns": drawn(8), "number": torch.tensor(0.1), "blocks": drawn(2, 1)}[
            form
        ].abs().float() / 64
        weights = codes.double() * (scales.repeat_interleave(128, 0)[:192] if form == "blocks" else scales)
        codes = codes.mT.contiguous().mT if form == "blocks" else codes
        words["scale_b"] = scales
        codes = codes.float().clamp(-8, 8).to(torch.float8_e4m3fn) if form == "blocks" else codes
        if form == "blocks":
            weights = codes.double() * scales.double().repeat_interleave(128, 0)[:192]
    else:
        held = integers(0, 256, (8, 96), seed=3).to(torch.uint8)
        kind = "u4" if form == "nf4" else form
        numbers = tw.unpack(held.cpu().numpy(), kind).astype(np.float64)
        numbers = np.array(tw.NF4)[numbers.astype(int)] if form == "nf4" else numbers
        scales = drawn(6, 8).abs().float() / 8
        weights = torch.from_numpy(numbers).to(held.device).mT * scales.repeat_interleave(32, 0)
        codes, words = held.mT, words | {"scale_b": scales, "group": 32, "packed": form}

    def call(x: Any, bias: Any, factor: Any) -> Any:
        return tt.scaled_mm(x, codes, bias=bias, multiply=factor, residual=x[..., :8], **words)

    def like(x: Any, bias: Any, factor: Any) -> Any:
        y = torch.nn.functional.gelu(0.5 * (x @ weights.to(x.dtype)) + bias)
        return y * factor + x[..., :8]

    given = [one.clone().requires_grad_() for one in (x, bias, factor)]
    wide = [one.double().requires_grad_() for one in (x, bias, factor)]
    found, expected = (
        torch.autograd.grad(call(*given).sum(), given),
        torch.autograd.grad(like(*wide).sum(), wide),
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-5)
    if form == "columns":  # of 16 bits: a gradient far below 1 keeps its digits
        half = x.half().requires_grad_()
        tiny = torch.full((2, 5, 8), 2.0**-13, dtype=torch.float16)
        y = tt.scaled_mm(half, codes, scale_b=words["scale_b"], out_dtype=torch.float16)
        (d_x,) = torch.autograd.grad(y, half, tiny)
        exact = tiny.double() @ weights.double().mT
        sizes = tiny.double() @ weights.double().abs().mT
        assert bool(((d_x.double() - exact).abs() <= 2.0**-9 * sizes + 2.0**-24).all())


@pytest.mark.parametrize(
    ("shape", "taps", "words"),
    [
        ((2, 5, 6, 3), (3, 2), {"stride": (2, 1), "padding": 1}),
        ((1, 9, 4), (3,), {"dilation": 2, "padding": (2,)}),
    ],
)
def test_col2im(shape: tuple[int, ...], taps: tuple[int, ...], words: dict[str, Any]) -> None:
    """Gradients equal those of PyTorch's `fold`, or of a product with the matrix of the map."""
    image = torch.zeros(shape, dtype=f64)
    rank = len(shape) - 2
    how = [
        [words.get(name, default)] * rank if isinstance(words.get(name, default), int) else words[name]
        for name, default in (("stride", 1), ("dilation", 1), ("padding", 0))
    ]
    counts = [
        (n + 2 * pad - apart * (tap - 1) - 1) // step + 1
        for n, tap, step, apart, pad in zip(shape[1:-1], taps, *how, strict=True)
    ]
    rows, width = shape[0] * math.prod(counts), math.prod(taps) * shape[-1]
    columns = drawn(rows, width).requires_grad_()
    found = tt.col2im(columns, shape, filter=taps, **words)
    dy = drawn(*image.shape, seed=5)
    (gradient,) = torch.autograd.grad(found, columns, dy, create_graph=True)
    # The map is linear: its matrix, column by column, from the kernel without gradients.
    eye = torch.eye(columns.numel(), dtype=f64).reshape(-1, rows, width)
    matrix = torch.stack([tt.col2im(one, shape, filter=taps, **words).flatten() for one in eye], 1)
    assert set(matrix.unique().tolist()) <= {0.0, 1.0}
    torch.testing.assert_close(found.flatten(), matrix @ columns.flatten(), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(gradient.flatten(), matrix.mT @ dy.flatten(), rtol=1e-13, atol=1e-13)
    # `im2col` is the transposed map.
    held = dy.clone().requires_grad_()
    read = tt.im2col(held, filter=taps, **words)
    torch.testing.assert_close(read.flatten(), matrix.mT @ dy.flatten(), rtol=1e-13, atol=1e-13)
    (again,) = torch.autograd.grad(read, held, columns.detach())
    torch.testing.assert_close(again.flatten(), matrix @ columns.flatten().detach(), rtol=1e-13, atol=1e-13)
    with pytest.raises(LaunchError, match="has no place in an image"):
        tt.im2col(dy, filter=[99] * rank)


@pytest.mark.parametrize(
    "words",
    [
        {"stride": 0},
        {"stride": (1,)},
        {"dilation": (1, 0)},
        {"padding": -1},
        {"padding": (1, 1, 1)},
        {"filter": 2},
        {"filter": (2, 0)},
    ],
)
def test_wrong_geometries_of_columns_are_named(words: dict[str, Any]) -> None:
    """A padding below 0 would cut the image, and its gradient has no kernel."""
    [(name, value)] = words.items()
    text = rf"{name}={re.escape(str(value))}; nearest legal choice: 2 numbers of at least"
    given: dict[str, Any] = {"filter": (2, 2), **words}
    with pytest.raises(LaunchError, match=f"im2col: {text}"):
        tt.im2col(torch.ones(1, 4, 4, 2), **given)
    with pytest.raises(LaunchError, match=f"col2im: {text}"):
        tt.col2im(torch.ones(9, 8), (1, 4, 4, 2), **given)


@pytest.mark.parametrize("shape", [(2, 9, 4, 16), (9, 4, 16)], ids=str)
def test_attention_of_heads_within_rows(shape: tuple[int, ...]) -> None:
    """Results and gradients have the strides of PyTorch's, so that models join heads without copies."""
    whole = torch.randn(*shape[:-2], 3 * shape[-2], shape[-1], requires_grad=True)
    heads = [one.transpose(-3, -2) for one in whole.chunk(3, dim=-2)]
    y = tt.attention(*heads, causal=True)
    like = torch.nn.functional.scaled_dot_product_attention(*(one.double() for one in heads), is_causal=True)
    torch.testing.assert_close(y.double(), like, rtol=1e-4, atol=1e-5)
    assert y.transpose(-3, -2).is_contiguous()
    with torch.no_grad():
        assert tt.attention(*heads).stride() == y.stride()
        assert tt.attention(*(one.contiguous() for one in heads)).is_contiguous()
    own = torch.autograd.grad(y.sum(), heads, retain_graph=True)
    assert all(one.transpose(-3, -2).is_contiguous() for one in own)
    dy = torch.randn_like(y)
    (found,), (exact,) = (torch.autograd.grad(one, whole, dy.to(one.dtype)) for one in (y, like))
    torch.testing.assert_close(found, exact.to(found.dtype), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [5, 1])
def test_strides_of_attention_in_graphs(rows: int) -> None:
    """Tensors without memory get the strides of real ones, also if q, k and v have different layouts."""
    within = torch.randn(2, rows, 4, 8).transpose(1, 2)
    apart, shared = torch.randn(2, 4, rows, 8), torch.randn(2, 1, rows, 8).expand(2, 4, rows, 8)
    none, words = (None,) * 6, (True, 0, False, None, None, 0.0, 0, 0, None)
    for q, k, v in ((within, apart, shared), (apart, within, apart), (shared, shared, within)):
        given = (q, k, v, *none, *words)
        torch.library.opcheck(attending.ATTENTION.overload, given, test_utils="test_faketensor")
        y, lse = attending.ATTENTION(*given)
        given = (q, k, v, y, lse, torch.randn_like(y), *none[:4], False, False, *words)
        torch.library.opcheck(attending.ATTENTION_BACKWARD.overload, given, test_utils="test_faketensor")
