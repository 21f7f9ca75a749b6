"""Expansion of a dataflow kernel under a schedule to an explicit kernel like one written by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from tilewright.arch import REFERENCE, Arch
from tilewright.dataflow.nodes import ArrayPart, Flow, Node
from tilewright.ir.kernel import Kernel
from tilewright.lang.asynchrony import begin_early
from tilewright.lang.fragments import Fragment
from tilewright.lang.launch import derived, require
from tilewright.lang.program import EXPLICIT, Parameter, Program
from tilewright.lang.scalars import Index
from tilewright.lang.signals import counter
from tilewright.lang.specs import TensorSpec
from tilewright.lang.tracer import current
from tilewright.schedule.epilogue.direct import Helper
from tilewright.schedule.factors import Rescale
from tilewright.schedule.fixup import SplitReduction
from tilewright.schedule.form import Form, extent_of, form_of
from tilewright.schedule.inner import schedule_of
from tilewright.schedule.legality import check, with_fallback
from tilewright.schedule.lists import ListedArray
from tilewright.schedule.load import blocks_beside
from tilewright.schedule.partition import Partition
from tilewright.schedule.pipeline import main_loop
from tilewright.schedule.provenance import each_made_by, expanding, made_by
from tilewright.schedule.resources import EPILOGUE_CLASSES, partition_of, reduction_of, staging_of
from tilewright.schedule.rings import Agent
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.sources import sources_of, with_numbers
from tilewright.schedule.work import SentShards, Shards, Work

Inner: TypeAlias = Mapping[Node, tuple[Callable[[Fragment], Fragment], Index]]
"""Maps each operand that follows from an inner product to a function and an extent.

The function computes the operand from the sums.  The extent is the operand's number of columns.
"""

# ---------------------------------------------------------------- extents that are whole tiles


def whole_tiles(form: Form, schedule: Schedule, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments, with arrays cut to whole tiles along the dimensions of `Schedule.whole`.

    The launch requires that nothing is cut off.

    Args:
        form: the form of the computation, as the schedule multiplies it.
        schedule: how it is computed.
        arguments: the kernel's arguments, by name.
    """
    spans = {"m": (form.m,), "n": (form.n,), "k": form.depths}
    dims = {span: dim for dim in schedule.whole for span in spans[dim]}
    units = {span: schedule.tile["mnk".index(dim)] for span, dim in dims.items()}
    if not units:
        return arguments
    for span, unit in units.items():
        near = f"nearest legal choice: whole={schedule.whole.replace(dims[span], '')!r}"
        text = f"{span.name} must be a multiple of {unit}: the schedule has whole={schedule.whole!r}; {near}"
        require(extent_of(form, arguments, span) % unit == 0, text)
    parts = [node for node in form.flow.walk() if isinstance(node, ArrayPart)]
    places = {node.operand.name: (node.operand, node.at) for node in parts}
    places |= {store.operand.name: (store.operand, store.at) for store in form.stores}
    cut: dict[str, Any] = {}
    for name, (operand, at) in places.items():
        steps = [units.get(span, 0) for span in at]
        if not operand.transforms and any(steps):
            array = arguments[name]
            ends = (array.shape[dim] // step * step if step else None for dim, step in enumerate(steps))
            cut[name] = array[tuple(slice(0, end) for end in ends)]
    return arguments | cut


class Expanded(Program):
    """The explicit program of a dataflow kernel under a schedule.

    Args:
        program: the author's program.
        flow: the flow that it records.
        schedule: how the flow is computed.
    """

    def __init__(self, program: Program, flow: Flow, schedule: Schedule) -> None:
        form = form_of(flow)

        def explicit(*arguments: Any) -> None:
            given = dict(zip((p.name for p in program.parameters), arguments, strict=True))
            with expanding(schedule, form.sum):
                _write(form, schedule, given)

        self.function = explicit
        self.name = program.name
        self.__doc__ = program.__doc__
        self.parameters: tuple[Parameter, ...] = program.parameters
        self.constants = ()
        self.sync = EXPLICIT
        self.defaults = {}
        self.program, self.flow, self.form, self.schedule = program, flow, form, schedule

    def trace(
        self,
        specs: Mapping[str, TensorSpec],
        constants: Mapping[str, Any] | None = None,
        arch: Arch = REFERENCE,
    ) -> Kernel:
        """Record the explicit kernel, with another engine if bulk copies cannot carry an array.

        Raises:
            ScheduleError: the schedule is not legal for these classes of arrays on this machine; lists every
                reason.
        """
        settled, notes = self.settled(specs, arch)
        kernel = Expanded(self.program, self.flow, settled).unchecked(specs, constants, arch)
        resident = blocks_beside(settled, len(self.form.totals), arch)
        return replace(kernel, notes=(*notes, *kernel.notes), resident=resident)

    def settled(self, specs: Mapping[str, TensorSpec], arch: Arch) -> tuple[Schedule, tuple[str, ...]]:
        """The schedule under which it runs, and a note for each change to the requested one.

        Raises:
            ScheduleError: it is not legal for these classes of arrays on this machine.
        """
        found, notes = with_fallback(self.schedule, self.form, specs, arch)
        check(found, self.form, specs, arch)
        return found, notes

    def unchecked(
        self,
        specs: Mapping[str, TensorSpec],
        constants: Mapping[str, Any] | None = None,
        arch: Arch = REFERENCE,
    ) -> Kernel:
        """Record the explicit kernel of this schedule without checking it; only the kernel's rules apply."""
        return super().trace(specs, constants, arch)


def write_lists(
    form: Form, schedule: Schedule, specs: Mapping[str, TensorSpec], arguments: Mapping[str, Any]
) -> None:
    """Write the explicit kernel of a product over lists of arrays, with one array for each batch item.

    Args:
        form: the product, with one array for each list.
        schedule: how it is computed.
        specs: the common properties of each list's arrays; keys are the flow's names, in the table's order.
        arguments: the buffer that contains each list's arrays, by the same names; also the table and the
            number of its items.
    """
    with expanding(schedule, form.sum):
        _write(form, schedule, {**arguments, **ListedArray.of(form, schedule, specs, arguments)})


def _write(form: Form, schedule: Schedule, arguments: dict[str, Any]) -> None:
    """Write the explicit kernel."""
    form = form.arranged(schedule.swap_ab)
    current().guards.extend(form.flow.requirements)
    # A block that loads by bulk copies fills a multiprocessor.  Several other blocks fit into one: if they
    # start while the previous kernel occupies most multiprocessors, they crowd into the few free ones.
    if form.flow.waits_for_prior_grid and schedule.by_bulk:
        with made_by("blocks", form.stores[0]):
            begin_early()
    arguments = whole_tiles(form, schedule, arguments)
    with made_by("blocks", form.stores[0]):
        partition = partition_of(form, schedule).of(form, schedule, arguments)
    with made_by("stages"):
        rings: list[Any] = []
        for one in form.inner:
            text = f"{one.columns.name} must be at most {schedule.width}: one tile of the schedule covers it"
            require(extent_of(form, arguments, one.columns) <= schedule.width, text)
        for loop in form.loops:
            own = schedule_of(loop, schedule)
            sources = sources_of(loop, own, arguments, partition)
            decodes = sources[0].decode is not None and not loop.reads_inner
            staging = staging_of(own, decodes=decodes)
            rings.append(staging(own, loop, sources, rings[-1] if rings else None))
        ring = rings[0]
    with made_by("epilogue", form.stores[0]):
        epilogue = EPILOGUE_CLASSES[schedule.epilogue](form, schedule, arguments, partition)
    with made_by("reduction"):
        reduction = reduction_of(schedule).of(schedule, partition.split, len(form.totals))
    with made_by("epilogue", form.stores[0]):
        sent, departure, problem = None, form.flow.departure, partition.problem
        if departure is not None and problem is not None:  # other ranks wait for shards of the result
            across, beside = schedule.cluster
            parts = derived(partition.tiles_m * across * partition.tiles_n * beside * schedule.cooperating)
            for extent in problem.batch[1:]:
                parts = derived(parts * extent)
            sent_tiles = counter(problem.batch[0])
            counters = arguments[departure.counters.name]
            sent = SentShards(counters, sent_tiles, parts, schedule.roles != "none", departure)
    with made_by("stages"):
        for one in rings:
            one.begin_block(partition.rank)
    ring.assign_stores([partial(_serve, helper, partition, form) for helper in epilogue.helpers()])
    agents = ring.agents()
    scales = {one: with_numbers(form, arguments, one.scale) for one in form.rescales}
    inner = {
        one.view: (
            lambda sums, view=one.view: with_numbers(form, arguments, view, lambda node: sums),
            extent_of(form, arguments, one.columns),
        )
        for one in form.inner
    }
    for several in zip(agents, *(one.agents() for one in rings[1:]), strict=True):
        _run(several, partition, reduction, epilogue, form, scales, inner, sent)
    multiplying = [agent for agent in agents if agent.accumulation is not None]
    reduction.end_block([(agent, partial(partition.items, agent.each)) for agent in multiplying], epilogue)
    ring.end_block()


def _run(
    loops: Sequence[Agent],
    partition: Partition,
    reduction: SplitReduction,
    epilogue: Any,
    form: Form,
    scales: Mapping[Rescale, Any],
    inner: Inner,
    sent: SentShards | None,
) -> None:
    """Write the loop of one agent over its tiles; each tile runs the main loops in order.

    Args:
        loops: the agent as the staging of each main loop made it.
        partition: the tiles.
        reduction: how the sums of the parts of K are added up.
        epilogue: how results are stored.
        form: the form of the computation.
        scales: the factors of totals after a loop.
        inner: the operand that follows from the sums of each inner product, and its columns.
        sent: the shards of the result that are counted; None: nobody waits for the result.
    """
    agent = loops[0]
    store, multiplies = form.stores[0], agent.accumulation is not None
    stores = multiplies and reduction.stores_at_once
    shards = () if partition.problem is None else partition.problem.shards
    added = [one for one in shards if one.in_ending]
    with made_by("roles"), agent.role() as group:
        for one in agent.accumulation.inner if multiplies else ():
            with made_by("width", one.node.sum):
                one.clear(group)
        for work in each_made_by("blocks", partition.items(agent.each, group), store):
            with made_by("atom"):
                sums = agent.begin(work)
            if agent.loads:
                _await_shards(agent, [one for one in shards if not one.in_ending], work)
            with made_by("tile"):
                values = epilogue.slices(work) if stores else ()

                def issued(work: Any = work, values: Any = values) -> None:
                    agent.issued(work)
                    # With sums of rows, loads before the exchange of lanes would let ptxas serialize wgmma.
                    prefetches = reduction.prefetches and epilogue.schedule.prefetch and not form.row_sums
                    if values and prefetches and not added:
                        with made_by("epilogue", store):
                            epilogue.prepare(values[1])

                copies = epilogue.schedule.unroll if multiplies else 1
                # Each loop has its own piece of the tile.
                *pieces, last = [work] if partition.problem is None else partition.problem.pieces(work)
                for number, piece in enumerate(pieces):
                    one = loops[number]
                    main_loop(one.verbs(piece, sums), piece.steps, one.parts, copies=copies)
                    with made_by("stages"):
                        one.drain(piece)
                    if multiplies:
                        _end_loop(one, form, number, sums, piece, scales, inner)
                main_loop(loops[-1].verbs(last, sums), last.steps, loops[-1].parts, issued, copies)
            agent.end(work)
            if multiplies:
                with made_by("promote"):
                    totals = loops[-1].accumulation.end(sums, last.steps)
                for one in added:
                    with made_by("epilogue", one.made):
                        one.wait(work, 1 + work.group if epilogue.schedule.roles != "none" else None)
                reduction.end_tile(work, totals, values, epilogue, store)
                if sent is not None:
                    with made_by("epilogue", sent.made):
                        sent.count(work)
        if stores:
            with made_by("epilogue", store):
                epilogue.drain()


def _await_shards(agent: Agent, shards: Sequence[Shards], work: Work) -> None:
    """Wait for the shards that a tile reads; each wait gets the author's line that declares the arrival."""
    for one in shards:
        with made_by("staging", one.made):
            one.wait(work)
    if shards:
        agent.arrived()


def _end_loop(
    agent: Agent, form: Form, number: int, sums: Any, piece: Work, scales: Mapping[Rescale, Any], inner: Inner
) -> None:
    """Complete the sums of a loop, multiply totals that are scaled after it, and write inner products.

    The warps write the operands that follow from inner products between two barriers.
    """
    span = form.depths[number]
    with made_by("promote"):
        agent.accumulation.end_loop(sums, piece.steps)
    for one, scale in scales.items():
        if one.span == span:
            with made_by("atom", one.scale if one.scale.location else None):
                agent.accumulation.rescale(sums, one.total, scale)
    plans = zip(agent.accumulation.inner, sums.inner, strict=True)
    ended = [(plan, total) for plan, total in plans if plan.node.sum.span == span]
    for at, (plan, total) in enumerate(ended):
        operand, columns = inner[plan.node.view]
        with made_by("width", plan.node.sum):
            if at == 0:
                agent.meet(piece)
            plan.write(operand(total), columns, piece.group)
            if at == len(ended) - 1:
                agent.meet(piece)


def _serve(helper: Helper, partition: Partition, form: Form) -> None:
    """Write the loop over tiles of the warps that only run the epilogue."""
    store = form.stores[0]
    with made_by("epilogue", store), helper.role() as group:
        for work in each_made_by("blocks", partition.items(helper.each, group), store):
            helper.serve(work)
