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

FOR_BULK_COPIES = slice(1 + FENCED.index("shared"), 2 + FENCED.index("shared"))
"""Which of a warp's clocks bulk copies come after that it has overwrite shared memory."""


@dataclass(eq=False)
class PendingLoad:
    """A bulk copy whose bytes count for a transaction barrier; its data lands when its phase completes.

    Args:
        op: the operation.
        agent: the copy as an agent.
        bytes: how many of its bytes have not been counted yet.
        land: carries it out.
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
        usual_bytes: what the kernel announces at most, for messages.
        arrivals: how many arrivals complete a phase.
        arrived: how many came in the present phase.
        expected: bytes announced in the present phase.
        initialised: the event of its initialisation; 0: none yet.
        told: what all arrivals so far told.
        heard: what the arrivals at completed phases told.
        arrivers: the agents that arrived in the present phase, with their operations.
        came: their slots and times.
        passed: for each warp that waited here, by its slot, the last wait that it could pass.
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
        """Bytes of the copies that are on their way."""
        return sum(load.bytes for load in self.loads)

    @property
    def is_complete(self) -> bool:
        """Whether the present phase has all it waits for."""
        return self.is_ready and self.arrived >= self.arrivals and self.issued >= self.expected

    @property
    def waits_for_bytes(self) -> bool:
        """Whether the present phase waits for bytes."""
        return self.expected > 0

    def complete(self) -> list[PendingLoad]:
        """Complete the phase: what it waited for lands; gives the copies that it did not wait for."""
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
        """Count an arrival of a warp's first lane, which tells what it knows, or only bulk copies of it."""
        self.told.tell(agent, homes, FOR_BULK_COPIES if relaxed else slice(None))
        self.arrivers.append((agent, op))
        self.came.append((agent.slot, agent.time))
        self.arrived += 1
        self.expected += expect_bytes

    def is_over(self, phases: int, agent: Actor) -> bool:
        """Whether ``phases`` phases have certainly completed when a warp comes here.

        It has waited for that, or comes after who has; or it comes after every arrival that they took.
        """
        if phases <= 0 or agent.comes_after(self.slot, phases):
            return True
        came = self.ends[phases - 1]
        return came is not None and all(agent.comes_after(*arrival) for arrival in came)

    def may_pass(self, agent: Actor, op: Op) -> None:
        """Note that a warp may pass a wait from now on: the phase that it waits for is over.

        It may be slow to go on.  If nothing keeps the present phase from ending before it does, another
        schedule exists in which it is too late and its wait is for the phase after the next.
        """
        self.passed[agent.slot] = PassedWait(agent, op, self.phase - 1, agent.time)

    def overtaken(self) -> list[PassedWait]:
        """The waits for the phase before the present one that nothing lets pass before the present one ends.

        The parity would then be again what it was, and such a warp would wait on.  The lanes of a warp wait
        together.
        """
        late = (wait for wait in self.passed.values() if wait.phase == self.phase - 1)
        return [wait for wait in late if self.told.order[wait.agent.slot] < wait.time]

    def hear(self, agent: Actor) -> None:
        """Let a warp know of the completed phases, and of all that was told to them."""
        self.heard.hear(agent)

    def state(self) -> str:
        """How far the present phase is.

        Example:
            ``full[2] phase 1: 0 of 1 arrivals, 0 of 49152 bytes``
        """
        text = f"{self.name} phase {self.phase}: {self.arrived} of {self.arrivals} arrivals"
        wanted = self.expected or self.usual_bytes
        return text + (f", {self.issued} of {wanted} bytes" if wanted else "")


@dataclass(eq=False)
class NamedBarrier:
    """A numbered barrier: the agents that wait, how often it opened, and for whom last, at what times."""

    waiting: list[tuple[Actor, RoleBarrier]] = field(default_factory=list)
    opened: int = 0
    last: list[tuple[Actor, RoleBarrier, int]] = field(default_factory=list)

    def open(self) -> None:
        """Let those who wait go on, each knowing what all knew."""
        self.last = [(agent, op, agent.time) for agent, op in self.waiting]
        join([agent for agent, _ in self.waiting])
        self.waiting.clear()
        self.opened += 1

    def is_new(self, agent: Actor) -> bool:
        """Whether an agent comes that nothing tells that the barrier has opened for others."""
        return bool(self.last) and not any(
            agent is other or agent.comes_after(other.slot, time + 1) for other, _, time in self.last
        )


# ---------------------------------------------------------------- counters
# A wait until a counter is 3 passes after some three signals, and tells nothing about which.  It comes after
# the signals without which the others could not have taken the counter there: a signal that comes after
# another one cannot stand in for it.  Before a wait is decided, as many blocks as possible go on, so that
# the signals that may come before it have come.  A block that begins later may still signal in time to stand
# in for one of them.  The kernel is then executed once more, and the wait comes only after the signals
# without which it could not have passed with the late one: accesses that need more are races.  A wait after
# which nothing is accessed that the signallers wrote is legal.


@dataclass(frozen=True, eq=False)
class Mark:
    """Something that was done with a counter: its bit among those that are seen, by whom, and where."""

    number: int
    agent: Actor
    op: Op

    def is_before(self, seen: int) -> bool:
        """Whether who has seen so much comes after it."""
        return bool(seen >> self.number & 1)


@dataclass(frozen=True, eq=False)
class Signalled(Mark):
    """One signal.

    Args:
        value: how much it counted.
        told: the times that all lanes of the block knew, for each of its clocks, by the group.
        seen: what it comes after, itself included.
    """

    value: int
    told: tuple[dict[int, Array], ...]
    seen: int


@dataclass(frozen=True, eq=False)
class PassedAwait(Mark):
    """A wait that passed: for what value, and the signals that it counts on."""

    value: int
    certain: Sequence[Signalled]


@dataclass(eq=False)
class Count:
    """One counter: its signals since it was last 0, the waits that passed, and what made it 0."""

    buffer: Storage
    at: int
    signals: list[Signalled] = field(default_factory=list)
    passed: list[PassedAwait] = field(default_factory=list)
    zeroed: Mark | None = None

    @property
    def value(self) -> int:
        """Its present value."""
        return int(self.buffer.elements[self.at])

    def certain(self, value: int, late: Iterable[Signalled] = ()) -> list[Signalled]:
        """The signals without which the others, and some that come later, do not take it to a value."""
        every = [*self.signals, *late]
        return [one for one in self.signals if _without(one, every) < value]

    def overtaken(self, late: Signalled) -> list[PassedAwait]:
        """The waits that a signal, which does not come after them, could have let pass too early."""
        return [
            wait
            for wait in self.passed
            if not wait.is_before(late.seen)
            and any(_without(one, self.signals) >= wait.value for one in wait.certain)
        ]

    def unsignalled(self, of: int) -> list[PassedAwait]:
        """The waits that may still be under way when the last of so many signals comes.

        Who signals after a wait, and without whose signal there are not so many, has passed it by then.
        """
        after = 0
        for one in self.certain(of):
            after |= one.seen
        return [wait for wait in self.passed if not wait.is_before(after)]

    def unordered(self, agent: Actor, marks: Sequence[Mark]) -> Mark | None:
        """The first of some marks that an agent does not come after."""
        return next((mark for mark in marks if not mark.is_before(agent.seen)), None)

    def become_zero(self, mark: Mark) -> None:
        """It is 0 again."""
        self.signals.clear()
        self.passed.clear()
        self.zeroed = mark


def _without(one: Signalled, signals: Iterable[Signalled]) -> int:
    """How far signals count that neither are a certain one nor come after it."""
    return sum(other.value for other in signals if not one.is_before(other.seen))


Late: TypeAlias = dict[int, dict[int, Signalled]]
"""For waits, by their numbers, the signals that come later and could end them, by theirs."""


class Counts:
    """All counters of a launch.

    Args:
        late: late signals that executions before this one have shown; events have the same numbers in all.
    """

    def __init__(self, late: Late) -> None:
        self.known: dict[tuple[int, int], Count] = {}
        self.late = late
        self.is_settled = True
        """Whether all late signals of this execution were known before it."""
        self.orderless: dict[Op, None] = {}
        """The waits for which no signal is certain."""
        self._numbers = 0

    def of(self, buffer: Storage, at: int) -> Count:
        """The counter at an offset."""
        return self.known.setdefault((id(buffer), at), Count(buffer, at))

    def number(self, agent: Actor) -> int:
        """A fresh bit, which its agent has seen."""
        self._numbers += 1
        agent.seen |= 1 << self._numbers
        return self._numbers

    def wait(self, count: Count, agent: Actor, op: Op, value: int) -> None:
        """Note a wait that passes: its warp learns what the signals told that are certain."""
        number = self.number(agent)
        certain = count.certain(value, self.late.get(number, {}).values())
        if not certain:
            self.orderless[op] = None
        learn(agent, certain)
        count.passed.append(PassedAwait(number, agent, op, value, certain))

    def signal(self, count: Count, agent: Actor, op: Op, value: int) -> Signalled:
        """Note a signal of a warp: it tells what all lanes know."""
        number = self.number(agent)
        told = tuple(dict(known) for known in agent.every_others)
        for clock, mine in enumerate(told):
            mine[agent.group] = agent.every[clock, Visibility.BLOCK].copy()
        made = Signalled(number, agent, op, value, told, agent.seen)
        count.signals.append(made)
        for wait in count.overtaken(made):
            self.late.setdefault(wait.number, {})[number] = made
            self.is_settled = False
        agent.advance()
        return made


def learn(agent: Actor, signals: Sequence[Signalled]) -> None:
    """Let all lanes of a warp know what signals told."""
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
