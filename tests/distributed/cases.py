"""Cases that every rank runs; each compares what its rank got with the whole problem in float64."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from threading import Thread
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import tilewright.distributed as td
import tilewright.torch as tt
from tilewright.distributed import exchange, products
from tilewright.errors import LaunchError

f64 = torch.float64

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
"""Dtypes of operands; groups of three and four run the first ones."""

UNITS = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""Largest relative error of one rounding."""


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    made = torch.Generator("cpu").manual_seed(sum(shape, 7919 * seed + 1))
    return torch.randn(shape, generator=made, dtype=f64, device="cpu").to(torch.get_default_device(), dtype)


def compare(
    found: torch.Tensor, expected: torch.Tensor, sizes: torch.Tensor, depth: int, travel: Any = 0.0
) -> None:
    """Compare with sums in float64: `sizes` are the sums of magnitudes of what was added.

    Each of at most ``depth + 4`` additions rounds in f32 (f64), and the result is rounded once.  `travel` is
    the error of the parts that ranks sent: see `rounded_parts`.
    """
    assert found.shape == expected.shape, (found.shape, expected.shape)
    if not found.numel():
        return
    sums = UNITS[f64] if found.dtype == f64 else UNITS[torch.float32]
    # Below the smallest normal number, rounding is off by half of the same step everywhere.
    rounded = expected.abs().clamp(min=torch.finfo(found.dtype).smallest_normal)
    bound = (depth + 4) * sums * sizes + UNITS[found.dtype] * rounded + travel
    excess = ((found.to(f64) - expected).abs() / bound).max()
    assert excess <= 1, f"{excess} of the bound"


def rounded_parts(a: torch.Tensor, b: torch.Tensor, depths: Sequence[int]) -> torch.Tensor:
    """Return the largest error of a sum over ranks whose parts are rounded to bf16 before they are added."""
    pairs = zip(a.to(f64).split(list(depths), -1), b.to(f64).split(list(depths), -2), strict=True)
    return 1.01 * UNITS[torch.bfloat16] * sum((one @ other).abs() for one, other in pairs)


def cut(whole: torch.Tensor, dim: int, sizes: Sequence[int], rank: int) -> torch.Tensor:
    return whole.split(list(sizes), dim)[rank].contiguous()


def uneven(extent: int, size: int) -> list[int]:
    """Extents that add up, and differ: the last rank has none if there are three or more."""
    made = [extent // size + (1 if at % 2 else -1) for at in range(size)]
    if size > 2:
        made[-1] = 0
    made[0] += extent - sum(made)
    return made


def gathers(rank: int, size: int) -> None:
    """Dtypes, batches, dimensions, uneven rows and columns, terms, and several matrices."""
    for dtype in DTYPES[: 3 if size == 2 else 1]:
        a, b, bias = (
            drawn(13, 40, dtype=dtype),
            drawn(40, 12 + rank, dtype=dtype),
            drawn(12 + rank, dtype=dtype),
        )
        shard = cut(a, 0, uneven(13, size), rank)
        found = td.all_gather_matmul(shard, b, bias=bias, activation="relu")
        expected = torch.relu(a.to(f64) @ b.to(f64) + bias.to(f64))
        compare(found, expected, a.to(f64).abs() @ b.to(f64).abs() + bias.to(f64).abs(), 40)
    a, b = drawn(2, 3 * size, 5, 24), drawn(24, 9)
    for dim in (-2, -3):
        sizes = uneven(a.shape[dim], size)
        found = td.all_gather_matmul(cut(a, dim, sizes, rank), b, dim=dim, sizes=sizes, alpha=0.5)
        compare(found, 0.5 * (a.to(f64) @ b.to(f64)), a.to(f64).abs() @ b.to(f64).abs(), 24)
    one, other = td.all_gather_matmul(a[..., :2, :], [b, 2 * b], bias=[None, b[0]])
    whole = torch.cat([a[..., :2, :]] * size, -2).to(f64)
    compare(one, whole @ b.to(f64), whole.abs() @ b.to(f64).abs(), 24)
    compare(other, whole @ (2 * b).to(f64) + b[0].to(f64), 3 * (whole.abs() @ b.to(f64).abs()) + 9, 24)


def scatters(rank: int, size: int) -> None:
    """Dtypes, batches, dimensions, uneven rows and depths, and all terms."""
    for dtype in DTYPES[: 3 if size == 2 else 1]:
        a, b, bias = drawn(11, 50, dtype=dtype), drawn(50, 14, dtype=dtype), drawn(14, dtype=dtype)
        depths = uneven(50, size)
        ones, others = cut(a, 1, depths, rank), cut(b, 0, depths, rank)
        for sizes in (None, uneven(11, size)):
            rows = sizes or [len(one) for one in torch.arange(11).chunk(size)]
            found = td.matmul_reduce_scatter(ones, others, bias=bias, activation="relu", sizes=sizes)
            expected = torch.relu(a.to(f64) @ b.to(f64) + bias.to(f64))
            magnitudes = a.to(f64).abs() @ b.to(f64).abs() + bias.to(f64).abs()
            travel = rounded_parts(a, b, depths) * (dtype == torch.bfloat16)
            wanted, sums, off = (cut(one, 0, rows, rank) for one in (expected, magnitudes, travel))
            compare(found, wanted, sums, 50 + size, off)
        found = td.matmul_all_reduce(ones, others, bias=bias, activation="relu")
        compare(found, expected, magnitudes, 50 + size, travel)
        found = td.matmul_all_reduce(ones, others, bias=bias, wire_dtype=f64)
        compare(found, a.to(f64) @ b.to(f64) + bias.to(f64), magnitudes, 50 + size)
    a, b = drawn(2, 6, 5, 24), drawn(2, 6, 24, 9, seed=2)
    depths = uneven(24, size)
    ones, others = cut(a, -1, depths, rank), cut(b, -2, depths, rank)
    for dim in (-2, -3, -4):
        rows = [len(one) for one in torch.arange(a.shape[dim]).chunk(size)]
        rows += [0] * (size - len(rows))
        c, factor, residual = drawn(2, 6, 5, 9, seed=3), drawn(2, 6, 5, 9, seed=4), drawn(9, seed=5)
        words = {"c": cut(c, dim, rows, rank), "multiply": cut(factor, dim, rows, rank), "residual": residual}
        found = td.matmul_reduce_scatter(ones, others, dim=dim, alpha=2.0, beta=0.5, **words)
        expected = (2 * (a.to(f64) @ b.to(f64)) + 0.5 * c.to(f64)) * factor.to(f64) + residual.to(f64)
        magnitudes = (2 * (a.to(f64).abs() @ b.to(f64).abs()) + c.to(f64).abs()) * factor.to(f64).abs()
        magnitudes = magnitudes + residual.to(f64).abs()
        compare(found, cut(expected, dim, rows, rank), cut(magnitudes, dim, rows, rank), 24 + size)


def narrow_parts(rank: int, size: int) -> None:
    """Partial sums that travel as bf16 or f16: those of other ranks are rounded once more."""
    m, n, depths = 4 * size, 24, uneven(96, size)
    a, b = drawn(m, 96), drawn(96, n)
    ones, others = cut(a, 1, depths, rank), cut(b, 0, depths, rank)
    pairs = zip(a.to(f64).split(depths, 1), b.to(f64).split(depths), strict=True)
    parts = torch.stack([one @ other for one, other in pairs])
    sums = 100 * UNITS[torch.float32] * (a.to(f64).abs() @ b.to(f64).abs())
    owner = torch.arange(m).div(m // size, rounding_mode="floor")[None, :, None]
    travel = (parts.abs() * (torch.arange(size)[:, None, None] != owner)).sum(0)
    whole, bias = parts.sum(0), drawn(n)
    exact = td.matmul_all_reduce(ones, others)
    for wire in (torch.bfloat16, torch.float16, torch.float32):
        words = {"wire_dtype": wire, "bias": bias}
        mine = td.matmul_reduce_scatter(ones, others, **words)
        found = td.matmul_all_reduce(ones, others, **words)
        assert found.dtype == torch.float32
        assert torch.equal(mine, found.split(m // size)[rank])
        bound = sums + 1.01 * UNITS[wire] * travel + UNITS[torch.float32] * (whole + bias.to(f64)).abs()
        assert ((found.to(f64) - whole - bias.to(f64)).abs() <= bound).all()
        again = td.matmul_all_reduce(ones, others, wire_dtype=wire)
        assert torch.equal(again, exact) == (wire == torch.float32)
    for dtype, default in ((torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)):
        pair = ones.to(dtype), others.to(dtype)
        wires = {one: td.matmul_all_reduce(*pair, wire_dtype=one) for one in (None, dtype, torch.float32)}
        assert torch.equal(wires[None], wires[default])
        assert not torch.equal(wires[dtype], wires[torch.float32])
        summed = td.matmul_all_reduce(*pair, out_dtype=torch.float32)
        assert torch.equal(summed.to(dtype), wires[torch.float32])
    wide = td.matmul_all_reduce(ones.to(f64), others.to(f64), wire_dtype=torch.float32)  # f64 stays at home
    assert ((wide - whole).abs() <= 1e-14 * sums / UNITS[torch.float32] + 2.0**-24 * travel).all()
    alone, _ = dist.new_subgroups(1)
    halves = a.bfloat16(), b.bfloat16()
    for operands in (halves, (a, b)):  # nothing travels
        plain = td.matmul_reduce_scatter(*operands, group=alone)
        assert torch.equal(td.matmul_reduce_scatter(*operands, group=alone, wire_dtype=torch.bfloat16), plain)
    leaf = ones.clone().requires_grad_()
    y = td.matmul_reduce_scatter(leaf, others, wire_dtype=torch.bfloat16)
    [d_a] = torch.autograd.grad(y.sum(), [leaf])
    expected = torch.ones(m, n, dtype=f64) @ others.to(f64).T
    compare(d_a, expected, others.to(f64).abs().sum(1).expand_as(expected), n)
    call = td.matmul_all_reduce
    refused(LaunchError, "one of torch.bfloat16", call, ones, others, wire_dtype=torch.int8)
    whole_numbers = ones.to(torch.int8), others.to(torch.int8)
    refused(LaunchError, "wire_dtype=None", call, *whole_numbers, wire_dtype=torch.float16)
    if size != 3:
        words = {"rank_invariant": True, "wire_dtype": torch.float16}
        refused(LaunchError, "whose bits rounded parts would change", call, ones, others, **words)
    other_wire = torch.bfloat16 if rank else torch.float16
    refused(LaunchError, "wire_dtype is torch.", call, ones, others, wire_dtype=other_wire)


def repeated(rank: int, size: int) -> None:
    """A known call checks nothing again; it sends its header and its tensors, and launches one kernel more.

    Layers with equal rows send no headers if ``check`` does not ask for them.
    """
    counts: Counter[str] = Counter()
    operation, checked, header = dist.P2POp, products.check_operands, exchange.RankCall.trade_headers

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **words: Any) -> Any:
            counts[name] += 1
            return function(*given, **words)

        return call

    a, b = drawn(4 * size, 16, seed=rank), drawn(16, 8)
    calls: dict[str, Callable[..., Any]] = {
        "gathered": lambda **words: td.all_gather_matmul(a, b, sizes=[4 * size] * size, **words),
        "scattered": lambda **words: td.matmul_reduce_scatter(a, b, **words),
        "reduced": lambda **words: td.matmul_all_reduce(a, b, **words),
    }
    layer = td.ColumnParallelLinear(16, 8, sequence_parallel=True, equal_rows=True, check=False)
    calls["layer"] = lambda **words: layer(a)
    exchanges = {"gathered": 1, "scattered": 1, "reduced": 2, "layer": 1}
    dist.P2POp = counted("messages", operation)
    products.check_operands = counted("checks", checked)
    exchange.RankCall.trade_headers = counted("headers", header)  # type: ignore[method-assign]
    try:
        with torch.no_grad():
            for name, call in calls.items():
                for words in ({"check": False}, {}):
                    first = call(**words)
                    counts.clear()
                    assert torch.equal(call(**words), first)
                    has_header = not words and name != "layer"
                    messages = 2 * (size - 1) * (exchanges[name] + has_header)
                    assert counts == Counter(messages=messages, headers=int(has_header)), (name, counts)
    finally:
        dist.P2POp, products.check_operands = operation, checked
        exchange.RankCall.trade_headers = header  # type: ignore[method-assign]
    # A call with another shape is described anew, and so is one with other values of its options.
    c = drawn(4, 8, seed=3)
    for beta in (0.5, 2.0):
        found = td.matmul_reduce_scatter(a, b, c=c, beta=beta)
        plain = td.matmul_reduce_scatter(a, b)
        torch.testing.assert_close(found, plain + beta * c, rtol=1e-5, atol=1e-5)


def equal_bits(rank: int, size: int) -> None:
    """The same bits at each of fifty runs, and on all ranks."""
    a, b = drawn(9, 33 + rank, seed=rank), drawn(33 + rank, 17, seed=rank + 9)
    first = td.matmul_reduce_scatter(a, b), td.matmul_all_reduce(a, b), td.all_gather_matmul(b, b.mT)
    for _ in range(49):
        again = td.matmul_reduce_scatter(a, b), td.matmul_all_reduce(a, b), td.all_gather_matmul(b, b.mT)
        for one, other in zip(first, again, strict=True):
            assert torch.equal(one, other)
    everywhere = [torch.empty_like(first[1]) for _ in range(size)]
    dist.all_gather(everywhere, first[1])
    assert all(torch.equal(one, first[1]) for one in everywhere)


def orders(rank: int, size: int) -> None:
    """Sums are added in the order of the ranks: 2**30, then -2**30, then small numbers."""
    large = {0: 2.0**30, 1: -(2.0**30)}.get(rank, 0.25)
    found = td.matmul_all_reduce(torch.full((3, 1), large), torch.ones(1, 4))
    assert torch.equal(found, torch.full((3, 4), 0.25 * max(size - 2, 0)))


def close(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    """In f64: sums of fewer than 500 products of numbers below 8, twice differentiated."""
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-10)


def everywhere(rank: int, size: int, *shape: int, seed: int) -> list[torch.Tensor]:
    """Tensors of all ranks, which each rank can draw."""
    return [drawn(*shape, dtype=f64, seed=seed + 100 * at) for at in range(size)]


def gradients(rank: int, size: int) -> None:
    """Gradients and second derivatives of the sum of all ranks' losses, in f64."""
    rows, depth, columns = uneven(9, size), 7, 5
    shards = list(drawn(9, depth, dtype=f64).split(rows))
    bs, biases = everywhere(rank, size, depth, columns, seed=1), everywhere(rank, size, columns, seed=2)
    weights = everywhere(rank, size, 9, columns, seed=3)

    def loss(call: Callable[..., list[torch.Tensor]], leaves: Sequence[torch.Tensor], one: int | None) -> Any:
        ys = call(leaves)
        chosen = range(size) if one is None else [one]
        return sum((y * weights[at]).sum() for y, at in zip(ys, chosen, strict=True))

    def like(leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        whole = torch.cat(list(leaves[:size]))
        return [
            torch.tanh(whole @ b + bias)
            for b, bias in zip(leaves[size : 2 * size], leaves[2 * size :], strict=True)
        ]

    leaves = [one.clone().requires_grad_() for one in (*shards, *bs, *biases)]
    expected = torch.autograd.grad(loss(like, leaves, None), leaves, create_graph=True)
    twice = torch.autograd.grad(sum(one.square().sum() for one in expected), leaves)
    mine = [one.clone().requires_grad_() for one in (shards[rank], bs[rank], biases[rank])]
    y = td.all_gather_matmul(mine[0], mine[1], bias=mine[2], activation="tanh")
    found = torch.autograd.grad((y * weights[rank]).sum(), mine, create_graph=True)
    again = torch.autograd.grad(sum(one.square().sum() for one in found), mine)
    at = [rank, size + rank, 2 * size + rank]
    close([*found, *again], [*(expected[one] for one in at), *(twice[one] for one in at)])

    depths = uneven(11, size)
    ones, others = (
        list(drawn(9, 11, dtype=f64).split(depths, 1)),
        list(drawn(11, columns, dtype=f64).split(depths)),
    )
    factor = drawn(9, columns, dtype=f64, seed=5)
    for activation, scatters in (("sigmoid", True), ("silu", True), ("sigmoid", False)):
        function = torch.nn.functional.silu if activation == "silu" else torch.sigmoid
        leaves = [one.clone().requires_grad_() for one in (*ones, *others, biases[0])]
        sums = sum(a @ b for a, b in zip(leaves[:size], leaves[size : 2 * size], strict=True))
        total = (function(sums + leaves[-1]) * factor).sum()
        expected = torch.autograd.grad(total, leaves, create_graph=True)
        twice = torch.autograd.grad(sum(one.square().sum() for one in expected[:-1]), leaves[:-1])
        mine = [one.clone().requires_grad_() for one in (ones[rank], others[rank], biases[0])]
        if scatters:
            y = td.matmul_reduce_scatter(*mine[:2], bias=mine[2], activation=activation, sizes=rows)
            total = (y * factor.split(rows)[rank]).sum()
        else:
            y = td.matmul_all_reduce(*mine[:2], bias=mine[2], activation=activation)
            total = (y * factor).sum()
        found = torch.autograd.grad(total, mine, create_graph=scatters)
        close(found[:2], [expected[rank], expected[size + rank]])
        bias = found[2].detach().clone()
        if scatters:
            again = torch.autograd.grad(sum(one.square().sum() for one in found[:2]), mine[:2])
            close(again, [twice[rank], twice[size + rank]])
            dist.all_reduce(bias)
        close([bias], [expected[-1]])


def invariant(rank: int, size: int) -> None:
    """The bits of one rank, which computes the whole problem in a group of its own."""
    alone = [dist.new_group([one]) for one in range(size)][rank]
    words = {"rank_invariant": True}
    if size == 3:
        refused(
            LaunchError,
            "rank_invariant=True on 3 ranks",
            td.matmul_all_reduce,
            torch.ones(2, 8),
            torch.ones(8, 2),
            **words,
        )
        return
    for dtype in (torch.float32, torch.bfloat16)[: 2 if size == 2 else 1]:
        a, b, bias = drawn(19, 100, dtype=dtype), drawn(100, 26, dtype=dtype), drawn(26, dtype=dtype)
        depths = td.shares(100, size, rank_invariant=True)
        mine = [cut(a, 1, depths, rank), cut(b, 0, depths, rank), bias]
        leaves = [one.clone().requires_grad_() for one in mine]
        y = td.matmul_reduce_scatter(*leaves[:2], bias=leaves[2], activation="relu", **words)
        whole = [one.clone().requires_grad_() for one in (a, b, bias)]
        z = td.matmul_reduce_scatter(*whole[:2], bias=whole[2], activation="relu", group=alone, **words)
        rows = td.shares(19, size)
        assert torch.equal(y, z.split(list(rows))[rank])
        dy = drawn(19, 26, dtype=dtype, seed=9)
        d_a, d_b, _ = torch.autograd.grad(y, leaves, cut(dy, 0, rows, rank))
        d_whole_a, d_whole_b, _ = torch.autograd.grad(z, whole, dy)
        assert torch.equal(d_a, cut(d_whole_a, 1, depths, rank))
        assert torch.equal(d_b, cut(d_whole_b, 0, depths, rank))
        with torch.no_grad():
            assert torch.equal(
                td.matmul_all_reduce(*mine[:2], **words), td.matmul_all_reduce(a, b, group=alone, **words)
            )
        columns = td.shares(26, size, rank_invariant=True)
        leaves = [cut(a, 0, rows, rank).requires_grad_(), cut(b, 1, columns, rank).requires_grad_()]
        y = td.all_gather_matmul(*leaves, **words)
        z = td.all_gather_matmul(*whole[:2], group=alone, **words)
        assert torch.equal(y, cut(z, 1, columns, rank))
        d_a, d_b = torch.autograd.grad(y, leaves, cut(dy, 1, columns, rank))
        d_whole_a, d_whole_b = torch.autograd.grad(z, whole[:2], dy)
        assert torch.equal(d_a, cut(d_whole_a, 0, rows, rank))
        assert torch.equal(d_b, cut(d_whole_b, 1, columns, rank))


def quantised(rank: int, size: int) -> None:
    """Codes of 8 and 4 bits with scales: rows' scales travel with their rows."""
    a, codes = (
        drawn(10, 64 * size),
        torch.randint(
            -8, 8, (64 * size, 12), generator=torch.Generator("cpu").manual_seed(3), device="cpu"
        ).to(torch.get_default_device()),
    )
    scales = drawn(12).abs() + 0.1
    wide = codes.to(f64) * scales.to(f64)
    rows, depths = td.shares(10, size), [64] * size
    narrow = codes.to(torch.int8)
    found = td.all_gather_matmul(cut(a, 0, rows, rank), narrow, scale_b=scales, out_dtype=torch.float32)
    compare(found, a.to(f64) @ wide, a.to(f64).abs() @ wide.abs(), 64 * size)
    mine = cut(a, 1, depths, rank), cut(narrow, 0, depths, rank)
    found = td.matmul_all_reduce(*mine, scale_b=scales, bias=scales, activation="relu")
    expected = torch.relu(a.to(f64) @ wide + scales.to(f64))
    compare(found, expected, a.to(f64).abs() @ wide.abs() + scales.to(f64), 64 * size)
    halves = narrow.view(torch.uint8).mT.contiguous() & 15
    packed = (halves[:, ::2] | halves[:, 1::2] << 4).mT
    groups = drawn(2 * size, 12).abs() + 0.1
    wide = codes.to(f64) * groups.to(f64).repeat_interleave(32, 0)
    b = packed.mT[:, 32 * rank : 32 * rank + 32].contiguous().mT
    found = td.matmul_reduce_scatter(
        mine[0], b, scale_b=groups[2 * rank : 2 * rank + 2].contiguous(), scale_group=32, packed="i4"
    )
    magnitudes = a.to(f64).abs() @ wide.abs()
    # A weight is rounded once to f32, the dtype of the product.
    compare(found, cut(a.to(f64) @ wide, 0, rows, rank), cut(magnitudes, 0, rows, rank), 64 * size + 1)
    per_row = drawn(10).abs() + 0.1
    eighth = torch.float8_e4m3fn
    small, weights = a.to(eighth), drawn(64 * size, 12, seed=4).to(eighth)
    found = td.all_gather_matmul(
        cut(small, 0, rows, rank), weights, scale_a=cut(per_row, 0, rows, rank), out_dtype=torch.float32
    )
    expected = per_row.to(f64)[:, None] * (small.to(f64) @ weights.to(f64))
    compare(
        found, expected, per_row.to(f64)[:, None] * (small.to(f64).abs() @ weights.to(f64).abs()), 64 * size
    )
    leaf = mine[0].clone().requires_grad_()
    refused(LaunchError, "no gradients", td.matmul_all_reduce, leaf, mine[1], scale_b=scales)


def refused(kind: type[Exception], said: str, call: Callable[..., Any], *args: Any, **words: Any) -> str:
    """The message of an error, which must be raised and contain a text.

    On GPUs known calls exchange no headers, and ranks do not notice others that differ: ask for headers.
    """
    if torch.get_default_device().type != "cpu" and call.__module__ == td.matmul_all_reduce.__module__:
        words.setdefault("check", True)
    with pytest.raises(kind, match=re.escape(said)) as raised:
        call(*args, **words)
    return str(raised.value)


def disagreements(rank: int, size: int) -> None:
    """Calls that do not fit each other end on all ranks, and the group goes on."""
    a, b = torch.ones(2, 4), torch.ones(4, 3)
    wrong = a if rank else torch.ones(2, 4, dtype=f64)
    refused(
        LaunchError,
        "the dtype of a_shard is torch.float64 on rank 0",
        td.all_gather_matmul,
        wrong,
        b.to(wrong.dtype),
    )
    refused(LaunchError, "the shape of the product is", td.matmul_all_reduce, torch.ones(2 + rank, 4), b)
    refused(
        LaunchError,
        "which operands want gradients is",
        td.all_gather_matmul,
        a.clone().requires_grad_(rank == 1),
        b,
    )
    if rank == 1:
        refused(LaunchError, "K is 4 in a [2, 4] and 3 in b_shard", td.matmul_all_reduce, a, b.mT)
    else:
        refused(td.RankError, "refused on rank 1 (cases.py:", td.matmul_all_reduce, a, b)
    calls = (td.all_gather_matmul, td.matmul_all_reduce)
    text = refused(td.RankError, "different operations", calls[rank % 2], a, b)
    assert "all_gather_matmul (call " in text
    assert "matmul_all_reduce (call " in text
    assert "on rank 1" in text
    refused(LaunchError, "sizes=[1] for", td.matmul_reduce_scatter, a, b, sizes=[1])
    refused(LaunchError, "complex64", td.matmul_all_reduce, a + 0j, b + 0j)
    refused(LaunchError, "dim=-1", td.all_gather_matmul, a, b, dim=-1)
    leaf, several = a.clone().requires_grad_(), [b, b.expand(5, 4, 3)]
    for call in (td.all_gather_matmul, td.replicated_matmul):
        refused(LaunchError, "b[1] has shape [5, 4, 3], and b[0] [4, 3]", call, leaf, several)
    one, other = td.all_gather_matmul(a, several)
    assert torch.equal(one.expand(5, -1, -1), other)
    one, other = td.all_gather_matmul(leaf[None], [b, b.expand(size, 4, 3)], dim=-3)
    assert torch.equal(torch.autograd.grad((one + other).sum(), leaf)[0], torch.full((2, 4), 6.0 * size))
    assert torch.equal(td.matmul_all_reduce(a, b), torch.full((2, 3), 4.0 * size))
    assert torch.equal(td.matmul_all_reduce(a, b, check=False), torch.full((2, 3), 4.0 * size))
    assert torch.equal(td.all_gather_matmul(a, b, check=False), torch.full((2 * size, 3), 4.0))


def alone_refused(rank: int, size: int) -> None:
    """One rank refuses its terms: the others are told, nothing is computed, and the group goes on."""
    a, b = torch.ones(2, 4), torch.ones(4, 3)
    is_wrong = rank == size - 1
    for call, words, kind, said in (
        (td.matmul_all_reduce, {"activation": "relux"}, Exception, "activation='relux'"),
        (td.matmul_reduce_scatter, {"bias": torch.ones(2)}, LaunchError, "bias has shape [2]"),
        (td.matmul_all_reduce, {"residual": torch.ones(3, 3)}, LaunchError, "residual has shape [3, 3]"),
        (td.all_gather_matmul, {"bias": torch.ones(4)}, LaunchError, "bias of b has shape [4]"),
        (td.all_gather_matmul, {"derivative": "relu"}, LaunchError, "derivative"),
    ):
        if is_wrong:
            refused(kind, said, call, a, b, **words)
        else:
            text = refused(td.RankError, f"refused on rank {size - 1} (cases.py:", call, a, b)
            assert said in text
    refused(LaunchError, "beta is", td.matmul_all_reduce, a, b, c=a.new_ones(3), beta=float(rank))
    whole = torch.ones(2, 4, dtype=torch.int32)
    refused(LaunchError, "sums of integers", td.matmul_all_reduce, whole, whole.mT, activation="relu")
    assert torch.equal(td.matmul_all_reduce(a, b_shard=b), torch.full((2, 3), 4.0 * size))


def decisions(rank: int, size: int) -> None:
    """On GPUs ranks decide alike whether they exchange headers, whatever a rank's own entry is.

    Without an exchange a rank gets its own entry for all of them.
    """
    ranks = exchange.ranks_of(dist.new_group(list(range(size))))

    def agree(own: int, *, is_uneven: bool, shared: int = 0) -> list[int]:
        with ranks.call("gather", 20.0) as call:
            found = call.agree(
                torch.device("cuda"),
                lambda: exchange.Described({"x": shared}, {"own": own}),
                None,
                is_uneven=is_uneven,
            )
        return [one["own"] for one in found]

    for turn in (0, 1, 1, 2):  # rank 0 always has the same shard
        assert agree(rank * turn, is_uneven=True) == [other * turn for other in range(size)]
    assert agree(rank, is_uneven=False, shared=1) == list(range(size))
    assert agree(5 * rank, is_uneven=False, shared=1) == [5 * rank] * size
    assert agree(rank, is_uneven=False, shared=2) == list(range(size))
    with ranks.call("gather", 20.0) as call:
        refused(
            LaunchError,
            "tensors on meta, and the process group takes those on c",
            call.agree,
            torch.device("meta"),
            lambda: exchange.NOTHING,
            None,
            is_uneven=True,
        )


def threads(rank: int, size: int) -> None:
    """Two groups in two threads at once, each with its own order of calls."""
    groups = [dist.new_group(list(range(size))) for _ in range(2)]
    found: dict[int, list[torch.Tensor]] = {0: [], 1: []}

    def work(at: int) -> None:
        for turn in range(6):
            a = drawn(5, 8, seed=turn + at) + rank
            found[at].append(td.matmul_all_reduce(a, torch.ones(8, 4 + at), group=groups[at]))

    both = [Thread(target=work, args=(at,)) for at in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert [len(one) for one in found.values()] == [6, 6]  # an error ends its thread alone
    for at in range(2):
        for turn, one in enumerate(found[at]):
            expected = sum(
                (drawn(5, 8, seed=turn + at) + other).to(f64) @ torch.ones(8, 4 + at, dtype=f64)
                for other in range(size)
            )
            compare(one, expected, expected.abs() + 100 * size, 8 * size)


def placements(rank: int, size: int) -> None:
    """`DTensor` in and out, with gradients in the placements of the operands."""
    mesh = init_device_mesh(torch.get_default_device().type, (size,))
    a, b, bias = drawn(7, 12, dtype=f64), drawn(12, 10, dtype=f64), drawn(10, dtype=f64)
    dy = drawn(7, 10, dtype=f64, seed=8)
    leaves = [one.clone().requires_grad_() for one in (a, b, bias)]
    y = torch.relu(leaves[0] @ leaves[1] + leaves[2])
    expected = [y.detach(), *torch.autograd.grad(y, leaves, dy)]
    whole = Replicate()
    for call, of_a, of_b, of_bias, result in (
        (td.all_gather_matmul, Shard(0), Shard(1), Shard(0), Shard(1)),
        (td.all_gather_matmul, whole, Shard(1), Shard(0), Shard(1)),
        (td.all_gather_matmul, Shard(0), whole, whole, Shard(1)),
        (td.matmul_reduce_scatter, Shard(1), Shard(0), whole, Shard(0)),
        (td.matmul_reduce_scatter, whole, Shard(0), whole, Shard(0)),
        (td.matmul_all_reduce, Shard(1), Shard(0), whole, whole),
    ):
        places = (of_a, of_b, of_bias)
        given = [
            distribute_tensor(one, mesh, [place]).requires_grad_()
            for one, place in zip((a, b, bias), places, strict=True)
        ]
        made = call(*given[:2], bias=given[2], activation="relu")
        assert made.placements == (result,), (call, made.placements)
        assert made.shape == y.shape
        grads = torch.autograd.grad(made, given, distribute_tensor(dy, mesh, [result]))
        assert [one.placements[0] for one in grads] == list(places)
        close([made.detach().full_tensor(), *(one.full_tensor() for one in grads)], expected)
    row = drawn(1, 10, dtype=f64).requires_grad_()
    y = a[:, :1] @ b[:1] + row
    expected = [y.detach(), *torch.autograd.grad(y, [row], dy)]
    for call, result in (
        (td.matmul_reduce_scatter, Shard(0)),
        (td.matmul_all_reduce, whole),
        (td.all_gather_matmul, Shard(1)),
    ):  # one column of K, and a term that is broadcast to all rows
        given = [distribute_tensor(one.detach(), mesh, [whole]) for one in (a[:, :1], b[:1], row)]
        given[2].requires_grad_()
        made = call(*given[:2], c=given[2])
        [grad] = torch.autograd.grad(made, given[2:], distribute_tensor(dy, mesh, [result]))
        assert made.to_local().shape == distribute_tensor(dy, mesh, [result]).to_local().shape
        close([made.detach().full_tensor(), grad.full_tensor()], expected)
    narrow = [distribute_tensor(one, mesh, [place]) for one, place in ((a[:1], Shard(0)), (b[:, :1], whole))]
    made = td.all_gather_matmul(*narrow)
    assert list(made.to_local().shape) == [1, 0 if rank else 1]
    close([made.full_tensor()], [a[:1] @ b[:, :1]])
    refused(LaunchError, "sizes=[7] with DTensors", td.matmul_reduce_scatter, *given[:2], sizes=[7])
    placed = distribute_tensor(a, mesh, [Shard(0)])
    refused(LaunchError, "b is no DTensor", td.all_gather_matmul, placed, b)
    for name in ("scale_a", "scale_b", "zero_b"):
        refused(LaunchError, f"{name} is a DTensor", td.all_gather_matmul, a, b, **{name: placed})
    refused(LaunchError, "redistribute", td.matmul_all_reduce, placed, distribute_tensor(b, mesh, [Shard(0)]))


def modules(rank: int, size: int) -> None:
    """Layers load the whole module's state dict, and have its results and gradients."""
    torch.manual_seed(1)
    plain = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.ReLU(), torch.nn.Linear(20, 12)).double()
    gated = torch.nn.ModuleDict({"gate": torch.nn.Linear(12, 18), "up": torch.nn.Linear(12, 18)}).double()
    gated["down"] = torch.nn.Linear(18, 12, dtype=f64)
    attending = tt.Attention(12, 4, causal=True)

    def of_gated(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = gated["down"](torch.nn.functional.silu(gated["gate"](x)) * gated["up"](x))
        return made

    refused(LaunchError, "rank_invarient=True", td.RowParallelLinear, 12, 20, rank_invarient=True)
    refused(LaunchError, "rank_invariant=True", td.ParallelAttention, 12, 4, rank_invariant=True)
    for is_sequence in (False, True):
        words: dict[str, Any] = {"sequence_parallel": is_sequence}
        first = td.ColumnParallelLinear(12, 20, activation="relu", dtype=f64, **words)
        last = td.RowParallelLinear(20, 12, dtype=f64, **words)
        first.load_state_dict(plain[0].state_dict())
        last.load_state_dict(plain[2].state_dict())
        last.load_state_dict(last.state_dict())
        mlp = td.ParallelGatedMLP(12, 18, bias=True, dtype=f64, **words)
        mlp.load_state_dict(gated.state_dict())
        mlp = deepcopy(mlp)
        words |= {"equal_rows": is_sequence and 6 % size == 0, "wire_dtype": torch.float64}
        assert td.ParallelGatedMLP(12, 18, **words).down.wire_dtype == torch.float64
        heads = td.ParallelAttention(12, 4, causal=True, **words)
        heads.load_state_dict(attending.state_dict())
        same_results(torch.nn.Sequential(first, last), plain, [(last.bias, plain[2].bias)], is_sequence)
        same_results(mlp, of_gated, [(mlp.down.bias, gated["down"].bias)], is_sequence)
        pair = (heads.out_proj.bias, attending.out_proj.bias)
        same_results(heads, attending, [pair], is_sequence, dtype=torch.float32)


def same_results(
    made: Callable[[torch.Tensor], torch.Tensor],
    like: Callable[[torch.Tensor], torch.Tensor],
    pairs: Sequence[tuple[Any, Any]],
    is_sequence: bool,
    dtype: torch.dtype = f64,
) -> None:
    """Compare a layer of ranks with one of a single process: results, and gradients with and without rows."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x, dy = drawn(2, 6, 12, dtype=dtype), drawn(2, 6, 12, dtype=dtype, seed=6)
    rows = td.shares(6, size)

    def own(one: torch.Tensor) -> torch.Tensor:
        return cut(one, 1, rows, rank) if is_sequence else one

    leaf, whole = own(x).clone().requires_grad_(), x.clone().requires_grad_()
    y, z = made(leaf), like(whole)
    found = torch.autograd.grad(y, [leaf, *(one for one, _ in pairs)], own(dy))
    d_x, *expected = torch.autograd.grad(z, [whole, *(one for _, one in pairs)], dy)
    with torch.no_grad():
        again = made(leaf)
    # In f32: sums of fewer than 100 products of numbers below 8.
    near = {"rtol": 1e-11, "atol": 1e-10} if dtype == f64 else {"rtol": 1e-5, "atol": 1e-4}
    for one, other in zip(
        [y.detach(), again, *found], [own(z.detach()), own(z.detach()), own(d_x), *expected], strict=True
    ):
        torch.testing.assert_close(one, other, **near)


CASES = [
    gathers,
    scatters,
    narrow_parts,
    repeated,
    equal_bits,
    orders,
    gradients,
    invariant,
    quantised,
    disagreements,
    alone_refused,
    decisions,
    threads,
    placements,
    modules,
]
"""The cases of every group; after each of them the group is in order."""
