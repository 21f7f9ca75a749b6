"""Contests: calls that do the same work, checked first, then timed in turns on cold arrays."""

from __future__ import annotations

import itertools
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from tilewright.errors import TilewrightError
from tilewright.tune.machine import cache_bytes
from tilewright.tune.measure import Effort, Interval, Measurement, measure

# ----------------------------------------------------------------
# Clocks and power of a GPU during a measurement.


QUERY = {"mhz": "clocks.sm", "watts": "power.draw", "celsius": "temperature.gpu"}


@contextmanager
def watched(path: Path) -> Iterator[None]:
    """Have the vendor's tool, if it is installed, write its readings to a file ten times a second."""
    if not shutil.which("nvidia-smi"):
        yield
        return
    query = f"--query-gpu={','.join(QUERY.values())}"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "-lms", "100"]
    with path.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.terminate()


class Readings:
    """The readings in a file so far.

    Args:
        path: the file that `watched` writes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def mark(self) -> int:
        """Return the present end of the file, for `since`."""
        return self.path.stat().st_size if self.path.exists() else 0

    def since(self, mark: int) -> dict[str, float]:
        """Return the medians of the readings since a mark; empty without readings."""
        text = self.path.read_bytes()[mark:].decode() if self.path.exists() else ""
        rows: list[list[float]] = []
        for line in text.splitlines():
            try:
                rows.append([float(word) for word in line.split(",")])
            except ValueError:
                continue  # an incomplete line, or a figure that the device does not report
        columns = zip(*[row for row in rows if len(row) == len(QUERY)], strict=True)
        return {name: statistics.median(values) for name, values in zip(QUERY, columns, strict=False)}


# ---------------------------------------------------------------- the contest


Work = Callable[[], object]
Arrays = TypeVar("Arrays")
Check = Callable[[Work, Arrays], Mapping[str, Any]]

MOST_SETS = 64
"""Largest number of sets of arrays. The clock of a device also overwrites the cache."""


def sets_for(set_bytes: int, target: str) -> int:
    """Return how many sets of arrays to use in turn, so that no set is still cached at its next use.

    Between two uses of a set, the others fill twice the cache.

    Args:
        set_bytes: bytes of one set.
        target: the target that uses them.

    Example:
        >>> sets_for(1, "cpu"), sets_for(1 << 40, "cpu")
        (64, 2)
    """
    between = -(-2 * cache_bytes(target) // max(set_bytes, 1))
    return min(1 + between, MOST_SETS)


@dataclass(frozen=True)
class ContestSubject:
    """The work of all calls of a contest.

    Args:
        name: its name.
        target: the target that runs them.
        flops: operations of one call.
        bytes: the fewest bytes that one call moves.
        distribution: the distribution of the numbers in the arrays, in words.
    """

    name: str
    target: str
    flops: int
    bytes: int
    distribution: str


class Contest(Generic[Arrays]):
    """Calls that do the same work on the same numbers.

    Args:
        subject: their work.
        sets: copies of the arrays in different memory; each call uses one set after the other.
        set_bytes: bytes of one set.

    Example:
        >>> import numpy as np
        >>> def right(call, arrays):
        ...     arrays[1][...] = np.nan
        ...     call()
        ...     np.testing.assert_array_equal(arrays[1], 2 * arrays[0])
        ...     return {"elements": arrays[1].size}
        >>> sets = [(np.arange(8.0), np.empty(8)) for _ in range(2)]
        >>> contest = Contest(ContestSubject("double", "cpu", 8, 128, "whole numbers"), sets, 128)
        >>> contest.enter("add", lambda arrays: lambda: np.add(arrays[0], arrays[0], arrays[1]), right)
        True
        >>> contest.enter("copy", lambda arrays: lambda: np.copyto(arrays[1], arrays[0]), right)
        False
        >>> found = contest.run(Effort(seconds=0.01, least=3))
        >>> [*found.wrong], [timing.name for timing in found.taken.timings]
        (['copy'], ['add'])
    """

    def __init__(self, subject: ContestSubject, sets: Sequence[Arrays], set_bytes: int) -> None:
        self.subject = subject
        self.checks: dict[str, dict[str, Any]] = {}
        self.wrong: dict[str, str] = {}
        self._sets, self._set_bytes = sets, set_bytes
        self._calls: dict[str, Work] = {}

    def enter(self, name: str, bind: Callable[[Arrays], Work], check: Check[Arrays] | None = None) -> bool:
        """Add a call, if its result is right.

        Args:
            name: its name.
            bind: returns the call for a set of arrays.
            check: calls it on the first set, raises if the result is wrong, and returns its error; None for
                calls of other libraries, which are not checked.

        Returns:
            Whether it takes part; if not, ``wrong`` has the reason.
        """
        try:
            calls = [bind(arrays) for arrays in self._sets]
            if check is not None:
                self.checks[name] = dict(check(calls[0], self._sets[0]))
        except (TilewrightError, AssertionError, RuntimeError) as error:
            self.wrong[name] = str(error).strip()
            return False
        turn = itertools.cycle(calls).__next__
        self._calls[name] = lambda: turn()()
        return True

    def again(self, name: str, other: str) -> None:
        """Time a call a second time under another name; the difference of both times is noise."""
        self._calls[other] = self._calls[name]

    def run(self, effort: Effort | None = None, readings: Readings | None = None) -> Result:
        """Time all calls in turns.

        Args:
            effort: how long to measure.
            readings: the clocks and the power meanwhile.
        """
        mark = readings.mark() if readings is not None else 0
        taken = Measurement("nothing was timed", ())
        if self._calls:
            taken = measure(self._calls, self.subject.target, effort=effort)
        clock = readings.since(mark) if readings is not None else {}
        buffers = {
            "sets": len(self._sets),
            "set_bytes": self._set_bytes,
            "cache_bytes": cache_bytes(self.subject.target),
        }
        return Result(self.subject, taken, buffers, self.checks, self.wrong, clock)


@dataclass(frozen=True)
class Result:
    """The result of a contest.

    Args:
        subject: the work of all calls.
        taken: the times of the calls that took part.
        buffers: number of sets of arrays, bytes of one, and bytes of the second-level cache.
        checks: the error of each call.
        wrong: the reason for each call that took no part.
        clock: medians of the device's clock, power and temperature meanwhile; empty without readings.
    """

    subject: ContestSubject
    taken: Measurement
    buffers: Mapping[str, int]
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    wrong: Mapping[str, str] = field(default_factory=dict)
    clock: Mapping[str, float] = field(default_factory=dict)

    def tflops(self, name: str) -> float:
        """Return 10¹² operations per second."""
        return self.subject.flops / self.taken[name].us.median / 1e6

    def gbytes(self, name: str) -> float:
        """Return 10⁹ bytes per second, of the fewest bytes that have to move."""
        return self.subject.bytes / self.taken[name].us.median / 1e3

    def speeds(self, name: str) -> dict[str, Interval]:
        """Return the speed of one call relative to each other call."""
        names = (timing.name for timing in self.taken.timings)
        return {other: self.taken.speed(name, other) for other in names if other != name}

    def record(self) -> dict[str, Any]:
        """Return the result in JSON's types."""
        names = [timing.name for timing in self.taken.timings]
        return {
            "distribution": self.subject.distribution,
            "buffers": dict(self.buffers),
            "checks": {name: dict(found) for name, found in self.checks.items()},
            "wrong": dict(self.wrong),
            "clock": dict(self.clock),
            "tflops": {name: self.tflops(name) for name in names},
            "gbytes": {name: self.gbytes(name) for name in names},
            "speed": {
                name: {other: rounded(found) for other, found in self.speeds(name).items()} for name in names
            },
            "rounds": len(self.taken.timings[0].samples_us) if names else 0,
            **self.taken.record(),
        }


def rounded(found: Interval) -> list[float]:
    """Return the median, the lower and the upper end, for JSON."""
    return [round(value, 4) for value in (found.median, found.low, found.high)]
