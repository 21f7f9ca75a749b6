"""Some random products with scales; `scripts/try_members.py` tries any number of them."""

from __future__ import annotations

import pytest

from . import weights_problems
from .scaled_problems import carried_out


@pytest.mark.parametrize(("target", "count"), [("reference", 12), ("cpu", 4)])
def test_random_products_with_scales(target: str, count: int) -> None:
    assert [wrong for number in range(count) if (wrong := carried_out(number, target))] == []


@pytest.mark.parametrize(("target", "count"), [("reference", 12), ("cpu", 3)])
def test_random_weights_in_groups(target: str, count: int) -> None:
    wrong = (weights_problems.carried_out(number, target) for number in range(count))
    assert [found for found in wrong if found] == []
