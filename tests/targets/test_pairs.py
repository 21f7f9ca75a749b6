"""Narrow numbers that are widened two at a time: every code, on every target, and in GPU text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.targets import cuda

from .poisoned import TARGETS, Poisoned, attempt

NARROW, WIDE = (tw.f8e4m3, tw.f8e5m2, tw.i8), (tw.f16, tw.bf16)
THREADS, CODES = 32, 256


@tw.kernel(X="N", H="N", B="N")
def widened(X, H, B):
    n = tw.block_index(tw.ceil_div(X.shape[0], CODES))
    x = tw.load(X.tile((CODES,), (n,)).partition((THREADS,)))
    tw.copy(x.to(tw.f16), H.tile((CODES,), (n,)))
    tw.copy(x.to(tw.bf16), B.tile((CODES,), (n,)))


def codes(kind: tw.DType) -> np.ndarray[Any, Any]:
    """Return every number of 8 bits."""
    return np.arange(CODES, dtype=np.uint8).view(kind.numpy)


def check(kind: tw.DType, found: np.ndarray[Any, Any]) -> None:
    """Check that each number is unchanged, NaN is NaN, and zeros keep their signs."""
    expected, made = codes(kind).astype(np.float32), found.astype(np.float32)
    assert np.array_equal(made, expected, equal_nan=True)
    assert (np.signbit(made) == np.signbit(expected))[~np.isnan(expected)].all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", NARROW, ids=str)
def test_every_code_is_widened_to_itself(kind: tw.DType, target: str) -> None:
    given = Poisoned((CODES,), kind)
    given.array[...] = codes(kind)
    made = [Poisoned((CODES,), wide) for wide in WIDE]
    attempt(target, widened, [given, *made])
    for one in made:
        check(kind, one.array)


@pytest.mark.parametrize("kind", NARROW, ids=str)
def test_the_text_of_a_gpu_takes_them_in_pairs(kind: tw.DType) -> None:
    arrays = [tw.like(dtype, CODES) for dtype in (kind, *WIDE)]
    name = {"f8e4m3": "e4m3", "f8e5m2": "e5m2"}.get(kind.name, kind.name)
    for arch in ("sm_80", "sm_90a"):
        text = cuda.emit(widened.trace(*arrays), arch).text
        has_instruction = arch == "sm_90a" or kind == tw.i8
        for wide in ("half", "bf16"):
            assert (f"{name}_pair_to_{wide}(&" in text) == has_instruction


@pytest.mark.parametrize("kind", NARROW, ids=str)
def test_pairs_are_compiled(kind: tw.DType) -> None:
    arrays = [tw.like(dtype, CODES) for dtype in (kind, *WIDE)]
    made = widened.compile(*arrays, target="cuda", arch="sm_90a")
    assert made.arch == "sm_90a"
    assert not made.resources["spill_store_bytes"]


def test_half_of_a_pair_is_widened_alone() -> None:
    @tw.kernel(X="N", H="N")
    def alone(X, H):
        n = tw.block_index(tw.ceil_div(X.shape[0], THREADS))
        x = tw.load(X.tile((THREADS,), (n,)).partition((THREADS,)))
        tw.copy(x.to(tw.f16), H.tile((THREADS,), (n,)))

    text = cuda.emit(alone.trace(tw.like("i8", CODES), tw.like("f16", CODES)), "sm_90a").text
    assert "_pair_to_" not in text
