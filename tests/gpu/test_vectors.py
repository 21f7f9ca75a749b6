"""Products over one tiled dimension on a GPU: every element, in random problems."""

from __future__ import annotations

import numpy as np
import pytest
from tests.schedule.test_vectors import KERNELS, problem

from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", KERNELS)
def test_random_problems(name: str) -> None:
    for seed in range(6):
        arrays = problem(name, seed, ("f32", "f16", "bf16")[seed % 3])
        there = {key: DeviceArray.of(np.ascontiguousarray(array)) for key, array in arrays.items()}
        launch = KERNELS[name][0](*there.values())
        assert launch.target == "cuda"
        CUDA_DRIVER.synchronize()
        how = Accumulation.of(launch.schedule.atom)
        found = compare_flow(launch.flow, {"y": there["y"].host()}, arrays, {"alpha": 0.5}, how=how)
        assert found.ok, f"{seed}: {found}"
