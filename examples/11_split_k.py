"""Split K, C = A B: each part of K is summed by its own block, and then the partial sums are added.

    python examples/11_split_k.py [--small] [--target cuda|cpu|reference]
                                  [verify init time [M N K SA SB SC [KBatch]]]

verify: 0 or 1; init: 0 (as allocated), 1 (integers) or 2 (random numbers); time: 0 or 1.
SA, SB and SC are the strides between rows of A, columns of B and rows of C; -1 means contiguous.
KBatch is the number of parts; 0 means as many as fill the machine.
The epilogue (here a bias and a ReLU) is applied once, to the complete sums. The program runs every
reduction of the partial sums, and the product without split K for comparison.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np

import tilewright as tw

SHAPES = {"cuda": (64, 64, 65536), "cpu": (64, 64, 65536), "reference": (64, 64, 512)}
SMALL = {"cuda": (64, 64, 4096), "cpu": (64, 64, 2048), "reference": (40, 48, 300)}
WAYS = {
    "not split": {},
    "as is chosen": {"reduction": None},
    "workspace": {"reduction": "workspace"},
    "turnstile": {"reduction": "turnstile"},
    "atomic": {"reduction": "atomic"},
    "stream": {"split_k": "stream"},
    "batch invariant": {"batch_invariant": True},
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="a small problem")
    there = "cuda" if tw.device_count() else "cpu"
    parser.add_argument("--target", choices=SHAPES, default=there, help=f"default here: {there}")
    numbers = "verify init time M N K SA SB SC KBatch"
    parser.add_argument("numbers", nargs="*", type=int, metavar=numbers, help="see the top of the file")
    asked = parser.parse_args()
    given = asked.numbers
    if len(given) not in (0, 3, 9, 10) or (given and given[1] not in (0, 1, 2)):
        parser.error(f"{given}: give {numbers}, of which the last 7 or the last alone may be left out")
    asked.verify, asked.init, asked.time = given[:3] or (1, 2, 1)
    asked.shape = tuple(given[3:6]) or (SMALL if asked.small else SHAPES)[asked.target]
    _, n, k = asked.shape
    for name, extent in zip("MNK", asked.shape, strict=True):
        if extent < 1:
            parser.error(f"{name} is {extent}; nearest legal choice: 1")
    asked.steps = [
        packed if step == -1 else step for step, packed in zip(given[6:9] or [-1] * 3, (k, k, n), strict=True)
    ]
    for name, step, least in zip(("SA", "SB", "SC"), asked.steps, (k, k, n), strict=True):
        if step < least:
            parser.error(
                f"{name} is {step}, and a row has {least} elements; nearest legal choice: -1, packed"
            )
    asked.parts = (given[9:] or [0])[0]
    if asked.parts < 0:
        parser.error(f"KBatch is {asked.parts}; nearest legal choice: 0, as many as fill the machine")
    return asked


def strided(values, step):
    """Copy rows into an array with the given row stride."""
    held = np.zeros((values.shape[0], step), values.dtype)
    held[:, : values.shape[1]] = values
    return held


def check(c, a, b, bias):
    """Assert that each error is within the roundings of K sums in f32, and of the result to f16."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    exact = np.maximum(a @ b + bias, 0)
    summed = 8 * np.sqrt(a.shape[1]) * 2.0**-24 * (np.abs(a) @ np.abs(b) + np.abs(bias))
    off = np.abs(c.astype(np.float64) - exact)
    assert (off <= summed + 2.0**-11 * exact + 2.0**-25).all(), f"an element is off by {off.max()}"


def main():
    asked = parse()
    (m, n, k), target = asked.shape, asked.target
    made = tw.testing.operands({1: "integers"}.get(asked.init, "random"), tw.f16, (m, n, k), layout="nt")
    a, b = (made.a, made.b) if asked.init else (np.empty_like(made.a), np.empty_like(made.b))
    bias = np.linspace(-1, 1, n).astype(np.float16)
    held = [
        tw.testing.device_put(strided(rows, step), target)
        for rows, step in zip((a, b.T), asked.steps, strict=False)
    ]
    A, B = held[0][:, :k], held[1][:, :k].T
    bias_there = tw.testing.device_put(bias, target)
    for name, how in WAYS.items():
        whole = tw.testing.device_put(np.full((m, asked.steps[2]), np.nan, np.float16), target)
        C = whole[:, :n]
        how = {"split_k": asked.parts or "auto"} | how if "reduction" in how else how

        product = partial(tw.matmul, A, B, C, bias=bias_there, activation="relu", target=target, **how)
        product()
        if asked.verify and asked.init:
            check(tw.testing.device_get(C), a, b, bias)
            print(f"{name}: all {m * n} elements are right")
        if asked.time and target != "reference":
            ms = tw.testing.do_bench(product, target)
            tflops, moved = 2e-9 * m * n * k / ms, 2e-6 * (m * k + k * n + m * n) / ms
            print(f"Perf: {ms:.4f} ms, {tflops:.3f} TFlops, {moved:.1f} GB/s, {name}")


if __name__ == "__main__":
    main()
