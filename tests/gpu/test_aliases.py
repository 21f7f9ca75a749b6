"""Kernels without findings run on arguments that share memory, and through stmatrix and ldmatrix."""

from __future__ import annotations

import numpy as np
import pytest
from tests.hazards.test_aliases import matrix, scaled, transposed
from tests.hazards.test_engines import MAP, there_and_back

from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("shape", [(64, 64), (45, 70), (33, 129)])
def test_elementwise_in_place(shape: tuple[int, int]) -> None:
    x = matrix(*shape)
    array = DeviceArray.of(x)
    assert scaled(array, array).target == "cuda"
    assert np.array_equal(array.host(), 2 * x)


def test_a_transposition_in_place_by_one_block() -> None:
    x = matrix(32, 32)
    array = DeviceArray.of(x)
    assert transposed(array, array, tile=32).target == "cuda"
    assert np.array_equal(array.host(), x.T)


def test_stmatrix_a_warp_barrier_and_ldmatrix() -> None:
    x = matrix(32, 32, np.float16)
    source, target = DeviceArray.of(x), DeviceArray.of(np.zeros_like(x))
    assert there_and_back(source, target, spread=MAP, ordered=True).target == "cuda"
    assert np.array_equal(target.host(), x)
