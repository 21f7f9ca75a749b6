"""Complex products beside six launches, NumPy or cuBLAS, in turns; each is verified before it is timed.

    python benchmarks/complex.py [--target cuda|cpu] [--quick] [--json results/complex.json]

"six launches" are four real products and two additions of them, all of them ours, of operands in planes. On a
GPU cuBLAS's complex product stands beside, in f32 and in tf32, and four of its real products of planes,
without the additions. The table has the launches of each flow and the bytes that they move, every array once
for each launch; TFlops are of 8 operations for each m, n, k.
"""

from __future__ import annotations

from typing import Any

from reporting import arguments, effort, keep, table

import tilewright as tw
from tilewright.errors import TilewrightError
from tilewright.ops.complex_planning import Asked
from tilewright.tune.complex_trial import SIX, ComplexTrial
from tilewright.tune.measure import measure
from tilewright.tune.trial import OURS

AGAIN = f"{OURS} again"
SIDES = {"cuda": (1024, 2048, 4096, 8192), "cpu": (256, 512, 1024, 2048)}
KINDS = {
    "cuda": [
        *(("f32", planar, "4m", precision) for precision in ("exact", "tf32") for planar in (False, True)),
        *(("f16", planar, method, "exact") for method in ("4m", "3m") for planar in (False, True)),
        ("bf16", True, "4m", "exact"),
        ("f64", False, "4m", "exact"),
    ],
    "cpu": [
        *(("f32", planar, method, "exact") for method in ("4m", "3m") for planar in (False, True)),
        ("f64", False, "4m", "exact"),
    ],
}
QUICK = [("f32", False, "4m", "exact"), ("f16", True, "3m", "exact")]
MOST_EXACT = 4096
"""The largest side of products by multiply-adds, which take long."""


def main() -> None:
    parser = arguments(__doc__)
    there = "cuda" if tw.device_count() else "cpu"
    parser.add_argument("--target", choices=SIDES, default=there, help=f"default here: {there}")
    asked = parser.parse_args()
    rows = []
    for side in (64,) if asked.quick else SIDES[asked.target]:
        for kind in QUICK if asked.quick else KINDS[asked.target]:
            slow = kind[0] == "f64" or (kind[0], kind[3]) == ("f32", "exact")
            if side <= MOST_EXACT or not slow:
                rows.append(row(side, kind, asked))
                print(line(rows[-1]), flush=True)
    print()
    print(table(HEAD, [cells for found in rows for cells in columns(found)]))
    keep(asked, "complex", asked.target, rows)


def row(side: int, kind: tuple[str, bool, str, str], asked: Any) -> dict[str, Any]:
    """One problem: verified, then timed beside the others; or why it cannot be computed."""
    name, planar, method, precision = kind
    found: dict[str, Any] = {"dtype": name, "planar": planar, "method": method, "precision": precision}
    found |= {"shape": [side] * 3, "target": asked.target}
    try:
        wanted = Asked(method=method, precision=precision)
        trial = ComplexTrial((side, side, side), tw.dtype(name), asked.target, planar, wanted)
        ran, _ = trial.run()
        comparison = trial.verify()
        comparison.raise_if_wrong()
        six = trial.six_launches()
        six.launch()
    except TilewrightError as error:
        return found | {"failed": str(error).splitlines()[0]}
    calls = {OURS: trial.launch, AGAIN: trial.launch, SIX: six.launch, **trial.rivals()}
    taken = measure(calls, asked.target, effort=effort(asked))
    return found | {
        "name": trial.name,
        "way": str(trial.product.way),
        "schedule": str(ran[-1].schedule),
        "error_of_bound": comparison.error / comparison.bound,
        "launches": trial.launches,
        "bytes": trial.bytes,
        "tflops": {timing.name: trial.flops / timing.us.median / 1e6 for timing in taken.timings},
        "speed": {other: taken.speed(OURS, other).median for other in calls if other != OURS},
        **taken.record(),
    }


HEAD = ("problem", "flow", "launches", "MB moved", "TFlops", "our speed")


def columns(found: dict[str, Any]) -> list[list[object]]:
    """The rows of the printed table: a flow in each."""
    problem = f"{found['dtype']} {'planes' if found['planar'] else 'interleaved'} {found['method']}"
    problem += f" {found['precision']} {found['shape'][0]}"
    if "failed" in found:
        return [[problem, found["failed"], "-", "-", "-", "-"]]
    made = []
    for flow, tflops in found["tflops"].items():
        if flow != AGAIN:
            moved = f"{found['bytes'][flow] / 1e6:.1f}" if flow in found["bytes"] else "-"
            speed = f"{found['speed'][flow]:.3f}" if flow in found["speed"] else "-"
            made.append([problem, flow, found["launches"].get(flow, "-"), moved, f"{tflops:.3f}", speed])
    return made


def line(found: dict[str, Any]) -> str:
    """One problem, as soon as it is done."""
    return "; ".join(" ".join(map(str, cells)) for cells in columns(found))


if __name__ == "__main__":
    main()
