"""What becomes of the site after Sphinx: smaller markup, pages of source, and a count of clicks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from urllib.parse import unquote

from scripts.docs.pages import ROOT, PageError
from scripts.docs.reference import Name

MOST_CLICKS = 3
LARGEST_MB = 20

SPANS = re.compile(r'<span class="(?:pre|w|p|n)">([^<]*)</span>')
PARAMETERS = re.compile(r"<dl>\n<dd>.*?</dl>", re.DOTALL)
KEPT_AS_IT_IS = re.compile(r"(<(pre|script|style|textarea)\b.*?</\2>)", re.DOTALL)
INDENTS = re.compile(r"\n\s+")
LINK = re.compile(r"<a\s[^>]*>")
HREF = re.compile(r'href="([^"]*)"')

SOURCE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{path} - tilewright</title>
<style>:root {{ color-scheme: light dark }} a {{ color: light-dark(#0a4bd0, #8ab4ff) }}
body {{ margin: 1rem; font-family: sans-serif; overflow-wrap: anywhere;
color: light-dark(#000000, #e0e0e0); background: light-dark(#ffffff, #131416) }}
pre {{ overflow-x: auto; font-size: 0.8rem }} pre :target {{ outline: 2px solid }}</style></head>
<body><main><h1>{path}</h1><p><a href="{home}">tilewright</a></p>
<pre tabindex="0">{text}</pre></main></body></html>
"""


def finish(out: Path, names: dict[str, list[Name]]) -> None:
    """Complete the site that Sphinx wrote.

    Raises:
        PageError: a link leads nowhere, a public name is too many clicks away, or the site is too large.
    """
    twice = shown_twice(out)
    for path in out.rglob("*.html"):
        text = tidy(path.read_text(encoding="utf-8"))
        for download, picture in twice.items():
            text = text.replace(download, picture)
        path.write_text(text, encoding="utf-8")
    write_sources(out, [name for space in names.values() for name in space])
    addresses = {
        f"reference/{spelled.replace('tilewright.', '').replace('tw.', '')}.html#{one.full}"
        for spelled, space in names.items()
        for name in space
        for one in (name, *name.members)
    }
    check_clicks(out, addresses)
    check_size(out)


def shown_twice(out: Path) -> dict[str, str]:
    """Remove downloads that are pictures of a page, too; return the picture's address for each of them."""
    found: dict[str, str] = {}
    for path in sorted((out / "_downloads").rglob("*.*")):
        picture = out / "_images" / path.name
        if picture.is_file() and picture.read_bytes() == path.read_bytes():
            found[path.relative_to(out).as_posix()] = picture.relative_to(out).as_posix()
            path.unlink()
    return found


def tidy(text: str) -> str:
    """Return a page of Sphinx with less markup, and without what screen readers cannot read.

    Spaces, punctuation, names and words of literals lose their spans, whose colour is that of the text. A
    list of parameters in a signature has descriptions without terms, and a table may have an empty heading.
    Lines lose their indentation, except in code and scripts.

    Example:
        >>> tidy('<dl>\\n<dd>a,</dd>\\n</dl><th class="head"><p></p></th><span class="w"> </span>')
        '<div>\\n<div>a,</div>\\n</div><td></td> '
    """
    text = SPANS.sub(r"\1", text.replace('<th class="head"><p></p></th>', "<td></td>"))
    text = PARAMETERS.sub(lambda found: re.sub(r"(</?)d[ld]\b", r"\1div", found[0]), text)
    parts = KEPT_AS_IT_IS.split(text)  # text, a part that is kept, its tag, text, ...
    kept = (part if at % 3 else INDENTS.sub("\n", part) for at, part in enumerate(parts) if at % 3 < 2)
    return "".join(kept)


def write_sources(out: Path, names: Iterable[Name]) -> None:
    """Write a page for each file that defines public names, with an anchor at each definition."""
    of_files: dict[str, list[str]] = {}
    for name in names:
        if name.file:
            of_files.setdefault(name.file, []).append(name.full)
    for path, defined in of_files.items():
        text = escape((ROOT / path).read_text(encoding="utf-8"), quote=False)
        for full in defined:
            line = rf"^(?:def|class) {re.escape(full.rpartition('.')[2])}\b"
            text = re.sub(
                line, lambda found, full=full: f'<b id="{full}">{found[0]}</b>', text, count=1, flags=re.M
            )
        place = out / "source" / f"{path}.html"
        place.parent.mkdir(parents=True, exist_ok=True)
        home = os.path.relpath(out / "index.html", place.parent)
        place.write_text(SOURCE.format(path=path, text=text, home=home), encoding="utf-8")


def links(site: Path, page: str) -> Iterator[str]:
    """Yield the addresses that a page links to, relative to the site; a heading's link to itself is none."""
    for tag in LINK.findall((site / page).read_text(encoding="utf-8")):
        found = HREF.search(tag)
        if found is None or "headerlink" in tag or ":" in found[1].partition("#")[0]:
            continue
        target, hash_, anchor = found[1].partition("#")
        to = os.path.normpath(Path(page).parent / unquote(target)).replace(os.sep, "/") if target else page
        yield f"{to}{hash_}{unquote(anchor)}" if anchor else to


def clicks(site: Path) -> dict[str, int]:
    """Return for each address how many clicks a reader needs from the first page.

    Raises:
        PageError: links lead nowhere.
    """
    found, level, opened, count = {"index.html": 0}, ["index.html"], set[str](), 0
    while level:
        count += 1
        opened |= {*level}
        following = dict[str, None]()
        for page in level:
            for address in links(site, page):
                to = address.partition("#")[0]
                found.setdefault(to, count)
                found.setdefault(address, count)
                if to.endswith(".html") and to not in opened and (site / to).exists():
                    following[to] = None
        level = [*following]
    missing = sorted({address.partition("#")[0] for address in found})
    if absent := [one for one in missing if not (site / one).exists()]:
        raise PageError(
            "\n".join(f"{one}: a link of the site leads there, and it is not there" for one in absent)
        )
    return found


def check_clicks(site: Path, addresses: Iterable[str]) -> None:
    """Refuse a site on which an address is more than `MOST_CLICKS` clicks from the first page.

    Raises:
        PageError: one is, or no link leads to it.
    """
    needed = clicks(site)
    far = [
        f"{one}: {needed.get(one, 'no way')} clicks from the first page, more than {MOST_CLICKS}"
        for one in sorted(addresses)
        if needed.get(one, MOST_CLICKS + 1) > MOST_CLICKS
    ]
    if far:
        raise PageError("\n".join(far))


def check_size(out: Path) -> None:
    """Refuse a site of more than `LARGEST_MB` megabytes.

    Raises:
        PageError: it is larger.
    """
    megabytes = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 1e6
    if megabytes > LARGEST_MB:
        raise PageError(f"the site has {megabytes:.1f} MB, more than {LARGEST_MB}")
