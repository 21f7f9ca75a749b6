"""The page of operations names all public names, and its script writes it."""

from __future__ import annotations

import importlib.util
import re
from operator import attrgetter
from pathlib import Path

import tilewright as tw

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("operations", ROOT / "scripts" / "operations.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page(), "run: python scripts/operations.py"


def test_the_page_names_all_that_authors_can_write_and_nothing_else() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| `tw\.([\w.]+)` \|", text, re.MULTILINE)
    spaces = {name: getattr(tw, name).__all__ for name in ("ck", "hopper", "layouts", "ir", "testing")}
    inside = {f"{space}.{name}" for space, names in spaces.items() for name in names}
    assert sorted([*rows, "DType", "dtype"]) == sorted(
        {*tw.__all__, *inside} - {"__version__", *spaces} | {r for r in rows if r.startswith("atoms.")}
    )
    assert all(attrgetter(name)(tw) for name in re.findall(r"tw\.(\w+(?:\.[A-Za-z]\w*)*)", text))
