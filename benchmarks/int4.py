"""fp16 by 4-bit weights in groups along K on a GPU, for few rows, compared with cuBLAS on fp16 weights.

    python benchmarks/int4.py [--quick] [--forms] [--only TEXT] [--json results/int4.json]

First every element is compared with f64, on the weights rounded to fp16.  "cuBLAS fp16 alone" multiplies
weights that are stored in fp16.  With ``--forms`` the next proposed schedules are measured as well, and
schedules with split K also with their reduction in a cluster.  The table has device time, in turns, with a
cold second-level cache, and the rate at which the bytes of weights, scales and zero points are read.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from reporting import arguments, effort, keep, table

import tilewright as tw
from tilewright.errors import TilewrightError
from tilewright.ops.products import scaled_in_groups
from tilewright.schedule.choice import proposals
from tilewright.schedule.schedule import Schedule
from tilewright.tune.measure import measure

OURS, ALONE = "tw.scaled_mm", "cuBLAS fp16 alone"
SIZES = ((4096, 4096), (8192, 8192), (11008, 4096), (4096, 11008), (28672, 8192))
ROWS = (1, 4, 8, 16)
MORE = tuple((m, 8192, 8192) for m in (32, 64, 128, 256, 512, 1024, 4096))
MOST_FORMS, SPLITS, LOOKED_AT = 8, 2, 100
"""Numbers of forms, of numbers of parts for each, and of proposals to look at."""

MANY = 128
"""Rows from which weights are also measured with a prepass that widens them in memory."""

CLUSTER = 8
"""Blocks of the largest cluster."""


class Given:
    """The arrays of a problem on the GPU.

    Args:
        shape: M, N and K.
        group: number of neighbours along K that share a scale.
        zeros: whether each group also has a zero point.
        kind: dtype of the rows.
    """

    def __init__(self, shape: tuple[int, int, int], group: int, kind: torch.dtype, *, zeros: bool) -> None:
        m, n, k = shape
        self.a = torch.randn((m, k), dtype=kind, device="cuda")
        self.held = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda")
        self.scales = ((torch.rand((k // group, n), device="cuda") + 0.5) / 64).to(kind)
        self.zeros = torch.randint(-8, 8, (k // group, n), dtype=torch.int8, device="cuda") if zeros else None
        self.group = group
        low, high = ((self.held >> shift & 15).to(torch.int8) for shift in (0, 4))
        numbers = torch.stack([low, high], dim=-1).reshape(n, k)
        wide = torch.where(numbers > 7, numbers - 16, numbers).to(kind).T
        if self.zeros is not None:
            wide = wide - self.zeros.to(kind).repeat_interleave(group, 0)
        self.wide = (wide * self.scales.repeat_interleave(group, 0)).T.contiguous().T
        self.out = torch.full((m, n), float("nan"), dtype=kind, device="cuda")

    @property
    def weights(self) -> Any:
        """Return the weights as `tw.scaled_mm` takes them."""
        return tw.packed(self.held.T, tw.i4)

    @property
    def bytes(self) -> int:
        """Bytes of weights, scales and zero points."""
        arrays = (self.held, self.scales, self.zeros)
        return sum(one.numel() * one.element_size() for one in arrays if one is not None)

    def call(self, schedule: Schedule | None = None, *, prepass: bool | None = None) -> Callable[[], Any]:
        """Return the call that multiplies them."""
        asked = {"scale_b": self.scales, "zero_b": self.zeros, "group": self.group, "prepass": prepass}
        return functools.partial(tw.scaled_mm, self.a, self.weights, self.out, **asked, schedule=schedule)

    def check(self, name: str) -> None:
        """Compare every stored element with f64."""
        torch.cuda.synchronize()
        a, b = self.a.double(), self.wide.double()
        exact, size = a @ b, a.abs() @ b.abs()
        unit = 2.0**-11 if self.a.dtype == torch.float16 else 2.0**-8
        off = (self.out.double() - exact).abs()
        wrong = ~(off <= unit * exact.abs() + 2.0**-16 * size)
        assert not bool(wrong.any()), f"{name}: {int(wrong.sum())} elements are wrong"
        self.out.fill_(float("nan"))

    def forms(self) -> dict[str, Schedule]:
        """Return proposed schedules, by the rule that proposes them."""
        m, (k, n) = self.a.shape[0], self.wide.shape
        terms = frozenset({"scale_b"} | ({"zero_b"} if self.zeros is not None else set()))
        kind = {torch.float16: tw.f16, torch.bfloat16: tw.bf16}[self.a.dtype]
        kernel = scaled_in_groups(0).bind(multiplied=kind, group=self.group, terms=terms, activation=None)
        zeros = self.scales if self.zeros is None else self.zeros
        vectors = (torch.ones(m, device="cuda"), self.scales, zeros, torch.ones(n, device="cuda"))
        asked = kernel.question(self.a, self.weights, *vectors, self.out, 1.0, target="cuda")
        assert asked is not None
        assert k == self.a.shape[1]
        found: dict[str, Schedule] = {}
        counted: Counter[tuple[Any, ...]] = Counter()
        for one in islice(proposals(asked), LOOKED_AT):
            form = (one.schedule.tile, one.schedule.warps, one.schedule.stages)
            counted[form] += 1
            if len(counted) > MOST_FORMS or counted[form] > SPLITS:
                continue
            found.setdefault(f"{one.rule}: {one.schedule}", one.schedule)
            split = one.schedule.split_k
            if isinstance(split, int) and 1 < split <= CLUSTER:
                other = replace(one.schedule, reduction="cluster")
                found.setdefault(f"{one.rule}, sums in a cluster: {other}", other)
        return found


def calls_of(given: Given, *, forms: bool) -> dict[str, Callable[[], Any]]:
    """Return the verified calls of a problem."""
    calls = {OURS: given.call()}
    if given.a.shape[0] >= MANY:
        calls |= {f"{OURS}, prepass={way}": given.call(prepass=way) for way in (False, True)}
    if forms:
        calls |= {name: given.call(schedule) for name, schedule in given.forms().items()}
    for name in list(calls):
        try:
            calls[name]()
        except TilewrightError as error:
            print(f"{name}: {error}")
            del calls[name]
            continue
        given.check(name)
    product = torch.empty_like(given.out)
    return {**calls, ALONE: functools.partial(torch.mm, given.a, given.wide, out=product)}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--forms", action="store_true", help="also measure the next proposed schedules")
    parser.add_argument("--only", default="", help="problems whose names contain this")
    asked = parser.parse_args()
    shapes = [(m, n, k) for n, k in SIZES for m in ROWS]
    problems = {f"f16 x i4 in groups of 128 {shape}": (shape, 128, torch.float16, False) for shape in shapes}
    for shape in MORE:
        problems[f"f16 x i4 in groups of 128 {shape}"] = shape, 128, torch.float16, False
    for shape in ((1, 8192, 8192), (16, 8192, 8192)):
        problems[f"f16 x i4 in groups of 128 with zero points {shape}"] = shape, 128, torch.float16, True
        problems[f"f16 x i4 in groups of 32 {shape}"] = shape, 32, torch.float16, False
        problems[f"bf16 x i4 in groups of 128 {shape}"] = shape, 128, torch.bfloat16, False
    if asked.quick:
        problems = dict(islice(problems.items(), 3))
    lines, rows = [], []
    for name, (shape, group, kind, zeros) in problems.items():
        if asked.only not in name:
            continue
        torch.manual_seed(0)
        given = Given(shape, group, kind, zeros=zeros)
        calls = calls_of(given, forms=asked.forms)
        taken = measure(calls, "cuda", effort=effort(asked))
        for call in calls:
            us = taken[call].us.median
            speed = "" if call == OURS else f"{taken.speed(OURS, call)}"
            rate = "" if call == ALONE else f"{given.bytes / us / 1e3:.0f}"
            lines.append((name, call, f"{us:.2f}", rate, speed))
            rows.append({"problem": name, "call": call, "us": us, "gbytes_per_s": rate, "speed": speed})
        keep(asked, "int4", "cuda", rows)
    head = ("problem", "call", "us", "GB/s of weights", f"{OURS} is faster by [95 %]")
    print(table(head, lines))


if __name__ == "__main__":
    main()
