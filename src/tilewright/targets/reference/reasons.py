"""Reasons why two accesses are not in order, and places of missing barriers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

import numpy as np

from tilewright.errors import Frame
from tilewright.functions.conversions import Array
from tilewright.ir.async_ops import ClusterBarrier, ClusterWait, Role, RoleBarrier
from tilewright.ir.kernel import Kernel
from tilewright.ir.op import Block, Op
from tilewright.ir.ops import AsyncWait, Barrier, For, WarpBarrier
from tilewright.passes.effects import PathStep
from tilewright.targets.reference.agents import WHOLE_WARP, Actor, Events, Proxy, Visibility
from tilewright.targets.reference.findings import Kind

# ---------------------------------------------------------------- where a barrier belongs


NO_ORDER = "nothing orders two blocks: each must access only its own elements"
NO_SIGNAL = (
    "nothing orders the two blocks here: no tw.signal comes after the first access, or the second block does "
    "not pass a tw.await_ that needs this signal, or take the last tw.ticket, before its access"
)
NO_SIGNAL_OF_RANKS = (
    'nothing orders the two ranks here: between the two accesses one rank must signal with scope "system", '
    'and the other must wait for that signal with scope "system"'
)
NO_BARRIER = "no barrier between the two accesses"
NO_WARP_BARRIER = "no barrier or warp_barrier between these two lanes of one warp"
NO_MATRIX_BARRIER = (
    "no barrier or warp_barrier between the two: GPUs move this tile by ldmatrix or stmatrix, where each "
    "lane reads and writes elements of the other lanes of its warp"
)

NO_BARRIER_AFTER_WAIT = (
    "no barrier between the async_wait and the later access: "
    "async_wait shows a copy only to the thread that issued it"
)

_WHOLE: tuple[type[Op], ...] = (Barrier, ClusterBarrier, ClusterWait, RoleBarrier)
_ORDERS = {
    NO_BARRIER: _WHOLE,
    NO_WARP_BARRIER: (*_WHOLE, WarpBarrier),
    NO_MATRIX_BARRIER: (*_WHOLE, WarpBarrier),
}
"""The operations that would have ordered the accesses, by the reported reason."""


class Remedies:
    """Finds the place of a missing barrier from the places of the operations of some kernels."""

    def __init__(self, *kernels: Kernel) -> None:
        self._kernels = kernels
        self._paths: dict[int, tuple[PathStep, ...]] = {}
        self._early: dict[int, tuple[Op, int]] = {}

    def note_early(self, agent: Actor, wait: Op, value: int) -> None:
        """Note a wait for a value that its counter had before the wait's launch began."""
        self._early.setdefault(agent.group, (wait, value))

    def early(self, agents: Sequence[Actor]) -> str:
        """Return a remark about the noted waits of agents of two ranks, as the end of a sentence."""
        if len({agent.device for agent in agents}) < 2:
            return ""
        found = dict(self._early[agent.group] for agent in agents if agent.group in self._early)
        return "".join(
            f"; the wait for {value} at {wait.location} did not wait, because an earlier call had left the "
            "counter there: wait for a value that grows with each call"
            for wait, value in found.items()
        )

    def remedy(self, missing: str, earlier: Op, later: Op) -> str:
        """Return the place of a missing barrier as the end of a sentence; empty if there is no single place.

        Args:
            missing: the reported reason; only the constants above have a remedy.
            earlier: the access that ran first.
            later: the access that ran after it.
        """
        if not self._paths:
            for kernel in self._kernels:
                self._note(kernel.body, (), None)
        if id(earlier) not in self._paths or id(later) not in self._paths:
            return ""
        if missing in (NO_SIGNAL, NO_SIGNAL_OF_RANKS):
            lines = _lines(earlier, later)
            return "" if lines is None else f"; signal after {lines[0]}, await it before {lines[1]}"
        if missing == NO_BARRIER_AFTER_WAIT:  # place a barrier after the last async_wait before the access
            path = self._paths[id(later)]
            for step in reversed(path):
                waits = [op for op in step.block.ops[: step.at] if isinstance(op, AsyncWait)]
                if waits:
                    name = _whole([step.owner for step in path])
                    return f"; a {name} belongs {_between(waits[-1], later, step.op)}"
            return ""
        if missing not in _ORDERS:
            return ""
        one, other = self._paths[id(earlier)], self._paths[id(later)]
        depth = next((d for d, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one) - 1)
        around = [step.owner for step in one[: depth + 1] if step.owner is not None]
        here, there = one[depth], other[depth]
        if here.op is not there.op and isinstance(here.op, Role) and isinstance(there.op, Role):
            return ""
        loop = next((owner for owner in reversed(around) if isinstance(owner, For)), None)
        where = _place(here, there, loop, _ORDERS[missing], (earlier, later))
        if not where:
            return ""
        name = _whole(around) if missing == NO_BARRIER else "tw.warp_barrier()"
        return f"; a {name} belongs {where}"

    def _note(self, block: Block, path: tuple[PathStep, ...], owner: Op | None) -> None:
        for at, op in enumerate(block.ops):
            self._paths[id(op)] = (*path, PathStep(owner, block, at))
            for region in op.regions:
                self._note(region, self._paths[id(op)], op)


def _whole(around: Sequence[Op | None]) -> str:
    """Name the barrier of all warps that run an operation inside of others."""
    return "tw.role_barrier(...)" if any(isinstance(owner, Role) for owner in around) else "tw.barrier()"


def _place(
    here: PathStep, there: PathStep, loop: For | None, orders: tuple[type[Op], ...], accesses: tuple[Op, Op]
) -> str:
    """Place a barrier between two accesses, or between the iterations of the loop around both.

    The accesses may have run in the order of the text, or in different iterations.  The barrier belongs into
    the gap without a barrier.
    """
    earlier, later = accesses
    if here.block is not there.block or here.at == there.at:
        return "" if loop is None else _at_end(loop, earlier, later)
    first, second = (here, there) if here.at < there.at else (there, here)
    top, bottom = (earlier, later) if first is here else (later, earlier)
    if loop is None:
        return _between(top, bottom, second.op)
    ops = here.block.ops
    turn = (*ops[second.at + 1 :], *ops[: first.at], *(() if here.block is loop.body else loop.body.ops))
    inside = any(isinstance(op, orders) for op in ops[first.at + 1 : second.at])
    if inside == any(isinstance(op, orders) for op in turn):
        return _between(top, bottom, second.op) if first is here else _at_end(loop, top, bottom)
    return _at_end(loop, top, bottom) if inside else _between(top, bottom, second.op)


def _between(top: Op, bottom: Op, before: Op) -> str:
    """Name the place between two lines; if the second is in a loop or branch of its own, before that."""
    lines = _lines(top, bottom) if before is bottom else _lines(top, bottom, before)
    if lines is None:
        return "between the two"
    if lines[0] == lines[1]:
        return f"between the two runs of {lines[0]}"
    return f"between {lines[0]} and {lines[1]}, before {lines[-1]}"


def _at_end(loop: For, *accesses: Op) -> str:
    """Name the end of a loop's body."""
    lines = _lines(loop, *accesses)
    if lines is None:
        return "at the end of the loop's body"
    last = max(lines[1:], key=lambda line: int(line.rpartition(" ")[2].rpartition(":")[2]))
    return f"at the end of the body of the loop in {lines[0]}, after {last}"


def _lines(*ops: Op) -> list[str] | None:
    """Return the operations' lines in their innermost common function; None for operations without a line."""
    stacks = [op.location.frames[::-1] for op in ops if op.location is not None and not op.location.origin]
    if len(stacks) < len(ops):
        return None
    frames: tuple[Frame, ...] = ()
    for frames in zip(*stacks, strict=False):
        if len({(frame.file, frame.function, frame.line) for frame in frames}) > 1:
            break
    if len({frame.file for frame in frames}) == 1:
        return [f"line {frame.line}" for frame in frames]
    return [f"{PurePath(frame.file).name}:{frame.line}" for frame in frames]


# ---------------------------------------------------------------- why two accesses are not in order


def explain(
    events: Events,
    kind: Kind,
    agent: Actor,
    former: Actor,
    event: int,
    lanes: tuple[Array, Array],
    memory: str,
) -> tuple[Kind, str]:
    """Return the kind of a conflict and the order that is missing between the two accesses.

    Args:
        events: the log.
        kind: the kind by the two actions.
        agent: the agent of the access.
        former: the agent of the earlier access.
        event: the earlier access.
        lanes: the lane of the access to one element, and the earlier lane; each of shape (1,).
        memory: the memory of the element.
    """
    here, there = lanes
    # A fence is no remedy if the issuer of the operation does not know of the event either.
    fenced = agent.issuer is None or bool(
        events.unordered(agent, here, np.array([event]), there, agent.issuer).any()
    )
    waited = former.issuer or former.clocks
    was_waited_for = bool(waited.known[Visibility.LANE][former.slot] >= events.time(event))
    is_bulk = former.in_background and former.proxy is Proxy.ASYNC
    # No signal can publish a bulk copy of another group that no wait in a kernel covers.
    no_signal_could = events.are_together and is_bulk and not former.shown
    if fenced and not no_signal_could and events.is_foreign(np.array([event]), agent).any():
        if former.device != agent.device:
            return kind, NO_SIGNAL_OF_RANKS
        return kind, NO_SIGNAL if events.are_together else NO_ORDER
    if is_bulk:
        if not former.shown or not was_waited_for:
            return Kind.IN_FLIGHT, f"the {former.name} may still be under way: {former.missing}"
        warp = _warp(agent, former)
        who = warp if agent.name == "warp" else f"the {agent.name} of {warp}"
        return kind, f"the {former.name} was waited for, but {who} does not know: {former.shown}"
    if former.in_background:
        if was_waited_for:
            return kind, NO_BARRIER_AFTER_WAIT
        before = "" if former.home == agent.home else ", followed by a barrier,"
        return Kind.IN_FLIGHT, (
            f"warp {former.warp} has not waited for its copy: no async_wait{before} covers its group"
        )
    if not fenced:
        who, fence = "bulk copies and asynchronous MMA", "fence_async"
        if memory != "shared":
            who, fence = "bulk copies", f'fence_async("{memory}")'
        place = f"of {_warp(former, agent)} between its access and what orders the two"
        if former.home != agent.home:
            place += f", or of warp {agent.warp} after that"
        reason = (
            f"the accesses are in order, but {who} see {memory} memory by another path: no {fence} {place}"
        )
        return Kind.PROXY, reason
    if former.home == agent.home:
        is_whole = any((each == WHOLE_WARP).any() for each in lanes)
        return kind, NO_MATRIX_BARRIER if is_whole else NO_WARP_BARRIER
    if former.block != agent.block:
        return kind, (
            "nothing orders the two blocks here: no arrive at a barrier of the other block and wait there, "
            "and no cluster_barrier, between the two accesses"
        )
    return kind, NO_BARRIER


def _warp(agent: Actor, other: Actor) -> str:
    """Name a warp, with its block if the other agent is in another one."""
    return f"warp {agent.warp}" + (f" of block {agent.block}" if agent.block != other.block else "")
