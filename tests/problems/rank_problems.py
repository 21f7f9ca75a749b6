"""Random products over ranks: shapes with uneven shards, 2 to 4 ranks, one or two calls, on the reference."""

from __future__ import annotations

import itertools
import runpy
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.targets.target import REFERENCE

from .sets import generators

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "22_ranks.py"))
"""The kernels, and the programs of the ranks."""

LARGEST = (70, 40, 24)
"""Of M, N and K: several tiles of 32 rows in a shard, and shards without rows."""

Array = np.ndarray[Any, Any]


def ranks(number: int, target: str) -> str:
    """Compute a product over ranks twice; every element and the bits of both runs are compared.

    Returns:
        What is wrong; empty if nothing is.
    """
    assert target == REFERENCE.name, "ranks run on the reference"
    _, rng = generators(number, target)
    count, epochs = int(rng.integers(2, 5)), 1 + int(rng.integers(4) == 0)
    m, n, k = (int(rng.integers(1, most + 1)) for most in LARGEST)
    a = rng.standard_normal((m, k), np.float32)
    if number % 2:
        b = [rng.standard_normal((k, n), np.float32) for _ in range(count)]
        results = [_all_gather(a, b, count, epochs) for _ in range(2)]
        factors = [(a, own) for own in b]
    else:
        b = [rng.standard_normal((k, n), np.float32)]
        cuts = [0, *sorted(int(at) for at in rng.integers(0, k + 1, count - 1)), k]  # some ranks hold nothing
        results = [_reduce_scatter(a, b[0], cuts, epochs) for _ in range(2)]
        factors = [(a, b[0])]
    what = f"{count} ranks, {m}x{n}x{k}, {epochs} calls"
    for (one, other), (first, again) in zip(factors, zip(*results, strict=True), strict=True):
        compared = tw.testing.compare_gemm(one, other, first)
        if not compared.ok:
            return f"{what}: {compared}"
        if first.tobytes() != again.tobytes():
            return f"{what}: another run has other bits"
    return ""


def _all_gather(a: Array, b: list[Array], count: int, epochs: int) -> list[Array]:
    memory = EXAMPLE["AllGather"](a, b, count)
    tw.testing.ranks([memory.program(rank, epochs) for rank in range(count)]).raise_if_any()
    return [memory.result(rank, len(a)) for rank in range(count)]


def _reduce_scatter(a: Array, b: Array, cuts: list[int], epochs: int) -> list[Array]:
    spans = [slice(*ends) for ends in itertools.pairwise(cuts)]
    memory = EXAMPLE["ReduceScatter"]([a[:, span] for span in spans], [b[span] for span in spans], len(spans))
    tw.testing.ranks([memory.program(rank, epochs) for rank in range(len(spans))]).raise_if_any()
    return [memory.result(len(a))]
