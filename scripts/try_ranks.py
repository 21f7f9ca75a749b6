"""Run random problems over 2, 3 and 4 processes of `torch.distributed`, and compare every element.

    python scripts/try_ranks.py --record tests/problems/campaigns.jsonl
    python scripts/try_ranks.py --first 217 --count 1

It needs PyTorch.  A problem's number determines the call, the number of ranks, shapes, strides, dtypes,
shards and terms.  Prints every problem that fails, and exits with 1 if one does.  The record gets one line:
commit, numbers, failures, and seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.distributed.problems import ranks_of_problem, solve  # noqa: E402
from tests.distributed.ranks import failures, run_ranks  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--first", type=int, default=0, help="the first problem")
    parser.add_argument("--count", type=int, default=500, help="number of problems")
    parser.add_argument("--record", type=Path, help="a file that gets a line")
    asked = parser.parse_args()
    begin, failed = time.monotonic(), 0
    numbers = range(asked.first, asked.first + asked.count)
    with TemporaryDirectory() as folder:
        for size in (2, 3, 4):
            mine = [number for number in numbers if ranks_of_problem(number) == size]
            if not mine:
                continue
            answers = run_ranks(size, Path(folder), [partial(solve, number) for number in mine], 600)
            for number, of_case in zip(mine, answers, strict=True):
                said = failures([f"problem {number} on {size} ranks"], [of_case])
                failed += bool(said)
                if said:
                    print(said)
    command = ("git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*")
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    line = {
        "of": "products over ranks",
        "commit": made.stdout.strip(),
        "target": "cpu",
        "first": asked.first,
        "count": asked.count,
        "failed": failed,
        "seconds": round(time.monotonic() - begin),
    }
    text = f"{json.dumps(line)}\n"
    print(text, end="")
    if asked.record is not None:
        with asked.record.open("a") as file:
            file.write(text)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
