"""Build the site: `python -m scripts.docs [--out DIRECTORY]`.

The pages are staged into a temporary directory; Sphinx makes the site, and each of its warnings is an error.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from scripts.docs import command_line, notebooks, pages, performance, reference, steps
from scripts.docs.pages import ROOT, Entry, PageError, Site


def site() -> tuple[Site, dict[str, str]]:
    """Return the site of this repository, and the text of its generated pages."""
    sources = {path: (ROOT / path).read_text() for path in pages.documents()}
    programs = ROOT.glob("docs/tutorial/step*.py")
    sources |= {path.relative_to(ROOT).as_posix(): steps.page(path) for path in programs}
    made = reference.pages(reference.spaces())
    generated: dict[str, dict[str, Entry]] = {
        "Reference": {
            **{place: entry for place, (entry, _) in made.items()},
            "command_line.md": Entry("Command line", "command_line.md"),
        },
        "Performance": {"performance.md": Entry("Plots", "performance.md")},
        "Inside": {"files/index.md": Entry("Programs and files", "files/index.md")},
    }
    texts = {place: text for place, (_, text) in made.items()}
    texts |= {"command_line.md": command_line.page(), "performance.md": performance.page()}
    return Site(sources, generated), texts


def build(out: Path) -> None:
    """Write the site into a directory.

    Raises:
        PageError: a page, a link or a name is wrong; the message lists every reason.
    """
    with tempfile.TemporaryDirectory() as place:
        staging = Path(place) / "pages"
        whole, texts = site()
        for path, text in texts.items():
            whole.write(staging, path, text)
        for path in ROOT.glob("docs/tutorial/step*.py"):
            whole.write(staging, f"tutorial/{path.stem}.ipynb", notebooks.notebook(path))
        whole.stage(staging)
        sphinx(staging, out)
    for path in out.rglob("*.html"):
        path.write_text(tidy(path.read_text()))
    check_size(out)


SPANS = re.compile(r'<span class="(?:pre|w|p)">([^<]*)</span>')
PARAMETERS = re.compile(r"<dl>\n<dd>.*?</dl>", re.DOTALL)


def tidy(text: str) -> str:
    """Return a page of Sphinx with less markup, and without what screen readers cannot read.

    Spaces, punctuation and words of literals lose their spans, whose colour is that of the text. A list of
    parameters in a signature has descriptions without terms, and a table may have an empty heading.

    Example:
        >>> tidy('<dl>\\n<dd>a,</dd>\\n</dl><th class="head"><p></p></th><span class="w"> </span>')
        '<div>\\n<div>a,</div>\\n</div><td></td> '
    """
    text = SPANS.sub(r"\1", text.replace('<th class="head"><p></p></th>', "<td></td>"))
    return PARAMETERS.sub(lambda found: re.sub(r"(</?)d[ld]\b", r"\1div", found[0]), text)


LARGEST_MB = 20


def check_size(out: Path) -> None:
    """Refuse a site of more than `LARGEST_MB` megabytes.

    Raises:
        PageError: it is larger.
    """
    megabytes = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 1e6
    if megabytes > LARGEST_MB:
        raise PageError(f"the site has {megabytes:.1f} MB, more than {LARGEST_MB}")


def sphinx(staging: Path, out: Path) -> None:
    """Make a site from staged pages.

    Raises:
        PageError: Sphinx warned.
    """
    from sphinx.cmd.build import build_main

    configuration = ["-c", str(Path(__file__).parent), "-d", str(out / ".doctrees")]
    strict = ["-W", "--keep-going", "-q", "-j", "auto"]
    failed = build_main([*configuration, *strict, str(staging), str(out)])
    shutil.rmtree(out / ".doctrees", ignore_errors=True)
    if failed:
        raise PageError("Sphinx warned; the lines above say of what")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    asked = parser.parse_args()
    begun = time.monotonic()
    try:
        build(asked.out)
    except PageError as error:
        sys.exit(str(error))
    print(f"{asked.out}/index.html, in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
