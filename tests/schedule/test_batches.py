"""Several batch items in each block: right on every target, and chosen for small products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, gemm_bound
from tilewright.ops.products import plain, scaled_by_blocks
from tilewright.schedule.choice import choose, split_candidates
from tilewright.schedule.load import Load
from tilewright.schedule.question import Question, Splitting
from tilewright.schedule.schedule import Schedule

from .epilogues import Bounded, assert_within

PANELS = Schedule(tw.atoms.fma("f16", lanes=(1, 1), each=(8, 16)), (32, 32, 64), staging="panels", batches=4)
TILES = Schedule(
    tw.atoms.MMA_F16, (32, 32, 16), stages=3, staging="cp_async", epilogue="staged", batches=4, swap_ab=True
)


@pytest.mark.parametrize(
    ("target", "schedule"), [("cpu", PANELS), ("reference", PANELS), ("reference", TILES)]
)
@pytest.mark.parametrize("items", [(3, 5), (2, 2), (0, 3), (1, 1)])
def test_items_of_several_leading_dimensions(target: str, schedule: Schedule, items: tuple[int, int]) -> None:
    rng = np.random.default_rng(items)
    a = rng.standard_normal((*items, 33, 24)).astype(np.float16)
    b = rng.standard_normal((items[1], items[0], 24, 20)).astype(np.float16).swapaxes(0, 1)
    whole = np.full((*items, 40, 40), np.nan, np.float16)
    out = whole[:, :, 3:36, 5:25]
    bound = plain(2).bind(precision="exact", schedule=schedule)
    assert bound(a, b, out, target=target).target == target
    for i in range(items[0]):
        for j in range(items[1]):
            exact, _, error = gemm_bound(a[i, j], b[i, j], Accumulation.of(schedule.atom), tw.f32)
            assert_within(out[i, j], Bounded(exact, error), tw.f16)
    whole[:, :, 3:36, 5:25] = np.nan
    assert np.isnan(whole).all(), "elements beside the output were written"


def question(dtype: str, batch: int, shape: tuple[int, int, int], target: str, arch: str) -> Question:
    m, n, k = shape
    given = (tw.like(dtype, batch, m, k), tw.like(dtype, batch, k, n), tw.like(dtype, batch, m, n))
    found = plain(1).bind(precision="exact").question(*given, target=target, arch=arch)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("batch", "side", "batches"), [(1000, 32, 16), (1000, 64, 16), (40, 8, 4), (4, 32, 1), (1000, 65, 1)]
)
def test_small_products_share_blocks_on_processors(batch: int, side: int, batches: int) -> None:
    asked = question("f32", batch, (side, side, side), "cpu", "x86-64-v3")
    assert choose(replace(asked, processors=2)).batches == batches


def test_a_thousand_small_products_on_the_cpu() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((1000, 32, 32), dtype=np.float32) for _ in range(2))
    out: Any = np.full((1000, 32, 32), np.nan, np.float32)
    assert tw.matmul(a, b, out, target="cpu") is out
    bound = 33 * tw.f32.unit_roundoff * (np.abs(a).astype(np.float64) @ np.abs(b))
    assert (np.abs(out - a.astype(np.float64) @ b) <= bound).all()


@pytest.mark.parametrize("arch", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("k", [50, 515])
@pytest.mark.parametrize(("a", "b"), [("f32", "f32"), ("f64", "f64"), ("f32", "f8e5m2"), ("bf16", "i8")])
@pytest.mark.parametrize("items", [0, 40])
def test_processors_add_in_one_order_whatever_the_number_of_rows(
    items: int, a: str, b: str, k: int, arch: str
) -> None:
    """Processors add up the products of a step first, so its depth is part of the order."""
    ahead = (items,) if items else ()
    orders = set()
    for m in (*range(1, 66), 97, 250, 500):
        given = (tw.like(a, *ahead, m, k), tw.like(b, *ahead, k, 33), tw.like(a, *ahead, m, 33))
        product = plain(len(ahead), tw.dtype(a)).bind(precision="exact")
        asked = product.question(*given, target="cpu", arch=arch)
        assert asked is not None
        for processors in (1, 2):
            wanted = replace(asked, processors=processors, splitting=Splitting(batch_invariant=True))
            chosen = next(split_candidates(wanted)).schedule
            orders.add((chosen.atom.instruction, min(chosen.block_k, k), chosen.promote * chosen.block_k))
    assert len(orders) == 1


@pytest.mark.parametrize(("target", "arch"), [("cpu", "x86-64-v4"), ("cuda", "sm_90a"), ("cuda", "sm_80")])
@pytest.mark.parametrize("dtype", ["f32", "f16", "i8"])
def test_an_empty_result_has_no_parts(dtype: str, target: str, arch: str) -> None:
    out = tw.like("i32" if dtype == "i8" else dtype, 3, 5, 0)
    given = tw.like(dtype, 3, 5, 169), tw.like(dtype, 3, 169, 0), out
    asked = plain(1, tw.dtype(dtype)).bind(precision="exact").question(*given, target=target, arch=arch)
    assert asked is not None
    for processors in (1, 2, 132):
        wanted = replace(asked, processors=processors, splitting=Splitting(batch_invariant=True))
        assert next(split_candidates(wanted)).schedule.split_k == 1


@pytest.mark.parametrize(("target", "arch"), [("cpu", "x86-64-v4"), ("cuda", "sm_90a"), ("cuda", "sm_80")])
@pytest.mark.parametrize("split_k", [None, "auto", 2])
def test_sums_with_scales_of_blocks_have_as_many_parts_for_any_number_of_rows(
    split_k: int | str | None, target: str, arch: str
) -> None:
    """One block multiplies and adds in one rounding; parts of K that are added later do not."""
    kernel = scaled_by_blocks(0).bind(
        multiplied=tw.f16, shared=(1, 1), terms=frozenset({"scale_b"}), activation=None
    )
    parts = set()
    for m in (1, 17, 60, 96, 260, 400):
        given = [
            tw.like("f16", m, 600),
            tw.like("i8", 600, 130),
            tw.like("f32", m, 5),
            tw.like("f32", 5, 130),
        ]
        given += [tw.like("f32", 130), tw.like("f32", m, 130)]
        asked = kernel.question(*given, 1.0, target=target, arch=arch)
        assert asked is not None
        for processors in (1, 2, 132):
            wanted = Splitting(split_k=split_k, batch_invariant=True)
            found = next(split_candidates(replace(asked, processors=processors, splitting=wanted)))
            parts.add(Load(asked, found.schedule).parts)
    assert parts == {2 if split_k == 2 else 1}
