"""Complex products compared with six launches, NumPy or cuBLAS, in turns; each is verified first.

    python benchmarks/complex.py [--target cuda|cpu] [--rows TEXT ...] [--sides N ...] [--seconds S]
        [--dtype f32] [--schedules FILE] [--quick] [--busy] [--json FILE]

``--rows`` selects rows whose names contain one of the texts, such as "f32 interleaved 4m f32": dtype of the
parts, storage, method, precision. On a GPU, PyTorch draws the matrices, and the table has errors; see
`complex_on_gpu.py`.

"six launches" are our own four real products and two additions, of operands in planes. On a GPU there are
also cuBLAS's complex product, in f32 and in tf32, and four of its real products of planes, without the
additions. With ``--schedules`` products are also timed with the schedules of a file, which `schedules.py`
reads; each is verified first, and refused ones are printed. The table has the launches of each method and the
bytes that they move, with every array counted once per launch. TFlops count 8 operations for each m, n, k.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reporting import keep, on_host, table, timed
from schedules import read

import tilewright as tw
from tilewright.errors import TilewrightError
from tilewright.ops.complex_matmul import ComplexWanted
from tilewright.tune.complex_trial import SIX, ComplexTrial
from tilewright.tune.trial import OURS

AGAIN = f"{OURS} again"
SIDES = {"cuda": (1024, 2048, 4096, 8192), "cpu": (256, 512, 1024, 2048)}
GRADES = ("f32", "tf32", "exact")
KINDS = {
    "cuda": [
        *(("f32", planar, "4m", precision) for precision in GRADES for planar in (False, True)),
        ("f32", False, "4m", "f16"),
        *(("f16", planar, method, "exact") for method in ("4m", "3m") for planar in (False, True)),
        ("bf16", True, "4m", "exact"),
        ("f64", False, "4m", "exact"),
    ],
    "cpu": [
        *(("f32", planar, method, "exact") for method in ("4m", "3m") for planar in (False, True)),
        *(("f64", planar, "4m", "exact") for planar in (False, True)),
    ],
}
QUICK = [("f32", False, "4m", "exact"), ("f16", True, "3m", "exact")]
MOST_EXACT = 4096
"""Largest side of products by multiply-adds, which are slow."""


def main() -> None:
    parser = on_host(__doc__)
    there = "cuda" if tw.device_count() else "cpu"
    parser.add_argument("--target", choices=SIDES, default=there, help=f"default here: {there}")
    parser.add_argument("--dtype", help="dtypes of the parts; default: all")
    parser.add_argument(
        "--rows", nargs="+", default=[""], help="measure rows whose names contain one of these"
    )
    parser.add_argument("--sides", type=int, nargs="*", help="sides of the matrices")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds for each row")
    parser.add_argument("--schedules", type=Path, help="a file of schedules, one per line")
    asked = parser.parse_args()
    on_gpu = asked.target == "cuda"
    measured = importlib.import_module("complex_on_gpu").row if on_gpu else row  # imports PyTorch
    rows = []
    for side in asked.sides or ((64,) if asked.quick else SIDES[asked.target]):
        for kind in QUICK if asked.quick else KINDS[asked.target]:
            if asked.dtype not in (None, kind[0]) or not any(text in name_of(kind) for text in asked.rows):
                continue
            slow = kind[0] == "f64" or (kind[0], kind[3]) == ("f32", "exact")
            if side <= MOST_EXACT or not slow:
                rows.append(measured(side, kind, asked))
                print(line(rows[-1]), flush=True)
    print()
    print(table(HEAD, [cells for found in rows for cells in columns(found)]))
    keep(asked, "complex", asked.target, rows)


def row(side: int, kind: tuple[str, bool, str, str], asked: Any) -> dict[str, Any]:
    """Verify and time a problem; or return why it cannot be computed."""
    name, planar, method, precision = kind
    found: dict[str, Any] = {"dtype": name, "planar": planar, "method": method, "precision": precision}
    found |= {"shape": [side] * 3, "target": asked.target}
    try:
        wanted = ComplexWanted(method=method, precision=precision)
        trial = ComplexTrial((side, side, side), tw.dtype(name), asked.target, planar, wanted)
        trial.run()
        ran = trial.ran
        comparison = trial.verify()
        comparison.raise_if_wrong()
        six = trial.six_launches()
        six.launch()
    except TilewrightError as error:
        return found | {"failed": str(error).splitlines()[0]}
    calls = {OURS: trial.launch, AGAIN: trial.launch, SIX: six.launch, **trial.rivals()}
    others = dict(_under(asked.schedules, trial))
    calls |= {given: other.launch for given, other in others.items()}
    taken = timed(calls, asked)
    return found | {
        "name": trial.name,
        "way": str(trial.plan.details),
        "schedule": str(ran[-1].schedule),
        "schedules": {given: str(other.asked.how) for given, other in others.items()},
        "error_of_bound": comparison.error / comparison.bound,
        "launches": trial.launches,
        "bytes": trial.moved,
        "tflops": {timing.name: trial.flops / timing.us.median / 1e6 for timing in taken.timings},
        "speed": {other: taken.speed(OURS, other).median for other in calls if other != OURS},
        **taken.record(),
    }


def _under(file: Path | None, like: ComplexTrial) -> Iterator[tuple[str, ComplexTrial]]:
    """Yield the product with each schedule of a file, verified; print refused and wrong ones."""
    schedules = read(file.read_text()) if file is not None else {}
    for given, schedule in schedules.items():
        if schedule is None:
            continue
        try:
            asked = like.asked._replace(how=schedule)
            trial = ComplexTrial(like.shape, like.dtype, like.target, like.planar, asked)
            trial.run()
            trial.verify().raise_if_wrong()
            yield given, trial
        except TilewrightError as error:
            print(f"{given}: {error}".splitlines()[0], flush=True)


def name_of(kind: tuple[str, bool, str, str]) -> str:
    """Return the name of a row, without its extents."""
    dtype, planar, method, precision = kind
    return f"{dtype} {'planes' if planar else 'interleaved'} {method} {precision}"


HEAD = ("problem", "flow", "launches", "MB moved", "TFlops", "our speed", "host us", "normal", "positive")


def columns(found: dict[str, Any]) -> list[list[object]]:
    """Return the rows of the printed table, one for each method."""
    kind = (found["dtype"], found["planar"], found["method"], found["precision"])
    problem = f"{name_of(kind)} {found['shape'][0]}"
    if "failed" in found:
        return [[problem, found["failed"], *["-"] * (len(HEAD) - 2)]]
    made = []
    for flow, tflops in found["tflops"].items():
        if flow != AGAIN:
            moved = f"{found['bytes'][flow] / 1e6:.1f}" if flow in found["bytes"] else "-"
            speed = f"{found['speed'][flow]:.3f}" if flow in found["speed"] else "-"
            host = f"{found['host_us']:.1f}" if flow == OURS and "host_us" in found else "-"
            errors = [error_of(found, data, flow) for data in HEAD[-2:]]
            launches = found["launches"].get(flow, "-")
            made.append([problem, flow, launches, moved, f"{tflops:.3f}", speed, host, *errors])
    return made


def error_of(found: dict[str, Any], data: str, flow: str) -> str:
    """Return the largest error and the error in norm, if they are known."""
    both = found.get("errors", {}).get(data, {}).get(flow)
    return "-" if both is None else f"{both[0]:.3g} {both[1]:.2g}"


def line(found: dict[str, Any]) -> str:
    """Print a problem as soon as it is done."""
    return "; ".join(" ".join(map(str, cells)) for cells in columns(found))


if __name__ == "__main__":
    main()
