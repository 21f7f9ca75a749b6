"""The graph of a dataflow kernel: which values are computed from which, independent of a schedule.

A value is a tile: it has one axis for each `Span` that it varies along.  A schedule decides how much of a
span is computed at once, and by which threads.  The meaning of the graph does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tilewright.calls import layouts
from tilewright.dtypes import DType, i64, limits, u64
from tilewright.errors import Location
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import Guard
from tilewright.views.transforms import Transform, chosen_rows
from tilewright.views.view import View

BATCH, TILE, STEPS = "batch", "tile", "steps"
"""Kinds of spans: one index per block, a dimension cut into tiles, or a dimension that a loop sums over."""

ALIAS = "alias"
"""Printed kind of a span that is an alias of a loop's span."""

TURN = "turn"
"""Printed kind of a `BATCH` span around a loop: the loop runs once for each of its indices, in order."""


EXACT, TF32, SUMMED = "exact", "tf32", "f32"
PRECISIONS = (EXACT, TF32, SUMMED)
"""Precisions of a sum: exact products; factors with 10 fraction bits; exact products with sums as in f32.

Tensor core instructions truncate when they accumulate.  For the last precision their partial sums are added
to separate sums at regular intervals, so few bits are lost.
"""


IN_FLOWS = "the flow of a compiled kernel, kernel.compile(...).flow, is made of them"


@layouts.made(IN_FLOWS)
@dataclass(frozen=True)
class Span:
    """A range of indices of one dimension.  The schedule decides how many are computed at once.

    Args:
        name: the author's name, e.g. ``"m"``.
        extent: extent of the whole dimension.
        kind: `BATCH`, `TILE` or `STEPS`.
        groups: the groups of indices along the span: tiles compute each group separately, and a loop runs
            over the indices of one group.  None: the span has no groups.
        of: the span of a loop, if this is another name of the elements of its step.
    """

    name: str
    extent: Int
    kind: str
    groups: Groups | None = None
    of: Span | None = None


@layouts.made(IN_FLOWS)
@dataclass(frozen=True)
class Operand:
    """An array of the kernel, or a view of one.

    Args:
        name: name of the kernel's parameter.
        dtype: its element type.
        shape: extents of the view.
        transforms: the transforms from the parameter to the view, in order.
    """

    name: str
    dtype: DType
    shape: tuple[Int, ...]
    transforms: tuple[Transform, ...] = ()

    @property
    def indices(self) -> tuple[Operand, ...]:
        """The arrays of integers that choose its rows."""
        return tuple(one.index for one in self.transforms if isinstance(one, Rows))


@layouts.made(IN_FLOWS)
@dataclass(frozen=True)
class Rows:
    """``new[..., i, ...] = old[..., index[i], ...]``: a transform that chooses rows by integers in memory.

    An index of several dimensions replaces the dimension by them.  Elements of rows outside of
    ``[0, extent)`` read as 0 and are not written.

    Args:
        dim: the dimension along which rows are chosen.
        index: an array of integers.
        padded: whether rows outside are allowed; otherwise the reference reports them.
    """

    dim: int
    index: Operand
    padded: bool = False

    def apply(self, view: View) -> View:
        """Return the view with the chosen rows."""
        kind, numbers = self.index.dtype, View.row_major(self.index.shape)
        least, most = (int(end) for end in limits(i64 if kind == u64 else kind))
        return chosen_rows(view, self.dim, Sym(self.index.name), numbers, least, most)


@layouts.made(IN_FLOWS)
@dataclass(frozen=True)
class Groups:
    """Groups of indices along a span; arrays have their bounds at run time.

    Group ``g`` has the indices from ``starts[g]`` up to ``ends[g]``, excluded.  Other indices belong to no
    group.  Bounds are clamped to the span.

    Args:
        index: the span of the groups, of kind `BATCH`.
        ends: one more than the last index of each group.
        starts: the first index of each group; 0: all groups begin with index 0; None: group ``g`` begins with
            ``ends[g - 1]``, and the first one with 0.
        block: number of indices per unit of ``starts`` and ``ends``.
    """

    index: Span
    ends: Operand
    starts: Operand | int | None = None
    block: int = 1

    @property
    def unit(self) -> int:
        """A number that divides the first index of each group; 0 if all begin with 0."""
        return 0 if self.starts == 0 else self.block

    @property
    def bounds(self) -> tuple[Operand, ...]:
        """The arrays of integers that bound the groups."""
        return (self.ends, self.starts) if isinstance(self.starts, Operand) else (self.ends,)


def numbering(at: Sequence[Span]) -> Span | None:
    """Return the batch span that selects the group, or None.  Aliases count as their span."""
    found = ((span.of or span).groups for span in at)
    return next((groups.index for groups in found if groups is not None), None)


Axis = Span | None
"""An axis of a value: the span that it varies along; None is an axis of extent 1, which is broadcast."""


@dataclass(frozen=True, eq=False)
class Node:
    """A value.  A node is equal only to itself; the recorder records equal computations once.

    Args:
        dtype: the element type.
        axes: one axis per dimension; spans with a single index (`BATCH`) are omitted.
        variable: the author's name for the value, if any.
        location: the author's line.
    """

    dtype: DType
    axes: tuple[Axis, ...]
    variable: str | None = field(default=None, compare=False, kw_only=True)
    location: Location | None = field(default=None, compare=False, kw_only=True)

    @property
    def arguments(self) -> tuple[Node, ...]:
        """The values that it is computed from."""
        return ()


@dataclass(frozen=True, eq=False)
class Literal(Node):
    """A constant number."""

    value: float | int


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class NumberParam(Node):
    """A number that each launch passes."""

    name: str


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class Integer(Node):
    """An integer that is used as a number: an expression over the sizes, or an argument of the kernel."""

    value: Int


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class ArrayPart(Node):
    """``operand[at]``: the elements of an array along some spans.

    Args:
        operand: the array.
        at: the span that indexes each dimension of the array.
    """

    operand: Operand
    at: tuple[Span, ...]


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class Position(Node):
    """The index of each element of a span in the whole dimension.

    Args:
        span: the span.  Along groups of rows, indices count from the first row of the array.
    """

    span: Span


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class Rearrange(Node):
    """The argument with its axes in another order, or with new axes of extent 1."""

    argument: Node

    @property
    def arguments(self) -> tuple[Node, ...]:
        """The values that it is computed from."""
        return (self.argument,)


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class Map(Node):
    """An elementwise function, a row of `functions.table.FUNCTIONS`; arguments are broadcast as in NumPy."""

    function: str
    given: tuple[Node, ...]

    @property
    def arguments(self) -> tuple[Node, ...]:
        """The values that it is computed from."""
        return self.given


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class Reduce(Node):
    """``combine`` over a whole axis: ``"sum"``, ``"max"`` or ``"min"``.

    Args:
        combine: the function.
        argument: the value to reduce.
        axis: the axis to reduce; the result does not have it.
    """

    combine: str
    argument: Node
    axis: int

    @property
    def arguments(self) -> tuple[Node, ...]:
        """The values that it is computed from."""
        return (self.argument,)


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class Scan(Node):
    """Prefix sums along an axis: ``value[..., j] = sum of argument[..., i] for i <= j``.

    Inside a loop over the span of the axis, these are prefix sums of the elements of one step.

    Args:
        argument: the value to sum.
        axis: the axis.
        reverse: whether each element is the sum for ``i >= j`` instead.
    """

    argument: Node
    axis: int
    reverse: bool = False

    @property
    def span(self) -> Axis:
        """The span of the axis."""
        return self.argument.axes[self.axis]

    @property
    def arguments(self) -> tuple[Node, ...]:
        """The values that it is computed from."""
        return (self.argument,)


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class Sum(Node):
    """``sum over span of a @ b``: ``value[m, n] = sum_k a[m, k] * b[k, n]``, the case of `Fold` with +.

    With scales, ``value[m, n] = sum_k scale_a[m, k] * scale_b[k, n] * a[m, k] * b[k, n]``.  Scales have the
    sum's dtype.  They multiply each product, or a partial sum of products with the same scales.

    Args:
        span: the span to sum over; the last axis of ``a`` and the first of ``b``.
        a: an operand view: a part, or maps of parts.
        b: an operand view, as ``a``.
        precision: ``"exact"``: products are exact; ``"tf32"``: f32 factors have 10 fraction bits; ``"f32"``:
            products are exact, and sums are as precise as in f32 even if the instruction accumulates worse.
        scale_a: scales along the axes of ``a``, if any.
        scale_b: scales along the axes of ``b``, if any.
    """

    span: Span
    a: Node
    b: Node
    precision: str = EXACT
    scale_a: Node | None = None
    scale_b: Node | None = None

    @property
    def scales(self) -> tuple[Node | None, Node | None]:
        """The scales of the two operands."""
        return self.scale_a, self.scale_b

    @property
    def arguments(self) -> tuple[Node, ...]:
        """The values that it is computed from."""
        return (self.a, self.b, *(scale for scale in self.scales if scale is not None))


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class Cell(Node):
    """A value that a fold carries from step to step; inside the steps it is the value so far.

    Args:
        name: the author's name.
        start: the value before the first step; broadcast to the cell's axes.
    """

    name: str
    start: Node

    @property
    def arguments(self) -> tuple[Node, ...]:
        """The values that it is computed from."""
        return (self.start,)


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class CellMerge:
    """The merge of one cell of a fold from two adjacent parts.

    Args:
        first: the cell after the first part.
        second: the cell after the second part, which follows the first.
        value: the cell after both parts, computed from cells of the two parts and from numbers.
    """

    first: Cell
    second: Cell
    value: Node


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class Fold:
    """``for k in span: cells = steps(cells)``; inside ``steps`` the span is one step of it.

    Args:
        span: the span of the loop.
        cells: the carried values.
        steps: the next value of each cell.
        turns: spans of kind `BATCH` around it: the loop runs once for each of their indices, in order.
        merges: the merge of each cell, or None if the author does not state it; empty if none is stated.
        results: values that each step gives, which vary along the span or an alias of it.  The results of all
            steps are concatenated along this axis.
    """

    span: Span
    cells: tuple[Cell, ...]
    steps: tuple[Node, ...]
    turns: tuple[Span, ...] = ()
    merges: tuple[CellMerge | None, ...] = ()
    results: tuple[Node, ...] = ()

    @property
    def given(self) -> tuple[Node, ...]:
        """The values of a `Folded` by its index: the next value of each cell, then the results of steps."""
        return (*self.steps, *self.results)

    def places(self, axes: Sequence[Axis]) -> list[int]:
        """The indices of the axes that are the span or an alias of it."""
        return [place for place, axis in enumerate(axes) if axis is not None and self.span in (axis, axis.of)]


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class Folded(Node):
    """The value of a fold's cell after the last step, or a result of all steps."""

    fold: Fold
    index: int

    @property
    def arguments(self) -> tuple[Node, ...]:
        """The values that it is computed from."""
        stated = (one for one in self.fold.merges if one is not None)
        merged = (node for one in stated for node in (one.first, one.second, one.value))
        return (*self.fold.cells, *self.fold.given, *merged)


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class Store:
    """``operand[at] = value``, rounded to the operand's dtype; or ``operand[at] += value``.

    Args:
        operand: an array of the kernel.
        at: the span that indexes each dimension of the array.
        value: the value to store; its axes broadcast to the spans of ``at`` other than `BATCH`.
        added: whether the value is added, atomically and in any order; several rows of the view may be one
            row of the array.
        location: the author's line.
    """

    operand: Operand
    at: tuple[Span, ...]
    value: Node
    added: bool = False
    location: Location | None = field(default=None, compare=False, kw_only=True)


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class Arrival:
    """Shards of an array that arrive while the kernel runs: equal runs of its first dimension.

    Args:
        operand: the array.
        counters: an array of u32 with a counter for each shard.
        value: the value of a counter once its shard has arrived.
        first: the shard whose tiles are computed first; the following shards come next, cyclically.
        location: the author's line.
    """

    operand: Operand
    counters: Operand
    value: Int
    first: Int
    location: Location | None = field(default=None, compare=False, kw_only=True)


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class Departure:
    """Shards of a result that other ranks wait for: one for each index of its first dimension, a batch.

    Args:
        operand: the array that is stored.
        counters: an array of u32 with a counter for each shard, which counts up once the shard is complete.
        first: the shard whose tiles are computed first; the following shards come next, cyclically.
        location: the author's line.
    """

    operand: Operand
    counters: Operand
    first: Int
    location: Location | None = field(default=None, compare=False, kw_only=True)


@layouts.made("the flow of a compiled kernel, kernel.compile(...).flow, is one")
@dataclass(frozen=True, eq=False)
class Flow:
    """The computation of a dataflow kernel; two flows are equal if their values are, whatever their names.

    Args:
        name: name of the kernel.
        parameters: arrays and numbers, in the author's order.
        tiles: the spans that partition the results, batches first.
        stores: the stores, in the author's order.
        requirements: conditions on the sizes; a launch with sizes that violate one is refused.
        waits_for_prior_grid: whether the kernel may start before the previous kernel ends, and waits for it.
        arrivals: the arrays that arrive in shards while the kernel runs.
        departure: the result whose shards are counted when they are complete.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="N K", C="M N")
        ... def product(A, B, C):
        ...     for m, n in tw.tiles(C):
        ...         acc = tw.zeros()
        ...         for k in tw.steps(A.shape[1]):
        ...             acc += A[m, k] @ B[n, k].T
        ...         C[m, n] = acc
        >>> a, b, c = (np.ones((8, 8), np.float16) for _ in range(3))
        >>> flow = product(a, b, c, target="reference").flow
        >>> isinstance(flow, tw.ir.Flow), [one.span.name for one in flow.sums]
        (True, ['k'])
    """

    name: str
    parameters: tuple[Operand | NumberParam | Integer, ...]
    tiles: tuple[Span, ...]
    stores: tuple[Store, ...]
    requirements: tuple[Guard, ...] = ()
    waits_for_prior_grid: bool = False
    arrivals: tuple[Arrival, ...] = ()
    departure: Departure | None = None

    def walk(self) -> Iterator[Node]:
        """Yield every node once, arguments before the nodes that use them."""
        seen: set[int] = set()
        for store in self.stores:
            yield from walk(store.value, seen)

    @property
    def sums(self) -> tuple[Sum, ...]:
        """The accumulation plan: every sum."""
        return tuple(node for node in self.walk() if isinstance(node, Sum))

    @property
    def moved(self) -> tuple[Arrival | Departure, ...]:
        """The arrays whose shards arrive or leave."""
        return self.arrivals if self.departure is None else (*self.arrivals, self.departure)

    @property
    def round(self) -> Span | None:
        """The span of tiles that are computed cyclically, from a chosen shard on; None without shards."""
        if self.departure is not None:
            return self.tiles[0]
        names = {one.operand.name for one in self.arrivals[:1]}
        parts = (one for one in self.walk() if isinstance(one, ArrayPart) and one.operand.name in names)
        return min((part.at[0] for part in parts), key=self.tiles.index, default=None)

    @property
    def grouped(self) -> Span | None:
        """The span of the tiles that has groups, or None."""
        return next((span for span in self.tiles if span.groups is not None), None)

    @property
    def cut(self) -> tuple[Span, ...]:
        """The spans with groups, of tiles and of loops."""
        loops = (one.fold.span if isinstance(one, Folded) else None for one in self.walk())
        sums = (one.span for one in self.sums)
        spans = dict.fromkeys((*self.tiles, *loops, *sums))
        return tuple(span for span in spans if span is not None and span.groups is not None)

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that equal flows share; it names each node by its number in the order of `walk`."""
        places: dict[int, int] = {}
        nodes = []
        for node in self.walk():
            if not isinstance(node, Literal | NumberParam):  # the number of copies of these does not matter
                nodes.append(_key(node, places))
                places[id(node)] = len(places)
        parameters = tuple(_key(one, places) for one in self.parameters)
        stores = tuple(_key(store, places) for store in self.stores)
        return (
            self.name,
            parameters,
            self.tiles,
            stores,
            tuple(nodes),
            self.requirements,
            self.waits_for_prior_grid,
            _key((*self.arrivals, self.departure), places),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Flow) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def walk(node: Node, seen: set[int] | None = None) -> Iterator[Node]:
    """Yield a node and all nodes that it depends on, each once, arguments first.

    Args:
        node: the start node.
        seen: nodes to omit, by `id`; the function adds to it.
    """
    known = set[int]() if seen is None else seen
    left = [(node, False)]
    while left:
        one, is_done = left.pop()
        if is_done:
            yield one
        elif id(one) not in known:
            known.add(id(one))
            left.append((one, True))
            left += [(argument, False) for argument in reversed(one.arguments)]


def with_arguments(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return a node with other arguments, or itself if ``change`` returns the same ones.

    Args:
        node: the node; a leaf, a `Cell` and a `Folded` have nothing to change.
        change: argument -> the argument that replaces it.
    """
    made = node
    match node:
        case Map(given=given):
            made = replace(node, given=tuple(map(change, given)))
        case Rearrange(argument=argument) | Reduce(argument=argument) | Scan(argument=argument):
            made = replace(node, argument=change(argument))
        case Sum(a=a, b=b):
            scale_a, scale_b = (None if one is None else change(one) for one in node.scales)
            made = replace(node, a=change(a), b=change(b), scale_a=scale_a, scale_b=scale_b)
    return node if made.arguments == node.arguments else made


def unified(values: Sequence[Node]) -> list[Node]:
    """Return the values with equal computations merged into one node."""
    made: dict[int, Node] = {}
    places: dict[int, int] = {}
    known: dict[Any, Node] = {}

    def again(value: Any) -> Any:
        if isinstance(value, Node):
            return made[id(value)]
        return tuple(map(again, value)) if isinstance(value, tuple) else value

    for one in (node for value in values for node in walk(value)):
        if id(one) not in made:
            given = {part.name: again(getattr(one, part.name)) for part in fields(one) if part.compare}
            new = one if isinstance(one, Folded) else replace(one, **given)
            found = known.setdefault(_key(new, places), new)
            made[id(one)] = found
            places.setdefault(id(found), len(places))
    return [made[id(value)] for value in values]


def _key(value: Any, places: dict[int, int]) -> Any:
    """Return a field of a node with nodes replaced by their numbers."""
    if isinstance(value, Node) and id(value) in places:
        return places[id(value)]
    if isinstance(value, Node | Store | Fold | CellMerge | Arrival | Departure):
        compared = (getattr(value, one.name) for one in fields(value) if one.compare)
        return type(value).__name__, *(_key(one, places) for one in compared)
    if isinstance(value, tuple):
        return tuple(_key(one, places) for one in value)
    return (type(value).__name__, repr(value)) if isinstance(value, int | float) else value
