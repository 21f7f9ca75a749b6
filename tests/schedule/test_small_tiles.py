"""Small tiles of exact f32: proposed if they should take less time than large ones, legal, and right."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.ops.complex_cases import numbers

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.checking.composed_products import compare_complex
from tilewright.lang.specs import TensorSpec
from tilewright.ops import lists
from tilewright.ops.complex_products import four_products
from tilewright.ops.products import plain
from tilewright.schedule.choice import candidates, choose, schedule_of_lists, split_candidates
from tilewright.schedule.estimate import FMA, FmaEstimate
from tilewright.schedule.load import FMA_REGISTERS, WHOLE_REGISTERS, DealtLoad, Load
from tilewright.schedule.proposals_mma import FORMS, SMALL_PAY, SPLIT_FORMS, FmaForm
from tilewright.schedule.question import Question, Splitting, coarse
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.schedule.schedule import SPLITS
from tilewright.schedule.splitting import with_more_blocks
from tilewright.targets.target import CUDA

from .epilogues import Problem

SMALL = "multiply-adds: a tile of"
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
    assert found[0].rule.startswith(SMALL)
    assert found[0].schedule.split_k in SPLITS or arch == "sm_86"  # whose memory is slower
    small = [one for one in found if one.rule.startswith(SMALL)]
    assert found[0].estimate == min(one.estimate for one in small)
    for one in small:
        assert one.against == ()
        assert one.estimate > asked.memory_us
        assert all(tile < 2 * extent for tile, extent in zip(one.schedule.tile[:2], shape[:2], strict=True))


def test_large_products_keep_the_large_tile() -> None:
    asked = question((4096, 4096, 4096))
    found = candidates(asked)
    assert (found[0].schedule.tile, found[0].schedule.warps) == ((128, 128, 32), (4, 2))
    assert not any(one.rule.startswith(SMALL) for one in found)
    assert choose(question((16, 4096, 4096), precision="tf32")).atom.instruction != "fma"


@pytest.mark.parametrize("shape", [*FEW, (288, 1656, 5264), (2072, 216, 1552), (1024, 1024, 1024)])
def test_small_tiles_are_proposed_if_they_should_take_less_time(shape: tuple[int, int, int]) -> None:
    asked = question(shape)
    found = candidates(asked)
    large = next(one.schedule for one in found if one.rule.endswith("the larger tile"))
    assert found[0].estimate == FMA.time_us(Load(asked, found[0].schedule))
    assert found[0].estimate <= SMALL_PAY * FMA.time_us(Load(asked, large))


def test_few_schedules_are_estimated_for_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimate takes about 30 us; each schedule with split K takes another 30 us."""
    counts, timed = Counter[bool](), type(FMA).waits

    def counted(model: FmaEstimate, load: Load) -> tuple[float, ...]:
        counts[load.schedule.is_split] += 1
        return timed(model, load)

    monkeypatch.setattr(FmaEstimate, "waits", counted)
    for shape in (*FEW, (1024, 1024, 1024), (4096, 4096, 4096), (288, 1656, 5264)):
        choose(question(shape))
        assert counts[False] <= len(FORMS) + SPLIT_FORMS + 2
        assert counts[True] <= 10 * SPLIT_FORMS
        counts.clear()


def test_a_bound_is_what_a_stream_of_all_blocks_at_once_takes() -> None:
    asked = question((288, 1656, 5264))
    for form in FORMS:
        dealt = DealtLoad(asked, form.schedule)
        blocks = dealt.resident * asked.processors
        stream = Load(asked, replace(form.schedule, split_k="stream", blocks=blocks))
        assert (dealt.blocks, dealt.block_steps, dealt.parts) == (
            stream.blocks,
            stream.block_steps,
            stream.parts,
        )
        assert FMA.time_us(dealt) == FMA.time_us(stream)


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
    """Batch-invariant products would have a part for each period, which is more: K is not split then."""
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


# ---------------------------------------------------------------- several products


def of_complex(shape: tuple[int, int, int], layout: str = "nt") -> Question:
    """Return the question of four products of planes."""
    m, n, k = shape
    a = tw.like("f32", m, k, order="C" if layout[0] == "n" else "F")
    b = tw.like("f32", k, n, order="C" if layout[1] == "n" else "F")
    out = tw.like("f32", m, n)
    fixed = {"precision": "exact", "terms": frozenset(), "conjugates": (False, False, False)}
    given = (a, a, b, b, out, out, out, out)
    found = four_products(0, tw.f32).bind(**fixed).question(*given, 1.0, 0.0, 0.0, 0.0, target="cuda")
    assert found is not None
    return found


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", [(136, 1216, 1576), (64, 64, 8192), (2048, 2048, 2048), (5, 3, 700)])
def test_several_products_have_tiles_that_fit_into_registers(
    shape: tuple[int, int, int], layout: str
) -> None:
    asked = replace(of_complex(shape, layout), processors=132)
    found = candidates(asked)
    assert found[0].rule.startswith(SMALL)
    for one in found:
        load = Load(asked, one.schedule)
        assert not one.against
        if one.rule.startswith(SMALL):
            assert load.held_registers <= asked.arch.thread_registers
    if shape[2] == 8192:
        assert found[0].schedule.is_split


def test_all_products_and_operands_are_counted() -> None:
    schedule = replace(FORMS[9].schedule, tile=(64, 64, 16))
    of_four, of_one = (
        Load(of_complex((4096, 4096, 4096)), schedule),
        Load(question((4096, 4096, 4096)), schedule),
    )
    assert of_four.operands == (2, 2)
    sums = of_one.held_registers - FMA_REGISTERS
    assert of_four.held_registers - WHOLE_REGISTERS == 2 * sums
    four, one = FMA.waits(of_four), FMA.waits(of_one)
    assert 3 * one[0] < four[0] < 4 * one[0]  # each operand is read once for two products
    assert four[1:] == (pytest.approx(5 / 3 * one[1], rel=0.01), 2 * one[2])
    narrow = replace(of_four, question=of_interleaved((4096, 4096, 4096)))
    assert FMA.waits(narrow)[0] > four[0]


def of_interleaved(shape: tuple[int, int, int]) -> Question:
    """Return the question of four products of interleaved numbers, which threads copy one at a time."""
    m, n, k = shape
    a, b, out = (
        tw.like("f32", *size, strides=(2 * size[1], 2), align=4) for size in ((m, k), (k, n), (m, n))
    )
    fixed = {"precision": "exact", "terms": frozenset(), "conjugates": (False, False, False)}
    given = (a, a, b, b, out, out, out, out)
    found = four_products(0, tw.f32).bind(**fixed).question(*given, 1.0, 0.0, 0.0, 0.0, target="cuda")
    assert found is not None
    return found


def test_only_products_by_bulk_copies_start_before_the_prepass_ends() -> None:
    """Other kernels fit several blocks into a multiprocessor, which would crowd the first with room."""
    m, n, k = 256, 256, 256
    a, b, out = tw.like("f32", m, k), tw.like("f32", k, n, order="F"), tw.like("f32", m, n)
    given = (a, a, b, b, out, out, out, out, 1.0, 0.0, 0.0, 0.0)
    bulk = tw.Schedule(
        tw.atoms.wgmma("f32", 64), (64, 64, 32), stages=3, staging="tma", roles="cooperative", groups=1,
        epilogue="staged", buffers=1,
    )  # fmt: skip
    for precision, how, early in (("exact", FORMS[9].schedule, False), ("tf32", bulk, True)):
        fixed = {"precision": precision, "terms": frozenset(), "conjugates": (False, False, False)}
        made = (
            four_products(0, tw.f32).bind(**fixed, schedule=how).compile(*given, target="cuda", arch="sm_90a")
        )
        assert ("griddepcontrol.wait" in made.source) is early


# ---------------------------------------------------------------- results in whole rows


def of_batches(shape: tuple[int, int, int], items: int) -> Question:
    m, n, k = shape
    given = [tw.like("f32", items, *one) for one in ((m, k), (k, n), (m, n))]
    found = plain(1).bind(precision="exact").question(*given, target="cuda", arch="sm_90a")
    assert found is not None
    return found


def test_narrow_results_of_short_products_leave_in_whole_rows() -> None:
    chosen = choose(of_batches((680, 461, 11), 32))
    assert (chosen.epilogue, chosen.split_k) == ("staged", 1)
    assert choose(of_batches((680, 464, 11), 32)).epilogue == "direct"  # 16 bytes at once
    assert choose(of_batches((680, 461, 4096), 4)).epilogue == "direct"  # results cost little


def test_results_in_whole_rows_are_right() -> None:
    schedule = replace(FORMS[5].schedule, epilogue="staged")
    problem = Problem(np.random.default_rng(7), (45, 37, 11))
    a, b = problem.operand("M K", tw.f32), problem.operand("N K", tw.f32)
    out = problem.output("M N", tw.f32)
    ran = plain(0).bind(precision="exact", schedule=schedule)(a, b.T, out, target="reference")
    assert (ran.target, ran.schedule) == ("reference", schedule)
    found = compare_gemm(a, b.T, out, Accumulation.of(schedule.atom))
    assert found.ok, found
    problem.assert_canaries()


def test_a_last_round_of_few_blocks_costs_as_much_as_its_idle_schedulers() -> None:
    """Five blocks of two warps: four run at once, then one, which keeps half of the schedulers idle."""
    whole = FmaForm((8, 8), (2, 1), (64, 64, 32)).schedule
    times = [FMA.time_us(Load(question((64 * 132 * count, 64, 4096)), whole)) for count in (4, 5, 8)]
    assert Load(question((64 * 132, 64, 4096)), whole).resident == 4
    assert times[1] - times[0] > 0.4 * (times[2] - times[0])


# ---------------------------------------------------------------- both parts of a complex number at once


@pytest.mark.parametrize("changes", [{}, {"split_k": "stream", "blocks": 7}], ids=["whole", "stream"])
@pytest.mark.parametrize("layouts", ["nt", "tn"])
def test_complex_numbers_are_copied_whole(layouts: str, changes: dict[str, Any]) -> None:
    schedule = replace(FORMS[5].shared_by(2).schedule, **changes)
    rng = np.random.default_rng(5)
    a, b = (
        numbers(rng, shape if way == "n" else shape[::-1], tw.f32, "interleaved")
        for shape, way in zip(((45, 37), (37, 41)), layouts, strict=True)
    )
    wide = [one.view(np.float32).reshape(*one.shape, 2) for one in (a, b)]
    together = ("m k" if layouts[0] == "n" else "k m", "k n" if layouts[1] == "n" else "n k")
    a, b = (one if way == "n" else one.T for one, way in zip((a, b), layouts, strict=True))
    out = np.full((45, 41), np.nan, np.complex64)
    words = {"precision": "exact", "terms": frozenset(), "conjugates": (True, False, False)}
    product = four_products(0, tw.f32, together).bind(**words, pairs=(tw.f32, tw.f32), schedule=schedule)
    given = [wide[0], wide[0], wide[1], wide[1], *[out.view(np.float64)] * 4]
    ran = product(*given, 1.0, 0.0, 1.0, 0.0, target="reference")
    assert (ran.target, ran.schedule) == ("reference", schedule)
    compare_complex(a.conj(), b, out, how=Accumulation.of(schedule.atom)).raise_if_wrong()
    assert not compare_complex(a, b, out, how=Accumulation.of(schedule.atom)).ok


def test_complex_numbers_take_one_copy_and_one_read() -> None:
    """Addresses of the imaginary parts are those of the real parts and 1, so that compilers read both."""
    specs = [TensorSpec(tw.f32, 3, 2, (64, 64, 2), (64, 2, 1), 16, False)] * 4
    results = [TensorSpec(tw.f64, 2, 1, (64, 64), (64, 1), 16, False)] * 4
    product = four_products(0, tw.f32, ("m k", "k n"))
    words = {"precision": "exact", "terms": frozenset(), "conjugates": (False,) * 3}
    bound = product.bind(**words, pairs=(tw.f32, tw.f32), schedule=FORMS[5].shared_by(2).schedule)
    made = bound.compile(*specs, *results, 1.0, 0.0, 1.0, 0.0, target="cuda", arch="sm_90a")
    copies = [line for line in made.source.splitlines() if "in the background" in line]
    assert copies
    assert all("8 bytes at a time" in line for line in copies)
    first = "const float* from = sa + ((2*k_step) ^ start)"
    assert f"{first};" in made.source
    assert f"{first} + 1;" in made.source
