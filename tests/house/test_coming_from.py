"""Every line that the page for users of other libraries shows is traced and verified, by itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import verify

PAGE = (Path(__file__).parents[2] / "docs" / "coming_from.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (.*) \| `([^`]*)` \|$", re.MULTILINE)
ROWS = [(there.strip(), here) for there, here in ROW.findall(PAGE)]


@tw.kernel(A="M K", B="N K", C="M N")
def snippet(A, B, C, *, text, folder):
    names: dict[str, Any] = {"tw": tw}
    first = re.search(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert first is not None
    execute(first[1], f"{folder}/names.py", names)
    within = {**names, **names["names"](A, B, C)}
    execute(f"def used():\n    {text}\n", f"{folder}/snippet.py", within)["used"]()


def execute(text: str, name: str, names: dict[str, Any]) -> dict[str, Any]:
    """Execute what a file says, which recording reads again."""
    Path(name).write_text(text, encoding="utf-8")
    exec(compile(text, name, "exec"), names)
    return names


def test_all_tables_are_read() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| There")]
    assert len(ROWS) == len(lines) >= 70


@pytest.mark.parametrize(("there", "here"), ROWS, ids=[there[:40] for there, _ in ROWS])
def test_each_line_is_legal(there: str, here: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((128, 64)).astype(np.float16) for _ in range(2))
    kernel = snippet.trace(a, b, np.empty((128, 128), np.float16), text=here, folder=str(tmp_path))
    assert verify.violations(kernel) == []
