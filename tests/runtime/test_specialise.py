"""An array's metadata determine the class of arrays that one kernel serves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.dtypes import f32
from tilewright.errors import LaunchError
from tilewright.lang.specs import TensorSpec
from tilewright.runtime.arrays import ArrayInfo, describe
from tilewright.runtime.binding import spec_of

DIMS = st.lists(
    st.tuples(st.integers(0, 600) | st.just(2**31 - 1), st.integers(-100_000, 100_000)), max_size=4
)


def info(shape: tuple[int, ...], strides: tuple[int, ...], pointer: int = 4096) -> ArrayInfo:
    return ArrayInfo(pointer, shape, strides, f32, "cpu", False, None)


def test_a_matrix() -> None:
    spec = spec_of(info((3840, 4100), (4112, 1), pointer=4096 + 8))
    assert spec == TensorSpec(f32, 2, 1, (256, 4), (16, 1), 8, False)
    assert {spec: "kernel"}[spec_of(info((256, 12), (16, 1), pointer=8))] == "kernel"


@pytest.mark.parametrize(
    ("shape", "strides", "unit"),
    [
        ((4, 5), (5, 1), 1),
        ((4, 5), (1, 4), 0),
        ((4, 5), (10, 2), None),
        ((4, 1), (1, 1), 0),  # a column: dimension 0 is stepped along
        ((1, 4), (1, 1), 1),
        ((1, 1), (1, 1), 1),
        ((1, 1), (1, 7), 0),
        ((4, 4), (1, 1), 1),  # a Hankel matrix
        ((4, 4), (0, 0), None),
        ((), (), None),
        ((0, 8), (8, 1), 1),
    ],
)
def test_the_unit_dimension(shape: tuple[int, ...], strides: tuple[int, ...], unit: int | None) -> None:
    assert spec_of(info(shape, strides)).unit_dim == unit


def test_a_repeating_stride_counts_as_any_multiple() -> None:
    assert spec_of(info((8, 8), (0, 1))).stride_divisors == (16, 1)


@pytest.mark.parametrize(
    ("pointer", "align"), [(0, 16), (32, 16), (48, 16), (8, 8), (4, 4), (6, 2), (7, 1), (2**40 + 4, 4)]
)
def test_alignment(pointer: int, align: int) -> None:
    assert spec_of(info((8,), (1,), pointer)).align == align


@pytest.mark.parametrize(
    ("shape", "strides", "wide"),
    [
        ((2**31 - 1,), (1,), False),
        ((2, 2), (2**31 - 2, 1), False),
        ((2, 2), (2**31 - 1, 1), True),
        ((1, 2), (2**40, 1), True),
        ((46341, 46341), (46341, 1), True),
        ((46340, 46340), (46340, 1), False),
        ((0, 2**31 - 1), (2**31 - 1, 2), False),
        ((2, 2), (-(2**31) + 2, 1), False),
        ((2, 2), (-(2**31) + 1, 1), True),
        ((46341, 46341), (46341, -1), True),
        ((1, 2), (-(2**40), 1), True),
    ],
)
def test_wide_offsets(shape: tuple[int, ...], strides: tuple[int, ...], wide: bool) -> None:
    assert spec_of(info(shape, strides)).wide == wide


@pytest.mark.parametrize(
    ("shape", "strides", "signed"),
    [((4, 5), (5, 1), False), ((4, 5), (-5, 1), True), ((4, 5), (5, -1), True), ((0, 5), (-5, 1), False)],
)
def test_strides_that_may_be_negative(shape: tuple[int, ...], strides: tuple[int, ...], signed: bool) -> None:
    spec = spec_of(info(shape, strides))
    assert spec.signed == signed
    assert str(spec).endswith(" signed") == signed


def test_a_negative_stride_keeps_its_divisor_and_is_no_unit_stride() -> None:
    assert spec_of(info((8, 8), (-24, 1))).stride_divisors == (8, 1)
    assert spec_of(info((8, 8), (8, -1))).unit_dim is None


def test_a_huge_extent_is_refused() -> None:
    huge = np.broadcast_to(np.zeros(1, np.int8), (2**31, 3))
    with pytest.raises(LaunchError, match=r"^A: extent 2147483648 of dimension 0 must be at most 2147483647"):
        spec_of(describe(huge), "A")


@given(DIMS, st.integers(0, 1 << 48))
def test_an_array_is_of_its_own_class(dims: list[tuple[int, int]], pointer: int) -> None:
    array = info(tuple(e for e, _ in dims), tuple(s for _, s in dims), pointer)
    spec = spec_of(array)
    empty = any(extent == 0 for extent, _ in dims)
    assert spec.rank == len(spec.extent_divisors) == len(spec.stride_divisors) == len(dims)
    for (extent, stride), extent_divisor, stride_divisor in zip(
        dims, spec.extent_divisors, spec.stride_divisors, strict=True
    ):
        assert extent % extent_divisor == 0
        assert empty or stride % stride_divisor == 0
        assert 256 % extent_divisor == 16 % stride_divisor == 0
        assert math.gcd(extent // extent_divisor, 256 // extent_divisor) == 1
    if empty:  # packed, by agreement: its strides and its address are of no consequence
        assert spec.unit_dim == len(dims) - 1
        return
    assert pointer % spec.align == 0
    assert spec.signed == any(stride < 0 for _, stride in dims)
    assert spec.unit_dim is None or dims[spec.unit_dim][1] == 1
    assert (spec.unit_dim is None) == all(stride != 1 for _, stride in dims)
