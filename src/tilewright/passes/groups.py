"""Groups of asynchronous copies: where each is closed, where it is waited for, and how many may still go on.

Copies that are waited for at the same time belong to one group.  A wait lets as many groups go on as have
certainly been closed, on every way to it, after the last one that must be complete.
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
"""A wait, and how often it has been passed by then."""

MOST_PENDING = 1 << 16
"""More groups than any wait lets go on."""


@dataclass
class Groups:
    """What is placed for the copies in the background.

    Args:
        hazards: those that begin with such a copy.
        meets: whether the threads that a hazard is about meet at a point.
        waits: how many groups may go on at each point where is waited.
        commits: the points at which groups are closed, each with the last copy of the group.
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
        """Find the waits, then the groups, then how many may go on.

        Args:
            body: of the kernel.
            points: where may be waited for a hazard that concerns one thread alone.
            cost: of a wait at a point.
            best: chooses one of several points that serve alike.
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
        """The hazard for which a wait lets no more groups go on."""
        return min(
            (h for h in self.hazards if self._allowed(h, point) is not None),
            key=lambda h: (self._allowed(h, point) or 0, h.after.order, h.before.order),
        )

    def _usable(self, hazard: Hazard, waits: Mapping[Point, int]) -> Iterator[tuple[int, Point]]:
        """The places among what is passed at which a wait tells all whom it should."""
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
        """For each hazard the last wait before its second access."""
        for hazard in self.hazards:
            *_, (_, point) = self._usable(hazard, self.waits)
            yield hazard, point

    def _deadlines(self) -> dict[int, Deadline]:
        """For each copy, by its identity, the wait by which it must be complete."""
        found: dict[int, tuple[int, Deadline]] = {}
        for hazard in self.hazards:
            *_, (at, point) = self._usable(hazard, self.waits)
            count = sum(1 for number, passed in hazard.points.items() if passed == point and number <= at)
            copy = id(hazard.before.op)
            if copy not in found or at < found[copy][0]:
                found[copy] = at, (point, count)
        return {copy: deadline for copy, (_, deadline) in found.items()}

    def _closed(self, hazard: Hazard, at: int) -> int:
        """How many groups are certainly closed up to a place among what is passed."""
        return sum(1 for number, point in hazard.points.items() if number <= at and point in self.commits)

    def _allowed(self, hazard: Hazard, point: Point) -> int | None:
        """How many groups may go on at a point, the last time it is passed, with the copy complete."""
        places = [at for at, _ in self._usable(hazard, {point: 0})]
        closed = self._closed(hazard, places[-1]) if places else 0
        return closed - 1 if closed else None

    def _is_done(self, hazard: Hazard, waits: Mapping[Point, int]) -> bool:
        """Whether some wait is for the copy of a hazard."""
        return any(self._closed(hazard, at) - 1 >= waits[point] for at, point in self._usable(hazard, waits))


def _commits(block: Block, deadlines: Mapping[int, Deadline]) -> Iterator[tuple[Point, Op]]:
    """The points behind the last copy of each group: in the block, or in regions that also wait for it."""
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
    """The point behind each copy."""
    for at, op in enumerate(block.ops):
        if is_in_background(op):
            yield Point(id(block), at + 1), op
        for region in op.regions:
            yield from _each(region)
