"""Complex products on a GPU compared with six launches and cuBLAS: errors, device time, and host time.

Everything is drawn, multiplied and compared on the GPU.  In each result, 32 rows and 256 columns are verified
under the bound of each element.  The reported errors are those of 256 rows (for f64 32 rows), relative to a
more exact product: in f64, and for f64 in twice the bits.  They are the largest error, divided by the sum of
the magnitudes of the products, in units of 2**-24 (f64: 2**-53), and the Frobenius norm of all errors over
that of the result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from exact_products import off_by, parts_of_product
from reporting import effort
from schedules import read

import tilewright as tw
from tilewright.checking.composed_products import compare_complex
from tilewright.dtypes import IN_TORCH
from tilewright.errors import TilewrightError
from tilewright.ops.complex_matmul import ComplexWanted, plan_complex
from tilewright.ops.wanted import HALVES_OF
from tilewright.tune.complex_trial import LAUNCHES, SIX, SixLaunches, bytes_moved
from tilewright.tune.measure import measure, measure_calls
from tilewright.tune.trial import OURS

CUBLAS = "cuBLAS"
FOUR = "four real products (cuBLAS)"
KINDS = ("normal", "positive")
VERIFIED = (32, 256)
"""Numbers of rows and columns that are verified."""

ERRORS = {False: 256, True: 32}
"""Rows whose errors are reported, and those for f64."""

HOST_SIDES = 1024
"""Largest side for host times; with larger products the device is slower than the host."""

Parts = tuple[torch.Tensor, torch.Tensor]


class Problem:
    """A product of square matrices.

    Args:
        side: rows and columns.
        dtype: of real and imaginary parts.
        planar: whether these are separate arrays.
        asked: the other arguments of the call.
        kind: distribution, N(0, 1) or U(0, 1).
    """

    def __init__(
        self, side: int, dtype: str, planar: bool, asked: ComplexWanted, kind: str = "normal"
    ) -> None:
        torch.manual_seed(side)
        draw, self.planar, self.asked = torch.rand if kind == "positive" else torch.randn, planar, asked
        element = getattr(torch, IN_TORCH[dtype])

        def parts() -> Parts:
            made = [draw((side, side), device="cuda").to(element) for _ in range(2)]
            return made[0], made[1]

        self.a, self.b = parts(), parts()
        self.out = torch.full((side, side), float("nan"), device="cuda", dtype=element)
        self.given = {"a": self.together(self.a), "b": self.together(self.b)}
        self.given["out"] = self.together((self.out, self.out.clone()))

    def together(self, parts: Parts) -> Any:
        """Return an operand in the form that is multiplied."""
        return parts if self.planar else torch.view_as_complex(torch.stack(parts, -1))

    def multiply(self) -> None:
        """Call the product as a user does."""
        self.under(None)

    def under(self, schedule: tw.Schedule | None) -> None:
        """Call the product with a schedule."""
        how = {"method": self.asked.method, "precision": self.asked.precision, "schedule": schedule}
        tw.complex_matmul(self.given["a"], self.given["b"], out=self.given["out"], **how)

    @property
    def made(self) -> Parts:
        """Return both parts of the result."""
        out = self.given["out"]
        return out if self.planar else tuple(torch.view_as_real(out).unbind(-1))

    def six(self) -> SixLaunches:
        """Compute the product of planes by six launches."""
        outs = [torch.empty_like(self.out) for _ in range(6)]
        return SixLaunches(self.a, self.b, (outs[0], outs[1]), tuple(outs[2:]), "cuda", self.asked.precision)

    def rivals(self) -> dict[str, Callable[[], object]]:
        """Yield cuBLAS's products."""
        outs = [torch.empty_like(self.out) for _ in range(4)]
        pairs = [(self.a[i], self.b[j]) for i, j in ((0, 0), (1, 1), (0, 1), (1, 0))]

        def four() -> None:
            for (left, right), out in zip(pairs, outs, strict=True):
                torch.mm(left, right, out=out)

        calls: dict[str, Callable[[], object]] = {FOUR: four}
        if self.out.dtype in (torch.float32, torch.float64):
            a, b = torch.complex(*self.a), torch.complex(*self.b)
            self.theirs = torch.empty_like(a)
            calls[CUBLAS] = functools.partial(torch.mm, a, b, out=self.theirs)
        return calls

    def verify(self, under: tw.Schedule | None = None) -> float:
        """Return the largest error of some elements, relative to its bound."""
        for one in self.made:
            one.fill_(float("nan"))
        product = plan_complex({**self.given, "c": None}, self.asked._replace(how=under))
        ran = product.run()
        torch.cuda.synchronize()
        schedule = ran[-1].schedule
        assert schedule is not None
        how = product.details.accumulation(schedule)
        rows, columns = VERIFIED
        a, b = ([x[:rows].cpu() for x in self.a], [x[:, :columns].cpu() for x in self.b])
        made = [x[:rows, :columns].cpu() for x in self.made]
        halves = HALVES_OF[self.asked.precision] if ran[-1].kernel.name == "gemm_complex_halves" else 0
        sides = (tuple(map(as_numpy, parts)) for parts in (a, b, made))
        found = compare_complex(*sides, how=how, method=self.asked.method, halves=halves)
        found.raise_if_wrong()
        return found.error / found.bound

    def errors(self, made: Any) -> tuple[float, float]:
        """Return the largest error over the sum of magnitudes, and the error in Frobenius norm."""
        parts = made if isinstance(made, tuple) else torch.view_as_real(made).unbind(-1)
        return errors(self.a, self.b, parts)


def errors(a: Parts, b: Parts, made: Parts) -> tuple[float, float]:
    """Return the largest error over the sum of magnitudes, in units in the last place; and that in norm."""
    is_wide = a[0].dtype == torch.float64
    rows = ERRORS[is_wide]
    left, right = ([x.double() for x in parts] for parts in ([x[:rows] for x in a], b))
    pairs = parts_of_product((left[0], left[1]), (right[0], right[1]), torch.cat)
    found = [
        off_by(part[:rows].double(), *pair, is_wide=is_wide) for part, pair in zip(made, pairs, strict=True)
    ]
    off, exact = (torch.complex(*parts).abs() for parts in zip(*found, strict=True))
    sizes = torch.complex(*left).abs() @ torch.complex(*right).abs()
    return float((off / sizes).max() * 2.0 ** (53 if is_wide else 24)), float(off.norm() / exact.norm())


def schedules(problem: Problem, asked: Any) -> dict[str, tw.Schedule]:
    """Yield the schedules of a file, verified; print refused and wrong ones."""
    found = {}
    for given, schedule in read(asked.schedules.read_text()).items() if asked.schedules is not None else ():
        try:
            if schedule is not None:
                problem.verify(schedule)
                found[given] = schedule
        except TilewrightError as error:
            print(f"{given}: {error}".splitlines()[0], flush=True)
    return found


def as_numpy(tensor: torch.Tensor) -> Any:
    """Return a tensor as an array of the dtype that comparisons take."""
    if tensor.dtype == torch.bfloat16:
        return tensor.float().numpy().astype(tw.bf16.numpy)
    return tensor.numpy()


def row(side: int, kind: tuple[str, bool, str, str], asked: Any) -> dict[str, Any]:
    """Verify and time a problem; or return why it cannot be computed."""
    name, planar, method, precision = kind
    found: dict[str, Any] = {"dtype": name, "planar": planar, "method": method, "precision": precision}
    found |= {"shape": [side] * 3, "target": "cuda", "errors": {}}
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    wanted = ComplexWanted(method=method, precision=precision)
    try:
        for data in reversed(KINDS):
            problem = Problem(side, name, planar, wanted, data)
            verified = problem.verify()
            six, rivals = problem.six(), problem.rivals()
            problem.multiply()
            found["errors"][data] = {OURS: problem.errors(problem.made)}
            if CUBLAS in rivals:
                rivals[CUBLAS]()
                found["errors"][data][CUBLAS] = problem.errors(problem.theirs)
        plan = plan_complex({**problem.given, "c": None}, wanted)
        six.launch()
    except TilewrightError as error:
        return found | {"failed": str(error).splitlines()[0]}
    calls = {OURS: problem.multiply, SIX: six.launch, **rivals}
    calls |= {
        given: functools.partial(problem.under, one) for given, one in schedules(problem, asked).items()
    }
    taken = measure(calls, "cuda", effort=effort(asked))
    if side <= HOST_SIDES:
        of_host = measure_calls({OURS: problem.multiply}, "cuda", calls=50, effort=effort(asked))
        found["host_us"] = of_host[OURS].us.median
    flops, size = 8 * side**3, problem.out.element_size()
    return found | {
        "way": str(plan.details),
        "error_of_bound": verified,
        "launches": {OURS: len(plan.launches), SIX: LAUNCHES},
        "bytes": {OURS: plan.moved_bytes, SIX: bytes_moved((side,) * 3, size)},
        "tflops": {timing.name: flops / timing.us.median / 1e6 for timing in taken.timings},
        "speed": {other: taken.speed(OURS, other).median for other in calls if other != OURS},
        **taken.record(),
    }
