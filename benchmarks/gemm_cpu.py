"""GEMM on the CPU compared with NumPy, in turns; each result is verified before it is timed.

    python benchmarks/gemm_cpu.py [--quick] [--busy] [--dtypes f64 ...] [--json results/gemm_cpu.json]

Our kernel is timed twice, under two names: the difference between the two is noise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from reporting import keep, on_host, table, timed

import tilewright as tw
from tilewright import dtypes
from tilewright.checking.compare import compare_gemm
from tilewright.checking.sample import operands
from tilewright.tune.measure import Measurement
from tilewright.tune.trial import OURS, PlannedTrial, Trial

AGAIN = f"{OURS} again"

TINY = [(n, n, n) for n in (16, 32, 64)]  # the call itself takes a large part of these
SQUARES = [(n, n, n) for n in (128, 256, 512, 1024, 2048)]
OTHERS = [(4096, 4096, 4096), (64, 64, 65536), (4096, 16, 4096), (1000, 1003, 997)]
CASES = [
    *(("f32", shape, layout) for shape in SQUARES for layout in ("nn", "nt")),
    *(("f32", (1024, 1024, 1024), layout) for layout in ("tn", "tt")),
    *(("f32", shape, "nn") for shape in (*TINY, *OTHERS)),
    *(("f64", (n, n, n), layout) for n in (512, 1024, 2048) for layout in ("nn", "nt")),
    *((name, (1024, 1024, 1024), "nn") for name in ("f16", "bf16", "f8e4m3", "i8")),
]
QUICK = [("f32", (256, 256, 256), "nn"), ("f16", (130, 70, 90), "nt")]
BATCHED = [(1000, 32), (65536, 16), (64, 256)]  # (products, side) of square matrices in f32
QUICK_BATCHED = [(20, 16)]


def main() -> None:
    parser = on_host(__doc__)
    parser.add_argument("--dtypes", nargs="+", help="dtypes to measure; default: all")
    asked = parser.parse_args()
    rows = []
    for name, shape, layout in QUICK if asked.quick else CASES:
        if asked.dtypes and name not in asked.dtypes:
            continue
        made = operands("random", dtypes.dtype(name), shape, layout=layout)
        trial = PlannedTrial(made, "cpu")
        executable, _ = trial.run()
        comparison = trial.verify()
        comparison.raise_if_wrong()
        calls = {OURS: trial.launch, AGAIN: trial.launch, **trial.rivals()}
        taken = timed(calls, asked)
        rows.append(
            row(trial, taken, layout, comparison.error / comparison.bound if comparison.bound else 0.0)
        )
        rows[-1]["arch"] = executable.arch
        print(line(rows[-1]), flush=True)
    for count, side in () if asked.dtypes else QUICK_BATCHED if asked.quick else BATCHED:
        rows.append(batched(count, side, asked))
        print(line(rows[-1]), flush=True)
    print()
    print(table(HEAD, [columns(found) for found in rows]))
    keep(asked, "gemm_cpu", "cpu", rows)


def batched(count: int, side: int, asked: Any) -> dict[str, Any]:
    """Measure many small products, each compared with a float64 reference first."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, count, side, side), np.float32)
    c = np.full((count, side, side), np.nan, np.float32)
    tw.matmul(a, b, c, target="cpu")
    found = [compare_gemm(*each) for each in zip(a, b, c, strict=True)]
    for comparison in found:
        comparison.raise_if_wrong()

    def ours() -> None:
        tw.matmul(a, b, c, target="cpu")

    calls = {OURS: ours, AGAIN: ours, "numpy": lambda: np.matmul(a, b, out=c)}
    taken = timed(calls, asked)
    flops = 2 * count * side**3
    return {
        "name": f"{count} products",
        "dtype": "f32",
        "shape": [count, side, side, side],
        "layout": "nn",
        "target": "cpu",
        "error_of_bound": max(one.error / one.bound for one in found),
        **rates(taken, flops),
    }


HEAD = ("problem", "layout", "GFlops", "spread", "rival", "GFlops", "speed", "95 %", "again")


def row(trial: Trial, taken: Measurement, layout: str, of_bound: float) -> dict[str, Any]:
    """Return the record of a problem."""
    return {
        "name": trial.name,
        "dtype": trial.dtype.name,
        "shape": list(trial.operands.shape),
        "layout": layout,
        "target": trial.target,
        "error_of_bound": of_bound,
        **rates(taken, trial.flops),
    }


def rates(taken: Measurement, flops: int) -> dict[str, Any]:
    """Return the GFlops of each, and our speed relative to the others."""
    names = [timing.name for timing in taken.timings if timing.name not in (OURS, AGAIN)]
    return {
        "gflops": {timing.name: flops / timing.us.median / 1e3 for timing in taken.timings},
        "speed": {name: speed(taken, OURS, name) for name in [AGAIN, *names]},
        **taken.record(),
    }


def speed(taken: Measurement, name: str, beside: str) -> list[float]:
    """Return median, lower and upper end of the speed of one relative to another."""
    found = taken.speed(name, beside)
    return [found.median, found.low, found.high]


def columns(found: dict[str, Any]) -> list[object]:
    """Return the row of the printed table."""
    rival = next((name for name in found["speed"] if name != AGAIN), None)
    ours = [f"{found['gflops'][OURS]:.1f}", f"{found['timings'][OURS]['spread']:.1%}"]
    theirs = ["-"] * 4
    if rival is not None:
        median, low, high = found["speed"][rival]
        theirs = [rival, f"{found['gflops'][rival]:.1f}", f"{median:.3f}", f"{low:.3f}..{high:.3f}"]
    problem = f"{found['dtype']} {'x'.join(map(str, found['shape']))}"
    return [problem, found["layout"], *ours, *theirs, f"{found['speed'][AGAIN][0]:.3f}"]


def line(found: dict[str, Any]) -> str:
    """Print a problem as soon as it is done."""
    return " ".join(str(cell) for cell in columns(found))


if __name__ == "__main__":
    main()
