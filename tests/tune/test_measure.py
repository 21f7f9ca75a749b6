"""Measurements in turns, and the record of the machine."""

from __future__ import annotations

import json
import platform
import time

import numpy as np
import pytest

from tilewright.errors import LaunchError, ToolchainError
from tilewright.runtime.cuda import device_count
from tilewright.tune.clocks import HostClock, clock_for
from tilewright.tune.machine import machine, version
from tilewright.tune.measure import Effort, do_bench, first_time, measure, measure_calls

SHORT = Effort(seconds=0.0, warm_up_seconds=0.0, least=6)


def test_callables_take_turns_in_random_order() -> None:
    order: list[str] = []

    def call(name: str) -> None:
        order.append(name)
        time.sleep(2e-3)  # longer than the least sample, so that each sample is one call

    names = "abc"
    taken = measure({name: (lambda name=name: call(name)) for name in names}, "cpu", effort=SHORT)
    assert order[::2] == order[1::2]  # each sample begins with an uncounted call
    turns = [
        "".join(order[at : at + 6 : 2]) for at in range(18, len(order), 6)
    ]  # after calibration and warm-up
    assert len(turns) == 6
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len(set(turns)) > 2
    assert all(len(timing.samples_us) == 6 for timing in taken.timings)
    assert all(timing.us.median > 2000 for timing in taken.timings)


def test_a_faster_callable_is_found_faster() -> None:
    calls = {"one": lambda: time.sleep(1e-3), "four": lambda: time.sleep(4e-3)}
    taken = measure(calls, "cpu", effort=SHORT)
    assert taken.speed("one", "four").median > 1.5
    assert taken.speed("four", "one").median < 1 / 1.5


def test_short_calls_share_a_sample() -> None:
    taken = measure({"nothing": lambda: None}, "cpu", effort=SHORT)
    timing = taken["nothing"]
    assert timing.calls_per_sample > 1000
    assert 0 < timing.us.median < 1000


def test_effort_bounds_the_rounds() -> None:
    effort = Effort(seconds=10.0, warm_up_seconds=0.0, least=3, most=9)
    assert len(measure({"nothing": lambda: None}, "cpu", effort=effort)["nothing"].samples_us) == 9


def test_calls_are_counted_and_waiting_is_not() -> None:
    counted: list[int] = []
    taken = measure_calls({"call": lambda: counted.append(1)}, "cpu", calls=50, effort=SHORT)
    assert taken["call"].calls_per_sample == 50
    assert len(counted) == 50 * 8
    clock = HostClock(1, wait=lambda: time.sleep(5e-3))
    assert clock.sample(lambda: None, 1) < 4e-3


def test_an_error_of_a_callable_comes_through() -> None:
    def fail() -> None:
        raise ValueError("from within")

    with pytest.raises(ValueError, match="from within"):
        measure({"fail": fail}, "cpu", effort=SHORT)


@pytest.mark.gpu
def test_device_time_is_close_to_what_the_device_takes() -> None:
    torch = pytest.importorskip("torch")
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    out = torch.empty_like(a)
    once = measure({"once": lambda: torch.mm(a, a, out=out)}, "cuda")["once"].us.median

    def twice() -> None:
        torch.mm(a, a, out=out)
        torch.mm(a, a, out=out)

    both = measure({"twice": twice}, "cuda")["twice"].us.median
    assert 1.5 < both / once < 2.2


@pytest.mark.gpu
def test_the_cache_is_cold() -> None:
    torch = pytest.importorskip("torch")
    source = torch.randn(4 << 20, device="cuda")  # 16 MiB, which the cache would hold
    target = torch.empty_like(source)
    us = measure({"copy": lambda: target.copy_(source)}, "cuda")["copy"].us.median
    assert 2 * source.nbytes / us / 1e6 < 5.0, "TB/s that no device memory has"


@pytest.mark.gpu
def test_calling_costs_less_than_the_work() -> None:
    torch = pytest.importorskip("torch")
    a = torch.randn(2048, 2048, device="cuda")
    out = torch.empty_like(a)
    calls = {"mm": lambda: torch.mm(a, a, out=out)}
    assert measure_calls(calls, "cuda", calls=20)["mm"].us.median < measure(calls, "cuda")["mm"].us.median


@pytest.mark.gpu
def test_the_record_names_the_device() -> None:
    found = machine("cuda", "abc")
    assert found.device is not None
    assert found.device.l2_bytes > 0
    assert found.device.arch.startswith("sm_")


@pytest.mark.parametrize("target", ["cdua", "gpu"])
def test_an_unknown_target_is_not_measured_as_the_host(target: str) -> None:
    rule = f"unknown target '{target}'; choose one of .*; did you mean 'cuda'"
    with pytest.raises(LaunchError, match=rule):
        do_bench(time.time, target)
    with pytest.raises(LaunchError, match=rule):
        first_time(time.time, target)
    with pytest.raises(LaunchError, match=rule):
        machine(target)


def test_without_a_gpu_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.runtime.cuda.CUDA_DRIVER.device_count", lambda: 0)
    monkeypatch.setattr("tilewright.runtime.cuda.CUDA_DRIVER.bindings", lambda: None)
    with pytest.raises(ToolchainError, match="no device"), clock_for("cuda"):
        pass


def test_the_record_of_the_machine() -> None:
    found = machine("cpu", commit="0123456789ab")
    assert found.python == platform.python_version()
    assert found.packages["numpy"] == np.__version__ == version("numpy")
    assert found.commit == "0123456789ab"
    assert found.device is None
    assert found.processors >= 1
    assert found.blas
    assert json.loads(json.dumps(found.record()))["threads"] == found.threads


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert version("no-such-package-as-this") == ""


def test_device_count_needs_no_driver() -> None:
    assert device_count() >= 0
