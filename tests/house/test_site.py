"""Pages of the site: all are in the navigation, their blocks are launched, every public name is described.

`tests/docs` builds the site with Sphinx.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from scripts import life, see_site
from scripts.docs import __main__ as docs
from scripts.docs import built, pages, reference
from scripts.docs.pages import HOME, ROOT, PageError, Site

FIRST = "# First\n\n## Start\n\n- [One](one.md): the only page.\n"


def site_of(**more: str) -> Site:
    return Site(
        {HOME: FIRST, "docs/one.md": "# One\n", **{f"docs/{name}.md": text for name, text in more.items()}}
    )


def test_every_page_is_in_the_navigation() -> None:
    site = Site({path: (ROOT / path).read_text() for path in pages.documents()})
    assert site.outside() == [], f"add them to a list of {HOME}"


def test_a_page_outside_the_navigation_is_refused(tmp_path: Path) -> None:
    site_of().stage(tmp_path / "whole")
    with pytest.raises(PageError, match=r"docs/two\.md: outside the navigation"):
        site_of(two="# Two\n").stage(tmp_path / "more")


def test_a_link_to_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"docs/one\.md: docs/three\.md does not exist"):
        site_of(one="# One\n\n[three](three.md)\n").stage(tmp_path)


@pytest.mark.parametrize("path", pages.documents())
def test_every_block_is_launched(path: str) -> None:
    assert pages.unlaunched(path, (ROOT / path).read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "- item\n\n  ```python\n  print()\n  ```\n",
        "```py\nprint()\n```\n",
        "    >>> print()\n",
        "```\n>>> print()\n```\n",
    ],
    ids=["inside an item", "another language", "indented", "no language"],
)
def test_a_block_that_no_test_launches_is_refused(text: str, tmp_path: Path) -> None:
    assert not pages.unlaunched("docs/one.md", "```python\nprint()\n```\n")
    assert pages.unlaunched("benchmarks/one.md", "```python\nprint()\n```\n")
    with pytest.raises(PageError, match=r"docs/one\.md: no test launches the block"):
        site_of(one=f"# One\n\n{text}").stage(tmp_path)


def test_every_public_name_is_on_a_page() -> None:
    found = reference.spaces()
    texts = {place: text for place, (_, text) in reference.pages(found).items()}
    for spelled, names in found.items():
        [place] = [
            place for place, (entry, _) in reference.pages({spelled: names}).items() if entry.label == spelled
        ]
        for name in names:
            assert f"}} {name.full}" in texts[place]
    assert sum(map(len, found.values())) > 300


def test_a_public_name_without_a_docstring_is_refused() -> None:
    bare = reference.Name("tw.bare", "function", "()", "", "src/tilewright/public.py")
    with pytest.raises(PageError, match=r"tw\.bare: a public name without a docstring"):
        reference.pages({"tw": [bare]})


def test_links_of_staged_pages_lead_to_places_of_the_site(tmp_path: Path) -> None:
    text = "# One\n\n[p](../examples/00_matmul.py) [r](README.md#start)\n\n```text\n[kept](README.md)\n```\n"
    site_of(one=text).stage(tmp_path)
    staged = (tmp_path / "one.md").read_text()
    assert "[p](files/examples/00_matmul.py.md) [r](index.md#start)" in staged
    assert "[kept](README.md)" in staged
    assert (tmp_path / "files/examples/00_matmul.py.md").exists()


def page_with(*links: str) -> str:
    return "".join(f'<a class="reference" href="{link}">x</a>' for link in links)


def test_a_name_that_is_too_many_clicks_away_is_refused(tmp_path: Path) -> None:
    """A heading's link to itself counts for nothing, and a link must lead somewhere."""
    (tmp_path / "index.html").write_text(page_with("one.html", "https://far.html"))
    (tmp_path / "one.html").write_text(page_with("index.html", "two.html"))
    (tmp_path / "two.html").write_text(page_with("#near", "three.html"))
    (tmp_path / "three.html").write_text(page_with("#far") + '<a class="headerlink" href="#self">x</a>')
    assert built.clicks(tmp_path)["two.html#near"] == 3
    built.check_clicks(tmp_path, ["two.html#near", "three.html"])
    with pytest.raises(PageError, match=r"three\.html#far: 4 clicks from the first page, more than 3"):
        built.check_clicks(tmp_path, ["three.html#far"])
    with pytest.raises(PageError, match=r"three\.html#self: no way"):
        built.check_clicks(tmp_path, ["three.html#self"])
    (tmp_path / "two.html").unlink()
    with pytest.raises(PageError, match=r"two\.html: a link of the site leads there"):
        built.clicks(tmp_path)


def test_a_page_of_source_has_an_anchor_for_each_name(tmp_path: Path) -> None:
    names = [name for space in reference.spaces().values() for name in space if name.file]
    built.write_sources(tmp_path, names)
    without = [
        name.full
        for name in names
        if f'<b id="{name.full}">' not in (tmp_path / "source" / f"{name.file}.html").read_text()
    ]
    assert without == []


def test_the_life_of_a_kernel_names_what_is_there() -> None:
    assert life.PICTURE.read_text() == life.drawn(), "python scripts/life.py"
    for step in (*life.STEPS, *life.ASIDE.values()):
        tree = ast.parse((ROOT / "src" / "tilewright" / step.file).read_text())
        defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        assert step.name in defined, step
    assert {*life.ASIDE} <= {step.verb for step in life.STEPS}


def test_the_whole_site_was_seen_without_findings() -> None:
    text = (ROOT / "docs" / "site_seen.json").read_text()
    found = json.loads(text)
    assert text == see_site.record(found["browser"].removeprefix("Chromium "), found["seen"])
    assert [name for name, one in found["seen"].items() if one["findings"]] == []


def test_every_page_of_the_site_was_seen(tmp_path: Path) -> None:
    """See new and renamed pages with `scripts/see_site.py`; CONTRIBUTING.md says how."""
    names = reference.spaces()
    docs.stage(tmp_path, names)
    built.write_sources(tmp_path, [name for space in names.values() for name in space])
    there = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.suffix in (".md", ".html")}
    there |= {Path("genindex.html"), Path("search.html")}  # which Sphinx adds
    seen = json.loads((ROOT / "docs" / "site_seen.json").read_text())["seen"]
    assert {*seen} ^ {path.with_suffix(".html").as_posix() for path in there} == set()


def test_pages_that_are_not_seen_again_keep_what_was_found(tmp_path: Path) -> None:
    there = ["bad.html", "changed.html", "same.html"]
    for name in there:
        (tmp_path / name).write_text(name)
    before = {name: {"hash": see_site.digest(tmp_path / name), "findings": {}} for name in there}
    before["bad.html"]["findings"] = {"dark": ["color-contrast"]}
    before["renamed.html"] = before["same.html"]
    (tmp_path / "changed.html").write_text("otherwise")
    assert list(see_site.kept(tmp_path, before, there, there)) == ["same.html"]
    assert list(see_site.kept(tmp_path, before, ["changed.html"], there)) == ["bad.html", "same.html"]


def test_an_earlier_site_is_removed_and_files_of_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise PageError("no names")

    monkeypatch.setattr(reference, "spaces", fail)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    (theirs / "index.html").write_text("theirs")
    with pytest.raises(PageError, match=r"theirs: not empty, and not a site of this script; nearest: a new"):
        docs.build(theirs)
    assert (theirs / "index.html").read_text() == "theirs"
    for _ in range(2):
        with pytest.raises(PageError, match="no names"):
            docs.build(ours)
        assert [one.name for one in ours.iterdir()] == [docs.MARK]
        (ours / "source").mkdir()
        (ours / "source" / "old.html").write_text("old")
        (ours / "link").symlink_to(theirs)
    assert (theirs / "index.html").exists()


def test_scripts_of_the_site_name_the_encoding_of_each_file() -> None:
    calls = [
        (f"{path.name}:{node.lineno}", {one.arg: ast.unparse(one.value) for one in node.keywords})
        for path in sorted(Path(docs.__file__).parent.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".read_text", ".write_text"))
    ]
    assert len(calls) > 10
    assert [where for where, words in calls if words.get("encoding") != "'utf-8'"] == []


def test_texts_of_errors_are_expected_texts_of_tests() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    shown = [one.partition(" -->\n```text\n") for one in text.split("<!-- ")[1:]]
    assert len(shown) == text.count("```text\n") > 3
    for path, _, rest in shown:
        assert rest.partition("```\n")[0] in (ROOT / path).read_text()
