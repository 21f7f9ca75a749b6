"""Common parts of the benchmarks: arguments, JSON records, printed tables."""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.runtime.outputs import output
from tilewright.tune.clocks import HostClock, wait_for_quiet
from tilewright.tune.machine import machine
from tilewright.tune.measure import Effort, Measurement, measure

ROOT = Path(__file__).parents[1]


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return the argument parser of every benchmark."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--commit", default=commit(), help="commit of the source tree, for the record")
    parser.add_argument("--quick", action="store_true", help="few small problems, to see whether it runs")
    said = "compile and compare, with one round of timing; a later run finds the kernels compiled"
    parser.add_argument("--verify", action="store_true", help=said)
    return parser


def on_host(description: str | None) -> argparse.ArgumentParser:
    """Return the argument parser of benchmarks on CPUs, which may be busy with other work."""
    parser = arguments(description)
    said = "count processor time, for one thread (TILEWRIGHT_THREADS=1, OPENBLAS_NUM_THREADS=1)"
    parser.add_argument("--busy", action="store_true", help=said)
    return parser


class BusyClock(HostClock):
    """CPU time of all threads of the process, without that of other processes.

    Caches, memory and the units of a core are still shared with other processes.  Times of several busy
    threads are added up.
    """

    def __init__(self, calls: int | None = None) -> None:
        super().__init__(calls, wait_for_quiet, warm=True)

    @property
    def how(self) -> str:
        """The clock, in words."""
        return super().how.replace("host time by perf_counter", "processor time of all threads")

    def _now(self) -> float:
        return time.process_time()


def timed(calls: Mapping[str, Callable[[], object]], asked: argparse.Namespace) -> Measurement:
    """Time the calls of a benchmark on CPUs, in turns."""
    clock = BusyClock() if asked.busy else None
    return measure(calls, "cpu", effort=effort(asked), clock=clock)


def commit() -> str:
    """Return the source tree's commit, with a plus sign if it has changes; empty without git."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def effort(asked: argparse.Namespace) -> Effort:
    """Return how long to measure each problem."""
    if asked.verify:
        return Effort(seconds=0.0, warm_up_seconds=0.0, least=1, most=1)
    if asked.quick:
        return Effort(seconds=0.05, warm_up_seconds=0.0, least=3)
    return Effort(seconds=getattr(asked, "seconds", 1.0))


def keep(asked: argparse.Namespace, name: str, target: str, rows: Sequence[dict[str, Any]]) -> None:
    """Write the results with the record of the machine, if a file was requested."""
    if asked.json is None:
        return
    found = {"benchmark": name, "machine": machine(target, asked.commit).record(), "rows": list(rows)}
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    with output(asked.json) as file:
        file.write(f"{json.dumps(found, indent=1, default=str)}\n".encode())


def table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Format columns of equal width, the first aligned left."""
    cells = [list(head), *([str(cell) for cell in line] for line in lines)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )
