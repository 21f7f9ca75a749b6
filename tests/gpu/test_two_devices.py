"""Launches on the second of two GPUs, from a thread whose current device is the first one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from tests.canaries import Canaries
from tests.runtime.exact import count

import tilewright as tw
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.two_gpus


def multiply(torch: Any, device: str, canaries: Canaries) -> bool:
    a, b = (torch.randint(-4, 5, (70, 70), device=device).half() for _ in range(2))
    out = canaries.torch(np.full((70, 70), np.nan, np.float16), device)
    return tw.matmul(a, b, out) is out and torch.equal(out.float(), a.float() @ b.float())


def counted(torch: Any, device: str, canaries: Canaries) -> bool:
    x = canaries.torch(np.full(500, np.nan, np.float32), device)
    again = count.bind().prepare(x, 7)
    again()
    ran = count(x, 5)
    torch.cuda.synchronize(device)
    return ran.target == "cuda" and bool((x == 5).all())


def there_and_back(torch: Any, device: str, canaries: Canaries) -> bool:
    host = np.arange(12.0).reshape(3, 4)
    return np.array_equal(DeviceArray.of(host, int(device[-1])).host(), host)


def own_array(torch: Any, device: str, canaries: Canaries) -> bool:
    """The driver says on which GPU an array of the library lies."""
    x = DeviceArray.of(np.full(500, np.nan, np.float32), int(device[-1]))
    assert CUDA_DRIVER.device_of(x.memory.address) == int(device[-1])
    assert CUDA_DRIVER.device_of(torch.ones(3, device=device).data_ptr()) == int(device[-1])
    return count(x, 5).target == "cuda" and bool((x.host() == 5).all())


WORK: dict[str, Callable[[Any, str, Canaries], bool]] = {
    work.__name__: work for work in (multiply, counted, there_and_back, own_array)
}


@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("current", [0, 1])
def test_the_current_device_stays(name: str, current: int, canaries: Canaries) -> None:
    torch = import_module("torch")
    assert CUDA_DRIVER.device_count() >= 2, "two GPUs are needed"
    torch.cuda.set_device(current)
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        context = int(CUDA_DRIVER.call("cuCtxGetCurrent"))
        assert WORK[name](torch, device, canaries)
        assert torch.cuda.current_device() == current
        assert int(CUDA_DRIVER.call("cuCtxGetCurrent")) == context
        assert torch.empty(1, device="cuda").device.index == current
    torch.cuda.set_device(0)


@pytest.mark.parametrize("name", WORK)
def test_a_thread_that_has_used_no_device_stays_on_device_0(name: str, canaries: Canaries) -> None:
    torch = import_module("torch")
    found: list[object] = []

    def work() -> None:
        found.append(WORK[name](torch, "cuda:1", canaries))
        found.append(torch.cuda.current_device())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True, 0]
