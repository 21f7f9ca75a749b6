"""Time every proposed schedule of some problems on a GPU, and compare it with its rule's estimate.

    python benchmarks/candidates.py [--rows few,split …] [--most 12] [--seconds 100] [--build] [--json FILE]

The rules' models are fitted to these times.  A row is a problem and a family of schedules.  Every element of
each kernel's result is compared with f64.  Then all kernels and PyTorch's call are timed in turns; the record
keeps each time with its rule and estimate.  Kernels are compiled first, in parallel processes.  With
``--build`` nothing is launched.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dense import DenseTask, build_all
from dense_problems import BATCHES, CUBES, DEEP, FEW_ROWS, FLAT, Problem, families, grouped_problems, question
from isolated import Progress, Record, parser, run
from reporting import table

import tilewright as tw
from tilewright.schedule.question import Candidate

SHAPES: dict[str, tuple[Problem, ...]] = {
    "few": tuple(Problem("few rows", shape) for shape in FEW_ROWS),
    "split": tuple(Problem("split", shape, "f16") for shape in DEEP),
    "f32": tuple(Problem("split f32", shape, "f32") for shape in (*DEEP, (16, 4096, 4096), (64, 4096, 4096))),
    "small": tuple(
        Problem("small", shape)
        for shape in (CUBES[512], CUBES[1024], (1000, 1000, 1000), FLAT[0], (128, 4096, 4096))
    ),
    "batched": tuple(
        Problem(group, (side, side, side), kernel="batched", items=items)
        for group, found in BATCHES.items()
        for items, side in found
    ),
    "grouped": tuple(grouped_problems()),
}
"""Problems, by the names of the rows."""

FIRST = ("few rows", "split", "bulk copies", "other copies")
"""Prefixes of the families' names, in the order of measurement; each family covers all problems."""

SECONDS = 0.3
"""Seconds for which the schedules of a row are timed."""


@dataclass(frozen=True)
class CandidatesTask(DenseTask):
    """A problem with all schedules of a family.

    Args:
        family: the family of schedules.
        proposed: the proposals, by the names of the problem's schedules.
    """

    family: str = ""
    proposed: Mapping[str, Candidate] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.problem}, {self.family}"

    def measure(self, seconds: float, progress: Progress) -> dict[str, Any]:
        """Time all correct schedules; see `isolated.Task`."""
        row = super().measure(seconds, progress)
        return row | {
            "family": self.family,
            "shape": list(self.problem.shape),
            "items": self.problem.items,
            "sizes": list(self.problem.sizes),
            "dtype": self.problem.dtype,
            "kernel": self.problem.kernel,
            "layout": self.problem.layout,
            "memory_us": question(self.problem).memory_us,
            "candidates": [*self._candidates(row)],
        }

    def _candidates(self, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        for name, candidate in self.proposed.items():
            timing = row["timings"].get(name)
            yield {
                "name": name,
                "schedule": repr(candidate.schedule),
                "rule": candidate.rule,
                "estimate": round(candidate.estimate, 3),
                "us": None if timing is None else [timing[key] for key in ("median_us", "low_us", "high_us")],
                "wrong": row["wrong"].get(name),
            }


def tasks_of(problem: Problem, most: int | None) -> Iterator[CandidatesTask]:
    """Return a task for each family."""
    for family, found in families(problem).items():
        proposed = {f"candidate {at}": one for at, one in enumerate(found[:most], 1)}
        schedules = {name: one.schedule for name, one in proposed.items()}
        named = replace(problem, schedules=schedules, seconds=SECONDS)
        yield CandidatesTask(named, family, proposed)


def variants_of(file: Path) -> Iterator[CandidatesTask]:
    """Return a task for each problem of a file of schedules.

    The file is a list of ``{"shape": [m, n, k], "dtype": "f16", "schedule": "tw.Schedule(…)"}``.
    """
    found: dict[tuple[str, tuple[int, int, int]], dict[str, Candidate]] = {}
    for one in json.loads(file.read_text(encoding="utf-8")):
        named = found.setdefault((one["dtype"], tuple(one["shape"])), {})
        schedule = eval(one["schedule"], {"tw": tw})
        named[f"candidate {len(named) + 1}"] = Candidate(schedule, 0.0, "as the file says")
    for (kind, shape), proposed in found.items():
        schedules = {name: one.schedule for name, one in proposed.items()}
        problem = Problem("split", shape, kind, schedules=schedules, seconds=3 * SECONDS)
        yield CandidatesTask(problem, "split, of a file", proposed)


HEAD = ("problem", "family", "of", "fastest us", "estimate", "first us", "over library", "fastest")


def lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Return a line for each row: its fastest schedule with its estimate, and the first proposal."""
    for row in rows:
        if "failed" in row:
            yield [row["problem"], *[""] * (len(HEAD) - 2), f"failed: {row['failed']}".partition("\n")[0]]
            continue
        right = [one for one in row["candidates"] if one["us"] is not None]
        for one in row["candidates"]:
            if one["wrong"]:
                said = f"{one['name']}: wrong: {one['wrong']}".partition("\n")[0]
                yield [row["problem"], row["family"], *[""] * (len(HEAD) - 3), said]
        if right:
            best = min(right, key=lambda one: one["us"][0])
            first = row["candidates"][0]["us"]
            theirs = next(iter(row["speed"][best["name"]].values()), None)
            yield [
                row["problem"].rpartition(f", {row['family']}")[0],
                row["family"],
                str(len(right)),
                f"{best['us'][0]:.2f}",
                f"{best['estimate']:.2f}",
                f"{first[0]:.2f}" if first else "",
                f"{theirs[0]:.3f}" if theirs else "",
                best["schedule"],
            ]


def chosen(asked: argparse.Namespace) -> list[CandidatesTask]:
    """Return the requested tasks, family by family, so that an interrupted run covers all problems."""
    if asked.variants is not None:
        return [*variants_of(asked.variants)]
    names = [*SHAPES] if asked.rows == "all" else asked.rows.split(",")
    if unknown := [name for name in names if name not in SHAPES]:
        sys.exit(f"unknown rows: {', '.join(unknown)}; choose from {', '.join(SHAPES)}")
    problems = [problem for name in names for problem in SHAPES[name][: 1 if asked.quick else None]]
    most = 1 if asked.quick else asked.most
    tasks = (task for problem in problems for task in tasks_of(problem, most))
    return sorted(tasks, key=lambda task: next(at for at, name in enumerate(FIRST) if name in task.family))


def main() -> None:
    begun = time.time()
    made = parser(__doc__)
    made.add_argument("--rows", default="all", help=f"some of {', '.join(SHAPES)}")
    made.add_argument("--variants", type=Path, help="a file of schedules, instead of the rules' proposals")
    made.add_argument("--most", type=int, help="schedules of each family; default: all")
    asked = made.parse_args()
    tasks = chosen(asked)
    record = Record(asked.json or Path(tempfile.mkdtemp()) / "candidates.json", "candidates")
    if asked.until is not None:
        run(tasks, asked, begun, record)
        return
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("TILEWRIGHT_CACHE_DIR", cache)
        record.found["builds"] = build_all([task.problem for task in tasks], asked.processes)
        record.keep()
        broken = [found for found in record.found["builds"] if "failed" in found]
        print(f"built after {time.time() - begun:.0f} s", flush=True)
        if asked.build:
            sys.exit(f"{len(broken)} kernels do not compile" if broken else 0)
        run(tasks, asked, begun, record)
    rows = record.found["rows"]
    print(table(HEAD, lines(rows)))
    bad = [row for row in rows if "failed" in row or row.get("wrong")]
    sys.exit(f"{len(bad)} rows failed" if bad else 0)


if __name__ == "__main__":
    main()
