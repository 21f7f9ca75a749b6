"""Tuned instances on a GPU, as schedules, element by element at ragged shapes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.instances.test_schedules import RUN, product

from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.checking.sample import laid_out, normal
from tilewright.dtypes import dtype
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu

LETTERS = {"row": "n", "column": "t"}


@pytest.mark.parametrize("name", RUN)
def test_an_instance_computes_ragged_products(name: str) -> None:
    instance, problems = RUN[name]
    for number, (m, n, k) in enumerate((*problems, (700, 333, 517), (512, 512, 512))):
        rng = np.random.default_rng(number)
        a = laid_out(normal(rng, (m, k), dtype(instance.a_dtype)), LETTERS[instance.a_layout])
        b = laid_out(normal(rng, (k, n), dtype(instance.b_dtype)), LETTERS[instance.b_layout])
        out = np.full((m, n), 99, dtype(instance.c_dtype).numpy)
        schedule = instance.schedule("sm_90a")
        there = [DeviceArray.of(array) for array in (a, b, out)]
        ran = product.bind(schedule=schedule)(*there)
        CUDA_DRIVER.synchronize()
        assert (ran.target, ran.schedule) == ("cuda", schedule)
        compare_gemm(a, b, there[2].host(), Accumulation.of(schedule.atom)).raise_if_wrong()
