"""Parse damaged texts of flows, kernels and AMD listings; report raw errors and texts that take too long.

`python scripts/fuzz_texts.py --first 0 --count 400` damages each text 400 times, in the same way at every
run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.calls.texts import TEXTS, BadEnd, bad_end


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=400, help="damaged texts of each kind")
    parser.add_argument("--only", choices=tuple(TEXTS), help="one kind of text")
    chosen = parser.parse_args()
    any_found = False
    for name in TEXTS if chosen.only is None else (chosen.only,):
        kinds: dict[tuple[str, str], list[BadEnd]] = {}
        for seed in range(chosen.first, chosen.first + chosen.count):
            found = bad_end(name, seed)
            if found is not None:
                kinds.setdefault((found.what.partition(":")[0], found.where), []).append(found)
        print(f"{name}: {sum(map(len, kinds.values()))} bad ends of {chosen.count}")
        for (_, where), ends in sorted(kinds.items(), key=lambda entry: -len(entry[1])):
            print(f"{len(ends):5}  {where}  {ends[0].what}  (seed {ends[0].seed})")
        any_found |= bool(kinds)
    return any_found


if __name__ == "__main__":
    raise SystemExit(main())
