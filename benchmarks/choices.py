"""The rules' first choice beside the fastest that was measured, problem by problem; and tables made of it.

    python benchmarks/choices.py [RESULTS ...] [--keep] [--table] [--check] [--below 0.97]

Reads what `candidates.py --json`, `device_run.py` or this script kept, later files over earlier ones; without
files what was kept last, in `benchmarks/results/h200_candidates.json`.  A line has the choice's time, that of
the fastest, and their ratio, under 1 if another is faster; below stand the geometric mean and the worst.

With ``--keep`` the measurements are kept in that file.  With ``--table`` the fastest are written to the table
that comes with the package, again after a change of the rules; ``--check`` fails where that table is
not the one that would be written.
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
from tilewright.schedule.fallback import with_fallback
from tilewright.schedule.legality import reasons
from tilewright.schedule.question import Question
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.tables import MeasuredSchedule, ScheduleTable, Version, class_of, extents_of
from tilewright.schedule.text import read_schedule

KEPT = ROOT / "benchmarks" / "results" / "h200_candidates.json"
FACTOR = 1.5
"""How many times as slow as the fastest what is kept may be; the choice is kept in any case."""

IN_NO_ORDER = 'reduction="atomic"'
"""What is no choice however fast it is, for its bits are others at every run."""

Times = tuple[float, float, float]
"""The median in us, and the ends of its interval."""


@dataclass
class Row:
    """A problem, and what was measured of it.

    Args:
        problem: the problem.
        times: by the text of a schedule.
        library: of the other library, in us; 0: it was not measured.
        measured: how many schedules were, of which the slow ones may not have been kept.
    """

    problem: Problem
    times: dict[str, Times] = field(default_factory=dict)
    library: float = 0.0
    measured: int = 0

    def question(self) -> Question:
        """What a schedule is chosen for."""
        return question(self.problem)

    def choice(self) -> str:
        """The text of the rules' choice, as it would run."""
        asked = self.question()
        return repr(with_fallback(choose(asked), asked.form, asked.classes, asked.arch)[0])

    @property
    def fastest(self) -> str:
        """The text of the schedule with the least median."""
        return min(self.times, key=lambda text: self.times[text])

    def record(self, choice: str) -> dict[str, Any]:
        """What is kept of it, which `rows_of` reads."""
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
    """The records of candidates in a file, whatever wrote it."""
    if "parts" in found:
        yield from (part["result"] for part in found["parts"] if part["result"])
    else:
        yield found


def rows_of(files: Iterable[Path]) -> tuple[list[Row], dict[str, Any]]:
    """The problems in some files, and the record of the machine that they were measured on."""
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
    """Add one row of a file to the problems."""
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
    """The least time of what is none of ours."""
    theirs = (one["median_us"] for name, one in kept["timings"].items() if name not in kept["schedules"])
    return min(theirs, default=0.0)


def entry_of(row: Row, choice: str) -> MeasuredSchedule | None:
    """What a table says of a problem; None where the choice was not measured, or the sizes are unequal.

    The rules' own choice stays where nothing is faster with its whole interval.
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
    """Whether a measured schedule is one still, and legal for the problem as it stands."""
    try:
        schedule: Schedule = read_schedule(text)
    except ValueError:
        return False
    return not reasons(schedule, asked.form, asked.classes, asked.arch)


def made(rows: Iterable[tuple[Row, str]], machine: Mapping[str, Any]) -> ScheduleTable:
    """The table of a machine, by the rules that there are now."""
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
    """A line for each problem."""
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
    """For each group of rows, and for all: the geometric mean and the worst of the ratios."""
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
    parser.add_argument("--table", action="store_true", help="write the table that comes with the package")
    parser.add_argument("--check", action="store_true", help="fail where that table is another")
    parser.add_argument("--below", type=float, default=0.97, help="below which share the fastest is named")
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
    if asked.check and (not path.exists() or json.loads(path.read_text("utf-8")) != found.record()):
        sys.exit(f"{path} is not what the measurements and the rules say now: --table writes it anew")


if __name__ == "__main__":
    main()
