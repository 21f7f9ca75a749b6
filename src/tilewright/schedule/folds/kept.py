"""Exchange of loop states between the blocks of one row, before they store results along the row.

``Y[m] = softmax(X[m] @ W)`` stores a value for each element of a row.  A block that computes one step of the
row keeps its products in registers.  It also needs the extreme and the sum of the whole row, so the blocks of
a row exchange theirs through global memory.  Then each block stores its part, and computes no product again.

``y[n] = x[n].cumsum(axis=0)`` stores in each step.  A block computes the state of its part, waits for the
parts before it, and computes its part again from their state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from tilewright.dataflow.nodes import (
    Cell,
    Fold,
    Folded,
    Literal,
    Map,
    Node,
    Position,
    Rearrange,
    Reduce,
    Scan,
    Span,
    Store,
    walk,
    with_arguments,
)
from tilewright.dtypes import DType
from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.control import range as traced_range
from tilewright.lang.control import when
from tilewright.lang.exact_functions import where
from tilewright.lang.fragments import Fragment, elementwise
from tilewright.lang.scalars import Index, ceil_div
from tilewright.lang.signals import await_, signal
from tilewright.lang.tile_arithmetic import (
    coordinates,
    exchanged_dtype,
    exchanged_shape,
    reduce_sum,
    reduced_shape,
)
from tilewright.schedule.folds.form import FoldForm
from tilewright.schedule.folds.parts import Added, Extreme, MergedStates, StateMerge
from tilewright.schedule.folds.powers import POWERS
from tilewright.schedule.folds.values import REDUCTIONS, TileValues
from tilewright.schedule.needs import ROW_BYTES
from tilewright.schedule.provenance import made_by
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.work import Segment, Work
from tilewright.threads.distribution import Distribution, Mode

MERGED_AT_ONCE = 16
"""Number of parts whose cells a block reads into one tile and merges together."""


def against_kept(form: FoldForm) -> str:
    """The reason why no block can keep the values of its step; empty if blocks can."""
    if not form.passing:
        return f"nothing is stored along {form.n.name}"
    if form.mixtures:
        return f"a step has a product along {form.n.name}, which needs the whole row"
    if form.fold.turns or form.m.groups is not None or form.n.groups is not None:
        return "the loop has turns or groups"
    return next(filter(None, (against_exchange(replace(form, fold=one)) for one in form.folds)), "")


def against_exchange(form: FoldForm) -> str:
    """The reason why a block cannot merge the cells of many parts at once; empty if it can."""
    merge = StateMerge(form)
    if not all(isinstance(rule, Extreme | Added) for rule in merge.rules):
        return merge.against or "the cells of more than two parts do not merge at once"
    return ""


def exchanged_tiles(
    form: FoldForm, schedule: Schedule, lengths: Mapping[Span, int], lanes: int
) -> dict[tuple[tuple[int, ...], DType], None]:
    """Shapes and dtypes of shared memory through which warps exchange prefix sums, sums and extremes of rows.

    Args:
        form: the form.
        schedule: how it is computed.
        lengths: extents of a tile along spans.
        lanes: threads of a warp.
    """
    (m, n, _), (down, across) = schedule.atom.shape, schedule.warps
    found: dict[tuple[tuple[int, ...], DType], None] = {}
    for one in form.inside():
        if not isinstance(one, Scan | Reduce) or isinstance(one.argument, Position):
            continue
        spans = [axis for axis in one.argument.axes if axis in lengths]
        rows = form.m if form.alias is None or form.alias not in spans or form.m in spans else form.alias
        column = next((axis for axis in spans if axis != rows), None)
        if column is None:
            continue
        whole = lengths[rows], lengths[column]
        spread = TiledMma(schedule.atom, schedule.warps, (whole[0] // m // down, whole[1] // n // across)).c()
        spread = spread if rows in spans else spread.projected((1, whole[1]))
        shape = (exchanged_shape if isinstance(one, Scan) else reduced_shape)(spread, 1, lanes)
        if shape is not None:
            kind = one.dtype if isinstance(one, Scan) else exchanged_dtype(one.dtype)
            found[shape, kind] = None
    return found


def exchanged_bytes(form: FoldForm, schedule: Schedule, lengths: Mapping[Span, int]) -> int:
    """Bytes of shared memory through which warps exchange numbers of rows; see `exchanged_tiles`."""
    end = 0
    for shape, kind in exchanged_tiles(form, schedule, lengths, schedule.atom.lanes):
        end = -(-end // ROW_BYTES) * ROW_BYTES + prod(shape) * kind.bytes
    return end


def meet(schedule: Schedule) -> None:
    """Wait for the threads that share rows."""
    if schedule.warps[1] == 1:
        tw.warp_barrier()
    else:
        tw.barrier()


def merging_map(schedule: Schedule) -> Distribution:
    """The map of the states of parts to threads; warps that share a row each have all of them."""
    (m, n, _), (down, across) = schedule.atom.shape, schedule.warps
    rows, run, _ = schedule.tile
    columns = min(-(-schedule.blocks // n), run // n // across)
    made = TiledMma(schedule.atom, (down, 1), (rows // m // down, columns)).c()
    copies = () if across == 1 else (Mode(across, None, 0),)
    return Distribution(made.shape, (*made.threads, *copies), made.values)


class ExchangedStates(MergedStates):
    """A merge of states in every block: a block writes its own, waits for those of its row, and merges all.

    The states of all parts form a tile with a column for each part.  It has the thread layout of scores, and
    is reduced along its columns.  All blocks of a row compute the same numbers.
    """

    takes_tickets, waits = False, True
    spread: Distribution
    """The map of the tile to threads."""

    @classmethod
    def of_block(cls, block: Any, fold: Fold, cells: Sequence[Fragment]) -> ExchangedStates:
        """The exchange of a loop's cells between the blocks of a row.

        Args:
            block: the block.
            fold: the loop.
            cells: its cells in the block's part.
        """
        with made_by("reduction"):
            kinds = [(cell.distribution, cell.dtype) for cell in cells]
            merge, starts = StateMerge(replace(block.form, fold=fold)), partial(block.starts, fold)
            parts = block.tiles * block.parts
            states = cls(block.schedule, block.tiles, parts, kinds, starts, merge, block.place)
            states.spread = merging_map(block.schedule)
        return states

    @classmethod
    def rounds(cls, schedule: Schedule) -> int:
        """Return 1: every block reads all parts in one round."""
        return 1

    def end_tile(
        self, work: Work, totals: Sequence[Fragment], values: Any, epilogue: Any, store: Store
    ) -> None:
        """Exchange the states of the row's blocks, and store the block's part of the result."""
        with made_by("reduction"):
            self.quiet()
            with when(work.segment.parts > 1):
                self.meet(work, totals)
        with made_by("epilogue", store):
            epilogue.store(*values, totals)

    def meet(self, work: Work, totals: Sequence[Fragment]) -> Index:
        """Write the block's cells, wait for the other parts, and merge; return 1: every block has them."""
        segment, barrier, counter = work.segment, self.barrier(work), self.counter(work)
        self._write(work, totals, segment.part)
        signal(counter, barrier=barrier)
        await_(counter, segment.parts, barrier=barrier)
        # Each block counts up again after its wait, and the last one resets the counter.
        signal(counter, of=2 * segment.parts, barrier=barrier)
        self.gather(segment, totals, self.merged_parts(segment))
        return 1

    def exchange(self, segment: Segment, cells: Sequence[Fragment]) -> None:
        """Replace the cells of the block's part by the merged ones."""
        with made_by("reduction"):
            self.quiet()
            self.meet(Work((), 0, 0, 0, 0, 0, 0, segment), cells)

    def gather(self, segment: Segment, totals: Sequence[Fragment], count: Index) -> None:
        """Replace the cells by the merge of the first ``count`` parts, whose cells are in memory."""
        for cell, start in zip(totals, self.starts(), strict=True):
            cell.assign(start)
        for turn in traced_range(ceil_div(count, self.spread.shape[1])):
            self._merge_tiles(segment, turn, totals, count)

    def merged_parts(self, segment: Segment) -> Index:
        """The number of parts that a block merges, counted from the first part."""
        return segment.parts

    def _merge_tiles(self, segment: Segment, turn: Index, cells: Sequence[Fragment], count: Index) -> None:
        """Merge the parts in tile ``turn``, one per column, into the cells of the parts before them."""
        merge, place, columns = self.merge, self.place, self.spread.shape[1]
        first, left = segment.slot(0), count - turn * columns
        inside = coordinates(self.spread, 1) < left
        held = []
        for order, memory, cell in zip(self.orders, self.memory, merge.cells, strict=True):
            parts = order.stack(memory[first : first + segment.parts]).merge(1)
            read = tw.load(parts.tile(self.spread.shape, (0, turn)), self.spread)
            held.append(where(inside, read, TileValues(place, {}).value(cell.start)))
        new: dict[int, Any] = {}
        for at, rule in enumerate(merge.rules):
            if isinstance(rule, Extreme):
                new[at] = elementwise(rule.function, cells[at], REDUCTIONS[rule.function](held[at], 1))
        for at, rule in enumerate(merge.rules):
            if isinstance(rule, Added):
                before, tile = cells[at], held[at]
                if rule.keep is not None:
                    both = new[rule.by]
                    before = elementwise("mul", before, merge.keep(rule, place, cells[rule.by], both))
                    tile = elementwise("mul", tile, merge.keep(rule, place, held[rule.by], both))
                new[at] = elementwise("add", before, reduce_sum(tile, 1))
        for at, (cell, held_cell) in enumerate(zip(merge.cells, cells, strict=True)):
            held_cell.assign(TileValues(place, {}).carried(new[at], cell))


class StatesBefore(ExchangedStates):
    """An exchange in which every block writes its cells, and merges those of the parts before its own."""

    def merged_parts(self, segment: Segment) -> Index:
        """The number of parts before the block's own."""
        return segment.part


def only_step(block: Any, fold: Fold, cells: Sequence[Fragment]) -> TileValues:
    """Compute the block's only step of a loop, without a loop; return its values.

    Args:
        block: the block.
        fold: the loop.
        cells: its cells, which get their new values.
    """
    at, _ = block.steps()
    scores, _ = block.products_of(fold)
    with made_by("staging"):
        for one in {id(one): one for one in block.moving(scores)}.values():
            one.bring(block.step_place(at))
        if block.schedule.copies_in_background:
            tw.async_commit()
            tw.async_wait(0)
        if block.held:
            tw.barrier()
    with made_by("atom"):
        values: TileValues = block.combine(fold, cells, at)
    return values


def without_state(fold: Fold, known: Mapping[int, Any]) -> dict[int, Any]:
    """The values of a step that do not depend on the loop's cells, by the `id` of their nodes.

    Args:
        fold: the loop.
        known: all values of the step.
    """
    of_state, others = set[int](), dict[int, Any]()
    seen: set[int] = set()
    for node in (one for value in fold.given for one in walk(value, seen)):
        if isinstance(node, Cell) or (
            not isinstance(node, Folded) and any(id(one) in of_state for one in node.arguments)
        ):
            of_state.add(id(node))
        elif id(node) in known:
            others[id(node)] = known[id(node)]
    return others


def kept_powers(form: FoldForm) -> dict[int, tuple[Node, Added]]:
    """The powers in results that a step has computed already, by the `id` of the power in the result.

    Each comes with the step's power, and the rule of a sum that is rescaled by the same factor.
    """
    found: dict[int, tuple[Node, Added]] = {}
    merge = StateMerge(form)
    for node in (one for store in form.passing for one in walk(store.value, set(form.results))):
        if isinstance(node, Map) and node.function in POWERS:
            twin = next((one for one in form.inside() if _is_twin(node, one, form)), None)
            rule = None if twin is None or twin is node else merge.rescaling(twin)
            if twin is not None and rule is not None:
                found[id(node)] = twin, rule
    return found


def kept_results(form: FoldForm) -> list[Node]:
    """The results, computed from the values of a step; the literal 1 stands for each rescaling factor."""
    powers, known = kept_powers(form), dict[int, Node]()

    def again(node: Node) -> Node:
        """The value, with the step's powers times a factor instead of the result's powers."""
        if id(node) not in known:
            made = node
            if id(node) in powers:
                factor = Literal(node.dtype, (), 1)
                made = Map(node.dtype, node.axes, "mul", (powers[id(node)][0], factor))
            elif isinstance(node, Map | Rearrange):
                made = with_arguments(node, again)
            known[id(node)] = made
        return known[id(node)]

    return [again(store.value) for store in form.passing]


class KeptStep:
    """The only step of a block.  Its values are kept, and give the results once the row's state is known.

    A power ``f(c * (x - top))`` of the step uses the extreme of the block's part.  The result needs the row's
    extreme.  So the power is multiplied by ``f(c * (own top - top))``, which also rescales the sums.

    Args:
        block: the block.
        values: the values of the step.
        cells: its cells, before they are merged with those of other blocks.
        place: the step.
    """

    def __init__(self, block: Any, values: TileValues, cells: Sequence[Fragment], place: Any) -> None:
        self.block, self.step, self.place = block, values, place
        self.form: FoldForm = block.form
        self.merge = StateMerge(self.form)
        self.powers = kept_powers(self.form)
        self.own: dict[int, Fragment] = {}
        """The extremes of the block's part, by the number of the cell."""

        for _, rule in self.powers.values():
            if rule.by not in self.own:
                cell = cells[rule.by]
                self.own[rule.by] = tw.fragment(cell.distribution, cell.dtype, name="own")
                self.own[rule.by].assign(cell)

    def store(self, cells: Sequence[Fragment]) -> None:
        """Store the results.

        Args:
            cells: the cells of the whole row.
        """
        form, block = self.form, self.block
        done = block.after(form.fold, cells, [store.value for store in form.passing])
        others = [store for store in form.flow.stores if store not in form.passing]
        if others:
            with when(self.place.step == 0):  # every block of the row has the values; the first stores them
                block.store_each(others, done)
        reached = {id(node) for store in form.passing for node in walk(store.value)}
        known = {key: value for key, value in self.step.known.items() if key in reached} | done.known
        for key, (twin, rule) in self.powers.items():
            keep = self.merge.keep(rule, self.place, self.own[rule.by], cells[rule.by])
            known[key] = elementwise("mul", self.step.known[id(twin)], keep)
        values = TileValues(self.place, known)
        block.store_each(form.passing, values)


def _is_twin(after: Node, inside: Node, form: FoldForm) -> bool:
    """Whether a value after the loop has the expression of a step's value; results stand for new cells."""
    if after is inside:
        return True
    if isinstance(after, Folded):
        return after.fold is form.fold and form.fold.steps[after.index] is inside
    if (after.dtype, after.axes) != (inside.dtype, inside.axes):
        return False
    match after, inside:
        case Literal(value=one), Literal(value=other):
            return one == other
        case (Map(function=one), Map(function=other)) if one == other:
            pass
        case Rearrange(), Rearrange():
            pass
        case _:
            return False
    pairs = zip(after.arguments, inside.arguments, strict=True)
    return all(_is_twin(one, other, form) for one, other in pairs)
