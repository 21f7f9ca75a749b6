"""Time of a compilation in a new process without caches: a row of the dense benchmark.

    python benchmarks/cold_compile.py

compiles the kernel chosen for bf16 4096³, then that for f16, and prints the time of each.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from dense_problems import CUBES, Problem
from isolated import Progress

from tilewright.runtime import nvrtc

TURNS = 5
STEPS = ("first", "first, of it in NVRTC", "next", "next, of it in NVRTC")


def compiled() -> dict[str, float]:
    """Return the seconds of both compilations in this process, and the compiler's share."""
    spent: list[float] = []

    def compile_text(*given: Any, inner: Callable[..., Any] = nvrtc.compile_text) -> Any:
        begin = time.perf_counter()
        binary = inner(*given)
        spent.append(time.perf_counter() - begin)
        return binary

    nvrtc.compile_text = compile_text
    found = {}
    for what, dtype in (("first", "bf16"), ("next", "f16")):
        problem = Problem("half", CUBES[4096], dtype)
        begin = time.perf_counter()
        made = problem.bind("tilewright").compile(*problem.specimens, target="cuda", arch="sm_90a")
        found[what] = time.perf_counter() - begin
        assert not made.cached, "it came from a cache"
        found[f"{what}, of it in NVRTC"] = spent[-1]
    return found


class CompileTask:
    """Measures seconds to compile, in new processes that each have an empty cache."""

    group = "compile"

    def __str__(self) -> str:
        return "the kernels chosen for bf16 and f16 4096³"

    def measure(self, seconds: float, progress: Progress) -> dict[str, Any]:
        """Return medians and ranges of the seconds; see `isolated.Task`."""
        samples: list[dict[str, float]] = []
        progress.begin("compiling", 120)
        for _ in range(TURNS):
            with tempfile.TemporaryDirectory() as cache:
                around = os.environ | {"TILEWRIGHT_CACHE_DIR": cache, "CUDA_CACHE_DISABLE": "1"}
                command = [sys.executable, __file__]
                done = subprocess.run(command, env=around, capture_output=True, text=True, check=True)
            samples.append(json.loads(done.stdout))
        return {
            "seconds": {
                step: [statistics.median(values), min(values), max(values)]
                for step in STEPS
                for values in [[sample[step] for sample in samples]]
            }
        }


if __name__ == "__main__":
    print(json.dumps(compiled()))
