"""Some random problems of attention and of chains; `scripts/try_scaled.py` tries as many as one likes."""

from __future__ import annotations

import pytest

from .attention_problems import carried_out


@pytest.mark.parametrize(("target", "count"), [("reference", 3), ("cpu", 3)])
def test_random_problems(target: str, count: int) -> None:
    found = {number: carried_out(number, target) for number in range(count)}
    assert set(found.values()) == {""}, found
