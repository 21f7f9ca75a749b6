"""Arrays in GPU memory without a framework."""

from __future__ import annotations

import gc
from importlib import import_module

import numpy as np
import pytest
from tests.canaries import plain

import tilewright as tw
from tilewright.runtime import nvrtc
from tilewright.runtime.arrays import describe
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.tune.rivals import as_tensor

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [tw.f64, tw.f32, tw.f16, tw.bf16, tw.f8e4m3, tw.i8, tw.i32], ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_there_and_back(dtype: tw.DType, order: str) -> None:
    host = np.asarray(np.arange(15).reshape(3, 5).astype(dtype.numpy), order=order)  # type: ignore[call-overload]
    array = plain(host)
    assert array.host().tobytes() == host.tobytes()
    assert array.host().strides == host.strides
    assert array.T.host().tobytes() == host.T.tobytes()
    info = describe(array)
    assert info.device == ("cuda", 0)
    assert info.dtype == dtype
    assert info.strides == tuple(stride // dtype.bytes for stride in host.strides)


def test_a_view_with_gaps_is_copied_densely() -> None:
    host = np.arange(24.0).reshape(4, 6)[::2, ::3]
    assert np.array_equal(plain(host).host(), host)


def test_other_libraries_see_the_same_memory() -> None:
    torch = import_module("torch")
    host = np.random.default_rng(0).standard_normal((3, 5)).astype(tw.bf16.numpy)
    array = plain(host)
    tensor = as_tensor(array)
    assert tensor.dtype == torch.bfloat16
    assert np.array_equal(tensor.float().cpu().numpy(), host.astype(np.float32))
    tensor.zero_()
    torch.cuda.synchronize()
    assert not array.host().astype(np.float32).any()


def test_the_compiler_reports_what_it_used_each_time() -> None:
    """NVRTC has a cache on machines with a driver, and reports nothing for cached code."""
    text = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }'
    first, again = (nvrtc.compile_text(text, CUDA_DRIVER.device().arch) for _ in range(2))
    assert first.resources == again.resources
    assert again.resources["registers"] > 0


def test_memory_is_given_back() -> None:
    arrays = [plain(np.zeros(1 << 20, np.uint8)) for _ in range(4)]
    addresses = [describe(array).pointer for array in arrays]
    for address in addresses:
        assert int(CUDA_DRIVER.call("cuMemGetAddressRange", address)[1]) >= 1 << 20
    del arrays
    gc.collect()
    for address in addresses:
        with pytest.raises(tw.LaunchError, match=r"CUDA_ERROR_(NOT_FOUND|INVALID_VALUE)"):
            CUDA_DRIVER.call("cuMemGetAddressRange", address)
