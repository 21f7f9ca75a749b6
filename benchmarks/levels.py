"""The GEMMs of examples/06 and 07: each level compared with the previous one, and with cuBLAS or NumPy.

    python benchmarks/levels.py [--target cuda|cpu] [--quick] [--json results/levels.json]

On the CPU the benchmark also measures examples/02 and 04, and the two fused GEMMs of examples/08.

Every result is verified before it is timed. One of the kernels is timed again, under another name: the
difference between the two is noise.
"""

from __future__ import annotations

import functools
import runpy
from itertools import pairwise
from typing import Any

import numpy as np
from gemm_cpu import speed
from reporting import ROOT, arguments, effort, keep, table

from tilewright import dtypes
from tilewright.checking.sample import operands
from tilewright.runtime.cuda import device_count
from tilewright.runtime.kernel import Bound
from tilewright.tune.measure import Measurement, measure
from tilewright.tune.trial import Trial

SHAPES = {"cuda": [(2048, 2048, 2048), (4096, 4096, 4096)], "cpu": [(1024, 1024, 1024), (1000, 1000, 1000)]}
QUICK = [(256, 384, 320)]
AGAIN = "prefetched again"
# M, N, K, P.  If P exceeds a tile of 128, each block computes A B again.
FUSED = [(1024, 1024, 1024, 128), (1000, 1000, 1000, 120), (1024, 512, 512, 512)]
QUICK_FUSED = [(130, 72, 56, 136)]


def example(name: str) -> dict[str, Any]:
    """Return the names that an example defines."""
    return runpy.run_path(str(ROOT / "examples" / name))


def kernels(target: str) -> dict[str, Bound]:
    """Return the levels; those with fewer copies in flight come first."""
    levels = example("07_three_levels_gemm.py")
    bind = levels["bind"]
    before = {
        "basic": example("02_basic_gemm.py")["LARGE"],
        "optimised": example("04_optimized_gemm.py")["LARGE"],
    }
    return {
        **(before if target == "cpu" else {}),
        "registers only": example("06_warp_tiles_gemm.py")["BOUND"][dtypes.f16],
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
    for fused in (QUICK_FUSED if asked.quick else FUSED) if asked.target == "cpu" else ():
        rows.append(two_products(fused, asked))
        print(table(HEAD, columns(rows[-1])), flush=True)
        keep(asked, "levels", asked.target, rows)


def problem(shape: tuple[int, int, int], asked: Any) -> dict[str, Any]:
    """Verify and time all levels on a problem."""
    made = operands("random", dtypes.f16, shape, layout="nt")
    trials = {
        name: Trial(bound, made, asked.target, bound.constants["mma"].atom, name)
        for name, bound in kernels(asked.target).items()
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
    before = {name: speed(taken, name, other) for other, name in pairwise(names)}
    found = row(shape, taken, trials["prefetched"].flops, [*names, AGAIN], next(iter(rivals), ""))
    more = {"resources": resources, "error_of_bound": errors, "over_the_one_before": before}
    return {"target": asked.target, **more, **found}


def two_products(shape: tuple[int, int, int, int], asked: Any) -> dict[str, Any]:
    """Verify and time the fused GEMMs of a problem, and two products of NumPy in f32."""
    m, n, k, p = shape
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(extents).astype(np.float16) for extents in ((m, k), (n, k), (p, n)))
    d = np.full((m, p), np.nan, np.float32)
    kernel = example("08_fused_gemms.py")["bound"](dtypes.f16)
    call = functools.partial(kernel, a, b, c, d, target=asked.target)
    assert call().target == asked.target
    of_bound = error_of_fused(a, b, c, d)
    wide = [x.astype(np.float32) for x in (a, b, c)]
    inner, out = np.empty((m, n), np.float32), np.empty((m, p), np.float32)

    def rival() -> None:
        np.matmul(wide[0], wide[1].T, out=inner)
        np.matmul(inner, wide[2].T, out=out)

    name, again, other = "two fused", "two fused again", "NumPy, in f32"
    taken = measure({name: call, again: call, other: rival}, asked.target, effort=effort(asked))
    found = row(shape, taken, 2 * m * n * (k + p), [name, again], other)
    more = {"resources": {}, "error_of_bound": {name: of_bound}, "over_the_one_before": {}}
    return {"target": asked.target, **more, **found}


def error_of_fused(a: Any, b: Any, c: Any, d: Any) -> float:
    """Return the largest error of ``d = f16(a bᵀ) cᵀ`` over its bound: sums in f32, one rounding to f16."""
    a, b, c = (x.astype(np.float64) for x in (a, b, c))
    inner, small = a @ b.T, dtypes.f32.unit_roundoff
    off = (a.shape[1] + 1) * small * (np.abs(a) @ np.abs(b).T)
    off += dtypes.f16.unit_roundoff * (np.abs(inner) + off) + 2.0**-25
    most = off @ np.abs(c).T + (c.shape[1] + 1) * small * ((np.abs(inner) + off) @ np.abs(c).T)
    worst = float(np.nan_to_num(np.abs(d - inner @ c.T) / most, nan=1e9).max())
    assert worst <= 1, f"off by {worst:.3g} of the bound"
    return worst


def row(
    shape: tuple[int, ...], taken: Measurement, flops: int, names: list[str], rival: str
) -> dict[str, Any]:
    """Return the record of a problem; ``names`` are those of our kernels."""
    return {
        "shape": list(shape),
        "gflops": {timing.name: flops / timing.us.median / 1e3 for timing in taken.timings},
        "over_the_rival": {name: speed(taken, name, rival) for name in names} if rival else {},
        "rival": rival,
        **taken.record(),
    }


HEAD = ("level", "GFlops", "over the one before", "over the rival", "registers")


def columns(row: dict[str, Any]) -> list[list[str]]:
    """Return a line for each level of a problem."""
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
