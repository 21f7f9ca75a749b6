"""Barriers with state: transaction barriers with their phases, and the numbered barriers of some warps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tilewright.functions.conversions import Array
from tilewright.ir.async_ops import FENCED, RoleBarrier
from tilewright.ir.ops import Op
from tilewright.targets.reference.agents import Agent, Message, Scope, join, learn_time

FOR_BULK_COPIES = slice(1 + FENCED.index("shared"), 2 + FENCED.index("shared"))
"""Which of a warp's clocks bulk copies come after that it has overwrite shared memory."""


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
    """A warp that may pass a wait: the operation, the phase that it waits for, and its time."""

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
    loads: list[Load] = field(default_factory=list)
    arrivers: list[tuple[Agent, Op]] = field(default_factory=list)
    passed: dict[int, Passed] = field(default_factory=dict)
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
        self.ends.append(None if self.expected else self.came)
        self.told.order[self.slot] = self.phase
        self.heard = self.told.copy()
        learn_time(self.heard.every, Scope.BLOCK, self.slot, self.phase)
        self.arrived = self.expected = 0
        self.arrivers, self.came = [], []
        return late

    def arrive(self, agent: Agent, op: Op, expect_bytes: int, homes: Array, *, relaxed: bool = False) -> None:
        """Count an arrival of a warp's first lane, which tells what it knows, or only bulk copies of it."""
        self.told.tell(agent, homes, FOR_BULK_COPIES if relaxed else slice(None))
        self.arrivers.append((agent, op))
        self.came.append((agent.slot, agent.time))
        self.arrived += 1
        self.expected += expect_bytes

    def is_over(self, phases: int, agent: Agent) -> bool:
        """Whether ``phases`` phases have certainly completed when a warp comes here.

        It has waited for that, or comes after who has; or it comes after every arrival that they took.
        """
        if phases <= 0 or agent.comes_after(self.slot, phases):
            return True
        came = self.ends[phases - 1]
        return came is not None and all(agent.comes_after(*arrival) for arrival in came)

    def may_pass(self, agent: Agent, op: Op) -> None:
        """Note that a warp may pass a wait from now on: the phase that it waits for is over.

        It may be slow to go on.  If nothing keeps the present phase from ending before it does, another
        schedule exists in which it is too late and its wait is for the phase after the next.
        """
        self.passed[agent.slot] = Passed(agent, op, self.phase - 1, agent.time)

    def overtaken(self) -> list[Passed]:
        """The waits for the phase before the present one that nothing lets pass before the present one ends.

        The parity would then be again what it was, and such a warp would wait on.  The lanes of a warp wait
        together.
        """
        late = (wait for wait in self.passed.values() if wait.phase == self.phase - 1)
        return [wait for wait in late if self.told.order[wait.agent.slot] < wait.time]

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
            agent is other or agent.comes_after(other.slot, time + 1) for other, _, time in self.last
        )
