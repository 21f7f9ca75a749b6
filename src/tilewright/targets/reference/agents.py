"""Who accesses memory, and what orders the accesses: agents, their clocks, and the log of events.

Happens-before is kept with vector clocks.  Every agent has a *time*; an access carries its agent's time, and
it comes before another access if the other's agent has since learnt of that time.  What an agent has learnt
depends on how far a completion reaches, its `Scope`: a thread that waited for its own copy knows of it before
the other lanes of its warp do, and these before the rest of the block.

Whether a step certainly comes after another one is a weaker question than whether it sees what the other
wrote: bytes of a bulk copy arrive after the copy was issued, and tell nothing of what its issuer wrote.
Barriers count by the former; `Agent.order` has it.

An agent belongs to a `Proxy`.  Operations that run in the background are agents of their own, and those that
work through another proxy than their issuer come after what the issuer's clocks for that know, one for each
memory: only a fence of that memory joins them with what it knows itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum

import numpy as np

from tilewright.ir.async_ops import FENCED
from tilewright.targets.reference.numerics import Array

WHOLE_WARP = -1
"""The lane of accesses that all lanes of a warp make together, each for the others: it is no lane's own."""


class Proxy(Enum):
    """The path by which an access reaches memory."""

    GENERIC = "generic"
    ASYNC = "async"


class Scope(IntEnum):
    """How far what an agent has learnt reaches."""

    LANE = 0
    """Known to each lane for its own accesses."""
    FIRST = 1
    """Known to all lanes, of accesses by the first lane of whatever warp: what one thread could tell."""
    BLOCK = 2
    """Known to all lanes, of whatever lane the access was."""


@dataclass(eq=False)
class Clocks:
    """Per scope, the latest time of every agent of a group that is known to have passed.

    ``known`` has shape (scopes, agents).  What is known to all is known to each lane.
    """

    known: Array

    @staticmethod
    def of(agents: int) -> Clocks:
        """Clocks that know of nothing."""
        return Clocks(np.zeros((len(Scope), agents), np.int64))

    def learn(self, other: Clocks) -> None:
        """Join what other clocks know, at every scope."""
        np.maximum(self.known, other.known, out=self.known)


@dataclass(eq=False)
class Agent:
    """One actor: a warp, the asynchronous copies that a warp issued, a bulk copy, the MMAs of a warpgroup.

    Args:
        slot: its index in the clocks of its group.
        home: the slot of the warp whose lanes it serves.
        block: the block's index in the grid, x first.
        warp: the warp's index in its block.
        name: what messages call it.
        clocks: what its accesses come after.
        proxy: the path of its accesses.
        time: its own clock.
        issues: what asynchronous operations through the other proxy come after, by the memory that they
            access: those that a warp issues, or this one.
        every: for a warp: all its clocks in one, its own and those of ``issues``; of shape
            (clocks, scopes, agents).
        order: for a warp: the time of every agent that has certainly passed when it comes here, in whatever
            schedule; of a transaction barrier, the number of completed phases.
        issuer: for such an operation: the clocks of the warp that issued it.
        missing: for what runs in the background: the wait that nobody made, in words.
        shown: what would show others that it was waited for.
        rank: the rank of its block in its cluster; None without clusters.
    """

    slot: int
    home: int
    block: tuple[int, ...]
    warp: int
    name: str
    clocks: Clocks
    proxy: Proxy = Proxy.GENERIC
    time: int = 1
    issues: Mapping[str, Clocks] = field(default_factory=dict)
    every: Array = field(default_factory=lambda: no_clocks(0))
    order: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    issuer: Clocks | None = None
    missing: str = ""
    shown: str = ""
    rank: int | None = None

    def __post_init__(self) -> None:
        self._know_itself()

    @property
    def in_background(self) -> bool:
        """Whether it runs on its own after it was issued: even its issuer must wait for it."""
        return self.slot != self.home or self.issuer is not None

    def after(self, memory: str) -> Clocks:
        """What its accesses to a memory come after."""
        return self.clocks if self.proxy is Proxy.GENERIC else self.issues.get(memory, self.clocks)

    def advance(self) -> None:
        """Let time pass: accesses from now on are not known to who learns of the present time."""
        self.time += 1
        self._know_itself()

    def learn_time(self, scope: Scope, slot: int, time: int) -> None:
        """Learn, for all proxies, that another agent's time has passed."""
        learn_time(self.every, scope, slot, time)

    def comes_after(self, slot: int, time: int) -> bool:
        """Whether another agent's time has certainly passed when this one comes here."""
        return int(self.order[slot]) >= time

    def _know_itself(self) -> None:
        if not self.in_background:
            self.clocks.known[Scope.LANE][self.slot] = self.time
        if len(self.order):
            self.order[self.slot] = self.time


def learn_time(every: Array, scope: Scope, slot: int, time: int) -> None:
    """Let clocks, of shape (clocks, scopes, agents), know of one agent's time."""
    for wider in (scope, Scope.LANE) if scope is Scope.BLOCK else (scope,):
        np.maximum(every[:, wider, slot], time, out=every[:, wider, slot])


@dataclass(eq=False)
class Message:
    """What agents tell others through a transaction barrier: all their clocks, and their order.

    ``every`` is as that of an agent; none of it is only for the lanes that did it.
    """

    every: Array
    order: Array

    @staticmethod
    def of(agents: int) -> Message:
        """Nothing told yet."""
        return Message(no_clocks(agents), np.zeros(agents, np.int64))

    def copy(self) -> Message:
        """The same, as of now."""
        return Message(self.every.copy(), self.order.copy())

    def tell(self, agent: Agent, homes: Array) -> None:
        """Add what the first lane of a warp knows: of its own accesses, and what all lanes know."""
        told, known = self.every, agent.every
        for scope in (Scope.BLOCK, Scope.LANE):
            np.maximum(told[:, scope], known[:, Scope.BLOCK], out=told[:, scope])
        first = np.maximum(known[:, Scope.FIRST], known[:, Scope.LANE] * (homes == agent.home))
        np.maximum(told[:, Scope.FIRST], first, out=told[:, Scope.FIRST])
        self.tell_order(agent)

    def tell_order(self, agent: Agent) -> None:
        """Add that a warp has come here, and nothing of what it wrote."""
        np.maximum(self.order, agent.order, out=self.order)

    def hear(self, agent: Agent) -> None:
        """Let all lanes of a warp know."""
        np.maximum(agent.every, self.every, out=agent.every)
        np.maximum(agent.order, self.order, out=agent.order)


def no_clocks(agents: int) -> Array:
    """The clocks of a warp that knows of nothing: its own, and those for each memory."""
    return np.zeros((1 + len(FENCED), len(Scope), agents), np.int64)


def join(agents: Sequence[Agent]) -> None:
    """A barrier of agents: what a lane of one knew, all lanes of all know; then time passes."""
    known = np.max([agent.every for agent in agents], axis=0) if len(agents) > 1 else agents[0].every.copy()
    known[:, Scope.BLOCK] = known[:, Scope.LANE]
    order = np.max([agent.order for agent in agents], axis=0)
    for agent in agents:
        agent.every[:] = known
        agent.order[:] = order
        agent.advance()


@dataclass
class Events:
    """The log of executed accesses: one event per access site, agent and execution; event 0 is "none"."""

    agents: list[Agent | None] = field(default_factory=lambda: [None])
    sites: list[int] = field(default_factory=lambda: [-1])
    first: int = 1
    homes: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    _time: Array = field(default_factory=lambda: np.zeros(1024, np.int64))
    _slot: Array = field(default_factory=lambda: np.zeros(1024, np.int64))

    def enter(self, homes: Sequence[int]) -> None:
        """Begin a group of agents that may order each other; earlier groups stay unordered with it.

        Args:
            homes: for each slot, the slot of the warp whose lanes the agent serves.
        """
        self.first = len(self.agents)
        self.homes = np.array(homes, np.int64)

    def append(self, agent: Agent, site: int) -> int:
        """Record an access at the agent's present time."""
        number = len(self.agents)
        if number == len(self._time):
            self._time = np.concatenate([self._time, np.zeros_like(self._time)])
            self._slot = np.concatenate([self._slot, np.zeros_like(self._slot)])
        self._time[number], self._slot[number] = agent.time, agent.slot
        self.agents.append(agent)
        self.sites.append(site)
        return number

    def time(self, event: int) -> int:
        """The time of an event on its agent's clock."""
        return int(self._time[event])

    def postpone(self, events: range) -> None:
        """Accesses that were to be over by their time are not: they are over one later."""
        self._time[events.start : events.stop] += 1

    def is_foreign(self, events: Array) -> Array:
        """Which events belong to groups that ended before this one began."""
        return np.asarray((events > 0) & (events < self.first))

    def unordered(
        self,
        agent: Agent,
        lanes: Array,
        events: Array,
        event_lanes: Array,
        clocks: Clocks | None = None,
    ) -> Array:
        """Which of ``events`` (at ``event_lanes``) an access of ``agent`` at ``lanes`` does not come after.

        Args:
            agent: who accesses.
            lanes: its lane for each element; shape (n,).
            events: earlier events; shape (n,).
            event_lanes: the lane of each earlier event; shape (n,).
            clocks: what it knows; default: the agent's clocks.

        Returns:
            Truth values; shape (n,).
        """
        clocks = clocks or agent.clocks
        unordered = self._unknown(clocks, events)
        if not unordered.any():
            return unordered
        at = np.flatnonzero(unordered & ~self.is_foreign(events))
        slot, time = self._slot[events[at]], self._time[events[at]]
        seen = (event_lanes[at] == 0) & (time <= clocks.known[Scope.FIRST][slot])
        one = (event_lanes[at] == lanes[at]) & (lanes[at] != WHOLE_WARP)
        mine = one & (self.homes[slot] == agent.home)
        seen |= mine & (time <= clocks.known[Scope.LANE][slot])
        unordered[at[seen]] = False
        return unordered

    def untold(self, clocks: Clocks, events: Array, event_lanes: Array) -> Array:
        """Which of ``events`` (at ``event_lanes``) no barrier told of: who knows at most did them itself."""
        unknown = self._unknown(clocks, events)
        at = np.flatnonzero(unknown & ~self.is_foreign(events) & (event_lanes == 0))
        unknown[at] = self._time[events[at]] > clocks.known[Scope.FIRST][self._slot[events[at]]]
        return unknown

    def unknown(self, agent: Agent, events: Array) -> Array:
        """Which of ``events`` happened at a time that not all lanes of ``agent`` know of; shape (n,)."""
        return self._unknown(agent.clocks, events)

    def _unknown(self, clocks: Clocks, events: Array) -> Array:
        count = len(self.agents)
        times, slots = self._time[self.first : count], self._slot[self.first : count]
        unknown = np.ones(count, bool)
        unknown[0] = False
        unknown[self.first :] = times > clocks.known[Scope.BLOCK][slots]
        return np.asarray(unknown[events])
