"""The page of operations names all that there is, and is the one that its script writes."""

from __future__ import annotations

import importlib.util
import re
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
    rows = re.findall(r"^\| `tw\.(\w+)` \|", text, re.MULTILINE)
    assert sorted([*rows, "DType", "dtype"]) == sorted(set(tw.__all__) - {"__version__"})
    assert all(hasattr(tw, name) for name in re.findall(r"tw\.(\w+)", text))
