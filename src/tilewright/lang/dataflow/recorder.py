"""Recorder of a flow's values: makes each once, with its dtype, its axes and the author's line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from tilewright.dataflow.nodes import Axis, Integer, Literal, Map, Node, Number, Span, Store
from tilewright.dtypes import DType, boolean, i64
from tilewright.errors import TraceError
from tilewright.functions.table import CONVERSION
from tilewright.ir.elementwise import choice_dtype, result_dtype
from tilewright.ir.elementwise_legality import literal_obstacle
from tilewright.ir.ops import Elementwise
from tilewright.ir.types import Value
from tilewright.lang.dataflow.axes import broadcast
from tilewright.lang.dataflow.promotion import promoted
from tilewright.lang.dataflow.spans import SpanIndex, SpanLoop
from tilewright.lang.dataflow.tiles import Recording, Tile, no_tile
from tilewright.lang.fragments import LOGICAL, number
from tilewright.lang.fragments import Number as LangNumber
from tilewright.lang.scalars import Condition, Scalar
from tilewright.lang.source import here
from tilewright.lang.syntax import result_names
from tilewright.lang.tensors import Tensor
from tilewright.lang.tracer import Tracer, located
from tilewright.symbolic.nodes import Expr

NodeType = TypeVar("NodeType", bound=Node)


class Recorder(Recording):
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
        self.is_behind = False
        self._made: dict[Any, Node] = {}

    # ---------------------------------------------------------------- nodes

    def make(self, kind: type[NodeType], element: DType, axes: tuple[Axis, ...], *fields: Any) -> Any:
        """Make a node, or return an earlier node with the same fields."""
        key = (kind, element, axes, *map(_identity, fields))
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
        made: Node = self._made[key]
        return made

    def constant(self, value: Any, like: Tile) -> Tile:
        """A plain number, or a number of the kernel, as a tile of the dtype of another."""
        node = self.known(value)
        return self.tile(self.literal(number(value), like.dtype) if node is None else node)

    def known(self, value: Any) -> Node | None:
        """Return the node of a value with its own dtype; None for plain numbers."""
        if isinstance(value, Tile):
            return value.node
        if isinstance(value, LangNumber):
            return self._number(value.value)
        if isinstance(value, Condition):
            raise TraceError(
                f"the condition {value} compares integers; nearest legal choice: a comparison of tiles or "
                "numbers",
                here(),
            )
        if isinstance(value, Tensor | SpanIndex):
            raise no_tile(value)
        return None

    def _number(self, value: Any) -> Node:
        """The node of a number that is passed, of an integer, or of what was computed of such."""
        if isinstance(value, Expr):
            integer: Node = self.make(Integer, i64, (), value)
            return integer
        made = self.tracer.builder.defining(value)
        if made is None:
            number_: Node = self.make(Number, value.dtype, (), value.name)
            return number_
        assert isinstance(made, Elementwise), "numbers are computed element by element"
        return self.mapped(made.function, made.operands_, made.dtype).node

    # ---------------------------------------------------------------- elementwise

    def map(self, function: str, operands: Sequence[Any], element: DType | None) -> Tile | None:
        """An elementwise function of tiles; None if there is no tile among its operands."""
        if not any(isinstance(operand, Tile) for operand in operands):
            return None
        return self.mapped(function, operands, element)

    def mapped(self, function: str, operands: Sequence[Any], element: DType | None = None) -> Tile:
        """An elementwise function."""
        nodes = [self._operand(function, operand) for operand in operands]
        first = 1 if function == "select" else 0
        kinds = [node.dtype for node in nodes[first:] if isinstance(node, Node)]
        with located():
            if function not in CONVERSION and len(set(kinds)) > 1:
                common = promoted(function, kinds)
                nodes[first:] = [self._converted(node, common) for node in nodes[first:]]
                kinds = [common]
            asked = element if function in CONVERSION else choice_dtype(function, nodes)
            conditions = [boolean] * first
            known = conditions + [node.dtype for node in nodes[first:] if isinstance(node, Node)]
            made = result_dtype(function, known, asked)
        beside = kinds[0] if kinds else made
        given = tuple(node if isinstance(node, Node) else self._literal(node, beside) for node in nodes)
        axes = broadcast(function, given)
        return self.tile(self.make(Map, made, axes, function, given), *operands)

    def _literal(self, value: Any, beside: DType) -> Node:
        if (obstacle := literal_obstacle(beside, value)) is not None:
            raise TraceError("; nearest legal choice: ".join(obstacle), here())
        made: Node = (
            self.make(Integer, beside, (), value) if isinstance(value, Expr) else self.literal(value, beside)
        )
        return made

    def _operand(self, function: str, value: Any) -> Any:
        """The node of an operand; a plain number, or an integer, as it is."""
        if isinstance(value, Value):
            return self._number(value)
        if (node := self.known(value)) is not None:
            return node
        if isinstance(value, Scalar):
            return value.expr
        if isinstance(value, Expr) or (function in LOGICAL and isinstance(value, bool | np.bool_)):
            return value
        return number(value)

    def _converted(self, node: Any, kind: DType) -> Any:
        if not isinstance(node, Node) or node.dtype == kind:
            return node
        return self.converted(node, kind)

    def converted(self, node: Node, kind: DType) -> Node:
        """A value in another dtype."""
        key = (Map, kind, "convert", id(node))
        if key not in self._made:
            self._made[key] = Map(kind, node.axes, "convert", (node,), location=node.location)
        return self._made[key]


def _variable() -> str | None:
    """The author's variable that takes what the present call gives back."""
    seen, own = result_names()
    return seen[0] if own and len(seen) == 1 else None


def _identity(value: Any) -> Any:
    """What tells a field from others: itself, of nodes their identity."""
    return (
        tuple(map(id, value)) if isinstance(value, tuple) and value and isinstance(value[0], Node) else value
    )
