"""The device's clock on a driver that records its calls; GPU tests use the real one."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.tune.clocks import (
    MOST_WAIT_SECONDS,
    QUIET_SECONDS,
    EventClock,
    HostClock,
    clock_for,
    wait_for_quiet,
)
from tilewright.tune.measure import Effort, measure, measure_calls


class FakeDriver:
    """Events carry the time at which they were recorded; only work takes time."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.now_ms = 0.0
        self.events: dict[int, float] = {}
        self.late: bool | list[bool] = False

    def call(self, name: str, *arguments: Any) -> Any:
        self.asked.append(name)
        if name == "cuEventCreate":
            self.events[len(self.events)] = 0.0
            return len(self.events) - 1
        if name == "cuEventRecord":
            self.events[arguments[0]] = self.now_ms
        if name == "cuEventElapsedTime":
            return self.events[arguments[1]] - self.events[arguments[0]]
        if name == "cuMemAlloc":
            return 4096
        return None

    def query(self, event: int) -> tuple[int]:
        late = self.late.pop(0) if isinstance(self.late, list) else self.late
        return (0 if late else 600,)

    def work(self, milliseconds: float) -> None:
        self.asked.append("work")
        self.now_ms += milliseconds


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """Return a driver; its constants, which a real one keeps, are forgotten after the test."""
    fake, own = FakeDriver(), vars(CUDA_DRIVER)
    before = {**own, "_constants": {**own["_constants"]}}
    monkeypatch.setattr(CUDA_DRIVER, "call", fake.call)
    monkeypatch.setattr(CUDA_DRIVER, "activate", lambda index: None)
    monkeypatch.setattr(CUDA_DRIVER, "device_count", lambda: 1)
    monkeypatch.setattr(CUDA_DRIVER, "device", lambda index: SimpleNamespace(l2_bytes=1000))
    modes = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)
    bindings = SimpleNamespace(
        cuEventQuery=fake.query,
        cuMemFree=lambda address: (0,),
        CUstreamCaptureMode=modes,
        CUresult=SimpleNamespace(CUDA_SUCCESS=0),
    )
    monkeypatch.setattr(CUDA_DRIVER, "bindings", lambda: bindings)
    yield fake
    monkeypatch.undo()
    own.clear()
    own.update(before)


def test_a_sample_overwrites_the_cache_and_puts_events_around_the_call(driver: FakeDriver) -> None:
    clock = EventClock(0, 7)
    driver.asked.clear()
    assert clock.sample(lambda: driver.work(3.0), 1) == pytest.approx(3e-3)
    flushes = ["cuMemsetD8Async"] * EventClock.FLUSHES
    around = ["cuEventRecord", "work", "cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime"]
    assert driver.asked == [*flushes, *around]
    assert "2000 bytes overwritten" in clock.how
    assert "waited" not in clock.how


def test_a_device_that_waited_for_the_host_is_told(driver: FakeDriver) -> None:
    driver.late = True
    taken = measure({"work": lambda: driver.work(1.0)}, "cuda", effort=Effort(0.0, 0.0, least=4))
    assert taken.how.endswith("the device waited for the host in 6 of 6 samples")
    assert taken["work"].us.median == pytest.approx(1000)


def test_a_sample_for_which_the_host_was_late_is_taken_again(driver: FakeDriver) -> None:
    clock, took = EventClock(0, 7), iter((9.0, 8.0, 1.0))
    driver.late = [True, True, False]
    assert clock.sample(lambda: driver.work(next(took)), 1) == pytest.approx(1e-3)
    assert "waited" not in clock.how
    assert driver.asked.count("work") == 3
    assert driver.asked.count("cuMemsetD8Async") == EventClock.FLUSHES * (1 + 2 + 4)


def test_the_ratio_is_that_of_the_device(driver: FakeDriver) -> None:
    calls = {"one": lambda: driver.work(1.0), "three": lambda: driver.work(3.0)}
    taken = measure(calls, "cuda", effort=Effort(0.0, 0.0, least=6))
    assert taken.speed("one", "three").median == pytest.approx(3)
    assert driver.asked.count("cuEventDestroy") == 2


def test_calls_wait_for_the_device_outside_of_the_time(driver: FakeDriver) -> None:
    measure_calls({"work": lambda: driver.work(1.0)}, "cuda", calls=5, effort=Effort(0.0, 0.0, least=1))
    sample = ["cuStreamSynchronize", *["work"] * 5, "cuStreamSynchronize"]
    assert driver.asked == sample * 3


def test_other_targets_use_the_host() -> None:
    for target in ("cpu", "reference"):
        with clock_for(target) as clock:
            assert isinstance(clock, HostClock)


class FakeTime:
    """A clock that only sleeping moves; another thread of the process computes until ``busy_until``."""

    def __init__(self, busy_until: float) -> None:
        self.now, self.busy_until = 0.0, busy_until

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return min(self.now, self.busy_until)

    def thread_time(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("busy", [0.0, 0.1, 100.0])
def test_waiting_until_no_other_thread_computes(monkeypatch: pytest.MonkeyPatch, busy: float) -> None:
    clock = FakeTime(busy)
    monkeypatch.setattr("tilewright.tune.clocks.time", clock)
    wait_for_quiet()
    assert clock.now == pytest.approx(min(busy, MOST_WAIT_SECONDS), abs=2 * QUIET_SECONDS)
    assert clock.now >= min(busy, MOST_WAIT_SECONDS)


def test_a_warm_sample_begins_with_an_uncounted_call() -> None:
    counted: list[int] = []
    HostClock(3, warm=True).sample(lambda: counted.append(1), 3)
    assert len(counted) == 4
