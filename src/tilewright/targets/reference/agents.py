"""Who accesses memory, and what orders the accesses: agents, their clocks, and the log of events.

Happens-before is kept with vector clocks.  Every agent has a *time*; an access carries its agent's time, and
it comes before another access if the other's agent has since learnt of that time.  What an agent has learnt
depends on how far a completion reaches, its `Scope`: a thread that waited for its own copy knows of it before
the other lanes of its warp do, and these before the rest of the block.

Whether a step certainly comes after another one is a weaker question than whether it sees what the other
wrote: bytes of a bulk copy arrive after the copy was issued, and tell nothing of what its issuer wrote.
Barriers count by the former; `Agent.order` has it.

An agent belongs to a `Proxy`.  Operations that run in the background are agents of their own, and those that
work through another proxy than their issuer come after what the issuer's second clocks know, which only a
fence of that proxy joins with the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from tilewright.targets.reference.numerics import Array

WHOLE_WARP = -1
"""The lane of accesses that all lanes of a warp make together, each for the others: it is no lane's own."""


class Proxy(Enum):
    """The path by which an access reaches memory."""

    GENERIC = "generic"
    ASYNC = "async"


class Scope(Enum):
    """How far what an agent has learnt reaches."""

    LANE = "lane"
    """Known to each lane for its own accesses."""
    FIRST = "first"
    """Known to all lanes, of accesses by the first lane of whatever warp: what one thread could tell."""
    BLOCK = "block"
    """Known to all lanes, of whatever lane the access was."""


@dataclass(eq=False)
class Clocks:
    """Per scope, the latest time of every agent of a group that is known to have passed."""

    known: dict[Scope, Array]

    @staticmethod
    def of(agents: int) -> Clocks:
        """Clocks that know of nothing."""
        return Clocks({scope: np.zeros(agents, np.int64) for scope in Scope})

    def learn(self, scope: Scope, times: Array) -> None:
        """Join ``times`` into what is known at a scope; what is known to all is known to each lane."""
        np.maximum(self.known[scope], times, out=self.known[scope])
        if scope is Scope.BLOCK:
            self.learn(Scope.LANE, times)

    def learn_time(self, scope: Scope, slot: int, time: int) -> None:
        """Learn of one agent's time."""
        for wider in (scope, Scope.LANE) if scope is Scope.BLOCK else (scope,):
            self.known[wider][slot] = max(self.known[wider][slot], time)

    def copy(self) -> Clocks:
        """Clocks that know as much at present."""
        return Clocks({scope: times.copy() for scope, times in self.known.items()})


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
        issues: what the asynchronous operations that a warp issues through the other proxy come after.
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
    issues: Clocks | None = None
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

    @property
    def both(self) -> tuple[Clocks, ...]:
        """Its clocks, and those of the other proxy if it has them."""
        return (self.clocks,) if self.issues is None else (self.clocks, self.issues)

    def advance(self) -> None:
        """Let time pass: accesses from now on are not known to who learns of the present time."""
        self.time += 1
        self._know_itself()

    def learn_time(self, scope: Scope, slot: int, time: int) -> None:
        """Learn, for both proxies, that another agent's time has passed."""
        for clocks in self.both:
            clocks.learn_time(scope, slot, time)

    def comes_after(self, slot: int, time: int) -> bool:
        """Whether another agent's time has certainly passed when this one comes here."""
        return int(self.order[slot]) >= time

    def _know_itself(self) -> None:
        if not self.in_background:
            self.clocks.known[Scope.LANE][self.slot] = self.time
        if len(self.order):
            self.order[self.slot] = self.time


@dataclass(eq=False)
class Message:
    """What agents tell others through a transaction barrier: clocks of both proxies, and their order."""

    generic: Clocks
    issues: Clocks
    order: Array

    @staticmethod
    def of(agents: int) -> Message:
        """Nothing told yet."""
        return Message(Clocks.of(agents), Clocks.of(agents), np.zeros(agents, np.int64))

    def copy(self) -> Message:
        """The same, as of now."""
        return Message(self.generic.copy(), self.issues.copy(), self.order.copy())

    def tell(self, agent: Agent, homes: Array) -> None:
        """Add what the first lane of a warp knows: of its own accesses, and what all lanes know."""
        mine = homes == agent.home
        for told, clocks in zip((self.generic, self.issues), agent.both, strict=True):
            told.learn(Scope.BLOCK, clocks.known[Scope.BLOCK])
            told.learn(Scope.FIRST, clocks.known[Scope.FIRST])
            told.learn(Scope.FIRST, np.where(mine, clocks.known[Scope.LANE], 0))
        self.tell_order(agent)

    def tell_order(self, agent: Agent) -> None:
        """Add that a warp has come here, and nothing of what it wrote."""
        np.maximum(self.order, agent.order, out=self.order)

    def hear(self, agent: Agent) -> None:
        """Let all lanes of a warp know."""
        for told, clocks in zip((self.generic, self.issues), agent.both, strict=True):
            clocks.learn(Scope.BLOCK, told.known[Scope.BLOCK])
            clocks.learn(Scope.FIRST, told.known[Scope.FIRST])
        np.maximum(agent.order, self.order, out=agent.order)


def join(agents: Sequence[Agent]) -> None:
    """A barrier of agents: what a lane of one knew, all lanes of all know; then time passes."""
    for clocks in zip(*(agent.both for agent in agents), strict=True):
        lanes, first = (
            np.max([each.known[scope] for each in clocks], axis=0) for scope in (Scope.LANE, Scope.FIRST)
        )
        for each in clocks:
            each.learn(Scope.BLOCK, lanes)
            each.learn(Scope.FIRST, first)
    order = np.max([agent.order for agent in agents], axis=0)
    for agent in agents:
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
