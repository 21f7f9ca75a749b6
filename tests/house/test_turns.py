"""Cases and mutants that take turns: each has its day, and no day is without any."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.turns import DAYS, Turns, turn_of, waiting

TESTS = Path(__file__).parents[1]
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


def test_functions_without_parameters_take_turns_with_others_of_their_file() -> None:
    items = [case(f"tests/{name}.py::test_{number}", 3) for name in "ab" for number in range(4)]
    found = [of_day(items, DAY + day) for day in range(3)]
    assert sorted(name for names in found for name in names) == sorted(item.nodeid for item in items)
    assert all({name[:8] for name in names} == {"tests/a.", "tests/b."} for names in found)


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


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("days", [1, 2, 3, 4])
@pytest.mark.parametrize("parts", [2, 3, 6, 12])
def test_each_part_of_a_case_has_its_turn(count: int, days: int, parts: int) -> None:
    """Days on which a case runs have one remainder; what it tries a part of must not go by that."""
    items = [case(f"tests/t.py::test[{number}]", days) for number in range(count)]
    tried: dict[str, set[str]] = {item.nodeid: set() for item in items}
    for day in range(DAY, DAY + days * parts):
        for item in items:
            if item.nodeid in of_day(items, day):
                tried[item.nodeid] |= Turns("one", False, turn_of(item, day)).among("abcdefghijklmn", parts)
    assert all(found == {*"abcdefghijklmn"} for found in tried.values())


def test_nothing_goes_by_the_day_that_runs_on_some_days() -> None:
    """A test in turns that asks for a part of something takes the fixture `turns`, which counts its turns."""
    twice, clocks = [], []
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "date.today()" in text and path.name not in ("turns.py", Path(__file__).name):
            clocks.append(path.name)
        marked = "pytestmark = pytest.mark.in_turns" in text
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and "fuzz_seed" in {one.arg for one in node.args.args}:
                marks = [ast.unparse(one) for one in node.decorator_list]
                if marked or any(mark.startswith("pytest.mark.in_turns") for mark in marks):
                    twice.append(node.name)
    assert twice == []
    assert clocks == []


@pytest.mark.parametrize(
    ("words", "every"),
    [
        *(([], False), (["tests/ops"], False), (["--fuzz-seed=1"], False), (["--every-case"], True)),
        *((["tests/ops/test_matmul.py::test_one"], True), (["-k", "one"], True)),
        *((["--lf"], True), (["--ff"], True), (["--update-golden"], True)),
    ],
    ids=str,
)
def test_what_is_asked_for_by_name_or_has_failed_runs_on_any_day(
    words: list[str], every: bool, request: pytest.FixtureRequest
) -> None:
    root = request.config.pluginmanager.get_plugin(str(TESTS.parent / "conftest.py"))
    assert root is not None
    given = request.config._parser.parse_known_args(words)
    files = getattr(given, "file_or_dir", [])
    config = SimpleNamespace(args=files, getoption=lambda name, default=None: option(given, name, default))
    assert root._runs_every_case(config) is every


def option(given: Any, name: str, default: Any) -> Any:
    """As `pytest.Config.getoption` reads it."""
    return getattr(given, name.removeprefix("--").replace("-", "_"), default)
