"""Build the site: `python -m scripts.docs [--out DIRECTORY]`.

The pages are staged into a temporary directory; Sphinx makes the site, and each of its warnings is an error.
The directory of the site is emptied first, if this script made it.
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

DEFAULT = ROOT / "build" / "site"
MARK = ".made_by_scripts_docs"
"""A file in each directory that this script made."""


def site(names: dict[str, list[reference.Name]]) -> tuple[Site, dict[str, str]]:
    """Return the site of this repository, and the text of its generated pages, given all public names."""
    sources = {path: (ROOT / path).read_text(encoding="utf-8") for path in pages.documents()}
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
        PageError: a page, a link or a name is wrong, or the directory has files of somebody else; the message
            lists every reason.
    """
    empty(out)
    names = reference.spaces()
    with tempfile.TemporaryDirectory() as place:
        staging = Path(place) / "pages"
        stage(staging, names)
        for path in ROOT.glob("docs/tutorial/step*.py"):
            Site.write(staging, f"tutorial/{path.stem}.ipynb", notebooks.notebook(path))
        sphinx(staging, out)
    built.finish(out, names)


def empty(out: Path) -> None:
    """Remove an earlier site, whose pages may have other names now, and mark the directory.

    Raises:
        PageError: this script did not make the directory, and it has files.
    """
    made = (out / MARK).exists() or out.resolve() == DEFAULT.resolve()
    if out.exists() and not made and (not out.is_dir() or any(out.iterdir())):
        raise PageError(f"--out {out}: not empty, and not a site of this script; nearest: a new directory")
    out.mkdir(parents=True, exist_ok=True)
    for one in out.iterdir():
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one)
        else:
            one.unlink()
    (out / MARK).touch()


def stage(staging: Path, names: dict[str, list[reference.Name]]) -> None:
    """Write all pages of this repository's site, given all public names."""
    whole, texts = site(names)
    for path, text in texts.items():
        whole.write(staging, path, text)
    whole.stage(staging)


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
    parser.add_argument("--out", type=Path, default=DEFAULT)
    asked = parser.parse_args()
    begun = time.monotonic()
    try:
        build(asked.out)
    except PageError as error:
        sys.exit(str(error))
    print(f"{asked.out}/index.html, in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
