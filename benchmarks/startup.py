"""Start-up times: import, trace, first compile with an empty cache, second process from the cache.

    python benchmarks/startup.py [--quick] [--targets cpu cuda] [--json results/startup.json]

Every sample is a new process. Compiling for cuda needs no GPU; without one, nothing is launched.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from reporting import ROOT, arguments, keep, table

PROCESS = r"""
import json, sys, time
begin = time.perf_counter()
import numpy
numpy_done = time.perf_counter()
import tilewright
tilewright.kernel  # the first name loads those of authors
imported = time.perf_counter()
import runpy
from tilewright.dtypes import bf16
from tilewright.inspect.subject import library_gemm
from tilewright.runtime import nvrtc
from tilewright.runtime.cuda import device_count
target, kernel = sys.argv[1:]
compiler_seconds = []
def compile_text(*arguments, inner=nvrtc.compile_text):
    begin = time.perf_counter()
    binary = inner(*arguments)
    compiler_seconds.append(time.perf_counter() - begin)
    return binary
nvrtc.compile_text = compile_text
if kernel == "matmul":
    subject = library_gemm("f16" if target == "cuda" else "f32", "1024x1024x1024", "nt")
    bound, specs, chosen = subject.bound, subject.specimens(), {}
else:
    bound, chosen = runpy.run_path(kernel)["bind"](bf16), {"arch": "sm_90a"}
    specs = [tilewright.TensorSpec(bf16, 2, 1, (256, 256), (16, 1), 16, False)] * 3
start = time.perf_counter()
bound.trace(*specs, target=target, **chosen)
traced = time.perf_counter()
made = bound.compile(*specs, target=target, **chosen)
compiled = time.perf_counter()
found = {
    "import numpy": numpy_done - begin,
    "import tilewright and its names": imported - begin,
    "trace": traced - start,
    "compile" if not made.cached else "from the cache": compiled - traced,
    **({"of it in NVRTC": compiler_seconds[0]} if compiler_seconds else {}),
    "device": device_count() > 0,
}
print(json.dumps(found))
"""

HOPPER = ROOT / "examples" / "03_hopper_gemm.py"

IMPORT = "import time; b = time.perf_counter(); {}; print(time.perf_counter() - b)"

IMPORTED = ("import numpy", "import numpy, tilewright", "import numpy, tilewright; tilewright.kernel")
"""Imports: NumPy alone; tilewright; and its first name, which loads all rooms but the targets."""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--targets", nargs="*", default=["cpu", "cuda"], choices=["cpu", "cuda", "reference"])
    asked = parser.parse_args()
    count = 2 if asked.quick else 9
    rows = [imports(count)]
    for target in asked.targets:
        try:
            rows.append(kernel_row(target, target, "matmul", count))
            if target == "cuda":
                rows.append(kernel_row("cuda, example 03", target, str(HOPPER), count))
        except subprocess.CalledProcessError as error:
            rows.append({"what": target, "failed": error.stderr.strip(), "seconds": {}})
    lines = [
        (row["what"], name, f"{1e3 * middle:.1f}", f"{1e3 * low:.1f}..{1e3 * high:.1f}")
        for row in rows
        for name, (middle, low, high) in row["seconds"].items()
    ]
    print(table(("process", "step", "median ms", "range ms"), lines))
    keep(asked, "startup", "cpu", rows)
    failed = [f"{row['what']}: {row['failed']}" for row in rows if "failed" in row]
    sys.exit("\n".join(failed) or None)


def imports(count: int) -> dict[str, Any]:
    """Time imports in new processes, in turns with NumPy and an empty program."""
    samples: dict[str, list[float]] = {statement: [] for statement in IMPORTED}
    for _ in range(count):
        for statement, taken in samples.items():
            taken.append(float(run(["-c", IMPORT.format(statement)], {})))
    return {"what": "import alone", "seconds": summary(samples)}


def kernel_row(what: str, target: str, kernel: str, count: int) -> dict[str, Any]:
    """Time a first process with an empty cache, then a second one with the first one's cache.

    Args:
        what: name of the row.
        target: the target.
        kernel: ``"matmul"``, or the path of an example with a function ``bind``.
        count: number of samples.
    """
    samples: dict[str, list[float]] = {}
    device = False
    for _ in range(count):
        with tempfile.TemporaryDirectory() as cache:
            for process in ("first", "second"):
                found = json.loads(run(["-c", PROCESS, target, kernel], {"TILEWRIGHT_CACHE_DIR": cache}))
                device = found.pop("device")
                for name, seconds in found.items():
                    samples.setdefault(f"{process} process: {name}", []).append(seconds)
    return {"what": what, "device": device, "seconds": summary(samples)}


def run(arguments: list[str], environment: dict[str, str]) -> str:
    source = str(ROOT / "src")
    paths = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment, "PYTHONPATH": paths},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def summary(samples: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: [statistics.median(taken), min(taken), max(taken)] for name, taken in samples.items()}


if __name__ == "__main__":
    main()
