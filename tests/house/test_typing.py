"""Type checkers accept a user's file: the README's code, and every public name."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.namespaces import SPELLED

ROOT = Path(__file__).parents[2]
CHECKERS = {
    "mypy": ("mypy", "--check-untyped-defs", "--no-incremental"),
    "pyright": ("basedpyright", "--project", "."),
}
"""The command of each; `basedpyright` is pyright with a Node.js of its own."""


def code_of_readme() -> str:
    """Return every Python block of the README in order, without prompts and outputs."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    parser = doctest.DocTestParser()
    return "\n".join(
        "".join(example.source for example in parser.get_examples(block)) if ">>>" in block else block
        for block in blocks
    )


def every_name() -> str:
    """Return a file that uses each public name of each public namespace."""
    lines = ["import tilewright as tw"]
    for module, spelled in SPELLED.items():
        names = importlib.import_module(module).__all__
        lines += [f"print({spelled}.{name})" for name in names]
    return "\n".join(lines) + "\n"


def checked(checker: str, folder: Path, **files: str) -> tuple[int, str]:
    """Return a type checker's status and output for files in a separate folder."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT / "src")]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    (folder / "mypy.ini").write_text(f"[mypy]\nmypy_path = {ROOT / 'src'}\n")
    program, *words = CHECKERS[checker]
    command = [str(Path(sys.executable).with_name(program)), *words]
    command += [f"{name}.py" for name in files] if checker == "mypy" else []
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("checker", CHECKERS)
def test_only_a_name_that_is_not_there_is_a_type_error(checker: str, tmp_path: Path) -> None:
    """The README's code and every public name have no errors; one run checks these and a wrong file."""
    wrong = "import tilewright as tw\n\nprint(tw.silo, tw.silu)\n"
    status, said = checked(checker, tmp_path, readme=code_of_readme(), names=every_name(), wrong=wrong)
    assert status == 1
    errors = [line for line in said.splitlines() if re.search(r"\berror\b", line) and ".py:" in line]
    assert len(errors) == 1, said
    assert "wrong.py" in errors[0]
    assert "silo" in errors[0]
    assert "silu" not in said
