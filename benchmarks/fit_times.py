"""Fit the constants of the model of memory latency (`BULK` in `estimate.py`) to measured candidates.

    python benchmarks/fit_times.py [RESULTS ...] [--constants ticket_us,read_bytes_per_us] [--steps 400]

Reads the same files as `choices.py`, and takes the products of 16-bit floats.  The present constants were
fitted to `results/h200_candidates.json` and `results/h200_fitted_tiles.json` together.  A random walk starts
at the present constants and accepts steps that reduce the loss.  The loss has two parts: the squared
logarithms of estimate over time, which count most near the fastest schedule; and the ratio of the time of the
schedule with the least estimate to the fastest time.  Prints the constants, which you round and enter by
hand, and the schedules that they would choose.  Without ``--constants`` it fits those of `meeting_us`, the
time to add up the parts of K.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from choices import KEPT, Row, rows_of
from reporting import table

from tilewright.schedule.estimate import BULK, BulkEstimate
from tilewright.schedule.load import Load
from tilewright.schedule.question import Question
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.tables import read_schedule

MEETING = "ticket_us,read_bytes_per_us,scatter_us,scattered_bytes_per_us,cluster_us,doubled_us"
NEAR, REGRET = 1.3, 3.0
"""Times up to this multiple of the fastest count in full; weight of a wrong first choice."""

Measured = tuple[Question, list[tuple[Schedule, float]]]


def measured(rows: Sequence[Row]) -> Iterator[tuple[str, Measured]]:
    """Return the problems, each with the times of its schedules that the model covers."""
    for row in rows:
        if row.problem.kernel != "product" or row.problem.dtype not in ("f16", "bf16"):
            continue
        found = [(read_schedule(text), us[0]) for text, us in row.times.items()]
        own = [(one, us) for one, us in found if belongs(one)]
        if own:
            yield str(row.problem), (row.question(), own)


def belongs(schedule: Schedule) -> bool:
    """Whether the model covers a schedule: no streams."""
    return schedule.staging == "tma" and schedule.split_k != "stream"


def estimates(model: BulkEstimate, one: Measured) -> list[float]:
    """Return a model's estimate of each schedule."""
    return [model.time_us(Load(one[0], schedule)) for schedule, _ in one[1]]


def loss(model: BulkEstimate, problems: Sequence[Measured]) -> float:
    """Return the loss of a model."""
    total = weights = regret = 0.0
    for one in problems:
        said, times = estimates(model, one), [us for _, us in one[1]]
        for estimate, us in zip(said, times, strict=True):
            weight = 1.0 if us < NEAR * min(times) else 0.1
            total, weights = total + weight * math.log(estimate / us) ** 2, weights + weight
        regret += math.log(times[said.index(min(said))] / min(times))
    return 10 * total / weights + REGRET * regret


def walk(problems: Sequence[Measured], names: Sequence[str], steps: int, seed: int) -> BulkEstimate:
    """Change the constants of a model while that reduces the loss."""
    draw, best = random.Random(seed), BULK
    least = loss(best, problems)
    for _ in range(steps):
        drawn = draw.sample(names, draw.randint(1, len(names)))
        changed = {name: getattr(best, name) * math.exp(draw.gauss(0, 0.15)) for name in drawn}
        model = replace(best, **changed)
        if (found := loss(model, problems)) < least:
            best, least = model, found
    return best


def lines(model: BulkEstimate, problems: Sequence[tuple[str, Measured]]) -> Iterator[list[str]]:
    """Yield the schedule with the least estimate of each problem."""
    for name, one in problems:
        said, times = estimates(model, one), [us for _, us in one[1]]
        at = said.index(min(said))
        shown = [f"{us:.2f}" for us in (said[at], times[at], min(times))]
        yield [name, *shown, f"{min(times) / times[at]:.3f}", repr(one[1][at][0])]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", nargs="*", type=Path)
    parser.add_argument("--constants", default=MEETING, help=f"default: {MEETING}")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    names = asked.constants.split(",")
    rows, _ = rows_of(asked.results or [KEPT])
    found = [*measured(rows)]
    problems = [one for _, one in found]
    print(f"loss {loss(BULK, problems):.4f}")
    model = walk(problems, names, asked.steps, asked.seed)
    print(f"loss {loss(model, problems):.4f} with")
    print(*(f"{name} = {getattr(model, name):.4g}" for name in names), sep="\n")
    print(table(("problem", "estimate", "us", "fastest us", "share", "least estimate"), lines(model, found)))


if __name__ == "__main__":
    main()
