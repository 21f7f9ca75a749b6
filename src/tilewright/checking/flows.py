"""Comparison of stored arrays with a flow, under a bound for each element from the graph.

Every value has a centre, which `dataflow.evaluate` computes, and a radius, the largest error of a correct
kernel.  The radius of a product is the bound of `checking.compare`.  The radius of a function is the largest
change of its value when its arguments move to the ends of their intervals, plus the function's own error and
rounding; if a comparison is uncertain, a choice may give either value.  Rounding is monotonic, so that stored
elements lie between the rounded ends.  Without rounding (integers, choices, conversions of exact values) the
radius is 0, and stored elements must be equal to the bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.checking.compare import Accumulation, ElementComparison, gemm_bound
from tilewright.checking.composed_products import halves_bound
from tilewright.dataflow import wide
from tilewright.dataflow.evaluate import Evaluation, FlowArguments
from tilewright.dataflow.nodes import (
    Flow,
    Fold,
    Folded,
    Map,
    Node,
    Rearrange,
    Reduce,
    Scan,
    Span,
    Store,
    Sum,
    walk,
)
from tilewright.dtypes import DType, f32, f64
from tilewright.functions.conversions import Array, keep_fraction
from tilewright.functions.table import COMPARISON, CONVERSION, FUNCTIONS

EXACT = ("neg", "abs", "max", "min", "floor", "ceil", "round", "trunc", "select")
"""Functions with exact results."""

FLUSHED = 2.0**-126
"""Magnitude in f32 below which an approximation of a GPU may be 0.

Seen on an H200 with sigmoid, whose ``ex2.approx.ftz`` and ``rcp.approx.ftz`` are defined so.
Source: PTX ISA, "ex2", "rcp".
"""


@dataclass(frozen=True)
class StoredComparison(ElementComparison):
    """The outcome of a comparison.

    Args:
        wrong: number of elements that no correct kernel stores.
        size: number of elements.
        name: the array with the worst element.
        index: its place.
        value: its value.
        low: the least value that a correct kernel may store.
        high: the largest value that a correct kernel may store.
        worst: the largest distance of a right element from the middle of its bounds, relative to half their
            distance; 1 is at a bound.
    """

    value: float = 0.0
    low: float = 0.0
    high: float = 0.0
    worst: float = 0.0

    def __str__(self) -> str:
        if self.ok:
            return f"correct: {self.size} elements"
        limits = f"{self.low:.9g} to {self.high:.9g}" if self.low != self.high else f"{self.low:.9g}"
        found = f"{self.where} is {self.value:.9g}, expected {limits}"
        return f"wrong: {self.wrong} of {self.size} elements; {found}"


def compare_flow(
    flow: Flow,
    stored: Mapping[str, Array],
    arrays: Mapping[str, Array],
    numbers: Mapping[str, float] | None = None,
    how: Accumulation | None = None,
    halves: int = 0,
    run: int | None = None,
) -> StoredComparison:
    """Compare the arrays that a kernel stored with its flow.

    Args:
        flow: the flow of the kernel.
        stored: the arrays that it stored, by parameter.
        arrays: its arguments before the launch, by parameter; arrays that are only stored may be left out if
            other arrays have their extents.
        numbers: the numbers and integers of the call, by parameter.
        how: how the kernel adds up products; default: one multiply-add at a time.
        halves: number of halves into which f32 operands were split before the multiply; 0: they were not.
        run: number of elements of a step of a loop that carries a state; default: all, which serves sums.

    Raises:
        LaunchError: arrays or numbers do not fit the flow.

    Example:
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="N K", bias="N", C="M N")
        ... def linear(A, B, bias, C):
        ...     for m, n in tw.tiles(C):
        ...         acc = tw.zeros()
        ...         for k in tw.steps(A.shape[1]):
        ...             acc += A[m, k] @ B[n, k].T
        ...         C[m, n] = tw.tanh(acc + bias[n])
        >>> rng = np.random.default_rng(0)
        >>> a, b, bias = (rng.standard_normal(shape, np.float32) for shape in ((8, 40), (6, 40), 6))
        >>> c, given = np.empty((8, 6), np.float32), {"A": a, "B": b, "bias": bias}
        >>> flow = linear(a, b, bias, c, target="cpu").flow
        >>> compare_flow(flow, {"C": c}, given).ok, compare_flow(flow, {"C": c * 1.0001}, given).ok
        (True, False)
    """
    return FlowBounds(flow, {**stored, **arrays}, numbers, how, halves, run).compare(stored)


MOST_COMPARED = 1 << 18
"""Most elements of all arrays of a kernel whose loops are evaluated with two lengths of a step."""


@dataclass(frozen=True)
class StepDependence:
    """Elements that a loop stores in its steps, and that depend on the length of a step.

    Args:
        store: the store with the first of these elements.
        index: the place of the element.
        count: number of elements.
        lengths: two lengths of a step.
        values: the element with steps of each length.
    """

    store: Store
    index: tuple[int, ...]
    count: int
    lengths: tuple[int, int]
    values: tuple[float, float]

    @staticmethod
    def of(flow: Flow, arrays: Mapping[str, Array], numbers: Mapping[str, float]) -> StepDependence | None:
        """Evaluate loops whose steps store with one step, and with at least three; None if results agree.

        A correct kernel stores a number within the bounds of both.  Returns None, too, for large arrays and
        for flows without such loops.

        Args:
            flow: the flow of the kernel.
            arrays: its arguments before the launch, by parameter.
            numbers: the numbers and integers of the call, by parameter.
        """
        folds = [node.fold for node in flow.walk() if isinstance(node, Folded) and node.fold.results]
        if not folds or sum(array.size for array in arrays.values()) > MOST_COMPARED:
            return None
        given = FlowArguments(flow, arrays, numbers)
        extents = [given.integer(fold.span.extent) for fold in folds]
        lengths = max(extents), max(max(extents) // 3, 1)
        whole, cut = (
            FlowBounds(flow, arrays, numbers, run=run, rounded_apart=True)._stores for run in lengths
        )
        found: list[StepDependence] = []
        for one, other in zip(whole, cut, strict=True):
            apart = ((one.low > other.high) | (other.low > one.high)) & one.valid
            if not apart.any():
                continue
            index = tuple(int(i) for i in np.argwhere(apart)[0])
            place = tuple(i + (part.start or 0) for i, part in zip(index, one.at, strict=False))
            values = float(one.low[index]), float(other.low[index])
            found.append(StepDependence(one.store, place, int(apart.sum()), lengths, values))
        return max(found, key=lambda one: one.count, default=None)


Part = Mapping[Span, tuple[int, int]]
"""Elements of some spans, from a first one to one past the last; of other spans all."""


@dataclass(frozen=True)
class _StoreBounds:
    """Bounds of the numbers that a correct kernel stores in some elements of an array.

    Args:
        store: the store.
        at: the elements.
        low: the least numbers.
        high: the largest numbers.
        may_be_none: whether NaN is right, too.
        valid: which elements exist.
        offset: their places in the array, if the store goes through a view.
    """

    store: Store
    at: tuple[slice, ...]
    low: Array
    high: Array
    may_be_none: Array
    valid: Array
    offset: Array | None

    def compare(self, array: Array) -> StoredComparison:
        """Compare the elements of the array that a kernel stored."""
        name, target = self.store.operand.name, self.store.operand.dtype
        if self.offset is None:
            given = array[self.at]
        else:
            given = array.reshape(-1)[np.where(self.valid, self.offset, 0)]
        if not given.size:
            return StoredComparison(0, 0, name)
        low, high = self.low, self.high
        with np.errstate(all="ignore"):
            value = _number(given, target)
            right = ((low <= value) & (value <= high)) | (np.isnan(value) & self.may_be_none)
            right |= ~self.valid
            off = np.where(right, 0, np.nan_to_num(np.maximum(low - value, value - high), nan=np.inf) + 1)
            half = (high - low) / 2
            share = np.where(right & (half > 0) & np.isfinite(half), np.abs(value - low - half) / half, 0)
        index = tuple(int(i) for i in np.unravel_index(int(np.argmax(off)), off.shape))
        begins = zip(index, (part.start or 0 for part in self.at), strict=False)
        return StoredComparison(
            int((~right).sum()),
            int(self.valid.sum()),
            name,
            tuple(place + begin for place, begin in begins),
            float(value[index]),
            float(low[index]),
            float(high[index]),
            float(np.nan_to_num(share).max()),
        )


class FlowBounds:
    """The least and the largest number that a correct kernel stores in each element of its results.

    Args:
        flow: the flow of the kernel.
        arrays: its arrays, by parameter; only the extents of results matter.
        numbers: the numbers and integers of the call, by parameter.
        how: as for `compare_flow`, like ``halves`` and ``run``.
        halves: number of halves of f32 operands.
        run: number of elements of a step of a loop.
        parts: the elements to compute, for flows without groups; default: all.
        rounded_apart: whether values narrower than f32 may be rounded in other steps than those of ``run``.

    Raises:
        LaunchError: arrays or numbers do not fit the flow.
    """

    def __init__(
        self,
        flow: Flow,
        arrays: Mapping[str, Array],
        numbers: Mapping[str, float] | None = None,
        how: Accumulation | None = None,
        halves: int = 0,
        run: int | None = None,
        parts: Sequence[Part] = (),
        *,
        rounded_apart: bool = False,
    ) -> None:
        evaluation = _Bounded(FlowArguments(flow, arrays, numbers or {}), how, halves, run, parts)
        evaluation.rounded_apart = rounded_apart
        self._stores: list[_StoreBounds] = []
        totals = {store.operand.name: _Total.of(evaluation, store) for store in flow.stores if store.added}
        for place in evaluation.groups():
            known: dict[int, Array] = {}
            for store in flow.stores:
                if store.added:
                    totals[store.operand.name].add(evaluation, store, known, place(store))
                else:
                    self._stores.append(_bounds(evaluation, store, known, place(store)))
        self._stores += [one.bounds for one in totals.values()]

    def compare(self, stored: Mapping[str, Array]) -> StoredComparison:
        """Compare the arrays that a kernel stored, by parameter."""
        found = [one.compare(stored[one.store.operand.name]) for one in self._stores]
        worst = max(found, key=lambda one: one.wrong, default=StoredComparison(0, 0))
        share = max((one.worst for one in found), default=0.0)
        count, size = sum(one.wrong for one in found), sum(one.size for one in found)
        return replace(worst, wrong=count, size=size, worst=share)


def _bounds(
    evaluation: _Bounded, store: Store, known: dict[int, Array], at: tuple[slice, ...]
) -> _StoreBounds:
    """Return the bounds of one store, along some elements of its spans."""
    centre = evaluation.stored(store, known, rounded=False)
    radius = evaluation.stored(store, {id(store.value): evaluation.radius[id(store.value)]}, rounded=False)
    if not store.operand.transforms:
        return _rounded(store, at, centre, radius, np.ones(centre.shape, np.bool_))
    offset, valid = (one[at] for one in evaluation.given.places(store.operand))
    return _rounded(store, at, centre, radius, valid, offset)


def _rounded(
    store: Store,
    at: tuple[slice, ...],
    centre: Array,
    radius: Array,
    valid: Array,
    offset: Array | None = None,
) -> _StoreBounds:
    """Return the bounds of elements from their intervals, whose ends are rounded to the stored dtype."""
    target, kind = store.operand.dtype, store.value.dtype
    with np.errstate(all="ignore"):
        ends = [centre] if kind.kind == "bool" or not radius.any() else [centre - radius, centre + radius]
        low, high = (_number(wide.stored(end, kind, target), target) for end in (ends[0], ends[-1]))
        # Beyond the largest number of a type without infinities is NaN, unless the kernel saturates.
        may_be_none = np.isnan(low + high)
        high = np.where(np.isnan(high) & ~np.isnan(low), np.inf, high)
        low = np.where(np.isnan(low) & ~np.isnan(high), -np.inf, low)
    return _StoreBounds(store, at, low, high, may_be_none, valid, offset)


@dataclass
class _Total:
    """Sums of the values that a store adds to each element of an array, in any order.

    Args:
        store: the store.
        centre: the sums.
        radius: the largest errors of the values.
        size: sums of the magnitudes of the element before the launch and of the added values.
        count: number of values added to each element.
    """

    store: Store
    centre: Array
    radius: Array
    size: Array
    count: Array

    @staticmethod
    def of(evaluation: _Bounded, store: Store) -> _Total:
        """Return totals without added values: the elements before the launch."""
        before = evaluation.before(store, rounded=False).reshape(-1)
        zeros = np.zeros(before.shape)
        return _Total(store, before, zeros, np.abs(before).astype(np.float64), zeros.copy())

    def add(self, evaluation: _Bounded, store: Store, known: dict[int, Array], at: tuple[slice, ...]) -> None:
        """Add the values of some elements of the store's spans."""
        centre = evaluation.stored(store, known, rounded=False)
        far = evaluation.stored(store, {id(store.value): evaluation.radius[id(store.value)]}, rounded=False)
        offset, valid = (one[at] for one in evaluation.given.places(store.operand))
        where = offset[valid]
        sizes = np.abs(centre).astype(np.float64) + far
        for total, one in zip(
            (self.centre, self.radius, self.size, self.count),
            (centre, far, sizes, np.ones(centre.shape)),
            strict=True,
        ):
            np.add.at(total, where, one[valid])

    @property
    def bounds(self) -> _StoreBounds:
        """The bounds of the whole array: each value is rounded to its dtype, and so is each partial sum."""
        target, centre = self.store.operand.dtype, self.centre
        radius = self.radius
        if target.is_float:
            least = np.where(self.count > 0, float(wide.smallest(target)), 0.0)
            radius = radius + 1.02 * (2 * self.count) * (target.unit_roundoff * (self.size + radius) + least)
        every = np.ones(centre.shape, np.bool_)
        return _rounded(self.store, (), centre, radius, every, np.arange(centre.size))


def _number(values: Array, kind: DType) -> Array:
    """Convert elements to numbers that can be compared."""
    return wide.widened(values, kind).astype(np.longdouble if kind.bits > 32 else np.float64)


class _Bounded(Evaluation):
    """An evaluation that also computes the largest error of a correct kernel.

    The error of a state is carried from step to step: the errors of the values before a step give the errors
    of the values after it.

    Args:
        given: the arguments.
        how: how products are added up; None: one multiply-add at a time.
        halves: number of halves into which operands were split; 0: they were not.
        run: number of elements of a step of a loop that carries a state; None: all.
        parts: the elements to compute; none: all.
    """

    def __init__(
        self,
        given: FlowArguments,
        how: Accumulation | None,
        halves: int = 0,
        run: int | None = None,
        parts: Sequence[Part] = (),
    ) -> None:
        super().__init__(given, run)
        self.how, self.halves, self.parts = how, halves, parts
        self.rounded_apart = False
        self.gathered: dict[int, list[Array]] = {}
        """The largest errors of the results of each step, by the `id` of the result."""

        self.radius: dict[int, Array] = {}

    def groups(self) -> Iterator[Callable[[Store], tuple[slice, ...]]]:
        """Yield, for each part or group, a function from a store to its slice."""
        if not self.parts:
            yield from super().groups()
        for part in self.parts:
            self.runs |= part
            yield lambda store: tuple(slice(*self.runs.get(one, (None,))) for one in store.at)

    def computed(self, node: Node, given: Sequence[Array]) -> Array:
        """Return the centre of a value, and store its radius."""
        if isinstance(node, Sum):
            pairs = zip(given, (node.a, node.b), strict=False)
            rounded = []
            for values, one in pairs:  # to the fraction bits that the atom multiplies
                if self.how is not None and self.how.precision is not None and one.dtype != f64:
                    fraction = keep_fraction(values.astype(np.float32), self.how.precision, self.how.rounding)
                    values = fraction.astype(values.dtype)
                rounded.append(values)
            given = [*rounded, *given[2:]]
        centre = super().computed(node, given)
        if isinstance(node, Folded):
            count = len(node.fold.cells)
            if node.index < count:
                self.radius[id(node)] = self.radius[id(node.fold.cells[node.index])]
            else:  # the radii of the steps follow each other
                steps = self.gathered[id(node.fold.results[node.index - count])]
                [along] = node.fold.places(node.axes)
                axis = len(self.batches) + along
                self.radius[id(node)] = np.concatenate(steps, axis) if steps else np.zeros(centre.shape)
            return centre
        radii = [self.radius[id(one)] for one in node.arguments]
        with np.errstate(all="ignore"):
            radius = self._radius(node, given, radii, centre)
            if self.rounded_apart and isinstance(node, Map) and node.dtype.is_float and node.dtype.bits < 32:
                off = 2 * node.dtype.unit_roundoff * _finite(np.abs(centre).astype(np.float64))
                radius = radius + off + float(wide.smallest(node.dtype))
            self.radius[id(node)] = radius
        return centre

    def begun(self, fold: Fold) -> None:
        """Give the cells of a loop the errors of their start."""
        self.gathered |= {id(one): [] for one in fold.results}
        for cell in fold.cells:
            self.radius[id(cell)] = self.lifted(self.radius[id(cell.start)], cell.start, len(cell.axes))

    def assigned(self, fold: Fold) -> None:
        """Give the cells of a loop the errors of their new values."""
        radii = [self.radius[id(step)] for step in fold.steps]
        self.radius |= {id(cell): radius for cell, radius in zip(fold.cells, radii, strict=True)}
        for one in fold.results:
            self.gathered[id(one)].append(self.whole(one, self.radius[id(one)]))

    def _radius(self, node: Node, given: Sequence[Array], radii: Sequence[Array], centre: Array) -> Array:
        match node:
            case Rearrange(argument=argument):
                return self.rearranged(radii[0], argument.axes, node.axes)
            case Map(function=function) if function in CONVERSION:
                source = node.given[0].dtype
                ends = _ends(given[0], radii[0])[1:]
                return _farthest([wide.converted(function, end, source, node.dtype) for end in ends], centre)
            case Map(function="select"):
                condition, one, other = self.aligned(node.given, given)
                unsure, far, farther = self.aligned(node.given, radii)
                either = np.abs(np.asarray(one - other, np.longdouble)) + np.maximum(far, farther)
                chosen = np.where(unsure > 0, either, np.where(condition, far, farther))
                return chosen.astype(np.float64)
            case Map(function="take"):  # codes are exact, and all targets round the entries alike
                return np.zeros(centre.shape)
            case Map(function="add" | "sub") if len(terms := added_up(node)) > 1:
                # All products may be added to each other: the error of each term grows with their number.
                counts = [max(self.given.integer(term.sum.span.extent), 1) for term in terms]
                found = self.aligned(
                    [term.value for term in terms],
                    [
                        sum(counts) / count * self.radius[id(term.value)]
                        for term, count in zip(terms, counts, strict=True)
                    ],
                )
                apart = self._function(node, given, radii, centre)
                together: Array = np.add.reduce(np.broadcast_arrays(*found))
                return np.maximum(apart, together)
            case Map():
                return self._function(node, given, radii, centre)
            case Sum():
                return self._product(node, given, radii, centre)
            case Reduce(combine="sum") | Scan():
                values, radius = (self.whole(node.argument, one) for one in (given[0], radii[0]))
                axis = len(self.batches) + node.axis
                errors = np.asarray(radius + values.shape[axis] * node.dtype.unit_roundoff * np.abs(values))
                if isinstance(node, Scan):
                    return wide.scanned(errors, axis, f64, reverse=node.reverse)
                return np.asarray(errors.sum(axis))
            case Reduce():
                radius = self.whole(node.argument, radii[0])
                return np.asarray(radius.max(axis=len(self.batches) + node.axis, initial=0))
        return np.zeros(centre.shape)

    def _function(self, node: Map, given: Sequence[Array], radii: Sequence[Array], centre: Array) -> Array:
        given, radii = self.aligned(node.given, given), self.aligned(node.given, radii)
        if node.function in ("eq", "ne") and any(radius.any() for radius in radii):
            unsure = (np.abs(given[0] - given[1]) <= radii[0] + radii[1]) & (radii[0] + radii[1] > 0)
            return np.asarray(unsure, np.float64)
        is_exact = node.function in EXACT or node.function in COMPARISON
        # Whether a function of exact values has the same bits on every target and in the evaluator.
        keeps_bits = is_exact or not node.dtype.is_float
        keeps_bits |= wide.is_narrow(node.dtype) and FUNCTIONS[node.function].ulp == 0
        if keeps_bits and not any(radius.any() for radius in radii):
            return np.zeros(centre.shape)
        if node.given[0].dtype.kind == "bool":
            return np.broadcast_to(np.max(np.broadcast_arrays(*radii), axis=0), centre.shape)
        row = FUNCTIONS[node.function]
        assert row.meaning is not None, node.function
        corners = itertools.product(
            *(_ends(value, radius) for value, radius in zip(given, radii, strict=True))
        )
        exact, *others = (np.asarray(row.meaning(*np.broadcast_arrays(*corner))) for corner in corners)
        moved = _farthest(others, exact)
        if is_exact:
            return moved
        own: float | Array = 2 * (row.ulp + 1) * node.dtype.unit_roundoff
        if node.function == "exp" and node.dtype == f32 and any(isinstance(one, Sum) for one in walk(node)):
            own = own + 3 * f32.unit_roundoff * _finite(np.abs(given[0]))  # loops compute exp2(log2(e) * x)
        size = np.maximum(np.abs(given[0]), np.abs(centre)) if row.of_operand else np.abs(centre)
        least = np.asarray(wide.smallest(node.dtype))
        if node.dtype.is_float and node.dtype.component.bits <= 32 and row.ulp:
            # An intermediate result may be flushed, and then multiplied by the argument, or by 1.
            times = np.abs(given[0]) if row.of_operand else 0
            least = np.maximum(least, FLUSHED * (1 + _finite(np.asarray(times))))
        return np.asarray(moved + own * (_finite(size) + moved) + least, np.float64)

    def _product(self, node: Sum, given: Sequence[Array], radii: Sequence[Array], centre: Array) -> Array:
        if not node.dtype.is_float:
            return np.zeros(centre.shape)
        how = self.how or Accumulation.default(node.dtype)
        batches = centre.shape[: len(self.batches)]
        sides = []
        factors = zip(self.factors(node, given[2:]), self.factors(node, radii[2:]), strict=True)
        operands = zip((node.a, node.b), given, radii, factors, (True, False), strict=False)
        for one, value, radius, (scale, far), before in operands:
            pair = [np.asarray(each, np.float64) for each in (value, radius)]
            if scale is not None and far is not None:
                size = np.abs(pair[0]) + pair[1]
                off = pair[1] * np.abs(scale)
                off = off + size * (far + 2 * node.dtype.unit_roundoff * np.abs(scale))
                pair = [np.asarray(pair[0] * scale), np.asarray(off)]
            pair = [self.whole(one, each) for each in pair]
            if len(one.axes) < 2:
                pair = [each[..., None, :] if before else each[..., None] for each in pair]
            sides.append([np.broadcast_to(each, (*batches, *each.shape[len(batches) :])) for each in pair])
        made = np.zeros((*batches, sides[0][0].shape[-2], sides[1][0].shape[-1]))
        for index in np.ndindex(batches):
            (a, far_a), (b, far_b) = ([each[index] for each in side] for side in sides)
            halves = self.halves
            if not far_a.any() and not far_b.any() and all((np.rint(one) == one).all() for one in (a, b)):
                bits = min(how.acc.mantissa, how.sum_bits or how.acc.mantissa)
                if (np.abs(a) @ np.abs(b)).max(initial=0) < 2.0 ** (bits - 2):
                    continue  # sums of products of small whole numbers are exact in any order
            bound = halves_bound(a, b, how, halves) if halves else gemm_bound(a, b, how, f64, twice=False)[2]
            made[index] = bound
            if far_a.any() or far_b.any():
                made[index] += far_a @ (np.abs(b) + far_b) + np.abs(a) @ far_b
        return made.reshape(centre.shape)


@dataclass(frozen=True)
class AddedSum:
    """A sum of products that is added to others.

    Args:
        sum: the sum.
        value: the value that is added: the sum, or the sum times a number.
    """

    sum: Sum
    value: Node


def added_up(node: Node) -> list[AddedSum]:
    """Return the sums that a value adds up, some of them times a number; none if it contains anything else.

    A kernel may add up the products of all of them in one go, which rounds as often as there are products.
    """
    if isinstance(node, Sum):
        return [AddedSum(node, node)]
    if not isinstance(node, Map) or node.function not in ("add", "sub", "mul"):
        return []
    if node.function == "mul":
        for one, scale in (node.given, node.given[::-1]):
            if not scale.axes and not any(isinstance(part, Sum) for part in walk(scale)):
                return [AddedSum(one, node)] if isinstance(one, Sum) else []
        return []
    left, right = (added_up(one) for one in node.given)
    return [*left, *right] if left and right else []


def _finite(sizes: Array) -> Array:
    """Return magnitudes for relative rounding errors: 0 for infinities, which are exact."""
    return np.where(np.isinf(sizes), 0, sizes)


def _ends(value: Array, radius: Array) -> list[Array]:
    """Return the centre of a value, then its least and its largest possible value."""
    if not radius.any():
        return [value]
    return [value, np.asarray(value - radius, value.dtype), np.asarray(value + radius, value.dtype)]


def _farthest(values: Sequence[Array], centre: Array) -> Array:
    """Return the largest distance of some arrays from the centre; infinite where only one is NaN."""
    made = np.zeros(centre.shape)
    for value in values:
        same = (value == centre) | ((value != value) & (centre != centre))
        off = np.abs(np.subtract(value, centre, dtype=None if centre.dtype == np.float64 else np.longdouble))
        made = np.maximum(made, np.where(same, 0, np.where(np.isnan(off), np.inf, off)).astype(np.float64))
    return made
