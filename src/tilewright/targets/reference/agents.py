"""Who accesses memory, and what orders the accesses: agents, their clocks, and the log of events.

Happens-before is kept with vector clocks.  Every agent has a *time*; an access carries its agent's time, and
it comes before another access if the other's agent has since learnt of that time.  What an agent has learnt
depends on how far a completion reaches, its `Scope`: a thread that waited for its own copy knows of it before
the other lanes of its warp do, and these before the rest of the block.

An agent belongs to a `Proxy`.  Operations that run in the background are agents of their own, and one that
works through another proxy than its issuer keeps clocks of its own, which only a fence of that proxy joins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from tilewright.targets.reference.numerics import Array


class Proxy(Enum):
    """The path by which an access reaches memory."""

    GENERIC = "generic"
    ASYNC = "async"


class Scope(Enum):
    """How far what an agent has learnt reaches."""

    LANE = "lane"
    """Known to each lane for its own accesses."""
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


@dataclass(eq=False)
class Agent:
    """One actor: a warp, or the asynchronous copies that a warp issued.

    Args:
        slot: its index in the clocks of its group.
        home: the slot of the warp whose lanes it serves.
        block: the block's index in the grid, x first.
        warp: the warp's index in its block.
        name: what messages call it.
        clocks: what its accesses come after.
        proxy: the path of its accesses.
        time: its own clock.
    """

    slot: int
    home: int
    block: tuple[int, ...]
    warp: int
    name: str
    clocks: Clocks
    proxy: Proxy = Proxy.GENERIC
    time: int = 1

    def __post_init__(self) -> None:
        self._know_itself()

    @property
    def in_background(self) -> bool:
        """Whether it runs on its own after it was issued: even its issuer must wait for it."""
        return self.slot != self.home

    def advance(self) -> None:
        """Let time pass: accesses from now on are not known to who learns of the present time."""
        self.time += 1
        self._know_itself()

    def _know_itself(self) -> None:
        if not self.in_background:
            self.clocks.known[Scope.LANE][self.slot] = self.time


@dataclass
class Events:
    """The log of executed accesses: one event per access site, agent and execution; event 0 is "none"."""

    group: list[Agent] = field(default_factory=list)
    agents: list[Agent | None] = field(default_factory=lambda: [None])
    sites: list[int] = field(default_factory=lambda: [-1])
    first: int = 1
    homes: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    _time: Array = field(default_factory=lambda: np.zeros(1024, np.int64))
    _slot: Array = field(default_factory=lambda: np.zeros(1024, np.int64))

    def enter(self, group: list[Agent]) -> None:
        """Begin a group of agents that may order each other; earlier groups stay unordered with it."""
        self.group = group
        self.first = len(self.agents)
        self.homes = np.array([agent.home for agent in group], np.int64)

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

    def is_foreign(self, events: Array) -> Array:
        """Which events belong to groups that ended before this one began."""
        return np.asarray((events > 0) & (events < self.first))

    def unordered(self, agent: Agent, lanes: Array, events: Array, event_lanes: Array) -> Array:
        """Which of ``events`` (at ``event_lanes``) an access of ``agent`` at ``lanes`` does not come after.

        Args:
            agent: who accesses.
            lanes: its lane for each element; shape (n,).
            events: earlier events; shape (n,).
            event_lanes: the lane of each earlier event; shape (n,).

        Returns:
            Truth values; shape (n,).
        """
        unordered = self.unknown(agent, events)
        if not unordered.any():
            return unordered
        at = np.flatnonzero(unordered & ~self.is_foreign(events) & (event_lanes == lanes))
        slot = self._slot[events[at]]
        mine = self.homes[slot] == agent.home
        unordered[at[mine]] = self._time[events[at[mine]]] > agent.clocks.known[Scope.LANE][slot[mine]]
        return unordered

    def unknown(self, agent: Agent, events: Array) -> Array:
        """Which of ``events`` happened at a time that not all lanes of ``agent`` know of; shape (n,)."""
        count = len(self.agents)
        times, slots = self._time[self.first : count], self._slot[self.first : count]
        unknown = np.ones(count, bool)
        unknown[0] = False
        unknown[self.first :] = times > agent.clocks.known[Scope.BLOCK][slots]
        return np.asarray(unknown[events])
