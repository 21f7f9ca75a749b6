"""Some random complex products; `scripts/try_members.py` tries any number of them."""

from __future__ import annotations

import pytest

from .complex_problems import carried_out


@pytest.mark.parametrize(("target", "count"), [("reference", 8), ("cpu", 2)])
def test_random_complex_products(target: str, count: int) -> None:
    assert [wrong for number in range(count) if (wrong := carried_out(number, target))] == []
