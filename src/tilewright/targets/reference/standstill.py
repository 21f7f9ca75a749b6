"""Blocks that cannot go on, and blocks that end too early: why, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.targets.reference.checker import Checker
from tilewright.targets.reference.findings import Kind
from tilewright.targets.reference.state import BlockState, Warp


def explain_standstill(checker: Checker, block: BlockState, stuck: Sequence[Warp]) -> None:
    """Report that no warp can go on.

    Args:
        checker: takes the finding.
        block: the block.
        stuck: the warps that have not come to their end.
    """
    at_barrier = [warp for warp in stuck if warp in block.arrived]
    absent = [warp for warp in block.warps if warp not in block.arrived]
    states = _states(stuck)
    if at_barrier and absent:
        warp, other = at_barrier[0], absent[0]
        assert warp.waiting is not None
        numbers = ", ".join(str(w.index) for w in absent)
        if other.waiting is None:
            reason = f"warps {numbers} ended without arriving at the barrier that the others wait at"
            checker.waiting(Kind.DIVERGENCE, warp.agent, warp.waiting.op, None, reason)
        else:
            reason = f"warps {numbers} wait elsewhere while the others wait at the barrier" + states
            pair = (other.agent, other.waiting.op)
            checker.waiting(Kind.DEADLOCK, warp.agent, warp.waiting.op, pair, reason)
        return
    warp = stuck[0]
    assert warp.waiting is not None
    count = f"{len(stuck)} of {len(block.warps)} warps"
    reason = f"no agent can go on: {count} wait for what never happens{states}"
    other = next((w for w in stuck if w.waiting is not None and w.waiting.op is not warp.waiting.op), warp)
    assert other.waiting is not None
    earlier = None if other is warp else (other.agent, other.waiting.op)
    checker.waiting(Kind.DEADLOCK, warp.agent, warp.waiting.op, earlier, reason)


def _states(stuck: Sequence[Warp]) -> str:
    """One line for everything that several warps wait for."""
    waiting: dict[str, list[int]] = {}
    for warp in stuck:
        if warp.waiting is not None and warp.waiting.state is not None:
            waiting.setdefault(warp.waiting.state(), []).append(warp.index)
    return "".join(f"\n    {numbered(warps)} for {state}" for state, warps in waiting.items())


def numbered(warps: Iterable[int]) -> str:
    """Who waits, in words.

    Example:
        >>> numbered([4, 5, 6, 7]), numbered([1, 3]), numbered([2])
        ('warps 4 to 7 wait', 'warps 1, 3 wait', 'warp 2 waits')
    """
    found = list(warps)
    if len(found) == 1:
        return f"warp {found[0]} waits"
    if found == list(range(found[0], found[-1] + 1)):
        return f"warps {found[0]} to {found[-1]} wait"
    return f"warps {', '.join(map(str, found))} wait"


def report_unfinished(checker: Checker, block: BlockState) -> None:
    """Report what still runs in the background when the block has come to its end."""
    for warp in block.warps:
        for store in warp.bulk:
            closed = "bulk_wait" if store.group < warp.stores.time else "bulk_commit"
            reason = (
                f"the block ends before the copy has read shared memory: no {closed} "
                f"{'covers' if closed == 'bulk_wait' else 'closes'} its group"
            )
            checker.waiting(Kind.UNFINISHED, warp.stores, store.op, None, reason, "write")
        for flight in warp.flights:
            closed = "mma_wait covers" if flight.group < warp.mma_group else "mma_commit closes"
            reason = f"the block ends before the MMA has: no {closed} its group"
            checker.waiting(Kind.UNFINISHED, flight.agent, flight.op, None, reason, "read")
    for stages in block.mbarriers.values():
        for barrier in stages:
            for load in barrier.loads:
                reason = f"the block ends before the copy has: nothing waits for {barrier.state()}"
                checker.waiting(Kind.UNFINISHED, load.agent, load.op, None, reason, "write")
