"""Products of f32 on a GPU at each precision grade: time and error, compared with cuBLAS.

    python benchmarks/accurate.py [--quick] [--json results/accurate.json]

The error of an element is divided by the sum of the magnitudes of its products, in units of 2**-24.  The
table has the largest error, and the Frobenius norm of all errors over that of the result.  Data: normal
numbers; numbers from 0 to 1; rows and columns whose ranges differ by up to 2**80; and sums that mostly
cancel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from reporting import arguments, effort, keep, table

import tilewright as tw
from tilewright.tune.measure import measure

GRADES = ("f32", "exact", "tf32", "f16")
SGEMM, AS_TF32 = "cuBLAS f32", "cuBLAS tf32"
ROWS = 512
"""Rows of the result that are compared."""


def drawn(kind: str, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw two square matrices."""
    torch.manual_seed(n)
    draw = torch.rand if kind == "positive" else torch.randn
    a, b = (draw((n, n), device="cuda") for _ in range(2))
    if kind == "wide":
        a *= torch.exp2(torch.randint(-40, 41, (n, 1), device="cuda"))
        b *= torch.exp2(torch.randint(-40, 41, (1, n), device="cuda"))
    if kind == "cancelling":
        a[:, n // 2 :] = -a[:, : n // 2]
        b[n // 2 :] = b[: n // 2] * (1 + 2.0**-12)
    return a, b


def by_cublas(tf32: bool, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """``torch.mm``."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.mm(a, b, out=out)


def errors(a: torch.Tensor, b: torch.Tensor, made: torch.Tensor) -> tuple[float, float]:
    """Return the largest error over the sum of magnitudes, in 2**-24; and the error in Frobenius norm."""
    wide = a[:ROWS].double()
    exact, sizes = wide @ b.double(), wide.abs() @ b.double().abs()
    off = (made[:ROWS].double() - exact).abs()
    return float((off / sizes).max() * 2**24), float(off.norm() / exact.norm())


def main() -> None:
    asked = arguments(__doc__).parse_args()
    lines, rows = [], []
    for n in (512,) if asked.quick else (1024, 2048, 4096, 8192):
        found: dict[str, dict[str, Any]] = {}
        calls: dict[str, Callable[[], Any]] = {}
        for kind in ("positive", "wide", "cancelling", "normal"):
            a, b = drawn(kind, n)
            outs = {
                name: torch.full((n, n), float("nan"), device="cuda") for name in (*GRADES, SGEMM, AS_TF32)
            }
            calls = {g: functools.partial(tw.matmul, a, b, out=outs[g], precision=g) for g in GRADES}
            calls |= {
                name: functools.partial(by_cublas, name == AS_TF32, a, b, outs[name])
                for name in (SGEMM, AS_TF32)
            }
            for name, call in calls.items():
                call()
                torch.cuda.synchronize()
                found.setdefault(name, {})[kind] = errors(a, b, outs[name])
        timed = measure(calls, "cuda", effort=effort(asked))
        for name in calls:
            us = timed[name].us.median
            worst = [f"{found[name][kind][0]:.3g}" for kind in found[name]]
            speed = timed.speed(name, SGEMM)
            lines.append((str(n), name, f"{us:.1f}", f"{2 * n**3 / us / 1e6:.1f}", f"{speed}", *worst))
            rows.append({"n": n, "call": name, "us": us, "speed": speed.median, "errors": found[name]})
    kinds = ("positive", "wide", "cancelling", "normal")
    print(table(("n", "call", "us", "TFlops", f"speed over {SGEMM} [95 %]", *kinds), lines))
    keep(asked, "accurate", "cuda", rows)


if __name__ == "__main__":
    main()
