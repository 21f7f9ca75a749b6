"""Benchmarks of split K and of all candidates: kernels compile, and timings become rows, tables, pictures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .test_benchmarks import HERE, run

pytestmark = pytest.mark.in_turns(3)


@pytest.mark.parametrize(
    ("script", "words", "count"), [("split_k.py", (), 3), ("dense.py", ("--rows", "grouped"), 4)]
)
def test_its_kernels_compile_without_a_gpu(script: str, words: Any, count: int, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    said = run(script, "--build", "--quick", "--processes", 1, "--json", kept, *words)
    assert f"{count} kernels built" in said
    for row in json.loads(kept.read_text())["builds"]:
        assert "failed" not in row, row
        assert row["spill_store_bytes"] == 0, row


def measured(tmp_path: Path, script: str, rows: str) -> tuple[list[dict[str, Any]], str]:
    """Return rows and page of a script; a schedule takes 2 us plus its place among all schedules."""
    program = f"""
import json, sys, time
from pathlib import Path
sys.path.insert(0, {str(HERE)!r})
import dense
from dense_problems import OURS
def measure(self, seconds, progress):
    names = [*self.problem.schedules, "cuBLAS"]
    took = {{name: 2.0 + at for at, name in enumerate(names)}}
    return {{
        "timings": {{n: {{"median_us": t, "low_us": t, "high_us": t}} for n, t in took.items()}},
        "schedules": {{n: repr(s) for n, s in self.problem.schedules.items()}},
        "speed": {{n: {{"cuBLAS": [took["cuBLAS"] / t] * 3}} for n, t in took.items()}},
        "wrong": {{}},
    }}
dense.DenseTask.measure = measure
import {script} as script
import isolated
made = [task for task in script.{"tasks_of" if script == "split_k" else "chosen"}(
    type("Asked", (), {{"rows": {rows!r}, "quick": True, "variants": None, "most": 1, "dtype": "f16"}})())]
record = isolated.Record(Path({str(tmp_path / "kept.json")!r}), {script!r})
for at, task in enumerate(made):
    record.add(at, task, task.measure(1.0, None))
import render
record.found["commit"] = ""
record.keep()
print(render.page([record.path]))
if {script!r} == "split_k":
    script.draw(script.kept_rows(record.path), record.path.with_suffix(".svg"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows_kept: list[dict[str, Any]] = json.loads((tmp_path / "kept.json").read_text())["rows"]
    return rows_kept, done.stdout


def test_a_sweep_says_how_good_the_choice_is(tmp_path: Path) -> None:
    (row,), page = measured(tmp_path, "split_k", "64x64x65536")
    assert (row["kib"], row["tile"], row["stages"], row["best"]) == (48, [64, 64, 64], 3, "1")
    assert row["us"] == {"1": 2.0, "13": 3.0, "auto": 4.0}
    assert row["parts"] == {"auto": 132}
    estimates = row["estimates"]
    assert estimates["1"] > estimates["13"] > 0
    assert set(estimates) == set(row["us"])
    assert "| 64x64x64 | 3 | 1 | 2.00 | 132 | 4.00 | 0.500 | – | 5.00 |" in page
    assert (tmp_path / "kept.svg").stat().st_size > 5000


def test_every_candidate_is_kept_with_its_rule_and_estimate(tmp_path: Path) -> None:
    rows, page = measured(tmp_path, "candidates", "few")
    families = {"bulk copies", "few rows", "split auto", "few rows, split auto"}
    assert {row["family"] for row in rows} >= families
    for row in rows:
        (one,) = row["candidates"]
        assert one["us"] == [2.0, 2.0, 2.0]
        assert one["schedule"].startswith("tw.Schedule(")
        assert min(one["estimate"], row["memory_us"]) > 0
        assert one["rule"]
        assert one["wrong"] is None
    assert "| bf16 nt 1×4096×4096 | few rows | 1 | 2.00 |" in page


def test_a_part_of_a_device_run_is_told_how_long_it_may_go_on(tmp_path: Path) -> None:
    program = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(HERE)!r})
from device_run import Part, run
scratch = Path({str(tmp_path)!r})
for limit, left in ((100, 60), (40, 60)):
    part = Part("some", (sys.executable, "-c", "import sys; print(sys.argv[1])", "{{seconds}}"), limit)
    print(run(part, scratch, time.monotonic() + left, "", scratch / "log.txt").last)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["45", "25"], done.stderr
