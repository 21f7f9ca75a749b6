"""The probes of sums of tensor cores find what a model of them keeps, and the model adds as fractions do."""

from __future__ import annotations

import importlib
import math
import sys
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.functions.aligned_sums import AlignedSum

from .test_benchmarks import HERE, run


@pytest.fixture
def sum_bits(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(HERE), *sys.path])
    return importlib.import_module("sum_bits")


@pytest.mark.parametrize(
    "model",
    [
        AlignedSum(25, 16),
        AlignedSum(24, 8),
        AlignedSum(23, 4, "nearest"),
        AlignedSum(24, 16, by_factors=False),
    ],
    ids=repr,
)
def test_probes_find_the_model(sum_bits: Any, model: AlignedSum) -> None:
    atom = tw.atoms.MMA_F16
    step = sum_bits.modelled(atom, model)
    found, made = sum_bits.measured(atom, step, 32)
    assert found["agrees"]
    assert AlignedSum(**found["model"]) == model
    assert found["kept"]["large products, small product"] == model.bits
    assert found["kept"]["products 1.75 x 1.75"] == model.bits - (not model.by_factors)
    left = found["groups"]["neighbours at 0"]
    assert left == list(range(model.group, 16))
    assert len(made) == len(sum_bits.DATA)


def lead(x: Fraction) -> int:
    """The exponent of the leading bit."""
    exponent = abs(x).numerator.bit_length() - abs(x).denominator.bit_length()
    return exponent - (Fraction(2) ** exponent > abs(x))


@pytest.mark.parametrize("by_factors", [True, False])
@pytest.mark.parametrize("data", ["normal", "wide", "cancelling", "tiny"])
def test_a_model_adds_as_fractions_do(sum_bits: Any, data: str, by_factors: bool) -> None:
    atom, model = tw.atoms.MMA_BF16, AlignedSum(25, 8, by_factors=by_factors)
    a, b, c = sum_bits.drawn(np.random.default_rng(1), atom, data, 6)
    made = sum_bits.modelled(atom, model)(a, b, c)
    for m, n in np.ndindex(made.shape):
        total = Fraction(float(c[m, n]))
        for start in (0, 8):
            pairs = [(Fraction(float(a[m, k])), Fraction(float(b[n, k]))) for k in range(start, start + 8)]
            sizes = [lead(x) + lead(y) if by_factors else lead(x * y) for x, y in pairs if x * y]
            unit = Fraction(2) ** (max(sizes + [lead(total)] * bool(total)) - model.bits)
            kept = sum(math.trunc(x / unit) for x in (total, *(x * y for x, y in pairs))) * unit
            last = Fraction(2) ** (max(lead(kept), -126) - 23) if kept else Fraction(1)
            total = math.trunc(kept / last) * last
        assert float(made[m, n]) == float(total)


def test_nearest_sums_are_rounded_once() -> None:
    a, b = np.array([[1.0, 2.0**-24]]), np.ones((1, 2))
    c = np.float32([[2.0**-26]])
    nearest = AlignedSum(26, 2, "nearest")
    assert nearest.add(a, b, c, tw.f32) == np.float32(1 + 2.0**-23)
    assert replace(nearest, rounding="truncate").add(a, b, c, tw.f32) == 1


def test_infinities_pass() -> None:
    a, b = np.array([[np.inf, 1.0], [1.0, 1.0]]), np.array([[1.0, 2.0], [0.0, 2.0]])
    made = AlignedSum(25, 2).add(a, b, np.ones((2, 2), np.float32), tw.f32)
    np.testing.assert_array_equal(made, [[np.inf, np.nan], [4, 3]])


def test_the_benchmark_runs() -> None:
    output = run("sum_bits.py", "--target", "model", "--quick", "--atoms", "m16n8k8.f32.tf32")
    assert "last place kept" in output
    assert "NO" not in output
