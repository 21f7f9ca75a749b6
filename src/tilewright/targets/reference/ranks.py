"""Several ranks in one process: the kernels and copies of every rank run together under one checker.

Each rank has streams, and each stream has steps in order: launches of kernels, and copies, posts and waits of
a copy engine.  All steps that may run together are interleaved.  A step comes after the earlier steps of its
stream, and after the signals of scope "system" that it has waited for.  Nothing else orders two ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np

from tilewright.errors import HazardError, Location
from tilewright.functions.conversions import Array
from tilewright.ir.op import GLOBAL, Op, Traits
from tilewright.ir.types import Value
from tilewright.targets.reference.agents import Actor, Clocks, join, learn_others, no_clocks
from tilewright.targets.reference.barriers import Count, Counts, Late
from tilewright.targets.reference.checker import Batch, Checker
from tilewright.targets.reference.findings import Finding, Kind
from tilewright.targets.reference.machine import RankState, Simulator
from tilewright.targets.reference.meaning import REFERENCE
from tilewright.targets.reference.memory import Storage, array_buffer, share_histories
from tilewright.targets.reference.rank_times import GroupWork, RankLog, RankPlace
from tilewright.targets.reference.reasons import Remedies
from tilewright.targets.reference.report import place
from tilewright.targets.reference.run import Arguments, bind_buffers
from tilewright.targets.reference.signals import COUNTED, RunningLaunch, orderless, passes, report_counters
from tilewright.targets.reference.standstill import explain_standstill
from tilewright.targets.reference.state import Pause, Steps, Warp

ALWAYS = np.iinfo(np.int64).max
"""A time after all accesses of an agent."""

# ---------------------------------------------------------------- steps


@dataclass(frozen=True)
class Send(Op):
    """Copy an array into another rank's memory by a copy engine."""

    name = "send"
    traits = Traits((GLOBAL,))
    roles: ClassVar = {"source": "reads", "target": "writes"}
    source: Value
    target: Value


@dataclass(frozen=True)
class Post(Op):
    """Set a counter to a larger value, after everything before it in the stream."""

    name = "post"
    traits = Traits((GLOBAL,))
    roles: ClassVar = {"counter": "updates"}
    counter: Value
    value: int
    scope: str = "system"


@dataclass(frozen=True)
class Hold(Op):
    """Wait in the stream until ``counter >= value``."""

    name = "hold"
    traits = Traits((GLOBAL,))
    roles: ClassVar = {"counter": "reads"}
    counter: Value
    value: int
    scope: str = "system"


@dataclass(frozen=True)
class KernelStep:
    """A launch: the kernel with its arguments, the author's line, and the caller's arrays, kept alive."""

    arguments: Arguments
    location: Location
    given: tuple[Any, ...] = ()


@dataclass(frozen=True)
class EngineStep:
    """Operations of a copy engine, the array of each of their values, and the caller's arrays, kept alive."""

    ops: tuple[Op, ...]
    arrays: Mapping[Value, Array]
    given: tuple[Any, ...] = ()


Step: TypeAlias = KernelStep | EngineStep
Streams: TypeAlias = Sequence[Sequence[Sequence[Step]]]
"""The steps of each stream of each rank."""


# ---------------------------------------------------------------- the report


@dataclass(frozen=True, repr=False)
class RanksReport:
    """Findings of a run of several ranks; made by `tw.testing.ranks`.

    Args:
        ranks: number of ranks.
        findings: hazards, in the order in which they were seen.
        omitted: number of hazards that are not listed.
        launches: number of launches of kernels that ended.
        waits: notes about waits that order nothing.
        log: what each block and each copy engine did, for `tw.draw.draw_ranks`.
    """

    ranks: int
    findings: tuple[Finding, ...]
    omitted: int
    launches: int
    waits: tuple[str, ...] = ()
    log: RankLog = field(default_factory=RankLog)

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def raise_if_any(self) -> None:
        """Raise if anything was found.

        Raises:
            HazardError: the ranks have hazards; the message describes each.
        """
        if self.findings:
            raise HazardError(str(self))

    def __repr__(self) -> str:
        return f"<{self._head()}>"

    def _head(self) -> str:
        count = len(self.findings) + self.omitted
        return f"{self.ranks} ranks: {count or 'no'} finding{'s' * (count != 1)}"

    def __str__(self) -> str:
        tail = [f"and {self.omitted} more"] if self.omitted else []
        head = "\n".join([self._head(), f"{self.launches} launches ended", *self.waits])
        return "\n\n".join([head, *map(str, self.findings), *tail])


# ---------------------------------------------------------------- streams


@dataclass
class Knowledge:
    """The past of the next step of a stream: times of groups of agents, and signals as bits."""

    others: dict[int, Array] = field(default_factory=dict)
    seen: int = 0

    def tell(self, agent: Actor) -> None:
        """Let an agent that begins know it."""
        for known in agent.every_others:
            learn_others(known, self.others)
        agent.seen |= self.seen
        agent.began = agent.seen

    def take(self, agent: Actor) -> None:
        """Learn everything that an agent which has ended knows, and that it has ended."""
        for known in agent.every_others:
            learn_others(self.others, known)
        self.others[agent.group] = np.full(agent.every.shape[-1], ALWAYS)
        self.seen |= agent.seen


@dataclass(eq=False)
class Engine:
    """One step of a copy engine that runs: its agent, its operations, its present wait."""

    agent: Actor
    steps: Steps
    waiting: Pause | None = None
    is_over: bool = False

    def may_go_on(self, *, last: bool) -> bool:
        """Return whether it can go on; with ``last``, after a wait that lets all others go first."""
        wait = self.waiting
        return not self.is_over and (wait is None or (wait.is_last == last and wait.ready()))

    def advance(self) -> None:
        """Go on to the next wait, or to the end."""
        self.waiting = next(self.steps, None)
        self.is_over = self.waiting is None


@dataclass(eq=False)
class RankStream:
    """A stream of a rank: its running step, the steps to come, and the knowledge that earlier steps left."""

    rank: int
    number: int
    coming: list[Step]
    begun: int = -1
    """The number of the present step."""
    present: RunningLaunch | Engine | None = None
    knows: Knowledge = field(default_factory=Knowledge)


class World:
    """One execution of all streams.

    Args:
        streams: the streams.
        late: late signals of earlier executions, see `Counts`.
        resident: number of blocks of a launch that certainly run at once.
    """

    def __init__(self, streams: Streams, late: Late, resident: int) -> None:
        steps = [step for rank in streams for stream in rank for step in stream]
        kernels = [step.arguments.kernel for step in steps if isinstance(step, KernelStep)]
        log = RankLog()
        self.shared = RankState(
            Checker(Remedies(*{id(kernel): kernel for kernel in kernels}.values())),
            Counts(late, log),
            log=log,
        )
        self.shared.checker.events.are_together = True
        pairs = ((rank, own) for rank, of in enumerate(streams) for own in of)
        self.streams = [RankStream(rank, number, list(own)) for number, (rank, own) in enumerate(pairs)]
        log.steps = [len(stream.coming) for stream in self.streams]
        self.launches = 0
        """Number of launches that have ended."""
        self._resident = resident
        self._machines: list[Simulator] = []
        self._buffers: dict[int, dict[Value, Storage]] = {}
        for step in steps:
            if isinstance(step, KernelStep):
                self._buffers[id(step)] = bind_buffers(step.arguments)
            else:
                arrays = step.arrays.items()
                self._buffers[id(step)] = {v: array_buffer(v, a, False, True) for v, a in arrays}
        every = [buffer for held in self._buffers.values() for buffer in held.values()]
        share_histories(every, _written(steps))
        _name_engine_buffers(steps, self._buffers)

    def run(self) -> bool:
        """Execute all steps; return whether all ended."""
        while True:
            for stream in self.streams:
                while stream.present is None and stream.coming:  # a launch without blocks ends at once
                    self._begin(stream)
            if not (self._advance(last=False) or self._advance(last=True) or self._begin_blocks()):
                break
        if any(stream.present is not None for stream in self.streams):
            self._explain()
            return False
        for machine in self._machines:
            report_counters(machine)
        return True

    def _begin(self, stream: RankStream) -> None:
        """Begin the next step of a stream."""
        step = stream.coming.pop(0)
        stream.begun += 1
        if isinstance(step, KernelStep):
            given = step.arguments
            buffers = self._buffers[id(step)]
            machine = Simulator(
                given.kernel, given.lanes, REFERENCE, buffers, given.scalars, True, ranks=self.shared
            )
            self._machines.append(machine)
            stream.present = RunningLaunch(machine, given.clusters(), self._resident)
            if stream.present.is_over:
                self._end(stream)
            return
        every = no_clocks(1)
        clocks, *others = (Clocks(known) for known in every)
        issues = dict(zip(("shared", "global"), others, strict=True))
        agent = Actor(
            0, 0, (), -1, "copy engine", clocks, issues=issues, every=every, order=np.zeros(1, np.int64)
        )
        agent.group, agent.device = next(self.shared.groups), stream.rank
        stream.knows.tell(agent)
        self._place(stream, agent.group, step.ops[0].verb, is_engine=True)
        stream.present = Engine(agent, self._engine(step, agent))

    def _end(self, stream: RankStream) -> None:
        """End the present step of a stream."""
        if isinstance(stream.present, Engine):
            stream.knows.take(stream.present.agent)
        else:
            self.launches += 1
        stream.present = None

    def _advance(self, *, last: bool) -> bool:
        """Let all ready warps and engines go on; with ``last``, one whose wait lets all others go first."""
        moved = False
        for stream in self.streams:
            present = stream.present
            if isinstance(present, Engine):
                if present.may_go_on(last=last):
                    self.shared.checker.events.enter([0])
                    present.advance()
                    moved = True
                    if present.is_over:
                        self._end(stream)
            elif present is not None:
                for warp in present.ready(last=last)[: 1 if last else None]:
                    present.machine.resume()
                    moved, ended = present.advance(warp)
                    if not moved:
                        return False
                    if ended is not None:
                        for one in ended.barrier.warps:
                            stream.knows.take(one.agent)
                if present.is_over:
                    self._end(stream)
            if moved and last:
                return True
        return moved

    def _place(self, stream: RankStream, group: int, name: str, *, is_engine: bool) -> None:
        place = RankPlace(stream.rank, stream.number, stream.begun, name, is_engine)
        self.shared.log.places[group] = place

    def _begin_blocks(self) -> bool:
        """Begin the next cluster of a launch; exceed the resident blocks only if all launches would."""
        for beyond in (False, True):
            for stream in self.streams:
                if not isinstance(stream.present, RunningLaunch):
                    continue
                cluster = stream.present.begin(beyond=beyond)
                if cluster is None:
                    continue
                first = cluster.blocks[0]
                name = f"{stream.present.machine.kernel.name} {first.index}"
                self._place(stream, first.warps[0].agent.group, name, is_engine=False)
                for warp in cluster.barrier.warps:
                    stream.knows.tell(warp.agent)
                    for agent in (warp.agent, warp.copies, warp.stores, warp.landings):
                        agent.device = stream.rank
                return True
        return False

    # ---------------------------------------------------------------- copy engines

    def _engine(self, step: EngineStep, agent: Actor) -> Steps:
        """Execute the operations of an engine."""
        checker, counts, buffers = self.shared.checker, self.shared.counts, self._buffers[id(step)]
        for op in step.ops:
            if isinstance(op, Send):
                for value, action, access in (
                    (op.source, "read", checker.reads),
                    (op.target, "write", checker.writes),
                ):
                    buffer = buffers[value]
                    at = (
                        np.arange(len(buffer.elements))
                        if buffer.exists is None
                        else np.flatnonzero(buffer.exists)
                    )
                    access(Batch.of_first_lane(agent, checker.site(op, value, action), buffer, at))
                self.shared.log.note(agent.group, GroupWork(sent=step.arrays[op.target].nbytes))
                step.arrays[op.target][...] = step.arrays[op.source]
                join([agent])
                continue
            assert isinstance(op, Post | Hold)
            buffer = buffers[op.counter]
            count = counts.of(buffer, 0)
            action = "signal" if isinstance(op, Post) else "wait"
            site, at = checker.site(op, op.counter, action), np.zeros(1, np.int64)
            if isinstance(op, Hold):
                yield _pause(op, count)
                checker.reduces(Batch.of_first_lane(agent, site, buffer, at), COUNTED)
                passes(checker, counts, count, agent, op, op.value)
                join([agent])
                continue
            checker.reduces(Batch.of_first_lane(agent, site, buffer, at), COUNTED)
            if op.value <= count.value:
                last = count.signals[-1] if count.signals else None
                reason = (
                    f"{buffer.owner}{_index(buffer)} is already {count.value}, so a wait for {op.value} may "
                    "have passed before what it waits for has come: give each call a larger value"
                )
                other = None if last is None else (last.agent, last.op)
                checker.waiting(Kind.ARMED, agent, op, other, reason, "signal", "signal")
            else:
                counts.signal(count, agent, op, op.value - count.value)
                buffer.elements[0] = op.value

    # ---------------------------------------------------------------- standstill

    def _explain(self) -> None:
        """Report that no rank can go on, and who waits for what."""
        stuck: dict[tuple[int, Op, str], Actor] = {}
        for stream in self.streams:
            present = stream.present
            tasks: Sequence[Warp | Engine] = [present] if isinstance(present, Engine) else []
            if isinstance(present, RunningLaunch):
                tasks = list(present.tasks)
            for task in tasks:
                if task.waiting is not None and task.waiting.state is not None and task.waiting.is_last:
                    key = (stream.rank, task.waiting.op, task.waiting.state())
                    stuck.setdefault(key, task.agent)
        if not stuck:
            for stream in self.streams:
                if isinstance(stream.present, RunningLaunch):
                    for cluster, warps in stream.present.open.items():
                        explain_standstill(self.shared.checker, cluster, list(warps))
                        return
            return
        lines = [
            f"\n    rank {rank} waits at {place(op)} for {state}"
            for (rank, op, state) in list(stuck)[:MOST_LINES]
        ]
        for stream in self.streams:
            coming = [step for step in stream.coming if isinstance(step, EngineStep)]
            for at, post in ((id(one), op) for one in coming for op in one.ops if isinstance(op, Post)):
                buffer = self._buffers[at][post.counter]
                name = f"{buffer.owner}{_index(buffer)}"
                lines.append(
                    f"\n    rank {stream.rank} sets {name} to {post.value} only later, at {place(post)}"
                )
        (_, op, _), agent = next(iter(stuck.items()))
        others = ((actor, other) for (rank, other, _), actor in stuck.items() if rank != agent.device)
        reason = "deadlock: no rank can go on" + "".join(lines)
        self.shared.checker.waiting(
            Kind.DEADLOCK, agent, op, next(((a, o) for a, o in others if o is not op), None), reason
        )


MOST_LINES = 8
"""Largest number of waits that a report of a deadlock lists."""


def _pause(op: Hold, count: Count) -> Pause:
    def state() -> str:
        return f"{count.buffer.owner}{_index(count.buffer)} to be {op.value}; it is {count.value}"

    return Pause(op, lambda: count.value >= op.value, state, is_last=True)


def _index(buffer: Storage) -> str:
    found = buffer.locate(0)
    return f"[{', '.join(map(str, found))}]" if found else ""


def _name_engine_buffers(steps: Sequence[Step], buffers: Mapping[int, dict[Value, Storage]]) -> None:
    """Give the buffers of engines the names and coordinates of the kernels' arrays that contain them."""
    arrays = [
        buffers[id(step)][value]
        for step in steps
        if isinstance(step, KernelStep)
        for value in step.arguments.kernel.tensors
    ]
    arrays.sort(key=lambda buffer: -len(buffer.elements))
    for step in steps:
        if isinstance(step, KernelStep):
            continue
        for buffer in buffers[id(step)].values():
            low, high = buffer.bounds
            around = next((a for a in arrays if a.bounds[0] <= low and high <= a.bounds[1]), None)
            if around is not None:
                first = (low - around.address) // around.owner.dtype.bytes
                buffer.locate = _shifted(around.locate, first)
                buffer.owner = around.owner


def _shifted(
    locate: Callable[[int], tuple[int, ...] | None], first: int
) -> Callable[[int], tuple[int, ...] | None]:
    return lambda offset: locate(first + offset)


def _written(steps: Sequence[Step]) -> set[Value]:
    """Return the values that some step writes."""
    found: set[Value] = set()
    for step in steps:
        if isinstance(step, KernelStep):
            kernel = step.arguments.kernel
            found |= {value for value in kernel.tensors if value.name in kernel.written_params}
        else:
            found |= {value.buffer for op in step.ops for value in op.written}
    return found


# ---------------------------------------------------------------- running


def run_ranks(streams: Streams, resident: int) -> RanksReport:
    """Execute the steps of all ranks in place on their arrays, and look for hazards.

    Args:
        streams: for each rank its streams of steps.
        resident: number of blocks of a launch that certainly run at once.
    """
    late: Late = {}
    steps = [step for rank in streams for stream in rank for step in stream]
    arrays = [
        array
        for step in steps
        for array in (step.arguments.arrays if isinstance(step, KernelStep) else step.arrays).values()
    ]
    before = [(array, array.copy()) for array in arrays if array.flags.writeable]
    while True:
        world = World(streams, late, resident)
        world.run()
        counts, checker = world.shared.counts, world.shared.checker
        if counts.is_settled:
            break
        for array, contents in before:
            array[...] = contents
    waits = tuple(orderless(op) for op in counts.orderless)
    found = checker.findings
    return RanksReport(len(streams), found.all(), found.omitted, world.launches, waits, world.shared.log)
