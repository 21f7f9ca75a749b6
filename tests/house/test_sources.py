"""Rules for every file of the project: environment variables, paths, imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilewright as tw

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "tilewright").rglob("*.py"))
ENVIRONMENT = ROOT / "src" / "tilewright" / "runtime" / "environment.py"

# Written so that this file does not match itself.
FOREIGN = re.compile(
    r"(?<![\w.])/(?:work|tmp|home/\w+|root)/"  # a path of one machine
    r"|\bpypi[.]org|\bpythonhosted[.]org|\bnpmjs[.]org|\bdebian[.]org"  # a registry
)
OUTSIDE_ACCESS = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
HEAVY = {"cuda", "filelock", "jax", "matplotlib", "platformdirs", "rich", "torch", "typer"}


def environment_accesses(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if name in OUTSIDE_ACCESS:
                yield f"{node.lineno}: {name}"
            case ast.ImportFrom(module="os", names=names):
                yield from (f"{node.lineno}: {a.name}" for a in names if a.name in OUTSIDE_ACCESS)


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    paths = [ROOT / name for name in listing.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_one_file_reads_the_environment() -> None:
    trees = {path: ast.parse(path.read_text()) for path in SOURCES if path != ENVIRONMENT}
    found = [
        f"{path.relative_to(ROOT)}:{use}"
        for path, tree in trees.items()
        for use in environment_accesses(tree)
    ]
    assert trees
    assert not found, f"read it in {ENVIRONMENT.relative_to(ROOT)}:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "line", ["import os; os.environ['A']", "import os; os.getenv('A')", "from os import environ as e"]
)
def test_an_environment_access_is_found(line: str) -> None:
    assert list(environment_accesses(ast.parse(line)))


def test_targets_read_no_text_back() -> None:
    """Generated text is printed from a tree of statements: no target looks for something in what it wrote."""
    files = sorted((ROOT / "src" / "tilewright" / "targets").rglob("*.py"))
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        and "re" in (getattr(node, "module", None), *(alias.name for alias in node.names))
    ]
    assert len(files) > 50
    assert not found, "\n".join(found)


def test_files_name_no_machine_and_no_registry() -> None:
    files = tracked_files()
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for path in files
        for number, line in enumerate(path.read_bytes().decode("utf-8", "replace").splitlines(), 1)
        if (match := FOREIGN.search(line))
    ]
    assert files
    assert not found, "\n".join(found)


@pytest.mark.parametrize("parts", [("", "work", "main"), ("", "tmp", "x"), ("", "root", "x")])
def test_a_machine_path_is_found(parts: tuple[str, ...]) -> None:
    assert FOREIGN.search(f'open("{"/".join(parts)}")')


def loaded_by(statement: str) -> set[str]:
    """The modules that a statement loads in a new process, beyond those of NumPy."""
    program = f"import sys, numpy; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_import_is_light() -> None:
    loaded = loaded_by("import tilewright")
    assert "tilewright" in loaded
    assert len(loaded) <= 20, sorted(loaded)


def test_a_kernel_loads_no_target_before_it_is_compiled_for_it() -> None:
    loaded = loaded_by("import tilewright as tw; tw.kernel, tw.matmul, tw.Layout((2, 2))")
    assert "tilewright.runtime.kernel" in loaded
    assert not {name.partition(".")[0] for name in loaded} & HEAVY
    targets = ("reference", "simt", "cpu", "cuda", "hip")
    heavy = [name for name in loaded if name.startswith(tuple(f"tilewright.targets.{at}" for at in targets))]
    assert not heavy
    assert len(loaded) <= 283, sorted(loaded)  # six of them are `logging` with what it needs


def test_a_target_is_loaded_when_it_is_asked_for() -> None:
    loaded = loaded_by("from tilewright.runtime.backends import backend_named as b; b('reference')")
    assert "tilewright.targets.reference" in loaded
    assert "tilewright.targets.cuda" not in loaded


def test_no_name_of_authors_is_that_of_a_room_but_for_the_namespaces() -> None:
    rooms = {path.stem for path in (ROOT / "src" / "tilewright").iterdir()}
    assert rooms & set(tw.__all__) == {"ck", "hopper", "ir", "layouts", "testing"}


@pytest.mark.parametrize("name", ["coppy", "copyy", "__wrapped__", "drawn", "larger"])
def test_a_name_that_is_not_there_is_no_attribute(name: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
        getattr(tw, name)
