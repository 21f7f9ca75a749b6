"""fp16 by 8-bit and 4-bit weights on the CPU, compared with NumPy in f32 on weights converted beforehand.

    python benchmarks/scaled_cpu.py [--quick] [--busy] [--rows-of M ...] [--side N]
        [--groups | --columns] [--json results/cpu_scaled.json]

Each result is verified before it is timed. NumPy has A and the weights in f32, converted beforehand in their
memory order. It multiplies, scales and adds the bias in place, in three calls; with group scales, which were
applied beforehand, in two. Our call reads f16 and 8 or 4 bits and rounds to f16. It is timed twice, under two
names: the difference between the two is noise. With groups it is also timed with a prepass that widens
weights.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from gemm_cpu import AGAIN, HEAD, columns, line, rates
from reporting import keep, on_host, table, timed

import tilewright as tw
from tilewright.tune.trial import OURS

NUMPY = "NumPy, in f32"
ROWS, SIDE = (1, 4, 16, 64, 256), 4096
KINDS = (("f8e4m3", "k"), ("f8e4m3", "n"), ("f8e5m2", "k"), ("i8", "k"))
GROUPED = (("i4", "k", True), ("i4", "k", False), ("f4e2m1", "k", False), ("i4", "n", False))
"""Kinds of weights in groups, their contiguous dimension, and whether they have zero points."""

GROUP, PASS = 128, "with a pass"


def main() -> None:
    parser = on_host(__doc__)
    parser.add_argument("--rows-of", type=int, nargs="*", help="rows of A")
    parser.add_argument("--side", type=int, help="sides of the weights")
    parser.add_argument("--groups", action="store_true", help="only weights in groups")
    parser.add_argument("--columns", action="store_true", help="only weights with a scale for each column")
    asked = parser.parse_args()
    side = asked.side or (256 if asked.quick else SIDE)
    problems: list[Any] = [] if asked.groups else [functools.partial(of_columns, *kind) for kind in KINDS]
    problems += [] if asked.columns else [functools.partial(in_groups, *kind) for kind in GROUPED]
    rows = []
    for problem in (problems[0], problems[-1]) if asked.quick else problems:
        for m in asked.rows_of or ((16,) if asked.quick else ROWS):
            rows.append(problem(m, side, asked))
            print(line(rows[-1]), flush=True)
    print()
    print(table(HEAD, [columns(found) for found in rows]))
    keep(asked, "scaled_cpu", "cpu", rows)


def of_columns(kind: str, along: str, m: int, side: int, asked: Any) -> dict[str, Any]:
    """Verify and time a problem with a scale for each column."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(-128, 128, (side, side)) if kind == "i8" else rng.standard_normal((side, side))
    stored = drawn.astype(tw.dtype(kind).numpy)
    b = stored.T if along == "k" else stored
    a = rng.standard_normal((m, side)).astype(np.float16)
    scale = (rng.random(side, np.float32) + 0.5) / 64
    bias = rng.standard_normal(side, np.float32)
    out = np.full((m, side), np.nan, np.float16)
    wide_a, wide_b, made = a.astype(np.float32), b.astype(np.float32), np.empty((m, side), np.float32)

    def theirs() -> None:
        np.matmul(wide_a, wide_b, out=made)
        np.multiply(made, scale, out=made)
        np.add(made, bias, out=made)

    ours = functools.partial(tw.scaled_mm, a, b, out, scale_b=scale, bias=bias, target="cpu")
    ours()
    checked = error_of_bound(out, a, b, scale, bias)
    taken = timed({OURS: ours, AGAIN: ours, NUMPY: theirs}, asked)
    return record((m, side), kind, f"contiguous along {along}", checked, (b.nbytes, wide_b.nbytes), taken)


def in_groups(kind: str, along: str, zeros: bool, m: int, side: int, asked: Any) -> dict[str, Any]:
    """Verify and time a problem with a scale, and perhaps a zero point, for each column and group."""
    rng, group = np.random.default_rng(0), min(GROUP, side)
    codes = rng.integers(-8, 8, (side, side)) if kind == "i4" else rng.standard_normal((side, side)) * 2
    stored = tw.pack(codes, kind)
    held = stored.T if along == "k" else stored
    numbers = tw.unpack(stored, kind).astype(np.float32)
    a = rng.standard_normal((m, side)).astype(np.float16)
    beside = {"scale_b": ((rng.random((side // group, side)) + 0.5) / 64).astype(np.float16)}
    shift = np.zeros_like(beside["scale_b"], np.float32)
    if zeros:
        beside["zero_b"] = rng.integers(-8, 8, shift.shape).astype(np.int8)
        shift = beside["zero_b"].astype(np.float32)
    numbers = numbers.T if along == "k" else numbers
    wide_b = (numbers - shift.repeat(group, 0)) * beside["scale_b"].astype(np.float32).repeat(group, 0)
    wide_b = wide_b.astype(np.float16).astype(np.float32, order="F" if along == "k" else "C")
    bias = rng.standard_normal(side, np.float32)
    out, made = np.full((m, side), np.nan, np.float16), np.empty((m, side), np.float32)
    wide_a = a.astype(np.float32)

    def theirs() -> None:
        np.matmul(wide_a, wide_b, out=made)
        np.add(made, bias, out=made)

    given = {**beside, "group": group, "bias": bias, "target": "cpu"}
    ours = functools.partial(tw.scaled_mm, a, tw.packed(held, kind), out, **given)
    calls = {OURS: ours, AGAIN: ours, NUMPY: theirs}
    if along == "k":
        calls[PASS] = functools.partial(ours, prepass=True)
        calls[PASS]()
    ours()
    checked = error_of_bound(out, a, wide_b, np.ones(side, np.float32), bias)
    layout = f"contiguous along {along}, groups of {group}" + (", zero points" if zeros else "")
    sizes = (stored.nbytes + sum(one.nbytes for one in beside.values()), wide_b.nbytes)
    return record((m, side), kind, layout, checked, sizes, timed(calls, asked))


def record(
    size: tuple[int, int], kind: str, layout: str, checked: float, held: tuple[int, int], taken: Any
) -> dict[str, Any]:
    """Return the record of a problem."""
    m, side = size
    return {
        "name": "scaled_mm",
        "dtype": f"f16 × {kind}",
        "shape": [m, side, side],
        "layout": layout,
        "target": "cpu",
        "error_of_bound": checked,
        "weight_bytes": dict(zip((OURS, NUMPY), held, strict=True)),
        **rates(taken, 2 * m * side * side),
    }


def error_of_bound(out: Any, a: Any, b: Any, scale: Any, bias: Any) -> float:
    """Return the largest error over the bound for sums in f32 and a rounding to f16; at most 1."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    exact = a @ b * scale + bias
    sizes = np.abs(a) @ np.abs(b) * scale + np.abs(bias)
    bound = (a.shape[1] + 3) * 2.0**-24 * sizes + 2.0**-11 * np.abs(exact) * (1 + 2.0**-10) + 2.0**-25
    found = float(np.max(np.abs(out.astype(np.float64) - exact) / bound))
    assert found <= 1, f"an error is {found:.3g} of its bound"
    return found


if __name__ == "__main__":
    main()
