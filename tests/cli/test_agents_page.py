"""The commands of AGENTS.md, each of which answers with one JSON object; `test_documents` runs its Python."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from tests.programs import CliRunner

from tilewright.cli.verbs import app

ROOT = Path(__file__).parents[2]
COMMANDS = re.findall(r"^tilewright (.*)$", (ROOT / "AGENTS.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_answer(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(command)
    if "-o" in words:
        words[words.index("-o") + 1] = str(tmp_path / "report.html")
    monkeypatch.chdir(ROOT)
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout)["status"] == 0


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 5
    assert all(command.endswith("--json") for command in COMMANDS)
