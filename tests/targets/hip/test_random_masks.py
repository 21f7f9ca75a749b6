"""Random truth values by element number: one generation serves four neighbours of a thread or two lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.targets.hip.executed import launched

import tilewright as tw
from tilewright.threads.distribution import Distribution, Mode

SEED, OFFSET, LEAST = (1 << 62) + 977, (3 << 33) + 5, 3 << 30
ROWS, FOUR = (16, 16), "four_at_least("

PAIRS = Distribution(ROWS, (Mode(4, 1, 2), Mode(8, 0, 1)), (Mode(2, 1, 1), Mode(2, 0, 8), Mode(2, 1, 8)))
"""As tensor cores hold their sums: a thread has two neighbours of a row, and of the eighth row below it."""

EIGHTS = Distribution(ROWS, (Mode(2, 1, 8), Mode(16, 0, 1)), (Mode(8, 1, 1),))
COLUMNS = Distribution(ROWS, (Mode(16, 1, 1), Mode(2, 0, 8)), (Mode(8, 0, 1),))
"""As matrix cores do: lanes have neighbours of a row."""

TWELVES = Distribution((12, 32), (Mode(32, 1, 1),), (Mode(12, 0, 1),))


def by_rows(row: Any, column: Any, x: Any) -> Any:
    return row.to(tw.u64) * x.shape[1] + column.to(tw.u64)


def by_columns(row: Any, column: Any, x: Any) -> Any:
    return column.to(tw.u64) * 16 + row.to(tw.u64)


def in_heads(row: Any, column: Any, x: Any) -> Any:
    """Return 2 heads of 8 columns, outside of the rows."""
    return ((column // 8).to(tw.u64) * 16 + row.to(tw.u64)) * 8 + (column % 8).to(tw.u64)


def beside(row: Any, column: Any, x: Any) -> Any:
    """No group begins at a multiple of 4."""
    return by_rows(row, column, x) + 2


@tw.kernel(X="M N")
def dropped(X: Any, *, spread: Distribution, number: Any) -> None:
    tile = X.tile(spread.shape, (0, 0))
    x = tw.load(tile, spread)
    index = number(tw.coordinates(x, 0), tw.coordinates(x, 1), X)
    tw.copy(tw.dropout(x, index, LEAST, 2.0, SEED, OFFSET), tile)


@tw.kernel(X="M N", I="M N")
def dropped_by_numbers(X: Any, I: Any) -> None:
    tile = X.tile(ROWS, (0, 0))
    index = tw.load(I.tile(ROWS, (0, 0)), PAIRS)
    tw.copy(tw.dropout(tw.load(tile, PAIRS), index, LEAST, 2.0, SEED, OFFSET), tile)


CASES = [
    (PAIRS, by_rows, 16, True),
    (PAIRS, in_heads, 16, True),
    (PAIRS, beside, 16, False),
    (PAIRS, by_rows, 14, False),
    (EIGHTS, by_rows, 16, True),
    (EIGHTS, by_rows, 15, False),
    (COLUMNS, by_rows, 16, False),
    (COLUMNS, by_columns, 16, True),
    (TWELVES, by_rows, 32, False),
]


@pytest.mark.parametrize(("spread", "number", "columns", "in_fours"), CASES)
def test_a_mask_is_that_of_its_places(
    spread: Distribution, number: Any, columns: int, in_fours: bool
) -> None:
    x = np.ones((spread.shape[0], columns), np.float32)
    row, column = (at.astype(np.uint64) for at in np.indices(x.shape))
    at = number(Numbers(row), Numbers(column), x)
    kept = tw.testing.philox(np.asarray(at.held, np.uint64), SEED, OFFSET) >= LEAST
    bound = dropped.bind(spread=spread, number=number)
    made, _ = launched(bound, "gfx1151", {"X": x})
    assert (FOUR in made.source) == in_fours
    assert "coordinates along" not in made.source  # of an index that is read back
    assert np.array_equal(x, np.where(kept, 2, 0))
    assert 0.1 < kept.mean() < 0.4


class Numbers:
    """Integers with the attributes of fragments."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def to(self, dtype: Any) -> Numbers:
        return self

    def __add__(self, other: Any) -> Numbers:
        return Numbers(self.held + (other.held if isinstance(other, Numbers) else other))

    def __mul__(self, other: int) -> Numbers:
        return Numbers(self.held * other)

    def __floordiv__(self, other: int) -> Numbers:
        return Numbers(self.held // other)

    def __mod__(self, other: int) -> Numbers:
        return Numbers(self.held % other)


def hashed(row: Any, column: Any, x: Any) -> Any:
    return row.to(tw.u32) * 2654435769 + column.to(tw.u32)


def beyond(row: Any, column: Any, x: Any) -> Any:
    return ((row + 4096) * (1 << 20) + column).to(tw.u32)


def narrowed(row: Any, column: Any, x: Any) -> Any:
    return (row.to(tw.u64) * (1 << 31) + column.to(tw.u64)).to(tw.u32)


def divided(row: Any, column: Any, x: Any) -> Any:
    return (row.to(tw.u64) * (1 << 63) + column.to(tw.u64)) // 2 % 1000


@pytest.mark.parametrize("number", [hashed, beyond, narrowed, divided])
def test_an_index_is_cut_off_as_its_dtype_is(number: Any) -> None:
    x, there = np.ones(ROWS, np.float32), np.ones(ROWS, np.float32)
    bound = dropped.bind(spread=PAIRS, number=number)
    launched(bound, "gfx1151", {"X": x})
    assert bound(there, target="reference").target == "reference"
    assert np.array_equal(x, there)
    assert 0.1 < np.mean(x > 0) < 0.4


def test_an_index_from_memory_is_generated_by_itself() -> None:
    x, at = np.ones(ROWS, np.float32), np.random.default_rng(0).integers(0, 1 << 30, ROWS, np.int32)
    kept = tw.testing.philox(at, SEED, OFFSET) >= LEAST
    made, _ = launched(dropped_by_numbers.bind(), "gfx1151", {"X": x, "I": at})
    assert FOUR not in made.source
    assert np.array_equal(x, np.where(kept, 2, 0))
