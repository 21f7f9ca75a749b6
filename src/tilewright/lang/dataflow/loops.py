"""Constructs of dataflow kernels: loops over tiles and steps, accumulators, and the recorder of a flow."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, NoReturn

from tilewright.argument_checks import is_number
from tilewright.dataflow.legality import moved_misfit
from tilewright.dataflow.nodes import (
    BATCH,
    EXACT,
    PRECISIONS,
    STEPS,
    TILE,
    ArrayPart,
    Cell,
    Flow,
    Folded,
    Groups,
    Integer,
    Literal,
    Node,
    NumberParam,
    Operand,
    Rearrange,
    Reduce,
    Span,
    Sum,
    walk,
)
from tilewright.dtypes import DType, f32, i32, i64
from tilewright.errors import Location, TraceError, shown
from tilewright.ir.async_ops import PriorGridWait
from tilewright.ir.kernel import Param, ScalarParam, TensorParam
from tilewright.ir.op import Block
from tilewright.ir.ops import Elementwise, Gather, Op, Reshape
from tilewright.lang.control import LoopStatement, RecordedLoop
from tilewright.lang.dataflow import folds, indexing
from tilewright.lang.dataflow.folds import Steps, close
from tilewright.lang.dataflow.indexing import check_in_place, operand_of
from tilewright.lang.dataflow.recorder import Recorder, complex_dtype, product_axes, scale_axes, sum_dtype
from tilewright.lang.dataflow.rows import first_place, place_of, scanned, whole
from tilewright.lang.dataflow.tiles import Accumulator, SpanIndex, SpanLoop, Tile, no_tile_error, tile_name
from tilewright.lang.fragments import element_type, number
from tilewright.lang.scalars import Index, Scalar, as_tuple, constant, unwrap
from tilewright.lang.source import here, leaving, loop_targets, result_names
from tilewright.lang.tensors import Tensor
from tilewright.lang.tracer import current, located, verb
from tilewright.symbolic.nodes import Int, Sym, divisor


@verb
def tiles(
    of: Tensor | Index | Sequence[Index],
    *,
    batch: int | None = None,
    groups: Tensor | tuple[Tensor, Tensor] | None = None,
) -> Any:
    """``for m, n in tw.tiles(C):`` describes one tile of the result; the kernel computes all of them.

    A kernel with this loop describes *what* to compute; a schedule decides how.  Index arrays with ``m``,
    ``n`` and the ``k`` of `steps`, compute with tiles as in NumPy, and store one with ``C[m, n] = ...``.

    Args:
        of: the array to store, or the extents of the dimensions.
        batch: number of leading dimensions that are single indices, as in ``for b, m, n in tw.tiles(C)``;
            default: all but two.
        groups: an array of integers that divides the first dimension after the batches into groups, as in
            ``for g, m, n in tw.tiles(C, groups=ends)`` and ``for g, b, m, n in tw.tiles(C, groups=ends)``.
            Group ``g`` has the rows ``m`` from ``ends[g - 1]`` (from 0 for the first group) up to
            ``ends[g]``, excluded.  With ``groups=(starts, ends)`` it begins with ``starts[g]``; no group
            begins before the end of an earlier one.  The kernel reads the arrays, so groups may differ at
            every launch.  Rows outside of all groups are not stored.

    Raises:
        TraceError: the call is not in a ``for`` statement, there is a second loop over tiles, or explicit
            operations precede it; or groups are not arrays of integers.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="N K", bias="N", C="M N")
        ... def linear(A, B, bias, C):
        ...     for m, n in tw.tiles(C):
        ...         acc = tw.zeros(dtype=tw.f32)
        ...         for k in tw.steps(A.shape[1]):
        ...             acc += A[m, k] @ B[n, k].T
        ...         C[m, n] = tw.relu(acc + bias[n])
        >>> a, b, bias = np.ones((2, 8), np.float32), np.ones((3, 8), np.float32), np.float32([0, 1, -9])
        >>> c = np.empty((2, 3), np.float32)
        >>> linear(a, b, bias, c, target="reference").target, c.tolist()
        ('reference', [[8.0, 9.0, 0.0], [8.0, 9.0, 0.0]])
    """
    tracer = current()
    given = of.shape if isinstance(of, Tensor) else as_tuple(of)
    extents = tuple(unwrap(extent) for extent in given)
    text = f"tw.tiles({of.value})" if isinstance(of, Tensor) else f"tw.tiles({extents})"
    if tracer.flow is not None:
        raise TraceError(
            "a second loop over tw.tiles: a kernel has one loop over the tiles of its results",
            here(),
            "several stores in one loop, or two kernels",
        )
    if not extents:
        raise TraceError("tw.tiles of an array without dimensions", here(), "tw.tiles(1)")
    single = max(len(extents) - 2, 0) if batch is None else batch
    if not 0 <= single < len(extents):
        near = (
            f"{len(extents) - 1}, or a view with a last dimension of 1, such as y.unmerge(0, (y.shape[0], 1))"
        )
        raise TraceError(f"batch={single} for {len(extents)} dimensions", here(), near)
    if groups is not None:
        several: tuple[Any, ...] = groups if isinstance(groups, tuple) and len(groups) == 2 else (groups,)
        for one in several:
            if not (isinstance(one, Tensor) and len(one.shape) == 1 and one.dtype.name in ("i32", "i64")):
                raise TraceError(
                    f"groups={shown(one)}",
                    here(),
                    "an array parameter of i32 or i64 with one dimension; element g is the index of the "
                    "last row of group g, plus 1",
                )
    loop = _TilesLoop(text, here(), extents, single, groups)
    return LoopStatement(lambda: loop)


@verb
def steps(
    extent: Index | Sequence[Index],
    *,
    begin: Tile | int | None = 0,
    end: Tile | None = None,
    block: int = 1,
    state: Tile | Sequence[Tile] = (),
    merge: Callable[..., Any] | None = None,
) -> Any:
    """``for k in tw.steps(K):`` iterates over a summed dimension, in steps of any length.

    A loop that carries a state can be computed in parts, each by a block, if the states of two parts merge.
    The library derives how sums, extremes, sums that powers of an extreme rescale, and indices of extremes
    merge.  For other states, pass ``merge``.

    Args:
        extent: extent of the dimension.  With several extents, as in ``for r, k in tw.steps((R, K))``, all
            but the last are single indices.  The loop over ``k`` runs once for each of them, in order, and
            goes on with the same accumulators, which need their axes (`zeros`).
        begin: first index of the (last) loop: 0, or an integer in memory for each index of a batch, as in
            ``tw.steps(K, begin=starts[b], end=ends[b])``.  Integers are clamped to the dimension.  None: the
            loop of ``b`` begins where that of ``b - 1`` ends, and the first one with 0.
        end: one more than its last index, an integer in memory for each index of the same batch; default: the
            whole dimension.
        block: number of indices in one unit of ``begin`` and ``end``.  With ``block=64`` they count blocks of
            64 indices, such as the rows of blocks that integers choose.
        state: the accumulators that ``merge`` merges; the library derives how the others merge.
        merge: function of two states, each a tuple of tiles in the order of ``state``, or one tile for one
            accumulator.  The first state is that of some elements of the dimension, the second that of the
            elements that follow; it returns the state of both.  It is never called for a part without
            elements.  It computes with the states, numbers and positions: functions, reductions, and
            loops over ``tw.steps((count, 1))``.  It is tried on random arrays, modulo primes and in f64.

    Raises:
        TraceError: the call is not in a ``for`` statement inside a loop over `tiles`; ``begin`` or ``end`` is
            not such an integer; or ``merge`` disagrees with the steps of the loop.

    Example:
        A difference of two products, with one sum:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="K N", D="M K", E="K N", C="M N")
        ... def difference(A, B, D, E, C):
        ...     for m, n in tw.tiles(C):
        ...         acc = tw.zeros()
        ...         for k in tw.steps(A.shape[1]):
        ...             acc += A[m, k] @ B[k, n] - D[m, k] @ E[k, n]
        ...         C[m, n] = acc
        >>> a, b, c = np.ones((2, 8)), np.ones((8, 2)), np.empty((2, 2))
        >>> _ = difference(a, 3 * b, a, b, c, target="reference")
        >>> c.tolist()
        [[16.0, 16.0], [16.0, 16.0]]

        A mean, with the number of elements so far:

        >>> def both(a, b):
        ...     return (a[0] * a[1] + b[0] * b[1]) / (a[1] + b[1]), a[1] + b[1]
        >>> @tw.kernel(X="M N", y="M")
        ... def mean(X, y):
        ...     for m in tw.tiles(y):
        ...         mu, count = tw.zeros((m,), tw.f64), tw.zeros((m,), tw.f64)
        ...         for n in tw.steps(X.shape[1], state=(mu, count), merge=both):
        ...             more = (0 * X[m, n] + 1).sum(axis=1)
        ...             mu.assign((mu * count + X[m, n].sum(axis=1)) / (count + more))
        ...             count.assign(count + more)
        ...         y[m] = mu
        >>> x, y = np.arange(256.0).reshape(2, 128), np.empty(2)
        >>> split = tw.Schedule(tw.atoms.fma(tw.f64), (8, 32, 16), split_k=2)
        >>> mean.bind(schedule=split)(x, y, target="reference").target
        'reference'
        >>> y.tolist()
        [63.5, 191.5]
    """
    _flow("tw.steps")
    extents = tuple(unwrap(one) for one in as_tuple(extent))
    if not extents:
        raise TraceError("tw.steps of no extent", here(), "tw.steps(1)")
    text = ", ".join(map(str, extents))
    loop = _StepsLoop(f"tw.steps({text})" if len(extents) == 1 else f"tw.steps(({text}))", here(), extents)
    if end is not None:
        loop.groups = replace(_bounded(begin, end), block=_block(block, extents[-1]))
    elif begin is None or isinstance(begin, Tile) or begin != 0:
        raise TraceError(
            f"tw.steps with begin={shown(begin)} and without end", here(), "begin=starts[b] and end=ends[b]"
        )
    loop.merge = merge
    for one in (state,) if isinstance(state, Tile) else state:
        if not isinstance(one, Accumulator):
            raise TraceError(
                f"state= has {tile_name(one)}, which no loop carries",
                here(),
                "accumulators of tw.zeros or tw.full, made before the loop",
            )
        loop.state += (one,)
    if bool(loop.state) != (merge is not None):
        given, missing = ("state=", "merge=") if loop.state else ("merge=", "state=")
        raise TraceError(
            f"{given} without {missing}",
            here(),
            "both, as in tw.steps(N, state=(mu, count), merge=function of two states)",
        )
    return LoopStatement(lambda: loop)


def _block(block: int, extent: Int) -> int:
    """Return the number of indices in one unit of ``begin`` and ``end``; it must divide the extent."""
    found = constant("block", block)
    if found < 1 or divisor(extent) % found:
        raise TraceError(
            f"tw.steps({extent}) with block={found}",
            here(),
            "an extent of whole blocks, as in tw.steps(blocks.shape[0] * 64, begin=starts[b], end=ends[b], "
            "block=64)",
        )
    return found


def _bounded(begin: Any, end: Any) -> Groups:
    """Return the bounds of a loop over steps as the bounds of groups."""
    found = []
    for name, one in (("begin", begin), ("end", end)):
        node = one.node if isinstance(one, Tile) else None
        if isinstance(node, ArrayPart) and [span.kind for span in node.at] == [BATCH]:
            what = f"bounds of a loop are integers in one dimension, and {node.operand.name} is"
            if node.operand.dtype.name in ("i32", "i64") and not node.operand.transforms:
                found.append(node)
                continue
            given = f"{what} {'a view' if node.operand.transforms else node.operand.dtype}"
        elif name == "begin" and (one is None or (is_number(one) and one == 0)):
            continue
        else:
            given = f"tw.steps with {name}={shown(one)}"
        near = f"a whole array of i32 with one dimension, at a batch: {name}=rows[b]"
        if isinstance(node, ArrayPart) and node.operand.transforms:
            array = node.operand.name
            near = f"an argument of its own for each view: call the kernel with {array}[:-1] and {array}[1:]"
        raise TraceError(given, here(), near)
    [index, *others] = dict.fromkeys(node.at[0] for node in found)
    tiles = _flow("tw.steps").tiles
    others += [span.groups.index for span in tiles if span.groups and span.groups.index != index]
    if others or index not in tiles:
        names = " and ".join(dict.fromkeys(span.name for span in (index, *others)))
        raise TraceError(
            f"the bounds of tw.steps are those of {names}",
            here(),
            "bounds of one batch of tw.tiles, which numbers its groups, if there are any",
        )
    starts = found[0].operand if len(found) == 2 else begin
    return Groups(index, found[-1].operand, starts)


@verb
def zeros(along: Any = (), dtype: DType | str | None = None, *, precision: str = EXACT) -> Accumulator:
    """An accumulator of zeros, for ``acc += a @ b`` in a loop over `steps`; arguments as of `numpy.zeros`.

    Args:
        along: the spans of its axes, in place of NumPy's shape, or the extents of whole dimensions, as in
            ``tw.zeros((Q.shape[1], e))``; needed only if the first step reads the accumulator, as in
            ``acc.assign(acc + x)``.
        dtype: dtype of the sums; default: f32 for products of narrower floats, i32 for integers, f64 for f64.
        precision: ``"exact"``; ``"tf32"``: f32 factors may have 10 fraction bits; ``"f32"``: sums lose no
            more than sums in f32, even if the instruction truncates.

    Raises:
        TraceError: ``along`` is a dtype, as in the older order ``(dtype, along)``, or is not made of spans;
            or the precision is unknown.

    Example:
        A matrix by a vector:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="K N", C="M N")
        ... def product(A, B, C):
        ...     for m, n in tw.tiles(C):
        ...         acc = tw.zeros(dtype=tw.f64)
        ...         for k in tw.steps(A.shape[1]):
        ...             acc += A[m, k] @ B[k, n]
        ...         C[m, n] = acc
        >>> a, b, c = np.ones((2, 8)), np.arange(8.0)[:, None], np.empty((2, 1))
        >>> _ = product(a, b, c, target="reference")
        >>> c[:, 0].tolist()
        [28.0, 28.0]
    """
    if isinstance(along, DType | str):
        spans, kind = shown(dtype), f"tw.{along}"
        given, nearest = (
            (along, f"dtype={kind}") if dtype is None else (f"{along}, {spans}", f"{spans}, {kind}")
        )
        raise TraceError(f"zeros({given}): the order is (along, dtype)", here(), f"zeros({nearest})")
    return _accumulator(0, dtype, along, precision)


@verb
def full(along: Any, value: Any, dtype: DType | str | None = None) -> Accumulator:
    """An accumulator with an initial value; arguments in the order of `numpy.full`; see `zeros`.

    Args:
        along: the spans of its axes, in place of NumPy's shape; ``()`` if the products decide.
        value: the number.
        dtype: its dtype.

    Raises:
        TraceError: ``value`` is not a number, as in the older order ``(value, dtype, along)``.

    Example:
        The largest product of each row, whatever the length of a step:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", x="K", y="M")
        ... def largest(A, x, y):
        ...     for m in tw.tiles(y):
        ...         top = tw.full((m,), -float("inf"), tw.f64)
        ...         for k in tw.steps(x.shape[0]):
        ...             top.assign(tw.maximum(top, (A[m, k] * x[k]).max(axis=1)))
        ...         y[m] = top
        >>> a, x, y = np.ones((2, 8)), np.arange(8.0), np.empty(2)
        >>> largest(a, x, y, target="reference").target, y.tolist()
        ('reference', [7.0, 7.0])
    """
    if not is_number(value):
        given = f"full({shown(along)}, {shown(value)}, {shown(dtype)})"
        nearest = "full((m,), 0.0, tw.f32)"
        raise TraceError(f"{given}: the order is (along, value, dtype)", here(), nearest)
    return _accumulator(number(value), dtype, along)


def _accumulator(value: float, dtype: Any, along: Any, precision: Any = EXACT) -> Accumulator:
    flow = _flow("an accumulator")
    if precision not in PRECISIONS:
        known = " or ".join(map(repr, PRECISIONS))
        raise TraceError(f"precision={precision!r}", here(), known)
    kind = None if dtype is None else element_type(dtype)
    names = result_names()[0]
    name = names[0] if len(names) == 1 else "acc"
    spans: list[Span] = []
    for one in as_tuple(along):
        if isinstance(one, Scalar) or (isinstance(one, int) and not isinstance(one, bool)):
            one = flow.rows.index(unwrap(one), spans)
        if not isinstance(one, SpanIndex):
            raise TraceError(f"along={shown(one)}", here(), "spans, e.g. (m, n)")
        one.check()
        spans.append(one.span)
    start = Literal(f32 if kind is None else kind, tuple(spans), value, variable=name, location=here())
    return Accumulator(flow, start, kind, flow.home, precision)


def _flow(what: str) -> FlowRecorder:
    flow = current().flow
    if not isinstance(flow, FlowRecorder) or not flow.home.is_open:
        raise TraceError(f"{what} belongs in a loop over tiles", here(), "for m, n in tw.tiles(C): around it")
    return flow


class _SpanLoop(RecordedLoop, SpanLoop):
    """A loop over spans."""

    def begin(self, frame: FrameType) -> Any:
        """Return the spans."""
        if leaving(self.code, self.location) is not None:
            raise self.left()
        self.is_open = True
        return self.spans(loop_targets(frame))

    def end(self, block: Block) -> None:
        """Finish the loop after its body was recorded."""
        self.finish()
        self.is_open = False

    @abstractmethod
    def spans(self, targets: list[str]) -> Any:
        """Return the values of the loop variables with these names."""

    @abstractmethod
    def finish(self) -> None:
        """Check the recorded body, and set the values after the loop."""

    def left(self) -> TraceError:
        """Return the error of a loop whose body was left by break, return or an exception."""
        how, place = leaving(self.code, self.location) or ("an exception", self.location)
        return TraceError(
            f"the loop over {self.text} is left by {how}: its body is recorded once for all tiles and steps",
            place,
            "tw.where, element by element, or an explicit kernel",
        )


class _TilesLoop(_SpanLoop):
    """The loop over the tiles of the results."""

    def __init__(
        self,
        text: str,
        location: Location,
        extents: tuple[Int, ...],
        batch: int,
        groups: Tensor | tuple[Tensor, Tensor] | None,
    ) -> None:
        super().__init__(text, location)
        self.extents = extents
        self.batch = batch
        self.groups = groups

    def spans(self, targets: list[str]) -> Any:
        """Return a span for each dimension; a single span, not a tuple, if the author has one variable."""
        tracer = current()
        if (what := tracer.explicit()) is not None:
            raise explicit_error(what)
        flow = FlowRecorder(tracer, self)
        names = _names(targets, len(self.extents) + (self.groups is not None))
        leading, groups = [], None
        if self.groups is not None:
            *starts, ends = (self._bounds(flow, one) for one in as_tuple(self.groups))
            leading = [Span(tracer.name(names.pop(0)), ends.shape[0], BATCH)]
            groups = Groups(leading[0], ends, starts[0] if starts else None)
        kinds = (*(BATCH,) * self.batch, *(TILE,) * (len(self.extents) - self.batch))
        cuts = [groups if at == self.batch else None for at in range(len(kinds))]
        flow.tiles = (
            *leading,
            *(
                Span(tracer.name(name), extent, kind, cut)
                for name, extent, kind, cut in zip(names, self.extents, kinds, cuts, strict=True)
            ),
        )
        tracer.flow = flow
        made = tuple(SpanIndex(span, self) for span in flow.tiles)
        return made[0] if len(made) == 1 and len(targets) == 1 and not targets[0].startswith("*") else made

    def _bounds(self, flow: FlowRecorder, groups: Tensor) -> Operand:
        """Return the array that bounds groups."""
        bounds = operand_of(flow, groups)
        if bounds.transforms:
            raise TraceError(f"groups= is a view of {bounds.name}", here(), "a whole array")
        return bounds

    def finish(self) -> None:
        """Require at least one store."""
        flow = current().flow
        if isinstance(flow, FlowRecorder) and not flow.stores:
            raise TraceError(
                f"{self.text} stores nothing", self.location, "C[m, n] = ... at the end of its body"
            )
        if isinstance(flow, FlowRecorder):
            check_in_place(flow)


class _StepsLoop(_SpanLoop, Steps):
    """A loop along a dimension that is summed."""

    def __init__(self, text: str, location: Location, extents: tuple[Int, ...]) -> None:
        super().__init__(text, location)
        self.carried, self.stores = [], []
        self.extents = extents
        self.groups: Groups | None = None

    def spans(self, targets: list[str]) -> Any:
        """Return the spans of the outer dimensions and, last, of the loop itself."""
        *names, last = map(current().name, _names(targets, len(self.extents)))
        *turns, extent = self.extents
        self.turns = tuple(Span(name, one, BATCH) for name, one in zip(names, turns, strict=True))
        self.span = Span(last, extent, STEPS, self.groups)
        _flow("tw.steps").loops.append(self)
        made = tuple(SpanIndex(span, self) for span in (*self.turns, self.span))
        return made if turns else made[0]

    def finish(self) -> None:
        """Give each carried accumulator its value after the loop."""
        flow = _flow("tw.steps")
        flow.loops.pop()
        if not self.carried:
            raise TraceError(
                f"{self.text} adds to no accumulator",
                self.location,
                "acc = tw.zeros() before it, and acc += a @ b in its body",
            )
        close(flow, self)


def _names(targets: list[str], count: int) -> list[str]:
    """Return the author's name for each span; a starred variable takes the remaining spans."""
    starred = [at for at, name in enumerate(targets) if name.startswith("*")]
    if starred and (left := count - len(targets) + 1) >= 0:
        [at] = starred
        name = targets[at][1:]
        return [*targets[:at], *(f"{name}{place}" for place in range(left)), *targets[at + 1 :]]
    if len(targets) == count:
        return targets
    return [f"i{place}_" for place in range(count)]


# ---------------------------------------------------------------- the recorder


class FlowRecorder(Recorder):
    """Records one dataflow kernel."""

    part, store = indexing.part, indexing.store
    carry, accumulate, change = folds.carry, folds.accumulate, folds.change

    # ---------------------------------------------------------------- tiles

    def product(
        self, left: Any, right: Any, precision: str = "exact", scales: tuple[Any, Any] = (None, None)
    ) -> Tile:
        """``left @ right``, a sum along a span of `steps`."""
        if isinstance(left, Tile) and isinstance(right, Tensor):
            right = whole(self, right, left.node.axes[-1] if left.node.axes else None)
        elif isinstance(right, Tile) and isinstance(left, Tensor) and len(left.value.tensor.shape) == 1:
            left = whole(self, left)
        for value in (left, right):
            if not isinstance(value, Tile):
                raise no_tile_error(value)
        a, b = left.node, right.node
        if a.axes and b.axes and a.axes[-1] != b.axes[0]:
            b = self.rows.renamed(b, b.axes[0], a.axes[-1]) or b
            a = self.rows.renamed(a, a.axes[-1], b.axes[0]) or a
        span, axes = product_axes(a, b)
        with located():
            kind = sum_dtype(a.dtype, b.dtype)
        if precision not in PRECISIONS or (precision != "exact" and kind.component != f32):
            raise TraceError(
                f"precision={precision!r} of a product that is summed in {kind}",
                here(),
                " or ".join(map(repr, PRECISIONS if kind.component == f32 else PRECISIONS[:1])),
            )
        if a.dtype.components != b.dtype.components:  # the other operand is real
            a, b = (
                node if node.dtype.components > 1 else self.converted(node, complex_dtype(node.dtype))
                for node in (a, b)
            )
        factors = [self._scale(*pair, kind) for pair in zip(scales, (left, right), strict=True)]
        parts, spans = [*walk(a)], {axis for axis in a.axes if axis is not None}
        is_computed = any(isinstance(one, Sum | Reduce | Cell | Folded) for one in parts)
        is_computed |= not any(isinstance(one, ArrayPart) and spans <= {*one.at} for one in parts)
        if is_computed and axes == a.axes[:-1] != () and factors == [None, None]:
            # Computed rows times a vector: each product is rounded once, as in a sum of products.
            tiles = (self.tile(self._converted(node, kind), of) for node, of in ((a, left), (b, right)))
            return self.reduced(self.mapped("mul", [*tiles]), "sum", -1)
        made = self.make(Sum, kind, axes, span, a, b, precision, *factors)
        return self.tile(made, left, right, *scales)

    def _scale(self, scale: Any, of: Tile, kind: DType) -> Node | None:
        """Return the scales of an operand's products, along its axes."""
        if scale is None:
            return None
        if not isinstance(scale, Tile):
            raise no_tile_error(scale)
        if not kind.is_float or not scale.dtype.is_float:
            raise TraceError(
                f"scales of {scale.dtype} of products that are summed in {kind}",
                here(),
                "operands and scales that are floats, e.g. A[m, k].to(tw.f16)",
            )
        node, axes = scale.node, scale_axes(scale.node, of.node)
        if node.axes != axes:
            node = self.make(Rearrange, node.dtype, axes, node)
        return node if node.dtype == kind else self.converted(node, kind)

    def transposed(self, tile: Tile) -> Tile:
        """Swap two axes."""
        node = tile.node
        if len(node.axes) != 2:
            near = "leading dimensions as batches, by batch= of tw.tiles" if len(node.axes) > 2 else None
            raise TraceError(f"{tile_name(tile)} has {len(node.axes)} axes; .T exchanges two", here(), near)
        return self.tile(self.make(Rearrange, node.dtype, node.axes[::-1], node), tile)

    def rearranged(self, tile: Tile, index: tuple[Any, ...]) -> Tile:
        """``tile[:, None]``: new axes."""
        node = tile.node
        return self.tile(self.make(Rearrange, node.dtype, indexing.new_axes(tile, node, index), node), tile)

    def reduced(self, tile: Tile, combine: str, axis: int) -> Tile:
        """Record ``combine`` over a whole axis."""
        if tile.dtype.kind == "bool":  # a count of truth values, or whether any or all hold
            found = self.reduced(tile.to(i32), combine, axis)
            return found if combine == "sum" else self.mapped("less", [0, found])
        node, place = tile.node, place_of(tile, combine, axis)
        axes = (*node.axes[:place], *node.axes[place + 1 :])
        return self.tile(self.make(Reduce, node.dtype, axes, combine, node, place), tile)

    def placed(self, tile: Tile, combine: str, axis: int) -> Tile:
        """Record the index of the first extreme along an axis."""
        return first_place(self, tile, combine, axis)

    def scanned(self, tile: Tile, axis: int, *, reverse: bool) -> Tile:
        """Record prefix sums along an axis."""
        return scanned(self, tile, axis, reverse=reverse)

    def taken(self, table: Tensor, codes: Tile) -> Tile:
        """Record the elements of an array that codes choose."""
        return indexing.taken(self, table, codes)

    def refuse(self, what: str) -> NoReturn:
        """Refuse a call that belongs to explicit kernels."""
        raise explicit_error(what)

    def no_arithmetic(self, tensor: Any) -> Exception:
        """Return the error for arithmetic with a tensor that is not indexed."""
        return no_tile_error(tensor)

    def enter(self, construct: object) -> None:
        """Refuse loops, branches and roles of explicit kernels.

        Raises:
            TraceError: it is one.
        """
        if not isinstance(construct, SpanLoop):
            raise explicit_error(f"a {getattr(construct, 'what', 'region')} of tw.range, tw.when or tw.role")

    def admit(self, op: type[Op]) -> None:
        """Refuse operations of explicit kernels; allow views of arrays and arithmetic of numbers.

        Raises:
            TraceError: the operation belongs to explicit kernels.
        """
        if op is PriorGridWait:
            self.waits_for_prior_grid = True
        elif op not in (Reshape, Gather, Elementwise):
            raise explicit_error(f"tw.{op.name}")

    def finish(self, name: str, params: Sequence[Param | Sym]) -> Flow:
        """Return the flow of the kernel.

        Args:
            name: name of the kernel.
            params: its arrays, numbers and integers, in the author's order.
        """
        parameters: list[Operand | NumberParam | Integer] = []
        for param in params:
            if isinstance(param, TensorParam):
                kind = param.value.tensor
                parameters.append(Operand(param.value.name, kind.dtype, kind.shape))
            elif isinstance(param, ScalarParam):
                parameters.append(NumberParam(param.value.dtype, (), param.value.name))
            elif isinstance(param, Sym):
                parameters.append(Integer(i64, (), param))
        guards = tuple(self.tracer.guards)
        more = guards, self.waits_for_prior_grid, tuple(self.arrivals), self.departure
        flow = Flow(name, tuple(parameters), self.tiles, tuple(self.stores), *more)
        for one in flow.moved:
            if wrong := moved_misfit(flow, one):
                raise TraceError(wrong[0], one.location, wrong[1])
        return flow


def explicit_error(what: str) -> TraceError:
    """Return the error for a dataflow kernel with operations of explicit kernels."""
    return TraceError(
        f"{what} determines how threads compute, which a kernel with tw.tiles leaves to its schedule",
        here(),
        "omit it, or write the whole kernel explicitly, with tw.block_index, tw.load and tw.copy",
    )
