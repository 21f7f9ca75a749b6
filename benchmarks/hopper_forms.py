"""Forms of the Hopper GEMM beside cuBLAS (PyTorch): device time, cold second-level cache, in turns, checked.

    python benchmarks/hopper_forms.py --out DIRECTORY [--seconds 270] [--sets large,small] [--build]

Compiles all forms in parallel processes, then takes problem after problem, the most telling first: each form
is compared with f64 element by element, and those that are right are timed beside PyTorch. `forms.json` is
written after every problem, so that a run that is cut off leaves what it has. With ``--build`` nothing is
launched, and no GPU is needed.

The problems are taken by a process of their own. If a form hangs or breaks its context, the process ends, and
another one goes on without that form.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from hopper_sets import RIVAL, SETS, Case
from reporting import commit, table

import tilewright as tw
from tilewright.errors import TilewrightError
from tilewright.runtime.environment import usable_processors
from tilewright.runtime.nvrtc import FATAL
from tilewright.tune.machine import machine

MOST_PROCESSES = 6
FIGURES = ("registers", "spill_store_bytes", "shared_bytes")


def specimens(case: Case) -> list[Any]:
    """What stands for the arrays of a case."""
    return [tw.like(element, *shape) for element, shape in case.arrays]


def build(case: Case, name: str) -> dict[str, Any]:
    """Compile one form of a case."""
    begin = time.perf_counter()
    found: dict[str, Any] = {"set": case.set, "form": name, "case": str(case)}
    try:
        made = case.bind(name).compile(*specimens(case), target="cuda", arch="sm_90a")
        found |= {figure: made.resources.get(figure) for figure in FIGURES}
    except TilewrightError as error:
        found["failed"] = str(error).strip()[:300]
        found["warned"] = [code for code in FATAL if code in str(error)]
    return found | {"seconds": round(time.perf_counter() - begin, 2)}


def to_build(cases: Iterable[Case]) -> list[tuple[Case, str]]:
    """Each form once for every class of arrays."""
    seen: dict[Any, tuple[Case, str]] = {}
    for case in cases:
        for name, form in case.forms.items():
            classes = tuple(tuple(min(n & -n, 256) for n in shape) for _, shape in case.arrays)
            seen.setdefault((case.kernel, case.along, case.dtype, case.out, form, classes), (case, name))
    return list(seen.values())


def build_all(cases: list[Case], processes: int) -> list[dict[str, Any]]:
    """Compile in parallel; what is compiled lies in the cache that this process shares."""
    wanted = to_build(cases)
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(build, *zip(*wanted, strict=True), chunksize=1))


def tables(rows: list[dict[str, Any]]) -> str:
    """For every set, forms by problems: how many times as fast as cuBLAS."""
    text = []
    for name in dict.fromkeys(row["set"] for row in rows):
        found = [row for row in rows if row["set"] == name and "speed" in row]
        forms = dict.fromkeys(form for row in found for form in row["speed"])
        head = [name, *(row["case"] for row in found)]
        lines = [
            [form, *(f"{row['speed'][form][0]:.3f}" if form in row["speed"] else "-" for row in found)]
            for form in forms
        ]
        lines.append(["cuBLAS, TFlops", *(f"{row['tflops'][RIVAL]:.0f}" for row in found)])
        text.append(table(head, lines))
    return "\n\n".join(text)


def watched(out: Path) -> subprocess.Popen[bytes] | None:
    """Clocks and power, four times a second, beside the results."""
    if not shutil.which("nvidia-smi"):
        return None
    query = "timestamp,clocks.sm,power.draw,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-lms", "250"]
    with (out / "clocks.csv").open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)


class Record:
    """What a run has found, in a file that both processes write in turns.

    Args:
        out: the directory.
    """

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.path, self.doing = out / "forms.json", out / "doing.json"
        self.found: dict[str, Any] = {"benchmark": "hopper_forms", "rows": [], "broken": []}

    def read(self) -> Record:
        self.found = json.loads(self.path.read_text())
        return self

    def keep(self) -> None:
        self.path.write_text(json.dumps(self.found, indent=1, default=str) + "\n")

    def begin(self, at: int, what: str, seconds: float) -> None:
        """Say what is done now; the process ends if nothing else has begun after so many seconds."""
        self.doing.write_text(json.dumps([at, what]))
        faulthandler.dump_traceback_later(seconds, exit=True)


def go_through(cases: list[Case], record: Record, until: float) -> None:
    """Take problem after problem that no row is there for yet; ends the process if the device is lost."""
    from hopper_problem import DeviceLostError, measured

    for at, case in enumerate(cases):
        broken = record.found["broken"]
        without = {what for number, what in broken if cases[number].set == case.set}
        if any(row["at"] == at for row in record.found["rows"]):
            continue
        if any([at, what] in broken for what in ("arrays", "timing")):
            continue
        if time.time() > until:
            print(f"no time for {len(cases) - at} problems, from {case} on", flush=True)
            return
        started = time.time()
        try:
            row = measured(case, case.seconds, without, lambda what, s, at=at: record.begin(at, what, s))
        except DeviceLostError:
            os._exit(3)
        except Exception as error:  # noqa: BLE001 the other problems are still to be measured
            row = {"set": case.set, "case": str(case), "error": repr(error)[:500]}
            print(f"ERROR {row}", flush=True)
        record.found["rows"].append(row | {"at": at, "wall_s": round(time.time() - started, 1)})
        print(f"{case.set} {case}: {record.found['rows'][-1]['wall_s']} s", flush=True)
        record.keep()
    faulthandler.cancel_dump_traceback_later()


def supervise(record: Record, until: float) -> None:
    """Start processes that go through the problems, until one comes to the end."""
    for _ in range(MOST_PROCESSES):
        record.keep()
        command = [sys.executable, __file__, *sys.argv[1:], "--until", str(until)]
        status = subprocess.run(command, check=False).returncode
        record.read()
        if status == 0:
            return
        record.found["broken"].append(json.loads(record.doing.read_text()))
        print(f"BROKEN, with status {status}: {record.found['broken'][-1]}", flush=True)


def main() -> None:
    begin = time.time()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the directory of the results")
    parser.add_argument("--seconds", type=float, default=270, help="after which no problem is begun")
    parser.add_argument("--sets", default=",".join(SETS), help=f"some of {', '.join(SETS)}, in this order")
    parser.add_argument("--build", action="store_true", help="only compile")
    parser.add_argument("--first", type=int, help="so many forms of each problem, to try it out")
    parser.add_argument("--processes", type=int, default=usable_processors())
    parser.add_argument("--commit", default=commit(), help="of the source tree, for the record")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    cases = [case.first(asked.first) for name in asked.sets.split(",") for case in SETS[name]]
    record = Record(asked.out)
    if asked.until is not None:
        go_through(cases, record.read(), asked.until)
        return
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("TILEWRIGHT_CACHE_DIR", cache)
        record.found["builds"] = build_all(cases, asked.processes)
        record.keep()
        for built in record.found["builds"]:
            if "failed" in built or built["spill_store_bytes"] or asked.build:
                print(built, flush=True)
        print(f"{len(record.found['builds'])} kernels built after {time.time() - begin:.0f} s", flush=True)
        if asked.build:
            sys.exit(any("failed" in built for built in record.found["builds"]))
        record.found["machine"] = machine("cuda", asked.commit).record()
        watch = watched(asked.out)
        try:
            supervise(record, begin + asked.seconds)
        finally:
            if watch is not None:
                watch.terminate()
    record.keep()
    text = tables(record.found["rows"])
    (asked.out / "table.txt").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
