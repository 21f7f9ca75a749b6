"""Every example runs to its end, at the size it offers for this."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


LARGE = {"reference": "256x128x64", "cpu": "512x384x320"}


@pytest.mark.parametrize("target", LARGE)
def test_the_basic_gemm_on(target: str, tmp_path: Path) -> None:
    """The program itself asserts that this target ran, and names it in every line."""
    [example] = [path for path in EXAMPLES if path.name == "02_basic_gemm.py"]
    command = [sys.executable, example, "--small", "--target", target]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert [line.partition(">")[0].partition(" in tiles")[0] for line in lines if "correct" in line] == [
        f"basic_gemm<{target}, {case}"
        for case in (f"f16, {LARGE[target]}", "f32, 129x129x67", "f16, 129x129x67", "i8, 129x129x67")
    ]
    assert sum(line.startswith("Perf: ") for line in lines) == 4


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, example, "--small"], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.strip(), "an example shows something"
