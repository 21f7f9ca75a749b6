"""The page of the tuned instance is what its script writes; by another compiler, in what all agree on."""

from __future__ import annotations

import runpy
from pathlib import Path

from tilewright.runtime.amdgcn import find_toolchain

WRITER = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "amd_instance.py"))


def test_the_page_is_what_is_generated() -> None:
    said = WRITER["PAGE"].read_text()
    if f"the listing is that of {find_toolchain()}, other versions" in said:
        assert said == WRITER["page"](), "run: python scripts/amd_instance.py"
    rows = [*WRITER["beside"](WRITER["report"]())]
    common = [row for row in rows if row[1] != ""]
    assert len(common) == len(rows) - 4
    for row in common[:7]:
        assert f"| {' | '.join(map(str, row))} |" in said.splitlines()
