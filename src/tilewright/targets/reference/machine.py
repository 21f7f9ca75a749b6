"""The machine: blocks of warps, the scheduler that runs them, and how they reach memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeAlias

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir.async_ops import MmaAsync
from tilewright.ir.kernel import Kernel
from tilewright.ir.mma import MmaAtom
from tilewright.ir.ops import Block, Mma, Op
from tilewright.ir.types import Value
from tilewright.symbolic.nodes import Sym
from tilewright.targets.reference import edges
from tilewright.targets.reference.addressing import Gathers, accessed_buffer
from tilewright.targets.reference.agents import WHOLE_WARP, Actor, Visibility, join
from tilewright.targets.reference.barriers import Counts, Late
from tilewright.targets.reference.checker import VALUES_TWICE, Batch, Checker
from tilewright.targets.reference.equivalence import OmittedIterations
from tilewright.targets.reference.findings import Kind
from tilewright.targets.reference.footprint import (
    Footprints,
    Instructions,
    Leftovers,
    UnprovenSpans,
    ViewZeros,
    WarpFootprint,
    lanes_of,
)
from tilewright.targets.reference.memory import Storage
from tilewright.targets.reference.numbers import NUMBERS, Numbers
from tilewright.targets.reference.rank_times import RankLog, work_of
from tilewright.targets.reference.reasons import Remedies
from tilewright.targets.reference.report import BankCount, Counters, SectorCount, Trail
from tilewright.targets.reference.standstill import explain_standstill, report_schedules, report_unfinished
from tilewright.targets.reference.state import (
    ClusterState,
    Delivery,
    Gathering,
    Pause,
    Population,
    Steps,
    Warp,
)
from tilewright.targets.rules import RuleTable
from tilewright.threads.distribution import Distribution

Members: TypeAlias = Sequence[tuple[tuple[int, ...], Mapping[Sym, int]]]
"""The blocks of a cluster, by rank: the index of each, and the values of its symbols."""


@dataclass
class RankState:
    """The state that launches of several ranks share: the checker, the counters, the numbers of groups."""

    checker: Checker
    counts: Counts
    groups: Iterator[int] = field(default_factory=lambda: count(1))
    log: RankLog = field(default_factory=RankLog)


class Simulator:
    """Executes the clusters of a kernel; without clusters, each block is one.

    The blocks of a cluster run together, and their agents share clocks.

    Args:
        kernel: the kernel.
        lanes: threads per warp.
        rules: rule of each operation, called as ``rule(machine, warp, op)``; it may return `Steps`.
        buffers: global memory.
        scalars: the caller's numbers.
        check: whether to look for hazards and to count.
        numbers: the arithmetic.
        late: late signals of earlier executions, see `Counts`.
        ranks: the state that launches of several ranks share; None for a single launch.
    """

    def __init__(
        self,
        kernel: Kernel,
        lanes: int,
        rules: RuleTable,
        buffers: dict[Value, Storage],
        scalars: dict[Value, Any],
        check: bool,
        numbers: Numbers = NUMBERS,
        late: Late | None = None,
        ranks: RankState | None = None,
    ) -> None:
        self.kernel = kernel
        self.numbers = numbers
        self.lanes = lanes
        self.check = check
        self.checker = Checker(Remedies(kernel)) if ranks is None else ranks.checker
        self.footprints = Footprints(lanes, kernel.threads)
        self.spans = UnprovenSpans(kernel)
        self.gathers = Gathers(kernel)
        self.instructions = Instructions(lanes)
        self.signs = edges.Signs(kernel)
        self.leftovers = Leftovers(kernel)
        self.view_zeros = ViewZeros(kernel)
        self.barriers = 0
        self.turns: OmittedIterations | None = None
        """The omitted loop iterations; None if all iterations run."""
        self.trail = Trail()
        self._rules = rules
        self._known_rules: dict[int, Callable[..., Steps | None]] = {}
        self._buffers = buffers
        self._scalars = scalars
        self._banks: dict[int, BankCount] = {}
        self._sectors: dict[int, SectorCount] = {}
        self.counts = Counts({} if late is None else late) if ranks is None else ranks.counts
        self._log = None if ranks is None else ranks.log
        self._population = Population(kernel, lanes, check, numbers)
        if ranks is not None:
            self._population.groups = ranks.groups
        self.agents = self._population.agents

    @property
    def counters(self) -> Counters:
        """The counters so far."""
        return Counters(tuple(self._banks.values()), tuple(self._sectors.values()), self.barriers)

    # ---------------------------------------------------------------- scheduling

    def begin(self, members: Members) -> tuple[ClusterState, dict[Warp, Steps]]:
        """Return a new cluster of blocks, given by index and symbols, and the steps of its warps."""
        cluster = self._population.cluster(members, self._buffers, self._scalars)
        self.checker.events.enter(self._population.homes)
        return cluster, {warp: self.steps(warp, self.kernel.body) for warp in cluster.barrier.warps}

    def resume(self) -> None:
        """Go on after another launch has run."""
        self.checker.events.enter(self._population.homes)

    def run_cluster(self, members: Members) -> bool:
        """Execute the blocks of a cluster alone; return whether they reached their ends."""
        cluster, tasks = self.begin(members)
        while tasks:
            runnable = [w for w in tasks if w.waiting is None or w.waiting.ready()]
            if not runnable:
                explain_standstill(self.checker, cluster, list(tasks))
                return False
            if not all(self.advance(warp, tasks) for warp in runnable):
                return False
        self.end(cluster)
        return True

    def advance(self, warp: Warp, tasks: dict[Warp, Steps]) -> bool:
        """Run a warp up to its next wait or its end; return False after a division by zero."""
        try:
            warp.waiting = next(tasks[warp], None)
        except ZeroDivisionError:
            reason = (
                "an integer of this operation, or of its operands' places, is divided by zero or by "
                "a negative number"
            )
            assert warp.executes is not None
            self.checker.waiting(Kind.DIVISION, warp.agent, warp.executes, None, reason, "run")
            return False
        if warp.waiting is None:
            del tasks[warp]
        return True

    def end(self, cluster: ClusterState) -> None:
        """Check a cluster whose blocks have reached their ends."""
        if self.check:
            report_unfinished(self.checker, cluster)
            if self.turns is not None:
                self.turns.check_balance(cluster)
            report_schedules(self.checker, cluster)

    def steps(self, warp: Warp, body: Block) -> Steps:
        """Execute operations, yielding at every synchronisation."""
        for op in body.ops:
            warp.executes = op
            if self._log is not None and (work := work_of(op, warp.mates)) is not None:
                self._log.note(warp.agent.group, work)
            rule = self._known_rules.get(id(op))
            if rule is None:
                self.trail.ran.add(id(op))
                rule = self._known_rules[id(op)] = self._rules.lookup(op)
            steps = rule(self, warp, op)
            if steps is not None:
                yield from steps

    def arrive(self, warp: Warp, op: Op, barrier: Gathering) -> Pause:
        """Arrive at the barrier of the block or the cluster; the last warp joins the clocks of all."""
        opened = barrier.opened
        warp.note("meet", barrier, len(barrier.warps), opened, op)
        barrier.arrived[warp] = op
        if len(barrier.arrived) == len(barrier.warps):
            # The warps of a block must arrive at the same `tw.barrier`.  The barrier of a cluster has neither
            # a number nor a place (PTX ISA, "barrier.cluster": it waits for all threads of the cluster), so
            # its warps may arrive at different lines, equally often.
            (first, its_op), *others = barrier.arrived.items()
            for late, other in others:
                if other is not its_op and barrier.place == "block":
                    reason = "the warps of one block wait at different barriers"
                    self.checker.waiting(Kind.DIVERGENCE, late.agent, other, (first.agent, its_op), reason)
            barrier.arrived.clear()
            barrier.opened += 1
            self.barriers += 1
            join([each.agent for each in barrier.warps])
        return Pause(op, lambda: barrier.opened > opened)

    def adding(self, op: Mma | MmaAsync) -> MmaAtom:
        """Return the atom of a multiply.  With omitted iterations, sums are meaningless and not truncated."""
        atom = op.mma.atom
        return atom if self.turns is None else op.cached("plain", lambda op: replace(atom, sums=None))

    # ---------------------------------------------------------------- memory

    def shape(self, warp: Warp, spread: Distribution) -> tuple[int, int]:
        """Return (lanes, values) of the part of a distribution that a warp holds."""
        threads = self.footprints.threads(warp.rank, spread)
        return threads.stop - threads.start, spread.size_values

    def footprint(self, warp: Warp, op: Op, value: Value, spread: Distribution) -> WarpFootprint | None:
        """Return the elements of a tensor that a warp touches, after it has read indices in memory."""
        env = self.gathers.environment(warp, value)
        found = self.footprints.of(warp.rank, value, spread, env)
        if self.check and found is not None and value.tensor.indices:
            self.gathers.read(self.checker, warp, op, value, found.coordinates)
        return found

    def load(
        self,
        warp: Warp,
        agent: Actor,
        op: Op,
        value: Value,
        spread: Distribution,
        vector: int,
        other: Array | None = None,
    ) -> Array:
        """Read a tensor in memory.  Invalid elements are 0 or ``other``, those outside the buffer poison."""
        buffer = accessed_buffer(self.checker, warp, op, value, "read", self.check)
        footprint = None if buffer is None else self.footprint(warp, op, value, spread)
        result = np.zeros(self.shape(warp, spread), self.numbers.storage(value.dtype))
        warp.loaded = None
        if buffer is None or footprint is None:
            return result
        site = self.checker.site(op, value, "read")
        touched = self._usable(warp, agent, site, buffer, footprint, footprint.valid, vector)
        at, lanes = footprint.elements(touched)
        if other is not None and footprint.absent is not None:
            result[footprint.absent] = other
        if touched is not footprint.valid:
            result[footprint.valid & ~touched] = self.numbers.poison(value.dtype, ())
        if footprint.is_whole and touched is footprint.valid:
            result[...] = buffer.elements[footprint.offsets]
        else:
            result[touched] = buffer.elements[at]
        if self.check:
            by_warp = self.instructions.by_warp(op, value, spread)
            who = np.full_like(lanes, WHOLE_WARP) if by_warp else lanes
            self.checker.reads(Batch(agent, site, buffer, at, who))
            self._count(site, buffer, footprint, vector)
            absent = self.view_zeros.absent(value, footprint, warp.env)
            warp.loaded = edges.of_load(buffer, absent, touched, at)
        return result

    def store(
        self,
        warp: Warp,
        agent: Actor,
        op: Op,
        value: Value,
        spread: Distribution,
        vector: int,
        values: Array,
        beyond: Array | None = None,
        reduction: str | None = None,
    ) -> None:
        """Write a tensor in memory, or reduce into it.

        An agent in the background delivers when its group completes.
        """
        buffer = accessed_buffer(self.checker, warp, op, value, "write", self.check)
        footprint = None if buffer is None else self.footprint(warp, op, value, spread)
        if buffer is None or footprint is None:
            return
        site = self.checker.site(op, value, "write")
        first = self.footprints.first_copies(warp.rank, spread)
        wanted = footprint.valid if first is None else footprint.valid & first
        touched = self._usable(warp, agent, site, buffer, footprint, wanted, vector)
        at, lanes = footprint.elements(touched)
        marks = None if beyond is None else beyond[touched]
        if self.check:
            batch, by_warp = (
                Batch(agent, site, buffer, at, lanes),
                self.instructions.by_warp(op, value, spread),
            )
            absent = self.leftovers.left_out(value, footprint, warp.env) if buffer.is_shared else None
            if absent is not None:
                self.checker.leaves_out(Batch(agent, site, buffer, *footprint.elements(absent)))
            if reduction is not None:
                self.checker.reduces(batch, reduction)
            elif self.gathers.chooses(value):
                self.checker.writes(self.gathers.once(self.checker, batch), by_warp)
            else:
                # One lane writes several values to an element, through a broadcast view.
                again = None if footprint.repeats is None else footprint.repeats & touched
                if again is not None and again.any():
                    found = Batch(agent, site, buffer, *footprint.elements(again))
                    self.checker.defect(Kind.DUPLICATE, found, VALUES_TWICE)
                self.checker.writes(batch, by_warp)
            self._count(site, buffer, footprint, vector)
            edges.mark(buffer, at, None if agent.in_background else marks)
        if reduction is not None:
            self.numbers.reduce_into(value.dtype, buffer.elements, at, values[touched], reduction)
        elif agent.in_background:
            buffer.elements[at] = self.numbers.poison(value.dtype, ())
            warp.deliveries.append(Delivery(agent.time, buffer, at, values[touched], marks))
        else:
            buffer.elements[at] = values[touched]

    def keep_within(
        self, warp: Warp, agent: Actor, site: int, buffer: Storage, offsets: Array, mask: Array | None = None
    ) -> bool:
        """Report an access through a slice that leaves its tensor; return whether it stays within.

        Args:
            warp: the warp, whose integers place the slices.
            agent: the agent.
            site: number of the access.
            buffer: the memory.
            offsets: elements, of shape (lanes, values), or (n,) for the first lane.
            mask: accessed elements; None: all.
        """
        found = self.spans.beyond(self.checker.describe(site).value, warp.env) if self.check else None
        if found is None:
            return True
        offsets = np.atleast_2d(offsets)
        if mask is None or found.is_masked:
            mask = np.ones(offsets.shape, bool)
        if not (found.is_masked or mask.any()):
            return True
        self.checker.beyond(Batch(agent, site, buffer, offsets[mask], lanes_of(mask)), found)
        return False

    def deliver(self, warp: Warp, groups: int) -> None:
        """Complete a warp's asynchronous copies up to group ``groups``, and let its lanes know."""
        for delivery in [d for d in warp.deliveries if d.group <= groups]:
            delivery.buffer.elements[delivery.at] = delivery.values
            edges.mark(delivery.buffer, delivery.at, delivery.beyond)
        warp.deliveries = [d for d in warp.deliveries if d.group > groups]
        known = warp.copies.clocks.known[Visibility.LANE]
        known[warp.copies.slot] = max(known[warp.copies.slot], groups)

    def _usable(
        self,
        warp: Warp,
        agent: Actor,
        site: int,
        buffer: Storage,
        footprint: WarpFootprint,
        wanted: Array,
        vector: int,
    ) -> Array:
        """Return which (lane, value) accesses can be performed, and report the others."""
        keeps_within = self.keep_within(warp, agent, site, buffer, footprint.offsets, wanted)
        if self.check:
            for reason, bad in footprint.defects(vector, buffer.address, buffer.owner.dtype):
                found = Batch(agent, site, buffer, *footprint.elements(bad))
                self.checker.defect(Kind.MISALIGNED, found, reason)
        low, high = footprint.bounds
        if buffer.exists is None and low >= 0 and high < len(buffer.elements):
            return wanted
        outside = np.zeros_like(wanted)
        outside[wanted] = buffer.outside(footprint.offsets[wanted])
        if not outside.any():
            return wanted
        if keeps_within:
            self.checker.outside(Batch(agent, site, buffer, *footprint.elements(outside)))
        return wanted & ~outside

    def _count(self, site: int, buffer: Storage, footprint: WarpFootprint, vector: int) -> None:
        where, dtype = self.checker.describe(site), buffer.owner.dtype
        if buffer.is_shared:
            counts = footprint.bank_conflicts(vector, buffer.address, dtype)
            self._banks.setdefault(site, BankCount(where)).add(*counts)
        else:
            self._sectors.setdefault(site, SectorCount(where)).add(*footprint.sectors(vector, dtype))
