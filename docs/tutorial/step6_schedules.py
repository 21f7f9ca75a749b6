"""Step 6 of 6: other kernels from the same eight lines.

    python docs/tutorial/step6_schedules.py [--small]

Share of cuBLAS on an H200 (bf16): 0.92 at 4096³.

Each technique below would need a hand-written kernel of its own.  Here each is a field of the schedule.  All
of them use one main loop, `src/tilewright/schedule/pipeline.py`.  Its body is a list of steps; each step runs
a fixed number of tiles before or after the multiplication:

- `roles="ping-pong"`: two warpgroups compute different tiles and take turns, so that one stores while the
  other multiplies.  A tile may then fill the registers of one warpgroup.
- `cluster=(2, 1)`: two blocks share the tile of B.  Each block loads half of it and multicasts it to both,
  which halves the L2 reads of B.
- `epilogue="overlapped"`: a separate warp stores each tile while the warpgroups multiply the next one.
- `promote=4`: the tensor cores keep 13 bits of a sum of 8-bit floats.  After every four tiles of K the kernel
  adds this sum to a second accumulator in f32.

The fastest choice depends on the shape and on the machine.  If you pass no schedule, a time model chooses
one; its constants are fitted to times measured on an H200.

This program runs each schedule under the hazard checker, on a small problem, and compares every element of
the result with a product of higher precision.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import tilewright as tw


@tw.kernel(A="M K", B="N K", C="M N")
def product(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc


COOPERATIVE = tw.Schedule(
    tw.atoms.wgmma("bf16", 256),
    (128, 256, 64),
    stages=4,
    staging="tma",
    roles="cooperative",
    groups=2,
    blocks=132,
    group_m=8,
    epilogue="staged",
)
PING_PONG = replace(COOPERATIVE, atom=tw.atoms.wgmma("bf16", 192), tile=(128, 192, 64), roles="ping-pong")
SCHEDULES = {
    "cooperative": COOPERATIVE,
    "ping-pong": PING_PONG,
    "cluster": replace(COOPERATIVE, cluster=(2, 1)),
    "overlapped": replace(COOPERATIVE, epilogue="overlapped"),
}
MEASURED = product.bind(schedule=PING_PONG)


def small(schedule):
    """Return the schedule with tiles small enough for the reference interpreter."""
    rows = 64 if schedule.roles == "ping-pong" else 128
    atom = tw.atoms.wgmma(schedule.atom.a_dtype, 64)
    return replace(
        schedule, atom=atom, tile=(rows, 64, schedule.block_k), stages=4, blocks=2, group_m=2, buffers=1
    )


def checked(name, schedule):
    """Run a schedule under the checker, and compare every element."""
    dtype = schedule.atom.a_dtype
    m, n, k = 264, 72, 9 * schedule.block_k + 16
    made = tw.testing.operands("random", dtype, (m, n, k), layout="nt")
    bound = product.bind(schedule=schedule)
    period = schedule.promote * schedule.block_k or None
    trial = tw.testing.Trial(bound, made, "reference", schedule.atom, name, tw.bf16, period)
    assert trial.run()[0].target == "reference"
    comparison = trial.verify()
    comparison.raise_if_wrong()
    report = bound.check(made.a, made.b.T, trial.result())
    assert report.is_clean, report
    print(f"{name}: no findings, {comparison}\n  {schedule}")


def main():
    for name, schedule in SCHEDULES.items():
        checked(name, small(schedule))
    promoted = replace(small(COOPERATIVE), atom=tw.atoms.wgmma("f8e4m3", 64), tile=(128, 64, 128), promote=4)
    checked("promoted", promoted)

    if not tw.device_count():
        return
    for n in (512,) if "--small" in sys.argv else (4096, 8192):
        made = tw.testing.operands("random", tw.bf16, (n, n, n), layout="nt")
        for name, schedule in SCHEDULES.items():
            trial = tw.testing.Trial(
                product.bind(schedule=schedule), made, "cuda", schedule.atom, f"{name} {n}³", tw.bf16
            )
            assert trial.run()[0].target == "cuda"
            trial.verify().raise_if_wrong()
            print(trial.perf())


if __name__ == "__main__":
    main()
