"""Measure tasks one after the other in a separate process.

The record is written while tasks are measured. If a task hangs or breaks the device, its process ends;
another process continues with the next task, so that only this task is lost.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from reporting import arguments

from tilewright.runtime.environment import usable_processors
from tilewright.tune.contest import Readings, watched
from tilewright.tune.machine import machine

MOST_PROCESSES = 8
KEEP_SECONDS, KEEP_SHARE = 2.0, 30
"""Seconds between two writes of the record, at least, and the same in times of the last write. A task whose
row is lost with its process is measured again."""

LOST = 3
"""Exit status of a process that has lost its device."""


class DeviceLostError(RuntimeError):
    """A kernel broke the context; this process cannot launch any more."""


class Progress:
    """The progress of a task, and the clocks during it.

    Args:
        record: the record of the run.
        at: the number of the task.
    """

    def __init__(self, record: Record, at: int) -> None:
        self.record, self.at = record, at
        self.clocks = Readings(record.clocks)

    def begin(self, what: str, seconds: float) -> None:
        """Report the present step; the process ends if the next step does not begin within ``seconds``."""
        self.record.doing.write_text(json.dumps([self.at, what]))
        faulthandler.dump_traceback_later(seconds, exit=True)


class Task(Protocol):
    """A measurement that gives one row."""

    @property
    def group(self) -> str:
        """The group of the row."""

    def measure(self, seconds: float, progress: Progress) -> dict[str, Any]:
        """Measure, and return the row.

        Args:
            seconds: factor for the task's own time.
            progress: is told what begins.

        Raises:
            DeviceLostError: the process cannot launch any more.
        """


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the argument parser of a benchmark with isolated tasks."""
    made = arguments(description)
    made.add_argument("--seconds", type=float, default=170, help="seconds after which no task begins")
    made.add_argument("--each", type=float, default=1.0, help="factor for the time of each task")
    made.add_argument("--build", action="store_true", help="only compile; needs no GPU")
    made.add_argument("--processes", type=int, default=usable_processors(), help="compiling processes")
    made.add_argument("--until", type=float, help=argparse.SUPPRESS)
    return made


class Record:
    """The results of a run, in a file that both processes write alternately.

    Args:
        path: the file.
        name: name of the benchmark.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.doing, self.clocks = path, path.with_suffix(".doing"), path.with_suffix(".clocks")
        self._due = 0.0
        path.parent.mkdir(parents=True, exist_ok=True)
        self.found: dict[str, Any] = {"benchmark": name, "machine": None, "builds": [], "rows": []}

    def read(self) -> Record:
        self.found = json.loads(self.path.read_text())
        return self

    def keep(self) -> None:
        begin, part = time.monotonic(), self.path.with_suffix(".part")
        part.write_text(json.dumps(self.found, indent=1, default=str) + "\n")
        part.replace(self.path)
        end = time.monotonic()
        self._due = end + max(KEEP_SECONDS, KEEP_SHARE * (end - begin))

    def add(self, at: int, task: Task, row: dict[str, Any]) -> None:
        """Add the row of the task with this number; the file follows soon after."""
        self.found["rows"].append({"at": at, "group": task.group, "problem": str(task)} | row)
        if time.monotonic() > self._due:
            self.keep()


def run(
    tasks: Sequence[Task], asked: argparse.Namespace, begun: float, record: Record, target: str = "cuda"
) -> None:
    """Measure tasks until time is up.

    Args:
        tasks: the tasks in their order.
        asked: the arguments, from `parser`.
        begun: time at which the program started.
        record: the record; a new process continues where it ends.
        target: the target to measure.
    """
    if asked.until is not None:
        _go_through(tasks, record.read(), asked.until, asked.each)
        return
    record.found["machine"] = machine(target, asked.commit).record()
    until = str(begun + asked.seconds)
    command = [sys.executable, *sys.argv, "--json", str(record.path), "--until", until]
    with watched(record.clocks):
        for _ in range(MOST_PROCESSES):
            record.keep()
            record.doing.unlink(missing_ok=True)
            status = subprocess.run(command, check=False).returncode
            record.read()
            if status == 0 or not record.doing.exists():
                break
            at, what = json.loads(record.doing.read_text())
            print(f"BROKEN, with status {status}: {tasks[at]}, {what}", flush=True)
            record.add(at, tasks[at], {"failed": f"the process ended with status {status} at: {what}"})
    record.keep()
    for path in (record.doing, record.clocks):
        path.unlink(missing_ok=True)


def _go_through(tasks: Sequence[Task], record: Record, until: float, factor: float) -> None:
    """Measure the tasks that have no row yet; end the process if the device is lost."""
    done = {row["at"] for row in record.found["rows"]}
    for at, task in enumerate(tasks):
        if at in done:
            continue
        if time.time() > until:
            print(f"no time for {len(tasks) - at} tasks, from {task} on", flush=True)
            break
        begin, progress = time.time(), Progress(record, at)
        progress.begin("its arrays", 90)
        try:
            row = task.measure(factor, progress)
        except DeviceLostError:
            record.keep()
            os._exit(LOST)
        except Exception as error:  # noqa: BLE001 the others are still to be measured
            row = {"failed": repr(error)[:500]}
            print(f"FAILED {task}: {row['failed']}", flush=True)
        record.add(at, task, row | {"wall_s": round(time.time() - begin, 2)})
    record.keep()
    faulthandler.cancel_dump_traceback_later()
