"""`tw.gemm_chain` compared with two products of PyTorch on the GPU, or of NumPy on the CPU, in turns.

    python benchmarks/chain.py [--target cuda|cpu] [--quick] [--json results/chain.json]

Every element is compared with float64.  Our kernel is timed twice, under two names: the difference between
the two is noise.  Two kernels of the library, which store the first product, are timed as well.  Shapes are M
x K x N x P.  B is row-major, or column-major like the weights of a layer.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from gemm_cpu import AGAIN, HEAD, columns, line, speed
from reporting import arguments, effort, keep, table

import tilewright as tw
from tilewright import dtypes
from tilewright.dtypes import f32
from tilewright.errors import TilewrightError
from tilewright.testing import device_get, device_put
from tilewright.tune.measure import measure
from tilewright.tune.trial import OURS

TWO = "two kernels"
SHAPES = {
    "cuda": [(65536, 64, 512, 64), (65536, 128, 512, 128), (16384, 256, 1024, 256), (4096, 256, 4096, 256)],
    "cpu": [(4096, 64, 512, 64), (2048, 128, 1024, 128)],
}
QUICK = {"cuda": [(300, 64, 200, 72)], "cpu": [(150, 64, 100, 72)]}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--target", choices=SHAPES, default="cuda")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    for shape in (QUICK if asked.quick else SHAPES)[asked.target]:
        for order in ("row", "column"):
            for activation in ("relu",) if asked.quick else (None, "relu"):
                try:
                    rows.append(problem(asked, shape, order, activation))
                    print(line(rows[-1]), flush=True)
                except (TilewrightError, AssertionError, RuntimeError) as error:
                    failed.append({"shape": list(shape), "layout": order, "failed": str(error)})
                    print(f"FAILED {failed[-1]}", flush=True)
                # Keep finished rows, even if a time limit ends this process.
                keep(asked, f"chain_{asked.target}", asked.target, [*rows, *failed])
    print()
    print(table((*HEAD, TWO), [[*columns(found), f"{found['speed'][TWO][0]:.3f}"] for found in rows]))
    sys.exit(f"{len(failed)} problems failed" if failed else 0)


def problem(asked: Any, shape: tuple[int, ...], order: str, activation: str | None) -> dict[str, Any]:
    """Verify a problem, and time it."""
    m, k, n, p = shape
    rng, element = np.random.default_rng(0), dtypes.bf16
    a, b, c = (rng.standard_normal(s).astype(element.numpy) for s in ((m, k), (k, n), (n, p)))
    a = (a.astype(np.float32) / np.float32(k) ** 0.5).astype(element.numpy)
    if order == "column":
        b = np.asfortranarray(b)
    held = [device_put(x, asked.target) for x in (a, b, c, np.full((m, p), np.nan, element.numpy))]
    given, out = held[:3], held[3]
    call = functools.partial(
        tw.gemm_chain, *given, activation=activation, out=out, fused=True, target=asked.target
    )
    call()
    of_bound = check((a, b, c), device_get(out), activation)
    rival = (on_gpu if asked.target == "cuda" else on_cpu)((a, b, c), activation)
    calls: dict[str, Callable[[], object]] = {
        OURS: call,
        AGAIN: call,
        "torch" if asked.target == "cuda" else "NumPy f32": rival,
        TWO: two(held, n, activation, asked.target),
    }
    taken = measure(calls, asked.target, effort=effort(asked))
    flops = 2 * m * n * (k + p)
    name = f"{order} by {order}" + (f", {activation}" if activation else "")
    return {
        "name": f"gemm_chain<{asked.target}, {element}, {'x'.join(map(str, shape))}, {name}>",
        "dtype": element.name,
        "shape": list(shape),
        "layout": name,
        "target": asked.target,
        "error_of_bound": of_bound,
        "gflops": {timing.name: flops / timing.us.median / 1e3 for timing in taken.timings},
        "speed": {label: speed(taken, OURS, label) for label in calls if label != OURS},
        **taken.record(),
    }


def two(held: list[Any], n: int, activation: str | None, target: str) -> Callable[[], object]:
    """Return two calls of `matmul` with lasting memory for the first product."""
    a, b, c, _ = held
    element = dtypes.bf16.numpy
    between = device_put(np.zeros((a.shape[0], n), element), target)
    out = device_put(np.zeros((a.shape[0], c.shape[1]), element), target)

    def call() -> None:
        tw.matmul(a, b, between, activation=activation, target=target)
        tw.matmul(between, c, out, target=target)

    return call


def check(factors: tuple[Any, ...], found: Any, activation: str | None) -> float:
    """Return the largest error over its bound, which covers sums and the first product's rounding."""
    worst, w = 0.0, dtypes.bf16.unit_roundoff
    b, c = (x.astype(np.float64) for x in factors[1:])
    for begin in range(0, len(found), 4096):
        a = factors[0][begin : begin + 4096].astype(np.float64)
        h, sums = a @ b, np.abs(a) @ np.abs(b)
        h = np.maximum(h, 0) if activation else h
        off = 2 * (len(b) + 1) * f32.unit_roundoff * sums + w * np.abs(h)
        wanted = h @ c
        most = off @ np.abs(c) + 2 * (len(c) + 1) * f32.unit_roundoff * (np.abs(h) + off) @ np.abs(c)
        most += w * np.abs(wanted) + 1e-30
        error = np.abs(found[begin : begin + 4096].astype(np.float64) - wanted)
        worst = max(worst, float(np.nan_to_num(error / most, nan=1e9).max()))
    assert worst <= 1, f"off by {worst:.3g} of the bound"
    return worst


def on_gpu(factors: tuple[Any, ...], activation: str | None) -> Callable[[], object]:
    """Return two products of PyTorch with lasting memory."""
    import torch

    def there(array: Any) -> Any:
        if not array.flags.c_contiguous:
            return there(array.T).T
        return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)

    a, b, c = map(there, factors)
    between = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    out = torch.empty((a.shape[0], c.shape[1]), dtype=a.dtype, device=a.device)

    def call() -> None:
        torch.mm(a, b, out=between)
        if activation:
            between.relu_()
        torch.mm(between, c, out=out)

    return call


def on_cpu(factors: tuple[Any, ...], activation: str | None) -> Callable[[], object]:
    """Return two products of NumPy in f32; operands are converted beforehand."""
    a, b, c = (x.astype(np.float32) for x in factors)
    between, out = np.empty((len(a), b.shape[1]), np.float32), np.empty((len(a), c.shape[1]), np.float32)

    def call() -> None:
        np.matmul(a, b, out=between)
        if activation:
            np.maximum(between, 0, out=between)
        np.matmul(between, c, out=out)

    return call


if __name__ == "__main__":
    main()
