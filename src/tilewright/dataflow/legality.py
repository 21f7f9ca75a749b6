"""Validity rules for the nodes of a flow. A valid flow can be printed and evaluated.

The recorder makes valid flows by construction.  A parsed text may break a rule, so the parser calls `misfit`
for each node and `misfit_of_flow` at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tilewright.dataflow.nodes import (
    BATCH,
    PRECISIONS,
    STEPS,
    ArrayPart,
    Arrival,
    Axis,
    Cell,
    Departure,
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
    Store,
    Sum,
    numbering,
    walk,
)
from tilewright.dtypes import DType, boolean, limits
from tilewright.functions.function import integers
from tilewright.functions.table import CONVERSION, FUNCTIONS, TAKE
from tilewright.views.view import View

COMBINED = ("sum", "max", "min")
"""Legal functions of a reduction."""


def misfit(record: object) -> str:
    """Return the first error in a node of a flow as text; empty if the node is valid.

    Example:
        >>> from tilewright.dtypes import f32
        >>> m = Span("m", 8, "tile")
        >>> row = Literal(f32, (m,), 1.0)
        >>> misfit(Reduce(f32, (), "sum", row, 0)), misfit(Reduce(f32, (), "sum", row, 1))
        ('', 'a reduction over axis 1 of a value with 1 axes')
    """
    if isinstance(record, Node):
        if wrong := _no_dtype(record.dtype):
            return wrong
        spans = [axis for axis in record.axes if axis is not None]
        if len(set(spans)) < len(spans):
            return "an axis is named twice"
        if any(span.kind == BATCH for span in spans):
            return "a batch has one index per tile, so it is no axis of a value"
    for cls, rule in _RULES.items():
        if isinstance(record, cls):
            return rule(record)
    return ""


def misfit_of_flow(flow: Flow) -> str:
    """Return the first error in the connections between a flow's values; empty if the flow is valid."""
    carried: dict[int, frozenset[int]] = {}  # the cells that each value depends on inside of their folds
    for node in flow.walk():
        inside = frozenset[int]().union(*(carried[id(one)] for one in node.arguments))
        if isinstance(node, Folded):
            inside -= {id(cell) for cell in (*node.fold.cells, *_placeholders(node.fold))}
        elif isinstance(node, Cell):
            inside |= {id(node)}
        carried[id(node)] = inside
    indices = dict.fromkeys(span.groups.index for span in flow.cut if span.groups is not None)
    if len(indices) > 1 or not {*indices} <= {*flow.tiles}:
        names = " and ".join(span.name for span in indices)
        return f"groups are numbered by {names}; a flow has one batch that numbers groups"
    for one in flow.moved:
        if wrong := moved_misfit(flow, one):
            return wrong[0]
    for store in flow.stores:
        name = store.operand.name
        if carried[id(store.value)]:
            return f"{name} is stored from within a fold"
        for span in flow.tiles:
            if span.kind == BATCH and span not in store.at and span != numbering(store.at):
                return f"{name} is stored to without an index along the batch {span.name}"
    return ""


def moved_misfit(flow: Flow, made: Arrival | Departure) -> tuple[str, ...]:
    """Return the error in an array whose shards arrive or leave, and the nearest choice; empty if valid."""
    name, stores = made.operand.name, [one for one in flow.stores if one.operand.name == made.operand.name]
    if isinstance(made, Departure):
        what = f"{name} leaves in shards of its first dimension"
        if not stores:
            return f"{what}, and is not stored", "the array that is stored"
        first = flow.tiles[0]
        if first.kind != BATCH:
            return f"{what}, and {first.name} is no batch", "tw.tiles(..., batch=1)"
        if any(one.added or one.operand.transforms or one.at[0] != first for one in stores):
            text = f"{what}; its stores must set the whole array, and begin with the batch {first.name}"
            return text, f"for p, m, n in tw.tiles({name}), and {name}[p, m, n] = ..."
        if flow.arrivals:
            return f"{what}, and {flow.arrivals[0].operand.name} arrives; both order tiles", "two kernels"
        return ()
    what = f"{name} arrives in shards of its first dimension"
    if stores:
        return f"{what}, and is stored", "another array for the result"
    parts = [one for one in flow.walk() if isinstance(one, ArrayPart)]
    operands = [*(one.operand for one in parts), *(store.operand for store in flow.stores)]
    choosing = [index for one in operands for index in one.indices]
    bounds = [one for span in flow.cut if span.groups is not None for one in span.groups.bounds]
    if name in {one.name for one in (*choosing, *bounds)}:
        text = f"{what}, and its integers choose rows, which are read before a tile waits"
        return text, "a wait in an earlier kernel, or an explicit kernel with tw.await_"
    if not any(one.operand.name == name for one in parts):
        return f"{what}, and no tile reads it", "omit tw.arrives"
    return ()


def fits(axes: Sequence[Axis], into: Sequence[Axis]) -> bool:
    """Return whether a value with some axes broadcasts to other axes, aligned at the last axis."""
    pairs = zip(reversed(axes), reversed(into), strict=False)
    return len(axes) <= len(into) and all(one is None or one == other for one, other in pairs)


def _spans(axes: Sequence[Axis]) -> set[Span]:
    return {axis for axis in axes if axis is not None}


# ---------------------------------------------------------------- arrays, spans, stores


def _operand(made: Operand) -> str:
    return _no_dtype(made.dtype)


def _no_dtype(kind: object) -> str:
    return "" if isinstance(kind, DType) else f"{kind!r} is not a dtype"


def _moved(made: Arrival | Departure) -> str:
    array, counters = made.operand, made.counters
    if array.transforms or not array.shape:
        return f"{array.name} consists of shards, and is a view or has no dimension"
    if counters.transforms or len(counters.shape) != 1 or counters.dtype.name != "u32":
        found = "a view" if counters.transforms else f"of rank {len(counters.shape)} and {counters.dtype}"
        return f"counters of shards are an array of u32 with one dimension, and {counters.name} is {found}"
    return ""


def index_misfit(index: Operand) -> str:
    """Return the reason why an array cannot choose rows, or ""."""
    if not index.shape or index.dtype.kind not in ("int", "uint") or index.dtype.bits < 8:
        return f"rows are chosen by {index.name}, of rank {len(index.shape)} and {index.dtype}"
    return f"rows are chosen by a view of {index.name}" if index.transforms else ""


def view_misfit(source: Operand, made: Operand) -> str:
    """Return the error in a view of an array: its transforms must apply and give the right rank."""
    view = View.strided(source.shape, (1,) * len(source.shape))
    indices = made.indices
    for index in indices:
        if wrong := index_misfit(index):
            return wrong
    if len({index.name for index in indices}) < len(indices):
        return f"rows of {source.name} are chosen twice by one array"
    for transform in made.transforms:
        view = transform.apply(view)
    if len(view.shape) != len(made.shape):
        return f"the transforms give {len(view.shape)} dimensions, the shape has {len(made.shape)}"
    return ""


def _span(made: Span) -> str:
    if made.of is not None and (made.of.kind != STEPS or made.of.of is not None):
        return f"an alias names the step of a loop, and {made.of.name} is none"
    if made.groups is None:
        return ""
    index = made.groups.index
    if index.kind != BATCH:
        return f"groups are numbered by a batch, and {index.name} is of kind {index.kind}"
    for one in made.groups.bounds:
        if len(one.shape) != 1 or one.dtype.kind not in ("int", "uint"):
            return f"the bounds of groups are integers in one dimension, and {one.name} is {one.dtype}"
    return ""


def _places(operand: Operand, at: Sequence[Span]) -> str:
    if len(at) != len(operand.shape):
        return f"{operand.name} has {len(operand.shape)} dimensions, and {len(at)} indices are given"
    return "a span is named twice" if len(set(at)) < len(at) else ""


def _store(made: Store) -> str:
    own = [span for span in made.at if span.kind != BATCH]
    loop = made.value.fold.span if isinstance(made.value, Folded) else None
    legal = {loop, *carried_rows(made.value)}
    if any(span.kind == STEPS and span.of is None and span not in legal for span in own):
        return "a store inside of a loop over steps"
    if not fits(made.value.axes, own):
        return f"the axes of the value differ from the indices of {made.operand.name}"
    if made.added and not made.operand.indices:
        return f"no integers choose the rows of {made.operand.name} to which is added"
    return _places(made.operand, made.at)


# ---------------------------------------------------------------- values


def literal_misfit(value: object, kind: DType) -> str:
    """Return the error in a plain number of a dtype."""
    if not isinstance(value, int | float):
        return f"{value!r} is not a number"
    if kind.is_float or kind.kind == "bool":
        return "" if isinstance(value, float) or abs(value) < 1 << 1000 else f"{kind} does not hold {value}"
    low, high = limits(kind)
    whole = isinstance(value, int)
    return "" if whole and low <= value <= high else f"{kind} does not hold {value!r}"


def _literal(node: Literal) -> str:
    return literal_misfit(node.value, node.dtype)


def _integer(node: Integer) -> str:
    return "an integer of the sizes has no axes" if _spans(node.axes) else ""


def _part(node: ArrayPart) -> str:
    own = {span for span in node.at if span.kind != BATCH}
    if None in node.axes or set(node.axes) != own:
        return "the axes are not those of the indices"
    return _places(node.operand, node.at)


def _position(node: Position) -> str:
    if node.dtype.components > 1 or node.dtype.kind == "bool":
        return f"a position has a real dtype, and {node.dtype} is complex"
    if node.axes != (() if node.span.kind == BATCH else (node.span,)):
        return f"a position in {node.span.name} varies only along it"
    return ""


def _rearrange(node: Rearrange) -> str:
    if node.dtype != node.argument.dtype:
        return f"a value of {node.argument.dtype} is rearranged to {node.dtype}"
    return "" if _spans(node.axes) == _spans(node.argument.axes) else "the axes are not those of the value"


def _map(node: Map) -> str:
    row, given = FUNCTIONS[node.function], node.given
    if obstacle := row.counts(len(given)):
        return obstacle
    if not all(fits(one.axes, node.axes) for one in given):
        return f"the axes of the arguments of {node.function} are not those of its result"
    if _spans(node.axes) != set[Span]().union(*(_spans(one.axes) for one in given)):
        return f"{node.function} has an axis that its arguments do not have"
    if len(node.axes) != max(len(one.axes) for one in given):
        return f"{node.function} has more axes than its arguments"
    kinds = [one.dtype for one in given]
    if node.function == "select":
        if kinds[0] != boolean:
            return f"the condition of select is a truth value, not {kinds[0]}"
        del kinds[0]
    if node.function == TAKE:
        if obstacle := integers(kinds[0]):
            return f"take by codes of {kinds[0]}: {obstacle}"
        if not all(isinstance(one, Literal) for one in given[1:]):
            return "an entry of the table of take is not a plain number"
        return (
            "" if set(kinds[1:]) == {node.dtype} else f"take from a table of another dtype than {node.dtype}"
        )
    if len(set(kinds)) > 1:
        return f"{node.function} takes values of one dtype, not {' and '.join(map(str, kinds))}"
    if node.function == "bitcast":
        both = kinds[0], node.dtype
        whole = all(one.components == 1 and one.bits >= 8 and one.kind != "bool" for one in both)
        return "" if whole and both[0].bits == both[1].bits else f"a bitcast of {both[0]} to {both[1]}"
    if node.function in CONVERSION:
        return ""
    if obstacle := FUNCTIONS[node.function].takes(kinds[0]):
        return f"{node.function} of {kinds[0]}: {obstacle}"
    made = FUNCTIONS[node.function].result(kinds[0])
    return "" if node.dtype == made else f"{node.function} of {kinds[0]} is {made}, not {node.dtype}"


def _reduce(node: Reduce) -> str:
    before = node.argument.axes
    if node.combine not in COMBINED:
        return f"a reduction is one of {', '.join(COMBINED)}, not {node.combine!r}"
    if not 0 <= node.axis < len(before):
        return f"a reduction over axis {node.axis} of a value with {len(before)} axes"
    if node.axes != (*before[: node.axis], *before[node.axis + 1 :]):
        return "the axes differ from those that remain after the reduction"
    if node.dtype != node.argument.dtype or node.dtype.kind == "bool":
        return f"a reduction of {node.argument.dtype} to {node.dtype}"
    real = node.dtype.components == 1
    return (
        ""
        if real or node.combine == "sum"
        else (f"{node.combine} of {node.dtype}, whose values have no order")
    )


def _scan(node: Scan) -> str:
    axes = node.argument.axes
    if not 0 <= node.axis < len(axes) or axes[node.axis] is None:
        return f"a scan along axis {node.axis} of a value with {len(axes)} axes"
    if node.axes != axes:
        return "the axes of a scan are not those of its argument"
    if node.dtype != node.argument.dtype or node.dtype.kind == "bool" or node.dtype.components > 1:
        return f"a scan of {node.argument.dtype} to {node.dtype}"
    return ""


def _sum(node: Sum) -> str:
    a, b = node.a, node.b
    if not {len(a.axes), len(b.axes)} <= {1, 2} or a.axes[-1] != node.span or b.axes[0] != node.span:
        return f"{node.span.name} is not the last axis of the first and the first of the second"
    if node.span.kind != STEPS or node.span.of is not None:
        kind = node.span.kind if node.span.of is None else "alias"
        return f"a sum is along steps, and {node.span.name} is of kind {kind}"
    if node.axes != (*a.axes[:-1], *b.axes[1:]):
        return "the axes are not those of a product"
    if node.precision not in PRECISIONS:
        return f"precision is one of {', '.join(PRECISIONS)}, not {node.precision!r}"
    if node.dtype.kind == "bool":
        return "a sum is not a truth value"
    for scale, of in zip(node.scales, (a, b), strict=True):
        if scale is not None and not fits(scale.axes, of.axes):
            return "the axes of a scale are not those of its operand"
        if scale is not None and not node.dtype.is_float:
            return f"a scale of a sum of {node.dtype}"
    return ""


def _cell(node: Cell) -> str:
    if node.dtype != node.start.dtype:
        return f"a cell of {node.dtype} begins with {node.start.dtype}"
    return "" if fits(node.start.axes, node.axes) else "the axes of the start are not those of the cell"


def _fold(made: Fold) -> str:
    if made.span.kind != STEPS:
        return f"a fold is along steps, and {made.span.name} is of kind {made.span.kind}"
    for cell, step in zip(made.cells, made.steps, strict=True):
        if cell.dtype != step.dtype or not fits(cell.axes, step.axes) or len(cell.axes) != len(step.axes):
            return f"a step of {cell.name} has another dtype or other axes than {cell.name}"
        if any(axis is not None and made.span in (axis, axis.of) for axis in step.axes):
            return f"a step of {cell.name} varies along {made.span.name}"
    for one in made.results:
        if len(made.places(one.axes)) != 1:
            return f"a result of the steps varies once along {made.span.name}, or along an alias of it"
    if made.results and (made.turns or not made.cells):
        return "a loop whose steps give results carries a value, and has no turns"
    return _merges(made) if made.merges else ""


def _placeholders(made: Fold) -> list[Cell]:
    """The cells that stand for two parts in the merges of a fold."""
    return [cell for one in made.merges if one is not None for cell in (one.first, one.second)]


def _merges(made: Fold) -> str:
    """Return the first error in the merges of a fold, which may use only cells of two parts and numbers."""
    if len(made.merges) != len(made.cells):
        return f"{len(made.merges)} merges of {len(made.cells)} cells"
    known = set(map(id, _placeholders(made)))
    for step, merge in zip(made.steps, made.merges, strict=True):
        if merge is None:
            continue
        for node in (merge.first, merge.second, merge.value):
            if node.dtype != step.dtype or not fits(node.axes, step.axes):
                return f"a merge of {merge.first.name} has another dtype or other axes than its step"
        for node in outside_of_merge(merge.value, known, made.span):
            what = type(node).__name__.lower()
            return f"the merge of {merge.first.name} has a {what}; cells of two parts and numbers enter it"
    return ""


def carried_rows(value: Node) -> set[Span]:
    """Return the untiled spans of a loop's state along which a value varies; empty unless steps store."""
    loops = {id(node.fold): node.fold for node in walk(value) if isinstance(node, Folded)}
    cells = (cell for fold in loops.values() if fold.results for cell in fold.cells)
    spans = {axis for cell in cells for axis in cell.axes if axis is not None and axis.kind == STEPS}
    return spans & _spans(value.axes)


def outside_of_merge(value: Node, known: set[int], span: Span) -> Iterator[Node]:
    """Yield the values that a merge of two states must not use: arrays, products, values of the loop itself.

    Args:
        value: the state of both parts.
        known: the states of the parts, by `id`.
        span: the span of the loop.
    """
    inside = [*walk(value, set(known))]
    cells = {id(cell) for node in inside if isinstance(node, Folded) for cell in node.fold.cells}
    for node in inside:
        match node:
            case ArrayPart() | Sum():
                yield node
            case Cell() if id(node) not in cells:
                yield node
            case Position(span=along) if along == span:
                yield node
            case Folded(fold=fold) if len(fold.turns) != 1 or fold.span.extent != 1:
                yield node


def _folded(node: Folded) -> str:
    if not 0 <= node.index < len(node.fold.given):
        return f"value {node.index} of a fold with {len(node.fold.given)} cells and results"
    step = node.fold.given[node.index]
    return "" if (node.dtype, node.axes) == (step.dtype, step.axes) else "another dtype or axes than the step"


_RULES: dict[type, Callable[[Any], str]] = {
    Operand: _operand,
    Arrival: _moved,
    Departure: _moved,
    NumberParam: lambda made: "",
    Span: _span,
    Store: _store,
    Literal: _literal,
    Integer: _integer,
    ArrayPart: _part,
    Position: _position,
    Rearrange: _rearrange,
    Map: _map,
    Reduce: _reduce,
    Scan: _scan,
    Sum: _sum,
    Cell: _cell,
    Fold: _fold,
    Folded: _folded,
}
