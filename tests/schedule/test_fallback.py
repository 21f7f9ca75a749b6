"""Another engine loads arrays that bulk copies cannot: notes say so, it is legal, and results are right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.eight_lines import product_in_f32 as product

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.ir import verify
from tilewright.runtime import scheduled
from tilewright.schedule.choice import first_legal
from tilewright.schedule.form import form_of
from tilewright.schedule.legality import reasons, with_fallback
from tilewright.targets import cuda

from .forms import AMPERE, BULK, FORMS, HOPPER, SYNC, expanded, flow_of, specs


def settled(schedule: tw.Schedule, **given: Any) -> tuple[tw.Schedule, tuple[str, ...]]:
    arrays = specs(**given)
    return with_fallback(schedule, form_of(flow_of(arrays)), arrays, HOPPER)


def test_what_bulk_copies_carry_stays() -> None:
    assert settled(BULK) == (BULK, ())
    assert settled(FORMS["cp_async"], align=2, multiple=1) == (FORMS["cp_async"], ())


@pytest.mark.parametrize(
    ("given", "staging", "said"),
    [
        ({"align": 8}, "cp_async", "A is aligned to 8 bytes; bulk copies need 16"),
        ({"multiple": 4}, "cp_async", "the stride of dimension 0 of A is a multiple of 4 f16"),
        ({"multiple": 2, "align": 4}, "cp_async", "A is aligned to 4 bytes"),
        ({"multiple": 1, "align": 2}, "registers", "A is aligned to 2 bytes"),
        ({"multiple": 1}, "registers", "the stride of dimension 0 of A is a multiple of 1 f16"),
        ({"multiple": 4, "major": 0}, "cp_async", "the stride of dimension 1 of A is a multiple of 4 f16"),
    ],
)
@pytest.mark.parametrize("form", ["cooperative", "cooperative, promoted", "ping-pong"])
def test_another_engine_is_taken_and_said(form: str, given: dict[str, Any], staging: str, said: str) -> None:
    schedule = FORMS[form]
    found, notes = settled(schedule, **given)
    assert (found.staging, found.roles, found.atom, found.tile) == (
        staging,
        "none",
        schedule.atom,
        schedule.tile,
    )
    assert any(said in note for note in notes)
    arrays = specs(**given)
    assert reasons(found, form_of(flow_of(arrays)), arrays, HOPPER) == []
    kernel = expanded(schedule, arrays)
    assert kernel.notes[: len(notes)] == notes
    assert [*verify.violations(kernel), *cuda.violations(kernel, HOPPER)] == []
    assert all(note in cuda.emit(kernel, HOPPER).notes for note in notes)


def test_a_result_that_bulk_copies_would_spill_over_is_stored_by_threads_and_said() -> None:
    arrays = specs() | {"C": replace(specs()["C"], extent_divisors=(16, 1))}
    kernel = expanded(BULK, arrays)
    why = "C is stored by threads, row by row, instead of TMA: the length of the rows of C"
    assert any(why in note for note in kernel.notes)


def test_a_machine_without_bulk_copies_refuses_them() -> None:
    arrays = specs(align=8)
    assert with_fallback(BULK, form_of(flow_of(arrays)), arrays, AMPERE) == (BULK, ())


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("form", ["cooperative", "ping-pong"])
@pytest.mark.parametrize(("pad", "start"), [(4, 0), (2, 2), (1, 1), (8, 4)])
def test_odd_strides_and_starts_are_multiplied_right(form: str, pad: int, start: int) -> None:
    m, n, k = 140, 72, 130
    rng = np.random.default_rng(pad)
    wide = [rng.standard_normal((rows, k + pad + start)).astype(np.float16) for rows in (m, n)]
    a, b = (array[:, start : start + k] for array in wide)
    larger = np.full((m + 2, n + 3), np.nan, np.float32)
    c = larger[1:-1, 1:-2]
    made = product.bind(schedule=FORMS[form])(a, b, c, target="reference")
    assert made.target == "reference"
    assert any("instead of TMA" in note for note in made.notes)
    assert made.schedule is not None
    assert made.schedule.staging in ("cp_async", "registers")
    compare_gemm(a, b.T, c, Accumulation.of(FORMS[form].atom)).raise_if_wrong()
    assert np.isnan(larger).sum() == larger.size - c.size


def fresh(kernel: Any) -> Any:
    """Return the kernel without schedules from before."""
    return type(kernel)(kernel.program)


def test_a_legal_proposal_takes_the_place_of_an_illegal_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules should choose legal schedules; if they fail, the kernel runs all the same."""
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(shape).astype("f2") for shape in ((70, 40), (50, 40)))
    wrong = replace(SYNC, warps=(3, 1))
    monkeypatch.setattr(scheduled, "chosen", lambda question, table: wrong)
    c = np.full((70, 50), np.nan, "f2")
    with pytest.raises(tw.ScheduleError):
        fresh(product)(a, b, c, target="reference")
    monkeypatch.setattr(scheduled, "first_legal", first_legal)
    launch = fresh(product)(a, b, c, target="reference")
    assert launch.schedule != wrong
    compare_gemm(a, b.T, c, Accumulation.of(launch.schedule.atom)).raise_if_wrong()
