"""The line that ends what a verb times: ``Perf: <ms> ms, <x> TFlops, <y> GB/s, <name>``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import typer

from tilewright.cli.console import duration, say, working
from tilewright.targets.target import TARGETS
from tilewright.tune.measure import QUICK, Effort, Measurement, measure, perf_line
from tilewright.tune.rivals import Calls
from tilewright.tune.trial import OURS


class ComparedResult(Protocol):
    """What is right of a result; its text says how near it is."""

    def raise_if_wrong(self) -> None:
        """Raise an error of what is wrong."""


class Timed(Protocol):
    """A problem that was verified, and can be timed beside others."""

    target: str

    def run(self) -> float:
        """Compute it; seconds."""

    def time(self, effort: Effort | None = None) -> Measurement:
        """Time it in turns with what stands beside it."""

    def perf(self, us: float) -> str:
        """The last line."""


def first_call(trial: Timed) -> None:
    """Run a problem, and say how long that took."""
    with working("running"):
        seconds = trial.run()
    say("run", f"on {trial.target}: {duration(seconds)} for the first call")


def verified(compared: Callable[[], ComparedResult]) -> None:
    """Compare what was computed, say how near it is, and end the verb if it is wrong."""
    with working("verifying"):
        found = compared()
    found.raise_if_wrong()
    say("verify", str(found))


def timed(trial: Timed) -> None:
    """Time a problem beside others, say each, and print the line."""
    if not TARGETS[trial.target].machine_code:
        typer.echo(trial.perf(1e6 * trial.run()))
        return
    with working("timing"):
        taken = trial.time(QUICK)
    typer.echo(trial.perf(told(taken)))


def told(taken: Measurement) -> float:
    """Say what each call took, and how much faster ours is; gives back the microseconds of ours."""
    for timing in taken.timings:
        speed = "" if timing.name == OURS else f"; {OURS} is {taken.speed(OURS, timing.name)} times as fast"
        say("time", f"{timing.name}: {duration(timing.us.median / 1e6)}{speed}")
    return taken[OURS].us.median


def perf(
    call: Callable[[], object],
    target: str,
    flops: float,
    moved: int,
    name: str,
    rivals: Callable[[], Calls],
) -> None:
    """Time a call in turns with those of other libraries, say each, and print the line.

    Args:
        call: what is timed.
        target: where it runs.
        flops: of one call.
        moved: bytes of its arrays, once each.
        name: what it is.
        rivals: makes the calls that stand beside it, by name.
    """
    if TARGETS[target].machine_code:
        with working("timing"):
            taken = measure({OURS: call, **rivals()}, target, effort=QUICK)
        us = told(taken)
    else:  # it executes operation by operation to find hazards; its time says nothing about a machine
        begun = time.perf_counter()
        call()
        us = 1e6 * (time.perf_counter() - begun)
    typer.echo(perf_line(us, flops, moved, name))


def by(extents: Sequence[int]) -> str:
    """Extents with x between them."""
    return "x".join(map(str, extents))
