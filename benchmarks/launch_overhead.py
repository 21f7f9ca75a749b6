"""Host time per call of a bound kernel with PyTorch's CUDA tensors, in turns with `torch.mm(out=)`.

    python benchmarks/launch_overhead.py [--quick] [--json results/launch_overhead.json]

The problem is so small that the device keeps up; what is timed is what the host does for each call.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from reporting import arguments, effort, keep, table

from tilewright import dtypes
from tilewright.ops.config import default_config
from tilewright.ops.gemm import gemm, matmul
from tilewright.tune.measure import measure_calls

RIVAL = "torch.mm(out=)"
BOUND = "bound kernel"
SHAPE = (64, 64, 64)


def main() -> None:
    asked = arguments(__doc__).parse_args()
    m, n, k = SHAPE
    torch.manual_seed(0)
    a = torch.randn((m, k), dtype=torch.float16, device="cuda")
    b_t = torch.randn((n, k), dtype=torch.float16, device="cuda")
    b = b_t.T
    ours, theirs, again = (torch.empty((m, n), dtype=torch.float16, device="cuda") for _ in range(3))
    config = default_config("cuda", dtypes.f16, SHAPE)
    bound = gemm.bind(tile=config.tile, mma=config.mma, stages=config.stages)
    calls: dict[str, Any] = {
        BOUND: functools.partial(bound, a, b_t, ours),
        f"{BOUND} again": functools.partial(bound, a, b_t, ours),
        "matmul(out=)": functools.partial(matmul, a, b, again),
        RIVAL: functools.partial(torch.mm, a, b, out=theirs),
    }
    for call in calls.values():
        call()
    torch.cuda.synchronize()
    reference = a.double() @ b.double()
    for found in (ours, again, theirs):
        error = float(torch.linalg.norm(found.double() - reference) / torch.linalg.norm(reference))
        assert error < 1e-3, f"off by {error:.3g} in norm"
    taken = measure_calls(calls, "cuda", effort=effort(asked))
    lines = []
    for name in calls:
        us, ratio = taken[name].us, taken.speed(RIVAL, name)  # our time over theirs
        lines.append((name, f"{us.median:.2f}", f"{taken[name].spread:.1%}", f"{ratio}"))
    print(table(("call", "us per call", "spread", f"time over {RIVAL} [95 %]"), lines))
    times_over = {}
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


if __name__ == "__main__":
    main()
