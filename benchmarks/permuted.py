"""GEMM + bias with a permuted result, by one kernel of `tw.einsum`, compared with PyTorch's two steps.

    python benchmarks/permuted.py [--target cuda|cpu] [--quick] [--json results/NAME.json]

Results (B x S, H x D) are stored as (B, H, S, D), and in other orders.  PyTorch's steps are `F.linear` (or
`torch.addmm` and `torch.bmm`), and `permute().contiguous()`.  The table also has PyTorch's product alone, and
ours without a permutation.  Every result is compared with the two steps in float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from reporting import arguments, effort, keep, table

import tilewright as tw
from tilewright.tune.measure import measure
from tilewright.tune.trial import OURS

STEPS = "two steps"
PRODUCT = "the product alone"
IN_ORDER = "ours, not permuted"

Case = tuple[str, tuple[int, int, int, int, int], tuple[int, ...]]
"""Position of K in W (n: last, t: first), extents (B, S, H, D, K), and the order of (B, S, H, D)."""

HEADS = (0, 2, 1, 3)

ON_GPU: list[Case] = [
    ("t", (2, 2048, 32, 128, 4096), HEADS),
    ("t", (2, 2048, 64, 64, 4096), HEADS),
    ("n", (2, 2048, 32, 128, 4096), HEADS),
    ("t", (64, 64, 64, 64, 4096), HEADS),
    ("t", (4, 4096, 64, 128, 8192), HEADS),
    ("t", (8, 1024, 16, 64, 1024), HEADS),
    ("t", (2, 2048, 32, 128, 4096), (2, 0, 1, 3)),
    ("t", (2, 2048, 32, 128, 4096), (0, 2, 3, 1)),
    ("t", (2, 2048, 32, 96, 3072), HEADS),
]
ON_CPU: list[Case] = [("t", (2, 512, 8, 64, 512), HEADS), ("n", (2, 512, 8, 64, 512), (0, 2, 3, 1))]
QUICK: list[Case] = [("t", (2, 128, 4, 64, 128), HEADS)]


def subscripts(layout: str, order: tuple[int, ...]) -> str:
    return f"bsk,{'hdk' if layout == 't' else 'khd'}->{''.join('bshd'[axis] for axis in order)}"


def on_gpu(case: Case, kind: str) -> dict[str, Callable[[], Any]]:
    """Return the verified calls of a case."""
    import torch

    layout, (b, s, h, d, k), order = case
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[kind]
    torch.manual_seed(0)
    x = torch.randn((b, s, k), device="cuda", dtype=dtype)
    w = torch.randn((h * d, k) if layout == "t" else (k, h * d), device="cuda", dtype=dtype) / k**0.5
    bias = torch.randn(h * d, device="cuda", dtype=dtype)
    heads = w.view(h, d, k) if layout == "t" else w.view(k, h, d)
    shape = [1 if axis in (0, 1) else (h, d)[axis - 2] for axis in order]
    swapped = order.index(2) > order.index(3)
    added = (bias.view(h, d).T if swapped else bias.view(h, d)).reshape(shape)

    def product() -> torch.Tensor:
        if layout == "t":
            return torch.nn.functional.linear(x, w, bias)
        return torch.addmm(bias, x.view(-1, k), w).view(b, s, -1)

    def steps() -> torch.Tensor:
        return product().view(b, s, h, d).permute(order).contiguous()

    out = torch.full_like(steps(), float("nan"))
    plain = torch.full((b, s, h, d), float("nan"), device="cuda", dtype=dtype)
    ours = functools.partial(tw.einsum, subscripts(layout, order), x, heads, out, bias=added)
    straight = functools.partial(
        tw.einsum, subscripts(layout, (0, 1, 2, 3)), x, heads, plain, bias=bias.view(h, d)
    )
    calls = {OURS: ours, STEPS: steps, PRODUCT: product, IN_ORDER: straight}
    wide = w.double() if layout == "n" else w.double().T
    exact = (x.double().view(-1, k) @ wide + bias.double()).view(b, s, h, d).permute(order)
    unit = torch.finfo(dtype).eps
    for name in (OURS, STEPS):
        made = calls[name]()
        torch.cuda.synchronize()
        wrong = (made.double() - exact).abs() > 2 * unit * exact.abs() + unit / 4
        assert not bool(wrong.any()), f"{name}: {int(wrong.sum())} elements are wrong"
    return calls


def on_cpu(case: Case, kind: str) -> dict[str, Callable[[], Any]]:
    """Do the same with NumPy in f32, whose product is copied into another order."""
    layout, (b, s, h, d, k), order = case
    rng = np.random.default_rng(0)
    x, w, bias = (rng.standard_normal(shape, np.float32) for shape in ((b, s, k), (h * d, k), (1, h * d)))
    w /= np.sqrt(k)
    flat = w.T if layout == "t" else np.ascontiguousarray(w.T)
    heads = w.reshape(h, d, k) if layout == "t" else flat.reshape(k, h, d)
    added = bias.reshape(1, 1, h, d).transpose(order)

    def product() -> np.ndarray[Any, Any]:
        return np.asarray(x.reshape(-1, k) @ flat + bias)

    def steps() -> np.ndarray[Any, Any]:
        return np.ascontiguousarray(product().reshape(b, s, h, d).transpose(order))

    out = np.full_like(steps(), np.nan)
    calls = {
        OURS: functools.partial(tw.einsum, subscripts(layout, order), x, heads, out, bias=added),
        STEPS: steps,
        PRODUCT: product,
    }
    exact = (x.reshape(-1, k).astype(np.float64) @ flat + bias).reshape(b, s, h, d).transpose(order)
    for name in (OURS, STEPS):
        assert np.abs(calls[name]() - exact).max() < 2.0**-16, f"{name} is wrong"
    return calls


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=("f16", "bf16"), default="f16", help="on a GPU")
    asked = parser.parse_args()
    cases, made = (ON_GPU, on_gpu) if asked.target == "cuda" else (ON_CPU, on_cpu)
    kind = asked.dtype if asked.target == "cuda" else "f32"
    lines, rows = [], []
    for case in QUICK if asked.quick else cases:
        layout, extents, order = case
        calls = made(case, kind)
        taken = measure(calls, asked.target, effort=effort(asked))
        b, s, h, d, k = extents
        problem = f"{kind} {subscripts(layout, order)} {'x'.join(map(str, extents))}"
        for call in calls:
            us = taken[call].us.median
            speed = "" if call == OURS else f"{taken.speed(OURS, call)}"
            lines.append((problem, call, f"{us:.1f}", f"{2 * b * s * h * d * k / us / 1e6:.2f}", speed))
            rows.append({"problem": problem, "call": call, "us": us, "speed": speed})
        keep(asked, "permuted", asked.target, rows)
    print(table(("(B, S, H, D, K)", "call", "us", "TFlops", f"{OURS} is faster by [95 %]"), lines))


if __name__ == "__main__":
    main()
