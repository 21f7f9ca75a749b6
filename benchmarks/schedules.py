"""Schedules of one problem on a GPU compared with PyTorch: each is verified, then all are timed.

    python benchmarks/schedules.py FILE [--shape 4096x4096x4096] [--dtype bf16] [--layout nt] [--build]

FILE has one ``tw.Schedule(...)`` per line, as schedules print themselves. ``None`` means the chosen schedule.
``name: `` may precede each. Refused schedules are printed with the reasons.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import dense_table
from dense import DenseTask, build_all
from dense_problems import KERNELS, OURS, Problem
from isolated import Record, parser, run

import tilewright as tw


def read(text: str) -> dict[str, tw.Schedule | None]:
    """Read schedules by name; those without a name are numbered.

    Raises:
        ValueError: a line is not a schedule.
    """
    found: dict[str, tw.Schedule | None] = {OURS: None}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, rest = line.partition(": ")
        made = eval(rest if colon else line, {"tw": tw, "__builtins__": {}})
        if made is not None and not isinstance(made, tw.Schedule):
            raise ValueError(f"line {number} is no schedule: {line}")
        found[name.strip() if colon else f"line {number}"] = made
    return found


def main() -> None:
    begun = time.time()
    made = parser(__doc__)
    made.add_argument("file", type=Path, help="schedules, one per line")
    made.add_argument("--shape", default="4096x4096x4096", help="MxNxK")
    made.add_argument("--dtype", default="bf16", help="dtype of A and B")
    made.add_argument("--layout", default="nt", choices=["nt", "nn", "tn", "tt"])
    made.add_argument("--kernel", default="product", choices=[*KERNELS])
    asked = made.parse_args()
    m, n, k = map(int, asked.shape.split("x"))
    schedules = read(asked.file.read_text())
    problem = Problem("half", (m, n, k), asked.dtype, asked.layout, asked.kernel, schedules)
    record = Record(asked.json or Path(tempfile.mkdtemp()) / "schedules.json", "schedules")
    if asked.until is not None:
        run([DenseTask(problem)], asked, begun, record)
        return
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("TILEWRIGHT_CACHE_DIR", cache)
        record.found["builds"] = build_all([problem], asked.processes)
        record.keep()
        for found in record.found["builds"]:
            print(found["kernel"], *(found.get(key) for key in ("failed", "registers", "schedule")), sep=", ")
        if asked.build:
            sys.exit(any("failed" in found for found in record.found["builds"]))
        run([DenseTask(problem)], asked, begun, record)
    print(dense_table.text(record.found["rows"]))


if __name__ == "__main__":
    main()
