"""Write the tutorial's programs as pages: their explanation, their share of cuBLAS, their code."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

from scripts.docs.pages import ROOT, fenced

MEASURED = ROOT / "benchmarks" / "results" / "h200_tutorial.json"


def page(path: Path) -> str:
    """Return a program of the tutorial as a page."""
    title, prose, code = parts(path.read_text(encoding="utf-8"))
    book = f"[Download this page as a notebook]({path.stem}.ipynb)"
    return (
        f"# {title}\n\n{share(path.stem)}\n\n{book}\n\n{prose}\n\n## The program\n\n{fenced(code, 'python')}"
    )


def parts(text: str) -> tuple[str, str, str]:
    """Return the title, the explanation, and the code of a program."""
    tree = ast.parse(text)
    doc = ast.get_docstring(tree) or ""
    title, _, rest = doc.partition("\n")
    paragraphs = [one for one in re.split(r"\n\s*\n", rest.strip()) if not one.startswith("Share of cuBLAS")]
    shown = [fenced(one.strip(), "sh") if one.startswith("    ") else one for one in paragraphs]
    first = tree.body[1].lineno - 1
    return title.rstrip("."), "\n\n".join(shown).replace("  ", " "), "\n".join(text.splitlines()[first:])


def share(stem: str) -> str:
    """Return the sentence about a program's measured share of cuBLAS."""
    found = json.loads(MEASURED.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = [row for row in found["rows"] if row["step"] == stem]
    machine = found["machine"]
    shares = ", ".join(
        "**{:.2f}** [{:.3f}, {:.3f}]".format(*row["speed"]) + f" at {'×'.join(map(str, row['shape']))}"
        for row in rows
    )
    return (
        f"Share of cuBLAS (bf16) on {machine['device']['name']}, commit {machine['commit']}: {shares}. "
        "The brackets are the 95 % interval."
    )
