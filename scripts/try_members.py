"""Run random problems of the members of the GEMM family, and compare every element.

    python scripts/try_members.py --target cuda --jobs 14 --record tests/problems/campaigns.jsonl
    python scripts/try_members.py --of attention --first 218 --count 1 --target cpu

A problem's number and target determine its dtypes, layouts, strides, ragged extents and other arguments.
Prints every problem that fails, and exits with 1 if one does.  The record gets one line for each member:
commit, target, numbers, failures, and the seconds that processes spent on them.
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

from tests.problems.members import MEMBERS, ON_REFERENCE, campaign  # noqa: E402
from tests.problems.sets import SETS  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--of", nargs="+", choices=MEMBERS, help="default: all that the target computes")
    parser.add_argument("--first", type=int, default=0, help="the first problem")
    parser.add_argument("--count", type=int, default=500, help="number of problems of each")
    parser.add_argument("--target", choices=SETS, default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=1e9, help="seconds after which no problem begins")
    parser.add_argument("--record", type=Path, help="a file that gets a line for each member")
    parser.add_argument("--commit", default="", help="commit of the source tree; default: by git")
    asked = parser.parse_args()
    begin = time.monotonic()
    alone = set() if asked.target == "reference" else ON_REFERENCE
    of = asked.of or [name for name in MEMBERS if name not in alone]
    found = campaign(of, asked.first, asked.count, asked.target, asked.jobs, asked.seconds)
    lines = []
    for member, made in found.items():
        for number, wrong in sorted(made.failures.items()):
            print(f"{member}, problem {number}: {wrong}\n")
        line = {
            "of": member,
            "commit": asked.commit or commit(),
            "target": asked.target,
            "first": asked.first,
            "count": made.count,
            "failed": len(made.failures),
            "seconds": round(made.seconds),
        }
        lines.append(f"{json.dumps(line)}\n")
    print(*lines, sep="", end="")
    print(f"{time.monotonic() - begin:.0f} s with {asked.jobs} processes")
    if asked.record is not None:
        with asked.record.open("a") as file:
            file.writelines(lines)
    return any(made.failures for made in found.values())


def commit() -> str:
    """Return the commit of the source tree, by git."""
    command = ("git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*")
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
