"""Expansion of flows whose loop carries a state to explicit kernels.

The file also has the blocks of two special loops.  `ScanBlock` is for loops whose steps store results: a step
has a tile of scores whose rows and columns are both the elements of the step.  The state lies in registers; a
product with the state as its right operand reads a copy of it in shared memory.  `TapBlock` is for windows
that slide along the rows: a thread loads an element once for several rows and turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from tilewright.arch import REFERENCE, Arch
from tilewright.dataflow.nodes import (
    ArrayPart,
    Axis,
    Flow,
    Integer,
    Literal,
    Map,
    Node,
    NumberParam,
    Position,
    Rearrange,
    Span,
    Sum,
)
from tilewright.errors import TraceError
from tilewright.ir.kernel import Kernel
from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.control import let, when
from tilewright.lang.control import range as repeat
from tilewright.lang.exact_functions import where
from tilewright.lang.fragments import Fragment
from tilewright.lang.program import EXPLICIT, Parameter, Program
from tilewright.lang.scalars import Index
from tilewright.lang.specs import TensorSpec
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import coordinates, redistribute
from tilewright.schedule.folds.block import FoldBlock
from tilewright.schedule.folds.choice import rows_of_thread, shares_windows
from tilewright.schedule.folds.elementwise import ElementwiseBlock
from tilewright.schedule.folds.form import FoldForm, fold_form_of, is_computed
from tilewright.schedule.folds.groups import GroupBlock
from tilewright.schedule.folds.legality import check, copies_of_scan, tile_key, tiles_of_scan
from tilewright.schedule.folds.operands import HeldOperand, StepPlace
from tilewright.schedule.folds.trials import against_merge
from tilewright.schedule.folds.values import TileValues, tile_of
from tilewright.schedule.pipeline import LoopStep, Verb, main_loop
from tilewright.schedule.provenance import expanding, made_by
from tilewright.schedule.schedule import Schedule
from tilewright.targets.atoms import fma
from tilewright.threads.distribution import Distribution


class ScanPlace(StepPlace):
    """The tile of a block at a step that stores results."""

    block: ScanBlock

    def spread(self, axes: tuple[Axis, ...]) -> Distribution:
        """The map of a value with these axes to threads: that of the sums with the same rows and columns."""
        form, spans = self.block.form, [axis for axis in axes if axis is not None]
        rows = form.m if form.m in spans else form.alias
        column = next((span for span in spans if span not in (form.m, form.alias)), None)
        default = form.e if rows == form.m else form.n
        whole = self.block.multiply_of(rows, column or default).c()
        shape = (whole.shape[0] if rows in spans else 1, whole.shape[1] if column is not None else 1)
        return whole if shape == whole.shape else whole.projected(shape)

    def product(self, node: Sum, values: TileValues) -> Fragment:
        """A product of the step."""
        total = tw.accumulator(self.block.multiply_of(*node.axes), name="product")
        self.block.mix(node, values, self.step, total)
        return total


class ScanBlock(FoldBlock):
    """The work of one block for a loop whose steps store results.  All threads both copy and multiply."""

    def __init__(self, form: FoldForm, schedule: Schedule, arguments: dict[str, Any]) -> None:
        super().__init__(form, schedule, arguments)
        assert form.alias is not None, "rows of a step"
        self.lengths[form.alias] = schedule.tile[1]
        self.place = ScanPlace(self)
        self.tiles_held: dict[tuple[int, Span | None], HeldOperand] = {}
        self.copies: dict[int, Tensor] = {}
        """Shared memory of computed operands, by their `id`."""

    def multiply_of(self, rows: Axis, columns: Axis) -> TiledMma:
        """The multiplication whose sums have these rows and columns."""
        assert rows is not None
        assert columns is not None
        atom, warps = self.schedule.atom, self.schedule.warps[0]
        down, across = self.length(rows) // atom.shape[0] // warps, self.length(columns) // atom.shape[1]
        return TiledMma(atom, (warps, 1), (down, across))

    def step_place(self, at: Index) -> StepPlace:
        """The place of a step."""
        return ScanPlace(self, at)

    # ------------------------------------------------------------ products

    def score(self, known: dict[int, Any], step: Index, scores: Any) -> None:
        """Do nothing: `ScanPlace.product` computes a product when its value is first needed."""

    def left(self, node: Sum, values: TileValues) -> Any:
        """The left operand of a product, as (rows, k): a shared tile, or registers if it is computed."""
        if not is_computed(node.a):
            return self.held_tile(node.a, node.span, values.place)
        if id(node.a) in self.copies:
            return self.copied(node.a, node.span, values)
        if id(node.a) not in values.operands:
            made = values.hidden(node.a, 0)
            made = made if made.dtype == self.form.element else made.to(self.form.element)
            spread = tw.operand_a(self.multiply_of(*node.a.axes), self.schedule.tile[1])
            values.operands[id(node.a)] = redistribute(made, spread)
        return values.operands[id(node.a)]

    def right(self, node: Sum, values: TileValues) -> Tensor:
        """The right operand of a product, as (columns, k)."""
        if is_computed(node.b):
            return self.copied(node.b, node.span, values).permute(1, 0)
        return self.held_tile(node.b, node.span, values.place)

    def copied(self, node: Node, along: Span, values: TileValues) -> Tensor:
        """The shared-memory copy of a computed operand, made at its first use in a step.

        It is 0 beyond the end of the sum.  It overwrites the copy of the last step, which all threads have
        read: a barrier separates steps.
        """
        held = self.copies[id(node)]
        if id(node) not in values.operands:
            made = values.hidden(node, 0)
            if (rows := values.place.ordered(node.axes)[0]) is not None and along in (rows, rows.of):
                length = values.place.length(rows)
                left = values.place.extent(rows) - values.place.at(rows) * length
                with when(left < length):
                    made.assign(where(coordinates(made, 0) < left, made, 0))
            values.operands[id(node)] = made
            tw.copy(made, held)
            tw.barrier()
        return held

    def mix(self, node: Sum, values: TileValues, step: Index, total: Fragment) -> None:
        """Add a product to ``total``."""
        with made_by("atom", node):
            left, right = self.left(node, values), self.right(node, values)
            tw.mma(left, right, total, self.multiply_of(*node.axes))

    def held_tile(self, node: Node, along: Span, place: Any) -> Tensor:
        """The tile of an operand at a step, as (rows, k)."""
        return self.tiles_held[tile_key(node, along)].multiplied(place.step, along)

    # ------------------------------------------------------------ the loop

    def run(self) -> None:
        """Write the kernel."""
        form, schedule = self.form, self.schedule
        with made_by("stages"):
            for node, along in tiles_of_scan(form):
                self.tiles_held[tile_key(node, along)] = HeldOperand(self, node, along)
            for node in copies_of_scan(schedule, form):
                shape = [self.length(span) for span in node.axes if span is not None]
                self.copies[id(node)] = tw.shared(shape, form.element, name=node.variable or "copy")
        self.done = TileValues(self.place, {})
        moving = [held for held in self.tiles_held.values() if held.moves]
        with made_by("staging"):
            for held in self.tiles_held.values():
                if not held.moves:
                    held.bring(self.place)
        cells = self.starts(form.fold)
        begin, count = self.steps()

        def combine(step: LoopStep) -> None:
            self.combine(form.fold, cells, step.index + begin)

        verbs = self.verbs(moving, lambda at: ScanPlace(self, at + begin), [Verb("multiply", 0, combine)])
        main_loop(verbs, count)
        self.store(cells)

    def store_rows(self, values: TileValues) -> None:
        """Store the results of a step, before the state changes."""
        form = self.form
        for one in form.fold.results:
            store = form.kept[id(one)]
            with made_by("epilogue", store):
                made = values.repeated(values.value(one), one.axes, one.dtype)
                tw.copy(made, tile_of(values.place, store.operand, store.at, one.axes))


class TapPlace(StepPlace):
    """The tile of one of a thread's ``block.each`` rows, at one turn of each loop.

    The tile has every ``block.each``-th row of the block's rows.

    Args:
        block: the block.
        first: the first row of the tile.
        turns: the index along the span of each turn.
    """

    block: TapBlock

    def __init__(self, block: TapBlock, first: int, turns: Mapping[Span, Index]) -> None:
        super().__init__(block)
        self.first = first
        self.found.update(turns)

    def apart(self, span: Span) -> tuple[int, int]:
        """Distance of neighbouring elements of the tile along a span, and the first."""
        return (self.block.each, self.first) if span == self.block.form.m else (1, 0)

    def mask(self, node: Map) -> None:
        """Return None: rows and turns share values, so no choice may change its value in place."""


class TapValues(TileValues):
    """The values of a row at a turn; those that depend on arrays alone are shared with other rows and turns.

    Args:
        place: the tile of the row.
        known: values that exist already, by the `id` of their nodes.
        tap: index of the turn among the turns that are computed together.
        shared: the shared values of these turns, by the `id` of the node and its `key`.
    """

    def __init__(
        self, place: TapPlace, known: Mapping[int, Any], tap: int, shared: dict[tuple[int, Any], Any]
    ) -> None:
        super().__init__(place, known)
        self.row, self.tap, self.shared = place.first, tap, shared
        self.form = place.block.form

    def value(self, node: Node) -> Any:
        """The value of a node: a number, or a tile."""
        if id(node) not in self.known and (key := self.key(node)) is not None:
            if (id(node), key) not in self.shared:
                self.shared[id(node), key] = super().value(node)
            self.known[id(node)] = self.shared[id(node), key]
        return super().value(node)

    def key(self, node: Node) -> Any:
        """Return a key that rows and turns with equal values share; None if the value needs the state."""
        rows, last = self.form.m, self.form.fold.turns[-1]
        match node:
            case ArrayPart() if id(node) in self.form.windows:
                by_row, by_turn = self.form.windows[id(node)]
                return self.row * by_row + self.tap * by_turn
            case ArrayPart(at=at):
                return (self.row if rows in at else 0), (self.tap if last in at else 0)
            case Position(span=span):
                return (self.row if span == rows else 0), (self.tap if span == last else 0)
            case Map() | Rearrange():
                keys = tuple(self.key(one) for one in node.arguments)
                return None if None in keys else keys
            case Literal() | Integer() | NumberParam():
                return ()
        return None


class TapBlock(FoldBlock):
    """The work of one block for a loop whose windows slide along rows: a depthwise convolution.

    A thread has several neighbouring rows.  It computes several turns of the innermost loop together, and
    loads an element once for all of its rows and these turns.

    Args:
        form: the form of the flow.
        schedule: how it is computed; the depth of its tile is the number of turns that are computed together.
        arguments: the kernel's arguments, by name.
    """

    def __init__(self, form: FoldForm, schedule: Schedule, arguments: dict[str, Any]) -> None:
        super().__init__(form, schedule, arguments)
        (rows, run, self.taps), (down, _) = schedule.tile, schedule.warps
        self.each = rows_of_thread(schedule)
        lanes, wide = rows // self.each // down, schedule.atom.c.values[0].extent
        atom = fma(
            schedule.atom.a_dtype,
            schedule.atom.c_dtype,
            lanes=(lanes, schedule.atom.lanes // lanes),
            each=(1, wide),
        )
        self.schedule = replace(schedule, atom=atom, tile=(rows // self.each, run, self.taps))
        self.lengths[form.m] = rows // self.each
        self.tiled = {span: self.multiply(self.length(span)) for span in self.tiled}

    def run(self) -> None:
        """Write the kernel."""
        *outer, last = self.form.fold.turns
        places = [TapPlace(self, row, {}) for row in range(self.each)]
        cells = []
        for self.place in places:
            cells.append(self.starts(self.form.fold))
        extent = self.place.integer(last.extent)
        whole = let(extent // self.taps)

        def do(step: LoopStep) -> None:
            found, rest = dict[Span, Index](), step.index
            for span in reversed(outer[1:]):
                count = self.place.integer(span.extent)
                found[span], rest = let(rest % count), let(rest // count)
            found |= dict.fromkeys(outer[:1], rest)
            for group in repeat(whole):
                self.compute(cells, found, last, group * self.taps, self.taps)
            for tap in repeat(whole * self.taps, extent):
                self.compute(cells, found, last, tap, 1)

        counts = (self.place.integer(span.extent) for span in outer)
        main_loop([Verb("multiply", 0, do)], let(prod(counts, start=1)))
        for self.place, own in zip(places, cells, strict=True):
            self.done = TileValues(self.place, {})
            with made_by("epilogue", self.form.flow.stores[0]):
                self.store(own)

    def compute(
        self, cells: list[list[Fragment]], turns: Mapping[Span, Index], last: Span, first: Index, taps: int
    ) -> None:
        """Compute some turns of the innermost loop for all rows.

        Args:
            cells: the state of each row.
            turns: the indices of the outer turns.
            last: the span of the innermost loop.
            first: the index of its first turn.
            taps: the number of turns.
        """
        fold, shared = self.form.fold, dict[tuple[int, Any], Any]()
        windows = [node for node in self.form.inside() if id(node) in self.form.windows]
        places = [
            [TapPlace(self, row, {**turns, last: first + tap}) for tap in range(taps)]
            for row in range(self.each)
        ]
        for row in places:  # the first row that has an element loads it: later rows may be outside
            for tap, place in enumerate(row):
                for node in windows:
                    TapValues(place, {}, tap, shared).value(node)
        for tap in range(taps):
            for row, held in zip(places, cells, strict=True):
                values = TapValues(row[tap], dict(zip(map(id, fold.cells), held, strict=True)), tap, shared)
                made = [values.value(new) for new in fold.steps]
                for cell, one, new in zip(fold.cells, held, made, strict=True):
                    if new is not one:
                        one.assign(values.carried(new, cell))


class ExpandedFold(Program):
    """The explicit program of a dataflow kernel whose loop carries a state, under a schedule.

    Args:
        program: the author's program.
        flow: the flow that it records.
        schedule: how the flow is computed.

    Raises:
        TraceError: a merge that the author states disagrees with the steps of its loop.
    """

    def __init__(self, program: Program, flow: Flow, schedule: Schedule) -> None:
        form = fold_form_of(flow, schedule.fold)
        for fold in form.folds:
            if why := against_merge(flow, fold):
                raise TraceError(
                    f"the merge of the loop over {fold.span.name} is wrong: {why}",
                    next(one.first.location for one in fold.merges if one is not None),
                    "a merge of the states of two parts, in their order, that is the state of both",
                )

        block = ElementwiseBlock if form.is_elementwise else GroupBlock if schedule.by_bulk else FoldBlock
        block = ScanBlock if form.alias is not None else TapBlock if shares_windows(schedule, form) else block

        def explicit(*arguments: Any) -> None:
            given = dict(zip((p.name for p in program.parameters), arguments, strict=True))
            with expanding(schedule, form.subject):
                block(form, schedule, given).run()

        self.function = explicit
        self.name = program.name
        self.__doc__ = program.__doc__
        self.parameters: tuple[Parameter, ...] = program.parameters
        self.constants = ()
        self.sync = EXPLICIT
        self.defaults = {}
        self.form, self.schedule = form, schedule

    def trace(
        self,
        specs: Mapping[str, TensorSpec],
        constants: Mapping[str, Any] | None = None,
        arch: Arch = REFERENCE,
    ) -> Kernel:
        """Record the explicit kernel.

        Raises:
            ScheduleError: the schedule is not legal on this machine; lists every reason.
        """
        self.settled(specs, arch)
        return super().trace(specs, constants, arch)

    def settled(self, specs: Mapping[str, TensorSpec], arch: Arch) -> tuple[Schedule, tuple[str, ...]]:
        """The schedule under which it runs, and a note for each change to the requested one.

        Raises:
            ScheduleError: it is not legal on this machine.
        """
        check(self.schedule, self.form, specs, arch)
        return self.schedule, ()
