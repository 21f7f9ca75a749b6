"""Memory that a captured CUDA graph uses is kept, whatever is released meanwhile."""

from __future__ import annotations

import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.arrays import describe
from tilewright.runtime.cuda import CUDA_DRIVER

from .fake_gpu import Driver, OnGpu
from .test_prepared import count
from .test_recent import double

STREAM = 77


@pytest.mark.parametrize("is_captured", [False, True])
def test_code_that_a_graph_launches_is_never_unloaded(gpu: Driver, is_captured: bool) -> None:
    x, y = OnGpu(np.ones(64, np.float32)), OnGpu(np.zeros(64, np.float32))
    bound = double.bind(seed=900 + is_captured)
    gpu.capturing = {STREAM} if is_captured else set()
    gpu.loaded = 900_000  # a number that no test before has given
    executable = bound(x, y, stream=STREAM)
    number = gpu.loaded
    bound.forget(executable)
    double._bound.forget()
    del executable, bound
    gc.collect()
    gpu.capturing.clear()
    assert number not in gpu.unloaded  # its launches may still run, and a graph may be being captured
    double.bind(seed=910 + is_captured)(x, y)
    assert number not in gpu.unloaded  # nor when other code is loaded, for the same reason
    CUDA_DRIVER.synchronize()
    assert (number in gpu.unloaded) is not is_captured


def test_workspaces_of_a_graph_are_its_own(gpu: Driver) -> None:
    gpu.arguments = 2
    again = count.bind().prepare(OnGpu(np.zeros(130, np.float32)), 3)
    again(stream=STREAM)
    gpu.capturing.add(STREAM)
    again(stream=STREAM)
    again(stream=STREAM)  # the first one has taken what the launch had before
    gpu.capturing.clear()
    ours = {launched.words[1] for launched in gpu.launched[-2:]}
    assert len(ours) == 2
    for stream in range(100, 130):
        again(stream=stream)
    again(stream=STREAM)
    assert gpu.freed
    assert ours.isdisjoint(gpu.freed)
    assert ours.isdisjoint(launched.words[1] for launched in gpu.launched[3:])


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16])
def test_extension_dtypes_as_they_name_themselves(gpu: Driver, dtype: Any) -> None:
    class Array(OnGpu):
        @property
        def dtype(self) -> Any:
            return self.array.dtype

    array = Array(np.zeros((8, 16), dtype))
    assert array.__cuda_array_interface__["typestr"] == np.dtype(dtype).str
    assert describe(array).dtype == tw.dtype(dtype)
