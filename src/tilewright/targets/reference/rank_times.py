"""Times of the copies, tiles and waits of several ranks, from a run of the reference and a cost model.

The log of the reference (`RankLog`) has the work of each block and each copy engine, and the signals that
each wait comes after.  `Costs` has the durations of copies and tiles.  A step starts when the previous step
of its stream has ended, and a block when a multiprocessor is free.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tilewright.calls import launches
from tilewright.errors import LaunchError
from tilewright.ir.async_ops import MmaAsync
from tilewright.ir.copies import Copy
from tilewright.ir.op import Op
from tilewright.ir.ops import Mma
from tilewright.ir.types import FragmentType, Memory, TensorType, Value


@launches
@dataclass(frozen=True)
class Costs:
    """How long the copies and tiles of ranks take; see `tw.draw.draw_ranks`.

    Args:
        link_gbs: rate of a copy engine, in 10^9 bytes per second.
        latency_us: time in µs from the end of a copy until its counter is seen.
        tflops: rate of all multiprocessors of a rank, in 10^12 operations per second.
        memory_gbs: rate of a rank's memory, in 10^9 bytes per second.
        blocks: number of blocks that a rank runs at once.

    Example:
        >>> import tilewright as tw
        >>> print(tw.draw.Costs(link_gbs=200, blocks=132))
        copies 200 GB/s and 1 µs, multiplies 600 TFLOPS, memory 3000 GB/s, 132 blocks at once
    """

    link_gbs: float = 400.0
    latency_us: float = 1.0
    tflops: float = 600.0
    memory_gbs: float = 3000.0
    blocks: int = 4

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0 and not (name == "latency_us" and value == 0):
                default = Costs.__dataclass_fields__[name].default
                raise LaunchError(f"costs: {name}={value}", f"{name}={default}")

    def block_us(self, macs: float, size: float) -> float:
        """Return the time in µs that a block takes for multiply-adds and ``size`` bytes of global memory."""
        share = 1 / self.blocks
        return max(2e-6 * macs / (self.tflops * share), 1e-3 * size / (self.memory_gbs * share))

    def copy_us(self, size: float) -> float:
        """Return the time in µs of a copy of ``size`` bytes."""
        return 1e-3 * size / self.link_gbs

    def __str__(self) -> str:
        return (
            f"copies {self.link_gbs:g} GB/s and {self.latency_us:g} µs, multiplies {self.tflops:g} TFLOPS, "
            f"memory {self.memory_gbs:g} GB/s, {self.blocks} blocks at once"
        )


class GroupWork(NamedTuple):
    """Work of a group of agents: multiply-adds, bytes of global memory, and bytes of a copy engine."""

    macs: float = 0
    bytes: float = 0
    sent: float = 0


class Fired(NamedTuple):
    """A signal that was sent, with its number."""

    number: int


class Waited(NamedTuple):
    """A wait that could end only after some signals, with their numbers."""

    numbers: tuple[int, ...]


class RankPlace(NamedTuple):
    """The rank, stream and step of a group of agents, and its name."""

    rank: int
    stream: int
    step: int
    name: str
    is_engine: bool


class LaneSpan(NamedTuple):
    """A time interval of a lane: ``kind`` is "copy", "tile" or "wait"; ``lane`` is -1 for copy engines."""

    rank: int
    lane: int
    kind: str
    start: float
    end: float
    name: str


@dataclass
class RankLog:
    """The work of each group of agents, in order, and the place of each group.

    Args:
        entries: the work, signals and waits of each group.
        places: the place of each group; the blocks of a launch in the order in which they began.
        steps: number of steps of each stream.
    """

    entries: dict[int, list[GroupWork | Fired | Waited]] = field(default_factory=dict)
    places: dict[int, RankPlace] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)

    def note(self, group: int, entry: GroupWork | Fired | Waited) -> None:
        """Append an entry, or add work to the last entry if that is work, too."""
        known = self.entries.setdefault(group, [])
        last = known[-1] if known else None
        if isinstance(entry, GroupWork) and isinstance(last, GroupWork):
            known[-1] = GroupWork(*(a + b for a, b in zip(last, entry, strict=True)))
        else:
            known.append(entry)

    def times(self, costs: Costs) -> list[LaneSpan]:
        """Return the spans of all ranks.

        Raises:
            LaunchError: blocks wait for ever, because too few of them run at once.
        """
        return _Clockwork(self, costs).run()


def work_of(op: Op, mates: int) -> GroupWork | None:
    """Return the share that one of ``mates`` warps has of an operation's work; None if it takes no time."""
    if isinstance(op, Mma | MmaAsync):
        *_, rows, depth = _extents(op.a)
        return GroupWork(macs=rows * depth * _extents(op.c)[-1] / mates)
    if isinstance(op, Copy):
        sides = [value for value in (op.source, op.target) if value.is_tensor]
        moved = [side.dtype.bits / 8 for side in sides if side.tensor.memory is Memory.GLOBAL]
        extents = _extents(op.target)
        if moved and all(isinstance(extent, int) for extent in extents):
            return GroupWork(bytes=math.prod(extents) * sum(moved) / mates)
    return None


def _extents(value: Value) -> tuple[Any, ...]:
    return value.type.shape if isinstance(value.type, TensorType | FragmentType) else ()


class _Clockwork:
    """A discrete-event simulation of the groups."""

    def __init__(self, log: RankLog, costs: Costs) -> None:
        self.log, self.costs = log, costs
        self.spans: list[LaneSpan] = []
        self.at: dict[int, int] = {}  # the next entry of each group that has begun
        self.lanes: dict[int, int] = {}
        self.fired: set[int] = set()
        self.parked: dict[int, list[int]] = {}
        self.since: dict[int, float] = {}
        self.heap: list[tuple[float, int]] = []
        blocks = range(min(costs.blocks, len(log.places)))
        self.free = {place.rank: [*blocks] for place in log.places.values()}
        self.steps: dict[tuple[int, int], list[int]] = {}
        for group, place in log.places.items():
            self.steps.setdefault((place.stream, place.step), []).append(group)
        self.left = {key: len(groups) for key, groups in self.steps.items()}
        self.queues: dict[int, list[int]] = {rank: [] for rank in self.free}

    def run(self) -> list[LaneSpan]:
        for stream in range(len(self.log.steps)):
            self._begin(stream, 0, 0.0)
        while self.heap:
            now, group = heapq.heappop(self.heap)
            self._resume(group, now)
        if any(self.left.values()):
            text = f"blocks={self.costs.blocks}: blocks that wait leave no place for those that they wait for"
            raise LaunchError(text, f"blocks={2 * self.costs.blocks}")
        return sorted(self.spans)

    def _begin(self, stream: int, step: int, now: float) -> None:
        """Begin a step of a stream."""
        while step < self.log.steps[stream] and (stream, step) not in self.steps:
            step += 1  # a launch without blocks
        for group in self.steps.get((stream, step), ()):
            place = self.log.places[group]
            if place.is_engine:
                self._start(group, -1, now)
            else:
                self.queues[place.rank].append(group)
        for rank in self.queues:
            self._fill(rank, now)

    def _fill(self, rank: int, now: float) -> None:
        while self.free[rank] and self.queues[rank]:
            self._start(self.queues[rank].pop(0), self.free[rank].pop(0), now)

    def _start(self, group: int, lane: int, now: float) -> None:
        self.at[group], self.lanes[group] = 0, lane
        heapq.heappush(self.heap, (now, group))

    def _resume(self, group: int, now: float) -> None:
        place, entries = self.log.places[group], self.log.entries.get(group, [])
        while self.at[group] < len(entries):
            entry = entries[self.at[group]]
            if isinstance(entry, Waited):
                missing = next((one for one in entry.numbers if one not in self.fired), None)
                if missing is not None:
                    self.since.setdefault(group, now)
                    self.parked.setdefault(missing, []).append(group)
                    return
                start = self.since.pop(group, now)
                if now > start:
                    self._span(group, "wait", start, now)
            self.at[group] += 1
            if isinstance(entry, Fired):
                self.fired.add(entry.number)
                for other in self.parked.pop(entry.number, ()):
                    heapq.heappush(self.heap, (now, other))
            elif isinstance(entry, GroupWork):
                lasts = self.costs.block_us(entry.macs, entry.bytes)
                if entry.sent:
                    lasts = self.costs.copy_us(entry.sent)
                self._span(group, "copy" if entry.sent else "tile", now, now + lasts)
                # The next copy of the stream begins when this one has ended; its counter is seen later.
                heapq.heappush(self.heap, (now + lasts + (self.costs.latency_us if entry.sent else 0), group))
                return
        if self.lanes[group] >= 0:
            self.free[place.rank].append(self.lanes[group])
            self.free[place.rank].sort()
            self._fill(place.rank, now)
        self.left[place.stream, place.step] -= 1
        if not self.left[place.stream, place.step]:
            self._begin(place.stream, place.step + 1, now)

    def _span(self, group: int, kind: str, start: float, end: float) -> None:
        place = self.log.places[group]
        self.spans.append(LaneSpan(place.rank, self.lanes[group], kind, start, end, place.name))


def overlap_of(spans: Sequence[LaneSpan]) -> Mapping[str, float]:
    """Return the time of all ranks together, and of the busiest rank's copies and tiles alone, in µs."""
    ranks = {span.rank for span in spans}
    lanes = {(span.rank, span.lane) for span in spans if span.lane >= 0}

    def busy(rank: int, lane: int, kind: str) -> float:
        own = (s for s in spans if (s.rank, s.lane, s.kind) == (rank, lane, kind))
        return sum(span.end - span.start for span in own)

    return {
        "all": max((span.end for span in spans), default=0.0),
        "copies": max((busy(rank, -1, "copy") for rank in ranks), default=0.0),
        "tiles": max((busy(rank, lane, "tile") for rank, lane in lanes), default=0.0),
    }
