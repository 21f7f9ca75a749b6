"""Printer of flows: one line per value, in Python's syntax; `tilewright.dataflow.parser` reads it back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from functools import cached_property
from typing import Any

from tilewright.calls import layouts
from tilewright.dataflow.nodes import (
    ALIAS,
    BATCH,
    EXACT,
    TURN,
    ArrayPart,
    Axis,
    Cell,
    CellMerge,
    Flow,
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
from tilewright.dtypes import DType
from tilewright.functions.table import TAKE
from tilewright.symbolic.nodes import Expr, Int, Sym
from tilewright.symbolic.rebuilding import symbols
from tilewright.symbolic.spelling import format_cond, format_int
from tilewright.views.reading import WORDS

VERSION = 1
HEAD = f"# tilewright flow {VERSION}"

CONVERSIONS = ("convert", "saturate", "bitcast")
"""Functions whose result dtype is given by the printed line, not by the argument."""


def spelled_function(name: str) -> str:
    """Return the printed name of a function; Python's keywords ``and`` and ``or`` get an underscore."""
    return f"{name}_" if name in WORDS else name


@layouts
def print_flow(flow: Flow, *, locations: bool = False) -> str:
    r"""Return the flow as text, which `parse_flow` reads back.

    Args:
        flow: a recorded flow.
        locations: whether to print the author's line after each value.

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
        >>> a, b, c = (np.ones((64, 64), np.float16) for _ in range(3))
        >>> text = tw.ir.print_flow(product(a, b, c, target="reference").flow)
        >>> print("\n".join(text.splitlines()[8:]))
        m = tile(M)
        n = tile(N)
        k = steps(K)
        A_mk: f16[m, k] = A[m, k]
        B_nk: f16[n, k] = B[n, k]
        B_nk_T: f16[k, n] = rearrange(B_nk)
        acc: f32[m, n] = sum(k, A_mk, B_nk_T)
        C[m, n] = acc
    """
    return "\n".join([HEAD, *_FlowPrinter(flow, locations).lines()]) + "\n"


class _FlowPrinter:
    def __init__(self, flow: Flow, locations: bool) -> None:
        self.flow = flow
        self.locations = locations
        self.taken = {*WORDS}
        self.spans: set[Span] = set()
        self.operands: dict[Operand, str] = {}
        self.folds: dict[int, str] = {}
        self.names: dict[int, str] = {}

    # ---------------------------------------------------------------- names

    def unique(self, wanted: str) -> str:
        name, count = wanted, 0
        while name in self.taken:
            count += 1
            name = f"{wanted}_{count}"
        self.taken.add(name)
        return name

    def name_all(self) -> None:
        """Choose names: the author's for the last value with that name, generated names for the rest."""
        nodes = [node for node in self.flow.walk() if not isinstance(node, NumberParam)]
        self.taken |= {span.name for node in nodes for span in _spans(node)}
        for node in reversed(nodes):
            if node.variable is not None and node.variable not in self.taken:
                self.names[id(node)] = self.unique(node.variable)
        for node in nodes:
            if id(node) not in self.names and not self.inline_anywhere(node):
                self.names[id(node)] = self.unique(node.variable or self.default(node))

    def default(self, node: Node) -> str:
        match node:
            case ArrayPart():
                return f"{node.operand.name}_{''.join(span.name for span in node.at)}"
            case Rearrange():
                turned = node.axes == node.argument.axes[::-1]
                return f"{self.names.get(id(node.argument), 'x')}_{'T' if turned else 'axes'}"
            case Map():
                return node.function
            case _:
                return type(node).__name__.lower()

    # ---------------------------------------------------------------- lines

    def lines(self) -> Iterator[str]:
        yield f"flow({self.flow.name!r})"
        yield from self.parameters()
        for guard in self.flow.requirements:
            named = "".join(f", {self.show(value)}" for value in guard.values)
            yield f"require({format_cond(guard.condition)}, {guard.message!r}{named})"
        if self.flow.waits_for_prior_grid:
            yield "prior_grid_wait()"
        for span in self.flow.tiles:
            yield from self.span(span)
        for one in self.flow.arrivals:
            given = one.operand.name, one.counters.name, self.show(one.value), self.show(one.first)
            yield f"arrives({', '.join(given)}){self.note(one)}"
        if (made := self.flow.departure) is not None:
            names = made.operand.name, made.counters.name
            yield f"leaves({', '.join(names)}, {self.show(made.first)}){self.note(made)}"
        self.name_all()
        seen: set[int] = set()
        for store in self.flow.stores:
            yield from self.values(store.value, seen)
            yield from self.operand(store.operand)
            value = self.argument(store.value, store.operand.dtype)
            sign = "+=" if store.added else "="
            yield f"{self.place(store.operand, store.at)} {sign} {value}{self.note(store)}"

    def parameters(self) -> Iterator[str]:
        passed = {one.value for one in self.flow.parameters if isinstance(one, Integer)}
        self.taken |= {sym.name for sym in self.sizes()}
        for sym in self.sizes():
            if sym not in passed:
                yield f"{sym.name} = {self.size('size', sym)}"
        for one in self.flow.parameters:
            match one:
                case Operand():
                    self.operands[one] = one.name
                    yield f"{one.name} = array({one.dtype}, {self.show(one.shape)})"
                case NumberParam():
                    yield f"{one.name} = number({one.dtype})"
                case Integer(value=Sym() as sym):
                    yield f"{sym.name} = {self.size('integer', sym)}"
            if not isinstance(one, Integer):
                self.taken.add(one.name)

    def sizes(self) -> list[Sym]:
        """Return the sizes used in shapes, spans and numbers, in order of appearance."""
        written: list[Int] = []
        for one in self.flow.parameters:
            written += (
                one.shape if isinstance(one, Operand) else [one.value] if isinstance(one, Integer) else []
            )
        written += [span.extent for span in self.flow.tiles]
        for node in self.flow.walk():
            match node:
                case Integer():
                    written.append(node.value)
                case ArrayPart():
                    written += node.operand.shape
            written += [span.extent for span in _spans(node)]
        named = (sym for value in written for sym in sorted(symbols(value), key=lambda sym: sym.name))
        return list(dict.fromkeys(named))

    def size(self, kind: str, sym: Sym) -> str:
        return f"{kind}(low={sym.low}, high={sym.high}, divisor={sym.divisor})"

    def span(self, span: Span) -> Iterator[str]:
        if span.of is not None and span not in self.spans:
            yield from self.span(span.of)
            self.spans.add(span)
            yield f"{span.name} = {ALIAS}({span.of.name})"
        if span not in self.spans:
            self.spans.add(span)
            self.taken.add(span.name)
            groups = f", {span.groups.index.name}, {span.groups.ends.name}" if span.groups else ""
            if span.groups and (span.groups.starts is not None or span.groups.block > 1):
                groups += f", {self.show(span.groups.starts)}"
            if span.groups and span.groups.block > 1:
                groups += f", {span.groups.block}"
            kind = span.kind if span in self.flow.tiles or span.kind != BATCH else TURN
            yield f"{span.name} = {kind}({self.show(span.extent)}{groups})"

    def operand(self, operand: Operand) -> Iterator[str]:
        if operand not in self.operands:
            for index in operand.indices:
                yield from self.operand(index)
            name = self.operands[operand] = self.unique(f"{operand.name}_view")
            views = "".join(f", {self.record(one)}" for one in operand.transforms)
            yield f"{name} = view({operand.name}, {self.show(operand.shape)}{views})"

    def values(self, value: Node, seen: set[int]) -> Iterator[str]:
        for node in walk(value, seen):
            for span in _spans(node):
                yield from self.span(span)
            if isinstance(node, ArrayPart):
                yield from self.operand(node.operand)
            if isinstance(node, Folded):
                yield from self.fold(node.fold)
            if id(node) in self.names:
                axes = ", ".join("1" if axis is None else axis.name for axis in node.axes)
                kind = f"{node.dtype}[{axes}]" if node.axes else f"{node.dtype}"
                yield f"{self.names[id(node)]}: {kind} = {self.computed(node)}{self.note(node)}"

    def fold(self, fold: Fold) -> Iterator[str]:
        if id(fold) not in self.folds:
            name = self.folds[id(fold)] = self.unique("fold")
            shown = []
            for cell, step, merge in zip(fold.cells, fold.steps, fold.merges or fold.steps, strict=True):
                given = [self.names[id(cell)], self.argument(step, cell.dtype)]
                if isinstance(merge, CellMerge):
                    given += [self.names[id(one)] for one in (merge.first, merge.second)]
                    given.append(self.argument(merge.value, cell.dtype))
                shown.append(f"({', '.join(given)})")
            spans = [span.name for span in (*fold.turns, fold.span)]
            over = f"({', '.join(spans)})" if fold.turns else fold.span.name
            shown += [f"result({self.names[id(one)]})" for one in fold.results]
            yield f"{name} = fold({', '.join([over, *shown])})"

    def note(self, value: Any) -> str:
        return f"  # {value.location.frame}" if self.locations and value.location is not None else ""

    # ---------------------------------------------------------------- values

    def computed(self, node: Node) -> str:
        match node:
            case Literal():
                return f"literal({node.value!r})"
            case Integer():
                return f"integer({self.show(node.value)})"
            case ArrayPart():
                return self.place(node.operand, node.at)
            case Position():
                return f"position({node.span.name})"
            case Rearrange():
                return f"rearrange({self.argument(node.argument, node.dtype)})"
            case Map():
                kind = literals_dtype(node.function, node.given, node.dtype)
                given = ", ".join(self.argument(one, kind) for one in node.given)
                return f"{spelled_function(node.function)}({given})"
            case Reduce():
                return (
                    f"reduce({node.combine!r}, {self.argument(node.argument, node.dtype)}, axis={node.axis})"
                )
            case Scan():
                order = ", reverse=True" if node.reverse else ""
                return f"scan({self.argument(node.argument, node.dtype)}, axis={node.axis}{order})"
            case Sum():
                a, b = self.argument(node.a, node.dtype), self.argument(node.b, node.dtype)
                words = [] if node.precision == EXACT else [f"precision={node.precision!r}"]
                for name, scale in (("scale_a", node.scale_a), ("scale_b", node.scale_b)):
                    words += [] if scale is None else [f"{name}={self.argument(scale, node.dtype)}"]
                return f"sum({', '.join([node.span.name, a, b, *words])})"
            case Cell():
                return f"cell({node.name!r}, {self.argument(node.start, node.dtype)})"
            case Folded():
                return f"folded({self.folds[id(node.fold)]}, {node.index})"
        raise AssertionError(f"no value: {type(node).__name__}")

    def argument(self, node: Node, kind: DType) -> str:
        """Print a value as an argument: its name, or a number with the dtype of the other arguments."""
        if isinstance(node, NumberParam):
            return node.name
        if id(node) in self.names:
            return self.names[id(node)]
        assert isinstance(node, Literal)
        assert node.dtype == kind
        return repr(node.value)

    def inline_anywhere(self, node: Node) -> bool:
        """Return whether a value is a number that every use prints inline, with its dtype implied there."""
        return isinstance(node, Literal) and not node.axes and id(node) not in self.needed

    @cached_property
    def needed(self) -> set[int]:
        """The `id` of each literal whose dtype differs from that of the arguments next to it."""
        found: set[int] = set()
        uses: list[tuple[Node, DType]] = [(store.value, store.operand.dtype) for store in self.flow.stores]
        for node in self.flow.walk():
            kind = node.dtype
            if isinstance(node, Map):
                kind = literals_dtype(node.function, node.given, node.dtype)
            uses += [(one, kind) for one in node.arguments]
        found |= {id(one) for one, kind in uses if one.dtype != kind}
        return found

    def place(self, operand: Operand, at: Sequence[Span]) -> str:
        return f"{self.operands[operand]}[{', '.join(span.name for span in at) or '()'}]"

    def show(self, value: Any) -> str:
        match value:
            case Expr():
                return format_int(value)
            case Operand():
                return self.operands[value]
            case tuple():
                return f"({', '.join(map(self.show, value))}{',' * (len(value) == 1)})"
            case _:
                return repr(value)

    def record(self, record: Any) -> str:
        given = [(one, getattr(record, one.name)) for one in fields(record)]
        shown = [
            f"{one.name}={self.show(value)}"
            for one, value in given
            if one.default is MISSING or value != one.default
        ]
        return f"{type(record).__name__}({', '.join(shown)})"


def _spans(node: Node) -> list[Span]:
    """Return the spans that the line of a value names."""
    found: list[Axis] = [*node.axes]
    match node:
        case ArrayPart():
            found += node.at
        case Sum() | Position():
            found.append(node.span)
        case Folded():
            found += (*node.fold.turns, node.fold.span)
    return [span for span in found if span is not None]


def literals_dtype(function: str, given: Sequence[object], made: DType) -> DType:
    """Return the dtype of plain numbers among a function's arguments: the others' dtype, or the result's."""
    values = given[1:] if function in ("select", TAKE) else given
    return next((one.dtype for one in values if isinstance(one, Node) and not isinstance(one, Literal)), made)
