"""The graph that a dataflow kernel is: which values are computed from which, without a word about how.

A value is a tile: it has one axis for each `Span` that it varies along.  How long the runs of a span are that
are computed at once, and who computes them, a schedule says; the meaning does not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from tilewright.calls import layouts
from tilewright.dtypes import DType
from tilewright.errors import Location
from tilewright.symbolic.guards import Guard
from tilewright.symbolic.nodes import Int
from tilewright.views.transforms import Transform

BATCH, TILE, STEPS = "batch", "tile", "steps"
"""What a span is: an index of its own for each block, cut into tiles, or stepped along and summed."""


EXACT, TF32, SUMMED = "exact", "tf32", "f32"
PRECISIONS = (EXACT, TF32, SUMMED)
"""How exact a sum is: its products are; they have 10 fraction bits; they are exact, and added up as f32 does.

Instructions of tensor cores cut off what they add up.  For the last one their sums are added to others every
so often, so that few bits are lost.
"""


IN_FLOWS = "the flow of a compiled kernel, kernel.compile(...).flow, is made of them"


@layouts.made(IN_FLOWS)
@dataclass(frozen=True)
class Span:
    """A run of unknown length of one dimension.

    Args:
        name: the author's name, e.g. ``"m"``.
        extent: of the whole dimension.
        kind: `BATCH`, `TILE` or `STEPS`.
        groups: where its places fall into groups, of which each is computed by itself.
    """

    name: str
    extent: Int
    kind: str
    groups: Groups | None = None


@layouts.made(IN_FLOWS)
@dataclass(frozen=True)
class Operand:
    """An array of the kernel, or a view of one.

    Args:
        name: of the kernel's parameter.
        dtype: its element type.
        shape: extents of the view.
        transforms: what makes the view of the parameter, in order.
    """

    name: str
    dtype: DType
    shape: tuple[Int, ...]
    transforms: tuple[Transform, ...] = ()


@layouts.made(IN_FLOWS)
@dataclass(frozen=True)
class Groups:
    """Places of a span in groups that follow each other, each as long as an array says at run time.

    Group ``g`` has the places from ``ends[g - 1]``, or 0, up to ``ends[g]``; what lies behind the last end
    belongs to none.

    Args:
        index: the span of the groups, of kind `BATCH`.
        ends: one more than the last place of each group.
    """

    index: Span
    ends: Operand


Axis = Span | None
"""An axis of a value: the span that it varies along; None is an axis of extent 1, which is broadcast."""


@dataclass(frozen=True, eq=False)
class Node:
    """A value.  Each node is equal to itself alone: what is computed twice alike is recorded once.

    Args:
        dtype: of its elements.
        axes: one for each dimension; those of spans that are a single index (`BATCH`) are left out.
        variable: the author's name for it, if there is one.
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
    """A number that is known."""

    value: float | int


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class Number(Node):
    """A number that is passed when the kernel is launched."""

    name: str


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class Integer(Node):
    """An integer of the sizes, as a number; as a parameter, one that is passed."""

    value: Int


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class Part(Node):
    """``operand[at]``: the elements of an array along some spans.

    Args:
        operand: the array.
        at: for each of its dimensions the span that it is taken along.
    """

    operand: Operand
    at: tuple[Span, ...]


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class Position(Node):
    """The index of each place of a span in the whole dimension.

    Args:
        span: the span; none whose places fall into groups.
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
        argument: what is reduced.
        axis: which of its axes; it is left out of the result.
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
class Sum(Node):
    """``sum over span of a @ b``: ``value[m, n] = sum_k a[m, k] * b[k, n]``, the case of `Fold` with +.

    With scales, ``value[m, n] = sum_k scale_a[m, k] * scale_b[k, n] * a[m, k] * b[k, n]``: numbers of the
    sum's dtype, by which products are multiplied, or sums of products that have them in common.

    Args:
        span: what is summed along; the last axis of ``a`` and the first of ``b``.
        a: an operand view: a part, or maps of parts.
        b: likewise.
        precision: ``"exact"``: products are; ``"tf32"``: numbers of f32 are multiplied with 10 fraction bits;
            ``"f32"``: products are exact, and added up as f32 does where instructions do worse.
        scale_a: along the axes of ``a``, if there are any.
        scale_b: along those of ``b``.
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
    """What a fold carries from step to step: within its steps this stands for the value so far.

    Args:
        name: the author's.
        start: its value before the first step; broadcast to the cell's axes.
    """

    name: str
    start: Node

    @property
    def arguments(self) -> tuple[Node, ...]:
        """The values that it is computed from."""
        return (self.start,)


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class Fold:
    """``for k in span: cells = steps(cells)``, where in ``steps`` the span is one run of it.

    Args:
        span: what is stepped along.
        cells: what is carried.
        steps: the next value of each cell.
    """

    span: Span
    cells: tuple[Cell, ...]
    steps: tuple[Node, ...]


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class Folded(Node):
    """What a cell of a fold holds after the last step."""

    fold: Fold
    index: int

    @property
    def arguments(self) -> tuple[Node, ...]:
        """The values that it is computed from."""
        return (*self.fold.cells, *self.fold.steps)


@layouts.made(IN_FLOWS)
@dataclass(frozen=True, eq=False)
class Store:
    """``operand[at] = value``, rounded to the operand's dtype.

    Args:
        operand: an array of the kernel.
        at: for each of its dimensions the span that it is stored along.
        value: whose axes are broadcast to those of ``at`` that are no single index.
        location: the author's line.
    """

    operand: Operand
    at: tuple[Span, ...]
    value: Node
    location: Location | None = field(default=None, compare=False, kw_only=True)


@layouts.made("the flow of a compiled kernel, kernel.compile(...).flow, is one")
@dataclass(frozen=True, eq=False)
class Flow:
    """The computation of a dataflow kernel; flows with equal values are equal, whatever their names.

    Args:
        name: of the kernel.
        parameters: arrays and numbers, in the author's order.
        tiles: the spans that its results are cut along, batches first.
        stores: in the author's order.
        requirements: of the sizes, without which nothing is computed.
        is_behind: whether it may begin beside the kernel launched before it, for which it waits.

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
    parameters: tuple[Operand | Number | Integer, ...]
    tiles: tuple[Span, ...]
    stores: tuple[Store, ...]
    requirements: tuple[Guard, ...] = ()
    is_behind: bool = False

    def walk(self) -> Iterator[Node]:
        """Every node once, arguments before what is computed from them."""
        seen: set[int] = set()
        for store in self.stores:
            yield from walk(store.value, seen)

    @property
    def sums(self) -> tuple[Sum, ...]:
        """The accumulation plan: every sum."""
        return tuple(node for node in self.walk() if isinstance(node, Sum))

    @property
    def grouped(self) -> Span | None:
        """The span whose places fall into groups; None if there is none."""
        return next((span for span in self.tiles if span.groups is not None), None)

    @property
    def key(self) -> tuple[Any, ...]:
        """All that two equal flows share: each node is named by its place."""
        places: dict[int, int] = {}
        nodes = []
        for node in self.walk():
            if not isinstance(node, Literal | Number):  # of which it does not matter how often they are there
                nodes.append(_key(node, places))
                places[id(node)] = len(places)
        parameters = tuple(_key(one, places) for one in self.parameters)
        stores = tuple(_key(store, places) for store in self.stores)
        return self.name, parameters, self.tiles, stores, tuple(nodes), self.requirements, self.is_behind

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Flow) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def walk(node: Node, seen: set[int] | None = None) -> Iterator[Node]:
    """A node and all that it is computed from, each once, arguments first.

    Args:
        node: where to begin.
        seen: the nodes that are left out, by `id`; grows.
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


def _key(value: Any, places: dict[int, int]) -> Any:
    """A value in which nodes are their places."""
    if isinstance(value, Node) and id(value) in places:
        return places[id(value)]
    if isinstance(value, Node | Store | Fold):
        compared = (getattr(value, one.name) for one in fields(value) if one.compare)
        return type(value).__name__, *(_key(one, places) for one in compared)
    if isinstance(value, tuple):
        return tuple(_key(one, places) for one in value)
    return (type(value).__name__, repr(value)) if isinstance(value, int | float) else value
