"""Random products with scales, of complex numbers, or attention and chains, compared element by element.

    python scripts/try_scaled.py [--of attention] --first 0 --count 500 --target cpu --record problems.jsonl

A problem is two dtypes, layouts, ragged extents, scales, a bias, an activation and a result's dtype: always
the same for its number and the target.  One of attention is heads, rows, columns, strides, a mask and a
scale; every third is a chain of two products.  Prints every problem that fails; fails if one fails.  The
record gets one line: commit, target, numbers, failures, seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.problems import attention_problems, complex_problems, scaled_problems  # noqa: E402

MEMBERS = {
    "scaled_mm": scaled_problems.carried_out,
    "attention": attention_problems.carried_out,
    "complex_matmul": complex_problems.carried_out,
}
"""What carries out a problem of each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--first", type=int, default=0, help="the first problem")
    parser.add_argument("--count", type=int, default=500, help="how many")
    parser.add_argument("--of", choices=MEMBERS, default="scaled_mm", help="what is tried")
    parser.add_argument("--target", choices=scaled_problems.LARGEST, default="cpu")
    parser.add_argument("--record", type=Path, help="a line about the run is added to this file")
    asked = parser.parse_args()
    begin, failed = time.monotonic(), 0
    for number in range(asked.first, asked.first + asked.count):
        if wrong := MEMBERS[asked.of](number, asked.target):
            failed += 1
            print(f"problem {number}: {wrong}", flush=True)
    command = ("git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*")
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    line = {
        "of": asked.of,
        "commit": commit,
        "target": asked.target,
        "first": asked.first,
        "count": asked.count,
        "failed": failed,
        "seconds": round(time.monotonic() - begin),
    }
    print(json.dumps(line))
    if asked.record is not None:
        with asked.record.open("a") as file:
            file.write(f"{json.dumps(line)}\n")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
