"""The last line of a verb that times a call: ``Perf: <ms> ms, <x> TFlops, <y> GB/s, <name>``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import typer

from tilewright.checking.compare import GemmComparison
from tilewright.checking.flows import StoredComparison
from tilewright.cli.console import duration, say, working
from tilewright.targets.target import TARGETS
from tilewright.tune.measure import QUICK, Measurement, measure, perf_line
from tilewright.tune.rivals import Calls
from tilewright.tune.trial import OURS, FlowTrial


def first_call(trial: FlowTrial) -> None:
    """Run a trial, and print the time of the first call."""
    with working("running"):
        seconds = trial.run()
    say("run", f"on {trial.target}: {duration(seconds)} for the first call")


def verified(compared: Callable[[], GemmComparison | StoredComparison]) -> None:
    """Compare a result, print the outcome, and end the verb if the result is wrong."""
    with working("verifying"):
        found = compared()
    found.raise_if_wrong()
    say("verify", str(found))


def timed(trial: FlowTrial) -> None:
    """Time a trial in turns with other libraries, print each time, then the line of ours."""
    if not TARGETS[trial.target].machine_code:
        typer.echo(trial.perf(1e6 * trial.run()))
        return
    with working("timing"):
        taken = trial.time(QUICK)
    typer.echo(trial.perf(told(taken)))


def told(taken: Measurement) -> float:
    """Print the time of each call and the speed of ours relative to it; returns the microseconds of ours."""
    for timing in taken.timings:
        speed = "" if timing.name == OURS else f"; {OURS} is {taken.speed(OURS, timing.name)} times as fast"
        say("time", f"{timing.name}: {duration(timing.us.median / 1e6)}{speed}")
    return taken[OURS].us.median


def perf(
    call: Callable[[], object], target: str, flops: float, moved: int, name: str, rivals: Callable[[], Calls]
) -> None:
    """Time a call in turns with other libraries, print each time, then the line of ours.

    Args:
        call: our call.
        target: the target that runs it.
        flops: operations of one call.
        moved: bytes of its arrays, once each.
        name: its name in the line.
        rivals: makes the calls of other libraries, by name.
    """
    if TARGETS[target].machine_code:
        with working("timing"):
            taken = measure({OURS: call, **rivals()}, target, effort=QUICK)
        us = told(taken)
    else:  # the reference executes operation by operation; its time says nothing about a machine
        begun = time.perf_counter()
        call()
        us = 1e6 * (time.perf_counter() - begun)
    typer.echo(perf_line(us, flops, moved, name))


def by(extents: Sequence[int]) -> str:
    """Return extents with x between them."""
    return "x".join(map(str, extents))
