"""Operations for kernel authors: allocation, arithmetic, copies, synchronisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.dtypes import DType
from tilewright.errors import LayoutError, TraceError
from tilewright.ir.mma import TiledMma
from tilewright.ir.ops import (
    AsyncCommit,
    AsyncWait,
    Barrier,
    Copy,
    Fill,
    FragmentOp,
    Mma,
    Shared,
    WarpBarrier,
)
from tilewright.ir.types import TensorType, Value
from tilewright.lang.fragments import element_type, number
from tilewright.lang.launch import packed
from tilewright.lang.scalars import constant, static
from tilewright.lang.sharing import share_out
from tilewright.lang.source import here
from tilewright.lang.tensors import Fragment, Number, Tensor
from tilewright.lang.tracer import current, inline, located, verb
from tilewright.layout.layout import Layout
from tilewright.layout.limits import SHARED_BYTES
from tilewright.threads.distribution import Distribution
from tilewright.views.transforms import Swizzle
from tilewright.views.view import View

# ---------------------------------------------------------------- allocation


@verb
def shared(
    shape: int | Sequence[int],
    element: DType | str,
    *,
    layout: Layout | View | None = None,
    elems: int | None = None,
    swizzle: int | Swizzle | None = None,
    name: str | None = None,
) -> Tensor:
    """An uninitialised tensor in shared memory.

    Args:
        shape: static extents.
        element: element type.
        layout: the offset of each element; offsets must differ.  Default: the last dimension contiguous.
        elems: number of elements to allocate; a swizzle permutes within them.  Default: the layout's cosize.
        swizzle: 128 for rows of 128 bytes with the swizzle of 16-byte chunks that bulk copies and
            asynchronous MMA need; the last dimension is one row.  Or a `Swizzle` of the layout's offsets.
        name: name in generated text; default: the variable to which the tensor is assigned.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", Y="N M")
        ... def transpose(X, Y):
        ...     held = tw.shared((8, 32), tw.f32, layout=tw.Layout((8, 32), (33, 1)))
        ...     tw.copy(X.tile((8, 32), (0, 0)), held, threads=32)
        ...     tw.barrier()
        ...     tw.copy(held.permute(1, 0), Y.tile((32, 8), (0, 0)), threads=32)
        >>> x, y = np.random.default_rng(0).random((5, 9), np.float32), np.empty((9, 5), np.float32)
        >>> transpose(x, y, target="reference").target, bool((y == x.T).all())
        ('reference', True)
    """
    extents = static("extents of shared memory", shape)
    view = View.of(layout) if isinstance(layout, Layout) else layout
    if view is None:
        view = View.strided(extents, packed(extents))
    if view.shape != extents:
        raise TraceError(f"layout of shape {view.shape} for a tensor of shape {extents}", here())
    kind, align = element_type(element), 128
    count = constant("elems", view.elems if elems is None else elems)  # type: ignore[arg-type]
    if kind.bytes_of(count) > SHARED_BYTES:
        rule = f"at most {SHARED_BYTES} bytes are possible, far more than any target has"
        text = f"shared memory of {count} elements of {kind}; {rule}"
        raise TraceError(text, here(), f"{8 * SHARED_BYTES // kind.bits} elements")
    if isinstance(view.elems, int) and count > view.elems:
        view = replace(view, elems=count)
    if isinstance(swizzle, Swizzle):
        with located():
            view = swizzle.apply(view)
    elif swizzle is not None:  # the hardware's swizzle of 128-byte rows
        columns, align = 8 * 128 // kind.bits, 1024
        if swizzle != 128 or view.shape[-1:] != (columns,):
            length = view.shape[-1] if view.shape else 1
            text = f"swizzle={swizzle} with rows of {length} {kind}"
            raise TraceError(text, here(), f"swizzle=128 with rows of {columns}")
        with located():
            view = Swizzle(3, (8 * 16 // kind.bits).bit_length() - 1, 3).apply(view)
    return Tensor(current().define(Shared, "shared", name, dtype=kind, view=view, elems=count, align=align))


@verb
def fragment(
    like: Distribution | Fragment | Tensor,
    element: DType | str | None = None,
    fill: float | int | None = None,
    name: str | None = None,
) -> Fragment:
    """A tile in registers with the map of ``like``: a fragment, a tensor, or a distribution.

    Args:
        like: the source of the map; a tensor that is not partitioned has the map of `load`.
        element: element type; default: that of ``like``.
        fill: initial value of every element; default: not initialised.
        name: name in generated text; default: the variable to which the fragment is assigned.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N")
        ... def ones(X):
        ...     x = tw.fragment(tw.blocked((4, 8), (4, 8)), tw.f32, fill=1)
        ...     tw.copy(x, X.tile((4, 8), (0, 0)))
        >>> x = np.zeros((2, 3), np.float32)
        >>> ones(x, target="reference").target, x.tolist()
        ('reference', [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    """
    spread = _distribution_of(like)
    if element is None and isinstance(like, Distribution):
        raise TraceError("a fragment of a bare distribution needs an element type", here())
    chosen = element_type(element) if element is not None else like.dtype  # type: ignore[union-attr]
    attributes: dict[str, Any] = {"distribution": spread, "fill": _fill(fill)}
    return Fragment(current().define(FragmentOp, "fragment", name, dtype=chosen, **attributes))


def _distribution_of(like: Distribution | Fragment | Tensor, vector: int | None = None) -> Distribution:
    """Return the map of a fragment or a partitioned tensor; for any other tensor, the map of `load`."""
    if isinstance(like, Distribution):
        return like
    spread = getattr(like.value.type, "distribution", None)
    if isinstance(spread, Distribution):
        return spread
    with located():
        return share_out((like.value,), vector=vector)


@verb
def accumulator(mma: TiledMma, fill: float | int | None = 0, name: str | None = None) -> Fragment:
    """The accumulator of a tiled MMA, filled with ``fill``, and named ``name`` in generated text.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> mma = tw.TiledMma(tw.atoms.MMA_F16)
        >>> @tw.kernel(D="M N")
        ... def bias(D):
        ...     acc = tw.accumulator(mma, fill=0.5)
        ...     tw.copy(acc, D.tile(acc.shape, (0, 0)))
        >>> d = np.zeros((16, 8), np.float32)
        >>> bias(d, target="reference").target, float(d.sum())
        ('reference', 64.0)
    """
    value = current().define(
        FragmentOp, "acc", name, dtype=mma.atom.c_dtype, distribution=mma.c(), fill=_fill(fill)
    )
    return Fragment(value, mma)


def _fill(value: float | int | None) -> float | int | None:
    return None if value is None else number(value)


# ---------------------------------------------------------------- loads and arithmetic


@verb
def load(
    source: Tensor,
    like: Fragment | Distribution | None = None,
    vector: int | None = None,
    *,
    element: DType | str | None = None,
    other: float = 0,
    name: str | None = None,
) -> Fragment:
    """A fragment with the contents of a tensor, distributed as ``like`` or as the tensor is partitioned.

    Args:
        source: the tensor; a tile of it may reach past the edge of the array.
        like: the source of the map; default: the partitioned tensor.  For a tensor that is not partitioned,
            the best map for all threads, as in `copy` without ``threads``.  Fragments that are combined need
            one map.  Load the second ``like`` the first, because the best map depends on dtype, strides and
            alignment.
        vector: elements per access; default: the largest legal number.
        element: element type of the fragment; elements are converted to it and rounded once.  Default: the
            tensor's.
        other: the value of elements outside the array, a number of its dtype.  They take part in everything
            that is computed with the fragment.  Choose minus infinity before a sum of exponentials or a
            maximum, and 1 before a product.
        name: name in generated text; default: the variable to which the fragment is assigned.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", Y="M N")
        ... def softmax(X, Y):
        ...     x = tw.load(X.tile((8, 64), (0, 0)).partition((8, 4)), other=-float("inf"))
        ...     weights = tw.exp(x - tw.reduce_max(x, dim=1))
        ...     tw.copy(weights / tw.reduce_sum(weights, dim=1), Y.tile((8, 64), (0, 0)))
        >>> x, y = np.zeros((8, 50), np.float32), np.empty((8, 50), np.float32)
        >>> softmax(x, y, target="reference").target
        'reference'
        >>> round(float(y.sum(axis=1)[0]), 6)
        1.0
    """
    tracer = current()
    width = None if vector is None else constant("vector", vector)
    spread = _distribution_of(source if like is None else like, width)
    kind = source.dtype if element is None else element_type(element)
    made = Fragment(tracer.define(FragmentOp, "loaded", name, dtype=kind, distribution=spread))
    tracer.emit(Copy, source=source.value, target=made.value, vector=width, other=number(other))
    return made


@verb
def fill(target: Fragment, value: float | int | Number) -> None:
    """Set every element of a fragment.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", value=tw.f32)
        ... def set_to(X, value):
        ...     x = tw.fragment(tw.blocked((32,), (32,)), tw.f32)
        ...     tw.fill(x, value)
        ...     tw.copy(x, X.tile((32,), (0,)))
        >>> x = np.zeros(3, np.float32)
        >>> set_to(x, 2.5, target="reference").target, x.tolist()
        ('reference', [2.5, 2.5, 2.5])
    """
    given = value.value if isinstance(value, Number) else number(value)
    current().emit(Fill, target=target.value, value=given)


@verb
def mma(
    a: Tensor | Fragment,
    b: Tensor | Fragment,
    acc: Fragment,
    tiled: TiledMma | None = None,
    *,
    negative: bool = False,
) -> None:
    """``acc[m, n] += sum_k a[m, k] * b[n, k]``, by all warps of the tiled MMA; done when it returns.

    With an asynchronous atom it is short for `tw.hopper.mma_fence`, `tw.hopper.mma_async`,
    `tw.hopper.mma_commit` and `tw.hopper.mma_wait`, and takes the same operands.  Each thread that wrote an
    operand to shared memory must still call `tw.hopper.fence_async` before the barrier.

    Args:
        a: (M, K), in shared memory or a fragment distributed as the MMA's operand A.
        b: (N, K), in shared memory or a fragment distributed as operand B.
        acc: from `accumulator`.
        tiled: the tiled MMA, if ``acc`` does not come from `accumulator`.
        negative: whether to subtract the products from ``acc``; only for floats.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> mma = tw.TiledMma(tw.atoms.MMA_F16)
        >>> @tw.kernel(A="M K", B="N K", D="M N")
        ... def product(A, B, D):
        ...     acc = tw.accumulator(mma)
        ...     a = tw.load(A.tile((16, 16), (0, 0)), tw.operand_a(mma, 16))
        ...     b = tw.load(B.tile((8, 16), (0, 0)), tw.operand_b(mma, 16))
        ...     tw.mma(a, b, acc)
        ...     tw.copy(acc, D.tile((16, 8), (0, 0)))
        >>> a, b, d = np.ones((16, 5), np.float16), np.ones((8, 5), np.float16), np.empty((16, 8), np.float32)
        >>> product(a, b, d, target="reference").target, float(d[15, 7])
        ('reference', 5.0)
    """
    chosen = tiled or acc.mma
    if chosen is None:
        raise TraceError("mma needs the tiled MMA: make acc with tw.accumulator(mma), or pass it", here())
    if not chosen.atom.asynchronous:  # several warps execute an asynchronous atom together
        current().note_lanes(chosen.atom.lanes)
    current().emit(Mma, a=a.value, b=b.value, c=acc.value, mma=chosen, negative=negative)


@inline
def operand_a(mma: TiledMma, k: int) -> Distribution:
    """The distribution of an A tile of shape (M, k) that `mma` takes from registers.

    Example:
        >>> import tilewright as tw
        >>> mma = tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 1))
        >>> tw.operand_a(mma, 16).shape, tw.operand_a(mma, 16).size_threads
        ((32, 16), 64)
    """
    with located():
        return mma.a(k)


@inline
def operand_b(mma: TiledMma, k: int) -> Distribution:
    """The distribution of a B tile of shape (N, k) that `mma` takes from registers.

    Example:
        >>> import tilewright as tw
        >>> mma = tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 1))
        >>> tw.operand_b(mma, 16).shape, tw.operand_b(mma, 16).size_threads
        ((8, 16), 64)
    """
    with located():
        return mma.b(k)


# ---------------------------------------------------------------- copies


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
        raise TraceError(f"copy(engine={engine!r})", here(), nearest)
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
    """Start a copy from global to shared memory; `async_wait` completes it, a barrier shows it to others.

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


# ---------------------------------------------------------------- synchronisation


@verb
def barrier() -> None:
    """All threads of the block wait for each other; orders their accesses to memory.

    Example:
        Each thread reads an element that a thread of another warp wrote:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def exchange(X):
        ...     held = tw.shared((64,), tw.f32)
        ...     tw.copy(X.tile((64,), (0,)), held, threads=64)
        ...     tw.barrier()
        ...     for half in tw.unroll(2):
        ...         tw.copy(held.tile((32,), (1 - half,)), X.tile((32,), (half,)), threads=32)
        >>> x = np.arange(64, dtype=np.float32)
        >>> exchange(x, target="reference").target, x[[0, 63]].tolist()
        ('reference', [32.0, 31.0])
    """
    current().emit(Barrier)


@verb
def warp_barrier() -> None:
    """The lanes of each warp wait for each other; orders their accesses to memory.  See `barrier`.

    Example:
        The lanes of one warp read elements that other lanes wrote:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N")
        ... def transpose(X):
        ...     held = tw.shared((8, 4), tw.f32)
        ...     tw.copy(X.tile((8, 4), (0, 0)), held, threads=32)
        ...     tw.warp_barrier()
        ...     tw.copy(held.permute(1, 0), X.tile((4, 8), (0, 0)), threads=32)
        >>> x = np.arange(16, dtype=np.float32).reshape(4, 4)
        >>> transpose(x, target="reference").target, x[0].tolist()
        ('reference', [0.0, 4.0, 8.0, 12.0])
    """
    current().emit(WarpBarrier)
