"""The best number of parts of K: 1 to 64 and more, compared with the choice of ``"auto"``, on a GPU.

    python benchmarks/split_k.py [--rows "64x64x65536 …"] [--seconds 100] [--plot FILE] [--build]
    python benchmarks/split_k.py --kept FILE [--plot FILE]

A row is a shape and a limit of shared memory. It takes the tile with the best estimate among those whose ring
fits, and each number of parts of K. Every element is compared with f64; then all kernels and PyTorch's call
are timed in turns. ``--kept`` makes table and picture from an earlier record.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dense import DenseTask, build_all
from dense_problems import Problem, question
from isolated import Progress, Record, parser, run
from reporting import table

from tilewright.schedule.choice import candidates
from tilewright.schedule.legality import reasons
from tilewright.schedule.load import Load
from tilewright.schedule.question import Candidate, Question, coarse
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.splitting import estimated, split_schedule, with_more_blocks
from tilewright.tune.figures import new_figure, save

SHAPES = ((64, 64, 65536), (16, 16, 262144), (512, 512, 32768))
LEAST_STAGES = 3
LIMITS = (0, 100, 48)
"""Limits of a block's shared memory in KiB; 0: the machine's limit."""

PARTS = (*range(1, 17), 18, 20, 22, 24, 26, 28, 30, 32, 36, 40, 44, 48, 52, 56, 60, 64, 96, 132)
WAYS = ("auto", "stream")
SECONDS = 0.6


def limited(asked: Question, kib: int) -> Question:
    """Return the question for a machine whose blocks have less shared memory."""
    return replace(asked, arch=replace(asked.arch, shared_bytes=kib << 10)) if kib else asked


def legal(asked: Question, schedule: Schedule) -> bool:
    """Whether a schedule is legal for the problem on its machine."""
    specs = {name: coarse(spec, asked.arch) for name, spec in asked.specs.items()}
    return not reasons(schedule, asked.form, specs, asked.arch)


def fitting(asked: Question, kib: int) -> tuple[Candidate, Schedule]:
    """Find the schedule with split K that fits, fills the machine, and has the least estimate.

    Bulk copies come first; schedules with room for fewer than three stages come last.

    Returns:
        The candidate without split K, and the schedule with split K and as many stages as fit.
    """
    small = limited(asked, kib)
    found = [
        (
            (made.stages < LEAST_STAGES, made.staging != "tma", estimated(Load(asked, made), plain)),
            plain,
            made,
        )
        for plain in candidates(asked)
        if not plain.against
        for split in [split_schedule(shortened(small, plain.schedule), "auto", asked.processors)]
        for made in (() if split is None else with_more_blocks(asked, split))
        if legal(small, made)
    ]
    if not found:
        raise SystemExit(f"no schedule for {asked.shape} fits into {kib} KiB of shared memory")
    return min(found, key=lambda one: one[0])[1:]


def shortened(small: Question, plain: Schedule) -> Schedule:
    """Return the schedule with as many stages as fit when K is split."""
    for stages in range(plain.stages, 1, -1):
        made = replace(plain, stages=stages)
        split = split_schedule(made, "auto", small.processors)
        if split is not None and legal(small, split):
            return made
    return plain


def swept(asked: Question, kib: int, parts: Sequence[int]) -> dict[str, Schedule]:
    """Return the schedule that fits with each number of parts of K, and the chosen schedule."""
    (_, auto), small = fitting(asked, kib), limited(asked, kib)
    found = {str(count): replace(auto, split_k=count, blocks=0) for count in parts}
    found |= {way: replace(auto, split_k=way) for way in WAYS}
    return {name: schedule for name, schedule in found.items() if legal(small, schedule)}


@dataclass(frozen=True)
class SweepTask(DenseTask):
    """A problem with each number of parts of K.

    Args:
        kib: limit of shared memory in KiB; 0: the machine's limit.
    """

    kib: int = 0

    def __str__(self) -> str:
        return f"{self.problem}, {f'{self.kib} KiB' if self.kib else 'all'} of shared memory"

    def measure(self, seconds: float, progress: Progress) -> dict[str, Any]:
        """Time all correct schedules; see `isolated.Task`."""
        row = super().measure(seconds, progress)
        asked = question(self.problem)
        plain, auto = fitting(asked, self.kib)
        schedules = swept(asked, self.kib, PARTS)
        times = {name: found["median_us"] for name, found in row["timings"].items()}
        us = {name: time_us for name, time_us in times.items() if name in schedules}
        return row | {
            "shape": list(self.problem.shape),
            "kib": self.kib,
            "tile": list(auto.tile),
            "stages": auto.stages,
            "parts": {way: Load(asked, schedules[way]).parts for way in WAYS if way in us},
            "estimates": {name: round(estimated(Load(asked, schedules[name]), plain), 3) for name in us},
            "us": us,
            "library_us": times.get("cuBLAS"),
            "best": min((name for name in us if name.isdigit()), key=us.__getitem__, default=None),
        }


def tasks_of(asked: argparse.Namespace) -> list[SweepTask]:
    """Return a task for each shape and limit."""
    shapes = [tuple(map(int, word.split("x"))) for word in asked.rows.split()]
    limits, parts = (LIMITS, PARTS) if not asked.quick else ((48,), (1, 13))
    made = []
    for m, n, k in shapes[: 1 if asked.quick else None]:
        problem = Problem("split", (m, n, k), asked.dtype, seconds=SECONDS)
        for kib in limits:
            schedules = swept(question(problem), kib, parts)
            made.append(SweepTask(replace(problem, schedules=schedules), kib))
    return made


HEAD = (
    *("problem", "tile", "stages", "best S", "us", "auto S", "us"),
    *("best / auto", "best / stream", "library us"),
)


def lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yield a line for each row."""
    for row in rows:
        if "failed" in row or row["best"] is None:
            why = row.get("failed") or "; ".join(row["wrong"].values())
            yield [row["problem"], *[""] * (len(HEAD) - 2), why.partition("\n")[0]]
            continue
        us, best = row["us"], row["us"][row["best"]]
        over = {way: f"{best / us[way]:.3f}" if way in us else "–" for way in WAYS}
        yield [
            row["problem"],
            "x".join(map(str, row["tile"])),
            str(row["stages"]),
            row["best"],
            f"{best:.2f}",
            str(row["parts"].get("auto", "–")),
            f"{us['auto']:.2f}" if "auto" in us else "–",
            *over.values(),
            f"{row['library_us']:.2f}" if row["library_us"] else "–",
        ]
        yield from (
            [row["problem"], *[""] * 8, f"S = {name} wrong: {why}"] for name, why in row["wrong"].items()
        )


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw a picture for each shape: time over number of parts, a line for each limit; choices are ringed."""
    shapes = list(dict.fromkeys(tuple(row["shape"]) for row in rows if "us" in row))
    figure = new_figure((4.6 * len(shapes), 4.2))
    for at, shape in enumerate(shapes, 1):
        axes = figure.add_subplot(1, len(shapes), at)
        for number, row in enumerate(row for row in rows if "us" in row and tuple(row["shape"]) == shape):
            points = sorted((int(name), us) for name, us in row["us"].items() if name.isdigit())
            label = f"{row['kib']} KiB" if row["kib"] else "all shared memory"
            axes.loglog(*zip(*points, strict=True), ".-", color=f"C{number}", label=label)
            if "auto" in row["us"]:
                place = ([row["parts"]["auto"]], [row["us"]["auto"]])
                axes.loglog(*place, "o", markersize=9, fillstyle="none", color=f"C{number}")
            if row["library_us"] and not number:
                axes.axhline(row["library_us"], color="black", linewidth=0.8, label="cuBLAS")
        axes.set(xlabel="parts of K; ringed: as auto chooses", ylabel="us")
        axes.set_title("×".join(map(str, shape)), fontsize=10)
        axes.legend(fontsize=8)
    save(figure, path)


def kept_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of an earlier run or device run."""
    found = json.loads(path.read_text())
    kept = [part["result"] for part in found["parts"]] if "parts" in found else [found]
    return [row for one in kept if one and one["benchmark"] == "split_k" for row in one["rows"]]


def main() -> None:
    begun = time.time()
    made = parser(__doc__)
    every = " ".join("x".join(map(str, shape)) for shape in SHAPES)
    made.add_argument("--rows", default=every, help="shapes MxNxK")
    made.add_argument("--dtype", default="f16", help="dtype of A and B")
    made.add_argument("--plot", type=Path, help="a picture: .png, .svg or .pdf")
    made.add_argument("--kept", type=Path, help="only make table and picture of this record")
    asked = made.parse_args()
    if asked.kept is not None:
        finish(kept_rows(asked.kept), asked.plot)
    tasks = tasks_of(asked)
    record = Record(asked.json or Path(tempfile.mkdtemp()) / "split_k.json", "split_k")
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
    finish(record.found["rows"], asked.plot)


def finish(rows: list[dict[str, Any]], plot: Path | None) -> None:
    """Print the table, draw the picture, and exit with 1 if a row is wrong."""
    print(table(HEAD, lines(rows)))
    if plot is not None:
        draw(rows, plot)
    bad = [row for row in rows if "failed" in row or row.get("wrong")]
    sys.exit(f"{len(bad)} rows failed" if bad else 0)


if __name__ == "__main__":
    main()
