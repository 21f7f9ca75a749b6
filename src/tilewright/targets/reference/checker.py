"""The checker: compares every access with the accesses before it, and puts what it finds into words."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tilewright.ir.ops import Op
from tilewright.ir.types import Value
from tilewright.targets.reference.agents import Agent, Events, Scope
from tilewright.targets.reference.findings import Access, Finding, Findings, Kind, Site
from tilewright.targets.reference.memory import Buffer
from tilewright.targets.reference.numerics import Array

LIMIT = 64
"""How many findings a report lists."""


@dataclass
class Checker:
    """Happens-before over the accesses of all agents."""

    events: Events = field(default_factory=Events)
    findings: Findings = field(default_factory=lambda: Findings(LIMIT))
    _sites: list[Site] = field(default_factory=list)
    _numbers: dict[tuple[int, Value, str], int] = field(default_factory=dict)

    def site(self, op: Op, value: Value, action: str) -> int:
        """The number of a place in the program."""
        key = (id(op), value, action)
        if key not in self._numbers:
            self._numbers[key] = len(self._sites)
            self._sites.append(Site(op, value, action))
        return self._numbers[key]

    def describe(self, site: int) -> Site:
        """The place that `site` numbered."""
        return self._sites[site]

    def reads(self, agent: Agent, site: int, buffer: Buffer, at: Array, lanes: Array) -> None:
        """Lanes read elements: each must come after the element's last write."""
        history = buffer.history
        if history is None or not len(at):
            return
        writes, write_lanes = history.writes.get(at)
        if not buffer.written and (missing := writes == 0).any():
            reason = (
                f"nothing has written this element of {buffer.owner} by now; "
                "if another thread does later, no barrier makes this one wait"
            )
            self.defect(Kind.UNWRITTEN, agent, site, buffer, at[missing], lanes[missing], reason)
        late = self.events.unordered(agent, lanes, writes, write_lanes)
        self._conflict(Kind.WRITE_READ, agent, site, buffer, at, lanes, late, writes, write_lanes)
        history.record_reads(self.events, agent, self.events.append(agent, site), at, lanes)

    def writes(self, agent: Agent, site: int, buffer: Buffer, at: Array, lanes: Array) -> None:
        """Lanes write elements: each must come after the element's last write and all reads."""
        history = buffer.history
        if history is None or not len(at):
            return
        writes, write_lanes = history.writes.get(at)
        late = self.events.unordered(agent, lanes, writes, write_lanes)
        self._conflict(Kind.WRITE_WRITE, agent, site, buffer, at, lanes, late, writes, write_lanes)
        for reads, read_lanes in history.earlier_reads(at):
            if not reads.any():
                continue
            late = self.events.unordered(agent, lanes, reads, read_lanes)
            self._conflict(Kind.READ_WRITE, agent, site, buffer, at, lanes, late, reads, read_lanes)
        event = self.events.append(agent, site)
        history.writes.put(at, event, lanes)
        last = history.writes.lane[at]
        self._conflict(
            Kind.WRITE_WRITE, agent, site, buffer, at, lanes, last != lanes, np.full_like(writes, event), last
        )

    def defect(
        self, kind: Kind, agent: Agent, site: int, buffer: Buffer, at: Array, lanes: Array, reason: str
    ) -> None:
        """Report elements that a single access must not touch in this way."""
        key = (kind, buffer.owner, site, reason)
        if self.findings.is_new(key, len(np.unique(at))):
            self.findings.add(key, self._finding(kind, agent, site, buffer, at, lanes, None, reason))

    def registers(
        self, agent: Agent, op: Op, value: Value, element: tuple[int, ...], lane: int, count: int
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

    def waiting(self, kind: Kind, agent: Agent, op: Op, other: tuple[Agent, Op] | None, reason: str) -> None:
        """Report a synchronisation that goes wrong."""
        key = (kind, id(op), None if other is None else id(other[1]))
        if self.findings.is_new(key, 1):
            earlier = None if other is None else _wait(*other)
            self.findings.add(key, Finding(kind, "", "", None, 0, _wait(agent, op), earlier, reason))

    def _conflict(
        self,
        kind: Kind,
        agent: Agent,
        site: int,
        buffer: Buffer,
        at: Array,
        lanes: Array,
        which: Array,
        events: Array,
        event_lanes: Array,
    ) -> None:
        if not which.any():
            return
        at, lanes, events, event_lanes = at[which], lanes[which], events[which], event_lanes[which]
        for event in np.unique(events)[:8]:
            mine = events == event
            former = self.events.agents[event]
            assert former is not None
            found, reason = self._explain(kind, agent, former, int(event))
            key = (found, buffer.owner, self.events.sites[event], site, former.block != agent.block)
            # Of two lanes of one warp and two warps, the latter says what is really missing.
            reach = int(former.home != agent.home)
            if self.findings.is_new(key, len(np.unique(at[mine])), reach):
                earlier = Access.of(self._sites[self.events.sites[event]], former, event_lanes[mine][0])
                made = self._finding(found, agent, site, buffer, at[mine], lanes[mine], earlier, reason)
                self.findings.add(key, made, reach)

    def _finding(
        self,
        kind: Kind,
        agent: Agent,
        site: int,
        buffer: Buffer,
        at: Array,
        lanes: Array,
        earlier: Access | None,
        reason: str,
    ) -> Finding:
        offset = int(at[0])
        access = Access.of(self._sites[site], agent, int(lanes[0]))
        name, memory = str(buffer.owner), buffer.owner.tensor.memory.value
        return Finding(kind, name, memory, buffer.locate(offset), offset, access, earlier, reason)

    def _explain(self, kind: Kind, agent: Agent, former: Agent, event: int) -> tuple[Kind, str]:
        """The kind of a conflict and what would have ordered the two accesses."""
        if former.block != agent.block:
            return kind, "nothing orders two blocks: each must keep to elements of its own"
        if former.in_background:
            issuer = former.clocks.known[Scope.LANE][former.slot]
            if issuer < self.events.time(event):
                before = "" if former.home == agent.home else ", followed by a barrier,"
                return Kind.IN_FLIGHT, (
                    f"warp {former.warp} has not waited for its copy: no async_wait{before} covers its group"
                )
            return kind, (
                "no barrier between the async_wait and the later access: "
                "async_wait shows a copy only to the thread that issued it"
            )
        if former.home == agent.home:
            return kind, "no barrier or warp_barrier between these two lanes of one warp"
        return kind, "no barrier between the two accesses"


def _wait(agent: Agent, op: Op) -> Access:
    return Access("wait", op, agent.name, agent.block, agent.warp, None)
