"""Some random problems of loops that carry a state; `scripts/try_members.py` tries any number of them."""

from __future__ import annotations

import pytest

from .fold_problems import backward, going_on, lists, lists_in_parts, loops, places, recurrences, rows, slices


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_random_loops_in_parts(target: str) -> None:
    found = {number: loops(number, target) for number in range(6)}
    assert set(found.values()) == {""}, found


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_random_lists_of_the_largest(target: str) -> None:
    found = {number: lists(number, target) for number in range(2)}
    assert set(found.values()) == {""}, found


def test_random_lists_in_parts_and_recurrences() -> None:
    found = {number: lists_in_parts(number, "cpu") for number in (1,)}
    found |= {
        (number, target): recurrences(number, target) for target in ("reference", "cpu") for number in (0, 5)
    }
    assert set(found.values()) == {""}, found


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_random_recurrences_that_go_on(target: str) -> None:
    found = {number: going_on(number, target) for number in range(4)}
    assert set(found.values()) == {""}, found


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_random_places_of_extremes(target: str) -> None:
    found = {number: places(number, target) for number in range(6)}
    assert set(found.values()) == {""}, found


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_random_slices_with_a_step(target: str) -> None:
    found = {number: slices(number, target) for number in range(4)}
    assert set(found.values()) == {""}, found


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_random_whole_rows(target: str) -> None:
    found = {number: rows(number, target) for number in range(4)}
    assert set(found.values()) == {""}, found


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_random_gradients_of_attention(target: str) -> None:
    assert backward(1, target) == ""
