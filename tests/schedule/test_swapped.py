"""The transposed product: B is operand A, elements are the same, and few rows of A use a small atom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, gemm_bound
from tilewright.ops.products import plain
from tilewright.schedule.form import form_of
from tilewright.schedule.legality import reasons
from tilewright.schedule.schedule import Schedule

from .epilogues import Bounded, Problem, assert_within
from .forms import BULK, HOPPER, SYNC, flow_of, specs

FEW = Schedule(
    tw.atoms.wgmma("f16", 16),
    (64, 16, 128),
    stages=3,
    staging="tma",
    roles="cooperative",
    epilogue="staged",
    registers=0,
    buffers=1,
    swap_ab=True,
)
THREADS = Schedule(tw.atoms.fma("f16", lanes=(1, 1), each=(6, 16)), (48, 32, 64), staging="panels")


def test_a_form_is_arranged_once_and_back() -> None:
    form = form_of(flow_of(specs()))
    other = form.arranged(True)
    assert (other.a, other.b, other.m, other.n) == (form.b, form.a, form.n, form.m)
    assert other.arranged(True) is other
    assert other.arranged(False) == form


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("rows", [1, 7, 8, 16, 33, 64])
@pytest.mark.parametrize(
    ("target", "schedule"),
    [
        ("reference", FEW),
        ("reference", replace(SYNC, swap_ab=True)),
        ("cpu", replace(THREADS, swap_ab=True)),
        ("cpu", replace(THREADS, swap_ab=True, balanced=True)),
    ],
    ids=["wgmma", "mma.sync", "panels", "balanced panels"],
)
def test_few_rows_with_all_that_matmul_does(target: str, schedule: Schedule, rows: int) -> None:
    problem = Problem(np.random.default_rng(rows), (rows, 200, 136), aligned=rows % 2 == 0)
    a, b, bias = problem.operand("M K"), problem.operand("K N"), problem.operand("N")
    residual, out = problem.operand("M N"), problem.output("M N")
    out[...] = before = problem.rng.standard_normal(out.shape).astype(np.float16)
    given: dict[str, Any] = {"bias": bias, "residual": residual, "activation": "relu"}
    tw.matmul(a, b, out, alpha=0.5, beta=-0.75, **given, schedule=schedule, target=target)
    exact, _, bound = gemm_bound(a, b, Accumulation.of(schedule.atom), tw.f32)
    sums = Bounded(exact, bound) * Bounded(0.5) + Bounded(before.astype(np.float64)) * Bounded(-0.75)
    sums = sums + Bounded(bias.astype(np.float64))
    want = Bounded(np.maximum(sums.value, 0), sums.error) + Bounded(residual.astype(np.float64))
    assert_within(out, want, tw.f16)
    problem.assert_canaries()


@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
def test_batches_in_every_order(orders: str) -> None:
    rng = np.random.default_rng(3)
    a, b = (
        np.asarray(rng.standard_normal(shape), np.float16, order=order)  # type: ignore[call-overload]
        for shape, order in zip(((3, 12, 80), (3, 80, 72)), orders, strict=True)
    )
    out = np.full((3, 12, 72), np.nan, np.float32)
    schedule = replace(SYNC, tile=(32, 32, 16), swap_ab=True)
    bound = plain(1).bind(precision="exact", schedule=schedule)
    assert bound(a, b, out, target="reference").target == "reference"
    for i in range(3):
        exact, _, error = gemm_bound(a[i], b[i], Accumulation.of(schedule.atom), tw.f32)
        assert_within(out[i], Bounded(exact, error), tw.f32)


@pytest.mark.parametrize(("columns", "matrices"), [(8, 2), (64, 4)])
def test_results_are_turned_on_their_way_to_whole_rows(columns: int, matrices: int) -> None:
    few = replace(FEW, atom=tw.atoms.wgmma("bf16", columns), tile=(64, columns, 256))
    given = (tw.like("bf16", 16, 512), tw.like("bf16", 512, 512, order="F"), tw.like("bf16", 16, 512))
    made = plain(0).bind(precision="exact", schedule=few).compile(*given, target="cuda", arch="sm_90a")
    kernel = made.source[made.source.index("__global__") :]
    assert f"stmatrix_x{matrices}_trans(" in kernel
    assert "tma_store_2d(" in kernel
    assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0


def test_what_is_contiguous_along_its_columns_is_multiplied_too() -> None:
    given = (tw.like("bf16", 16, 512), tw.like("bf16", 512, 512), tw.like("bf16", 16, 512))
    few = replace(FEW, atom=tw.atoms.wgmma("bf16", 16))
    made = plain(0).bind(precision="exact", schedule=few).compile(*given, target="cuda", arch="sm_90a")
    assert "wgmma.mma_async.sync.aligned.m64n16k16" in made.source
    old = replace(SYNC, atom=tw.atoms.MMA_BF16, stages=3, staging="cp_async", epilogue="staged", swap_ab=True)
    made = plain(0).bind(precision="exact", schedule=old).compile(*given, target="cuda", arch="sm_80")
    assert "mma.sync" in made.source
    assert made.resources["spill_store_bytes"] == 0


def test_reasons_name_the_array_that_lies_along_the_rows_of_the_atom() -> None:
    given = specs()
    given["A"] = replace(given["A"], dtype=tw.f8e4m3)
    given["B"] = replace(given["B"], dtype=tw.f8e5m2)
    found = reasons(replace(BULK, swap_ab=True), form_of(flow_of(given)), given, HOPPER)
    assert any("takes A as f16; the kernel multiplies B as f8e5m2" in reason.message for reason in found)
