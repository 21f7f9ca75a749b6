"""Write the page of plots: the survey and the members, from the recorded results."""

from __future__ import annotations

import json
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
describe how the problems were drawn and timed.
"""


def survey(name: str) -> dict[str, Any]:
    """Return the timed problems of a survey, and where they were measured."""
    found = json.loads((RESULTS / name).read_text())
    machine = found["machine"]
    rows = [
        {
            "op": row["call"]["op"],
            "part": row["group"],
            "dtype": row["call"]["dtype"],
            "problem": row["problem"],
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
