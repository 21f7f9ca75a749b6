"""Legality by formula is that of the expanded kernel, and so are its threads and its shared memory."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import tilewright as tw
from tilewright.schedule.form import form_of
from tilewright.schedule.legality import check, reasons

from .drawing import compared
from .forms import AMPERE, BULK, FORMS, HOPPER, SYNC, WGMMA, flow_of, specs

CHUNKS, EACH = 4, 30


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_formulas_say_what_expanded_kernels_say(chunk: int) -> None:
    found = [compared(random.Random(seed)) for seed in range(chunk * EACH, (chunk + 1) * EACH)]
    assert not [one.difference for one in found if one.difference]
    assert sum(one.verdict == "legal" for one in found) >= EACH // 5
    assert sum(one.verdict == "broken" for one in found) >= EACH // 10


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_legal_on_hopper(form: str) -> None:
    given = specs()
    assert reasons(FORMS[form], form_of(flow_of(given)), given, HOPPER) == []


@pytest.mark.parametrize(
    ("schedule", "field"),
    [
        (replace(BULK, stages=1), "stages"),
        (replace(BULK, roles="none"), "roles"),
        (replace(SYNC, groups=2), "groups"),
        (replace(SYNC, roles="cooperative"), "roles"),
        (replace(SYNC, stages=2), "stages"),
        (replace(BULK, roles="ping-pong", groups=1), "groups"),
        (replace(BULK, group_n=2), "group_n"),
        (replace(SYNC, cluster=(2, 1)), "cluster"),
        (replace(BULK, cluster=(1, 3)), "cluster"),
        (replace(SYNC, epilogue="overlapped"), "epilogue"),
        (replace(BULK, roles="ping-pong", blocks=0), "blocks"),
        (replace(WGMMA, atom=tw.atoms.wgmma("f16", 256), tile=(128, 256, 64)), "tile"),
        (replace(SYNC, atom=tw.atoms.MMA_F16_F16), "atom"),
    ],
)
def test_what_a_kernel_would_get_silently_wrong_is_refused(schedule: tw.Schedule, field: str) -> None:
    given = specs()
    found = reasons(schedule, form_of(flow_of(given)), given, HOPPER)
    assert field in {violation.rule for violation in found}


def test_a_refused_schedule_raises_with_every_reason() -> None:
    given = specs()
    with pytest.raises(tw.ScheduleError) as refused:
        check(replace(BULK, stages=1, cluster=(2, 1)), form_of(flow_of(given)), given, AMPERE)
    assert isinstance(refused.value, tw.LegalityError)
    assert {violation.rule for violation in refused.value.violations} >= {
        "stages",
        "cluster",
        "atom",
        "staging",
    }
