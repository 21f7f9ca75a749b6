"""The checker: compares every access with the accesses before it, and puts what it finds into words."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir.ops import Op
from tilewright.ir.types import Value
from tilewright.targets.reference.agents import WHOLE_WARP, Actor, Events
from tilewright.targets.reference.barriers import TransactionBarrier
from tilewright.targets.reference.findings import Access, AccessSite, Finding, Findings, Kind
from tilewright.targets.reference.footprint import Beyond
from tilewright.targets.reference.memory import Crowd, History, Marks, Storage
from tilewright.targets.reference.reasons import Remedies, explain

_ACTIONS = {"wait": "wait", "arrive": "arrival", "tma_load": "write"}

STALE = (
    "the line that wrote this ran again since, and left this element out, as the view that it writes through "
    "is cut there: what is read is of an earlier turn; write the whole tile, or read no more of it"
)

ROW_TWICE = (
    "two of the rows that are chosen here are one, which is written twice, in no order; nearest choice: "
    'rows that differ, or a copy with reduction="add"'
)

VALUES_TWICE = (
    "one thread writes several values to this element in one copy, as the view has several coordinates for "
    "it, and nothing says which of them stays; reduce them first (tw.reduce_max, tw.reduce_sum), write one "
    'of them, or copy with reduction="add"'
)

LIMIT = 64
"""How many findings a report lists."""


@dataclass
class Checker:
    """Happens-before over the accesses of all agents."""

    remedies: Remedies
    events: Events = field(default_factory=Events)
    findings: Findings = field(default_factory=lambda: Findings(LIMIT))
    accessed: int = 0
    """How many elements have been compared with the accesses before."""
    _sites: list[AccessSite] = field(default_factory=list)
    _numbers: dict[tuple[int, Value, str], int] = field(default_factory=dict)

    def site(self, op: Op, value: Value, action: str) -> int:
        """The number of a place in the program."""
        key = (id(op), value, action)
        if key not in self._numbers:
            self._numbers[key] = len(self._sites)
            self._sites.append(AccessSite(op, value, action))
        return self._numbers[key]

    def describe(self, site: int) -> AccessSite:
        """The place that `site` numbered."""
        return self._sites[site]

    def reads(self, agent: Actor, site: int, buffer: Storage, at: Array, lanes: Array) -> None:
        """Lanes read elements: each must come after the element's last write."""
        self.accessed += len(at)
        history = buffer.history
        if history is None or not len(at):
            return
        at, places, lanes = buffer.places(at, lanes)
        writes, write_lanes = history.writes.get(places)
        self._unwritten(agent, site, buffer, history, (at, places, lanes))
        clocks = agent.after(buffer.memory)
        for events, event_lanes in ((writes, write_lanes), *history.reduced(places, self.events, clocks)):
            late = self.events.unordered(agent, lanes, events, event_lanes, clocks)
            self._conflict(Kind.WRITE_READ, agent, site, buffer, at, lanes, late, events, event_lanes)
        if history.skips is not None:
            self._stale(agent, site, buffer, (at, writes, history.skips.event[places]), lanes, write_lanes)
        event = self.events.append(agent, site)
        history.reads.record(self.events, agent, event, places, lanes, history.writes)

    def _unwritten(
        self, agent: Actor, site: int, buffer: Storage, history: History, accesses: tuple[Array, Array, Array]
    ) -> None:
        at, places, lanes = accesses
        if not buffer.written and np.count_nonzero(missing := ~history.is_written(places)):
            reason = (
                f"nothing has written this element of {buffer.owner} by now; "
                "if another thread does later, no barrier makes this one wait"
            )
            self.defect(Kind.UNWRITTEN, agent, site, buffer, at[missing], lanes[missing], reason)
        if buffer.overlaid:
            self._replaced(agent, site, buffer, at, lanes, history.writes.event[places])

    def reduces(
        self,
        agent: Actor,
        site: int,
        buffer: Storage,
        at: Array,
        lanes: Array,
        kind: str,
    ) -> None:
        """Lanes reduce into elements: each must come after all accesses but reductions of the same kind.

        Args:
            agent: who reduces.
            site: where in the program.
            buffer: the memory.
            at: element offsets.
            lanes: whose elements they are.
            kind: of the reduction.
        """
        self.accessed += len(at)
        history = buffer.history
        if history is None or not len(at):
            return
        at, places, lanes = buffer.places(at, lanes)
        self._unwritten(agent, site, buffer, history, (at, places, lanes))
        clocks = agent.after(buffer.memory)
        before = [(Kind.WRITE_WRITE, marks) for marks in (history.writes.get(places),)]
        before += [(Kind.WRITE_WRITE, marks) for marks in history.reduced(places, self.events, clocks, kind)]
        before += [(Kind.READ_WRITE, marks) for marks in history.reads.earlier(places, self.events, clocks)]
        for conflict, (events, event_lanes) in before:
            late = self.events.unordered(agent, lanes, events, event_lanes, clocks)
            self._conflict(conflict, agent, site, buffer, at, lanes, late, events, event_lanes)
        crowd = history.reductions.setdefault(kind, Crowd())
        crowd.record(self.events, agent, self.events.append(agent, site), places, lanes, history.writes)

    def _replaced(
        self, agent: Actor, site: int, buffer: Storage, at: Array, lanes: Array, writes: Array
    ) -> None:
        """Report elements that were written last as another tensor's, which lies in the same memory."""
        for event in np.unique(writes[writes > 0]):
            last = self._sites[self.events.sites[event]]
            if last.value.buffer is buffer.owner:
                continue
            mine = writes == event
            reason = (
                f"{last.value.buffer}, which lies in the same shared memory, was written here last, "
                f"at {last}: what {buffer.owner} held is lost"
            )
            self.defect(Kind.UNWRITTEN, agent, site, buffer, at[mine], lanes[mine], reason)

    def leaves_out(self, agent: Actor, site: int, buffer: Storage, at: Array, lanes: Array) -> None:
        """Lanes would write elements, but for an edge of the view that they write through."""
        if (history := buffer.history) is not None and len(at):
            _, places, lanes = buffer.places(at, lanes)
            history.skips = history.skips or Marks.blank(len(history.writes.event))
            history.skips.put(places, self.events.append(agent, site), lanes)

    def _stale(
        self,
        agent: Actor,
        site: int,
        buffer: Storage,
        accesses: tuple[Array, Array, Array],
        lanes: Array,
        write_lanes: Array,
    ) -> None:
        """Report elements that an operation wrote in an earlier turn, and left out in a later one."""
        at, writes, skips = accesses
        stale = (writes > 0) & (skips > writes)
        for event, skip in np.unique(np.stack([writes[stale], skips[stale]]), axis=1).T:
            last, left = (self._sites[self.events.sites[number]] for number in (event, skip))
            mine = (writes == event) & (skips == skip)
            key = (Kind.STALE, buffer.owner, self.events.sites[event], site)
            count = len(np.unique(at[mine]))
            if last.op.location == left.op.location and self.findings.is_new(key, count):
                former = self.events.agents[event]
                assert former is not None
                earlier = Access.of(last, former, write_lanes[mine][0])
                self.findings.add(
                    key, self._finding(Kind.STALE, agent, site, buffer, at[mine], lanes[mine], earlier, STALE)
                )

    def writes(
        self,
        agent: Actor,
        site: int,
        buffer: Storage,
        at: Array,
        lanes: Array,
        by_warp: bool = False,
    ) -> None:
        """Lanes write elements: each must come after the element's last write and all reads.

        Args:
            agent: who writes.
            site: where in the program.
            buffer: the memory.
            at: element offsets.
            lanes: whose elements they are.
            by_warp: whether the lanes of the warp write together, each also elements of others.
        """
        self.accessed += len(at)
        history = buffer.history
        if history is None or not len(at):
            return
        at, places, lanes = buffer.places(at, lanes)
        writes, write_lanes = history.writes.get(places)
        own, lanes = lanes, np.full_like(lanes, WHOLE_WARP) if by_warp else lanes
        clocks = agent.after(buffer.memory)
        for events, event_lanes in ((writes, write_lanes), *history.reduced(places, self.events, clocks)):
            late = self.events.unordered(agent, lanes, events, event_lanes, clocks)
            self._conflict(Kind.WRITE_WRITE, agent, site, buffer, at, lanes, late, events, event_lanes)
        for reads, read_lanes in history.reads.earlier(places, self.events, clocks):
            if not np.count_nonzero(reads):
                continue
            late = self.events.unordered(agent, lanes, reads, read_lanes, clocks)
            if agent.issuer is not None and np.count_nonzero(late):
                # What was read is in registers once a barrier has told of it: no fence needs to follow
                # (docs/decisions/0010-proxy-fences.md).
                late &= self.events.untold(agent, agent.issuer, reads, read_lanes)
            self._conflict(Kind.READ_WRITE, agent, site, buffer, at, lanes, late, reads, read_lanes)
        event = self.events.append(agent, site)
        history.writes.put(places, event, own)
        last = history.writes.lane[places]
        twice, events = last != own, np.full_like(writes, event)
        self._conflict(Kind.WRITE_WRITE, agent, site, buffer, at, own, twice, events, last)
        if by_warp:
            history.writes.lane[places] = WHOLE_WARP

    def not_reset(self, agent: Actor, op: Op, buffer: Storage, offset: int, value: int) -> None:
        """Report a counter that holds another value than 0 at the end."""
        key = (Kind.NOT_RESET, buffer.owner)
        if self.findings.is_new(key, 1):
            reason = (
                f"it is {value} when the kernel ends, and would be when the next launch begins: let the last "
                "signal reset it, of=..., or say tw.reset where all signals and waits have been"
            )
            name, where = str(buffer.owner), buffer.locate(offset)
            access = _at(agent, op, "signal")
            self.findings.add(
                key, Finding(Kind.NOT_RESET, name, "global", where, offset, access, None, reason)
            )

    def defect(
        self, kind: Kind, agent: Actor, site: int, buffer: Storage, at: Array, lanes: Array, reason: str
    ) -> None:
        """Report elements that a single access must not touch in this way."""
        key = (kind, buffer.owner, site, reason)
        if self.findings.is_new(key, len(np.unique(at))):
            self.findings.add(key, self._finding(kind, agent, site, buffer, at, lanes, None, reason))

    def uncovered(self, op: Op, buffer: Storage, missing: Array) -> None:
        """Report elements of an array that ``op``, and all other operations, never wrote."""
        key = (Kind.UNCOVERED, buffer.owner)
        if self.findings.is_new(key, len(missing)):
            name, offset = str(buffer.owner), int(missing[0])
            reason = (
                f"all blocks have run, and {len(missing)} elements of {name} are as they were: the grid "
                f'is too small, or tiles are left out; if this is meant, say check(..., partial=("{name}",))'
            )
            access = Access("writes of others", op, "", (), 0, None)
            where = buffer.locate(offset)
            self.findings.add(
                key, Finding(Kind.UNCOVERED, name, "global", where, offset, access, None, reason)
            )

    def beyond(
        self, agent: Actor, site: int, buffer: Storage, found: Beyond, at: Array, lanes: Array
    ) -> None:
        """Report an access through a view that leaves its tensor."""
        key = (Kind.OUT_OF_BOUNDS, buffer.owner, site, id(found.op), found.dim)
        if self.findings.is_new(key, len(np.unique(at))):
            view = _at(agent, found.op, "view")
            made = self._finding(Kind.OUT_OF_BOUNDS, agent, site, buffer, at, lanes, view, found.reason)
            self.findings.add(key, made)

    def registers(
        self, agent: Actor, op: Op, value: Value, element: tuple[int, ...], lane: int, count: int
    ) -> None:
        """Report that an operation reads registers that nothing wrote."""
        site = self.site(op, value, "read")
        key = (Kind.UNWRITTEN, value, site)
        if self.findings.is_new(key, count):
            access = Access.of(self._sites[site], agent, lane)
            reason = f"nothing has written this element of {value} before; fill the fragment, or load it"
            self.findings.add(
                key, Finding(Kind.UNWRITTEN, str(value), "registers", element, 0, access, None, reason)
            )

    def fragment(
        self,
        kind: Kind,
        agent: Actor,
        op: Op,
        value: Value,
        action: str,
        other: tuple[Actor, Op] | None,
        reason: str,
    ) -> None:
        """Report that an operation touches a fragment when it must not."""
        key = (kind, value, id(op), None if other is None else id(other[1]))
        if self.findings.is_new(key, 1):
            earlier = None if other is None else _at(*other, "update")
            access = _at(agent, op, action)
            self.findings.add(
                key, Finding(kind, str(value), "registers", (), 0, access, earlier, reason, unit="times")
            )

    def waiting(
        self,
        kind: Kind,
        agent: Actor,
        op: Op,
        other: tuple[Actor, Op] | None,
        reason: str,
        action: str = "wait",
        before: str = "wait",
    ) -> None:
        """Report a synchronisation that goes wrong: of an agent, and the wait that it conflicts with."""
        key = (kind, id(op), None if other is None else id(other[1]))
        if self.findings.is_new(key, 1):
            earlier = None if other is None else _at(*other, before)
            self.findings.add(key, Finding(kind, "", "", None, 0, _at(agent, op, action), earlier, reason))

    def barrier(
        self,
        kind: Kind,
        agent: Actor,
        op: Op,
        barrier: TransactionBarrier,
        reason: str,
        other: tuple[Actor, Op] | None = None,
    ) -> None:
        """Report that a transaction barrier is used in a wrong way."""
        name = barrier.name.partition("[")[0]
        key = (kind, name, id(op), None if other is None else id(other[1]))
        if self.findings.is_new(key, 1):
            earlier = None if other is None else _at(*other, _ACTIONS.get(other[1].verb, "use"))
            access = _at(agent, op, _ACTIONS.get(op.verb, "use"))
            where = (barrier.stage,)
            self.findings.add(
                key, Finding(kind, name, "barrier", where, 0, access, earlier, reason, unit="times")
            )

    def _conflict(
        self,
        kind: Kind,
        agent: Actor,
        site: int,
        buffer: Storage,
        at: Array,
        lanes: Array,
        which: Array,
        events: Array,
        event_lanes: Array,
    ) -> None:
        if not np.count_nonzero(which):
            return
        at, lanes, events, event_lanes = at[which], lanes[which], events[which], event_lanes[which]
        for event in np.unique(events)[:8]:
            mine = events == event
            former = self.events.agents[event]
            assert former is not None
            one = (lanes[mine][:1], event_lanes[mine][:1])
            found, reason = explain(self.events, kind, agent, former, int(event), one, buffer.memory)
            before = self._sites[self.events.sites[event]]
            if before.op is self._sites[site].op and self._sites[site].value.tensor.indices:
                found, reason = Kind.DUPLICATE, ROW_TWICE
            key = (found, buffer.owner, self.events.sites[event], site, former.block != agent.block)
            # Of two lanes of one warp and two warps, the latter says what is really missing.
            reach = int(former.home != agent.home)
            if self.findings.is_new(key, len(np.unique(at[mine])), reach):
                earlier = Access.of(before, former, event_lanes[mine][0])
                reason += self.remedies.remedy(reason, before.op, self._sites[site].op)
                if before.value.buffer is not buffer.owner:
                    reason += f"; {before.value.buffer} and {buffer.owner} share memory"
                made = self._finding(found, agent, site, buffer, at[mine], lanes[mine], earlier, reason)
                self.findings.add(key, made, reach)

    def _finding(
        self,
        kind: Kind,
        agent: Actor,
        site: int,
        buffer: Storage,
        at: Array,
        lanes: Array,
        earlier: Access | None,
        reason: str,
    ) -> Finding:
        offset = int(at[0])
        access = Access.of(self._sites[site], agent, int(lanes[0]))
        name, memory = str(buffer.owner), buffer.owner.tensor.memory.value
        return Finding(kind, name, memory, buffer.locate(offset), offset, access, earlier, reason)


def _at(agent: Actor, op: Op, action: str) -> Access:
    return Access(action, op, agent.name, agent.block, agent.warp, None, agent.rank)
