"""Some random products at a grade of precision; `scripts/try_members.py` tries any number of them."""

from __future__ import annotations

import pytest

from .grade_problems import carried_out


@pytest.mark.parametrize(("target", "count"), [("reference", 8), ("cpu", 2)])
def test_random_products_at_grades(target: str, count: int) -> None:
    assert [wrong for number in range(count) if (wrong := carried_out(number, target))] == []
