"""A problem for the Hopper GEMM's forms on the GPU: each compared with f64, then timed beside PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import torch
from hopper_sets import RIVAL, Case

from tilewright.errors import TilewrightError
from tilewright.tune.measure import Effort, measure

AGAIN = f"{RIVAL} again"


class DeviceLostError(RuntimeError):
    """A kernel broke the context: nothing can be launched in this process any more."""


class Problem:
    """One case on the GPU: its arrays, the result in f64, and a bound for every element.

    Args:
        case: which.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        m, n, k = case.shape
        a, b = self._filled((m, k)), self._filled((n, k))
        self.extra = [self._filled(shape, case.out) for _, shape in case.arrays[2:-1]]
        self.a, self.b = a, b
        stored = [x.T.contiguous() if letter in case.along else x for x, letter in ((a, "m"), (b, "n"))]
        self.out = torch.empty((m, n), dtype=self._dtype(case.out), device="cuda")
        self.operands = [*stored, *self.extra]
        # cuBLAS gets the arrays as they lie.
        self.left = stored[0].T if "m" in case.along else stored[0]
        self.right = stored[1] if "n" in case.along else stored[1].T
        self.exact = self._finished(self._wide(a) @ self._wide(b).T)
        self.sizes = (self._wide(a).float().abs() @ self._wide(b).float().abs().T) if m * n <= 2**28 else None

    def _dtype(self, name: str) -> Any:
        names = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "i8": "int8", "i32": "int32"}
        return getattr(torch, {**names, "f8e4m3": "float8_e4m3fn"}[name])

    def _filled(self, shape: tuple[int, ...], name: str | None = None) -> Any:
        element = self._dtype(name or self.case.dtype)
        if element == torch.int8:
            return torch.randint(-100, 101, shape, dtype=element, device="cuda")
        return torch.randn(shape, device="cuda").to(element)

    def _wide(self, x: Any) -> Any:
        return x.float().double()

    def _finished(self, sums: Any) -> Any:
        functional = torch.nn.functional
        if self.case.kernel == "bias_gelu":
            return functional.gelu(sums + self._wide(self.extra[0]), approximate="tanh")
        return sums + self._wide(self.extra[0]) if self.case.kernel == "residual" else sums

    def check(self, name: str) -> dict[str, float]:
        """Run a form and compare all it wrote.

        Raises:
            AssertionError: it is wrong.
        """
        case = self.case
        self.out.fill_(float("nan") if self.out.is_floating_point() else 77)
        made = case.bind(name)(*self.operands, self.out)
        assert made.target == "cuda", f"{made.target} ran"
        torch.cuda.synchronize()
        off = (self.out.double() - self.exact).abs_()
        norm = float(torch.linalg.norm(off) / torch.linalg.norm(self.exact))
        limit = case.norm(case.forms[name])
        assert norm <= limit, f"off by {norm:.3g} in norm, more than {limit:.3g}"
        if self.sizes is None:
            return {"norm": norm}
        rounding, summing = case.bounds(case.forms[name])
        off -= rounding * self.exact.abs()
        off /= summing * self.sizes + 1e-30
        worst = float(off.max())
        assert worst <= 1, f"an element is off by {worst:.3g} of its bound"
        return {"norm": norm, "error_of_bound": worst}

    def require_device(self) -> None:
        """Raises if nothing can be launched any more."""
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise DeviceLostError(str(error)) from error

    def ours(self, name: str) -> Callable[[], object]:
        return self.case.bind(name).prepare(*self.operands, self.out)

    def rivals(self) -> dict[str, Callable[[], object]]:
        """What a user would call instead."""
        case = self.case
        left, right = self.left, self.right
        torch.set_float32_matmul_precision("high" if case.dtype == "f32" else "highest")
        if case.dtype == "i8":
            call: Callable[[], object] = functools.partial(torch._int_mm, left, right)
        elif case.dtype == "f8e4m3":
            one = torch.ones((), device="cuda")
            scaled = functools.partial(torch._scaled_mm, left, right, one, one, out_dtype=torch.bfloat16)
            exact, fast = (functools.partial(scaled, use_fast_accum=fast) for fast in (False, True))
            return {RIVAL: exact, AGAIN: exact, "fast": fast}
        elif case.kernel == "bias_gelu":
            fused = torch.ops.aten._addmm_activation
            call = functools.partial(fused, self.extra[0], left, right, use_gelu=True)
        elif case.kernel == "residual":
            call = functools.partial(torch.addmm, self.extra[0], left, right)
        else:
            call = functools.partial(torch.mm, left, right, out=torch.empty_like(self.out))
        return {RIVAL: call, AGAIN: call}


def measured(
    case: Case, seconds: float, without: Collection[str], doing: Callable[[str, float], None]
) -> dict[str, Any]:
    """Verify every form of a case, and time those that are right.

    Args:
        case: which.
        seconds: of timing.
        without: forms that are left out.
        doing: is told what begins, and after how many seconds it hangs.

    Raises:
        DeviceLostError: a form broke the context.
    """
    doing("arrays", 60)
    problem = Problem(case)
    calls: dict[str, Callable[[], object]] = {}
    row: dict[str, Any] = {"set": case.set, "case": str(case), "checks": {}, "failed": {}}
    for name in case.forms:
        if name in without:
            continue
        doing(name, 30)
        try:
            row["checks"][name] = problem.check(name)
            calls[name] = problem.ours(name)
        except (TilewrightError, AssertionError, RuntimeError) as error:
            row["failed"][name] = str(error).strip()[:300]
            print(f"FAILED {case} {name}: {row['failed'][name][:160]}", flush=True)
            problem.require_device()
    calls.update(problem.rivals())
    doing("timing", 30 + 2 * seconds)
    taken = measure(calls, "cuda", effort=Effort(seconds=seconds, warm_up_seconds=0.2 * seconds, least=5))
    m, n, k = case.shape
    row["us"] = {timing.name: round(timing.us.median, 3) for timing in taken.timings}
    row["speed"] = {name: _interval(taken.speed(name, RIVAL)) for name in calls}
    if "fast" in calls:
        row["speed_of_fast"] = {name: _interval(taken.speed(name, "fast")) for name in calls}
    row["tflops"] = {name: round(2 * m * n * k / us / 1e6, 1) for name, us in row["us"].items()}
    row |= {"rounds": len(taken.timings[0].samples_us), "how": taken.how}
    return row


def _interval(found: Any) -> list[float]:
    return [round(value, 4) for value in (found.median, found.low, found.high)]
