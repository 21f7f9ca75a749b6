"""Figures in pages are those of the recorded results."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEASURED = runpy.run_path(str(ROOT / "scripts" / "measured.py"))
STEPS = sorted((ROOT / "docs" / "tutorial").glob("step*.py"))


def test_pages_quote_what_was_measured() -> None:
    for path, text in MEASURED["pages"]():
        assert path.read_text() == text, f"{path.name}: run python scripts/measured.py"


def test_every_kept_result_is_on_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    subprocess.run([sys.executable, "benchmarks/render.py", "--out", str(page)], cwd=ROOT, check=True)
    assert page.read_text() == (ROOT / "benchmarks" / "RESULTS.md").read_text(), (
        "run python benchmarks/render.py"
    )


def test_the_readme_has_a_table_to_fill() -> None:
    beside = {"cuBLAS out-of-place": [1.5, 1.4, 1.6], "cuBLAS": [1.2345, 1.2, 1.3], "again": [0.9, 0.9, 0.9]}
    row = {"problem": "bf16 nt 8192³", "speed": {"tilewright": beside}}
    other = {"problem": "f32 nt 2048³", "speed": {"tilewright": {"cuBLAS": [0.5, 0.5, 0.5]}}}
    failed = {"problem": "bf16 nt 4096³", "failed": "cut off"}
    made = MEASURED["with_table"]((ROOT / "README.md").read_text(), [row, other, failed])
    assert "| ---: |\n| 8192³ | 1.23 |\n<!-- end -->" in made


@pytest.mark.parametrize("step", STEPS, ids=lambda path: path.stem)
def test_a_step_has_a_line_to_fill(step: Path) -> None:
    rows = [{"shape": [n, n, n], "speed": [share, share, share]} for n, share in ((4096, 0.987), (8192, 1.5))]
    made = MEASURED["with_share"](step.read_text(), rows)
    head = made.partition('\n"""\n')[0]
    assert "\n\nShare of cuBLAS on an H200 (bf16): 0.99 at 4096³, 1.50 at 8192³.\n\n" in head
