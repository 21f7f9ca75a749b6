"""Compare the examples' kernels of this source tree with those of another tree, in turns on one GPU.

    python benchmarks/against.py --before TREE [--quick] [--json results/against.json]

Each tree has its own process, which makes the arrays, checks each result, and then waits for requests of
samples.  Requests alternate between the trees, so that clocks and heat are the same for both.  TREE is the
root of a checkout of an earlier commit.  A sample is the device time of one launch, with a cold second-level
cache.  First this tree is compared with itself, in a third process: the difference between those two is
noise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("against_worker.py")
SUBJECTS: dict[str, tuple[tuple[int, ...], ...]] = {
    "02 basic": ((4096, 4096, 4096),),
    "03 hopper bf16": ((2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192)),
    "04 optimised": ((4096, 4096, 4096),),
    "06 warp tiles": ((4096, 4096, 4096),),
    "07 serial": ((4096, 4096, 4096),),
    "07 buffered": ((4096, 4096, 4096),),
    "07 prefetched": ((4096, 4096, 4096),),
    "08 fused": ((4096, 512, 512, 512),),
    "09 attention 64": ((4, 16, 4096, 4096, 64),),
    "09 attention 128 causal": ((4, 16, 4096, 4096, 128),),
    "10 attention 64": ((4, 16, 4096, 4096, 64),),
    "10 attention 64 causal": ((4, 16, 4096, 4096, 64),),
    "10 attention 128": ((4, 16, 4096, 4096, 128),),
    "10 attention 128 causal": ((4, 16, 4096, 4096, 128),),
    "matmul f16": ((4096, 4096, 4096),),
    "matmul i8": ((4096, 4096, 4096),),
    "matmul f32": ((2048, 2048, 2048),),
}
QUICK = {name: shapes[:1] for name, shapes in SUBJECTS.items()}
NEW, AGAIN, BEFORE = "new", "new again", "before"


class Worker:
    """A process that answers requests; each is a line of JSON.

    Args:
        program: the program with its arguments.
        env: its environment; default: that of this process.
        cwd: its working directory; default: that of this process.
    """

    def __init__(self, *program: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            cwd=cwd,
            text=True,
        )

    @staticmethod
    def of_tree(tree: Path) -> Worker:
        """Return a process that times the kernels of one tree."""
        paths = (str(tree / "src"), os.environ.get("PYTHONPATH", ""))
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return Worker(str(WORKER), str(tree), env=env, cwd=tree)

    def ask(self, what: dict[str, Any]) -> dict[str, Any]:
        """Send one request, and wait for its answer."""
        self.send(what)
        return self.answer()

    def send(self, what: dict[str, Any]) -> None:
        """Send a request."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(what)}\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to the oldest request."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    # Imported after the workers have their environment; used only for the record.
    from reporting import ROOT, arguments, keep, table

    parser = arguments(__doc__)
    parser.add_argument("--before", type=Path, required=True, help="root of the other source tree")
    parser.add_argument("--only", nargs="*", help="subjects whose names contain one of these")
    asked = parser.parse_args()
    trees = {NEW: ROOT, AGAIN: ROOT, BEFORE: asked.before.resolve()}
    workers = {name: Worker.of_tree(tree) for name, tree in trees.items()}
    rows: list[dict[str, Any]] = []
    for name, shapes in (QUICK if asked.quick else SUBJECTS).items():
        if asked.only and not any(part in name for part in asked.only):
            continue
        for shape in shapes:
            rows.append(compare(workers, name, shape, rounds=5 if asked.quick else 25))
            print(json.dumps({k: v for k, v in rows[-1].items() if k != "us"}), flush=True)
            keep(asked, "against", "cuda", rows)
    for worker in workers.values():
        worker.end()
    print(table(HEAD, map(columns, rows)))
    sys.exit(any("failed" in row for row in rows))


HEAD = ("kernel", "shape", "us now", "us before", "speed now / before", "noise", "registers", "before")


def columns(row: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    first = [row["name"], "x".join(map(str, row["shape"]))]
    if "failed" in row:
        return [*first, row["failed"], *[""] * (len(HEAD) - 3)]
    taken = row["registers"]
    return [
        *first,
        f"{row['median_us'][NEW]:.1f}",
        f"{row['median_us'][BEFORE]:.1f}",
        f"{row['speed']:.3f}",
        f"{row['noise']:.3f}",
        *(
            f"{taken[which].get('registers')} ({taken[which].get('spill_store_bytes', 0)} bytes spilt)"
            for which in (NEW, BEFORE)
        ),
    ]


def compare(workers: dict[str, Worker], name: str, shape: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """Time one kernel of all trees in turns; ``speed`` is the median of the ratios within each round."""
    for worker in workers.values():  # they compile in parallel
        worker.send({"make": name, "shape": shape})
    made = {which: worker.answer() for which, worker in workers.items()}
    wrong = {which: answer["failed"] for which, answer in made.items() if "failed" in answer}
    if wrong:
        return {"name": name, "shape": list(shape), "failed": str(wrong)}
    order = list(workers)
    us: dict[str, list[float]] = {which: [] for which in order}
    for turn in range(rounds + 2):
        first = turn % len(order)
        for which in order[first:] + order[:first]:
            sample = workers[which].ask({"samples": 3})["us"]
            if turn > 1:  # the first rounds warm up
                us[which].append(median(sample))
    for worker in workers.values():
        worker.ask({"drop": True})
    return {
        "name": name,
        "shape": list(shape),
        "us": us,
        "median_us": {which: median(us[which]) for which in order},
        "speed": median([before / new for new, before in zip(us[NEW], us[BEFORE], strict=True)]),
        "noise": median([again / new for new, again in zip(us[NEW], us[AGAIN], strict=True)]),
        "registers": {which: made[which]["resources"] for which in order},
        "error": {which: made[which]["error"] for which in order},
    }


def median(values: list[float]) -> float:
    found = sorted(values)
    return found[len(found) // 2]


if __name__ == "__main__":
    main()
