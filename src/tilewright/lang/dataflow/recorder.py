"""Recorder of a flow's values: makes each value once, with its dtype, its axes and the author's line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from tilewright.dataflow.nodes import (
    STEPS,
    TILE,
    ArrayPart,
    Arrival,
    Axis,
    Departure,
    Integer,
    Literal,
    Map,
    Node,
    NumberParam,
    Span,
    Store,
    walk,
)
from tilewright.dtypes import ALL, DType, boolean, c64, f32, f64, i32, i64, u64
from tilewright.errors import DTypeError, TraceError
from tilewright.functions.function import WITH_PARTS
from tilewright.functions.table import ASKED, CONVERSION, TAKE
from tilewright.ir.fragment_ops import choice_dtype, result_dtype
from tilewright.ir.legality import literal_obstacle
from tilewright.ir.ops import Elementwise
from tilewright.ir.types import Value
from tilewright.lang.dataflow.rows import WholeRows, whole
from tilewright.lang.dataflow.tiles import SpanIndex, SpanLoop, Tile, TileRecorder, no_tile_error, spelled
from tilewright.lang.fragments import LOGICAL, Number, number
from tilewright.lang.scalars import Condition, Scalar
from tilewright.lang.source import here, result_names
from tilewright.lang.tensors import Tensor
from tilewright.lang.tracer import Tracer, located
from tilewright.symbolic.nodes import Expr

# ---------------------------------------------------------------- promotion of dtypes


_FLOATS = ("f16", "bf16", "f32", "f64")
_INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


def promoted(function: str, kinds: Sequence[DType]) -> DType:
    """Return the narrowest dtype that holds the values of all operands, which are converted to it.

    Raises:
        DTypeError: no dtype holds the numbers of all.

    Example:
        >>> from tilewright.dtypes import bf16, f16, i8
        >>> promoted("add", [f32, f16]), promoted("add", [f16, bf16]), promoted("mul", [i8, f16])
        (f32, f32, f16)
        >>> from tilewright.dtypes import c64
        >>> promoted("mul", [c64, f16]), promoted("mul", [c64, f64])
        (c64, c128)
    """
    named = " and ".join(dict.fromkeys(map(str, kinds)))
    is_complex, kinds = any(kind.components > 1 for kind in kinds), [kind.component for kind in kinds]
    floats = [kind.bits for kind in kinds if kind.is_float]
    mixed = len(floats) not in (0, len(kinds))  # an integer operand does not widen the float
    for name in (*_INTEGERS, *_FLOATS):
        candidate = ALL[name]
        if mixed and candidate.bits > max(floats):
            continue
        if holds_all(candidate, kinds):
            return complex_dtype(candidate) if is_complex else candidate
    raise DTypeError(f"{function} of {named}: no dtype holds both; convert one first, e.g. with .to(tw.f32)")


def complex_dtype(kind: DType) -> DType:
    """Return the complex dtype whose parts hold the numbers of a real dtype; complex dtypes stay.

    Raises:
        DTypeError: no dtype does.

    Example:
        >>> from tilewright.dtypes import bf16, f16, i32
        >>> complex_dtype(f16), complex_dtype(bf16), complex_dtype(i32)
        (c32, c64, c128)
    """
    part = next((name for name in WITH_PARTS if holds_all(ALL[name], [kind.component])), None)
    if part is None:
        raise DTypeError(f"no complex dtype holds all numbers of {kind}; convert them first, e.g. to f32")
    return kind if kind.components > 1 else ALL[WITH_PARTS[part]]


def holds_all(wide: DType, kinds: Sequence[DType]) -> bool:
    """Return whether a dtype holds every value of some other dtypes.

    Example:
        >>> from tilewright.dtypes import bf16, f16
        >>> holds_all(f32, [f16, bf16]), holds_all(f16, [f16, bf16])
        (True, False)
    """
    for kind in kinds:
        if kind.components > 1 or kind.kind == "bool":
            fits = wide == kind
        elif wide.is_float and kind.is_float:
            fits = wide == kind or (kind.bits < wide.bits and kind.mantissa <= wide.mantissa)
        elif wide.is_float:
            fits = kind.bits - (kind.kind == "int") <= wide.mantissa + 1
        elif kind.kind == wide.kind:
            fits = kind.bits <= wide.bits
        else:
            fits = kind.kind == "uint" and wide.kind == "int" and kind.bits < wide.bits
        if not fits:
            return False
    return True


def sum_dtype(a: DType, b: DType) -> DType:
    """Return the default dtype of sums of products, which `atoms.fma` uses.

    Raises:
        DTypeError: operands of kinds that have no product.

    Example:
        >>> from tilewright.dtypes import bf16, f16, i8, u8
        >>> from tilewright.dtypes import c64
        >>> sum_dtype(f16, bf16), sum_dtype(f64, f64), sum_dtype(i8, u8), sum_dtype(c64, f16)
        (f32, f64, i32, c64)
    """
    if "bool" in (a.kind, b.kind):
        raise DTypeError(f"product of {a} and {b}: needs numbers; convert truth values with .to(tw.i8)")
    if a.is_float != b.is_float:
        raise DTypeError(f"product of {a} and {b}: convert one of them first, e.g. with .to(tw.f16)")
    wide = max(a.component.bits, b.component.bits)
    if a.is_float:
        kind = f64 if wide > 32 else f32
        return kind if a.components == b.components == 1 else complex_dtype(kind)
    if a == b == u64:
        return u64
    return i64 if wide > 32 else i32


# ---------------------------------------------------------------- axes of results of tiles
# NumPy's broadcasting rules, with spans instead of extents.


def broadcast(function: str, nodes: Sequence[Node]) -> tuple[Axis, ...]:
    """Return the axes of a function's result: operands are aligned at their last axes, and None broadcasts.

    Raises:
        TraceError: two different spans meet.
    """
    rank = max((len(node.axes) for node in nodes), default=0)
    made: list[Axis] = []
    for place in range(-rank, 0):
        found = dict.fromkeys(
            axis for node in nodes if len(node.axes) >= -place and (axis := node.axes[place]) is not None
        )
        if len(found) > 1:
            raise _no_broadcast(function, nodes, [*found])
        made.append(next(iter(found), None))
    spans = [axis for axis in made if axis is not None]
    if len(set(spans)) < len(spans):
        raise _no_broadcast(function, nodes, [])
    return tuple(made)


def _no_broadcast(function: str, nodes: Sequence[Node], met: Sequence[Span]) -> TraceError:
    shapes = " and ".join(_shown(node) for node in nodes if node.axes)
    full = max(nodes, key=lambda node: len(node.axes))
    nearest = f"axes of one order, e.g. {met[0].name} for both" if met else "each span along one axis only"
    if [span.kind for span in met] == [TILE, STEPS]:
        for node in (one for one in nodes if met[1] in one.axes):
            for part in (one for one in walk(node) if isinstance(one, ArrayPart) and one.at == (met[1],)):
                nearest = f"{part.operand.name}[{met[0].name}]{'[:, None]' * (node.axes[-1] is None)}"
    for node in nodes:
        if set(node.axes) <= set(full.axes) and node is not full:
            text = ", ".join(":" if axis in node.axes else "None" for axis in full.axes)
            name = node.variable or "x"
            nearest = f"{name}[{text}]" if len(node.axes) < len(full.axes) else f"{name}.T"
            break
    return TraceError(
        f"{function} of {shapes}: axes are aligned from the last one, and these differ", here(), nearest
    )


def _shown(node: Node) -> str:
    return f"{node.variable or ''}{spelled(node)}"


def scale_axes(scale: Node, of: Node) -> tuple[Axis, ...]:
    """Return the axes of an operand, with None for each axis along which its scale does not vary.

    Raises:
        TraceError: the scale varies along another axis.
    """
    if any(axis is not None and axis not in of.axes for axis in scale.axes):
        raise TraceError(
            f"a scale {_shown(scale)} of {_shown(of)}: the scale varies along an axis that the operand does "
            "not have",
            here(),
            f"a scale along {spelled(of)}, or pass it as the scale of the other operand",
        )
    return tuple(axis if axis in scale.axes else None for axis in of.axes)


def product_axes(a: Node, b: Node) -> tuple[Span, tuple[Axis, ...]]:
    """Return the span that ``a @ b`` sums over, and the axes of the sum.

    Raises:
        TraceError: the last axis of a is not the first axis of b, or is not a span of `steps`.
    """
    what = f"{_shown(a)} @ {_shown(b)}"
    for node in (a, b):
        if len(node.axes) not in (1, 2):
            raise TraceError(
                f"{what}: operands of @ have one axis or two",
                here(),
                "the leading dimensions as batches of tw.tiles, one index each",
            )
    inner, outer = a.axes[-1], b.axes[0]
    if inner != outer or inner is None:
        last = b.axes[-1]
        is_same = inner == last
        if inner is not None and last is not None and inner.kind == last.kind == STEPS:
            is_same |= inner.extent == last.extent  # whole rows of the same dimension
        alike = "a and b whose last and first axes are the same span of tw.steps"
        if is_same and len(b.axes) > 1:
            alike = f"{_shown(a)} @ {_shown(b)}.T"
            if a.axes == b.axes:
                alike = "(a * b).sum(axis=1) for a number of each row"
        raise TraceError(
            f"{what}: the last axis of the first is not the first axis of the second", here(), alike
        )
    if inner.of is not None:
        raise TraceError(
            f"{what} sums along {inner.name}, another name of {inner.of.name}",
            here(),
            f"{inner.of.name} in place of {inner.name}",
        )
    if inner.kind != STEPS:
        raise TraceError(
            f"{what} sums along {inner.name}, which is an axis of the tiles",
            here(),
            f"for k in tw.steps({inner.extent}), and k instead of {inner.name}",
        )
    made = (*a.axes[:-1], *b.axes[1:])
    if len(set(made)) < len(made):
        raise TraceError(f"{what} has one axis twice", here(), "two spans of the same extent")
    return inner, made


NodeType = TypeVar("NodeType", bound=Node)

COMPLEX = complex | np.complexfloating
"""Complex constants that authors write."""


class Recorder(TileRecorder):
    """Records the flow of one kernel.

    Args:
        tracer: the tracer of the kernel.
        home: the loop over tiles.
    """

    def __init__(self, tracer: Tracer, home: SpanLoop) -> None:
        self.tracer = tracer
        self.home = home
        self.tiles: tuple[Span, ...] = ()
        self.loops: list[Any] = []
        self.stores: list[Store] = []
        self.waits_for_prior_grid = False
        self.arrivals: list[Arrival] = []
        self.departure: Departure | None = None
        self.rows = WholeRows(tracer, home)
        self._made: dict[Any, Node] = {}

    # ---------------------------------------------------------------- nodes

    def make(self, kind: type[NodeType], element: DType, axes: tuple[Axis, ...], *fields: Any) -> Any:
        """Make a node, or return an earlier node with the same fields."""
        # Nodes are compared by identity, and other fields by value.
        key = (
            *(kind, element, axes),
            *(
                tuple(map(id, f)) if isinstance(f, tuple) and f and isinstance(f[0], Node) else f
                for f in fields
            ),
        )
        if key not in self._made:
            self._made[key] = kind(element, axes, *fields, variable=_variable(), location=here())
        return self._made[key]

    def tile(self, node: Node, *sources: Any) -> Tile:
        """Make the tile of a node; it belongs to the loops of its operands."""
        needs = [source.needs for source in sources if isinstance(source, Tile)]
        return Tile(self, node, frozenset().union(*needs))

    def literal(self, value: float | int, element: DType, variable: str | None = None) -> Node:
        """Make a constant number."""
        key = (Literal, element, type(value), repr(value), variable)
        if key not in self._made:
            self._made[key] = Literal(element, (), value, variable=variable, location=here())
        return self._made[key]

    def constant(self, value: Any, like: Tile) -> Tile:
        """Return a number as a tile of another tile's dtype, or a whole array for a tile of whole rows."""
        if isinstance(value, COMPLEX):
            return self.tile(self.pair(value, complex_dtype(like.dtype)))
        if isinstance(value, Tensor) and value.value.tensor.shape and self.takes_arrays(like, value):
            return whole(self, value)
        node = self.known(value)
        return self.tile(self.literal(number(value), like.dtype) if node is None else node)

    def takes_arrays(self, tile: Any, array: Tensor) -> bool:
        """Return whether an array without indices is a whole array in arithmetic with a tile.

        This holds for a tile of whole rows.  A column ``[m, 1]`` and a vector make whole rows.
        """
        if not isinstance(tile, Tile):
            return False
        axes = tile.node.axes
        is_outer = len(axes) > 1 and axes[-1] is None and len(array.value.tensor.shape) == 1
        return is_outer or bool({*axes} & {*self.rows.spans})

    def known(self, value: Any) -> Node | None:
        """Return the node of a value with its own dtype; None for plain numbers."""
        if isinstance(value, Tile):
            return value.node
        if isinstance(value, Number):
            return self._number(value.value)
        if isinstance(value, Condition):
            raise TraceError(
                f"the condition {value} compares integers", here(), "a comparison of tiles or numbers"
            )
        if isinstance(value, Tensor | SpanIndex):
            raise no_tile_error(value)
        return None

    def _number(self, value: Any) -> Node:
        """Return the node of a number argument, of an integer, or of an expression of these."""
        if isinstance(value, Expr):
            integer: Node = self.make(Integer, i64, (), value)
            return integer
        made = self.tracer.builder.defining(value)
        if made is None:
            number: Node = self.make(NumberParam, value.dtype, (), value.name)
            return number
        assert isinstance(made, Elementwise), "only elementwise functions take numbers alone"
        return self.mapped(made.function, made.operands_, made.dtype).node

    # ---------------------------------------------------------------- elementwise

    def map(self, function: str, operands: Sequence[Any], element: DType | None) -> Tile | None:
        """Record an elementwise function; return None if no operand is a tile."""
        if not any(isinstance(operand, Tile | COMPLEX) for operand in operands):
            return None
        return self.mapped(function, operands, element)

    def mapped(self, function: str, operands: Sequence[Any], element: DType | None = None) -> Tile:
        """Record an elementwise function."""
        operands = [
            whole(self, one)
            if isinstance(one, Tensor) and any(self.takes_arrays(tile, one) for tile in operands)
            else one
            for one in operands
        ]
        nodes = [self._operand(function, operand) for operand in operands]
        first = 1 if function in ("select", TAKE) else 0
        kinds = [node.dtype for node in nodes[first:] if isinstance(node, Node)]
        with located():
            is_complex = any(isinstance(node, COMPLEX) for node in nodes)
            if is_complex and not kinds:
                kinds, element = [c64], c64
            turns = is_complex and any(kind.components == 1 for kind in kinds)
            if turns or (function not in CONVERSION and len(set(kinds)) > 1):
                common = promoted(function, kinds)
                common = complex_dtype(common) if turns else common
                nodes[first:] = [self._converted(node, common) for node in nodes[first:]]
                kinds = [common]
            asked = element if is_complex or function in ASKED else choice_dtype(function, nodes)
            conditions = [nodes[0].dtype] if function == TAKE else [boolean] * first
            known = conditions + [node.dtype for node in nodes[first:] if isinstance(node, Node)]
            made = result_dtype(function, known, asked)
        wanted = kinds[0] if kinds else made
        given = tuple(node if isinstance(node, Node) else self._literal(node, wanted) for node in nodes)
        given = self.rows.aligned(given)
        axes = broadcast(function, given)
        return self.tile(self.make(Map, made, axes, function, given), *operands)

    def pair(self, value: Any, kind: DType) -> Node:
        """Return a complex constant of a complex dtype."""
        parts = tuple(self._literal(number(one), kind.component) for one in (value.real, value.imag))
        made: Node = self.make(Map, kind, (), "complex", parts)
        return made

    def plain(self, value: Any, kind: DType) -> Node:
        """Return a plain number as a constant of a dtype, or of its complex dtype if it is complex."""
        if isinstance(value, COMPLEX):
            return self.pair(value, complex_dtype(kind))
        return self.literal(number(value), kind)

    def _literal(self, value: Any, wanted: DType) -> Node:
        if isinstance(value, COMPLEX):
            return self.pair(value, wanted)
        if (obstacle := literal_obstacle(wanted, value)) is not None:
            raise TraceError(obstacle[0], here(), obstacle[1])
        return (
            self.make(Integer, wanted, (), value) if isinstance(value, Expr) else self.literal(value, wanted)
        )

    def _operand(self, function: str, value: Any) -> Any:
        """Return the node of an operand; return plain numbers and integers unchanged."""
        if isinstance(value, Value):
            return self._number(value)
        if (node := self.known(value)) is not None:
            return node
        if isinstance(value, Scalar):
            return value.expr
        if isinstance(value, Expr | COMPLEX) or (function in LOGICAL and isinstance(value, bool | np.bool_)):
            return value
        return number(value)

    def _converted(self, node: Any, kind: DType) -> Any:
        if not isinstance(node, Node) or node.dtype == kind:
            return node
        return self.converted(node, kind)

    def converted(self, node: Node, kind: DType) -> Node:
        """Return the value converted to another dtype."""
        key = (Map, kind, "convert", id(node))
        if key not in self._made:
            self._made[key] = Map(kind, node.axes, "convert", (node,), location=node.location)
        return self._made[key]


def _variable() -> str | None:
    """Return the author's variable that takes the result of the current call."""
    seen, own = result_names()
    return seen[0] if own and len(seen) == 1 else None
