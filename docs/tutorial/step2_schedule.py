"""Step 2 of 6: the same kernel with your own schedule, and the code that it becomes.

    python docs/tutorial/step2_schedule.py [--small]

Share of cuBLAS on an H200 (bf16): 0.53 at 4096³.

A `tw.Schedule` is an immutable object.  It names the MMA instruction, the tile, the number of warps that
share the tile, the number of stages of A and B in shared memory, the way they are loaded, and the way the
result is stored.  `kernel.bind(schedule=...)` replaces the library's choice by yours.

The eight lines become three texts on their way to the machine.  This program prints them in turn:

1. The *flow* is the computation alone (step 1).
2. The *explicit kernel* is the flow under the schedule: tensors in shared memory, copies, barriers, the loop,
   multiplies.  Step 3 writes such a kernel by hand.  You can do the same with both: print the kernel, parse
   it back, verify it, and run it under the hazard checker, thread by thread.
3. The *CUDA C++* is the explicit kernel, printed for the compiler.  Its comments name, for each operation,
   your line and the schedule field that it comes from.

A schedule may be illegal for a kernel, its arrays or a machine.  The library then refuses it before compiling
anything, and reports every reason at once with the nearest legal choice for each.
"""

from __future__ import annotations

import sys

import tilewright as tw


@tw.kernel(A="M K", B="N K", C="M N")
def product(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc


# Each of 2 x 2 warps computes 64 x 64 elements of a 128 x 128 tile by mma.sync.  While the warps multiply one
# stage, cp.async loads the next three into shared memory.
SCHEDULE = tw.Schedule(
    tw.atoms.MMA_BF16, (128, 128, 32), warps=(2, 2), stages=4, staging="cp_async", group_m=8
)
MEASURED = product.bind(schedule=SCHEDULE)

# A smaller schedule of the same kind, which gives shorter texts.
SMALL = tw.Schedule(tw.atoms.MMA_BF16, (32, 32, 32), warps=(2, 2), stages=3, staging="cp_async")


def main():
    arrays = [tw.like("bf16", (512, 512))] * 3
    bound = product.bind(schedule=SMALL)
    print(SMALL)
    print(tw.ir.print_flow(bound.flow(*arrays)))
    print(tw.ir.print_kernel(bound.trace(*arrays, target="cuda", arch="sm_80")))
    try:
        source = bound.compile(*arrays, target="cuda", arch="sm_80").source
        print(source[source.index('extern "C"') :])
    except tw.ToolchainError as missing:
        print(missing)

    # This schedule has at least three faults; the error lists all of them.
    wrong = tw.Schedule(tw.atoms.MMA_F16, (100, 64, 32), warps=(2, 2), stages=40, staging="cp_async")
    try:
        product.bind(schedule=wrong).compile(*arrays, target="cuda", arch="sm_80")
    except tw.ScheduleError as refused:
        print(refused)
    else:
        raise AssertionError("it was not refused")

    # The reference runs every thread of the explicit kernel; it finds races, deadlocks, unwritten reads.
    shape = (40, 72, 200)
    made = tw.testing.operands("random", tw.bf16, shape, layout="nt")
    trial = tw.testing.Trial(bound, made, "reference", SMALL.atom, "40x72x200")
    assert trial.run()[0].target == "reference"
    trial.verify().raise_if_wrong()
    report = bound.check(made.a, made.b.T, trial.result())
    print(report)
    assert report.is_clean

    # Time the large schedule.
    target = "cuda" if tw.device_count() else "cpu"
    shape = (
        (256, 384, 320) if "--small" in sys.argv else (4096, 4096, 4096) if target == "cuda" else (1024,) * 3
    )
    made = tw.testing.operands("random", tw.bf16, shape, layout="nt")
    trial = tw.testing.Trial(MEASURED, made, target, SCHEDULE.atom, "x".join(map(str, shape)))
    assert trial.run()[0].target == target
    trial.verify().raise_if_wrong()
    print(trial.perf())


if __name__ == "__main__":
    main()
