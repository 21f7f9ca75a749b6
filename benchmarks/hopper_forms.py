"""Forms of the Hopper GEMM beside cuBLAS (PyTorch): device time, cold second-level cache, in turns, checked.

    python benchmarks/hopper_forms.py --out DIRECTORY [--seconds 270] [--sets large,small] [--build]

Compiles all forms in parallel processes, then takes problem after problem, the most telling first: each form
is compared with f64 element by element, and those that are right are timed beside PyTorch. `forms.json` is
written after every problem, so that a run that is cut off leaves what it has. With ``--build`` nothing is
launched, and no GPU is needed.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from hopper_sets import SETS, Case
from reporting import commit, table

import tilewright as tw
from tilewright.errors import TilewrightError
from tilewright.runtime.environment import usable_processors
from tilewright.runtime.nvrtc import FATAL
from tilewright.tune.machine import machine
from tilewright.tune.measure import Effort, measure

RIVAL, AGAIN = "cuBLAS", "cuBLAS again"
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


class Problem:
    """One case on the GPU: its arrays, the result in f64, and a bound for every element.

    Args:
        case: which.
    """

    def __init__(self, case: Case) -> None:
        import torch

        self.case, self.torch = case, torch
        m, n, k = case.shape
        a, b = self._filled((m, k)), self._filled((n, k))
        self.extra = [self._filled(shape, case.out) for _, shape in case.arrays[2:-1]]
        self.a, self.b = a, b
        stored = [x.T.contiguous() if letter in case.along else x for x, letter in ((a, "m"), (b, "n"))]
        self.out = torch.empty((m, n), dtype=self._dtype(case.out), device="cuda")
        self.operands = [*stored, *self.extra]
        # cuBLAS gets the arrays as they lie.
        self.left = stored[0].T if "m" in case.along else stored[0]
        self.right = stored[1] if "n" in case.along else stored[1].T
        self.exact = self._finished(self._wide(a) @ self._wide(b).T)
        self.sizes = (self._wide(a).float().abs() @ self._wide(b).float().abs().T) if m * n <= 2**28 else None

    def _dtype(self, name: str) -> Any:
        names = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "i8": "int8", "i32": "int32"}
        return getattr(self.torch, {**names, "f8e4m3": "float8_e4m3fn"}[name])

    def _filled(self, shape: tuple[int, ...], name: str | None = None) -> Any:
        element = self._dtype(name or self.case.dtype)
        if element == self.torch.int8:
            return self.torch.randint(-100, 101, shape, dtype=element, device="cuda")
        return self.torch.randn(shape, device="cuda").to(element)

    def _wide(self, x: Any) -> Any:
        return x.float().double()

    def _finished(self, sums: Any) -> Any:
        functional = self.torch.nn.functional
        if self.case.kernel == "bias_gelu":
            return functional.gelu(sums + self._wide(self.extra[0]), approximate="tanh")
        return sums + self._wide(self.extra[0]) if self.case.kernel == "residual" else sums

    def check(self, name: str) -> dict[str, float]:
        """Run a form and compare all it wrote.

        Raises:
            AssertionError: it is wrong.
        """
        torch, case = self.torch, self.case
        self.out.fill_(float("nan") if self.out.is_floating_point() else 77)
        made = case.bind(name)(*self.operands, self.out)
        assert made.target == "cuda", f"{made.target} ran"
        torch.cuda.synchronize()
        off = (self.out.double() - self.exact).abs_()
        norm = float(torch.linalg.norm(off) / torch.linalg.norm(self.exact))
        limit = case.norm(case.forms[name])
        assert norm <= limit, f"off by {norm:.3g} in norm, more than {limit:.3g}"
        if self.sizes is None:
            return {"norm": norm}
        rounding, summing = case.bounds(case.forms[name])
        off -= rounding * self.exact.abs()
        off /= summing * self.sizes + 1e-30
        worst = float(off.max())
        assert worst <= 1, f"an element is off by {worst:.3g} of its bound"
        return {"norm": norm, "error_of_bound": worst}

    def ours(self, name: str) -> Callable[[], object]:
        return self.case.bind(name).prepare(*self.operands, self.out)

    def rivals(self) -> dict[str, Callable[[], object]]:
        """What a user would call instead."""
        torch, case = self.torch, self.case
        left, right = self.left, self.right
        torch.set_float32_matmul_precision("high" if case.dtype == "f32" else "highest")
        if case.dtype == "i8":
            call: Callable[[], object] = functools.partial(torch._int_mm, left, right)
        elif case.dtype == "f8e4m3":
            one = torch.ones((), device="cuda")
            scaled = functools.partial(torch._scaled_mm, left, right, one, one, out_dtype=torch.bfloat16)
            exact, fast = (functools.partial(scaled, use_fast_accum=fast) for fast in (False, True))
            return {RIVAL: exact, AGAIN: exact, "fast": fast}
        elif case.kernel == "bias_gelu":
            fused = torch.ops.aten._addmm_activation
            call = functools.partial(fused, self.extra[0], left, right, use_gelu=True)
        elif case.kernel == "residual":
            call = functools.partial(torch.addmm, self.extra[0], left, right)
        else:
            call = functools.partial(torch.mm, left, right, out=torch.empty_like(self.out))
        return {RIVAL: call, AGAIN: call}


def measured(case: Case, seconds: float) -> dict[str, Any]:
    """Verify every form of a case, and time those that are right."""
    problem = Problem(case)
    calls: dict[str, Callable[[], object]] = {}
    row: dict[str, Any] = {"set": case.set, "case": str(case), "checks": {}, "failed": {}}
    for name in case.forms:
        try:
            row["checks"][name] = problem.check(name)
            calls[name] = problem.ours(name)
        except (TilewrightError, AssertionError, RuntimeError) as error:
            row["failed"][name] = str(error).strip()[:300]
            print(f"FAILED {case} {name}: {row['failed'][name][:160]}", flush=True)
    calls.update(problem.rivals())
    taken = measure(calls, "cuda", effort=Effort(seconds=seconds, warm_up_seconds=0.2 * seconds, least=5))
    m, n, k = case.shape
    row["us"] = {timing.name: round(timing.us.median, 3) for timing in taken.timings}
    row["speed"] = {name: _interval(taken.speed(name, RIVAL)) for name in calls}
    if "fast" in calls:
        row["speed_of_fast"] = {name: _interval(taken.speed(name, "fast")) for name in calls}
    row["tflops"] = {name: round(2 * m * n * k / us / 1e6, 1) for name, us in row["us"].items()}
    row |= {"rounds": len(taken.timings[0].samples_us), "how": taken.how}
    return row


def _interval(found: Any) -> list[float]:
    return [round(value, 4) for value in (found.median, found.low, found.high)]


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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the directory of the results")
    parser.add_argument("--seconds", type=float, default=270, help="after which no problem is begun")
    parser.add_argument("--sets", default=",".join(SETS), help=f"some of {', '.join(SETS)}, in this order")
    parser.add_argument("--build", action="store_true", help="only compile")
    parser.add_argument("--first", type=int, help="so many forms of each problem, to try it out")
    parser.add_argument("--processes", type=int, default=usable_processors())
    parser.add_argument("--commit", default=commit(), help="of the source tree, for the record")
    asked = parser.parse_args()
    begin = time.perf_counter()
    asked.out.mkdir(parents=True, exist_ok=True)
    cases = [case.first(asked.first) for name in asked.sets.split(",") for case in SETS[name]]
    record: dict[str, Any] = {"benchmark": "hopper_forms", "rows": []}

    def keep() -> None:
        (asked.out / "forms.json").write_text(json.dumps(record, indent=1, default=str) + "\n")

    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("TILEWRIGHT_CACHE_DIR", cache)
        record["builds"] = build_all(cases, asked.processes)
        keep()
        for built in record["builds"]:
            if "failed" in built or built["spill_store_bytes"] or asked.build:
                print(built, flush=True)
        print(f"{len(record['builds'])} kernels built after {time.perf_counter() - begin:.0f} s", flush=True)
        if asked.build:
            sys.exit(any("failed" in built for built in record["builds"]))
        record["machine"] = machine("cuda", asked.commit).record()
        watch = watched(asked.out)
        try:
            for at, case in enumerate(cases):
                left = asked.seconds - (time.perf_counter() - begin)
                if left <= 0:
                    print(f"no time for {len(cases) - at} problems, from {case} on", flush=True)
                    break
                started = time.perf_counter()
                try:
                    record["rows"].append(measured(case, case.seconds))
                except Exception as error:  # noqa: BLE001 the other problems are still to be measured
                    record["rows"].append({"set": case.set, "case": str(case), "error": repr(error)[:500]})
                    print(f"ERROR {record['rows'][-1]}", flush=True)
                record["rows"][-1]["wall_s"] = round(time.perf_counter() - started, 1)
                print(f"{case.set} {case}: {record['rows'][-1]['wall_s']} s", flush=True)
                keep()
        finally:
            if watch is not None:
                watch.terminate()
    text = tables(record["rows"])
    (asked.out / "table.txt").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
