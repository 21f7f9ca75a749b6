"""Every operator of fragments, `other=` beyond the edge, and integers past 2**31, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.targets import elementary
from tests.targets.operators import FLOATS, INTEGERS, compare, kernel_of, operands, outputs
from tests.targets.test_outside import OTHERS, WAYS, numbers, padded, same, wanted
from tests.targets.test_wide_integers import accumulated

import tilewright as tw
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_operators_are_numpys(dtype: tw.DType) -> None:
    x, y = operands(dtype)
    made = {name: DeviceArray.of(array) for name, array in outputs(dtype, len(x)).items()}
    assert kernel_of(dtype, 64)(DeviceArray.of(x), DeviceArray.of(y), *made.values()).target == "cuda"
    compare(dtype, x, y, {name: array.host() for name, array in made.items()})


@pytest.mark.parametrize("dtype", [tw.f32, tw.f64], ids=str)
def test_functions_are_within_their_bounds(dtype: tw.DType) -> None:
    x = elementary.points(dtype)
    y: Any = DeviceArray.of(np.full((len(elementary.VERBS), x.size), 7, dtype.numpy))
    bound = elementary.each.bind(names=tuple(elementary.VERBS))
    assert bound(DeviceArray.of(x), y).target == "cuda"
    elementary.check(dtype, x, y.host())


@pytest.mark.parametrize("way", elementary.ROW_WAYS)
@pytest.mark.parametrize("dtype", elementary.BITS, ids=str)
def test_rows_are_summed_searched_and_taken_as_bits(dtype: tw.DType, way: str) -> None:
    x, made = elementary.rows_of(dtype)
    arrays: list[Any] = [DeviceArray.of(array) for array in (x, *made)]
    bound = elementary.rows.bind(bits=elementary.BITS[dtype], threads=elementary.ROW_WAYS[way])
    assert bound(*arrays).target == "cuda"
    elementary.check_rows(dtype, x, *(array.host() for array in arrays[1:]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", OTHERS, ids=str)
def test_elements_outside_read_as_other(dtype: tw.DType, way: str) -> None:
    for columns in (37, 40):  # one element at a time, and vectors
        x, y = numbers(dtype, (21, columns)), numbers(dtype, (40, 72))
        into: Any = DeviceArray.of(y)
        assert padded.bind(way=way, other=OTHERS[dtype])(DeviceArray.of(x), into).target == "cuda"
        same(into.host(), wanted(x, y.shape, dtype, OTHERS[dtype]))


@pytest.mark.parametrize("n", [1, 3, 1000])
def test_variables_hold_64_bits(n: int) -> None:
    y: Any = DeviceArray.of(np.full(32, 7, np.int32))
    assert accumulated(y, n).target == "cuda"
    high, low = (int(part) for part in y.host()[:2])
    assert high * 2**20 + low == n * 2**30 + n
