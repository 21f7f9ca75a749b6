"""Imports go one way; they are at the top of a file, or in the rows of a table of targets' parts."""

from __future__ import annotations

import ast
import re
import subprocess
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "tilewright").rglob("*.py"))
OPTIONAL = {"cuda", "cupy", "jax", "matplotlib", "rich", "torch", "ziglang"}
ENTRIES = {"__main__.py"}
ROOMS = {path.stem for path in (ROOT / "src" / "tilewright").iterdir()}


def rows(tree: ast.AST) -> set[str]:
    """Return the functions that are rows of a table `TargetParts`, and only import and return."""
    named = {
        value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "TargetParts"
        for table in node.args
        if isinstance(table, ast.Dict)
        for value in table.values
        if isinstance(value, ast.Name)
    }
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.name in named
        and [type(one) for one in node.body] == [ast.ImportFrom, ast.Return]
    }


def late_imports(tree: ast.AST) -> Iterator[str]:
    """Return imports inside functions, except optional third-party packages and rows of `TargetParts`."""
    exempt = rows(tree)
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(function, ast.FunctionDef) and function.name in exempt:
            continue
        for node in ast.walk(function):
            match node:
                case ast.Import(names=names):
                    modules = [alias.name for alias in names]
                case ast.ImportFrom(module=module, level=level):
                    modules = ["." * level + (module or "")]
                case _:
                    continue
            yield from (f"{node.lineno}: {name}" for name in modules if name.split(".")[0] not in OPTIONAL)


def root_imports(tree: ast.AST) -> Iterator[str]:
    """Return imports from the package itself, which imports every room and so hides the direction."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names) if any(alias.name == "tilewright" for alias in names):
                yield f"{node.lineno}: import tilewright"
            case ast.ImportFrom(module="tilewright", level=0, names=names):
                shown = [alias.name for alias in names if alias.name not in ROOMS]
                yield from (f"{node.lineno}: from tilewright import {name}" for name in shown)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(path): path for path in SOURCES}


def imported_files(path: Path) -> set[str]:
    """Return the files of the package that a file imports, including imports for type checkers."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & FILES.keys()) or ({node.module} & FILES.keys())
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & FILES.keys()
    return found - {module_of(path)}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of files that import themselves through others."""
    above: dict[str, set[str]] = {name: set() for name in graph}
    for name in graph:
        left = list(graph[name])
        while left:
            if (other := left.pop()) not in above[name]:
                above[name].add(other)
                left += graph[other]
    groups = {tuple(sorted(o for o in above[n] if n in above[o])) for n in graph if n in above[n]}
    return sorted(map(list, groups))


def test_rooms_import_one_way() -> None:
    command = Path(sysconfig.get_path("scripts")) / "lint-imports"
    result = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 kept, 0 broken" in result.stdout


def test_no_files_import_each_other() -> None:
    """This includes files of one room, and imports only for annotations."""
    graph = {name: imported_files(path) for name, path in FILES.items()}
    assert len(graph) > 250
    assert graph["tilewright.ir.ops"] >= {"tilewright.ir.op", "tilewright.ir.copies"}
    assert circles(graph) == []


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_imports_stand_at_the_top() -> None:
    found = [f"{path}:{late}" for path in SOURCES for late in late_imports(ast.parse(path.read_text()))]
    assert SOURCES
    assert not found, "\n".join(found)


def test_no_room_imports_the_front_door() -> None:
    rooms = [path for path in SOURCES if path.name not in ENTRIES]
    found = [f"{path}:{line}" for path in rooms for line in root_imports(ast.parse(path.read_text()))]
    assert rooms
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line", ["import json", "from ..ir import ops", "from . import ops", "import tilewright.ir"]
)
def test_a_late_import_is_found(line: str) -> None:
    assert list(late_imports(ast.parse(f"def f():\n    {line}")))


@pytest.mark.parametrize("line", ["import torch", "from cuda.bindings import nvrtc"])
def test_an_optional_package_may_come_late(line: str) -> None:
    assert not list(late_imports(ast.parse(f"def f():\n    {line}")))


def test_a_row_of_a_table_may_import_and_do_nothing_else() -> None:
    table = "BACKENDS = TargetParts({CPU: _cpu})"
    row = "def _cpu():\n    from a import b\n    return b\n"
    assert not list(late_imports(ast.parse(row + table)))
    assert list(late_imports(ast.parse(row)))
    assert list(late_imports(ast.parse(row.replace("return", "print(b)\n    return") + table)))


PLACE = re.compile(r"^tilewright(\.\w+)+(:[\w.]+)?$")
LATE = {"namespaces.py"}
"""The file that names every public namespace, for messages about a name that one of them lacks."""


TEXTS = ("tilewright.h", "tilewright.cpp")
"""Files for C++, whose names look like modules."""


def modules_in_strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Return the strings of a program that name a module of the package, or a name in one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and PLACE.match(node.value):
            yield node.lineno, node.value


def test_no_string_names_a_module_of_a_higher_room() -> None:
    """A linter cannot see an import by a string: the module must be in a lower room or the same one."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["id"] == "rooms")
    height = {room.strip(" ()"): -at for at, layer in enumerate(layers) for room in layer.split("|")}
    found, seen = [], 0
    for path in SOURCES:
        inside = path.relative_to(ROOT / "src" / "tilewright")
        if inside.as_posix() in LATE:
            continue
        own = height.get(inside.parts[0].removesuffix(".py"), 1)  # the package's own files know every room
        for line, place in modules_in_strings(ast.parse(path.read_text())):
            seen += 1
            if place in TEXTS:
                continue
            if height[re.split("[.:]", place)[1]] > own:
                found.append(f"{inside}:{line}: {place}")
    assert seen
    assert not found, "\n".join(found)


@pytest.mark.parametrize("line", ["import tilewright as tw", "from tilewright import Layout"])
def test_a_front_door_import_is_found(line: str) -> None:
    assert list(root_imports(ast.parse(line)))


def test_a_room_may_be_imported_by_name() -> None:
    assert not list(root_imports(ast.parse("from tilewright import dtypes, errors")))
