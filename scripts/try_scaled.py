"""Random products with scales, each compared element by element under a bound of its own.

    python scripts/try_scaled.py --first 0 --count 500 --target cpu --record problems.jsonl

A problem is two dtypes, layouts, ragged extents, scales, a bias, an activation and a result's dtype: always
the same for its number and the target.  Prints every problem that fails; fails if one fails.  The record gets
one line: commit, target, numbers, failures, seconds.
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

from tests.problems.scaled_problems import LARGEST, carried_out  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--first", type=int, default=0, help="the first problem")
    parser.add_argument("--count", type=int, default=500, help="how many")
    parser.add_argument("--target", choices=LARGEST, default="cpu")
    parser.add_argument("--record", type=Path, help="a line about the run is added to this file")
    asked = parser.parse_args()
    begin, failed = time.monotonic(), 0
    for number in range(asked.first, asked.first + asked.count):
        if wrong := carried_out(number, asked.target):
            failed += 1
            print(f"problem {number}: {wrong}", flush=True)
    command = ("git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*")
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    line = {
        "of": "scaled_mm",
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
