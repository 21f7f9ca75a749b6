"""Groups of asynchronous copies: where to commit, where to wait, and how many groups may stay pending.

Copies with the same wait belong to one group.  The pending count of a wait is the number of groups that have
certainly been committed, on every path to the wait, after the last group that must be complete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tilewright.ir.copies import is_in_background
from tilewright.ir.ops import Block, Op
from tilewright.passes.covering import cheapest_cover
from tilewright.passes.hazards import Hazard
from tilewright.passes.routes import Point

Deadline: TypeAlias = tuple[Point, int]
"""A wait, and its occurrence number on the route."""

MOST_PENDING = 1 << 16
"""Upper limit on pending groups, above that of any wait."""


@dataclass
class Groups:
    """Waits and commits for asynchronous copies.

    Args:
        hazards: the hazards whose first access is an asynchronous copy.
        meets: returns whether the threads of a hazard meet at a point.
        waits: number of groups that may stay pending at each wait.
        commits: the points at which groups are committed, each with the last copy of its group.
    """

    hazards: Sequence[Hazard]
    meets: Callable[[Hazard, Point], bool]
    waits: dict[Point, int] = field(default_factory=dict)
    commits: dict[Point, Op] = field(default_factory=dict)

    def place(
        self,
        body: Block,
        points: Callable[[Hazard], Sequence[Point]],
        cost: Callable[[Point], float],
        best: Callable[[Collection[Point]], Point],
    ) -> None:
        """Find the waits, then the groups, then the pending counts.

        Args:
            body: the body of the kernel.
            points: returns the possible wait points of a hazard within one thread.
            cost: returns the cost of a wait at a point.
            best: chooses among equivalent points.
        """
        sets = [[p for p in points(h) if not h.needs_barrier or self.meets(h, p)] for h in self.hazards]
        self.waits = dict.fromkeys(cheapest_cover(sets, cost, best), MOST_PENDING)
        self.commits = dict(_commits(body, self._deadlines()))
        if any(self._allowed(hazard, point) is None for hazard, point in self._last()):
            self.commits = dict(_each(body))
        for hazard, point in list(self._last()):
            self.waits[point] = min(self._allowed(hazard, point) or 0, self.waits[point])
        for point in list(self.waits):
            others = {other: count for other, count in self.waits.items() if other != point}
            counts = [self._allowed(h, point) or 0 for h in self.hazards if not self._is_done(h, others)]
            self.waits = {**others, point: min(counts)} if counts else others
        for point in list(self.commits):
            op = self.commits.pop(point)
            if not all(self._is_done(hazard, self.waits) for hazard in self.hazards):
                self.commits[point] = op

    def binding(self, point: Point) -> Hazard:
        """Return the hazard that limits the pending count of a wait."""
        return min(
            (h for h in self.hazards if self._allowed(h, point) is not None),
            key=lambda h: (self._allowed(h, point) or 0, h.after.order, h.before.order),
        )

    def _usable(self, hazard: Hazard, waits: Mapping[Point, int]) -> Iterator[tuple[int, Point]]:
        """Yield the positions on a hazard's route at which a wait is early enough for all its threads."""
        found = [(at, point) for at, point in hazard.points.items() if point in waits]
        if not hazard.needs_barrier:
            yield from found
            return
        last = max(
            (at for at, point in hazard.points.items() if self.meets(hazard, point)),
            default=-1,
        )
        yield from ((at, point) for at, point in found if at <= last)

    def _last(self) -> Iterator[tuple[Hazard, Point]]:
        """Yield each hazard with the last wait before its second access."""
        for hazard in self.hazards:
            *_, (_, point) = self._usable(hazard, self.waits)
            yield hazard, point

    def _deadlines(self) -> dict[int, Deadline]:
        """Return, by identity of each copy, the wait by which the copy must be complete."""
        found: dict[int, tuple[int, Deadline]] = {}
        for hazard in self.hazards:
            *_, (at, point) = self._usable(hazard, self.waits)
            count = sum(1 for number, passed in hazard.points.items() if passed == point and number <= at)
            copy = id(hazard.before.op)
            if copy not in found or at < found[copy][0]:
                found[copy] = at, (point, count)
        return {copy: deadline for copy, (_, deadline) in found.items()}

    def _closed(self, hazard: Hazard, at: int) -> int:
        """Return how many groups are certainly committed up to a position on a hazard's route."""
        return sum(1 for number, point in hazard.points.items() if number <= at and point in self.commits)

    def _allowed(self, hazard: Hazard, point: Point) -> int | None:
        """Return how many groups may stay pending at the last pass of a point with the copy complete."""
        places = [at for at, _ in self._usable(hazard, {point: 0})]
        closed = self._closed(hazard, places[-1]) if places else 0
        return closed - 1 if closed else None

    def _is_done(self, hazard: Hazard, waits: Mapping[Point, int]) -> bool:
        """Return whether some wait completes the copy of a hazard."""
        return any(self._closed(hazard, at) - 1 >= waits[point] for at, point in self._usable(hazard, waits))


def _commits(block: Block, deadlines: Mapping[int, Deadline]) -> Iterator[tuple[Point, Op]]:
    """Yield the point after the last copy of each group: in the block, or in regions that wait too."""
    group: set[Deadline] = set()
    last: tuple[Point, Op] | None = None
    for at, op in enumerate(block.ops):
        copies = [each for each in Block((op,)).walk() if is_in_background(each)]
        if not copies:
            continue
        wanted = {deadlines[id(copy)] for copy in copies if id(copy) in deadlines}
        inside = {id(region) for each in Block((op,)).walk() for region in each.regions}
        is_waited_for_inside = any(point.block in inside for point, _ in wanted)
        if last is not None and group and (is_waited_for_inside or (wanted and wanted != group)):
            yield last
            group, last = set(), None
        if is_waited_for_inside:
            for region in op.regions:
                yield from _commits(region, deadlines)
        else:
            group, last = group or wanted, (Point(id(block), at + 1), copies[-1])
    if last is not None and group:
        yield last


def _each(block: Block) -> Iterator[tuple[Point, Op]]:
    """Yield the point after each asynchronous copy."""
    for at, op in enumerate(block.ops):
        if is_in_background(op):
            yield Point(id(block), at + 1), op
        for region in op.regions:
            yield from _each(region)
