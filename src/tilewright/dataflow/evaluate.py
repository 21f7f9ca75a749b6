"""Reference evaluation of a flow: its stores, computed with NumPy in wider types; the oracle of schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from tilewright.argument_checks import is_complex
from tilewright.calls import launches
from tilewright.dataflow import wide
from tilewright.dataflow.nodes import (
    BATCH,
    TF32,
    TILE,
    ArrayPart,
    Axis,
    Cell,
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
    Scan,
    Span,
    Store,
    Sum,
    walk,
)
from tilewright.errors import LaunchError, shown
from tilewright.functions.conversions import Array
from tilewright.functions.table import CONVERSION
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import evaluate as value_of
from tilewright.symbolic.rebuilding import symbols
from tilewright.views.view import View

# ---------------------------------------------------------------- arguments for the evaluation of a flow


class FlowArguments:
    """The arguments with which a flow is evaluated.

    Args:
        flow: the flow.
        arrays: the arrays by parameter name.
        numbers: the numbers and integers by parameter name.

    Raises:
        LaunchError: an array has the wrong rank, extents differ, or sizes violate a requirement.
    """

    def __init__(self, flow: Flow, arrays: Mapping[str, Any], numbers: Mapping[str, float]) -> None:
        self.flow = flow
        self.arrays = {name: np.asarray(array) for name, array in arrays.items()}
        for name, array in self.arrays.items():
            if array.dtype.kind in "OSUMm":
                raise LaunchError(
                    f"evaluate of kernel {flow.name}: {name} is {shown(arrays[name])}; pass numbers"
                )
        self.numbers = numbers
        self.sizes: dict[Sym, int] = {}
        self._integers: dict[Int, int] = {}
        self.parameters = {one.name: one for one in flow.parameters if isinstance(one, Operand)}
        for one in flow.parameters:
            if isinstance(one, Integer) and isinstance(one.value, Sym):
                self.sizes[one.value] = int(self.number(one.value.name))
        for name, operand in self.parameters.items():
            if name not in self.arrays:
                continue
            shape = self.arrays[name].shape
            if len(shape) != len(operand.shape):
                raise LaunchError(
                    f"{name} has rank {len(shape)}, and is declared of rank {len(operand.shape)}"
                )
            for extent, given in zip(operand.shape, shape, strict=True):
                if isinstance(extent, int) and extent != given:
                    raise LaunchError(f"{name} has an extent of {given}, and is declared with {extent}")
                if isinstance(extent, Sym) and self.sizes.setdefault(extent, given) != given:
                    raise LaunchError(f"{name} has {extent} = {given}, another array {self.sizes[extent]}")
        for guard in flow.requirements:
            if (message := guard.broken(self.sizes)) is not None:
                raise LaunchError(f"evaluate of kernel {flow.name}: {message}")

    def number(self, name: str) -> float:
        """Return the value of a number parameter."""
        if name not in self.numbers:
            raise LaunchError(f"evaluate of kernel {self.flow.name}: the number {name} is missing in numbers")
        number = self.numbers[name]
        if not is_complex(number):
            raise LaunchError(
                f"evaluate of kernel {self.flow.name}: the number {name} is {shown(number)}; pass a number"
            )
        return number

    def integer(self, value: Int) -> int:
        """Evaluate an integer expression over the sizes."""
        if value in self._integers:
            return self._integers[value]
        if missing := symbols(value) - self.sizes.keys():
            names = ", ".join(sorted(sym.name for sym in missing))
            raise LaunchError(
                f"evaluate of kernel {self.flow.name}: {names} is unknown; pass the arrays with this extent"
            )
        found = self._integers[value] = int(value_of(value, self.sizes))
        return found

    def shape(self, operand: Operand) -> tuple[int, ...]:
        """Return the extents of an operand."""
        return tuple(map(self.integer, operand.shape))

    def parameter(self, name: str) -> Array:
        """Return the array of a parameter."""
        if name not in self.arrays:
            raise LaunchError(f"evaluate of kernel {self.flow.name}: the array {name} is missing in arrays")
        return self.arrays[name].astype(self.parameters[name].dtype.numbers, copy=False)

    def elements(self, operand: Operand) -> Array:
        """Return the elements of an array or a view of it; elements outside the array are 0."""
        given = self.parameter(operand.name)
        if not operand.transforms:
            return given
        offset, valid = self.places(operand)
        flat = given.reshape(-1)
        taken = flat[np.where(valid, offset, 0)] if flat.size else np.zeros(offset.shape, flat.dtype)
        return np.where(valid, taken, np.zeros((), flat.dtype))

    def places(self, operand: Operand) -> tuple[Array, Array]:
        """Return the row-major offsets of a view's elements in the array, and a mask of those that exist."""
        view = View.row_major(self.parameters[operand.name].shape)
        for transform in operand.transforms:
            view = transform.apply(view)
        shape = tuple(map(self.integer, view.shape))
        index = np.indices(shape)
        known: dict[Any, Any] = {**self.sizes, **dict(zip(view.coords, index, strict=True))}
        for one in operand.indices:
            known[Sym(one.name)] = self.parameter(one.name).astype(np.int64).reshape(-1).__getitem__
        offset, valid = (value_of(what, known) for what in (view.offset, view.valid))
        return np.broadcast_to(offset, shape), np.broadcast_to(valid, shape)


MOST_ELEMENTS = 1 << 28
"""Maximum number of elements of a value held in memory as a whole: 2 GB in f64."""


@launches
def evaluate(
    flow: Flow,
    arrays: Mapping[str, Any],
    numbers: Mapping[str, float] | None = None,
    *,
    rounded: bool = True,
    run: int | None = None,
) -> dict[str, Array]:
    """Compute a flow in wider numbers, rounded once at each store; return the stored arrays by name.

    Floats up to f32 are computed in f64, and f64 in ``numpy.longdouble``.  Products of floats up to f32 are
    exact, and their sum is rounded in f64.  A value narrower than f32 is rounded when the flow computes it,
    and so is a conversion to an integer.  Integers wrap.

    Args:
        flow: the recorded kernel.
        arrays: the arrays by parameter name; an array that is only stored to may be omitted if the others
            determine its extents.
        numbers: the numbers and integers by parameter name.
        rounded: whether results are rounded to the dtypes of the arrays that they are stored to.
        run: number of elements of one step of a fold; default: all.

    Raises:
        LaunchError: an array has the wrong rank, extents differ, or an array or number is missing.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="N K", C="M N", alpha=tw.f32)
        ... def product(A, B, C, alpha):
        ...     for m, n in tw.tiles(C):
        ...         acc = tw.zeros()
        ...         for k in tw.steps(A.shape[1]):
        ...             acc += A[m, k] @ B[n, k].T
        ...         C[m, n] = alpha * acc
        >>> a, b, c = np.ones((2, 3), np.float16), np.ones((4, 3), np.float16), np.empty((2, 4), np.float16)
        >>> flow = product(a, b, c, 0.5, target="reference").flow
        >>> found = tw.ir.evaluate(flow, {"A": a, "B": b}, {"alpha": 0.5})["C"]
        >>> found.tolist(), bool((found == c).all())
        ([[1.5, 1.5, 1.5, 1.5], [1.5, 1.5, 1.5, 1.5]], True)
    """
    return Evaluation(FlowArguments(flow, arrays, numbers or {}), run).results(rounded)


class Evaluation:
    """The state of one evaluation.

    A value is an array with one dimension per batch span, then its axes.  A batch dimension along which the
    value does not vary has extent 1.

    Args:
        given: the arguments.
        run: number of elements of one step of a fold.
    """

    def __init__(self, given: FlowArguments, run: int | None) -> None:
        self.given = given
        self.run = run
        folds = {id(node.fold): node.fold for node in given.flow.walk() if isinstance(node, Folded)}
        turns = tuple(span for fold in folds.values() for span in fold.turns)
        self.batches = (*(span for span in given.flow.tiles if span.kind == BATCH), *turns)
        # The range of indices of the current step and turn of each fold, and of the current group.
        self.runs: dict[Span, tuple[int, int]] = dict.fromkeys(turns, (0, 1))
        self.cells: dict[int, Array] = {}  # current values of cells
        self._alike: dict[int, list[Folded]] = {}  # inner loops with the same result in each step of a fold
        self.cuts: dict[Span, tuple[int, int]] = {}  # the current group of each span with groups

    def results(self, rounded: bool) -> dict[str, Array]:
        """Return every stored array by name."""
        flow = self.given.flow
        # Elements outside of all groups, and of a view, keep their old value; it may be missing for groups.
        found = {
            store.operand.name: self.before(store, rounded)
            for store in flow.stores
            if store.operand.transforms or flow.cut
        }
        for place in self.groups():
            known: dict[int, Any] = {}
            for store in flow.stores:
                made, name = self.stored(store, known, rounded and not store.added), store.operand.name
                if store.operand.transforms:
                    offset, valid = (one[place(store)] for one in self.given.places(store.operand))
                    if store.added:
                        np.add.at(found[name].reshape(-1), offset[valid], made[valid])
                    else:
                        found[name].reshape(-1)[offset[valid]] = made[valid]
                elif not flow.cut:
                    found[name] = self.above_diagonal(store, made, found[name]) if name in found else made
                else:
                    found[name][place(store)] = made
        for store in flow.stores if rounded else ():
            if store.added:  # sums are rounded once
                name = store.operand.name
                found[name] = wide.stored(found[name], store.value.dtype, store.operand.dtype)
        return found

    def above_diagonal(self, store: Store, made: Array, below: Array) -> Array:
        """Return the elements of a second store above the diagonal, and those of the first one elsewhere."""
        dims = [dim for dim, span in enumerate(store.at) if span.kind == TILE]
        index: Sequence[Array] = np.indices(made.shape, sparse=True)
        rows, columns = (index[dim] for dim in dims)
        return np.where(rows < columns, made, below)

    def before(self, store: Store, rounded: bool) -> Array:
        """Return the initial contents of a stored array."""
        is_wide = store.added or not rounded
        kind = wide.held(store.value.dtype) if is_wide else store.operand.dtype.numbers
        name = store.operand.name
        if not store.operand.transforms and name not in self.given.arrays:
            return np.zeros(self.given.shape(store.operand), kind)
        return self.given.parameter(name).astype(kind, order="C")

    def groups(self) -> Iterator[Callable[[Store], tuple[slice, ...]]]:
        """Yield, for each group, a function from a store to its slice; without groups, one for all.

        Between two yields, values are computed for the current group only.
        """
        groups = {span: span.groups for span in self.given.flow.cut if span.groups is not None}
        if not groups:
            yield lambda store: (slice(None),) * len(store.at)
            return
        index = next(iter(groups.values())).index
        bounds = {span: self.bounds(span, one) for span, one in groups.items()}
        for group in range(self.given.integer(index.extent)):
            self.cuts = {span: found[group] for span, found in bounds.items()}
            self.runs |= {**self.cuts, index: (group, group + 1)}
            yield lambda store: tuple(slice(*self.runs.get(one.of or one, (None,))) for one in store.at)

    def bounds(self, span: Span, groups: Groups) -> list[tuple[int, int]]:
        """Return the bounds of each group along a span, clamped to its extent."""
        extent, begin = self.given.integer(span.extent), 0
        for one in groups.bounds:
            self.places(one, (groups.index,), self.given.shape(one))
        ends = self.given.elements(groups.ends).tolist()
        starts = groups.starts
        firsts = self.given.elements(starts).tolist() if isinstance(starts, Operand) else [0] * len(ends)
        found = []
        for first, last in zip(firsts, ends, strict=True):
            begin = begin if starts is None else min(max(first * groups.block, 0), extent)
            end = min(max(last * groups.block, begin), extent)
            found.append((begin, end))
            begin = end
        return found

    # ---------------------------------------------------------------- values

    def value(self, node: Node, known: dict[int, Any]) -> Array:
        """Return a value, and cache all values that it is computed from."""
        left = [node]
        while left:
            missing = [one for one in _before(left[-1]) if id(one) not in known]
            if missing:
                left += missing
                continue
            one = left.pop()
            if id(one) in known:
                continue
            given = [known[id(before)] for before in _before(one)]
            if isinstance(one, Folded):  # all cells of a loop are known after it
                if id(one.fold) not in known:
                    known[id(one.fold)] = self.folded(one.fold, given)
                given = known[id(one.fold)]
            known[id(one)] = self.computed(one, given)
        found: Array = known[id(node)]
        return found

    def computed(self, node: Node, given: Sequence[Array]) -> Array:
        """Compute a value from its arguments; those of a `Folded` are all cells and results of its fold."""
        ones = (1,) * (len(self.batches) + len(node.axes))
        match node:
            case Literal():
                return wide.literal(node.value, node.dtype).reshape(ones)
            case NumberParam():
                return wide.argument(self.given.number(node.name), node.dtype).reshape(ones)
            case Integer():
                return wide.literal(self.given.integer(node.value), node.dtype).reshape(ones)
            case ArrayPart():
                return self.part(node)
            case Position(span=span):
                self.held((span,))
                begin, end = self.runs.get(span.of or span, (0, self.given.integer(span.extent)))
                where = self.batches.index(span) if span in self.batches else len(ones) - 1
                shape = [end - begin if place == where else 1 for place in range(len(ones))]
                return wide.widened(np.arange(begin, end, dtype=np.int32), node.dtype).reshape(shape)
            case Rearrange(argument=argument):
                return self.rearranged(given[0], argument.axes, node.axes)
            case Map(function=function) if function in CONVERSION:
                return wide.converted(function, given[0], node.given[0].dtype, node.dtype)
            case Map():
                return wide.applied(node.function, self.aligned(node.given, given), node.dtype)
            case Sum():
                return self.product(node, *given)
            case Reduce():
                place = len(self.batches) + node.axis
                return wide.reduced(node.combine, self.whole(node.argument, given[0]), place, node.dtype)
            case Scan():
                place = len(self.batches) + node.axis
                return wide.scanned(
                    self.whole(node.argument, given[0]), place, node.dtype, reverse=node.reverse
                )
            case Folded(index=index):
                return given[index]
        raise AssertionError(f"no value: {type(node).__name__}")

    def aligned(self, nodes: Sequence[Node], values: Sequence[Array]) -> list[Array]:
        """Return values extended to the same number of axes."""
        rank = max(len(node.axes) for node in nodes)
        return [self.lifted(value, node, rank) for node, value in zip(nodes, values, strict=True)]

    def lifted(self, value: Array, node: Node, rank: int) -> Array:
        """Return a value extended to this number of axes; new axes come right after the batches."""
        count = len(self.batches)
        ones = (1,) * (rank - len(node.axes))
        return value.reshape((*value.shape[:count], *ones, *value.shape[count:]))

    def length(self, axis: Axis) -> int:
        """Return the extent of an axis; within a fold, the extent of the current step."""
        if axis is None:
            return 1
        start, stop = self.runs.get(axis.of or axis, (0, self.given.integer(axis.extent)))
        return stop - start

    def held(self, axes: Sequence[Axis]) -> tuple[int, ...]:
        """Return the extents of a value that is kept in memory as a whole.

        Raises:
            LaunchError: the value has too many elements, or a negative extent.
        """
        lengths = tuple(map(self.length, axes))
        if math.prod(lengths) > MOST_ELEMENTS or min(lengths, default=0) < 0:
            shape = " x ".join(map(str, lengths))
            raise LaunchError(
                f"evaluate of kernel {self.given.flow.name}: a value of {shape} elements; a value has 0 to "
                f"{MOST_ELEMENTS} here, pass smaller arrays, or run= for folds"
            )
        return lengths

    def places(self, operand: Operand, at: Sequence[Span], shape: Sequence[int]) -> None:
        """Refuse an array whose extents differ from the spans that index it.

        Raises:
            LaunchError: an extent differs.
        """
        for span, extent in zip(at, shape, strict=True):
            whole = self.given.integer(span.extent)
            if whole != extent:
                raise LaunchError(
                    f"evaluate of kernel {self.given.flow.name}: {operand.name} has extent {extent} along "
                    f"{span.name}, which runs to {whole}"
                )

    def whole(self, node: Node, value: Array) -> Array:
        """Return a value broadcast to the extents of its axes."""
        return np.broadcast_to(value, (*value.shape[: len(self.batches)], *self.held(node.axes)))

    def part(self, node: ArrayPart) -> Array:
        """Return the elements of an array along the spans of an `ArrayPart`."""
        array = self.given.elements(node.operand)
        self.places(node.operand, node.at, array.shape)
        for dim, span in enumerate(node.at):
            if (run := self.runs.get(span.of or span)) is not None:
                array = np.take(array, range(*run), axis=dim)
        order = [node.at.index(span) for span in (*self.batches, *node.axes) if span in node.at]
        array = wide.widened(array.transpose(order), node.dtype)
        return np.expand_dims(
            array, tuple(place for place, span in enumerate(self.batches) if span not in node.at)
        )

    def rearranged(self, value: Array, before: Sequence[Axis], after: Sequence[Axis]) -> Array:
        """Return a value with its axes reordered, or with new axes."""
        count = len(self.batches)
        value = value.squeeze(tuple(count + place for place, axis in enumerate(before) if axis is None))
        spans = [axis for axis in before if axis is not None]
        order = [count + spans.index(axis) for axis in after if axis is not None]
        value = value.transpose(*range(count), *order)
        return np.expand_dims(value, tuple(count + place for place, axis in enumerate(after) if axis is None))

    def product(self, node: Sum, a: Array, b: Array, *scales: Array) -> Array:
        """Compute a `Sum`: products of batches of vectors or matrices."""
        a, b = self.whole(node.a, a), self.whole(node.b, b)
        if node.precision == TF32:
            a, b = (wide.as_tf32(one, of.dtype) for one, of in ((a, node.a), (b, node.b)))
        a, b = (
            one if factor is None else one.astype(wide.held(node.dtype)) * factor
            for one, factor in zip((a, b), self.factors(node, scales), strict=True)
        )
        rows, columns = len(node.a.axes) > 1, len(node.b.axes) > 1
        made = wide.product(a if rows else a[..., None, :], b if columns else b[..., None], node.dtype)
        made = made if columns else made[..., 0]
        return made if rows else made[..., 0, :] if columns else made[..., 0]

    def factors(self, node: Sum, scales: Sequence[Array]) -> list[Array | None]:
        """Return the scales of both operands, aligned with them; None for an operand without scales."""
        given = iter(scales)
        return [
            None if scale is None else self.lifted(next(given), scale, len(operand.axes))
            for scale, operand in zip(node.scales, (node.a, node.b), strict=True)
        ]

    def folded(self, fold: Fold, starts: Sequence[Array]) -> list[Array]:
        """Return the contents of the cells after the last step, and the results of all steps."""
        self.begun(fold)
        begin, end = self.cuts.get(fold.span, (0, self.given.integer(fold.span.extent)))
        length = self.run or max(end - begin, 1)
        pairs = zip(fold.cells, starts, strict=True)
        now = [self.lifted(value, cell.start, len(cell.axes)) for cell, value in pairs]
        outer, place = self.cells, self.runs.get(fold.span)
        turns = product(*(range(self.given.integer(span.extent)) for span in fold.turns))
        fixed = self._fixed(fold, dict(outer))
        results: list[list[Array]] = [[] for _ in fold.results]
        for indices, start in product(turns, range(begin, end, length)):
            self.runs |= {span: (at, at + 1) for span, at in zip(fold.turns, indices, strict=True)}
            self.runs[fold.span] = (start, min(start + length, end))
            self.cells = outer | {id(cell): value for cell, value in zip(fold.cells, now, strict=True)}
            known = self.cells | fixed
            for found, one in zip(results, fold.results, strict=True):
                found.append(self.whole(one, self.value(one, known)))
            now = [self.value(step, known) for step in fold.steps]
            self.assigned(fold)
        self.cells = outer
        self.runs.pop(fold.span, None)
        self.runs |= dict.fromkeys(fold.turns, (0, 1))
        if place is not None:  # a step of another loop along the span reads the result
            self.runs[fold.span] = place
        for found, one in zip(results, fold.results, strict=True):
            [along] = fold.places(one.axes)
            shape = tuple(map(self.length, one.axes))
            now.append(
                np.concatenate(found, axis=len(self.batches) + along)
                if found
                else np.zeros((*(1,) * len(self.batches), *shape), wide.held(one.dtype))
            )
        return now

    def _fixed(self, fold: Fold, known: dict[int, Any]) -> dict[int, Any]:
        """Compute the inner loops that have the same result in every step of a fold.

        Such a loop has the span of the fold, and reads none of its cells.  The key of a result is the `id` of
        the value, and of its loop.
        """
        if id(fold) not in self._alike:
            cells, seen = {id(cell) for cell in fold.cells}, set[int]()
            self._alike[id(fold)] = [
                node
                for node in (one for step in fold.given for one in walk(step, seen))
                if isinstance(node, Folded)
                and node.fold.span == fold.span
                and not fold.turns
                and not cells & {id(one) for one in walk(node)}
                and all(fold.span not in one.axes for cell in node.fold.cells for one in walk(cell.start))
            ]
        found = self._alike[id(fold)]
        for node in found:
            self.value(node, known)
        return {key: known[key] for node in found for key in (id(node), id(node.fold))}

    def begun(self, fold: Fold) -> None:
        """Hook of subclasses: called with a loop before its first step."""

    def assigned(self, fold: Fold) -> None:
        """Hook of subclasses: called with a loop after each step."""

    # ---------------------------------------------------------------- stores

    def stored(self, store: Store, known: dict[int, Any], rounded: bool) -> Array:
        """Return the stored elements, with a dimension for each span of the store."""
        operand = store.operand
        own = [span for span in store.at if span not in self.batches]
        value = self.lifted(self.value(store.value, known), store.value, len(own))
        self.places(operand, store.at, self.given.shape(operand))
        value = np.broadcast_to(value, self.held((*self.batches, *own)))
        # A store along the rows of one group has no dimension for the groups.
        value = value.squeeze(tuple(i for i, span in enumerate(self.batches) if span not in store.at))
        spans = [span for span in (*self.batches, *own) if span in store.at]
        value = value.transpose([spans.index(span) for span in store.at])
        return wide.stored(value, store.value.dtype, operand.dtype) if rounded else value


def _before(node: Node) -> tuple[Node, ...]:
    """Return the values needed before a value can be computed; a fold computes its own steps."""
    if isinstance(node, Folded):
        return tuple(cell.start for cell in node.fold.cells)
    return () if isinstance(node, Cell) else node.arguments
