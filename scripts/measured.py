"""Write measured figures into the pages that quote them: `python scripts/measured.py`.

README.md quotes `benchmarks/results/h200_dense.json`, the steps of the tutorial
`benchmarks/results/h200_tutorial.json`.  A page whose file is not there stays as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
OURS, RIVAL = "tilewright", "cuBLAS"

HEADLINES = {
    "bf16 nt 4096³": "4096³",
    "bf16 nt 8192³": "8192³",
    "bf16 nt 16384³": "16384³",
    "bf16 nt 8192×14336×4096": "8192 × 14336 × 4096",
    "bf16 nn 4096³": "4096³, B contiguous along N",
    "bf16 nt 4096³ bias_gelu": "4096³, with bias and GELU, over PyTorch's fused call",
    "bf16 nt 4096³ residual": "4096³, with a residual, over PyTorch's best call",
    "f8e4m3 nt 8192³": "8192³ in fp8 (e4m3)",
}
"""Problems of the dense benchmark that the README quotes, in its words."""

TABLE = re.compile(r"(<!-- measured: [^\n]* -->\n(?:\|[^\n]*\n){2}).*?(<!-- end -->)", re.DOTALL)
SHARE = re.compile(r"^Share of cuBLAS on an H200 \(bf16\): .*$", re.MULTILINE)


def pages() -> Iterator[tuple[Path, str]]:
    """The pages that quote figures, each with what it should say."""
    dense, tutorial = RESULTS / "h200_dense.json", RESULTS / "h200_tutorial.json"
    if dense.exists():
        readme = ROOT / "README.md"
        yield readme, with_table(readme.read_text(), json.loads(dense.read_text())["rows"])
    if tutorial.exists():
        rows = json.loads(tutorial.read_text())["rows"]
        for step in sorted((ROOT / "docs" / "tutorial").glob("step*.py")):
            yield step, with_share(step.read_text(), [row for row in rows if row["step"] == step.stem])


def with_table(text: str, rows: list[dict[str, Any]]) -> str:
    """A page whose table has the headlines of the dense benchmark, each beside the fastest of its rivals."""
    # Problems are measured again beside the hand-written kernel, under its schedule: the first row counts.
    timed = [row for row in reversed(rows) if row.get("speed")]
    found = {row["problem"]: slowest(row["speed"][OURS]) for row in timed}
    lines = [f"| {said} | {found[name]:.2f} |\n" for name, said in HEADLINES.items() if name in found]
    assert lines, "none of the problems that the README quotes was measured"
    return TABLE.sub(lambda match: match[1] + "".join(lines) + match[2], text)


def slowest(speeds: dict[str, list[float]]) -> float:
    """The least of the speeds over PyTorch's calls, which is that over the fastest of them."""
    return min(speed[0] for rival, speed in speeds.items() if rival.startswith(RIVAL))


def with_share(text: str, rows: list[dict[str, Any]]) -> str:
    """A step of the tutorial with its speed over cuBLAS."""
    assert rows, "a step was not measured"
    shares = ", ".join(f"{row['speed'][0]:.2f} at {row['shape'][0]}³" for row in rows)
    return SHARE.sub(f"Share of cuBLAS on an H200 (bf16): {shares}.", text)


def main() -> None:
    for path, text in pages():
        path.write_text(text)


if __name__ == "__main__":
    main()
