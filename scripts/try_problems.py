"""Run random problems with canaries around their arrays, and compare every element.

    python scripts/try_problems.py --first 0 --count 1000 --target cpu --record problems.jsonl
    python scripts/try_problems.py --partition stream --count 500
    python scripts/try_problems.py --of calls --partition split --count 500

A problem's number, target and partition determine its kernel, dtypes, layouts, strides, ragged extents,
epilogue and schedule, which is chosen or drawn.  Every fifth group of problems consists of calls of
`tw.matmul` with random arguments, unless ``--of`` says otherwise.  With ``--partition`` all problems use that
partition, else each partition in turn.  Prints every problem that fails, and the number of problems of each
kind; exits with 1 if one fails.  The record gets one line: commit, target, arguments, numbers, counts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.problems.called import carry_out_call  # noqa: E402
from tests.problems.calls import call  # noqa: E402
from tests.problems.carried_out import carry_out  # noqa: E402
from tests.problems.drawing import EACH, problem  # noqa: E402
from tests.problems.partitions import PARTITIONS  # noqa: E402

CALLED = 5
"""One in this many groups of problems consists of calls, if both kinds are tried."""


@dataclass(frozen=True)
class Wanted:
    """A selection of problems.

    Args:
        target: the target that runs them.
        partition: the partition that computes them; empty: each in turn.
        of: ``"kernels"`` or ``"calls"`` of `tw.matmul`; empty: both.
    """

    target: str
    partition: str = ""
    of: str = ""

    def tried(self, number: int) -> tuple[Any, Any]:
        """Return a problem, and the function that runs it."""
        is_call = self.of == "calls" or (not self.of and number // EACH % CALLED == CALLED - 1)
        made, done = (call, carry_out_call) if is_call else (problem, carry_out)
        return made(number, self.target, self.partition), done


@dataclass
class Tally:
    """The outcome of some problems.

    Args:
        tried: number of problems that ran.
        refused: number of problems that did not run, because their schedule was refused.
        elements: number of elements that were compared.
        kinds: number of problems of each kind.
        failures: each failure as a text.
        slowest: the longest time of a problem, in seconds.
    """

    tried: int = 0
    refused: int = 0
    elements: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def add(self, other: Tally) -> None:
        """Add the counts of another tally."""
        self.tried += other.tried
        self.refused += other.refused
        self.elements += other.elements
        self.kinds += other.kinds
        self.failures += other.failures
        self.slowest = max(self.slowest, other.slowest)


def attempt(wanted: Wanted, numbers: range, deadline: float) -> Tally:
    """Run problems that share a kernel, as many as there is time for."""
    made = Tally()
    for number in numbers:
        if time.time() > deadline:
            break
        begin = time.monotonic()
        one, done = wanted.tried(number)
        try:
            outcome = done(one, wanted.target)
        except Exception:  # noqa: BLE001 whatever it is, it is a failure of this problem
            made.failures.append(f"{one}: {traceback.format_exc(limit=-6)}")
            made.tried += 1
            continue
        made.tried += not outcome.refused or bool(outcome.wrong)
        made.refused += bool(outcome.refused)
        made.elements += outcome.elements
        made.kinds += outcome.kinds
        made.slowest = max(made.slowest, time.monotonic() - begin)
        if outcome.wrong:
            made.failures.append(f"{one}: ran {outcome.schedule}: {outcome.wrong}")
    return made


def tried(wanted: Wanted, first: int, count: int, jobs: int = 1, seconds: float = 1e9) -> Tally:
    """Run the problems from ``first`` on, until the count is reached or time is up.

    One of ``jobs`` processes runs problems that share a kernel, one after the other.  If a drawn schedule is
    refused, further problems replace those that do not run.
    """
    deadline, total = time.time() + seconds, Tally()
    starts = iter(range(first // EACH * EACH, sys.maxsize, EACH))
    if jobs == 1:
        while total.tried < count and time.time() < deadline:
            start = next(starts)
            total.add(attempt(wanted, range(max(start, first), start + EACH), deadline))
        return total
    # If each process's NumPy uses all CPUs, comparisons take six times as long.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A GPU's context does not survive a fork.
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        waiting: list[Any] = []
        while total.tried < count and time.time() < deadline:
            while len(waiting) < 2 * jobs:
                start = next(starts)
                numbers = range(max(start, first), start + EACH)
                waiting.append(pool.apply_async(attempt, (wanted, numbers, deadline)))
            done = [one for one in waiting if one.ready()]
            waiting = [one for one in waiting if one not in done]
            for one in done:
                total.add(one.get())
            if not done:
                time.sleep(0.01)
        for one in waiting:  # running ones end soon, because they have the same deadline
            total.add(one.get())
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--first", type=int, default=0, help="the number of the first problem")
    parser.add_argument("--count", type=int, default=1000, help="number of problems")
    parser.add_argument("--target", default="reference", choices=("reference", "cpu", "cuda"))
    parser.add_argument("--partition", default="", choices=("", *PARTITIONS), help="default: all in turn")
    parser.add_argument("--of", default="", choices=("", "kernels", "calls"), help="default: both")
    parser.add_argument("--seconds", type=float, default=1e9, help="seconds after which no problem begins")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--record", type=Path, help="a file to append one line to")
    parser.add_argument("--json", type=Path, help="a file to write the same to")
    parser.add_argument("--commit", default="", help="commit of the source tree; default: by git")
    asked = parser.parse_args()
    begin = time.monotonic()
    wanted = Wanted(asked.target, asked.partition, asked.of)
    found = tried(wanted, asked.first, asked.count, asked.jobs, asked.seconds)
    seconds = time.monotonic() - begin
    for failure in found.failures:
        print(failure, end="\n\n")
    for kind, count in sorted(found.kinds.items()):
        print(f"{count:6}  {kind}")
    line = {
        "commit": asked.commit or commit(),
        **asdict(wanted),
        "first": asked.first,
        "seconds": round(seconds),
        **asdict(found),
        "kinds": dict(sorted(found.kinds.items())),
        "failures": len(found.failures),
    }
    print(
        f"{line['commit']}: {found.tried} problems from {asked.first}, on {asked.target}, {asked.partition}, "
        f"{found.refused} more refused, {found.elements} elements, {seconds:.0f} s: "
        f"{len(found.failures)} failures"
    )
    if asked.record is not None:
        with asked.record.open("a") as file:
            file.write(json.dumps(line) + "\n")
    if asked.json is not None:
        asked.json.write_text(json.dumps(line, indent=1) + "\n")
    return bool(found.failures)


def commit() -> str:
    """Return the commit of the source tree, by git."""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
