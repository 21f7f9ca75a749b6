"""Hazards: pairs of accesses that need an ordering operation, with the threads and routes concerned."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Barrier, Op, WarpBarrier
from tilewright.ir.types import Value
from tilewright.passes.effects import Access, Integers, Site, sites
from tilewright.passes.overlap import Overlaps, Reach
from tilewright.passes.routes import Event, Meeting, Point, Route, meetings, passed


@dataclass(frozen=True, eq=False)
class Hazard:
    """Two accesses whose order other threads or asynchronous copies may violate.

    Args:
        tensor: the tensor that both access.
        before: the operation that comes first.
        after: the operation that comes second.
        writes: whether the first writes, and whether the second does.
        reach: the set of threads among which elements pass.
        in_background: whether the first is asynchronous and completes when its group is waited for.
        route: the operations and points that every execution passes in between.
    """

    tensor: Value
    before: Site
    after: Site
    writes: tuple[bool, bool]
    reach: Reach
    in_background: bool
    route: Route

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """The operations and points in between, in order."""
        return tuple(passed(self.route))

    @cached_property
    def points(self) -> dict[int, Point]:
        """The points in between, by their index among the events."""
        return {number: event for number, event in enumerate(self.events) if isinstance(event, Point)}

    @property
    def needs_barrier(self) -> bool:
        """Whether threads must meet at a barrier in between."""
        return self.reach > Reach.THREAD

    def is_met(self, op: Op) -> bool:
        """Return whether all threads concerned meet at an operation."""
        return isinstance(op, Barrier) or (isinstance(op, WarpBarrier) and self.reach <= Reach.WARP)

    def __str__(self) -> str:
        first, second = ("written" if writes else "read" for writes in self.writes)
        among = ["", "", " by other lanes", " by other threads"][self.reach]
        return (
            f"{self.tensor}, {first} by {self.before.op.verb} at {_where(self.before.op)}, is {second} by "
            f"{self.after.op.verb} at {_where(self.after.op)}{among}"
        )


def _where(op: Op) -> str:
    return "an unknown line" if op.location is None else str(op.location.frame)


def hazards(kernel: Kernel, buffers: Collection[str] | None = None) -> list[Hazard]:
    """Return the hazards of a kernel: each pair of accesses that needs an order, on each route between them.

    If one route passes everything that another route passes, only the shorter one is returned.

    Args:
        kernel: the kernel.
        buffers: names of the buffers to examine; None: all.
    """
    found, known = sites(kernel), Integers.of(kernel)
    overlaps = Overlaps(kernel.threads, kernel.lanes)
    return [
        hazard
        for one in found
        for other in found
        if (pairs := list(_conflicting(one, other, buffers)))
        for hazard in _between(one, other, pairs, known, overlaps)
    ]


def _conflicting(one: Site, other: Site, buffers: Collection[str] | None) -> Iterator[tuple[Access, Access]]:
    """Yield pairs of accesses to one buffer, at least one a write."""
    for mine in one.accesses:
        if buffers is not None and mine.value.buffer.name not in buffers:
            continue
        for its in other.accesses:
            if mine.value.buffer is its.value.buffer and (mine.writes or its.writes):
                yield mine, its


def _between(
    one: Site, other: Site, pairs: list[tuple[Access, Access]], known: Integers, overlaps: Overlaps
) -> Iterator[Hazard]:
    least = Reach.THREAD if one.is_in_background else Reach.WARP
    for family in meetings(one, other, known, one.is_in_background):
        seen: list[tuple[Meeting, Reach]] = []
        for meeting in family:
            before = max((reach for former, reach in seen if meeting.is_within(former)), default=Reach.NOBODY)
            if before is Reach.BLOCK:
                continue
            reach, mine, its = max(
                ((overlaps.reach(*pair, meeting.before, meeting.after), *pair) for pair in pairs),
                key=lambda each: each[0],
            )
            if reach >= least and reach > before:
                seen.append((meeting, reach))
                tensor, writes = mine.value.buffer, (mine.writes, its.writes)
                yield Hazard(tensor, one, other, writes, reach, one.is_in_background, meeting.route)
