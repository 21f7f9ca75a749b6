"""Cases that every rank runs; each compares what its rank got with the whole problem in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

import tilewright.distributed as td

f64 = torch.float64

UNITS = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""Largest relative error of one rounding."""


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    made = torch.Generator().manual_seed(sum(shape, 7919 * seed + 1))
    return torch.randn(shape, generator=made, dtype=f64).to(dtype)


def compare(found: torch.Tensor, expected: torch.Tensor, sizes: torch.Tensor, depth: int) -> None:
    """Compare with sums in float64: `sizes` are the sums of magnitudes of what was added.

    Each of at most ``depth + 4`` additions rounds in f32 (f64), and the result is rounded once.
    """
    assert found.shape == expected.shape, (found.shape, expected.shape)
    if not found.numel():
        return
    sums = UNITS[f64] if found.dtype == f64 else UNITS[torch.float32]
    bound = (depth + 4) * sums * sizes + UNITS[found.dtype] * expected.abs() + 1e-40
    excess = ((found.to(f64) - expected).abs() / bound).max()
    assert excess <= 1, f"{excess} of the bound"


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
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
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
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        a, b, bias = drawn(11, 50, dtype=dtype), drawn(50, 14, dtype=dtype), drawn(14, dtype=dtype)
        depths = uneven(50, size)
        ones, others = cut(a, 1, depths, rank), cut(b, 0, depths, rank)
        for sizes in (None, uneven(11, size)):
            rows = sizes or [len(one) for one in torch.arange(11).chunk(size)]
            found = td.matmul_reduce_scatter(ones, others, bias=bias, activation="relu", sizes=sizes)
            expected = torch.relu(a.to(f64) @ b.to(f64) + bias.to(f64))
            magnitudes = a.to(f64).abs() @ b.to(f64).abs() + bias.to(f64).abs()
            compare(found, cut(expected, 0, rows, rank), cut(magnitudes, 0, rows, rank), 50 + size)
        found = td.matmul_all_reduce(ones, others, bias=bias, activation="relu")
        compare(found, expected, magnitudes, 50 + size)
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


def equal_bits(rank: int, size: int) -> None:
    """The same bits at each of ten runs, and on all ranks."""
    a, b = drawn(9, 33 + rank, seed=rank), drawn(33 + rank, 17, seed=rank + 9)
    first = td.matmul_reduce_scatter(a, b), td.matmul_all_reduce(a, b), td.all_gather_matmul(b, b.mT)
    for _ in range(9):
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


CASES = [gathers, scatters, equal_bits, orders]
