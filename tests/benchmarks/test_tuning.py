"""The benchmark of tuning: it makes a table that also serves an untuned shape, and reports both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .test_benchmarks import run

pytestmark = pytest.mark.in_turns(3)


def test_a_table_is_made_and_serves_a_shape_that_nobody_tuned(tmp_path: Path) -> None:
    kept, table = tmp_path / "tuning.json", tmp_path / "table.json"
    words = ("--target", "cpu", "--quick", "--most", 2, "--each", 0.1, "--processes", 1)
    output = run("tuning.py", *words, "--json", kept, "--table", table, "--plot", tmp_path / "p.svg")
    tuned, unseen = json.loads(kept.read_text())["rows"]
    (entry,) = json.loads(table.read_text())["entries"]
    assert entry["schedule"] == tuned["schedule"] == unseen["schedules"]["table"]
    assert (tuned["measured"], tuned["known"], tuned["wrong"]) == (2, 0, {})
    assert tuned["seconds"] > 0
    assert set(unseen["tflops"]) == {"rules", "table", "best", *unseen["libraries"]}
    assert all(unseen["checks"][name]["error_of_bound"] <= 1 for name in ("rules", "table", "best"))
    assert "geometric mean of 1" in output
    picture = (tmp_path / "p.svg").read_text()
    assert all(
        word in picture for word in ("44x52x64", "shapes that nobody tuned", "speed over the tuned best")
    )
    run("render.py", kept, "--out", tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "| f32 nt 40x50x60 on cpu |" in page
    assert "| f32 nt 44x52x64 on cpu |" in page
