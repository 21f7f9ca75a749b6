"""Automatic synchronisation: insert the barriers and copy groups that a kernel's accesses need.

Every operation declares what it reads and writes.  Two accesses to one element, at least one a write, need
synchronisation if they are in different threads or one is an asynchronous copy.  The candidates are the
points on every path from one access to the other.  The pass chooses the fewest points that serve all pairs.
Points inside loops cost more, and each chosen point is as late as possible.

Copies with the same wait belong to one group.  The pending count of a wait is the number of groups that have
certainly been committed, on every path to the wait, after the last group that must be complete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias, TypeVar

from tilewright.errors import TraceError
from tilewright.ir.async_ops import ASYNC_OPS, LaunchDependents, PriorGridWait
from tilewright.ir.copies import is_in_background
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import AsyncCommit, AsyncWait, Barrier, Block, Copy, For, Mma, Op
from tilewright.ir.signal_ops import SIGNAL_OPS
from tilewright.passes.effects import accesses
from tilewright.passes.hazards import Hazard, hazards, line_of
from tilewright.passes.pipeline import Passed
from tilewright.passes.routes import Point

# ---------------------------------------------------------------- a cheap hitting set


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
        alone = [point for points in left if len(left_in := points & serves.keys()) == 1 for point in left_in]
        worth = {point: len(serves[point]) / cost(point) for point in alone or serves}
        point = best([point for point, value in worth.items() if value == max(worth.values())])
        chosen.append(point)
        left = [points for points in left if point not in points]
    # Drop chosen points that the others make unnecessary, the most expensive first.
    needed = list(chosen)
    for point in sorted(chosen, key=cost, reverse=True):
        others = [other for other in needed if other != point]
        if all(points.intersection(others) for points in wanted):
            needed = others
    return needed


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


# ---------------------------------------------------------------- groups of copies


Deadline: TypeAlias = tuple[Point, int]
"""A wait, and its occurrence number on the route."""

MOST_PENDING = 1 << 16
"""Upper limit on pending groups, above that of any wait."""


@dataclass
class CopyGroups:
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
        # By identity of each copy: the wait by which the copy must be complete, and its place.
        deadlines: dict[int, tuple[int, Deadline]] = {}
        for hazard in self.hazards:
            *_, (at, point) = self._usable(hazard, self.waits)
            count = sum(1 for number, passed in hazard.points.items() if passed == point and number <= at)
            copy = id(hazard.before.op)
            if copy not in deadlines or at < deadlines[copy][0]:
                deadlines[copy] = at, (point, count)
        self.commits = dict(_commits(body, {copy: deadline for copy, (_, deadline) in deadlines.items()}))
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
        last = max((at for at, point in hazard.points.items() if self.meets(hazard, point)), default=-1)
        yield from ((at, point) for at, point in found if at <= last)

    def _last(self) -> Iterator[tuple[Hazard, Point]]:
        """Yield each hazard with the last wait before its second access."""
        for hazard in self.hazards:
            *_, (_, point) = self._usable(hazard, self.waits)
            yield hazard, point

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


# ---------------------------------------------------------------- synchronisation


TURNS = 16
"""Assumed number of loop iterations in the cost of a point."""

NEAREST = (
    'nearest legal choice: @tw.kernel(sync="explicit"), with tw.barrier() where threads must wait '
    "for each other"
)


def synchronise(kernel: Kernel) -> Passed:
    """Insert the barriers, commits and waits that a kernel's accesses need.

    The author's own barriers are kept, and count like inserted ones.

    Returns:
        The kernel, and a note for each barrier, wait and commit, with the accesses that need it.

    Raises:
        TraceError: the kernel has operations whose order does not follow from accesses: roles, transaction
            barriers, bulk copies, multiplies in the background, clusters, signals.
    """
    _refuse(kernel)
    plan = _Plan(kernel)
    return replace(kernel, body=plan.rebuilt(kernel.body)), tuple(plan.notes)


def _refuse(kernel: Kernel) -> None:
    for op in kernel.walk():
        if reason := _refusal(op):
            raise TraceError(f"{reason}; {NEAREST}", op.location)
    if kernel.cluster:
        raise TraceError(f"kernel {kernel.name} of sync='auto' has clusters of blocks; {NEAREST}")


def _refusal(op: Op) -> str:
    """Return why accesses do not determine the barriers around an operation; empty if they do."""
    if isinstance(op, AsyncCommit | AsyncWait):
        return (
            f"{op.verb} in a kernel of sync='auto', where the library closes groups of copies and "
            "places waits"
        )
    alone = "sync='auto' places barriers of whole blocks"
    if isinstance(op, Copy) and op.engine == "bulk":
        return f"{op.verb} completes at a transaction barrier, and {alone}"
    if isinstance(op, Mma) and op.mma.atom.asynchronous:
        return f"{op.mma.atom} needs a fence before it reads shared memory, and {alone}"
    if isinstance(op, ASYNC_OPS) and not isinstance(op, PriorGridWait | LaunchDependents):
        return f"{op.verb} synchronises only some warps, and {alone}"
    if isinstance(op, SIGNAL_OPS):
        return f"{op.verb} synchronises blocks, and {alone}"
    return ""


@dataclass(frozen=True)
class _Spot:
    """A point's number in program order, its loop depth, and the operation after it."""

    order: int
    loops: int
    op: Op | None


class _Plan:
    """The synchronisation to insert at each point, with reasons."""

    def __init__(self, kernel: Kernel) -> None:
        self.spots = dict(_spots(kernel.body, 0, iter(range(10**9))))
        # A barrier before such an operation can order something that one after it cannot.
        self.useful = {
            point
            for point, spot in self.spots.items()
            for each in (Block((spot.op,)).walk() if spot.op else ())
            if isinstance(each, Barrier) or any(accesses(each, kernel.lanes))
        }
        found = hazards(kernel)
        copied = [hazard for hazard in found if hazard.in_background]
        first = {h.before: h for h in sorted(copied, key=lambda h: len(h.events), reverse=True)}
        self.urgent = [{point: at for at, point in hazard.points.items()} for hazard in first.values()]
        self.unmet = [h for h in found if h.needs_barrier and not h.has_barrier]
        sets = [self._candidates(hazard) for hazard in self.unmet]
        self.barriers = set(cheapest_cover(sets, self._cost, self._latest))

        def meets(hazard: Hazard, point: Point) -> bool:
            op = self.spots[point].op
            return point in self.barriers or (op is not None and hazard.is_met(op))

        self.groups = CopyGroups(copied, meets)
        self.groups.place(kernel.body, self._candidates, self._cost, self._latest)
        self.placed: dict[Point, list[Op]] = {}
        self.notes: list[str] = []
        self._fill()

    def _cost(self, point: Point) -> float:
        return float(TURNS ** self.spots[point].loops)

    def _order(self, point: Point) -> int:
        return self.spots[point].order

    def _latest(self, points: Collection[Point]) -> Point:
        """Return the equivalent point with the fewest unnecessary waits; ties go to the last point."""
        lasts = [last for last in self.urgent if all(point in last for point in points)]
        return max(points, key=lambda point: (sum(last[point] for last in lasts), self._order(point)))

    def _candidates(self, hazard: Hazard) -> list[Point]:
        return [point for point in dict.fromkeys(hazard.points.values()) if point in self.useful]

    def _fill(self) -> None:
        """Make the operations of each point, in the order commit, wait, barrier."""
        for point in sorted({*self.barriers, *self.groups.waits, *self.groups.commits}, key=self._order):
            ops = self.placed.setdefault(point, [])
            if (last := self.groups.commits.get(point)) is not None:
                ops.append(AsyncCommit(location=last.location))
                self._note("async_commit()", f"after {last.verb} at {line_of(last)}", "closes its group")
            if (pending := self.groups.waits.get(point)) is not None:
                hazard = self.groups.binding(point)
                ops.append(AsyncWait(pending, location=hazard.after.op.location))
                self._note(f"async_wait({pending})", self._place(point), str(hazard))
            if point in self.barriers:
                mine = [h for h in self.unmet if self.barriers & {*h.points.values()} == {point}]
                hazard = min(mine, key=lambda h: (h.after.order, h.before.order))
                more = len({(h.before.order, h.after.order) for h in mine}) - 1
                ops.append(Barrier(location=hazard.after.op.location))
                others = f", and {more} more" if more else ""
                self._note("barrier()", self._place(point), f"{hazard}{others}")

    def _note(self, what: str, place: str, why: str) -> None:
        self.notes.append(f"tw.{what} {place}: {why}")

    def _place(self, point: Point) -> str:
        op = self.spots[point].op
        assert op is not None
        return f"before {op.verb} at {line_of(op)}"

    def rebuilt(self, block: Block) -> Block:
        """Return a block with the inserted operations."""
        ops: list[Op] = []
        for at, op in enumerate(block.ops):
            ops += self.placed.get(Point(id(block), at), ())
            regions = {f.name: v for f in fields(op) if isinstance(v := getattr(op, f.name), Block)}
            made: dict[str, Any] = {name: self.rebuilt(region) for name, region in regions.items()}
            ops.append(replace(op, **made) if made else op)
        return Block((*ops, *self.placed.get(Point(id(block), len(block.ops)), ())))


def _spots(block: Block, loops: int, count: Iterator[int]) -> Iterator[tuple[Point, _Spot]]:
    for at, op in enumerate(block.ops):
        yield Point(id(block), at), _Spot(next(count), loops, op)
        for region in op.regions:
            yield from _spots(region, loops + isinstance(op, For), count)
    yield Point(id(block), len(block.ops)), _Spot(next(count), loops, None)
