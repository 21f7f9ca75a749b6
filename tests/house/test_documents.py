"""The documents run: the README's commands are CI's, and Python in Markdown is tested."""

from __future__ import annotations

import doctest
import linecache
import re
from pathlib import Path
from typing import Any

import pytest
from tests.examples_run import every_kernel_executed

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
IN_TORCH = "pytorch.md"
"""The page whose code `tests/torch/test_page.py` runs."""

ON_RANKS = "distributed.md"
"""The page whose code `tests/distributed/test_example.py` runs."""

IN_JAX = "jax.md"
"""The page whose code `tests/jax/test_page.py` runs."""

FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def python_blocks(text: str) -> list[str]:
    return [fence["body"] for fence in FENCE.finditer(text) if fence["language"] == "python"]


def execute(block: str, name: str, namespace: dict[str, Any]) -> None:
    """Run a block; errors can show its lines."""
    linecache.cache[name] = (len(block), None, block.splitlines(keepends=True), name)
    exec(compile(block, name, "exec"), namespace)


def run_document(text: str, name: str) -> str:
    """Run all blocks of a page in one namespace; return those that failed."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    report: list[str] = []
    with every_kernel_executed(name):
        for number, block in enumerate(python_blocks(text), 1):
            if ">>>" not in block:
                execute(block, f"{name}, block {number}", namespace)
                continue
            test = doctest.DocTestParser().get_doctest(block, namespace, f"{name}, block {number}", name, 0)
            doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.append, clear_globs=False)
            namespace = test.globs
    return "".join(report)


def test_a_kernel_that_no_target_executes_is_named() -> None:
    text = """```python
import tilewright as tw

@tw.kernel(X="N")
def idle(X):
    tw.copy(X.tile((32,), (0,)), X.tile((32,), (0,)), threads=32)

print(idle.trace(tw.like("f32", 64)).name)
```
"""
    with pytest.raises(pytest.fail.Exception, match=r"page: no target executes idle"):
        run_document(text, "page")
    run_document(text.replace(".trace(tw.like(", ".check(tw.like(").replace(".name", ".is_clean"), "page")


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
        "sh dev torch",
        "sh dev jax",
        "sh dev docs",
    ]


PATH = re.compile(r"`((?:src|tests|docs|examples|benchmarks|scripts)/[^`\s<>]*)`|\]\(([^)#:\s]+)\)")


def missing_paths(text: str, directory: Path) -> list[str]:
    """Return files and directories that a document names and that do not exist."""
    found = PATH.findall(text)
    named = [path for path, _ in found if not (ROOT / path).exists()]
    return named + [link for _, link in found if link and not (directory / link).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_what_is_there(document: Path) -> None:
    assert missing_paths(document.read_text(), document.parent) == []


def test_a_path_that_is_not_there_is_found() -> None:
    assert missing_paths("`src/nothing.py` [one](README.md) [two](no.md)", ROOT) == [
        "src/nothing.py",
        "no.md",
    ]


def test_the_audit_names_tests_that_are_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "audit.md").read_text()))
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    there = {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}
    assert len(named) > 10
    assert named <= there


def test_the_architecture_lists_every_room_and_ends_with_the_gemm() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    cells = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    listed = {room for cell in cells for room in re.findall(r"`(\w+)(?:/|\.py)`", cell)}
    there = {
        path.stem
        for path in (ROOT / "src" / "tilewright").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert listed == {name for name in there if not name.startswith("__")}
    assert re.findall(r"^## (.*)$", text, re.MULTILINE)[-1] == "Where is the GEMM?"


def test_the_readme_lists_every_example() -> None:
    text = (ROOT / "README.md").read_text()
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(
        re.findall(r"\]\(examples/(\w+\.py)\)", text)
    )


COMMAND = re.compile(r"(?<!`)`((?:python -m )?tilewright [^`]+)`")
PROGRAMS = [
    *(ROOT / "examples").rglob("*.py"),
    *(ROOT / "src").rglob("*.py"),
    *(ROOT / "benchmarks").glob("*.py"),
]
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


def unquoted_arrows(text: str) -> list[str]:
    """Return shell commands whose unquoted `->` a shell would read as a redirection."""
    blocks = [fence["body"] for fence in FENCE.finditer(text) if fence["language"] in ("sh", "bash", "shell")]
    lines = [line for block in blocks for line in block.splitlines()]
    commands = [*lines, *COMMAND.findall(text)]
    return [command for command in commands if "->" in QUOTED.sub("", command)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_shells_see_no_redirection_in_commands(document: Path) -> None:
    assert unquoted_arrows(document.read_text()) == []


def test_shells_see_no_redirection_in_the_commands_of_docstrings() -> None:
    assert [found for path in PROGRAMS for found in unquoted_arrows(path.read_text())] == []


def test_an_unquoted_arrow_is_found() -> None:
    text = "| `tilewright einsum ij,jk->ik 2x3 3x4` |\n```sh\ntilewright einsum i,i-> 5 5  # all\n```\n"
    assert unquoted_arrows(text) == [
        "tilewright einsum i,i-> 5 5  # all",
        "tilewright einsum ij,jk->ik 2x3 3x4",
    ]
    assert unquoted_arrows("`tilewright einsum 'ij,jk->ik' 2x3 3x4`") == []


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    "document",
    [page for page in DOCUMENTS if page.name not in (IN_TORCH, ON_RANKS, IN_JAX)],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_python_in_documents(document: Path) -> None:
    failed = run_document(document.read_text(), document.name)
    assert not failed, failed


def test_names_carry_from_block_to_block() -> None:
    assert not run_document("```python\n>>> x = 1\n```\ntext\n```python\n>>> x\n1\n```\n", "sample")


def test_a_wrong_document_is_found() -> None:
    assert "Expected" in run_document("```python\n>>> 1 + 1\n3\n```\n", "sample")
    with pytest.raises(SyntaxError):
        run_document("```python\nfor x in:\n```\n", "sample")
