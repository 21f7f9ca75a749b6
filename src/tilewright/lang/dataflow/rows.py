"""Whole rows: dimensions that a dataflow kernel indexes with ``:``, and functions of rows such as `softmax`.

A whole row has its own span, of kind `STEPS`.  No kernel stores a whole row in memory: a schedule turns
reductions along it into a loop (`tilewright.schedule.folds.rows`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.dataflow.nodes import (
    STEPS,
    TILE,
    ArrayPart,
    Axis,
    Folded,
    Map,
    Node,
    Position,
    Rearrange,
    Reduce,
    Scan,
    Span,
    Sum,
    walk,
)
from tilewright.dtypes import f32, i32, limits
from tilewright.errors import TraceError
from tilewright.ir.ops import Reshape
from tilewright.lang.dataflow.tiles import SpanIndex, SpanLoop, Tile, TileRecorder, spelled, tile_name
from tilewright.lang.exact_functions import maximum, where
from tilewright.lang.functions import exp
from tilewright.lang.launch import require
from tilewright.lang.scalars import wrap
from tilewright.lang.source import here
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import NOWHERE
from tilewright.lang.tracer import Tracer, verb
from tilewright.symbolic.nodes import Int, Sym
from tilewright.views.transforms import Permute


class WholeRows:
    """The whole rows of a flow: a span for each extent.

    Args:
        tracer: the tracer of the kernel.
        home: the loop over tiles.
    """

    def __init__(self, tracer: Tracer, home: SpanLoop) -> None:
        self.tracer, self.home = tracer, home
        self.spans: list[Span] = []
        self.stored: dict[Span, Span] = {}
        """For each whole row that is stored, the span of the tiles along it."""

    def index(self, extent: Int, taken: Collection[Span] = ()) -> SpanIndex:
        """Return the index for ``:`` of a dimension: a span of its extent that is not in ``taken``."""
        for span in self.spans:
            if span not in taken and self.tracer.are_equal(span.extent, extent):
                return SpanIndex(span, self.home)
        wanted = extent.name.lower() if isinstance(extent, Sym) and extent.name.isidentifier() else "row"
        span = Span(self.tracer.name(wanted, own=False), extent, STEPS)
        self.spans.append(span)
        return SpanIndex(span, self.home)

    def completed(self, tensor: Tensor, index: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return an index with a span for each ``:``, and for each dimension that it omits."""
        shape = tensor.value.tensor.shape
        missing = len(shape) - sum(one is not None and one is not Ellipsis for one in index)
        if missing < 0 or sum(one is Ellipsis for one in index) > 1:
            given = f"{len(shape) - missing} indices" if missing < 0 else "`...` twice"
            raise TraceError(
                f"{tensor.value} has {len(shape)} dimensions and is indexed with {given}",
                here(),
                "one index for each, and `...` once at most",
            )
        at = next((place for place, one in enumerate(index) if one is Ellipsis), len(index))
        parts = [*index[:at], *(slice(None),) * missing, *index[at + 1 :]]
        taken = [one.span for one in index if isinstance(one, SpanIndex)]
        made, dim = [], 0
        for one in parts:
            if isinstance(one, slice) and is_whole(one) and dim < len(shape):
                made.append(self.index(shape[dim], taken))
                taken.append(made[-1].span)
            else:
                made.append(one)
            dim += one is not None
        return tuple(made)

    def tile(self, span: Span) -> Span:
        """Return the span of tiles along a whole row that is stored."""
        if span not in self.stored:
            self.stored[span] = Span(self.tracer.name(span.name, own=False), span.extent, TILE)
        return self.stored[span]

    def renamed(self, node: Node, old: Axis, new: Axis) -> Node | None:
        """Return a value with a whole row replaced by another of the same extent; None if that is illegal."""
        if old is None or new is None or not {old, new} <= {*self.spans}:
            return None
        parts = list(walk(node))
        if any(new in one.axes or isinstance(one, Folded) for one in parts):
            return None
        return along(node, {old: new}, {}) if self.tracer.are_equal(old.extent, new.extent) else None

    def aligned(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """Return the operands of a function, with one whole row in place of several of the same extent."""
        made = list(nodes)
        for place in range(-max((len(node.axes) for node in made), default=0), 0):
            axes = [node.axes[place] if len(node.axes) >= -place else None for node in made]
            found = dict.fromkeys(axis for axis in axes if axis is not None)
            for wanted in found if len(found) > 1 else ():
                turned = [
                    node if axis in (None, wanted) else self.renamed(node, axis, wanted)
                    for node, axis in zip(made, axes, strict=True)
                ]
                if all(one is not None for one in turned):
                    made = [one for one in turned if one is not None]
                    break
        return tuple(made)

    def fitted(self, node: Node, axes: tuple[Axis, ...]) -> Node:
        """Return a value with the spans of a store in place of whole rows of the same extent."""
        moved = {
            axis: wanted
            for axis, wanted in zip(reversed(node.axes), reversed(axes), strict=False)
            if axis is not None and wanted is not None and axis in self.spans and wanted.kind == TILE
            if self.tracer.are_equal(axis.extent, wanted.extent)
        }
        return along(node, moved, {}) if moved else node


def is_whole(part: slice) -> bool:
    """Return whether a slice is ``:``; its ends may be integers that only a launch knows."""
    return part.start is None and part.stop is None and part.step is None


def along(node: Node, moved: Mapping[Span, Span], known: dict[int, Node]) -> Node:
    """Return a value with some of its spans replaced.

    A sum or reduction over a replaced span keeps the old one.

    Args:
        node: the value.
        moved: for each replaced span, the new one.
        known: results so far, by the `id` of the old value.

    Raises:
        TraceError: a loop carries the value.
    """
    if not any(axis in moved for axis in node.axes):
        return node
    if id(node) in known:
        return known[id(node)]
    axes = tuple(moved.get(axis, axis) if axis is not None else None for axis in node.axes)

    def again(one: Node) -> Node:
        own = {span: new for span, new in moved.items() if span in node.axes}
        return along(one, own, known)

    made: Node
    match node:
        case ArrayPart(at=at):
            made = replace(node, axes=axes, at=tuple(moved.get(span, span) for span in at))
        case Position(span=span):
            made = replace(node, axes=axes, span=moved[span])
        case Rearrange(argument=argument) | Reduce(argument=argument) | Scan(argument=argument):
            made = replace(node, axes=axes, argument=again(argument))
        case Map(given=given):
            made = replace(node, axes=axes, given=tuple(map(again, given)))
        case Sum(a=a, b=b, scale_a=scale_a, scale_b=scale_b):
            scales = [None if one is None else again(one) for one in (scale_a, scale_b)]
            made = replace(node, axes=axes, a=again(a), b=again(b), scale_a=scales[0], scale_b=scales[1])
        case _:
            names = ", ".join(span.name for span in moved if span in node.axes)
            what = "carried by a loop" if isinstance(node, Folded) else "a constant"
            raise TraceError(
                f"{node.variable or 'a value'} varies along the whole row {names} and is {what}",
                here(),
                "spans of tw.tiles in place of whole rows, in a kernel of its own",
            )
    known[id(node)] = made
    return made


def whole(flow: Any, tensor: Tensor, first: Axis = None) -> Tile:
    """Return a whole array, or its transpose, as a tile.

    Args:
        flow: the recorder.
        tensor: the array.
        first: a whole row to reuse as the span of the first dimension that has its extent.
    """
    made = flow.tracer.builder.defining(tensor.value)
    turned = (
        isinstance(made, Reshape) and isinstance(made.transform, Permute) and made.transform.order == (1, 0)
    )
    shape = tensor.value.tensor.shape
    index: list[SpanIndex] = []
    for extent in shape:
        taken = [one.span for one in index]
        continues = first is not None and first in flow.rows.spans and first not in taken
        if first is not None and continues and flow.tracer.are_equal(first.extent, extent):
            index.append(SpanIndex(first, flow.home))
        else:
            index.append(flow.rows.index(extent, taken))
    if turned:
        source: Tile = flow.part(Tensor(made.source), tuple(reversed(index)))
        return source.T
    part: Tile = flow.part(tensor, tuple(index))
    return part


# ---------------------------------------------------------------- functions of rows


def place_of(tile: Tile, what: str, axis: int) -> int:
    """Return the number of an axis of a tile, counted from 0.

    Raises:
        TraceError: the tile has no such axis.
    """
    rank = len(tile.node.axes)
    if not -rank <= axis < rank:
        raise TraceError(
            f".{what}(axis={axis!r}) of {tile_name(tile)}, which has {rank} axes",
            here(),
            f"axis={min(max(axis, -rank), rank - 1)}",
        )
    return axis % rank


def scanned(flow: Any, tile: Tile, axis: int, *, reverse: bool) -> Tile:
    """Record prefix sums along an axis.

    Raises:
        TraceError: the axis has no span of its own, or the numbers are complex.
    """
    place, kind = place_of(tile, "cumsum", axis), tile.dtype
    span, what = tile.node.axes[place], f".cumsum(axis={axis!r}) of {tile_name(tile)}"
    if span is None:
        raise TraceError(f"{what} along a new axis", here(), "the axis of a span")
    if span.of is not None:
        raise TraceError(
            f"{what} along {span.name}, another name of {span.of.name}",
            here(),
            f"{span.of.name} in place of {span.name}",
        )
    if kind.components > 1:
        near = "a kernel for views of the real and of the imaginary part"
        raise TraceError(f"{what}, which is of {kind}", here(), near)
    if kind.bits < 32 or kind.kind == "bool":
        tile = tile.to(f32 if kind.is_float else i32)
    made: Tile = flow.tile(flow.make(Scan, tile.dtype, tile.node.axes, tile.node, place, reverse), tile)
    return made


def first_place(flow: Any, tile: Tile, combine: str, axis: int) -> Tile:
    """Record the index of the first extreme along an axis, or of the first NaN.

    Args:
        flow: the recorder.
        tile: the tile.
        combine: ``"max"`` or ``"min"``.
        axis: the axis.

    Raises:
        TraceError: the axis has no span of its own, or the numbers are complex.
    """
    place, kind = place_of(tile, f"arg{combine}", axis), tile.dtype
    span, what = tile.node.axes[place], f".arg{combine}(axis={axis!r}) of {tile_name(tile)}"
    if span is None:
        raise TraceError(f"{what} along a new axis", here(), "the axis of a span")
    if kind.components > 1:
        near = "a tile of real numbers, for instance of squares of their absolute values"
        raise TraceError(f"{what}, which is of {kind}, has no order", here(), near)
    if all(loop.span not in (span, span.of) for loop in flow.loops):
        require(
            wrap(span.extent) >= 1, f"arg{combine} along {span.name}: a row must have at least one element"
        )
    if (kind.bits < 16 and kind.is_float) or kind.kind == "bool":
        tile = tile.to(f32 if kind.is_float else i32)
    rank = len(tile.node.axes)
    found = tile == lifted(flow, flow.reduced(tile, combine, place), place, rank)
    if kind.is_float:
        found = found | (tile != tile)  # true for NaN alone
    at = flow.rearranged(
        flow.tile(flow.make(Position, i32, (span,), span)), (slice(None), *(None,) * (rank - 1 - place))
    )
    made: Tile = flow.reduced(where(found, at, NOWHERE), "min", place)
    return made


def lifted(flow: TileRecorder, tile: Tile, place: int, rank: int) -> Tile:
    """Return a reduced tile with a new axis in place of the reduced one."""
    index = [slice(None)] * rank
    return flow.rearranged(tile, (*index[:place], None, *index[place + 1 :]))


@verb
def softmax(x: Tile, axis: int = -1) -> Any:
    """``y[m, n] = exp(x[m, n]) / sum_n exp(x[m, n])``, without overflow; 0 if a whole row is ``-inf``.

    The row may be a whole dimension that is never stored, as in ``softmax(Q[m] @ K.T) @ V``: a schedule then
    computes it in one loop over steps of the row, which carries the maximum and the sums so far.

    Args:
        x: a tile of floats; narrower ones than f32 are computed, and returned, in f32.
        axis: the axis of the row; a negative number counts from the last.

    Raises:
        TraceError: ``x`` is not a tile of floats, or has no such axis.

    Example:
        Attention:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(Q="M D", K="N D", V="N E", O="M E", scale=tw.f32)
        ... def attention(Q, K, V, O, scale):
        ...     for m, e in tw.tiles(O):
        ...         O[m, e] = tw.softmax(scale * Q[m] @ K.T).to(V.dtype) @ V[:, e]
        >>> rng = np.random.default_rng(0)
        >>> q, k, v = (rng.standard_normal((40, 16)).astype(np.float16) for _ in range(3))
        >>> out = np.empty((40, 16), np.float16)
        >>> attention(q, k, v, out, 0.25, target="reference").target
        'reference'
        >>> bool(abs(out - tw.testing.softmax_attention(q, k, v, 0.25)).max() < 4e-3)
        True
    """
    if not x.dtype.is_float or x.dtype.components > 1:
        raise TraceError(
            f"softmax of {tile_name(x)}, which is of {x.dtype}", here(), "a tile of floats, e.g. x.to(tw.f32)"
        )
    x = x if x.dtype.bits >= f32.bits else x.to(f32)
    rank, flow = len(x.node.axes), x.flow
    if not -rank <= axis < rank:
        raise TraceError(
            f"softmax(axis={axis!r}) of {tile_name(x)}, which has the axes {spelled(x.node)}",
            here(),
            f"axis={min(max(axis, -rank), rank - 1)}",
        )
    place = axis % rank
    top = maximum(x.max(axis=place), limits(x.dtype)[0])
    weights = exp(x - lifted(flow, top, place, rank))
    total = weights.sum(axis=place)
    inverse = where(total == 0, 0.0, 1.0 / total)
    return weights * lifted(flow, inverse, place, rank)
