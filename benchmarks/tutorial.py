"""The tutorial's kernels compared with cuBLAS on a GPU, or with NumPy on a CPU, in turns.

    python benchmarks/tutorial.py [--target cuda|cpu] [--quick] [--json results/h200_tutorial.json]

Each step names its kernel `MEASURED`: C = A Bᵀ in bf16.  Every result is verified before it is timed.
`python scripts/measured.py` writes the recorded speeds into the steps.
"""

from __future__ import annotations

import runpy
from typing import Any

from gemm_cpu import speed
from reporting import ROOT, arguments, effort, keep, table

from tilewright import dtypes
from tilewright.checking.sample import operands
from tilewright.ir.mma import MmaAtom
from tilewright.runtime.cuda import device_count
from tilewright.runtime.kernel import Bound
from tilewright.targets.atoms import MMA_BF16
from tilewright.tune.measure import measure
from tilewright.tune.trial import Trial

SHAPES = {"cuda": [(4096, 4096, 4096), (8192, 8192, 8192)], "cpu": [(1024, 1024, 1024)]}
QUICK = [(256, 384, 320)]
HEAD = ("step", "us", "TFlops", "speed")


def steps(target: str) -> dict[str, Bound]:
    """Return the kernel of each step; for a CPU without those that multiply asynchronously."""
    files = sorted((ROOT / "docs" / "tutorial").glob("step*.py"))
    found = {path.stem: runpy.run_path(str(path))["MEASURED"] for path in files}
    return {
        step: bound for step, bound in found.items() if target == "cuda" or not atom_of(bound).asynchronous
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--target", choices=SHAPES, default="cuda" if device_count() else "cpu")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for shape in QUICK if asked.quick else SHAPES[asked.target]:
        rows.extend(problem(shape, asked))
        print(table(HEAD, map(line, rows)), flush=True)
        keep(asked, "tutorial", asked.target, rows)


def problem(shape: tuple[int, int, int], asked: Any) -> list[dict[str, Any]]:
    """Verify and time all steps on a problem."""
    made = operands("random", dtypes.bf16, shape, layout="nt")
    trials = {
        step: Trial(bound, made, asked.target, atom_of(bound), step, dtypes.bf16)
        for step, bound in steps(asked.target).items()
    }
    for trial in trials.values():
        trial.run()
        trial.verify().raise_if_wrong()
    calls: dict[str, Any] = {step: trial.launch for step, trial in trials.items()}
    rivals = next(iter(trials.values())).rivals()
    taken = measure(calls | rivals, asked.target, effort=effort(asked))
    us = {timing.name: timing.us.median for timing in taken.timings}
    rival = next(iter(rivals))
    return [
        {
            "step": step,
            "shape": list(shape),
            "us": us[step],
            "tflops": trial.flops / us[step] / 1e6,
            "rival": rival,
            "speed": speed(taken, step, rival),
        }
        for step, trial in trials.items()
    ]


def atom_of(bound: Bound) -> MmaAtom:
    """Return the atom of a kernel, or one of the same accuracy if its schedule is chosen."""
    if bound.schedule is not None:
        return bound.schedule.atom
    mma = bound.constants.get("mma")
    return MMA_BF16 if mma is None else mma.atom


def line(row: dict[str, Any]) -> list[str]:
    """Return a row of the printed table."""
    about = "x".join(map(str, row["shape"]))
    return [f"{row['step']} {about}", f"{row['us']:.1f}", f"{row['tflops']:.1f}", f"{row['speed'][0]:.3f}"]


if __name__ == "__main__":
    main()
