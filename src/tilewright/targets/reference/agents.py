"""Agents, which access memory, their vector clocks, and the log of their accesses.

Vector clocks record happens-before.  Each agent has a *time*, and an access carries its agent's time.  The
access comes before another access if the other agent has learnt of this time.  Knowledge has a `Visibility`:
a thread that waited for its own copy knows of it before the other lanes of its warp do, and these before the
rest of the block.

A step may come after another one without seeing its writes: the bytes of a bulk copy arrive after the copy
was issued, but do not show the writes of its issuer.  Barriers use this weaker order, `Actor.order`.

An agent belongs to a `Proxy`.  Operations in the background are separate agents.  An operation through
another proxy than its issuer comes after the issuer's clocks for this proxy, one for each memory.  Only a
fence of that memory joins these clocks with the issuer's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir.async_ops import FENCED

WHOLE_WARP = -1
"""Lane number of an access in which each lane may access elements of other lanes of its warp."""


class Proxy(Enum):
    """The path by which an access reaches memory."""

    GENERIC = "generic"
    ASYNC = "async"


class Visibility(IntEnum):
    """Which lanes of an agent know of which accesses of another agent up to a time."""

    LANE = 0
    """Each lane knows of its own accesses."""
    FIRST = 1
    """All lanes know of accesses by the first lane of any warp: only this thread arrived at a barrier."""
    BLOCK = 2
    """All lanes know of accesses by any lane."""


@dataclass(eq=False)
class Clocks:
    """The latest known time of each agent of a group, for each visibility.

    ``known`` has shape (visibilities, agents).  Knowledge of all lanes is also in the row of each lane.
    ``others`` maps each other group to the times of its agents.  Signals carry these times to all lanes.
    """

    known: Array
    others: dict[int, Array] = field(default_factory=dict)

    def learn(self, other: Clocks) -> None:
        """Join the knowledge of other clocks."""
        np.maximum(self.known, other.known, out=self.known)
        learn_others(self.others, other.others)


@dataclass(eq=False)
class Actor:
    """An agent: a warp, the asynchronous copies of a warp, a bulk copy, or the MMAs of a warpgroup.

    Args:
        slot: its index in the clocks of its group.
        home: the slot of the warp whose lanes it serves.
        block: the block's index in the grid, x first.
        warp: the warp's index in its block.
        name: its name in messages.
        clocks: the times that its accesses come after.
        proxy: the path of its accesses.
        time: its own clock.
        issues: clocks of asynchronous operations through the other proxy, by the memory that they access:
            operations that a warp issues, or this operation.
        every: for a warp: its own clocks and those of ``issues`` in one array of shape
            (clocks, visibilities, agents).
        order: for a warp: the time of each agent that has passed in every schedule when the warp comes here;
            for a transaction barrier, the number of completed phases.
        issuer: for an operation in the background: the clocks of the warp that issued it.
        missing: for an operation in the background: the missing wait, in words.
        shown: the synchronisation that would tell other threads of that wait, in words.
        rank: the rank of its block in its cluster; None without clusters.
        group: the number of its group; the clocks of a group have one slot per agent.
        seen: the signals that it comes after, as bits of an integer.
        device: the rank whose GPU it runs on; None in a run of one GPU.
        began: the signals that come before its launch, as bits of an integer.
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
    group: int = 0
    seen: int = 0
    device: int | None = None
    began: int = 0

    def __post_init__(self) -> None:
        self._know_itself()

    @property
    def in_background(self) -> bool:
        """Whether it runs asynchronously, so that even its issuer must wait for it."""
        return self.slot != self.home or self.issuer is not None

    @property
    def every_others(self) -> tuple[dict[int, Array], ...]:
        """The times of other groups that its clocks know, in the order of ``every``."""
        return (self.clocks.others, *(clocks.others for clocks in self.issues.values()))

    def after(self, memory: str) -> Clocks:
        """Return the clocks that its accesses to a memory come after."""
        return self.clocks if self.proxy is Proxy.GENERIC else self.issues.get(memory, self.clocks)

    def advance(self) -> None:
        """Increase its time.  An agent that learns of the present time does not know of later accesses."""
        self.time += 1
        self._know_itself()

    def learn_time(self, scope: Visibility, slot: int, time: int) -> None:
        """Learn, for all proxies, that another agent's time has passed."""
        learn_time(self.every, scope, slot, time)

    def comes_after(self, slot: int, time: int) -> bool:
        """Return whether another agent's time has passed, in every schedule, when this agent comes here."""
        return int(self.order[slot]) >= time

    def _know_itself(self) -> None:
        if not self.in_background:
            self.clocks.known[Visibility.LANE][self.slot] = self.time
        if len(self.order):
            self.order[self.slot] = self.time


def learn_time(every: Array, scope: Visibility, slot: int, time: int) -> None:
    """Let clocks, of shape (clocks, visibilities, agents), know of one agent's time."""
    for wider in (scope, Visibility.LANE) if scope is Visibility.BLOCK else (scope,):
        np.maximum(every[:, wider, slot], time, out=every[:, wider, slot])


@dataclass(eq=False)
class Message:
    """The clocks and the order that agents publish through a barrier.

    ``every`` and ``others`` are as in `Actor`; all lanes of a receiver learn them.
    """

    every: Array
    order: Array
    others: tuple[dict[int, Array], ...] = field(default_factory=lambda: tuple({} for _ in (None, *FENCED)))
    seen: int = 0

    @staticmethod
    def of(agents: int) -> Message:
        """Return an empty message."""
        return Message(no_clocks(agents), np.zeros(agents, np.int64))

    def copy(self) -> Message:
        """Return a copy."""
        others = tuple(dict(known) for known in self.others)
        return Message(self.every.copy(), self.order.copy(), others, self.seen)

    def tell(self, agent: Actor, homes: Array, clocks: slice = slice(None)) -> None:
        """Add the knowledge of the first lane of a warp: its own accesses, and the knowledge of all lanes.

        Args:
            agent: the warp.
            homes: for the agent of each slot, the slot of the warp whose lanes it serves.
            clocks: the clocks that it tells.  If it tells all, it also tells its signals.
        """
        told, known = self.every[clocks], agent.every[clocks]
        for scope in (Visibility.BLOCK, Visibility.LANE):
            np.maximum(told[:, scope], known[:, Visibility.BLOCK], out=told[:, scope])
        first = np.maximum(known[:, Visibility.FIRST], known[:, Visibility.LANE] * (homes == agent.home))
        np.maximum(told[:, Visibility.FIRST], first, out=told[:, Visibility.FIRST])
        for mine, known_to in zip(self.others[clocks], agent.every_others[clocks], strict=True):
            learn_others(mine, known_to)
        if clocks == slice(None):
            self.seen |= agent.seen
        self.tell_order(agent)

    def tell_order(self, agent: Actor) -> None:
        """Add that a warp has come here, but nothing about its writes."""
        np.maximum(self.order, agent.order, out=self.order)

    def hear(self, agent: Actor) -> None:
        """Add the message to the knowledge of all lanes of a warp."""
        np.maximum(agent.every, self.every, out=agent.every)
        np.maximum(agent.order, self.order, out=agent.order)
        for known_to, mine in zip(agent.every_others, self.others, strict=True):
            learn_others(known_to, mine)
        agent.seen |= self.seen


def no_clocks(agents: int) -> Array:
    """Return the clocks of a warp that knows of nothing: its own clocks, and those for each memory."""
    return np.zeros((1 + len(FENCED), len(Visibility), agents), np.int64)


def join(agents: Sequence[Actor]) -> None:
    """Execute a barrier: all lanes of all agents learn the knowledge of each lane; then time advances."""
    known = np.max([agent.every for agent in agents], axis=0) if len(agents) > 1 else agents[0].every.copy()
    known[:, Visibility.BLOCK] = known[:, Visibility.LANE]
    order = np.max([agent.order for agent in agents], axis=0)
    others, seen = agents[0].every_others, 0
    for agent in agents:
        seen |= agent.seen
        for all_know, its in zip(others, agent.every_others, strict=True):
            learn_others(all_know, its)
    for agent in agents:
        agent.every[:] = known
        agent.order[:] = order
        agent.seen = seen
        for its, all_know in zip(agent.every_others, others, strict=True):
            its.update(all_know)
        agent.advance()


def learn_others(known: dict[int, Array], more: Mapping[int, Array]) -> None:
    """Join ``more`` times of agents of other groups into ``known``, in new arrays."""
    for group, times in more.items():
        mine = known.get(group)
        if mine is not times:
            known[group] = times if mine is None else np.maximum(mine, times)


@dataclass
class Events:
    """The log of accesses: one event per site, agent and execution; event 0 means no access."""

    agents: list[Actor | None] = field(default_factory=lambda: [None])
    sites: list[int] = field(default_factory=lambda: [-1])
    first: int = 1
    homes: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    are_together: bool = False
    """Whether groups run concurrently and can order each other by signals."""
    _time: Array = field(default_factory=lambda: np.zeros(1024, np.int64))
    _slot: Array = field(default_factory=lambda: np.zeros(1024, np.int64))
    _group: Array = field(default_factory=lambda: np.zeros(1024, np.int64))

    def enter(self, homes: Sequence[int]) -> None:
        """Begin a group of agents that can order each other.  Only signals order agents of different groups.

        Args:
            homes: for the agent of each slot, the slot of the warp whose lanes it serves.
        """
        self.first = len(self.agents)
        self.homes = np.array(homes, np.int64)

    def append(self, agent: Actor, site: int) -> int:
        """Record an access at the agent's present time."""
        number = len(self.agents)
        if number == len(self._time):
            self._time = np.concatenate([self._time, np.zeros_like(self._time)])
            self._slot = np.concatenate([self._slot, np.zeros_like(self._slot)])
            self._group = np.concatenate([self._group, np.zeros_like(self._group)])
        self._time[number], self._slot[number] = agent.time, agent.slot
        self._group[number] = agent.group
        self.agents.append(agent)
        self.sites.append(site)
        return number

    def agent(self, event: int) -> Actor:
        """Return the agent that made an access."""
        agent = self.agents[event]
        assert agent is not None, "event 0 is no access"
        return agent

    def time(self, event: int) -> int:
        """Return the time of an event on its agent's clock."""
        return int(self._time[event])

    def postpone(self, events: range) -> None:
        """Move accesses to the next time of their agent, because they complete later than expected."""
        self._time[events.start : events.stop] += 1

    def is_foreign(self, events: Array, agent: Actor) -> Array:
        """Return which events belong to other groups than an agent's."""
        return np.asarray((events > 0) & (self._group[events] != agent.group))

    def is_by(self, events: Array, agent: Actor) -> Array:
        """Return which events are an agent's own."""
        return np.asarray((self._group[events] == agent.group) & (self._slot[events] == agent.slot))

    def unordered(
        self, agent: Actor, lanes: Array, events: Array, event_lanes: Array, clocks: Clocks | None = None
    ) -> Array:
        """Return which earlier accesses an access of an agent does not come after.

        Args:
            agent: the agent that accesses.
            lanes: its lane for each element; shape (n,).
            events: earlier events; shape (n,).
            event_lanes: the lane of each earlier event; shape (n,).
            clocks: the clocks to compare with; default: the agent's.

        Returns:
            Truth values; shape (n,).
        """
        clocks = clocks or agent.clocks
        unordered = self._unknown(clocks, events, agent)
        if not np.count_nonzero(unordered):
            return unordered
        at = np.flatnonzero(unordered & ~self.is_foreign(events, agent))
        slot, time = self._slot[events[at]], self._time[events[at]]
        seen = (event_lanes[at] == 0) & (time <= clocks.known[Visibility.FIRST][slot])
        one = (event_lanes[at] == lanes[at]) & (lanes[at] != WHOLE_WARP)
        mine = one & (self.homes[slot] == agent.home)
        seen |= mine & (time <= clocks.known[Visibility.LANE][slot])
        unordered[at[seen]] = False
        return unordered

    def untold(self, agent: Actor, clocks: Clocks, events: Array, event_lanes: Array) -> Array:
        """Return which of ``events``, made by ``event_lanes``, no barrier has made known to ``clocks``."""
        unknown = self._unknown(clocks, events, agent)
        at = np.flatnonzero(unknown & ~self.is_foreign(events, agent) & (event_lanes == 0))
        unknown[at] = self._time[events[at]] > clocks.known[Visibility.FIRST][self._slot[events[at]]]
        return unknown

    def are_known(self, clocks: Clocks, first: int, newest: int) -> bool:
        """Return whether all lanes know of all events of one warp between two of its events."""
        known = clocks.known[Visibility.BLOCK]
        return first >= self.first and bool(self._time[newest] <= known[self._slot[newest]])

    def unknown(self, agent: Actor, events: Array) -> Array:
        """Return which of ``events`` not all lanes of ``agent`` know of; shape (n,)."""
        return self._unknown(agent.clocks, events, agent)

    def _unknown(self, clocks: Clocks, events: Array, agent: Actor) -> Array:
        if self.are_together:
            # Events of several groups mix.  Most often one access wrote all elements.
            if len(events) and not np.count_nonzero(events != events[0]):
                return np.full(events.shape, self._unknown_together_of(clocks, events[:1], agent)[0])
            found, at = np.unique(events, return_inverse=True)
            return np.asarray(self._unknown_together_of(clocks, found, agent)[at].reshape(events.shape))
        count = len(self.agents)
        if len(events) < count - self.first:
            late = self._time[events] > clocks.known[Visibility.BLOCK][self._slot[events]]
            return np.asarray((events > 0) & (late | (events < self.first)))
        times, slots = self._time[self.first : count], self._slot[self.first : count]
        unknown = np.ones(count, bool)
        unknown[0] = False
        unknown[self.first :] = times > clocks.known[Visibility.BLOCK][slots]
        return np.asarray(unknown[events])

    def _unknown_together_of(self, clocks: Clocks, found: Array, agent: Actor) -> Array:
        """Return which events are unknown to some lane, for groups that run concurrently."""
        unknown, groups = found > 0, self._group[found]
        for group in sorted({*groups[unknown].tolist()}):
            times = clocks.known[Visibility.BLOCK] if group == agent.group else clocks.others.get(group)
            if times is not None:
                mine = np.flatnonzero(unknown & (groups == group))
                unknown[mine] = self._time[found[mine]] > times[self._slot[found[mine]]]
        return np.asarray(unknown)
