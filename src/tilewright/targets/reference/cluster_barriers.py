"""The barrier of a cluster, as a whole and in two halves.

Between its two halves a warp goes on: what it does there, nobody learns of by this barrier.  So each warp
tells what it knows when it arrives, and hears what all have told when it waits.
"""

from __future__ import annotations

import numpy as np

from tilewright.ir.async_ops import ClusterArrive, ClusterBarrier, ClusterWait
from tilewright.ir.op import Op
from tilewright.targets.reference.agents import Message, Scope
from tilewright.targets.reference.findings import Kind
from tilewright.targets.reference.machine import Machine
from tilewright.targets.reference.meaning import REFERENCE
from tilewright.targets.reference.state import Steps, Wait, Warp


@REFERENCE.rule(ClusterBarrier)
def _whole(machine: Machine, warp: Warp, op: ClusterBarrier) -> Steps:
    if not machine.kernel.splits_cluster_barriers:
        yield machine.arrive(warp, op, warp.block.cluster.barrier)
        return
    _tell(machine, warp, op)
    yield from _hear(machine, warp, op)


@REFERENCE.rule(ClusterArrive)
def _arrive(machine: Machine, warp: Warp, op: ClusterArrive) -> None:
    _tell(machine, warp, op)


@REFERENCE.rule(ClusterWait)
def _wait(machine: Machine, warp: Warp, op: ClusterWait) -> Steps:
    if warp in warp.block.cluster.barrier.halves:
        yield from _hear(machine, warp, op)
    elif machine.check:
        reason = (
            "waits for a barrier of the cluster at which it has not arrived: no cluster_arrive comes before"
        )
        machine.checker.waiting(Kind.PHASE, warp.agent, op, None, reason)


def _tell(machine: Machine, warp: Warp, op: Op) -> None:
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
    known[:, Scope.BLOCK] = known[:, Scope.LANE]
    np.maximum(told.every, known, out=told.every)
    told.tell_order(agent)
    agent.advance()
    if len(barrier.arrived) == len(barrier.warps):
        barrier.heard, barrier.told = told, None
        barrier.arrived.clear()
        barrier.opened += 1
        machine.barriers += 1


def _hear(machine: Machine, warp: Warp, op: Op) -> Steps:
    barrier = warp.block.cluster.barrier
    opened, _ = barrier.halves[warp]
    yield Wait(op, lambda: barrier.opened > opened)
    del barrier.halves[warp]
    assert barrier.heard is not None, "the next phase needs this warp too"
    barrier.heard.hear(warp.agent)
