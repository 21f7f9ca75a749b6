"""The blocks of a cluster: their ranks, with the first axis fastest, and the data that they share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING

from tilewright.errors import Violation
from tilewright.ir.async_ops import Arrive, ClusterArrive, ClusterBarrier, ClusterWait, MmaAsync, Peer
from tilewright.ir.copies import Copy, is_bulk
from tilewright.ir.op import Op
from tilewright.ir.types import Memory
from tilewright.symbolic.expr import add, mul
from tilewright.symbolic.nodes import Int, bounds

if TYPE_CHECKING:
    from tilewright.ir.kernel import ClusterAxis, Kernel

DECLARED = "tw.hopper.cluster_index((2, 1)) at the kernel's start"


def cluster_blocks(cluster: Sequence[ClusterAxis]) -> int:
    """Return the number of blocks in a cluster; 1 without clusters."""
    return math.prod(member.extent for member in cluster)


def rank_of(extents: Sequence[int], at: Sequence[Int]) -> Int:
    """Return the rank of the block at a coordinate of the cluster, the first axis fastest.

    Example:
        >>> rank_of((2, 4), (1, 3))
        7
    """
    rank: Int = 0
    for dim, coordinate in enumerate(at):
        rank = add(rank, mul(coordinate, math.prod(extents[:dim])))
    return rank


def sharing(cluster: Sequence[ClusterAxis], axes: Sequence[int]) -> tuple[int, Int]:
    """Return the blocks that differ from this one only along ``axes``: a mask of ranks, and its shift.

    Bit ``r`` of ``mask << shift`` stands for the block of rank ``r``.
    """
    extents = [member.extent for member in cluster]
    spans = [range(member.extent) if member.axis in axes else range(1) for member in cluster]
    ranks = [rank_of(extents, at) for at in product(*spans)]
    mask = sum(1 << rank for rank in ranks if isinstance(rank, int))
    own: list[Int] = [0 if member.axis in axes else member.sym for member in cluster]
    return mask, rank_of(extents, own)


def needs_cluster_scope(kernel: Kernel) -> bool:
    """Return whether barriers must order accesses to memory that threads of other blocks also access.

    There are two cases.  Threads write global memory, which may belong to any array, and arrive at another
    block's barrier without ``relaxed``.  Or threads access shared memory that another block's multicast or
    threads access.  Bulk copies and asynchronous MMA complete in other ways.  A barrier without arrivals and
    bytes from other blocks orders only the block's own threads.  If all barriers are of this kind, cluster
    barriers order the work of other blocks.  Bytes and relaxed arrivals do not order writes of threads to
    global memory.
    """
    ops = list(kernel.walk())
    if not kernel.cluster or not any(_reaches_barriers(op) for op in ops):
        return False
    sent = {op.target.buffer for op in ops if is_bulk(op) and op.multicast}
    sent |= {op.source.buffer for op in ops if isinstance(op, Peer)}
    own = [op for op in ops if not (is_bulk(op) or isinstance(op, MmaAsync))]
    if any(value.buffer in sent for op in own for value in (*op.read, *op.written)):
        return True
    return any(isinstance(op, Arrive) and op.block is not None and not op.relaxed for op in ops) and any(
        value.is_tensor and value.tensor.memory is Memory.GLOBAL for op in own for value in op.written
    )


def only_parts(kernel: Kernel, barrier: Op) -> bool:
    """Return whether a cluster barrier only keeps blocks from ending too early, and orders no accesses.

    This holds for the kernel's last operation, because no access follows it.  Threads must only have read
    other blocks' memory: reads are complete when a thread arrives here.  Writes to other blocks, arrivals at
    their barriers, and multicast copies may still be pending.
    """
    ops = list(kernel.walk())
    written = (value for op in ops for value in op.written)
    if any(value.is_tensor and value.tensor.block is not None for value in written):
        return False
    return bool(kernel.body.ops) and kernel.body.ops[-1] is barrier and not any(map(_reaches_barriers, ops))


def _reaches_barriers(op: Op) -> bool:
    """Return whether an operation arrives at, or delivers bytes to, transaction barriers of other blocks."""
    return op.block is not None if isinstance(op, Arrive) else is_bulk(op) and bool(op.multicast)


def violations(kernel: Kernel) -> Iterator[Violation]:
    """Yield violations of a kernel's cluster, and of operations that reach its other blocks."""
    for member in kernel.cluster:
        if member.axis >= len(kernel.grid):
            axes = member.axis + 1
            yield Violation(
                "cluster",
                f"the cluster has extent {member.extent} along axis {member.axis} ({member.sym.name}); "
                f"the grid has {len(kernel.grid)} axes",
                f"tw.block_index of {axes} extents",
            )
    ops = [*kernel.walk()]
    reaches_memory = any(isinstance(op, Peer) for op in ops)
    for op in ops:
        yield from _operation(op, kernel.cluster)
        if reaches_memory and isinstance(op, Arrive) and op.relaxed:
            rule = "the kernel's threads access other blocks' memory"
            text = f"a relaxed barrier does not order accesses, and {rule}"
            yield op.violation("arrive", text, "relaxed=False")


def _operation(op: Op, cluster: Sequence[ClusterAxis]) -> Iterator[Violation]:
    match op:
        case ClusterBarrier() | ClusterArrive() | ClusterWait():
            reaches = op.name
        case Copy(multicast=axes) if axes:
            reaches = f"tma_load(multicast={axes})"
        case Arrive(block=rank) if rank is not None:
            reaches = f"arrive(block={rank})"
        case Peer(block=rank):
            reaches = f"peer(block={rank})"
        case _:
            return
    if not cluster:
        yield op.violation("cluster", f"{reaches} in a kernel without clusters", DECLARED)
    elif is_bulk(op):
        own = {member.axis for member in cluster}
        for axis in op.multicast:
            if axis not in own:
                nearest = min(own, key=lambda known: abs(known - axis))
                where = " and ".join(f"{member.extent} along axis {member.axis}" for member in cluster)
                text = f"multicast along axis {axis}; the cluster has blocks {where}"
                yield op.violation("multicast", text, f"multicast={nearest}")
    elif isinstance(op, Arrive | Peer) and op.block is not None:
        low, high = bounds(op.block)
        last = cluster_blocks(cluster) - 1
        if low > last or high < 0:
            nearest = last if low > last else 0
            yield op.violation(
                "cluster", f"rank {op.block} in a cluster of {last + 1} blocks", f"block={nearest}"
            )
