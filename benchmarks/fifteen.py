"""The fifteen kernels of `docs/kernels.md`: how long they take to compile, and to run next to PyTorch.

    python benchmarks/fifteen.py --compile [--arch sm_90a] [--only KERNEL ...]
    python benchmarks/fifteen.py [--quick] [--only KERNEL ...] [--json results/NAME.json]

With ``--compile``, each kernel is traced, scheduled and compiled for an architecture, without a GPU:
processor seconds, registers and spilled bytes.  Nothing is taken from the cache.  The goal is less than
2 seconds each.

Otherwise each kernel is compared element by element with PyTorch's best calls in f32 or f64, and timed next
to them in f16, in turns.
"""

from __future__ import annotations

import doctest
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from reporting import arguments, effort, keep, table

import tilewright as tw
from tilewright.targets.target import CUDA, owner
from tilewright.tune.measure import measure
from tilewright.tune.trial import OURS

PAGE = Path(__file__).parents[1] / "docs" / "kernels.md"
STEPS, SLOW = "steps", 2.0
F16, F32, I32, I8 = "f16", "f32", "i32", "i8"
M = N = K = 4096

Array = tuple[str, tuple[int, ...]]
"""Dtype and extents of an array."""

SHAPES: dict[str, tuple[list[Array], list[float]]] = {
    "linear": ([(F16, (M, K)), (F16, (N, K)), (F16, (N,)), (F16, (M, N))], []),
    "swiglu": ([(F16, (M, K)), (F16, (N, K)), (F16, (N, K)), (F16, (M, N))], []),
    "adapted": ([(F16, (M, K)), (F16, (N, K)), (F16, (16, K)), (F16, (N, 16)), (F16, (M, N))], [0.5]),
    "normalised": ([(F16, (M, K)), (F16, (N, K)), (F16, (M, N))], [1e-5]),
    "softmax": ([(F16, (M, 1024)), (F16, (2048, 1024)), (F16, (M, 2048))], []),
    "attention": ([(F16, (M, 128)), (F16, (N, 128)), (F16, (N, 128)), (F16, (M, 128))], [0.088]),
    "nf4": ([(F16, (16, K)), ("u4", (N, K)), (F16, (N, K // 64)), (F16, (16, N))], []),
    "experts": ([(F16, (M, 2048)), (F16, (8, N, 2048)), (I32, (M,)), (I32, (8,)), (F32, (M, N))], []),
    "lower": ([(F16, (M, K)), (F16, (N, K)), (F16, (M, N))], []),
    "syrk": ([(F16, (M, K)), (F16, (M, M))], []),
    "batches": ([(F16, (512, 64, 64)), (F16, (512, 64, 64)), (F16, (512, 64, 64))], []),
    "gemv": ([(F16, (M, K)), (F16, (K,)), (F32, (M,))], []),
    "grouped_convolution": (
        [(F16, (8, 56, 56, 128)), (F16, (2, 64, 9 * 64)), (F16, (8 * 56 * 56, 2, 64))],
        [],
    ),
    "int8": (
        [(I8, (M, K)), (I8, (N, K)), (F32, (M,)), (F32, (N,)), (F16, (M, N))],
        [3, 1e-4],
    ),
    "log_sum_exp": ([(F16, (M, 1024)), (F16, (32768, 1024)), (F32, (M,))], []),
    "k_means": ([(F16, (65536, 64)), (F16, (1024, 64)), (F32, (1024,)), (I32, (65536,))], []),
    "scan": ([(F32, (M, N)), (F32, (M, N))], []),
    "long_scan": ([(F32, (1 << 20,)), (F32, (1 << 20,))], []),
    "decaying": ([(F32, (8192, 1024)), (F32, (8192, 1024))], []),
    "complex_product": ([*[(F16, (2048, 2048))] * 4, (F16, (2, 2048, 2048))], []),
}
"""The arrays of each kernel, the result last, and its numbers."""


def kernels() -> dict[str, Any]:
    """Return the kernels as they stand on the page."""
    given: dict[str, Any] = {"tw": tw, "np": np}
    for example in doctest.DocTestParser().get_examples(PAGE.read_text()):
        if example.source.startswith("@tw.kernel"):
            exec(example.source, given)  # a test runs the page, too
    return {name: given[name] for name in SHAPES}


def compiled(name: str, kernel: Any, arch: str) -> list[object]:
    """Compile a kernel, and return a row: its name, seconds, registers, spilled bytes."""
    arrays, numbers = SHAPES[name]
    like = [tw.like(dtype, *shape) for dtype, shape in arrays]
    before = os.times()
    made = kernel.compile(*like, *numbers, target=owner(arch).name, arch=arch)
    after = os.times()
    seconds = sum(after[:4]) - sum(before[:4])
    used = made.resources
    spilled = used.get("spill_store_bytes", 0) + used.get("spilled_registers", 0)
    return [name, f"{seconds:.2f}", used["registers"], spilled, "" if seconds < SLOW else "slow"]


def on_gpu(name: str, kernel: Any) -> dict[str, Callable[[], Any]]:
    """Return the verified calls of a kernel and of PyTorch; none of PyTorch where it has no short form."""
    import torch

    functional, (arrays, numbers) = torch.nn.functional, SHAPES[name]
    draw = torch.Generator("cuda").manual_seed(0)
    made: list[Any] = []
    for dtype, shape in arrays:
        if dtype in (I8, I32, "u4"):
            low, high = (-128, 128) if dtype == I8 else (0, 16)
            kind = torch.int8 if dtype == I8 else torch.int32
            made.append(torch.randint(low, high, shape, generator=draw, device="cuda", dtype=kind))
        else:
            kind = torch.float16 if dtype == F16 else torch.float32
            drawn = torch.randn(shape, generator=draw, device="cuda") / math.sqrt(shape[-1]) ** 0.5
            made.append(drawn.to(kind))
    *given, out = made
    calls: dict[str, Callable[[], Any]] = {}
    match name:
        case "linear":
            x, w, bias = given
            calls[STEPS] = lambda: functional.silu(functional.linear(x, w, bias))
        case "swiglu":
            x, w, v = given
            calls[STEPS] = lambda: functional.silu(functional.linear(x, w)) * functional.linear(x, v)
        case "adapted":
            x, w, a, b = given
            s = numbers[0]
            calls[STEPS] = lambda: torch.addmm(functional.linear(x, w), functional.linear(x, a), b.T, alpha=s)
        case "normalised":
            x, w = given
            eps = numbers[0]
            calls[STEPS] = lambda: functional.linear(functional.rms_norm(x, (K,), None, eps), w)
        case "softmax":
            x, w = given
            calls[STEPS] = lambda: torch.softmax(functional.linear(x, w), 1)
        case "attention":
            q, k, v = (one[None, None] for one in given)
            scale, attend = numbers[0], functional.scaled_dot_product_attention
            calls[STEPS] = lambda: attend(q, k, v, is_causal=True, scale=scale)[0, 0]
        case "nf4":
            x, codes, scale = given
            levels = torch.tensor(tw.NF4, device="cuda", dtype=torch.float16)
            w = levels[codes] * scale.repeat_interleave(64, 1)
            host = np.asarray(codes.cpu(), np.uint8)
            given[1] = tw.packed(torch.from_numpy(tw.pack(host, tw.u4)).cuda(), tw.u4)
            calls[STEPS] = lambda: functional.linear(x, w)
        case "experts":
            x, w, token, ends = given
            token.copy_(torch.randperm(M, generator=draw, device="cuda").int())
            ends.copy_(torch.arange(1, 9, device="cuda").int() * (M // 8))
            out.zero_()
            rows = token.long().split(M // 8)

            def experts() -> Any:
                found = torch.zeros_like(out)
                for at, one in enumerate(rows):
                    found.index_add_(0, one, functional.linear(x[one], w[at]).float())
                return found

            calls[STEPS] = experts
        case "lower":
            a, b = given
            calls[STEPS] = lambda: torch.tril(functional.linear(a, b))
        case "syrk":
            (a,) = given
            calls[STEPS] = lambda: functional.linear(a, a)
        case "batches":
            a, w = given
            calls[STEPS] = lambda: torch.bmm(a, w.mT)
        case "gemv":
            a, x = given
            calls[STEPS] = lambda: torch.mv(a, x)
        case "int8":
            a, b, row, column = given
            zero, step = numbers
            sums = b.int().sum(1)
            calls[STEPS] = lambda: (
                (torch._int_mm(a, b.T) - zero * sums) * step * row[:, None] * column
            ).half()
        case "log_sum_exp":
            x, w = given
            calls[STEPS] = lambda: torch.logsumexp(functional.linear(x, w).float(), 1)
        case "k_means":
            x, c, half = given
            half.copy_((c.float() ** 2).sum(1) / 2)
            calls[STEPS] = lambda: (half - functional.linear(x, c)).argmin(1)
        case "scan" | "long_scan":
            (x,) = given
            calls[STEPS] = lambda: torch.cumsum(x, x.dim() - 1)
    kernel(*given, out, *numbers)
    if STEPS in calls:
        found, expected = out.double(), calls[STEPS]().double()
        if name == "lower":
            found = torch.tril(found)
        right = ((found - expected).abs() <= 2e-2 * (expected.abs() + expected.abs().mean())).double().mean()
        share = 0.999 if name == "k_means" else 1.0  # centres at nearly equal distances
        print(f"{name}: {float(right):.6f} of the elements agree" + ("" if right >= share else ": WRONG"))
    return {OURS: lambda: kernel(*given, out, *numbers), **calls}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--compile", action="store_true", help="compile only, without a GPU")
    parser.add_argument("--arch", default="sm_90a", help="the architecture to compile for")
    parser.add_argument("--only", nargs="+", choices=SHAPES, default=list(SHAPES), help="default: all")
    asked = parser.parse_args()
    made = {name: kernel for name, kernel in kernels().items() if name in asked.only}
    if asked.compile:
        with tempfile.TemporaryDirectory() as fresh, patch.dict(os.environ, TILEWRIGHT_CACHE_DIR=fresh):
            compiled("linear", kernels()["linear"], asked.arch)  # modules are imported once
            os.environ["TILEWRIGHT_CACHE_DIR"] = f"{fresh}/measured"
            lines = [compiled(name, kernel, asked.arch) for name, kernel in made.items()]
        print(table(("kernel", "seconds", "registers", "spilled bytes", ""), lines))
        return
    rows, lines = list[dict[str, Any]](), list[list[object]]()
    for name, kernel in made.items():
        try:
            calls = on_gpu(name, kernel)
        except Exception as error:  # noqa: BLE001 the other kernels are timed, too
            print(f"{name}: FAILED: {error!r}")
            continue
        taken = measure(calls, CUDA.name, effort=effort(asked))
        for call in calls:
            us = taken[call].us.median
            speed = "" if call == OURS else f"{taken.speed(OURS, call)}"
            rows.append({"kernel": name, "call": call, "us": us, "speed": speed})
            lines.append([name, call, f"{us:.1f}", speed])
        keep(asked, "fifteen", CUDA.name, rows)
    print(table(("kernel", "call", "us", f"{OURS} is faster by [95 %]"), lines))


if __name__ == "__main__":
    main()
