"""Rewrite of reductions and products along a whole row to a loop that carries a state.

``softmax(Q[m] @ K.T) @ V`` reduces the row of scores three times: its maximum, the sum of its exponentials,
and a product.  The online form computes all three in one loop.  Each reduction is a cell.  If all terms of a
sum have the factor ``f(c * (x - top))``, where ``top`` is the extreme of x, each step rescales the sum from
the extreme so far to the new one.  A factor that is the same along the row, such as ``1 / total``, multiplies
the sum after the loop.  A reduction that depends on others in another way gets a second loop.  The first loop
then also computes factors of products, such as ``1 / total``.

The result is a flow with the loop that an author would have written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from tilewright.dataflow.nodes import (
    BATCH,
    STEPS,
    ArrayPart,
    Cell,
    Flow,
    Fold,
    Folded,
    Integer,
    Literal,
    Map,
    Node,
    Operand,
    Position,
    Rearrange,
    Reduce,
    Scan,
    Span,
    Sum,
    unified,
    walk,
    with_arguments,
)
from tilewright.dtypes import DType, f32, limits
from tilewright.errors import TraceError
from tilewright.lang.dataflow.recorder import holds_all
from tilewright.lang.dataflow.rows import along
from tilewright.schedule.epilogue.reductions import neutral
from tilewright.schedule.factors import EXPLICIT, plain
from tilewright.schedule.folds.powers import (
    PLAIN,
    POWERS,
    ZERO,
    Powers,
    Weight,
    converted,
    extreme_of_place,
    finite,
    fitted,
    guarded,
    is_extreme,
    is_widened,
    moved_place,
    reduction_of,
    scaled_later,
    times,
)
from tilewright.symbolic.expr import add, mul
from tilewright.views.transforms import Embed

ONLINE, TWO_PASSES, KEPT = "online", "two passes", "kept"
"""The values of `Schedule.fold`."""

NOTHING_BELOW = 2.0**32
"""Exponents of at least this size are so far apart in f32 that the power of their difference is 0."""

SUMS_FIRST = "a kernel that stores the prefix sums; the second kernel reads them"


def rows_of(flow: Flow) -> list[Span]:
    """The whole rows of a flow along which computed values are reduced, outside of loops."""
    found: dict[Span, None] = {}
    for node in flow.walk():
        if isinstance(node, Folded):
            return []
        if isinstance(node, Reduce | Scan):
            span = node.argument.axes[node.axis]
            if span is not None and span.kind == STEPS:
                found[span] = None
    return [*found]


def with_rows(flow: Flow) -> Flow:
    """Replace reductions along the columns of a tile by reductions along whole rows.

    If nothing is reduced along the columns, return the flow itself.
    """
    last = flow.tiles[-1]
    if last.kind == BATCH:
        return flow
    nodes = [
        one for one in flow.walk() if isinstance(one, Reduce | Scan) and one.argument.axes[one.axis] == last
    ]
    if not nodes:
        return flow
    is_scanned = any(isinstance(one, Scan) for one in nodes)  # then the row replaces the span of the tiles
    row = Span(last.name if is_scanned else f"{last.name}_row", last.extent, STEPS)
    met = {axis for node in flow.walk() if last in node.axes for axis in node.axes}
    row = next((one for one in rows_of(flow) if one.extent == last.extent and one not in met), row)
    known: dict[int, Node] = {}

    def again(node: Node) -> Node:
        """Return the value with reductions along whole rows instead of along columns."""
        if id(node) not in known:
            made = with_arguments(node, again)
            if isinstance(made, Reduce) and made.argument.axes[made.axis] == last:
                made = replace(made, argument=along(made.argument, {last: row}, {}))
            known[id(node)] = made
        return known[id(node)]

    values = [again(store.value) for store in flow.stores]
    if not is_scanned:
        stores = (
            replace(store, value=value) for store, value in zip(flow.stores, unified(values), strict=True)
        )
        return replace(flow, stores=tuple(stores))
    return _stored_along(replace(flow, tiles=flow.tiles[:-1]), values, last, row)


def with_reduced_tiles(flow: Flow) -> Flow:
    """In a flow without products, replace the spans of tiles that are reduced by whole rows.

    The reduced span becomes the last one of the tiles.  It is dropped if no result varies along it.

    Raises:
        TraceError: rows of a group are reduced.
    """
    inner = [span for span in flow.tiles if span.kind != BATCH]
    found = [node for node in flow.walk() if isinstance(node, Reduce | Scan)]
    for node in found:
        span = node.argument.axes[node.axis]
        if span in inner and span.groups is not None:
            text = f"{named(node)} along {span.name}, which has rows of groups"
            _refuse(text, "a kernel with one group", flow, node)
    if not any(node.argument.axes[node.axis] in inner for node in found):
        return flow
    tiles = flow.tiles
    if len(inner) == 2 and all(node.argument.axes[node.axis] != inner[1] for node in found):
        tiles = (*tiles[:-2], *reversed(inner))
    made = with_rows(replace(flow, tiles=tiles))
    is_stored = any(tiles[-1] in store.at for store in made.stores)
    is_cut = len(made.tiles) < len(tiles)  # steps store the results along the row
    return made if is_cut or is_stored or len(inner) < 2 else replace(made, tiles=tiles[:-1])


def in_loops(flow: Flow, how: str = ONLINE) -> Flow:
    """Replace all reductions and products along a whole row by loops that carry a state.

    Args:
        flow: the flow.
        how: a value of `Schedule.fold`.

    Raises:
        TraceError: reductions along several rows, or reductions of prefix sums.
    """
    spans = rows_of(flow)
    if not spans:
        return flow
    flow = _with_row_stored(flow, spans)
    if len(spans) > 1:
        names = " and ".join(one.name for one in spans)
        _refuse(
            f"the whole rows {names} are reduced, and a schedule has one loop", "one kernel for each", flow
        )
    for node in (one for one in flow.walk() if isinstance(one, Reduce | Scan | Sum)):
        for before in (one for one in walk(node) if isinstance(one, Scan)):
            along_row = before.argument.axes[before.axis]
            if along_row is not None and not (isinstance(node, Scan) and node.span == along_row):
                what = "a product" if isinstance(node, Sum) else named(node)
                text = f"{what} of prefix sums along {along_row.name}"
                _refuse(text, SUMS_FIRST, flow, node)
    return _with_scans(RowLoops(flow, spans[0], how).flow, spans[0])


def _refuse(what: str, nearest: str, flow: Flow, node: Node | None = None) -> NoReturn:
    where = flow.stores[0].location if node is None else node.location or flow.stores[0].location
    raise TraceError(what, where, f"{nearest}; or {EXPLICIT}")


def _with_row_stored(flow: Flow, spans: Sequence[Span]) -> Flow:
    """If a result varies along the reduced row, store it along the span of the row instead of tiles.

    ``O[m, n] = softmax(X[m] @ W)`` stores a value for each element of the row.  The tiles of the result are
    then whole rows, and a second pass over the row computes its scores again.
    """
    if len(flow.tiles) < 2:
        return flow
    last = flow.tiles[-1]
    rows = [span for span in spans if span.extent == last.extent]
    is_reduced = any(
        (isinstance(node, Sum) and node.span in spans and last in node.axes)
        or (isinstance(node, Reduce) and node.argument.axes[node.axis] == last)
        for node in flow.walk()
    )
    stored = [last in store.at for store in flow.stores]
    if len(rows) != 1 or last.kind == BATCH or is_reduced or not any(stored):
        return flow
    return _stored_along(
        replace(flow, tiles=flow.tiles[:-1]), [store.value for store in flow.stores], last, rows[0]
    )


def _stored_along(flow: Flow, values: Sequence[Node], last: Span, row: Span) -> Flow:
    """Replace the values of the results, and the span ``last`` of the tiles by ``row``."""
    known: dict[int, Node] = {}
    made = unified([along(value, {last: row}, known) for value in values])
    stores = tuple(
        replace(store, value=value, at=tuple(row if span == last else span for span in store.at))
        for store, value in zip(flow.stores, made, strict=True)
    )
    return replace(flow, stores=stores)


def named(node: Reduce | Scan) -> str:
    """The name of a reduction, or of prefix sums, in messages."""
    return node.combine if isinstance(node, Reduce) else "cumsum"


def _with_scans(flow: Flow, span: Span) -> Flow:
    """Add a last loop for prefix sums along a row.  It carries the sums so far, and its steps store results.

    Args:
        flow: the flow; earlier loops compute all reductions along the row.
        span: the row.

    Raises:
        TraceError: prefix sums are the same in all rows of the results.
    """
    scans = [node for node in flow.walk() if isinstance(node, Scan) and node.span == span]
    if not scans:
        return flow
    rows = [one for one in flow.tiles if one.kind != BATCH][:1]
    for node, m in ((node, m) for node in scans for m in rows if m not in node.axes):
        text = f"prefix sums along {span.name} that are the same for each {m.name}, and a loop carries a sum"
        _refuse(f"{text} for each {m.name}", SUMS_FIRST, flow, node)
    reverse = scans[0].reverse
    for node in (one for one in scans if one.reverse != reverse):
        text = (
            f"prefix sums along {span.name} and sums from each element to the last, and a loop has one order"
        )
        _refuse(text, "a kernel for each", flow, node)
    cells: list[Cell] = []
    steps: list[Node] = []
    known: dict[int, Node] = {}

    def again(node: Node) -> Node:
        """Return the value in a step; prefix sums are those of the step plus the sum before it.

        Sums to the last element are prefix sums of the reversed row, and read arrays through reversed views.
        """
        if id(node) in known:
            return known[id(node)]
        made = node
        match node:
            case ArrayPart(operand=operand, at=at) if reverse and span in at:
                made = replace(node, operand=_reversed(operand, at.index(span)))
            case Position() if reverse and node.span == span:
                last = Integer(node.dtype, (), add(span.extent, -1), location=node.location)
                made = Map(node.dtype, node.axes, "sub", (last, node), location=node.location)
            case Sum() if reverse and span in node.axes:
                made = with_arguments(node, again)
            case Map() | Rearrange():
                made = with_arguments(node, again)
            case Scan(argument=argument, axis=axis) if node.span == span:
                kind, where = node.dtype, node.location
                inner = again(argument)
                axes = tuple(one for one in node.axes if one != span)
                start = Literal(kind, (), 0, location=where)
                name = f"before_{len(cells)}" if cells else "before"
                cell = Cell(kind, axes, name, start, variable=name, location=where)
                total = Reduce(kind, axes, "sum", inner, axis, location=where)
                cells.append(cell)
                steps.append(Map(kind, axes, "add", (cell, total), location=where))
                column = (*node.axes[:axis], None, *node.axes[axis + 1 :])
                own = replace(node, argument=inner, reverse=False)
                made = Map(kind, node.axes, "add", (Rearrange(kind, column, cell), own), location=where)
        known[id(node)] = made
        return made

    stored = [store for store in flow.stores if span in store.value.axes]
    results = tuple(again(store.value) for store in stored)
    fold = Fold(span, tuple(cells), tuple(steps), results=results)
    new = {
        id(store): Folded(value.dtype, value.axes, fold, at, location=store.location)
        for at, (store, value) in enumerate(zip(stored, results, strict=True), len(cells))
    }
    stores = [replace(store, value=new.get(id(store), store.value)) for store in flow.stores]
    if reverse:
        stores = [
            replace(one, operand=_reversed(one.operand, one.at.index(span))) if id(was) in new else one
            for one, was in zip(stores, flow.stores, strict=True)
        ]
    return replace(flow, stores=tuple(stores))


def _reversed(operand: Operand, dim: int) -> Operand:
    """A view of an array with the elements of a dimension in reverse order."""
    extent = operand.shape[dim]
    backwards = Embed(dim, (extent,), (-1,), add(1, mul(-1, extent)))
    return replace(operand, transforms=(*operand.transforms, backwards))


Scaling = tuple[str, Node]
"""A factor that is the same along the row: ``"mul"`` or ``"div"``, and its node."""


class RowLoops:
    """The rewrite of a flow's reductions along a whole row to loops; `flow` is the result.

    Args:
        before: the flow.
        span: the row.
        how: a value of `Schedule.fold`.
    """

    def __init__(self, before: Flow, span: Span, how: str) -> None:
        self.before, self.span, self.how = before, span, how
        nodes = [*before.walk()]
        # ``max(maximum of the row, number)`` is one reduction that begins with the number.
        guards = [node for node in nodes if self._binds(guarded(node))]
        used = {id(one) for node in nodes if node not in guards for one in node.arguments}
        used |= {id(store.value) for store in before.stores}
        self.reductions = [
            node for node in nodes if node in guards or (self._binds(node) and id(node) in used)
        ]
        """All reductions and products along the row, arguments first."""

        self.placed = {id(extreme_of_place(node, span)) for node in self.reductions}
        """The `id` of each extreme whose index is used."""

        self._check_rows()
        self.done: set[int] = set()
        """The `id` of each reduction that an earlier loop computes."""

        self.after: dict[int, Node] = {}
        """Values after the loops, by the `id` of the original value."""

        self.common: dict[int, Node] = {}
        """Values that depend on no reduction: loops and the values after them share one node."""

        left = self.reductions
        while left:
            left = self._loop(left)
        stores = tuple(
            replace(store, value=self._rebuilt(store.value, self.after)) for store in before.stores
        )
        self.flow = replace(before, stores=stores)

    def _check_rows(self) -> None:
        """Refuse reductions whose axes are not the rows of the results, or rows and columns."""
        inner = [span for span in self.before.tiles if span.kind != BATCH]
        for node in self.reductions if inner else ():
            reduced, (m, *columns) = reduction_of(node), inner
            if isinstance(reduced, Reduce) and node.axes not in ((m,), *((m, one) for one in columns)):
                along_row = f"{reduced.combine} along {self.span.name.removesuffix('_row')}"
                if not node.axes:
                    text = f"{along_row} is one value, and a loop carries one for each row"
                    _refuse(text, "a view with one row, x.unmerge(0, (1, x.shape[0]))", self.before, reduced)
                axes = ", ".join("1" if axis is None else axis.name for axis in node.axes)
                text = (
                    f"{along_row} has a value for each of ({axes}), and a loop carries one for each {m.name}"
                )
                near = "the tile of the result, reduced along its rows: A[m, n].sum(axis=0)"
                _refuse(text, near, self.before, reduced)

    def _loop(self, wanted: Sequence[Node]) -> list[Node]:
        """Add a loop that computes some reductions; return those that need its results."""
        used = [store.value for store in self.before.stores]
        taken, later = wanted, list[Node]()
        found: list[tuple[Node, list[Scaling] | None]] = []
        for trial in (True, False):
            self.extremes = {id(one): at for at, one in enumerate(wanted) if is_extreme(reduction_of(one))}
            others = {id(one) for one in wanted} - self.extremes.keys()
            self.powers = Powers(
                self.span,
                {},
                self.extremes,
                self._is_free,
                others,
                lambda one: self._distance(one) is not None,
            )
            self.cells: list[Cell] = []
            self.steps: list[Node] = []
            self.places: dict[int, int] = {}
            """The number of the cell of each reduction, by the `id` of its node."""

            self.inner: dict[int, int] = {}
            """The number of the cell that exponents use for an extreme, by the extreme's number."""

            self.neutral: dict[int, int] = {}
            """The number of the cell that begins with the neutral element, by the `id` of the extreme."""

            self.inside = dict(self.after)
            """Values of a step, by the `id` of the original value."""

            self.kept: dict[Weight, Node] = {}
            """The factor that rescales sums, by the weight of their terms."""

            seen: set[int] = set()
            self.outside = {id(one) for value in used for one in self._until(value, seen)}
            """The `id` of each value that is used after the loop."""

            found = [(node, self._carry(node)) for node in taken]
            if trial:
                taken = [node for node, scalings in found if scalings is not None]
                later = [node for node, scalings in found if scalings is None]
                used += [one for node in later for one in reduction_of(node).arguments]
                if not taken:
                    name = wanted[0].variable or "a value"
                    text = f"{name} is reduced along the whole row {self.span.name} and depends on itself"
                    near = f"a loop over tw.steps({self.span.extent})"
                    _refuse(text, near, self.before, wanted[0])
        fold = Fold(self.span, tuple(self.cells), tuple(self.steps))
        for node, scalings in found:
            at = self.places[id(node)]
            kind, axes, where = node.dtype, node.axes, node.location
            made: Node = Folded(kind, axes, fold, at, variable=node.variable, location=where)
            for function, by in reversed(scalings or []):
                factor = converted(fitted(self._rebuilt(by, self.after), axes), kind)
                made = Map(kind, axes, function, (made, factor), location=where)
            self.after[id(node)] = made
        self.done |= {id(one) for node in taken for one in (node, reduction_of(node))}
        return later

    # ------------------------------------------------------------ reductions

    def _until(self, node: Node, seen: set[int]) -> Iterator[Node]:
        """A value and the values that it depends on, up to reductions that this loop computes."""
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            if node not in self.reductions or id(node) in self.done:
                for one in node.arguments:
                    yield from self._until(one, seen)

    def _binds(self, node: Node | None) -> bool:
        """Whether a node is a reduction or a product along the row."""
        match node:
            case Reduce(argument=argument, axis=axis):
                return argument.axes[axis] == self.span
            case Sum(span=span):
                return span == self.span
        return False

    def _is_free(self, node: Node) -> bool:
        """Whether a value depends on no reduction of this loop or of a later one."""
        return not any(self._binds(one) and id(one) not in self.done for one in walk(node))

    # ------------------------------------------------------------ the state

    def _carry(self, node: Node) -> list[Scaling] | None:
        """Add the cell of a reduction and its next value; return the factors to apply after the loop.

        Return None if the reduction needs results of the loop, and so a later loop.
        """
        reduced = reduction_of(node)
        extreme = extreme_of_place(node, self.span)
        if extreme is not None and id(extreme) in self.neutral:
            self._place(node, extreme, self.neutral[id(extreme)])
            return []
        if isinstance(reduced, Reduce) and reduced.combine != "sum":
            if not self._is_free(reduced.argument):
                return None
            self._extreme(node, reduced)
            return []
        terms = reduced.argument if isinstance(reduced, Reduce) else reduced.a
        rest, scalings = self._pulled(terms)
        weight = self.powers.weight(rest)
        if weight is None or (isinstance(reduced, Sum) and not self._is_free(reduced.b)):
            return None
        if scalings and (
            self.how == TWO_PASSES or not all(holds_all(node.dtype, [by.dtype]) for _, by in scalings)
        ):
            return None
        cell = self._cell("total" if isinstance(reduced, Reduce) else "out", node, 0)
        kept: Node = cell
        if weight not in (PLAIN, ZERO):
            if weight not in self.kept:
                self.kept[weight] = self._keep(*weight, node)
            keep = converted(fitted(self.kept[weight], cell.axes), cell.dtype)
            kept = Map(cell.dtype, cell.axes, "mul", (cell, keep), location=node.location)
        inner = self._rebuilt(rest, self.inside)
        term = replace(reduced, argument=inner) if isinstance(reduced, Reduce) else replace(reduced, a=inner)
        self.steps.append(Map(cell.dtype, cell.axes, "add", (kept, term), location=node.location))
        return scalings

    def _extreme(self, node: Node, reduced: Reduce) -> None:
        """Add the cells of an extreme.  The cell for exponents begins with a finite number.

        So the difference of two extremes is never NaN, even after steps without a finite value.  If the
        extreme is used after the loop, it may be infinite there, and has a second cell.
        """
        name = "top" if reduced.combine == "max" else "low"
        term = replace(reduced, argument=self._rebuilt(reduced.argument, self.inside))
        weighs = any(
            not is_extreme(reduction_of(other)) and any(one is node for one in walk(other))
            for other in self.reductions
        )
        starts: list[float | int] = []
        if node is not reduced:
            assert isinstance(node, Map)
            starts.append(next(one.value for one in node.given if isinstance(one, Literal)))
        else:
            is_whole = id(node) in self.outside or id(node) in self.placed
            starts += [neutral(reduced.combine, node.dtype)] if is_whole else []
            starts += [limits(node.dtype)[name == "low"]] if weighs else []
        self.places[id(node)] = len(self.cells)
        for start in dict.fromkeys(starts):
            if node is reduced and start == neutral(reduced.combine, node.dtype):
                self.neutral[id(node)] = len(self.cells)
            self.inner[self.extremes[id(node)]] = len(self.cells)
            cell = self._cell(name, node, start)
            step = Map(cell.dtype, cell.axes, reduced.combine, (cell, term), location=node.location)
            self.inside[id(node)] = step
            self.steps.append(step)

    def _place(self, node: Node, extreme: Reduce, at: int) -> None:
        """Add a cell with the first index of a maximum or minimum, whose own cell is number ``at``."""
        before, after = self.cells[at], self.steps[at]
        assert isinstance(after, Map), "the extreme so far and that of the step"
        here = after.given[1]
        known = {**self.after, id(extreme): here, id(extreme.argument): here.arguments[0]}
        cell = self._cell("place", node, 0)
        self.steps.append(moved_place(extreme.combine, cell, self._rebuilt(node, known), before, here))

    def _cell(self, name: str, node: Node, start: float | int) -> Cell:
        count = sum(one.name.partition("_")[0] == name for one in self.cells)
        unique = f"{name}_{count}" if count else name
        literal = Literal(node.dtype, (), start, location=node.location)
        cell = Cell(node.dtype, node.axes, unique, literal, variable=unique, location=node.location)
        self.places.setdefault(id(node), len(self.cells))
        self.cells.append(cell)
        return cell

    def _keep(self, function: str, exponents: tuple[Any, ...], node: Node) -> Node:
        """The factor that rescales a sum from the extremes before a step to those after it."""
        made: Node | None = None
        for (at, _), (number, names) in exponents:
            cell, new = self.cells[self.inner[at]], self.steps[self.inner[at]]

            def mapped(name: str, *given: Node, like: Node = cell) -> Node:
                return Map(like.dtype, like.axes, name, given, location=node.location)

            sides = (cell, new) if number < 0 else (new, cell)
            term = mapped("sub", *sides)
            if abs(number) != 1:
                term = mapped("mul", term, Literal(cell.dtype, (), abs(number), location=node.location))
            for name in names:
                by = self._rebuilt(self.powers.named[name], self.inside)
                term = mapped("mul", term, fitted(by, cell.axes))
            made = term if made is None else mapped("add", made, term)
        assert made is not None, "a weight has an extreme"
        return Map(made.dtype, made.axes, function, (made,), location=node.location)

    # ------------------------------------------------------------ factors that are constant along the row

    def _pulled(self, node: Node) -> tuple[Node, list[Scaling]]:
        """Split off the factors that depend on reductions and are the same along the row; return both."""
        match node:
            case Map(function="mul" | "div" as function, given=(left, right)):
                if self._is_same(right):
                    rest, found = self._pulled(left)
                    return rest, [*found, (function, right)]
                if function == "mul" and self._is_same(left):
                    rest, found = self._pulled(right)
                    return rest, [*found, (function, left)]
                rest, found = self._pulled(left)
                if function == "mul":
                    other, more = self._pulled(right)
                    return self._again(node, (rest, other)), [*found, *more]
                return self._again(node, (rest, right)), found
            case Map(function="neg" | "convert", given=(one,)) if one.dtype.is_float and node.dtype.is_float:
                rest, found = self._pulled(one)
                if not found or self._fits(rest, node.dtype):
                    return self._again(node, (rest,)), found
        return node, []

    def _fits(self, rest: Node, kind: DType) -> bool:
        """Whether a value can be converted to a float dtype before its factor multiplies it.

        The dtype has the range of the value or of its array; or the value is a power that is at most 1 along
        the row, so that a narrow dtype loses only small terms.
        """
        while isinstance(rest, Map) and (rest.function == "neg" or is_widened(rest)):
            rest = rest.given[0]
        if holds_all(kind, [rest.dtype]) or 2 * limits(kind)[1] >= limits(rest.dtype)[1]:
            return True
        if not isinstance(rest, Map) or rest.function not in POWERS:
            return False
        found = self._distance(rest.given[0])
        if found is None:
            return False
        extreme, (number, _) = found
        guards = [] if not isinstance(extreme, Map) else extreme.given
        starts = [one.value * number for one in guards if isinstance(one, Literal)]
        return all(start >= NOTHING_BELOW for start in starts)

    def _distance(self, exponent: Node) -> tuple[Node, tuple[float, tuple[Any, ...]]] | None:
        """The extreme of x, and its factor -c, in an exponent ``c * (x - extreme)`` that is never positive.

        Return None for other exponents, also if the sign of c is unknown.  With the extreme of the steps so
        far, their powers may overflow, even if they do not with the extreme of the row.  And a sum of powers
        above 1 would be rescaled by infinity from the start value of the extreme.
        """
        found: dict[int, tuple[float, tuple[Any, ...]]] = {}
        self._terms(exponent, (1.0, ()), found)
        for extreme in self.reductions:
            reduced = reduction_of(extreme)
            argument = plain(reduced.arguments[0])
            if extreme.dtype.bits < f32.bits:
                continue  # powers of narrow numbers are rounded too much to rescale a sum in every step
            if id(extreme) in self.extremes and found.keys() == {id(extreme), id(argument)}:
                number, names = found[id(extreme)]
                is_maximum = isinstance(reduced, Reduce) and reduced.combine == "max"
                falls = not names and (number < 0) == is_maximum
                return (
                    (extreme, (number, names)) if falls and found[id(argument)] == (-number, names) else None
                )
        return None

    def _terms(
        self,
        node: Node,
        factor: tuple[float, tuple[Any, ...]],
        found: dict[int, tuple[float, tuple[Any, ...]]],
    ) -> None:
        """Write a value as a linear combination of extremes, their arguments, and other nodes.

        Add the value times ``factor`` to ``found``, the factor of each term by the `id` of its node.
        """
        node = plain(node)
        atoms = [one for one in self.reductions if id(one) in self.extremes]
        known = {id(one) for one in atoms} | {id(plain(reduction_of(one).arguments[0])) for one in atoms}
        if id(node) not in known:
            extreme = finite(node)
            if extreme is not None:
                return self._terms(extreme, factor, found)
            match node:
                case Map(function="neg", given=(one,)):
                    return self._terms(one, times(factor, -1.0), found)
                case Map(function="add" | "sub" as function, given=(left, right)):
                    self._terms(left, factor, found)
                    return self._terms(right, times(factor, -1.0 if function == "sub" else 1.0), found)
                case Map(function="mul" | "fma", given=(left, right, *more)):
                    for one, by in ((left, right), (right, left)):
                        if self._is_free(by) and self.span not in by.axes and one is not by:
                            self._terms(one, times(factor, *self.powers._factor(by)), found)
                            for added in more:
                                self._terms(added, factor, found)
                            return None
        number, names = found.get(id(node), (0.0, factor[1]))
        same = names == factor[1]
        found[id(node)] = (number + factor[0], names) if same else (math.nan, names)
        return None

    def _is_same(self, node: Node) -> bool:
        return self.span not in node.axes and not self._is_free(node)

    def _again(self, node: Map, given: tuple[Node, ...]) -> Node:
        return node if given == node.given else replace(node, given=given)

    # ------------------------------------------------------------ values of a step, and after the loop

    def _rebuilt(self, node: Node, known: dict[int, Node]) -> Node:
        """A value in which ``known`` replaces nodes, by their `id`."""
        if not any(self._binds(one) for one in walk(node)):
            known = self.common
        if id(node) in known:
            return known[id(node)]
        made = with_arguments(node, lambda one: self._rebuilt(one, known))
        if isinstance(made, Sum) and made.span != self.span:
            made = scaled_later(made)
        known[id(node)] = made
        return made
