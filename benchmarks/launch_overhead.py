"""Host time per call of a bound kernel and of each operation on CUDA tensors, compared with PyTorch's.

    python benchmarks/launch_overhead.py [--quick] [--json results/launch_overhead.json]

The problem is so small that the device keeps up, so the time is that of the host. The last line is the
driver's call alone, with prepared arguments, which is the minimum for any launch.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from reporting import arguments, effort, keep, table

import tilewright as tw
from tilewright.ops.matmul import matmul
from tilewright.runtime.device import PreparedCuda
from tilewright.runtime.kernel import Bound
from tilewright.tune.measure import measure_calls

RIVAL = "torch.mm(out=)"
BOUND = "bound kernel"
PREPARED = "prepared launch"
MATMUL = "matmul(out=)"
ALLOCATING = "matmul"
ALLOCATING_RIVAL = "a @ b"
DRIVER = "cuLaunchKernel"
SHAPE = (64, 64, 64)


@tw.kernel(A="M K", B="N K", C="M N")
def gemm(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc


def main() -> None:
    asked = arguments(__doc__).parse_args()
    m, n, k = SHAPE
    torch.manual_seed(0)
    a = torch.randn((m, k), dtype=torch.float16, device="cuda")
    b_t = torch.randn((n, k), dtype=torch.float16, device="cuda")
    b = b_t.T
    made = {
        name: torch.empty((m, n), dtype=torch.float16, device="cuda")
        for name in (BOUND, PREPARED, MATMUL, DRIVER, RIVAL)
    }
    bound = gemm.bind()
    calls: dict[str, Any] = {
        BOUND: functools.partial(bound, a, b_t, made[BOUND]),
        f"{BOUND} again": functools.partial(bound, a, b_t, made[BOUND]),
        PREPARED: bound.prepare(a, b_t, made[PREPARED]),
        MATMUL: functools.partial(matmul, a, b, made[MATMUL]),
        RIVAL: functools.partial(torch.mm, a, b, out=made[RIVAL]),
        ALLOCATING: functools.partial(matmul, a, b),
        ALLOCATING_RIVAL: functools.partial(torch.matmul, a, b),
        DRIVER: driver_call(Bound(bound.program, bound.constants), a, b_t, made[DRIVER]),
    }
    calls |= members()
    for name, call in calls.items():
        result = call()
        if name in (ALLOCATING, ALLOCATING_RIVAL):
            made[name] = result
    torch.cuda.synchronize()
    reference = a.double() @ b.double()
    for name, found in made.items():
        error = float(torch.linalg.norm(found.double() - reference) / torch.linalg.norm(reference))
        assert error < 1e-3, f"{name}: off by {error:.3g} in norm"
    taken = measure_calls(calls, "cuda", effort=effort(asked))
    lines = []
    for name in calls:
        us, ratio = taken[name].us, taken.speed(RIVAL, name)  # our time over theirs
        lines.append((name, f"{us.median:.2f}", f"{taken[name].spread:.1%}", f"{ratio}"))
    print(table(("call", "us per call", "spread", f"time over {RIVAL} [95 %]"), lines))
    ratio = taken.speed(ALLOCATING_RIVAL, ALLOCATING)
    print(f"{ALLOCATING}, result allocated: {ratio} of the time of {ALLOCATING_RIVAL}")
    times_over = {ALLOCATING_RIVAL: {ALLOCATING: [ratio.median, ratio.low, ratio.high]}}
    for name in calls:
        ratio = taken.speed(RIVAL, name)
        times_over[name] = [ratio.median, ratio.low, ratio.high]
    row = {
        "shape": list(SHAPE),
        "dtype": "f16",
        "target": "cuda",
        "time_over_rival": times_over,
        **taken.record(),
    }
    keep(asked, "launch_overhead", "cuda", [row])


def members() -> dict[str, Any]:
    """Return a call of each other operation, with `out=`; tests compare their results."""
    m, n, k = SHAPE
    rows, columns = (torch.randn(shape, dtype=torch.float16, device="cuda") for shape in ((m, k), (k, n)))
    out = torch.empty((m, n), dtype=torch.float16, device="cuda")
    narrow, scales = columns.T.contiguous().to(torch.float8_e4m3fn).T, torch.ones(n, device="cuda")
    x, y, z = (torch.randn((m, n), dtype=torch.complex64, device="cuda") for _ in range(3))
    heads = [torch.randn((1, 64, 2, 64), dtype=torch.float16, device="cuda") for _ in range(4)]
    return {
        "scaled_mm(out=)": functools.partial(tw.scaled_mm, rows, narrow, out, scale_b=scales),
        "complex_matmul(out=)": functools.partial(tw.complex_matmul, x, y, out=z),
        "einsum(out=)": functools.partial(tw.einsum, "mk,kn->mn", rows, columns, out),
        "gated_matmul(out=)": functools.partial(tw.gated_matmul, rows, columns, columns, out),
        "attention(out=)": functools.partial(tw.attention, *heads[:3], out=heads[3]),
    }


def driver_call(bound: Bound, *arrays: Any) -> Any:
    """Return the driver's call for these arrays; it stays valid while ``bound`` launches nothing else."""
    plan, pointers = bound.planned(arrays, None)
    launcher = plan.prepared
    assert isinstance(launcher, PreparedCuda)
    launcher.launch(arrays, pointers, None)
    for array in arrays[2:]:
        array.fill_(float("nan"))
    call: Any = launcher.driver_call(torch.cuda.current_stream().cuda_stream)
    call.holds = bound, launcher  # keeps the memory of the arguments
    return call


if __name__ == "__main__":
    main()
