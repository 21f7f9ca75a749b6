"""What runs in the background: bulk tensor copies, asynchronous MMA, the grid before and the next."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import TraceError
from tilewright.ir import async_ops as ops
from tilewright.ir.copies import Copy
from tilewright.ir.mma import TiledMma
from tilewright.lang.clusters import shared_axes
from tilewright.lang.constants import constant
from tilewright.lang.source import here
from tilewright.lang.tensors import Fragment, Tensor
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
) -> None:
    """``target = source``, a box of a tensor parameter to shared memory, by TMA in the background.

    Elements outside of the tensor become 0.  The box's bytes count for the barrier's present phase.

    Args:
        source: a tile of a tensor parameter, or another view of one (a slice, permuted, padded, of an im2col
            view the part under one tap) that is a box of it, cut at its edges alone: what else it is that TMA
            cannot walk is said before anything is compiled.
        target: a tile in shared memory, of the same shape, in rows of 128 bytes under ``swizzle=128``.
        barrier: one stage of `mbarrier`.
        multicast: axes of the cluster; all blocks that differ from this one only along them get the box too,
            at the same place of their shared memory, and its bytes count at their own barriers.
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
    """
    ends = {"source": source.value, "target": target.value}
    current().emit(Copy, **ends, engine="bulk", completion="group", reduction=reduction)


@verb
def bulk_commit() -> None:
    """Close the group of `tma_store` copies that the role's first thread issued."""
    current().emit(ops.BulkCommit)


@verb
def bulk_wait(pending: int = 0) -> None:
    """The role's first thread waits until at most ``pending`` of its groups still read shared memory."""
    current().emit(ops.BulkWait, pending=constant("pending", pending))


@verb
def fence_async(memory: str = "shared") -> None:
    """Let bulk copies and asynchronous MMA see what ordinary accesses did to a memory before.

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
def mma_fence() -> None:
    """Order register accesses before the asynchronous MMAs that follow."""
    current().emit(ops.MmaFence)


@verb
def mma_async(a: Tensor | Fragment, b: Tensor, acc: Fragment, tiled: TiledMma | None = None) -> None:
    """``acc[m, n] += sum_k a[m, k] * b[n, k]`` in the background; complete after `mma_wait`."""
    chosen = tiled or acc.mma
    if chosen is None:
        raise TraceError(
            "mma_async needs the tiled MMA: make acc with tw.accumulator(mma), or pass it", here()
        )
    current().emit(ops.MmaAsync, a=a.value, b=b.value, c=acc.value, mma=chosen)


@verb
def mma_commit() -> None:
    """Close the group of asynchronous MMAs issued since the last commit."""
    current().emit(ops.MmaCommit)


@verb
def mma_wait(pending: int = 0) -> None:
    """Wait until at most ``pending`` groups of asynchronous MMAs are unfinished."""
    current().emit(ops.MmaWait, pending=constant("pending", pending))


@verb
def prior_grid_wait() -> None:
    """Wait until the grid before this one in the stream has finished and its writes are visible.

    A kernel that says it is launched early: its blocks may begin when all blocks of the grid before have said
    `launch_dependents` or ended (programmatic dependent launch).  What comes before the wait runs beside that
    grid: set-up of shared memory and barriers, integers, sizes and numbers.  All accesses to arrays and
    workspaces, bulk copies too, must come after it, and every block must wait: once where all threads pass,
    or in each role that touches global memory, outside of loops and branches.  On ``reference``, where one
    launch follows the other, it does nothing.

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
    """Let the next grid in the stream begin once every block of this one has said so or ended.

    It matters only if that grid's kernel has `prior_grid_wait`; any other begins when this grid has finished.
    It may stand anywhere: the next grid's wait is for the end of this one.  See `prior_grid_wait`.
    """
    current().emit(ops.LaunchDependents)
