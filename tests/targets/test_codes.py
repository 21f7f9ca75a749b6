"""Every code of 8-bit floats on every target: its value, the numbers that round to it, and overflow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

from .poisoned import TARGETS, Poisoned, attempt

ONE_ZERO = (tw.f8e4m3fnuz, tw.f8e5m2fnuz)
"""Whose code of a negative zero is NaN, the only one."""

FP8 = (tw.f8e4m3, tw.f8e5m2, *ONE_ZERO)
WIDER = (tw.f64, tw.f32, tw.f16, tw.bf16)
CODES, HALVES = 256, 1 << 16


@tw.kernel(X="N", A="N", B="N", C="N", D="N", Y="N")
def there_and_back(X, A, B, C, D, Y):
    n = tw.block_index(tw.ceil_div(X.shape[0], CODES))
    x = tw.load(X.tile((CODES,), (n,)).partition((32,)))
    for wide in (A, B, C, D):
        tw.copy(x.to(wide.dtype), wide.tile((CODES,), (n,)))
    tw.copy(x.to(tw.f32).to(X.dtype), Y.tile((CODES,), (n,)))


@tw.kernel(X="N", A="N", B="N", C="N", D="N")
def narrowed(X, A, B, C, D):
    n = tw.block_index(tw.ceil_div(X.shape[0], 4096))
    x = tw.load(X.tile((4096,), (n,)).partition((128,)))
    for Y in (A, B, C, D):
        tw.copy(x.to(Y.dtype), Y.tile((4096,), (n,)))


def codes(kind: tw.DType) -> Any:
    return np.arange(CODES, dtype=np.uint8).view(kind.numpy)


def assert_same(made: Any, wanted: Any) -> None:
    """Check that bits are equal, except those of NaN."""
    nan = np.isnan(wanted.astype(np.float64))
    assert np.array_equal(np.isnan(made.astype(np.float64)), nan)
    word = f"u{made.itemsize}"
    assert np.array_equal(made.view(word)[~nan], wanted.astype(made.dtype).view(word)[~nan])


@np.errstate(invalid="ignore")
def check_widened(kind: tw.DType, found: list[Any]) -> None:
    for made in found:
        assert_same(made, codes(kind).astype(made.dtype))


@np.errstate(invalid="ignore", over="ignore")
def check_narrowed(halves: Any, found: list[Any]) -> None:
    """Check rounding to nearest, ties to even; beyond the range infinity, or NaN without infinities."""
    for made, kind in zip(found, FP8, strict=True):
        assert_same(made, nearest(halves, kind))


def nearest(halves: Any, kind: tw.DType) -> Any:
    """Return the nearest number, by a search over all codes."""
    numbers = codes(kind).astype(np.float64)
    finite = np.unique(np.abs(numbers[np.isfinite(numbers)]))
    sizes = np.abs(halves.astype(np.float64))
    above = np.clip(np.searchsorted(finite, sizes), 1, len(finite) - 1)
    low, high = finite[above - 1], finite[above]
    code = np.where(sizes - low < high - sizes, above - 1, above)
    ties = sizes - low == high - sizes
    code = np.where(ties, above - 1 + (above - 1) % 2, code)  # positive codes follow their numbers
    signs = np.where((code == 0) & (kind in ONE_ZERO), 0, np.signbit(halves) * 128)
    made = (code | signs).astype(np.uint8).view(kind.numpy)
    step = finite[-1] - finite[-2]
    beyond = np.array(np.inf if kind == tw.f8e5m2 else np.nan).astype(kind.numpy)
    # A tie beyond the largest number goes to it where its code is even, and out of the range where it is odd.
    past = sizes - finite[-1]
    is_out = (past > step / 2) | ((past == step / 2) & (len(finite) % 2 == 0))
    made = np.where(is_out, np.copysign(beyond.astype(np.float32), halves).astype(kind.numpy), made)
    return np.where(np.isnan(halves), np.array(np.nan).astype(kind.numpy), made)


def every_half() -> Any:
    return np.arange(HALVES, dtype=np.uint16).view(np.float16)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", FP8, ids=str)
def test_every_code_is_its_number(kind: tw.DType, target: str) -> None:
    x, back = (Poisoned((CODES,), kind) for _ in range(2))
    wide = [Poisoned((CODES,), dtype) for dtype in WIDER]
    x.array[...] = codes(kind)
    attempt(target, there_and_back, [x, *wide, back])
    check_widened(kind, [one.array for one in (*wide, back)])


@pytest.mark.parametrize("kind", ONE_ZERO, ids=str)
def test_the_text_for_cuda_compiles(kind: tw.DType) -> None:
    """The same text becomes AMD's machine code."""
    arrays = [tw.like(dtype, CODES) for dtype in (kind, *WIDER, kind)]
    made = there_and_back.compile(*arrays, target="cuda", arch="sm_90a")
    assert f"float_to_{kind.name.removeprefix('f8')}" in made.source


@pytest.mark.parametrize("target", TARGETS)
def test_every_half_is_rounded_to_the_nearest_code(target: str) -> None:
    x, made = Poisoned((HALVES,), tw.f16), [Poisoned((HALVES,), kind) for kind in FP8]
    x.array[...] = every_half()
    attempt(target, narrowed, [x, *made])
    check_narrowed(x.array, [one.array for one in made])


def test_numpy_agrees_on_what_is_nearest() -> None:
    with np.errstate(invalid="ignore", over="ignore"):
        for kind in FP8:
            assert_same(nearest(every_half(), kind), every_half().astype(kind.numpy))
