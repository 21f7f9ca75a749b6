"""Flows without a product on a GPU: random problems, and the bits of the reference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.problems.elementwise_problems import carried_out, line, reduced

from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("compute", [carried_out, reduced])
def test_random_problems(compute: Callable[[int, str], str]) -> None:
    found = {number: compute(number, "cuda") for number in range(12)}
    assert set(found.values()) == {""}, found


@pytest.mark.parametrize("count", [4096, 100_003])
def test_conversions_give_the_bits_of_the_reference(count: int) -> None:
    rng = np.random.default_rng(count)
    given = {name: rng.standard_normal(count, np.float32).astype(np.float16) for name in "xyz"}
    there = {name: DeviceArray.of(array) for name, array in given.items()}
    assert line(**there, alpha=0.5).target == "cuda"
    assert line(**given, alpha=0.5, target="reference").target == "reference"
    for name in "yz":
        assert there[name].host().tobytes() == given[name].tobytes()
