"""Saturating conversions of any number to any other, on every target, equal one exact rounding."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.dtypes import DType, limits

from .poisoned import TARGETS, Poisoned, attempt

FLOATS = [tw.f64, tw.f32, tw.f16, tw.bf16, tw.f8e4m3, tw.f8e5m2]
INTEGERS = [tw.i64, tw.i32, tw.i16, tw.i8, tw.u32, tw.u16, tw.u8]
NUMBERS = [*FLOATS, *INTEGERS]
PLACES = "ABCDEFGHIJKLM"


@tw.kernel(X="N", **dict.fromkeys(PLACES, "N"))
def saturating(X, A, B, C, D, E, F, G, H, I, J, K, L, M):
    n = tw.block_index(tw.ceil_div(X.shape[0], 1024))
    x = tw.load(X.tile((1024,), (n,)).partition((128,)))
    for Y in (A, B, C, D, E, F, G, H, I, J, K, L, M):
        tw.copy(x.to(Y.dtype, saturate=True), Y.tile((1024,), (n,)))


def random_bits(kind: DType, count: int = 4000) -> np.ndarray:
    """Return every number of a narrow dtype, and some of a wide one."""
    if kind.bits <= 16:
        unsigned = np.dtype(f"u{kind.bytes}")
        return np.arange(1 << kind.bits, dtype=np.uint32).astype(unsigned).view(kind.numpy)
    return np.random.default_rng(kind.bits).integers(0, 256, count * kind.bytes, np.uint8).view(kind.numpy)


def awkward() -> tuple[list[float], list[int]]:
    """Floats and integers with likely mistakes: limits, ties, and neighbours of ties."""
    floats, integers = [0.0, -0.0, np.nan, np.inf, -np.inf], [0]
    for kind in NUMBERS:
        for end in limits(kind):
            floats += [float(end) * part for part in (0.5, 0.97, 1, 1.03, 2)]
            floats += [float(end) + step for step in (-1, -0.5, 0.5, 1)]
            integers += [int(end) + step for step in (-1, 0, 1)]
    for kind in FLOATS[1:]:
        for power in (-30, -14, -1, 0, 5, 14, 53, 62):
            for odd in (1, 3):
                tie = 2.0**power * (1 + odd * 2.0 ** -(kind.mantissa + 1))
                floats += [sign * tie * (1 + by * 2.0**-50) for sign in (1, -1) for by in (0, 1, -1)]
                integers += [sign * int(tie) + by for sign in (1, -1) for by in (0, 1, -1)]
    return floats, integers


def samples(kind: DType) -> np.ndarray:
    """Return numbers of a dtype: all of a narrow one, else awkward and random ones."""
    if kind.bits <= 16:
        return random_bits(kind)
    floats, integers = awkward()
    low, high = limits(kind)
    if not kind.is_float:
        made = np.array([n for n in integers if low <= n <= high], kind.numpy)
        small = random_bits(kind) >> np.arange(4000).astype(kind.numpy) % kind.bits
        return np.concatenate([made, random_bits(kind), small])
    rng = np.random.default_rng(1)
    random = rng.standard_normal(4000) * 2.0 ** rng.integers(-30, 30, 4000)
    with np.errstate(over="ignore", under="ignore"):
        near = np.array(floats).astype(kind.numpy)
        beside = [np.nextafter(near, np.inf), np.nextafter(near, -np.inf)]
        return np.concatenate([near, *beside, random.astype(kind.numpy), random_bits(kind)])


def nearest(values: np.ndarray, kind: DType) -> np.ndarray:
    """Return float64 within a dtype's range, rounded once to nearest even; only `rint` is inexact."""
    least = int(np.log2(float(ml_dtypes.finfo(kind.numpy).smallest_subnormal)))
    _, exponent = np.frexp(values)
    unit = np.maximum(exponent - 1 - kind.mantissa, least)
    return np.ldexp(np.rint(np.ldexp(values, -unit)), unit)


def nearest_integer(value: int, mantissa: int) -> int:
    """Round an integer to a leading bit and some further bits, ties to even."""
    unit = 1 << max(abs(value).bit_length() - 1 - mantissa, 0)
    whole, rest = divmod(abs(value), unit)
    whole += 2 * rest > unit or (2 * rest == unit and whole % 2)
    return whole * unit * (1 if value >= 0 else -1)


def expected(x: np.ndarray, source: DType, kind: DType) -> np.ndarray:
    """Clamp, then round once: to nearest even, or floats to integers towards 0, and NaN to 0."""
    low, high = limits(kind)
    if not source.is_float:
        clamped = [min(max(int(n), int(low)), int(high)) for n in x.tolist()]
        return np.array([nearest_integer(n, kind.mantissa) if kind.is_float else n for n in clamped]).astype(
            kind.numpy
        )
    with np.errstate(invalid="ignore"):  # NumPy warns of the bits of some NaN
        return rounded(x.astype(np.float64), kind)


def rounded(wide: np.ndarray, kind: DType) -> np.ndarray:
    """Return `expected` of float64."""
    low, high = limits(kind)
    if kind.is_float:
        clamped = np.clip(wide, low, high)
        there = ~np.isnan(clamped)
        clamped[there] = nearest(clamped[there], kind)
        return clamped.astype(kind.numpy)
    cut = np.trunc(np.nan_to_num(wide, nan=0.0, posinf=np.inf, neginf=-np.inf))
    inside = (cut >= float(low)) & (
        cut < float(high) + 1
    )  # the least, and one past the last, are powers of 2
    made = np.where(cut < 0, np.array(low, kind.numpy), np.array(high, kind.numpy))
    made[inside] = cut[inside].astype(kind.numpy)
    return made


def outputs(x: np.ndarray) -> dict[str, np.ndarray]:
    """Return an array for each dtype that x is converted to."""
    return {name: np.zeros(x.shape, kind.numpy) for name, kind in zip(PLACES, NUMBERS, strict=True)}


def compare(x: np.ndarray, source: DType, found: list[np.ndarray]) -> None:
    """Check that every element is exact; a NaN equals a NaN."""
    for kind, array in zip(NUMBERS, found, strict=True):
        wanted = expected(x, source, kind)
        wrong = np.flatnonzero((array != wanted) & ~((array != array) & (wanted != wanted)))
        told = [(x[n].item(), array[n].item(), wanted[n].item()) for n in wrong[:3]]
        assert not wrong.size, f"{source} to {kind}: {wrong.size} of {x.size}; (x, found, wanted) {told}"


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", NUMBERS, ids=str)
def test_any_number_becomes_any_other(source: DType, target: str) -> None:
    x = samples(source)
    arguments = [Poisoned(x.shape, kind) for kind in (source, *NUMBERS)]
    arguments[0].array[...] = x
    attempt(target, saturating.bind(), arguments)
    compare(x, source, [given.array for given in arguments[1:]])
