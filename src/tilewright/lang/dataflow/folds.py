"""Accumulators: values that loops over `steps` carry, recorded as sums of products or as folds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tilewright.dataflow.legality import fits, outside_of_merge
from tilewright.dataflow.nodes import (
    EXACT,
    TF32,
    Cell,
    CellMerge,
    Fold,
    Folded,
    Literal,
    Map,
    Node,
    Reduce,
    Span,
    Store,
    Sum,
)
from tilewright.dtypes import f32
from tilewright.errors import TraceError, shown
from tilewright.lang.dataflow.recorder import Recorder
from tilewright.lang.dataflow.tiles import Accumulator, SpanLoop, Tile, no_tile_error, spelled, tile_name
from tilewright.lang.source import here


class Carried:
    """An accumulator within a loop, with the placeholder of its value at the start of a step."""

    def __init__(self, acc: Accumulator, cell: Cell) -> None:
        self.acc = acc
        self.cell = cell
        self.step: Node = cell


class Steps(SpanLoop):
    """A loop over one span whose body is being recorded, with its carried accumulators."""

    span: Span
    turns: tuple[Span, ...] = ()
    """Spans of the outer dimensions of ``tw.steps((R, K))``, whose iterations run in order."""

    carried: list[Carried]
    state: tuple[Accumulator, ...] = ()
    """The accumulators whose merge the author states."""

    merge: Callable[..., Any] | None = None
    """Function of the states of two parts that returns the state of both."""

    stores: list[Store]
    """Stores of each step."""


def carry(flow: Recorder, acc: Accumulator) -> None:
    """Let the open loops carry an accumulator that was made outside of them."""
    for loop in flow.loops:
        if loop in acc.outer or any(one.acc is acc for one in loop.carried):
            continue
        start = acc._node
        cell = Cell(start.dtype, start.axes, acc.variable, start, variable=acc.variable, location=here())
        loop.carried.append(Carried(acc, cell))
        acc.set_value(cell, [loop])


def accumulate(flow: Recorder, acc: Accumulator, other: Any, sign: str) -> Accumulator:
    """Record ``acc += other``: within steps a sum of products, outside of them any value."""
    if not flow.loops or flow.loops[-1] in acc.outer:
        if isinstance(other, Tile):
            acc.choose_dtype(other.dtype)
        return change(flow, acc, sign, acc + other if sign == "+" else acc - other)
    if not isinstance(other, Tile):
        raise no_tile_error(other)
    span = flow.loops[-1].span
    if [loop for loop in flow.loops if loop not in acc.outer] != flow.loops[-1:]:
        raise TraceError(
            f"{tile_name(acc)} {sign}= ... in two loops over steps: each step of the outer one would add "
            "the whole sum of the inner one",
            here(),
            f"{tile_name(acc)} = tw.zeros() inside of the outer loop",
        )
    terms = [*_terms(other.node, span, sign == "-")]
    if not terms:
        node = other.node
        while isinstance(node, Map) and node.function == "convert":
            (node,) = node.given
        # Steps of any depth add up to a sum along the span.
        if isinstance(node, Reduce) and node.combine == "sum" and node.argument.axes[node.axis] == span:
            acc.choose_dtype(other.dtype)
            return change(flow, acc, "assign", acc + other if sign == "+" else acc - other)
        raise TraceError(
            f"{tile_name(acc)} {sign}= {tile_name(other)}: the result would depend on the depth of the "
            f"steps along {span.name}",
            here(),
            "acc += a @ b of operands, acc += x.sum(axis=1) of rows, or acc.assign(...) for a fold",
        )
    for term, negative in terms:
        _add(flow, acc, term, negative, other)
    return acc


def _add(flow: Recorder, acc: Accumulator, term: Sum, negative: bool, source: Tile) -> None:
    acc.choose_dtype(term.dtype)
    before = acc.node
    kind = before.dtype
    if kind.is_float != term.dtype.is_float or kind.components != term.dtype.components:
        raise TraceError(
            f"an accumulator of {kind} for products of {term.a.dtype} and {term.b.dtype}",
            here(),
            f"tw.zeros(dtype=tw.{term.dtype}), converted after the loop",
        )
    if negative and not term.a.dtype.is_float:
        raise TraceError(
            f"{tile_name(acc)} -= ... of {term.a.dtype}, whose lowest value cannot be negated",
            here(),
            "an accumulator of its own, which is subtracted after the loop",
        )
    a = flow.make(Map, term.a.dtype, term.a.axes, "neg", (term.a,)) if negative else term.a
    if acc.precision == TF32 and (term.a.dtype.component, term.b.dtype.component) != (f32, f32):
        raise TraceError(
            f"{tile_name(acc)} has precision={TF32!r}, which needs operands of f32, and the operands are "
            f"{term.a.dtype} and {term.b.dtype}",
            here(),
            "tw.zeros() without precision",
        )
    precision = acc.precision if term.precision == EXACT else term.precision
    product = flow.make(Sum, kind, term.axes, term.span, a, term.b, precision, *term.scales)
    made = flow.mapped("add", (flow.tile(before), flow.tile(product)))
    acc.set_value(made.node, source.needs)


def _terms(node: Node, span: Span, negative: bool) -> Iterator[tuple[Sum, bool]]:
    """Return the products in a sum of products, and whether each is subtracted; empty for other values."""
    match node:
        case Sum(span=along) if along == span:
            yield node, negative
        case Map(function="add" | "sub", given=(left, right)):
            first = [*_terms(left, span, negative)]
            second = [*_terms(right, span, negative != (node.function == "sub"))]
            if first and second:
                yield from (*first, *second)
        case Map(function="neg", given=(part,)):
            yield from _terms(part, span, not negative)


def change(flow: Recorder, acc: Accumulator, how: str, value: Tile) -> Accumulator:
    """Record any other change of an accumulator; its dtype stays."""
    acc.choose_dtype(value.dtype)
    before, node = acc.node, value.node
    if node.dtype != before.dtype:
        if how != "assign":
            raise TraceError(
                f"`{how}=` would change the dtype of the accumulator from {before.dtype} to {node.dtype}",
                here(),
                f"`y = {acc.variable} {how} ...`",
            )
        node = flow.converted(node, before.dtype)
    if flow.loops and flow.loops[-1] not in acc.outer and how != "assign":
        raise TraceError(
            f"`{how}=` in a loop over steps: the result would depend on the depth of the steps",
            here(),
            "`acc += a @ b`, the operation after the loop, or acc.assign(...) for a fold",
        )
    acc.set_value(node, value.needs)
    return acc


# ---------------------------------------------------------------- the end of a loop


def close(flow: Recorder, loop: Steps) -> None:
    """Set each accumulator to its value after the loop."""
    for one in loop.carried:
        one.step = one.acc._node
    folded = _folded(loop)
    for one in (one for one in loop.carried if one not in folded):
        # The value before the loop plus all products.
        node = one.cell.start
        for term in _increments(one, loop.span) or ():
            if isinstance(node, Literal) and node.value == 0:
                node = term
            else:
                node = flow.mapped("add", (flow.tile(node), flow.tile(term))).node
        is_new = node is not one.cell.start and (isinstance(node, Map) or node.variable is None)
        one.acc.set_value(replace(node, variable=one.acc.variable) if is_new else node, (), [loop])
    if not folded and loop.stores:
        name = loop.stores[0].operand.name
        raise TraceError(
            f"{name} is stored inside of {loop.text}, whose steps depend on no carried value",
            loop.stores[0].location,
            f"a span of tw.tiles for the rows of {name}",
        )
    if not folded:
        return
    cells, steps = (one.cell for one in folded), (one.step for one in folded)
    results = tuple(one.value for one in loop.stores)
    merges = _merges(flow, loop, folded)
    fold = Fold(loop.span, tuple(cells), tuple(steps), loop.turns, merges, results)
    for index, store in enumerate(loop.stores, len(folded)):
        value = Folded(store.value.dtype, store.value.axes, fold, index, location=store.location)
        flow.stores.append(replace(store, value=value))
    for index, one in enumerate(folded):
        name, cell, step = one.acc.variable, one.cell, one.step
        if cell.axes != step.axes and any(node is cell for node in _reached(step)):
            axes = ", ".join(axis.name for axis in step.axes if axis is not None)
            raise TraceError(
                f"{name} is {spelled(cell)} before a step and {spelled(step)} after it",
                here(),
                f"{name} = tw.zeros(({axes},), tw.{step.dtype})",
            )
        made = Folded(step.dtype, step.axes, fold, index, variable=name, location=loop.location)
        one.acc.set_value(made, (), [loop])


def _merges(flow: Recorder, loop: Steps, folded: Sequence[Carried]) -> tuple[CellMerge | None, ...]:
    """Record how the author merges the state of two parts; empty if no merge is stated."""
    if loop.merge is None:
        return ()
    carried = {id(one.acc): one for one in folded}
    text = f"merge={shown(loop.merge)} of the loop over {loop.text}"
    parts: list[list[Tile]] = [[], []]
    for acc in loop.state:
        if id(acc) not in carried:
            raise TraceError(
                f"state= names {tile_name(acc)}, which no step changes",
                loop.location,
                f"accumulators that the loop over {loop.text} assigns",
            )
        node = carried[id(acc)].step
        for tiles, place in zip(parts, ("first", "second"), strict=True):
            start = Literal(node.dtype, (), 0)
            name = f"{acc.variable}_{place}"
            cell = Cell(node.dtype, node.axes, name, start, variable=name, location=loop.location)
            tiles.append(flow.tile(cell))
    first, second = (one[0] if len(one) == 1 else tuple(one) for one in parts)
    try:
        made = loop.merge(first, second)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise
        raise TraceError(
            f"{text} does not take two states: {error}",
            loop.location,
            "a function of the states of both parts, such as merge=tw.maximum",
        ) from None
    values = [made] if len(loop.state) == 1 and not isinstance(made, tuple | list) else [*made]
    if len(values) != len(loop.state):
        raise TraceError(
            f"{text} returns {len(values)} values for {len(loop.state)} accumulators",
            loop.location,
            "a value for each accumulator of state=, in this order",
        )
    merges: dict[int, CellMerge] = {}
    known = {id(tile.node) for one in parts for tile in one}
    for acc, one, other, value in zip(loop.state, *parts, values, strict=True):
        node = (value if isinstance(value, Tile) else flow.constant(value, one)).node
        for found in outside_of_merge(node, known, loop.span):
            raise TraceError(
                f"{text}: {found.variable or 'a value of the loop'} enters {acc.variable}",
                found.location or loop.location,
                "functions and reductions of the states of both parts, numbers, positions, and loops over "
                "tw.steps((count, 1)) of these",
            )
        node = node if node.dtype == one.node.dtype else flow.converted(node, one.node.dtype)
        if not fits(node.axes, one.node.axes):
            raise TraceError(
                f"{text}: {acc.variable} is {spelled(one.node)}, and its merge {spelled(node)}",
                loop.location,
                f"a value with the axes {spelled(one.node)}",
            )
        merges[id(acc)] = CellMerge(_cell(one), _cell(other), node)
    return tuple(merges.get(id(one.acc)) for one in folded)


def _cell(tile: Tile) -> Cell:
    """Return the node of a tile that is a `Cell`."""
    assert isinstance(tile.node, Cell)
    return tile.node


def _folded(loop: Steps) -> list[Carried]:
    """Return the accumulators that need a fold.

    The others add products in each step, and these products depend on no carried value.
    """
    if loop.turns:
        return loop.carried
    span = loop.span
    cells = {id(one.cell) for one in loop.carried}
    stated = {id(acc) for acc in loop.state}
    sums = [one for one in loop.carried if id(one.acc) not in stated and _increments(one, span) is not None]
    folded = [one for one in loop.carried if one not in sums]
    while True:
        seen = {id(node) for one in folded for node in _reached(one.step)}
        seen |= {id(node) for one in loop.stores for node in _reached(one.value)}
        more = [
            one
            for one in sums
            if id(one.cell) in seen
            or any(id(node) in cells for term in _increments(one, span) or () for node in _reached(term))
        ]
        if not more:
            return [one for one in loop.carried if one in folded]
        folded += more
        sums = [one for one in sums if one not in more]


def _increments(one: Carried, span: Span) -> list[Sum] | None:
    """Return the products that a step adds; None if it does anything else."""
    found: list[Sum] = []
    node = one.step
    while node is not one.cell:
        match node:
            case Map(function="add", given=(before, Sum() as term)) if term.span == span:
                found.insert(0, term)
                node = before
            case _:
                return None
    return found


def _reached(node: Node) -> Iterator[Node]:
    """Yield a value and every node that it depends on, each once."""
    seen: set[int] = set()
    left = [node]
    while left:
        one = left.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            left += one.arguments
