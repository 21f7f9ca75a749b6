"""Attention forward (examples/09, 10) beside PyTorch on the GPU or NumPy on the CPU, in turns.

    python benchmarks/attention.py [--target cuda|cpu] [--quick] [--json results/attention.json]

Each head is compared with a softmax in float64, element by element.  Our kernel is timed twice, under two
names: what the two differ by is noise.  Shapes are batch x heads x queries x keys x head dimension; where a
case is causal, half of the products are counted.
"""

from __future__ import annotations

import functools
import math
import runpy
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from gemm_cpu import AGAIN, HEAD, columns, line, speed
from reporting import ROOT, arguments, effort, keep, table

from tilewright import dtypes
from tilewright.dtypes import DType, f32
from tilewright.errors import TilewrightError
from tilewright.testing import softmax_attention
from tilewright.tune.measure import measure
from tilewright.tune.trial import OURS

EXAMPLE = runpy.run_path(str(ROOT / "examples" / "09_attention.py"))
HOPPER = "examples/10"
ON_HOPPER = runpy.run_path(str(ROOT / "examples" / "10_hopper_attention.py"))
SHAPES = {
    "cuda": [(4, 16, 1024, 1024), (4, 16, 4096, 4096), (1, 16, 16384, 16384)],
    "cpu": [(1, 8, 512, 512), (1, 8, 2048, 2048)],
}
QUICK = {"cuda": [(1, 2, 300, 500)], "cpu": [(1, 2, 130, 200)]}
CASES = [("f16", 64, False), ("f16", 64, True), ("bf16", 128, False), ("bf16", 128, True)]
RIVAL = {"cuda": "torch (SDPA)", "cpu": "NumPy f32"}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--target", choices=SHAPES, default="cuda")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    for name, depth, causal in CASES:
        for shape in (QUICK if asked.quick else SHAPES)[asked.target]:
            whole, kind = (*shape, depth), "causal" if causal else "full"
            try:
                rows.append(problem(asked, name, whole, causal=causal))
                print(line(rows[-1]), flush=True)
            except (TilewrightError, AssertionError, RuntimeError) as error:
                failed.append({"dtype": name, "shape": list(whole), "layout": kind, "failed": str(error)})
                print(f"FAILED {failed[-1]}", flush=True)
            # What is done is kept, also when a limit ends this process.
            keep(asked, f"attention_{asked.target}", asked.target, [*rows, *failed])
    print()
    print(table((*HEAD, HOPPER), [[*columns(found), hand(found)] for found in rows]))
    sys.exit(f"{len(failed)} problems failed" if failed else 0)


def problem(asked: Any, name: str, shape: tuple[int, ...], *, causal: bool) -> dict[str, Any]:
    """Verify one problem, and time it."""
    batch, heads, queries, keys, depth = shape
    element, scale = dtypes.dtype(name), 1 / math.sqrt(depth)
    make = on_gpu if asked.target == "cuda" else on_cpu
    arrays, check, rival = make(element, shape, causal=causal)
    bound = EXAMPLE["bound"](element, depth, causal=causal)
    call = functools.partial(bound, *arrays, scale, 0, target=asked.target)
    assert call().target == asked.target
    of_bound = check()
    calls: dict[str, Callable[[], object]] = {OURS: call, AGAIN: call, RIVAL[asked.target]: rival}
    if asked.target == "cuda":
        arrays[3].fill_(math.nan)
        hopper = ON_HOPPER["bound"](element, depth, causal=causal)
        calls[HOPPER] = functools.partial(hopper, *arrays, scale, 0, target="cuda")
        calls[HOPPER]()
        of_bound = max(of_bound, check())
    taken = measure(calls, asked.target, effort=effort(asked))
    flops = 4 * batch * heads * queries * keys * depth * (0.5 if causal else 1)
    return {
        "name": f"attention<{asked.target}, {name}, {'x'.join(map(str, shape))}>",
        "dtype": name,
        "shape": list(shape),
        "layout": "causal" if causal else "full",
        "target": asked.target,
        "error_of_bound": of_bound,
        "gflops": {timing.name: flops / timing.us.median / 1e3 for timing in taken.timings},
        "by_hand": {HOPPER: speed(taken, HOPPER, RIVAL["cuda"])} if HOPPER in calls else {},
        "speed": {label: speed(taken, OURS, label) for label in calls if label not in (OURS, HOPPER)},
        **taken.record(),
    }


def hand(found: dict[str, Any]) -> str:
    """Speed of the kernel with Hopper's operations over PyTorch's."""
    return f"{found['by_hand'][HOPPER][0]:.3f}" if found["by_hand"] else "-"


def relative(element: DType, keys: int) -> float:
    """How far off an average of values of size 1 may be: weights rounded to the dtype, sums in f32."""
    return 2 * (element.unit_roundoff + (2 * keys + 2**8) * f32.unit_roundoff)


def on_gpu(element: DType, shape: tuple[int, ...], *, causal: bool) -> tuple[Any, ...]:
    """Random tensors on the GPU; a function that compares all heads; PyTorch's attention."""
    import torch

    batch, heads, queries, keys, depth = shape
    kind = {"f16": torch.float16, "bf16": torch.bfloat16}[element.name]
    q, k, v = (
        torch.randn((batch, heads, n, depth), dtype=kind, device="cuda") for n in (queries, keys, keys)
    )
    o = torch.full_like(q, float("nan"))

    def check() -> float:
        worst, room = 0.0, relative(element, keys)
        for b, h in np.ndindex(batch, heads):
            for start in range(0, queries, 2048):
                rows = slice(start, start + 2048)
                scores = q[b, h, rows].double() @ k[b, h].double().T / math.sqrt(depth)
                if causal:
                    i = torch.arange(queries, device="cuda")[rows, None]
                    scores.masked_fill_(torch.arange(keys, device="cuda") > i, -math.inf)
                weights = torch.softmax(scores, dim=-1)
                wanted = weights @ v[b, h].double()
                most = room * (weights @ v[b, h].double().abs()) + element.unit_roundoff * wanted.abs() + 1e-7
                worst = max(
                    worst, float(((o[b, h, rows].double() - wanted).abs() / most).nan_to_num(1e9).max())
                )
        assert worst <= 1, f"off by {worst:.3g} of the bound"
        return worst

    rival = functools.partial(
        torch.nn.functional.scaled_dot_product_attention,
        q,
        k,
        v,
        is_causal=causal,
        scale=1 / math.sqrt(depth),
    )
    return (q, k, v, o), check, rival


def on_cpu(element: DType, shape: tuple[int, ...], *, causal: bool) -> tuple[Any, ...]:
    """The same on the CPU; NumPy multiplies in f32, to which its inputs are converted beforehand."""
    batch, heads, queries, keys, depth = shape
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.standard_normal((batch, heads, n, depth)).astype(element.numpy) for n in (queries, keys, keys)
    )
    o, scale = np.full_like(q, np.nan), 1 / math.sqrt(depth)

    def check() -> float:
        shift = 0 if causal else None
        wanted = softmax_attention(q, k, v, scale, shift)
        averages = softmax_attention(q, k, np.abs(v), scale, shift)
        most = relative(element, keys) * averages + element.unit_roundoff * np.abs(wanted) + 1e-7
        worst = float(np.nan_to_num(np.abs(o.astype(np.float64) - wanted) / most, nan=1e9).max())
        assert worst <= 1, f"off by {worst:.3g} of the bound"
        return worst

    wide = [x.astype(np.float32) for x in (q, k, v)]
    hidden = ~np.tri(queries, keys, dtype=bool)

    def rival() -> Any:
        scores = (np.float32(scale) * wide[0]) @ wide[1].swapaxes(-1, -2)
        if causal:
            scores[..., hidden] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        return (scores @ wide[2]) / scores.sum(axis=-1, keepdims=True)

    return (q, k, v, o), check, rival


if __name__ == "__main__":
    main()
