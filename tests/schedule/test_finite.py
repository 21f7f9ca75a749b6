"""Finite arrays whose scores are at most 1e30 give finite results, in every form: no sum or power overflows.

The scores of a row are of very different sizes, up to 1e30, of both signs, and their largest one comes
first, last, or anywhere.  Values are of ordinary size, so that right averages are finite.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.schedule.schedule import Schedule

from . import folding, whole_rows
from .test_folds import FMA, GROUPS, MMA
from .test_merges import causal

Array = np.ndarray[Any, Any]
M, N, D, E = 37, 94, 8, 24
MOST = 1e30

WAYS: dict[str, tuple[str, Schedule]] = {
    "f32": ("f4", FMA),
    "f32, 3 parts": ("f4", replace(FMA, split_k=3)),
    "bf16": ("bf16", replace(MMA, atom=tw.atoms.MMA_BF16)),
    "bf16, 4 stages, 5 parts": (
        "bf16",
        replace(MMA, atom=tw.atoms.MMA_BF16, staging="cp_async", stages=4, split_k=5),
    ),
    "bf16, warpgroups": ("bf16", replace(GROUPS, atom=tw.atoms.wgmma("bf16", 32))),
    "f16": ("f2", MMA),
}


def extreme(kind: str, seed: int, heads: tuple[int, ...] = ()) -> tuple[Array, Array, Array]:
    """Return queries, keys and values with scores up to 1e30, or for f16 as large as its factors allow."""
    rng = np.random.default_rng(seed)
    dtype = tw.dtype(kind if kind == "bf16" else np.dtype(kind)).numpy
    most = 15.0 if kind != "f2" else 4.0
    q, k = (
        10 ** rng.uniform(-most, most - 0.5, (*heads, rows, 1)) * rng.uniform(-1, 1, (*heads, rows, D))
        for rows in (M, N)
    )
    k[..., seed % 3 * (N // 2) - (seed % 3 == 2), :] *= 1 if kind == "f2" else 1.5  # anywhere
    q[..., 0, :] = 0
    assert (np.abs(q) @ np.abs(k).swapaxes(-1, -2)).max() <= MOST
    v = rng.standard_normal((*heads, N, E))
    return q.astype(dtype), k.astype(dtype), v.astype(dtype)


def poisoned(like: Array, *shape: int) -> Array:
    return np.full(shape, np.nan, like.dtype)


def all_finite(*results: Array) -> bool:
    return all(bool(np.isfinite(one.astype(np.float64)).all()) for one in results)


@pytest.mark.parametrize("way", WAYS)
def test_loops_and_whole_rows(way: str) -> None:
    kind, schedule = WAYS[way]
    targets = ("reference",) if schedule.by_bulk else ("reference", "cpu")
    for seed, target in ((seed, target) for seed in range(3) for target in targets):
        q, k, v = extreme(kind, seed)
        heads = [one[None, None] for one in (q, k, v)]
        out = poisoned(q, 1, 1, M, E)
        folding.attention.bind(schedule=schedule)(*heads, out, 1.0, target=target)
        assert all_finite(out), (seed, target)
        out = poisoned(q, M, E)
        causal.bind(schedule=schedule)(q, k, v, out, 1.0, target=target)
        assert all_finite(out), (seed, target)
        if schedule.split_k == 1:
            for fold in ("online",) if schedule.by_bulk else ("online", "two passes"):
                out = poisoned(q, 1, 1, M, E)
                kernel = whole_rows.causal.bind(schedule=replace(schedule, fold=fold))
                kernel(*heads, out, 1.0, 3, target=target)
                assert all_finite(out), (seed, target, fold)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("kind", ["f4", "bf16"])
def test_losses_and_softmax_of_a_product(kind: str, target: str) -> None:
    for seed in range(3):
        x, w, _ = extreme(kind, seed)
        columns = np.ascontiguousarray(w.T)
        words = np.random.default_rng(seed).integers(0, N, M).astype(np.int32)
        loss, weights = np.full(M, np.nan, np.float32), np.full((M, N), np.nan, np.float32)
        folding.cross_entropy(x, columns, words, loss, target=target)
        whole_rows.softmax(x, columns, weights, target=target)
        assert all_finite(loss, weights)
        assert np.allclose(weights.sum(axis=1), 1, atol=1e-4)
        assert (loss >= -1e-3 * MOST).all()


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("kind", ["f4", "bf16"])
def test_the_library_forward_and_backward(kind: str, target: str) -> None:
    """Scales have every size and sign, with masks, one row, and gradients of the forward pass."""
    for seed, scale in enumerate((1.0, 3e-20) if target == "cpu" else (-1.0,)):
        q, k, v = extreme(kind, seed, (1, 2))
        for words in ({}, {"causal": True, "diagonal": 5}):
            out, lse = tw.attention(q, k, v, scale=scale, return_lse=True, target=target, **words)
            assert all_finite(out, lse), (seed, words)
            one, _ = tw.attention(q[:, :, :1], k, v, scale=scale, return_lse=True, target=target)
            assert all_finite(one)
            dout = np.random.default_rng(seed).standard_normal(out.shape).astype(out.dtype)
            found = tw.attention_backward(q, k, v, out, lse, dout, scale=scale, target=target, **words)
            assert all_finite(*found), (seed, words)


def test_scores_that_overflow_are_found() -> None:
    """The check detects larger scores: they are infinite, and their averages are NaN."""
    q, k, v = (one[None, None] for one in extreme("f4", 0))
    out = poisoned(q, 1, 1, M, E)
    with np.errstate(all="ignore"):
        folding.attention.bind(schedule=FMA)(q * np.float32(1e15), k, v, out, 1.0, target="cpu")
    assert not all_finite(out)
