"""Some random products with scales; `scripts/try_scaled.py` tries as many as one likes."""

from __future__ import annotations

import pytest

from .scaled_problems import carried_out


@pytest.mark.parametrize(("target", "count"), [("reference", 12), ("cpu", 4)])
def test_random_products_with_scales(target: str, count: int) -> None:
    assert [wrong for number in range(count) if (wrong := carried_out(number, target))] == []
