"""Overlaps of arrays are always found; the oracle is the set of their bytes."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from tilewright.dtypes import DType
from tilewright.runtime import arrays
from tilewright.runtime.arrays import AliasPair, ArrayInfo, overlap
from tilewright.runtime.executable import Prepared
from tilewright.runtime.plans import Plan


@st.composite
def infos(draw: st.DrawFn) -> ArrayInfo:
    """Draw any array within some thousand bytes: gaps, repeats, overlapping or reversed rows, no elements."""
    dtype: DType = draw(st.sampled_from([tw.i8, tw.f16, tw.f32, tw.c64]))
    rank = draw(st.integers(1, 3))
    shape = draw(st.tuples(*[st.integers(0, 7)] * rank))
    strides = draw(st.tuples(*[st.integers(-60, 60)] * rank))
    start = draw(st.integers(0, 300)) * dtype.bytes
    return ArrayInfo(4096 + start, shape, strides, dtype, "cpu", False, None)


def bytes_of(info: ArrayInfo) -> set[int]:
    """Return the address of every byte."""
    size = info.dtype.bytes
    return {
        info.pointer + size * sum(i * s for i, s in zip(at, info.strides, strict=True)) + byte
        for at in np.ndindex(info.shape)
        for byte in range(size)
    }


@given(infos(), infos())
def test_it_is_exact_where_arrays_are_simple(one: ArrayInfo, other: ArrayInfo) -> None:
    assert overlap(one, other) == bool(bytes_of(one) & bytes_of(other))


@given(infos(), infos(), infos())
def test_what_a_plan_calls_apart_shares_no_memory(one: ArrayInfo, two: ArrayInfo, out: ArrayInfo) -> None:
    plan = Plan.of(cast("Prepared", None), (one, two, out), (AliasPair(2, 0), AliasPair(2, 1)))
    ends = [{min(found), max(found)} if (found := bytes_of(info)) else None for info in (one, two, out)]
    apart = plan.apart([info.pointer for info in (one, two, out)])
    assert not (apart and bytes_of(out) & (bytes_of(one) | bytes_of(two)))
    others = [each for each in ends[:2] if each]
    if ends[2] and all(max(ends[2]) < min(each) or max(each) < min(ends[2]) for each in others):
        assert apart or len(others) < 2


@pytest.mark.parametrize("work", [1, 8, 64])
@given(one=infos(), other=infos())
def test_what_shares_memory_is_never_missed_however_little_is_tried(
    work: int, one: ArrayInfo, other: ArrayInfo
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(arrays, "_WORK", work)
        found = overlap(one, other)
    if bytes_of(one) & bytes_of(other):
        assert found


def test_arrays_that_are_too_intricate_to_tell_count_as_if_they_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They once counted as separate, and products were wrong if they were not."""
    memory = np.ones(200_000, np.float32)
    a = np.lib.stride_tricks.as_strided(memory[3:], (90, 80), (4 * 797, 4 * 991))
    b = np.ones((80, 70), np.float32)
    out = np.lib.stride_tricks.as_strided(memory, (90, 70), (4 * 1009, 4 * 13))
    monkeypatch.setattr(arrays, "_WORK", 1)
    with pytest.raises(
        tw.LaunchError, match="out and a share memory, or may: elements of a would be overwritten"
    ):
        tw.matmul(a, b, out=out)
    assert (memory == 1).all()


def test_a_known_product_looks_again_where_arrays_lie() -> None:
    memory = np.ones(300, np.float32)
    a, b = memory[:64].reshape(8, 8), np.ones((8, 8), np.float32)
    tw.matmul(a, b, out=memory[64:128].reshape(8, 8))
    with pytest.raises(tw.LaunchError, match="out and a share memory"):
        tw.matmul(a, b, out=memory[48:112].reshape(8, 8))
