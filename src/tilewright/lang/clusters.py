"""What reaches other blocks of a cluster: its barrier, multicast, another block's rank."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import TraceError
from tilewright.ir import async_ops, ops
from tilewright.ir.clusters import DECLARED, rank_of
from tilewright.lang.scalars import Index, as_tuple, unwrap
from tilewright.lang.source import here
from tilewright.lang.tensors import static
from tilewright.lang.tracer import current
from tilewright.lang.verbs import verb
from tilewright.symbolic.nodes import Int
from tilewright.symbolic.ranges import bounds


@verb
def cluster_barrier() -> None:
    """All threads of all blocks of the cluster wait for each other; see `cluster_index`.

    One comes before the first use of another block's barriers or shared memory; one comes last, unless each
    block has waited for all that the others do to it: a block that has ended has no shared memory.
    """
    _shape("cluster_barrier()")
    current().emit(async_ops.ClusterBarrier if current().cluster else ops.Barrier)


def shared_axes(multicast: int | Sequence[int]) -> tuple[int, ...]:
    """The axes of ``multicast`` along which the cluster has more than one block."""
    axes = static("multicast", multicast)
    if not axes:
        return ()
    shape = _shape(f"tma_load(multicast={multicast})")
    return tuple(sorted({axis for axis in axes if not 0 <= axis < len(shape) or shape[axis] > 1}))


def other_block(block: Index | Sequence[Index]) -> Int | None:
    """The rank of a block, given by its rank or its coordinate; None for the block that asks.

    Raises:
        TraceError: no cluster, or a coordinate that it does not have.
    """
    shape = _shape(f"arrive(block={block})")
    members = current().cluster
    own = rank_of([member.extent for member in members], [member.sym for member in members])
    if not isinstance(block, tuple | list):
        rank = unwrap(block)
        return None if rank == own else rank
    at = [unwrap(i) for i in as_tuple(block)]
    outside = any(bounds(i)[0] >= extent or bounds(i)[1] < 0 for i, extent in zip(at, shape, strict=False))
    if len(at) != len(shape) or outside:
        last = tuple(extent - 1 for extent in shape)
        raise TraceError(
            f"block ({', '.join(map(str, at))}) in a cluster of {shape} blocks; coordinates go up to {last}",
            here(),
        )
    rank = rank_of(shape, at)
    return None if rank == own else rank


def _shape(what: str) -> tuple[int, ...]:
    shape = current().cluster_shape
    if not shape:
        raise TraceError(f"{what} in a kernel without clusters; nearest legal choice: {DECLARED}", here())
    return shape
