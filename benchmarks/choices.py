"""Compare the rules' first choice with the fastest measured schedule of each problem, and write tables.

    python benchmarks/choices.py [RESULTS ...] [--keep] [--table] [--check] [--below 0.97]

Reads the records of `candidates.py --json`, `device_run.py` or this script; later files override earlier
ones.  Without files it reads `benchmarks/results/h200_candidates.json`.  A line has the time of the choice,
the time of the fastest schedule, and their ratio, which is below 1 if another schedule is faster.  The last
lines are the geometric mean and the worst ratio.

With ``--keep`` the measurements are written to that file.  With ``--table`` the fastest schedules are written
to the table of the package; do this again after a change of the rules.  ``--check`` fails if that table
differs from the one that would be written.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dense_problems import Problem, question
from reporting import ROOT, table

from tilewright.runtime import tables
from tilewright.schedule.choice import choose
from tilewright.schedule.legality import reasons, with_fallback
from tilewright.schedule.question import Question
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.tables import (
    MeasuredSchedule,
    ScheduleTable,
    TableError,
    Version,
    class_of,
    extents_of,
    read_schedule,
)

KEPT = ROOT / "benchmarks" / "results" / "h200_candidates.json"
FACTOR = 1.5
"""Schedules slower than the fastest by more than this factor are not kept, except the choice."""

IN_NO_ORDER = 'reduction="atomic"'
"""Schedules with this reduction are never chosen, because their bits differ from run to run."""

Times = tuple[float, float, float]
"""Median time in us, and the ends of its interval."""


@dataclass
class Row:
    """A problem and its measurements.

    Args:
        problem: the problem.
        times: times by the text of a schedule.
        library: time of the other library in us; 0: not measured.
        measured: number of measured schedules; slow ones may not have been kept.
    """

    problem: Problem
    times: dict[str, Times] = field(default_factory=dict)
    library: float = 0.0
    measured: int = 0

    def question(self) -> Question:
        """The question that a schedule is chosen for."""
        return question(self.problem)

    def choice(self) -> str:
        """The text of the rules' choice."""
        asked = self.question()
        return repr(with_fallback(choose(asked), asked.form, asked.classes, asked.arch)[0])

    @property
    def fastest(self) -> str:
        """The text of the schedule with the smallest median."""
        return min(self.times, key=lambda text: self.times[text])

    def record(self, choice: str) -> dict[str, Any]:
        """The record of the row, which `rows_of` reads."""
        most = FACTOR * self.times[self.fastest][0]
        found = {text: us for text, us in self.times.items() if us[0] <= most or text == choice}
        one = self.problem
        return {
            "group": one.group,
            "shape": list(one.shape),
            "items": one.items,
            "sizes": list(one.sizes),
            "dtype": one.dtype,
            "kernel": one.kernel,
            "layout": one.layout,
            "library_us": round(self.library, 3),
            "measured": self.measured,
            "times": {text: [round(us, 3) for us in found[text]] for text in found},
        }


def parts_of(found: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Return the records of candidates in a file of any of the three programs."""
    if "parts" in found:
        yield from (part["result"] for part in found["parts"] if part["result"])
    else:
        yield found


def rows_of(files: Iterable[Path]) -> tuple[list[Row], dict[str, Any]]:
    """Return the problems in some files, and the record of their machine."""
    rows: dict[str, Row] = {}
    machine: dict[str, Any] = {}
    for path in files:
        for part in parts_of(json.loads(path.read_text(encoding="utf-8"))):
            if part.get("benchmark") != "candidates":
                continue
            machine = part["machine"]
            for kept in part["rows"]:
                if "failed" not in kept:
                    add(rows, kept)
    return list(rows.values()), machine


def add(rows: dict[str, Row], kept: Mapping[str, Any]) -> None:
    """Add a row of a file to the problems."""
    sizes, items = tuple(kept["sizes"]), kept["items"]
    kernel = kept.get("kernel") or ("grouped" if sizes else "batched" if items else "product")
    m, n, k = kept["shape"]
    layout = kept.get("layout", "nt")
    problem = Problem(kept["group"], (m, n, k), kept["dtype"], layout, kernel, items=items, sizes=sizes)
    row = rows.setdefault(str(problem), Row(problem))
    row.library = kept.get("library_us", 0.0) or library_us(kept)
    row.times |= {text: tuple(us) for text, us in kept.get("times", {}).items()}
    row.times |= {one["schedule"]: tuple(one["us"]) for one in kept.get("candidates", ()) if one["us"]}
    row.times = {text: us for text, us in row.times.items() if IN_NO_ORDER not in text}
    row.measured = max(kept.get("measured", 0), len(row.times))


def library_us(kept: Mapping[str, Any]) -> float:
    """Return the least time of another library's calls."""
    theirs = (one["median_us"] for name, one in kept["timings"].items() if name not in kept["schedules"])
    return min(theirs, default=0.0)


def entry_of(row: Row, choice: str) -> MeasuredSchedule | None:
    """Return a problem's entry of a table; None if the choice was not measured, or sizes are unequal.

    The rules' choice stays, unless another schedule is faster with its whole interval.
    """
    if choice not in row.times or len(set(row.problem.sizes)) > 1:
        return None
    asked, own = row.question(), row.times[choice]
    surely = [text for text, us in row.times.items() if us[2] < own[1] and is_legal(asked, text)]
    best = min(surely, key=lambda text: row.times[text], default=choice)
    speed, us = round(own[0] / row.times[best][0], 4), round(row.times[best][0], 3)
    schedule = read_schedule(best)
    return MeasuredSchedule(
        class_of(asked), extents_of(asked), schedule, us, speed, row.measured, by_rules=best == choice
    )


def is_legal(asked: Question, text: str) -> bool:
    """Whether a measured schedule still exists and is legal for the problem."""
    try:
        schedule: Schedule = read_schedule(text)
    except ValueError:
        return False
    return not reasons(schedule, asked.form, asked.classes, asked.arch)


def made(rows: Iterable[tuple[Row, str]], machine: Mapping[str, Any]) -> ScheduleTable:
    """Return the table of a machine, by the present rules."""
    device = machine["device"]
    version = Version.now(device["arch"], device["name"], device["processors"])
    entries = (entry_of(row, choice) for row, choice in rows)
    return ScheduleTable(version).joined(entry for entry in entries if entry is not None)


HEAD = (
    "problem",
    "of",
    "first us",
    "fastest us",
    "share",
    "over library",
    "first; the fastest if it is another",
)


def lines(rows: Iterable[tuple[Row, str]], below: float) -> Iterator[list[str]]:
    """Yield a line for each problem."""
    for row, choice in rows:
        best, own = row.times[row.fastest], row.times.get(choice)
        share = best[0] / own[0] if own else 0.0
        said = choice if own and share >= below else f"{choice}; {row.fastest}"
        yield [
            str(row.problem),
            str(row.measured),
            f"{own[0]:.2f}" if own else "not measured",
            f"{best[0]:.2f}",
            f"{share:.3f}" if own else "",
            f"{row.library / own[0]:.3f}" if own and row.library else "",
            said,
        ]


def summary(rows: Iterable[tuple[Row, str]]) -> Iterator[str]:
    """Yield the geometric mean and the worst ratio of each group of rows, and of all."""
    shares: dict[str, list[tuple[float, str]]] = {}
    for row, choice in rows:
        if choice in row.times:
            share = row.times[row.fastest][0] / row.times[choice][0]
            for name in (row.problem.group, "all"):
                shares.setdefault(name, []).append((share, str(row.problem)))
    for name, found in sorted(shares.items()):
        mean = math.exp(sum(math.log(share) for share, _ in found) / len(found))
        worst, where = min(found)
        yield f"{name}: {mean:.3f} in the geometric mean of {len(found)}, the worst {worst:.3f}: {where}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", nargs="*", type=Path, help=f"default: {KEPT.relative_to(ROOT)}")
    parser.add_argument("--keep", action="store_true", help=f"write {KEPT.relative_to(ROOT)}")
    parser.add_argument("--table", action="store_true", help="write the table of the package")
    parser.add_argument("--check", action="store_true", help="fail if that table differs")
    parser.add_argument(
        "--below", type=float, default=0.97, help="name the fastest if the ratio is below this"
    )
    asked = parser.parse_args()
    rows, machine = rows_of(asked.results or [KEPT])
    chosen = [(row, row.choice()) for row in rows if row.times]
    print(table(HEAD, lines(chosen, asked.below)))
    print(*summary(chosen), sep="\n")
    if asked.keep:
        text = ",\n".join(json.dumps(row.record(choice)) for row, choice in chosen)
        head = json.dumps({"benchmark": "candidates", "machine": machine})[:-1]
        KEPT.write_text(f'{head}, "rows": [\n{text}\n]}}\n', encoding="utf-8")
    found = made(chosen, machine)
    path = tables.SHIPPED / tables.file_name(found.version)
    if asked.table:
        tables.save(found, path)
    try:
        is_present = not asked.check or tables.load(path, found.version).record() == found.record()
    except (TableError, OSError):
        is_present = False
    if not is_present:
        sys.exit(f"{path} differs from the present measurements and rules; --table writes it again")


if __name__ == "__main__":
    main()
