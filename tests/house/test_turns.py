"""Drawn cases and mutants: each is in some draw, no draw is empty, and the commit decides."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.turns import SHARE, Turns, commit_number, draw_of, left_out

TESTS = Path(__file__).parents[1]
SEED = 739_579


def case(name: str, parts: int | None = None, needs_gpu: bool = False) -> Any:
    mark = None if parts is None else SimpleNamespace(args=(parts,))
    return SimpleNamespace(nodeid=name, needs_gpu=needs_gpu, get_closest_marker=lambda _: mark)


def drawn(items: list[Any], seed: int) -> set[str]:
    others = left_out(items, seed, lambda item: bool(item.needs_gpu))
    return {item.nodeid for item in items if id(item) not in others}


@pytest.mark.parametrize("count", [1, 2, 3, 7, 24])
@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_each_case_is_in_one_of_consecutive_draws(count: int, parts: int) -> None:
    items = [case(f"tests/t.py::test[{number}]", parts) for number in range(count)]
    found = [drawn(items, SEED + number) for number in range(parts)]
    assert set().union(*found) == {item.nodeid for item in items}
    assert all(found)
    assert max(map(len, found)) - min(map(len, found)) <= 1 or count < parts


def test_tests_without_the_marker_always_run() -> None:
    free = [case(f"tests/t.py::free[{number}]") for number in range(5)]
    on_gpu = [case(f"tests/t.py::gpu[{number}]", 3, needs_gpu=True) for number in range(5)]
    assert drawn([*free, *on_gpu], SEED) == {item.nodeid for item in (*free, *on_gpu)}


def test_functions_without_parameters_are_drawn_with_others_of_their_file() -> None:
    items = [case(f"tests/{name}.py::test_{number}", 3) for name in "ab" for number in range(4)]
    found = [drawn(items, SEED + number) for number in range(3)]
    assert sorted(name for names in found for name in names) == sorted(item.nodeid for item in items)
    assert all({name[:8] for name in names} == {"tests/a.", "tests/b."} for names in found)


def test_values_of_every_parameter_are_mixed() -> None:
    """Every third of 4 x 3 cases in order would have only one value of a parameter; no draw is like that."""
    items = [case(f"tests/t.py::test[{a}-{b}]", 3) for a in "wxyz" for b in "123"]
    for number in range(3):
        assert len({name[-2] for name in drawn(items, SEED + number)}) > 1


@pytest.mark.parametrize("count", [0, 1, 2, SHARE, 100])
def test_each_mutant_is_in_one_of_consecutive_draws(count: int) -> None:
    names = [str(number) for number in range(count)]
    for family in ("one", "another"):
        found = [Turns(family, False, SEED + number).among(names) for number in range(SHARE)]
        assert set().union(*found) == {*names}
        assert all(found) or not names
    assert Turns("one", True, SEED).among(names) == {*names}


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("share", [1, 2, 3, 4])
@pytest.mark.parametrize("parts", [2, 3, 6, 12])
def test_each_part_of_a_drawn_case_is_drawn(count: int, share: int, parts: int) -> None:
    """Seeds that draw a case share a remainder, so the case's part must not depend on it."""
    items = [case(f"tests/t.py::test[{number}]", share) for number in range(count)]
    tried: dict[str, set[str]] = {item.nodeid: set() for item in items}
    for seed in range(SEED, SEED + share * parts):
        for item in items:
            if item.nodeid in drawn(items, seed):
                tried[item.nodeid] |= Turns("one", False, draw_of(item, seed)).among("abcdefghijklmn", parts)
    assert all(found == {*"abcdefghijklmn"} for found in tried.values())


def test_the_number_comes_from_the_commit(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    assert commit_number(tmp_path) == 0, "no repository"
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    hash_ = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    assert commit_number(tmp_path) == int(hash_[:7], 16)


@pytest.mark.parametrize(("minutes", "late"), [("60", 0), ("0", 12)])
def test_late_cases_that_are_not_drawn_are_left_out_and_counted(
    minutes: str, late: int, tmp_path: Path
) -> None:
    """Of 18 cases, which share a fixture, a third is drawn; two processes run them."""
    (tmp_path / "test_cases.py").write_text(CASES_IN_TURNS)
    options = ["--every-case", "--fuzz-seed=27", f"--minutes={minutes}", "-n", "2", "-p", "no:cacheprovider"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        TESTS.parent / "pyproject.toml",
        f"--rootdir={TESTS.parent}",
    ]
    command += ["-p", "conftest", *options, tmp_path / "test_cases.py"]
    said = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False).stdout
    assert re.search(rf"=+ {18 - late} passed in", said), said
    assert (f"{late} cases that the seed does not draw did not begin within {minutes} minutes" in said) == (
        late > 0
    )


CASES_IN_TURNS = """
import pytest

@pytest.fixture(scope="module")
def ended():
    events = []
    yield events
    assert events

@pytest.mark.in_turns(3)
@pytest.mark.parametrize("number", range(18))
def test_case(number, ended):
    ended.append(number)
"""


def test_no_test_draws_by_the_date_or_twice_by_the_seed() -> None:
    """A test in turns that tries a part of something uses the fixture `turns`, not the seed."""
    twice, clocks = [], []
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "date.today()" in text and path.name != Path(__file__).name:
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
def test_what_is_asked_for_by_name_or_has_failed_always_runs(
    words: list[str], every: bool, request: pytest.FixtureRequest
) -> None:
    root = request.config.pluginmanager.get_plugin(str(TESTS.parent / "conftest.py"))
    assert root is not None
    given = request.config._parser.parse_known_args(words)
    files = getattr(given, "file_or_dir", [])
    config = SimpleNamespace(args=files, getoption=lambda name, default=None: option(given, name, default))
    assert root._runs_every_case(config) is every


def option(given: Any, name: str, default: Any) -> Any:
    """Like `pytest.Config.getoption`."""
    return getattr(given, name.removeprefix("--").replace("-", "_"), default)
