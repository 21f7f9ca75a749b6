"""Rules of counters, and concurrent execution of blocks that wait for each other.

Importing this module adds the rules to `REFERENCE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tilewright.ir.kernel import Kernel
from tilewright.ir.op import Op
from tilewright.ir.signal_ops import SIGNAL_OPS, Await, Reset, Signal, Ticket
from tilewright.ir.types import Value
from tilewright.symbolic.nodes import Int
from tilewright.targets.reference.agents import Actor
from tilewright.targets.reference.barriers import Count, Counts, Mark, PassedAwait, Signalled, learn
from tilewright.targets.reference.checker import Batch, Checker
from tilewright.targets.reference.findings import Kind, describe
from tilewright.targets.reference.machine import Members, Simulator
from tilewright.targets.reference.meaning import REFERENCE
from tilewright.targets.reference.report import place
from tilewright.targets.reference.standstill import explain_standstill
from tilewright.targets.reference.state import ClusterState, Pause, Steps, Warp

COUNTED = "counted"
"""Kind of the reductions by atomic accesses to counters."""

RESIDENT = 132
"""Number of blocks that certainly run at once: one for each of the 132 multiprocessors of an H200."""


def has_signals(kernel: Kernel) -> bool:
    """Return whether blocks of a kernel may wait for each other."""
    return any(isinstance(op, SIGNAL_OPS) for op in kernel.walk())


# ---------------------------------------------------------------- rules


@REFERENCE.rule(Signal)
def _signal(machine: Simulator, warp: Warp, op: Signal) -> None:
    if not warp.rank:
        _count_up(machine, warp, op, op.counter, warp.int(op.value), op.of)


@REFERENCE.rule(Ticket)
def _ticket(machine: Simulator, warp: Warp, op: Ticket) -> None:
    """Write the first thread's ticket; the block with the last ticket learns what all others know."""
    if warp.rank:
        return
    old = _count_up(machine, warp, op, op.counter, 1, op.of)
    target = warp.block.buffers[op.target.buffer]
    at = np.array([warp.int(op.target.tensor.view.offset)], np.int64)
    if machine.check:
        site = machine.checker.site(op, op.target, "write")
        machine.checker.writes(Batch.of_first_lane(warp.agent, site, target, at))
    target.elements[at] = old


def _count_up(machine: Simulator, warp: Warp, op: Op, counter: Value, value: int, of: Int | None) -> int:
    """Increase a counter by the first thread of a warp; return its old value."""
    count = _counter(machine, warp, op, counter, "signal")
    if count is None:
        return 0
    agent, old = warp.agent, count.value
    end = None if of is None else warp.int(of)
    if machine.check and (value < 0 or (end is not None and end < 1)):
        goes_down = f"value={value}: a counter is unsigned and can only count up"
        reason = goes_down if value < 0 else f"of={end}: a counter wraps around after at least one signal"
        machine.checker.waiting(Kind.COUNTER, agent, op, None, reason, "signal")
        return old
    _in_this_round(machine, agent, op, count, "signal")
    machine.counts.signal(count, agent, op, value)
    if end is None or old + 1 < end:
        count.buffer.elements[count.at] = (old + value) % (1 << 32)
        return old
    if isinstance(op, Ticket):
        learn(agent, heard(machine.checker, agent, op, count.signals[:-1]))
    _make_zero(machine, agent, op, count, count.unsignalled(end))
    return old


def _make_zero(machine: Simulator, agent: Actor, op: Op, count: Count, before: Sequence[Mark]) -> None:
    """Reset a counter, and report earlier operations that the reset does not come after."""
    if machine.check and (mark := count.unordered(agent, before)) is not None:
        what = "wait" if isinstance(mark, PassedAwait) else "signal"
        reason = (
            f"the counter becomes 0 here, and nothing orders this after the {what}, which may come later and "
            "find 0: reset it after all signals and waits, in a block that comes after them"
        )
        machine.checker.waiting(Kind.COUNTER, agent, op, (mark.agent, mark.op), reason, "reset", what)
    count.buffer.elements[count.at] = 0
    count.become_zero(Mark(machine.counts.number(agent), agent, op))


def _in_this_round(machine: Simulator, agent: Actor, op: Op, count: Count, what: str) -> None:
    """Report a signal or wait that nothing orders after the last reset of its counter."""
    if machine.check and count.zeroed is not None and not count.zeroed.is_before(agent.seen):
        reason = (
            f"the counter became 0 before this {what}, and nothing orders the two: it may come first, and "
            "count with those before"
        )
        other = (count.zeroed.agent, count.zeroed.op)
        machine.checker.waiting(Kind.COUNTER, agent, op, other, reason, what, "reset")


@REFERENCE.rule(Await)
def _await(machine: Simulator, warp: Warp, op: Await) -> Steps:
    value = warp.int(op.value)
    if warp.rank or value <= 0:
        return
    count = _counter(machine, warp, op, op.counter, "wait")
    if count is None:
        return

    def state() -> str:
        why = "" if count.zeroed is None else f", since block {count.zeroed.agent.block} reset it"
        return f"{count.buffer.owner}[{count.at}] to be {value}; it is {count.value}{why}"

    yield Pause(op, lambda: count.value >= value, state, is_last=True)
    passes(machine.checker, machine.counts, count, warp.agent, op, value)
    _in_this_round(machine, warp.agent, op, count, "wait")
    warp.agent.advance()


def passes(checker: Checker, counts: Counts, count: Count, agent: Actor, op: Op, value: int) -> None:
    """Record that an agent passes a wait for a counter."""
    certain = counts.wait(count, agent, op, value)
    if agent.device is not None:
        heard(checker, agent, op, certain)
        if all(one.is_before(agent.began) for one in certain):
            checker.remedies.note_early(agent, op, value)


def heard(checker: Checker, agent: Actor, op: Op, signals: Sequence[Signalled]) -> list[Signalled]:
    """Return the signals that, by their scope and the wait's, reach the waiting GPU; report the others."""
    reached = [one for one in signals if one.reaches(agent, op)]
    for one in signals:
        if one in reached:
            continue
        narrow = one.op if getattr(one.op, "scope", "gpu") == "gpu" else op
        what = "signal" if narrow is one.op else "wait"
        reason = (
            f"the {what} has the scope of one GPU, and rank {agent.device} waits for rank "
            f"{one.agent.device}: what came before the signal may not be visible after the wait; say "
            f'{narrow.verb}(..., scope="system")'
        )
        checker.waiting(Kind.SCOPE, agent, op, (one.agent, one.op), reason, "wait", "signal")
    return reached


@REFERENCE.rule(Reset)
def _reset(machine: Simulator, warp: Warp, op: Reset) -> None:
    if warp.rank:
        return
    count = _counter(machine, warp, op, op.counter, "reset")
    if count is not None:
        _make_zero(machine, warp.agent, op, count, [*count.signals, *count.passed])


def _counter(machine: Simulator, warp: Warp, op: Op, counter: Value, action: str) -> Count | None:
    """Return the counter that the first thread of a warp accesses; None if it does not exist."""
    buffer, agent = warp.block.buffers[counter.buffer], warp.agent
    at, site = np.array([warp.int(counter.tensor.view.offset)]), machine.checker.site(op, counter, action)
    batch = Batch.of_first_lane(agent, site, buffer, at)
    inside = machine.keep_within(warp, agent, site, buffer, at)
    if buffer.outside(at).any():
        if inside:
            machine.checker.outside(batch)
        return None
    if machine.check:
        machine.checker.reduces(batch, COUNTED)
    return machine.counts.of(buffer, int(at[0]))


# ---------------------------------------------------------------- concurrent blocks


class RunningLaunch:
    """The blocks of one launch that run concurrently with each other, and with other launches.

    Args:
        machine: the machine.
        clusters: the members of each cluster, in the order in which they begin.
        resident: number of blocks that certainly are resident at once.
    """

    def __init__(self, machine: Simulator, clusters: Iterable[Members], resident: int) -> None:
        machine.checker.events.are_together = True
        self.machine = machine
        self.resident = resident
        self.tasks: dict[Warp, Steps] = {}
        self.open: dict[ClusterState, set[Warp]] = {}
        self.done = 0
        """Number of blocks that have ended."""
        self._coming = iter(clusters)
        self._next = next(self._coming, None)

    @property
    def is_over(self) -> bool:
        """Whether all blocks have ended."""
        return not self.open and self._next is None

    def ready(self, *, last: bool) -> list[Warp]:
        """Return the warps that can go on; ``last`` selects the waits that let all other warps go first."""
        waits = [(warp, warp.waiting) for warp in self.tasks]
        return [warp for warp, wait in waits if wait is None or (wait.is_last == last and wait.ready())]

    def begin(self, *, beyond: bool = True) -> ClusterState | None:
        """Begin the next cluster; return None if all have begun, or if this one must wait (``beyond``).

        Args:
            beyond: whether to begin it if more blocks than are certain to be resident then wait; the wait is
                a finding.
        """
        members = self._next
        if members is None:
            return None
        waiting = sum(len(cluster.blocks) for cluster in self.open)
        needed = waiting + len(members)
        if waiting and needed > self.resident:
            if not beyond:
                return None
            if self.machine.check:
                waits = ((one, one.waiting) for warps in self.open.values() for one in warps)
                agent, op = next((warp.agent, wait.op) for warp, wait in waits if wait is not None)
                reason = (
                    f"{waiting} blocks wait for one with a higher number, so {needed} blocks must be "
                    f"resident at once, and no more than {self.resident} are certain to be: launch "
                    f"{self.resident} blocks, each with the work of several, or let blocks wait for lower "
                    "numbers only"
                )
                self.machine.checker.waiting(Kind.RESIDENT, agent, op, None, reason)
        cluster, more = self.machine.begin(members)
        self._next = next(self._coming, None)
        self.tasks.update(more)
        self.open[cluster] = set(more)
        return cluster

    def advance(self, warp: Warp) -> tuple[bool, ClusterState | None]:
        """Let a warp go on; return whether it could, and its cluster if this has ended."""
        if not self.machine.advance(warp, self.tasks):
            return False, None
        if warp in self.tasks:
            return True, None
        cluster = warp.block.cluster
        self.open[cluster].discard(warp)
        if self.open[cluster]:
            return True, None
        del self.open[cluster]
        self.machine.end(cluster)
        self.done += len(cluster.blocks)
        return True, cluster


def run_together(machine: Simulator, clusters: Iterable[Members], resident: int) -> tuple[int, bool]:
    """Execute clusters concurrently: each begins when the earlier ones have ended or cannot go on.

    Args:
        machine: the machine.
        clusters: the members of each, in the order in which they begin.
        resident: number of blocks that certainly are resident at once.

    Returns:
        The number of blocks that ended, and whether all did.
    """
    launch = RunningLaunch(machine, clusters, resident)
    while True:
        ready = launch.ready(last=False) or launch.ready(last=True)[:1]
        if not ready and launch.begin() is None:
            break
        for warp in ready:
            if not launch.advance(warp)[0]:
                return launch.done, False
    for cluster, stuck in launch.open.items():
        explain_standstill(machine.checker, cluster, [warp for warp in launch.tasks if warp in stuck])
        return launch.done, False
    return launch.done, True


def orderless(op: Op) -> str:
    """Return a note about a wait that orders nothing."""
    return (
        f"note: {describe(op)} returns whichever signals come first, so nothing that another block did is "
        f"certain to come before it, at {place(op)}"
    )


def report_counters(machine: Simulator) -> None:
    """Report counters that are not 0 for the next launch."""
    kept = {space.value for space in machine.kernel.workspaces if space.resets}
    for count in machine.counts.known.values():
        if machine.check and count.buffer.owner in kept and count.value and count.signals:
            last = count.signals[-1]
            machine.checker.not_reset(last.agent, last.op, count.buffer, count.at, count.value)
