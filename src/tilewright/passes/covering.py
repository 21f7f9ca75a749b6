"""A cheap hitting set: points so that each of several sets contains at least one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

PointType = TypeVar("PointType", bound=Hashable)


def cheapest_cover(
    sets: Iterable[Collection[PointType]],
    cost: Callable[[PointType], float],
    best: Callable[[Collection[PointType]], PointType],
) -> list[PointType]:
    """Return points that hit every set; no point can be removed.

    A point is skipped if another point hits at least the same sets and costs no more.  A set is skipped if it
    contains all points of another set.  The remaining points are chosen greedily by cost per set.  If the
    sets are intervals, as in straight-line code, the result is optimal.

    Args:
        sets: the sets; no set is empty.
        cost: returns the cost of a point.
        best: chooses among points that are in the same sets at the same cost, or are equally good.

    Example:
        >>> cheapest_cover([{1, 2, 3}, {3, 4}, {5}], cost=lambda point: 1, best=max)
        [3, 5]
    """
    wanted = list(dict.fromkeys(frozenset(points) for points in sets))
    left = [one for one in wanted if not any(other < one for other in wanted)]
    chosen: list[PointType] = []
    while left:
        serves = _undominated(left, cost, best)
        alone = [point for points in left if len(kept := points & serves.keys()) == 1 for point in kept]
        worth = {point: len(serves[point]) / cost(point) for point in alone or serves}
        point = best([point for point, value in worth.items() if value == max(worth.values())])
        chosen.append(point)
        left = [points for points in left if point not in points]
    return _pruned(chosen, wanted, cost)


def _undominated(
    sets: Sequence[frozenset[PointType]],
    cost: Callable[[PointType], float],
    best: Callable[[Collection[PointType]], PointType],
) -> Mapping[PointType, frozenset[int]]:
    """Return the points that no other point dominates, each with the numbers of its sets."""
    alike: dict[tuple[frozenset[int], float], list[PointType]] = {}
    for point in frozenset[PointType]().union(*sets):
        serves = frozenset(number for number, points in enumerate(sets) if point in points)
        alike.setdefault((serves, cost(point)), []).append(point)
    return {
        best(points): serves
        for (serves, price), points in alike.items()
        if not any(
            others >= serves and other_price <= price and (others, other_price) != (serves, price)
            for others, other_price in alike
        )
    }


def _pruned(
    chosen: Sequence[PointType], sets: Sequence[frozenset[PointType]], cost: Callable[[PointType], float]
) -> list[PointType]:
    """Drop chosen points that the others make unnecessary, the most expensive first."""
    kept = list(chosen)
    for point in sorted(chosen, key=cost, reverse=True):
        others = [other for other in kept if other != point]
        if all(points.intersection(others) for points in sets):
            kept = others
    return kept
