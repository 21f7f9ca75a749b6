"""GEMM on the GPU beside cuBLAS (PyTorch): device time, cold second-level cache, in turns, correctness first.

    python benchmarks/gemm_cuda.py [--quick] [--json results/gemm_cuda.json]

The library's GEMM, and the hand-written kernels of examples/02, 03 and 04. The library's is timed twice,
under two names: what the two differ by is noise. A is stored row after row; in layout nt, B is stored column
after column, which is B transposed row after row.
"""

from __future__ import annotations

import functools
import runpy
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gemm_cpu import AGAIN, HEAD, columns, line, speed
from reporting import ROOT, arguments, effort, keep, table

from tilewright import dtypes
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.dtypes import DType
from tilewright.errors import TilewrightError
from tilewright.ops.config import default_config
from tilewright.ops.gemm import gemm, output_dtype
from tilewright.runtime.kernel import Bound
from tilewright.tune.measure import measure
from tilewright.tune.trial import OURS

BASIC, HOPPER, OPTIMIZED = "examples/02", "examples/03", "examples/04"
BY_HAND = (BASIC, HOPPER, OPTIMIZED)
CUBLAS = "torch (cuBLAS)"

SHAPES = [*((n, n, n) for n in (512, 1024, 2048, 4096, 8192)), (3840, 4096, 4096), (8192, 14336, 4096)]
CASES = [
    ("f16", "nt"),
    ("f16", "nn"),
    ("bf16", "nt"),
    ("tf32", "nt"),
    ("i8", "nt"),
    ("f32", "nt"),
    ("f64", "nt"),
]
FEW = {"f64": [(1024, 1024, 1024), (4096, 4096, 4096)]}
QUICK_SHAPES = [(512, 512, 512), (384, 256, 320)]

ROWS, COLUMNS = 128, 1024
"""Elements that the comparator sees of a large result; all of it is compared in norm besides."""

NORM_BOUND = {"f16": 1e-3, "bf16": 1e-2, "tf32": 1e-3, "f32": 1e-5, "f64": 1e-13, "i8": 0.0}


def main() -> None:
    asked = arguments(__doc__).parse_args()
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    for name, layout in CASES:
        for shape in QUICK_SHAPES if asked.quick else FEW.get(name, SHAPES):
            try:
                rows.append(problem(name, shape, layout, asked))
                print(line(rows[-1]), flush=True)
            except (TilewrightError, AssertionError, RuntimeError) as error:
                failed.append({"dtype": name, "shape": list(shape), "layout": layout, "failed": str(error)})
                print(f"FAILED {failed[-1]}", flush=True)
            # What is done is kept, also when a limit ends this process.
            keep(asked, "gemm_cuda", "cuda", [*rows, *failed])
    print()
    print(table((*HEAD, *BY_HAND), [[*columns(found), *hand(found)] for found in rows]))
    sys.exit(f"{len(failed)} problems failed" if failed else 0)


@functools.cache
def example(name: str) -> dict[str, Any]:
    """The names that an example defines."""
    return runpy.run_path(str(ROOT / "examples" / name))


def by_hand(name: str, shape: tuple[int, int, int], layout: str) -> dict[str, Bound]:
    """The hand-written kernels that take a problem."""
    found: dict[str, Bound] = {}
    if layout == "nt" and name == "f16":
        found[BASIC] = example("02_basic_gemm.py")["LARGE"]
        found[OPTIMIZED] = example("04_optimized_gemm.py")["LARGE"]
    if layout == "nt" and name in ("f16", "bf16"):
        found[HOPPER] = example("03_hopper_gemm.py")["bind"](dtypes.dtype(name), shape)
    return found


def problem(name: str, shape: tuple[int, int, int], layout: str, asked: Any) -> dict[str, Any]:
    """Verify and time one problem."""
    m, n, k = shape
    element = dtypes.f32 if name == "tf32" else dtypes.dtype(name)
    a, b = filled((m, k), element), filled((k, n), element, transposed=layout == "nt")
    config = default_config("cuda", element, shape, "tf32" if name == "tf32" else "exact")
    ours = gemm.bind(tile=config.tile, mma=config.mma, stages=config.stages)
    kernels = {OURS: (ours, config.mma.atom)}
    for label, kernel in by_hand(name, shape, layout).items():
        kernels[label] = (kernel, kernel.constants["mma"].atom)
    calls: dict[str, Callable[[], object]] = {}
    checks, outs = {}, {}
    for label, (bound, atom) in kernels.items():
        out = torch.full((m, n), 77, dtype=torch_dtype(output_dtype(element)), device="cuda")
        if out.is_floating_point():
            out.fill_(float("nan"))
        executable = bound(a, b.T, out)
        assert executable.target == "cuda", executable.target
        checks[label] = check(name, a, b, out, Accumulation.of(atom), element)
        outs[label] = out
        calls[label] = functools.partial(bound, a, b.T, out)
    if OPTIMIZED in outs:
        # The same products, added up in the same order.
        checks[OPTIMIZED]["bits_of_02"] = bool(torch.equal(outs[BASIC], outs[OPTIMIZED]))
        assert checks[OPTIMIZED]["bits_of_02"], "examples/04 differs from examples/02"
    calls[AGAIN] = calls[OURS]
    calls.update(rival(name, a, b))
    taken = measure(calls, "cuda", effort=effort(asked))
    tile = "x".join(map(str, config.tile))
    return {
        "name": f"gemm<cuda, {name}, {tile}, {config.mma.atom}, stages {config.stages}>",
        "dtype": name,
        "shape": list(shape),
        "layout": layout,
        "target": "cuda",
        "checks": checks,
        "gflops": {timing.name: 2 * m * n * k / timing.us.median / 1e3 for timing in taken.timings},
        "speed": {label: speed(taken, OURS, label) for label in calls if label not in (OURS, *BY_HAND)},
        "by_hand": {label: speed(taken, label, CUBLAS) for label in BY_HAND if {label, CUBLAS} <= set(calls)},
        "04 over 02": speed(taken, OPTIMIZED, BASIC) if OPTIMIZED in calls else None,
        **taken.record(),
    }


def filled(shape: tuple[int, int], element: DType, transposed: bool = False) -> torch.Tensor:
    """Random numbers on the GPU."""
    stored = shape[::-1] if transposed else shape
    if element.name == "i8":
        made = torch.randint(-100, 101, stored, dtype=torch.int8, device="cuda")
    else:
        made = torch.randn(stored, dtype=torch_dtype(element), device="cuda")
    return made.T if transposed else made


def torch_dtype(element: DType) -> torch.dtype:
    names = {
        "f16": "float16",
        "bf16": "bfloat16",
        "f64": "float64",
        "f32": "float32",
        "i8": "int8",
        "i32": "int32",
        "f8e4m3": "float8_e4m3fn",
        "f8e5m2": "float8_e5m2",
    }
    found: torch.dtype = getattr(torch, names[element.name])
    return found


def check(
    name: str, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, how: Accumulation, element: DType
) -> dict[str, Any]:
    """Compare all elements in norm, and many of them one by one; raises if the result is wrong."""
    reference = a.double() @ b.double()
    norm = float(torch.linalg.norm(out.double() - reference) / torch.linalg.norm(reference))
    assert norm <= NORM_BOUND[name], f"{name} {tuple(out.shape)}: off by {norm:.3g} in norm"
    rows = spaced(a.shape[0], ROWS)
    cols = spaced(b.shape[1], COLUMNS)
    found = compare_gemm(
        host(a[rows], element),
        host(b[:, cols], element),
        host(out[rows][:, cols], output_dtype(element)),
        how,
    )
    found.raise_if_wrong()
    ratio = found.error / found.bound if found.bound else 0.0
    return {"norm": norm, "compared": len(rows) * len(cols), "error_of_bound": ratio}


def spaced(extent: int, count: int) -> list[int]:
    return sorted(set(np.linspace(0, extent - 1, min(extent, count)).astype(int).tolist()))


def host(tensor: torch.Tensor, element: DType) -> Any:
    """A NumPy array of the same numbers, bf16 and 8-bit floats too."""
    raw = {"bf16": torch.int16, "f8e4m3": torch.int8, "f8e5m2": torch.int8}.get(element.name)
    if raw is not None:
        return tensor.contiguous().view(raw).cpu().numpy().view(element.numpy)
    return tensor.cpu().numpy()


def rival(name: str, a: torch.Tensor, b: torch.Tensor) -> dict[str, Callable[[], object]]:
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    if name == "i8":
        return {CUBLAS: functools.partial(torch._int_mm, a, b)}
    out = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device="cuda")
    return {CUBLAS: functools.partial(torch.mm, a, b, out=out)}


def hand(found: dict[str, Any]) -> list[str]:
    """Speed of the hand-written kernels over cuBLAS."""
    return [f"{found['by_hand'][name][0]:.3f}" if name in found["by_hand"] else "-" for name in BY_HAND]


if __name__ == "__main__":
    main()
