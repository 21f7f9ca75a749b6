"""Small products of many batch items on GPUs: right, legal, and within the limits of a grid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, gemm_bound
from tilewright.ops.products import output_dtype, plain
from tilewright.schedule.choice import candidates, choose
from tilewright.schedule.question import Question
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import TARGETS

from .epilogues import Bounded, assert_within


def question(dtype: str, items: int, shape: tuple[int, int, int], arch: str, precision: str) -> Question:
    m, n, k = shape
    kind = tw.dtype(dtype)
    given = (tw.like(kind, items, m, k), tw.like(kind, items, k, n), tw.like(output_dtype(kind), items, m, n))
    found = plain(1).bind(precision=precision).question(*given, target="cuda", arch=arch)
    assert found is not None
    return found


def chosen(dtype: str, items: int, side: int, arch: str = "sm_90a", precision: str = "exact") -> Schedule:
    return choose(question(dtype, items, (side, side, side), arch, precision))


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [("bf16", "exact"), ("f32", "exact"), ("f32", "tf32"), ("f64", "exact"), ("i8", "exact")],
)
@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_every_dtype_has_a_legal_schedule(dtype: str, precision: str, arch: str) -> None:
    for shape in ((16, 16, 16), (32, 32, 32), (64, 64, 64), (1, 60, 33), (3, 3, 3), (40, 8, 100)):
        for items in (1000, 65536):
            first = candidates(question(dtype, items, shape, arch, precision))[0]
            assert first.against == ()
            assert first.rule.startswith("small products")
            assert first.schedule.tile[0] >= shape[0]
            assert first.schedule.tile[1] >= shape[1]


def test_blocks_take_as_many_items_as_let_all_of_them_run_at_once() -> None:
    assert chosen("bf16", 1000, 32).batches == 1
    assert chosen("bf16", 65536, 16).batches == 16
    assert chosen("bf16", 65536, 16).tile == (16, 16, 16)


def test_few_items_and_larger_ones_have_the_schedules_that_were_measured() -> None:
    for schedule in (chosen("bf16", 100, 32), chosen("bf16", 1000, 72), chosen("bf16", 512, 128)):
        assert schedule.staging == "tma"
        assert schedule.batches == 1


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_more_items_than_an_axis_of_a_grid_has_blocks(dtype: str, arch: str) -> None:
    """Each proposal counts its blocks along a long enough axis, or says that it does not."""
    most = TARGETS["cuda"].architecture(arch).grid[-1]
    found = candidates(question(dtype, most + 1, (128, 128, 128), arch, "exact"))
    legal = [one for one in found if not one.against]
    assert legal[0] is found[0]
    assert all(one.schedule.blocks for one in legal)
    if dtype == "bf16" and arch == "sm_90a":
        assert any("65536 batch items" in one.against[0] for one in found if one.against)


@pytest.mark.parametrize("side", [16, 21, 32, 48])
def test_elements_on_the_reference(side: int) -> None:
    asked = question("f16", 1000, (side, side, side), "sm_90a", "exact")
    schedule = replace(choose(asked), batches=3)
    rng = np.random.default_rng(side)
    a, b = (rng.standard_normal((7, side, side)).astype(np.float16) for _ in range(2))
    out: Any = np.full((7, side, side), np.nan, np.float16)
    bound = plain(1).bind(precision="exact", schedule=schedule)
    report = bound.check(a, b, out)
    assert report.is_clean, report
    ran = bound(a, b, out, target="reference")
    assert (ran.target, ran.schedule) == ("reference", schedule)
    for at in range(7):
        exact, _, error = gemm_bound(a[at], b[at], Accumulation.of(schedule.atom), tw.f32)
        assert_within(out[at], Bounded(exact, error), tw.f16)


@pytest.mark.parametrize(("dtype", "items", "side"), [("bf16", 65536, 16), ("f32", 1000, 32)])
def test_a_warp_for_each_item_compiles_without_spills(dtype: str, items: int, side: int) -> None:
    given = [tw.like(dtype, items, side, side) for _ in range(3)]
    made = plain(1).bind(precision="exact").compile(*given, target="cuda", arch="sm_90a")
    assert made.schedule == chosen(dtype, items, side)
    assert "__launch_bounds__(32)" in made.source
    assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0
