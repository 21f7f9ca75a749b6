"""The dense benchmark's rows as a table: speed relative to PyTorch, minimum, and goal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from dense_problems import GROUPS, OURS
from reporting import table

HEAD = (
    *("problem", "kernel", "TFlops", "compared with", "TFlops", "speed [95 %]", "at least", "goal", "again"),
    *("MHz", "W", "ran"),
)
"""``again``: speed of the same kernel timed under a second name; the difference from 1 is noise."""


def lines(rows: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield a line for each of our kernels and each call of the other library; geometric means of groups."""
    for group in GROUPS:
        found = [row for row in rows if row["group"] == group]
        for row in found:
            yield from _row(row)
        judged = [
            row for row in found if set(row.get("judged", ())[:1]) & set(row.get("speed", {}).get(OURS, ()))
        ]
        speeds = [row["speed"][OURS][row["judged"][0]][0] for row in judged]
        if len(speeds) > 1:
            yield _mean(group, "geometric mean", speeds)
        best = [max(_speeds(row)) for row in judged]
        if len(best) > 1 and best != speeds:
            yield _mean(group, "geometric mean of each row's fastest", best)


def _speeds(row: dict[str, Any]) -> list[float]:
    """Return the speeds of all our kernels relative to the row's reference."""
    (rival, *_) = row["judged"]
    return [speeds[rival][0] for speeds in row["speed"].values() if rival in speeds]


def _mean(group: str, name: str, speeds: Sequence[float]) -> list[str]:
    about = GROUPS[group]
    mean = math.exp(sum(map(math.log, speeds)) / len(speeds))
    said = {"problem": about.about, "kernel": name, "speed [95 %]": f"{mean:.3f}"}
    asked = {"at least": f"{about.floor:g}", "goal": f"{about.goal:g}"}
    return _line(said | asked | {"ran": f"least {min(speeds):.3f}"})


def _line(said: dict[str, str]) -> list[str]:
    """Return the cells of a line; both columns of TFlops belong to the same pair."""
    first, second = (said.get("TFlops", "") or "|").split("|")
    cells = [said.get(name, "") for name in HEAD]
    cells[2], cells[4] = first, second
    return cells


def _row(row: dict[str, Any]) -> Iterator[list[str]]:
    about = GROUPS[row["group"]]
    asked = {"at least": f"{about.none_below or about.floor:g}", "goal": f"{about.goal:g}"}
    said = {"problem": row["problem"]}
    if "failed" in row:
        yield _line(said | {"kernel": "failed", "ran": row["failed"].partition("\n")[0]})
    for step, (middle, low, high) in row.get("seconds", {}).items():
        took = {"kernel": step, "speed [95 %]": f"{middle:.3f} s [{low:.3f}, {high:.3f}]"}
        yield _line(said | took | (asked if step == "first" else {}))
    for name, why in row.get("wrong", {}).items():
        yield _line(said | {"kernel": f"{name}: wrong", "ran": why.partition("\n")[0]})
    for name, speeds in row.get("speed", {}).items():
        ran = {"kernel": name, "ran": row["schedules"].get(name, "")}
        for rival, (middle, low, high) in speeds.items():
            beside = {"compared with": rival, "speed [95 %]": f"{middle:.3f} [{low:.3f}, {high:.3f}]"}
            if "tflops" in row:
                beside["TFlops"] = "|".join(f"{row['tflops'][one]:.4g}" for one in (name, rival))
            judged = name == OURS and rival in row["judged"]
            yield _line(said | ran | beside | (asked | _measured(row) if judged else {}))


def _measured(row: dict[str, Any]) -> dict[str, str]:
    """Return noise, clock and power."""
    found = {"again": f"{row['again'][0]:.3f}"}
    clock = row.get("clock", {})
    names = {"mhz": "MHz", "watts": "W"}
    return found | {name: f"{clock[key]:.0f}" for key, name in names.items() if key in clock}


def text(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table for a terminal."""
    return table(HEAD, lines(rows))
