"""Masks that compare positions: which steps of a loop they hide, and in which steps they must be applied.

``where(positions(n) <= positions(m)[:, None] + shift, s, -inf)`` hides every element of a step whose first
column lies beyond ``last row + shift``.  Such a step may be left out if it changes no value that the loop
carries.  In a step whose last column lies before ``first row + shift`` nothing is hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.dataflow.evaluate import Evaluation, FlowArguments
from tilewright.dataflow.nodes import (
    Fold,
    Integer,
    Literal,
    Map,
    Node,
    NumberParam,
    Operand,
    Position,
    Rearrange,
    Span,
)
from tilewright.errors import TilewrightError
from tilewright.functions.table import CONVERSION
from tilewright.lang.scalars import Condition, Index, minimum
from tilewright.schedule.folds.form import FoldForm
from tilewright.schedule.folds.values import Place
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import evaluate

COMPARED = {
    "less_equal": (False, 0),
    "less": (False, 1),
    "greater_equal": (True, 0),
    "greater": (True, 1),
}
"""Comparisons: whether the sides are exchanged, and by how much the larger side must be larger."""


@dataclass(frozen=True)
class Comparison:
    """``small + by <= large``, where one side has the position along the loop's span.

    Args:
        small: the smaller side.
        large: the larger side.
        by: 0 or 1.
        rises: whether later positions along the span make it true; otherwise earlier ones do.
    """

    small: Node
    large: Node
    by: int
    rises: bool

    def end(self, place: Place, n: Span) -> Index:
        """One more than the last position along the span at which some row of the tile sees its element."""
        (_, high), (low, _) = (rest(place, side, n) for side in (self.large, self.small))
        return high - low - self.by + 1

    def first(self, place: Place, n: Span) -> Index:
        """The first position along the span at which some row of the tile sees its element."""
        (_, high), (low, _) = (rest(place, side, n) for side in (self.large, self.small))
        return low + self.by - high

    def cuts(self, place: Place, n: Span) -> Condition | bool:
        """Whether it may be false somewhere in the tile of a step."""
        (low, _), (_, high) = (rest(place, side, n) for side in (self.large, self.small))
        begin = place.at(n) * place.length(n)
        if self.rises:
            return begin + low < high + self.by
        return begin + place.length(n) - 1 + high + self.by > low


@dataclass(frozen=True)
class Mask:
    """A choice of a value or a number by comparisons of positions, all of which must hold.

    Args:
        node: the choice, ``select(mask, value, number)``.
        comparisons: the comparisons.
        n: the span of the loop.
    """

    node: Map
    comparisons: tuple[Comparison, ...]
    n: Span

    @property
    def value(self) -> Node:
        """The value that is chosen where the mask is true."""
        return self.node.given[1]

    @property
    def other(self) -> float | int:
        """The number that is chosen elsewhere."""
        node = self.node.given[2]
        assert isinstance(node, Literal), "a mask chooses a number"
        return node.value

    def cuts(self, place: Place) -> Condition | bool:
        """Whether the mask may be false somewhere in the tile of a step."""
        found: Condition | bool = False
        for one in self.comparisons:
            cut = one.cuts(place, self.n)
            found = cut | found if isinstance(cut, Condition) else cut or found
        return found


def masks_of(form: FoldForm) -> tuple[Mask, ...]:
    """The masks in a step of a loop."""
    found = []
    for node in form.inside():
        if isinstance(node, Map) and node.function == "select" and isinstance(node.given[2], Literal):
            compared = tuple(_comparisons(node.given[0], form.n))
            if compared and all(one is not None for one in compared):
                found.append(Mask(node, tuple(one for one in compared if one is not None), form.n))
    return tuple(found)


def _comparisons(node: Node, n: Span) -> Iterator[Comparison | None]:
    """The comparisons of a mask; None for anything else."""
    if isinstance(node, Rearrange):
        yield from _comparisons(node.argument, n)
    elif isinstance(node, Map) and node.function == "and":
        for one in node.given:
            yield from _comparisons(one, n)
    elif isinstance(node, Map) and node.function in COMPARED:
        turned, by = COMPARED[node.function]
        small, large = node.given[::-1] if turned else node.given
        signs = [_sign(side, n) for side in (small, large)]
        if signs not in ([0, 1], [0, -1], [1, 0], [-1, 0]):
            yield None
        else:
            yield Comparison(small, large, by, rises=signs in ([0, 1], [-1, 0]))
    else:
        yield None


def _sign(node: Node, n: Span) -> int | None:
    """The factor of the position along a span in a sum of positions and integers; None for other values."""
    match node:
        case Rearrange(argument=argument):
            return _sign(argument, n)
        case Map(function=function, given=(argument,)) if function in CONVERSION and not node.dtype.is_float:
            return _sign(argument, n)
        case Map(function="add" | "sub", given=(left, right)):
            signs = _sign(left, n), _sign(right, n)
            if signs[0] is None or signs[1] is None:
                return None
            return signs[0] + signs[1] if node.function == "add" else signs[0] - signs[1]
        case Position(span=span):
            return int(span == n)
        case Literal() | Integer():
            return None if node.dtype.is_float else 0
    return None


def rest(place: Place, node: Node, n: Span) -> tuple[Index, Index]:
    """The least and the largest of an integer in a tile, without the position along a span."""
    match node:
        case Rearrange(argument=argument):
            return rest(place, argument, n)
        case Position(span=span):
            if span == n:
                return 0, 0
            begin = place.at(span) * place.length(span)
            return begin, minimum(begin + place.length(span), place.integer(span.extent)) - 1
        case Map(function="add" | "sub", given=(left, right)):
            (low, high), (least, most) = rest(place, left, n), rest(place, right, n)
            return (low + least, high + most) if node.function == "add" else (low - most, high - least)
        case Map(given=(argument,)):
            return rest(place, argument, n)
        case Literal():
            return int(node.value), int(node.value)
    assert isinstance(node, Integer), "a sum of positions and integers"
    known = place.integer(node.value)
    return known, known


# ---------------------------------------------------------------- steps that change nothing

MOST_ELEMENTS = 1 << 20
"""Elements of an array with which a step is tried; with more, no step is left out."""


def leaves_state(form: FoldForm, mask: Mask) -> bool:
    """Whether a step in which a mask hides everything changes no value that the loop carries.

    The step is tried on random arrays, at the beginning and after two other steps.  The carried values must
    keep their bits.  A function that agrees with the identity on random numbers is the identity, except with
    a probability of about 0.
    """
    rng = np.random.default_rng(0)
    sizes: dict[Sym, int] = {}
    arrays: dict[str, Any] = {}
    numbers: dict[str, float] = {}
    for one in form.flow.parameters:
        if isinstance(one, NumberParam):
            numbers[one.name] = 0.375
        elif isinstance(one, Integer) and isinstance(one.value, Sym):
            numbers[one.value.name] = sizes[one.value] = int(rng.integers(-1, 3))
    for one in form.flow.parameters:
        if isinstance(one, Operand):
            for extent in one.shape:
                if isinstance(extent, Sym):
                    sizes.setdefault(extent, int(rng.integers(4, 8)))
            shape = tuple(int(evaluate(extent, sizes)) for extent in one.shape)
            if np.prod(shape) > MOST_ELEMENTS:
                return False
            drawn = rng.standard_normal(shape) if one.dtype.is_float else rng.integers(0, 3, shape)
            arrays[one.name] = drawn.astype(one.dtype.numbers)
    try:
        trial = Evaluation(FlowArguments(form.flow, arrays, numbers), 2)
        with np.errstate(all="ignore"):
            known: dict[int, Any] = {}
            starts = [trial.value(cell.start, known) for cell in form.fold.cells]
            pairs = zip(form.fold.cells, starts, strict=True)
            state = [trial.lifted(value, cell.start, len(cell.axes)) for cell, value in pairs]
            for place in (None, (0, 2), (2, 4)):
                state = state if place is None else _stepped(trial, form.fold, state, place)
                if not _is_same(state, _stepped(trial, form.fold, state, place or (0, 2), mask)):
                    return False
            return True
    except TilewrightError:
        return False


def _stepped(
    trial: Evaluation, fold: Fold, state: Sequence[Any], place: tuple[int, int], mask: Mask | None = None
) -> list[Any]:
    """The carried values after a step; with a mask, after a step in which it hides everything."""
    trial.runs[fold.span] = place
    trial.cells = {id(cell): value for cell, value in zip(fold.cells, state, strict=True)}
    known = dict(trial.cells)
    if mask is not None:
        shown = trial.whole(mask.node, trial.value(mask.node, known))
        known = {**trial.cells, id(mask.node): np.full_like(shown, mask.other)}
    made = [trial.value(step, known) for step in fold.steps]
    trial.runs.pop(fold.span)
    return made


def _is_same(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Whether all values are equal; a NaN equals a NaN."""
    pairs = (np.broadcast_arrays(one, other) for one, other in zip(before, after, strict=True))
    return all(np.array_equal(one, other, equal_nan=True) for one, other in pairs)
