"""Medians and their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.tune.measure import Measurement, Timing, median_interval

NUMBERS = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=60)


@given(NUMBERS)
def test_the_interval_holds_the_median_and_lies_in_the_range(samples: list[float]) -> None:
    found = median_interval(samples)
    assert min(samples) <= found.low <= found.median <= found.high <= max(samples)


@pytest.mark.parametrize("count", [6, 7, 20, 101])
def test_ends_are_the_order_statistics_of_the_binomial_distribution(count: int) -> None:
    found = median_interval([float(i) for i in range(1, count + 1)])
    rank = int(found.low)
    tail = sum(math.comb(count, j) for j in range(rank)) / 2**count
    assert tail <= 0.025
    assert tail + math.comb(count, rank) / 2**count > 0.025
    assert found.high == count + 1 - rank


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    found = [median_interval(list(rng.exponential(size=25))) for _ in range(2000)]
    held = np.mean([interval.low <= math.log(2) <= interval.high for interval in found])
    assert 0.94 < held < 0.98


def test_speed_compares_within_rounds() -> None:
    # The machine slows down from round to round; what is compared is not affected.
    ours = Timing("ours", tuple(10.0 * 2**i for i in range(9)))
    theirs = Timing("theirs", tuple(15.0 * 2**i for i in range(9)))
    taken = Measurement("made up", (ours, theirs))
    assert taken.speed("ours", "theirs").median == 1.5
    assert taken.speed("ours", "theirs").low == taken.speed("ours", "theirs").high == 1.5
    assert taken["ours"].us.median == 160.0


def test_spread_is_the_quartiles_over_the_median() -> None:
    assert Timing("x", (1.0, 2.0, 3.0, 4.0, 5.0)).spread == pytest.approx(2 / 3)
    assert Timing("x", (1.0,)).spread == 0.0


def test_an_unknown_name_lists_what_was_measured() -> None:
    with pytest.raises(KeyError, match="ours"):
        Measurement("made up", (Timing("ours", (1.0,)),))["theirs"]
