"""State of barriers and counters: phases of transaction barriers, numbered barriers, signals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir.async_ops import FENCED, RoleBarrier
from tilewright.ir.op import Op
from tilewright.targets.reference.agents import Actor, Message, Visibility, join, learn_others, learn_time
from tilewright.targets.reference.memory import Storage
from tilewright.targets.reference.rank_times import Fired, RankLog, Waited

FOR_BULK_COPIES = slice(1 + FENCED.index("shared"), 2 + FENCED.index("shared"))
"""The clocks of a warp that order its bulk copies into shared memory."""


@dataclass(eq=False)
class PendingLoad:
    """A bulk copy whose bytes count for a transaction barrier; its data lands when its phase completes.

    Args:
        op: the operation.
        agent: the copy as an agent.
        bytes: number of its bytes that have not been counted yet.
        land: executes the copy.
        events: the events of its accesses.
    """

    op: Op
    agent: Actor
    bytes: int
    land: Callable[[], None]
    events: range


@dataclass(frozen=True)
class PassedWait:
    """A warp that may pass a wait: the operation, the phase that it waits for, and its time."""

    agent: Actor
    op: Op
    phase: int
    time: int


@dataclass(eq=False)
class TransactionBarrier:
    """One stage of a transaction barrier.

    A phase that waits for bytes completes as late as possible: when a warp needs it.

    Args:
        name: e.g. ``"full[2]"``.
        stage: its index.
        slot: its slot in clocks; its time is the number of completed phases.
        usual_bytes: the largest number of bytes that the kernel announces, for messages.
        arrivals: number of arrivals that complete a phase.
        arrived: number of arrivals in the present phase.
        expected: bytes announced in the present phase.
        initialised: the event of its initialisation; 0: none yet.
        told: the clocks and order of all arrivals so far.
        heard: the clocks and order of the arrivals at completed phases.
        arrivers: the agents that arrived in the present phase, with their operations.
        came: the slots and times of these arrivals.
        passed: the last wait that each warp could pass, by its slot.
        ends: for each completed phase, the slots and times of its arrivals; None if it also waited for bytes.
    """

    name: str
    stage: int
    slot: int
    usual_bytes: int
    arrivals: int
    told: Message
    heard: Message
    is_ready: bool = False
    initialised: int = 0
    phase: int = 0
    arrived: int = 0
    expected: int = 0
    loads: list[PendingLoad] = field(default_factory=list)
    arrivers: list[tuple[Actor, Op]] = field(default_factory=list)
    passed: dict[int, PassedWait] = field(default_factory=dict)
    ends: list[list[tuple[int, int]] | None] = field(default_factory=list)
    came: list[tuple[int, int]] = field(default_factory=list)

    @property
    def issued(self) -> int:
        """Bytes of the copies that have been issued."""
        return sum(load.bytes for load in self.loads)

    @property
    def is_complete(self) -> bool:
        """Whether all arrivals and bytes of the present phase have come."""
        return self.is_ready and self.arrived >= self.arrivals and self.issued >= self.expected

    @property
    def waits_for_bytes(self) -> bool:
        """Whether the present phase waits for bytes."""
        return self.expected > 0

    def complete(self) -> list[PendingLoad]:
        """Complete the phase: land its copies, and return the copies that it did not wait for."""
        rest = self.expected
        late = []
        for load in self.loads:
            if load.bytes <= rest:
                rest -= load.bytes
                load.land()
            else:
                load.bytes -= rest
                rest = 0
                late.append(load)
        self.loads = late
        self.phase += 1
        self.ends.append(None if self.expected else self.came)
        self.told.order[self.slot] = self.phase
        self.heard = self.told.copy()
        learn_time(self.heard.every, Visibility.BLOCK, self.slot, self.phase)
        self.arrived = self.expected = 0
        self.arrivers, self.came = [], []
        return late

    def arrive(self, agent: Actor, op: Op, expect_bytes: int, homes: Array, *, relaxed: bool = False) -> None:
        """Count an arrival of a warp's first lane; a relaxed one orders only bulk copies."""
        self.told.tell(agent, homes, FOR_BULK_COPIES if relaxed else slice(None))
        self.arrivers.append((agent, op))
        self.came.append((agent.slot, agent.time))
        self.arrived += 1
        self.expected += expect_bytes

    def is_over(self, phases: int, agent: Actor) -> bool:
        """Return whether ``phases`` phases have certainly completed when a warp comes here.

        The warp or an agent before it has waited for them, or the warp comes after each of their arrivals.
        """
        if phases <= 0 or agent.comes_after(self.slot, phases):
            return True
        came = self.ends[phases - 1]
        return came is not None and all(agent.comes_after(*arrival) for arrival in came)

    def may_pass(self, agent: Actor, op: Op) -> None:
        """Note that a warp may pass a wait from now on, because the phase that it waits for is over.

        The warp may be slow.  If the present phase can end before the warp goes on, a schedule exists in
        which the warp is too late, and waits for the phase after the next.
        """
        self.passed[agent.slot] = PassedWait(agent, op, self.phase - 1, agent.time)

    def overtaken(self) -> list[PassedWait]:
        """Return the waits for the previous phase that the end of the present phase can overtake.

        The parity is then the same as before, so the warp keeps waiting.  The lanes of a warp wait together.
        """
        late = (wait for wait in self.passed.values() if wait.phase == self.phase - 1)
        return [wait for wait in late if self.told.order[wait.agent.slot] < wait.time]

    def state(self) -> str:
        """Describe the progress of the present phase.

        Example:
            ``full[2] phase 1: 0 of 1 arrivals, 0 of 49152 bytes``
        """
        text = f"{self.name} phase {self.phase}: {self.arrived} of {self.arrivals} arrivals"
        wanted = self.expected or self.usual_bytes
        return text + (f", {self.issued} of {wanted} bytes" if wanted else "")


@dataclass(eq=False)
class NamedBarrier:
    """A numbered barrier: waiting agents, number of openings, and agents and times of the last opening."""

    waiting: list[tuple[Actor, RoleBarrier]] = field(default_factory=list)
    opened: int = 0
    last: list[tuple[Actor, RoleBarrier, int]] = field(default_factory=list)

    def open(self) -> None:
        """Let all waiting agents go on, each with the knowledge of all."""
        self.last = [(agent, op, agent.time) for agent, op in self.waiting]
        join([agent for agent, _ in self.waiting])
        self.waiting.clear()
        self.opened += 1

    def is_new(self, agent: Actor) -> bool:
        """Return whether an agent arrives without knowing that the barrier has opened for others."""
        return bool(self.last) and not any(
            agent is other or agent.comes_after(other.slot, time + 1) for other, _, time in self.last
        )


# ---------------------------------------------------------------- counters
# A wait until a counter is 3 passes after any three signals.  It certainly comes after a signal only if the
# counter cannot reach 3 without it, that is, by the signals that do not come after it.  Before a wait passes,
# as many blocks as possible run on, so that all signals that may come before the wait have come.  A block
# that begins later may still signal in time and replace one of them.  The kernel then runs once more, and the
# wait comes after only those signals that the late one cannot replace; accesses that need more order are
# races.  A wait before accesses that need no order is legal.


@dataclass(frozen=True, eq=False)
class Mark:
    """An operation on a counter: its bit in `Actor.seen`, its agent, and the operation."""

    number: int
    agent: Actor
    op: Op

    def is_before(self, seen: int) -> bool:
        """Return whether an agent that has seen these bits comes after it."""
        return bool(seen >> self.number & 1)


@dataclass(frozen=True, eq=False)
class Signalled(Mark):
    """One signal.

    Args:
        value: the number that it added.
        told: the times that all lanes of the warp knew, for each of its clocks, by the group.
        seen: the operations that it comes after, including itself.
    """

    value: int
    told: tuple[dict[int, Array], ...]
    seen: int

    def reaches(self, agent: Actor, op: Op) -> bool:
        """Return whether it orders an agent that waits by ``op``: across GPUs, both need scope "system"."""
        scopes = {getattr(one, "scope", "gpu") for one in (self.op, op)}
        return self.agent.device == agent.device or scopes == {"system"}


@dataclass(frozen=True, eq=False)
class PassedAwait(Mark):
    """A wait that passed: its value, and the signals that it certainly comes after."""

    value: int
    certain: Sequence[Signalled]


@dataclass(eq=False)
class Count:
    """One counter: its signals and passed waits since it was last 0, and the operation that reset it."""

    buffer: Storage
    at: int
    signals: list[Signalled] = field(default_factory=list)
    passed: list[PassedAwait] = field(default_factory=list)
    zeroed: Mark | None = None
    base: int = 0
    """Its value before the signals: 0, or what the caller's array held when the run began."""

    @property
    def value(self) -> int:
        """The counter's present value."""
        return int(self.buffer.elements[self.at])

    def certain(self, value: int, late: Iterable[Signalled] = ()) -> list[Signalled]:
        """Return the signals that a value needs: without any one, all others and `late` stay below it."""
        every = [*self.signals, *late]
        return [one for one in self.signals if self.base + _without(one, every) < value]

    def overtaken(self, late: Signalled) -> list[PassedAwait]:
        """Return the waits that a signal may end too early: unordered after them, it can replace another."""
        return [
            wait
            for wait in self.passed
            if not wait.is_before(late.seen)
            and any(self.base + _without(one, self.signals) >= wait.value for one in wait.certain)
        ]

    def unsignalled(self, of: int) -> list[PassedAwait]:
        """Return the waits that may still be pending when the last of ``of`` signals comes.

        A wait is over if its warp signals after it, and the count needs this signal.
        """
        after = 0
        for one in self.certain(of):
            after |= one.seen
        return [wait for wait in self.passed if not wait.is_before(after)]

    def unordered(self, agent: Actor, marks: Sequence[Mark]) -> Mark | None:
        """Return the first mark that does not come before an agent."""
        return next((mark for mark in marks if not mark.is_before(agent.seen)), None)

    def become_zero(self, mark: Mark) -> None:
        """Reset the counter."""
        self.signals.clear()
        self.passed.clear()
        self.zeroed, self.base = mark, 0


def _without(one: Signalled, signals: Iterable[Signalled]) -> int:
    """Return the sum of the signals that are not ``one`` and do not come after it."""
    return sum(other.value for other in signals if not one.is_before(other.seen))


Late: TypeAlias = dict[int, dict[int, Signalled]]
"""For each wait, by its number, the later signals that could end it, by their numbers."""


class Counts:
    """All counters of a launch.

    Args:
        late: late signals that earlier executions have shown; events have the same numbers in all executions.
        log: notes the signals and waits for a simulation of times, or None.
    """

    def __init__(self, late: Late, log: RankLog | None = None) -> None:
        self.log = log
        self.known: dict[int, Count] = {}
        """The counters by their addresses."""
        self.late = late
        self.is_settled = True
        """Whether earlier executions had shown all late signals of this execution."""
        self.orderless: dict[Op, None] = {}
        """The waits that certainly come after no signal."""
        self._numbers = 0

    def of(self, buffer: Storage, at: int) -> Count:
        """Return the counter at an offset of a buffer; buffers that share memory share its counters."""
        elements = buffer.elements
        address = elements.__array_interface__["data"][0] + at * elements.strides[0]
        if address not in self.known:
            self.known[address] = Count(buffer, at, base=int(elements[at]))
        return self.known[address]

    def number(self, agent: Actor) -> int:
        """Return the number of a new operation, and add its bit to those that the agent has seen."""
        self._numbers += 1
        agent.seen |= 1 << self._numbers
        return self._numbers

    def wait(self, count: Count, agent: Actor, op: Op, value: int) -> list[Signalled]:
        """Record a wait that passes, and return the signals that it certainly comes after.

        Its warp learns the knowledge of those signals that reach its GPU.
        """
        number = self.number(agent)
        certain = count.certain(value, self.late.get(number, {}).values())
        if not certain:
            self.orderless[op] = None
        learn(agent, [one for one in certain if one.reaches(agent, op)])
        count.passed.append(PassedAwait(number, agent, op, value, certain))
        if self.log is not None:
            self.log.note(agent.group, Waited(tuple(one.number for one in certain)))
        return certain

    def signal(self, count: Count, agent: Actor, op: Op, value: int) -> Signalled:
        """Record a signal of a warp, which tells the knowledge of all lanes."""
        number = self.number(agent)
        told = tuple(dict(known) for known in agent.every_others)
        for clock, mine in enumerate(told):
            mine[agent.group] = agent.every[clock, Visibility.BLOCK].copy()
        made = Signalled(number, agent, op, value, told, agent.seen)
        count.signals.append(made)
        if self.log is not None:
            self.log.note(agent.group, Fired(number))
        for wait in count.overtaken(made):
            self.late.setdefault(wait.number, {})[number] = made
            self.is_settled = False
        agent.advance()
        return made


def learn(agent: Actor, signals: Sequence[Signalled]) -> None:
    """Let all lanes of a warp learn the knowledge of signals."""
    for one in signals:
        agent.seen |= one.seen
        for clock in range(1 + len(FENCED)):
            others = dict(one.told[clock])
            own = others.pop(agent.group, None)
            if own is not None:
                for scope in Visibility:
                    known = agent.every[clock, scope]
                    np.maximum(known, own, out=known)
            learn_others(agent.every_others[clock], others)
