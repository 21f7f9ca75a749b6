"""The Hopper GEMM of examples/03 for f32 as tf32, 8-bit floats and bytes, beside cuBLAS (PyTorch), in turns.

    python benchmarks/hopper_dtypes.py [--quick] [--json results/hopper_dtypes.json]

8-bit floats write bf16, beside `torch._scaled_mm` with and without its fast accumulation; each of our
variants is named by its columns and by the steps of 128 products after which it promotes its sums. Every
variant is verified before any is timed. A and B are stored along K.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from gemm_cpu import speed
from gemm_cuda import COLUMNS, CUBLAS, ROWS, example, host, spaced, torch_dtype
from reporting import arguments, effort, keep, table

from tilewright import dtypes
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.dtypes import DType
from tilewright.errors import TilewrightError
from tilewright.tune.measure import measure

SHAPES = [(4096, 4096, 4096), (8192, 8192, 8192)]
QUICK_SHAPES = [(512, 768, 640)]

FAST = "torch, fast accumulation"
VARIANTS: dict[str, list[tuple[int | None, int | None]]] = {
    "f32": [(None, None), (256, None), (192, None), (128, None)],
    "f8e4m3": [
        *((None, period) for period in (None, 1, 2, 4)),
        *((columns, period) for columns in (192, 128) for period in (None, 1, 4)),
    ],
    "i8": [(None, None), (192, None)],
}
"""Columns, None for those that `bind` chooses, and the period of promotion, None for never."""

OUT = {"f32": dtypes.f32, "f8e4m3": dtypes.bf16, "i8": dtypes.i32}
NORM_BOUND = {"f32": 2e-3, "f8e4m3": 2e-3, "i8": 0.0}
NOT_PROMOTED = 3e-2
"""Of sums of 8192 products that keep 13 bits all along."""


def main() -> None:
    asked = arguments(__doc__).parse_args()
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    for name in VARIANTS:
        for shape in QUICK_SHAPES if asked.quick else SHAPES:
            rows.extend(problem(name, shape, asked, failed))
            keep(asked, "hopper_dtypes", "cuda", [*rows, *failed])
    print()
    head = ("problem", "variant", "TFlops", "of cuBLAS", "of the bound", "norm")
    print(table(head, [[row[key] for key in ("problem", "variant", *HEAD)] for row in rows]))
    sys.exit(f"{len(failed)} variants failed" if failed else 0)


HEAD = ("tflops", "speed", "error_of_bound", "norm")


def problem(
    name: str, shape: tuple[int, int, int], asked: Any, failed: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Verify every variant of one problem, and time those that are right."""
    m, n, k = shape
    element = dtypes.dtype(name)
    a, b = filled((m, k), element), filled((n, k), element)
    reference = wide(a) @ wide(b).T
    calls: dict[str, Callable[[], object]] = {}
    checks: dict[str, dict[str, float]] = {}
    for columns, period in VARIANTS[name]:
        label = f"columns {columns or 'chosen'}" + (f", promoted every {period}" if period else "")
        try:
            bound = example("03_hopper_gemm.py")["bind"](element, columns=columns, period=period)
            out = torch.zeros((m, n), dtype=torch_dtype(OUT[name]), device="cuda")
            executable = bound(a, b, out)
            assert executable.target == "cuda", executable.target
            products = None if period is None else period * 128 // element.bytes
            how = Accumulation.of(bound.constants["mma"].atom, products)
            checks[label] = check(a, b, out, reference, how, element)
            calls[label] = functools.partial(bound, a, b, out)
        except (TilewrightError, AssertionError, RuntimeError) as error:
            failed.append({"dtype": name, "shape": list(shape), "variant": label, "failed": str(error)})
            print(f"FAILED {failed[-1]}", flush=True)
    del reference
    calls.update(rivals(name, a, b))
    taken = measure(calls, "cuda", effort=effort(asked))
    times = {timing.name: timing.us.median for timing in taken.timings}
    found = []
    for label in calls:
        row = {
            "problem": f"{name} {m}x{n}x{k}",
            "variant": label,
            "tflops": f"{2 * m * n * k / times[label] / 1e6:.0f}",
            "us": times[label],
            "speed": f"{speed(taken, label, CUBLAS)[0]:.3f}" if label != CUBLAS else "1",
            "interval": list(speed(taken, label, CUBLAS)) if label != CUBLAS else [],
            **{key: f"{value:.2g}" for key, value in checks.get(label, {}).items()},
        }
        found.append({**dict.fromkeys(HEAD, "-"), **row})
        print({key: row[key] for key in ("problem", "variant", "tflops", "speed")}, flush=True)
    return found


def filled(shape: tuple[int, int], element: DType) -> torch.Tensor:
    """Random numbers on the GPU."""
    if element.name == "i8":
        return torch.randint(-100, 101, shape, dtype=torch.int8, device="cuda")
    return torch.randn(shape, device="cuda").to(torch_dtype(element))


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """In f64, exactly; 8-bit floats go through f32."""
    return tensor.float().double()


def check(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    reference: torch.Tensor,
    how: Accumulation,
    element: DType,
) -> dict[str, float]:
    """Compare all elements in norm, and many one by one under the bound of the atom's accumulation."""
    norm = float(torch.linalg.norm(out.double() - reference) / torch.linalg.norm(reference))
    promoted = element.bits != 8 or not element.is_float or how.period is not None
    limit = NORM_BOUND[element.name] if promoted else NOT_PROMOTED
    assert norm <= limit, f"off by {norm:.3g} in norm"
    rows, columns = spaced(a.shape[0], ROWS), spaced(b.shape[0], COLUMNS)
    found = compare_gemm(
        host(a[rows], element),
        host(b[columns], element).T,
        host(out[rows][:, columns], OUT[element.name]),
        how,
    )
    found.raise_if_wrong()
    return {"norm": norm, "error_of_bound": found.error / found.bound if found.bound else 0.0}


def rivals(name: str, a: torch.Tensor, b: torch.Tensor) -> dict[str, Callable[[], object]]:
    """What a user would call instead; as exact as our promoted sums first."""
    if name == "i8":
        return {CUBLAS: functools.partial(torch._int_mm, a, b.T)}
    if name == "f32":
        torch.set_float32_matmul_precision("high")
        out = torch.empty((a.shape[0], b.shape[0]), device="cuda")
        return {CUBLAS: functools.partial(torch.mm, a, b.T, out=out)}
    one = torch.ones((), device="cuda")
    scaled = functools.partial(torch._scaled_mm, a, b.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    return {
        CUBLAS: functools.partial(scaled, use_fast_accum=False),
        FAST: functools.partial(scaled, use_fast_accum=True),
    }


if __name__ == "__main__":
    main()
