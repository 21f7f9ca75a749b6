"""Sphinx builds the site, and each of its warnings is an error."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from scripts.docs import built, command_line, notebooks, performance, steps
from scripts.docs.__main__ import sphinx
from scripts.docs.pages import ROOT, PageError
from tests.house.test_documents import execute

import tilewright as tw

pytestmark = [
    pytest.mark.docs,
    pytest.mark.filterwarnings("ignore:'myst_parser:PendingDeprecationWarning"),  # of Sphinx, about MyST
]

FIRST = "# First\n\nText.\n\n```{toctree}\n\none\n```\n"


def build(place: Path, **texts: str) -> Path:
    for name, text in {"index": FIRST, **texts}.items():
        (place / f"{name}.md").write_text(text)
    sphinx(place, place / "out")
    return place / "out"


def test_a_small_site_is_built(tmp_path: Path) -> None:
    made = build(tmp_path, one="# One\n\n[first](index.md#first)\n")
    assert 'href="index.html#first"' in (made / "one.html").read_text()


def test_a_download_that_a_page_shows_is_kept_once(tmp_path: Path) -> None:
    for folder, name, text in (
        ("_images", "a.svg", "<svg/>"), ("_downloads/1", "a.svg", "<svg/>"),
        ("_downloads/2", "a.svg", "<svg />"), ("_downloads/3", "b.json", "{}"),
    ):  # fmt: skip
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).write_text(text)
    assert built.shown_twice(tmp_path) == {"_downloads/1/a.svg": "_images/a.svg"}
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    assert left == {"_images/a.svg", "_downloads/2/a.svg", "_downloads/3/b.json"}


def test_markup_loses_its_indentation_and_code_does_not() -> None:
    page = "<div>\n   <p>a</p>\n\n  <pre>x\n    y\n\n</pre>\n <b>c</b>\n<script>\n  f()\n</script>\n  </div>"
    kept = "<div>\n<p>a</p>\n<pre>x\n    y\n\n</pre>\n<b>c</b>\n<script>\n  f()\n</script>\n</div>"
    assert built.tidy(page) == kept


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[x](nothing.md)", "cross-reference target not found: 'nothing.md'"),
        ("[x](index.md#nothing)", "local id not found in doc 'index': 'nothing'"),
        ("```{unknown}\n```", "Unknown directive type: 'unknown'"),
    ],
    ids=["page", "anchor", "directive"],
)
def test_what_sphinx_warns_of_fails(
    tmp_path: Path, text: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PageError):
        build(tmp_path, one=f"# One\n\n{text}\n")
    assert said in capfd.readouterr().err


STEPS = sorted((ROOT / "docs" / "tutorial").glob("step*.py"))


@pytest.mark.parametrize("path", STEPS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.argv", ["notebook"])
    monkeypatch.chdir(tmp_path)
    book = json.loads(notebooks.notebook(path))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(book["cells"]):
        if cell["cell_type"] == "code":
            execute("".join(cell["source"]), f"{path.stem}, cell {number}", namespace)
    assert isinstance(namespace["MEASURED"], tw.Bound)


def test_a_page_has_its_own_data_and_asks_no_network(tmp_path: Path) -> None:
    text = performance.page().replace("benchmarks/NOTES.md", "index.md")
    made = build(tmp_path, one=text)
    text = (made / "one.html").read_text()
    data = json.loads(text.partition('id="measured">')[2].partition("</script>")[0])
    assert {len(part["rows"]) > 50 for part in data.values()} == {True}
    kinds = [{row["shape"] for row in part["rows"]} for part in data.values()]
    assert all(len(one) > 3 for one in kinds)
    assert {"deep K", "one query", "one row or column"} <= set.union(*kinds)
    assert not re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//[^"]*"', text)


def test_generated_pages_are_built(tmp_path: Path) -> None:
    [path, *_] = STEPS
    (tmp_path / f"{path.stem}.ipynb").write_text(notebooks.notebook(path))
    first = FIRST.replace("one\n", f"one\n{path.stem}\n")
    made = build(tmp_path, index=first, one=command_line.page(), **{path.stem: steps.page(path)})
    assert "tilewright gemm" in (made / "one.html").read_text()
    assert list(made.rglob(f"{path.stem}.ipynb"))


def test_every_verb_is_on_the_page_of_the_command_line() -> None:
    text = command_line.page()
    shown = set(re.findall(r"^## tilewright (\S+)$", text, re.MULTILINE))
    assert shown == {*command_line.verbs()} >= {"gemm", "inspect", "tune", "report"}
