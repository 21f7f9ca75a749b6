"""Some random problems of attention and of chains; `scripts/try_members.py` tries any number of them."""

from __future__ import annotations

import pytest

from .attention_problems import attention, caches, chain


@pytest.mark.parametrize(("target", "count"), [("reference", 2), ("cpu", 2)])
def test_random_problems(target: str, count: int) -> None:
    found = {number: attention(number, target) for number in range(count)}
    assert set(found.values()) == {""}, found


def test_random_caches() -> None:
    found = {number: caches(number, "reference") for number in range(4)}
    assert set(found.values()) == {""}, found


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_random_chain(target: str) -> None:
    assert chain(2, target) == ""
