"""Stage the pages of the site: Markdown of the repository, with links that fit the site.

`docs/README.md` is the first page, and its lists of links are the navigation: each heading of level 2 is a
section, each item of a list begins with a link to a page.  The README of another directory, such as
`docs/decisions`, has the other pages of its directory below it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
HOME = "docs/README.md"

FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<before>!?\[(?:[^\]\[]|\[[^\]]*\])*\]\()(?P<target>[^)\s]+)(?P<after>\))")
ITEM = re.compile(r"^- \[(?P<label>[^\]]+)\]\((?P<target>[^)\s#]+)\)", re.MULTILINE)
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)

SHOWN = {".py": "python", ".cpp": "cpp", ".h": "cpp", ".txt": "text", "": "text"}
"""Suffixes of files that have a page of their own if another page links to them, and their languages."""

IMAGES = (".svg", ".png")


class PageError(Exception):
    """Raised if the pages cannot become a site; the message lists every reason."""


class Entry(NamedTuple):
    """A page in the navigation: its label, and its path in the repository or on the site."""

    label: str
    path: str


def documents() -> list[str]:
    """Return the paths of all pages for readers, relative to the repository."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def launched(path: str) -> bool:
    """Return whether tests launch the Python blocks of a page."""
    return "/" not in path or path.startswith("docs/")


UNLAUNCHED = {
    r"sh dev (demo|test)": "CI runs the second, and scripts/fresh_clone.py both",
    r"git clone .*": "needs a network",
    r"pip install .*": "installs packages",
    r"for name in .*; do|    python examples/work/.*|done": "tests/house/test_work.py runs these programs",
    r"tilewright (profile|tune) gemm (?!.*--why).*--target cuda.*": "measures on an NVIDIA GPU",
    r"tilewright tune kernels\.py:.*": "measures a kernel of the reader's file on a GPU",
    r"tilewright profile (attention|einsum) .*": "measures every candidate, for minutes",
}
"""Lines of shell blocks that tests do not launch, each with the reason."""


def blocks(text: str, language: str) -> list[str]:
    """Return the code blocks of a page in a language, which begin at the left margin."""
    return [fence["body"] for fence in FENCE.finditer(text) if fence["language"] == language]


def commands(block: str) -> list[str]:
    """Return the lines of a shell block that tests launch: all but those in `UNLAUNCHED`.

    Example:
        >>> commands("pip install .\\ntilewright cache\\n")
        ['tilewright cache']
    """
    lines = [line for line in block.splitlines() if line.strip()]
    return [line for line in lines if not any(re.fullmatch(one, line) for one in UNLAUNCHED)]


def unlaunched(path: str, text: str) -> list[str]:
    """Return a sentence for each code block of a page that no test launches.

    Tests launch blocks that begin with three backticks and `python` at the left margin, and the commands of
    `tilewright` in blocks of `sh`.

    Example:
        >>> unlaunched("docs/page.md", "1. Do\\n\\n   ```python\\n   print()\\n   ```\\n")
        ["docs/page.md: no test launches the block that begins with 'print()'"]
    """
    found = []
    known = set()
    if launched(path):
        shell = blocks(text, "sh")
        foreign = {one for one in shell for line in commands(one) if not line.startswith("tilewright ")}
        known = {block.strip() for block in {*blocks(text, "python"), *shell} - foreign}
    for token in MarkdownIt().parse(text):
        if token.type not in ("fence", "code_block"):
            continue
        language, body = token.info.strip(), token.content.strip()
        code = language not in OUTPUT
        if (code or body.startswith(">>>")) and body not in known:
            first = body.partition("\n")[0]
            found.append(f"{path}: no test launches the block that begins with {first!r}")
    return found


OUTPUT = ("text", "cpp")
"""Languages of blocks that show output, or programs in C++, which `tests/shipping` compiles."""


def navigation(text: str) -> dict[str, list[Entry]]:
    """Return the sections of the first page, each with its entries in order."""
    parts = HEADING.split(without_code(text))
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {
        name: [Entry(item["label"], resolve(item["target"], HOME)) for item in ITEM.finditer(body)]
        for name, body in sections.items()
        if ITEM.search(body)
    }


def without_code(text: str) -> str:
    """Return a page without the contents of its code blocks."""
    return FENCE.sub("", text)


def resolve(target: str, page: str) -> str:
    """Return a link's target relative to the repository.

    Example:
        >>> resolve("../examples/02_basic_gemm.py", "docs/amd.md")
        'examples/02_basic_gemm.py'
    """
    return os.path.normpath(PurePosixPath(page).parent / target).replace(os.sep, "/")


def staged(path: str) -> str:
    """Return a page's place on the site.

    Example:
        >>> [staged(path) for path in ("docs/README.md", "docs/amd.md", "README.md", "examples/00_matmul.py")]
        ['index.md', 'amd.md', 'readme.md', 'files/examples/00_matmul.py.md']
    """
    if path == HOME:
        return "index.md"
    if path == "README.md":
        return "readme.md"
    place = path.removeprefix("docs/")
    if place.endswith("README.md"):
        return place.replace("README.md", "index.md")
    if place.endswith(".md"):
        return place
    if is_step(path):
        return place.removesuffix(".py") + ".md"
    return f"files/{path}.md"


def is_step(path: str) -> bool:
    """Return whether a path is a program of the tutorial, which becomes a page."""
    return re.fullmatch(r"docs/tutorial/step\w+\.py", path) is not None


def links(text: str) -> Iterator[str]:
    """Yield the targets of a page's links to files of the repository."""
    for found in LINK.finditer(without_code(text)):
        target = found["target"].partition("#")[0]
        if target and "://" not in target:
            yield target


class Site:
    """The pages of the site, by their place on it.

    Args:
        sources: text of each page of the repository, by its path.
        generated: text of each page that exists only on the site, by its place, for each section.
    """

    def __init__(self, sources: Mapping[str, str], generated: Mapping[str, Mapping[str, Entry]] = {}) -> None:
        self.sources = dict(sources)
        self.generated = generated
        self.sections = navigation(self.sources[HOME])
        self.files: set[str] = set()
        self.problems: list[str] = []

    def children(self, page: str) -> list[str]:
        """Return the pages below a page: all others of its directory, if it is the README there."""
        if not page.endswith("/README.md") or page == HOME:
            return []
        there = PurePosixPath(page).parent
        return sorted(path for path in self.sources if PurePosixPath(path).parent == there and path != page)

    def outside(self) -> list[str]:
        """Return the pages that the navigation does not reach."""
        listed = [entry.path for entries in self.sections.values() for entry in entries]
        below = [child for page in listed if page in self.sources for child in self.children(page)]
        return sorted({*self.sources} - {HOME, *listed, *below})

    def stage(self, out: Path) -> None:
        """Write all pages and the files that they need into a directory."""
        self.problems += [
            f"{page}: outside the navigation; add it to a list of {HOME}" for page in self.outside()
        ]
        for page, text in self.sources.items():
            if not is_step(page):
                self.problems += unlaunched(page, text)
            self.write(out, staged(page), self.rewritten(text, page) + self.below(page))
        self.write_files(out)
        if self.problems:
            raise PageError("\n".join(self.problems))

    @staticmethod
    def write(out: Path, place: str, text: str) -> None:
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        (out / place).write_text(text, encoding="utf-8")

    def below(self, page: str) -> str:
        """Return the table of contents at the end of a page."""
        if page != HOME:
            children = self.children(page)
            linked = {resolve(target, page) for target in links(self.sources[page])}
            rows = [
                f"- [{title(self.sources[child])}]({PurePosixPath(staged(child)).name})\n"
                for child in children
                if child not in linked
            ]
            tree = toctree("", [PurePosixPath(staged(child)).stem for child in children]) if children else ""
            return "\n" + "".join(rows) + tree
        parts = []
        for name, entries in self.sections.items():
            places = [(entry.label, staged(entry.path)) for entry in entries]
            places += [(entry.label, place) for place, entry in self.generated.get(name, {}).items()]
            parts.append(toctree(name, [f"{label} <{place.removesuffix('.md')}>" for label, place in places]))
        return "".join(parts)

    def rewritten(self, text: str, page: str) -> str:
        """Return a page whose links lead to places of the site."""

        def changed(found: re.Match[str]) -> str:
            target, hash_, anchor = found["target"].partition("#")
            if not target or "://" in target or target.endswith(".ipynb"):
                return found[0]  # notebooks are made for the site
            return (
                f"{found['before']}{self.place(resolve(target, page), page)}{hash_}{anchor}{found['after']}"
            )

        parts, end = [], 0
        for fence in FENCE.finditer(text):
            parts += [LINK.sub(changed, text[end : fence.start()]), console(fence)]
            end = fence.end()
        return "".join([*parts, LINK.sub(changed, text[end:])])

    def place(self, path: str, page: str) -> str:
        """Return the link from a page to a file of the repository."""
        if path not in self.sources:
            if not (ROOT / path).exists():
                self.problems.append(f"{page}: {path} does not exist")
                return path
            self.files.add(path)
        there = staged(path) if path in self.sources or self.shown(path) else f"files/{path}"
        return os.path.relpath(there, Path(staged(page)).parent).replace(os.sep, "/")

    @staticmethod
    def shown(path: str) -> bool:
        return (ROOT / path).is_dir() or Path(path).suffix in SHOWN

    def write_files(self, out: Path) -> None:
        """Write a page for each file that a page links to, and an index of them."""
        for path in sorted(self.files):
            source = ROOT / path
            if source.is_dir():
                inside = sorted(one for one in source.iterdir() if one.is_file())
                listed = [
                    f"- [{one.name}]({source.name}/{one.name}), {one.stat().st_size} bytes" for one in inside
                ]
                self.write(out, staged(path), "\n".join([f"# {path}\n", *listed, ""]))
                for one in inside:
                    self.copy(out, f"{path}/{one.name}")
            elif self.shown(path):
                language = SHOWN[source.suffix]
                text = source.read_text(encoding="utf-8")
                self.write(out, staged(path), f"# {path}\n\n{fenced(text, language)}")
            else:
                self.copy(out, path)
        pages = [path for path in sorted(self.files) if self.shown(path)]
        rows = [f"- [{path}]({path}.md)" for path in pages]
        head = "# Programs and files\n\nThe pages of this site name these files of the repository.\n"
        tree = toctree("", pages)
        self.write(out, "files/index.md", "\n".join([head, *rows, tree]))

    @staticmethod
    def copy(out: Path, path: str) -> None:
        place = out / "files" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        found = (ROOT / path).read_bytes()
        if path.endswith(".json"):  # without the spaces, which are a quarter of it
            found = json.dumps(json.loads(found), separators=(",", ":"), ensure_ascii=False).encode()
        place.write_bytes(found)


def title(text: str) -> str:
    """Return the heading of a page."""
    return text.partition("\n")[0].removeprefix("# ")


def fenced(text: str, language: str) -> str:
    """Return a code block whose fence is longer than any in the text."""
    longest = max((len(run) for run in re.findall(r"^`{3,}", text, re.MULTILINE)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


def console(fence: re.Match[str]) -> str:
    """Return a code block; a session of Python is highlighted as one, without the empty line at its end.

    Example:
        >>> console(FENCE.match("```python\\n>>> 1 + 1\\n2\\n\\n```\\n"))
        '```pycon\\n>>> 1 + 1\\n2\\n```'
    """
    if not fence["body"].startswith(">>>"):
        return fence[0]
    return f"```pycon\n{fence['body'].rstrip()}\n```"


def toctree(caption: str, lines: list[str]) -> str:
    """Return a hidden table of contents, from which the sidebar is made."""
    head = f":caption: {caption}\n" if caption else ""
    return "\n```{toctree}\n:hidden:\n" + head + "\n" + "\n".join(lines) + "\n```\n"
