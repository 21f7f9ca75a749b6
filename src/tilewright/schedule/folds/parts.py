"""Parts of a loop that carries a state: how the cells of two parts merge, and how blocks bring them together.

Each rule follows from the graph of a step.  Let ``x`` be a value that no cell enters.

- An extreme, ``max(cell, x)``: the parts merge by ``max``.
- A sum, ``cell + x``: the parts are added.
- A rescaled sum, ``cell * f(h(old) - h(new)) + x``, where ``old`` and ``new`` are an extreme before and after
  the step, ``h`` is linear, ``f`` is ``exp`` or ``exp2``, and ``x`` is a sum of values times ``f(... -
  h(new))``: each part is rescaled from its own extreme to that of both, then they are added.
- The companion of an extreme, ``where(x > extreme, y, cell)``: the part with the extreme has it, and of equal
  ones the first.

The first value of a sum is 0, so that a part without steps changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.dataflow.nodes import (
    Cell,
    Integer,
    Literal,
    Map,
    Node,
    NumberParam,
    Rearrange,
    Reduce,
    Sum,
    walk,
)
from tilewright.functions.table import CONVERSION
from tilewright.lang import operations as tw
from tilewright.lang.control import range as traced_range
from tilewright.lang.control import when
from tilewright.lang.exact_functions import where
from tilewright.lang.fragments import Fragment, elementwise
from tilewright.lang.launch import launcher_memory
from tilewright.lang.scalars import Index, ceil_div
from tilewright.schedule.adding import IN_FLIGHT, REGISTER_BYTES, in_order_of_threads, parts_at_once
from tilewright.schedule.fixup import WorkspaceSums
from tilewright.schedule.folds.form import FoldForm
from tilewright.schedule.folds.values import TileValues
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.work import Work

POWERS = ("exp", "exp2")
"""Functions for which ``f(x + y) = f(x) f(y)``."""

OLD, NEW = "old", "new"

Exponent = dict[tuple[int, str], tuple[float, tuple[Any, ...]]]
"""A linear function of extremes: (cell, before or after the step) -> its factor, a number times values."""

Weight = tuple[str, tuple[Any, ...]]
"""What all terms of a value share: a function of `POWERS`, and the extremes in its exponent."""

PLAIN: Weight = ("", ())
"""The weight of a value that no cell enters."""

ZERO: Weight = ("0", ())
"""The weight of the value 0, which fits every other weight."""


@dataclass(frozen=True)
class Extreme:
    """``max(cell, x)`` or ``min(cell, x)``.

    Args:
        function: its name.
        other: the node x.
    """

    function: str
    other: Node


@dataclass(frozen=True)
class Added:
    """``cell + x``, or ``cell * keep + x``.

    Args:
        keep: the node that rescales the cell; None: it is not rescaled.
        by: the cell with the extreme on which it depends.
    """

    keep: Node | None = None
    by: int = -1


@dataclass(frozen=True)
class Companion:
    """``where(x > extreme, y, cell)``.

    Args:
        new: the node y.
        by: the cell with the extreme.
    """

    new: Node
    by: int


Rule = Extreme | Added | Companion


class StateMerge:
    """How the cells of two parts of a loop merge.

    Args:
        form: the form of the flow.
    """

    def __init__(self, form: FoldForm) -> None:
        self.form = form
        self.cells = form.fold.cells
        self.rules: list[Rule | None] = [self._extreme(at) for at in range(len(self.cells))]
        self.old = {id(cell): at for at, cell in enumerate(self.cells) if self.rules[at]}
        self.new = {id(form.fold.steps[at]): at for at in self.old.values()}
        for at, rule in enumerate(self.rules):
            self.rules[at] = rule or self._added(at) or self._companion(at)

    @property
    def against(self) -> str:
        """Why parts do not merge; empty if they do."""
        for cell, rule in zip(self.cells, self.rules, strict=True):
            if rule is None:
                return (
                    f"{cell.name} of two parts cannot be merged: it is neither an extreme, a sum from 0, a "
                    "sum that powers of an extreme rescale, nor chosen by an extreme"
                )
        return ""

    def merged(self, place: Any, first: Sequence[Fragment], second: Sequence[Fragment]) -> list[Any]:
        """The cells of two parts that follow each other, merged.

        Args:
            place: the tile of the block.
            first: the cells of the first part.
            second: the cells of the second part.
        """
        extremes = {
            at: elementwise(rule.function, first[at], second[at])
            for at, rule in enumerate(self.rules)
            if isinstance(rule, Extreme)
        }
        made: list[Any] = []
        for at, rule in enumerate(self.rules):
            if isinstance(rule, Extreme):
                made.append(extremes[at])
            elif isinstance(rule, Companion):
                made.append(self._chosen(at, rule, place, first, second))
            else:
                assert rule is not None, self.against
                terms = [self._rescaled(at, rule, place, part, extremes) for part in (first, second)]
                made.append(elementwise("add", *terms))
        return made

    def _rescaled(
        self, at: int, rule: Added, place: Any, part: Sequence[Fragment], extremes: dict[int, Any]
    ) -> Any:
        """A cell of a part, rescaled from the part's extreme to that of both parts."""
        if rule.keep is None:
            return part[at]
        own, both = part[rule.by], extremes[rule.by]
        known = {id(self.cells[rule.by]): own, id(self.form.fold.steps[rule.by]): both}
        keep = TileValues(place, known).value(rule.keep)
        # The difference of two infinite extremes is no number.
        return elementwise("mul", part[at], where(elementwise("equal", own, both), 1.0, keep))

    def _chosen(
        self, at: int, rule: Companion, place: Any, first: Sequence[Fragment], second: Sequence[Fragment]
    ) -> Any:
        """The companion of the extreme of two parts: a step that meets the second part."""
        extreme = self.rules[rule.by]
        assert isinstance(extreme, Extreme)
        known = {
            id(self.cells[rule.by]): first[rule.by],
            id(extreme.other): second[rule.by],
            id(self.cells[at]): first[at],
            id(rule.new): second[at],
        }
        return TileValues(place, known).value(self.form.fold.steps[at])

    # ------------------------------------------------------------ rules

    def _is_free(self, node: Node) -> bool:
        """Whether no cell enters a value."""
        return not any(isinstance(one, Cell) for one in walk(node))

    def _extreme(self, at: int) -> Extreme | None:
        cell = self.cells[at]
        match self.form.fold.steps[at]:
            case Map(function="max" | "min" as function, given=(left, right)):
                other = right if left is cell else left
                if cell in (left, right) and self._is_free(other):
                    return Extreme(function, other)
        return None

    def _added(self, at: int) -> Added | None:
        cell, step = self.cells[at], self.form.fold.steps[at]
        found = _terms(step, cell)
        if found is None or not (isinstance(cell.start, Literal) and cell.start.value == 0):
            return None
        keeps, rest = found
        if len(keeps) != 1:
            return None
        [keep] = keeps
        wanted, by = PLAIN, -1
        if keep is not None:
            power = _in_order(keep)
            if not (isinstance(power, Map) and power.function in POWERS):
                return None
            exponent = self._exponent(power.given[0])
            if exponent is None or {part for _, part in exponent} != {OLD, NEW} or len(exponent) != 2:
                return None
            [by] = {cell for cell, _ in exponent} if len({cell for cell, _ in exponent}) == 1 else [-1]
            if by < 0 or exponent[by, OLD] != _times(exponent[by, NEW], -1.0):
                return None
            wanted = (power.function, (((by, NEW), exponent[by, NEW]),))
        return Added(keep, by) if all(self._weight(one) in (wanted, ZERO) for one in rest) else None

    def _companion(self, at: int) -> Companion | None:
        cell = self.cells[at]
        match self.form.fold.steps[at]:
            case Map(function="select", given=(Map(function="less", given=(low, high)), new, old)) if (
                old is cell and self._is_free(new)
            ):
                for function, one, other in (("max", low, high), ("min", high, low)):
                    by = self.old.get(id(one), -1)
                    extreme = self.rules[by] if by >= 0 else None
                    if isinstance(extreme, Extreme) and (extreme.function, extreme.other) == (
                        function,
                        other,
                    ):
                        return Companion(new, by)
        return None

    def _exponent(self, node: Node) -> Exponent | None:
        """A value as a linear function of extremes plus what no cell enters; None if it is none."""
        if id(node) in self.new:
            return {(self.new[id(node)], NEW): (1.0, ())}
        if id(node) in self.old:
            return {(self.old[id(node)], OLD): (1.0, ())}
        if self._is_free(node):
            return {}
        match node:
            case Rearrange(argument=argument):
                return self._exponent(argument)
            case Map(function="neg", given=(one,)):
                return _scaled(self._exponent(one), (-1.0, ()))
            case Map(function="add", given=(left, right)):
                return _sum(self._exponent(left), self._exponent(right))
            case Map(function="sub", given=(left, right)):
                return _sum(self._exponent(left), _scaled(self._exponent(right), (-1.0, ())))
            case Map(function="mul", given=(left, right)):
                return self._product(left, right)
            case Map(function="fma", given=(left, right, more)):
                return _sum(self._product(left, right), self._exponent(more))
            case Map(
                function="select",
                given=(Map(function="equal", given=(one, Literal(value=limit))), Literal(value=0), other),
            ) if one is other and abs(limit) == float("inf"):
                return self._exponent(other)  # without an extreme, every term is 0
        return None

    def _product(self, left: Node, right: Node) -> Exponent | None:
        """A linear function times a value that no cell enters."""
        if self._is_free(left):
            left, right = right, left
        if self._is_free(left) and self._is_free(right):
            return {}
        if not self._is_free(right) or self.form.n in right.axes:
            return None
        return _scaled(self._exponent(left), _factor(right))

    def _weight(self, node: Node) -> Weight | None:
        """The weight that all terms of a value share; None if they share none."""
        if isinstance(node, Literal) and node.value == 0:
            return ZERO
        if self._is_free(node):
            return PLAIN
        match node:
            case Rearrange(argument=argument) | Reduce(combine="sum", argument=argument):
                return self._weight(argument)
            case Map(function=function, given=(one,)) if function in CONVERSION or function == "neg":
                return self._weight(one)
            case Map(function="exp" | "exp2" as function, given=(one,)):
                exponent = self._exponent(one)
                if exponent is None or any(part == OLD for _, part in exponent):
                    return None
                return function, tuple(sorted(exponent.items(), key=repr))
            case Map(function="add" | "sub", given=(left, right)):
                return _shared(self._weight(left), self._weight(right))
            case Map(function="select", given=(condition, left, right)) if self._is_free(condition):
                return _shared(self._weight(left), self._weight(right))
            case Map(function="mul", given=(left, right)) | Sum(a=left, b=right, scale_a=None, scale_b=None):
                weights = (self._weight(left), self._weight(right))
                return next((one for one in weights if one != PLAIN), PLAIN) if PLAIN in weights else None
            case Map(function="div", given=(left, right)) if self._is_free(right):
                return self._weight(left)
            case Map(function="fma", given=(left, right, more)):
                weights = (self._weight(left), self._weight(right))
                both = next((one for one in weights if one != PLAIN), PLAIN) if PLAIN in weights else None
                return _shared(both, self._weight(more))
        return None


def _terms(node: Node, cell: Cell) -> tuple[list[Node | None], list[Node]] | None:
    """What multiplies a cell in a sum, None for 1, and the other terms; None if the sum is not linear."""
    if node is cell:
        return [None], []
    if all(one is not cell for one in walk(node)):
        return [], [node]
    match node:
        case Map(function="add" | "sub" as function, given=(left, right)):
            one, other = _terms(left, cell), _terms(right, cell)
            if one is None or other is None or (function == "sub" and other[0]):
                return None
            return [*one[0], *other[0]], [*one[1], *other[1]]
        case Map(function="mul", given=(left, right)) if cell in (left, right):
            return [right if left is cell else left], []
        case Map(function="fma", given=(left, right, more)) if cell in (left, right):
            rest = _terms(more, cell)
            return None if rest is None else ([right if left is cell else left, *rest[0]], rest[1])
    return None


def _in_order(node: Node) -> Node:
    """A value without new axes."""
    while isinstance(node, Rearrange):
        node = node.argument
    return node


def _factor(node: Node) -> tuple[float, tuple[Any, ...]]:
    """A value as a number times names; equal values have equal names."""
    node = _in_order(node)
    match node:
        case Literal(value=value):
            return float(value), ()
        case NumberParam(name=name):
            return 1.0, (name,)
        case Integer(value=value):
            return 1.0, (repr(value),)
        case Map(function="mul", given=(left, right)):
            return _times(_factor(left), *_factor(right))
        case Map(function="neg", given=(one,)):
            return _times(_factor(one), -1.0)
    return 1.0, (str(id(node)),)


def _times(
    factor: tuple[float, tuple[Any, ...]], number: float, names: tuple[Any, ...] = ()
) -> tuple[float, tuple[Any, ...]]:
    return factor[0] * number, tuple(sorted((*factor[1], *names)))


def _scaled(exponent: Exponent | None, factor: tuple[float, tuple[Any, ...]]) -> Exponent | None:
    if exponent is None:
        return None
    return {key: _times(one, *factor) for key, one in exponent.items()}


def _sum(left: Exponent | None, right: Exponent | None) -> Exponent | None:
    """The sum of two linear functions of different extremes."""
    if left is None or right is None or left.keys() & right.keys():
        return None
    return left | right


def _shared(left: Weight | None, right: Weight | None) -> Weight | None:
    """The weight of a sum."""
    if ZERO in (left, right):
        return right if left == ZERO else left
    return left if left == right else None


# ---------------------------------------------------------------- in the kernel


class MergedStates(WorkspaceSums):
    """The cells of every part are written; the last block to arrive merges them, in the order of the parts.

    As with sums, neighbours are merged first if there are many parts.

    Args:
        schedule: how the loop is computed.
        tiles: tiles of the result.
        parts: parts of all of them.
        cells: the cells in registers.
        starts: function that returns the cells before the first step.
        merge: how they merge.
        place: the tile of the block.
    """

    def __init__(
        self,
        schedule: Schedule,
        tiles: Index,
        parts: Index,
        cells: Sequence[Fragment],
        starts: Callable[[], list[Fragment]],
        merge: StateMerge,
        place: Any,
    ) -> None:
        self.cells, self.starts, self.merge, self.place = cells, starts, merge, place
        super().__init__(schedule, tiles, parts, len(cells))

    def allocate(self, schedule: Schedule, kept: Index) -> None:
        """Allocate the memory of the cells of each part."""
        self.orders = [in_order_of_threads(cell.distribution) for cell in self.cells]
        self.memory = []
        for cell, order in zip(self.cells, self.orders, strict=True):
            partial_state = launcher_memory((kept, *order.extents), cell.dtype)
            self.memory.append(partial_state)

    def held(self, slot: Index, group: Index, number: int = 0) -> Any:
        """(rows, columns): the memory of a cell of a part."""
        return self.orders[number].tile(self.memory[number][slot])

    def _add(self, work: Work, totals: Sequence[Fragment], first: Index, count: Index, step: int) -> None:
        """Merge the parts ``first``, ``first + step``, ..., ``count`` in number; several are read at once."""
        values = sum(cell.distribution.size_values * cell.dtype.bytes for cell in self.cells)
        at_once = parts_at_once(count, IN_FLIGHT * REGISTER_BYTES // max(values, 1))
        for cell, start in zip(totals, self.starts(), strict=True):
            cell.assign(start)
        for turn in traced_range(ceil_div(count, at_once)):
            begin = turn * at_once
            held = [self.starts() for _ in range(at_once)]
            for i, cells in enumerate(held):
                with when(begin + i < count):
                    self._read(work.segment.slot(first + (begin + i) * step), cells)
            for cells in held:
                made = self.merge.merged(self.place, totals, cells)
                for cell, new in zip(totals, made, strict=True):
                    cell.assign(new)

    def _read(self, slot: Index, cells: Sequence[Fragment]) -> None:
        for number, cell in enumerate(cells):
            tw.copy(self.held(slot, 0, number), cell)
