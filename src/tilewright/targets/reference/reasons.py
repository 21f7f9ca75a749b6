"""Why two accesses are not in order, and what would order them, in words."""

from __future__ import annotations

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.targets.reference.agents import WHOLE_WARP, Agent, Events, Proxy, Scope
from tilewright.targets.reference.findings import Kind
from tilewright.targets.reference.remedies import (
    NO_BARRIER,
    NO_BARRIER_AFTER_WAIT,
    NO_MATRIX_BARRIER,
    NO_ORDER,
    NO_SIGNAL,
    NO_WARP_BARRIER,
)


def explain(
    events: Events,
    kind: Kind,
    agent: Agent,
    former: Agent,
    event: int,
    lanes: tuple[Array, Array],
    memory: str,
) -> tuple[Kind, str]:
    """The kind of a conflict and what would have ordered the two accesses.

    Args:
        events: the log.
        kind: which access writes.
        agent: who accesses.
        former: who accessed before.
        event: that access.
        lanes: of one element: the lane that accesses, and the lane that did before; each of shape (1,).
        memory: where the element lies.
    """
    fenced = agent.issuer is None or _unordered(events, agent, lanes, event)
    if events.is_foreign(np.array([event]), agent).any() and fenced:
        if events.are_together and former.in_background and former.proxy is Proxy.ASYNC and not former.shown:
            # No signal could tell of it, whoever waits for it.
            return _after_bulk(events, kind, agent, former, event)
        return kind, NO_SIGNAL if events.are_together else NO_ORDER
    if former.in_background and former.proxy is Proxy.GENERIC:
        return _after_copy(events, kind, agent, former, event)
    if former.in_background:
        return _after_bulk(events, kind, agent, former, event)
    if not fenced:
        return Kind.PROXY, _unfenced(agent, former, memory)
    if former.home == agent.home:
        is_whole = any((each == WHOLE_WARP).any() for each in lanes)
        return kind, NO_MATRIX_BARRIER if is_whole else NO_WARP_BARRIER
    if former.block != agent.block:
        return kind, (
            "nothing orders the two blocks here: no arrive at a barrier of the other block and wait there, "
            "and no cluster_barrier, between the two accesses"
        )
    return kind, NO_BARRIER


def _unfenced(agent: Agent, former: Agent, memory: str) -> str:
    who, fence = "bulk copies and asynchronous MMA", "fence_async"
    if memory != "shared":
        who, fence = "bulk copies", f'fence_async("{memory}")'
    place = f"of {_warp(former, agent)} between its access and what orders the two"
    if former.home != agent.home:
        place += f", or of warp {agent.warp} after that"
    return f"the accesses are in order, but {who} see {memory} memory by another path: no {fence} {place}"


def _warp(agent: Agent, other: Agent) -> str:
    """A warp, with its block if another agent's is another one."""
    return f"warp {agent.warp}" + (f" of block {agent.block}" if agent.block != other.block else "")


def _unordered(events: Events, agent: Agent, lanes: tuple[Array, Array], event: int) -> bool:
    """Whether the issuer of an operation does not know of an event either."""
    here, there = lanes
    return bool(events.unordered(agent, here, np.array([event]), there, agent.issuer).any())


def _was_waited_for(events: Events, former: Agent, event: int) -> bool:
    clocks = former.issuer or former.clocks
    return bool(clocks.known[Scope.LANE][former.slot] >= events.time(event))


def _after_copy(events: Events, kind: Kind, agent: Agent, former: Agent, event: int) -> tuple[Kind, str]:
    if not _was_waited_for(events, former, event):
        before = "" if former.home == agent.home else ", followed by a barrier,"
        return Kind.IN_FLIGHT, (
            f"warp {former.warp} has not waited for its copy: no async_wait{before} covers its group"
        )
    return kind, NO_BARRIER_AFTER_WAIT


def _after_bulk(events: Events, kind: Kind, agent: Agent, former: Agent, event: int) -> tuple[Kind, str]:
    warp = _warp(agent, former)
    who = warp if agent.name == "warp" else f"the {agent.name} of {warp}"
    if not former.shown or not _was_waited_for(events, former, event):
        return Kind.IN_FLIGHT, f"the {former.name} may still be under way: {former.missing}"
    return kind, f"the {former.name} was waited for, but {who} does not know: {former.shown}"
