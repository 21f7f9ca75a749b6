"""Step 2 of 6: the same kernel by a schedule that you say, and all that it becomes.

    python docs/tutorial/step2_schedule.py [--small]

Share of cuBLAS on an H200 (bf16): 0.53 at 4096³.

A `tw.Schedule` is one frozen value.  It says which instruction multiplies, how large a tile is, how many
warps share it, how many tiles of A and B shared memory holds and how they come there, and how the result
leaves. `kernel.bind(schedule=...)` takes it over from the chooser.

Between the eight lines and the machine lie three texts, and this program prints them in turn:

1. the *flow*, what is computed (step 1);
2. the *explicit kernel*, what the schedule makes of the flow: tensors in shared memory, copies, barriers,
   the loop, multiplies.  It is an ordinary kernel of the explicit language, which step 3 writes by hand.
   It could have been written so, and everything that is known of hand-written kernels is known of it: it
   prints and reads back, it is verified, and it runs under the hazard checker, thread by thread;
3. the *CUDA C++* that the explicit kernel is printed as.  Every comment in it names the line of the
   author's that an operation comes from, and the field of the schedule that made it.

A schedule is legal for a kernel, its arrays and a machine, or it is refused as a whole before anything is
compiled, with every reason at once and the nearest legal choice for each.
"""

from __future__ import annotations

import sys

import tilewright as tw


@tw.kernel(A="M K", B="N K", C="M N")
def product(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc


# Each of 2 x 2 warps multiplies 64 x 64 elements of a tile of 128 x 128 by the tensor cores' mma.sync; while
# one tile of K is multiplied, three more are on their way into shared memory by cp.async.
SCHEDULE = tw.Schedule(
    tw.atoms.MMA_BF16, (128, 128, 32), warps=(2, 2), stages=4, staging="cp_async", group_m=8
)
MEASURED = product.bind(schedule=SCHEDULE)

# A smaller one of the same kind, whose texts are shorter.
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

    # Three things are wrong with this one at least; all of them are said.
    wrong = tw.Schedule(tw.atoms.MMA_F16, (100, 64, 32), warps=(2, 2), stages=40, staging="cp_async")
    try:
        product.bind(schedule=wrong).compile(*arrays, target="cuda", arch="sm_80")
    except tw.ScheduleError as refused:
        print(refused)
    else:
        raise AssertionError("it was not refused")

    # The reference runs the explicit kernel by every thread: races, deadlocks, reads of what nobody wrote.
    shape = (40, 72, 200)
    made = tw.testing.operands("random", tw.bf16, shape, layout="nt")
    trial = tw.testing.Trial(bound, made, "reference", SMALL.atom, "40x72x200")
    assert trial.run()[0].target == "reference"
    trial.verify().raise_if_wrong()
    report = bound.check(made.a, made.b.T, trial.result())
    print(report)
    assert report.is_clean

    # The large one, where it runs at its speed.
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
