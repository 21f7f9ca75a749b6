"""Rules of roles and asynchronous operations: barriers, bulk copies, tensor maps, asynchronous MMA.

Importing this module adds them to `REFERENCE`.
"""

from __future__ import annotations

import numpy as np

from tilewright.ir import async_ops as ops
from tilewright.ir.async_ops import ClusterArrive, ClusterBarrier, ClusterWait
from tilewright.ir.clusters import sharing
from tilewright.ir.copies import AcquireMap, Copy, is_bulk_load
from tilewright.ir.op import Op
from tilewright.ir.types import Value
from tilewright.symbolic.nodes import Int
from tilewright.targets.reference.addressing import accessed_block
from tilewright.targets.reference.agents import Message, Visibility, join
from tilewright.targets.reference.barriers import NamedBarrier, TransactionBarrier
from tilewright.targets.reference.findings import Kind
from tilewright.targets.reference.machine import Simulator
from tilewright.targets.reference.meaning import REFERENCE
from tilewright.targets.reference.state import BlockState, Pause, Steps, Visit, Warp
from tilewright.targets.reference.tensor_cores import awaited, is_issued, issue_mma, wait_mma
from tilewright.targets.reference.tensor_memory import acquire, finish_stores, load_box, store_box

__all__ = ["REFERENCE"]


@REFERENCE.rule(ops.Role)
def _role(machine: Simulator, warp: Warp, op: ops.Role) -> Steps:
    """Run the body in the warps of the role, numbered from the first warp of each group."""
    if not op.first <= warp.rank < op.first + op.warps:
        return
    outside = warp.rank, warp.mates
    group, rank = divmod(warp.rank - op.first, op.count)
    warp.rank, warp.mates = rank, op.count
    if op.index is not None:
        warp.env[op.index] = group
    yield from machine.steps(warp, op.body)
    warp.rank, warp.mates = outside


@REFERENCE.rule(AcquireMap)
def _acquire_map(machine: Simulator, warp: Warp, op: AcquireMap) -> None:
    if not warp.rank:
        acquire(warp, op.source)


# ---------------------------------------------------------------- transaction barriers


@REFERENCE.rule(ops.MBarrier)
def _mbarrier(machine: Simulator, warp: Warp, op: ops.MBarrier) -> None:
    if warp.rank:
        return
    site = machine.checker.site(op, op.result, "write")
    for barrier in warp.block.mbarriers[op.result]:
        barrier.is_ready = True
        barrier.initialised = machine.checker.events.append(warp.agent, site)


@REFERENCE.rule(ops.Arrive)
def _arrive(machine: Simulator, warp: Warp, op: ops.Arrive) -> None:
    if op.each == "warp":
        join([warp.agent])
    elif warp.rank:
        return
    block = accessed_block(machine.checker, warp, op, op.block, "arrival")
    barrier = None if block is None else _use(machine, warp, op, op.barrier, op.stage, 0, block)
    if block is None or barrier is None:
        return
    if block is not warp.block:
        block.visits[warp.agent, barrier] = Visit(op, warp.agent.time, "arrival", barrier.name)
    is_over = barrier.arrived >= barrier.arrivals and barrier.is_complete
    warp.note("arrive", barrier.slot, op.expect_bytes, barrier.phase + is_over, op)
    if barrier.arrived >= barrier.arrivals:
        if machine.check:
            state = barrier.state()
            reason = f"{state}: one arrival too many, or one without a wait for the end of the phase"
            machine.checker.barrier(Kind.PHASE, warp.agent, op, barrier, reason, barrier.arrivers[-1])
        if not barrier.is_complete:
            return
        _complete(machine, barrier)
    elif machine.check and not barrier.is_over(barrier.phase, warp.agent):
        reason = (
            f"arrives in phase {barrier.phase} but does not know that phase {barrier.phase - 1} is over: "
            f"no wait for it comes before, so this may be one arrival too many for {barrier.arrivals}"
        )
        machine.checker.barrier(Kind.PHASE, warp.agent, op, barrier, reason + _whose(warp, block))
    homes = machine.checker.events.homes
    barrier.arrive(warp.agent, op, op.expect_bytes, homes, relaxed=op.relaxed)
    warp.agent.advance()
    if barrier.is_complete and not barrier.waits_for_bytes:
        _complete(machine, barrier)


@REFERENCE.rule(ops.Wait)
def _wait(machine: Simulator, warp: Warp, op: ops.Wait) -> Steps:
    barrier = _use(machine, warp, op, op.barrier, op.stage, lane=machine.lanes - 1)
    if barrier is None:
        return
    parity = warp.int(op.parity)
    if parity not in (0, 1) and machine.check:
        reason = f"waits for parity {parity}; phases have parity 0 or 1"
        machine.checker.barrier(Kind.PHASE, warp.agent, op, barrier, reason)
    parity %= 2

    # The warp learns the state when it may pass, even if other warps run on before it does.
    heard, phase = barrier.heard, barrier.phase

    def ready() -> bool:
        nonlocal heard, phase
        if not (barrier.is_ready and barrier.phase % 2 != parity):
            if not barrier.is_complete:
                return False
            _complete(machine, barrier)
        heard, phase = barrier.heard, barrier.phase
        barrier.may_pass(warp.agent, op)
        return True

    yield Pause(op, ready, barrier.state)
    if machine.check and not barrier.is_over(phase - 1, warp.agent):
        reason = (
            f"passes when phase {phase - 1} is over without knowing that phase {phase - 2} "
            f"was: two phases earlier it would have passed as well"
        )
        machine.checker.barrier(Kind.PHASE, warp.agent, op, barrier, reason)
    warp.note("wait", barrier.slot, parity, phase, op)
    heard.hear(warp.agent)


def _whose(warp: Warp, block: BlockState) -> str:
    """Name the block of a barrier at the end of a reason, unless it is the warp's own."""
    return "" if block is warp.block else f"; the barrier is that{block.cluster.name(block)}"


def _use(
    machine: Simulator,
    warp: Warp,
    op: Op,
    value: Value,
    stage: Int,
    lane: int,
    block: BlockState | None = None,
) -> TransactionBarrier | None:
    """Return the stage of a barrier, by default of the own block; report one that is not initialised."""
    block = block or warp.block
    stages = block.mbarriers[value]
    at = warp.int(stage)
    if not 0 <= at < len(stages):
        reason = f"stage {at} of {value}, which has the stages 0 to {len(stages) - 1}"
        machine.checker.barrier(Kind.OUT_OF_BOUNDS, warp.agent, op, stages[0], reason)
        return None
    barrier = stages[at]
    if machine.check:
        events = machine.checker.events
        made = np.array([barrier.initialised])
        lanes, first = np.full(1, lane), np.zeros(1, int)
        if not barrier.initialised or events.unordered(warp.agent, lanes, made, first).any():
            which, whose = "barrier", ""
            if block is not warp.block:
                which, whose = "cluster_barrier", block.cluster.name(block)
            reason = (
                f"no {which} between the initialisation of {value}{whose}, by one thread, and its use by "
                "this warp"
            )
            machine.checker.barrier(Kind.UNINITIALISED, warp.agent, op, barrier, reason)
    return barrier


def _complete(machine: Simulator, barrier: TransactionBarrier) -> None:
    """End the present phase; report waits that it overtakes, and copies that it does not wait for."""
    last, phase = barrier.arrivers[-1], barrier.phase
    expected, issued = barrier.expected, barrier.issued
    for wait in barrier.overtaken() if machine.check else ():
        warp, seen = wait.agent.warp, "has come to this wait, which is to pass at once"
        if phase:
            seen = f"has seen that phase {phase - 1} has"
        reason = (
            f"phase {phase} can end before warp {warp} {seen}; the parity is then the same again, and the "
            f"warp waits for phase {phase + 1}: nothing that ends phase {phase} comes after this wait;\n"
            f"  let warp {warp} arrive at what the others wait for, "
            "or let fewer warps wait, in a role for them"
        )
        machine.checker.barrier(Kind.OVERTAKEN, wait.agent, wait.op, barrier, reason, last)
    for load in barrier.complete():
        if machine.check:
            machine.checker.events.postpone(load.events)
            reason = (
                f"phase {phase} waits for {expected} bytes, but copies of {issued} bytes count for it: the "
                "phase ends before the last copies"
            )
            machine.checker.barrier(Kind.TRANSACTION, load.agent, load.op, barrier, reason, last)


# ---------------------------------------------------------------- bulk copies


@REFERENCE.rule(Copy, variant="bulk")
def _bulk_copy(machine: Simulator, warp: Warp, op: Copy) -> None:
    if warp.rank:
        return
    if not is_bulk_load(op):
        store_box(machine, warp, op)
        return
    assert op.barrier is not None, "the verifier asks for one"
    mask, shift = sharing(machine.kernel.cluster, op.multicast)
    ranks = mask << warp.int(shift)
    targets = []
    for block in [block for block in warp.block.cluster.blocks if ranks >> block.rank & 1]:
        barrier = _use(machine, warp, op, op.barrier, op.stage, 0, block)
        if barrier is None:
            return
        targets.append((block, barrier))
        if machine.check and not barrier.is_over(barrier.phase, warp.agent):
            reason = (
                f"its bytes are to count for phase {barrier.phase}, but the warp does not know that phase "
                f"{barrier.phase - 1} is over: no wait for it comes before, so they may count for that one"
            )
            machine.checker.barrier(Kind.PHASE, warp.agent, op, barrier, reason + _whose(warp, block))
    load_box(machine, warp, op, targets)
    # The phase comes after the issue of the copy, but not after later steps of its warp.
    warp.agent.advance()


@REFERENCE.rule(ops.BulkCommit)
def _bulk_commit(machine: Simulator, warp: Warp, op: ops.BulkCommit) -> None:
    if not warp.rank:
        warp.stores.advance()
        warp.landings.advance()


@REFERENCE.rule(ops.BulkWait)
def _bulk_wait(machine: Simulator, warp: Warp, op: ops.BulkWait) -> None:
    if not warp.rank:
        finish_stores(machine, warp, op.pending)


@REFERENCE.rule(ops.FenceAsync)
def _fence_async(machine: Simulator, warp: Warp, op: ops.FenceAsync) -> None:
    """Order accesses before the fence before asynchronous operations after it.

    A proxy fence orders the accesses of its own thread, and accesses that barriers before the fence order
    before it (PTX ISA 8.9.5, causality order).  So it may stand before the barrier, in each thread that
    writes, or after it, in the thread that issues the operation (docs/decisions/0010-proxy-fences.md).
    """
    agent = warp.agent
    agent.issues[op.memory].learn(agent.clocks)
    agent.advance()


# ---------------------------------------------------------------- asynchronous MMA


@REFERENCE.rule(ops.MmaFence)
def _mma_fence(machine: Simulator, warp: Warp, op: ops.MmaFence) -> None:
    warp.fenced.update(warp.registers)


REFERENCE.rule(ops.MmaAsync)(issue_mma)


@REFERENCE.rule(ops.MmaCommit)
def _mma_commit(machine: Simulator, warp: Warp, op: ops.MmaCommit) -> None:
    warp.mma_group += 1


@REFERENCE.rule(ops.MmaWait)
def _mma_wait(machine: Simulator, warp: Warp, op: ops.MmaWait) -> Steps:
    counts = {unit: number + 1 for unit, number, _ in awaited(warp, op.pending)}  # numbers rise in a unit
    for unit, count in counts.items():
        warp.note("issued", (warp.block.rank, unit.slot), count, unit.size, op)
    if not is_issued(warp, op.pending):
        text = "the other warps of its warpgroup to issue the same MMA"
        yield Pause(op, lambda: is_issued(warp, op.pending), lambda: text)
    wait_mma(machine, warp, op.pending)


# ---------------------------------------------------------------- barriers of roles


@REFERENCE.rule(ops.RoleBarrier)
def _role_barrier(machine: Simulator, warp: Warp, op: ops.RoleBarrier) -> Steps:
    """Wait until all threads of a numbered barrier have arrived."""
    number = warp.int(op.number)
    barrier = warp.block.named.setdefault(number, NamedBarrier())
    opened = barrier.opened
    if barrier.waiting and (other := barrier.waiting[0])[1].threads != op.threads:
        reason = f"{op.threads} threads here, {other[1].threads} there: all must name the same number"
        machine.checker.waiting(Kind.DIVERGENCE, warp.agent, op, other, reason)
    if machine.check and barrier.is_new(warp.agent):
        former, at, _ = barrier.last[0]
        reason = (
            f"barrier {number} has been that of other warps, and nothing orders this arrival after "
            "theirs: it may count as one of theirs (let each group of warps name a number of its own)"
        )
        machine.checker.waiting(Kind.DIVERGENCE, warp.agent, op, (former, at), reason)
    warps = -(-op.threads // machine.lanes)
    warp.note("meet", (warp.block.rank, number), warps, barrier.opened, op)
    barrier.waiting.append((warp.agent, op))
    if len(barrier.waiting) * machine.lanes >= op.threads:
        barrier.open()

    def state() -> str:
        came = len(barrier.waiting) * machine.lanes
        return f"barrier {number}: {came} of {op.threads} threads"

    yield Pause(op, lambda: barrier.opened > opened, state)


# ---------------------------------------------------------------- barriers of clusters
# A warp runs on between the two halves of a cluster barrier, and the barrier does not order what it does
# there.  So each warp tells its clocks when it arrives, and learns the clocks of all warps when it waits.


@REFERENCE.rule(ClusterBarrier)
def _whole(machine: Simulator, warp: Warp, op: ClusterBarrier) -> Steps:
    if not machine.kernel.splits_cluster_barriers:
        yield machine.arrive(warp, op, warp.block.cluster.barrier)
        return
    _tell(machine, warp, op)
    yield from _hear(warp, op)


@REFERENCE.rule(ClusterWait)
def _cluster_wait(machine: Simulator, warp: Warp, op: ClusterWait) -> Steps:
    if warp in warp.block.cluster.barrier.halves:
        yield from _hear(warp, op)
    elif machine.check:
        reason = (
            "waits for a barrier of the cluster at which it has not arrived: no cluster_arrive comes before"
        )
        machine.checker.waiting(Kind.PHASE, warp.agent, op, None, reason)


@REFERENCE.rule(ClusterArrive)
def _tell(machine: Simulator, warp: Warp, op: Op) -> None:
    barrier, agent = warp.block.cluster.barrier, warp.agent
    if warp in barrier.halves:
        if machine.check:
            reason = "arrives again before it has waited: a cluster_wait comes after every cluster_arrive"
            machine.checker.waiting(Kind.PHASE, agent, op, None, reason, "arrival")
        return
    barrier.halves[warp] = barrier.opened, op
    barrier.arrived[warp] = op
    told = barrier.told = barrier.told or Message.of(len(agent.order))
    known = agent.every.copy()
    known[:, Visibility.BLOCK] = known[:, Visibility.LANE]
    np.maximum(told.every, known, out=told.every)
    told.tell_order(agent)
    agent.advance()
    if len(barrier.arrived) == len(barrier.warps):
        barrier.heard, barrier.told = told, None
        barrier.arrived.clear()
        barrier.opened += 1
        machine.barriers += 1


def _hear(warp: Warp, op: Op) -> Steps:
    barrier = warp.block.cluster.barrier
    opened, _ = barrier.halves[warp]
    yield Pause(op, lambda: barrier.opened > opened)
    del barrier.halves[warp]
    assert barrier.heard is not None, "the next phase needs this warp too"
    barrier.heard.hear(warp.agent)
