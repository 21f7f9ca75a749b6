"""Adding up the sums of parts of K, in their order."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.lang import operations as tw
from tilewright.lang.control import let
from tilewright.lang.control import range as traced_range
from tilewright.lang.fragments import Fragment
from tilewright.lang.scalars import Index
from tilewright.lang.tensors import Tensor

IN_FLIGHT = 64
"""Values of each thread that are read of other parts before the first of them is added."""


def add_parts(total: Fragment, count: Index, most: int, part: Callable[[Index], Tensor]) -> None:
    """Add up so many parts, in their order; several are read before the first of them is added.

    Args:
        total: what they are added up in.
        count: of parts.
        most: how many there are at most.
        part: number -> where it lies.
    """
    first: Index = 0
    limit = min(IN_FLIGHT // total.distribution.size_values, most)
    tw.fill(total, 0)
    for at_once in (count,) if isinstance(count, int) and count <= limit else rounds_of(limit):
        turns = let((count - first) // at_once)
        if isinstance(turns, int) and turns == 0:
            continue
        for turn in traced_range(turns):
            held = [tw.load(part(first + turn * at_once + i), total) for i in range(at_once)]
            for one in held:
                total.assign(total + one)
        first = let(first + turns * at_once)


def rounds_of(limit: int) -> tuple[int, ...]:
    """How many parts are read at once: first many, then fewer of what is left, then one by one.

    Example:
        >>> rounds_of(33), rounds_of(9), rounds_of(3), rounds_of(0)
        ((16, 4, 1), (8, 2, 1), (2, 1), (1,))
    """
    found = [1]
    size = next((size for size in (16, 8, 4, 2) if size <= limit), 1)
    while size > 1:
        found.insert(-1, size)
        size //= 4
    return tuple(found)
