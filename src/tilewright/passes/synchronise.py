"""Automatic synchronisation: insert the barriers and copy groups that a kernel's accesses need.

Every operation declares what it reads and writes.  Two accesses to one element, at least one a write, need
synchronisation if they are in different threads or one is an asynchronous copy.  The candidates are the
points on every path from one access to the other.  The pass chooses the fewest points that serve all pairs.
Points inside loops cost more, and each chosen point is as late as possible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from tilewright.errors import TraceError
from tilewright.ir.async_ops import ASYNC_OPS, LaunchDependents, PriorGridWait
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import AsyncCommit, AsyncWait, Barrier, Block, Copy, For, Mma, Op
from tilewright.ir.signal_ops import SIGNAL_OPS
from tilewright.passes.covering import cheapest_cover
from tilewright.passes.effects import accesses
from tilewright.passes.groups import Groups
from tilewright.passes.hazards import Hazard, hazards
from tilewright.passes.pipeline import Passed
from tilewright.passes.routes import Point

TURNS = 16
"""Assumed number of loop iterations in the cost of a point."""

NEAREST = 'nearest legal choice: @tw.kernel(sync="explicit"), with tw.barrier() where threads are to meet'


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
        return f"{op.verb} in a kernel of sync='auto', which closes groups of copies, and waits, by itself"
    alone = "sync='auto' places barriers of whole blocks"
    if isinstance(op, Copy) and op.engine == "bulk":
        return f"{op.verb} completes at a transaction barrier, and {alone}"
    if isinstance(op, Mma) and op.mma.atom.asynchronous:
        return f"{op.mma.atom} reads shared memory after a fence, and {alone}"
    if isinstance(op, ASYNC_OPS) and not isinstance(op, PriorGridWait | LaunchDependents):
        return f"{op.verb} orders warps in a way of its own, and {alone}"
    if isinstance(op, SIGNAL_OPS):
        return f"{op.verb} orders blocks among each other, and {alone}"
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
        self.useful = {p for p, spot in self.spots.items() if spot.op and _is_useful(spot.op, kernel.lanes)}
        found = hazards(kernel)
        copied = [hazard for hazard in found if hazard.in_background]
        first = {h.before: h for h in sorted(copied, key=lambda h: len(h.events), reverse=True)}
        self.urgent = [{point: at for at, point in hazard.points.items()} for hazard in first.values()]
        self.unmet = [h for h in found if h.needs_barrier and not self._is_met(h)]
        sets = [self._candidates(hazard) for hazard in self.unmet]
        self.barriers = set(cheapest_cover(sets, self._cost, self._latest))
        self.groups = Groups(copied, self._meets)
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

    def _meets(self, hazard: Hazard, point: Point) -> bool:
        op = self.spots[point].op
        return point in self.barriers or (op is not None and hazard.is_met(op))

    @staticmethod
    def _is_met(hazard: Hazard) -> bool:
        return any(isinstance(event, Op) and hazard.is_met(event) for event in hazard.events)

    def _fill(self) -> None:
        """Make the operations of each point, in the order commit, wait, barrier."""
        for point in sorted({*self.barriers, *self.groups.waits, *self.groups.commits}, key=self._order):
            ops = self.placed.setdefault(point, [])
            if (last := self.groups.commits.get(point)) is not None:
                ops.append(AsyncCommit(location=last.location))
                self._note("async_commit()", f"behind {last.verb} at {_line(last)}", "closes its group")
            if (pending := self.groups.waits.get(point)) is not None:
                hazard = self.groups.binding(point)
                ops.append(AsyncWait(pending, location=hazard.after.op.location))
                self._note(f"async_wait({pending})", self._place(point, hazard), str(hazard))
            if point in self.barriers:
                mine = [h for h in self.unmet if self.barriers & {*h.points.values()} == {point}]
                hazard = min(mine, key=lambda h: (h.after.order, h.before.order))
                more = len({(h.before.order, h.after.order) for h in mine}) - 1
                ops.append(Barrier(location=hazard.after.op.location))
                others = f", and {more} more" if more else ""
                self._note("barrier()", self._place(point, hazard), f"{hazard}{others}")

    def _note(self, what: str, place: str, why: str) -> None:
        self.notes.append(f"tw.{what} {place}: {why}")

    def _place(self, point: Point, hazard: Hazard) -> str:
        op = self.spots[point].op
        assert op is not None
        return f"before {op.verb} at {_line(op)}"

    def rebuilt(self, block: Block) -> Block:
        """Return a block with the inserted operations."""
        ops: list[Op] = []
        for at, op in enumerate(block.ops):
            ops += self.placed.get(Point(id(block), at), ())
            regions = {f.name: v for f in fields(op) if isinstance(v := getattr(op, f.name), Block)}
            made: dict[str, Any] = {name: self.rebuilt(region) for name, region in regions.items()}
            ops.append(replace(op, **made) if made else op)
        return Block((*ops, *self.placed.get(Point(id(block), len(block.ops)), ())))


def _line(op: Op) -> str:
    return "an unknown line" if op.location is None else str(op.location.frame)


def _is_useful(op: Op, lanes: int) -> bool:
    """Return whether a barrier before an operation can order something that one after it cannot."""
    return any(isinstance(each, Barrier) or any(accesses(each, lanes)) for each in Block((op,)).walk())


def _spots(block: Block, loops: int, count: Iterator[int]) -> Iterator[tuple[Point, _Spot]]:
    for at, op in enumerate(block.ops):
        yield Point(id(block), at), _Spot(next(count), loops, op)
        for region in op.regions:
            yield from _spots(region, loops + isinstance(op, For), count)
    yield Point(id(block), len(block.ops)), _Spot(next(count), loops, None)
