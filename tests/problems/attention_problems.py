"""Random problems of attention and of chains of two products; a number always gives the same problem."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.ops.attending import Padded, Problem
from tests.ops.test_attention import STRIDES, strided
from tests.ops.test_gemm_chain import FUNCTIONS, Chain

import tilewright as tw
from tilewright.targets.target import CPU, CUDA, REFERENCE

from .placing import Placed
from .sets import extents, generators

LARGEST = {REFERENCE.name: 60, CPU.name: 300, CUDA.name: 700}
"""Rows of queries and of keys."""

HEADS = {REFERENCE.name: 2, CPU.name: 3, CUDA.name: 3}
"""Of keys, of queries for each of them, and batches."""

LONG = 8
"""One of so many problems of a GPU has three times as many rows, so that blocks take several tiles each."""

KINDS = (tw.f16, tw.bf16, tw.f16, tw.bf16, tw.f32)


def _columns(rng: np.random.Generator) -> int:
    """Draw at most 256 columns; more than half are multiples of 8, which bulk copies can load."""
    return int(rng.integers(1, 257)) if rng.integers(3) == 0 else int(rng.integers(1, 33)) * 8


def attention(number: int, target: str) -> str:
    """Compute a problem of attention twice; the second call replays the first one's launch.

    Returns:
        The error in words; empty if results are right.
    """
    terms, rng = generators(number, target)
    element, depth, width = KINDS[terms.integers(len(KINDS))], _columns(terms), _columns(terms)
    width = depth if terms.integers(2) else width
    causal, how = bool(terms.integers(2)), terms.choice([None, None, None, *STRIDES])
    shared, ratio, batches = (int(n) for n in rng.integers(1, HEADS[target] + 1, 3))
    long = 3 if target == CUDA.name and rng.integers(LONG) == 0 else 1
    rows, keys = extents(terms, rng, LARGEST[target], 2)
    rows, keys = rows * long, 0 if rng.integers(50) == 0 else keys * long
    diagonal = int(rng.integers(-rows - 3, keys + 4)) if causal else None
    scale = None if rng.integers(3) else float(rng.normal() * 0.3)
    sizes = ((batches, shared * ratio, shared), (rows, keys), (depth, width))
    problem = Problem(*sizes, element, diagonal, scale, number)
    if how is not None and keys:
        problem.q, problem.k, problem.v = (strided(x, how) for x in (problem.q, problem.k, problem.v))
    out = np.full((batches, shared * ratio, rows, width), np.nan, element.numpy)
    lse = np.full(out.shape[:-1], np.nan, np.float32)
    placed = [Placed(x, target) for x in (problem.q, problem.k, problem.v, out, lse)]
    held = [one.there for one in placed]

    def check() -> Any:
        words: dict[str, Any] = {"out": held[3], "lse": held[4], "target": target}
        tw.attention(*held[:3], **problem.words, **words)
        return placed[3].fetched().copy(), placed[4].fetched().copy()

    first, again = check(), check()
    problem.check(first[0])
    problem.check_lse(first[1])
    same = all(np.array_equal(*(x.view(np.uint8) for x in pair)) for pair in zip(first, again, strict=True))
    return "" if same else f"{problem.name}: other bits when its launch is known"


PAGES = (0, 0, 8, 16, 20, 64)
"""Rows of a page; 0: keys do not lie in pages."""


def caches(number: int, target: str) -> str:
    """Compute a problem of attention to caches with lengths, in pages or not; other keys are NaN.

    Returns:
        The error in words; empty if results are right.
    """
    terms, rng = generators(number, target)
    element, depth, width = KINDS[terms.integers(len(KINDS))], _columns(terms), _columns(terms)
    width, rows_of_page = depth if terms.integers(2) else width, PAGES[terms.integers(len(PAGES))]
    causal, from_last, is_one_row = (bool(one) for one in terms.integers(2, size=3))
    shared, ratio, batches = (int(n) for n in rng.integers(1, HEADS[target] + 1, 3))
    rows, keys = extents(terms, rng, LARGEST[target], 2)
    rows, keys = 1 if is_one_row else max(rows, 1), max(keys, 1)
    diagonal = ("last" if from_last else int(rng.integers(-rows, keys))) if causal else None
    lengths = tuple(int(count) for count in rng.integers(0, keys + 1, batches))
    padded = Padded((shared * ratio, shared), rows, (depth, width), element, diagonal, lengths, keys)
    k, v, *table = padded.in_pages(rows_of_page) if rows_of_page else (padded.k, padded.v)
    placed = [Placed(x, target) for x in (padded.q, k, v, *padded.poisoned(), padded.lengths, *table)]
    q, k, v, out, lse, held, *numbers = (one.there for one in placed)
    words = {**padded.words, **({"k_pages": numbers[0]} if numbers else {})}
    tw.attention(q, k, v, k_lengths=held, **words, out=out, lse=lse, target=target)
    padded.check(placed[3].fetched(), placed[4].fetched())
    return ""


def chain(number: int, target: str) -> str:
    """Compute a chain of two products, and compare every element.

    Returns:
        The error in words; empty if results are right.
    """
    terms, rng = generators(number, target)
    element, k, p = KINDS[terms.integers(4)], _columns(terms), _columns(terms)
    names = list(FUNCTIONS)
    activation = names[terms.integers(len(names))]
    m, n = extents(terms, rng, LARGEST[target], 2)
    by_column, shared = terms.integers(2, size=2)
    lead = tuple(int(extent) for extent in rng.integers(1, 4, rng.integers(3)))
    asked = Chain((m, k, n, p), element, activation, *lead, shared=bool(shared))
    b = np.ascontiguousarray(asked.b.swapaxes(-1, -2)).swapaxes(-1, -2) if by_column else asked.b
    placed = [Placed(x, target) for x in (asked.a, b, asked.c, asked.out)]
    held = [one.there for one in placed]
    tw.gemm_chain(*held[:3], activation=activation, out=held[3], fused=True, target=target)
    asked.check(placed[3].fetched())
    return ""
