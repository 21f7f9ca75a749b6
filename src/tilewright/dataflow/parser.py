"""Parser of printed flows, based on Python's own parser."""

from __future__ import annotations

import ast
from typing import Any, TypeVar

from tilewright.calls import Calls
from tilewright.dataflow.legality import misfit, misfit_of_flow, view_misfit
from tilewright.dataflow.nodes import (
    ALIAS,
    BATCH,
    STEPS,
    TILE,
    TURN,
    ArrayPart,
    Arrival,
    Axis,
    Cell,
    CellMerge,
    Departure,
    Flow,
    Fold,
    Folded,
    Groups,
    Integer,
    Literal,
    Map,
    Node,
    NumberParam,
    Operand,
    Position,
    Rearrange,
    Reduce,
    Rows,
    Scan,
    Span,
    Store,
    Sum,
)
from tilewright.dataflow.printer import HEAD, literals_dtype, spelled_function
from tilewright.dtypes import DType, i64
from tilewright.errors import ParseError
from tilewright.functions.table import FUNCTIONS
from tilewright.symbolic.nodes import Expr, Sym
from tilewright.symbolic.rebuilding import Guard
from tilewright.views.reading import TextReader, statements

Record = TypeVar("Record")


_BY_TEXT = {spelled_function(name): name for name in FUNCTIONS}


@Calls(ParseError)
def parse_flow(text: str) -> Flow:
    """Parse a text of `tilewright.dataflow.printer.print_flow` and return the flow.

    Args:
        text: a printed flow of the same version.

    Raises:
        ParseError: the text is not a printed flow of this version.

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
        >>> tw.ir.parse_flow(tw.ir.print_flow(flow)) == flow
        True
    """
    return _FlowParser().flow(statements(text, HEAD))


class _FlowParser(TextReader):
    CALLS = {**TextReader.CALLS, "Rows": Rows}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.parameters: list[Operand | NumberParam | Integer] = []
        self.tiles: list[Span] = []
        self.stores: list[Store] = []
        self.requirements: list[Guard] = []
        self.waits_for_prior_grid = False
        self.arrivals: list[Arrival] = []
        self.departure: Departure | None = None
        self.line = 2

    def legal(self, record: Record, wrong: str = "") -> Record:
        """Return a node if it is valid; raise the error otherwise."""
        if wrong := wrong or misfit(record):
            raise ParseError(f"line {self.line}: {wrong}")
        return record

    def called(self, name: str, made: Any) -> None:
        """Bind the result of a line to a name."""
        self.legal(made, f"the name {name} is taken" if name in self.names else "")
        self.names[name] = made

    def flow(self, found: list[ast.stmt]) -> Flow:
        match found[:1]:
            case [ast.Expr(value=ast.Call(func=ast.Name(id="flow"), args=[ast.Constant(value=str(name))]))]:
                for statement in found[1:]:
                    self.guarded(self.statement, statement)
                parameters, tiles, stores = tuple(self.parameters), tuple(self.tiles), tuple(self.stores)
                more = tuple(self.requirements), self.waits_for_prior_grid, tuple(self.arrivals)
                flow = Flow(name, parameters, tiles, stores, *more, self.departure)
                return self.legal(flow, misfit_of_flow(flow))
        raise ParseError("line 2: expected flow(name)")

    def statement(self, node: ast.stmt) -> None:
        self.line = node.lineno
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id=what)) as call):
                self.called(name, self.define(name, what, call))
            case ast.Assign(targets=[ast.Subscript() as place], value=value):
                operand, at = self.place(place)
                self.stores.append(self.legal(Store(operand, at, self.node(value, operand.dtype))))
            case ast.AugAssign(target=ast.Subscript() as place, op=ast.Add(), value=value):
                operand, at = self.place(place)
                self.stores.append(
                    self.legal(Store(operand, at, self.node(value, operand.dtype), added=True))
                )
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=ast.expr() as value):
                self.called(name, self.computed(name, *self.kind(kind), value))
            case ast.Expr(value=ast.Call(func=ast.Name(id="require"), args=[condition, message, *values])):
                named = tuple(map(self.value, values))
                said = self.value(message)
                if not isinstance(said, str) or not all(isinstance(one, int | Expr) for one in named):
                    raise ParseError(f"line {node.lineno}: require takes a condition, a text and integers")
                self.requirements.append(Guard(self.cond(condition), said, named))
            case ast.Expr(value=ast.Call(func=ast.Name(id="prior_grid_wait"), args=[])):
                self.waits_for_prior_grid = True
            case ast.Expr(value=ast.Call(func=ast.Name(id="arrives"), args=given)) if len(given) == 4:
                self.arrivals.append(self.legal(Arrival(*map(self.value, given))))
            case ast.Expr(value=ast.Call(func=ast.Name(id="leaves"), args=given)) if len(given) == 3:
                self.departure = self.legal(Departure(*map(self.value, given)))
            case _:
                raise ParseError(f"line {node.lineno}: not a line of a flow: {ast.unparse(node)}")

    def define(self, name: str, what: str, call: ast.Call) -> Any:
        """Read the definition of a size, a parameter, a span, a view or a fold."""
        if what == "fold":
            span, *pairs = call.args
            found = [pair.elts for pair in pairs if isinstance(pair, ast.Tuple)]
            cells = tuple(self.value(one[0]) for one in found)
            steps = tuple(self.node(one[1], cell.dtype) for one, cell in zip(found, cells, strict=True))
            merges = tuple(self.merge(one[2:], cell) for one, cell in zip(found, cells, strict=True))
            spans = self.value(span)
            *turns, along = spans if isinstance(spans, tuple) else (spans,)
            results = tuple(self.value(pair.args[0]) for pair in pairs if isinstance(pair, ast.Call))
            return Fold(along, cells, steps, tuple(turns), merges if any(merges) else (), results)
        positional, named = self.arguments(call)
        made: Any
        match what:
            case "size":
                return self.size(name, **named)
            case "integer":
                made = self.size(name, **named)
                self.parameters.append(Integer(i64, (), made))
            case "array":
                made = self.legal(Operand(name, *positional))
                self.parameters.append(made)
            case "number":
                made = self.legal(NumberParam(positional[0], (), name))
                self.parameters.append(made)
            case "view":
                source, shape, *transforms = positional
                made = Operand(source.name, source.dtype, shape, tuple(transforms))
                self.legal(made, view_misfit(source, made))
            case _ if what == ALIAS:
                [of] = positional
                made = Span(name, of.extent, STEPS, None, of)
            case _ if what in (BATCH, TILE, STEPS, TURN):
                extent, *groups = positional
                kind = BATCH if what == TURN else what
                made = Span(name, extent, kind, Groups(*groups) if groups else None)
                self.tiles += [made] if what in (BATCH, TILE) else []
            case _:
                raise ParseError(f"line {call.lineno}: unknown line {what!r}")
        return made

    def merge(self, given: list[ast.expr], cell: Cell) -> CellMerge | None:
        """Read the merge of a cell; None if the text does not state it."""
        if not given:
            return None
        first, second, value = given
        return CellMerge(self.value(first), self.value(second), self.node(value, cell.dtype))

    def size(self, name: str, low: int = 0, high: int | None = None, divisor: int = 1) -> Sym:
        """Read a size, which comes from array extents or is passed as an integer."""
        numbers = (low, divisor, *(() if high is None else (high,)))
        if not all(type(one) is int for one in numbers) or divisor < 1 or (high is not None and high < low):
            raise ParseError(f"line {self.line}: {name} has integers low, high and divisor, low at most high")
        return Sym(name, low=low, high=high, divisor=divisor)

    def kind(self, node: ast.expr) -> tuple[DType, tuple[Axis, ...]]:
        """Read the dtype and the axes of a value."""
        if not isinstance(node, ast.Subscript):
            return self.value(node), ()
        axes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        found = (self.value(axis) for axis in axes)
        return self.value(node.value), tuple(None if axis == 1 else axis for axis in found)

    def place(self, node: ast.Subscript) -> tuple[Operand, tuple[Span, ...]]:
        spans = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return self.value(node.value), tuple(self.value(span) for span in spans)

    def node(self, node: ast.expr, kind: DType) -> Node:
        """Read an argument: a value, or a plain number with the dtype of the other arguments."""
        found = self.value(node)
        return found if isinstance(found, Node) else self.legal(Literal(kind, (), found))

    def computed(self, name: str, dtype: DType, axes: tuple[Axis, ...], node: ast.expr) -> Node:
        if isinstance(node, ast.Subscript):
            return ArrayPart(dtype, axes, *self.place(node), variable=name)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            raise ParseError(f"line {node.lineno}: not a value of a flow: {ast.unparse(node)}")
        what, args = _BY_TEXT.get(node.func.id, node.func.id), node.args
        match what:
            case "literal" | "integer":
                cls = Literal if what == "literal" else Integer
                return cls(dtype, axes, self.value(args[0]), variable=name)
            case "position":
                return Position(dtype, axes, self.value(args[0]), variable=name)
            case "rearrange":
                return Rearrange(dtype, axes, self.node(args[0], dtype), variable=name)
            case "reduce":
                axis = self.value(node.keywords[0].value)
                return Reduce(
                    dtype, axes, self.value(args[0]), self.node(args[1], dtype), axis, variable=name
                )
            case "scan":
                words = {str(word.arg): self.value(word.value) for word in node.keywords}
                return Scan(dtype, axes, self.node(args[0], dtype), **words, variable=name)
            case "sum":
                a, b = (self.node(one, dtype) for one in args[1:])
                named = {str(word.arg): self.value(word.value) for word in node.keywords}
                for name in named.keys() & {"scale_a", "scale_b"}:
                    if not isinstance(named[name], Node):
                        named[name] = self.legal(Literal(dtype, (), named[name]))
                return Sum(dtype, axes, self.value(args[0]), a, b, **named, variable=name)
            case "cell":
                called, start = self.value(args[0]), self.node(args[1], dtype)
                return Cell(dtype, axes, called, start, variable=name)
            case "folded":
                return Folded(dtype, axes, self.value(args[0]), self.value(args[1]), variable=name)
            case _ if what in FUNCTIONS:
                found = [self.value(one) for one in args]
                kind = literals_dtype(what, found, dtype)
                given = tuple(
                    one if isinstance(one, Node) else self.legal(Literal(kind, (), one)) for one in found
                )
                return Map(dtype, axes, what, given, variable=name)
        raise ParseError(f"line {node.lineno}: unknown value {what!r}")
