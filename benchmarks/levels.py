"""The GEMMs of examples/06 and 07, each level beside the one before and beside cuBLAS or NumPy, in turns.

    python benchmarks/levels.py [--target cuda|cpu] [--quick] [--json results/levels.json]

Every result is verified before it is timed. The last kernel is the last level again, under another name: what
the two differ by is noise.
"""

from __future__ import annotations

import runpy
from itertools import pairwise
from typing import Any

from gemm_cpu import speed
from reporting import ROOT, arguments, effort, keep, table

from tilewright import dtypes
from tilewright.ops.sample import operands
from tilewright.runtime.cuda import device_count
from tilewright.runtime.kernel import Bound
from tilewright.tune.measure import measure
from tilewright.tune.trial import Trial

SHAPES = {"cuda": [(2048, 2048, 2048), (4096, 4096, 4096)], "cpu": [(1024, 1024, 1024), (1000, 1000, 1000)]}
QUICK = [(256, 384, 320)]
AGAIN = "prefetched again"


def kernels() -> dict[str, Bound]:
    """The levels, slowest first by what they keep in flight."""
    warp_tiles = runpy.run_path(str(ROOT / "examples" / "06_warp_tiles_gemm.py"))["BOUND"]
    levels = runpy.run_path(str(ROOT / "examples" / "07_three_levels_gemm.py"))
    bind = levels["bind"]
    return {
        "registers only": warp_tiles[dtypes.f16],
        "serial": bind(levels["serial"]),
        "buffered": bind(levels["buffered"]),
        "prefetched": bind(levels["prefetched"]),
        "prefetched, wide": bind(levels["prefetched"], tile=(128, 256, 32), warps=(2, 4)),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--target", choices=SHAPES, default="cuda" if device_count() else "cpu")
    asked = parser.parse_args()
    rows = []
    for shape in QUICK if asked.quick else SHAPES[asked.target]:
        rows.append(problem(shape, asked))
        print(table(HEAD, columns(rows[-1])), flush=True)
        keep(asked, "levels", asked.target, rows)


def problem(shape: tuple[int, int, int], asked: Any) -> dict[str, Any]:
    """Verify and time all levels on one problem."""
    made = operands("random", dtypes.f16, shape, layout="nt")
    trials = {
        name: Trial(bound, made, asked.target, bound.constants["mma"].atom, name)
        for name, bound in kernels().items()
    }
    resources, errors = {}, {}
    for name, trial in trials.items():
        executable, _ = trial.run()
        comparison = trial.verify()
        comparison.raise_if_wrong()
        resources[name] = dict(executable.resources)
        errors[name] = comparison.error / comparison.bound if comparison.bound else 0.0
    calls = {name: trial.launch for name, trial in trials.items()}
    calls[AGAIN] = trials["prefetched"].launch
    rivals = trials["prefetched"].rivals()
    calls.update(rivals)
    taken = measure(calls, asked.target, effort=effort(asked))
    names = list(trials)
    flops = trials["prefetched"].flops
    return {
        "shape": list(shape),
        "target": asked.target,
        "resources": resources,
        "error_of_bound": errors,
        "gflops": {timing.name: flops / timing.us.median / 1e3 for timing in taken.timings},
        "over_the_one_before": {name: speed(taken, name, before) for before, name in pairwise(names)},
        "over_the_rival": {name: speed(taken, name, rival) for rival in rivals for name in (*names, AGAIN)},
        "rival": next(iter(rivals), ""),
        **taken.record(),
    }


HEAD = ("level", "GFlops", "over the one before", "over the rival", "registers")


def columns(row: dict[str, Any]) -> list[list[str]]:
    """A line for each level of one problem."""
    about = "x".join(map(str, row["shape"]))
    return [
        [
            f"{about} {name}",
            f"{gflops:.1f}",
            *(
                f"{found[name][0]:.3f}" if name in found else "-"
                for found in (row["over_the_one_before"], row["over_the_rival"])
            ),
            str(row["resources"].get(name, {}).get("registers", "-")),
        ]
        for name, gflops in row["gflops"].items()
    ]


if __name__ == "__main__":
    main()
