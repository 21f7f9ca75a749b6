"""The survey's rows as tables: each part's speeds and its floor, the slowest problems, estimates, regret."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reporting import table
from survey_problems import CLASSES, PARTS, Part, SurveyProblem

from tilewright.tune.figures import new_figure, save

BELOW = 0.95
WORST = 20
RESAMPLES = 1000

Row = dict[str, Any]


def mean_of(values: Sequence[float]) -> float:
    """Return the geometric mean.

    Example:
        >>> round(mean_of([0.5, 2.0, 8.0]), 9)
        2.0
    """
    return math.exp(sum(map(math.log, values)) / len(values))


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile, linear between neighbours.

    Example:
        >>> percentile([3.0, 1.0, 2.0], 0.5), percentile([1.0, 2.0], 0.1)
        (2.0, 1.1)
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


@dataclass(frozen=True)
class Summary:
    """The speeds of some problems relative to the peer.

    Args:
        count: number of problems.
        mean: geometric mean.
        interval: 95 % interval of the mean of other problems of the distribution, by resampling.
        tenth: tenth percentile.
        least: the least.
        below: share below `BELOW`.
    """

    count: int
    mean: float
    interval: tuple[float, float]
    tenth: float
    least: float
    below: float

    @staticmethod
    def of(speeds: Sequence[float]) -> Summary:
        """Summarise one speed or more."""
        draw, logs = random.Random(0), [math.log(one) for one in speeds]
        means = [math.exp(sum(draw.choices(logs, k=len(logs))) / len(logs)) for _ in range(RESAMPLES)]
        ends = percentile(means, 0.025), percentile(means, 0.975)
        share = sum(one < BELOW for one in speeds) / len(speeds)
        return Summary(len(speeds), mean_of(speeds), ends, percentile(speeds, 0.1), min(speeds), share)

    def cells(self) -> list[str]:
        """Return the cells of a line."""
        low, high = self.interval
        mean = f"{self.mean:.3f} [{low:.3f}, {high:.3f}]"
        return [str(self.count), mean, f"{self.tenth:.3f}", f"{self.least:.3f}", f"{self.below:.0%}"]


HEAD = (
    "part",
    "problems",
    "geometric mean [95 %]",
    "tenth percentile",
    "least",
    f"below {BELOW:g}",
    "floor",
    "goal",
)


def judged(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that have a peer's time."""
    return [row for row in rows if "speed" in row]


def lines(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yield a line for each part, and for each class within it; ``<`` marks a floor that is missed."""
    for name, part in PARTS.items():
        of_part = [row for row in judged(rows) if row["group"] == name]
        if not of_part:
            continue
        found = Summary.of([row["speed"][0] for row in of_part])
        yield [name, *found.cells(), floor_of(part, found), f"{part.goal:g}"]
        columns: dict[str, list[float]] = {}
        for row in of_part:
            columns.setdefault(SurveyProblem.read(row["call"]).column, []).append(row["speed"][0])
        for column in sorted(columns, key=_in_order) if len(columns) > 1 else ():
            found = Summary.of(columns[column])
            yield [f"– {column}", *found.cells(), floor_of(part, found) if part.each_class else "", ""]


def floor_of(part: Part, found: Summary) -> str:
    """Return the floors of a part, with ``<`` after one that is missed."""
    values = zip((found.mean, found.tenth, found.least), part.floor, strict=True)
    return "; ".join(f"{floor:g}{' <' * (value < floor)}" for value, floor in values if floor is not None)


def _in_order(column: str) -> tuple[int, str]:
    """Sort ``M = 16`` by its number, classes of operations in their order, and others by name."""
    rows, classes = column.removeprefix("M = "), [name for _, name in CLASSES]
    return (int(rows) if rows.isdigit() else classes.index(column) if column in classes else 0), column


WORST_HEAD = (
    "problem",
    "part",
    "speed",
    "us",
    "peer us",
    "peer",
    "predicted us",
    "limit us",
    "limit",
    "schedule",
)


def number(value: float | None) -> str:
    """Return a time in microseconds."""
    return "" if value is None else f"{value:.1f}"


def worst(rows: Sequence[Row], most: int = WORST) -> list[list[str]]:
    """Return the slowest problems relative to the peer."""
    slowest = sorted(judged(rows), key=lambda row: row["speed"][0])[:most]
    return [
        [
            row["problem"],
            row["group"],
            f"{row['speed'][0]:.3f}",
            number(row["us"]),
            number(row["peer_us"]),
            row["peer"],
            number(row.get("predicted_us")),
            number(row.get("limit_us")),
            row.get("limit", ""),
            (row.get("schedule") or "").removeprefix("tw.Schedule"),
        ]
        for row in slowest
    ]


ESTIMATE_HEAD = ("part", "predicted", "median error", "90th percentile")


def estimates(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yield the errors of the predicted times of each part, and of all."""
    groups = [("all", [*rows])] + [(name, [row for row in rows if row["group"] == name]) for name in PARTS]
    for name, found in groups:
        errors = [
            abs(math.log(row["predicted_us"] / row["us"]))
            for row in found
            if row.get("predicted_us") and "us" in row
        ]
        if errors:
            yield [name, str(len(errors)), f"{percentile(errors, 0.5):.1%}", f"{percentile(errors, 0.9):.1%}"]


REGRET_HEAD = ("part", "problems", "mean", "tenth percentile", "least")


def regrets(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yield the share that the choice has of the best candidate's speed, by part."""
    for name in ("all", *PARTS):
        found = [
            min(1.0, min(row["candidates"].values()) / row["us"])
            for row in rows
            if row.get("candidates") and name in ("all", row["group"])
        ]
        if found:
            cells = mean_of(found), percentile(found, 0.1), min(found)
            yield [name, str(len(found)), *(f"{one:.3f}" for one in cells)]


CHANGE_HEAD = ("part or problem", "problems", "speed before", "speed after", "after / before")


def changes(rows: Sequence[Row], before: Sequence[Row], most: int = WORST) -> Iterator[list[str]]:
    """Yield the means of problems that two surveys share, by part, and the problems that lost most.

    Each speed is relative to the peer in the same run, so that two machines of one kind may be compared.
    """
    known = {(row["group"], row["problem"]): row["speed"][0] for row in judged(before)}
    pairs = [
        (row, known[row["group"], row["problem"]])
        for row in judged(rows)
        if (row["group"], row["problem"]) in known
    ]
    for name in ("all", *PARTS):
        found = [(old, row["speed"][0]) for row, old in pairs if name in ("all", row["group"])]
        if found:
            old, new = (mean_of(speeds) for speeds in zip(*found, strict=True))
            yield [name, str(len(found)), f"{old:.3f}", f"{new:.3f}", f"{new / old:.3f}"]
    lost = sorted(pairs, key=lambda pair: pair[0]["speed"][0] / pair[1])[:most]
    for row, old in lost:
        new = row["speed"][0]
        if new < old:
            yield [row["problem"], "", f"{old:.3f}", f"{new:.3f}", f"{new / old:.3f}"]


def tables(rows: Sequence[Row]) -> list[tuple[str, Sequence[str], list[list[str]]]]:
    """Return the title, the head and the lines of each table that has lines."""
    found = [
        ("Speed relative to the best call of the peer", HEAD, [*lines(rows)]),
        (f"The slowest {WORST} problems", WORST_HEAD, worst(rows)),
        ("Error of the predicted times, |log(predicted / measured)|", ESTIMATE_HEAD, [*estimates(rows)]),
        ("The chosen schedule's share of the best candidate's speed", REGRET_HEAD, [*regrets(rows)]),
    ]
    return [one for one in found if one[2]]


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw measured over predicted times, a colour for each part."""
    known = [row for row in rows if row.get("predicted_us") and "us" in row]
    figure = new_figure((8, 6))
    axes = figure.subplots()
    for part in PARTS:
        found = [(row["predicted_us"], row["us"]) for row in known if row["group"] == part]
        if found:
            axes.plot(*zip(*found, strict=True), ".", markersize=4, label=part)
    ends = [bound(row[name] for row in known for name in ("predicted_us", "us")) for bound in (min, max)]
    for factor in (0.8, 1, 1.25):
        axes.plot(ends, [factor * end for end in ends], color="0.6", linewidth=0.8, zorder=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("predicted, µs; lines: 0.8, 1 and 1.25 of it")
    axes.set_ylabel("measured, µs")
    axes.legend(fontsize=7)
    save(figure, path)


def counts(rows: Sequence[Row]) -> str:
    """Return the numbers of rows, of failures, and of problems that the peer does not compute."""
    failed = sum("failed" in row or bool(row.get("wrong")) for row in rows)
    without = sum("failed" not in row and "speed" not in row for row in rows)
    return f"{len(rows)} problems, {failed} failed, {without} without a peer"


def text(rows: Sequence[Row]) -> str:
    """Return all tables for a terminal."""
    parts = [f"{title}\n{table(head, found)}" for title, head, found in tables(rows)]
    return "\n\n".join([*parts, counts(rows)])
