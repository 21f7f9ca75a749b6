"""The values that authors of dataflow kernels use: spans, tiles, and accumulators."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NoReturn, Protocol

from tilewright.dataflow.nodes import ArrayPart, Literal, Node, Span
from tilewright.dtypes import DType, f32
from tilewright.errors import Location, TraceError, shown
from tilewright.lang.fragments import Arithmetic, elementwise
from tilewright.lang.numpy_functions import OF_FRAGMENTS
from tilewright.lang.rearranged import Rearranged
from tilewright.lang.scalars import as_tuple, wrap
from tilewright.lang.source import here
from tilewright.lang.tracer import inline, open_region, verb

# ---------------------------------------------------------------- spans: variables of `tiles` and `steps`


class SpanIndex:
    """A run of one dimension, as an index: ``m`` of ``for m, n in tw.tiles(C)``, and ``m // 128``.

    Args:
        span: the run.
        home: the loop whose variable it is.
        shared: number of neighbours that share one index.
    """

    __slots__ = ("home", "shared", "span")

    def __init__(self, span: Span, home: SpanLoop, shared: int = 1) -> None:
        self.span = span
        self.home = home
        self.shared = shared

    def check(self) -> None:
        """Raise an error if the loop of this span has ended.

        Raises:
            TraceError: the loop has ended.
        """
        if not self.home.is_open:
            raise ended_error(self.span.name, self.home)

    def __floordiv__(self, count: object) -> SpanIndex:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise TraceError(
                f"{self.span.name} // ({count}): the number of neighbours that share an element is an "
                "integer above 0, known while the kernel is traced",
                here(),
                "a constant of the kernel, such as group of `def attention(Q, K, *, group)`, or a view with "
                "a span for each part of the dimension, such as q.reshape(B, G, H // G, M, D)",
            )
        return SpanIndex(self.span, self.home, self.shared * count)

    def _no_arithmetic(self, *_: object) -> NoReturn:
        name = self.span.name
        raise TraceError(
            f"{name} is a span, not an integer: it can only index arrays, as in A[{name}, ...] or, if 128 "
            f"neighbours share an element, A[{name} // 128, ...]",
            here(),
            "a view of the array, such as A[1:] for shifted indices, or an explicit kernel, where "
            "tw.block_index and tw.range give integers",
        )

    def __iter__(self) -> NoReturn:
        raise TraceError(
            f"{self.span.name} is one span and cannot be unpacked",
            here(),
            "one variable in the `for` statement for each dimension of the array",
        )

    __add__ = __sub__ = __mul__ = __truediv__ = __mod__ = __pow__ = _no_arithmetic
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = _no_arithmetic
    __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = __matmul__ = _no_arithmetic
    __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = __rmatmul__ = _no_arithmetic
    __neg__ = __pos__ = __abs__ = __invert__ = __bool__ = __index__ = __int__ = __float__ = _no_arithmetic
    __lt__ = __le__ = __gt__ = __ge__ = _no_arithmetic
    __eq__ = __ne__ = _no_arithmetic
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return self.span.name if self.shared == 1 else f"{self.span.name} // {self.shared}"


class SpanLoop:
    """A loop over spans; ``is_open`` while its body is being recorded."""

    what = "loop"
    text: str
    location: Location
    is_open = False


def ended_error(what: str, home: SpanLoop) -> TraceError:
    """Return the error for the use of a loop's value after the loop."""
    return TraceError(
        f"{what} belongs to the loop over {home.text} at {home.location.frame}, which has ended",
        here(),
        "use it inside, or carry its sum out in an accumulator of tw.zeros",
    )


class TileRecorder(Protocol):
    """The methods of the recorder that tiles call."""

    loops: list[SpanLoop]

    def transposed(self, tile: Tile) -> Tile:
        """Return the tile with its two axes exchanged."""

    def product(
        self, left: Any, right: Any, precision: str = "exact", scales: tuple[Any, Any] = (None, None)
    ) -> Tile:
        """Record ``left @ right``."""

    def rearranged(self, tile: Tile, index: tuple[Any, ...]) -> Tile:
        """Record ``tile[:, None]``."""

    def reduced(self, tile: Tile, combine: str, axis: int) -> Tile:
        """Record ``combine`` over an axis."""

    def placed(self, tile: Tile, combine: str, axis: int) -> Tile:
        """Record the index of the first extreme along an axis."""

    def scanned(self, tile: Tile, axis: int, *, reverse: bool) -> Tile:
        """Record prefix sums along an axis."""

    def taken(self, table: Any, codes: Tile) -> Tile:
        """Record the elements of an array that codes choose."""

    def literal(self, value: float | int, element: DType, variable: str | None = None) -> Node:
        """Record a constant number."""

    def constant(self, value: Any, like: Tile) -> Tile:
        """Return a number as a tile of another tile's dtype, or a whole array if that tile has whole rows."""

    def carry(self, acc: Accumulator) -> None:
        """Let the open loops carry an accumulator that was made outside of them."""

    def accumulate(self, acc: Accumulator, other: Any, sign: str) -> Accumulator:
        """Record ``acc += other``."""

    def change(self, acc: Accumulator, how: str, value: Tile) -> Accumulator:
        """Record any other change of an accumulator."""


@inline.made("A[m, k] of a parameter A in a loop over tw.tiles gives one")
class Tile(Arithmetic):
    """A value of a dataflow kernel, with one axis for each span along which it varies.

    Made by ``A[m, k]``; arithmetic gives new tiles.  A function that takes one says so:

    >>> import tilewright as tw
    >>> def shifted(x: tw.Tile) -> tw.Tile:
    ...     return tw.relu(x - 1)
    """

    _instead_of = OF_FRAGMENTS

    def __init__(self, flow: TileRecorder, node: Node, needs: Iterable[SpanLoop] = ()) -> None:
        self.flow = flow
        self._node = node
        self.needs = frozenset(needs)
        self.region = open_region()

    @property
    def node(self) -> Node:
        """Its node in the graph of the `tilewright.ir.Flow`.

        Raises:
            TraceError: the tile belongs to a loop that has ended.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(A="M K", B="K N", C="M N")
            ... def look(A, B, C):
            ...     for m, n in tw.tiles(C):
            ...         acc = tw.zeros(dtype=tw.f32)
            ...         for k in tw.steps(A.shape[1]):
            ...             acc += A[m, k] @ B[k, n]
            ...         assert (2 * acc).node.function == "mul"
            ...         C[m, n] = acc
            >>> a, b, c = (np.ones(shape, np.float16) for shape in ((3, 4), (4, 5), (3, 5)))
            >>> look(a, b, c, target="reference").target, c[0, 0].item()
            ('reference', 4.0)
        """
        for loop in self.needs:
            if not loop.is_open:
                raise ended_error(tile_name(self), loop)
        return self._node

    @property
    def dtype(self) -> DType:
        """Its dtype.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(A="M K", B="K N", C="M N")
            ... def look(A, B, C):
            ...     for m, n in tw.tiles(C):
            ...         acc = tw.zeros(dtype=tw.f32)
            ...         for k in tw.steps(A.shape[1]):
            ...             acc += A[m, k] @ B[k, n]
            ...         assert (acc.dtype, acc.to(tw.f16).dtype) == (tw.f32, tw.f16)
            ...         C[m, n] = acc
            >>> a, b, c = (np.ones(shape, np.float16) for shape in ((3, 4), (4, 5), (3, 5)))
            >>> look(a, b, c, target="reference").target, c[0, 0].item()
            ('reference', 4.0)
        """
        return self.node.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        """The extents of the dimensions along its axes; 1 for a new axis.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(A="M K", B="K N", C="M N")
            ... def look(A, B, C):
            ...     for m, n in tw.tiles(C):
            ...         acc = tw.zeros(dtype=tw.f32)
            ...         for k in tw.steps(A.shape[1]):
            ...             acc += A[m, k] @ B[k, n]
            ...         assert str((acc.shape, acc.sum(axis=1)[:, None].shape)) == "((M, N), (M, 1))"
            ...         C[m, n] = acc
            >>> a, b, c = (np.ones(shape, np.float16) for shape in ((3, 4), (4, 5), (3, 5)))
            >>> look(a, b, c, target="reference").target, c[0, 0].item()
            ('reference', 4.0)
        """
        return tuple(1 if axis is None else wrap(axis.extent) for axis in self.node.axes)

    @property
    def T(self) -> Tile:  # noqa: N802 NumPy's name
        """The transpose of its two axes.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(A="K M", B="N K", C="M N")
            ... def product(A, B, C):
            ...     for m, n in tw.tiles(C):
            ...         acc = tw.zeros(dtype=tw.f32)
            ...         for k in tw.steps(A.shape[0]):
            ...             acc += A[k, m].T @ B[n, k].T
            ...         C[m, n] = acc
            >>> a, b, c = np.arange(6.0).reshape(2, 3), np.eye(2), np.empty((3, 2))
            >>> _ = product(*(one.astype(np.float32) for one in (a, b)), c, target="reference")
            >>> c.tolist()
            [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
        """
        return self.flow.transposed(self)

    @property
    def real(self) -> Tile:
        """The real parts of complex numbers; real numbers themselves.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(Z="N", re="N", im="N")
            ... def parts(Z, re, im):
            ...     for n in tw.tiles(Z):
            ...         re[n] = Z[n].real
            ...         im[n] = Z[n].imag
            >>> z, re, im = np.complex64([1 + 2j, 3 - 1j]), np.empty(2, np.float32), np.empty(2, np.float32)
            >>> parts(z, re, im, target="reference").target, re.tolist(), im.tolist()
            ('reference', [1.0, 3.0], [2.0, -1.0])
        """
        made: Tile = elementwise("real", self) if self.dtype.components > 1 else self
        return made

    @property
    def imag(self) -> Tile:
        """The imaginary parts of complex numbers, 0 for real numbers; see `real`.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(Z="N", im="N")
            ... def imaginary(Z, im):
            ...     for n in tw.tiles(Z):
            ...         im[n] = Z[n].imag
            >>> z, im = np.complex64([1 + 2j, 3 - 1j]), np.empty(2, np.float32)
            >>> imaginary(z, im, target="reference").target, im.tolist()
            ('reference', [2.0, -1.0])
        """
        made: Tile = elementwise("imag", self) if self.dtype.components > 1 else 0 * self
        return made

    @verb
    def conj(self) -> Tile:
        """Return the complex conjugates; real numbers stay.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(A="M K", B="N K", C="M N")
            ... def correlate(A, B, C):
            ...     for m, n in tw.tiles(C):
            ...         acc = tw.zeros()
            ...         for k in tw.steps(A.shape[1]):
            ...             acc += A[m, k] @ B[n, k].conj().T
            ...         C[m, n] = acc
            >>> a, b, c = np.complex64([[1j, 2]]), np.complex64([[1j, 1]]), np.empty((1, 1), np.complex64)
            >>> correlate(a, b, c, target="reference").target, c.item(0)
            ('reference', (3+0j))
        """
        made: Tile = elementwise("conj", self) if self.dtype.components > 1 else self
        return made

    def __matmul__(self, other: object) -> Tile:
        return self.flow.product(self, other)

    @verb
    def matmul(self, other: Any, *, precision: str = "exact", scales: tuple[Any, Any] = (None, None)) -> Tile:
        """``self @ other``, with a choice of precision, and with scales.

        Args:
            other: the tile on the right.
            precision: ``"exact"``; ``"tf32"``: f32 factors have 10 fraction bits; ``"f32"``: sums lose no
                more than sums in f32, even if the instruction truncates.
            scales: a tile along the axes of ``self`` and one along the axes of ``other``; each may be None.
                Each product is multiplied by both, in the dtype of the sum.  Products with the same scales
                are summed before the multiplication, for example 128 neighbours in ``scale[m, k // 128]``.

        Raises:
            TraceError: the precision is unknown, or is not ``"exact"`` for a product that is not summed in
                f32; scales vary along other axes, or the products are not floats.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(A="M K", B="K N", C="M N")
            ... def product(A, B, C):
            ...     for m, n in tw.tiles(C):
            ...         acc = tw.zeros(dtype=tw.f32)
            ...         for k in tw.steps(A.shape[1]):
            ...             acc += A[m, k].matmul(B[k, n], precision="tf32")
            ...         C[m, n] = acc
            >>> a, c = np.ones((8, 8), np.float32), np.empty((8, 8), np.float32)
            >>> _ = product(a, a, c, target="reference")
            >>> c.item(0)
            8.0

            A scale for each row of A and each two places along K:

            >>> @tw.kernel(A="M K", B="K N", S="M R", C="M N")
            ... def scaled(A, B, S, C):
            ...     tw.require(S.shape[1] == tw.ceil_div(A.shape[1], 2), "a scale for each two places")
            ...     for m, n in tw.tiles(C):
            ...         acc = tw.zeros(dtype=tw.f32)
            ...         for k in tw.steps(A.shape[1]):
            ...             acc += A[m, k].matmul(B[k, n], scales=(S[m, k // 2], None))
            ...         C[m, n] = acc
            >>> a, b, s, c = np.ones((1, 4)), np.ones((4, 1)), np.array([[2, 3]]), np.empty((1, 1))
            >>> a, b, s, c = (one.astype(np.float32) for one in (a, b, s, c))
            >>> _ = scaled(a, b, s, c, target="reference")
            >>> c.item(0)
            10.0
        """
        return self.flow.product(self, other, precision, scales)

    def __rmatmul__(self, other: object) -> Tile:
        return self.flow.product(other, self)

    def __getitem__(self, index: Any) -> Tile:
        return self.flow.rearranged(self, as_tuple(index))

    @verb
    def sum(self, axis: int) -> Tile:
        """Return the sum along a whole axis; the result lacks the axis.  Truth values are counted, in i32.

        Args:
            axis: the axis; a negative number counts from the last.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(A="M K", B="K N", r="M")
            ... def of_rows(A, B, r):
            ...     for m, n in tw.tiles((A.shape[0], B.shape[1])):
            ...         acc = tw.zeros(dtype=tw.f32)
            ...         for k in tw.steps(A.shape[1]):
            ...             acc += A[m, k] @ B[k, n]
            ...         r[m] = acc.sum(axis=1)
            >>> a, b, r = np.arange(6.0, dtype="f4").reshape(2, 3), np.eye(3, dtype="f4"), np.empty(2)
            >>> _ = of_rows(a, b, r, target="reference")
            >>> r.tolist()
            [3.0, 12.0]
        """
        return self.flow.reduced(self, "sum", axis)

    @verb
    def max(self, axis: int) -> Tile:
        """Return the maximum along a whole axis; the result lacks the axis.  NaN if any element is NaN.

        The maximum of truth values says whether any is true.

        Args:
            axis: the axis; a negative number counts from the last.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(A="M K", B="K N", r="M")
            ... def of_rows(A, B, r):
            ...     for m, n in tw.tiles((A.shape[0], B.shape[1])):
            ...         acc = tw.zeros(dtype=tw.f32)
            ...         for k in tw.steps(A.shape[1]):
            ...             acc += A[m, k] @ B[k, n]
            ...         r[m] = acc.max(axis=1)
            >>> a, b, r = np.arange(6.0, dtype="f4").reshape(2, 3), np.eye(3, dtype="f4"), np.empty(2)
            >>> _ = of_rows(a, b, r, target="reference")
            >>> r.tolist()
            [2.0, 5.0]
        """
        return self.flow.reduced(self, "max", axis)

    @verb
    def min(self, axis: int) -> Tile:
        """Return the minimum along a whole axis; the result lacks the axis.  NaN if any element is NaN.

        The minimum of truth values says whether all are true.

        Args:
            axis: the axis; a negative number counts from the last.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(A="M K", B="K N", r="M")
            ... def of_rows(A, B, r):
            ...     for m, n in tw.tiles((A.shape[0], B.shape[1])):
            ...         acc = tw.zeros(dtype=tw.f32)
            ...         for k in tw.steps(A.shape[1]):
            ...             acc += A[m, k] @ B[k, n]
            ...         r[m] = acc.min(axis=1)
            >>> a, b, r = np.arange(6.0, dtype="f4").reshape(2, 3), np.eye(3, dtype="f4"), np.empty(2)
            >>> _ = of_rows(a, b, r, target="reference")
            >>> r.tolist()
            [0.0, 3.0]
        """
        return self.flow.reduced(self, "min", axis)

    @verb
    def argmax(self, axis: int) -> Tile:
        """Return the index of the maximum along a whole axis, in i32; the result lacks the axis.

        Of equal elements the first one counts, and of rows with NaN the first NaN, as in NumPy.  In a loop
        over `steps` of the axis, this is the index in the whole dimension of the step's first maximum.

        Args:
            axis: the axis; a negative number counts from the last.

        Raises:
            TraceError: the tile has no such axis, or its numbers are complex.
            LaunchError: a row has no elements.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="M N", at="M")
            ... def of_rows(X, at):
            ...     for m, n in tw.tiles(X):
            ...         at[m] = X[m, n].argmax(axis=1)
            >>> x, at = np.float32([[1, 3, 3, 1], [5, np.nan, 6, 7]]), np.empty(2, np.int32)
            >>> _ = of_rows(x, at, target="reference")
            >>> at.tolist()
            [1, 1]
        """
        return self.flow.placed(self, "max", axis)

    @verb
    def argmin(self, axis: int) -> Tile:
        """Return the index of the minimum along a whole axis, in i32; the result lacks the axis.

        Of equal elements the first one counts, and of rows with NaN the first NaN, as in NumPy.  In a loop
        over `steps` of the axis, this is the index in the whole dimension of the step's first minimum.

        Args:
            axis: the axis; a negative number counts from the last.

        Raises:
            TraceError: the tile has no such axis, or its numbers are complex.
            LaunchError: a row has no elements.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="M N", at="M")
            ... def of_rows(X, at):
            ...     for m, n in tw.tiles(X):
            ...         at[m] = X[m, n].argmin(axis=1)
            >>> x, at = np.float32([[1, 3, 3, 1], [5, np.nan, 6, 7]]), np.empty(2, np.int32)
            >>> _ = of_rows(x, at, target="reference")
            >>> at.tolist()
            [0, 1]
        """
        return self.flow.placed(self, "min", axis)

    @verb
    def cumsum(self, axis: int, *, reverse: bool = False) -> Tile:
        """``y[i, j] = sum of x[i, k] for k <= j`` for ``axis=1``: prefix sums along a whole axis.

        Sums are in f32 for narrower floats, and in i32 for narrower integers and truth values.  Integers
        wrap.  If a row is longer than a tile, a loop over tiles carries the sum so far.  In a loop over
        `steps` of the axis itself, these are the prefix sums within the step; add the carried sum yourself.

        Args:
            axis: the axis; a negative number counts from the last.
            reverse: whether to sum from each element to the last: ``y[i, j] = sum of x[i, k] for k >= j``.

        Raises:
            TraceError: the tile has no such axis, the axis is a new one, or the numbers are complex.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="M N", Y="M N")
            ... def scan(X, Y):
            ...     for m, n in tw.tiles(Y):
            ...         Y[m, n] = X[m, n].cumsum(axis=1)
            >>> x, y = np.arange(6, dtype="f4").reshape(2, 3), np.empty((2, 3), np.float32)
            >>> scan(x, y, target="reference").target, y.tolist()
            ('reference', [[0.0, 1.0, 3.0], [3.0, 7.0, 12.0]])
        """
        return self.flow.scanned(self, axis, reverse=reverse)

    added: tuple[Any, Any] | None = None
    """The rows chosen by integers, and the value that ``+=`` added to them."""

    def __iadd__(self, other: object) -> Tile:
        return self._with_added(other, other)

    def __isub__(self, other: object) -> Tile:
        made: Any = other
        return self._with_added(other, -made)

    def _with_added(self, other: Any, value: Any) -> Tile:
        """Return the sum with a value, or the difference; a store to the same chosen rows adds the value."""
        whole: Any = self
        part = self.added[0] if self.added is not None else self.node
        is_chosen = isinstance(part, ArrayPart) and bool(part.operand.indices)
        if is_chosen and isinstance(other, Tile) and other.dtype != self.dtype:
            whole = self.to(other.dtype)
        total: Tile = whole + other if value is other else whole - other
        if is_chosen:
            total.added = part, value if self.added is None else self.added[1] + value
        return total

    def __bool__(self) -> NoReturn:
        raise TraceError(
            f"{tile_name(self)} has many values and no single truth value; use "
            "`tw.where(mask, x, y)` to choose element by element, `tw.maximum` and `tw.minimum`, and &, | "
            "and ~ in place of and, or and not",
            here(),
        )

    def __iter__(self) -> NoReturn:
        raise TraceError(
            f"{tile_name(self)} cannot be iterated over: it is computed as a whole",
            here(),
            "x.sum(axis) for a sum, x.max(axis) for an extreme",
        )

    def __repr__(self) -> str:
        return f"{self._node.variable or 'tile'}: {self._node.dtype}{spelled(self._node)}"


class Accumulator(Tile):
    """The result of `zeros`: ``acc += a @ b`` adds to it, and a loop over `steps` carries it."""

    def __init__(
        self, flow: TileRecorder, start: Literal, dtype: DType | None, home: SpanLoop, precision: str
    ) -> None:
        super().__init__(flow, start, [home])
        self.variable = start.variable or "acc"
        self.chosen = dtype
        self.precision = precision
        self.outer = tuple(flow.loops)  # the loops open at its creation do not carry it

    @property
    def node(self) -> Node:
        """Its current value."""
        self.choose_dtype(f32)
        self.flow.carry(self)
        return super().node

    def choose_dtype(self, kind: DType) -> None:
        """Take a dtype, if none was chosen."""
        if self.chosen is None:
            self.chosen = kind
            self._node = replace(self._node, dtype=kind)

    def set_value(self, node: Node, needs: Iterable[SpanLoop], without: Iterable[SpanLoop] = ()) -> None:
        """Set the value; it also belongs to the loops ``needs``, and no longer to ``without``."""
        self._node = node
        self.needs = (self.needs | frozenset(needs)) - frozenset(without)

    def __iadd__(self, other: object) -> Accumulator:
        return self.flow.accumulate(self, other, "+")

    def __isub__(self, other: object) -> Accumulator:
        return self.flow.accumulate(self, other, "-")

    def __imul__(self, other: object) -> Accumulator:
        return self.flow.change(self, "*", self * other)

    def __itruediv__(self, other: object) -> Accumulator:
        return self.flow.change(self, "/", self / other)

    @verb
    def assign(self, value: Any) -> Accumulator:
        """Take another value, which a loop over `steps` carries to its next step.

        The result must not depend on the number of elements in a step.  A loop carries a value for each row,
        or for each element of a tile of the result.  Within a step all values are computed from the old ones.

        Args:
            value: a tile, or a number; for whole rows an array, too, as in ``Z.assign(z[:])``.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(A="M K", x="K", y="M")
            ... def largest(A, x, y):
            ...     for m in tw.tiles(y):
            ...         top = tw.full((m,), 0, tw.f64)
            ...         for k in tw.steps(x.shape[0]):
            ...             top.assign(tw.maximum(top, (A[m, k] * x[k]).max(axis=1)))
            ...         y[m] = top
            >>> a, x, y = np.ones((2, 8)), np.arange(8.0), np.empty(2)
            >>> largest(a, x, y, target="reference").target, y.tolist()
            ('reference', [7.0, 7.0])
        """
        if not isinstance(value, Tile):
            value = self.flow.constant(value, self)
        return self.flow.change(self, "assign", value)


BY_DISTANCE = "for table[m - n + N - 1] the view table[::-1].embed(0, (M, N), (1, 1), 0)[::-1][m, n]"
"""What to write for a table of a number for each distance, instead of `tw.take` with computed codes."""


def tile_name(tile: Tile) -> str:
    """Return the name of a tile in messages."""
    node = tile._node
    name = tile.variable if isinstance(tile, Accumulator) else node.variable
    return name or f"a tile along {spelled(node)}"


def spelled(node: Node) -> str:
    """Format the axes of a value for messages: ``[m, 1]``."""
    return f"[{', '.join('1' if axis is None else axis.name for axis in node.axes)}]"


def no_tile_error(value: object) -> TraceError:
    """Return the error for a value that must be a tile."""
    if isinstance(value, Rearranged):
        name = str(value).partition(":")[0]
        rank = len(value.value.tensor.shape)
        if not rank:
            return TraceError(
                f"{name} is one element of an array",
                here(),
                "a number argument of the kernel, declared with @tw.kernel(s=tw.f32)",
            )
        spans = "n" if rank == 1 else ", ".join("bghmk"[-rank:])
        return TraceError(
            f"{name} is an array, and arithmetic is done with tiles",
            here(),
            f"{name} indexed with spans of tw.tiles and tw.steps, e.g. {name}[{spans}]",
        )
    return TraceError(f"{shown(value)} of type {type(value).__name__} is not a tile", here())
