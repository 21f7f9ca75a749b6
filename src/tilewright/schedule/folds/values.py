"""The values in and after the steps of a loop that carries a state, as tiles in registers.

Every value is a tile over (rows, columns).  If it does not vary along a dimension, its extent there is 1.
Elements beyond the end of an array are undefined.  A reduction along the columns first replaces them by the
neutral element, and a product replaces those of its left operand by 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from tilewright.dataflow.nodes import (
    BATCH,
    ArrayPart,
    Axis,
    Cell,
    Fold,
    Folded,
    Integer,
    Literal,
    Map,
    Node,
    NumberParam,
    Operand,
    Position,
    Rearrange,
    Reduce,
    Scan,
    Span,
    Sum,
    walk,
)
from tilewright.dtypes import DType, f32, i32
from tilewright.functions.table import ASKED
from tilewright.lang import operations as tw
from tilewright.lang.control import range as repeat
from tilewright.lang.control import when
from tilewright.lang.exact_functions import where
from tilewright.lang.fragments import Fragment, elementwise, of_integer
from tilewright.lang.scalars import Condition, Index, Scalar, minimum, unwrap
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import (
    coordinates,
    exchanged_dtype,
    exchanged_shape,
    prefix_sum,
    reduce_max,
    reduce_min,
    reduce_sum,
    reduced_shape,
)
from tilewright.lang.tracer import current
from tilewright.schedule.epilogue.reductions import neutral
from tilewright.schedule.epilogue.values import repeated
from tilewright.schedule.provenance import made_by
from tilewright.symbolic.expr import add
from tilewright.symbolic.nodes import Int
from tilewright.threads.distribution import Distribution
from tilewright.views.transforms import Slice

REDUCTIONS = {"max": reduce_max, "min": reduce_min, "sum": reduce_sum}

LOG2_E = math.log2(math.e)


class Place(Protocol):
    """The tile of a block at one step: the addresses of its elements, and the thread that has each."""

    def array(self, operand: Operand) -> Tensor:
        """An array of the kernel, or the view of it that an operand names."""

    def number(self, name: str) -> Any:
        """A number that the launch passes."""

    def integer(self, value: Int) -> Index:
        """The value of a flow's integer in the kernel's arguments."""

    def length(self, span: Span) -> int:
        """Extent of the tile along a span."""

    def at(self, span: Span) -> Index:
        """Index of the tile along a span; of a batch, the index of its item."""

    def begin(self, span: Span) -> Index:
        """The first index of the block's group along a span; 0 without groups."""

    def extent(self, span: Span) -> Index:
        """The extent of a span, or of the block's group along it."""

    def cut(self, span: Span, *, whole: bool = False) -> slice:
        """The elements of the block's group along a span.

        Args:
            span: the span.
            whole: whether to include all elements after the group, so that copies may load whole tiles.
        """

    def loaded(self, part: ArrayPart) -> Index | None:
        """The integer that a part of an array has for the whole tile; None if the part varies in the tile."""

    def apart(self, span: Span) -> tuple[int, int]:
        """Distance of neighbouring elements of the tile along a span, and the first; (1, 0) without gaps."""

    def spread(self, axes: tuple[Axis, ...]) -> Distribution:
        """The map of a value with these axes to threads."""

    def ordered(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """Axes of a value in the order of a tile: rows, then columns."""

    def product(self, node: Sum, values: TileValues) -> Fragment:
        """A product of this step."""

    def mask(self, node: Map) -> PositionMask | None:
        """The mask of a choice that may change its value in place; None for other choices."""

    def exchange_memory(self, shape: tuple[int, ...] | None, dtype: DType) -> Tensor | None:
        """Shared memory of a shape and a dtype, for one exchange at a time; None for no shape."""

    @property
    def loop(self) -> Span:
        """The span of the loop."""

    def numbers_where(self, node: Node, number: float) -> Mapping[int, float]:
        """The values of a step that are one known number wherever ``node`` is ``number``, by their `id`."""


class PositionMask(Protocol):
    """A choice between a value and a number that depends on positions."""

    @property
    def node(self) -> Map:
        """The choice."""

    @property
    def value(self) -> Node:
        """The value that is chosen where the mask is true."""

    def cuts(self, place: Place) -> Condition | bool:
        """Whether the mask may be false somewhere in the tile of a step."""


class TurnPlace:
    """A place in one turn of a loop inside of a step.

    Args:
        place: the place of the step.
        span: the span of the turns.
        turn: index of the turn.
    """

    def __init__(self, place: Place, span: Span, turn: Index) -> None:
        self.place, self.span, self.turn = place, span, turn

    def at(self, span: Span) -> Index:
        """Index of the tile along a span, or of the turn."""
        return self.turn if span == self.span else self.place.at(span)

    def __getattr__(self, name: str) -> Any:
        """Any other attribute is that of the step's place."""
        return getattr(self.place, name)


class TileValues:
    """The values of one step, each computed once.

    Args:
        place: the tile.
        known: values that exist already, by the `id` of their nodes.
    """

    def __init__(self, place: Place, known: Mapping[int, Any]) -> None:
        self.place, self.known = place, dict(known)
        self.operands: dict[int, Fragment] = {}
        """Left operands of products, in the instruction's register layout, by the `id` of their nodes."""

        self._beyond: dict[int, float | int] = {}
        """The number beyond the end of a value's columns, if known, by the `id` of the value's node."""

        self._derived: dict[int, set[int]] = {}
        """By the `id` of a node: the nodes whose entry in `_beyond` follows from that of this node."""

    def value(self, node: Node) -> Any:
        """The value of a node: a number, or a tile."""
        if id(node) not in self.known:
            with made_by(node=node):
                self.known[id(node)] = self._compute(node)
        return self.known[id(node)]

    def tile(self, node: Node) -> Fragment:
        """A value as a tile, repeated along the axes that it does not vary along."""
        return self.repeated(self.value(node), node.axes, node.dtype)

    def repeated(self, value: Any, axes: tuple[Axis, ...], dtype: DType, name: str = "filled") -> Fragment:
        """A value, repeated along some axes; ``name`` is that of the new tile if the value is a number."""
        spread = self.place.spread(axes)
        if not isinstance(value, Fragment):
            made = tw.fragment(spread, dtype, name=name)
            tw.fill(made, value)
            return made
        return repeated(value, spread)

    def carried(self, value: Any, cell: Cell) -> Fragment:
        """The next value of a cell, in the cell's map of elements to threads."""
        made, spread = self.repeated(value, cell.axes, cell.dtype), self.place.spread(cell.axes)
        if made.distribution != spread:  # e.g. the result of a reduction; the select has the map of the cell
            same: Fragment = elementwise("select", coordinates(spread, 0) >= 0, made, made)
            return same
        return made

    def hidden(self, node: Node, number: float | int) -> Fragment:
        """A tile with ``number`` beyond the end of its columns."""
        while isinstance(node, Rearrange) and not isinstance(node.argument, ArrayPart):
            node = node.argument  # the same elements
        held = self.tile(node)
        column = next((axis for axis in self.place.ordered(node.axes)[-1:] if axis is not None), None)
        if column is None or held.shape[1] == 1 or self._beyond.get(id(node)) == number:
            return held
        length = self.place.length(column)
        left = self.place.extent(column) - self.place.at(column) * length
        with when(left < length):
            held.assign(where(coordinates(held, 1) < left, held, number))
        for one in self._derived.pop(id(node), set()) - self.known.keys():
            self._beyond.pop(one, None)  # the number that they follow from has changed
        self._beyond[id(node)] = number
        if column == self.place.loop:  # values that are computed later follow from the number
            known_numbers = self.place.numbers_where(node, number)
            later = {one: known for one, known in known_numbers.items() if one not in self.known}
            self._beyond.update(later)
            self._derived[id(node)] = set(later)
        return held

    def _compute(self, node: Node) -> Any:
        place = self.place
        match node:
            case Literal(value=value):
                return value
            case NumberParam(name=name):
                return place.number(name)
            case Integer(value=value):
                known = place.integer(value)
                return of_integer(known.expr, node.dtype) if isinstance(known, Scalar) else known
            case ArrayPart() if (integer := place.loaded(node)) is not None:
                return of_integer(integer.expr, node.dtype) if isinstance(integer, Scalar) else integer
            case ArrayPart():
                return self._loaded(node)
            case Rearrange(argument=argument):
                return self.value(argument)
            case Position(span=span):
                return self._position(span)
            case Sum():
                return place.product(node, self)
            case Map(function="select") if (mask := place.mask(node)) is not None:
                return self._masked(mask)
            case Reduce(combine="min" | "max" as combine, argument=Position(span=span)):
                return self._end(span, combine)
            case Reduce(combine=combine, argument=argument):
                tile = self.hidden(argument, neutral(combine, argument.dtype))
                shape = reduced_shape(tile.distribution, 1, current().lanes)
                scratch = place.exchange_memory(shape, exchanged_dtype(tile.dtype))
                return REDUCTIONS[combine](tile, 1, scratch=scratch)
            case Scan(argument=argument):
                spread = place.spread(argument.axes)
                shape = exchanged_shape(spread, 1, current().lanes)
                tile = self.tile(argument) if shape in (None, spread.shape) else self.hidden(argument, 0)
                return prefix_sum(tile, 1, scratch=place.exchange_memory(shape, node.dtype))
            case Folded(fold=fold, index=index):
                if id(fold) not in self.known:
                    self.known[id(fold)] = self._repeated(fold)
                return self.known[id(fold)][index]
        assert isinstance(node, Map), f"a {type(node).__name__} in a step"
        return self._map(node)

    def _repeated(self, fold: Fold) -> list[Fragment]:
        """The cells of a loop inside of a step, after its last turn."""
        held = []
        for cell in fold.cells:
            start = self.carried(self.value(cell.start), cell)
            held.append(tw.fragment(start.distribution, cell.dtype, name=cell.name))
            held[-1].assign(start)
        [span] = fold.turns
        for turn in repeat(self.place.integer(span.extent)):
            known = self.known | dict(zip(map(id, fold.cells), held, strict=True))
            inner = TileValues(TurnPlace(self.place, span, turn), known)
            pairs = zip(fold.cells, fold.steps, strict=True)
            made = [inner.carried(inner.value(step), cell) for cell, step in pairs]
            changed = [(one, new) for one, new in zip(held, made, strict=True) if new is not one]
            for one, new in changed:
                assert all(new is not other for other in held), "a new value is computed, not another cell"
                one.assign(new)
        self._beyond, self._derived = {}, {}  # a turn may have put other numbers beyond the end of columns
        return held

    def _masked(self, mask: PositionMask) -> Fragment:
        """A value under a mask; only steps in which the mask hides an element apply it."""
        held = self.tile(mask.value)
        with when(mask.cuts(self.place)):
            inner = TileValues(self.place, self.known)  # values that are computed in the branch stay in it
            held.assign(inner._map(mask.node))
        return held

    def _map(self, node: Map) -> Any:
        given = [self.value(one) for one in node.given]
        shapes = [value.shape for value in given if isinstance(value, Fragment)]
        wanted = tuple(max((shape[dim] for shape in shapes), default=1) for dim in (0, 1))
        if shapes and wanted not in shapes:  # a column vector meets a row vector: broadcast one of them
            at = next(i for i, value in enumerate(given) if isinstance(value, Fragment))
            given[at] = self.repeated(given[at], node.axes, node.given[at].dtype)
        if shapes and is_power_of_scores(node):
            return elementwise("exp2", elementwise("mul", *given, LOG2_E))
        return elementwise(node.function, *given, dtype=node.dtype if node.function in ASKED else None)

    def _end(self, span: Span, combine: str) -> Any:
        """The first index of the elements of a tile, or the last if ``combine`` is ``"max"``."""
        place, length = self.place, self.place.length(span)
        found: Any = place.at(span) * length + place.begin(span)
        if combine == "max":
            found = minimum(found + length, place.begin(span) + place.extent(span)) - 1
        return of_integer(found.expr, i32) if isinstance(found, Scalar) else found

    def _position(self, span: Span) -> Any:
        """The index of each row or column of the tile in the whole dimension; for a batch, the item's."""
        place = self.place
        if span.kind == BATCH:
            at = place.at(span)
            return of_integer(at.expr, i32) if isinstance(at, Scalar) else at
        spread, (apart, first) = place.spread((span,)), place.apart(span)
        dim = 0 if spread.shape[0] > 1 else 1
        if apart > 1:
            return coordinates(spread, dim) * apart + (place.at(span) * place.length(span) * apart + first)
        begin = place.at(span) * place.length(span) + place.begin(span)
        return coordinates(spread, dim) + begin

    def _loaded(self, part: ArrayPart) -> Fragment:
        axes = self.place.ordered(part.axes)
        spread = self.place.spread(axes)
        return tw.load(tile_of(self.place, part.operand, part.at, axes), spread, name=f"r{part.operand.name}")


def is_power_of_scores(node: Node) -> bool:
    """Whether a value is ``exp(x)``, where x follows from sums of products in f32.

    GPUs compute ``exp2(log2(e) * x)`` in two instructions instead of eight.  It adds an error of 2^-24 |x| to
    the exponent.  The last rounding of x has the same bound.
    """
    is_power = isinstance(node, Map) and node.function == "exp" and node.dtype == f32
    return is_power and any(isinstance(one, Sum) for one in walk(node))


def tile_of(
    place: Place, operand: Operand, at: tuple[Span, ...], axes: tuple[Axis, ...], inside: Span | None = None
) -> Tensor:
    """The elements of an array at a tile, as (rows, columns) with extent 1 along missing axes.

    Args:
        place: the tile.
        operand: the array.
        at: the span of each of its dimensions.
        axes: the axes of the value, in the order of rows and columns; a single span is that of columns,
            unless its thread layout is a column of rows.
        inside: a span along which the tile is known to lie inside the array; None: no span is known to.
    """
    whole = place.array(operand)
    spans = [span for span in at if span.kind != BATCH]
    if len(spans) < len(at):
        if not spans:  # only batches index the array: the last one becomes a dimension of one element
            row = whole[tuple(place.at(span) for span in at[:-1])] if len(at) > 1 else whole
            return row.tile((1,), (place.at(at[-1]),)).unmerge(0, (1, 1))
        whole = whole[tuple(place.at(span) if span.kind == BATCH else slice(None) for span in at)]
    if any((span.of or span).groups is not None for span in spans):
        whole = whole[tuple(slice(None) if span == inside else place.cut(span) for span in spans)]
    order = [spans.index(axis) for axis in axes if axis in spans]
    if order != sorted(order):
        whole, spans = whole.permute(*order), [spans[one] for one in order]
    lengths: list[int | None] = [place.length(span) for span in spans]
    numbers: list[Index | None] = [place.at(span) for span in spans]
    if inside is not None:
        dim = spans.index(inside)
        first = unwrap(place.begin(inside) + place.at(inside) * place.length(inside))
        box: list[tuple[Int | None, Int | None]] = [(None, None)] * len(spans)
        box[dim] = first, add(first, place.length(inside))
        whole, lengths[dim], numbers[dim] = whole._view(Slice(tuple(box)), "view"), None, None
    for dim, span in enumerate(spans):
        apart, begin = place.apart(span)
        if apart > 1:
            begin = place.at(span) * place.length(span) * apart + begin
            whole = whole.embed(dim, (place.length(span),), (apart,), -begin)
            lengths[dim], numbers[dim] = None, None
    tile = whole.tile(lengths, numbers)
    if len(spans) == 2:
        return tile
    return tile.unmerge(0, place.spread((spans[0],)).shape)
