"""`--json`: every verb answers with one JSON object, which has the facts of its text; errors, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.programs import CliRunner

from tilewright.cli.verbs import app

ROOT = Path(__file__).parents[2]
LINES = f"{ROOT}/docs/tutorial/step1_eight_lines.py"

VERBS = {
    "gemm": ["8", "8", "8", "--target", "reference"],
    "scaled": ["8", "8", "32", "--target", "reference"],
    "einsum": ["mk,kn->mn", "8,8", "8,8", "--target", "reference"],
    "attention": ["8", "8", "8", "--target", "reference"],
    "chain": ["8", "8", "8", "8", "--target", "reference"],
    "reduce": ["8", "8", "8", "--target", "reference"],
    "complex": ["8", "8", "8", "--target", "reference"],
    "doctor": [],
    "inspect": ["gemm", "--shape", "64x64x64", "--target", "reference"],
    "report": ["gemm", "8", "8", "8", "--target", "reference", "--check-seconds", "0", "-o", "{here}/r.html"],
    "profile": [
        "gemm",
        "256",
        "6144",
        "4096",
        "--target",
        "cuda",
        "--dtype",
        "bf16",
        "--why",
        "--arch",
        "sm_90a",
    ],
    "tune": ["gemm", "8", "8", "8", "--target", "reference"],
    "instance": [],
    "export": [],
    "replay": [],
    "cache": ["stats"],
    "draw layout": ["(4,2):(2,1)"],
    "draw map": ["mma.m16n8k16"],
    "draw banks": ["(8,8):(8,1)"],
    "draw timeline": ["gemm", "--shape", "32x32x32"],
}
"""A command for every verb; those without words are asked for too little, and answer with an error."""


def run(*words: str) -> Any:
    return CliRunner().invoke(app, words)


def verbs() -> set[str]:
    named = [one.name or (one.callback.__name__ if one.callback else "") for one in app.registered_commands]
    drawn = [f"draw {one.name}" for one in app.registered_groups[0].typer_instance.registered_commands or []]
    return {*named, *drawn}


def test_every_verb_is_asked() -> None:
    assert {*VERBS} == verbs()


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_answers_with_one_object(verb: str, tmp_path: Path) -> None:
    words = [word.replace("{here}", str(tmp_path)) for word in VERBS[verb]]
    ended = run(*verb.split(), *words, "--json")
    found = json.loads(ended.stdout)
    assert isinstance(found, dict)
    assert found["verb"] == verb.split()[-1]
    assert found["status"] == ended.exit_code
    assert ("error" in found) == (ended.exit_code != 0 and verb != "doctor")
    if "error" in found:
        assert found["error"]["message"]
        assert found["error"]["message"].splitlines()[0] in ended.stderr
        return
    for step in found["steps"]:
        assert step["text"].splitlines()[0] in "\n".join(found["text"])
    assert found["steps"] or {*found} - {"verb", "status", "steps", "text"}


def test_facts_are_those_of_the_text() -> None:
    found = json.loads(run("gemm", "9", "8", "7", "--target", "reference", "--json").stdout)
    text = "\n".join(found["text"])
    assert found["verified"]
    assert found["kernel"] in text
    assert found["schedule"] in text
    assert found["target"] == "reference"
    plain = run("gemm", "9", "8", "7", "--target", "reference").stdout.splitlines()
    assert [line for line in plain if line.startswith("trace")] == [
        line for line in found["text"] if line.startswith("trace")
    ]


def test_an_answer_may_be_a_file_and_the_text_is_still_shown(tmp_path: Path) -> None:
    for words in (["--json", str(tmp_path / "a.json")], [f"--json={tmp_path / 'b.json'}"]):
        ended = run("cache", *words)
        assert ended.exit_code == 0
        found = json.loads(Path(words[-1].removeprefix("--json=")).read_text())
        assert ended.stdout.splitlines() == found["text"]
        assert str(found["kernels"]) in ended.stdout


def test_files_of_problems_are_not_taken_for_the_answer(tmp_path: Path) -> None:
    problems = tmp_path / "shapes.json"
    problems.write_text("[[8, 8, 8]]")
    ended = run("tune", "gemm", str(problems), "--target", "reference", "--json")
    assert "is not measured" in json.loads(ended.stdout)["error"]["message"]
    assert problems.read_text() == "[[8, 8, 8]]"
    ended = run("tune", "gemm", "--json", str(problems), "--target", "reference")
    assert "is not measured" in json.loads(ended.stdout)["error"]["message"]
    assert problems.read_text() == "[[8, 8, 8]]"


def test_an_answer_replaces_an_earlier_answer(tmp_path: Path) -> None:
    kept = tmp_path / "a.json"
    for action in ("stats", "clear"):
        assert run("cache", action, "--json", str(kept)).exit_code == 0
        assert ("cleared" in json.loads(kept.read_text())) == (action == "clear")


@pytest.mark.parametrize(
    ("words", "said", "kind"),
    [
        (["gemm", "8", "8", "8", "--target", "cdua"], "nearest: cuda", "UsageError"),
        (["gemm", "8", "8", "8", "--sedd", "1"], "No such option: --sedd", "UsageError"),
        (["inspect", f"{LINES}:lineer"], "linear", "LaunchError"),
        (["draw", "layout", "(4,2):"], "means nothing", "LayoutError"),
    ],
)
def test_errors_are_objects(words: list[str], said: str, kind: str) -> None:
    ended = run(*words, "--json")
    assert ended.exit_code == 2
    found = json.loads(ended.stdout)
    assert said in found["error"]["message"]
    assert found["error"]["type"] == kind
    assert found["status"] == 2


def test_an_answer_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    ended = run("cache", "--json", str(tmp_path / "absent" / "a.json"))
    assert ended.exit_code == 2
    assert "absent" in json.loads(ended.stdout)["error"]["message"]
