"""Kernels that reduce rows, and then store them, compared with PyTorch and with a copy, in turns.

    python benchmarks/rows.py [--target cuda|cpu] [--quick] [--seconds S] [--json results/NAME.json]

The kernels are RMSNorm, LayerNorm, softmax and its gradient, of bf16 and f32.  Shapes follow from a seed: the
number of columns is log-uniform, every third one odd, and there are few rows or about 32 million elements.
Every result is compared with f64 before it is timed.  With ``--target cpu``, NumPy replaces PyTorch.

A kernel cannot be faster than a copy of the arrays that it reads and stores: the copy's time, times 3/2 for
the gradient, which reads two arrays.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from reporting import arguments, effort, keep, table

import tilewright as tw
from tilewright.targets.target import CUDA
from tilewright.tune.measure import measure
from tilewright.tune.trial import OURS

EPS = 1e-5
KERNELS = ("RMSNorm", "LayerNorm", "softmax", "gradient")
COPY, STEPS = "copy", "steps"
PROBLEMS, FEW, ELEMENTS = 12, 4, 1 << 25


@tw.kernel(X="M N", weight="N", bias="N", Y="M N")
def rms_norm(X, weight, bias, Y):
    for m in tw.tiles(Y.shape[0]):
        x = X[m].to(tw.f32)
        Y[m] = x * tw.rsqrt((x * x).sum(axis=1) / X.shape[1] + EPS)[:, None] * weight


@tw.kernel(X="M N", weight="N", bias="N", Y="M N")
def layer_norm(X, weight, bias, Y):
    for m in tw.tiles(Y.shape[0]):
        x = X[m].to(tw.f32)
        far = x - (x.sum(axis=1) / X.shape[1])[:, None]
        Y[m] = far * tw.rsqrt((far * far).sum(axis=1) / X.shape[1] + EPS)[:, None] * weight + bias


@tw.kernel(X="M N", Y="M N")
def softmax(X, Y):
    for m in tw.tiles(Y.shape[0]):
        Y[m] = tw.softmax(X[m].to(tw.f32))


@tw.kernel(P="M N", G="M N", Y="M N")
def gradient(P, G, Y):
    for m in tw.tiles(Y.shape[0]):
        p, g = P[m].to(tw.f32), G[m].to(tw.f32)
        Y[m] = p * (g - (p * g).sum(axis=1)[:, None])


def drawn(quick: bool) -> list[tuple[str, int, int]]:
    """Return dtypes, rows and columns of the problems."""
    draw, found = random.Random(20261201), []
    for at in range(2 if quick else PROBLEMS):
        columns = int(math.exp(draw.uniform(math.log(700), math.log(70_000))))
        columns = columns | 1 if at % 3 == 2 else -(-columns // 8) * 8
        rows = draw.randint(1, 200) if at < FEW else ELEMENTS // columns
        found.append(("f32" if at % 4 == 3 else "bf16", draw.randint(2, 9) if quick else rows, columns))
    return found


def exact(name: str, x: Any, g: Any, weight: Any, bias: Any) -> Any:
    """Return the result of arrays of NumPy or PyTorch, in their dtype."""
    match name:
        case "RMSNorm":
            return x / ((x * x).mean(1)[:, None] + EPS) ** 0.5 * weight
        case "LayerNorm":
            far = x - x.mean(1)[:, None]
            return far / ((far * far).mean(1)[:, None] + EPS) ** 0.5 * weight + bias
        case "softmax":
            power = math.e ** (x - x.max())
            return power / power.sum(1)[:, None]
    return x * (g - (x * g).sum(1)[:, None])


def on_gpu(name: str, dtype: str, rows: int, columns: int) -> dict[str, Callable[[], Any]]:
    """Return the verified calls of a kernel, of PyTorch and of a copy."""
    import torch

    functional = torch.nn.functional
    kind = {"bf16": torch.bfloat16, "f32": torch.float32}[dtype]
    draw = torch.Generator("cuda").manual_seed(columns)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=draw, device="cuda").to(kind)

    x, g, weight, bias = normal(rows, columns), normal(rows, columns), normal(columns), normal(columns)
    if name == "gradient":
        x = torch.softmax(x.float(), 1).to(kind)
    out = torch.full_like(x, math.nan)
    peer = {
        "RMSNorm": lambda: functional.rms_norm(x, (columns,), weight, EPS),
        "LayerNorm": lambda: functional.layer_norm(x, (columns,), weight, bias, EPS),
        "softmax": lambda: torch.softmax(x, 1),
        "gradient": lambda: torch._softmax_backward_data(g, x, 1, kind),
    }[name]
    ours = call_of(name, x, g, weight, bias, out)
    ours()
    verify(name, dtype, out.double(), [one.double() for one in (x, g, weight, bias)])
    source = torch.empty_like(x)
    return {OURS: ours, STEPS: peer, COPY: lambda: source.copy_(x)}


def on_cpu(name: str, dtype: str, rows: int, columns: int) -> dict[str, Callable[[], Any]]:
    """Return the verified calls of a kernel, and of NumPy in f32."""
    rng = np.random.default_rng(columns)
    kind = tw.dtype(dtype).numpy
    shapes = (rows, columns), (rows, columns), (columns,), (columns,)
    x, g, weight, bias = (rng.standard_normal(shape).astype(kind) for shape in shapes)
    out, source = np.full_like(x, math.nan), np.empty_like(x)
    ours = call_of(name, x, g, weight, bias, out, target="cpu")
    ours()
    verify(name, dtype, out.astype(np.float64), [one.astype(np.float64) for one in (x, g, weight, bias)])
    narrow = [one.astype(np.float32) for one in (x, g, weight, bias)]
    return {
        OURS: ours,
        STEPS: lambda: exact(name, *narrow).astype(kind),
        COPY: lambda: np.copyto(source, x),
    }


def call_of(name: str, x: Any, g: Any, weight: Any, bias: Any, out: Any, **words: Any) -> Callable[[], Any]:
    """Return our call."""
    kernel = {"RMSNorm": rms_norm, "LayerNorm": layer_norm, "softmax": softmax, "gradient": gradient}[name]
    given = {"softmax": (x,), "gradient": (x, g)}.get(name, (x, weight, bias))
    return lambda: kernel(*given, out, **words)


def verify(name: str, dtype: str, found: Any, wide: list[Any]) -> None:
    """Compare every element with f64: the rounding of the result, and the errors of sums in f32.

    Raises:
        AssertionError: an element is off by more than its bound.
    """
    x, g, weight, bias = wide
    right = exact(name, x, g, weight, bias)
    unit = tw.dtype(dtype).unit_roundoff
    size = abs(right) + (abs(weight) + abs(bias) if name == "LayerNorm" else 0)
    if name == "gradient":
        size = size + abs(x) * (abs(g) + abs(x * g).sum(1)[:, None])
    room = (2 * unit + (x.shape[1] + 160) * tw.f32.unit_roundoff) * size + 2.0**-126
    assert (abs(found - right) <= room).all(), f"{name} of {dtype} {x.shape} is wrong"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of each problem")
    asked = parser.parse_args()
    rows, lines = list[dict[str, Any]](), list[list[object]]()
    for dtype, high, columns in drawn(asked.quick):
        for name in KERNELS:
            calls = (on_gpu if asked.target == CUDA.name else on_cpu)(name, dtype, high, columns)
            taken = measure(calls, asked.target, effort=effort(asked))
            problem = f"{name} {dtype} {high}x{columns}"
            for call in calls:
                us = taken[call].us.median
                speed = "" if call == OURS else f"{taken.speed(OURS, call)}"
                rows.append({"problem": problem, "call": call, "us": us, "speed": speed})
                lines.append([problem, call, f"{us:.1f}", speed])
            keep(asked, "rows", asked.target, rows)
    print(table(("kernel, dtype, rows x columns", "call", "us", f"{OURS} is faster by [95 %]"), lines))


if __name__ == "__main__":
    main()
