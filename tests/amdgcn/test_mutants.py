"""A listing with one wrong instruction is detected; `mutants.py` tries all of them."""

from __future__ import annotations

import json

import pytest
from tests.amdgcn.mutants import IDLE, RECORD, SUBJECTS, made_of, mutants, subject
from tests.turns import Turns

EACH = {
    "dropped barrier": ("LdsRaceError", "MissedBarrierError"),
    "dropped wait": ("MissingWaitError", "LdsRaceError"),
    "weaker wait": ("MissingWaitError", "LdsRaceError"),
    "shifted offset": ("LdsRaceError", "OutOfBoundsError", "UninitialisedError", "wrong numbers"),
    "swapped fragments": ("wrong numbers",),
    "wrong mask": ("OutOfBoundsError", "StoredTwiceError", "UninitialisedError", "wrong numbers"),
}


@pytest.mark.in_turns(3)
@pytest.mark.parametrize(("name", "arch"), SUBJECTS)
def test_the_listing_itself_is_right(name: str, arch: str) -> None:
    one = subject(name, arch)
    assert one.verdict(one.text) == ""


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("kind", EACH)
@pytest.mark.parametrize(("name", "arch"), SUBJECTS)
def test_mutants_are_found(name: str, arch: str, kind: str, turns: Turns) -> None:
    """One mutant of each kind in each listing is tried."""
    one = subject(name, arch)
    made = [mutant for mutant in mutants(one.text) if mutant.kind == kind]
    assert len(made) >= 2
    mutant = made[turns.draw % len(made)]
    by = one.verdict(mutant.text)
    idle = not by and "wait" in kind and mutant.line in one.idle_waits()
    assert idle or by in EACH[kind], f"line {mutant.line}: {mutant.instruction}"


def test_all_of_them_were_found() -> None:
    """The record of the last run of all mutants shows it."""
    record = json.loads(RECORD.read_text())
    for name, arch in SUBJECTS:
        found = record[f"{name} {arch}"]
        assert {*found} == {*EACH}
        for kind, by in found.items():
            known = {*EACH[kind], IDLE} if "wait" in kind else {*EACH[kind]}
            assert {*by} <= known, f"{name} {arch}: {kind}"
            assert {*by} != {IDLE}


def test_the_record_is_of_what_is_compiled_now() -> None:
    """If the compiler's listing changes, all must be tried again: ``python -m tests.amdgcn.mutants``."""
    record = json.loads(RECORD.read_text())
    for name, arch in SUBJECTS:
        now, then = made_of(subject(name, arch)), record[f"{name} {arch}, listing"]
        assert now == then or now.partition(" by ")[2] != then.partition(" by ")[2], f"{name} {arch}"
