"""Asynchronous products of operands along K, M and N on a GPU, element by element against float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.targets.cuda.majors import CASES, bind

from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", [(136, 152, 200), (128, 256, 512), (72, 8, 24)])
def test_products(name: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    along, rng = CASES[name]["along"], np.random.default_rng(sum(shape))
    a, b = (rng.standard_normal((rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    given = [
        DeviceArray.of(np.ascontiguousarray(x.T) if letter in along else x)
        for x, letter in ((a, "m"), (b, "n"))
    ]
    c = DeviceArray.of(np.full((m, n), np.nan, np.float32))
    bound = bind(**CASES[name])
    assert bound(*given, c).target == "cuda"
    CUDA_DRIVER.synchronize()
    compare_gemm(a, b.T, c.host(), Accumulation.of(bound.constants["mma"].atom)).raise_if_wrong()
