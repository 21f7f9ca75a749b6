"""Random problems of attention and of chains of two products, each the same for its number."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.ops.attending import Problem
from tests.ops.test_attention import STRIDES, strided
from tests.ops.test_gemm_chain import FUNCTIONS, Chain

import tilewright as tw
from tilewright.targets.target import CPU, CUDA, REFERENCE
from tilewright.testing import device_get, device_put

LARGEST = {REFERENCE.name: 80, CPU.name: 300, CUDA.name: 2000}
"""Rows of queries and of keys."""

KERNELS = {REFERENCE.name: 1 << 30, CPU.name: 16, CUDA.name: 64}
"""Of how many sets of columns, dtypes and masks problems are drawn, each of which is compiled."""

KINDS = (tw.f16, tw.bf16, tw.f16, tw.bf16, tw.f32)


def _columns(rng: np.random.Generator) -> int:
    """At most 256; more often than not a multiple of 8, which bulk copies carry."""
    return int(rng.integers(1, 257)) if rng.integers(3) == 0 else int(rng.integers(1, 33)) * 8


def _attention(number: int, target: str) -> str:
    terms = np.random.default_rng(number % KERNELS[target])
    rng = np.random.default_rng(number)
    element, depth, width = KINDS[terms.integers(len(KINDS))], _columns(terms), _columns(terms)
    width = depth if terms.integers(2) else width
    causal, how = bool(terms.integers(2)), terms.choice([None, *STRIDES])
    shared, ratio, batches = (int(rng.integers(1, 4)) for _ in range(3))
    rows, keys = (int(n) for n in rng.integers((1, 0), LARGEST[target], 2))
    diagonal = int(rng.integers(-rows - 3, keys + 4)) if causal else None
    scale = None if rng.integers(3) else float(rng.normal() * 0.3)
    extents = ((batches, shared * ratio, shared), (rows, keys), (depth, width))
    problem = Problem(*extents, element, diagonal, scale, number)
    if how is not None and keys:
        problem.q, problem.k, problem.v = (strided(x, how) for x in (problem.q, problem.k, problem.v))
    out = np.full((batches, shared * ratio, rows, width), np.nan, element.numpy)
    lse = np.full(out.shape[:-1], np.nan, np.float32)
    held = [device_put(x, target) for x in (problem.q, problem.k, problem.v, out, lse)]
    kernel = None
    if target == REFERENCE.name and element != tw.f32 and depth % 8 == width % 8 == 0 < keys and how is None:
        kernel = str(rng.choice(["warps", "warpgroups"]))

    def check() -> Any:
        words: dict[str, Any] = {"out": held[3], "lse": held[4], "kernel": kernel, "target": target}
        tw.attention(*held[:3], **problem.words, **words)
        return device_get(held[3]).copy(), device_get(held[4]).copy()

    first, again = check(), check()
    problem.check(first[0])
    problem.check_lse(first[1])
    same = all(np.array_equal(*(x.view(np.uint8) for x in pair)) for pair in zip(first, again, strict=True))
    return "" if same else "other bits when its launch is known"


def _chain(number: int, target: str) -> str:
    terms = np.random.default_rng(number % KERNELS[target])
    rng = np.random.default_rng(number)
    element, k, p = KINDS[terms.integers(4)], _columns(terms), _columns(terms)
    names = list(FUNCTIONS)
    activation = names[terms.integers(len(names))]
    m, n = (int(extent) for extent in rng.integers(1, LARGEST[target], 2))
    n = n // 8 * 8 if rng.integers(2) and n > 8 else n
    lead = tuple(int(extent) for extent in rng.integers(1, 4, rng.integers(3)))
    chain = Chain((m, k, n, p), element, activation, *lead, shared=bool(rng.integers(2)))
    b = chain.b if rng.integers(2) else np.ascontiguousarray(chain.b.swapaxes(-1, -2)).swapaxes(-1, -2)
    held = [device_put(x, target) for x in (chain.a, b, chain.c, chain.out)]
    tw.gemm_chain(*held[:3], activation=activation, out=held[3], fused=True, target=target)
    chain.check(device_get(held[3]))
    return ""


def carried_out(number: int, target: str) -> str:
    """Compute a problem, attention twice, and compare every element; every third one is a chain.

    Returns:
        What is wrong; empty if nothing is.
    """
    try:
        return (_chain if number % 3 == 2 else _attention)(number, target)
    except (AssertionError, tw.TilewrightError) as error:
        return f"{type(error).__name__}: {error}"
