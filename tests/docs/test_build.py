"""Sphinx builds the site, and each of its warnings is an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts.docs.__main__ import sphinx
from scripts.docs.pages import PageError

pytestmark = pytest.mark.docs

FIRST = "# First\n\nText.\n\n```{toctree}\n\none\n```\n"


def build(place: Path, **texts: str) -> Path:
    for name, text in {"index": FIRST, **texts}.items():
        (place / f"{name}.md").write_text(text)
    sphinx(place, place / "out")
    return place / "out"


def test_a_small_site_is_built(tmp_path: Path) -> None:
    made = build(tmp_path, one="# One\n\n[first](index.md#first)\n")
    assert 'href="index.html#first"' in (made / "one.html").read_text()


@pytest.mark.parametrize(
    "text",
    ["[x](nothing.md)", "[x](index.md#nothing)", "{py:obj}`x <tw.nothing\n```{unknown}\n```"],
    ids=["page", "anchor", "directive"],
)
def test_what_sphinx_warns_of_fails(tmp_path: Path, text: str) -> None:
    with pytest.raises(PageError):
        build(tmp_path, one=f"# One\n\n{text}\n")
