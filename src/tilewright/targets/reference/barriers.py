"""Barriers with state: transaction barriers with their phases, and the numbered barriers of some warps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tilewright.ir.async_ops import RoleBarrier
from tilewright.ir.ops import Op
from tilewright.targets.reference.agents import Agent, Message, Scope, join
from tilewright.targets.reference.numerics import Array


@dataclass(eq=False)
class Load:
    """A bulk copy whose bytes count for a transaction barrier; its data lands when its phase completes.

    Args:
        op: the operation.
        agent: the copy as an agent.
        bytes: how many of its bytes have not been counted yet.
        land: carries it out.
        events: the events of its accesses.
    """

    op: Op
    agent: Agent
    bytes: int
    land: Callable[[], None]
    events: range


@dataclass(frozen=True)
class Passed:
    """A warp that passed a wait: the operation, the phase that it waited for, and its time then."""

    agent: Agent
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
        passed: for each warp that waited here, by its slot, its last wait.
        seen: the time of every agent that the end of the present phase comes after.
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
    loads: list[Load] = field(default_factory=list)
    arrivers: list[tuple[Agent, Op]] = field(default_factory=list)
    passed: dict[int, Passed] = field(default_factory=dict)
    seen: Array = field(init=False)

    def __post_init__(self) -> None:
        self.seen = np.zeros_like(self.told.generic.known[Scope.LANE])

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

    def complete(self) -> list[Load]:
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
        self.heard = self.told.copy()
        for clocks in (self.heard.generic, self.heard.issues):
            clocks.learn_time(Scope.BLOCK, self.slot, self.phase)
        if len({id(agent) for agent, _ in self.arrivers}) == 1 and not self.expected:
            # Who alone made the phase complete knows that it did.
            self.hear(self.arrivers[0][0])
        self.arrived = self.expected = 0
        self.arrivers = []
        return late

    def comes_after(self, agent: Agent) -> None:
        """Note that the present phase cannot be over before an agent has come here."""
        self.seen = np.maximum(self.seen, agent.seen)

    def has_passed(self, agent: Agent, op: Op, phase: int) -> None:
        """Note that a warp has passed a wait for the phase before ``phase``."""
        self.passed[agent.slot] = Passed(agent, op, phase - 1, agent.time)

    def overtaken(self) -> list[Passed]:
        """The waits for the phase before the present one that nothing lets pass before the present one ends.

        The parity would then be again what it was, and such a warp would wait on.  The lanes of a warp wait
        together.
        """
        late = (wait for wait in self.passed.values() if wait.phase == self.phase - 1)
        return [wait for wait in late if self.seen[wait.agent.slot] < wait.time]

    def hear(self, agent: Agent) -> None:
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

    waiting: list[tuple[Agent, RoleBarrier]] = field(default_factory=list)
    opened: int = 0
    last: list[tuple[Agent, RoleBarrier, int]] = field(default_factory=list)

    def open(self) -> None:
        """Let those who wait go on, each knowing what all knew."""
        self.last = [(agent, op, agent.time) for agent, op in self.waiting]
        join([agent for agent, _ in self.waiting])
        self.waiting.clear()
        self.opened += 1

    def is_new(self, agent: Agent) -> bool:
        """Whether an agent comes that nothing tells that the barrier has opened for others."""
        return bool(self.last) and not any(
            agent is other or agent.seen[other.slot] > time for other, _, time in self.last
        )
