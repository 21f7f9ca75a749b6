"""The class `Tensor`, an array in memory or a part of it, for kernel authors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Protocol, Self, overload

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import TraceError
from tilewright.ir.integer_ops import VARIABLE
from tilewright.ir.ops import Gather, GetVariable, PartitionOp, Reshape, Variable
from tilewright.ir.types import Memory, Value
from tilewright.lang.dataflow.tiles import SpanIndex, Tile
from tilewright.lang.fragments import Fragment, Number
from tilewright.lang.numpy_functions import no_numpy_function
from tilewright.lang.rearranged import Rearranged
from tilewright.lang.scalars import Index, as_tuple, constant, from_end, project, spelled_slice, unwrap, wrap
from tilewright.lang.sharing import share_out
from tilewright.lang.source import here, origin
from tilewright.lang.tracer import current, inline, located, open_region, verb
from tilewright.layout.layout import Layout
from tilewright.symbolic.expr import add, ceil_div, less_equal, mul, prove
from tilewright.symbolic.nodes import Int, Sym
from tilewright.views import transforms as t
from tilewright.views.transforms import Transform, as_written

# ---------------------------------------------------------------- tiles of a tensor


class Tileable(Protocol):
    """Protocol of a tensor that can be cut into tiles."""

    @property
    def value(self) -> Value:
        """The tensor's value in the IR."""

    def tile(self, shape: Any, at: Any) -> Any:
        """Return one tile of the tensor."""


class Tiles:
    """The partition of a tensor into tiles of one shape; see `Tensor.tiles`.

    Args:
        source: the tensor, in global or shared memory.
        extents: extents of a tile; None takes the whole dimension.
        at: for each dimension, the index that is already chosen, or None.
    """

    def __init__(
        self, source: Tileable, extents: tuple[int | None, ...], at: tuple[Index | None, ...] | None = None
    ) -> None:
        self.source = source
        self.extents = extents
        self.at = at or (None,) * len(extents)

    @property
    def free(self) -> tuple[int, ...]:
        """The dimensions without an index."""
        return tuple(
            dim
            for dim, (extent, at) in enumerate(zip(self.extents, self.at, strict=True))
            if extent is not None and at is None
        )

    @property
    def shape(self) -> tuple[Any, ...]:
        """Number of tiles along each free dimension; the last ones may reach past the edge."""
        return tuple(
            wrap(ceil_div(self.source.value.tensor.shape[d], self.extents[d] or 1)) for d in self.free
        )

    def __getitem__(self, index: Any) -> Any:
        """Return a tile, or the remaining tiles if a dimension is kept with ``:``, ``...`` or omitted."""
        free = self.free
        parts = _whole_index(index, len(free))
        if len(parts) > len(free):
            raise TraceError(f"{len(parts)} indices for tiles along {len(free)} dimensions", here())
        chosen = list(self.at)
        for dim, part in zip(free, parts, strict=True):
            if isinstance(part, slice):
                if part != slice(None):
                    raise TraceError(
                        f"tiles {spelled_slice(part)} of dimension {dim}: only an index or ':' chooses tiles",
                        here(),
                        "slice the tensor before .tiles",
                    )
                continue
            unwrap(part)
            chosen[dim] = part
        made = Tiles(self.source, self.extents, tuple(chosen))
        return made if made.free else self.source.tile(self.extents, made.at)

    def __call__(self, *index: object) -> NoReturn:
        """Refuse a call: tiles are indexed, not called.

        Raises:
            TraceError: always.
        """
        spelled = ", ".join(map(str, index))
        raise TraceError(f"tiles({spelled}): tiles are indexed", here(), f"tiles[{spelled}]")

    def __iter__(self) -> NoReturn:
        raise TraceError(
            "tiles are not iterated over: write `for i in tw.range(tiles.shape[0])` and index them", here()
        )

    def __repr__(self) -> str:
        return f"tiles {self.extents} at {self.at} of {self.source!r}"


__all__ = ["Fragment", "Number", "Tensor"]

SHOWN = 60
"""Maximum length, in characters, of a view's source text in messages."""


@inline.made("a parameter of a kernel is one, and tw.shared in a kernel makes one")
class Tensor(Rearranged):
    """A tensor in global or shared memory: a buffer and a view of it.  Every method gives a new view.

    A parameter of a kernel, or made by `shared`; a function that takes one says so:

    >>> import tilewright as tw
    >>> def rows(X: tw.Tensor, count: int) -> tw.Tensor:
    ...     return X.tile((count, X.shape[1]), (0, 0))
    """

    def __init__(self, value: Value) -> None:
        self.value = value
        self.region = open_region()

    @property
    def shape(self) -> tuple[Any, ...]:
        """Extents: integers, or `Scalar` if known only at run time.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="M N")
            ... def look(X):
            ...     print(X.shape, X.tile((8, 8), (0, 0)).shape)
            >>> _ = look(np.ones((3, 4), np.float32), target="reference")
            (M, N) (8, 8)
        """
        return tuple(wrap(extent) for extent in self.value.tensor.shape)

    @property
    def dtype(self) -> DType:
        """Element type.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="M N")
            ... def look(X):
            ...     print(X.dtype, tw.shared((8, 8), tw.f16).dtype)
            >>> _ = look(np.ones((3, 4), np.float32), target="reference")
            f32 f16
        """
        return self.value.dtype

    @property
    def memory(self) -> Memory:
        """Memory that contains the tensor.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="M N")
            ... def look(X):
            ...     print(X.memory.value, tw.shared((8, 8), X.dtype).memory.value)
            >>> _ = look(np.ones((3, 4), np.float32), target="reference")
            global shared
        """
        return self.value.tensor.memory

    def _view(self, transform: Transform, suffix: str) -> Self:
        name = f"{self.value.buffer.name}_{suffix}"
        transform = transform if origin() is None else _hiding(transform, self.value.tensor.shape)
        shown = as_written(transform, self.value.tensor.shape)
        shown = shown if len(f"{self.value}{shown}") <= SHOWN else ""
        made = current().define(Reshape, name, shown=shown, source=self.value, transform=transform)
        return type(self)(made)

    @verb
    def tile(
        self,
        shape: Sequence[int | None],
        at: Sequence[Index | None],
        projection: Sequence[int | None] | None = None,
    ) -> Tensor:
        """Tile ``at`` of the partition into tiles of ``shape``: ``new[i] = old[at*shape + i]``.

        Elements outside the tensor read as 0 and are not written.

        Args:
            shape: static extents; None, in both ``shape`` and ``at``, takes the whole dimension.
            at: index of the tile along each dimension; a negative constant counts from the end.
            projection: 1 keeps an entry of ``shape`` and ``at``, None drops it.  For operand A = (m, k) of a
                block's tile (m, n, k), use ``projection=(1, None, 1)``.

        Raises:
            TraceError: a dimension has no extent or no index, or an extent is below 1.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="M N", Y="M N")
            ... def corner(X, Y):
            ...     tw.copy(X.tile((2, 2), (1, 1)), Y.tile((2, 2), (1, 1)), threads=4)
            >>> x, y = np.arange(9).reshape(3, 3), np.zeros((3, 3), int)
            >>> corner(x, y, target="reference").target, y.tolist()
            ('reference', [[0, 0, 0], [0, 0, 0], [0, 0, 8]])
        """
        extents, places = (
            project("tile shape", as_tuple(shape), projection),
            project("tile index", as_tuple(at), projection),
        )
        return self._view(t.Tile(_extents(extents), self._places(extents, places)), "tile")

    def _places(
        self, extents: Sequence[int | None], places: Sequence[Index | None]
    ) -> tuple[Int | None, ...]:
        """Return the tile index along each dimension; `Tile` itself reports a wrong rank."""
        made = [None if place is None else unwrap(place) for place in places]
        for dim, (length, place, extent) in enumerate(
            zip(extents, made, self.value.tensor.shape, strict=False)
        ):
            if isinstance(place, int) and isinstance(length, int) and length > 0:
                made[dim] = from_end(
                    f"tile index {place} of dimension {dim}", place, ceil_div(extent, length)
                )
        return tuple(made)

    @verb
    def tiles(self, shape: Sequence[int | None]) -> Tiles:
        """All tiles of ``shape``, for indexing: ``tiles[i, j]``, or ``tiles[i, :][j]``.

        Indices are those of `tile`.  Elements outside the tensor read as 0 and are not written.

        Args:
            shape: static extents; None takes the whole dimension.

        Raises:
            TraceError: a dimension has no extent.

        Example:
            The second row of tiles, one after the other:

            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="M N", Y="M N")
            ... def lower(X, Y):
            ...     source, target = X.tiles((2, 2))[1, :], Y.tiles((2, 2))[1, :]
            ...     for j in tw.range(source.shape[0]):
            ...         tw.copy(source[j], target[j], threads=4)
            >>> x, y = np.arange(12).reshape(4, 3), np.zeros((4, 3), int)
            >>> lower(x, y, target="reference").target, y.tolist()
            ('reference', [[0, 0, 0], [0, 0, 0], [6, 7, 8], [9, 10, 11]])
        """
        if len(shape) != len(self.shape):
            raise TraceError(f"tiles {tuple(shape)} of a tensor of rank {len(self.shape)}", here())
        return Tiles(self, _extents(shape))

    @overload
    def __getitem__(self, index: SpanIndex | tuple[SpanIndex | None, ...]) -> Tile: ...
    @overload
    def __getitem__(self, index: Any) -> Tensor: ...
    def __getitem__(self, index: Any) -> Any:
        if (flow := current().flow) is not None and _is_tile(as_tuple(index)):
            return flow.part(self, as_tuple(index))
        shape = self.value.tensor.shape
        parts = _whole_index(index, len(shape))
        if len(parts) > len(shape):
            text = f"{len(parts)} indices for a tensor of rank {len(shape)}"
            is_spanned = flow is not None and None in parts
            near = "a span among the indices, as in x[n][:, None]" if is_spanned else None
            raise TraceError(text, here(), near)
        if any(isinstance(part, Tensor) for part in parts):
            return self._chosen(parts)
        at: list[Int | tuple[Int, Int]] = []
        strides: list[int] = []
        for dim, (part, extent) in enumerate(zip(parts, shape, strict=True)):
            if not isinstance(part, slice):
                number = unwrap(part)
                at.append(from_end(f"index {number} of dimension {dim}", number, extent))
                continue
            strides.append(_step(part))
            what = f"slice {spelled_slice(part)} of dimension {dim}"
            past = 1 if strides[-1] > 0 else 0
            first, last = (
                None if end is None else from_end(what, unwrap(end), extent, past=past)
                for end in (part.start, part.stop)
            )
            if strides[-1] < 0:  # from the start down to the element after the end
                first, last = (None if end is None else add(end, 1) for end in (last, first))
            at.append((0 if first is None else first, extent if last is None else last))
        spans = [t.slice_span(part, extent) for part, extent in zip(at, shape, strict=True)]
        edges = (dim for dim, span in enumerate(spans) if _may_leave(*span, shape[dim]))
        made, is_stepped = self, any(one != 1 for one in strides)
        is_whole = len(strides) == len(shape) and spans == [(0, extent) for extent in shape]
        if not (is_stepped and is_whole):
            made = self._view(t.Slice(tuple(at), tuple(edges)), "slice")
        for dim, stride in enumerate(strides) if is_stepped else ():
            length = made.value.tensor.shape[dim]
            count, last = ceil_div(length, abs(stride)), add(length, -1)
            if stride != 1:
                view = t.Embed(dim, (count,), (stride,), 0 if stride > 0 else mul(last, -1))
                made = made._view(view, "steps")
        return made

    def _chosen(self, parts: list[Any]) -> Tensor:
        """Return rows along the dimension that a tensor of integers indexes, and slices along the others."""
        [dim, *more] = (at for at, part in enumerate(parts) if isinstance(part, Tensor))
        if more:
            text = f"{len(more) + 1} tensors as indices of {self.value.name}: one tensor gathers rows"
            raise TraceError(text, here(), "X.rows(I).rows(J, dim=1)")
        index, parts[dim] = parts[dim], slice(None)
        kept = sum(isinstance(part, slice) for part in parts[:dim])
        is_whole = all(isinstance(part, slice) and part == slice(None) for part in parts)
        return (self if is_whole else self[tuple(parts)]).rows(index, kept)

    def __setitem__(self, index: Any, value: Any) -> None:
        flow = current().flow
        if flow is not None and (_has_spans(as_tuple(index)) or isinstance(value, Tile)):
            flow.store(self, as_tuple(index), value)
            return
        raise TraceError("elements are not assigned one by one; use `tw.copy(source, target)`", here())

    def __iter__(self) -> NoReturn:
        raise TraceError(
            f"{self.value.name} cannot be iterated over: it would unroll {self.value.tensor.shape[0]} times; "
            "use `for i in tw.range(...)` or `tw.unroll` and index it",
            here(),
        )

    def _no_arithmetic(self, *given: object) -> Any:
        if (flow := current().flow) is not None:
            if given and isinstance(given[0], Tile):
                return NotImplemented  # the tile's own operator takes whole arrays
            raise flow.no_arithmetic(self)
        rule = "arithmetic needs registers: load it with `tw.load(...)`, or multiply tiles with `tw.mma`"
        text = f"{self.value.name} is in {self.memory.value} memory, and {rule}"
        raise TraceError(text, here())

    def __array_function__(self, function: Any, *_: object, **__: object) -> NoReturn:
        raise no_numpy_function(function.__name__, self)

    __array_ufunc__ = __array_function__
    __add__ = __sub__ = __mul__ = __truediv__ = __matmul__ = __lt__ = __gt__ = _no_arithmetic
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = _no_arithmetic
    __floordiv__ = __mod__ = __pow__ = __and__ = __or__ = __xor__ = __le__ = __ge__ = _no_arithmetic
    __rfloordiv__ = __rmod__ = __rpow__ = __rand__ = __ror__ = __rxor__ = __rmatmul__ = _no_arithmetic
    __lshift__ = __rshift__ = __rlshift__ = __rrshift__ = _no_arithmetic
    __neg__ = __pos__ = __abs__ = __invert__ = _no_arithmetic

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise TraceError(
            f"{self.value.name} has no contents while the kernel is traced: a kernel can neither launch "
            "another one nor pass its arrays to a library; call a function of the kernel language",
            here(),
        )

    __dlpack__ = __dlpack_device__ = __array__

    @verb
    def rows(self, index: Tensor, dim: int = 0, *, padded: bool = False) -> Tensor:
        """``new[i, ...] = old[index[i], ...]``: rows chosen by an index in memory, to gather or to scatter.

        ``X[I]`` and ``X[I, 0:64]`` are short for it.  The operation that accesses the view reads the index,
        once for each row that a thread accesses.  A row outside of ``[0, extent)`` reads as 0, or as the
        value of ``other=``, and is not written.  The same holds for rows past the edge of the index.

        Integers may choose blocks of rows: ``X[:, :64].rows(I).merge(0)`` for blocks (B, 64, N).  `tma_load`
        takes a tile that lies within a block.

        A scatter with two equal rows is a race, which the reference reports.

        An index of several dimensions replaces ``dim`` by them, as in NumPy: ``new[i, j, ...] = old[index[i,
        j], ...]``.  This joins pages of rows: in ``pool.rows(pages).merge(1)`` the rows of all pages
        ``pages[b]`` follow each other.

        Args:
            index: a tensor of integers, in global or shared memory.
            dim: the dimension along which rows are chosen.
            padded: whether the index may have rows outside, for example -1 for no row; otherwise the
                reference reports them.

        Raises:
            TraceError: the index is not a tensor of integers, or ``dim`` does not exist.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="M N", I="R", Y="R N")
            ... def gather(X, I, Y):
            ...     r = tw.block_index(tw.ceil_div(I.shape[0], 8))
            ...     chosen = X.rows(I, padded=True).tile((8, 32), (r, 0))
            ...     tw.copy(chosen, Y.tile((8, 32), (r, 0)), threads=32)
            >>> x, y = np.arange(8, dtype=np.float32).reshape(4, 2), np.empty((3, 2), np.float32)
            >>> gather(x, np.array([3, -1, 0]), y, target="reference").target, y.tolist()
            ('reference', [[6.0, 7.0], [0.0, 0.0], [0.0, 1.0]])
        """
        count, name = len(self.shape), f"{self.value.buffer.name}_rows"
        chosen = constant("dimension", dim)
        shown = f".rows({index.value})" if not chosen else ""
        chosen = chosen + count if chosen < 0 else chosen
        attributes: dict[str, Any] = {"index": index.value, "dim": chosen, "padded": padded}
        return Tensor(current().define(Gather, name, shown=shown, source=self.value, **attributes))

    @property
    def unit_dim(self) -> int | None:
        """The last dimension whose neighbours are adjacent in memory, or None.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="M N")
            ... def look(X):
            ...     print(X.unit_dim, X.permute(1, 0).unit_dim)
            >>> _ = look(np.ones((3, 4), np.float32), target="reference")
            1 0
        """
        return self.value.tensor.view.unit_dim

    @verb
    def partition(
        self,
        threads: Layout | int | Sequence[int] | None = None,
        projection: Sequence[int | None] | None = None,
        vector_dim: int | None = None,
        access_order: Sequence[int] | None = None,
        vector: int | None = None,
    ) -> Tensor:
        """Distribute the tile over threads.

        Args:
            threads: number of threads: consecutive threads take consecutive vectors along the contiguous
                dimension.  Default: all threads of the role or of the block, see `copy`.  Or a layout of
                thread counts per dimension, whose strides number the threads; each thread takes one
                contiguous chunk.  A tuple of counts is short for the compact layout `Layout(counts)`, the
                first dimension fastest.
            projection: one entry per thread dimension: 1 keeps it; None drops it, so its threads hold copies.
                Default: all kept.
            vector_dim: the dimension of a thread's consecutive values; default: the last.
            access_order: the dimensions in the order in which a thread visits its chunk, fastest first;
                default: ``vector_dim``, then from the last to the first.
            vector: number of values that a thread takes along ``vector_dim`` before it follows
                ``access_order``; default: all of its chunk.

        Raises:
            TraceError: the threads cannot share the tile equally; the message names threads that can.

        Example:
            A tile that 32 threads hold, two neighbours each:

            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="M N")
            ... def double(X):
            ...     part = X.tile((4, 16), (0, 0)).partition((4, 8))
            ...     tw.copy(tw.load(part) * 2, part)
            >>> x = np.arange(6.0).reshape(2, 3)
            >>> double(x, target="reference").target, x.tolist()
            ('reference', [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]])
        """
        with located():
            made = share_out((self.value,), threads, projection, vector_dim, access_order, vector)
        name = f"{self.value.buffer.name}_part"
        return Tensor(current().define(PartitionOp, name, source=self.value, distribution=made))

    def __repr__(self) -> str:
        return f"{self.value.name}: {self.value.type!r}"


def _has_spans(index: Sequence[Any]) -> bool:
    """Return whether an index contains spans of a dataflow kernel."""
    return any(isinstance(part, SpanIndex | Tile) for part in index)


def _is_tile(index: Sequence[Any]) -> bool:
    """Return whether an index in a dataflow kernel makes a tile: spans, or whole rows with a new axis."""
    if _has_spans(index):
        return True
    whole = [one for one in index if isinstance(one, slice) and one.start is one.stop is one.step is None]
    axes = sum(one is None for one in index)
    return axes > 0 and len(whole) + axes == len(index)


def _extents(shape: Sequence[int | None]) -> tuple[int | None, ...]:
    return tuple(None if extent is None else constant("tile shape", extent) for extent in shape)


def _step(part: slice) -> int:
    """Return the step of a slice."""
    step = 1 if part.step is None else part.step
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or step == 0:
        near = "an integer other than 0 that is known while the kernel is traced, such as x[::2] or x[::-1]"
        raise TraceError(f"slice step {step!r}", here(), near)
    return int(step)


def _hiding(transform: Transform, shape: tuple[Int, ...]) -> Transform:
    """Return a schedule's tile or slice, with each index outside of the tensor held in a variable.

    Schedules take tiles past the end of a loop, or in a branch that is never taken.  If extents are
    constants, tracing knows that such a tile lies outside, and would refuse it.
    """
    if isinstance(transform, t.Tile):
        at = list(transform.at)
        for dim, (length, index, extent) in enumerate(zip(transform.shape, at, shape, strict=False)):
            if length is not None and index is not None and _is_outside(index, 1, ceil_div(extent, length)):
                at[dim] = _hidden(index)
        return t.Tile(transform.shape, tuple(at))
    if isinstance(transform, t.Slice):
        parts: list[Int | tuple[Int | None, Int | None] | None] = list(transform.at)
        edges = set(transform.edges)
        for dim, (part, extent) in enumerate(zip(parts, shape, strict=False)):
            low, high = t.slice_span(part, extent)
            count = add(high, mul(low, -1))
            if _is_outside(low, count, extent):
                first = _hidden(low)
                parts[dim] = (first, add(first, count)) if isinstance(part, tuple) else first
                edges.add(dim)
        return t.Slice(tuple(parts), tuple(sorted(edges)))
    return transform


def _is_outside(first: Int, length: Int, extent: Int) -> bool:
    """Return whether a span is proven to leave its dimension."""
    return prove(less_equal(0, first)) is False or prove(less_equal(add(first, length), extent)) is False


def _hidden(index: Int) -> Int:
    """Return an index through a variable, so that no proof knows its value."""
    tracer = current()
    held = tracer.define(Variable, "outside", initial=index)
    now = Sym(tracer.names((f"{held.name}_now",))[0], *VARIABLE)
    tracer.data.add(now)
    tracer.builder.append(GetVariable(now, held, location=here()))
    return now


def _may_leave(low: Int, high: Int, extent: Int) -> bool:
    """Return whether a span depends on data and is not proven to lie in its dimension."""
    if not current().depends_on_data(low, high):
        return False
    return not (prove(less_equal(0, low)) and prove(less_equal(high, extent)))


def _whole_index(index: Any, rank: int) -> list[Any]:
    """Return an index with a part for each dimension: ``...`` and omitted parts become ``:``."""
    parts = list(as_tuple(index))
    where = next((at for at, part in enumerate(parts) if part is Ellipsis), len(parts))
    parts[where : where + 1] = [slice(None)] * (rank - len(parts) + (where < len(parts)))
    return parts
