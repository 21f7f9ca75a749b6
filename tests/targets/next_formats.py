"""Three more number formats on every target, defined in one line each; `test_next_formats.py` runs this.

They are an 8-bit float with infinities, another one with one zero, and unsigned integers of 4 bits.  Prints
their names if all of them are right.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.targets.hip.executed import launched
from tests.targets.hip.machine import machines
from tests.targets.poisoned import Poisoned, attempt
from tests.targets.test_codes import (
    CODES,
    HALVES,
    WIDER,
    assert_same,
    check_widened,
    codes,
    every_half,
    narrowed,
    there_and_back,
)

import tilewright as tw

ARCH = "gfx942"


def widened_on(kind: tw.DType, target: str) -> None:
    x, back = (Poisoned((CODES,), kind) for _ in range(2))
    wide = [Poisoned((CODES,), dtype) for dtype in WIDER]
    x.array[...] = codes(kind)
    attempt(target, there_and_back, [x, *wide, back])
    check_widened(kind, [one.array for one in (*wide, back)])


def narrowed_on(kinds: list[tw.DType], target: str) -> None:
    x, made = Poisoned((HALVES,), tw.f16), [Poisoned((HALVES,), kind) for kind in (*kinds, *kinds)]
    x.array[...] = every_half()
    attempt(target, narrowed, [x, *made])
    for one, kind in zip(made, (*kinds, *kinds), strict=True):
        assert_same(one.array, x.array.astype(kind.numpy))


def executed(kinds: list[tw.DType]) -> None:
    """Run the listing that becomes AMD's machine code; CUDA has the same text."""
    for kind in kinds:
        made: dict[str, Any] = {name: np.zeros(CODES, kind.numpy) for name in "ABCD"}
        # NaN has many patterns, as all else has one.
        given = codes(kind).astype(np.float16)
        launched(narrowed.bind(), ARCH, {"X": given, **made})
        for found in made.values():
            assert_same(found, codes(kind))
        wide: dict[str, Any] = {name: np.zeros(CODES, d.numpy) for name, d in zip("ABCD", WIDER, strict=True)}
        launched(there_and_back.bind(), ARCH, {"X": codes(kind), **wide, "Y": np.zeros(CODES, kind.numpy)})
        check_widened(kind, list(wide.values()))


def multiplied(kind: tw.DType) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((5, 70), (70, 9)))
    weights, scale = b.astype(kind.numpy), rng.uniform(1, 2, 9).astype(np.float32)
    exact = a.astype(np.float64) @ weights.astype(np.float64) * scale
    for target in ("reference", "cpu"):
        found = tw.scaled_mm(a, weights, scale_b=scale, out_dtype="f32", target=target)
        assert np.abs(found - exact).max() < 1e-4
        most = float(
            tw.scaled_mm(a, weights, scale_a=1e6, out_dtype=kind, target=target).astype(np.float64).max()
        )
        assert most == tw.dtypes.limits(kind)[1]
        itself = tw.matmul(weights.T.copy(), weights, target=target).astype(np.float64)
        assert np.abs(itself - weights.astype(np.float64).T @ weights.astype(np.float64)).max() < 0.1
    like = [tw.like(dtype, CODES) for dtype in (kind, *WIDER, kind)]
    assert f"float_to_{kind.name[2:]}" in there_and_back.compile(*like, target="cuda", arch="sm_90a").source


def in_groups(kind: tw.DType) -> None:
    """Weights of 4 bits with zero points in the middle of their range."""
    rng = np.random.default_rng(0)
    a, numbers = rng.integers(-3, 4, (5, 64)).astype(np.float16), np.arange(64 * 6).reshape(64, 6) % 16
    zero, scale = np.full((2, 6), 8, np.uint8), np.float16([[1], [2]]).repeat(6, axis=1)
    exact = a.astype(np.float64) @ ((numbers - 8) * scale.repeat(32, axis=0).astype(np.float64))
    for packed in (
        tw.packed(tw.pack(numbers.T, kind).T, kind),
        tw.packed(tw.pack(numbers, kind), kind),
    ):
        words = {"scale_b": scale, "zero_b": zero, "group": 32, "out_dtype": "f32"}
        for target in ("reference", "cpu", ARCH):
            assert (tw.scaled_mm(a, packed, **words, target=target) == exact).all()
    assert (tw.unpack(tw.pack(numbers, kind), kind).astype(int) == numbers).all()


@np.errstate(invalid="ignore", over="ignore")
def main() -> None:
    kinds = [tw.dtype("f8e3m4"), tw.dtype("f8e4m3b11fnuz")]
    for target in ("reference", "cpu"):
        for kind in kinds:
            widened_on(kind, target)
        narrowed_on(kinds, target)
    executed(kinds)
    for kind in kinds:
        multiplied(kind)
    with machines():
        in_groups(tw.dtype("u4"))
    print(*kinds, "u4")


if __name__ == "__main__":
    main()
