"""Products of lists of arrays on a GPU: one launch compared with a launch each, in device and host time.

    python benchmarks/lists.py [--quick] [--forms] [--json results/lists.json]

Every product of every list is compared with f64 first. Device time is that of all products of a list, with a
cold second-level cache. Host time is the time of a call on the host alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from reporting import arguments, effort, keep, table

import tilewright as tw
from tilewright.tune.measure import measure, measure_calls

ONE, EACH, RIVAL = "one launch", "tw.matmul for each", "torch.mm for each"
CALLS = 8
"""Calls per sample of host time; few enough that their launches fit into the driver's queue."""

FORMS = {
    "one launch, wgmma by cp.async": tw.Schedule(
        tw.atoms.wgmma("bf16", 128), (128, 128, 64), (2, 1), 4, staging="cp_async", blocks=132, group_m=8
    ),
    **{
        f"one launch, {rows} x {columns} by TMA, {roles}": tw.Schedule(
            tw.atoms.wgmma("bf16", columns),
            (rows, columns, 64),
            stages=stages,
            staging="tma",
            roles=roles,
            groups=2,
            blocks=132,
            group_m=8,
            epilogue="staged",
            registers=232,
        )
        for rows, columns, stages, roles in (
            (128, 256, 4, "cooperative"),
            (128, 192, 4, "cooperative"),
            (128, 192, 4, "ping-pong"),
            (128, 128, 6, "cooperative"),
            (128, 128, 4, "ping-pong"),
            (256, 128, 3, "cooperative"),
        )
    },
}
"""Schedules by hand, for --forms; the default is chosen from similar ones."""


def uneven(count: int, average: int, n: int, k: int) -> list[tuple[int, int, int]]:
    """Return extents of products; some have no rows, others many."""
    draw = np.random.default_rng(count)
    rows = draw.multinomial(count * average, draw.dirichlet([0.5] * count))
    return [(int(m), n, k) for m in rows]


def lists() -> dict[str, list[tuple[int, int, int]]]:
    """Return the extents of each list."""
    draw = np.random.default_rng(0)
    mixed = [(int(m), 64 * int(n), 64 * int(k)) for m, n, k in draw.integers(1, 64, (48, 3)) * (8, 1, 1)]
    return {
        "8 x (16, 4096, 4096)": [(16, 4096, 4096)] * 8,
        "8 x (1024, 4096, 4096)": [(1024, 4096, 4096)] * 8,
        "64 x (128, 4096, 4096)": [(128, 4096, 4096)] * 64,
        "64 x (uneven, 4096, 4096)": uneven(64, 128, 4096, 4096),
        "256 x (64, 64, 64)": [(64, 64, 64)] * 256,
        "48 of mixed M, N, K": mixed,
    }


def for_each(call: Callable[..., Any], *given: Sequence[Any]) -> None:
    """Return a call that launches each product that has elements."""
    for a, b, out in zip(*given, strict=True):
        if out.numel():
            call(a, b, out=out)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--forms", action="store_true", help="also measure schedules by hand")
    asked = parser.parse_args()
    forms = FORMS if asked.forms else {}
    chosen = dict(list(lists().items())[-2:]) if asked.quick else lists()
    lines, rows = [], []
    for name, shapes in chosen.items():
        torch.manual_seed(0)
        a = [torch.randn((m, k), dtype=torch.bfloat16, device="cuda") for m, _, k in shapes]
        b = [torch.randn((k, n), dtype=torch.bfloat16, device="cuda") for _, n, k in shapes]
        outs = {
            call: [
                torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda") for m, n, _ in shapes
            ]
            for call in (ONE, *forms, EACH, RIVAL)
        }
        calls: dict[str, Any] = {
            ONE: functools.partial(tw.grouped_matmul, a, b, out=outs[ONE]),
            **{
                call: functools.partial(tw.grouped_matmul, a, b, out=outs[call], schedule=schedule)
                for call, schedule in forms.items()
            },
            EACH: functools.partial(for_each, tw.matmul, a, b, outs[EACH]),
            RIVAL: functools.partial(for_each, torch.mm, a, b, outs[RIVAL]),
        }
        for call, run in calls.items():
            run()
            torch.cuda.synchronize()
            for x, y, made in zip(a, b, outs[call], strict=True):
                exact = x.double() @ y.double()
                bound = 2.0**-7 * (x.double().abs() @ y.double().abs())
                assert bool(((made.double() - exact).abs() <= bound).all()), f"{call}, {name}"
        device = measure(calls, "cuda", effort=effort(asked))
        host = measure_calls(calls, "cuda", calls=1 if len(shapes) > 64 else CALLS, effort=effort(asked))
        flops = sum(2 * m * n * k for m, n, k in shapes)
        for call in calls:
            us = device[call].us.median
            lines.append(
                (
                    name,
                    call,
                    f"{us:.1f}",
                    f"{flops / us / 1e6:.0f}",
                    f"{device.speed(RIVAL, call)}",
                    f"{host[call].us.median:.0f}",
                )
            )
            rows.append({"list": name, "call": call, "us": us, "host_us": host[call].us.median})
    head = ("list", "call", "us", "TFlops", f"time over {RIVAL} [95 %]", "host us")
    print(table(head, lines))
    keep(asked, "lists", "cuda", rows)


if __name__ == "__main__":
    main()
