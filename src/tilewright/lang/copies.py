"""Copies: ordinary ones, and asynchronous ones in groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.errors import LayoutError, TraceError
from tilewright.ir.ops import AsyncCommit, AsyncWait, Copy
from tilewright.ir.types import TensorType, Value
from tilewright.lang.fragments import number
from tilewright.lang.scalars import constant
from tilewright.lang.sharing import share_out
from tilewright.lang.source import here
from tilewright.lang.tensors import Fragment, Tensor
from tilewright.lang.tracer import current, verb
from tilewright.layout.layout import Layout
from tilewright.threads.distribution import Distribution


@verb
def copy(
    source: Tensor | Fragment,
    target: Tensor | Fragment,
    *,
    threads: Layout | Distribution | int | Sequence[int] | None = None,
    vector: int | None = None,
    vector_dim: int | None = None,
    access_order: Sequence[int] | None = None,
    other: float = 0,
    reduction: str | None = None,
    engine: str | None = None,
) -> None:
    """``target = source``, by all threads together, converting to the target's dtype.

    Args:
        source: tensor or fragment.
        target: tensor or fragment of the same shape; elements past an edge are not written.
        threads: for a copy between memories, how threads share the tile.  A number of threads: consecutive
            threads take consecutive vectors along the dimension that is contiguous in global memory, as wide
            as both sides allow.  Default: the same, with all threads of the role or of the block.  The rest
            of the kernel determines their number (multiplies, roles, other copies); otherwise it is 4 warps.
            A thread layout: each thread takes one contiguous chunk; counts ``(32, 4)`` are short for the
            compact ``Layout((32, 4))``, the first dimension fastest.  Or a `Distribution` (`raked`,
            `blocked`).  A fragment or a partitioned tensor has its own distribution.
        vector: elements per access along ``vector_dim``; default: the largest legal number.
        vector_dim: the dimension of a thread's consecutive elements; default: the contiguous one for a number
            of threads, else the last.
        access_order: for a thread layout, the dimensions in the order in which a thread visits its chunk,
            fastest first, one vector at a time; default: ``vector_dim``, then from the last to the first.
        other: the value of tile elements outside the source's array, a number of its dtype; they are written
            if they lie inside the target.
        reduction: ``"add"``, ``"min"``, ``"max"``, ``"and"`` or ``"or"``: combine elements atomically with
            those of the target, which must be in global memory.  Blocks may reduce at the same time and in
            any order, so sums of floats may round differently from launch to launch.  Reductions of one kind
            need no order among each other; other accesses to the same elements do.
        engine: the hardware that moves the tile.  ``"direct"``: each thread moves its own elements.
            ``"matrix"``: the lanes of a warp exchange rows of 16 bytes between shared memory and registers.
            Default: the target chooses.  Asynchronous copies are separate functions: `copy_async`,
            `tma_load`, `tma_store`.

    Raises:
        LegalityError: the sides do not fit each other, the target's dtype does not have the reduction, or the
            engine cannot move this tile.
        TraceError: the engine is unknown.

    Source: for reductions, PTX ISA, "Parallel Synchronization and Communication Instructions: red".

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", TOTAL="K")
        ... def add_up(X, TOTAL):
        ...     block = tw.block_index(tw.ceil_div(X.shape[0], 64))
        ...     x = tw.load(X.tile((64,), (block,)).partition((32,)))
        ...     tw.copy(tw.reduce_sum(x, dim=0), TOTAL.tile((1,), (0,)), reduction="add")
        >>> x, total = np.ones(1000, np.float32), np.zeros(1, np.float32)
        >>> add_up(x, total, target="reference").target, float(total[0])
        ('reference', 1000.0)
    """
    how = threads, vector, vector_dim, access_order
    if engine not in (None, "direct", "matrix"):
        verbs = {"async": "tw.copy_async", "bulk": "tw.hopper.tma_load or tw.hopper.tma_store"}
        nearest = verbs.get(engine, "engine='direct', engine='matrix', or engine=None: the target chooses")
        raise TraceError(f"copy(engine={engine!r}); nearest legal choice: {nearest}", here())
    _copy(source, target, how, other, reduction=reduction, engine=engine)


@verb
def copy_async(
    source: Tensor,
    target: Tensor,
    *,
    threads: Layout | Distribution | int | Sequence[int] | None = None,
    vector: int | None = None,
    vector_dim: int | None = None,
    access_order: Sequence[int] | None = None,
    other: float = 0,
) -> None:
    """Start copying from global to shared memory; complete after `async_wait`, for others after a barrier.

    Arguments are those of `copy`.  Elements outside the source's array read as 0; any ``other`` is refused.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", Y="N M")
        ... def transpose(X, Y):
        ...     held = tw.shared((8, 32), tw.f32)
        ...     tw.copy_async(X.tile((8, 32), (0, 0)), held, threads=32)
        ...     tw.async_commit()
        ...     tw.async_wait()
        ...     tw.barrier()
        ...     tw.copy(held.permute(1, 0), Y.tile((32, 8), (0, 0)), threads=32)
        >>> x, y = np.random.default_rng(0).random((8, 32), np.float32), np.empty((32, 8), np.float32)
        >>> transpose(x, y, target="reference").target, bool((y == x.T).all())
        ('reference', True)
    """
    how = threads, vector, vector_dim, access_order
    _copy(source, target, how, other, engine="async", completion="group")


def _copy(
    source: Any, target: Any, how: tuple[Any, Any, Any, Any], other: float, **engine: str | None
) -> None:
    tracer = current()
    threads, vector, vector_dim, access_order = how
    width = None if vector is None else constant("vector", vector)
    sides: tuple[Value, Value] = (source.value, target.value)
    # A copy between memories whose sides fit each other, but have no distribution.
    kinds = [side.type for side in sides if isinstance(side.type, TensorType)]
    unshared = [kind.shape for kind in kinds if kind.distribution is None]
    is_unshared = len(unshared) == 2 and unshared[0] == unshared[1]
    spread = threads if isinstance(threads, Distribution) else None
    if spread is None and (threads is not None or is_unshared):
        try:
            spread = share_out(sides, threads, None, vector_dim, access_order, width)
        except LayoutError as error:
            what, _, nearest = str(error).partition("; nearest legal choice: ")
            tracer.violate("threads x slice = tile", what, nearest)
            return
    tracer.emit(
        Copy,
        source=source.value,
        target=target.value,
        distribution=spread,
        vector=width,
        other=number(other),
        **engine,
    )


@verb
def async_commit() -> None:
    """Close the group of asynchronous copies issued since the last commit.

    Example:
        Two copies form one group.  Each thread reads only elements that it copied, and needs no barrier:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M", Y="N")
        ... def one_group(X, Y):
        ...     held = tw.shared((2, 32), tw.f32)
        ...     for half in tw.unroll(2):
        ...         tw.copy_async(X.tile((32,), (half,)), held[half], threads=32)
        ...     tw.async_commit()
        ...     tw.async_wait(0)
        ...     first, second = (tw.load(held[half].partition((32,))) for half in (0, 1))
        ...     tw.copy(first + second, Y.tile((32,), (0,)))
        >>> y = np.empty(32, np.float32)
        >>> one_group(np.ones(64, np.float32), y, target="reference").target, float(y[31])
        ('reference', 2.0)
    """
    current().emit(AsyncCommit)


@verb
def async_wait(pending: int = 0) -> None:
    """Wait until at most ``pending`` committed groups are unfinished.

    Example:
        The first of two groups is used while the second is still in flight.  Each thread reads elements
        that it copied itself, and needs no barrier:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def negate(X):
        ...     held = tw.shared((2, 32), tw.f32)
        ...     for half in tw.unroll(2):
        ...         tw.copy_async(X.tile((32,), (half,)), held[half], threads=32)
        ...         tw.async_commit()
        ...     for half in tw.unroll(2):
        ...         tw.async_wait(1 - half)
        ...         tw.copy(-tw.load(held[half].partition((32,))), X.tile((32,), (half,)))
        >>> x = np.ones(64, np.float32)
        >>> negate(x, target="reference").target, float(x.sum())
        ('reference', -64.0)
    """
    count = constant("the number of pending groups", pending)
    if count < 0:
        raise TraceError(f"async_wait({count}): the number of pending groups is not negative", here())
    current().emit(AsyncWait, pending=count)
