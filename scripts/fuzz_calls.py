"""Call every public function with wrong arguments, and report calls that end without a readable error.

`python scripts/fuzz_calls.py --seed 7 --seconds 600` makes the same calls, in the same order, at every run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.calls.performed import Failure, drawn, failure_of  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--record", type=Path, help="a file to append one line to")
    parser.add_argument("--verbose", action="store_true", help="show the traceback of each kind of failure")
    chosen = parser.parse_args()
    rng, end, count = Random(chosen.seed), time.monotonic() + chosen.seconds, 0
    kinds: dict[tuple[str, str], list[Failure]] = {}
    while time.monotonic() < end:
        count += 1
        found = failure_of(drawn(rng))
        if found is not None:
            kinds.setdefault((found.what, found.where), []).append(found)
    for (what, where), found in sorted(kinds.items(), key=lambda entry: -len(entry[1])):
        print(f"{len(found):5} {what} at {where}\n      {min((str(f.call) for f in found), key=len)}")
        if chosen.verbose:
            print(found[0].report)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    line = f"{commit.stdout.strip()}  seed {chosen.seed}  {count} calls  {len(kinds)} kinds of failure"
    print(line)
    if chosen.record is not None:
        with chosen.record.open("a") as file:
            file.write(line + "\n")
    return bool(kinds)


if __name__ == "__main__":
    raise SystemExit(main())
