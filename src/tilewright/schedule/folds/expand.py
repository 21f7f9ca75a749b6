"""Expansion of a flow whose loop carries a state to an explicit kernel; loops whose steps store results.

A step of such a loop has a tile of scores whose rows and columns are the elements of the step, and a state
that lies in registers.  A product with the state as its right operand reads a copy of it in shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.arch import REFERENCE, Arch
from tilewright.dataflow.nodes import Axis, Flow, Node, Span, Sum
from tilewright.errors import TraceError
from tilewright.ir.kernel import Kernel
from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.control import when
from tilewright.lang.exact_functions import where
from tilewright.lang.fragments import Fragment
from tilewright.lang.program import EXPLICIT, Parameter, Program
from tilewright.lang.scalars import Index
from tilewright.lang.specs import TensorSpec
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import coordinates, redistribute
from tilewright.schedule.folds.block import FoldBlock, HeldOperand, StepPlace
from tilewright.schedule.folds.choice import check, copies_of_scan, tile_key, tiles_of_scan
from tilewright.schedule.folds.elementwise import ElementwiseBlock
from tilewright.schedule.folds.form import FoldForm, fold_form_of, is_computed
from tilewright.schedule.folds.groups import GroupBlock
from tilewright.schedule.folds.trials import against_merge
from tilewright.schedule.folds.values import TileValues, tile_of
from tilewright.schedule.pipeline import LoopStep, Verb, main_loop
from tilewright.schedule.provenance import expanding, made_by
from tilewright.schedule.schedule import Schedule
from tilewright.threads.distribution import Distribution


class ScanPlace(StepPlace):
    """The tile of a block at a step whose results are stored."""

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
    """The work of one block for a loop whose steps store results, by threads that copy and multiply."""

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
        """Nothing: products are computed when their first value is needed."""

    def left(self, node: Sum, values: TileValues) -> Any:
        """The left operand of a product, as (rows, k); one that is computed may stay in registers."""
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
        """A computed operand, which is copied to shared memory at its first use in a step.

        It is 0 beyond the end of the sum.  All threads have read that of the last step: they meet between two
        steps.
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
        """Add a product to sums."""
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

    def store_rows(self, values: TileValues) -> None:
        """Store the results of a step, before the state changes."""
        form = self.form
        for one in form.fold.results:
            store = form.kept[id(one)]
            with made_by("epilogue", store):
                made = values.repeated(values.value(one), one.axes, one.dtype)
                tw.copy(made, tile_of(values.place, store.operand, store.at, one.axes))


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
                    f"the merge of the loop over {fold.span.name} is wrong: {why}; nearest legal choice: "
                    "a merge of the states of two parts, in their order, that is the state of both",
                    next(one.first.location for one in fold.merges if one is not None),
                )

        block = ElementwiseBlock if form.is_elementwise else GroupBlock if schedule.by_bulk else FoldBlock
        block = ScanBlock if form.alias is not None else block

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
