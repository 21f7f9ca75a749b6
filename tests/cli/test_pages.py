"""Commands in pages are launched: shell blocks, and the recorded runs of the page of the command line."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from scripts.docs import command_line
from scripts.docs.pages import ROOT, UNLAUNCHED, blocks, commands, documents, launched, unlaunched
from tests.programs import CliRunner

from tilewright.cli.verbs import app

TEXTS = {path: (ROOT / path).read_text() for path in documents() if launched(path)}
COMMANDS = [
    (path, line)
    for path, text in TEXTS.items()
    for block in blocks(text, "sh")
    for line in commands(block)
    if line.startswith("tilewright ")
]


@pytest.mark.parametrize(("path", "line"), COMMANDS, ids=lambda one: one[-60:])
def test_commands_of_pages_run(path: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command ends well; with `--json` it answers with one object, and pictures are those of the page.

    Reports are made without their parts that take long: the checker, and times on this machine.
    """
    words = shlex.split(line)[1:]
    if words[0] == "report":
        words += ["--check-seconds", "0", "--no-measure"]
    drawn = [Path(word) for word in words if word.endswith(".svg")]
    words = [word if Path(word) not in drawn else str(tmp_path / Path(word).name) for word in words]
    monkeypatch.chdir(tmp_path)
    for name in ("docs", "examples", "tests"):
        Path(name).symlink_to(ROOT / name)
    if "instance.py:instance" in words:
        Path("instance.py").write_text(blocks(TEXTS[path], "python")[0])
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0, ended.output
    if "--json" in words:
        assert json.loads(ended.stdout)["status"] == 0
    for picture in drawn:
        assert Path(picture.name).read_text() == (ROOT / picture).read_text(), f"draw {picture} again"


def test_pages_have_commands_and_every_reason_is_needed() -> None:
    assert {"AGENTS.md", "docs/install.md", "docs/pictures.md", "docs/report.md"} <= {
        path for path, _ in COMMANDS
    }
    of_agents = [line for path, line in COMMANDS if path == "AGENTS.md"]
    assert len(of_agents) >= 5
    assert all(line.endswith("--json") for line in of_agents)
    lines = [line for text in TEXTS.values() for block in blocks(text, "sh") for line in block.splitlines()]
    assert [one for one in UNLAUNCHED if not any(re.fullmatch(one, line) for line in lines)] == []


@pytest.mark.parametrize("line", ["python program.py", "make"])
def test_a_command_that_no_test_launches_is_refused(line: str) -> None:
    found = unlaunched("docs/one.md", f"```sh\ntilewright cache\n{line}\n```\n")
    assert "begins with 'tilewright cache'" in found[0]
    assert not unlaunched("docs/one.md", "```sh\npip install .\ntilewright cache\n```\n")


def test_every_verb_has_a_recorded_run() -> None:
    recorded = command_line.recorded()
    assert {*recorded} == {*command_line.verbs()}
    assert {verb: [run.command for run in runs] for verb, runs in recorded.items()} == command_line.RUNS
    assert {run.status for runs in recorded.values() for run in runs} == {0}


CHEAP = [verb for verb in command_line.RUNS if verb != "tune"]
"""Verbs that are run again; `tune` compiles 40 kernels, and tests/cli/test_measuring.py runs it."""


@pytest.mark.parametrize("verb", CHEAP)
def test_a_recorded_run_is_what_a_run_prints(verb: str) -> None:
    for before in command_line.recorded()[verb]:
        now = command_line.run(before.command)
        assert now.status == before.status
        assert command_line.settled(verb, now.lines) == command_line.settled(verb, before.lines), (
            "if this is what it should say: python -m scripts.docs.command_line"
        )
