"""The page of executed listings has the tests' lists and counts."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.amdgcn.mutants import RECORD, RINGS
from tests.amdgcn.test_by_hand import CASES
from tests.targets.hip.members import MEMBERS

from tilewright.amdgcn.decode import known_mnemonics

PAGE = (Path(__file__).parents[2] / "docs" / "amd_listing.md").read_text(encoding="utf-8")
LEAST = 40
"""Mnemonics that a second opinion was asked for, at least."""


def listed(heading: str) -> list[str]:
    """Return the names in the block after a heading."""
    found = re.search(rf"### {heading}\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1].split()


def test_what_was_worked_out_by_hand_is_what_tests_run() -> None:
    tested = sorted({re.sub(r"_(e32|e64)$", "", case.text.split()[0]) for case in CASES})
    assert listed("By hand") == tested, "\n".join(tested)
    assert len(tested) >= LEAST
    assert f"{len(tested)} mnemonics with their modifiers in the cases of" in " ".join(PAGE.split())


def test_what_the_pseudo_code_agrees_with_has_a_meaning_here() -> None:
    agreed, known = listed("Where the pseudo-code agrees"), {*known_mnemonics()}
    assert len({*agreed}) == len(agreed) >= LEAST
    assert {*agreed} <= known
    comparisons = re.search(r"and (\d+) comparisons", PAGE)
    assert comparisons
    of_these = [name for name in known if name.startswith(("v_cmp_", "s_cmp"))]
    assert int(comparisons[1]) <= len(of_these)
    assert f"{len(agreed) + int(comparisons[1])} mnemonics agree in every bit" in PAGE


def test_mutants_are_counted_as_they_are_recorded() -> None:
    record, words = json.loads(RECORD.read_text()), " ".join(PAGE.split())
    counts = {
        name: sum(sum(by.values()) for by in of.values()) for name, of in record.items() if type(of) is dict
    }
    small, ours = (
        [counts[f"{name} {arch}"] for arch in ("gfx1151", "gfx942")] for name in ("gemm.hip", "tw.matmul")
    )
    assert "all are found, {} on gfx1151 and {} on gfx942".format(*small) in words
    assert "all {} are found on gfx1151, and on gfx942 all {} but".format(*ours) in words
    turns, into_lds = (counts[f"{name} gfx942"] for name in RINGS)
    assert f"all {turns} of eight waves that take turns are found, and all {into_lds} of loads" in words


def test_every_operation_stands_in_the_table_of_what_is_executed() -> None:
    table = [line for line in PAGE.splitlines() if line.startswith("| `tw.")]
    named = {name for line in table for name in re.findall(r"`tw\.(\w+)`", line.split("|")[1])}
    assert named == {*MEMBERS} - {"convolution"}
