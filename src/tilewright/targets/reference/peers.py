"""Shared memory of other blocks of a cluster: whose it is, and whether that block is there."""

from __future__ import annotations

from tilewright.ir.ops import Op
from tilewright.ir.types import Value
from tilewright.targets.reference.checker import Checker
from tilewright.targets.reference.findings import Kind
from tilewright.targets.reference.memory import Buffer
from tilewright.targets.reference.state import BlockState, Visit, Warp


def owner(warp: Warp, value: Value) -> BlockState | None:
    """The block whose memory a tensor lies in; None if the cluster has none of that rank."""
    if value.tensor.block is None:
        return warp.block
    rank, blocks = warp.int(value.tensor.block), warp.block.cluster.blocks
    return blocks[rank] if 0 <= rank < len(blocks) else None


def buffer(warp: Warp, value: Value) -> Buffer | None:
    """The memory of a tensor; None if the cluster has no block of that rank."""
    block = owner(warp, value)
    return None if block is None else block.buffers[value.buffer]


def reach(checker: Checker, warp: Warp, op: Op, value: Value, action: str, check: bool) -> Buffer | None:
    """The memory of a tensor that a warp accesses; another block must have begun, and must not have ended.

    Args:
        checker: where findings go.
        warp: who accesses.
        op: the operation.
        value: the tensor.
        action: ``"read"`` or ``"write"``.
        check: whether hazards are looked for.
    """
    block = owner(warp, value)
    if block is None:
        assert value.tensor.block is not None, "a block has its own memory"
        rank, last = warp.int(value.tensor.block), len(warp.block.cluster.blocks) - 1
        reason = f"rank {rank} in a cluster of the ranks 0 to {last}"
        checker.waiting(Kind.OUT_OF_BOUNDS, warp.agent, op, None, reason, action)
        return None
    found = block.buffers[value.buffer]
    if block is not warp.block and check:
        if not any(warp.agent.comes_after(other.agent.slot, 1) for other in block.warps):
            reason = (
                f"block {block.index} may not have begun before this {action} of its {value.buffer}: no "
                "cluster_barrier comes before it"
            )
            checker.waiting(Kind.BEGUN, warp.agent, op, None, reason, action)
        block.visits[warp.agent, found] = Visit(op, warp.agent.time, action, str(value.buffer))
    return found
