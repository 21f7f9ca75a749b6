"""Some random products over ranks; `scripts/try_members.py` tries any number of them."""

from __future__ import annotations

from .rank_problems import ranks


def test_random_products_over_ranks() -> None:
    found = {number: ranks(number, "reference") for number in range(4)}
    assert set(found.values()) == {""}, found
