"""Tuning: its time, and the quality of the choice for shapes that nobody tuned.

    python benchmarks/tuning.py [--target cuda] [--rows tuned,unseen] [--table FILE] [--plot FILE]

First some shapes are tuned into a table, each with an empty kernel cache; the time of each is a row. Then,
for each of 16 other shapes, three kernels are timed in turns with the library that a user would call: the
choice of the rules, the choice of the table, and the best of all candidates, which is found by tuning the
shape separately. With ``--table`` the table is kept, and shapes in its journal are not measured again.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isolated import Progress, Record, parser, run
from reporting import table as in_columns

from tilewright.runtime import tables
from tilewright.schedule.tables import ScheduleTable, Version, chosen
from tilewright.tune.contest import Contest, rounded
from tilewright.tune.figures import new_figure, save
from tilewright.tune.gemm import Gemm
from tilewright.tune.journal import Journal, TuningFiles
from tilewright.tune.measure import Effort, Interval
from tilewright.tune.subject import Arrays, SubjectArrays
from tilewright.tune.tuner import Tuner

RULES, NEAREST, BEST = "rules", "table", "best"
GROUPS = ("tuned", "unseen")
Extents = tuple[int, int, int]

LAYERS = ((4096, 4096), (14336, 4096), (4096, 14336))
"""N and K of the layers of a model."""

TUNED: dict[str, tuple[Extents, ...]] = {
    "cuda": (
        *((n, n, n) for n in (512, 1024, 2048, 4096, 8192)),
        *((m, n, k) for m in (1, 16, 64, 256, 1024) for n, k in LAYERS),
        *((64, 64, 65536), (256, 256, 65536), (1536, 1536, 12288), (1000, 1000, 1000)),
    ),
    "cpu": ((256, 256, 256), (1024, 1024, 1024), (64, 64, 65536), (512, 2048, 512)),
}
UNSEEN: dict[str, tuple[Extents, ...]] = {
    "cuda": (
        *((768, 768, 768), (1536, 1536, 1536), (3072, 3072, 3072), (6144, 6144, 6144), (5120, 5120, 5120)),
        *((8, 5120, 5120), (32, 5120, 5120), (48, 14336, 5120), (128, 4096, 4096), (192, 4096, 14336)),
        *((512, 14336, 4096), (2048, 11008, 4096), (96, 96, 49152), (320, 320, 49152), (1200, 1400, 1000)),
        (1264, 2048, 12288),
    ),
    "cpu": ((200, 200, 200), (384, 384, 384), (768, 768, 768), (96, 96, 49152)),
}
QUICK: dict[str, tuple[Extents, ...]] = {"tuned": ((40, 50, 60),), "unseen": ((44, 52, 64),)}


@dataclass(frozen=True)
class Ways:
    """Settings of tuning, and the files for its measurements.

    Args:
        table: the table of the tuned shapes.
        aside: a folder for the journals of other shapes.
        processes: number of compiling processes.
        most: number of candidates for each shape; None: all.
    """

    table: Path
    aside: Path
    processes: int
    most: int | None

    def tuner(self, gemm: Gemm, journal: Journal, seconds: float) -> Tuner:
        """Return the tuner of a shape."""
        effort = Effort(seconds=0.2 * seconds, warm_up_seconds=0.04 * seconds, least=5)
        return Tuner(gemm, journal, effort, self.processes, self.most)


@dataclass(frozen=True)
class TunedTask:
    """Tunes a shape."""

    gemm: Gemm
    ways: Ways
    group = "tuned"

    def __str__(self) -> str:
        return str(self.gemm)

    def measure(self, seconds: float, progress: Progress) -> dict[str, Any]:
        """Measure the time, and return the result; see `isolated.Task`."""
        progress.begin("tuning", 600)
        kept = TuningFiles(self.ways.table, version(self.gemm), renew=False, say=print)
        begin = time.perf_counter()
        found = self.ways.tuner(self.gemm, kept.journal, seconds).run()
        kept.add([found.entry])
        return {
            "seconds": round(time.perf_counter() - begin, 2),
            "measured": found.measured,
            "known": found.known,
            "wrong": {text: why for text, why in found.refused.items() if why.startswith("wrong")},
            "schedule": repr(found.entry.schedule),
            "us": found.entry.us,
            "speed": {RULES: rounded(found.speed)},
        }


@dataclass(frozen=True)
class UnseenTask:
    """Measures a shape that is not in the table."""

    gemm: Gemm
    ways: Ways
    group = "unseen"

    def __str__(self) -> str:
        return str(self.gemm)

    def measure(self, seconds: float, progress: Progress) -> dict[str, Any]:
        """Compare the choices with the best candidate; see `isolated.Task`."""
        gemm, question = self.gemm, self.gemm.question()
        progress.begin("tuning", 600)
        name = "x".join(map(str, gemm.shape))
        journal = Journal(self.ways.aside / f"{name}.journal", version(gemm))
        best = self.ways.tuner(gemm, journal, seconds).run().entry
        schedules = {
            RULES: gemm.candidates()[0].schedule,
            NEAREST: chosen(question, loaded(self.ways.table, version(gemm))),
            BEST: best.schedule,
        }
        progress.begin("timing", 300)
        arrays = SubjectArrays(gemm, 2)
        contest: Contest[Arrays] = Contest(gemm.contested(arrays.about), arrays.sets, gemm.bytes)
        for name, schedule in schedules.items():
            contest.enter(name, arrays.bind(schedule), arrays.check(schedule))

        def calls(given: Arrays) -> dict[str, Any]:
            return gemm.rivals(given)

        others = [n for n in calls(arrays.sets[0]) if contest.enter(n, lambda given, n=n: calls(given)[n])]
        found = contest.run(Effort(seconds=3 * seconds, warm_up_seconds=0.3, least=5), progress.clocks)
        speed = {name: {one: rounded(i) for one, i in found.speeds(name).items()} for name in schedules}
        said = {"schedules": {name: repr(one) for name, one in schedules.items()}, "libraries": others}
        return found.record() | said | {"speed": speed}


def version(gemm: Gemm) -> Version:
    """Return the version of this machine's table."""
    question = gemm.question()
    found = tables.version_of(question.arch, question.processors)
    if found is None:
        sys.exit(f"no tables are kept of target {gemm.target}")
    return found


def loaded(path: Path, wanted: Version) -> ScheduleTable | None:
    """Return the table of the tuned shapes, if there is one."""
    return tables.load(path, wanted) if path.exists() else None


HEAD = ("problem", "s", "measured", "TFlops", "rules / best", "table / best", "best / library")


def line(row: dict[str, Any]) -> list[str]:
    """Return the cells of a row."""
    if "failed" in row:
        return [row["problem"], *[""] * (len(HEAD) - 2), row["failed"].partition("\n")[0]]
    if row["group"] == "tuned":
        over = 1 / row["speed"][RULES][0]
        return [row["problem"], f"{row['seconds']:.1f}", str(row["measured"]), "", f"{over:.3f}", "", ""]
    speeds = [f"{row['speed'][name][BEST][0]:.3f}" for name in (RULES, NEAREST)]
    theirs = [f"{row['speed'][BEST][name][0]:.3f}" for name in row["libraries"][:1]]
    return [row["problem"], "", "", f"{row['tflops'][BEST]:.4g}", *speeds, *(theirs or [""])]


def lines(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Yield all rows, and the geometric means of the shapes that nobody tuned."""
    found = [line(row) for row in rows]
    unseen = [row for row in rows if row["group"] == "unseen" and "failed" not in row]
    if unseen:
        over = {name: [row["speed"][name][BEST][0] for row in unseen] for name in (RULES, NEAREST)}
        means = [math.exp(sum(map(math.log, speeds)) / len(speeds)) for speeds in over.values()]
        least = [f"{mean:.3f}, least {min(over[name]):.3f}" for name, mean in zip(over, means, strict=True)]
        found.append([f"geometric mean of {len(unseen)}", "", "", "", *least, ""])
    return found


def draw_intervals(
    path: Path, found: Mapping[str, Interval], *, about: str, title: str, mark: float | None = None
) -> None:
    """Write a picture of medians with their intervals, a line for each.

    Args:
        path: .png, .svg or .pdf.
        found: the intervals, by name, from top to bottom.
        about: the label of the axis.
        title: the title of the picture.
        mark: the place of a vertical line to compare with, or None.

    Raises:
        ToolchainError: as `new_figure` and `save`.
        OutputError: the file cannot be written.
    """
    figure = new_figure((8, 1.2 + 0.24 * len(found)))
    axes = figure.add_subplot()
    medians = [one.median for one in found.values()]
    off = [
        [one.median - one.low for one in found.values()],
        [one.high - one.median for one in found.values()],
    ]
    axes.errorbar(medians, range(len(found)), xerr=off, fmt="o", markersize=4, capsize=2)
    axes.set_yticks(range(len(found)), [*found], fontsize=8)
    axes.invert_yaxis()
    if mark is not None:
        axes.axvline(mark, color="black", linewidth=0.8)
    axes.set_xlabel(about)
    axes.set_title(title, fontsize=10)
    save(figure, path)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the quality of the table's choice."""
    speeds = {
        row["problem"]: Interval(*row["speed"][NEAREST][BEST])
        for row in rows
        if row["group"] == "unseen" and "failed" not in row
    }
    draw_intervals(
        path, speeds, about="speed over the tuned best", title="shapes that nobody tuned", mark=1.0
    )


def main() -> None:
    begun = time.time()
    made = parser(__doc__)
    made.add_argument("--target", default="cuda", choices=[*TUNED])
    made.add_argument("--dtype", default=None, help="default: bf16, on a CPU f32")
    made.add_argument("--layout", default="nt", choices=["nn", "nt", "tn", "tt"])
    made.add_argument("--rows", default=",".join(GROUPS), help=f"some of {', '.join(GROUPS)}")
    made.add_argument("--most", type=int, help="candidates of each shape")
    made.add_argument("--table", type=Path, help="file of the table; default: it is not kept")
    made.add_argument("--plot", type=Path, help="a picture of the choices: .png, .svg or .pdf")
    asked = made.parse_args()
    groups = asked.rows.split(",")
    shapes = {"tuned": TUNED[asked.target], "unseen": UNSEEN[asked.target]} if not asked.quick else QUICK
    dtype = asked.dtype or ("bf16" if asked.target == "cuda" else "f32")
    record = Record(asked.json or Path(tempfile.mkdtemp()) / "tuning.json", "tuning")
    table = asked.table or record.path.with_suffix(".table.json")
    ways = Ways(table, table.with_suffix(".aside"), asked.processes, asked.most)
    kinds = {"tuned": TunedTask, "unseen": UnseenTask}
    tasks: list[Any] = [
        kinds[group](Gemm(shape, dtype, asked.layout, "exact", asked.target), ways)
        for group in GROUPS
        if group in groups
        for shape in shapes[group]
    ]
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("TILEWRIGHT_CACHE_DIR", cache)
        run(tasks, asked, begun, record, asked.target)
    if asked.until is not None:
        return
    rows = record.found["rows"]
    print(in_columns(HEAD, lines(rows)))
    if asked.plot is not None:
        draw(rows, asked.plot)
    bad = [row for row in rows if "failed" in row or row.get("wrong")]
    sys.exit(f"{len(bad)} rows failed" if bad else 0)


if __name__ == "__main__":
    main()
