"""Random problems over ranks: a number determines the call, shapes, strides, dtypes, terms and options."""

from __future__ import annotations

import random
from typing import Any

import torch
from tests.distributed.cases import compare, f64, rounded_parts

import tilewright.distributed as td

ACTIVATIONS = {"relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}
"""Activations whose slope is at most 1, so that errors of sums do not grow."""


def ranks_of_problem(number: int) -> int:
    """The number of ranks that a problem needs."""
    return 2 + number % 3


def extents(draw: random.Random, whole: int, size: int) -> list[int]:
    """Extents of the ranks that add up: those of `torch.chunk`, or any, zeros included."""
    if draw.random() < 0.5:
        return list(td.shares(whole, size))
    ends = sorted(draw.randint(0, whole) for _ in range(size - 1))
    return [end - begin for begin, end in zip([0, *ends], [*ends, whole], strict=True)]


def placed(draw: random.Random, whole: torch.Tensor) -> torch.Tensor:
    """The same elements in row-major order, in column-major order, or within a larger tensor."""
    kind = draw.randrange(3)
    if kind == 0:
        return whole.contiguous()
    if kind == 1:
        return whole.mT.contiguous().mT
    wider = whole.new_zeros((*whole.shape[:-1], whole.shape[-1] + 3))
    wider[..., : whole.shape[-1]] = whole
    return wider[..., : whole.shape[-1]]


def solve(number: int, rank: int, size: int) -> None:
    """Solve a problem on this rank, and compare every element of its result."""
    draw, numbers = random.Random(number), torch.Generator("cpu").manual_seed(number)
    dtype = draw.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16, f64])
    rows, depth, columns = draw.randint(0, 40), draw.randint(0, 90), draw.randint(1, 48)
    batch = draw.choice([(), (), (2,), (3, 2)])
    name = draw.choice(["all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"])
    dim = -2 if not batch or draw.random() < 0.6 else draw.randint(-len(batch) - 2, -3)

    def drawn(*shape: int) -> torch.Tensor:
        made = torch.randn(shape, generator=numbers, dtype=f64, device="cpu")
        return made.to(torch.get_default_device(), dtype)

    a, b = drawn(*batch, rows, depth), drawn(*(batch if draw.random() < 0.4 else ()), depth, columns)
    bias = drawn(columns) if draw.random() < 0.5 else None
    activation = draw.choice([None, None, *ACTIVATIONS])
    alpha = draw.choice([1.0, 0.5])
    invariant = size != 3 and draw.random() < 0.25
    out_dtype = torch.float32 if dtype in (torch.bfloat16, torch.float16) and draw.random() < 0.3 else None
    words: dict[str, Any] = {"bias": bias, "activation": activation, "alpha": alpha, "out_dtype": out_dtype}
    words["rank_invariant"] = invariant
    sums = alpha * (a.to(f64) @ b.to(f64))
    magnitudes = alpha * (a.to(f64).abs() @ b.to(f64).abs())
    if bias is not None:
        sums, magnitudes = sums + bias.to(f64), magnitudes + bias.to(f64).abs()
    expected = sums if activation is None else ACTIVATIONS[activation](sums)
    # An activation of f32 is off by less than eight units of its largest value, 1; that of f64 likewise.
    magnitudes = magnitudes + (0 if activation in (None, "relu") else 8)
    travel = torch.zeros_like(expected)
    if name == "all_gather_matmul":
        sizes = extents(draw, a.shape[dim], size)
        given = a.split(sizes, dim)[rank]
        found = td.all_gather_matmul(placed(draw, given), placed(draw, b), dim=dim, **words)
    else:
        shares = td.shares(depth, size, rank_invariant=True) if invariant else extents(draw, depth, size)
        if dtype == torch.bfloat16 and out_dtype is None and not invariant:
            travel = alpha * rounded_parts(a, b, shares)
        left = placed(draw, a.split(list(shares), -1)[rank])
        right = placed(draw, b.split(list(shares), -2)[rank])
        if name == "matmul_all_reduce":
            found = td.matmul_all_reduce(left, right, **words)
        else:
            sizes = extents(draw, expected.shape[dim], size)
            found = td.matmul_reduce_scatter(left, right, dim=dim, sizes=sizes, **words)
            expected, magnitudes, travel = (
                one.split(sizes, dim)[rank] for one in (expected, magnitudes, travel)
            )
    assert found.dtype == (out_dtype or dtype)
    compare(found, expected, magnitudes, depth + size + 8, travel)
