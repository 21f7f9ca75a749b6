"""Products of f64 on tensor cores: chosen schedules are right, without spills and bank conflicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.gpu.schedules import FORMS, Form
from tests.ops.complex_cases import numbers

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.composed_products import compare_complex
from tilewright.ir.ops import Copy
from tilewright.ops.complex_matmul import ComplexWanted, plan_complex
from tilewright.ops.complex_products import four_products, three_products
from tilewright.ops.products import plain
from tilewright.schedule.choice import candidates
from tilewright.schedule.question import Question
from tilewright.schedule.schedule import Schedule
from tilewright.targets import cuda
from tilewright.targets.cuda.emit import lower
from tilewright.targets.nvidia import ARCHITECTURES
from tilewright.targets.simt.banks import passes_per_access

pytestmark = pytest.mark.in_turns(3)

SQUARES = {n: (n, n, n) for n in (256, 1024, 4096, 8192)}


def question(shape: tuple[int, int, int], arch: str = "sm_90a") -> Question:
    m, n, k = shape
    given = (tw.like("f64", m, k), tw.like("f64", k, n), tw.like("f64", m, n))
    found = plain(0).bind(precision="exact").question(*given, target="cuda", arch=arch)
    assert found is not None
    return found


def of_complex(
    side: int, made: Any = four_products, order: str = "C", how: Schedule | None = None
) -> tuple[Any, tuple[Any, ...]]:
    """Return the kernel of a product of interleaved numbers, or of planes, and specimens of its arguments."""
    count = 12 if made is three_products else 10
    arrays = [np.zeros((side, 2 * side if order == "" else side), order=order or "C") for _ in range(count)]
    arrays = [array[:, ::2] for array in arrays] if order == "" else arrays
    operands = 6 if made is three_products else 4
    fixed = {"precision": "exact", "terms": frozenset(), "conjugates": (False, False, False)}
    bound = made(0, tw.f64).bind(**fixed, schedule=how)
    return bound, (*arrays[: operands + 4], 1.0, 0.0, 1.0, 0.0)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("side", SQUARES)
def test_tensor_cores_multiply_what_was_loaded_one_part_ahead(arch: str, side: int) -> None:
    asked = question(SQUARES[side], arch)
    found = [one for one in candidates(asked) if one.rule.startswith("f64 on tensor cores")]
    assert not any(one.against for one in found)
    chosen = candidates(asked)[0].schedule
    atom = tw.atoms.MMA_F64_M16K4 if arch == "sm_90a" else tw.atoms.MMA_F64
    assert (chosen.atom, chosen.staging) == (atom, "fragments")
    ahead = [one.estimate for one in found if one.schedule.staging == "fragments"]
    assert ahead == sorted(ahead)
    assert any(one.schedule.staging == "cp_async" for one in found)


def test_large_tiles_where_they_fill_the_machine() -> None:
    assert candidates(question(SQUARES[8192]))[0].schedule.tile == (128, 128, 16)
    assert candidates(question(SQUARES[1024]))[0].schedule.tile[:2] in ((128, 64), (64, 128))
    assert candidates(question(SQUARES[256]))[0].schedule.tile == (32, 32, 16)
    few = candidates(question((16, 4096, 4096)))[0].schedule
    assert few.tile[0] <= 32


@pytest.mark.parametrize("side", [1024, 4096])
def test_estimates_lie_between_the_rate_of_the_machine_and_three_quarters_of_it(side: int) -> None:
    best = candidates(question(SQUARES[side]))[0].estimate
    rates = ARCHITECTURES["sm_90a"].rates
    assert rates is not None
    least = 2 * side**3 / (rates.tensor_flops["f64"] * 132 * rates.boards[0].clock_mhz)
    assert least < best < least / 0.75


def test_more_batch_items_than_a_grid_has_blocks_share_blocks() -> None:
    given = [tw.like("f64", 70000, 256, 256) for _ in range(3)]
    asked = plain(1).bind(precision="exact").question(*given, target="cuda", arch="sm_90a")
    assert asked is not None
    found = [one for one in candidates(asked) if one.rule.startswith("f64 on tensor cores")]
    assert {one.schedule.blocks for one in found} == {4 * 132}


def test_machines_with_few_units_for_f64_do_as_before() -> None:
    assert candidates(question(SQUARES[1024], "sm_86"))[0].schedule.staging == "cp_async"


@pytest.mark.parametrize(("made", "most"), [(four_products, 64 * 32), (three_products, 64 * 32)])
@pytest.mark.parametrize("order", ["C", ""])
def test_a_warp_holds_the_sums_of_complex_products(made: Any, most: int, order: str) -> None:
    bound, given = of_complex(256, made, order)
    asked = bound.question(*given, target="cuda", arch="sm_90a")
    found = candidates(asked)
    chosen = found[0].schedule
    assert (chosen.staging, chosen.atom) == ("fragments", tw.atoms.MMA_F64_M16K4)
    for one in (one.schedule for one in found if one.schedule.atom == chosen.atom):
        (rows, columns, _), (along_m, along_n) = one.tile, one.warps
        assert rows // along_m * (columns // along_n) * len(asked.form.totals) <= most
    assert not any(one.against for one in found)


BIG = FORMS["fragments f64, 8 warps"]


def compiled(bound: Any, given: tuple[Any, ...]) -> None:
    """Check that nothing spills, and that each access to shared memory has no bank conflict."""
    made = bound.compile(*given, target="cuda", arch="sm_90a")
    assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0
    assert "mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64" in cuda.emit(made.kernel, "sm_90a").text
    lowered, _ = lower(made.kernel, ARCHITECTURES["sm_90a"])
    found = [passes_per_access(op) for op in lowered.walk() if isinstance(op, Copy)]
    assert {share for share in found if share is not None} == {1.0}


@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_the_large_tile_of_each_layout_compiles_well(layout: str) -> None:
    given = tuple(BIG.arrays((256, 256, 256), layout, 0).values())
    compiled(BIG.kernel.bind(schedule=BIG.schedule), given)


@pytest.mark.parametrize("order", ["C", ""])
def test_the_large_tile_of_complex_numbers_compiles_well(order: str) -> None:
    how = Schedule(tw.atoms.MMA_F64_M16K4, (128, 64, 8), (4, 2), 4, "fragments", group_m=8)
    compiled(*of_complex(256, order=order, how=how))


@pytest.mark.parametrize("order", ["C", "F"])
def test_both_parts_of_complex_numbers_are_copied_at_once(order: str) -> None:
    """Copies move 16 bytes to shared memory, and each part is loaded from there."""
    both = tw.like("f64", 256, 256, 2, strides=(512, 2, 1) if order == "C" else (2, 512, 1))
    part = tw.like("f64", 256, 256, strides=(512, 2), align=8)
    how = Schedule(tw.atoms.MMA_F64_M16K4, (128, 64, 8), (4, 2), 4, "fragments", group_m=8)
    fixed = {"precision": "exact", "terms": frozenset(), "conjugates": (False, True, False)}
    bound = four_products(0, tw.f64, ("m k", "k n")).bind(**fixed, schedule=how)
    made = bound.compile(*[both] * 4, *[part] * 4, 1.0, 0.0, 1.0, 0.0, target="cuda", arch="sm_90a")
    assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0
    copies = [line for line in made.source.splitlines() if "in the background" in line]
    assert copies
    assert all("16 bytes at a time" in line for line in copies)
    assert made.source.count("= load_part(true, from + ") == 12, "parts of A and B: two ahead, one within"
    of_planes, given = of_complex(256, order="C", how=how)
    assert "load_part" not in of_planes.compile(*given, target="cuda", arch="sm_90a").source


def test_parts_that_lie_apart_are_copied_alone() -> None:
    rng = np.random.default_rng(6)
    a, b = numbers(rng, (35, 21), tw.f64, "planar"), numbers(rng, (21, 19), tw.f64, "interleaved")
    product = plan_complex({"a": a, "b": b}, ComplexWanted(how=SMALL.schedule, target="reference"))
    assert [len(one.info.shape) for one in product.product.arrays[:4]] == [2, 2, 3, 3]
    assert product.run()[-1].schedule == SMALL.schedule
    how = Accumulation.of(SMALL.schedule.atom)
    compare_complex(a, (b.real, b.imag), tuple(product.result), how=how).raise_if_wrong()


SMALL = Form("small", Schedule(tw.atoms.MMA_F64_M16K4, (32, 16, 16), (2, 1), 3, "fragments"), "f64", "f64")


@pytest.mark.parametrize("layout", SMALL.layouts)
def test_ragged_products_are_right(layout: str) -> None:
    for shape in ((37, 21, 53), (5, 40, 16), (33, 3, 1)):
        before = SMALL.arrays(shape, layout, 3)
        ran, after = SMALL.run(before, target="reference")
        assert (ran.target, ran.schedule) == ("reference", SMALL.schedule)
        found = SMALL.compare(before, after)
        assert found.ok, f"{layout} {shape}: {found}"


@pytest.mark.parametrize(
    "changes", [{}, {"balanced": True}, {"balanced": True, "split_k": 2}], ids=["whole", "shares", "split"]
)
def test_ragged_products_of_complex_numbers_are_right(changes: dict[str, Any]) -> None:
    schedule = replace(SMALL.schedule, **changes)
    rng = np.random.default_rng(5)
    a, b = (numbers(rng, shape, tw.f64, "interleaved") for shape in ((35, 21), (21, 19)))
    out = np.full((35, 19), np.nan, np.complex128)
    asked = ComplexWanted(how=schedule, target="reference", conjugate_a=True)
    (ran,) = plan_complex({"a": a, "b": b, "c": None, "out": out}, asked).run()
    assert (ran.target, ran.schedule) == ("reference", schedule)
    compare_complex(a.conj(), b, out, how=Accumulation.of(schedule.atom)).raise_if_wrong()
    assert not compare_complex(a, b, out, how=Accumulation.of(schedule.atom)).ok
