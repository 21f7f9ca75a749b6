"""Run everything that needs a GPU: tests, examples, sanitizers, benchmarks. One process per part.

    python benchmarks/device_run.py --out DIRECTORY [--parts probe tests …] [--commit HASH] [--seconds 560]
    python benchmarks/device_run.py --out DIRECTORY --parts "*-members-*" --at-once 48

A part that fails or runs out of time does not stop the others.  With ``--at-once`` several parts run in
parallel, spread over the GPUs of the machine: use it for tests and sanitizers, never for timings.

Writes `results.json` (each part's outcome and the benchmarks' records), `log.txt` (all output) and
`table.txt`, which it prints last.  Exits with 1 if a part failed.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from itertools import cycle
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BEFORE = str(ROOT / ".before")
"""Where the part `against` expects the source tree of another commit."""
HERE = Path(__file__).parent
PYTHON = sys.executable
HOPPER = ROOT / "examples" / "03_hopper_gemm.py"
IM2COL = ROOT / "examples" / "05_im2col.py"
OPTIMIZED = ROOT / "examples" / "04_optimized_gemm.py"
WARP_TILES = ROOT / "examples" / "06_warp_tiles_gemm.py"
LEVELS = ROOT / "examples" / "07_three_levels_gemm.py"
FUSED = ROOT / "examples" / "08_fused_gemms.py"
ATTENTION = ROOT / "examples" / "09_attention.py"
HOPPER_ATTENTION = ROOT / "examples" / "10_hopper_attention.py"

SPLIT_NAMES = ("split_k", "cluster_sums", "groups", "lists", "small_products")
SPLIT_TESTS = tuple(f"tests/gpu/test_{name}.py" for name in SPLIT_NAMES)
"""Arguments for products with split K, few rows, groups, and many batch items."""

NEEDED = ("numpy", "ml_dtypes", "platformdirs", "filelock", "cuda.bindings", "typer", "rich")
FOR_TESTS = ("pytest", "pytest_timeout", "xdist", "hypothesis", "torch", "cupy", "jax")
PROGRAMS = ("nvidia-smi", "compute-sanitizer", "ncu", "c++")

MEMBER_PARTS = 16
"""Parts into which the members' random problems are divided for each sanitizer."""

ENDING_S = 15
"""Seconds that a benchmark may need to finish its last row."""

PROBLEMS = (
    *(PYTHON, str(ROOT / "scripts" / "try_problems.py"), "--target", "cuda", "--count", "2000"),
    *("--seconds", "120", "--jobs", str(min(os.cpu_count() or 1, 16))),
    *("--json", "{json}", "--commit", "{commit}"),
)
"""Two minutes of random problems; several processes compile kernels in parallel."""

PROBE = f"""
import importlib, json, shutil, sys
found = {{"python": sys.version.split()[0]}}
for name in {NEEDED + FOR_TESTS!r}:
    try:
        found[name] = getattr(importlib.import_module(name), "__version__", "there")
    except Exception as error:
        found[name] = f"MISSING: {{error}}"
for name in {PROGRAMS!r}:
    found[name] = shutil.which(name) or "MISSING"
print(json.dumps(found, indent=1))
from tilewright.tune.machine import machine
print(json.dumps(machine("cuda").record(), indent=1))
missing = [name for name, text in found.items() if str(text).startswith("MISSING")]
print("missing:", ", ".join(missing) or "nothing")
sys.exit(bool(set(missing) & set({NEEDED!r})))
"""


@dataclass(frozen=True)
class Part:
    """One process.

    Args:
        name: name of the part.
        command: the command, which runs in the root of the source tree.
        limit_s: time limit in seconds.
        well: whether its status and output mean success; default: status 0.
        result: whether it writes JSON to the file ``{json}`` in the command; ``{seconds}`` is its time,
            minus the time that it needs to finish.
        asked: whether it runs only if it is requested by name.
    """

    name: str
    command: tuple[str, ...]
    limit_s: float
    well: Callable[[int, str], bool] = lambda status, output: status == 0
    result: bool = False
    asked: bool = False


@dataclass
class Outcome:
    """The outcome of a part."""

    name: str
    command: list[str]
    status: int | None = None
    well: bool = False
    seconds: float = 0.0
    ended: str = ""
    last: str = ""
    result: Any = field(default=None)


def _sanitizer(tool: str, *arguments: str, script: Path = HERE / "sanitize.py") -> tuple[str, ...]:
    return (
        "compute-sanitizer",
        "--tool",
        tool,
        "--target-processes",
        "all",
        "--error-exitcode",
        "9",
        PYTHON,
        str(script),
        *arguments,
    )


def _clean(status: int, output: str) -> bool:
    """Whether the tool reported no error and the program finished."""
    summaries = re.findall(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (\d+) ", output)
    return status == 0 and bool(summaries) and not any(int(count) for count in summaries)


def _found(status: int, output: str) -> bool:
    """Whether the tool reported the planted error."""
    summaries = re.findall(r"RACECHECK SUMMARY: (\d+) hazard", output)
    return any(int(count) for count in summaries)


def _benchmark(name: str, limit_s: float, *arguments: str) -> Part:
    script = (PYTHON, str(HERE / f"{name}.py"), "--json", "{json}", "--commit", "{commit}", *arguments)
    return Part(name, script, limit_s, result=True)


def _rows(name: str, script: str, limit_s: float, *arguments: str) -> Part:
    """A part for some rows of an isolated benchmark, which uses the remaining time."""
    made = _benchmark(script, limit_s, "--seconds", "{seconds}", *arguments)
    return replace(made, name=name, asked=True)


FEW = "few rows,invariant few,invariant"
DEEP = "split,split f32,f32 16 rows,f32 64 rows,in order"
BATCHED = "grouped,batched,batched 32,batched 16"
MOST = ("--most", "10")


def parts(quick: bool) -> list[Part]:
    """Return all parts, the most important first."""
    # -v prints each name at once, because a run may be interrupted.
    pytest = (PYTHON, "-m", "pytest", "-n", "14", "-v", "-p", "no:cacheprovider", "-p", "no:benchmark")
    example = (PYTHON, str(ROOT / "examples" / "02_basic_gemm.py"))
    hurry = ("--quick",) if quick else ()
    return [
        Part("probe", (PYTHON, "-c", PROBE), 90),
        Part("doctor", (PYTHON, "-m", "tilewright", "doctor"), 60),
        Part("tests", (*pytest, "-m", "gpu", "tests"), 500),
        Part("tests-split", (*pytest, "-m", "gpu", *SPLIT_TESTS), 120, asked=True),
        Part("two-gpus", (*pytest, "-m", "two_gpus", "tests/gpu"), 120, asked=True),
        Part("example-cuda", (*example, "--target", "cuda"), 60),
        Part("example-cuda-small", (*example, "--target", "cuda", "--small"), 60),
        Part("example-optimized", (PYTHON, str(OPTIMIZED), "--target", "cuda"), 60),
        Part("example-im2col", (PYTHON, str(IM2COL), "--target", "cuda"), 60),
        Part("example-warp-tiles", (PYTHON, str(WARP_TILES), "--small", "--target", "cuda"), 60),
        Part("example-levels", (PYTHON, str(LEVELS), "--small", "--target", "cuda"), 60),
        Part("example-hopper", (PYTHON, str(HOPPER), "--small"), 60),
        Part("example-fused", (PYTHON, str(FUSED), "--target", "cuda"), 60),
        Part("example-attention", (PYTHON, str(ATTENTION), "--target", "cuda"), 60),
        Part("example-hopper-attention", (PYTHON, str(HOPPER_ATTENTION)), 60),
        Part("example-cpu", (*example, "--target", "cpu"), 60),
        Part("cli-cuda", (PYTHON, "-m", "tilewright", "gemm", "--target", "cuda", "--dtype", "f16"), 90),
        Part(
            "cli-elevation",
            (PYTHON, "-m", "tilewright", "gemm", "--target", "cuda", "--data", "elevation"),
            60,
        ),
        Part("memcheck", _sanitizer("memcheck"), 150, _clean),
        Part("memcheck-hopper", _sanitizer("memcheck", "--small", script=HOPPER), 90, _clean),
        Part(
            "memcheck-hopper-attention",
            _sanitizer("memcheck", "--small", script=HOPPER_ATTENTION),
            90,
            _clean,
        ),
        Part(
            "memcheck-optimized",
            _sanitizer("memcheck", "--small", "--target", "cuda", script=OPTIMIZED),
            90,
            _clean,
        ),
        Part(
            "memcheck-im2col",
            _sanitizer("memcheck", "--small", "--target", "cuda", script=IM2COL),
            90,
            _clean,
        ),
        Part(
            "racecheck-optimized",
            _sanitizer("racecheck", "--small", "--target", "cuda", script=OPTIMIZED),
            90,
            _clean,
        ),
        *(
            Part(f"memcheck-{name}", _sanitizer("memcheck", "--small", *on, script=script), 90, _clean)
            for name, script, on in (
                ("warp-tiles", WARP_TILES, ("--target", "cuda")),
                ("fused", FUSED, ("--target", "cuda")),
            )
        ),
        *(
            Part(
                f"{tool}-levels",
                _sanitizer(tool, "--small", "--target", "cuda", "1", "2", "0", script=LEVELS),
                90,
                _clean,
            )
            for tool in ("memcheck", "racecheck")
        ),
        Part(
            "memcheck-attention",
            _sanitizer("memcheck", "--small", "--target", "cuda", script=ATTENTION),
            90,
            _clean,
        ),
        Part(
            "racecheck-attention",
            _sanitizer("racecheck", "--small", "--target", "cuda", script=ATTENTION),
            120,
            _clean,
        ),
        Part("problems", PROBLEMS, 180, result=True),
        Part("racecheck", _sanitizer("racecheck"), 150, _clean),
        Part("initcheck", _sanitizer("initcheck"), 120, _clean),
        Part("synccheck", _sanitizer("synccheck"), 120, _clean),
        Part("memcheck-movers", _sanitizer("memcheck", "movers"), 150, _clean),
        Part("racecheck-movers", _sanitizer("racecheck", "movers"), 150, _clean),
        Part("memcheck-clusters", _sanitizer("memcheck", "clusters"), 120, _clean),
        Part("memcheck-blocks", _sanitizer("memcheck", "blocks"), 120, _clean),
        Part("racecheck-blocks", _sanitizer("racecheck", "blocks"), 120, _clean),
        Part("memcheck-splits", _sanitizer("memcheck", "splits"), 150, _clean),
        Part("racecheck-splits", _sanitizer("racecheck", "splits"), 150, _clean),
        *(
            Part(
                f"{tool}-members-{number}",
                _sanitizer(tool, "members", "--part", str(number), str(MEMBER_PARTS)),
                570,
                _clean,
                asked=True,
            )
            for tool in ("racecheck", "initcheck", "synccheck", "memcheck")
            for number in range(MEMBER_PARTS)
        ),
        Part("memcheck-schedules", _sanitizer("memcheck", "schedules"), 180, _clean),
        Part("racecheck-schedules", _sanitizer("racecheck", "schedules"), 180, _clean),
        Part("racecheck-planted", _sanitizer("racecheck", "planted"), 60, _found),
        _benchmark("conflicts", 240, *hurry),
        _benchmark("launch_overhead", 60, *hurry),
        _benchmark("lists", 90, *hurry),
        _benchmark("startup", 120, *hurry),
        _benchmark("dense", 240, *hurry),
        _rows("survey", "survey", 590, *hurry),
        replace(_benchmark("tuning", 560, "--seconds", "540", *hurry), asked=True),
        _rows("few-rows", "dense", 120, "--rows", FEW, *hurry),
        _rows("deep-k", "dense", 120, "--rows", DEEP, *hurry),
        _rows("batched", "dense", 100, "--rows", BATCHED, *hurry),
        _rows("split_k", "split_k", 120, *hurry),
        _rows("candidates-few", "candidates", 120, "--rows", "few", *MOST, *hurry),
        _rows("candidates-deep", "candidates", 120, "--rows", "split,f32", *MOST, *hurry),
        _rows("candidates-small", "candidates", 120, "--rows", "small,batched,grouped", *MOST, *hurry),
        _benchmark("im2col", 60, *hurry),
        _benchmark("levels", 150, *hurry),
        _benchmark("tutorial", 60, *hurry),
        _benchmark("attention", 150, *hurry),
        _benchmark("hopper_mutants", 240),
        replace(_benchmark("against", 300, "--before", BEFORE, *hurry), asked=True),
        _benchmark("gemm_cpu", 120, *hurry),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--out", type=Path, required=True, help="directory for results.json, log.txt, table.txt"
    )
    parser.add_argument("--parts", nargs="*", help="only these parts; `*` and `?` match as in file names")
    parser.add_argument("--without", nargs="*", default=[], help="all but these parts")
    parser.add_argument("--commit", default="", help="commit of the source tree, for the record")
    parser.add_argument("--seconds", type=float, default=560, help="seconds for all parts together")
    parser.add_argument("--quick", action="store_true", help="few, small problems")
    parser.add_argument("--at-once", type=int, default=1, help="number of parts that run in parallel")
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels; default: a new one")
    asked = parser.parse_args()
    known = parts(asked.quick)
    names = [part.name for part in known]
    patterns = [*(asked.parts or []), *asked.without]
    unknown = [pattern for pattern in patterns if not fnmatch.filter(names, pattern)]
    if unknown:
        parser.error(f"unknown parts: {', '.join(unknown)}; choose from {', '.join(names)}")
    asked.out.mkdir(parents=True, exist_ok=True)
    usual = [part.name for part in known if not part.asked]
    kept, left = (
        {name for pattern in given for name in fnmatch.filter(names, pattern)}
        for given in (asked.parts or usual, asked.without)
    )
    wanted = [part for part in known if part.name in kept - left]
    deadline = time.monotonic() + asked.seconds
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.at_once) as pool:
        scratch, log = Path(folder), asked.out / "log.txt"
        log.write_text("")
        started = [
            pool.submit(run, part, scratch, deadline, asked.commit, log, asked.cache, gpu)
            for part, gpu in zip(wanted, cycle(gpus() if asked.at_once > 1 else [None]))
        ]
        for future in as_completed(started):
            outcomes.append(future.result())
            print(summary(outcomes[-1]), flush=True)
            write(asked.out, asked.commit, outcomes)
    table = "\n".join(summary(outcome) for outcome in outcomes)
    print(f"\n{table}", flush=True)
    return 0 if all(outcome.well for outcome in outcomes) else 1


def gpus() -> list[str]:
    """Return the numbers of the machine's GPUs."""
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True)
    return [str(number) for number, _ in enumerate(listed.stdout.splitlines())]


def run(
    part: Part,
    scratch: Path,
    deadline: float,
    commit: str,
    log: Path,
    cache: Path | None = None,
    gpu: str | None = None,
) -> Outcome:
    """Run a part until its end or time limit, on one GPU, and append its output to ``log``."""
    kept, printed = scratch / f"{part.name}.json", scratch / f"{part.name}.txt"
    limit = min(part.limit_s, deadline - time.monotonic())
    said = {"{json}": str(kept), "{commit}": commit, "{seconds}": f"{max(limit - ENDING_S, 1):.0f}"}
    command = [reduce(lambda made, pair: made.replace(*pair), said.items(), word) for word in part.command]
    outcome = Outcome(part.name, [public(word, scratch) for word in command])
    if limit < 5:
        outcome.ended = "not started: no time left"
        return outcome
    if shutil.which(command[0]) is None:
        outcome.ended = f"not started: {command[0]} is missing"
        return outcome
    begin = time.monotonic()
    with printed.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(scratch, cache) | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            outcome.status = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            outcome.ended = f"ended after {limit:.0f} s"
    outcome.seconds = time.monotonic() - begin
    text = printed.read_text(errors="replace")
    with log.open("a") as whole:  # one write for each part, because parts run in parallel
        whole.write(f"\n==== {part.name}: {' '.join(command)}\n{text}")
    outcome.well = outcome.status is not None and part.well(outcome.status, text)
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
    outcome.last = public(last, scratch)
    if part.result and kept.exists():
        outcome.result = json.loads(kept.read_text())
    return outcome


def public(text: str, scratch: Path) -> str:
    """Remove the paths of this machine from a text."""
    for path in (f"{scratch}{os.sep}", f"{ROOT}{os.sep}"):
        text = text.replace(path, "")
    return text.replace(PYTHON, "python")


def environment(scratch: Path, cache: Path | None = None) -> dict[str, str]:
    """Return the environment: the source tree on the path, and a new cache unless one is given.

    Python's bytecode is kept, as for an installed package, but outside of the source tree.
    """
    paths = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    return {
        **os.environ,
        "PYTHONPATH": paths,
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(scratch / "bytecode"),
        "TILEWRIGHT_CACHE_DIR": str((cache or scratch / "cache").resolve()),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }


def write(out: Path, commit: str, outcomes: list[Outcome]) -> None:
    """Write all results so far, so that an interrupted run keeps them."""
    found = {"commit": commit, "parts": [asdict(outcome) for outcome in outcomes]}
    (out / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (out / "table.txt").write_text("".join(f"{summary(outcome)}\n" for outcome in outcomes), encoding="utf-8")


def summary(outcome: Outcome) -> str:
    """Return one line."""
    word = "ok" if outcome.well else "FAILED"
    why = outcome.ended or f"status {outcome.status}"
    return f"{outcome.name:<20} {word:<7} {outcome.seconds:6.1f} s  {why}; {outcome.last[:120]}"


if __name__ == "__main__":
    sys.exit(main())
