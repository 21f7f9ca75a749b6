"""Kernels of the examples and of the library's members for AMD GPUs, by executing their listings in NumPy.

The interpreter refuses races in shared memory, accesses out of bounds, registers that nothing was written to
and waits that are missing; what is compared here are the numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.arch import Arch
from tilewright.ops.products import combined, grouped, plain, scaled
from tilewright.targets.hip.arch import GFX942, GFX1151
from tilewright.targets.matrix_cores import nearest

from .examples import BASIC, LEVELS, OPTIMIZED, multiply_adds
from .executed import launched

HALF = np.float16
archs = pytest.mark.parametrize("arch", [GFX942, GFX1151], ids=lambda arch: arch.name)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(14)


def halves(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(HALF)


def product(a: Any, b: Any) -> tuple[Any, Any]:
    """``a @ b`` in f64, and how far f32 sums may be from it."""
    wide = a.astype(np.float64), b.astype(np.float64)
    return wide[0] @ wide[1], (a.shape[1] + 2) * 2.0**-24 * (np.abs(wide[0]) @ np.abs(wide[1]))


def assert_near(found: Any, exact: Any, slack: Any) -> None:
    """Element by element, within the slack and one rounding to the dtype that was stored."""
    rounding = 2.0 ** (-11 if found.dtype == HALF else -24)
    assert np.all(np.abs(found - exact) <= 1.01 * (slack + rounding * np.abs(exact) + 2.0**-24))


@archs
def test_basic_gemm_of_ragged_sizes(arch: Arch, rng: np.random.Generator) -> None:
    """Example 02 with multiply-adds, of 129 x 129 x 67."""
    a, b, c = halves(rng, 129, 67), halves(rng, 129, 67), np.full((129, 129), np.nan, HALF)
    mma = multiply_adds(tw.f16, arch.lanes, (64, 64), (4, 4), (2, 2))
    bound = BASIC["basic_gemm"].bind(tile=(64, 64, 32), threads=mma.threads, mma=mma, vector=1)
    launched(bound, arch.name, {"A": a, "B": b, "C": c})
    assert_near(c, *product(a, b.T))


@archs
def test_optimized_gemm_on_matrix_cores(arch: Arch, rng: np.random.Generator) -> None:
    """Example 04: the next tile in registers, a padded row in shared memory, the result through it."""
    a, b, c = halves(rng, 256, 96), halves(rng, 128, 96), np.full((256, 128), np.nan, HALF)
    atom = nearest(tw.f16, tw.f32, arch.features)
    assert atom is not None
    mma = tw.TiledMma(atom, (2, 2), (64 // atom.shape[0], 64 // atom.shape[1]))
    threads = tw.Layout((4, mma.threads // 4, 1), (1, 4, 1))
    bound = OPTIMIZED["optimized_gemm"].bind(tile=(128, 128, 32), threads=threads, mma=mma, vector=8, k1=8)
    _, run = launched(bound, arch.name, {"A": a, "B": b, "C": c})
    assert_near(c, *product(a, b.T))
    assert any(name.startswith(("v_mfma", "v_wmma")) for name in run.mnemonics)


@archs
def test_levels_with_copies_in_the_background(arch: Arch, rng: np.random.Generator) -> None:
    """Example 07 with three stages: straight into shared memory, or where there is no such load, in order."""
    a, b = (rng.standard_normal((64, 48)).astype(np.float32) for _ in "ab")
    c = np.full((64, 64), np.nan, np.float32)
    mma = multiply_adds(tw.f32, arch.lanes, (64, 64), (4, 4), (2, 2))
    bound = LEVELS["prefetched"].bind(tile=(64, 64, 16), mma=mma, stages=3)
    launched(bound, arch.name, {"A": a, "B": b, "C": c})
    assert_near(c, *product(a, b.T))


@archs
@pytest.mark.parametrize("reduction", ["turnstile", "atomic"])
def test_parts_of_k(arch: Arch, reduction: str, rng: np.random.Generator) -> None:
    """Of several blocks: in turns, with signals between blocks, and by atomics."""
    a, b = halves(rng, 70, 96), halves(rng, 96, 40)
    d = np.full((70, 40), 0 if reduction == "atomic" else np.nan, np.float32)
    gemm, specs = plain(0), (tw.like("f16", 70, 96), tw.like("f16", 96, 40), tw.like("f32", 70, 40))
    whole = gemm.compile(*specs, precision="exact", target="hip", arch=arch.name).schedule
    assert whole is not None
    schedule = replace(whole, split_k=2, reduction=reduction)
    bound = gemm.bind(precision="exact", schedule=schedule)
    launched(bound, arch.name, {"A": a, "B": b, "D": d})
    assert_near(d, *product(a, b))


@archs
def test_everything_that_is_done_with_the_sums(arch: Arch, rng: np.random.Generator) -> None:
    """``gelu(0.5 * A @ B + 2 * C + bias) + R``."""
    a, b, c, r = halves(rng, 70, 41), halves(rng, 41, 99), halves(rng, 70, 99), halves(rng, 70, 99)
    bias, d = halves(rng, 99), np.full((70, 99), np.nan, HALF)
    bound = combined(0, tw.f32).bind(
        precision="exact", terms=frozenset({"alpha", "c", "bias", "residual"}), activation="gelu"
    )
    arrays = {"A": a, "B": b, "C": c, "bias": bias, "R": r, "D": d}
    launched(bound, arch.name, arrays, alpha=0.5, beta=2.0)
    sums, slack = product(a, b)
    value = 0.5 * sums + 2.0 * c.astype(np.float64) + bias
    gelu = value * 0.5 * (1 + np.vectorize(math.erf)(value / math.sqrt(2)))
    # The slope of gelu is 1.13 at most; 8 roundings of f32 on the way.
    assert_near(d, gelu + r, 1.13 * slack + 8 * 2.0**-23 * (np.abs(value) + np.abs(r) + 1))


@archs
def test_weights_of_8_bits_with_scale_and_bias_in_one_kernel(arch: Arch, rng: np.random.Generator) -> None:
    """fp16 by fp8: weights are widened in registers, on their way to the matrix cores."""
    a, w = halves(rng, 70, 72), rng.standard_normal((72, 99)).astype(tw.f8e4m3.numpy)
    scale, bias = (rng.random(99).astype(np.float32) for _ in "sb")
    d, ones = np.full((70, 99), np.nan, HALF), np.ones(70, np.float32)
    terms = frozenset({"scale_b", "bias"})
    bound = scaled(0).bind(multiplied=tw.f16, terms=terms, activation=None)
    arrays = {"A": a, "B": w, "scale_a": ones, "scale_b": scale, "bias": bias, "D": d}
    made, _ = launched(bound, arch.name, arrays, alpha=1.0)
    assert made.schedule is not None
    assert made.schedule.atom == nearest(tw.f16, tw.f32, arch.features)
    sums, slack = product(a, w)
    assert_near(d, sums * scale + bias, slack * scale + 3 * 2.0**-24 * (np.abs(sums * scale) + bias))


@archs
def test_groups_of_rows(arch: Arch, rng: np.random.Generator) -> None:
    """Of which one is empty, and whose ends the kernel reads."""
    a, b, ends = halves(rng, 70, 41), halves(rng, 3, 41, 40), np.array([25, 25, 70], np.int32)
    d, bias = np.full((70, 40), np.nan, HALF), np.zeros((3, 40), HALF)
    bound = grouped(tw.f32).bind(precision="exact", terms=frozenset(), activation=None)
    launched(bound, arch.name, {"A": a, "B": b, "ends": ends, "bias": bias, "D": d})
    for rows, item in ((slice(0, 25), 0), (slice(25, 70), 2)):
        assert_near(d[rows], *product(a[rows], b[item]))
