"""What a measurement gives back: samples, medians, and intervals that assume no distribution."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A median, and an interval that holds the true median with 95 % confidence where samples allow it.

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
    """How long one callable took.

    Args:
        name: its name.
        samples_us: microseconds per call, one sample per round, in the order of the rounds.
        calls_per_sample: how many calls each sample is the mean of.
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
        """Interquartile range over median: how much the samples scatter."""
        if len(self.samples_us) < 2:
            return 0.0
        quarter, middle, three_quarters = statistics.quantiles(self.samples_us, n=4, method="inclusive")
        return (three_quarters - quarter) / middle


@dataclass(frozen=True, slots=True)
class Measurement:
    """What several callables took, measured in turns.

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
        """How many times as fast as ``beside`` ``name`` is: the median of the ratios within each round."""
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
