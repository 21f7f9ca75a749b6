"""Constants of the model of waiting for memory (`BULK` in `estimate.py`), fitted to measured candidates.

    python benchmarks/fit_times.py [RESULTS ...] [--constants ticket_us,read_bytes_per_us] [--steps 400]

Reads what `choices.py` reads; the problems are those of 16-bit floats with few rows or deep K.  From the
constants as they are a random walk goes where the loss is less: the squares of the logarithms of estimate
over time, those near the fastest most, and how much slower than the fastest is what the least estimate names.
Prints the constants, to be rounded and written by hand, and what they would choose.  Without ``--constants``
they are those of `meeting_us`, what adding up the parts of K takes.
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
from tilewright.schedule.text import read_schedule

MEETING = "ticket_us,read_bytes_per_us,cluster_us,doubled_us"
FEW, DEEP = 64, 12288
"""Rows up to which, and K from which on, a problem is one of those that wait."""

NEAR, REGRET = 1.3, 3.0
"""Up to which multiple of the fastest a time counts in full; the weight of a wrong first choice."""

Measured = tuple[Question, list[tuple[Schedule, float]]]


def measured(rows: Sequence[Row]) -> Iterator[tuple[str, Measured]]:
    """The problems, and of each the schedules with bulk copies that belong to the model, with their times."""
    for row in rows:
        m, _, k = row.problem.shape
        if (
            row.problem.kernel != "product"
            or row.problem.dtype not in ("f16", "bf16")
            or (m > FEW and k < DEEP)
        ):
            continue
        found = [(read_schedule(text), us[0]) for text, us in row.times.items()]
        own = [(one, us) for one, us in found if belongs(one)]
        if own:
            yield str(row.problem), (row.question(), own)


def belongs(schedule: Schedule) -> bool:
    """Whether the model speaks of it where a choice is made: no streams, no whole K in clusters."""
    is_alone = schedule.cluster == (1, 1) or schedule.split_k != 1
    return schedule.staging == "tma" and schedule.split_k != "stream" and is_alone


def estimates(model: BulkEstimate, one: Measured) -> list[float]:
    """What a model says of each schedule."""
    return [model.time_us(Load(one[0], schedule)) for schedule, _ in one[1]]


def loss(model: BulkEstimate, problems: Sequence[Measured]) -> float:
    """How wrong a model is."""
    total = weights = regret = 0.0
    for one in problems:
        said, times = estimates(model, one), [us for _, us in one[1]]
        for estimate, us in zip(said, times, strict=True):
            weight = 1.0 if us < NEAR * min(times) else 0.1
            total, weights = total + weight * math.log(estimate / us) ** 2, weights + weight
        regret += math.log(times[said.index(min(said))] / min(times))
    return 10 * total / weights + REGRET * regret


def walk(problems: Sequence[Measured], names: Sequence[str], steps: int, seed: int) -> BulkEstimate:
    """The model with the constants changed as long as that makes the loss less."""
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
    """What the least estimate names, problem by problem."""
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
