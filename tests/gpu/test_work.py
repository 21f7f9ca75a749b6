"""The programs of examples/work on a GPU: each compares its result with an independent one."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

WORK = sorted((Path(__file__).parents[2] / "examples" / "work").glob("*.py"))


@pytest.mark.parametrize("small", [True, False], ids=["small", "whole"])
@pytest.mark.parametrize("program", WORK, ids=lambda path: path.stem)
def test_a_program(
    program: Path, small: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [str(program), "--target", "cuda", *(["--small"] if small else [])])
    runpy.run_path(str(program), run_name="__main__")
    assert capsys.readouterr().out.startswith(f"{program.stem}<cuda")
