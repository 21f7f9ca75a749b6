"""Ways to multiply f32 as sums of narrower numbers on a GPU: time and error. One became `precision="f32"`.

    python benchmarks/splittings.py [--quick] [--json results/splittings.json]

Each number is a sum of narrower parts, and the significant products of parts are added up.  This is one
matrix product of several times the depth, in which the parts follow each other along K.  Three products of
tf32, or of f16, leave out low by low.  Nine of bf16 are all products of three parts; six are those of at
least 2**-16 of the first.  Parts of i8 are 7-bit digits relative to the largest number of a row or column;
sums of equal place value are exact in i32.  The times are those of our products without the split pass;
`precision="f32"` is timed with its pass.  Errors are those of `accurate.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from accurate import SGEMM, by_cublas, drawn, errors
from reporting import arguments, effort, keep, table

import tilewright as tw
from tilewright.tune.measure import measure

KINDS = ("positive", "wide", "cancelling", "normal")
THREE = ((0, 0), (0, 1), (1, 0))
SIX = (*THREE, (1, 1), (0, 2), (2, 0))
NINE = (*SIX, (1, 2), (2, 1), (2, 2))
CHOSEN = "f32, as it is offered"
DIGIT = 7
Parts = list[torch.Tensor]


def scaled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Divide each row by a power of two, so that its maximum is between 1/2 and 1; also return the powers."""
    power = torch.exp2(torch.floor(torch.log2(x.abs().amax(1, keepdim=True))) + 1)
    return x / power, power


def rounded(dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    """Round to a format; for f32 to the 11 bits of tf32."""
    if dtype != torch.float32:
        return x.to(dtype)
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def floats(dtype: torch.dtype, parts: int, x: torch.Tensor) -> Parts:
    """Split ``x`` into numbers whose sum is nearly ``x``, the largest first."""
    made = []
    for _ in range(parts):
        made.append(rounded(dtype, x))
        x = x - made[-1].float()
    return made


def digits(parts: int, x: torch.Tensor) -> Parts:
    """Split numbers between -1 and 1 into digits, the most significant first."""
    made = []
    for _ in range(parts):
        x = x * 2.0**DIGIT
        made.append(x.round().clamp(-127, 127).to(torch.int8))
        x = x - made[-1].float()
    return made


def deep(parts: Parts, order: Iterable[int]) -> torch.Tensor:
    """Concatenate parts along K."""
    return torch.cat([parts[at] for at in order], 1).contiguous()


class Way:
    """A way to multiply: :meth:`products` is launched, and :meth:`result` removes the scales."""

    def __init__(self, a: torch.Tensor, b: torch.Tensor, of: torch.dtype, parts: int, pairs: Any) -> None:
        (a, self.rows), (b, self.columns) = scaled(a), scaled(b.T.contiguous())
        whole = of == torch.int8
        split = functools.partial(digits, parts) if whole else functools.partial(floats, of, parts)
        left, right = split(a), split(b)
        places = sorted({sum(pair) for pair in pairs}) if whole else [None]
        self.weights = [2.0 ** (-DIGIT * (place + 2)) if place is not None else 1.0 for place in places]
        self.calls = []
        words = {torch.float32: {"precision": "tf32"}, torch.int8: {}}.get(of, {"precision": "f32"})
        for place in places:
            some = [pair for pair in pairs if place is None or sum(pair) == place]
            factors = deep(left, (i for i, _ in some)), deep(right, (j for _, j in some))
            sums = torch.int32 if whole else torch.float32
            out = torch.full((len(a), len(b)), -1, device="cuda", dtype=sums)
            self.calls.append((functools.partial(tw.matmul, factors[0], factors[1].T, out=out, **words), out))

    def products(self) -> None:
        """Launch all products."""
        for call, _ in self.calls:
            call()

    def result(self) -> torch.Tensor:
        """Return the sum of the products."""
        sums = sum(out.double() * weight for (_, out), weight in zip(self.calls, self.weights, strict=True))
        return sums * self.rows * self.columns.T


WAYS = {
    "f16, three products": (torch.float16, 2, THREE),
    "tf32, three products": (torch.float32, 2, THREE),
    "bf16, six products": (torch.bfloat16, 3, SIX),
    "bf16, nine products": (torch.bfloat16, 3, NINE),
    "i8, three digits, six products": (torch.int8, 3, SIX),
    "i8, four digits, ten products": (
        *(torch.int8, 4),
        tuple((i, j) for i in range(4) for j in range(4) if i + j < 4),
    ),
}


def of_size(n: int, again: Any) -> list[dict[str, Any]]:
    """Compare all ways at n³ on every kind of data, and time them on the last one."""
    found: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        a, b = drawn(kind, n)
        outs = {name: torch.full((n, n), float("nan"), device="cuda") for name in (CHOSEN, SGEMM)}
        ways = {name: Way(a, b, *words) for name, words in WAYS.items()}
        calls: dict[str, Callable[[], Any]] = {
            CHOSEN: functools.partial(tw.matmul, a, b, out=outs[CHOSEN], precision="f32"),
            SGEMM: functools.partial(by_cublas, False, a, b, outs[SGEMM]),
        }
        calls |= {name: way.products for name, way in ways.items()}
        for name, call in calls.items():
            call()
            torch.cuda.synchronize()
            made = ways[name].result() if name in ways else outs[name]
            found.setdefault(name, {})[kind] = errors(a, b, made)
            assert found[name][kind][0] < 2**13, f"{name} is wrong on {kind} data"
    timed = measure(calls, "cuda", effort=again)
    return [
        {"n": n, "call": name, "us": timed[name].us.median, "errors": found[name]}
        | {"speed": timed.speed(name, SGEMM).median}
        for name in calls
    ]


def main() -> None:
    asked = arguments(__doc__).parse_args()
    rows = [row for n in ((512,) if asked.quick else (4096,)) for row in of_size(n, effort(asked))]
    lines = []
    for row in rows:
        worst = [f"{row['errors'][kind][0]:.3g}" for kind in KINDS]
        lines.append((str(row["n"]), row["call"], f"{row['us']:.1f}", f"{row['speed']:.2f}", *worst))
    print(table(("n", "call", "us", f"speed over {SGEMM}", *KINDS), lines))
    keep(asked, "splittings", "cuda", rows)


if __name__ == "__main__":
    main()
