"""What runs in the background: bulk tensor copies and their maps, the grid before and the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.errors import TraceError
from tilewright.ir import async_ops as ops
from tilewright.ir.copies import Copy
from tilewright.ir.map_ops import AcquireMap, ByMap
from tilewright.lang.clusters import shared_axes
from tilewright.lang.constants import constant
from tilewright.lang.control import when
from tilewright.lang.scalars import Condition, Index, unwrap
from tilewright.lang.source import here
from tilewright.lang.tensors import Tensor
from tilewright.lang.tracer import current
from tilewright.lang.transaction_barriers import BarrierStage
from tilewright.lang.verbs import verb


@verb
def tma_load(
    source: Tensor,
    target: Tensor,
    barrier: BarrierStage,
    *,
    multicast: int | Sequence[int] = (),
    readers: Index = 0,
) -> None:
    """``target = source``, a box of a tensor parameter to shared memory, by TMA in the background.

    Elements outside of the tensor become 0.  The box's bytes count for the barrier's present phase.

    Args:
        source: a tile of a tensor parameter, or another view of one (a slice, permuted, padded, of an im2col
            view the part under one tap) that is a box of it, cut at its edges alone: what else it is that TMA
            cannot walk is said before anything is compiled.
        target: a tile in shared memory, of the same shape, in rows of 128 bytes under ``swizzle=128``; or one
            row, of up to 256 elements, that begins at a multiple of 128 bytes.
        barrier: one stage of `mbarrier`.
        multicast: axes of the cluster; all blocks that differ from this one only along them get the box too,
            at the same place of their shared memory, and its bytes count at their own barriers.
        readers: how many blocks, or clusters that multicast, load these elements in the launch.  What one
            alone loads leaves the second-level cache first, for the sake of what others will read.  Default:
            it is not said.  Results do not depend on it.

    Source: PTX ISA, "cp.async.bulk.tensor"; "createpolicy".

    Example:
        What lies outside of ``X`` is 0 in shared memory; only the rows of ``Y`` that there are, are written:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", Y="R N")
        ... def load(X, Y):
        ...     held = tw.shared((4, 64), X.dtype, swizzle=128)
        ...     full = tw.hopper.mbarrier(1, arrivals=1)
        ...     tw.barrier()
        ...     tw.hopper.arrive(full[0], expect_bytes=4 * 128)
        ...     tw.hopper.tma_load(X.tile((4, 64), (0, 0)), held, full[0])
        ...     tw.hopper.wait(full[0], 0)
        ...     tw.copy(held, Y.tile((4, 64), (0, 0)), threads=32)
        >>> x, y = np.ones((2, 8), np.float16), np.full((3, 8), 9, np.float16)
        >>> load(x, y, target="reference").target, y.sum(1).tolist()
        ('reference', [8.0, 8.0, 0.0])
    """
    current().emit(
        Copy,
        source=source.value,
        target=target.value,
        engine="bulk",
        completion="barrier",
        barrier=barrier.value,
        stage=barrier.stage,
        multicast=shared_axes(multicast),
        readers=unwrap(readers),
    )


@verb
def tma_store(source: Tensor, target: Tensor, *, reduction: str | None = None) -> None:
    """``target = source``, a tile in shared memory to a box of a tensor, by TMA in the background.

    Args:
        source: a tile in shared memory, in rows of 128 bytes under ``swizzle=128``.
        target: as the source of `tma_load`; it begins nowhere before the tensor, whose rows are multiples of
            16 bytes: hardware stores units of 16 bytes, and would overwrite what follows other rows.
        reduction: ``"add"`` (f32, f16, bf16, i32), ``"min"``, ``"max"``, ``"and"``, ``"or"`` (i32): elements
            are combined with those that are there, as by `copy`.

    Example:
        Each block adds 1 to every element:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N")
        ... def count(X, *, times):
        ...     tw.block_index(times)
        ...     ones = tw.shared((8, 32), X.dtype, swizzle=128)
        ...     tw.copy(tw.fragment(tw.blocked((8, 32), (1, 32)), X.dtype, fill=1), ones)
        ...     tw.hopper.fence_async()
        ...     tw.barrier()
        ...     tw.hopper.tma_store(ones, X.tile((8, 32), (0, 0)), reduction="add")
        ...     tw.hopper.bulk_commit()
        ...     tw.hopper.bulk_wait()
        >>> x = np.zeros((2, 4), np.float32)
        >>> count(x, times=3, target="reference").target, x.tolist()
        ('reference', [[3.0, 3.0, 3.0, 3.0], [3.0, 3.0, 3.0, 3.0]])
    """
    ends = {"source": source.value, "target": target.value}
    current().emit(Copy, **ends, engine="bulk", completion="group", reduction=reduction)


@verb
def bulk_commit() -> None:
    """Close the group of `tma_store` copies that the role's first thread issued.

    Source: PTX ISA, "cp.async.bulk.commit_group".

    Example:
        Two stores are one group, for which one wait is enough:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", Y="M N")
        ... def twice(X, Y):
        ...     held = tw.shared((8, 32), X.dtype, swizzle=128)
        ...     tw.copy(tw.fragment(tw.blocked((8, 32), (1, 32)), X.dtype, fill=1), held)
        ...     tw.hopper.fence_async()
        ...     tw.barrier()
        ...     tw.hopper.tma_store(held, X.tile((8, 32), (0, 0)))
        ...     tw.hopper.tma_store(held, Y.tile((8, 32), (0, 0)))
        ...     tw.hopper.bulk_commit()
        ...     tw.hopper.bulk_wait()
        >>> x, y = np.zeros((2, 4), np.float32), np.zeros((2, 4), np.float32)
        >>> twice(x, y, target="reference").target, float(x.sum()), float(y.sum())
        ('reference', 8.0, 8.0)
    """
    current().emit(ops.BulkCommit)


@verb
def bulk_wait(pending: int = 0) -> None:
    """The role's first thread waits until at most ``pending`` of its groups still read shared memory.

    After it, that thread may let others write what the finished groups have read.

    Args:
        pending: of the groups closed last, how many may go on.

    Source: PTX ISA, "cp.async.bulk.wait_group".

    Example:
        One buffer serves tile after tile; it is filled again when the store before has read it:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", Y="M N")
        ... def through_shared(X, Y):
        ...     held = tw.shared((8, 32), X.dtype, swizzle=128)
        ...     for m in tw.range(tw.ceil_div(X.shape[0], 8)):
        ...         tw.hopper.bulk_wait(0)
        ...         tw.barrier()
        ...         tw.copy(X.tile((8, 32), (m, 0)), held, threads=32)
        ...         tw.hopper.fence_async()
        ...         tw.barrier()
        ...         tw.hopper.tma_store(held, Y.tile((8, 32), (m, 0)))
        ...         tw.hopper.bulk_commit()
        ...     tw.hopper.bulk_wait(0)
        >>> x, y = np.arange(80, dtype=np.float32).reshape(20, 4), np.zeros((20, 4), np.float32)
        >>> through_shared(x, y, target="reference").target, y[[0, 8, 19], 0].tolist()
        ('reference', [0.0, 32.0, 76.0])
    """
    current().emit(ops.BulkWait, pending=constant("pending", pending))


@verb
def fence_async(memory: str = "shared") -> None:
    """Make earlier ordinary accesses to a memory visible to bulk copies and asynchronous MMA.

    They reach memory by another path than threads do.  What threads wrote is seen after a fence: of each
    thread that wrote, before the barrier that the thread which issues the copy waits at, or of that thread,
    after the barrier.  What a copy brought needs none, nor does a copy over what threads have only read
    before a barrier.

    Args:
        memory: ``"shared"``, or ``"global"``: for `tma_load` of what the same kernel has written.

    Raises:
        TraceError: another memory.

    Source: PTX ISA, "membar, fence", "Async proxy", and "Causality order" of the memory consistency model.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", Y="M N")
        ... def through_shared(X, Y):
        ...     held = tw.shared((8, 64), X.dtype, swizzle=128)
        ...     with tw.role(warps=1):
        ...         tw.copy(X.tile((8, 64), (0, 0)), held, threads=(8, 4))
        ...         tw.hopper.fence_async()
        ...         tw.warp_barrier()
        ...         tw.hopper.tma_store(held, Y.tile((8, 64), (0, 0)))
        ...         tw.hopper.bulk_commit()
        ...         tw.hopper.bulk_wait()
        >>> x = np.ones((8, 64), np.float16)
        >>> y = np.zeros_like(x)
        >>> _ = through_shared(x, y, target="reference")
        >>> bool((x == y).all())
        True
    """
    if memory not in ops.FENCED:
        raise TraceError(f"fence_async({memory!r}); choose 'shared' or 'global'", here())
    current().emit(ops.FenceAsync, memory=memory)


@verb
def by_map(source: Tensor, table: Tensor, row: Index, column: int) -> Tensor:
    """The same tensor, for bulk copies that read its tensor map from memory.

    A launch passes tensor maps of the arrays that it is called with.  Of arrays that are parts of one buffer,
    whose places, extents and strides the kernel reads from memory, whoever fills that memory writes the maps
    too: 16 integers each, that begin at a multiple of 8.  On a GPU they are what its driver encodes.  For
    ``reference`` they are where the array begins in its buffer, its extents, its strides and the extents of
    the boxes, in elements, and zeros; it finds a map that is of something else.

    Args:
        source: a view of a buffer in global memory: the whole of an array.
        table: i64, of two dimensions, whose rows are whole multiples of 8 integers apart.
        row: of the table, in which the map lies.
        column: where it begins there.

    Source: PTX ISA, "Tensor-map"; CUDA programming guide, on tensor maps in global memory.

    Example:
        Each block loads one of several arrays that lie in one buffer:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", maps="G F", Y="M N")
        ... def load(X, maps, Y):
        ...     item = tw.block_index(maps.shape[0])
        ...     array = tw.hopper.by_map(X[8 * item:8 * item + 5], maps, item, 0)
        ...     held = tw.shared((8, 64), X.dtype, swizzle=128)
        ...     full = tw.hopper.mbarrier(1, arrivals=1)
        ...     tw.barrier()
        ...     tw.hopper.acquire_map(array)
        ...     tw.hopper.arrive(full[0], expect_bytes=8 * 128)
        ...     tw.hopper.tma_load(array.tile((8, 64), (0, 0)), held, full[0])
        ...     tw.hopper.wait(full[0], 0)
        ...     tw.copy(held, Y.tile((8, 64), (item, 0)), threads=32)
        >>> x, y = np.ones((16, 64), np.float16), np.full((16, 64), 9, np.float16)
        >>> maps = np.zeros((2, 16), np.int64)
        >>> maps[:, 0], maps[:, 1:7] = (0, 8 * 64), (5, 64, 64, 1, 8, 64)
        >>> load(x, maps, y, target="reference").target, y.sum(1).tolist()[3:10]
        ('reference', [64.0, 64.0, 0.0, 0.0, 0.0, 64.0, 64.0])
    """
    ends: dict[str, Any] = {"source": source.value, "table": table.value}
    place: dict[str, Any] = {"row": unwrap(row), "column": constant("column", column)}
    return Tensor(current().define(ByMap, f"{source.value.buffer.name}_by_map", **ends, **place))


@verb
def acquire_map(tensor: Tensor) -> None:
    """Make a tensor map that was written before the launch visible to TMA; by the role's first thread.

    Bulk copies read maps through a path of their own, on which what lay at the same place before may still be
    found.  A fence in each block lets them see the map; another one is needed for another map only.

    Args:
        tensor: what `by_map` has made, or a view of it.

    Source: PTX ISA, "membar, fence", "fence.proxy.tensormap"; CUDA programming guide, as for `by_map`.

    Example:
        A copy by a map that nothing lets it see is found:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", maps="G F")
        ... def load(X, maps, *, fenced):
        ...     array = tw.hopper.by_map(X[0:8], maps, 0, 0)
        ...     held = tw.shared((8, 64), X.dtype, swizzle=128)
        ...     full = tw.hopper.mbarrier(1, arrivals=1)
        ...     tw.barrier()
        ...     if fenced:
        ...         tw.hopper.acquire_map(array)
        ...     tw.hopper.arrive(full[0], expect_bytes=8 * 128)
        ...     tw.hopper.tma_load(array.tile((8, 64), (0, 0)), held, full[0])
        ...     tw.hopper.wait(full[0], 0)
        >>> maps = np.zeros((1, 16), np.int64)
        >>> maps[:, 1:7] = 8, 64, 64, 1, 8, 64
        >>> x = np.ones((8, 64), np.float16)
        >>> [len(load.check(x, maps, fenced=fenced).findings) for fenced in (True, False)]
        [0, 1]
    """
    current().emit(AcquireMap, source=tensor.value)


@verb
def prior_grid_wait() -> None:
    """Wait until the grid before this one in the stream has finished and its writes are visible.

    A kernel that says it is launched early: its blocks may begin when all blocks of the grid before have said
    `launch_dependents` or ended (programmatic dependent launch).  What comes before the wait runs beside that
    grid: set-up of shared memory and barriers, integers, sizes and numbers.  All accesses to arrays and
    workspaces, bulk copies too, must come after it, and every block must wait: once where all threads pass,
    or in each role that touches global memory, outside of loops and branches.  On ``reference``, where one
    launch follows the other, it does nothing.  In a loop over `tiles` it is said of the whole kernel, which
    then waits first of all, on machines that have it.

    Source: PTX ISA, "griddepcontrol"; CUDA programming guide, "programmatic dependent launch".

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def double(X):
        ...     part = X.tile((64,), (tw.block_index(tw.ceil_div(X.shape[0], 64)),))
        ...     tw.hopper.prior_grid_wait()
        ...     x = tw.load(part.partition((32,)))
        ...     tw.hopper.launch_dependents()
        ...     tw.copy(x + x, part)
        >>> x = np.ones(100, np.float32)
        >>> for _ in range(3):
        ...     _ = double(x, target="reference")
        >>> float(x.min()), float(x.max())
        (8.0, 8.0)
    """
    current().emit(ops.PriorGridWait)


@verb
def launch_dependents() -> None:
    """Let the next grid in the stream start once every block of this one has called this or ended.

    It matters only if that grid's kernel has `prior_grid_wait`; any other begins when this grid has finished.
    It may stand anywhere: the next grid's wait is for the end of this one.  See `prior_grid_wait`.

    Example:
        The second kernel may begin beside the first; it waits for what it reads:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def produce(X):
        ...     tw.hopper.launch_dependents()
        ...     tw.copy(tw.fragment(tw.blocked((32,), (32,)), X.dtype, fill=1), X.tile((32,), (0,)))
        >>> @tw.kernel(X="N", Y="N")
        ... def consume(X, Y):
        ...     tw.hopper.prior_grid_wait()
        ...     tw.copy(X.tile((32,), (0,)), Y.tile((32,), (0,)), threads=32)
        >>> x, y = np.zeros(3, np.float32), np.zeros(3, np.float32)
        >>> _ = produce(x, target="reference")
        >>> consume(x, y, target="reference").target, y.tolist()
        ('reference', [1.0, 1.0, 1.0])
    """
    current().emit(ops.LaunchDependents)


def begin_early() -> None:
    """`prior_grid_wait` on machines that have it; on others one grid follows the other anyway."""
    if _BESIDE in current().arch.features:
        prior_grid_wait()


def let_next_begin(condition: Condition | bool) -> None:
    """`launch_dependents` if a condition holds, on machines that have it.

    Where it does not, the next grid begins when this one has ended, as it does on other machines.
    """
    if _BESIDE in current().arch.features:
        with when(condition):
            launch_dependents()


_BESIDE = "dependent_launch"
"""What machines have whose grids begin beside the one before."""
