"""Compare the hazard checker with a search of all interleavings, on random small programs with roles.

    python scripts/try_schedules.py [--first SEED] [--count PROGRAMS]

Prints every program on which they disagree, with its seed, and counts the outcomes on which they agree; fails
if they ever disagree.  The test suite tries a thousand programs for each commit.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.hazards.interleavings import Search, random_program
from tests.hazards.small_kernels import disagreement


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=20_000, help="number of programs")
    asked = parser.parse_args()
    truth: collections.Counter[str] = collections.Counter()
    wrong, begin = 0, time.monotonic()
    for seed in range(asked.first, asked.first + asked.count):
        truth[Search(random_program(seed)).run() or "right in every schedule"] += 1
        if text := disagreement(seed):
            wrong += 1
            print(text, end="\n\n")
    seconds = time.monotonic() - begin
    print(f"seeds {asked.first} to {asked.first + asked.count - 1}, {seconds:.0f} s: {wrong} disagreements")
    for fault, count in truth.most_common():
        print(f"{count:8}  {fault}")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
