"""Reports about blocks that cannot go on, and blocks that end too early."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.ir.copies import is_bulk_load
from tilewright.targets.reference.checker import Checker
from tilewright.targets.reference.findings import Kind
from tilewright.targets.reference.schedules import try_schedules
from tilewright.targets.reference.state import BlockState, ClusterState, Warp


def explain_standstill(checker: Checker, cluster: ClusterState, stuck: Sequence[Warp]) -> None:
    """Report that no warp can go on.

    Args:
        checker: receives the finding.
        cluster: the blocks that run together.
        stuck: the warps that have not ended.
    """
    for barrier in (*(block.barrier for block in cluster.blocks), cluster.barrier):
        if not barrier.arrived:
            continue
        # Some warps of a block or cluster have arrived at a barrier, and others never will.
        warp, op = next(iter(barrier.arrived.items()))
        absent = [other for other in barrier.warps if other not in barrier.arrived]
        waiting = [other for other in absent if other.waiting is not None]
        the_barrier = "the barrier" if barrier.place == "block" else "the cluster_barrier"
        if not waiting:
            reason = f"{_listed(absent)} ended without arriving at {the_barrier} that the others wait at"
            checker.waiting(Kind.DIVERGENCE, warp.agent, op, None, reason)
            return
        other = waiting[0]
        assert other.waiting is not None
        reason = f"{_listed(waiting)} wait elsewhere while the others wait at {the_barrier}" + _states(stuck)
        checker.waiting(Kind.DEADLOCK, warp.agent, op, (other.agent, other.waiting.op), reason)
        return
    warp = stuck[0]
    assert warp.waiting is not None
    count = f"{len(stuck)} of {len(cluster.barrier.warps)} warps"
    reason = f"deadlock: {count} wait for events that never happen{_states(stuck)}"
    other = next((w for w in stuck if w.waiting is not None and w.waiting.op is not warp.waiting.op), warp)
    assert other.waiting is not None
    earlier = None if other is warp else (other.agent, other.waiting.op)
    checker.waiting(Kind.DEADLOCK, warp.agent, warp.waiting.op, earlier, reason)


def _listed(warps: Sequence[Warp]) -> str:
    """Name the warps of each block."""
    parts = []
    for block in dict.fromkeys(warp.block for warp in warps):
        numbers = ", ".join(str(warp.index) for warp in warps if warp.block is block)
        parts.append(f"warps {numbers}{block.cluster.name(block)}")
    return " and ".join(parts)


def _states(stuck: Sequence[Warp]) -> str:
    """Describe the waits of warps, one line for all warps of a block with the same wait."""
    waiting: dict[tuple[BlockState, str], list[int]] = {}
    for warp in stuck:
        if warp.waiting is not None and warp.waiting.state is not None:
            waiting.setdefault((warp.block, warp.waiting.state()), []).append(warp.index)
    return "".join(
        f"\n    {numbered(warps, block.cluster.name(block))} for {state}"
        for (block, state), warps in waiting.items()
    )


def numbered(warps: Iterable[int], place: str = "") -> str:
    """Name the warps that wait.

    Example:
        >>> numbered([4, 5, 6, 7]), numbered([1, 3], " of block (1,)"), numbered([2])
        ('warps 4 to 7 wait', 'warps 1, 3 of block (1,) wait', 'warp 2 waits')
    """
    found = list(warps)
    if len(found) == 1:
        return f"warp {found[0]}{place} waits"
    if found == list(range(found[0], found[-1] + 1)):
        return f"warps {found[0]} to {found[-1]}{place} wait"
    return f"warps {', '.join(map(str, found))}{place} wait"


def report_unfinished(checker: Checker, cluster: ClusterState) -> None:
    """Report asynchronous operations that are pending when the blocks have reached their ends."""
    for warp, (_, op) in cluster.barrier.halves.items():
        reason = "the block ends before it has waited: a cluster_wait comes after every cluster_arrive"
        checker.waiting(Kind.UNFINISHED, warp.agent, op, None, reason, "arrival")
    for block in cluster.blocks:
        for warp in block.warps:
            for store in warp.bulk:
                closed = "bulk_wait covers" if store.group < warp.stores.time else "bulk_commit closes"
                reason = f"the block ends before the copy has read shared memory: no {closed} its group"
                checker.waiting(Kind.UNFINISHED, warp.stores, store.op, None, reason, "write")
            for flight in warp.flights:
                reason = f"the block ends before the MMA has: no {warp.missing_wait(flight)} its group"
                checker.waiting(Kind.UNFINISHED, flight.agent, flight.op, None, reason, "read")
        who = f"block {block.index}" if len(cluster.blocks) > 1 else "the block"
        for barrier in (barrier for stages in block.mbarriers.values() for barrier in stages):
            for load in barrier.loads:
                reason = f"{who} ends before the copy has: nothing waits for {barrier.state()}"
                kind = Kind.UNFINISHED
                if is_bulk_load(load.op) and load.agent.block != block.index:
                    kind = Kind.ENDED
                    reason += "; it may be gone when the copy writes its shared memory"
                checker.waiting(kind, load.agent, load.op, None, reason, "write")
        # Accesses by other blocks that no warp of this block knows of.
        for (agent, _), visit in block.visits.items():
            if not any(warp.agent.comes_after(agent.slot, visit.time) for warp in block.warps):
                what, waits = f"{visit.action} of its {visit.name}", ""
                if visit.action == "arrival":
                    what, waits = f"arrival at its {visit.name}", "it does not wait for that phase, and "
                reason = (
                    f"block {block.index} may have ended before this {what}: {waits}no cluster_barrier comes "
                    f"after the {visit.action} and before its end"
                )
                checker.waiting(Kind.ENDED, agent, visit.op, None, reason, visit.action)


def report_schedules(checker: Checker, cluster: ClusterState) -> None:
    """Replay the cluster's steps in other schedules and report a fault, if nothing has been found."""
    if cluster.skeleton is None or checker.findings.all():
        return
    fault = try_schedules(cluster.skeleton)
    if fault is None:
        return
    warp, step = fault.warp, fault.step
    assert isinstance(warp, Warp)
    order = " ".join(str(one.index) if isinstance(one, Warp) else "copies" for one in fault.order)
    schedule = fault.schedule or f"the order of steps {order}"
    kind = Kind.DEADLOCK if "never" in fault.what else Kind.PHASE
    reason = f"{fault.what}: warp {warp.index} in {schedule}"
    checker.waiting(kind, warp.agent, step.op, None, reason, step.kind)
