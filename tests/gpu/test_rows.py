"""Integers and rows from memory, on a GPU: trip counts, gathers, scatters, grouped products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.targets import chained, grouped
from tests.targets.gathered import columns, expected_rows, gather, scatter
from tests.targets.test_gathers import GATHERS, numbers
from tests.targets.test_memory_integers import boxes, case, first_element, segments, through_shared
from tests.targets.test_slices_from_data import COLUMNS, ROWS, WAYS, arguments, at_rows, expected
from tests.targets.test_slices_from_data import numbers as any_rows

from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu


def on_device(*arrays: np.ndarray) -> list[Any]:
    return [DeviceArray.of(array) for array in arrays]


@pytest.mark.parametrize("dtype", ["i32", "i64", "u8"])
def test_trip_counts_and_rows_from_memory(dtype: str) -> None:
    for seed in range(5):
        x, offsets, sums, empty = case(dtype, seed, groups=20, shape=(200, 37 + seed))
        made = on_device(sums, empty)
        assert segments(*on_device(np.ascontiguousarray(x), offsets), *made).target == "cuda"
        found, none = (array.host() for array in made)
        for g in range(len(sums)):
            rows = x[int(offsets[g]) : int(offsets[g + 1])].astype(np.float64)
            bound = 2.0**-18 * np.abs(rows).sum(0) + 1e-30
            assert (np.abs(found[g] - rows.sum(0)) <= bound).all()
            assert none[g] == (len(rows) == 0)


@pytest.mark.parametrize("value", [5, -7, 2**31 + 9, -(2**40) - 1])
def test_integers_of_64_bits(value: int) -> None:
    integers, y = on_device(np.array([1, value, 2]), np.full(32, 77, np.int32))
    assert first_element(integers, y).target == "cuda"
    high, low = (int(part) for part in y.host()[:2])
    assert high * 2**20 + low == value


def test_integers_from_shared_memory() -> None:
    rng = np.random.default_rng(3)
    x, table = rng.standard_normal(150).astype(np.float32), np.array([2, 0, 4, 2, 6, 0, 2, 4], np.int32)
    y: Any = DeviceArray.of(np.full(230, np.nan, np.float32))
    assert through_shared(*on_device(x, table), y).target == "cuda"
    padded = np.concatenate([x, np.full(300, -1, np.float32)])
    np.testing.assert_array_equal(
        y.host(), np.concatenate([padded[32 * t : 32 * t + 32] for t in table])[:230]
    )


def test_boxes_begin_where_memory_says() -> None:
    x = np.random.default_rng(5).standard_normal((300, 64)).astype(np.float16)
    tiles = np.array([3, 0, 4, 1], np.int32)
    y: Any = DeviceArray.of(np.full((256, 64), np.nan, np.float16))
    assert boxes(*on_device(x, tiles), y).target == "cuda"
    padded = np.concatenate([x, np.zeros((64, 64), np.float16)])
    np.testing.assert_array_equal(y.host(), np.concatenate([padded[64 * t : 64 * t + 64] for t in tiles]))


@pytest.mark.parametrize(("way", "index", "dtype", "outside"), GATHERS)
def test_gathering_is_numpys(way: str, index: str, dtype: str, outside: float) -> None:
    rng = np.random.default_rng(len(way))
    for rows, count, width in ((75, 90, 53), (64, 64, 48), (200, 1000, 136), (1, 3, 1)):
        x, chosen = rng.standard_normal((rows, width)).astype(np.float32), numbers(rng, rows, count, dtype)
        y: Any = DeviceArray.of(np.full((count, width), np.nan, np.float32))
        done = gather(*on_device(x, chosen), y, way=way, index=index, outside=outside)
        assert done.target == "cuda"
        np.testing.assert_array_equal(y.host(), expected_rows(x, chosen, outside))


def test_columns_are_gathered_along_their_dimension() -> None:
    rng = np.random.default_rng(2)
    x, index = rng.standard_normal((70, 41)).astype(np.float32), rng.integers(0, 41, 50)
    y: Any = DeviceArray.of(np.full((70, 50), np.nan, np.float32))
    assert columns(*on_device(x, index), y).target == "cuda"
    np.testing.assert_array_equal(y.host(), x[:, index])


@pytest.mark.parametrize("way", ["registers", "direct"])
def test_scattering_and_reducing_are_numpys(way: str) -> None:
    rng = np.random.default_rng(9)
    for count, width in ((75, 53), (96, 48)):
        x = rng.standard_normal((count, width)).astype(np.float32)
        index = rng.permutation(128)[:count]
        expected = np.full((128, width), 5, np.float32)
        y: Any = DeviceArray.of(expected)
        assert scatter(*on_device(x, index), y, way=way).target == "cuda"
        expected[index] = x
        np.testing.assert_array_equal(y.host(), expected)
        x, index = rng.integers(-9, 9, (count, width)).astype(np.int32), rng.integers(-1, 20, count)
        expected = rng.integers(-9, 9, (19, width)).astype(np.int32)
        y = DeviceArray.of(expected)
        assert scatter(*on_device(x, index), y, way=way, reduction="add").target == "cuda"
        inside = (index >= 0) & (index < 19)
        np.add.at(expected, index[inside], x[inside])
        np.testing.assert_array_equal(y.host(), expected)


@pytest.mark.parametrize("gathered", [False, True])
def test_each_row_is_multiplied_by_the_matrix_of_its_group(gathered: bool) -> None:
    for seed, sizes in enumerate([(70, 0, 5, 64, 131), (0, 0, 3), (64,), tuple(range(0, 200, 13))]):
        for columns_, depth in ((75, 71), (128, 256)):
            given = grouped.arguments(sizes, columns_, depth, gathered, seed)
            made: Any = on_device(*given)
            assert grouped.grouped(*made, gathered=gathered).target == "cuda"
            grouped.check(given, made[-1].host(), gathered)


@pytest.mark.parametrize("blocks", [1, 2, 100])
def test_blocks_hand_an_integer_on(blocks: int) -> None:
    for seed in range(5):
        x, counts, y = chained.arguments(blocks, seed)
        made: Any = DeviceArray.of(y)
        for _ in range(3):  # the counter is ready for the next launch
            assert chained.chained(*on_device(x, counts), made).target == "cuda"
            np.testing.assert_array_equal(made.host(), chained.expected(x, counts, len(y)))


class InTheMiddle:
    """The rows of an f32 array on the GPU without the first four and the last four."""

    def __init__(self, whole: DeviceArray) -> None:
        whole_of_it = whole.__cuda_array_interface__
        address, is_constant = whole_of_it["data"]
        step, _ = whole_of_it.get("strides") or (4 * COLUMNS, 4)  # rows may lie between canaries
        place = {"data": (address + 4 * step, is_constant), "shape": (ROWS, COLUMNS)}
        self.__cuda_array_interface__ = {**whole_of_it, **place}


@pytest.mark.parametrize("dtype", ["i32", "i64"])
@pytest.mark.parametrize("way", WAYS)
def test_slices_at_rows_from_memory_keep_to_their_array(way: str, dtype: str) -> None:
    """Y is in the middle of a matrix whose other rows must not change."""
    rows = any_rows(dtype)
    x, _, whole = arguments(way, rows)
    given, index, around = on_device(x, rows, whole)
    assert at_rows(given, index, InTheMiddle(around), way=way).target == "cuda"
    for found, wanted in zip((given.host(), around.host()), expected(way, rows), strict=True):
        np.testing.assert_array_equal(found, wanted)
