"""Every step of the tutorial runs on any machine, and imports only public names."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

import pytest
from tests.programs import run_here

import tilewright as tw

pytestmark = pytest.mark.in_turns(3)

PLACE = Path(__file__).parents[2] / "docs" / "tutorial"
STEPS = sorted(PLACE.glob("*.py"))


@pytest.mark.parametrize("step", STEPS, ids=lambda path: path.stem)
def test_step_runs(step: Path, tmp_path: Path) -> None:
    result = run_here(step, "--small", cwd=tmp_path)
    assert result.status == 0, result.stdout + result.stderr
    assert result.stdout.strip()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", STEPS, ids=lambda path: path.stem)
def test_a_step_says_what_is_measured(step: Path) -> None:
    names = runpy.run_path(str(step))
    assert isinstance(names["MEASURED"], tw.Bound)
    assert names["__doc__"].startswith(f"Step {step.stem[4]} of {len(STEPS)}: ")
    assert f"docs/tutorial/{step.name} [--small]" in names["__doc__"]


@pytest.mark.parametrize("step", STEPS, ids=lambda path: path.stem)
def test_a_step_imports_what_its_reader_can(step: Path) -> None:
    tree = ast.parse(step.read_text())
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name for name in imported if name not in sys.stdlib_module_names} <= {"tilewright", "numpy"}


def test_the_page_lists_every_step() -> None:
    text = (PLACE / "README.md").read_text()
    assert [path.name for path in STEPS] == [
        path.name for path in sorted(PLACE.glob("step*.py")) if f"]({path.name})" in text
    ]
