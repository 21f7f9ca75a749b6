"""The current device of the caller's thread stays current, whatever device a call uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import LaunchError
from tilewright.ops import matmul as in_ops
from tilewright.ops.products import plain
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray, DeviceMemory
from tilewright.tune.clocks import clock_for

from .fake_gpu import Driver, OnGpu, context
from .test_prepared import count as counting
from .test_prepared import move_box as moving
from .test_prepared import scale as scaling

NOTHING, FOREIGN = 0, 0x77
DRIVER_ASKS = ("cuCtxGetCurrent", "cuStreamGetId")


@pytest.fixture
def gpus(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """There are two devices; every array is on the second one."""
    gpu.devices = 2
    monkeypatch.setattr(CUDA_DRIVER, "device_of", lambda pointer: 1)
    monkeypatch.setattr("tilewright.ops.matmul.plain", lambda rank: fresh(plain(rank)))
    in_ops._PLANS.forget()
    return gpu


def fresh(kernel: Any) -> Any:
    """Return the kernel without prepared launches, which belong to another test's driver."""
    return type(kernel)(kernel.program)


def on_gpu(*shape: int, element: Any = np.float32) -> OnGpu:
    return OnGpu(np.ones(shape, element))


def launch() -> Callable[[], object]:
    x, y = on_gpu(200), on_gpu(200)
    scale = fresh(scaling)
    return lambda: scale(x, y, 2.0)


def launch_with_workspaces() -> Callable[[], object]:
    x = on_gpu(200)
    count = fresh(counting)
    return lambda: count(x, 3)


def launch_with_tensor_maps() -> Callable[[], object]:
    a, b = (on_gpu(64, 64, element=np.float16) for _ in range(2))
    move_box = fresh(moving)
    return lambda: move_box(a, b)


def launch_prepared() -> Callable[[], object]:
    return fresh(scaling).bind().prepare(on_gpu(200), on_gpu(200), 2.0)


def launch_prepared_with_workspaces() -> Callable[[], object]:
    return fresh(counting).bind().prepare(on_gpu(200), 3)


def multiply() -> Callable[[], object]:
    a, b, out = (Matrix(np.ones((8, 8), np.float32)) for _ in range(3))
    return lambda: tw.matmul(a, b, out)


class Matrix(OnGpu):
    """A matrix with a transpose."""

    @property
    def T(self) -> Matrix:  # noqa: N802
        return Matrix(self.array.T)


def device_array() -> Callable[[], object]:
    return lambda: DeviceArray.of(np.ones(30, np.float32), 1).host()


CALLS = {
    made.__name__: made
    for made in (
        *(launch, launch_with_workspaces, launch_with_tensor_maps, launch_prepared),
        *(launch_prepared_with_workspaces, multiply, device_array),
    )
}


@pytest.mark.parametrize("current", [NOTHING, context(0), context(1), FOREIGN], ids=hex)
@pytest.mark.parametrize("name", CALLS)
def test_what_was_current_is_current_again(name: str, current: int, gpus: Driver) -> None:
    for _ in range(2):  # at first the kernel is loaded; then the same arrays, and others
        call = CALLS[name]()
        for _ in range(2):
            gpus.current = current
            gpus.used.clear()
            call()
            assert gpus.current == current
            used = {now for what, now in gpus.used if what not in DRIVER_ASKS}
            assert used == {context(1)}


def test_memory_is_freed_on_its_device(gpus: Driver) -> None:
    memory = DeviceMemory(100, 1)
    gpus.current = context(0)
    gpus.used.clear()
    del memory
    assert gpus.used == [("cuMemFree", context(1))]
    assert gpus.current == context(0)


def test_waiting_for_another_device(gpus: Driver) -> None:
    gpus.current = context(0)
    CUDA_DRIVER.synchronize(1)
    assert gpus.used[-1] == ("cuCtxSynchronize", context(1))
    assert gpus.current == context(0)


def test_a_launch_that_fails_restores_too(gpus: Driver) -> None:
    call = launch()
    gpus.status = CUDA_DRIVER.bindings().CUresult.CUDA_ERROR_LAUNCH_FAILED
    gpus.current = context(0)
    with pytest.raises(LaunchError, match="the launch failed"):
        call()
    assert gpus.current == context(0)


def test_a_clock_restores_when_it_is_left(gpus: Driver) -> None:
    gpus.current = FOREIGN
    with clock_for("cuda", 0, calls=2):
        assert gpus.current == context(0)
    assert gpus.current == FOREIGN


@pytest.mark.parametrize("devices", [1, 2])
def test_where_nothing_was_current_device_0_stays_so(devices: int, gpu: Driver) -> None:
    """Without a context the CUDA runtime takes device 0, too, and the next launch need not check again."""
    gpu.devices = devices
    scale = fresh(scaling)
    scale(on_gpu(200), on_gpu(200), 2.0)
    assert gpu.current == context(0)
    gpu.used.clear()
    scale(on_gpu(200), on_gpu(200), 2.0)
    assert gpu.used == [("cuLaunchKernel", context(0))]


def test_with_one_device_a_context_of_the_callers_own_comes_back(gpu: Driver, monkeypatch: Any) -> None:
    """The first launch fails, because the kernel belongs to the primary context."""
    call = launch()
    call()
    tried: list[int] = []
    launched = gpu._launch

    def only_on_the_primary(*arguments: Any) -> tuple[Any]:
        tried.append(gpu.current)
        if gpu.current != context(0):
            return (CUDA_DRIVER.bindings().CUresult.CUDA_ERROR_INVALID_HANDLE,)
        return launched(*arguments)

    monkeypatch.setattr(gpu, "_launch", only_on_the_primary)
    gpu.current = FOREIGN
    call()
    assert tried == [FOREIGN, context(0)]
    assert gpu.current == FOREIGN


def test_a_result_of_arrays_of_ours_is_one(gpu: Driver) -> None:
    a, b = (DeviceArray.of(np.ones(shape, np.float16)) for shape in ((16, 32), (32, 24)))
    made = tw.matmul(a, b, out_dtype="f32")
    assert isinstance(made, DeviceArray)
    assert (made.shape, made.strides, made.dtype) == ((16, 24), (96, 4), np.float32)
    assert made.memory.address in gpu.memory
    assert len(gpu.launched) == 1
