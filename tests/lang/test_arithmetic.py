"""Arithmetic of fragments and numbers: the recorded functions, their dtypes and their maps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.ops import Elementwise
from tilewright.ir.types import FragmentType, ScalarType

from .kernels import ROWS, broken, trace

OTHER = tw.blocked((8, 8), (8, 4), (1, 0))


def recorded(function: Callable[..., Any], dtype: tw.DType = tw.f32) -> list[tuple[str, str]]:
    """Return the functions that an expression over a fragment x and a number alpha records, with dtypes."""

    def kernel(alpha):
        function(tw.fragment(ROWS, dtype, 0), alpha)

    traced = trace(kernel, {"alpha": dtype})
    assert broken(traced) == []
    return [(op.function, str(op.result.dtype)) for op in traced.walk() if isinstance(op, Elementwise)]


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x, alpha: x + alpha, "add"),
        (lambda x, alpha: alpha + x, "add"),
        (lambda x, alpha: 1 + x, "add"),
        (lambda x, alpha: x - 1.5, "sub"),
        (lambda x, alpha: 1.5 - x, "sub"),
        (lambda x, alpha: alpha * x, "mul"),
        (lambda x, alpha: np.float32(2) * x, "mul"),
        (lambda x, alpha: x / alpha, "div"),
        (lambda x, alpha: 1 / x, "div"),
        (lambda x, alpha: -x, "neg"),
        (lambda x, alpha: abs(x), "abs"),
        (lambda x, alpha: tw.absolute(x), "abs"),
        (lambda x, alpha: tw.exp(x), "exp"),
        (lambda x, alpha: tw.exp2(x), "exp2"),
        (lambda x, alpha: tw.log(x), "log"),
        (lambda x, alpha: tw.sqrt(x), "sqrt"),
        (lambda x, alpha: tw.rsqrt(x), "rsqrt"),
        (lambda x, alpha: tw.tanh(x), "tanh"),
        (lambda x, alpha: tw.minimum(x, 0.0), "min"),
        (lambda x, alpha: tw.maximum(0.0, x), "max"),
        (lambda x, alpha: tw.fma(x, alpha, 1.5), "fma"),
        (lambda x, alpha: tw.fma(2.0, x, x), "fma"),
        (lambda x, alpha: alpha * 2.0, "mul"),
        (lambda x, alpha: 1.0 - alpha, "sub"),
    ],
)
def test_functions(function: Callable[..., Any], name: str) -> None:
    assert recorded(function) == [(name, "f32")]


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x, alpha: x < 0.0, "less"),
        (lambda x, alpha: x > 0.0, "less"),
        (lambda x, alpha: x <= alpha, "less_equal"),
        (lambda x, alpha: x >= alpha, "less_equal"),
        (lambda x, alpha: x == 0.0, "equal"),
        (lambda x, alpha: alpha == 0.0, "equal"),
    ],
)
def test_comparisons_give_masks(function: Callable[..., Any], name: str) -> None:
    assert recorded(function) == [(name, "boolean")]


def test_where_takes_a_mask() -> None:
    assert recorded(lambda x, alpha: tw.where(x < 0.0, x, -math.inf)) == [
        ("less", "boolean"),
        ("select", "f32"),
    ]


def test_conversion() -> None:
    assert recorded(lambda x, alpha: x.to("f16").to(tw.i32)) == [("convert", "f16"), ("convert", "i32")]


def test_results_have_the_map_of_their_operands() -> None:
    def kernel(alpha):
        x = tw.fragment(ROWS, tw.f32, 0)
        kinds.extend([(alpha * x).value.type, (alpha * 2.0).value.type])

    kinds: list[Any] = []
    trace(kernel, {"alpha": tw.f32})
    assert kinds == [FragmentType(tw.f32, ROWS), ScalarType(tw.f32)]


def test_in_place_functions_overwrite() -> None:
    def kernel(alpha):
        x = y = tw.fragment(ROWS, tw.f32, 0)
        x += 1.0
        x -= 1.0
        x *= alpha
        x /= alpha
        assert x is y

    kinds = [op.name for op in trace(kernel, {"alpha": tw.f32}).walk()]
    assert kinds == ["fragment"] + ["elementwise", "copy"] * 4


def test_numpy_scalars_are_plain_numbers_in_the_text() -> None:
    def kernel(A):
        x = tw.fragment(ROWS, tw.f32, np.float64(0.5))
        tw.fill(x, np.int64(3))
        x * np.float32(0.25)
        tw.accumulator(tw.TiledMma(tw.atoms.MMA_F16), np.int8(1))
        A.tile(np.array([8, 8]).tolist(), (np.int64(0), 0))[np.int64(1)].permute(np.int64(0))

    text = tw.ir.print_kernel(trace(kernel))
    assert "np." not in text
    assert "array" not in text
    assert "(x, 0.25,)" in text


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, y: x + y, "add of x (8, 8) and y (8, 8), whose elements are distributed differently"),
        (lambda x, y: tw.where(x < 0.0, y, 0.0), "select of mask"),
    ],
)
def test_unequal_maps_are_a_violation(function: Callable[..., Any], message: str) -> None:
    def kernel():
        x = tw.fragment(ROWS, tw.f32, 0)
        y = tw.fragment(OTHER, tw.f32, 0)
        function(x, y)

    [violation] = broken(trace(kernel))
    assert violation.startswith("elementwise: ")
    assert message.replace("mask", "less") in violation


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        (tw.i32, 0.5, "dtype: 0.5 is not a value of i32"),
        (tw.i8, 128, "dtype: 128 is not within -128 to 127, the range of i8"),
        (tw.u8, -1, "dtype: -1 is not within 0 to 255, the range of u8"),
        (tw.i32, -math.inf, "dtype: -inf is not a value of i32"),
    ],
)
def test_numbers_must_fit_integer_dtypes(dtype: tw.DType, value: float, message: str) -> None:
    def kernel():
        x = tw.fragment(ROWS, dtype, value)
        tw.fill(x, value)
        x + value

    assert broken(trace(kernel)) == [message] * 3


def test_floats_hold_infinities_nan_and_every_number_of_their_range() -> None:
    def kernel():
        x = tw.fragment(ROWS, tw.f16, -math.inf)
        tw.fill(x, 65504.5)
        x + math.nan

    assert broken(trace(kernel)) == []


@pytest.mark.parametrize(
    ("function", "dtype", "message"),
    [
        (lambda x: tw.exp(x), tw.i32, "exp of i32: needs a float"),
        (lambda x: x + x.to(tw.f16), tw.f32, "add of f32 and f16: convert one of them first"),
    ],
)
def test_dtypes_are_never_converted_in_silence(function: Any, dtype: tw.DType, message: str) -> None:
    with pytest.raises(tw.TraceError, match=message):
        trace(lambda: function(tw.fragment(ROWS, dtype, 0)))
