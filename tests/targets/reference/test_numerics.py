"""Roundings with common mistakes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.dtypes import bf16, c32, c64, f8e5m2, f16, f32, f64, i8, i32, i64, u8
from tilewright.functions.conversions import convert, keep_fraction
from tilewright.targets.atoms import MMA_F16, MMA_I8
from tilewright.targets.reference.numbers import NUMBERS


def nearest_even(value: float, bits: int) -> Fraction:
    """Return ``value`` rounded to ``bits`` fraction bits, exactly."""
    exact = Fraction(value)
    if exact == 0:
        return exact
    exponent = int(np.frexp(value)[1]) - 1
    unit = Fraction(2) ** (exponent - bits)
    return round(exact / unit) * unit


NORMAL = st.floats(2.0**-10, 2.0**10) | st.floats(-(2.0**10), -(2.0**-10))


@given(NORMAL)
@pytest.mark.parametrize("target", [bf16, f16, f8e5m2], ids=str)
def test_f64_is_rounded_once(target, value) -> None:
    got = convert(np.array([value]), f64, target)
    assert Fraction(float(got[0])) == nearest_even(value, target.mantissa)


@pytest.mark.parametrize("target", [bf16, f8e5m2], ids=str)
def test_values_just_beside_a_tie_do_not_tie(target) -> None:
    tie = 1 + 2.0 ** -(target.mantissa + 1)
    values = np.array([tie - 2.0**-45, tie, tie + 2.0**-45])
    up = 1 + 2.0**-target.mantissa
    assert convert(values, f64, target).astype(np.float64).tolist() == [1.0, 1.0, up]
    assert convert(-values, f64, target).astype(np.float64).tolist() == [-1.0, -1.0, -up]


def test_large_integers_are_rounded_once() -> None:
    value = 2**30 + 2**22 + 1
    assert int(convert(np.array([value], np.int32), i32, bf16)[0]) == 2**30 + 2**23


def test_floats_saturate_integers() -> None:
    values = np.array([3e9, -3e9, 1e30, -1e30, np.inf, -np.inf, np.nan, -0.9], np.float32)
    ends = np.iinfo(np.int32)
    assert convert(values, f32, i32).tolist() == [ends.max, ends.min] * 3 + [0, 0]
    assert convert(values, f32, u8).tolist() == [255, 0] * 3 + [0, 0]
    ends = np.iinfo(np.int64)
    assert convert(values, f32, i64)[2:6].tolist() == [ends.max, ends.min] * 2


def test_integers_wrap() -> None:
    assert convert(np.array([300, -129], np.int32), i32, i8).tolist() == [44, 127]


def test_complex_halves_go_through_complex_floats() -> None:
    values = np.array([1.5 - 2j, 0.1 + 3j], np.complex64)
    halves = convert(values, c64, c32)
    assert halves.dtype == c32.numpy
    back = convert(halves, c32, c64)
    assert back.tolist() == [1.5 - 2j, complex(np.float16(0.1), 3)]


def test_infinities_and_nan_keep_their_kind() -> None:
    values = np.array([np.inf, -np.inf, np.nan])
    for target in (f32, f16, bf16):
        got = convert(values, f64, target).astype(np.float64)
        assert got[:2].tolist() == [np.inf, -np.inf]
        assert np.isnan(got[2])
    kept = keep_fraction(values.astype(np.float32), 10)
    assert kept[:2].tolist() == [np.inf, -np.inf]
    assert np.isnan(kept[2])


@given(NORMAL)
def test_tf32_keeps_ten_bits_and_rounds_ties_away(value) -> None:
    value = float(np.float32(value))
    exact = abs(Fraction(value))
    unit = Fraction(2) ** (int(np.frexp(value)[1]) - 11)
    steps = exact / unit
    want = (int(steps) + (steps - int(steps) >= Fraction(1, 2))) * unit
    assert abs(Fraction(float(keep_fraction(np.array([value], np.float32), 10)[0]))) == want


def test_products_are_exact_and_summed_before_one_rounding() -> None:
    a, b = np.full((1, 4), 1.0, np.float16), np.array([[2048, 2.0**-14, 2.0**-14, -2048]], np.float16)
    exact = replace(MMA_F16, sums=None)
    assert NUMBERS.multiply_add(exact, a, b, np.zeros((1, 1), np.float32)) == 2.0**-13
    assert NUMBERS.multiply_add(exact, a, b, np.zeros((1, 1), np.float32), negative=True) == -(2.0**-13)
    big = np.full((1, 1), 2**31 - 1, np.int32)
    ones = np.ones((1, 2), np.int8)
    assert NUMBERS.multiply_add(MMA_I8, ones, ones, big) == -(2**31) + 1
