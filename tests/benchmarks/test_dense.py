"""The dense benchmark: its kernels compile, its rows render, and a failing task costs only itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .test_benchmarks import HERE, run

pytestmark = pytest.mark.in_turns(3)


def test_one_kernel_of_each_group_compiles_without_a_gpu(tmp_path: Path) -> None:
    kept = tmp_path / "dense.json"
    assert "kernels built" in run("dense.py", "--build", "--quick", "--processes", 2, "--json", kept)
    built = json.loads(kept.read_text())["builds"]
    assert {row["group"] for row in built} >= {"half", "layouts", "fp8", "tf32", "int8", "gelu", "residual"}
    for row in built:
        assert "failed" not in row, row
        assert row["spill_store_bytes"] == 0, row
        assert row["schedule"].startswith("tw.Schedule("), row


def test_schedules_of_a_file_compile_or_are_refused(tmp_path: Path) -> None:
    wide = 'tw.Schedule(tw.atoms.wgmma("bf16", 128), (128, 128, 64), stages=4, staging="tma", groups=2'
    lines = [f'two groups: {wide}, roles="cooperative", blocks=132)', f'{wide}, roles="none")']
    (tmp_path / "some.txt").write_text("\n".join(lines))
    kept = tmp_path / "schedules.json"
    run("schedules.py", tmp_path / "some.txt", "--build", "--json", kept, status=1)
    chosen, named, numbered = json.loads(kept.read_text())["builds"]
    assert (chosen["kernel"], named["kernel"], numbered["kernel"]) == ("tilewright", "two groups", "line 2")
    assert "failed" not in chosen
    assert named["schedule"] == f'{wide}, roles="cooperative", blocks=132)'.replace("groups=2, ", "").replace(
        'roles="cooperative"', 'roles="cooperative", groups=2'
    )
    assert "roles" in numbered["failed"]


MEASURED = {
    "at": 0,
    "group": "half",
    "problem": "bf16 nt 4096³",
    "schedules": {"tilewright": "tw.Schedule(…)"},
    "tflops": {"tilewright": 789.1, "cuBLAS": 765.4},
    "speed": {"tilewright": {"cuBLAS": [1.031, 1.03, 1.032]}},
    "judged": ["cuBLAS"],
    "again": [1.001, 0.999, 1.002],
    "clock": {"mhz": 1755.0, "watts": 690.2},
}
ROWS = [
    MEASURED,
    MEASURED | {"at": 1, "problem": "f16 nt 4096³", "speed": {"tilewright": {"cuBLAS": [0.97, 0.96, 0.98]}}},
    {"at": 2, "group": "fp8", "problem": "f8e4m3 nt 4096³", "failed": "the process ended"},
    {"at": 3, "group": "compile", "problem": "two kernels", "seconds": {"first": [0.41, 0.4, 0.5]}},
]


def test_rows_are_rendered_with_what_is_asked_for(tmp_path: Path) -> None:
    kept = tmp_path / "dense.json"
    kept.write_text(json.dumps({"benchmark": "dense", "machine": None, "commit": "", "rows": ROWS}))
    run("render.py", kept, "--out", tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    row = (
        "| bf16 nt 4096³ | tilewright | 789.1 | cuBLAS | 765.4 | 1.031 [1.030, 1.032] | 0.97 | 1.1 | 1.001 |"
    )
    assert f"{row} 1755 | 690 | tw.Schedule(…) |" in page
    assert "| geometric mean |  |  |  | 1.000 | 1 | 1.1 |  |  |  | least 0.970 |" in page
    assert "| f8e4m3 nt 4096³ | failed |" in page
    assert "| 0.410 s [0.400, 0.500] | 0.6 | 0.3 |" in page


def test_the_fastest_of_several_kernels_are_summed_up_besides(tmp_path: Path) -> None:
    others = {
        "speed": {"tilewright": {"cuBLAS": [0.5, 0.5, 0.5]}, "split auto": {"cuBLAS": [2.0, 2.0, 2.0]}},
        "tflops": {"tilewright": 1.0, "split auto": 4.0, "cuBLAS": 2.0},
        "group": "split",
    }
    rows = [MEASURED | others, MEASURED | others | {"at": 1}]
    kept = tmp_path / "dense.json"
    kept.write_text(json.dumps({"benchmark": "dense", "machine": None, "commit": "", "rows": rows}))
    run("render.py", kept, "--out", tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "| geometric mean |  |  |  | 0.500 | 1.1 | 1.6 |" in page
    assert "| geometric mean of each row's fastest |  |  |  | 2.000 | 1.1 | 1.6 |" in page


def test_a_task_that_breaks_its_process_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(f"""
import os, sys, time
from pathlib import Path
sys.path.insert(0, {str(HERE)!r})
import isolated
class Some:
    group = "half"
    def __init__(self, name):
        self.name = name
    def __str__(self):
        return self.name
    def measure(self, seconds, progress):
        progress.begin("working", 1 if self.name == "hangs" else 60)
        if self.name == "lost":
            raise isolated.DeviceLostError("gone")
        if self.name == "wrong":
            raise ValueError("off by 7")
        if self.name == "hangs":
            time.sleep(30)
        return {{"value": self.name.upper()}}
isolated.machine = lambda target, commit: type("None", (), {{"record": lambda self: None}})()
NAMES = ("one", "lost", "wrong", "not yet kept", "hangs", "last")
asked = isolated.parser("doc").parse_args()
record = isolated.Record(asked.json or Path({str(tmp_path / "kept.json")!r}), "some")
isolated.run([Some(name) for name in NAMES], asked, time.time(), record)
""")
    done = subprocess.run(
        [sys.executable, tmp_path / "tasks.py"], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "kept.json").read_text())["rows"]
    found = {row["problem"]: row.get("value") or row["failed"] for row in rows}
    assert (found["one"], found["last"]) == ("ONE", "LAST")
    # Its row was lost with the process that hung; it was measured again.
    assert found["not yet kept"] == "NOT YET KEPT"
    assert len(rows) == len(found) == 6
    assert found["lost"] == "the process ended with status 3 at: working"
    assert "off by 7" in found["wrong"]
    assert found["hangs"].startswith("the process ended with status 1")
    assert not (tmp_path / "kept.doing").exists()
