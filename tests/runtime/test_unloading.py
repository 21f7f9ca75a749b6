"""Unused machine code is unloaded after a wait for the device, and not before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tilewright.errors import LaunchError
from tilewright.runtime import driver
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.driver import LoadedFunction

from .fake_gpu import Driver


def code(index: int = 0) -> LoadedFunction:
    """Load a kernel on a device."""
    return CUDA_DRIVER.load(b"machine code", "entry", index, 0)


def number(function: LoadedFunction) -> int:
    """Return the driver's number of its machine code."""
    return int(function.handle)


@pytest.fixture
def waiting(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Set a function that runs during the wait for the device."""

    def set_to(happens: Callable[[], None]) -> None:
        def call(name: str, *arguments: Any) -> Any:
            if name == "cuCtxSynchronize":
                happens()
            return gpu.call(name, *arguments)

        monkeypatch.setattr(CUDA_DRIVER, "call", call)

    return set_to


def test_only_what_nobody_holds_is_unloaded_and_only_after_a_wait(gpu: Driver) -> None:
    held, others = code(), [code() for _ in range(30)]
    numbers = [number(one) for one in others]
    others.clear()
    assert (gpu.unloaded, gpu.waits) == ([], 0)  # launches of them may run
    CUDA_DRIVER.synchronize()
    assert (sorted(gpu.unloaded), gpu.waits) == (numbers, 1)
    assert number(held) not in gpu.unloaded
    CUDA_DRIVER.synchronize()
    assert len(gpu.unloaded) == 30
    calls = [name for name, _ in gpu.used if name in ("cuCtxSynchronize", "cuModuleUnload")]
    assert calls == ["cuCtxSynchronize", *["cuModuleUnload"] * 30, "cuCtxSynchronize"]
    assert {context for name, context in gpu.used if name == "cuModuleUnload"} == {CUDA_DRIVER.context(0)}


def test_what_waits_to_be_unloaded_is_bounded(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MOST_UNWANTED", 4)
    numbers, most = [], 0
    for _ in range(40):
        numbers.append(number(code()))
        most = max(most, len(CUDA_DRIVER.unwanted))
    assert most == 5
    assert gpu.unloaded == numbers[:35]
    assert gpu.waits == 7


def test_what_is_let_go_during_the_wait_is_left_to_the_next(
    gpu: Driver, waiting: Callable[[Callable[[], None]], None]
) -> None:
    """Another thread may have launched an executable that is released while this thread waits."""
    others = [code(), code()]
    first, second = map(number, others)
    others.pop(0)
    waiting(others.clear)
    CUDA_DRIVER.synchronize()
    assert gpu.unloaded == [first]
    CUDA_DRIVER.synchronize()
    assert gpu.unloaded == [first, second]


def test_each_device_unloads_its_own(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MOST_UNWANTED", 4)
    gpu.devices = 2
    numbers = [number(code(1)) for _ in range(5)]
    code(0)
    assert gpu.waits == 0, "the other device has too many"
    CUDA_DRIVER.synchronize(0)
    assert len(gpu.unloaded) == 1
    assert not {*gpu.unloaded} & {*numbers}
    code(1)
    assert gpu.unloaded[1:] == numbers
    used = [context for name, context in gpu.used if name == "cuModuleUnload"]
    assert used == [CUDA_DRIVER.context(0)] + [CUDA_DRIVER.context(1)] * 5


def test_after_a_kernel_failed_other_code_is_loaded_and_none_is_unloaded(
    gpu: Driver, waiting: Callable[[Callable[[], None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed() -> None:
        raise LaunchError("a kernel failed")

    waiting(failed)
    monkeypatch.setattr(driver, "MOST_UNWANTED", 1)
    for _ in range(3):
        code()
    assert gpu.unloaded == []
    with pytest.raises(LaunchError, match="a kernel failed"):
        CUDA_DRIVER.synchronize()
