"""A listing that is wrong in one instruction is found out; `mutants.py` tries all of them."""

from __future__ import annotations

import pytest
from tests.amdgcn.compiled import ARCHS, listing_text
from tests.amdgcn.mutants import mutants, verdict

EACH = {
    "dropped barrier": ("LdsRaceError",),
    "dropped wait": ("MissingWaitError", "LdsRaceError"),
    "weaker wait": ("MissingWaitError", "LdsRaceError"),
    "shifted offset": ("LdsRaceError", "OutOfBoundsError", "UninitialisedError", "wrong numbers"),
    "swapped fragments": ("wrong numbers",),
    "wrong mask": ("OutOfBoundsError", "StoredTwiceError"),
}


def test_the_listing_itself_is_right() -> None:
    assert [verdict(listing_text("gemm", arch)) for arch in ARCHS] == ["", ""]


@pytest.mark.parametrize("kind", EACH)
@pytest.mark.parametrize("arch", ARCHS)
def test_mutants_are_found(arch: str, kind: str) -> None:
    made = [mutant for mutant in mutants(listing_text("gemm", arch)) if mutant.kind == kind]
    assert len(made) >= 2
    picked = made[1 :: max(len(made) // 2, 1)]
    verdicts = {f"line {mutant.line}: {mutant.instruction}": verdict(mutant.text) for mutant in picked}
    assert set(verdicts.values()) <= set(EACH[kind]), verdicts
