"""Expansion of a dataflow kernel and a schedule to an explicit kernel, as one could write it by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tilewright.arch import REFERENCE, Arch
from tilewright.dataflow.nodes import ArrayPart, Flow, Operand
from tilewright.ir.kernel import Kernel
from tilewright.lang.asynchrony import begin_early
from tilewright.lang.launch import derived, require
from tilewright.lang.program import EXPLICIT, Parameter, Program
from tilewright.lang.scalars import Index, ceil_div, maximum, minimum
from tilewright.lang.specs import TensorSpec
from tilewright.lang.tracer import current
from tilewright.schedule.epilogue.direct import Helper
from tilewright.schedule.epilogue.staged import EPILOGUES
from tilewright.schedule.fallback import with_fallback
from tilewright.schedule.fixup import SplitReduction, is_clustered, is_split, reduction_of
from tilewright.schedule.form import Form, extent_of, form_of
from tilewright.schedule.groups import RowGroups
from tilewright.schedule.legality import check
from tilewright.schedule.lists import ListedArray, ListTiles
from tilewright.schedule.partition import (
    MOST_SPLITS,
    Batches,
    DataParallel,
    Persistent,
    Shares,
    Stream,
    TiledProblem,
    TileOrder,
    parts_of_k,
)
from tilewright.schedule.pipeline import main_loop
from tilewright.schedule.provenance import each_made_by, expanding, made_by
from tilewright.schedule.resources import staging_of
from tilewright.schedule.rings import Agent
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.sources import Tiles, sources_of

# ---------------------------------------------------------------- extents that are whole tiles


def whole_tiles(form: Form, schedule: Schedule, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arrays, each with the whole tiles that it has along the dimensions that a schedule says are whole.

    The launch requires that these are all of it.

    Args:
        form: what is computed, as the schedule multiplies it.
        schedule: how.
        arguments: the kernel's, by name.
    """
    spans = dict(zip("mnk", (form.m, form.n, form.a.depth), strict=True))
    units = {spans[dim]: schedule.tile["mnk".index(dim)] for dim in schedule.whole}
    if not units:
        return arguments
    for dim in schedule.whole:
        unit, extent = units[spans[dim]], extent_of(form, arguments, spans[dim])
        text = f"{spans[dim].name} must be a multiple of {unit}: the schedule has whole={schedule.whole!r}"
        require(extent % unit == 0, text)
    places = {
        node.operand.name: (node.operand, node.at) for node in form.flow.walk() if isinstance(node, ArrayPart)
    }
    places |= {store.operand.name: (store.operand, store.at) for store in form.stores}
    return arguments | {
        name: _cut(arguments[name], operand, [units.get(span, 0) for span in at])
        for name, (operand, at) in places.items()
    }


def _cut(array: Any, operand: Operand, units: list[int]) -> Any:
    """The whole tiles of an array along each of its dimensions, where these are not 0."""
    if operand.transforms or not any(units):
        return array
    ends = ((array.shape[dim] // unit) * unit if unit else None for dim, unit in enumerate(units))
    return array[tuple(slice(0, end) for end in ends)]


class Expanded(Program):
    """The explicit program that a schedule makes of a dataflow kernel.

    Args:
        program: the author's.
        flow: what it records.
        schedule: how that is computed.
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
        """Record the explicit kernel, with another engine where bulk copies cannot carry an array.

        Raises:
            ScheduleError: the schedule is not legal for these classes of arrays on this machine; lists every
                reason.
        """
        settled, notes = self.settled(specs, arch)
        kernel = Expanded(self.program, self.flow, settled).unchecked(specs, constants, arch)
        return replace(kernel, notes=(*notes, *kernel.notes))

    def settled(self, specs: Mapping[str, TensorSpec], arch: Arch) -> tuple[Schedule, tuple[str, ...]]:
        """The schedule that it runs under, and what of it is another than was asked for.

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
        """Record the explicit kernel by this schedule, legal or not: what it breaks, its own rules say."""
        return super().trace(specs, constants, arch)


def write_lists(
    form: Form, schedule: Schedule, specs: Mapping[str, TensorSpec], arguments: Mapping[str, Any]
) -> None:
    """Write the explicit kernel of a product whose batch items are arrays of their own.

    Args:
        form: the product, as of one array for each of its lists.
        schedule: how it is computed.
        specs: for each list what its arrays have in common, by the names of the flow, as the table has them.
        arguments: by the same names the buffers that they are parts of; the table, and how many items it has.
    """
    with expanding(schedule, form.sum):
        _write(form, schedule, {**arguments, **ListedArray.of(form, schedule, specs, arguments)})


def _write(form: Form, schedule: Schedule, arguments: dict[str, Any]) -> None:
    """Write the explicit kernel."""
    form = form.arranged(schedule.swap_ab)
    current().guards.extend(form.flow.requirements)
    if form.flow.waits_for_prior_grid:
        with made_by("blocks", form.stores[0]):
            begin_early()
    arguments = whole_tiles(form, schedule, arguments)
    with made_by("blocks", form.stores[0]):
        partition = _partition(form, schedule, arguments)
    with made_by("stages"):
        sources = sources_of(form, schedule, arguments, partition)
        decodes = sources[0].decode is not None
        ring: Any = staging_of(schedule, decodes=decodes)(schedule, sources, form.products)
    with made_by("epilogue", form.stores[0]):
        epilogue = EPILOGUES[schedule.epilogue](form, schedule, arguments)
        epilogue.views.shares = partition if isinstance(partition, Shares) else None
    with made_by("reduction"):
        reduction = reduction_of(schedule).of(schedule, partition.split, len(form.totals))
    with made_by("stages"):
        ring.begin_block(partition.rank)
    ring.serve_beside([partial(_serve, helper, partition, form) for helper in epilogue.helpers()])
    agents = ring.agents()
    for agent in agents:
        _run(agent, partition, reduction, epilogue, form)
    multiplying = [agent for agent in agents if agent.accumulation is not None]
    reduction.end_block([(agent, partial(partition.items, agent.each)) for agent in multiplying], epilogue)
    ring.end_block()


def _run(agent: Agent, partition: Tiles, reduction: SplitReduction, epilogue: Any, form: Form) -> None:
    """Write the tiles of one agent, one after the other, each with the main loop."""
    store, multiplies = form.stores[0], agent.accumulation is not None
    stores = multiplies and reduction.stores_at_once
    with made_by("roles"), agent.role() as group:
        for work in each_made_by("blocks", partition.items(agent.each, group), store):
            with made_by("atom"):
                sums = agent.begin(work)
            with made_by("tile"):
                values = epilogue.slices(work) if stores else ()

                def issued(work: Any = work, values: Any = values) -> None:
                    agent.issued(work)
                    if values and reduction.prefetches:
                        with made_by("epilogue", store):
                            epilogue.prepare(values[1])

                copies = epilogue.schedule.unroll if multiplies else 1
                main_loop(agent.verbs(work, sums), work.steps, agent.parts, issued, copies)
            agent.end(work)
            if multiplies:
                with made_by("promote"):
                    totals = agent.accumulation.end(sums, work.steps)
                reduction.end_tile(work, totals, values, epilogue, store)
        if stores:
            with made_by("epilogue", store):
                epilogue.drain()


def _serve(helper: Helper, partition: Tiles, form: Form) -> None:
    """Write the tiles of warps that only take part in the epilogue."""
    store = form.stores[0]
    with made_by("epilogue", store), helper.role() as group:
        for work in each_made_by("blocks", partition.items(helper.each, group), store):
            helper.serve(work)


def _partition(form: Form, schedule: Schedule, arguments: dict[str, Any]) -> Tiles:
    order = TileOrder(schedule.group_n, "n") if schedule.group_n else TileOrder(schedule.group_m or 1, "m")
    if form.lists:
        return ListTiles(form, schedule, order, arguments)
    leading = form.batch if form.flow.grouped is None else ()
    extents = {span: extent_of(form, arguments, span) for span in (*leading, form.m, form.n, form.a.depth)}
    batch = tuple(extents[span] for span in leading)
    # What is stored along rows alone is stored where there are no columns too: as of one tile of none.
    m, n = (
        extents[span] if all(span in store.at for store in form.stores) else maximum(extents[span], 1)
        for span in (form.m, form.n)
    )
    groups = _groups(form, schedule, arguments)
    # Where a path leads past a loop that decodes, the assembler lets each wgmma wait for the last.
    least = int(schedule.atom.asynchronous and not all(factor.is_plain for factor in form.factors))
    problem = TiledProblem(batch, m, n, extents[form.a.depth], schedule.tile, groups, least)
    if schedule.split_k == "stream":
        return Stream(problem, order, schedule.blocks)
    splits, unit = _splits(problem, schedule), max(schedule.promote, 1)
    clustered = is_clustered(schedule)
    if schedule.balanced:
        rows, columns, _ = schedule.atom.shape
        units = rows * schedule.warps[0], columns * schedule.warps[1]
        return Shares(problem, units, splits, unit, clustered=clustered)
    if schedule.blocks and not is_split(schedule):
        return Persistent(problem, order, schedule.cluster, schedule.blocks)
    ordered = schedule.group_m or schedule.group_n or schedule.cluster != (1, 1)
    taken = order if ordered else None
    if schedule.batches > 1 and batch:
        return Batches(problem, taken, schedule.cluster, schedule.batches)
    among = schedule.along_k
    return DataParallel(problem, taken, schedule.cluster, splits, unit, clustered=clustered, among=among)


def _groups(form: Form, schedule: Schedule, arguments: dict[str, Any]) -> RowGroups | None:
    """The groups that rows or columns fall into."""
    for dim, span in enumerate((form.m, form.n)):
        if span.groups is not None:
            extent, ends = extent_of(form, arguments, span), arguments[span.groups.ends.name]
            return RowGroups(ends, dim, extent, schedule.tile[dim])
    return None


def _splits(problem: TiledProblem, schedule: Schedule) -> Index:
    """Parts of K; 0 if it is not split."""
    if not is_split(schedule):
        return 0
    rows, columns = _whole_clusters(problem, schedule)
    split = schedule.split_k
    if is_clustered(schedule) and isinstance(split, int):
        return split  # a cluster is as large as it is: some parts may have no steps
    tiles = rows * columns * problem.batches
    wanted = parts_of_k(tiles, problem.steps, schedule.blocks) if isinstance(split, str) else split
    units = ceil_div(problem.steps, max(schedule.promote, 1))
    parts = derived(maximum(minimum(wanted, minimum(units, MOST_SPLITS)), 1))
    return parts  # noqa: RET504 the kernel's parameter is named after it


def _whole_clusters(problem: TiledProblem, schedule: Schedule) -> Sequence[Index]:
    """Tiles along the rows and along the columns, with those that only fill a cluster."""
    pairs = zip(problem.tiles, schedule.cluster, strict=True)
    return [count if blocks == 1 else ceil_div(count, blocks) * blocks for count, blocks in pairs]
