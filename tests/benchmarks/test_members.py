"""The table of the members beside their peers: what it reads, and what it says of it."""

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
    """A pattern that matches nothing in a file that is there would look like something not measured."""
    for work in members.ASKED:
        path = members.RESULTS / work.file
        if path.exists():
            assert work.speeds(), f"{work.name} [{work.peer}] finds nothing in {work.file}"


def test_the_page_is_that_of_the_results(members: Any) -> None:
    measured = {work: work.speeds() for work in members.ASKED}
    assert (HERE / "MEMBERS.md").read_text() == members.page(measured, "results/members.svg")
