"""Small tiles of exact f32: proposed where large ones would be few or half empty, legal, and right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.lang.specs import TensorSpec
from tilewright.ops import lists
from tilewright.ops.products import plain
from tilewright.schedule.choice import candidates, choose, schedule_of_lists, split_candidates
from tilewright.schedule.estimate import FMA
from tilewright.schedule.load import Load, memory_us
from tilewright.schedule.proposals_mma import FORMS, FmaForm
from tilewright.schedule.question import Question, Splitting, coarse
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.schedule.schedule import SPLITS
from tilewright.schedule.splitting import with_more_blocks
from tilewright.targets.target import CUDA

from .epilogues import Problem

FEW = ((16, 4096, 4096), (64, 4096, 4096), (4096, 16, 4096), (64, 64, 65536), (256, 256, 65536))


def question(shape: tuple[int, int, int], arch: str = "sm_90a", precision: str = "exact") -> Question:
    m, n, k = shape
    given = (tw.like("f32", m, k), tw.like("f32", k, n, order="F"), tw.like("f32", m, n))
    found = plain(0).bind(precision=precision).question(*given, target="cuda", arch=arch)
    assert found is not None
    return found


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a"])
@pytest.mark.parametrize("shape", FEW)
def test_the_choice_is_no_larger_than_the_result(shape: tuple[int, int, int], arch: str) -> None:
    asked = question(shape, arch)
    found = candidates(asked)
    assert found[0].rule.startswith("multiply-adds, few tiles")
    assert found[0].schedule.split_k in SPLITS or arch == "sm_86"  # whose memory is slower
    small = [one for one in found if "few tiles" in one.rule]
    assert [one.estimate for one in small] == sorted(one.estimate for one in small)
    for one in small:
        assert one.against == ()
        assert one.estimate > memory_us(asked)
        assert all(tile < 2 * extent for tile, extent in zip(one.schedule.tile[:2], shape[:2], strict=True))


def test_large_products_are_computed_as_before() -> None:
    for side in (1024, 4096):
        chosen = choose(question((side, side, side)))
        assert (chosen.tile, chosen.warps, chosen.split_k) == ((128, 128, 32), (4, 2), 1)
        assert not any("few tiles" in one.rule for one in candidates(question((side, side, side))))
    assert choose(question((16, 4096, 4096), precision="tf32")).atom.instruction != "fma"


def test_k_is_dealt_out_to_as_many_blocks_as_run_at_once() -> None:
    asked = replace(question((64, 64, 65536)), splitting=Splitting("auto"))
    blocks = {one.schedule.blocks for one in split_candidates(asked) if one.schedule.split_k == "auto"}
    assert {132, 264, 396} <= blocks
    for form in FORMS:
        alone = replace(form.schedule, split_k="auto", blocks=132)
        found = [one.blocks // 132 for one in with_more_blocks(asked, alone)]
        assert found == [*range(1, Load(asked, alone).resident + 1)]
        shared = ScheduleOnMachine(alone, asked.form, asked.specs, asked.arch).shared_bytes
        assert found[-1] * shared <= asked.arch.shared_bytes
        assert found[-1] * alone.mma.threads * alone.mma.c().size_values <= asked.arch.registers


def test_what_is_wasted_costs_time() -> None:
    asked = question((16, 16, 262144))
    times = {
        form.tile: FMA.time_us(Load(asked, replace(form.schedule, split_k="auto", blocks=264)))
        for form in FORMS
    }
    assert times[(16, 16, 64)] < times[(32, 64, 64)] < times[(64, 128, 32)]


def test_rounds_that_are_half_empty_are_dealt_out_in_streams() -> None:
    chosen = choose(question((1536, 1536, 12288)))  # 144 tiles of 128 x 128
    assert chosen.split_k == "stream"
    assert chosen.blocks % 132 == 0
    assert chosen.tile[0] * chosen.tile[1] >= 64 * 64


TRIED = (FORMS[0], FORMS[2], FORMS[2].transposed, FORMS[8])


@pytest.mark.parametrize("form", TRIED, ids=lambda form: "x".join(map(str, form.tile)))
def test_elements(form: FmaForm) -> None:
    rows, columns, depth = form.tile
    problem = Problem(np.random.default_rng(3), (rows - 3, columns + 5, 9 * depth - 7))
    a, b = problem.operand("M K", tw.f32), problem.operand("N K", tw.f32)
    out = problem.output("M N", tw.f32)
    schedule = replace(form.schedule, split_k="auto", blocks=6)
    ran = plain(0).bind(precision="exact", schedule=schedule)(a, b.T, out, target="reference")
    assert (ran.target, ran.schedule) == ("reference", schedule)
    found = compare_gemm(a, b.T, out, Accumulation.of(schedule.atom))
    assert found.ok, found
    problem.assert_canaries()


@pytest.mark.parametrize("form", TRIED, ids=lambda form: "x".join(map(str, form.tile)))
def test_kernels_compile_without_spills(form: FmaForm) -> None:
    given = (tw.like("f32", 512, 4096), tw.like("f32", 4096, 512, order="F"), tw.like("f32", 512, 512))
    schedule = replace(form.schedule, split_k="auto", blocks=132)
    made = plain(0).bind(precision="exact", schedule=schedule).compile(*given, target="cuda", arch="sm_90a")
    assert not made.resources["spill_store_bytes"]
    assert "copy_async<16>" in made.source


def test_parts_that_wait_for_each_other_are_as_many_as_run_at_once() -> None:
    """A part for each period, as batch-invariant products have them, would be more: K is not split then."""
    for shape in ((1024, 1024, 4096), (64, 8192, 8192), (512, 512, 4096)):
        wanted = Splitting(reduction="reduce-scatter", batch_invariant=True)
        for one in split_candidates(replace(question(shape), splitting=wanted)):
            parts = Load(replace(question(shape), splitting=wanted), one.schedule).parts
            assert parts == 1 or Load(question(shape), one.schedule).tiles * parts <= 132


def test_of_lists_tiles_are_as_small_as_of_a_batch() -> None:
    machine = CUDA.architecture("sm_90a")
    spec = TensorSpec(tw.dtype("f32"), 3, 2, (1, 16, 16), (1, 16, 1), align=16, wide=True, signed=False)
    specs = {name: coarse(spec, machine) for name in "ABD"}
    form = lists._form(tuple(specs.items()), "exact", None)
    for extents in ((8, 16, 512, 4096), (8, 64, 64, 1024)):
        found = schedule_of_lists(Question(form, lists._complete(specs), extents, machine, 132))
        assert found.tile[0] <= 64
        assert found.blocks
