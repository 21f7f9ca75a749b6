"""Properties that the problems of a set share, so that few kernels are compiled for many problems."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from tilewright.targets.target import CPU, CUDA, REFERENCE

Generator: TypeAlias = np.random.Generator

SETS = {REFERENCE.name: 1 << 30, CPU.name: 24, CUDA.name: 24}
"""How many sets there are: nothing is compiled for the reference, where each problem is one of its own."""

UNITS = (1, 8, 16)
"""What extents are odd multiples of: nothing divides them that does not divide all of a set."""

SLACK = 0.15
"""How much smaller than the largest of its set an extent may be: schedules are chosen by the extents."""


def generators(number: int, target: str) -> tuple[Generator, Generator]:
    """Return random numbers that all problems of a set share, and those of one problem."""
    return np.random.default_rng(number % SETS[target]), np.random.default_rng(number)


def extents(
    terms: Generator, rng: Generator, largest: int, count: int, unit: int | None = None
) -> tuple[int, ...]:
    """Draw extents: odd multiples of a unit of the problem's set, near each other within a set.

    Args:
        terms: properties that the set shares.
        rng: the problem's own random numbers.
        largest: the largest extent.
        count: number of extents.
        unit: the unit; default: one of `UNITS`.
    """
    unit = unit or int(terms.choice(UNITS))
    found = []
    for _ in range(count):
        most = int(terms.integers(1, max(largest // unit, 1) + 1))
        least = int(most * (1 - SLACK))
        found.append((int(rng.integers(least, most + 1)) | 1) * unit)
    return tuple(found)
