"""The commands in docs/pictures.md make its pictures."""

from __future__ import annotations

import difflib
import re
import shlex
from pathlib import Path

import pytest
from tests.programs import CliRunner

from tilewright.cli.verbs import app

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "pictures.md"
COMMANDS = re.findall(r"^tilewright (draw .*) -o (docs/pictures/\w+\.svg)$", PAGE.read_text(), re.MULTILINE)
MOST_BYTES = 70_000


def test_every_picture_has_its_command_and_its_place() -> None:
    made = {path for _, path in COMMANDS}
    assert len(COMMANDS) == PAGE.read_text().count("\ntilewright draw ")
    assert made == _shown(PAGE)
    others = {*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")} - {PAGE}
    elsewhere = {path for page in others for path in _shown(page)}
    kept = {str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "pictures").glob("*.svg")}
    assert kept == made | elsewhere


def _shown(page: Path) -> set[str]:
    return {f"docs/{path}" for path in re.findall(r"\]\((?:docs/)?(pictures/\w+\.svg)\)", page.read_text())}


@pytest.mark.parametrize(("command", "name"), COMMANDS, ids=lambda text: Path(text).stem[:20])
def test_commands_make_the_pictures(
    command: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    monkeypatch.chdir(ROOT)
    target = ROOT / name if pytestconfig.getoption("--update-golden") else tmp_path / "picture.svg"
    result = CliRunner().invoke(app, [*shlex.split(command), "-o", str(target)])
    assert result.exit_code == 0, result.output
    made, kept = target.read_text(), (ROOT / name).read_text()
    assert len(made) <= MOST_BYTES
    if made != kept:
        diff = "\n".join(
            difflib.unified_diff(kept.splitlines(), made.splitlines(), name, "this run", lineterm="")
        )
        pytest.fail(f"{diff}\nif this is what it should show: pytest --update-golden", pytrace=False)
