"""The programs of examples/work run on each target, detect a wrong element, and draw the page's figures."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

import tilewright as tw

ROOT = Path(__file__).parents[2]
WORK = sorted((ROOT / "examples" / "work").glob("*.py"))
PAGE = (ROOT / "docs" / "work.md").read_text()
MOST_BYTES = 120_000

each_program = pytest.mark.parametrize("program", WORK, ids=lambda path: path.stem)

OPERATIONS = {
    "beamforming": "complex_matmul",
    "dft": "complex_matmul",
    "fp8_linear": "scaled_mm",
    "quantum_circuit": "complex_matmul",
    "skinny_gram": "matmul",
}
"""The operation that each program is about."""


def run(program: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr("sys.argv", [str(program), *words])
    runpy.run_path(str(program), run_name="__main__")


def test_the_page_shows_every_program_and_every_picture() -> None:
    names = {path.stem for path in WORK}
    assert names == set(OPERATIONS)
    assert set(re.findall(r"\]\(\.\./examples/work/(\w+)\.py\)", PAGE)) == names
    assert set(re.findall(r"\]\(pictures/(\w+)\.png\)", PAGE)) == names
    assert {path.stem for path in (ROOT / "docs" / "pictures").glob("*.png")} == names
    assert set(re.search(r"^for name in (.*); do$", PAGE, re.MULTILINE)[1].split()) == names  # type: ignore[index]


@pytest.mark.in_turns(2)
@each_program
def test_on_the_cpu_with_its_picture(program: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """The program runs as its reader runs it; its picture equals the stored one, except for fonts."""
    kept, made = ROOT / "docs" / "pictures" / f"{program.stem}.png", tmp_path / "made.png"
    command = [sys.executable, program, "--target", "cpu", "--picture", made]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith(f"{program.stem}<cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["made.png"]
    if pytestconfig.getoption("--update-golden"):
        shutil.copyfile(made, kept)
    assert kept.stat().st_size <= MOST_BYTES
    drawn, expected = imread(made), imread(kept)
    assert drawn.shape == expected.shape
    assert np.abs(drawn - expected).mean() < 0.02, "if this is what it should show: pytest --update-golden"


@each_program
def test_on_the_reference(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(program, monkeypatch, "--target", "reference", "--small")
    assert capsys.readouterr().out.startswith(f"{program.stem}<reference")


def spoiled(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Return the operation with one element off by a hundredth of the largest element."""

    def call(*given: Any, **how: Any) -> Any:
        result = operation(*given, **how)
        written = result[0] if isinstance(result, tuple) else result
        written[-1, ..., -1] += np.abs(written.astype(np.complex128)).max() / 100
        return result

    return call


@each_program
def test_one_wrong_element_is_seen(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = OPERATIONS[program.stem]
    monkeypatch.setattr(tw, name, spoiled(getattr(tw, name)))
    with pytest.raises(AssertionError, match=r"off by"):
        run(program, monkeypatch, "--target", "reference", "--small")


NO_PICTURES = [
    ("picture.gif", "no picture of format '.gif'; nearest: .png"),
    ("none/picture.png", "there is no directory"),
]


@pytest.mark.parametrize(("file", "reason"), NO_PICTURES)
def test_a_picture_that_cannot_be_written_is_refused_at_once(
    file: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        run(WORK[0], monkeypatch, "--picture", str(tmp_path / file))
    said = capsys.readouterr()
    assert reason in said.err
    assert not said.out
