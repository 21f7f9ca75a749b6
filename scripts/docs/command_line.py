"""Write the page of the command line: what each verb says about itself, and a recorded run.

`python -m scripts.docs.command_line` records the runs anew in `scripts/docs/runs.json`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any, NamedTuple

import click
from scripts.docs.pages import ROOT, blocks, fenced
from typer.main import get_command
from typer.testing import CliRunner

from tilewright.cli.verbs import app

INTRO = """# Command line

Each verb with what `tilewright VERB --help` prints, and what a run printed on a processor with two cores and
no GPU. Exit status: 0, or 1 if a result is wrong, 2 if a request cannot be served, 130 after Ctrl-C.
"""

STEP = "docs/tutorial/step1_eight_lines.py:linear"
RUNS = {
    "attention": ["attention 1 2 48 64 32 --target reference"],
    "cache": ["cache"],
    "chain": ["chain 32 48 16 24 --target reference"],
    "complex": ["complex 32 48 16 --target reference"],
    "doctor": ["doctor"],
    "draw": [
        "draw layout '(4,2):(2,1)'",
        "draw map mma.m16n8k16 --operand C",
        "draw banks '(16,64):(64,1) | Swizzle(3,3,3)' --access ldmatrix.x2",
        "draw timeline gemm --shape 32x32x32",
    ],
    "einsum": ["einsum mk,kn->mn 48x32 32x40 --target reference"],
    "export": ["export matmul 64x64:f32 64x64:f32 --arch x86-64-v3 -o exported"],
    "gemm": ["gemm 96 80 64 --target reference"],
    "inspect": [f"inspect {STEP} --shape M=64,N=64,K=64 --target reference"],
    "instance": ["instance instance.py:instance --arch gfx1151 --specializations Default -o instance.hsaco"],
    "profile": ["profile gemm 256 6144 4096 --target cuda --dtype bf16 --layout nt --why --arch sm_90a"],
    "reduce": ["reduce 32 48 16 --target reference"],
    "replay": ["replay calls.jsonl --no-time"],
    "report": ["report gemm 64 64 64 --target reference --check-seconds 0 -o report.html"],
    "scaled": ["scaled 64 48 64 --target reference"],
    "tune": ["tune gemm 8 8 8 --target cpu"],
}
"""Commands of each verb that are recorded, with little work."""

OF_THE_MACHINE = ("cache", "doctor", "profile", "tune")
"""Verbs whose output depends on the machine or on fitted constants: only how lines begin is compared."""

RECORDED = Path(__file__).parent / "runs.json"
_TIME = re.compile(r"\d[\d.e+-]* (?:[num]?s|[KMG]iB|bytes)\b")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")
_MEASURED = ("Perf", "run", "verify", "kernel", "cpu")
"""Beginnings of lines whose numbers are measured, or depend on caches of the processor or on the compiler."""


def _given(rows: int, columns: int) -> dict[str, Any]:
    described = {"dtype": "f32", "shape": [rows, columns], "strides": [columns, 1], "align": 16}
    return {"array": {**described, "device": "cpu", "same_as": ""}}


CALL = {
    "format": 1,
    "tilewright": "0.1.0",
    "op": "matmul",
    "arguments": {"a": _given(33, 20), "b": _given(20, 17), "target": {"value": "reference"}},
    "host_us": 250.0,
    "plan": "planned",
    "kernels": [],
}
"""A line of a log of calls, which `tilewright replay` reads."""


class Run(NamedTuple):
    """What a command printed, and its exit status."""

    command: str
    status: int
    lines: list[str]


def verbs() -> dict[str, click.Command]:
    """Return the commands of `tilewright` by their names."""
    group: Any = get_command(app)
    return dict(sorted(group.commands.items()))


def help_of(name: str, verb: click.Command) -> str:
    """Return what `tilewright VERB --help` prints."""
    with click.Context(verb, info_name=f"tilewright {name}", terminal_width=100) as context:
        return verb.get_help(context)


def run(command: str) -> Run:
    """Run a command in a new folder with the files that it names; paths of the machine are shortened."""
    with tempfile.TemporaryDirectory() as place, chdir(place):
        Path("docs").symlink_to(ROOT / "docs")
        Path("instance.py").write_text(
            blocks((ROOT / "docs" / "instances.md").read_text(encoding="utf-8"), "python")[0],
            encoding="utf-8",
        )
        Path("calls.jsonl").write_text(json.dumps(CALL) + "\n", encoding="utf-8")
        variables = {"COLUMNS": "100", "TILEWRIGHT_CACHE_DIR": f"{place}/cache"}
        ended = CliRunner().invoke(app, shlex.split(command), prog_name="tilewright", env=variables)
        text = ended.output
        known = {f"{place}/cache": "~/.cache/tilewright", place: ".", str(ROOT): "tilewright"}
        for path, short in (known | {sys.prefix: ".venv", os.path.realpath(sys.prefix): ".venv"}).items():
            text = text.replace(path, short)
    return Run(command, ended.exit_code, [line.rstrip() for line in text.rstrip().splitlines()])


def recorded() -> dict[str, list[Run]]:
    """Return the recorded runs of each verb."""
    found = json.loads(RECORDED.read_text(encoding="utf-8"))
    return {verb: [Run(**one) for one in runs] for verb, runs in found.items()}


def settled(verb: str, lines: list[str]) -> list[str]:
    """Return what is the same in each run: lines without times, and without the numbers of measurements.

    Example:
        >>> settled("gemm", ["run       on cpu: 261 ms for the first call", "Perf: 151.5 ms, 6.4e-06 TFlops"])
        ['run on cpu: # for the first call', 'Perf: #, # TFlops']
    """
    if verb in OF_THE_MACHINE:
        return sorted({line.split()[0] for line in lines if line[:1].isalpha()} - {"missing"})
    kept = []
    for line in lines:
        text = _TIME.sub("#", " ".join(line.split()))
        kept.append(_NUMBER.sub("#", text) if line.startswith(_MEASURED) else text)
    return kept


def page() -> str:
    """Return the page."""
    runs, parts = recorded(), [INTRO]
    for name, verb in verbs().items():
        parts.append(f"## tilewright {name}\n\n{fenced(help_of(name, verb), 'text')}")
        parts += [
            fenced("\n".join([f"$ tilewright {one.command}", *one.lines]), "console") for one in runs[name]
        ]
    return "\n".join(parts)


def main() -> None:
    runs = {verb: [run(command)._asdict() for command in commands] for verb, commands in RUNS.items()}
    RECORDED.write_text(json.dumps(runs, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
