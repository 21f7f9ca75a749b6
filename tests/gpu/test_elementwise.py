"""Flows without a product on a GPU: random problems, and the bits of the reference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.problems.elementwise_problems import carried_out, line, reduced, scanned, scanned_in_parts

import tilewright as tw
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("compute", [carried_out, reduced, scanned, scanned_in_parts])
def test_random_problems(compute: Callable[[int, str], str]) -> None:
    found = {number: compute(number, "cuda") for number in range(12)}
    assert set(found.values()) == {""}, found


@pytest.mark.parametrize("count", [2**20, 999_999])
def test_many_blocks_sum_a_line(count: int, canaries: None) -> None:
    """Sums of integers are exact, also those from the end, and of three rows."""

    @tw.kernel(X="M N", Y="M N", Z="M N")
    def lines(X, Y, Z):
        for m, n in tw.tiles(Y):
            once = X[m, n].cumsum(axis=1)
            Y[m, n] = once
            Z[m, n] = 2 * once

    @tw.kernel(x="N", y="N")
    def from_the_end(x, y):
        for n in tw.tiles(y):
            y[n] = x[n].cumsum(axis=0, reverse=True)

    x = np.random.default_rng(count).integers(-9, 9, (3, count), np.int32)
    x, y, z = (DeviceArray.of(one) for one in (x, np.full_like(x, 77), np.full_like(x, 77)))
    ran = lines(x, y, z)
    assert (ran.target, ran.schedule.split_k) == ("cuda", "auto")
    assert (y.host() == x.host().cumsum(axis=1, dtype=np.int32)).all()
    assert (z.host() == 2 * y.host()).all()
    line = DeviceArray.of(x.host()[0].copy())
    made = DeviceArray.of(np.full(count, 77, np.int32))
    for _ in range(3):  # counters are as they were
        ran = from_the_end(line, made)
        assert (ran.target, ran.schedule.split_k) == ("cuda", "auto")
        assert (made.host()[::-1] == line.host()[::-1].cumsum(dtype=np.int32)).all()


@pytest.mark.parametrize("count", [4096, 100_003])
def test_conversions_give_the_bits_of_the_reference(count: int) -> None:
    rng = np.random.default_rng(count)
    given = {name: rng.standard_normal(count, np.float32).astype(np.float16) for name in "xyz"}
    there = {name: DeviceArray.of(array) for name, array in given.items()}
    assert line(**there, alpha=0.5).target == "cuda"
    assert line(**given, alpha=0.5, target="reference").target == "reference"
    for name in "yz":
        assert there[name].host().tobytes() == given[name].tobytes()
