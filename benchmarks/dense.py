"""Dense GEMMs on a GPU compared with PyTorch: eight lines each, with the schedules that are chosen for them.

    python benchmarks/dense.py [--rows half,small …] [--seconds 170] [--build] [--json FILE]

Kernels are compiled first, in parallel processes. Every element of each result is compared with f64. Then all
kernels and PyTorch's call are timed: device time, cold second-level cache, random order, normal numbers. If a
kernel hangs or breaks its context, only its own row is lost. With ``--build`` nothing is launched.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import dense_table
from cold_compile import CompileTask
from dense_problems import GROUPS, OURS, PROBLEMS, SETS, Problem, completed
from isolated import DeviceLostError, Progress, Record, parser, run

from tilewright.errors import TilewrightError
from tilewright.runtime.nvrtc import FATAL
from tilewright.tune.contest import Contest, rounded
from tilewright.tune.measure import Effort, measure_calls

HANGS_SECONDS = 30
"""Seconds after which a kernel that is being checked is given up."""
FIGURES = ("registers", "spill_store_bytes", "shared_bytes")


def build(problem: Problem, name: str) -> dict[str, Any]:
    """Compile the kernel of a problem with one of its schedules."""
    begin = time.perf_counter()
    found: dict[str, Any] = {"group": problem.group, "problem": str(problem), "kernel": name}
    try:
        made = problem.bind(name).compile(*problem.specimens, target="cuda", arch="sm_90a")
        found |= {"schedule": repr(made.schedule)}
        found |= {figure: made.resources.get(figure) for figure in FIGURES}
    except TilewrightError as error:
        found["failed"] = str(error).strip()[:300]
        found["warned"] = [code for code in FATAL if code in str(error)]
    return found | {"seconds": round(time.perf_counter() - begin, 2)}


def build_all(problems: Iterable[Problem], processes: int) -> list[dict[str, Any]]:
    """Compile in parallel, into the cache that all processes share."""
    wanted = [(problem, name) for problem in problems for name in problem.schedules]
    with ProcessPoolExecutor(processes) as pool:
        made = list(pool.map(build, *zip(*wanted, strict=True), chunksize=1))
    for found in made:
        if "failed" in found or found["spill_store_bytes"]:
            print(found, flush=True)
    print(f"{len(made)} kernels built", flush=True)
    return made


@dataclass(frozen=True)
class DenseTask:
    """A problem, all of its kernels and PyTorch's calls.

    Args:
        problem: the problem.
    """

    problem: Problem

    @property
    def group(self) -> str:
        return self.problem.group

    def __str__(self) -> str:
        return str(self.problem)

    def measure(self, seconds: float, progress: Progress) -> dict[str, Any]:
        """Verify every kernel, and time the correct ones; see `isolated.Task`."""
        import on_gpu  # imports PyTorch
        import torch

        problem, seconds = self.problem, seconds * self.problem.seconds
        arrays = on_gpu.OnGpu(problem)
        kernels = {name: problem.bind(name) for name in problem.schedules}
        if problem.by_hand:
            kernels[on_gpu.BY_HAND] = on_gpu.hand_written(problem)
        contest = Contest(arrays.subject, arrays.sets, arrays.set_bytes)
        for name, bound in kernels.items():
            progress.begin(name, HANGS_SECONDS)
            check = partial(arrays.check, bound)
            if not contest.enter(name, lambda a, bound=bound: bound.prepare(*a), check):
                print(f"WRONG {problem} {name}: {contest.wrong[name]}", flush=True)
                try:
                    torch.cuda.synchronize()
                except RuntimeError as lost:
                    raise DeviceLostError(str(lost)) from None
        schedules = {name: found.pop("schedule") for name, found in contest.checks.items()}
        if OURS in contest.checks:
            contest.again(OURS, on_gpu.AGAIN)
        named = [*arrays.rivals(arrays.sets[0])]
        rivals = [n for n in named if contest.enter(n, lambda a, n=n: arrays.rivals(a)[n])]
        progress.begin("timing", 30 + 3 * seconds)
        effort = Effort(seconds=seconds, warm_up_seconds=0.2 * seconds, least=5)
        found = contest.run(effort, progress.clocks)
        row = found.record() | {"schedules": schedules}
        # Compare each with the library, and our chosen schedule also with our others.
        beside = {name: (*rivals, *schedules) if name == OURS else tuple(rivals) for name in schedules}
        row["speed"] = {
            name: {other: row["speed"][name][other] for other in others if other != name}
            for name, others in beside.items()
        }
        named = on_gpu.BY_HAND if problem.by_hand else problem.beside
        row["judged"] = [named] if named else [*rivals]
        if OURS in schedules:
            row["again"] = rounded(found.taken.speed(on_gpu.AGAIN, OURS))
        return row


class CallTask:
    """Host time of `tw.matmul(a, b)` of small matrices, compared with `a @ b`."""

    group = "call"

    def __str__(self) -> str:
        return "tw.matmul(a, b), f16 nn 64³"

    def measure(self, seconds: float, progress: Progress) -> dict[str, Any]:
        """Measure host time per call; see `isolated.Task`."""
        import torch
        from on_gpu import AGAIN, RIVAL

        import tilewright as tw

        a, b = (torch.randn((64, 64), dtype=torch.float16, device="cuda") for _ in range(2))
        made = tw.matmul(a, b)
        off = float(torch.linalg.norm(made.double() - a.double() @ b.double()))
        assert off <= 1e-3 * float(torch.linalg.norm(made.double())), f"off by {off:.3g} in norm"
        ours = partial(tw.matmul, a, b)
        calls = {OURS: ours, AGAIN: ours, RIVAL: partial(torch.matmul, a, b)}
        progress.begin("timing", 60)
        taken = measure_calls(calls, "cuda", effort=Effort(seconds=seconds))
        speed = {OURS: {RIVAL: rounded(taken.speed(OURS, RIVAL))}}
        row = {"checks": {OURS: {"off": off}}, "schedules": {}, "speed": speed, "judged": [RIVAL]}
        return row | {"again": rounded(taken.speed(AGAIN, OURS)), **taken.record()}


def chosen(asked: argparse.Namespace) -> tuple[list[Problem], list[str]]:
    """Return the problems of the requested groups, and these groups."""
    groups = [*SETS[asked.rows]] if asked.rows in SETS else asked.rows.split(",")
    unknown = [group for group in groups if group not in GROUPS]
    if unknown:
        sys.exit(f"unknown rows: {', '.join(unknown)}; choose from {', '.join([*SETS, *GROUPS])}")
    problems = [problem for problem in PROBLEMS if problem.group in groups]
    if asked.quick:  # the first of each group
        problems = list({problem.group: problem for problem in reversed(problems)}.values())[::-1]
        problems = [replace(problem, seconds=0.1) for problem in problems]
    return [completed(problem) for problem in problems], groups


def main() -> None:
    begun = time.time()
    made = parser(__doc__)
    made.add_argument("--rows", default="dense", help=f"{', '.join(SETS)}, or some of {', '.join(GROUPS)}")
    asked = made.parse_args()
    problems, groups = chosen(asked)
    tasks: list[Any] = [DenseTask(problem) for problem in problems]
    tasks += [task for task in (CallTask(), CompileTask()) if task.group in groups]
    record = Record(asked.json or Path(tempfile.mkdtemp()) / "dense.json", "dense")
    if asked.until is not None:
        run(tasks, asked, begun, record)
        return
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("TILEWRIGHT_CACHE_DIR", cache)
        if problems:
            record.found["builds"] = build_all(problems, asked.processes)
        record.keep()
        broken = [found for found in record.found["builds"] if "failed" in found]
        print(f"built after {time.time() - begun:.0f} s", flush=True)
        if asked.build:
            sys.exit(f"{len(broken)} kernels do not compile" if broken else 0)
        run(tasks, asked, begun, record)
    rows = record.found["rows"]
    print(dense_table.text(rows))
    bad = [row for row in rows if "failed" in row or row.get("wrong")]
    sys.exit(f"{len(bad)} rows failed" if bad else 0)


if __name__ == "__main__":
    main()
