"""The page of dataflow kernels lists every refusal of the recorder, with an alternative."""

from __future__ import annotations

import re
from pathlib import Path

from tests.dataflow.refused import CASES

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "dataflow" / "golden"


def refusals() -> list[str]:
    """Yield a row for each refused kernel: its name, the author's line, and the nearest legal choice."""
    found = []
    for kernel in CASES:
        said, _, line, *_ = (GOLDEN / f"{kernel.__name__}.txt").read_text().split("\n")
        before, _, nearest = said.partition("nearest legal choice: ")
        instead = nearest or re.split(r"; (?:use |write )?|would run once; ", before)[-1]
        what = kernel.__name__.replace("_s_", "'s ").replace("_", " ")
        escaped = instead.replace(" | ", r" \| ")
        found.append(f"| {what} | `{line.strip()}` | {escaped} |")
    return sorted(found)


def test_every_refusal_stands_on_the_page() -> None:
    text = (ROOT / "docs" / "dataflow.md").read_text()
    rows = "\n".join(refusals())
    assert rows in text, f"the table of refusals should be:\n{rows}"


def test_the_table_is_complete() -> None:
    assert len(refusals()) == len(CASES) > 50
    assert all(len(row.split(" | ")[2]) > 4 for row in refusals())
    assert all(row.count(" | ") == 2 for row in refusals()), "an unescaped | would begin another cell"
