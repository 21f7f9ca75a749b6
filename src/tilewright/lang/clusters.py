"""Operations that reach other blocks of a cluster: its barrier, multicast, peer shared memory, ranks."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import TraceError
from tilewright.ir import async_ops, ops
from tilewright.ir.clusters import DECLARED, rank_of
from tilewright.lang.constants import static
from tilewright.lang.scalars import Index, as_tuple, unwrap
from tilewright.lang.source import here
from tilewright.lang.tensors import Tensor
from tilewright.lang.tracer import current
from tilewright.lang.verbs import verb
from tilewright.symbolic.nodes import Int
from tilewright.symbolic.ranges import bounds


@verb
def cluster_barrier() -> None:
    """All threads of all blocks of the cluster wait for each other; see `cluster_index`.

    Call it before the first use of another block's barriers or shared memory.  Call it at the end, too,
    unless each block has waited for everything that other blocks do to it: a block that has ended has no
    shared memory.

    Example:
        Each block writes into the other one's shared memory:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="N")
        ... def exchange(X, Y):
        ...     block = tw.block_index(2)
        ...     rank = tw.hopper.cluster_index(2)
        ...     held = tw.shared((32,), X.dtype)
        ...     tw.hopper.cluster_barrier()  # the other block has begun
        ...     x = tw.load(X.tile((32,), (block,)).partition((32,)))
        ...     tw.copy(x, tw.hopper.peer(held, 1 - rank))
        ...     tw.hopper.cluster_barrier()  # and has written
        ...     tw.copy(held, Y.tile((32,), (block,)), threads=32)
        >>> x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
        >>> exchange(x, y, target="reference").target, y[[0, 32]].tolist()
        ('reference', [32.0, 0.0])
    """
    _shape("cluster_barrier()")
    current().emit(async_ops.ClusterBarrier if current().cluster else ops.Barrier)


@verb
def cluster_arrive() -> None:
    """The first half of `cluster_barrier`: arrive without waiting.

    Other blocks see everything before it after their `cluster_wait`.  They must not depend on anything
    between the two halves.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="N")
        ... def exchange(X, Y):
        ...     block = tw.block_index(2)
        ...     rank = tw.hopper.cluster_index(2)
        ...     staged = tw.shared((32,), X.dtype)
        ...     tw.copy(X.tile((32,), (block,)), staged, threads=32)
        ...     tw.hopper.cluster_arrive()
        ...     # work of one's own, while the other block comes
        ...     tw.hopper.cluster_wait()
        ...     tw.copy(tw.hopper.peer(staged, 1 - rank), Y.tile((32,), (block,)), threads=32)
        ...     tw.hopper.cluster_barrier()
        >>> x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
        >>> exchange(x, y, target="reference").target, y[[0, 32]].tolist()
        ('reference', [32.0, 0.0])
    """
    _shape("cluster_arrive()")
    if current().cluster:
        current().emit(async_ops.ClusterArrive)


@verb
def cluster_wait() -> None:
    """The second half of `cluster_barrier`: wait until all threads have arrived; see `cluster_arrive`.

    Example:
        The last wait: the other block has read what this one holds:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="N")
        ... def exchange(X, Y):
        ...     block = tw.block_index(2)
        ...     rank = tw.hopper.cluster_index(2)
        ...     held = tw.shared((32,), X.dtype)
        ...     tw.copy(X.tile((32,), (block,)), held, threads=32)
        ...     tw.hopper.cluster_barrier()
        ...     x = tw.load(tw.hopper.peer(held, 1 - rank).partition((32,)))
        ...     tw.hopper.cluster_arrive()
        ...     tw.copy(x * 10, Y.tile((32,), (block,)))
        ...     tw.hopper.cluster_wait()
        >>> x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
        >>> exchange(x, y, target="reference").target, y[[0, 32]].tolist()
        ('reference', [320.0, 0.0])
    """
    _shape("cluster_wait()")
    current().emit(async_ops.ClusterWait if current().cluster else ops.Barrier)


@verb
def peer(source: Tensor, block: Index | Sequence[Index]) -> Tensor:
    """The same tensor in the shared memory of another block of the cluster; copies may read and write it.

    A `cluster_barrier` must separate accesses of different blocks.  One must also come before the first
    access and one after the last: a block that has not started, or has ended, has no shared memory.

    Args:
        source: a tensor in shared memory, or a view of one.
        block: the block's rank in the cluster, or its coordinate; see `cluster_index`.

    Raises:
        TraceError: no cluster, or a coordinate that it does not have.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="N")
        ... def exchange(X, Y):
        ...     block = tw.block_index(2)
        ...     rank = tw.hopper.cluster_index(2)
        ...     staged = tw.shared((32,), X.dtype)
        ...     tw.copy(X.tile((32,), (block,)), staged, threads=32)
        ...     tw.hopper.cluster_barrier()
        ...     tw.copy(tw.hopper.peer(staged, 1 - rank), Y.tile((32,), (block,)), threads=32)
        ...     tw.hopper.cluster_barrier()
        >>> x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
        >>> exchange(x, y, target="reference").target, y[[0, 32]].tolist()
        ('reference', [32.0, 0.0])
    """
    rank = other_block(block, f"peer({source.value.name}, block={block})")
    if rank is None:
        return source
    name = f"{source.value.buffer.name}_peer"
    return Tensor(current().define(async_ops.Peer, name, source=source.value, block=rank))


def shared_axes(multicast: int | Sequence[int]) -> tuple[int, ...]:
    """Return the axes of ``multicast`` along which the cluster has more than one block."""
    axes = static("multicast", multicast)
    if not axes:
        return ()
    shape = _shape(f"tma_load(multicast={multicast})")
    return tuple(sorted({axis for axis in axes if not 0 <= axis < len(shape) or shape[axis] > 1}))


def other_block(block: Index | Sequence[Index], what: str = "") -> Int | None:
    """Return the rank of a block, given by its rank or its coordinate; None for the calling block.

    Raises:
        TraceError: no cluster, or a coordinate that it does not have.
    """
    shape = _shape(what or f"arrive(block={block})")
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
