"""Asynchronous work: bulk copies and their tensor maps, asynchronous MMA, and overlap with other grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.errors import TraceError
from tilewright.ir import async_ops as ops
from tilewright.ir.copies import AcquireMap, ByMap, Copy
from tilewright.ir.mma import TiledMma
from tilewright.lang.control import when
from tilewright.lang.scalars import Condition, Index, constant, unwrap, unwrap_condition
from tilewright.lang.source import here
from tilewright.lang.tensors import Fragment, Tensor
from tilewright.lang.tracer import current, verb
from tilewright.lang.transaction_barriers import BarrierStage, shared_axes
from tilewright.symbolic.nodes import Constant


@verb
def tma_load(
    source: Tensor,
    target: Tensor,
    barrier: BarrierStage,
    *,
    multicast: int | Sequence[int] = (),
    readers: Index = 0,
) -> None:
    """Copy a box of a tensor parameter to shared memory, by TMA in the background: ``target = source``.

    Elements outside the tensor become 0.  The bytes of the box count for the barrier's current phase.

    Args:
        source: a tile of a tensor parameter, or another view that is a box of it: a slice, a permuted or
            padded view, or the part of an im2col view under one tap.  Only the tensor's edges may cut the
            box.  A view that TMA cannot load raises an error before anything is compiled.
        target: a tile in shared memory of the same shape, in rows of 128 bytes under ``swizzle=128``; or one
            row of up to 256 elements that starts at a multiple of 128 bytes.
        barrier: one stage of `mbarrier`.
        multicast: axes of the cluster.  All blocks that differ from this one only along these axes receive
            the box, too, at the same shared-memory offset.  Its bytes count at their own barriers.
        readers: number of blocks, or of clusters that multicast, that load these elements in the launch.
            Elements with a single reader leave the L2 cache first, to make room for shared ones.  Default:
            unknown.  Results do not depend on it.

    Source: PTX ISA, "cp.async.bulk.tensor"; "createpolicy".

    Example:
        Elements outside of ``X`` are 0 in shared memory, and only existing rows of ``Y`` are written:

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
    """Copy a tile in shared memory to a box of a tensor, by TMA in the background: ``target = source``.

    Args:
        source: a tile in shared memory, in rows of 128 bytes under ``swizzle=128``.
        target: a box, as for the source of `tma_load`.  It must not start before the tensor, and the tensor's
            rows must be multiples of 16 bytes: hardware stores units of 16 bytes and would otherwise
            overwrite the bytes after a row.
        reduction: ``"add"`` (f32, f16, bf16, i32), ``"min"``, ``"max"``, ``"and"``, ``"or"`` (i32): elements
            are combined with those in memory, as in `copy`.

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
        Two stores form one group; one wait is enough:

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

    After the wait, that thread may let others overwrite the shared memory that the finished groups read.

    Args:
        pending: number of the latest groups that may still run.

    Source: PTX ISA, "cp.async.bulk.wait_group".

    Example:
        One buffer serves all tiles; it is filled again after the previous store has read it:

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

    These use another path to memory (the async proxy) than threads do, so data that threads wrote needs a
    fence.  Either each thread that wrote calls it before the barrier at which the issuing thread waits, or
    the issuing thread calls it after the barrier.  No fence is needed after a bulk copy wrote the data, or
    before a copy overwrites data that threads have only read, before a barrier.

    Args:
        memory: ``"shared"``; or ``"global"``, for `tma_load` of data that the same kernel has written.

    Raises:
        TraceError: the memory is neither of them.

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

    A launch passes tensor maps for its array arguments.  A kernel may also read the offsets, extents and
    strides of arrays inside one buffer from memory.  The code that fills this memory must then write the
    tensor maps, too: 16 integers each, starting at a multiple of 8.  On a GPU the driver encodes them.  For
    ``reference`` a map holds the offset of the array in its buffer, its extents, its strides and the extents
    of the boxes, in elements, followed by zeros; the reference reports a map that does not fit.

    Args:
        source: a view of a buffer in global memory: the whole of an array.
        table: an i64 tensor of two dimensions; the distance between rows is a multiple of 8 integers.
        row: the row of the table that contains the map.
        column: the first column of the map.

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

    Bulk copies read maps through their own cache, which may hold an older map of the same address.  A fence
    in each block makes the map visible.  Each map needs one fence.

    Args:
        tensor: the result of `by_map`, or a view of it.

    Source: PTX ISA, "membar, fence", "fence.proxy.tensormap"; CUDA programming guide, as for `by_map`.

    Example:
        The reference reports a copy by a map that no fence made visible:

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

    A kernel with this call is launched early: its blocks may start when all blocks of the previous grid have
    called `launch_dependents` or ended (programmatic dependent launch).  Code before the wait overlaps with
    that grid: set-up of shared memory and barriers, integers, sizes and numbers.  All accesses to arrays and
    workspaces, including bulk copies, must come after the wait.  Every block must wait, outside of loops and
    branches: once in code that all threads execute, or in each role that touches global memory.  On
    ``reference`` launches run one after another, and the call does nothing.  In a dataflow kernel (a loop
    over `tiles`) the call applies to the whole kernel, which then waits first, on machines with this feature.

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

    It has an effect only if the next kernel calls `prior_grid_wait`; any other kernel starts when this grid
    has finished.  The call may be anywhere, because the next grid waits for the end of this one.

    Example:
        The second kernel may begin while the first still runs; it waits before it reads:

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
    """`prior_grid_wait` on machines that have it; on others grids never overlap."""
    if _DEPENDENT_LAUNCH in current().arch.features:
        prior_grid_wait()


def let_next_begin(condition: Condition | bool) -> None:
    """`launch_dependents` if a condition holds, on machines that have it.

    If it does not hold, the next grid starts when this one has ended, as on other machines.
    """
    if _DEPENDENT_LAUNCH in current().arch.features:
        with when(condition):
            launch_dependents()


_DEPENDENT_LAUNCH = "dependent_launch"
"""Feature name of machines on which a grid can start before the previous one ends."""


# ---------------------------------------------------------------- asynchronous MMA
# The accumulator is complete after a wait.


@verb
def mma_fence() -> None:
    """Order register accesses before the asynchronous MMAs that follow.

    Call it before the first MMA, and again after threads have written the accumulator or operand A.

    Source: PTX ISA, "wgmma.fence".

    Example:
        The MMA adds to the values that threads wrote into the accumulator:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="N K", C="M N")
        ... def multiply(A, B, C):
        ...     sA, sB = tw.shared((64, 64), A.dtype, swizzle=128), tw.shared((8, 64), B.dtype, swizzle=128)
        ...     tw.copy(A.tile((64, 64), (0, 0)), sA, threads=128)
        ...     tw.copy(B.tile((8, 64), (0, 0)), sB, threads=128)
        ...     tw.hopper.fence_async()
        ...     tw.barrier()
        ...     acc = tw.accumulator(tw.TiledMma(tw.atoms.wgmma(A.dtype, 8)))
        ...     tw.fill(acc, 10)
        ...     tw.hopper.mma_fence()
        ...     tw.hopper.mma_async(sA, sB, acc)
        ...     tw.hopper.mma_commit()
        ...     tw.hopper.mma_wait()
        ...     tw.copy(acc, C.tile((64, 8), (0, 0)))
        >>> a, b = np.array([[1, 2], [3, 4]], np.float16), np.array([[1, 0], [1, 1]], np.float16)
        >>> c = np.zeros((2, 2), np.float32)
        >>> multiply(a, b, c, target="reference").target, c.tolist()
        ('reference', [[11.0, 13.0], [13.0, 17.0]])
    """
    current().emit(ops.MmaFence)


@verb
def mma_async(
    a: Tensor | Fragment,
    b: Tensor,
    acc: Fragment,
    tiled: TiledMma | None = None,
    *,
    fresh: Condition | bool = False,
    negative: bool = False,
) -> None:
    """``acc[m, n] += sum_k a[m, k] * b[n, k]`` in the background; complete after `mma_wait`.

    Args:
        a: a tile in shared memory, or a fragment as the atom's operand A.
        b: a tile in shared memory.
        acc: the accumulator.
        tiled: the tiled MMA; default: the tiled MMA from which ``acc`` was made.
        fresh: if true, the products overwrite ``acc`` instead of being added, so ``acc`` need not be filled.
        negative: whether to subtract the products; only for floats.

    Raises:
        TraceError: there is no tiled MMA, or ``fresh`` is not a condition.

    Source: PTX ISA, "wgmma.mma_async".

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="N K", C="M N")
        ... def multiply(A, B, C):
        ...     sA, sB = tw.shared((64, 64), A.dtype, swizzle=128), tw.shared((8, 64), B.dtype, swizzle=128)
        ...     tw.copy(A.tile((64, 64), (0, 0)), sA, threads=128)
        ...     tw.copy(B.tile((8, 64), (0, 0)), sB, threads=128)
        ...     tw.hopper.fence_async()
        ...     tw.barrier()
        ...     acc = tw.accumulator(tw.TiledMma(tw.atoms.wgmma(A.dtype, 8)))
        ...     tw.hopper.mma_fence()
        ...     tw.hopper.mma_async(sA, sB, acc)
        ...     tw.hopper.mma_commit()
        ...     tw.hopper.mma_wait()
        ...     tw.copy(acc, C.tile((64, 8), (0, 0)))
        >>> a, b = np.array([[1, 2], [3, 4]], np.float16), np.array([[1, 0], [1, 1]], np.float16)
        >>> c = np.zeros((2, 2), np.float32)
        >>> multiply(a, b, c, target="reference").target, c.tolist()
        ('reference', [[1.0, 3.0], [3.0, 7.0]])
    """
    cond = unwrap_condition(fresh)
    known = cond.value if isinstance(cond, Constant) else cond
    chosen = tiled or acc.mma
    if chosen is None:
        raise TraceError(
            "mma_async needs the tiled MMA: make acc with tw.accumulator(mma), or pass it", here()
        )
    operands = {"a": a.value, "b": b.value, "c": acc.value}
    current().emit(ops.MmaAsync, **operands, mma=chosen, fresh=known, negative=negative)


@verb
def mma_commit() -> None:
    """Close the group of asynchronous MMAs issued since the last commit.

    Source: PTX ISA, "wgmma.commit_group".

    Example:
        Two MMAs are one group:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="N K", C="M N")
        ... def multiply(A, B, C):
        ...     sA, sB = tw.shared((64, 64), A.dtype, swizzle=128), tw.shared((8, 64), B.dtype, swizzle=128)
        ...     tw.copy(A.tile((64, 64), (0, 0)), sA, threads=128)
        ...     tw.copy(B.tile((8, 64), (0, 0)), sB, threads=128)
        ...     tw.hopper.fence_async()
        ...     tw.barrier()
        ...     acc = tw.accumulator(tw.TiledMma(tw.atoms.wgmma(A.dtype, 8)))
        ...     tw.hopper.mma_fence()
        ...     tw.hopper.mma_async(sA, sB, acc)
        ...     tw.hopper.mma_async(sA, sB, acc)
        ...     tw.hopper.mma_commit()
        ...     tw.hopper.mma_wait()
        ...     tw.copy(acc, C.tile((64, 8), (0, 0)))
        >>> a, b = np.array([[1, 2], [3, 4]], np.float16), np.array([[1, 0], [1, 1]], np.float16)
        >>> c = np.zeros((2, 2), np.float32)
        >>> multiply(a, b, c, target="reference").target, c.tolist()
        ('reference', [[2.0, 6.0], [6.0, 14.0]])
    """
    current().emit(ops.MmaCommit)


@verb
def mma_wait(pending: int = 0) -> None:
    """Wait until at most ``pending`` groups of asynchronous MMAs are unfinished.

    Args:
        pending: number of the latest groups that may still run; no thread may touch their operands.

    Source: PTX ISA, "wgmma.wait_group".

    Example:
        After the first wait, ``acc`` is complete, while ``more`` may still be computed:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="N K", C="M N")
        ... def multiply(A, B, C):
        ...     sA, sB = tw.shared((64, 64), A.dtype, swizzle=128), tw.shared((8, 64), B.dtype, swizzle=128)
        ...     tw.copy(A.tile((64, 64), (0, 0)), sA, threads=128)
        ...     tw.copy(B.tile((8, 64), (0, 0)), sB, threads=128)
        ...     tw.hopper.fence_async()
        ...     tw.barrier()
        ...     acc = tw.accumulator(tw.TiledMma(tw.atoms.wgmma(A.dtype, 8)))
        ...     more = tw.accumulator(acc.mma)
        ...     tw.hopper.mma_fence()
        ...     tw.hopper.mma_async(sA, sB, acc)
        ...     tw.hopper.mma_commit()
        ...     tw.hopper.mma_async(sA, sB, more)
        ...     tw.hopper.mma_commit()
        ...     tw.hopper.mma_wait(1)
        ...     tw.copy(acc, C.tile((64, 8), (0, 0)))
        ...     tw.hopper.mma_wait(0)
        ...     tw.copy(acc, C.tile((64, 8), (0, 0)))
        >>> a, b = np.array([[1, 2], [3, 4]], np.float16), np.array([[1, 0], [1, 1]], np.float16)
        >>> c = np.zeros((2, 2), np.float32)
        >>> multiply(a, b, c, target="reference").target, c.tolist()
        ('reference', [[1.0, 3.0], [3.0, 7.0]])
    """
    current().emit(ops.MmaWait, pending=constant("pending", pending))
