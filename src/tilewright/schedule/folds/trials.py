"""Trials of a flow on random arrays.  They test that an author's merge agrees with the steps of a loop.

A trial computes the loop as a whole, and in three parts whose states it merges in both groupings.  If the
loop has only sums, products, quotients and powers, floats are residues modulo primes.  Equal results then
mean equality for all numbers, except with a probability of about 2**-32.  Every loop is also computed in f64,
on arrays of several magnitudes and on small integers with many equal values.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tilewright.dataflow.evaluate import Evaluation, FlowArguments
from tilewright.dataflow.nodes import (
    ArrayPart,
    Flow,
    Fold,
    Integer,
    Literal,
    Map,
    Node,
    NumberParam,
    Operand,
    Position,
    Reduce,
    Scan,
    Sum,
    walk,
)
from tilewright.dtypes import DType, f32, limits
from tilewright.errors import TilewrightError
from tilewright.functions.table import CONVERSION
from tilewright.schedule.folds.powers import POWERS
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import evaluate, symbols
from tilewright.targets.reference.exponentials import PAIRS, UNKNOWN, second
from tilewright.targets.reference.residues import Residues

Array = np.ndarray[Any, Any]

MOST_ELEMENTS = 1 << 20
"""Most elements of a trial's array.  Flows with larger constant extents are not tried."""

MOST_RESIDUES = 1 << 12
"""Most elements of an array in a trial modulo primes."""

SIZES = (1.0, 1e-3, 1e4)
"""Magnitudes of random arrays."""

DRAWS = 2
"""Random draws of the numbers that a launch passes, for each magnitude; a further draw may be all zeros."""

RATIONAL = frozenset({"add", "sub", "mul", "div", "neg", "fma"})
"""Functions that residues compute exactly, by the laws of a field."""

LEAST, MOST_EXTENT = 4, 64
"""Smallest extent of an array, for two steps of 2 elements; and the extent at which doubling stops."""

RELATIVE = 2.0**-24
"""Largest error of a merged state in f64, relative to the largest element of the state."""


def drawn(
    flow: Flow, sizes: Sequence[float] = SIZES, *, whole: bool = False, zeros: bool = True, along: Int = LEAST
) -> Iterator[FlowArguments]:
    """Arguments of a flow with random arrays and numbers; none if the arrays would be too large.

    Args:
        flow: the flow.
        sizes: magnitudes of the arrays.
        whole: whether floats are small integers, so that many are equal.
        zeros: whether the numbers of a launch are all 0 in the last draw of each size.
        along: an extent that must be at least `LEAST`, e.g. a loop's; array extents are doubled for it.
    """
    rng = np.random.default_rng(0)
    extents: dict[Sym, int] = {}
    names = [one for one in flow.parameters if isinstance(one, NumberParam)]
    integers = [one.value for one in flow.parameters if isinstance(one, Integer)]
    for one in flow.parameters:
        for extent in one.shape if isinstance(one, Operand) else ():
            if isinstance(extent, Sym):
                extents.setdefault(extent, int(rng.integers(LEAST, 2 * LEAST)))
    if symbols(along) <= extents.keys():
        while symbols(along) and evaluate(along, extents) < LEAST and max(extents.values()) < MOST_EXTENT:
            extents = {extent: 2 * value for extent, value in extents.items()}
    for size in sizes:
        for draw in range(DRAWS + zeros if names or integers else 1):
            passed = {one: int(rng.integers(-3, 4)) for one in integers if isinstance(one, Sym)}
            given, numbers = extents | passed, dict[str, float]()
            numbers.update((one.name, value) for one, value in passed.items())
            for at, number in enumerate(names):  # signs alternate with the draw; zeros come last
                numbers[number.name] = 0 if draw == DRAWS else _number(rng, at + draw, number.dtype)
            arrays: dict[str, Any] = {}
            for one in flow.parameters:
                if isinstance(one, Operand):
                    shape = tuple(int(evaluate(extent, given)) for extent in one.shape)
                    if np.prod(shape) > MOST_ELEMENTS:
                        return
                    least = -2 if one.dtype.name.startswith("i") else 0
                    numbered: Any = rng.integers(least, 3, shape)
                    if one.dtype.is_float and not whole:
                        numbered = size * rng.standard_normal(shape)
                    arrays[one.name] = numbered.astype(one.dtype.numbers)
            try:
                yield FlowArguments(flow, arrays, numbers)
            except TilewrightError:  # these sizes break a requirement
                return


def _number(rng: np.random.Generator, at: int, kind: DType) -> float:
    """A random number, positive for even ``at`` and negative for odd; for unsigned dtypes any number."""
    if kind.kind == "uint":
        return int(rng.integers(0, int(limits(kind)[1]), dtype=np.uint64))
    return float((-1) ** at * rng.uniform(0.1, 2))


# ---------------------------------------------------------------- residues


class ResidueEvaluation(Evaluation):
    """An evaluation in which floats are pairs of residues; they have the laws of powers, too.

    Args:
        given: the arguments.
    """

    def __init__(self, given: FlowArguments) -> None:
        super().__init__(given, None)
        self.numbers = Residues(PAIRS)
        self.is_exact = True
        """Whether no power of an unknown exponent was computed."""

    def computed(self, node: Node, given: Sequence[Array]) -> Array:
        """Compute a value from its arguments."""
        kinds = [one.dtype for one in node.arguments]
        if isinstance(node, Map) and (node.dtype.is_float or any(one.is_float for one in kinds)):
            if node.function in POWERS:
                self.is_exact &= not bool((second(given[0]) == UNKNOWN).any())
            operands = given if node.function in CONVERSION else self.aligned(node.given, given)
            return self.numbers.elementwise(node.function, operands, kinds, node.dtype)
        if isinstance(node, Reduce) and node.dtype.is_float:
            place = len(self.batches) + node.axis
            values = np.moveaxis(self.whole(node.argument, given[0]), place, 0)
            return functools.reduce(self.numbers.combine(node.combine, node.dtype), values)
        made = super().computed(node, given)
        is_given = isinstance(node, Literal | NumberParam | Integer | ArrayPart | Position)
        is_number = is_given and node.dtype.is_float
        return PAIRS.embedded(made.astype(np.float64)) if is_number else made

    def product(self, node: Sum, a: Array, b: Array, *scales: Array) -> Array:
        """Compute a `Sum`: products of batches of vectors or matrices."""
        if not node.dtype.is_float:
            return super().product(node, a, b, *scales)
        pairs = zip((a, b), self.factors(node, scales), strict=True)
        a, b = (one if factor is None else PAIRS.multiplied(one, factor) for one, factor in pairs)
        a, b = self.whole(node.a, a), self.whole(node.b, b)
        rows, columns = len(node.a.axes) > 1, len(node.b.axes) > 1
        a, b = a if rows else a[..., None, :], b if columns else b[..., None]
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (np.broadcast_to(one, (*batch, *one.shape[-2:])) for one in (a, b))
        made = np.empty((*batch, a.shape[-2], b.shape[-1]), np.uint64)
        for at in np.ndindex(*batch):
            made[at] = PAIRS.matrix_product(a[at], b[at].T)
        made = made if columns else made[..., 0]
        return made if rows else made[..., 0, :] if columns else made[..., 0]


# ---------------------------------------------------------------- parts of a loop


class PartedFold:
    """A loop on the arrays of a trial, as a whole and in parts.

    Args:
        fold: the loop.
        trial: the evaluation of the arrays.
    """

    def __init__(self, fold: Fold, trial: Evaluation) -> None:
        self.fold, self.trial = fold, trial
        extent = trial.given.integer(fold.span.extent)
        run = max(extent // 5, 1)
        turns = itertools.product(*(range(trial.given.integer(one.extent)) for one in fold.turns))
        places = ((start, min(start + run, extent)) for start in range(0, extent, run))
        self.steps = [*itertools.product(turns, places)]
        cuts = [0, (len(self.steps) + 1) // 3, (2 * len(self.steps) + 1) // 3, len(self.steps)]
        self.parts = [self.steps[first:last] for first, last in itertools.pairwise(cuts) if last > first]

    @np.errstate(all="ignore")
    def after(self, steps: Sequence[tuple[tuple[int, ...], tuple[int, int]]]) -> list[Array]:
        """The cells after some steps, from their start."""
        trial, fold, known = self.trial, self.fold, dict[int, Array]()
        starts = [(cell, trial.value(cell.start, known)) for cell in fold.cells]
        now = [trial.lifted(value, cell.start, len(cell.axes)) for cell, value in starts]
        for indices, place in steps:
            trial.runs |= {span: (at, at + 1) for span, at in zip(fold.turns, indices, strict=True)}
            trial.runs[fold.span] = place
            trial.cells = {id(cell): value for cell, value in zip(fold.cells, now, strict=True)}
            inner = dict(trial.cells)
            now = [trial.value(step, inner) for step in fold.steps]
        trial.runs.pop(fold.span, None)
        trial.cells = {}
        return now

    @np.errstate(all="ignore")
    def merged(self, first: Sequence[Array], second: Sequence[Array]) -> list[Array]:
        """The merged cells of two adjacent parts; the first part's cell if no merge is stated."""
        trial, known, made = self.trial, dict[int, Array](), [*first]
        for merge, one, other in zip(self.fold.merges, first, second, strict=True):
            if merge is not None:
                known |= {id(merge.first): one, id(merge.second): other}
        trial.cells = dict(known)
        for at, merge in enumerate(self.fold.merges):
            if merge is not None:
                value = trial.value(merge.value, known)
                made[at] = trial.lifted(value, merge.value, len(self.fold.steps[at].axes))
        trial.cells = {}
        return made

    def differs(self, relative: float | None) -> int | None:
        """The index of the first cell whose merged parts differ from the whole loop; None if all agree.

        Args:
            relative: the largest relative error; None: results must be equal.
        """
        whole, parts = self.after(self.steps), [self.after(part) for part in self.parts]
        orders = [functools.reduce(self.merged, parts)]
        if len(parts) > 2:
            orders.append(self.merged(parts[0], self.merged(parts[1], parts[2])))
        for at, merge in enumerate(self.fold.merges):
            for made in orders if merge is not None else ():
                pair = np.broadcast_arrays(whole[at], made[at])
                if not _are_close(pair[0], pair[1], relative):
                    return at
        return None


@np.errstate(all="ignore")
def _are_close(right: Array, found: Array, relative: float | None) -> bool:
    """Whether two arrays are equal, up to an error relative to the largest finite element."""
    if relative is None or right.dtype.kind not in "fc":
        return np.array_equal(right, found)
    known = np.isfinite(right)
    size = float(np.abs(right[known]).max(initial=0.0))
    is_close = np.abs(right[known] - found[known]) <= relative * size
    return bool(is_close.all()) and np.array_equal(right[~known], found[~known], equal_nan=True)


_FOUND: WeakKeyDictionary[Fold, str] = WeakKeyDictionary()
"""The result of `against_merge` for each loop."""


def against_merge(flow: Flow, fold: Fold) -> str:
    """The disagreement between an author's merges and the steps of a loop; empty if they agree."""
    if not fold.merges:
        return ""
    if fold not in _FOUND:
        _FOUND[fold] = _tried(flow, fold)
    return _FOUND[fold]


def _tried(flow: Flow, fold: Fold) -> str:
    seen: set[int] = set()
    merges = [one.value for one in fold.merges if one is not None]
    nodes = [node for value in (*fold.steps, *merges) for node in walk(value, seen)]
    if all(map(_is_algebraic, nodes)):
        for given in drawn(flow, SIZES[:1], zeros=False):
            if all(array.size <= MOST_RESIDUES for array in given.arrays.values()):
                exact = ResidueEvaluation(given)
                at = PartedFold(fold, exact).differs(None)
                if at is not None and exact.is_exact:
                    return f"{fold.cells[at].name} of merged parts and of the whole loop differ modulo primes"
    kinds = {node.dtype for node in nodes}
    rounded = [kind.unit_roundoff for kind in kinds if kind.is_float and kind.bits < f32.bits]
    relative = 64 * max(rounded) if rounded else RELATIVE
    for whole in (False, True):
        for given in drawn(flow, SIZES[:1] if whole else SIZES, whole=whole, zeros=False):
            at = PartedFold(fold, Evaluation(given, None)).differs(relative)
            if at is not None:
                on = "small integers" if whole else "random numbers"
                return f"{fold.cells[at].name} of merged parts and of the whole loop differ on {on}"
    return ""


def _is_algebraic(node: Node) -> bool:
    """Whether residues can compute a node: it has only functions whose laws they share with floats."""
    if node.dtype.components > 1:
        return False
    match node:
        case Map(function="convert", given=(one,)):
            return node.dtype.is_float or not one.dtype.is_float
        case Map(function=function):
            return function in RATIONAL or function in POWERS
        case Reduce(combine=combine):
            return combine == "sum"
        case Scan():
            return False
    return True
