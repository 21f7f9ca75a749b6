"""Check on this CPU that each row of a batch-invariant product has the same bits as among 260 rows.

    python scripts/try_rows.py [--threads 1 2] [--machines "this one" "Zen 3"] [--only TEXT]

Multiplies 1 to 259 rows by each of the four matrices of `tests/ops/rows_apart.py`, with each of its cases and
each compiler.  Prints a line for each case and compiler; fails if a row has other bits.  The test suite tries
a third of these numbers of rows, each with one of the four matrices.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.ops.rows_apart import CASES, MACHINES, command  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="threads of the CPU target")
    parser.add_argument("--machines", nargs="+", default=[*MACHINES], choices=MACHINES)
    parser.add_argument("--only", default="", help="try only the cases whose name contains this")
    asked = parser.parse_args()
    wrong = 0
    for machine in asked.machines:
        for threads in asked.threads:
            for name in (name for name in CASES if asked.only in name):
                done = subprocess.run(command(threads, machine, 0, "each", name), cwd=ROOT, check=False)
                wrong += done.returncode != 0
    print(f"{wrong} cases are wrong")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
