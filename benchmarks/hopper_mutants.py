"""Mutants of the Hopper GEMM on a GPU: what the checker found without one is wrong there too, or hangs.

    python benchmarks/hopper_mutants.py [--json results/hopper_mutants.json]

Each mutant runs in a process of its own with a time limit, many times on random data; the unchanged kernel
runs first, and must be right.  The checker's own findings are in tests/hazards/golden/hopper_mutants.txt.
"""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from typing import Any

from reporting import ROOT, arguments, keep, table

from tilewright import dtypes
from tilewright.runtime.arrays import describe
from tilewright.runtime.backends import BACKENDS
from tilewright.runtime.binding import bind

LIMIT_S = 25
LAUNCHES = 200
SHAPE = (1000, 1096, 1048)
UNCHANGED = "unchanged"

MUTANTS = (
    "wait 0: removed",
    "wait 1: removed",
    "wait 1: other parity",
    "arrive 0: bytes -32768",
    "arrive 1: removed",
    "mbarrier 1: arrivals +1",
    "mbarrier 1: arrivals -1",
    "mma_wait 0: one more pending",
    "mma_wait 1: removed",
    "fence_async 0: removed",
    "role_barrier 0: removed",
    "role_barrier 1: removed",
    "bulk_wait 0: removed",
    "tma_load 1: coordinate 1 +8",
)


def main() -> None:
    asked = arguments(__doc__)
    asked.add_argument("--one", help="run this mutant in this process")
    chosen = asked.parse_args()
    if chosen.one:
        print(json.dumps(run(chosen.one)))
        return
    rows = []
    for name in (UNCHANGED, *MUTANTS):
        rows.append({"mutant": name, "outcome": outcome(name)})
        print(rows[-1], flush=True)
        keep(chosen, "hopper_mutants", "cuda", rows)
    print(table(("mutant", "on the GPU"), [[row["mutant"], row["outcome"]] for row in rows]))
    right = [row["mutant"] for row in rows if row["outcome"].startswith("right")]
    sys.exit(0 if right[:1] == [UNCHANGED] else "the unchanged kernel is wrong")


def outcome(name: str) -> str:
    """What a mutant does, from a process of its own."""
    command = (sys.executable, __file__, "--one", name)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"hangs: not done after {LIMIT_S} s"
    if done.returncode:
        return "fails: " + done.stderr.strip().splitlines()[-1][:200]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if found["wrong_launches"]:
        return (
            f"wrong: {found['wrong_launches']} of {found['launches']} launches, "
            f"up to {found['wrong_elements']} elements"
        )
    return f"right: {found['launches']} launches"


def run(name: str) -> dict[str, int]:
    """Launch a mutant many times and count the wrong results."""
    sys.path.insert(0, str(ROOT))
    import torch
    from tests.hazards.mutate import mutants

    m, n, k = SHAPE
    a = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
    b = torch.randn(n, k, dtype=torch.bfloat16, device="cuda")
    example = runpy.run_path(str(ROOT / "examples" / "03_hopper_gemm.py"))
    bound = example["bind"](dtypes.bf16, columns=128, stages=3, blocks=40)
    out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    kernel = bound.trace(a, b, out)
    if name != UNCHANGED:
        kernel = next(mutant.kernel for mutant in mutants(kernel) if mutant.name == name)
    backend = BACKENDS["cuda"]
    executable = backend.compile(kernel, None)
    infos = {"A": describe(a), "B": describe(b), "C": describe(out)}
    parameters = bound.program.parameters
    prepared = backend.prepare(executable, bind(kernel, infos, {}), parameters, infos)
    exact = a.double() @ b.double().T
    bound_on_error = 2.0**-8 * exact.abs() + 1e-2
    worst = wrong = 0
    for _ in range(LAUNCHES):
        out.fill_(float("nan"))
        prepared.launch((a, b, out), [a.data_ptr(), b.data_ptr(), out.data_ptr()], None)
        missed = int((~((out.double() - exact).abs() <= bound_on_error)).sum())
        wrong, worst = wrong + (missed > 0), max(worst, missed)
    return {"launches": LAUNCHES, "wrong_launches": wrong, "wrong_elements": worst}


if __name__ == "__main__":
    main()
