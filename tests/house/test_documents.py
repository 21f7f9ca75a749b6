"""The documents run: the README's commands are CI's, and Python in Markdown is tested Python."""

from __future__ import annotations

import ast
import doctest
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def python_blocks(text: str) -> list[str]:
    return [fence["body"] for fence in FENCE.finditer(text) if fence["language"] == "python"]


def run_document(text: str, name: str) -> str:
    """Runs the `>>>` blocks in one namespace, and parses the others; returns what failed."""
    namespace: dict[str, Any] = {}
    report: list[str] = []
    for number, block in enumerate(python_blocks(text), 1):
        if ">>>" not in block:
            ast.parse(block, filename=f"{name}, block {number}")
            continue
        test = doctest.DocTestParser().get_doctest(block, namespace, f"{name}, block {number}", name, 0)
        doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.append, clear_globs=False)
        namespace = test.globs
    return "".join(report)


def test_readme_begins_with_the_two_commands() -> None:
    first = FENCE.search((ROOT / "README.md").read_text())
    assert first is not None
    assert first["body"].splitlines() == ["sh dev demo", "sh dev test"]


def test_ci_runs_what_the_readme_says() -> None:
    first = FENCE.search((ROOT / "README.md").read_text())
    assert first is not None
    lines = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if not line.startswith("#")]
    assert lines == [
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")/.."',
        first["body"].splitlines()[1],
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_in_documents(document: Path) -> None:
    failed = run_document(document.read_text(), document.name)
    assert not failed, failed


def test_names_carry_from_block_to_block() -> None:
    assert not run_document("```python\n>>> x = 1\n```\ntext\n```python\n>>> x\n1\n```\n", "sample")


def test_a_wrong_document_is_found() -> None:
    assert "Expected" in run_document("```python\n>>> 1 + 1\n3\n```\n", "sample")
    with pytest.raises(SyntaxError):
        run_document("```python\nfor x in:\n```\n", "sample")
