"""Clocks: host time by `perf_counter`, device time by events of CUDA or HIP."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tilewright.errors import ToolchainError
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.driver import Driver
from tilewright.runtime.drivers import driver_for
from tilewright.runtime.gpu_memory import DeviceMemory
from tilewright.targets.target import CPU

Work = Callable[[], object]

LEAST_SAMPLE_SECONDS = 1e-3
QUIET_SECONDS = 5e-3
MOST_WAIT_SECONDS = 0.5
MOST_CALLS = 100_000


class Clock(Protocol):
    """Times one callable once."""

    @property
    def how(self) -> str:
        """The clock and the state of the caches, in words."""

    def calls(self, work: Work) -> int:
        """Return the number of calls in a sample of this callable."""

    def sample(self, work: Work, calls: int) -> float:
        """Take one sample; returns seconds per call."""


class HostClock:
    """`perf_counter` around several calls.

    Args:
        calls: calls per sample; None: as many as fill a millisecond.
        wait: called before and after a sample, uncounted; waits for a device, or for other threads.
        warm: whether a sample begins with one uncounted call.
    """

    def __init__(self, calls: int | None = None, wait: Work | None = None, *, warm: bool = False) -> None:
        self._calls = calls
        self._wait = wait or (lambda: None)
        self._warm = warm

    @property
    def how(self) -> str:
        """Describes the clock, the length of a sample, and the state of the caches."""
        often = f"{self._calls} calls" if self._calls else "as many calls as fill a millisecond"
        return f"host time by perf_counter, {often} per sample, caches as the calls leave them"

    def calls(self, work: Work) -> int:
        """Return the fixed number, or the power of two that fills a millisecond."""
        if self._calls is not None:
            return self._calls
        count = 1
        while count < MOST_CALLS and self.sample(work, count) * count < LEAST_SAMPLE_SECONDS:
            count *= 2
        return count

    def sample(self, work: Work, calls: int) -> float:
        """Seconds per call."""
        turns = range(calls)
        self._wait()
        if self._warm:
            work()
        begin = self._now()
        for _ in turns:
            work()
        seconds = self._now() - begin
        self._wait()
        return seconds / calls

    def _now(self) -> float:
        return time.perf_counter()


def wait_for_quiet() -> None:
    """Return when no other thread of this process computes, or after half a second.

    A BLAS keeps its threads polling after a product (OpenBLAS 0.3.31 for 0.1 s). They take half of each
    processor's time from the next call that is timed.
    """
    end = time.perf_counter() + MOST_WAIT_SECONDS
    while time.perf_counter() < end:
        before = time.process_time() - time.thread_time()
        time.sleep(QUIET_SECONDS)
        if time.process_time() - time.thread_time() - before < QUIET_SECONDS / 10:
            return


class EventClock:
    """Events around one call, with a second-level cache that holds none of its data.

    Twice the cache's size is overwritten `FLUSHES` times before every call. Meanwhile the host enqueues the
    call, so that only the device is timed. If the host is late, the sample is taken again, up to `TRIES`
    times, each time after twice as many flushes. Samples for which it was always late are counted.

    Args:
        index: the device.
        stream: handle of the stream on which the callables run.
        driver: the driver of the device.
    """

    FLUSHES = 4
    TRIES = 4

    def __init__(self, index: int, stream: int, driver: Driver = CUDA_DRIVER) -> None:
        self._stream, self._driver = stream, driver
        self._memory = DeviceMemory(2 * driver.device(index).l2_bytes, index, driver)
        self._begin, self._end = (driver.call(driver.symbols.create_event, 0) for _ in range(2))
        self._samples = self._late = 0

    @property
    def how(self) -> str:
        """The clock, the flushes of the cache, and how often the device waited for the host."""
        text = f"device time by events, {self._memory.size_bytes} bytes overwritten before every call"
        late = f"; the device waited for the host in {self._late} of {self._samples} samples"
        return text + (late if self._late else "")

    def calls(self, work: Work) -> int:
        """One: a second call would find its data in the cache."""
        return 1

    def sample(self, work: Work, calls: int) -> float:
        """Seconds per call."""
        self._samples += 1
        seconds, is_late = self._sample(work, calls, self.FLUSHES)
        for retry in range(1, self.TRIES):
            if is_late:
                seconds, is_late = self._sample(work, calls, self.FLUSHES << retry)
        self._late += is_late
        return seconds

    def _sample(self, work: Work, calls: int, flushes: int) -> tuple[float, bool]:
        """Seconds per call, and whether the device waited for the host."""
        for _ in range(flushes):
            self._memory.clear(self._stream)
        driver, symbols = self._driver, self._driver.symbols
        driver.call(symbols.record, self._begin, self._stream)
        for _ in range(calls):
            work()
        is_late = driver.has_passed(self._begin)
        driver.call(symbols.record, self._end, self._stream)
        driver.call(symbols.wait_event, self._end)
        milliseconds: float = driver.call(symbols.elapsed, self._begin, self._end)
        return milliseconds / 1e3 / calls, is_late

    def close(self) -> None:
        """Destroy the events."""
        for event in (self._begin, self._end):
            self._driver.call(self._driver.symbols.destroy_event, event)


@contextmanager
def clock_for(target: str, stream: int | None = None, calls: int | None = None) -> Iterator[Clock]:
    """Return the clock of a target; with ``calls``, a clock for host time per call.

    Raises:
        ToolchainError: no driver, or no device.
    """
    driver = driver_for(target)
    if driver is None:
        yield HostClock(calls, wait_for_quiet, warm=calls is None)
        return
    driver.bindings()
    index = device_index(driver)
    handle = framework_stream() if stream is None else stream
    with driver.current(index):
        if calls is not None:
            yield HostClock(calls, lambda: driver.call(driver.symbols.wait_stream, handle))
            return
        clock = EventClock(index, handle, driver)
        try:
            yield clock
        finally:
            clock.close()


def device_index(driver: Driver = CUDA_DRIVER) -> int:
    """Return the number of the device that PyTorch uses, else 0.

    Raises:
        ToolchainError: no driver, or no device.
    """
    if not driver.device_count():
        raise ToolchainError(f"the driver finds no device; use target={CPU.name!r}")
    torch = _torch_on_device()
    return 0 if torch is None else int(torch.cuda.current_device())


def framework_stream() -> int:
    """Return the handle of PyTorch's current stream, or of the default stream if PyTorch uses no device."""
    torch = _torch_on_device()
    return 0 if torch is None else int(torch.cuda.current_stream().cuda_stream)


def _torch_on_device() -> Any:
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None
