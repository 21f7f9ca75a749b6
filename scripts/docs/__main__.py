"""Build the site: `python -m scripts.docs [--out DIRECTORY]`.

The pages are staged into a temporary directory; Sphinx makes the site, and each of its warnings is an error.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from scripts.docs import built, command_line, notebooks, pages, performance, reference, steps
from scripts.docs.pages import ROOT, Entry, PageError, Site


def site(names: dict[str, list[reference.Name]]) -> tuple[Site, dict[str, str]]:
    """Return the site of this repository, and the text of its generated pages, given all public names."""
    sources = {path: (ROOT / path).read_text() for path in pages.documents()}
    programs = ROOT.glob("docs/tutorial/step*.py")
    sources |= {path.relative_to(ROOT).as_posix(): steps.page(path) for path in programs}
    made = reference.pages(names)
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
    names = reference.spaces()
    with tempfile.TemporaryDirectory() as place:
        staging = Path(place) / "pages"
        whole, texts = site(names)
        for path, text in texts.items():
            whole.write(staging, path, text)
        for path in ROOT.glob("docs/tutorial/step*.py"):
            whole.write(staging, f"tutorial/{path.stem}.ipynb", notebooks.notebook(path))
        whole.stage(staging)
        sphinx(staging, out)
    built.finish(out, names)


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
