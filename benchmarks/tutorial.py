"""The kernels of the tutorial beside cuBLAS, all in turns, on one GPU.

    python benchmarks/tutorial.py [--quick] [--json results/h200_tutorial.json]

Each step names the kernel that it is about, `MEASURED`: C = A Bᵀ in bf16.  Every result is verified before it
is timed.  `python scripts/measured.py` writes what was kept into the steps.
"""

from __future__ import annotations

import runpy
from typing import Any

from gemm_cpu import speed
from reporting import ROOT, arguments, effort, keep, table

from tilewright import dtypes
from tilewright.checking.sample import operands
from tilewright.ir.mma import MmaAtom
from tilewright.runtime.kernel import Bound
from tilewright.targets.atoms import MMA_BF16
from tilewright.tune.measure import measure
from tilewright.tune.trial import Trial

SHAPES = [(4096, 4096, 4096), (8192, 8192, 8192)]
QUICK = [(256, 384, 320)]
HEAD = ("step", "us", "TFlops", "over cuBLAS")


def steps() -> dict[str, Bound]:
    """The kernel of each step."""
    files = sorted((ROOT / "docs" / "tutorial").glob("step*.py"))
    return {path.stem: runpy.run_path(str(path))["MEASURED"] for path in files}


def main() -> None:
    asked = arguments(__doc__).parse_args()
    rows: list[dict[str, Any]] = []
    for shape in QUICK if asked.quick else SHAPES:
        rows.extend(problem(shape, asked))
        print(table(HEAD, map(line, rows)), flush=True)
        keep(asked, "tutorial", "cuda", rows)


def problem(shape: tuple[int, int, int], asked: Any) -> list[dict[str, Any]]:
    """Verify and time all steps on one problem."""
    made = operands("random", dtypes.bf16, shape, layout="nt")
    trials = {
        step: Trial(bound, made, "cuda", atom_of(bound), step, dtypes.bf16) for step, bound in steps().items()
    }
    for trial in trials.values():
        trial.run()
        trial.verify().raise_if_wrong()
    calls: dict[str, Any] = {step: trial.launch for step, trial in trials.items()}
    rivals = next(iter(trials.values())).rivals()
    taken = measure(calls | rivals, "cuda", effort=effort(asked))
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
    """How a kernel adds up: its own atom, or one of the same accuracy where a schedule is chosen."""
    if bound.schedule is not None:
        return bound.schedule.atom
    mma = bound.constants.get("mma")
    return MMA_BF16 if mma is None else mma.atom


def line(row: dict[str, Any]) -> list[str]:
    """A row of the printed table."""
    about = "x".join(map(str, row["shape"]))
    return [f"{row['step']} {about}", f"{row['us']:.1f}", f"{row['tflops']:.1f}", f"{row['speed'][0]:.3f}"]


if __name__ == "__main__":
    main()
