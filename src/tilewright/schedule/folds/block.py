"""The work of one block for a loop that carries a state.  All threads both copy and multiply.

A block computes some rows of the result.  In each step it loads the step's tiles of the arrays, multiplies
them, computes the new value of every cell from the old ones, and then assigns them.  It runs the main loop of
`tilewright.schedule.pipeline`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import lcm, prod
from typing import Any

from tilewright.dataflow.nodes import (
    BATCH,
    ArrayPart,
    Cell,
    Fold,
    Map,
    Node,
    Rearrange,
    Span,
    Store,
    Sum,
    walk,
)
from tilewright.dtypes import DType
from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import begin_early, fence_async
from tilewright.lang.control import index, let, when
from tilewright.lang.control import range as traced_range
from tilewright.lang.fragments import Fragment
from tilewright.lang.launch import block_index, derived, require
from tilewright.lang.scalars import Condition, Index, Scalar, ceil_div, maximum, minimum
from tilewright.lang.signals import await_
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import redistribute
from tilewright.lang.tracer import current
from tilewright.schedule.fixup import SplitReduction
from tilewright.schedule.folds import kept as kept_steps
from tilewright.schedule.folds.form import FoldForm, may_replace, read_first
from tilewright.schedule.folds.masks import Trials, bounds_in, masks_of
from tilewright.schedule.folds.operands import HeldOperand, StepPlace, is_exchanged
from tilewright.schedule.folds.parts import MergedStates, StateMerge, parts_of_loop
from tilewright.schedule.folds.rows import KEPT
from tilewright.schedule.folds.values import TileValues, tile_of
from tilewright.schedule.form import integer_in
from tilewright.schedule.partition import MOST_SPLITS
from tilewright.schedule.pipeline import LoopStep, Verb, main_loop
from tilewright.schedule.provenance import made_by
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.work import MOST, RowGroups, Segment, Work
from tilewright.threads.distribution import Distribution


class FoldBlock:
    """The work of one block for a loop that carries a state.

    Args:
        form: the form of the flow.
        schedule: how it is computed.
        arguments: the kernel's arguments, by name.
    """

    scratch: Tensor | None = None
    """Shared memory through which threads exchange left operands; None: each thread has the ones it needs."""

    segment = Segment()
    """The block's part of the loop."""

    all_steps: Index = 0
    """The number of steps of all parts together."""

    is_storing = True
    """Whether steps store results.  False in the pass that computes only the state of the block's part."""

    def __init__(self, form: FoldForm, schedule: Schedule, arguments: dict[str, Any]) -> None:
        self.form, self.schedule, self.arguments = form, schedule, arguments
        current().guards.extend(form.flow.requirements)
        if form.flow.waits_for_prior_grid:
            with made_by("blocks"):
                begin_early()
        self._await_shards()
        self.loop_turns: dict[Span, Index] = {}
        """The extent of the span of each of the loop's turns; filled by `steps`."""

        self.of_turn: dict[Span, tuple[Index, Index]] = {}
        """For the loop's span: the first step of a turn, and the number of steps of a turn, at least 1."""

        rows, run, depth = schedule.tile
        self.lengths: dict[Span, int] = {form.m: rows, form.n: run}
        width = schedule.tile[1] if form.is_elementwise else schedule.width
        self.lengths |= dict.fromkeys(form.columns, width) | dict.fromkeys(form.depths, depth)
        self.threads = prod(schedule.warps) * schedule.atom.lanes
        self.tiled = {form.n: self.multiply(run)}
        if form.columns:
            self.tiled |= dict.fromkeys(form.columns, self.multiply(width))
        self.place = StepPlace(self)
        nodes = {id(one): one for one in (*form.flow.walk(), *form.inside())}.values()
        uses = Counter(id(argument) for one in nodes for argument in one.arguments)
        found = () if form.fold.results else masks_of(form)  # a step that stores results is never skipped
        self.masks = {id(one.node): one for one in found if uses[id(one.value)] == 1}
        """The masks that change their value in place, by the `id` of the choice."""

        self.trials = Trials(form)
        is_tried = not form.earlier and schedule.fold != KEPT
        self.hiding = [one for one in found if is_tried and self.trials.leaves_state(one)]
        """The masks that let the loop skip the steps that they hide completely."""

        self.exchanges: dict[tuple[tuple[int, ...], DType], Tensor] = {}
        """Shared memory through which threads exchange a tile, by its shape and dtype."""

        self.cuts: dict[Span, slice] = {}
        """The indices of the block's group along each span with groups."""

        self.rest: dict[Span, Index] = {}
        """Rows of the block's group from the block's tile on, if the rows have groups."""

        self.bounds: dict[tuple[str, tuple[Span, ...]], Index] = {}
        """Integers of arrays that masks compare, by the array's name and the spans that index it."""

        self.compared = [*bounds_in(found)]
        with made_by("blocks"):
            self.at = self._number()
            self.read_bounds()
        whole = dict.fromkeys(
            (*(form.depths if schedule.resident else ()), *([form.m] if form.alias else ()))
        )
        covered = (whole, "tile"), (form.columns if form.covered else (), "width")
        for span, field in ((one, field) for spans, field in covered for one in spans):
            self.require_covered(span, self.lengths[span], field)
        if schedule.fold == KEPT and not schedule.is_split:
            self.require_covered(form.n, self.lengths[form.n], "tile", "step")

    def require_covered(self, span: Span, most: int, field: str, by: str = "tile") -> None:
        """Refuse launches in which a span is longer than one tile, or one step.

        Args:
            span: the span.
            most: elements of the tile or step.
            field: the field of the schedule that sets this number.
            by: ``"tile"`` or ``"step"``.
        """
        near = f"nearest legal choice: schedule=None, or a larger {field}"
        text = f"{span.name} must be at most {most}: one {by} of the schedule covers it ({field}); {near}"
        require(self.place.integer(span.extent) <= most, text)

    def length(self, span: Span) -> int:
        """Extent of a tile along a span; 1 along a batch."""
        return self.lengths.get(span, 1)

    def multiply(self, columns: int) -> TiledMma:
        """The multiplication that gives a tile with this number of columns.  Each warp has whole rows."""
        atom, (down, across) = self.schedule.atom, self.schedule.warps
        rows, wide, _ = atom.shape
        return TiledMma(
            atom, (down, across), (self.schedule.tile[0] // rows // down, columns // wide // across)
        )

    def _await_shards(self) -> None:
        """Wait until all shards of all operands have arrived: a tile may read any shard."""
        for one in self.form.flow.arrivals:
            counters = self.arguments[one.counters.name]
            value = integer_in(self.form.flow, self.arguments, one.value)
            with made_by("blocks", one):
                for number in traced_range(counters.shape[0]):
                    await_(counters[number], value, scope="system")
                if self.schedule.by_bulk:
                    fence_async("global")

    def _number(self) -> dict[Span, Index]:
        """Return the index of the block's tile along each span of the result."""
        form = self.form
        groups = self.row_groups()
        numbering = None if form.m.groups is None else form.m.groups.index
        counts = [(span, self.place.integer(span.extent)) for span in form.batch if span != numbering]
        tiles_of = {
            span: ceil_div(self.place.integer(span.extent), self.lengths[span])
            for span in (*form.columns, form.m)
        }
        if form.columns:  # a block has the same columns of all results
            across = [tiles_of[span] for span in form.columns]
            counts.append((form.columns[0], functools.reduce(maximum, across)))
        if groups is not None:
            tiles_of[form.m] = groups.numbers
        if form.alias is not None:  # a block has the whole state, even one without rows
            tiles_of[form.m] = 1
        counts.append((form.m, tiles_of[form.m]))
        if form.is_elementwise and form.columns:  # blocks that follow each other read whole rows
            counts[-2:] = reversed(counts[-2:])
        self.tiles: Index = prod((count for _, count in counts), start=1)
        self.parts = self._parts()
        if self.schedule.fold == KEPT and self.schedule.is_split:
            most = self.schedule.blocks
            text = f"the tiles have more than {most} blocks, which wait for each other"
            require(self.tiles * self.parts <= most, text)
        rest: Index = block_index(self.tiles * self.parts)
        if self.schedule.is_split:
            part, tile = let(rest % self.parts), let(rest // self.parts)
            self.segment = Segment(0, tile, part, self.parts, lambda p: tile * self.parts + p)
            rest = tile
        found: dict[Span, Index] = {}
        for span, count in reversed(counts):
            found[span], rest = let(rest % count), let(rest // count)
        if form.columns:
            found |= dict.fromkeys(form.columns, found[form.columns[0]])
        if any(not one.rises for mask in self.hiding for one in mask.comparisons):
            tiles = tiles_of[form.m]  # the last rows have the most steps, and begin first
            found[form.m] = let(tiles - 1 - found[form.m])
        if groups is not None:
            self.find(groups, found)
        return found

    def row_groups(self) -> RowGroups | None:
        """The groups of the rows; None without groups."""
        m = self.form.m
        if m.groups is None:
            return None
        return RowGroups.of(m.groups, self.arguments, 0, self.place.integer(m.extent), self.lengths[m])

    def find(self, groups: RowGroups, at: dict[Span, Index]) -> None:
        """Replace the number of the row tile by the tile's group and its number in the group."""
        m = self.form.m
        assert m.groups is not None, "the rows have groups"
        found = groups.find(at[m])
        at |= {m: found.at, m.groups.index: found.group}
        self.cuts[m] = found.rows
        self.rest[m] = found.count

    def read_bounds(self) -> None:
        """Read the bounds of the block's group along the loop's span, and the integers that masks compare."""
        n, arguments = self.form.n, self.arguments
        if n.groups is not None:
            extent, at = self.place.integer(n.extent), self.at[n.groups.index]
            self.cuts[n] = RowGroups.of(n.groups, arguments, 1, extent, self.lengths[n]).bounds(at)
        for part in self.compared:
            held = index(arguments[part.operand.name][self.at[part.at[0]]])
            self.bounds[part.operand.name, part.at] = let(minimum(maximum(held, -MOST), MOST))

    def _parts(self) -> Index:
        """The number of parts of the loop.  One block computes each part, which has at least one step."""
        schedule = self.schedule
        if not schedule.is_split:
            return 1
        steps = ceil_div(self.place.integer(self.form.n.extent), self.length(self.form.n))
        if schedule.fold == KEPT:
            parts = derived(maximum(minimum(steps, MOST), 1))
            return parts  # noqa: RET504 the kernel's parameter is named after it
        steps = prod((self.place.integer(one.extent) for one in self.form.fold.turns), start=steps)
        wanted: Index = parts_of_loop(self.form, self.tiles, steps, schedule.blocks)
        if isinstance(schedule.split_k, int):
            wanted = schedule.split_k
        parts = derived(maximum(minimum(wanted, minimum(steps, MOST_SPLITS)), 1))
        return parts  # noqa: RET504 the kernel's parameter is named after it

    # ------------------------------------------------------------ products

    @property
    def mixing(self) -> TiledMma:
        """The multiplication of products along the loop's span."""
        assert self.form.e is not None, "these products have columns of a result"
        return self.tiled[self.form.e]

    def mix(self, node: Sum, values: TileValues, step: Index, total: Fragment) -> None:
        """Add a product along the loop's span to ``total``; its left operand is computed in registers."""
        left = self.left(node, values)
        with made_by("atom", node):
            tw.mma(left, self.held[id(node.b)].multiplied(step), total, self.mixing)

    def left(self, node: Sum, values: TileValues) -> Fragment:
        """The left operand of a product along the loop's span, in the instruction's register layout."""
        if id(node.a) not in values.operands:
            with made_by("atom", node):
                made = values.hidden(node.a, 0)
                made = made if made.dtype == self.form.element else made.to(self.form.element)
                spread = tw.operand_a(self.tiled[self.form.n], self.schedule.tile[1])
                values.operands[id(node.a)] = redistribute(made, spread, scratch=self.scratch)
        return values.operands[id(node.a)]

    def score(self, known: dict[int, Any], step: Index, scores: Sequence[Sum]) -> None:
        """Compute the scores of a step, and add them to ``known``."""
        for span in self.form.depths:
            some = [one for one in scores if one.span == span]
            if not some:
                continue
            totals = [tw.accumulator(self.tiled[self.form.n], name="scores") for _ in some]

            def multiply(
                inner: LoopStep, pairs: Sequence[tuple[Sum, Fragment]] = (*zip(some, totals, strict=True),)
            ) -> None:
                for node, total in pairs:
                    stage = step if self.schedule.resident else inner.index
                    with made_by("atom", node):
                        a, b = (self.held[id(one)] for one in (node.a, node.b))
                        tw.mma(a.multiplied(stage), b.multiplied(stage), total)

            if self.schedule.resident:
                multiply(LoopStep(0, 0, 0, 0))
            else:
                loads = [self.held[id(one)] for node in some for one in (node.a, node.b)]
                does = [Verb("multiply", 0, multiply)]
                verbs = self.verbs(loads, lambda at: StepPlace(self, step, at), does)
                main_loop(verbs, let(ceil_div(self.place.integer(span.extent), self.length(span))))
            known.update((id(node), total) for node, total in zip(some, totals, strict=True))

    # ------------------------------------------------------------ the loop

    def run(self) -> None:
        """Write the kernel."""
        form, schedule = self.form, self.schedule
        with made_by("stages"):
            self.held = {
                id(node): HeldOperand(self, node, product.span)
                for product in form.products
                for node in ((product.a, product.b) if product in form.scores else (product.b,))
            }
            through = is_exchanged(schedule, form)
            self.scratch = tw.shared(schedule.tile[:2], form.element, name="weights") if through else None
            for one in kept_steps.exchanged_tiles(form, schedule, self.lengths, current().lanes):
                self.exchange_memory(*one)
        self.done = TileValues(self.place, {})
        with made_by("staging"):
            for held in self.held.values():
                if not held.moves and held.along in form.depths:
                    held.bring(self.place)
        for at, fold in enumerate(form.earlier):
            cells = self.starts(fold)
            if schedule.fold == KEPT:
                kept = kept_steps.without_state(fold, kept_steps.only_step(self, fold, cells).known)
            else:
                kept = {}
                self.fold(fold, cells)
            if schedule.is_split:
                states = kept_steps.ExchangedStates.of_block(self, fold, cells)
                with when(self.parts > 1):
                    states.exchange(self.segment, cells)
            self.done = self.after(fold, cells, form.folds[at + 1].given)
            self.done.known |= kept
            self.empty_rings()
        cells = self.starts(form.fold)
        if form.fold.results and schedule.is_split:
            self.run_part(cells)
            return
        with made_by("reduction"):
            reduction = SplitReduction()
            if schedule.is_split:
                kinds = [(cell.distribution, cell.dtype) for cell in cells]
                reduction = self.reduction(self.tiles, kinds)
        if schedule.fold == KEPT:
            work = Work((), 0, 0, 0, 1, 0, 0, self.segment)
            values = kept_steps.only_step(self, form.fold, cells)
            step = kept_steps.KeptStep(self, values, cells, StepPlace(self, self.segment.part))
            reduction.end_tile(work, cells, (), step, form.flow.stores[0])
            return
        count = self.fold(form.fold, cells)
        if isinstance(reduction, MergedStates):
            reduction.steps = self.all_steps
        work = Work((), 0, 0, 0, count, 0, 0, self.segment)
        reduction.end_tile(work, cells, (), self, form.flow.stores[0])

    def run_part(self, cells: Sequence[Fragment]) -> None:
        """Compute the state of the block's part, then the part again, from the state of the parts before it.

        The second time its steps store.  At the end the last part has the state of the whole loop.
        """
        fold = self.form.fold
        states = kept_steps.StatesBefore.of_block(self, fold, cells)
        with when(self.parts > 1):
            self.is_storing = False
            self.fold(fold, cells)
            self.is_storing = True
            states.exchange(self.segment, cells)
        self.fold(fold, cells)
        if self.form.passing:  # each block stores its part of these results
            with when(self.parts > 1):
                states.gather(self.segment, cells, self.parts)
        self.store(cells, self.segment.part == self.parts - 1)

    def reduction(self, tiles: Index, cells: Sequence[tuple[Distribution, DType]]) -> MergedStates:
        """Return the reduction that merges the cells of the loop's parts.

        Args:
            tiles: number of tiles of the result.
            cells: the map of each cell to threads, and its dtype.
        """
        form, schedule = self.form, self.schedule
        starts = functools.partial(self.starts, form.fold)
        given = (schedule, tiles, tiles * self.parts, cells, starts, StateMerge(form), self.place)
        if schedule.fold != KEPT:
            return MergedStates(*given, self.free_bytes)
        made = kept_steps.ExchangedStates(*given)
        most = kept_steps.MERGED_AT_ONCE
        columns = most if schedule.by_bulk else lcm(most, schedule.atom.shape[1])
        is_shared = schedule.warps[1] > 1
        made.spread = kept_steps.merging_map(schedule) if is_shared else self.multiply(columns).c()
        return made

    @property
    def free_bytes(self) -> int:
        """Bytes of the operands' shared memory, which the merge of the parts uses after the loop."""
        if self.schedule.by_bulk or not self.schedule.copies_in_background:
            return 0
        tensors = [one.held for one in {id(held): held for held in self.held.values()}.values()]
        return sum(prod(int(side) for side in one.shape) * one.dtype.bytes for one in tensors)

    def fold(self, fold: Fold, cells: Sequence[Fragment]) -> Index:
        """Write one loop, which changes its cells; return the number of its steps."""
        scores, mixtures = self.products_of(fold)
        begin, count = self.steps()

        def combine(step: LoopStep) -> None:
            self.combine(fold, cells, step.index + begin)

        moving = self.moving(scores) + [self.held[id(node.b)] for node in mixtures]
        verbs = self.verbs(moving, lambda at: StepPlace(self, at + begin), [Verb("multiply", 0, combine)])
        main_loop(verbs, count)
        return count

    def products_of(self, fold: Fold) -> tuple[list[Sum], list[Sum]]:
        """The products inside of a step of a loop, and those along the loop."""
        known, form = set(self.done.known), self.form
        sums = [one for value in fold.given for one in walk(value, known) if isinstance(one, Sum)]
        return [one for one in form.scores if one in sums], [one for one in form.mixtures if one in sums]

    def combine(self, fold: Fold, cells: Sequence[Fragment], at: Index) -> TileValues:
        """Compute the new values of all cells from the old ones, then assign them; return the step's values.

        Args:
            fold: the loop.
            cells: its cells.
            at: index of the step.
        """
        scores, _ = self.products_of(fold)
        known = {**self.done.known, **dict(zip(map(id, fold.cells), cells, strict=True))}
        self.score(known, at, scores)
        values = TileValues(self.step_place(at), known)
        late: list[tuple[Fragment, Sum]] = []
        made: list[Any] = []
        for cell, held, new in zip(fold.cells, cells, fold.steps, strict=True):
            rest, product = self.added(new)
            if product is None:
                made.append(values.value(new))
            else:
                made.append(held if rest is cell else values.value(rest))
                self.left(product, values)
                late.append((held, product))
        if fold.results and self.is_storing:  # after the reads: a result may replace an array of the step
            self.store_rows(values)
        for cell, held, new in zip(fold.cells, cells, made, strict=True):
            if new is not held:
                held.assign(values.carried(new, cell))
        for held, product in late:
            self.mix(product, values, at, held)
        return values

    def step_place(self, at: Index) -> StepPlace:
        """The place of a step."""
        return StepPlace(self, at)

    def store_rows(self, values: TileValues) -> None:
        """Store the results of a step, before the state changes."""
        for one in self.form.fold.results:
            self.store_one(replace(self.form.kept[id(one)], value=one), values)

    def exchange_memory(self, shape: tuple[int, ...] | None, dtype: DType) -> Tensor | None:
        """Shared memory of a shape and a dtype, for one exchange at a time; None for no shape."""
        if shape is not None and (shape, dtype) not in self.exchanges:
            self.exchanges[shape, dtype] = tw.shared(shape, dtype, name="exchanged")
        return None if shape is None else self.exchanges[shape, dtype]

    def moving(self, scores: Sequence[Sum]) -> list[HeldOperand]:
        """The operands of scores that every step loads."""
        if not self.schedule.resident:
            return []
        operands = [self.held[id(one)] for node in scores for one in (node.a, node.b)]
        return [one for one in operands if one.moves]

    def after(self, fold: Fold, cells: Sequence[Fragment], values: Sequence[Node]) -> TileValues:
        """Return the results of all loops so far, and values that depend on them but not on a step.

        Args:
            fold: the loop.
            cells: its cells after the last step.
            values: the values to compute later; they determine which values are computed here.
        """
        form, before = self.form, self.done.known
        first = sum(len(one.cells) for one in form.folds[: form.folds.index(fold)])
        own = {key: cells[at - first] for key, at in form.results.items() if 0 <= at - first < len(cells)}
        done = TileValues(self.place, {**before, **own})
        reached = {*done.known, *(id(one) for one in form.products)}
        for node in (one for value in values for one in walk(value, reached)):
            if not isinstance(node, Map | Rearrange):
                continue
            given = walk(node, {*done.known})
            if not any(isinstance(one, Cell) or form.n in one.axes for one in given):
                done.value(node)
        return done

    def starts(self, fold: Fold) -> list[Fragment]:
        """The cells of a loop before the first step."""
        values = TileValues(self.place, {})
        return [
            values.repeated(values.value(cell.start), cell.axes, cell.dtype, cell.name) for cell in fold.cells
        ]

    def store(self, cells: Sequence[Fragment], is_last: Condition | bool | None = None) -> None:
        """Compute the values after the loop, and store the results; if ``is_last`` is false, only some.

        A part that is not the last one stores only results along the loop's span.
        """
        form, others = self.form, (*self.form.passing, *self.form.kept.values())
        done = self.after(form.fold, cells, [store.value for store in form.passing])
        stores = [one for one in form.flow.stores if one not in others]
        if form.passing and is_last is not None:
            self.pass_again(done)
        with nullcontext() if is_last is None else when(is_last):
            self.read_stored(stores, done)
            self.store_each(stores, done)
        if form.passing and is_last is None:
            self.pass_again(done)

    def store_each(self, stores: Sequence[Store], values: TileValues) -> None:
        """Store results in turn, after reading what later ones need and earlier ones replace."""
        for one in read_first(stores, values.known):
            values.value(one)
        for store in stores:
            self.store_one(store, values)

    def read_stored(self, stores: Sequence[Store], done: TileValues) -> None:
        """Read the old values of results that several lanes hold, before one of these lanes stores.

        Args:
            stores: the results.
            done: the values after the loop.
        """
        seen = set(done.known)
        nodes = [node for store in stores for node in walk(store.value, seen)]

        def shared(nodes: Iterable[Node]) -> list[ArrayPart]:
            parts = (one for one in nodes if isinstance(one, ArrayPart) and len(one.axes) < 2)
            return [one for one in parts if any(may_replace(store, one) for store in stores)]

        late, early = shared(nodes), shared(self.form.inside())  # the loop may begin with the old values
        if late or early:
            with made_by("epilogue", (late or early)[0]):
                for one in late:
                    done.value(one)
                kept_steps.meet(self.schedule)

    def pass_again(self, done: TileValues) -> None:
        """Compute each step again from ``done``, the values after the loop, and store the step's results."""
        form = self.form
        reached = {id(one) for store in form.passing for one in walk(store.value, set(done.known))}
        scores = [one for one in form.scores if id(one) in reached]

        def write(step: LoopStep) -> None:
            known, at = dict(done.known), step.index + begin
            self.score(known, at, scores)
            self.store_each(form.passing, TileValues(StepPlace(self, at), known))

        self.empty_rings()
        begin: Index = 0
        if form.fold.results:
            begin, steps = self.steps()
        else:
            steps = let(ceil_div(self.place.integer(form.n.extent), self.length(form.n)))
        does = [Verb("multiply", 0, write)]
        main_loop(self.verbs(self.moving(scores), lambda at: StepPlace(self, at + begin), does), steps)

    def empty_rings(self) -> None:
        """Wait until no thread reads tiles or elements of the last steps: the next pass overwrites them."""
        with made_by("stages"):
            if self.schedule.copies_in_background:
                tw.barrier()
            elif self.form.fold.results:
                kept_steps.meet(self.schedule)

    def steps(self, part: Index | None = None) -> tuple[Index, Index]:
        """The first of the block's steps, and their number.

        Args:
            part: the block's part of the loop, if the block has several, one after the other.

        Masks may leave out the first and the last steps of all parts.  Parts differ by a step at most.  If
        the loop has turns, the steps of all turns that are not left out are numbered.
        """
        form, place = self.form, self.place
        if self.schedule.fold == KEPT:
            return (self.segment.part if part is None else part), 1
        first: Index = 0
        start, end = place.begin(form.n), place.extent(form.n)
        for mask in self.hiding:
            for one in mask.comparisons:
                if one.rises:
                    first = maximum(first, one.first(place, form.n) - start)
                else:
                    end = minimum(end, maximum(one.end(place, form.n) - start, 0))
        if form.m.groups is not None:  # a tile without rows takes no steps
            end = end * minimum(self.rest[form.m], 1)
        run = self.length(form.n)
        begin: Index = let(first // run) if isinstance(first, Scalar) else 0
        count: Index = let(ceil_div(end, run))
        if isinstance(begin, Scalar):
            count = let(maximum(count - begin, 0))
        if form.fold.turns:
            self.loop_turns.update((span, place.integer(span.extent)) for span in form.fold.turns)
            self.of_turn[form.n] = begin, let(maximum(count, 1))
            begin, count = 0, let(prod(self.loop_turns.values(), start=count))
        if not self.schedule.is_split:
            return begin, count
        if part is None:
            part = self.segment.part
            if not form.fold.results:
                self.all_steps = count
        each, more = let(count // self.parts), let(count % self.parts)
        own = let(each + minimum(maximum(more - part, 0), 1))
        return let(begin + part * each + minimum(part, more)), own

    def added(self, new: Node) -> tuple[Node, Sum | None]:
        """Split ``rest + product`` if the product is along the loop's span: the MMA adds it to the cell."""
        match new:
            case Map(function="add", given=(rest, Sum(span=span) as product)) if span == self.form.n:
                return rest, product
            case Map(function="add", given=(Sum(span=span) as product, rest)) if span == self.form.n:
                return rest, product
        return new, None

    def store_one(self, store: Store, values: TileValues) -> None:
        """Store a result from registers; only the first column tile stores a result without columns."""
        form = self.form
        spans = [span for span in store.at if span.kind != BATCH]
        axes = tuple(span for span in (form.m, *form.columns, form.n) if span in spans)
        with made_by("epilogue", store):
            made = values.repeated(values.value(store.value), axes, store.value.dtype)
            if not form.products and made.dtype != store.operand.dtype:
                made = made.to(store.operand.dtype)  # before its accesses are cut
            target = tile_of(values.place, store.operand, store.at, axes)
            first: Condition | bool = True
            if form.columns and not any(span in form.columns for span in spans):
                first = self.at[form.columns[0]] == 0
            if form.m not in spans and form.m.extent != 1:
                first = (self.at[form.m] == 0) & first
            with nullcontext() if first is True else when(first):
                self.put(made, target, store)

    def put(self, made: Fragment, target: Tensor, store: Store) -> None:
        """Store a tile of a result."""
        tw.copy(made, target, reduction="add" if store.added else None)

    def verbs(self, loads: list[HeldOperand], place: Any, does: list[Verb]) -> list[Verb]:
        """The verbs of one step: load the tiles, wait for them, do the work, release them.

        Args:
            loads: the operands whose tiles a step loads.
            place: function of the index of a step that returns its place.
            does: the work.
        """
        schedule, loads = self.schedule, list({id(one): one for one in loads}.values())

        def barrier(step: LoopStep) -> None:
            tw.barrier()

        def load(step: LoopStep) -> None:
            for one in loads:
                one.bring(place(step.index))

        if not schedule.copies_in_background:
            if not loads and not self.form.scores:
                return does
            return [Verb("load", 0, load), Verb("ready", 0, barrier), *does, Verb("release", 0, barrier)]

        def begin(step: LoopStep) -> None:
            if step.inside is True:
                load(step)
            else:
                with when(step.inside):
                    load(step)
            tw.async_commit()

        def ready(step: LoopStep) -> None:
            tw.async_wait(schedule.stages - 2)
            tw.barrier()

        return [Verb("ready", 0, ready), Verb("load", schedule.stages - 1, begin, outside=True), *does]
