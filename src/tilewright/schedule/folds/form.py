"""The form of a flow whose loop carries a state: cells, the products of a step, and what follows the loop.

Every value of a step is a tile over (rows, columns).  The rows are those of the results; the columns are a
step of the loop's span, or the columns of a result.  Results with the same rows may have different columns.
The products of a step are of two kinds.  *Scores* are sums along a span of their own: ``s[m, n] = sum_d a[m,
d] b[d, n]``.  *Mixtures* are sums along the loop's span: ``out[m, e] += sum_n p[m, n] v[n, e]``, where ``p``
may be computed from scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NoReturn

from tilewright.dataflow.nodes import (
    BATCH,
    STEPS,
    TILE,
    ArrayPart,
    Axis,
    Cell,
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
    walk,
)
from tilewright.dtypes import DType, f32
from tilewright.errors import Location, TraceError
from tilewright.schedule.factors import EXPLICIT, inner_sums
from tilewright.schedule.folds.rows import ONLINE, in_loops, named, rows_of, with_reduced_tiles
from tilewright.schedule.row_sums import with_row_sums
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import evaluate, symbols
from tilewright.views.transforms import Embed, Permute

NO_LOOP = Fold(Span("none", 1, STEPS), (), ())
"""The loop of a flow without one: it carries nothing."""

UNKNOWN = 4096
"""Extent to assume for a span if the shapes of its arrays are not known."""


@dataclass(frozen=True)
class FoldForm:
    """A flow with one loop that carries a state.

    Args:
        flow: the graph.
        fold: the loop.
        batch: the leading spans.
        m: the span of the rows of the results.
        columns: the spans of the columns of the results; empty if no result has columns.
        scores: products of a step that are summed along a span of their own.
        mixtures: products of a step that are summed along the loop's span.
        results: the number of the cell of each value that a loop leaves, by the `id` of the value's node; the
            cells of earlier loops come first.
        earlier: earlier loops along the same span, whose results the loop reads.

    An elementwise flow has the loop `NO_LOOP`.  Its only span, if it has one, is that of columns.
    """

    flow: Flow
    fold: Fold
    batch: tuple[Span, ...]
    m: Span
    columns: tuple[Span, ...]
    scores: tuple[Sum, ...]
    mixtures: tuple[Sum, ...]
    results: Mapping[int, int]
    earlier: tuple[Fold, ...] = ()

    @property
    def is_elementwise(self) -> bool:
        """Whether the flow has no loop."""
        return self.fold is NO_LOOP

    @property
    def subject(self) -> Node:
        """The value that errors about the whole flow point at."""
        return self.flow.stores[0].value if self.is_elementwise else self.fold.steps[0]

    @cached_property
    def turned(self) -> FoldForm:
        """The form of an elementwise flow with its columns as rows."""
        return replace(self, m=self.columns[0], columns=(self.m,))

    @property
    def folds(self) -> tuple[Fold, ...]:
        """All loops, in their order."""
        return (*self.earlier, self.fold)

    @cached_property
    def repeats(self) -> tuple[Fold, ...]:
        """The loops inside of a step."""
        found = {id(node.fold): node.fold for node in self.inside() if isinstance(node, Folded)}
        return tuple(fold for fold in found.values() if fold not in self.folds)

    @property
    def n(self) -> Span:
        """The span of the loop."""
        return self.fold.span

    @cached_property
    def alias(self) -> Span | None:
        """The alias of the loop's span along which each step stores results, or None."""
        axes = (axis for one in self.fold.results for axis in one.axes)
        return next((axis for axis in axes if axis is not None and axis.of == self.n), None)

    @property
    def kept(self) -> Mapping[int, Store]:
        """The stores of each step, by the `id` of the result of the step."""
        made = ((store, store.value) for store in self.flow.stores if isinstance(store.value, Folded))
        return {
            id(value.fold.given[value.index]): store
            for store, value in made
            if value.index >= len(value.fold.cells)
        }

    @property
    def e(self) -> Span | None:
        """The span of the columns of the first result; None if no result has columns."""
        return self.columns[0] if self.columns else None

    @property
    def depths(self) -> tuple[Span, ...]:
        """The spans of the sums of scores."""
        return tuple(dict.fromkeys(one.span for one in self.scores))

    @property
    def depth(self) -> Span | None:
        """The span of the sums of the first scores; None without scores."""
        return self.scores[0].span if self.scores else None

    @cached_property
    def passing(self) -> tuple[Store, ...]:
        """The results along the loop's span, which a second pass over the span computes after the loop."""
        by_steps = {id(store) for store in self.kept.values()}
        return tuple(store for store in self.flow.stores if self.n in store.at and id(store) not in by_steps)

    @property
    def products(self) -> tuple[Sum, ...]:
        """All products of a step."""
        return (*self.scores, *self.mixtures)

    @cached_property
    def element(self) -> DType:
        """Dtype of the elements that the instruction multiplies; it can represent all factors of a step."""
        kinds = {side.dtype for one in self.products for side in (one.a, one.b)}
        if len(kinds) <= 1:
            return next(iter(kinds), f32)
        widest = max(kinds, key=lambda kind: kind.bits)
        return widest if widest.bits > f32.bits or not widest.is_float else f32

    @property
    def total(self) -> DType:
        """Dtype of the sums of products."""
        return self.products[0].dtype if self.products else f32

    @cached_property
    def windows(self) -> Mapping[int, tuple[int, int]]:
        """The sliding windows, by the `id` of their node: the strides of a row and of the innermost turn.

        A row and a turn read element ``row * first + turn * second``; equal numbers mean the same element.
        Empty if a step has a value that a row and a turn do not determine, e.g. a reduction.
        """
        plain = (ArrayPart, Map, Rearrange, Literal, Integer, NumberParam, Position, Cell)
        nodes = [*self.inside()]
        stored = (node for node in self.flow.walk() if not isinstance(node, Folded))
        is_plain = all(isinstance(node, plain) for node in (*nodes, *stored))
        has_taps = bool(self.fold.turns and self.columns) and self.n.extent == 1
        is_alone = not (self.earlier or self.fold.results or self.m.groups or any(self.repeats))
        is_stored = all(self.m in store.at and self.n not in store.at for store in self.flow.stores)
        varies = any(self.n in node.axes for node in nodes)
        if not (is_plain and has_taps and is_alone and is_stored) or varies:
            return {}
        found = {}
        for node in nodes:
            if isinstance(node, ArrayPart) and {self.m, self.fold.turns[-1]} <= {*node.at}:
                dims = node.at.index(self.m), node.at.index(self.fold.turns[-1])
                if (strides := _strides_of_window(node.operand, *dims)) is not None:
                    found[id(node)] = strides
        return found

    def inside(self) -> Iterator[Node]:
        """Every value of a step once, arguments first."""
        seen: set[int] = set()
        for step in (one for fold in self.folds for one in fold.given):
            yield from walk(step, seen)

    @cached_property
    def covered(self) -> bool:
        """Whether one tile must cover all columns of the result, because a reduction runs over them."""
        return any(
            isinstance(node, Reduce) and node.argument.axes[node.axis] in self.columns
            for node in (*self.flow.walk(), *self.inside())
        )

    def extents(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[Span, int]:
        """The extent of every span for arrays of these shapes; `UNKNOWN` for spans of other arrays."""
        sizes: dict[Sym, int] = {}
        for operand in self.flow.parameters:
            if isinstance(operand, Operand):
                pairs = zip(operand.shape, shapes.get(operand.name, ()), strict=False)
                sizes.update((size, extent) for size, extent in pairs if isinstance(size, Sym))
        made = {
            span: int(evaluate(span.extent, sizes)) if symbols(span.extent) <= sizes.keys() else UNKNOWN
            for span in (*self.batch, *self.fold.turns, self.m, *self.columns, self.n, *self.depths)
        }
        for span in (self.m, self.n):  # a span that is cut into groups: the average extent of a group
            if span.groups is not None and span.groups.starts != 0:
                made[span] = -(-made[span] // max(made[span.groups.index], 1))
        return made


def may_replace(store: Store, part: ArrayPart) -> bool:
    """Whether a store may overwrite elements of a part of an array: two parameters may be one array."""
    is_alike = store.operand.dtype == part.operand.dtype and {*store.at} == {*part.at}
    return is_alike or store.operand.name == part.operand.name


def read_first(stores: Sequence[Store], known: Iterable[int]) -> list[ArrayPart]:
    """Return the parts of arrays that a result needs, and that an earlier store may overwrite.

    Args:
        stores: the results, in the order in which they are stored.
        known: the values that are known already, by `id`.
    """
    found, seen, replaced = list[ArrayPart](), set(known), set[str]()
    for store in stores:
        parts = (one for one in walk(store.value, seen) if isinstance(one, ArrayPart))
        found += (one for one in parts if one.operand.name in replaced)
        replaced.add(store.operand.name)
    return found


def _strides_of_window(operand: Operand, row: int, turn: int) -> tuple[int, int] | None:
    """The strides of two dimensions of a view that embed one dimension of the array; None if they do not.

    Args:
        operand: the view.
        row: the first of the dimensions.
        turn: the second.
    """
    for transform in reversed(operand.transforms):
        if isinstance(transform, Permute):
            row, turn = transform.order[row], transform.order[turn]
        elif not isinstance(transform, Embed):
            return None
        else:
            made = range(transform.dim, transform.dim + len(transform.lengths))
            if row in made or turn in made:
                if not (row in made and turn in made):
                    return None
                steps = transform.strides[row - transform.dim], transform.strides[turn - transform.dim]
                return (
                    (steps[0], steps[1]) if isinstance(steps[0], int) and isinstance(steps[1], int) else None
                )
            row, turn = (dim - len(made) + 1 if dim >= made.stop else dim for dim in (row, turn))
    return None


def folds_of(flow: Flow) -> list[Fold]:
    """The loops of a flow that carry a state, without loops in a step; a loop that stores comes last."""
    found = {id(node.fold): node.fold for node in flow.walk() if isinstance(node, Folded)}
    repeated = [one for one in found.values() if is_repeated(one)]
    loops = [one for one in found.values() if one not in repeated or len(found) == 1]
    return sorted(loops, key=lambda one: bool(one.results))


def is_repeated(fold: Fold) -> bool:
    """Whether a loop only repeats a computation: its span has one element, and it has one span of turns."""
    return len(fold.turns) == 1 and fold.span.extent == 1


def is_folded(flow: Flow) -> bool:
    """Whether a flow needs this package, instead of the main loop of products of arrays.

    The flow has a loop with a state, multiplies a product, reduces a whole row, or has no product.
    """
    if not flow.sums:
        return True
    flow = with_row_sums(flow)
    is_scanned = any(isinstance(node, Scan) for node in flow.walk())
    if is_scanned or folds_of(flow) or rows_of(flow):
        return True
    outer, inside = _outer(flow), inner_sums(flow)
    spans = {one.span for one in outer}
    # If a product of a product is added to another product, both share one loop.
    others = [one for one in flow.sums if one not in outer and id(one) not in inside]
    return bool(outer) and not any(one.span not in spans for one in others)


def is_elementwise(flow: Flow) -> bool:
    """Whether each element of a result depends only on the elements of arrays at its own indices."""
    return not any(isinstance(node, Sum | Folded | Reduce | Scan) for node in flow.walk())


def _outer(flow: Flow) -> list[Sum]:
    """The products with an operand that is computed from another product."""
    return [
        node
        for node in flow.sums
        if any(isinstance(one, Sum) for side in (node.a, node.b) for one in walk(side))
    ]


def fold_form_of(flow: Flow, how: str = ONLINE) -> FoldForm:
    """The form of a flow with a loop that carries a state.

    Args:
        flow: the flow.
        how: how reductions of a whole row become loops: a value of `Schedule.fold`.

    Raises:
        TraceError: no schedule can compute the flow; the message has the nearest legal choice.
    """
    if (made := flow.departure) is not None:
        what = f"{made.operand.name} leaves in shards, which only products of arrays count"
        _refuse(what, "a loop of acc += A[p, m, k] @ B[k, n] alone, or tw.signal", made.location)
    batch = tuple(span for span in flow.tiles if span.kind == BATCH)
    if is_elementwise(flow):
        inner = tuple(span for span in flow.tiles if span.kind != BATCH)
        if len(inner) == 1 and inner[0].groups is None:  # single rows
            inner = (Span("one", 1, TILE), *inner)
        if len(inner) > 2:
            text = f"elements over {len(inner)} tiled dimensions; a tile has rows and columns"
            _refuse(text, f"batch={len(flow.tiles) - 2} of tw.tiles", flow.stores[0].location)
        return FoldForm(flow, NO_LOOP, batch, inner[0], inner[1:], (), (), {})
    is_scanned = any(isinstance(node, Scan) for node in flow.walk())
    flow = in_loops(flow if flow.sums and not is_scanned else with_reduced_tiles(flow), how)
    for node in (one for one in flow.walk() if isinstance(one, Scan) and one.reverse):
        name = getattr(node.span, "name", "")
        what = f"sums to the last element of a step over {name}, and steps come in the order of the row"
        _refuse(what, "x.cumsum(axis, reverse=True) of a tile A[m, n], outside of a loop", node.location)
    folds = folds_of(flow)
    first = {id(fold): sum(len(one.cells) for one in folds[:at]) for at, fold in enumerate(folds)}
    results = {
        id(one): first[id(one.fold)] + one.index
        for one in flow.walk()
        if isinstance(one, Folded) and id(one.fold) in first
    }
    if not folds:  # the recorder replaces a cell that only adds up products by a `Sum`
        outer = _outer(flow)
        folds = [_as_fold(span, outer) for span in dict.fromkeys(one.span for one in outer)]
        results = {id(one): at for at, one in enumerate(outer)}
    where = flow.stores[0].location
    for store in (one for one in flow.stores if one.added):
        what = f"rows of {store.operand.name} are added to, and a loop carries a state"
        _refuse(what, "an array of its own for the result, which a second kernel adds", store.location)
    if len({one.span for one in folds}) > 1 or any(one.turns for one in folds[1:]):
        names = " and ".join(one.span.name for one in folds)
        _refuse(f"the loops over {names} carry a state, and a schedule has one loop", ONE_LOOP, where)
    *earlier, fold = folds
    if any(axis is not None and axis.of == fold.span for one in fold.results for axis in one.axes):
        return _scan(flow, fold, results)
    if not earlier:
        fold, results = _with_sums(flow, fold, results)
    inner = tuple(span for span in flow.tiles if span.kind != BATCH)
    carried = f"the loop over {fold.span.name} carries {fold.cells[0].name}"
    if not inner and fold.results:  # a single row
        inner = (Span("one", 1, TILE),)
    if not inner:
        _refuse(f"{carried}, and the tiles have no rows", "tw.tiles with another dimension", where)
    batch = tuple(span for span in flow.tiles if span.kind == BATCH)
    steps = [step for one in (*earlier, fold) for step in one.given]
    sums = [node for step in steps for node in walk(step) if isinstance(node, Sum)]
    sums = [*{id(one): one for one in sums}.values()]
    scores = tuple(one for one in sums if one.span != fold.span)
    mixtures = tuple(one for one in sums if one.span == fold.span)
    form = FoldForm(flow, fold, batch, inner[0], inner[1:], scores, mixtures, results, tuple(earlier))
    for rule in (_stores, _cells, _values, _scores, _mixtures):
        rule(form)
    return form


def _scan(flow: Flow, fold: Fold, results: Mapping[int, int]) -> FoldForm:
    """The form of a loop whose steps store results.  The rows of its state are not rows of a result."""
    where = flow.stores[0].location
    inner = tuple(span for span in flow.tiles if span.kind != BATCH)
    rows = next((cell.axes[0] for cell in fold.cells if cell.axes and cell.axes[0] not in inner), None)
    known = {axis for one in (*fold.cells, *fold.results) for axis in one.axes}
    for store in flow.stores:
        others = [span for span in store.at if span in inner and span not in known]
        if others:
            text = f"{store.operand.name} is stored along {others[0].name} after a loop that stores the rows"
            text = f"{text} of its steps, and the value does not depend on the state of the loop"
            _refuse(text, "a second kernel", store.location)
    if len(inner) != 1 or rows is None or rows in inner:
        first = fold.cells[0]
        _refuse(
            f"a loop whose steps store results carries {first.name} with the axes {_named(first.axes)}, and "
            f"the tiles have the spans {_named(inner)}",
            "tw.tiles over the columns of the result, and tw.zeros((Q.shape[1], e)) for the state",
            where,
        )
    seen: set[int] = set()
    sums = [one for value in fold.given for one in walk(value, seen) if isinstance(one, Sum)]
    scores = tuple(one for one in sums if one.span != fold.span and fold.span in one.axes)
    mixtures = tuple(one for one in sums if one not in scores)
    batch = tuple(span for span in flow.tiles if span.kind == BATCH)
    form = FoldForm(flow, fold, batch, rows, inner, scores, mixtures, results)
    for rule in (_state, _after_scan, _scan_values, _scan_products):
        rule(form)
    return form


def _with_sums(flow: Flow, fold: Fold, results: dict[int, int]) -> tuple[Fold, dict[int, int]]:
    """Add to the loop, as cells, the products along its span that are outside of it in the flow."""
    known = set(results)
    outside = [node for store in flow.stores for node in walk(store.value, known)]
    sums = [node for node in outside if isinstance(node, Sum) and node.span == fold.span]
    if not sums:
        return fold, results
    more = _as_fold(fold.span, sums)
    places = {id(one): len(fold.cells) + at for at, one in enumerate(sums)}
    cells, steps = (*fold.cells, *more.cells), (*fold.steps, *more.steps)
    merges = (*fold.merges, *(None for _ in sums)) if fold.merges else ()
    return replace(fold, cells=cells, steps=steps, merges=merges), results | places


def _as_fold(span: Span, outer: Sequence[Sum]) -> Fold:
    """The loop that adds each product to a cell of its own."""
    cells = tuple(
        Cell(one.dtype, one.axes, one.variable or "acc", Literal(one.dtype, (), 0), location=one.location)
        for one in outer
    )
    steps = tuple(
        Map(one.dtype, one.axes, "add", (cell, one), location=one.location)
        for cell, one in zip(cells, outer, strict=True)
    )
    return Fold(span, cells, steps)


# ---------------------------------------------------------------- what schedules cannot compute

ONE_LOOP = "one kernel for each loop"


def _refuse(what: str, nearest: str, where: Location | None) -> NoReturn:
    raise TraceError(what, where, f"{nearest}; or {EXPLICIT}")


def _named(axes: Sequence[Axis]) -> str:
    """Axes as an author writes them."""
    names = ["1" if axis is None else axis.name for axis in axes]
    return f"({', '.join(names)}{',' * (len(names) == 1)})"


def _stores(form: FoldForm) -> None:
    """Refuse results with more than one dimension of columns."""
    for store in form.flow.stores:
        columns = [span for span in store.at if span in form.columns]
        if len(columns) > 1:
            names = " and ".join(span.name for span in columns)
            text = f"{store.operand.name} has the columns {names}; a result of a loop with a state has rows"
            _refuse(f"{text} and one kind of columns", "tw.tiles over two dimensions", store.location)


def _cells(form: FoldForm) -> None:
    """Refuse cells that have other axes than rows, or rows and columns of a result.

    Refuse products in a loop inside of a step, too.
    """
    m = form.m
    legal = ((m,), *((m, e) for e in form.columns))
    legal = legal if m in form.flow.tiles else ((),)  # a single row
    for cell in (one for fold in form.folds for one in fold.cells):
        if cell.axes not in legal:
            axes = " or ".join(map(_named, legal))
            rows = ", or the rows of a step: i = tw.alias(n), and O[i, e] = ..." if form.fold.results else ""
            text = f"{cell.name} has the axes {_named(cell.axes)}; a loop carries values with the axes {axes}"
            near = f"{cell.name} = tw.zeros({_named((m,))}, tw.{cell.dtype}){rows}"
            _refuse(text, near, cell.location or form.flow.stores[0].location)
    for fold in form.repeats:
        for node in (one for step in fold.steps for one in walk(step, set(map(id, fold.cells)))):
            if isinstance(node, Sum):
                text = f"a product along {node.span.name} in the loop over {fold.turns[0].name} of a step"
                _refuse(text, "the product before this loop", node.location)


def _values(form: FoldForm) -> None:
    """Refuse values that are no tiles over the rows of the result and one dimension of columns."""
    m, n = form.m, form.n
    inside = list(form.inside())
    known = {id(node) for node in inside} | form.results.keys()
    after = [node for store in form.flow.stores for node in walk(store.value, set(known))]
    operands = {
        id(node)
        for one in form.products
        for side in ((one.a, one.b) if one in form.scores else (one.b,))
        for node in walk(side)
    }
    for node in after:
        if isinstance(node, Sum):
            text = f"the loop over {n.name} carries whole rows or a state, and the product over "
            text += f"{node.span.name} is outside of it"
            _refuse(text, f"{ONE_LOOP}, and the second reads what the first stores", node.location)
    more = form.columns
    later = (n,) if form.passing else more
    for node, columns in (*((one, (n, *more)) for one in inside), *((one, later) for one in after)):
        if id(node) in operands or isinstance(node, Literal | NumberParam | Integer | Sum):
            continue
        rest = [axis for axis in node.axes if axis is not None and axis != m]
        if len(rest) > 1 or any(span not in columns for span in rest):
            name = node.variable or (node.operand.name if isinstance(node, ArrayPart) else "a value")
            text = f"{name} has the axes {_named(node.axes)}, not rows {m.name} and columns"
            near = f"axes in the order {_named((m, n))}"
            if len(rest) > 1 and node.axes[0] == m:
                batches = f"batch={len(form.batch) + 1} of tw.tiles, so that {m.name} is a batch"
                near = f"{batches}, and {rest[0].name} are the rows"
            _refuse(text, near, node.location)
        if isinstance(node, Reduce | Scan) and node.argument.axes[node.axis] == m:
            text = f"{named(node)} along {m.name}, the rows of the result"
            near = (
                f"axis=1, with {m.name} as the columns of an array; or a kernel for rows and one for columns"
            )
            _refuse(text, near, node.location)


def _scores(form: FoldForm) -> None:
    """Refuse scores that multiply anything but parts of arrays, and all scales."""
    m, n = form.m, form.n
    for one in form.scores:
        inner = [node for side in (one.a, one.b) for node in walk(side)]
        if one.axes != (m, n) or any(isinstance(node, Sum | Cell) for node in inner):
            text = (
                f"a product over {one.span.name} in the loop over {n.name} has the axes {_named(one.axes)}; "
                "a step multiplies parts of arrays"
            )
            near = f"a product with the axes {_named((m, n))}"
            if one.axes == (n, m):
                near = f"the transposed product, with the axes {_named((m, n))}, and axis=1"
            elif one.axes == (n,) and any(
                {n, form.batch[-1]} <= {*x.at} for x in inner if isinstance(x, ArrayPart)
            ):
                near = "a kernel of its own that stores this product, which reads a matrix for each batch"
            elif one.axes == (n,) and form.batch:
                row, fewer = form.batch[-1].name, len(form.batch) - 1
                near = f"batch={fewer} of tw.tiles, so that {row} are rows: {_named((form.batch[-1], n))}"
            _refuse(text, near, one.location)
        if one.span.groups is not None:
            text = f"a product over {one.span.name}, whose bounds lie in memory, in the loop over {n.name}"
            _refuse(text, f"tw.steps over all of {one.span.name}", one.location)
    for one in form.products:
        if any(scale is not None for scale in one.scales):
            _refuse("a product with scales in a loop with a state", "operands times scales", one.location)
        if one.dtype != form.products[0].dtype:
            text = f"products that are summed in {form.products[0].dtype} and in {one.dtype} in one step"
            _refuse(text, f"operands of {form.products[0].a.dtype}", one.location)


def _mixtures(form: FoldForm) -> None:
    """Refuse mixtures other than computed rows times an array with the columns of the result."""
    m, n = form.m, form.n
    legal = [(m, e) for e in form.columns]
    for one in form.mixtures:
        if one.axes not in legal or any(isinstance(node, Sum | Cell) for node in walk(one.b)):
            rule = f"it multiplies rows {m.name} by an array with columns of the result"
            text = f"a product over {n.name} has the axes {_named(one.axes)}; {rule}"
            _refuse(text, "the computed values on the left, the array on the right", one.location)


# ---------------------------------------------------------------- loops whose steps store results


def is_computed(node: Node) -> bool:
    """Whether an operand of a product follows from products, carried values, or reductions of arrays."""
    return any(
        isinstance(one, Sum | Cell) or (isinstance(one, Reduce) and not isinstance(one.argument, Position))
        for one in walk(node)
    )


def _state(form: FoldForm) -> None:
    """Refuse cells that have other axes than the state's rows, or these and columns of the result."""
    legal = ((form.m,), *((form.m, e) for e in form.columns))
    for cell in form.fold.cells:
        if cell.axes not in legal:
            text = f"{cell.name} has the axes {_named(cell.axes)} in a loop that stores the rows of its steps"
            axes = " or ".join(map(_named, legal))
            _refuse(
                f"{text}; it carries values with the axes {axes}", "a kernel for each state", cell.location
            )


def _after_scan(form: FoldForm) -> None:
    """Refuse stores after the loop of anything but elementwise functions of its state."""
    legal = (form.m, *form.columns)
    by_steps = {id(store) for store in form.kept.values()}
    seen = {*form.results, *(id(one) for one in form.inside())}
    for store in (one for one in form.flow.stores if id(one) not in by_steps):
        for node in walk(store.value, seen):
            where = node.location or store.location
            if isinstance(node, Sum | Reduce | Scan):
                what = f"a product along {node.span.name}" if isinstance(node, Sum) else named(node)
                text = f"{what} after the loop over {form.n.name}, which stores in steps"
                _refuse(text, "a second kernel that reads the stored state", where)
        name = store.operand.name
        spans = [axis for axis in store.value.axes if axis is not None]
        if any(span not in legal for span in spans):
            text = f"{name} is stored along {_named(spans)} after a loop that stores the rows of its steps"
            _refuse(text, f"a value with the axes {_named(legal)}", store.location)


def _scan_values(form: FoldForm) -> None:
    """Refuse values of a step with other axes than rows (of the step or state), then elements or columns."""
    operands = {
        id(node)
        for one in form.products
        for side in (one.a, one.b)
        if not is_computed(side)
        for node in walk(side)
    }
    rows, columns = (form.alias, form.m), (form.n, *form.columns)
    for node in form.inside():
        if id(node) in operands:
            continue
        spans = [axis for axis in node.axes if axis is not None]
        rest = spans[1:] if spans[:1] and spans[0] in rows else spans
        if len(rest) > 1 or any(span not in columns for span in rest) or (rest and node.axes[-1] is None):
            name = node.variable or (node.operand.name if isinstance(node, ArrayPart) else "a value")
            text = f"{name} has the axes {_named(node.axes)}, not rows, then {form.n.name} or columns"
            nearest = f"tw.alias({form.n.name}) for rows of the step"
            _refuse(text, nearest, node.location)
        if isinstance(node, Rearrange) and not isinstance(node.argument, ArrayPart):
            before = [axis for axis in node.argument.axes if axis is not None]
            if before != spans:
                text = f"a computed tile with the axes {_named(before)} is transposed"
                _refuse(text, "compute it with its axes in the other order", node.location)
        if isinstance(node, Reduce | Scan) and node.argument.axes[node.axis] in rows:
            text = f"{named(node)} along {_named(rows)}, the rows of a tile"
            _refuse(text, "axis=1", node.location)
    for one in form.fold.results:
        if one.axes != (form.alias, *form.columns):
            text = f"a step stores values with the axes {_named(one.axes)}"
            _refuse(text, f"the axes {_named((form.alias, *form.columns))}", one.location)


def _scan_products(form: FoldForm) -> None:
    """Refuse products of a step whose axes and span of the sum are not in the list of legal ones."""
    m, n, i = form.m, form.n, form.alias
    legal = {((i, n), m)}
    for e in form.columns:
        legal |= {((i, e), n), ((i, e), m), ((m, e), n)}
    for one in form.products:
        if (one.axes, one.span) not in legal or any(scale is not None for scale in one.scales):
            known = ", ".join(f"{_named(axes)} along {span.name}" for axes, span in sorted(legal, key=str))
            text = (
                f"a product with the axes {_named(one.axes)} along {one.span.name} in a loop that stores rows"
            )
            _refuse(text, f"one of {known}, without scales", one.location)
        if one.dtype != form.products[0].dtype:
            text = f"products that are summed in {form.products[0].dtype} and in {one.dtype} in one step"
            _refuse(text, f"operands of {form.products[0].a.dtype}", one.location)
        for side in (one.a, one.b):
            spans = [axis for axis in side.axes if axis is not None]
            given = [node for node in walk(side) if isinstance(node, ArrayPart)]
            computed = (one.axes[0], n) if side is one.a else (m, one.axes[1])
            if is_computed(side) and tuple(spans) != computed:
                text = f"an operand computed from products, reductions or the state has axes {_named(spans)}"
                _refuse(text, f"the axes {_named(computed)}", side.location or one.location)
            elif len(spans) != 2 or not (given or is_computed(side)):
                text = f"an operand with the axes {_named(side.axes)} in a loop that stores rows"
                _refuse(text, "a part of an array with two axes", side.location or one.location)


# ---------------------------------------------------------------- operands


def transposed(node: Node) -> tuple[Node, bool]:
    """A value before its transpositions, and whether these amount to one transposition."""
    odd = False
    while isinstance(node, Rearrange) and len(node.axes) == len(node.argument.axes) == 2:
        odd ^= node.axes != node.argument.axes
        node = node.argument
    return node, odd
