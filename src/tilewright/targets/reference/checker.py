"""The checker: compares each access with earlier accesses, and describes the hazards that it finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir.ops import Op
from tilewright.ir.types import Value
from tilewright.targets.reference.agents import WHOLE_WARP, Actor, Clocks, Events
from tilewright.targets.reference.barriers import TransactionBarrier
from tilewright.targets.reference.findings import Access, AccessSite, Finding, Findings, Kind
from tilewright.targets.reference.footprint import Beyond
from tilewright.targets.reference.memory import Crowd, History, Marks, Storage
from tilewright.targets.reference.reasons import Remedies, explain

_ACTIONS = {"wait": "wait", "arrive": "arrival", "tma_load": "write"}

STALE = (
    "the line that wrote this ran again, and its tile was cut at the edge, so it did not write this "
    "element: the value is from an earlier iteration; write the whole tile, or read only the part that "
    "was written"
)

ROW_TWICE = (
    "two of the gathered rows are the same row, so it is written twice in an undefined order; nearest "
    "choice: "
    'different rows, or a copy with reduction="add"'
)

VALUES_TWICE = (
    "one thread writes several values to this element in one copy, because several coordinates of the view "
    "lead to it, and their order is undefined; reduce them first (tw.reduce_max, tw.reduce_sum), write "
    "one "
    'of them, or copy with reduction="add"'
)

LIMIT = 64
"""Largest number of findings in a report."""

MOST_EVENTS = 8
"""Largest number of unordered earlier events that are examined for one access."""


@dataclass(frozen=True)
class Batch:
    """Elements of one buffer that an agent accesses at one place in the program.

    Args:
        agent: the agent.
        site: number of the place, from `Checker.site`.
        buffer: the buffer.
        at: offsets of the elements, of shape (n,).
        lanes: lane that accesses each element.
    """

    agent: Actor
    site: int
    buffer: Storage
    at: Array
    lanes: Array

    @staticmethod
    def of_first_lane(agent: Actor, site: int, buffer: Storage, at: Array) -> Batch:
        """Return elements that the first lane accesses."""
        return Batch(agent, site, buffer, at, np.zeros(len(at), np.int16))

    def only(self, which: Array) -> Batch:
        """Return some of the elements, by truth values or indices."""
        return replace(self, at=self.at[which], lanes=self.lanes[which])

    @property
    def count(self) -> int:
        """Number of different elements."""
        return len(np.unique(self.at))


@dataclass
class Checker:
    """Checks the accesses of all agents for happens-before."""

    remedies: Remedies
    events: Events = field(default_factory=Events)
    findings: Findings = field(default_factory=lambda: Findings(LIMIT))
    accessed: int = 0
    """Number of elements that have been compared with earlier accesses."""
    _sites: list[AccessSite] = field(default_factory=list)
    _numbers: dict[tuple[int, Value, str], int] = field(default_factory=dict)

    def site(self, op: Op, value: Value, action: str) -> int:
        """Return the number of a place in the program."""
        key = (id(op), value, action)
        if key not in self._numbers:
            self._numbers[key] = len(self._sites)
            self._sites.append(AccessSite(op, value, action))
        return self._numbers[key]

    def describe(self, site: int) -> AccessSite:
        """Return the place that `site` numbered."""
        return self._sites[site]

    # ---------------------------------------------------------------- accesses to memory

    def reads(self, batch: Batch) -> None:
        """Check that reads come after the last write of each element."""
        self.accessed += len(batch.at)
        history = batch.buffer.history
        if history is None or not len(batch.at):
            return
        batch, places, clocks = self._located(batch)
        last = history.writes.get(places)
        self._find_unwritten(batch, history, places)
        for marks in (last, *history.reduced(places, self.events, clocks)):
            self._find_unordered(Kind.WRITE_READ, batch, marks, clocks)
        if history.skips is not None:
            # An operation wrote these elements in an earlier iteration and left them out in a later one.
            (writes, write_lanes), skips = last, history.skips.event[places]
            stale = (writes > 0) & (skips > writes)
            for event, skip in np.unique(np.stack([writes[stale], skips[stale]]), axis=1).T:
                written, left = (self._sites[self.events.sites[number]] for number in (event, skip))
                mine = (writes == event) & (skips == skip)
                if written.op.location == left.op.location:
                    key = (Kind.STALE, batch.buffer.owner, self.events.sites[event], batch.site)
                    earlier = Access.of(written, self.events.agent(event), write_lanes[mine][0])
                    self._of_batch(key, Kind.STALE, batch.only(mine), earlier, STALE)
        event = self.events.append(batch.agent, batch.site)
        history.reads.record(self.events, batch.agent, event, places, batch.lanes, history.writes)

    def reduces(self, batch: Batch, kind: str) -> None:
        """Check that reductions into elements come after all accesses but reductions of the same kind."""
        self.accessed += len(batch.at)
        history = batch.buffer.history
        if history is None or not len(batch.at):
            return
        batch, places, clocks = self._located(batch)
        self._find_unwritten(batch, history, places)
        for marks in (history.writes.get(places), *history.reduced(places, self.events, clocks, kind)):
            self._find_unordered(Kind.WRITE_WRITE, batch, marks, clocks)
        for marks in history.reads.earlier(places, self.events, clocks):
            self._find_unordered(Kind.READ_WRITE, batch, marks, clocks)
        event = self.events.append(batch.agent, batch.site)
        crowd = history.reductions.setdefault(kind, Crowd())
        crowd.record(self.events, batch.agent, event, places, batch.lanes, history.writes)

    def writes(self, batch: Batch, by_warp: bool = False) -> None:
        """Check that writes come after the last write of each element and after all of its reads.

        Args:
            batch: the elements.
            by_warp: whether each lane of the warp may also write elements of other lanes.
        """
        self.accessed += len(batch.at)
        history = batch.buffer.history
        if history is None or not len(batch.at):
            return
        own, places, clocks = self._located(batch)
        agent = own.agent
        batch = replace(own, lanes=np.full_like(own.lanes, WHOLE_WARP)) if by_warp else own
        for marks in (history.writes.get(places), *history.reduced(places, self.events, clocks)):
            self._find_unordered(Kind.WRITE_WRITE, batch, marks, clocks)
        for marks in history.reads.earlier(places, self.events, clocks):
            if not np.count_nonzero(marks[0]):
                continue
            late = self.events.unordered(agent, batch.lanes, *marks, clocks)
            if agent.issuer is not None and np.count_nonzero(late):
                # After a barrier, the values read are in registers, so no fence needs to follow
                # (docs/decisions/0010-proxy-fences.md).
                late &= self.events.untold(agent, agent.issuer, *marks)
            self._report_conflicts(Kind.READ_WRITE, batch, late, marks)
        history.writes.put(places, self.events.append(agent, batch.site), own.lanes)
        # If two lanes write one element, `put` keeps the later one.
        events, last = history.writes.get(places)
        self._report_conflicts(Kind.WRITE_WRITE, own, last != own.lanes, (events, last))
        if by_warp:
            history.writes.lane[places] = WHOLE_WARP

    def leaves_out(self, batch: Batch) -> None:
        """Note elements that an edge of the view excludes from a write."""
        if (history := batch.buffer.history) is not None and len(batch.at):
            _, places, lanes = batch.buffer.places(batch.at, batch.lanes)
            history.skips = history.skips or Marks.blank(len(history.writes.event))
            history.skips.put(places, self.events.append(batch.agent, batch.site), lanes)

    def _located(self, batch: Batch) -> tuple[Batch, Array, Clocks]:
        """Return the batch with one entry for each place in the history, the places, and its clocks."""
        at, places, lanes = batch.buffer.places(batch.at, batch.lanes)
        return replace(batch, at=at, lanes=lanes), places, batch.agent.after(batch.buffer.memory)

    def _find_unwritten(self, batch: Batch, history: History, places: Array) -> None:
        """Report elements that were never written, or whose last write was to another tensor."""
        owner = batch.buffer.owner
        if not batch.buffer.written and np.count_nonzero(missing := ~history.is_written(places)):
            rule = "if another thread writes it later, no barrier makes this thread wait"
            reason = f"nothing has written this element of {owner} yet; {rule}"
            self.defect(Kind.UNWRITTEN, batch.only(missing), reason)
        writes = history.writes.event[places] if batch.buffer.overlaid else np.zeros(0, np.int32)
        for event in np.unique(writes[writes > 0]):
            last = self._sites[self.events.sites[event]]
            if last.value.buffer is not owner:
                reason = (
                    f"{last.value.buffer}, which lies in the same shared memory, was written here last, "
                    f"at {last}: the values of {owner} are lost"
                )
                self.defect(Kind.UNWRITTEN, batch.only(writes == event), reason)

    def _find_unordered(self, kind: Kind, batch: Batch, marks: tuple[Array, Array], clocks: Clocks) -> None:
        """Report accesses that do not come after earlier ones, given by their events and lanes."""
        late = self.events.unordered(batch.agent, batch.lanes, *marks, clocks)
        self._report_conflicts(kind, batch, late, marks)

    def _report_conflicts(self, kind: Kind, batch: Batch, which: Array, marks: tuple[Array, Array]) -> None:
        if not np.count_nonzero(which):
            return
        batch, events, event_lanes = batch.only(which), marks[0][which], marks[1][which]
        agent, owner, site = batch.agent, batch.buffer.owner, self._sites[batch.site]
        for event in np.unique(events)[:MOST_EVENTS]:
            mine = events == event
            here, former = batch.only(mine), self.events.agent(event)
            before = self._sites[self.events.sites[event]]
            lanes = (here.lanes[:1], event_lanes[mine][:1])
            found, reason = explain(self.events, kind, agent, former, int(event), lanes, batch.buffer.memory)
            if before.op is site.op and site.value.tensor.indices:
                found, reason = Kind.DUPLICATE, ROW_TWICE
            apart = former.block != agent.block or former.device != agent.device
            key = (found, owner, self.events.sites[event], batch.site, apart)
            # A conflict between two warps shows the missing barrier better than one between lanes of a warp.
            reach = int(former.home != agent.home)
            if self.findings.is_new(key, here.count, reach):
                earlier = Access.of(before, former, event_lanes[mine][0])
                reason += self.remedies.remedy(reason, before.op, site.op)
                reason += self.remedies.early((former, agent))
                if before.value.buffer is not owner and min(former.warp, agent.warp) >= 0:
                    reason += f"; {before.value.buffer} and {owner} share memory"
                self.findings.add(key, self._finding(found, here, earlier, reason), reach)

    # ---------------------------------------------------------------- adding findings

    def _add(self, key: tuple[object, ...], count: int, make: Callable[[], Finding]) -> None:
        """Count a finding, and describe it if it is new."""
        if self.findings.is_new(key, count):
            self.findings.add(key, make())

    def _of_batch(
        self, key: tuple[object, ...], kind: Kind, batch: Batch, earlier: Access | None, reason: str
    ) -> None:
        self._add(key, batch.count, lambda: self._finding(kind, batch, earlier, reason))

    def _finding(self, kind: Kind, batch: Batch, earlier: Access | None, reason: str) -> Finding:
        owner, offset = batch.buffer.owner, int(batch.at[0])
        access = Access.of(self._sites[batch.site], batch.agent, int(batch.lanes[0]))
        where, memory = batch.buffer.locate(offset), owner.tensor.memory.value
        return Finding(kind, str(owner), memory, where, offset, access, earlier, reason)

    # ---------------------------------------------------------------- findings of one access

    def defect(self, kind: Kind, batch: Batch, reason: str) -> None:
        """Report elements of a single wrong access."""
        self._of_batch((kind, batch.buffer.owner, batch.site, reason), kind, batch, None, reason)

    def outside(self, batch: Batch) -> None:
        """Report elements outside of their buffer."""
        reason = f"{batch.buffer.owner} has the elements 0 to {len(batch.buffer.elements) - 1}"
        self.defect(Kind.OUT_OF_BOUNDS, batch, reason)

    def inside(self, batch: Batch) -> Batch:
        """Report elements outside of their buffer, and return the others."""
        outside = batch.buffer.outside(batch.at)
        if outside.any():
            self.outside(batch.only(outside))
        return batch.only(~outside)

    def beyond(self, batch: Batch, found: Beyond) -> None:
        """Report an access through a view that leaves its tensor."""
        key = (Kind.OUT_OF_BOUNDS, batch.buffer.owner, batch.site, id(found.op), found.dim)
        self._of_batch(key, Kind.OUT_OF_BOUNDS, batch, _at(batch.agent, found.op, "view"), found.reason)

    def not_reset(self, agent: Actor, op: Op, buffer: Storage, offset: int, value: int) -> None:
        """Report a counter that is not 0 at the end."""
        reason = (
            f"it is {value} when the kernel ends and when the next launch begins: let the last signal reset "
            "it, of=..., or say tw.reset after all signals and waits"
        )
        self._of_array(Kind.NOT_RESET, buffer, offset, 1, _at(agent, op, "signal"), reason)

    def uncovered(self, op: Op, buffer: Storage, missing: Array) -> None:
        """Report elements of an array that no operation wrote; ``op`` is one that writes the array."""
        reason = (
            f"all blocks have run, and {len(missing)} elements of {buffer.owner} are unchanged: the grid "
            "is too small, or tiles are left out; if this is intended, pass check(..., "
            f'partial=("{buffer.owner}",))'
        )
        access = Access("writes of others", op, "", (), 0, None)
        self._of_array(Kind.UNCOVERED, buffer, int(missing[0]), len(missing), access, reason)

    def _of_array(
        self, kind: Kind, buffer: Storage, offset: int, count: int, access: Access, reason: str
    ) -> None:
        """Report the state of an array in global memory after all blocks have run."""
        place = (str(buffer.owner), "global", buffer.locate(offset), offset)
        self._add((kind, buffer.owner), count, lambda: Finding(kind, *place, access, None, reason))

    # ---------------------------------------------------------------- registers and synchronisation

    def registers(
        self, agent: Actor, op: Op, value: Value, element: tuple[int, ...], lane: int, count: int
    ) -> None:
        """Report that an operation reads registers that nothing wrote."""
        site = self.site(op, value, "read")
        reason = f"nothing has written this element of {value} before; fill the fragment, or load it"
        self.register_read(Kind.UNWRITTEN, site, agent, (element, lane), count, reason)

    def register_read(
        self, kind: Kind, site: int, agent: Actor, place: tuple[tuple[int, ...], int], count: int, reason: str
    ) -> None:
        """Report wrong elements of a fragment or tensor that an operation reads.

        Args:
            kind: the kind of the finding.
            site: number of the read.
            agent: the agent.
            place: coordinate and lane of one of these elements.
            count: number of these elements.
            reason: the broken rule.
        """
        value, (element, lane) = self._sites[site].value, place
        memory = "registers" if value.is_fragment else value.tensor.memory.value
        access = Access.of(self._sites[site], agent, lane)
        self._add(
            (kind, value, site),
            count,
            lambda: Finding(kind, str(value), memory, element, 0, access, None, reason),
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
        """Report an access to a fragment at a wrong time."""
        key = (kind, value, id(op), None if other is None else id(other[1]))
        earlier, access = None if other is None else _at(*other, "update"), _at(agent, op, action)
        place = (str(value), "registers", (), 0)
        self._add(key, 1, lambda: Finding(kind, *place, access, earlier, reason, unit="times"))

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
        """Report a wrong synchronisation of an agent, and the wait that it conflicts with."""
        key = (kind, id(op), None if other is None else id(other[1]))
        earlier, access = None if other is None else _at(*other, before), _at(agent, op, action)
        self._add(key, 1, lambda: Finding(kind, "", "", None, 0, access, earlier, reason))

    def barrier(
        self,
        kind: Kind,
        agent: Actor,
        op: Op,
        barrier: TransactionBarrier,
        reason: str,
        other: tuple[Actor, Op] | None = None,
    ) -> None:
        """Report a wrong use of a transaction barrier."""
        name = barrier.name.partition("[")[0]
        key = (kind, name, id(op), None if other is None else id(other[1]))
        earlier = None if other is None else _at(*other, _ACTIONS.get(other[1].verb, "use"))
        access, place = _at(agent, op, _ACTIONS.get(op.verb, "use")), (name, "barrier", (barrier.stage,), 0)
        self._add(key, 1, lambda: Finding(kind, *place, access, earlier, reason, unit="times"))


def _at(agent: Actor, op: Op, action: str) -> Access:
    return Access(action, op, agent.name, agent.block, agent.warp, None, agent.rank, agent.device)
