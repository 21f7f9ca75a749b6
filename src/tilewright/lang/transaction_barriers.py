"""Blocks of a cluster, and transaction barriers, which count arrivals and the bytes of bulk copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import TraceError
from tilewright.ir import async_ops as ops
from tilewright.ir.clusters import DECLARED, rank_of
from tilewright.ir.ops import Barrier
from tilewright.ir.types import BarrierType, Value
from tilewright.lang.scalars import Index, as_tuple, constant, static, unwrap
from tilewright.lang.source import here
from tilewright.lang.tensors import Tensor
from tilewright.lang.tracer import current, inline, verb
from tilewright.layout.limits import ARRIVALS, BARRIERS
from tilewright.symbolic.nodes import Int, bounds

# ---------------------------------------------------------------- clusters


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
    current().emit(ops.ClusterBarrier if current().cluster else Barrier)


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
        ...     # other work, until the other block arrives
        ...     tw.hopper.cluster_wait()
        ...     tw.copy(tw.hopper.peer(staged, 1 - rank), Y.tile((32,), (block,)), threads=32)
        ...     tw.hopper.cluster_barrier()
        >>> x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
        >>> exchange(x, y, target="reference").target, y[[0, 32]].tolist()
        ('reference', [32.0, 0.0])
    """
    _shape("cluster_arrive()")
    if current().cluster:
        current().emit(ops.ClusterArrive)


@verb
def cluster_wait() -> None:
    """The second half of `cluster_barrier`: wait until all threads have arrived; see `cluster_arrive`.

    Example:
        After the last wait the other block has read the tile of this one:

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
    current().emit(ops.ClusterWait if current().cluster else Barrier)


@verb
def peer(source: Tensor, block: Index | Sequence[Index]) -> Tensor:
    """The same tensor in the shared memory of another block of the cluster; copies may read and write it.

    A `cluster_barrier` must separate accesses of different blocks.  One must also come before the first
    access and one after the last: a block that has not started, or has ended, has no shared memory.

    Args:
        source: a tensor in shared memory, or a view of one.
        block: the block's rank in the cluster, or its coordinate; see `cluster_index`.

    Raises:
        TraceError: the kernel has no cluster, or the coordinate is outside of it.

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
    return Tensor(current().define(ops.Peer, name, source=source.value, block=rank))


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
        TraceError: the kernel has no cluster, or the coordinate is outside of it.
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
        raise TraceError(f"{what} in a kernel without clusters", here(), DECLARED)
    return shape


@inline.made("tw.hopper.mbarrier(stages) in a kernel makes them")
@dataclass(frozen=True, repr=False)
class Barriers:
    """Transaction barriers, one per stage; index them by the stage; made by `mbarrier`.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def look(X):
        ...     full = tw.hopper.mbarrier(2, arrivals=1)
        ...     print(full)
        >>> _ = look(np.ones(64, np.float32), target="reference")
        full: 2 barriers of 1 arrivals
    """

    value: Value

    def __repr__(self) -> str:
        return f"{self.value.name}: {self.value.type!r}"

    def __getitem__(self, stage: Index) -> BarrierStage:
        kind = self.value.type
        assert isinstance(kind, BarrierType)
        at = unwrap(stage)
        if isinstance(at, int) and not 0 <= at < kind.stages:
            raise TraceError(f"stage {at} of {kind.stages} barriers {self.value}", here())
        return BarrierStage(self.value, at)


@inline.made("an entry of tw.hopper.mbarrier(stages) is one")
@dataclass(frozen=True, repr=False)
class BarrierStage:
    """One of several transaction barriers; see `Barriers`.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def look(X):
        ...     full = tw.hopper.mbarrier(2, arrivals=1)
        ...     print(full[1])
        >>> _ = look(np.ones(64, np.float32), target="reference")
        full[1]
    """

    value: Value
    stage: Int

    def __repr__(self) -> str:
        return f"{self.value.name}[{self.stage}]"


@verb(stages=BARRIERS, arrivals=ARRIVALS)
def mbarrier(stages: int, arrivals: int) -> Barriers:
    """``stages`` transaction barriers, each completing a phase after ``arrivals`` arrivals.

    They are initialised immediately.  Other threads may use them after the next `barrier`, and other blocks
    after the next `cluster_barrier`.

    Args:
        stages: number of barriers.
        arrivals: number of arrivals that complete a phase, together with all bytes that they announced.

    Source: PTX ISA, "mbarrier".

    Example:
        The bytes of a bulk copy complete the phase that expects them:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", Y="M N")
        ... def through_shared(X, Y):
        ...     held = tw.shared((8, 64), X.dtype, swizzle=128)
        ...     full = tw.hopper.mbarrier(1, arrivals=1)
        ...     tw.barrier()
        ...     tw.hopper.arrive(full[0], expect_bytes=8 * 128)
        ...     tw.hopper.tma_load(X.tile((8, 64), (0, 0)), held, full[0])
        ...     tw.hopper.wait(full[0], 0)
        ...     tw.copy(held, Y.tile((8, 64), (0, 0)), threads=32)
        >>> x, y = np.ones((2, 8), np.float16), np.zeros((2, 8), np.float16)
        >>> through_shared(x, y, target="reference").target, y.sum(1).tolist()
        ('reference', [8.0, 8.0])
    """
    count, needed = constant("stages", stages), constant("arrivals", arrivals)
    return Barriers(current().define(ops.MBarrier, "mbarrier", stages=count, arrivals=needed))


@verb
def wait(barrier: BarrierStage, parity: Index) -> None:
    """Wait until the phase of this parity has completed; parity 1 of a fresh barrier passes at once.

    The waiting threads see everything before the arrivals, unless these were relaxed.

    Args:
        barrier: one stage of `mbarrier`.
        parity: 0 for phases 0, 2, 4 ..., and 1 for phases 1, 3, 5 ....

    Source: PTX ISA, "mbarrier.try_wait".

    Example:
        One warp fills a buffer that another one empties, tile after tile:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="N")
        ... def hand_over(X, Y):
        ...     held = tw.shared((32,), X.dtype)
        ...     full, empty = tw.hopper.mbarrier(1, arrivals=1), tw.hopper.mbarrier(1, arrivals=1)
        ...     tw.barrier()
        ...     with tw.role(warps=1):
        ...         for i in tw.range(tw.ceil_div(X.shape[0], 32)):
        ...             tw.hopper.wait(empty[0], 1 - i % 2)
        ...             tw.copy(X.tile((32,), (i,)), held, threads=32)
        ...             tw.hopper.arrive(full[0], each="warp")
        ...     with tw.role(warps=1):
        ...         for i in tw.range(tw.ceil_div(X.shape[0], 32)):
        ...             tw.hopper.wait(full[0], i % 2)
        ...             tw.copy(held, Y.tile((32,), (i,)), threads=32)
        ...             tw.hopper.arrive(empty[0], each="warp")
        >>> x, y = np.arange(100), np.zeros(100, int)
        >>> hand_over(x, y, target="reference").target, y[[0, 50, 99]].tolist()
        ('reference', [0, 50, 99])
    """
    current().emit(ops.Wait, barrier=barrier.value, stage=barrier.stage, parity=unwrap(parity))


@verb
def arrive(
    barrier: BarrierStage,
    *,
    expect_bytes: int = 0,
    each: str = "role",
    block: Index | Sequence[Index] | None = None,
    relaxed: bool = False,
) -> None:
    """Arrive at a transaction barrier.

    Args:
        barrier: one stage of `mbarrier`.
        expect_bytes: bytes of bulk copies that the current phase must wait for.
        each: ``"role"``: one arrival by the role's first thread; ``"warp"``: one by each warp, after its
            lanes came together.
        block: the block with the barrier: its coordinate or rank in the cluster; default: this block.
        relaxed: for another block's barrier: the waiting thread may let bulk copies overwrite shared memory,
            but sees no writes before the arrival.  This is enough to release a stage if bulk copies or
            asynchronous MMAs have read it, or if threads have read it and then called `fence_async`.  An
            arrival that is not relaxed orders memory over the whole cluster if that is needed, and then waits
            for all accesses of a warp.  Refused if threads access `peer` memory.

    Example:
        Each of two warps signals that its half is complete:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="N")
        ... def hand_over(X, Y):
        ...     held = tw.shared((64,), X.dtype)
        ...     full = tw.hopper.mbarrier(1, arrivals=2)
        ...     tw.barrier()
        ...     with tw.role(warps=2):
        ...         tw.copy(X.tile((64,), (0,)), held, threads=64)
        ...         tw.hopper.arrive(full[0], each="warp")
        ...     with tw.role(warps=1):
        ...         tw.hopper.wait(full[0], 0)
        ...         tw.copy(held, Y.tile((64,), (0,)), threads=32)
        >>> x, y = np.arange(64), np.zeros(64, int)
        >>> hand_over(x, y, target="reference").target, y[[0, 40, 63]].tolist()
        ('reference', [0, 40, 63])
    """
    if each not in ("role", "warp"):
        raise TraceError(f"arrive(each={each!r}); choose 'role' or 'warp'", here())
    size = constant("expect_bytes", expect_bytes)
    rank = None if block is None else other_block(block)
    current().emit(
        ops.Arrive,
        barrier=barrier.value,
        stage=barrier.stage,
        expect_bytes=size,
        each=each,
        block=rank,
        relaxed=relaxed and rank is not None,
    )
