"""A problem on the GPU: its arrays, its kernels, their comparison with f64, and PyTorch's calls."""

from __future__ import annotations

import functools
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from dense_problems import OURS, Problem

import tilewright as tw
from tilewright.runtime.kernel import Bound
from tilewright.tune.contest import ContestSubject, sets_for

RIVAL = "cuBLAS"
"""PyTorch's call, with which each of our kernels is compared."""

BY_HAND = "examples/03"
AGAIN = f"{OURS} again"

NORMS = {"bf16": 3e-3, "f16": 1e-3, "f32": 1e-5, "tf32": 2e-3, "f8e4m3": 3e-3, "i8": 0.0, "f64": 2e-14}
NOT_PROMOTED = 3e-2
ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-23, "i32": 0.0, "f64": 2.0**-52}
SLOPE = 1.13
"""Largest slope of GELU."""

TORCH = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i8": torch.int8,
    "i32": torch.int32,
    "f8e4m3": torch.float8_e4m3fn,
}


def hand_written(problem: Problem) -> Bound:
    """Return the kernel of examples/03 with tiles of 128 x 256."""
    path = Path(__file__).parents[1] / "examples" / "03_hopper_gemm.py"
    bound: Bound = runpy.run_path(str(path))["bind"](tw.dtype(problem.dtype), columns=256)
    return bound


def bounds(problem: Problem, atom: Any, depth: int | None) -> tuple[float, float]:
    """Return the error bound of an element, relative to itself and to the sum of its products' magnitudes.

    Args:
        problem: the problem.
        atom: the multiplying instruction, which adds with as many bits as `sum_bits` measured.
        depth: products after which sums are added to f32 accumulators; None: never.
    """
    k = problem.shape[2]
    if not atom.c_dtype.is_float:
        return 0.0, 0.0
    if atom.c_dtype.bits == 64:  # sums that round after each product, and cuBLAS's sums
        return 2 * ROUNDING[problem.out], 2 * k * 2.0**-53
    each = 2.0**-23 if atom.sum_bits is None else 2.0 ** (2 - atom.sum_bits)
    summed = -(-(depth or k) // atom.shape[2]) * each + (k / depth * 2.0**-23 if depth else 0.0)
    operands = 2.0**-9 if atom.precision == 10 else 0.0
    return ROUNDING[problem.out] + 2.0**-20, SLOPE * (summed + operands) + 2.0**-20


def drift(problem: Problem, atom: Any, depth: int | None) -> float:
    """Return the error bound in norm of sums of very many products, relative to the sums.

    If a step truncates, always towards zero, errors add up.  If it rounds, they grow with the square root of
    their number.  Steps that keep few bits have separate limits.
    """
    if not atom.c_dtype.is_float or (atom.sum_bits or 24) < 24 or atom.c_dtype.bits == 64:
        return 0.0
    steps = -(-(depth or problem.shape[2]) // atom.shape[2])
    return float(2.0**-24 * steps**0.5 if atom.sum_bits is None else 2.0 ** (1 - atom.sum_bits) * steps)


class OnGpu:
    """A problem's arrays and results.

    Args:
        problem: the problem.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        torch.manual_seed(sum(problem.shape))
        *arrays, (out, shape, _) = problem.arrays
        operands = [self._filled(*array) for array in arrays]
        empty = functools.partial(torch.empty, shape, dtype=TORCH[out], device="cuda")
        self.set_bytes = sum(x.nbytes for x in operands) + empty().nbytes
        copies = sets_for(self.set_bytes, "cuda") - 1
        self.sets = [(*operands, empty()), *((*map(torch.clone, operands), empty()) for _ in range(copies))]
        a, b, *self.extra = operands
        wide = [self._wide(a), self._wide(b.mT)]  # K x N, the form for PyTorch's calls
        self.exact = self._finished(self._multiplied(*wide))
        self.sizes = self._multiplied(*(x.float().abs_() for x in wide))  # few bits are enough here

    def _multiplied(self, a: Any, b: Any) -> Any:
        if not self.problem.sizes:
            return a @ b
        parts = a.split([*self.problem.sizes])
        return torch.cat([part @ matrix for part, matrix in zip(parts, b, strict=True)])

    def _filled(self, element: str, shape: tuple[int, ...], order: str) -> Any:
        stored = shape if order == "C" else shape[::-1]
        if element == "i32":
            return torch.tensor(self.problem.sizes, dtype=torch.int32, device="cuda").cumsum(0).int()
        if element == "i8":
            made = torch.randint(-100, 101, stored, dtype=torch.int8, device="cuda")
        else:
            wide = torch.float64 if element == "f64" else torch.float32
            made = torch.randn(stored, device="cuda", dtype=wide).to(TORCH[element])
        return made if order == "C" else made.T

    def _wide(self, x: Any) -> Any:
        return x.double() if x.dtype == torch.float64 else x.float().double()

    def _finished(self, sums: Any) -> Any:
        if self.problem.kernel == "bias_gelu":
            return torch.nn.functional.gelu(sums + self._wide(self.extra[0]), approximate="tanh")
        return sums + self._wide(self.extra[0]) if self.problem.kernel == "residual" else sums

    @property
    def subject(self) -> ContestSubject:
        """Return the record of a kernel's calls."""
        problem, (m, n, k) = self.problem, self.problem.shape
        flops = 2 * m * n * k * max(problem.items, 1)
        return ContestSubject(str(problem), "cuda", flops, self.set_bytes, problem.distribution)

    def check(self, bound: Bound, call: Callable[[], Any], arrays: Sequence[Any]) -> dict[str, Any]:
        """Run a kernel and compare its whole result; return its errors and its schedule.

        Raises:
            AssertionError: the result is wrong.
        """
        out = arrays[-1]
        out.fill_(float("nan") if out.is_floating_point() else 77)
        made = call()
        assert made.target == "cuda", f"{made.target} ran"
        torch.cuda.synchronize()
        schedule = made.schedule
        atom = bound.constants["mma"].atom if schedule is None else schedule.atom
        depth = schedule.promote * schedule.tile[2] if schedule is not None and schedule.promote else None
        off = (out.double() - self.exact).abs_()
        norm = float(torch.linalg.norm(off) / torch.linalg.norm(self.exact))
        dtype = "tf32" if atom.precision == 10 else self.problem.dtype
        limit = NOT_PROMOTED if dtype == "f8e4m3" and depth is None else NORMS[dtype]
        limit = max(limit, drift(self.problem, atom, depth))
        assert norm <= limit, f"off by {norm:.3g} in norm, more than {limit:.3g}"
        rounding, summing = bounds(self.problem, atom, depth)
        off -= rounding * self.exact.abs()
        off /= summing * self.sizes + 1e-30
        worst = float(off.max())
        assert worst <= 1, f"an element is off by {worst:.3g} of its bound"
        found = {"norm": norm, "error_of_bound": worst, "compared": off.numel()}
        return found | {"schedule": repr(schedule)}

    def rivals(self, arrays: Sequence[Any]) -> dict[str, Callable[[], object]]:
        """Return what a user of PyTorch would call; our speed is relative to the first."""
        problem, (a, b, *extra, out) = self.problem, arrays
        b = b.mT
        torch.set_float32_matmul_precision("high" if problem.kernel == "tf32_product" else "highest")
        if problem.dtype == "i8":
            return {RIVAL: functools.partial(torch._int_mm, a, b)}
        if problem.dtype == "f8e4m3":
            one = torch.ones((), device="cuda")
            scaled = functools.partial(torch._scaled_mm, a, b, one, one, out_dtype=torch.bfloat16)
            exact, fast = (functools.partial(scaled, use_fast_accum=fast) for fast in (False, True))
            return {RIVAL: exact, f"{RIVAL}, fast": fast}
        if problem.kernel == "bias_gelu":
            fused = torch.ops.aten._addmm_activation
            return {RIVAL: functools.partial(fused, extra[0], a, b, use_gelu=True)}
        if problem.kernel == "residual":
            (r,) = extra
            inside = r.clone()
            return {
                RIVAL: functools.partial(torch.addmm, r, a, b),
                f"{RIVAL}, in place": functools.partial(inside.addmm_, a, b),
            }
        if problem.sizes:
            return {"torch._grouped_mm": functools.partial(torch._grouped_mm, a, b, offs=extra[0])}
        product = torch.bmm if problem.items else torch.mm
        return {RIVAL: functools.partial(product, a, b, out=torch.empty_like(out))}
