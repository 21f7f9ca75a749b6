"""Numbers at the ends of a dtype: saturating conversions, infinities, constants out of range."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.dtypes import DType, limits

from .poisoned import TARGETS, Poisoned, attempt

NARROW = [tw.i8, tw.u8, tw.i16, tw.f8e4m3, tw.f8e5m2, tw.f16, tw.bf16]


@np.errstate(over="ignore")
def patterns(element: DType) -> np.ndarray:
    """Return every number of a narrow dtype; for a wide one, the numbers around critical values."""
    if element.bits <= 16:
        kind = np.uint16 if element.bits == 16 else np.uint8
        return np.arange(1 << element.bits, dtype=np.uint32).astype(kind).view(element.numpy)
    ends = [end for target in NARROW for end in limits(target)]
    rng = np.random.default_rng(element.bits)
    if element.is_float:
        near = np.array([0.0, *ends]).astype(element.numpy)
        beside = [near, np.nextafter(near, np.inf), np.nextafter(near, -np.inf), near * 1.03, near * 0.97]
        random = rng.standard_normal(4000) * 2.0 ** rng.integers(-20, 20, 4000)
        edges = np.array([np.nan, np.inf, -np.inf, *limits(element)])
        return np.concatenate([*beside, random, edges]).astype(element.numpy)
    least, most = limits(element)
    near = np.array([int(e) + d for e in ends if abs(e) < 2**31 for d in (-1, 0, 1)])
    drawn_ = rng.integers(least, most, 4000)
    return np.concatenate([near.clip(least, most), drawn_, [least, most]]).astype(element.numpy)


@tw.kernel(X="N", Y="N")
def widened(X, Y):
    x = tw.load(X.tile((256,), (tw.block_index(1),)).partition((32,)))
    tw.copy(x.to(Y.dtype, saturate=True), Y.tile((256,), (0,)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", [tw.f32, tw.f16, tw.bf16, tw.f8e5m2], ids=str)
@pytest.mark.parametrize("wider", [tw.f32, tw.f64], ids=str)
def test_infinities_are_clamped_in_wider_floats_too(element: DType, wider: DType, target: str) -> None:
    x, y = Poisoned((256,), element), Poisoned((256,), wider)
    x.array[...] = patterns(element)[-256:]
    x.array[:3] = np.array([np.inf, -np.inf, np.nan]).astype(element.numpy)
    attempt(target, widened.bind(), [x, y])
    low, high = limits(wider)
    with np.errstate(invalid="ignore"):  # among the patterns are signalling NaNs
        wanted = np.clip(x.array.astype(wider.numpy), low, high)
    np.testing.assert_array_equal(y.array, wanted)
    assert (y.array[:2] == [high, low]).all()


@tw.kernel(X="N", Y="N")
def added(X, Y, *, number):
    x = tw.load(X.tile((32,), (tw.block_index(1),)).partition((32,)))
    made = tw.fragment(x, fill=number)
    tw.fill(made, number)
    tw.copy(tw.where(x < 3, x + number, number) + made, Y.tile((32,), (0,)))


ELEMENTS = [tw.f32, tw.f16, tw.bf16, tw.f64]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("end", ["largest", "lowest", "infinite", "least"])
def test_numbers_at_the_ends_of_a_dtype(end: str, element: DType, target: str) -> None:
    low, high = limits(element)
    least = float(ml_dtypes.finfo(element.numpy).smallest_normal)
    number = {"largest": high, "lowest": low, "infinite": np.inf, "least": least}[end]
    x, y = Poisoned((32,), element), Poisoned((32,), element)
    x.array[...] = np.arange(32) - 16
    attempt(target, added.bind(number=float(number)), [x, y])
    kind = element.numpy
    with np.errstate(over="ignore"):
        more = (x.array + np.array(number, kind)).astype(kind)
        wanted = np.where(x.array.astype(np.float64) < 3, more, np.array(number, kind)) + np.array(
            number, kind
        )
    np.testing.assert_array_equal(y.array.astype(np.float64), wanted.astype(kind).astype(np.float64))


@pytest.mark.parametrize("target", ["reference", "cpu", "cuda", "hip"])
@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("number", [1e300, -1e300, 1e-300])
def test_numbers_that_a_dtype_does_not_reach_are_refused(number: float, element: DType, target: str) -> None:
    arch = {"cuda": "sm_80", "hip": "gfx942"}.get(target)
    bound, kind = added.bind(number=number), tw.like(element, 32)
    if element == tw.f64:
        assert bound.compile(kind, kind, target=target, arch=arch).target == target
        return
    said = "becomes infinite in" if abs(number) > 1 else "becomes 0 in"
    with pytest.raises(tw.LegalityError, match=f"{said} {element}"):
        bound.compile(kind, kind, target=target, arch=arch)


def test_without_saturation_nothing_is_clamped() -> None:
    @tw.kernel(X="N", Y="N", Z="N")
    def plain(X, Y, Z):
        x = tw.load(X.tile((32,), (0,)).partition((32,)))
        tw.copy(x.to(tw.f8e4m3), Y.tile((32,), (0,)))
        tw.copy(x.to(tw.i32).to(tw.i8), Z.tile((32,), (0,)))

    x, y, z = np.full(32, 1000, np.float32), np.zeros(32, ml_dtypes.float8_e4m3fn), np.zeros(32, np.int8)
    plain(x, y, z, target="reference")
    assert np.isnan(y.astype(np.float32)).all()
    assert (z == 1000 - 1024).all()
