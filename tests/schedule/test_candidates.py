"""Proposals for a problem: the choice comes first, each occurs once, and refused ones have reasons."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright as tw
from tilewright.ops.products import plain
from tilewright.runtime.kernel import Bound
from tilewright.schedule.choice import candidates, choose
from tilewright.schedule.legality import with_fallback
from tilewright.schedule.question import Candidate, Question


def arrays(dtype: str, shape: tuple[int, int, int], out: str | None = None) -> list[Any]:
    m, n, k = shape
    b = tw.like(dtype, k, n, order="F" if dtype == "f8e4m3" else "C")
    return [tw.like(dtype, m, k), b, tw.like(out or dtype, m, n)]


def question(dtype: str, shape: tuple[int, int, int], target: str, arch: str) -> Question:
    out = {"f8e4m3": "bf16", "i8": "i32"}.get(dtype)
    found = product().question(*arrays(dtype, shape, out), target=target, arch=arch)
    assert found is not None
    return found


def product() -> Bound:
    return plain(0).bind(precision="exact")


MACHINES = [("cuda", "sm_90a"), ("cuda", "sm_80"), ("cpu", "x86-64-v3"), ("reference", "numpy")]


@pytest.mark.parametrize(("target", "arch"), MACHINES)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f8e4m3", "i8", "f64"])
@pytest.mark.parametrize("shape", [(40, 50, 60), (4096, 4096, 4096), (1000, 1003, 997)])
def test_the_choice_is_first_and_everything_is_there_once(
    target: str, arch: str, dtype: str, shape: tuple[int, int, int]
) -> None:
    asked = question(dtype, shape, target, arch)
    found = candidates(asked)
    settled, _ = with_fallback(choose(asked), asked.form, asked.specs, asked.arch)
    assert found[0].schedule == settled
    assert found[0].against == ()
    assert len({one.schedule for one in found}) == len(found)
    assert all(one.estimate > 0 and one.rule for one in found)
    if target == "reference":
        assert len(found) == 1


def test_what_is_refused_says_why() -> None:
    found = candidates(question("bf16", (4096, 4096, 4096), "cuda", "sm_90a"))
    deep = [one for one in found if one.schedule.stages == 5 and one.schedule.tile[1] == 256]
    assert deep
    assert all("shared memory" in one.against[0] and "stages=4" in one.against[0] for one in deep)
    promoted = candidates(question("f8e4m3", (4096, 4096, 4096), "cuda", "sm_90a"))
    wide = next(one for one in promoted if one.schedule.tile == (128, 256, 128))
    assert wide.against[0] == "promotion keeps the 16384 sums of a group twice in registers, and 12288 fit"


def test_forms_come_in_the_order_of_their_estimates() -> None:
    found = candidates(question("bf16", (512, 512, 512), "cuda", "sm_90a"))
    named = [one for one in found if one.rule.startswith("form") and one.rule.endswith("kernel")]
    forms = [one.estimate for one in named if not one.against]
    assert len(forms) == 9
    assert ["8-bit floats" in one.against[0] for one in named if one.against] == [True]
    assert forms == sorted(forms)


def test_where_bulk_copies_cannot_carry_an_array_another_engine_is_proposed() -> None:
    found = candidates(question("bf16", (333, 335, 337), "cuda", "sm_90a"))
    assert all(one.schedule.staging != "tma" for one in found)
    assert found[0].rule.startswith("threads copy tiles of")
    assert any(one.rule.endswith(", because bulk copies cannot copy all arrays") for one in found)


def test_on_a_processor_a_tile_larger_than_the_problem_is_not_worth_trying() -> None:
    found = candidates(question("f32", (40, 50, 60), "cpu", "x86-64-v3"))
    assert len(found) == 42
    legal = {one.schedule.tile[:2] for one in found if not one.against}
    assert legal == {found[0].schedule.tile[:2], (48, 32), (48, 128)}
    assert reason(found, (96, 32)) == "a tile of 48 rows already covers all 40"


def reason(found: tuple[Candidate, ...], tile: tuple[int, int]) -> str:
    return next(one.against[0] for one in found if one.schedule.tile[:2] == tile)
