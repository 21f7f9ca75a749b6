"""Timelines: the events of each agent of a block in logical steps, from one recorded run.

The reference records the order of each warp's operations, and which operation waits for which. These orders
and the number of steps of each operation (`Lengths`) give the earliest start of every event.  No time is
measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tilewright.arch import REFERENCE
from tilewright.errors import LaunchError
from tilewright.ir import async_ops, ops
from tilewright.ir.fragment_ops import PrefixOp, ReduceOp
from tilewright.ir.op import Op
from tilewright.targets.reference.recorder import RecordedExecution, Touch


@dataclass(frozen=True)
class Lengths:
    """Logical steps of operations; arrivals take none, and waits take none themselves.

    Args:
        issue: the issue of an operation that runs in the background.
        copy: a copy by threads.
        mma: a synchronous multiply.
        arithmetic: elementwise arithmetic, and reductions.
        load: a bulk or asynchronous copy, in the background.
        mma_async: an asynchronous multiply, in the background.
        store: a bulk store, in the background.
    """

    issue: int = 1
    copy: int = 2
    mma: int = 2
    arithmetic: int = 1
    load: int = 6
    mma_async: int = 4
    store: int = 6


@dataclass(frozen=True)
class Event:
    """The work of an agent from one logical step to another.

    Args:
        agent: the agent: ``"warp 4"``, ``"TMA loads"``, ``"TMA stores"``, ``"asynchronous copies"``,
            ``"MMA unit 4"`` (of the warpgroup that begins with warp 4).
        op: the operation's name.
        kind: ``"wait"``, ``"arrive"``, ``"issue"``, ``"copy"``, ``"mma"``, ``"arithmetic"``, ``"load"`` or
            ``"store"``.
        start: its first step.
        end: the step after its last.
        barrier: the transaction barrier that it arrives at, waits for or loads for, or "".
        stage: the stage of the barrier; -1 without a barrier.
        phase: the phase of that stage, from 0; a wait passes at its end (-1: before the first phase).
        touches: the ranges of shared memory that it touches.
        warp: the warp that executes or issues it.
        line: the author's line.
        block: the rank of that warp's block in its cluster.
    """

    agent: str
    op: str
    kind: str
    start: int
    end: int
    barrier: str = ""
    stage: int = -1
    phase: int = -1
    touches: tuple[Touch, ...] = ()
    warp: int = 0
    line: str = ""
    block: int = 0


@dataclass(frozen=True)
class Timeline:
    """The events of one block, or of all blocks of a cluster.

    Args:
        kernel: the kernel's name.
        blocks: the index of each block, by rank.
        warps: number of warps of each block.
        events: the events in order of their start; at one step, in the order of execution.
        lengths: the steps of operations.
    """

    kernel: str
    blocks: tuple[tuple[int, ...], ...]
    warps: int
    events: tuple[Event, ...]
    lengths: Lengths = Lengths()

    @property
    def steps(self) -> int:
        """Number of steps."""
        return max((event.end for event in self.events), default=0)


def timeline(
    kernel: str,
    executions: Sequence[RecordedExecution],
    lanes: int = REFERENCE.lanes,
    lengths: Lengths | None = None,
) -> Timeline:
    """Return the timeline of the first recorded block, and of all blocks of its cluster.

    Args:
        kernel: the kernel's name.
        executions: the records of an `ExecutionRecorder`.
        lanes: threads per warp.
        lengths: the steps of operations.

    Raises:
        LaunchError: there are no records.
    """
    if not executions:
        raise LaunchError(f"kernel {kernel}: no block did anything that takes time")
    blocks = executions[0].cluster
    mine = [execution for execution in executions if execution.cluster == blocks]
    lengths = lengths or Lengths()
    clock = _Clock(lengths, lanes, 1 + max(execution.warp for execution in mine))
    marks = [(execution.began, execution) for execution in mine]
    marks += [(execution.ended, execution) for execution in mine if execution.ended >= 0]
    for moment, execution in sorted(marks, key=lambda mark: mark[0]):
        if moment == execution.began:
            clock.begin(execution)
        else:
            clock.end(execution)
    events = sorted(clock.events, key=lambda event: event.start)
    return Timeline(kernel, blocks, clock.warps, tuple(events), lengths)


@dataclass
class _Groups:
    """The background operations of a warp, in groups that it commits."""

    open: int = 1
    ends: list[tuple[int, int]] = field(default_factory=list)

    def add(self, end: int) -> None:
        self.ends.append((self.open, end))

    def close(self) -> None:
        self.open += 1

    def done(self, pending: int) -> int:
        """Return the step at which at most ``pending`` committed groups are left."""
        return max((end for group, end in self.ends if group < self.open - pending), default=0)


@dataclass
class _Unit:
    """The MMA unit of a warpgroup: step and group of each warp's issues, and the step at which it is free."""

    issued: dict[int, dict[int, tuple[int, int]]] = field(default_factory=lambda: defaultdict(dict))
    count: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    free: int = 0


_Who: TypeAlias = tuple[int, int]
"""A warp: the rank of its block, and its index in it."""


class _Clock:
    def __init__(self, lengths: Lengths, lanes: int, warps: int) -> None:
        self.lengths = lengths
        self.lanes = lanes
        self.warps = warps
        self.events: list[Event] = []
        self._free: dict[_Who, int] = defaultdict(int)
        self._starts: dict[RecordedExecution, int] = {}
        self._phases: dict[tuple[int, str, int, int], int] = defaultdict(int)
        self._copies: dict[_Who, _Groups] = defaultdict(_Groups)
        self._stores: dict[_Who, _Groups] = defaultdict(_Groups)
        self._multiplies: dict[_Who, _Groups] = defaultdict(_Groups)
        self._units: dict[_Who, _Unit] = defaultdict(_Unit)
        self._meetings: dict[tuple[object, ...], list[int]] = defaultdict(list)
        self._met: dict[RecordedExecution, tuple[object, ...]] = {}
        self._passed: dict[tuple[object, ...], int] = defaultdict(int)

    def begin(self, execution: RecordedExecution) -> None:
        """Record the step at which a warp reaches an operation, and its group at a barrier."""
        who, block = _who(execution), execution.block
        start = self._free[who]
        self._starts[execution] = start
        match execution.op:
            case ops.Barrier():
                times: tuple[object, ...] = ("barrier", *who)
                key: tuple[object, ...] = ("barrier", block, self._passed[times])
            case async_ops.ClusterBarrier() | async_ops.ClusterWait():
                times = ("cluster_barrier", *who)
                key = ("cluster_barrier", self._passed[times])
            case async_ops.RoleBarrier() as op:
                times = ("role_barrier", block, execution.stage)
                key = (*times, self._passed[times] * self.lanes // op.threads)
            case _:
                return
        self._passed[times] += 1
        self._meetings[key].append(start)
        self._met[execution] = key

    def end(self, execution: RecordedExecution) -> None:
        """Record the steps of an operation, and those of its work in the background."""
        start, who, lengths = self._starts[execution], _who(execution), self.lengths
        end, kind = start, "issue"
        match execution.op:
            case async_ops.Wait():
                place = (execution.block, execution.barrier, execution.stage, execution.phase)
                end, kind = max(start, self._phases[place]), "wait"
            case async_ops.Arrive():
                kind = "arrive"
                self._reach(execution, start)
            case ops.Copy(engine="bulk", completion="barrier"):
                end = start + lengths.issue
                self._reach(execution, self._go_on(execution, "TMA loads", "load", end, lengths.load))
            case ops.Copy(engine="bulk"):
                end = start + lengths.issue
                self._stores[who].add(self._go_on(execution, "TMA stores", "store", end, lengths.store))
            case ops.Copy(engine="async"):
                end = start + lengths.issue
                agent = "asynchronous copies"
                self._copies[who].add(self._go_on(execution, agent, "load", end, lengths.load))
            case async_ops.MmaAsync() as op:
                end = start + lengths.issue
                self._issue_mma(execution, op, end)
            case async_ops.BulkCommit() | ops.AsyncCommit() | async_ops.MmaCommit() as op:
                self._groups(op, who).close()
                return
            case async_ops.BulkWait() | ops.AsyncWait() | async_ops.MmaWait() as op:
                end, kind = max(start, self._groups(op, who).done(op.pending)), "wait"
            case (
                ops.Barrier() | async_ops.RoleBarrier() | async_ops.ClusterBarrier() | async_ops.ClusterWait()
            ):
                end, kind = max(self._meetings[self._met[execution]]), "wait"
            case ops.Mma():
                end, kind = start + lengths.mma, "mma"
            case ops.Elementwise() | ReduceOp() | PrefixOp():
                end, kind = start + lengths.arithmetic, "arithmetic"
            case _:
                end, kind = start + lengths.copy, "copy"
        self._free[who] = end
        touches = execution.touches if kind in ("copy", "mma") else ()
        self._add(execution, f"warp {execution.warp}", kind, start, end, touches)

    def _groups(self, op: Op, who: _Who) -> _Groups:
        match op:
            case async_ops.BulkCommit() | async_ops.BulkWait():
                return self._stores[who]
            case async_ops.MmaCommit() | async_ops.MmaWait():
                return self._multiplies[who]
            case _:
                return self._copies[who]

    def _issue_mma(self, execution: RecordedExecution, op: async_ops.MmaAsync, issued: int) -> None:
        """Begin a multiply when the last warp of a warpgroup issues it, after earlier multiplies."""
        size = max(op.mma.atom.lanes // self.lanes, 1)
        leader = execution.warp - execution.rank % size
        unit = self._units[execution.block, leader]
        number = unit.count[execution.warp]
        unit.count[execution.warp] += 1
        unit.issued[number][execution.warp] = (issued, self._multiplies[_who(execution)].open)
        if len(unit.issued[number]) < size:
            return
        parts = unit.issued.pop(number)
        start = max(unit.free, *(time for time, _ in parts.values()))
        unit.free = self._go_on(execution, f"MMA unit {leader}", "mma", start, self.lengths.mma_async)
        for warp, (_, group) in parts.items():
            self._multiplies[execution.block, warp].ends.append((group, unit.free))

    def _go_on(self, execution: RecordedExecution, agent: str, kind: str, start: int, length: int) -> int:
        self._add(execution, agent, kind, start, start + length, execution.touches)
        return start + length

    def _reach(self, execution: RecordedExecution, time: int) -> None:
        for block, phase in execution.reached:
            place = (block, execution.barrier, execution.stage, phase)
            self._phases[place] = max(self._phases[place], time)

    def _add(
        self,
        execution: RecordedExecution,
        agent: str,
        kind: str,
        start: int,
        end: int,
        touches: tuple[Touch, ...],
    ) -> None:
        op, has_barrier = execution.op, bool(execution.barrier)
        line = str(op.location.frame) if op.location else ""
        place = (execution.barrier, execution.stage, execution.phase) if has_barrier else ("", -1, -1)
        who = execution.warp, line, execution.block
        self.events.append(Event(agent, op.verb, kind, start, end, *place, touches, *who))


def _who(execution: RecordedExecution) -> _Who:
    return execution.block, execution.warp
