"""Small products of many batch items on a GPU: every item exactly, and some with random numbers."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.ops.products import output_dtype, plain
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu

SOME = 50
"""Items of random numbers that are compared one by one."""


@pytest.mark.parametrize("name", ["bf16", "f16", "f32", "f64", "i8"])
@pytest.mark.parametrize(("items", "side"), [(1000, 32), (65536, 16), (70000, 17), (1000, 64), (133, 9)])
def test_every_item(name: str, items: int, side: int) -> None:
    kind, out = tw.dtype(name), output_dtype(tw.dtype(name))
    rng = np.random.default_rng([items, side])
    for whole in (True, False):
        drawn = (
            rng.integers(-3, 4, (items, side, side)) if whole else rng.standard_normal((items, side, side))
            for _ in range(2)
        )
        a, b = (array.astype(kind.numpy) for array in drawn)
        filler = np.nan if out.is_float else 99
        there = [DeviceArray.of(array) for array in (a, b, np.full((items, side, side), filler, out.numpy))]
        ran = plain(1).bind(precision="exact")(*there)
        CUDA_DRIVER.synchronize()
        assert ran.target == "cuda"
        assert ran.schedule is not None
        assert ran.schedule.tile[0] <= 64
        made = there[2].host()
        if whole:
            exact = a.astype(np.float64) @ b.astype(np.float64)
            np.testing.assert_array_equal(made, exact.astype(out.numpy))
        for at in (0, items - 1, *rng.integers(0, items, SOME)):
            compare_gemm(a[at], b[at], made[at], how=Accumulation.of(ran.schedule.atom)).raise_if_wrong()


def test_more_items_of_large_tiles_than_an_axis_of_a_grid_has_blocks() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (65537, *shape)).astype(np.float16) for shape in ((8, 129), (129, 8)))
    there = [DeviceArray.of(array) for array in (a, b, np.full((65537, 8, 8), np.nan, np.float16))]
    assert plain(1).bind(precision="exact")(*there).target == "cuda"
    CUDA_DRIVER.synchronize()
    np.testing.assert_array_equal(there[2].host(), a.astype(np.float32) @ b)
