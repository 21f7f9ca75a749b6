"""Asynchronous MMA that overwrites its sums, on a GPU, element by element against float64."""

from __future__ import annotations

import numpy as np
import pytest
from tests.targets.fresh_sums import CASES, bind, out_of

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.checking.sample import operands
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("poison", [None, 1000])
@pytest.mark.parametrize("name", CASES)
def test_products(name: str, poison: int | None) -> None:
    dtype, period = CASES[name][0], CASES[name][4]
    made = operands("random", tw.dtype(dtype), (72, 136, 656), layout="nt", seed=11)
    c = DeviceArray.of(np.full((72, 136), 99, tw.dtype(out_of(dtype)).numpy))
    bound = bind(name, poison=poison)
    given = [DeviceArray.of(np.ascontiguousarray(x)) for x in (made.a, made.b.T)]
    assert bound(*given, c).target == "cuda"
    CUDA_DRIVER.synchronize()
    how = Accumulation.of(bound.constants["mma"].atom, period and period * 128 // tw.dtype(dtype).bytes)
    compare_gemm(made.a, made.b, c.host(), how).raise_if_wrong()
