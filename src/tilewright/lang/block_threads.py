"""Number of threads of a block: the maximum over its operations."""

from __future__ import annotations

from tilewright.ir.async_ops import Role
from tilewright.ir.op import Block
from tilewright.ir.ops import Copy, Mma
from tilewright.ir.types import FragmentType, TensorType, Value

UNSAID_WARPS = 4
"""Warps of a block if no operation determines the number of threads."""


def threads_of(body: Block, lanes: int) -> int:
    """Return the largest number of threads of any operation, rounded up to whole warps; 1 if none has any.

    Args:
        body: the operations of a block.
        lanes: threads of a warp.
    """
    threads = 1
    for op in body.walk():
        if isinstance(op, Mma):
            threads = max(threads, op.mma.threads)
        elif isinstance(op, Role):
            threads = max(threads, (op.first + op.warps) * lanes)
        elif isinstance(op, Copy) and op.distribution is not None:
            threads = max(threads, op.distribution.size_threads)
        for value in (*op.operands, *op.results):
            kind = value.type if isinstance(value, Value) else None
            spread = kind.distribution if isinstance(kind, TensorType | FragmentType) else None
            threads = max(threads, spread.size_threads if spread is not None else 1)
    return threads if threads < lanes else -(-threads // lanes) * lanes
