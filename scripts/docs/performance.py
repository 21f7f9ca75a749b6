"""Write the page of plots: the survey and the members, from the recorded results."""

from __future__ import annotations

import json
import re
import runpy
import sys
from typing import Any

from scripts.docs.pages import ROOT

RESULTS = ROOT / "benchmarks" / "results"
SURVEYS = {"Survey on a GPU": "h200_survey.json", "Survey on a CPU": "cpu_survey.json"}

INTRO = """# Plots of the measurements

Each point is one problem: our speed relative to the fastest other library. Above 1 we are faster. A
line through a point is its 95 % interval. Point at a row, or move to it with the Tab key, to see
the times, the limit of the hardware, the schedule, and the machine. [Notes](benchmarks/NOTES.md)
describe how the problems were drawn and timed. Choose an operation and a kind of shape, or type a part of a
problem, such as 4096.
"""


EXTENTS = re.compile(r"\d+(?:[×x]\d+){2,}|\((?:\d+, )+\d+\)")
ATTENTION = 6
"""Number of extents of attention: batch, heads, heads of keys, queries, keys, width of a head."""


def kind(problem: str) -> str:
    """Return the kind of a problem's shape, by which the plots can be filtered.

    Example:
        >>> [kind(text) for text in ("bf16 nt 16×4096×4096", "f16 2048³", "attention f16 2×8×1×1×9088×128")]
        ['at most 64 rows or columns', 'many rows and columns', 'one query']
    """
    cube, listed = re.search(r"(\d+)³", problem), EXTENTS.search(problem)
    extents = (
        [int(cube[1])] * 3 if cube else [int(one) for one in re.findall(r"\d+", listed[0])] if listed else []
    )
    if len(extents) == ATTENTION:
        return "one query" if extents[3] == 1 else "many queries"
    if len(extents) != 3:
        return "other"
    fewest, most, deep = min(extents[:2]), max(extents[:2]), extents[2]
    if fewest == 1:
        return "one row or column"
    if fewest <= 64:
        return "at most 64 rows or columns"
    return "deep K" if deep >= 4 * most else "many rows and columns"


def survey(name: str) -> dict[str, Any]:
    """Return the timed problems of a survey, and where they were measured."""
    found = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    machine = found["machine"]
    rows = [
        {
            "op": row["call"]["op"],
            "part": row["group"],
            "dtype": row["call"]["dtype"],
            "problem": row["problem"],
            "shape": kind(row["problem"]),
            "speed": row["speed"],
            "peer": row["peer"],
            "us": row["us"],
            "peer_us": row["peer_us"],
            "limit_us": row.get("limit_us"),
            "limit": row.get("limit"),
            "schedule": row["schedule"],
        }
        for row in found["rows"]
        if row.get("speed")
    ]
    device = (machine.get("device") or {}).get("name") or machine["processor"]
    return {"file": name, "machine": device, "commit": machine["commit"][:12], "rows": rows}


def members() -> dict[str, Any]:
    """Return the problems of the members, each with its peer; their commits are in the notes."""
    sys.path.append(str(ROOT / "benchmarks"))
    found = runpy.run_path(str(ROOT / "benchmarks" / "members.py"))["rows"]()
    rows = [
        {
            "op": work.name,
            "part": work.peer,
            "dtype": one.problem.split()[0],
            "problem": one.problem,
            "shape": kind(one.problem),
            "speed": [one.value],
            "peer": work.peer,
            "file": work.file,
        }
        for work, speeds in found.items()
        for one in speeds
    ]
    return {"file": "members.py", "machine": "", "commit": "", "rows": rows}


def page() -> str:
    """Return the page with its data."""
    data = {title: survey(name) for title, name in SURVEYS.items()} | {"Members": members()}
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/")
    return (
        f'{INTRO}\n<div id="plots"></div>\n'
        f'<script type="application/json" id="measured">{text}</script>\n'
        "<noscript>The plots need JavaScript. All numbers are on the page of results.</noscript>\n"
    )
