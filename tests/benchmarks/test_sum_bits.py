"""Probes find the bits kept by a model of tensor cores' sums; the model adds like exact fractions."""

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
from tilewright.functions.conversions import AlignedSum
from tilewright.ir.mma import MmaAtom
from tilewright.targets.atoms import wgmma

from .test_benchmarks import HERE, run


@pytest.fixture
def sum_bits(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(HERE), *sys.path])
    return importlib.import_module("sum_bits")


@pytest.mark.parametrize(
    "model",
    [AlignedSum(25, 16), AlignedSum(24, 8), AlignedSum(24, 4, "nearest"), AlignedSum(13, 16, fraction=13)],
    ids=repr,
)
def test_probes_find_the_model(sum_bits: Any, model: AlignedSum) -> None:
    atom = tw.atoms.MMA_F16
    found, made = sum_bits.measured(atom, sum_bits.modelled(atom, model), 32)
    assert found["agrees"]
    assert AlignedSum(**found["model"]) == model
    assert found["kept"]["large products, small product"] == model.bits
    # 2**-14 * 2**15 is 29 places above 2**-28
    assert found["kept"]["small products beside zero times the largest power"] == max(model.bits - 29, 0)
    assert found["groups"]["neighbours at 0"] == list(range(model.group, 16))
    assert len(made) == len(sum_bits.DATA)


def lead(x: Fraction, least: int) -> int:
    """Return the exponent of the leading bit, or for denormal numbers the least exponent."""
    if not x:
        return least
    exponent = abs(x).numerator.bit_length() - abs(x).denominator.bit_length()
    return max(exponent - (Fraction(2) ** exponent > abs(x)), least)


@pytest.mark.parametrize(
    ("atom", "least"),
    [(tw.atoms.MMA_BF16, (-126, -126)), (tw.atoms.MMA_F16, (-14, -14)), (wgmma("f8e4m3", 8), (-6, -6))],
    ids=str,
)
@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("data", ["normal", "wide", "cancelling", "tiny"])
def test_a_model_adds_as_fractions_do(
    sum_bits: Any, data: str, zeros: bool, atom: MmaAtom, least: tuple[int, int]
) -> None:
    few = atom.a_dtype.bits == 8
    model = AlignedSum(13, 32, fraction=13, zeros=zeros) if few else AlignedSum(25, 8, zeros=zeros)
    a, b, c = sum_bits.drawn(np.random.default_rng(1), atom, data, 6)
    a[0, ::3], b[1, 2] = 0, 0
    made = sum_bits.modelled(atom, model)(a, b, c)
    for m, n in np.ndindex(made.shape):
        total = Fraction(float(c[m, n]))
        for start in range(0, a.shape[1], model.group):
            ks = range(start, start + model.group)
            pairs = [(Fraction(float(a[m, k])), Fraction(float(b[n, k]))) for k in ks]
            sizes = [lead(x, least[0]) + lead(y, least[1]) for x, y in pairs if zeros or x * y]
            unit = Fraction(2) ** (max([*sizes, lead(total, -126)]) - model.bits)
            kept = sum(math.trunc(x / unit) for x in (total, *(x * y for x, y in pairs))) * unit
            last = Fraction(2) ** (lead(kept, -126) - (model.fraction or 23))
            total = math.trunc(kept / last) * last
        assert float(made[m, n]) == float(total)


F16_AND_F32 = (tw.f16, tw.f16, tw.f32)


def test_nearest_sums_are_rounded_once() -> None:
    a, b = np.array([[1.0, 2.0**-24]]), np.ones((1, 2))
    c = np.float32([[2.0**-26]])
    nearest = AlignedSum(26, 2, "nearest")
    assert nearest.add(a, b, c, F16_AND_F32) == np.float32(1 + 2.0**-23)
    assert replace(nearest, rounding="truncate").add(a, b, c, F16_AND_F32) == 1


def test_infinities_pass() -> None:
    a, b = np.array([[np.inf, 1.0], [1.0, 1.0]]), np.array([[1.0, 2.0], [0.0, 2.0]])
    made = AlignedSum(25, 2).add(a, b, np.ones((2, 2), np.float32), F16_AND_F32)
    np.testing.assert_array_equal(made, [[np.inf, np.nan], [4, 3]])


def test_an_infinity_beside_a_sum_does_not_change_how_that_is_rounded() -> None:
    """2**103 is half of the last place of the largest number, and is cut off."""
    largest = np.finfo(np.float32).max
    a, b, c = np.array([[2.0**103], [np.inf]]), np.ones((1, 1)), np.float32([[largest], [0]])
    for rows in (1, 2):
        made = AlignedSum(25, 16).add(a[:rows], b, c[:rows], F16_AND_F32)
        np.testing.assert_array_equal(made, np.float32([[largest], [np.inf]])[:rows])


def test_the_benchmark_runs() -> None:
    output = run("sum_bits.py", "--target", "model", "--quick", "--atoms", "m16n8k8.f32.tf32")
    assert "last place kept" in output
    assert "NO" not in output
