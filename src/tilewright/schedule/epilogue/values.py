"""The values of a flow that follow its sums, for the elements of one block of the result.

Every value is a tile over (rows, columns) of the block, with the thread layout of the sums.  If it does not
vary along a dimension, its extent there is 1: ``bias[n]`` takes one register for each column of a thread.
A `Rearrange` computes nothing, because axes in another order have the same elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.dataflow.nodes import (
    ArrayPart,
    Integer,
    Literal,
    Map,
    Node,
    NumberParam,
    Operand,
    Position,
    Rearrange,
    Reduce,
    Span,
    Store,
)
from tilewright.dtypes import i32
from tilewright.errors import TraceError
from tilewright.functions.table import ASKED
from tilewright.lang import operations as tw
from tilewright.lang.fragments import Fragment, elementwise, of_integer
from tilewright.lang.scalars import Index, Scalar
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import coordinates
from tilewright.lang.tracer import located
from tilewright.schedule.epilogue.reductions import Reductions
from tilewright.schedule.factors import EXPLICIT, matrix
from tilewright.schedule.form import Form, above_sums, array, integer_in
from tilewright.schedule.partition import Partition
from tilewright.schedule.provenance import made_by
from tilewright.schedule.work import Work
from tilewright.symbolic.nodes import Int
from tilewright.threads.distribution import Distribution

Arguments = Mapping[str, Any]
"""The kernel's arguments by name."""


@dataclass(frozen=True)
class TilePlace:
    """A block of the result.

    Args:
        work: the tile that contains it.
        shape: rows and columns.
        at: its row and column index, in blocks of this shape.
    """

    work: Work
    shape: tuple[int, int]
    at: tuple[Index, Index]


class Views:
    """The elements of arrays that belong to blocks of the result.

    Args:
        form: the form of the computation.
        arguments: the kernel's arguments.
        partition: the partition of the result, which gives the part of an array that a block accesses.
    """

    def __init__(self, form: Form, arguments: Arguments, partition: Partition) -> None:
        self.form, self.arguments, self.partition = form, arguments, partition

    def along(self, at: Sequence[Span]) -> list[Span]:
        """The spans of rows and columns that index an array, in this order."""
        return [span for span in (self.form.m, self.form.n) if span in at]

    def block(self, operand: Operand, at: Sequence[Span], place: TilePlace) -> Tensor:
        """The block's elements as (rows, columns), with extent 1 along a dimension that the array lacks."""
        form, places = self.form, self.form.places(place.work)
        whole, wanted = array(self.arguments, operand), self.along(at)
        if not wanted:  # only batches index the array: a block has one element
            row = whole[tuple(places[span] for span in at[:-1])] if len(at) > 1 else whole
            last = places[at[-1]]
            assert not isinstance(last, slice), "an index of a batch"
            return row.tile((1,), (last,)).unmerge(0, (1, 1))
        dims = [wanted.index(span) if span in wanted else None for span in (form.m, form.n)]
        whole = self.partition.part_of(matrix(whole, at, wanted, places), *dims)
        extents = dict(zip((form.m, form.n), zip(place.shape, place.at, strict=True), strict=True))
        tile = whole.tile([extents[span][0] for span in wanted], [extents[span][1] for span in wanted])
        if len(wanted) == 2:
            return tile
        length = extents[wanted[0]][0]
        return tile.unmerge(0, (length, 1) if wanted == [form.m] else (1, length))

    def number(self, node: Integer) -> Any:
        """Return an integer of the flow as a number of the node's dtype."""
        known = self.integer(node.value)
        return of_integer(known.expr, node.dtype) if isinstance(known, Scalar) else known

    def integer(self, value: Int) -> Index:
        """The value of a flow's integer in the kernel's arguments."""
        return integer_in(self.form.flow, self.arguments, value)


class Values:
    """The values of the graph for one block.

    Args:
        views: blocks of the arrays.
        reductions: the reductions of whole tiles.
        place: the block.
        spread: the map of its elements to threads.
        sums: the sums of the block; None: slices of the outer block's sums.
        outer: the values of the block that contains this one, and the columns of this one in it.
    """

    def __init__(
        self,
        views: Views,
        reductions: Reductions,
        place: TilePlace,
        spread: Distribution,
        sums: tuple[Fragment, ...] | None = None,
        outer: tuple[Values, slice] | None = None,
    ) -> None:
        self.views, self.reductions, self.place = views, reductions, place
        self.spread, self.sums = spread, sums
        self.outer = outer
        self.brought: dict[int, Callable[[], Fragment]] = {}
        """Functions that read array parts which are in shared memory already, by the `id` of the node."""
        self._known: dict[int, Any] = {}

    def part(self, place: TilePlace, columns: slice) -> Values:
        """The values for some of the block's columns."""
        with located():
            spread = self.spread.slice((0, columns.start), place.shape)
        return Values(self.views, self.reductions, place, spread, None, (self, columns))

    def of_parts(self, made: Mapping[int, Fragment]) -> Values:
        """The values of the same block, with given results of reductions across tiles.

        Args:
            made: the reductions, by the `id` of their nodes.
        """
        values = Values(self.views, self.reductions, self.place, self.spread, self.sums)
        values._known |= made
        return values

    def fetch(self, stores: Sequence[Store]) -> None:
        """Read the arrays that the results need, except those that are in shared memory already."""
        for store in stores:
            for node in above_sums(store.value):
                if isinstance(node, ArrayPart) and id(node) not in self.brought:
                    self.value(node)

    def value(self, node: Node) -> Any:
        """The value of a node: a number, or a tile with extent 1 along dimensions without variation."""
        if id(node) not in self._known:
            with made_by(node=node):
                part = None
                if self.outer is not None:
                    outer, columns = self.outer
                    form = self.views.form
                    is_wider = isinstance(node, Reduce) or form.number_of(node) is not None
                    is_wider = is_wider or (isinstance(node, ArrayPart) and form.n not in node.at)
                    if is_wider or id(node) in outer._known:  # take it from the whole tile
                        part = outer.value(node)
                        if isinstance(part, Fragment) and part.shape[1] > 1:
                            part = part[:, columns]
                self._known[id(node)] = self._compute(node) if part is None else part
        return self._known[id(node)]

    def stored(self, store: Store) -> Fragment:
        """The values that a store writes."""
        made = self.value(store.value)
        shape = self._shape(self.views.along(store.at))
        if isinstance(made, Fragment):
            return self._wide(made, shape)
        single = tw.fragment(self.map(shape), store.operand.dtype, name="filled")
        tw.fill(single, made)
        return single

    def _wide(self, tile: Fragment, shape: tuple[int, int]) -> Fragment:
        """A tile, repeated along the dimensions that it does not vary along."""
        return repeated(tile, self.map(shape))

    def loads(self, stores: Sequence[Store]) -> bool:
        """Whether results need arrays besides the sums."""
        return any(isinstance(node, ArrayPart) for store in stores for node in above_sums(store.value))

    def map(self, shape: tuple[int, int]) -> Distribution:
        """The map of a tile to threads; each extent is that of the block, or 1."""
        return self.spread if shape == self.place.shape else self.spread.projected(shape)

    def _shape(self, along: Sequence[Span]) -> tuple[int, int]:
        form, (rows, columns) = self.views.form, self.place.shape
        return (rows if form.m in along else 1, columns if form.n in along else 1)

    def _compute(self, node: Node) -> Any:
        number = self.views.form.number_of(node)
        if number is not None:
            assert self.sums is not None, "the enclosing block must pass the sums"
            return self.sums[number]
        match node:
            case Literal(value=value):
                return value
            case NumberParam(name=name):
                return self.views.arguments[name]
            case Integer():
                return self.views.number(node)
            case ArrayPart():
                return self._part(node)
            case Position(span=span):
                return self._position(span)
            case Rearrange(argument=argument):
                return self.value(argument)
            case Map(function=function, given=given):
                return self._map(function, node, [self.value(one) for one in given])
            case Reduce(combine=combine, argument=argument, axis=axis):
                dim = 0 if argument.axes[axis] == self.views.form.m else 1
                tile = self.value(argument)
                place = self.place
                return self.reductions.reduce(combine, tile, dim, place.work, place.at[dim], node.location)
        raise TraceError(f"no schedule computes a {type(node).__name__} of sums", node.location, EXPLICIT)

    def _part(self, node: ArrayPart) -> Fragment:
        if id(node) in self.brought:
            return self.brought[id(node)]()
        tile = self.views.block(node.operand, node.at, self.place)
        return tw.load(tile, self.map((int(tile.shape[0]), int(tile.shape[1]))), name=f"r{node.operand.name}")

    def _position(self, span: Span) -> Any:
        """The index of each row or column of the block in the whole dimension; for a batch, the item's."""
        form, place = self.views.form, self.place
        if span not in (form.m, form.n):
            at = place.work.batch[form.batch.index(span)]
            return of_integer(at.expr, i32) if isinstance(at, Scalar) else at
        dim = 0 if span == form.m else 1
        begin = place.at[dim] * place.shape[dim] + self.views.partition.begins[dim]
        cut = place.work.cuts[dim]
        begin = begin if cut is None else begin + cut.start
        return coordinates(self.map(self._shape([span])), dim) + begin

    def _map(self, function: str, node: Node, given: list[Any]) -> Any:
        shapes = [value.shape for value in given if isinstance(value, Fragment)]
        wanted = (
            max((rows for rows, _ in shapes), default=1),
            max((columns for _, columns in shapes), default=1),
        )
        if shapes and wanted not in shapes:  # a column vector meets a row vector: broadcast one of them
            at = next(i for i, value in enumerate(given) if isinstance(value, Fragment))
            given[at] = self._wide(given[at], (wanted[0], wanted[1]))
        return elementwise(function, *given, dtype=node.dtype if function in ASKED else None)


def repeated(tile: Fragment, spread: Distribution) -> Fragment:
    """A tile, broadcast to the shape of a map of elements to threads."""
    if tile.shape == spread.shape:
        return tile
    # A select between a tile and itself broadcasts it to the shape of the coordinates.
    everywhere = coordinates(spread, 0) >= 0
    if spread.shape[1] > 1 == tile.shape[1]:
        everywhere = everywhere & (coordinates(spread, 1) >= 0)
    wide: Fragment = elementwise("select", everywhere, tile, tile)
    return wide
