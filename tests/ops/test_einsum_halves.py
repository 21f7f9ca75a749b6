"""`einsum` of f32 by halves of 11 bits, on the reference and a GPU, within the bound of products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.ops.layouts import layouts

import tilewright as tw
from tilewright.ops import einsum as contractions
from tilewright.ops.contraction import contraction_in_halves, posed, read_subscripts
from tilewright.ops.einsum import against_halves
from tilewright.runtime.arrays import describe

from .test_einsum import HEADS
from .test_halves import BULK, SYNC, assert_right, operands

EXTENTS = {"reference": (2, 35, 2, 20, 72), "cuda": (2, 350, 6, 150, 1003)}
"""Batches, positions, heads, their elements, and K: on a GPU so many that halves are chosen."""


def drawn(kind: str, layout: str, target: str) -> tuple[Any, Any, Any, Any]:
    """Return matrices (B S, K) and (K, H D) with gaps between rows, and the same as contracted operands."""
    b, s, h, d, k = EXTENTS[target]
    rows, columns = operands(kind, (b * s, h * d, k), layout)
    return rows, columns, rows.reshape(b, s, k), columns.reshape(k, h, d)


def in_rows(made: Any) -> Any:
    """Return (B, H, S, D) as (B S, H D)."""
    b, h, s, d = made.shape
    return made.transpose(0, 2, 1, 3).reshape(b * s, h * d)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(("kind", "layout"), [("normal", "nn"), ("wide", "nt"), ("wide", "tn")])
def test_the_reference_contracts_halves(kind: str, layout: str) -> None:
    rows, columns, x, w = drawn(kind, layout, "reference")
    for precision, schedule, halves in (
        ("f32", SYNC, 2),
        ("f32", BULK, 2),
        ("f16", replace(SYNC, promote=0), 1),
    ):
        made = tw.einsum(HEADS, x, w, precision=precision, schedule=schedule, target="reference")
        assert_right(rows, columns, in_rows(made), schedule, halves)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize("kind", ["normal", "wide"])
def test_a_gpu_contracts_halves(kind: str, layout: str) -> None:
    rows, columns, x, w = drawn(kind, layout, "cuda")
    there = [tw.testing.device_put(one, "cuda") for one in (x, w)]
    contractions._PLANS.forget()  # what is launched again says nothing of its arrays
    for precision, schedule, halves in (("f32", SYNC, 2), ("f16", replace(SYNC, promote=0), 1)):
        for _ in range(2):
            made = in_rows(tw.testing.device_get(tw.einsum(HEADS, *there, precision=precision)))
            assert_right(rows, columns, made, schedule, halves)
        exact = rows.astype(np.float64) @ columns.astype(np.float64)
        assert not np.array_equal(made, exact.astype(np.float32))


def test_what_is_done_with_sums_of_halves() -> None:
    """Terms, batches, broadcast arrays and dropout work as in a product without halves."""
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((3, 40, 72), np.float32), rng.standard_normal((3, 72, 24), np.float32)
    bias, factor, residual = (
        rng.standard_normal(shape, np.float32) for shape in ((24, 1), (24, 40), (3, 24, 40))
    )
    words = {"alpha": 2.0, "bias": bias, "multiply": factor, "dropout": 0.25, "seed": 9}
    made = tw.einsum(
        *("gmk,gkn->gnm", a, b),
        **words,
        residual=residual,
        precision="f32",
        schedule=SYNC,
        target="reference",
    )
    want = (2 * np.einsum("gmk,gkn->gnm", a.astype(np.float64), b) + bias) * factor
    kept = tw.testing.philox(np.arange(want.size).reshape(want.shape), 9) >= 2**30
    np.testing.assert_allclose(made, np.where(kept, want / 0.75, 0) + residual, rtol=0, atol=1e-4)


def test_views_are_not_split() -> None:
    x, w = np.ones((2, 3, 5, 4), np.float32), np.ones((3, 4, 6), np.float32)
    made = tw.einsum("bhsd,hde->bse", x, w, precision="f32", target="reference")
    assert np.array_equal(made, np.full((2, 5, 6), 12))
    with pytest.raises(tw.LaunchError, match=r"needs operands split in halves.*: a needs a view"):
        tw.einsum("bhsd,hde->bse", x, w, precision="f32", schedule=SYNC, target="reference")


def test_a_projection_by_halves_spills_nothing_on_an_h200() -> None:
    b, s, h, d, k = 2, 2048, 32, 128, 4096
    shapes = {"a": (b, s, k), "b": (k, h, d), "out": (b, h, s, d)}
    infos = {name: describe(np.empty(shape, np.float32)) for name, shape in shapes.items()}
    problem = posed(read_subscripts(HEADS, (3, 3)), layouts(infos))
    assert against_halves(problem.contraction) == ""
    out = problem.layouts["out"]
    strides = [4 * step for step in out.strides]
    seen = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), out.shape, strides)
    m, n = problem.layouts["a"].shape[-2], problem.layouts["b"].shape[-1]
    batch = problem.layouts["a"].shape[:-2]
    left, right = np.zeros((*batch, m, k), np.float16), np.zeros((k, n), np.float16)
    units = np.zeros((*batch, m), np.float32), np.zeros(n, np.float32)
    kernel = contraction_in_halves(problem.contraction).bind(both=True, ending=())
    arrays = (left, left, right, right, *units, *[seen] * 4)
    made = kernel.compile(*arrays, 1.0, 0, 0, 0, 1.0, target="cuda", arch="sm_90a")
    assert made.resources["spill_store_bytes"] == 0
    assert made.schedule.atom.asynchronous
