"""The merge of the states of a loop's parts: the rules for each cell, and the exchange between blocks.

A state consists of *cells*, one for each carried value.  The rule that merges a cell follows from the graph
of a step.  Let ``x`` be a value that does not depend on cells.

- An extreme, ``max(cell, x)``: the parts merge by ``max``.
- A sum, ``cell + x``: the parts are added.
- A rescaled sum, ``cell * f(h(old) - h(new)) + x``, where ``old`` and ``new`` are an extreme before and after
  the step, ``h`` is linear, ``f`` is ``exp`` or ``exp2``, and ``x`` is a sum of values times ``f(... -
  h(new))``: each part is rescaled from its own extreme to that of both, then they are added.
- The companion of an extreme, ``where(x > extreme, y, cell)``, which may prefer NaN: it comes from the part
  with the extreme, or from the first of parts with equal extremes.

The first value of a sum is 0, so that a part without steps changes nothing.  A merge that the author states
replaces these rules; it is not called for parts without steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tilewright.dataflow.nodes import Cell, CellMerge, Literal, Map, Node, walk
from tilewright.dtypes import DType
from tilewright.lang import operations as tw
from tilewright.lang.control import let, otherwise, when
from tilewright.lang.control import range as traced_range
from tilewright.lang.exact_functions import where
from tilewright.lang.fragments import Fragment, elementwise
from tilewright.lang.launch import launcher_memory
from tilewright.lang.scalars import Index, ceil_div, maximum, minimum
from tilewright.schedule.factors import plain
from tilewright.schedule.fixup import (
    FAN,
    IN_FLIGHT,
    REGISTER_BYTES,
    WorkspaceSums,
    in_order_of_threads,
    parts_at_once,
)
from tilewright.schedule.folds.form import FoldForm
from tilewright.schedule.folds.powers import NEW, OLD, PLAIN, POWERS, ZERO, Powers, compared, times
from tilewright.schedule.folds.values import TileValues
from tilewright.schedule.partition import parts_of_k
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.work import Work
from tilewright.threads.distribution import Distribution


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
        keep: the factor that rescales the cell; None: the cell is not rescaled.
        by: index of the cell with the extreme on which the factor depends.
    """

    keep: Node | None = None
    by: int = -1


@dataclass(frozen=True)
class Companion:
    """``where(x > extreme, y, cell)``.

    Args:
        new: the node y.
        by: index of the cell with the extreme.
    """

    new: Node
    by: int


@dataclass(frozen=True)
class Stated:
    """A merge that the author of the loop states.

    Args:
        merge: the cells of both parts, and the merged cell.
    """

    merge: CellMerge


AUTO = "auto"
"""Value of `Schedule.split_k` that gives each block one part."""

LEAST_PARTS = 4
"""Fewest parts of a split loop whose steps store.  Parts are computed twice, so two parts gain nothing."""

COPIED_BYTES = 16
"""Bytes of one async copy.  Parts pass through shared memory only if their cells are multiples of it."""

Rule = Extreme | Added | Companion | Stated


class StateMerge:
    """The rules by which the cells of two parts of a loop merge.

    Args:
        form: the form of the flow.
    """

    def __init__(self, form: FoldForm) -> None:
        self.form = form
        self.cells = form.fold.cells
        stated = form.fold.merges or (None,) * len(self.cells)
        self.rules: list[Rule | None] = [
            self._extreme(at) if merge is None else Stated(merge) for at, merge in enumerate(stated)
        ]
        extremes = [at for at, rule in enumerate(self.rules) if isinstance(rule, Extreme)]
        self.old = {id(self.cells[at]): at for at in extremes}
        self.new = {id(form.fold.steps[at]): at for at in self.old.values()}
        self.powers = Powers(form.n, self.old, self.new, self._is_free)
        for at, rule in enumerate(self.rules):
            self.rules[at] = rule or self._added(at) or self._companion(at)

    @property
    def against(self) -> str:
        """The reason why parts cannot merge; empty if they can."""
        for cell, rule in zip(self.cells, self.rules, strict=True):
            if rule is None:
                return (
                    f"{cell.name} of two parts cannot be merged: it is neither an extreme, a sum from 0, a "
                    "sum that powers of an extreme rescale, nor chosen by an extreme, and no merge= of "
                    "tw.steps states it"
                )
        return ""

    @property
    def is_stated(self) -> bool:
        """Whether the author states how cells merge.  A stated merge cannot take parts without steps."""
        return any(isinstance(rule, Stated) for rule in self.rules)

    def merged(self, place: Any, first: Sequence[Fragment], second: Sequence[Fragment]) -> list[Any]:
        """The merged cells of two adjacent parts.

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
        both: dict[int, Any] = {}
        for one, other, rule in zip(first, second, self.rules, strict=True):
            if isinstance(rule, Stated):
                both |= {id(rule.merge.first): one, id(rule.merge.second): other}
        stated = TileValues(place, both)
        for at, rule in enumerate(self.rules):
            if isinstance(rule, Extreme):
                made.append(extremes[at])
            elif isinstance(rule, Stated):
                made.append(stated.carried(stated.value(rule.merge.value), self.cells[at]))
            elif isinstance(rule, Companion):
                made.append(self._chosen(at, rule, place, first, second))
            else:
                assert rule is not None, self.against
                terms = []  # cells of both parts, rescaled from the extreme of a part to that of both
                for part in (first, second):
                    term = part[at]
                    if rule.keep is not None:
                        keep = self.keep(rule, place, part[rule.by], extremes[rule.by])
                        term = elementwise("mul", term, keep)
                    terms.append(term)
                made.append(elementwise("add", *terms))
        return made

    def rescaling(self, node: Node) -> Added | None:
        """The rule of the sum whose rescaling factor a value of a step shares; None if no sum has it."""
        weight = self.powers.weight(node)
        for rule in self.rules:
            if isinstance(rule, Added) and rule.keep is not None and weight not in (None, PLAIN, ZERO):
                power = plain(rule.keep)
                assert isinstance(power, Map)
                exponent = self.powers.exponent(power.given[0])
                assert exponent is not None
                if weight == (power.function, (((rule.by, NEW), exponent[rule.by, NEW]),)):
                    return rule
        return None

    def keep(self, rule: Added, place: Any, own: Any, both: Any) -> Any:
        """The factor that rescales from the extreme of a part to that of all parts; 1 if they are equal.

        Equal extremes are a separate case, because the difference of two infinite extremes is NaN.
        """
        assert rule.keep is not None
        known = {id(self.cells[rule.by]): own, id(self.form.fold.steps[rule.by]): both}
        return where(elementwise("equal", own, both), 1.0, TileValues(place, known).value(rule.keep))

    def _chosen(
        self, at: int, rule: Companion, place: Any, first: Sequence[Fragment], second: Sequence[Fragment]
    ) -> Any:
        """The companion of the extreme of two parts: the loop's step, with the second part as its input."""
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
        """Whether a value depends on no cell of the loop; cells of earlier loops are allowed."""
        return not any(isinstance(one, Cell) for one in walk(node, {*self.form.results}))

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
            power = plain(keep)
            if not (isinstance(power, Map) and power.function in POWERS):
                return None
            exponent = self.powers.exponent(power.given[0])
            if exponent is None or {part for _, part in exponent} != {OLD, NEW} or len(exponent) != 2:
                return None
            [by] = {cell for cell, _ in exponent} if len({cell for cell, _ in exponent}) == 1 else [-1]
            if by < 0 or exponent[by, OLD] != times(exponent[by, NEW], -1.0):
                return None
            wanted = (power.function, (((by, NEW), exponent[by, NEW]),))
        return Added(keep, by) if all(self.powers.weight(one) in (wanted, ZERO) for one in rest) else None

    def _companion(self, at: int) -> Companion | None:
        cell = self.cells[at]
        match self.form.fold.steps[at]:
            case Map(function="select", given=(condition, new, old)) if (
                old is cell and self._is_free(new) and (pair := compared(condition)) is not None
            ):
                low, high = pair
                for function, one, other in (("max", low, high), ("min", high, low)):
                    by = self.old.get(id(one), -1)
                    extreme = self.rules[by] if by >= 0 else None
                    if isinstance(extreme, Extreme) and (extreme.function, extreme.other) == (
                        function,
                        other,
                    ):
                        return Companion(new, by)
        return None


def _terms(node: Node, cell: Cell) -> tuple[list[Node | None], list[Node]] | None:
    """The factors of a cell in a sum (None stands for 1) and the other terms; None if it is not linear."""
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


def parts_of_loop(form: FoldForm, tiles: Index, steps: Index, blocks: int) -> Index:
    """The number of parts of a loop that gives each of the blocks that run at once one part.

    Args:
        form: the form.
        tiles: number of tiles of the results.
        steps: number of steps of the loop.
        blocks: number of blocks that run at once.
    """
    if not form.fold.results:
        return parts_of_k(tiles, steps, blocks)
    parts = minimum(blocks // maximum(tiles, 1), steps)
    return maximum(parts * minimum(parts // LEAST_PARTS, 1), 1)


# ---------------------------------------------------------------- in the kernel


class MergedStates(WorkspaceSums):
    """A merge of all parts by the last block to arrive, in the order of the parts.

    Every block writes its cells to global memory.  As with sums, neighbours are merged first if there are
    many parts.  If some parts have no steps, they are the last ones.

    A thread has too few registers to read several parts of many values at once, and each read waits for L2.
    So async copies bring as many parts as fit to the shared memory that held the loop's operands.

    Args:
        schedule: how the loop is computed.
        tiles: number of tiles of the result.
        parts: number of parts of all tiles together.
        cells: the map of each cell to threads, and its dtype.
        starts: function that returns the cells before the first step.
        merge: the rules by which they merge.
        place: the tile of the block.
        room: bytes of shared memory for parts, which nothing else uses after the loop; 0: none.
    """

    def __init__(
        self,
        schedule: Schedule,
        tiles: Index,
        parts: Index,
        cells: Sequence[tuple[Distribution, DType]],
        starts: Callable[[], list[Fragment]],
        merge: StateMerge,
        place: Any,
        room: int = 0,
    ) -> None:
        self.cells, self.starts, self.merge, self.place = cells, starts, merge, place
        self.steps: Index = 0
        """The number of steps of all parts together."""

        super().__init__(schedule, tiles, parts, len(cells))
        sizes = [
            prod(order.extents) * dtype.bytes for (_, dtype), order in zip(cells, self.orders, strict=True)
        ]
        is_fit = all(size % COPIED_BYTES == 0 for size in sizes)
        self.staged = min(room // sum(sizes), FAN) if is_fit else 0
        """Number of parts that shared memory holds at once; below 2, parts are read into registers."""

        if self.staged > 1:
            self.room = [
                tw.shared((self.staged, *order.extents), dtype, name="states")
                for (_, dtype), order in zip(cells, self.orders, strict=True)
            ]

    def allocate(self, schedule: Schedule, kept: Index) -> None:
        """Allocate the memory of the cells of each part."""
        self.orders = [in_order_of_threads(spread) for spread, _ in self.cells]
        self.memory = []
        for (_, dtype), order in zip(self.cells, self.orders, strict=True):
            partial_state = launcher_memory((kept, *order.extents), dtype)
            self.memory.append(partial_state)

    def held(self, slot: Index, group: Index, number: int = 0) -> Any:
        """The memory of cell ``number`` of a part, as (rows, columns)."""
        return self.orders[number].tile(self.memory[number][slot])

    def _add(self, work: Work, totals: Sequence[Fragment], first: Index, count: Index, step: int) -> None:
        """Merge the ``count`` parts ``first``, ``first + step``, ...; several are read at once."""
        values = sum(spread.size_values * dtype.bytes for spread, dtype in self.cells)
        at_once = parts_at_once(count, IN_FLIGHT * REGISTER_BYTES // max(values, 1))
        for cell, start in zip(totals, self.starts(), strict=True):
            cell.assign(start)
        if self.staged > 1 and at_once < self.staged:
            self._add_staged(work, totals, first, count, step)
            return
        for turn in traced_range(ceil_div(count, at_once)):
            begin = turn * at_once
            held = [self.starts() for _ in range(at_once)]
            for i, cells in enumerate(held):
                with when(begin + i < count):
                    self._read(work.segment.slot(first + (begin + i) * step), cells)
            for i, cells in enumerate(held):
                if not self.merge.is_stated:
                    self._merge(totals, cells)
                    continue
                at = begin + i
                with when((at < count) & (first + at * step < self.steps)):
                    if i == 0:
                        self._merge_stated(totals, cells, turn)
                    else:
                        self._merge(totals, cells)

    def _add_staged(
        self, work: Work, totals: Sequence[Fragment], first: Index, count: Index, step: int
    ) -> None:
        """Merge the same parts; async copies bring several at once to shared memory."""
        for turn in traced_range(ceil_div(count, self.staged)):
            begin = let(turn * self.staged)
            here = let(minimum(count - begin, self.staged))
            for i in traced_range(here):
                slot = work.segment.slot(first + (begin + i) * step)
                for memory, room in zip(self.memory, self.room, strict=True):
                    rank = len(memory.shape) - 1
                    tw.copy_async(memory[slot].merge(0, rank), room[i].merge(0, rank))
            tw.async_commit()
            tw.async_wait(0)
            tw.barrier()
            for i in traced_range(here):
                cells = self.starts()
                for cell, order, room in zip(cells, self.orders, self.room, strict=True):
                    tw.copy(order.tile(room[i]), cell)
                if not self.merge.is_stated:
                    self._merge(totals, cells)
                    continue
                with when(first + (begin + i) * step < self.steps):
                    self._merge_stated(totals, cells, begin + i)
            tw.barrier()

    def _merge_stated(self, totals: Sequence[Fragment], cells: Sequence[Fragment], number: Index) -> None:
        """Merge a part by the author's rule; copy the first part."""
        with when(number == 0):
            for cell, new in zip(totals, cells, strict=True):
                cell.assign(new)
        with otherwise():
            self._merge(totals, cells)

    def _have_read(self) -> None:
        """Synchronise the warp: several lanes have read the numbers of a row, and one of them writes."""
        if any(spread.copies > 1 for spread, _ in self.cells):
            tw.warp_barrier()

    def _merge(self, totals: Sequence[Fragment], cells: Sequence[Fragment]) -> None:
        for cell, new in zip(totals, self.merge.merged(self.place, totals, cells), strict=True):
            cell.assign(new)

    def _read(self, slot: Index, cells: Sequence[Fragment]) -> None:
        for number, cell in enumerate(cells):
            tw.copy(self.held(slot, 0, number), cell)
