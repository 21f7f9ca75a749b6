"""Comparable timing: callables take turns until there are enough samples; medians with intervals.

Do not compare two numbers that were not taken in turns: clocks, heat and neighbours change meanwhile.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from tilewright.calls import launches
from tilewright.runtime.drivers import synchronize
from tilewright.tune.clocks import Clock, clock_for

# ----------------------------------------------------------------
# Samples, medians, and intervals that assume no distribution.


CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A median, and an interval that holds the true median with 95 % confidence if samples are enough.

    Args:
        median: the median of the samples.
        low: lower end.
        high: upper end.
    """

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} [{self.low:.3g}, {self.high:.3g}]"


def median_interval(samples: Sequence[float]) -> Interval:
    """The median and the order statistics around it.

    The number of samples below the true median is binomial whatever the distribution, so the interval needs
    no assumption; fewer than six samples cannot reach 95 %, and give their range.

    Args:
        samples: at least one number.

    Source:
        Conover, Practical Nonparametric Statistics, section 3.2: confidence interval for a quantile.

    Example:
        >>> median_interval([3.0, 1.0, 2.0, 5.0, 4.0, 100.0, 0.0])
        Interval(median=3.0, low=0.0, high=100.0)
    """
    ordered = sorted(samples)
    count = len(ordered)
    below, tail = 0, 0.0
    while below < (count - 1) // 2:
        tail += math.comb(count, below) / 2**count
        if tail > (1 - CONFIDENCE) / 2:
            break
        below += 1
    first = max(below - 1, 0)
    return Interval(statistics.median(ordered), ordered[first], ordered[count - 1 - first])


@dataclass(frozen=True, slots=True)
class Timing:
    """The samples of one callable.

    Args:
        name: its name.
        samples_us: microseconds per call, one sample per round, in the order of the rounds.
        calls_per_sample: number of calls whose mean is one sample.
    """

    name: str
    samples_us: tuple[float, ...]
    calls_per_sample: int = 1

    @property
    def us(self) -> Interval:
        """Microseconds per call."""
        return median_interval(self.samples_us)

    @property
    def spread(self) -> float:
        """Interquartile range of the samples, divided by their median."""
        if len(self.samples_us) < 2:
            return 0.0
        quarter, middle, three_quarters = statistics.quantiles(self.samples_us, n=4, method="inclusive")
        return (three_quarters - quarter) / middle


@dataclass(frozen=True, slots=True)
class Measurement:
    """The times of several callables, measured in turns.

    Args:
        how: the clock and the state of the caches, in words.
        timings: one per callable.
    """

    how: str
    timings: tuple[Timing, ...]

    def __getitem__(self, name: str) -> Timing:
        """The timing of one callable."""
        for timing in self.timings:
            if timing.name == name:
                return timing
        raise KeyError(f"no timing of {name!r}; measured: {', '.join(t.name for t in self.timings)}")

    def speed(self, name: str, beside: str) -> Interval:
        """Return the speed of ``name`` relative to ``beside``: the median of the ratios of all rounds."""
        pairs = zip(self[name].samples_us, self[beside].samples_us, strict=True)
        return median_interval([theirs / ours for ours, theirs in pairs])

    def record(self) -> dict[str, object]:
        """The measurement in JSON's types, without the samples."""
        return {
            "how": self.how,
            "timings": {
                timing.name: {
                    "median_us": timing.us.median,
                    "low_us": timing.us.low,
                    "high_us": timing.us.high,
                    "spread": timing.spread,
                    "rounds": len(timing.samples_us),
                    "calls_per_sample": timing.calls_per_sample,
                }
                for timing in self.timings
            },
        }


# ---------------------------------------------------------------- timing in turns


Work = Callable[[], object]
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure.

    Args:
        seconds: seconds of all rounds together.
        warm_up_seconds: seconds of the warm-up of all callables; each takes at least one sample.
        least: smallest number of rounds, however long they take.
        most: largest number of rounds.
    """

    seconds: float = 2.0
    warm_up_seconds: float = 0.2
    least: int = 7
    most: int = 101


QUICK = Effort(seconds=0.5, warm_up_seconds=0.05, least=3)
"""The effort for interactive use."""


def measure(
    callables: Mapping[str, Work], target: str, *, effort: Effort | None = None, clock: Clock | None = None
) -> Measurement:
    """Time per call of each callable, in rounds of one sample each, every round in another random order.

    In a fixed order each callable would inherit the heat and the caches of the same predecessor in nearly
    every round.  The random orders are the same in every process.

    On the GPU a call is timed by events on the stream where it runs, with a cold second-level cache. On the
    CPU a sample is the mean of as many calls as fill a millisecond.

    Args:
        callables: by name; each does the same work on data in the memory of the target.
        target: the target of a GPU for device time, any other one for host time.
        effort: how long to measure.
        clock: the clock; default: that of the target.

    Raises:
        ToolchainError: no CUDA driver, or no device.

    Example:
        >>> taken = measure({"sum": lambda: sum(range(100))}, "cpu", effort=Effort(seconds=0.01))
        >>> taken["sum"].us.median > 0
        True
    """
    with clock_for(target) if clock is None else nullcontext(clock) as chosen:
        return _rounds(callables, chosen, effort or Effort())


@launches
def do_bench(call: Callable[..., Any], target: str) -> float:
    """Return the milliseconds of one call: the median of a few calls after a warm-up.

    Args:
        call: the callable to time, without arguments.
        target: the target of a GPU for device time with a cold second-level cache, any other one for host
            time.

    Raises:
        ToolchainError: no CUDA driver, or no device.

    Example:
        >>> do_bench(lambda: sum(range(100)), "cpu") > 0
        True
    """
    return measure({"call": call}, target, effort=QUICK)["call"].us.median / 1e3


def first_time(call: Callable[[], Made], target: str) -> tuple[Made, float]:
    """Call something once, and wait for the device.

    Args:
        call: the call.
        target: the target of the device.

    Returns:
        The result of the call, and the seconds until all work was done.
    """
    begin = time.perf_counter()
    made = call()
    synchronize(target)
    return made, time.perf_counter() - begin


def perf_line(microseconds: float, flops: float, moved: float, name: str) -> str:
    """``Perf: <ms> ms, <x> TFlops, <y> GB/s, <name>`` of one call.

    Args:
        microseconds: the time of the call.
        flops: its operations.
        moved: bytes of its arrays, once each.
        name: its name.
    """
    tflops, gbytes = flops / microseconds / 1e6, moved / microseconds / 1e3
    return f"Perf: {microseconds / 1e3:.4g} ms, {tflops:.4g} TFlops, {gbytes:.4g} GB/s, {name}"


def measure_calls(
    callables: Mapping[str, Work], target: str, *, calls: int = 200, effort: Effort | None = None
) -> Measurement:
    """Host time per call of each callable, in many calls back to back, without the work on the device.

    The device is idle when a sample begins, and the wait for it after a sample is not counted. ``calls`` must
    stay below the depth of the launch queue, or the host waits for a free place.

    Args:
        callables: by name.
        target: as in `measure`.
        calls: calls per sample.
        effort: how long to measure.
    """
    with clock_for(target, calls=calls) as clock:
        return _rounds(callables, clock, effort or Effort())


WARM_UPS = 2
"""Smallest number of uncounted turns."""


def _rounds(callables: Mapping[str, Work], clock: Clock, effort: Effort) -> Measurement:
    names = list(callables)
    calls = {name: clock.calls(callables[name]) for name in names}
    begin = now = time.perf_counter()
    each, turns = 0.0, 0
    # The first turn loads code and data: the time of the last warm-up turn gives the number of rounds.
    while turns < WARM_UPS or now - begin < effort.warm_up_seconds:
        turns += 1
        for name in names:
            clock.sample(callables[name], calls[name])
        each, now = time.perf_counter() - now, time.perf_counter()
    rounds = min(max(int(effort.seconds / each), effort.least), effort.most)
    samples: dict[str, list[float]] = {name: [] for name in names}
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        order = names[:]
        shuffle(order)
        for name in order:
            samples[name].append(clock.sample(callables[name], calls[name]))
    timings = (Timing(name, tuple(1e6 * s for s in samples[name]), calls[name]) for name in names)
    return Measurement(clock.how, tuple(timings))
