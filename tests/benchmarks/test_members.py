"""The table that compares members with their peers: its inputs, and its text."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(HERE), *sys.path])
    return importlib.import_module("members")


SCALED = "f16 x f8e4m3, contiguous along k"


def kept(folder: Path, speeds: dict[tuple[int, int, int], float]) -> None:
    rows = [
        {"problem": f"{SCALED} {shape}", "call": call, "us": 1.0, "speed": said}
        for shape, speed in speeds.items()
        for call, said in (("tw.scaled_mm", ""), ("cuBLAS fp16 alone", f"{speed} [{speed}, {speed}]"))
    ]
    (folder / "h200_scaled.json").write_text(json.dumps({"benchmark": "scaled", "rows": rows}))


def test_a_row_has_its_problems_and_no_others(
    members: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "RESULTS", tmp_path)
    kept(tmp_path, {(1, 4096, 4096): 1.2, (64, 4096, 4096): 1.8, (256, 64, 64): 9.0, (1024, 64, 64): 0.5})
    few, many, three, *_ = members.ASKED
    assert [one.value for one in few.speeds()] == [1.2, 1.8]
    assert [one.value for one in many.speeds()] == [0.5]
    assert three.speeds() == []
    _, _, least, goal, mean, worst, of, most, reached = members.line(few, few.speeds())
    assert (least, goal, mean, worst, most, reached) == ("1.4", "1.8", "1.47", "1.20", "1.80", "1 of 2")
    assert of == f"{SCALED} (1, 4096, 4096)"
    assert members.line(three, [])[-1] == "not measured"


def test_every_row_reads_what_its_file_holds(members: Any) -> None:
    """A pattern without a match in an existing file would look like a missing measurement."""
    for work in members.ASKED:
        path = members.RESULTS / work.file
        if path.exists() and not work.optional:
            assert work.speeds(), f"{work.name} [{work.peer}] finds nothing in {work.file}"


def test_the_page_is_that_of_the_results(members: Any) -> None:
    assert (HERE / "MEMBERS.md").read_text() == members.page(members.rows(), "results/members.svg")


@pytest.mark.parametrize("installed", [False, True])
def test_deepgemm_has_a_row_where_it_was_installed(
    members: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, installed: bool
) -> None:
    """The page always has a row of its published rate, and a measured row only if it is installed."""
    monkeypatch.setattr(members, "RESULTS", tmp_path)
    problem = "f8e4m3 x f8e4m3 by block (4096, 4096, 4096)"
    us = 2 * 4096**3 / 1e6 / members.PUBLISHED_TFLOPS  # at that rate
    said = [("tw.scaled_mm", ""), ("torch._scaled_mm", "1.05 [1.04, 1.06]")]
    said += [("DeepGEMM", "0.97 [0.96, 0.98]")] * installed
    rows = [{"problem": problem, "call": call, "us": us, "speed": speed} for call, speed in said]
    (tmp_path / "h200_scaled_blocks.json").write_text(json.dumps({"benchmark": "scaled", "rows": rows}))
    found = {work.peer: speeds for work, speeds in members.rows().items() if work.file == members.BLOCKS}
    assert [one.value for one in found["torch._scaled_mm"]] == [1.05]
    assert [one.value for one in found[members.PUBLISHED]] == [pytest.approx(1.0)]
    assert [one.value for one in found.get("DeepGEMM, same run", [])] == [0.97] * installed
    page = members.page(members.rows(), "members.svg")
    assert ("| the same | DeepGEMM, same run | 0.95 | 1.1 | 0.97 |" in page) is installed


@pytest.fixture
def members_run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(HERE), *sys.path])
    return importlib.import_module("members_run")


def test_everything_that_is_asked_of_a_gpu_is_measured(members: Any, members_run: Any) -> None:
    on_gpu = {work.file for work in members.ASKED if work.file.startswith("h200_")}
    assert on_gpu <= {f"{one.kept}.json" for one in members_run.MEASURED}
    assert all((HERE / f"{one.script}.py").exists() for one in members_run.MEASURED)


def test_what_was_measured_is_put_together(members_run: Any, tmp_path: Path) -> None:
    """Rows of one file come from several parts, and none from a failed part."""

    def part(name: str, problem: str, *, well: bool = True) -> dict[str, Any]:
        result = {"benchmark": "scaled", "machine": {"commit": "abc"}, "rows": [{"problem": problem}]}
        return {"name": name, "well": well, "result": result}

    parts = [part("scaled", "a"), part("scaled by row", "b"), part("scaled along n", "c", well=False)]
    (made,) = members_run.take({"parts": parts}, tmp_path)
    assert made.name == "h200_scaled.json"
    found = json.loads(made.read_text())
    assert [row["problem"] for row in found["rows"]] == ["a", "b"]
    assert found["machine"] == {"commit": "abc"}
