"""Some random contractions and reductions; `scripts/try_members.py` tries as many as one likes."""

from __future__ import annotations

import pytest

from . import einsum_problems, reduced_problems


@pytest.mark.parametrize(("target", "count"), [("reference", 12), ("cpu", 3)])
def test_random_contractions(target: str, count: int) -> None:
    assert [wrong for number in range(count) if (wrong := einsum_problems.carried_out(number, target))] == []


@pytest.mark.parametrize(("target", "count"), [("reference", 8), ("cpu", 3)])
def test_random_reductions_of_products(target: str, count: int) -> None:
    found = (reduced_problems.carried_out(number, target) for number in range(count))
    assert [wrong for wrong in found if wrong] == []
