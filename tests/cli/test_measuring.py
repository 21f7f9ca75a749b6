"""`tilewright profile` and `tilewright tune`: lists, files, pictures, and errors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.programs import CliRunner
from typer.testing import Result

import tilewright as tw
from tilewright.cli import tune
from tilewright.cli.verbs import app
from tilewright.ops.products import plain
from tilewright.runtime import tables
from tilewright.schedule.choice import split_candidates
from tilewright.schedule.load import Load
from tilewright.schedule.question import Splitting
from tilewright.schedule.tables import read_schedule
from tilewright.tune import clocks
from tilewright.tune.figures import Roofs
from tilewright.tune.gemm import Gemm
from tilewright.tune.measure import Effort
from tilewright.tune.profiling import ProfileRow, profile
from tilewright.tune.subject import Arrays, SubjectArrays

pytestmark = pytest.mark.in_turns(3)

GEMM = Gemm((40, 50, 60), "f32", "nn", "exact", "cpu")
QUICK = ("--seconds", "0", "--processes", "1")


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use a separate folder for tables, and do not wait for a quiet machine."""
    monkeypatch.setattr(tables, "directory", lambda: tmp_path / "tables")
    monkeypatch.setattr(clocks, "wait_for_quiet", lambda: None)
    tables.forget()
    yield tmp_path
    tables.forget()


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


def good(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_profile_lists_every_candidate(directory: Path) -> None:
    kept, drawn = directory / "p.json", directory / "p.svg"
    output = good("profile", "gemm", 40, 50, 60, *QUICK, "--json", kept, "--plot", drawn)
    found = json.loads(kept.read_text())
    assert found["benchmark"] == "profile"
    assert found["problem"] == "f32 nn 40x50x60 on cpu"
    assert found["machine"]["processor"]
    assert found["distribution"] == "normal random numbers, seed 0"
    assert found["buffers"]["sets"] > 1
    proposed = GEMM.candidates()
    assert [read_schedule(row["schedule"]) for row in found["candidates"]] == [
        one.schedule for one in proposed
    ]
    measured = [row for row in found["candidates"] if row["against"] is None]
    assert len(measured) == sum(1 for one in proposed if not one.against) == 3
    for row in measured:
        low, high = row["ms_interval"]
        assert 0 < low <= row["ms"] <= high
        assert row["tflops"] == pytest.approx(2 * 40 * 50 * 60 / row["ms"] / 1e9)
        assert row["gbytes"] == pytest.approx(4 * (40 * 60 + 60 * 50 + 40 * 50) / row["ms"] / 1e6)
        assert row["splits"] == "1"
        assert found["checks"][row["name"]]["error_of_bound"] <= 1
    for row in found["candidates"]:
        assert row["rule"]
        assert (row["against"] is None) == ("ms" in row)
    best = min(measured, key=lambda row: row["ms"])
    assert found["best"] == best["schedule"]
    assert found["untuned"] == repr(proposed[0].schedule)
    assert found["libraries"] == ["NumPy"]
    assert min(found["roofs"]["flops"], found["roofs"]["bytes"]) > 0
    assert f"best      {best['name']}: {best['schedule']}" in output
    assert "a tile of 48 rows already covers all 40" in {row["against"] for row in found["candidates"]}
    assert "untuned   " in output
    text = drawn.read_text()
    assert "<svg" in text
    assert "<dc:date>" not in text


def test_the_reference_has_one_candidate(directory: Path) -> None:
    kept = directory / "p.json"
    good("profile", "gemm", "8x8x8", "--target", "reference", *QUICK, "--json", kept)
    (row,) = json.loads(kept.read_text())["candidates"]
    assert row["rule"] == "a small tile"
    assert row["ms"] > 0


def test_so_many_are_measured_as_were_asked_for(directory: Path) -> None:
    kept = directory / "p.json"
    good("profile", "gemm", 40, 50, 60, *QUICK, "--most", 1, "--json", kept)
    found = json.loads(kept.read_text())["candidates"]
    assert [row["name"] for row in found if row["against"] is None] == ["untuned"]
    assert sum(1 for row in found if row["against"] == "left out: 1 were asked for") == 2


def test_a_candidate_that_is_wrong_is_said_and_not_timed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = [one.schedule for one in GEMM.candidates() if not one.against][1]
    bind = SubjectArrays.bind

    def planted(self: SubjectArrays, schedule: Any) -> Any:
        if schedule != wrong:
            return bind(self, schedule)
        return lambda arrays: lambda: _almost(arrays)

    monkeypatch.setattr(SubjectArrays, "bind", planted)
    kept = directory / "p.json"
    result = run("profile", "gemm", 40, 50, 60, *QUICK, "--json", kept)
    assert result.exit_code == 1
    (row,) = (row for row in json.loads(kept.read_text())["candidates"] if row["schedule"] == repr(wrong))
    assert row["against"].startswith("wrong: wrong: ")
    assert "ms" not in row


def _almost(arrays: Arrays) -> None:
    """Compute the product without the last k."""
    arrays[2][...] = arrays[0][:, :-1] @ arrays[1][:-1]


def test_the_record_goes_to_the_standard_output_alone(directory: Path) -> None:
    words = ["profile", "gemm", "8", "8", "8", "--target", "reference", *QUICK, "--json", "/dev/stdout"]
    done = subprocess.run(
        [sys.executable, "-m", "tilewright", *words], capture_output=True, text=True, timeout=120
    )
    assert json.loads(done.stdout)["problem"] == "f32 nn 8x8x8 on reference"
    assert "best" in done.stderr


def test_the_number_of_parts_of_k_is_shown_and_how_it_came_about() -> None:
    made = profile_of_reference()
    (row,) = made.rows
    assert row.splits == "1"
    asked = plain(0).bind(precision="exact").question(
        tw.like("bf16", 256, 65536), tw.like("bf16", 65536, 256, order="F"), tw.like("bf16", 256, 256),
        target="cuda", arch="sm_90a",
    )  # fmt: skip
    assert asked is not None
    chosen = next(split_candidates(replace(asked, splitting=Splitting("auto"))))
    parts = Load(asked, chosen.schedule).parts
    assert parts > 4
    assert ProfileRow("x", chosen, parts).splits == f"{parts} (auto)"
    assert f"K in {parts} parts: {chosen.schedule.blocks} blocks" in chosen.rule


WHY = ("profile", "gemm", 256, 6144, 4096, "--target", "cuda", "--dtype", "bf16", "--layout", "nt", "--why")


def test_the_parts_of_the_estimate_are_said_without_a_gpu(directory: Path) -> None:
    kept = directory / "why.json"
    shown = good(*WHY, "--arch", "sm_90a", "--json", kept)
    found = json.loads(kept.read_text())
    assert found["constants"].startswith("2,611 products on an H200")
    choice, other = found["choice"], found["runner-up"]
    assert choice["schedule"] != other["schedule"]
    for one in (choice, other):
        parts = one["parts_us"]
        assert max(parts.values()) < one["total_us"] < sum(parts.values())
        assert parts["memory"] == pytest.approx(
            2 * (256 * 4096 + 4096 * 6144 + 256 * 6144) / 4.25e6, abs=0.01
        )
        assert one["schedule"] in shown
        assert f"limited by {one['limit']}; by the rule: {one['rule']}" in shown
    assert f"{choice['total_us']:.2f}" in shown


def test_a_card_that_was_not_measured_is_named() -> None:
    shown = good(*WHY, "--arch", "sm_80")
    assert "nothing on sm_80: rates of its data sheet" in shown
    assert "MMA_BF16" in shown


def profile_of_reference() -> Any:
    gemm = Gemm((8, 8, 8), "f32", "nn", "exact", "reference")
    return profile(gemm, effort=Effort(seconds=0.0, warm_up_seconds=0.0, least=1), processes=1)


def test_tuning_from_arguments_and_files_writes_one_table(directory: Path) -> None:
    listed = directory / "shapes.json"
    listed.write_text('[[8, 9, 10], {"shape": [40, 50, 60], "dtype": "f32", "layout": "nt"}]')
    path = directory / "t.json"
    output = good("tune", "gemm", "40x50x60", listed, "--most", 1, *QUICK, "--table", path)
    assert output.count("verified again on other numbers") == 3
    found = json.loads(path.read_text())
    shapes = sorted((entry["kind"], entry["extents"]) for entry in found["entries"])
    assert shapes == [
        ("f32[k] x f32[k] -> f32[n], exact", [1, 40, 50, 60]),
        ("f32[k] x f32[mn] -> f32[n], exact", [1, 8, 9, 10]),
        ("f32[k] x f32[mn] -> f32[n], exact", [1, 40, 50, 60]),
    ]
    again = good("tune", "gemm", "40x50x60", listed, "--most", 1, *QUICK, "--table", path)
    assert again.count("0 measured now, 1 known") == 3


def test_a_table_of_another_version_is_refused_by_the_command(directory: Path) -> None:
    path = directory / "t.json"
    good("tune", "gemm", "8x8x8", "--most", 1, *QUICK, "--table", path)
    found = json.loads(path.read_text())
    found["version"]["format"] = "older"
    path.write_text(json.dumps(found))
    result = run("tune", "gemm", "8x8x8", "--most", 1, *QUICK, "--table", path)
    assert result.exit_code == 2
    assert "of another version: schedule format older" in result.output
    assert "nearest: --renew" in result.output
    assert "aside" in good("tune", "gemm", "8x8x8", "--most", 1, *QUICK, "--table", path, "--renew")


REFUSED = [
    (("profile", "gemm", 8, 8), "2 extents (8 8); give three for each product, e.g. tilewright profile"),
    (("profile", "gemm", 8, 8, 8, 9, 9, 9), "2 products; profile takes one"),
    (("profile", "gemm", 8, 8, 8, "--why"), "no rates are known of"),
    (("profile", "gemm", 8, 8, 8, "--arch", "sm_80"), "--arch sm_80 without --why"),
    (("profile", "conv", 8, 8, 8), "unknown operation 'conv'; choose one of gemm, matmul"),
    (("profile", "gemm", 8, 8, "x"), "'x', which is not a whole number"),
    (("profile", "gemm", 8, 0, 8), "extents [8, 0, 8]; the extents M N K must be three positive"),
    (("profile", "gemm", 8, 8, 8, "--dtype", "f33"), "unknown dtype 'f33'; nearest: f32"),
    (("profile", "gemm", 8, 8, 8, "--layout", "xx"), "unknown layout 'xx'"),
    (("profile", "gemm", 8, 8, 8, "--target", "gpu"), "unknown target 'gpu'; nearest: cuda"),
    (
        ("tune", "gemm", 8, 8, 8, "--target", "reference"),
        "target reference is not measured, so it has no tables",
    ),
    (("tune", "gemm"), "0 extents (); give three for each product"),
    (("tune", "gemm", "absent.json"), "absent.json: No such file"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_what_cannot_be_asked_for(words: tuple[object, ...], said: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "[[1, 2]]", '[{"shape": [1, 2, 3], "more": 1}]', "[[1, 2, 3.5]]", "[[1, 2, true]]"],
)
def test_a_file_that_lists_no_products_is_refused(directory: Path, text: str) -> None:
    path = directory / "s.json"
    path.write_text(text)
    result = run("tune", "gemm", path, *QUICK)
    assert result.exit_code == 2
    assert "tilewright: " in result.output


def test_a_bar_without_a_terminal_is_none() -> None:
    bar = tune.ProgressBar()
    with bar.drawn():
        bar("measuring", 1, 2)


def test_a_roof_is_the_lower_of_two() -> None:
    found = Roofs(100.0, 10.0, "made up")
    assert [found.at(x) for x in (1, 10, 20)] == [10, 100, 100]
