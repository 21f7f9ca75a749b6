"""Run every benchmark of the members of the GEMM family on a machine with a GPU.

    python benchmarks/members_run.py --out DIRECTORY [--only TEXT ...] [--commit HASH] [--seconds 540]
    python benchmarks/members_run.py --out DIRECTORY --phase verify|time --cache FOLDER
    python benchmarks/members_run.py --take DIRECTORY/results.json [--only TEXT ...]

First all benchmarks run in parallel with ``--verify``: they compile and compare kernels, but time nothing.
Then they run one after the other and time, the most important first.  ``--phase`` runs only one of these
phases.  ``results.json`` and ``table.txt`` in the directory have the outcome of each, ``log.txt`` its output.
``--take`` copies the measurements into results/, where `members.py` and `render.py` read them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from device_run import HERE, PYTHON, Outcome, Part, run, summary, write

COMPILED_AT_ONCE = 14
VERIFIED_S, TIMED_S = 240.0, 200.0
RESULTS = HERE / "results"


class Measured(NamedTuple):
    """A benchmark, or some rows of one.

    Args:
        name: name of the part.
        kept: the file in results/ for its rows.
        script: the benchmark.
        words: its other arguments.
    """

    name: str
    kept: str
    script: str
    words: tuple[str, ...] = ()

    def part(self, *more: str) -> Part:
        """Return the process that measures it."""
        script = (PYTHON, str(HERE / f"{self.script}.py"), "--json", "{json}", "--commit", "{commit}")
        return Part(self.name, (*script, *self.words, *more), TIMED_S, result=True)


def of_complex(name: str, dtype: str, *rows: str) -> Measured:
    """Return the part for complex products with one dtype of parts."""
    return Measured(name, "h200_complex", "complex", ("--dtype", dtype, "--rows", *rows))


MEASURED = (
    Measured("int4", "h200_int4", "int4"),
    of_complex("complex f16", "f16", "4m", "3m"),
    of_complex("complex f64", "f64", "4m"),
    Measured("accurate", "h200_accurate", "accurate"),
    Measured("chain", "h200_chain", "chain"),
    Measured("attention", "h200_attention", "attention"),
    Measured("decoding", "h200_decode", "attention", ("--decode",)),
    Measured("gradients of attention", "h200_attention_backward", "attention", ("--backward",)),
    Measured("packed sequences", "h200_varlen", "attention", ("--varlen",)),
    Measured("softmax of rows", "h200_softmax_rows", "attention", ("--rows",)),
    Measured("cross-entropy", "h200_loss", "attention", ("--loss",)),
    Measured("epilogues", "h200_epilogues", "epilogues"),
    Measured("scaled", "h200_scaled", "scaled", ("--only", "contiguous along k")),
    of_complex("complex f32", "f32", "4m f32", "4m tf32"),
    Measured("scaled by block", "h200_scaled_blocks", "scaled", ("--only", "by block")),
    Measured("scaled by row", "h200_scaled", "scaled", ("--only", "by row")),
    Measured("permuted", "h200_permuted", "permuted"),
    Measured("f64", "h200_f64", "dense", ("--rows", "f64", "--seconds", "60")),
    Measured("errors", "h200_errors", "errors", ("--target", "cuda")),
    Measured("scaled along n", "h200_scaled", "scaled", ("--only", "contiguous along n")),
    of_complex("complex f32, other grades", "f32", "4m exact", "4m f16"),
)
ALREADY_BUILT = ("dense",)
"""Benchmarks that start several compiling processes themselves."""


def verify(parts: list[Part], asked: argparse.Namespace, scratch: Path) -> list[Outcome]:
    """Run all benchmarks in parallel, without timing."""
    deadline = time.monotonic() + VERIFIED_S

    def one(part: Part) -> Outcome:
        folder = scratch / "verified" / part.name.replace(" ", "_")
        folder.mkdir(parents=True)
        log = folder / "log.txt"
        outcome = run(part, folder, deadline, asked.commit, log, asked.cache)
        if not outcome.well:
            print(log.read_text() if log.exists() else outcome.ended, flush=True)
        return outcome

    with ThreadPoolExecutor(COMPILED_AT_ONCE) as pool:
        return list(pool.map(one, parts))


def take(found: dict[str, Any], results: Path = RESULTS) -> list[Path]:
    """Copy the measurements into the files of results/, and join rows of the same file."""
    kept: dict[str, list[dict[str, Any]]] = defaultdict(list)
    by_name = {one.name: one for one in MEASURED}
    for part in found["parts"]:
        if part["well"] and part["result"]:
            kept[by_name[part["name"]].kept].append(part["result"])
    made = []
    for name, parts in kept.items():
        first, *others = parts
        commits = {one["machine"]["commit"] for one in parts}
        said = [{} if len(commits) == 1 else {"commit": one["machine"]["commit"]} for one in parts]
        rows = [row | more for one, more in zip(parts, said, strict=True) for row in one["rows"]]
        merged = first | {"rows": rows}
        assert all(one["benchmark"] == first["benchmark"] for one in others), name
        path = results / f"{name}.json"
        path.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")
        made.append(path)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="directory for results.json, log.txt, table.txt")
    parser.add_argument("--take", type=Path, help="a results.json, whose parts are copied into results/")
    parser.add_argument("--only", nargs="+", default=[""], help="parts whose names contain one of these")
    parser.add_argument("--commit", default="", help="commit of the source tree, for the record")
    parser.add_argument("--seconds", type=float, default=540, help="seconds for all benchmarks together")
    parser.add_argument("--quick", action="store_true", help="few, small problems")
    parser.add_argument("--phase", choices=("both", "verify", "time"), default="both")
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels; default: a new one")
    asked = parser.parse_args()
    if (asked.out is None) == (asked.take is None):
        parser.error("say --out DIRECTORY to measure, or --take RESULTS to keep what was measured")
    wanted = [one for one in MEASURED if any(text in one.name for text in asked.only)]
    if not wanted:
        parser.error(f"--only {asked.only}: none of {', '.join(one.name for one in MEASURED)}")
    if asked.take is not None:
        names = {one.name for one in wanted}
        found = json.loads(asked.take.read_text())
        found["parts"] = [part for part in found["parts"] if part["name"] in names]
        print(*take(found), sep="\n")
        return 0
    return measure(wanted, asked)


def measure(wanted: list[Measured], asked: argparse.Namespace) -> int:
    """Verify all benchmarks, then time all."""
    deadline = time.monotonic() + asked.seconds
    asked.out.mkdir(parents=True, exist_ok=True)
    more = ("--quick",) if asked.quick else ()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as made:
        scratch, log = Path(made), asked.out / "log.txt"
        log.write_text("")
        asked.cache = asked.cache or scratch / "cache"
        if asked.phase != "time":
            compiled = [one.part("--verify", *more) for one in wanted if one.script not in ALREADY_BUILT]
            outcomes = verify(compiled, asked, scratch)
            print("verified:", *map(summary, outcomes), sep="\n", flush=True)
        if asked.phase == "verify":
            return 0 if all(outcome.well for outcome in outcomes) else 1
        outcomes.clear()
        for one in wanted:
            outcomes.append(run(one.part(*more), scratch, deadline, asked.commit, log, asked.cache))
            print(summary(outcomes[-1]), flush=True)
            write(asked.out, asked.commit, outcomes)
    return 0 if all(outcome.well for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
