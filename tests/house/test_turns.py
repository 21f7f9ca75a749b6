"""Cases and mutants that take turns: each has its day, and no day is without any."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.turns import DAYS, Turns, waiting

DAY = 739_579


def case(name: str, days: int | None = None, needs_gpu: bool = False) -> Any:
    mark = None if days is None else SimpleNamespace(args=(days,))
    return SimpleNamespace(nodeid=name, needs_gpu=needs_gpu, get_closest_marker=lambda _: mark)


def of_day(items: list[Any], day: int) -> set[str]:
    others = waiting(items, day, lambda item: bool(item.needs_gpu))
    return {item.nodeid for item in items if id(item) not in others}


@pytest.mark.parametrize("count", [1, 2, 3, 7, 24])
@pytest.mark.parametrize("days", [1, 2, 3, 4])
def test_each_case_runs_on_one_of_so_many_days(count: int, days: int) -> None:
    items = [case(f"tests/t.py::test[{number}]", days) for number in range(count)]
    found = [of_day(items, DAY + day) for day in range(days)]
    assert set().union(*found) == {item.nodeid for item in items}
    assert all(found)
    assert max(map(len, found)) - min(map(len, found)) <= 1 or count < days


def test_others_run_every_day() -> None:
    free = [case(f"tests/t.py::free[{number}]") for number in range(5)]
    on_gpu = [case(f"tests/t.py::gpu[{number}]", 3, needs_gpu=True) for number in range(5)]
    assert of_day([*free, *on_gpu], DAY) == {item.nodeid for item in (*free, *on_gpu)}


def test_values_of_every_parameter_are_mixed() -> None:
    """Of 4 x 3 cases no day has those of one value alone, as every third in order would."""
    items = [case(f"tests/t.py::test[{a}-{b}]", 3) for a in "wxyz" for b in "123"]
    for day in range(3):
        assert len({name[-2] for name in of_day(items, DAY + day)}) > 1


@pytest.mark.parametrize("count", [0, 1, 2, DAYS, 100])
def test_each_mutant_has_its_day(count: int) -> None:
    names = [str(number) for number in range(count)]
    for family in ("one", "another"):
        found = [Turns(family, False, DAY + day).among(names) for day in range(DAYS)]
        assert set().union(*found) == {*names}
        assert all(found) or not names
    assert Turns("one", True, DAY).among(names) == {*names}
