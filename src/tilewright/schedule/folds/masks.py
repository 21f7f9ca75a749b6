"""Masks that compare positions: the steps of a loop that they hide, and the steps that must apply them.

``where(positions(n) <= positions(m)[:, None] + shift, s, -inf)`` hides every element of a step whose first
column lies beyond ``last row + shift``.  The loop may leave out this step if it changes no carried value.  In
a step whose last column lies before ``first row + shift`` the mask hides nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from tilewright.dataflow.evaluate import Evaluation
from tilewright.dataflow.nodes import ArrayPart, Integer, Literal, Map, Node, Position, Span, Sum
from tilewright.dataflow.printer import print_flow
from tilewright.lang.scalars import Condition
from tilewright.schedule.folds.form import FoldForm
from tilewright.schedule.folds.trials import drawn
from tilewright.schedule.folds.values import Place
from tilewright.schedule.skipping import Comparison, all_comparisons


@dataclass(frozen=True)
class Mask:
    """``select(mask, value, number)``, where the mask holds if all of its comparisons of positions hold.

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
        """The number that is chosen where the mask is false."""
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
    """The masks in a step of a loop; none if the step has an inner loop: trials cannot separate its turns."""
    found: list[Mask] = []
    if form.repeats:
        return ()
    for node in form.inside():
        if not isinstance(node, Map) or node.function != "select":
            continue
        compared = all_comparisons(node.given[0], form.n)
        if compared and isinstance(node.given[2], Literal) and form.n in node.given[1].axes:
            found.append(Mask(node, compared, form.n))
    return tuple(found)


def bounds_in(masks: Iterable[Mask]) -> Iterator[ArrayPart]:
    """The array elements that masks compare positions with."""
    for mask in masks:
        for one in mask.comparisons:
            yield from (part for part, _ in one.line.parts)


# ---------------------------------------------------------------- steps that change nothing

ABSORBING = {
    "mul": ((0, 1), 0.0),
    "div": ((0,), 0.0),
    "add": ((0, 1), math.inf),
    "sub": ((0, 1), math.inf),
    "fma": ((2,), math.inf),
}
"""Functions in which one argument of this magnitude decides the result: the argument's places, the magnitude.
"""


DIVISOR = re.compile(r"divisor=\d+")
"""The divisor of an extent in a flow's text."""


class Trials:
    """Trial evaluations of a loop's steps, on random arrays of several magnitudes and both signs.

    Steps are evaluated at the beginning of the loop, and after one and two other steps.  Flows with the same
    text share the findings, even if the divisors of their extents differ: trials draw their own extents.

    Args:
        form: the form of the loop.
    """

    def __init__(self, form: FoldForm) -> None:
        self.form = form
        self.nodes = [*form.inside()]
        self.number = {id(one): at for at, one in enumerate(self.nodes)}
        self._found = _found_for(DIVISOR.sub("", print_flow(form.flow)))

    @cached_property
    def steps(self) -> tuple[_TriedStep, ...]:
        """The steps to evaluate; none if the arrays would be too large, or the loop has only one element."""
        made = list[_TriedStep]()
        for given in drawn(self.form.flow, along=self.form.n.extent):
            extent = given.integer(self.form.n.extent)
            if extent < 2:  # a reduction of one column does not show how it depends on other columns
                return ()
            trial, known = Evaluation(given, 2), dict[int, Any]()
            starts = [(cell, trial.value(cell.start, known)) for cell in self.form.fold.cells]
            state = [trial.lifted(value, cell.start, len(cell.axes)) for cell, value in starts]
            second = min(2, extent - 2)
            for place in ((0, 2), (second, second + 2)):
                made.append(_TriedStep(self.form, trial, state, place))
                state = made[-1].step(self.form.fold.steps, {})[0]
            made.append(_TriedStep(self.form, trial, state, (0, 2)))
        return tuple(made)

    def leaves_state(self, mask: Mask) -> bool:
        """Whether a step that a mask hides completely changes no value that the loop carries.

        The carried values must be unchanged in every trial, and every choice of the step must have had both
        outcomes.  No array, position or size may enter the new values elsewhere.  Values that depend only on
        the carried values and on numbers of a launch are trusted after these trials.
        """
        key, known_before = self.number[id(mask.node)], self._found.leaves_state
        if key in known_before:
            return known_before[key]
        form, constants = self.form, self.constants(mask.node, mask.other)
        settled = _settled(form, mask.node, mask.other, constants)
        leaves = all(id(new) in settled for new in form.fold.steps)
        forced = {id(mask.node): (mask.node, mask.other)}
        choices = _Choices(form, forced)
        for trial in self.steps if leaves else ():
            made, known = trial.step(form.fold.steps, forced)
            leaves = _is_same(trial.state, made)
            if not leaves:
                break
            choices.see(known)
        known_before[key] = leaves and bool(self.steps) and choices.are_seen(constants)
        return known_before[key]

    def numbers_where(self, node: Node, number: float) -> dict[int, float]:
        """Find values that are constant wherever ``node`` is a number: weights are 0 where scores are -inf.

        The trials are those of `leaves_state`, but ``node`` is the number only in its last column, so that
        reductions along the columns still depend on the others.

        Args:
            node: the value, which varies along the loop's span.
            number: the number.

        Returns:
            The numbers, by the `id` of the values.
        """
        form = self.form
        if form.earlier or form.repeats or form.fold.results:  # trials evaluate one loop without stores
            return {}
        found = self.constants(node, number)
        settled = _settled(self.form, node, number, found)
        return {key: value for key, value in found.items() if key in settled}

    def constants(self, node: Node, number: float) -> dict[int, float]:
        """The values of a step that are one number in all trials in which ``node`` is ``number``."""
        key = self.number[id(node)], number
        if key not in self._found.constants:
            made = self._constants(node, number)
            self._found.constants[key] = {self.number[one]: value for one, value in made.items()}
        return {id(self.nodes[at]): value for at, value in self._found.constants[key].items()}

    def _constants(self, node: Node, number: float) -> dict[int, float]:
        form = self.form
        nodes = [one for one in self.nodes if form.n in one.axes and one is not node]
        forced = {id(node): (node, number)}
        choices, found = _Choices(form, forced), dict[int, float]()
        for trial in self.steps:
            made, known = trial.step(nodes, forced, last=True)
            choices.see(known)
            for one, every in zip(nodes, made, strict=True):
                axis = one.axes.index(form.n) - len(one.axes)
                value = np.take(every, -1, axis=axis) if every.size else every
                first = float(value.flat[0]) if value.size else math.nan
                is_one = value.dtype.kind in "fiu" and bool((value == first).all())
                if not is_one or found.setdefault(id(one), first) != first:
                    found[id(one)] = math.nan
        found = {key: value for key, value in found.items() if not math.isnan(value)}
        return found if choices.are_seen(found) else {}


@dataclass(frozen=True)
class _Found:
    """The findings of the trials of a flow.  Values are numbered in the order of `FoldForm.inside`.

    Args:
        flow: the text of the flow.
        leaves_state: for each mask, whether its hidden steps change no carried value.
        constants: for a value that is a given number, the values that are constant, with their numbers.
    """

    flow: str
    leaves_state: dict[int, bool] = field(default_factory=dict)
    constants: dict[tuple[int, float], dict[int, float]] = field(default_factory=dict)


_found_for = lru_cache(maxsize=256)(_Found)


def _settled(form: FoldForm, node: Node, number: float, constants: Mapping[int, float]) -> set[int]:
    """The values that depend on no array, position or size wherever ``node`` is a number, by their `id`.

    Trials cannot find these dependences: ``maximum(x - 1e6, 0)`` is 0 for all random numbers.

    Args:
        form: the form of the loop.
        node: the value that is the number.
        number: the number.
        constants: values that are one number in every trial.
    """
    settled: set[int] = set()
    known = {**constants, id(node): float(number)}
    for one in form.inside():
        known |= {id(one): float(one.value)} if isinstance(one, Literal) else {}
        numbers = [known.get(id(part)) if id(part) in settled else None for part in one.arguments]
        if isinstance(one, Map) and one.function in ABSORBING:
            places, absorbed = ABSORBING[one.function]
            sizes = [math.nan if number is None else abs(number) for number in numbers]
            is_absorbed = any(sizes[at] == absorbed for at in places)
            if one.function == "fma" and math.inf in sizes[:2]:  # an infinite product decides, too
                is_absorbed |= all(id(part) in settled for part in one.given[:2])
        elif isinstance(one, Map) and one.function == "select":
            is_absorbed = numbers[1] is not None and numbers[1] == numbers[2]
        else:
            is_absorbed = isinstance(one, Sum) and 0 in numbers
        is_free = not isinstance(one, ArrayPart | Position | Integer)
        if one is node or is_absorbed or (is_free and all(id(part) in settled for part in one.arguments)):
            settled.add(id(one))
    return settled


class _Choices:
    """The choices of a step, and the outcomes of each that trials have seen.

    Args:
        form: the form of the loop.
        forced: values that are set to a number; they are not counted as choices.
    """

    def __init__(self, form: FoldForm, forced: Mapping[int, Any]) -> None:
        nodes = [one for one in form.inside() if isinstance(one, Map) and one.function == "select"]
        self.nodes = [one for one in nodes if id(one) not in forced]
        self.seen: set[tuple[int, bool]] = set()

    def see(self, known: Mapping[int, Any]) -> None:
        """Note the outcomes of a trial."""
        for node in (one.given[0] for one in self.nodes):
            if id(node) in known:
                self.seen.update((id(node), bool(one)) for one in np.unique(known[id(node)]))

    def are_seen(self, constants: Mapping[int, float]) -> bool:
        """Whether every choice had both outcomes, or was not made at all, or chooses between equal numbers.

        Args:
            constants: values that are one number in every trial.
        """
        for one in self.nodes:
            mask, *values = one.given
            pair = [float(x.value) if isinstance(x, Literal) else constants.get(id(x)) for x in values]
            is_equal = pair[0] is not None and pair[0] == pair[1]
            if not is_equal and ((id(mask), True) in self.seen) != ((id(mask), False) in self.seen):
                return False
        return True


class _TriedStep:
    """A step of a loop, evaluated on random arrays.

    Args:
        form: the form of the loop.
        evaluation: the evaluation with these arrays.
        state: the carried values before the step.
        place: the first position of the step, and the end of its positions.
    """

    def __init__(
        self, form: FoldForm, evaluation: Evaluation, state: Sequence[Any], place: tuple[int, int]
    ) -> None:
        self.form, self.evaluation, self.state, self.place = form, evaluation, list(state), place

    @np.errstate(all="ignore")
    def step(
        self, nodes: Sequence[Node], forced: Mapping[int, tuple[Node, float]], *, last: bool = False
    ) -> tuple[list[Any], dict[int, Any]]:
        """Evaluate values of the step; return them, and all values that were computed on the way.

        Args:
            nodes: the values.
            forced: values to set to a number, by their `id`.
            last: whether to set only their last column.
        """
        trial, fold = self.evaluation, self.form.fold
        trial.runs[fold.span] = self.place
        trial.cells = {id(cell): value for cell, value in zip(fold.cells, self.state, strict=True)}
        known = dict(trial.cells)
        for node, number in forced.values():
            shape = trial.whole(node, trial.value(node, dict(trial.cells)))
            held = known[id(node)] = np.array(shape)
            held[..., -1 if last else slice(None)] = number
        made = [trial.value(node, known) for node in nodes]
        trial.runs.pop(fold.span)
        return made, known


def _is_same(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Whether all values are equal; a NaN equals a NaN."""
    pairs = (np.broadcast_arrays(one, other) for one, other in zip(before, after, strict=True))
    return all(np.array_equal(one, other, equal_nan=True) for one, other in pairs)
