"""Random contractions and reductions, a third in each commit; `scripts/try_members.py` tries any number."""

from __future__ import annotations

import pytest
from tests.turns import Turns

from . import einsum_problems, gated_problems, reduced_problems


@pytest.mark.parametrize(("target", "count"), [("reference", 12), ("cpu", 3)])
def test_random_contractions(target: str, count: int, turns: Turns) -> None:
    found = [einsum_problems.carried_out(number, target) for number in turns.among(range(count), parts=3)]
    assert [wrong for wrong in found if wrong] == []


@pytest.mark.parametrize(("target", "count"), [("reference", 8), ("cpu", 3)])
def test_random_reductions_of_products(target: str, count: int, turns: Turns) -> None:
    found = [reduced_problems.carried_out(number, target) for number in turns.among(range(count), parts=3)]
    assert [wrong for wrong in found if wrong] == []


@pytest.mark.parametrize(("target", "count"), [("reference", 12), ("cpu", 6)])
def test_random_gated_products(target: str, count: int, turns: Turns) -> None:
    found = [gated_problems.carried_out(number, target) for number in turns.among(range(count), parts=3)]
    assert [wrong for wrong in found if wrong] == []
