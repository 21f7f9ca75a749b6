"""Loops that carry a state, by bulk copies and asynchronous multiplies: one warp copies, warpgroups compute.

Each warpgroup has 64 rows.  It issues the product with the next tiles of the loop together with the product
that its last weights wait for, and computes new values while the second one runs.  Operands of a step come in
two rings, whose tiles are released as soon as their product is complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from tilewright.arch import Arch
from tilewright.dataflow.nodes import BATCH, ArrayPart, Map, Node, Span, Store, Sum, walk
from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import (
    bulk_commit,
    bulk_wait,
    fence_async,
    mma_async,
    mma_commit,
    mma_fence,
    mma_wait,
    tma_load,
    tma_store,
)
from tilewright.lang.control import let, unroll
from tilewright.lang.control import range as traced_range
from tilewright.lang.fragments import Fragment
from tilewright.lang.launch import require
from tilewright.lang.roles import role, role_barrier
from tilewright.lang.scalars import Index, Scalar
from tilewright.lang.specs import TensorSpec
from tilewright.lang.tensors import Tensor
from tilewright.lang.transaction_barriers import arrive, mbarrier, wait
from tilewright.schedule.bulk_views import against_array, against_store
from tilewright.schedule.facts import Reasons
from tilewright.schedule.folds.block import FoldBlock, StepPlace
from tilewright.schedule.folds.form import FoldForm, transposed
from tilewright.schedule.folds.values import TileValues
from tilewright.schedule.form import array
from tilewright.schedule.pipeline import LoopStep, Verb, main_loop
from tilewright.schedule.provenance import made_by
from tilewright.schedule.schedule import Schedule
from tilewright.targets.atoms import wgmma

WARPS, ROWS = 4, 64
"""Warps and rows of a warpgroup."""

PANEL = 64
"""Columns of one bulk copy: rows of 128 bytes."""

FEW = 40
"""Registers of a thread of the warp that copies."""


class GroupRing:
    """Tiles of an operand in shared memory, with the barriers that say when they are full and empty.

    Args:
        block: the block.
        node: the operand.
        stages: number of tiles.
        readers: number of warps that read a tile.
    """

    def __init__(self, block: GroupBlock, node: Node, stages: int, readers: int) -> None:
        part, _ = transposed(node)
        assert isinstance(part, ArrayPart), "bulk copies decode nothing"
        self.block, self.part, self.stages = block, part, stages
        spans = [span for span in part.at if span.kind != BATCH]
        self.rows = block.length(spans[0])
        self.columns = block.length(spans[1])
        panels = -(-self.columns // PANEL)
        name = f"s{part.operand.name}"
        self.held = tw.shared((stages, panels, self.rows, PANEL), part.dtype, swizzle=128, name=name)
        self.full = mbarrier(stages, arrivals=1)
        self.empty = mbarrier(stages, arrivals=readers)

    def load(self, stage: Index, at: Index) -> None:
        """Copy the tile of some rows into a stage that is empty."""
        block, operand = self.block, self.part.operand
        held, full = self.held[stage], self.full[stage]
        panels = int(held.shape[0])
        arrive(full, expect_bytes=panels * self.rows * PANEL * operand.dtype.bytes)
        batch = (block.at[span] if span.kind == BATCH else slice(None) for span in self.part.at)
        whole = array(block.arguments, operand)[tuple(batch)]
        for p in unroll(panels):
            tma_load(whole.tile((self.rows, PANEL), (at, p)), held[p], full)

    def tile(self, stage: Index) -> Tensor:
        """A tile as (rows, columns)."""
        return columns_of(self.held[stage], self.columns)

    def place(self, step: Index) -> tuple[Index, Index]:
        """The stage of a step, counted from the first step of the loop, and the parity of its turn."""
        return let(step % self.stages), let(step // self.stages % 2)


def columns_of(panels: Tensor, columns: int) -> Tensor:
    """Panels side by side, cut to the columns in use."""
    whole = panels.permute(1, 0, 2).merge(1)
    return whole if whole.shape[1] == columns else whole.tile((whole.shape[0], columns), (0, 0))


class GroupBlock(FoldBlock):
    """The work of one block of a warp that copies and of warpgroups that compute."""

    begin: Index = 0
    """The first step of the loop."""

    def multiply(self, columns: int) -> TiledMma:
        """The multiplication of the tiles of one group with these columns."""
        return TiledMma(wgmma(self.form.element, columns))

    def run(self) -> None:
        """Write the kernel."""
        form, schedule = self.form, self.schedule
        [score], [mixture] = form.scores, form.mixtures
        groups = schedule.groups
        assert form.e is not None, "the result has columns"
        # Bulk copies store whole panels of 64 columns, so that no other block may have columns of the result.
        require(
            self.place.integer(form.e.extent) <= schedule.width,
            f"{form.e.name} must be at most {schedule.width}: one tile of the schedule covers it (width)",
        )
        with made_by("stages"):
            self.lengths[form.m] = ROWS
            self.rows = GroupRing(self, score.a, groups, WARPS)
            self.ring = GroupRing(self, score.b, schedule.stages, groups * WARPS)
            self.late = GroupRing(self, mixture.b, schedule.stages, groups * WARPS)
            wide = -(-schedule.width // PANEL)
            self.out = self.rows.held
            if wide > int(self.out.shape[1]):  # results are wider than the operand that they replace
                shape = (groups, wide, ROWS, PANEL)
                self.out = tw.shared(shape, form.element, swizzle=128, name="sOut")
            self.lengths[form.m] = schedule.tile[0]
            self.begin, count = self.steps()
            tw.barrier()
        block = self.at[form.m]
        with made_by("roles"), role(warps=WARPS, registers=FEW), role(warps=1):
            for g in unroll(groups):
                self.rows.load(g, block * groups + g)
            main_loop([self._loading(one) for one in (self.ring, self.late)], count)
        self.lengths[form.m] = ROWS
        with made_by("roles"), role(warps=WARPS, groups=groups, registers=schedule.registers) as own:
            self.at[form.m] = let(block * groups + own)
            self._compute(own, count)

    def _loading(self, ring: GroupRing) -> Verb:
        def load(step: LoopStep) -> None:
            stage, parity = ring.place(step.index)
            wait(ring.empty[stage], 1 - parity)
            ring.load(stage, step.index + self.begin)

        return Verb("load", 0, load)

    def _compute(self, g: Index, count: Index) -> None:
        """Compute the rows of one group."""
        form = self.form
        [score], [mixture] = form.scores, form.mixtures
        number, rest = next(
            (at, self.added(step)[0])
            for at, step in enumerate(form.fold.steps)
            if self.added(step)[1] is mixture
        )
        first = TileValues(self.place, {})
        cells: list[Fragment] = []
        for at, cell in enumerate(form.fold.cells):
            start = first.value(cell.start)
            if at == number and not isinstance(start, Fragment):
                cells.append(tw.accumulator(self.mixing, fill=start, name=cell.name))
            else:
                cells.append(first.repeated(start, cell.axes, cell.dtype))
        scores = tw.accumulator(self.tiled[form.n], fill=None, name="scores")
        weights = tw.fragment(
            tw.operand_a(self.tiled[form.n], self.schedule.tile[1]), form.element, name="weights"
        )

        def multiply_first(step: LoopStep) -> None:
            stage, parity = self.ring.place(step.index)
            wait(self.ring.full[stage], parity)
            mma_fence()
            mma_async(self.rows.tile(g), self.ring.tile(stage), scores, self.tiled[form.n], fresh=True)
            mma_commit()

        def multiply_late(step: LoopStep) -> None:
            stage, parity = self.late.place(step.index)
            wait(self.late.full[stage], parity)
            mma_fence()
            mma_async(weights, self.late.tile(stage).permute(1, 0), cells[number], self.mixing)
            mma_commit()

        def release(ring: GroupRing, step: LoopStep) -> None:
            arrive(ring.empty[ring.place(step.index)[0]], each="warp")

        def retire_first(step: LoopStep) -> None:
            # In the first turn no other product is under way.
            mma_wait(0 if isinstance(step.index, int) else 1)
            release(self.ring, step)

        def retire_late(step: LoopStep) -> None:
            mma_wait(0)
            release(self.late, step)

        def weigh(step: LoopStep) -> None:
            """Compute everything that does not depend on the product under way."""
            known: dict[int, Any] = dict(zip(map(id, form.fold.cells), cells, strict=True))
            known[id(score)] = scores
            values = TileValues(StepPlace(self, step.index + self.begin), known)
            late = form.fold.cells[number]
            made = [values.value(new) if at != number else None for at, new in enumerate(form.fold.steps)]
            for node in _without(rest, late):
                values.value(node)
            values.hidden(mixture.a, 0)
            for at, (cell, held, new) in enumerate(zip(form.fold.cells, cells, made, strict=True)):
                if at != number and new is not held:
                    held.assign(values.repeated(new, cell.axes, cell.dtype))
            step.shared["values"] = values

        def rescale(step: LoopStep) -> None:
            """Compute the values that depend on the product that is complete, and keep the weights."""
            values, cell = step.shared["values"], form.fold.cells[number]
            if rest is not cell:
                cells[number].assign(values.repeated(values.value(rest), cell.axes, cell.dtype))
            weights.assign(self.left(mixture, values))

        own = count
        if self.hiding and self.schedule.groups > 1:
            begin, own = self.steps()  # of the rows of this group
            own = let(begin + own - self.begin) if isinstance(begin, Scalar) else own
        wait(self.rows.full[g], 0)
        verbs = [
            Verb("multiply", 0, multiply_first),
            Verb("multiply", -1, multiply_late),
            Verb("retire", 0, retire_first),
            Verb("scale", 0, weigh),
            Verb("retire", -1, retire_late),
            Verb("scale", 0, rescale),
        ]
        main_loop(verbs, own, peeled=True)
        if own is not count:
            for step in traced_range(own, count):  # tiles that only other groups see
                for ring in (self.ring, self.late):
                    stage, parity = ring.place(step)
                    wait(ring.full[stage], parity)
                    arrive(ring.empty[stage], each="warp")
        done = TileValues(self.place, {key: cells[at] for key, at in form.results.items()})
        stores = sorted(form.flow.stores, key=lambda one: not self._is_bulk(one))
        for store in stores:
            if self._is_bulk(store):
                self._store(store, done, g)
            else:
                self.store_one(store, done)
        bulk_wait(0)

    def _is_bulk(self, store: Store) -> bool:
        """Whether a result leaves through shared memory by bulk copies."""
        spans = [span for span in store.at if span.kind != BATCH]
        return spans == [self.form.m, self.form.e] and store.operand.dtype == self.form.element

    def _store(self, store: Store, values: TileValues, g: Index) -> None:
        """Store a result by bulk copies, through the memory of the group's rows."""
        held = self.out[g]
        with made_by("epilogue", store):
            made = values.repeated(values.value(store.value), (self.form.m, self.form.e), store.value.dtype)
            role_barrier(1 + g, threads=32 * WARPS)
            tw.copy(made, columns_of(held, self.schedule.width))
            fence_async()
            role_barrier(1 + g, threads=32 * WARPS)
            batch = (self.at[span] if span.kind == BATCH else slice(None) for span in store.at)
            whole = array(self.arguments, store.operand)[tuple(batch)]
            assert self.form.e is not None
            panels = -(-self.schedule.width // PANEL)
            for p in unroll(panels):
                tma_store(held[p], whole.tile((ROWS, PANEL), (self.at[self.form.m], p)))
            bulk_commit()


def _without(node: Node, late: Node) -> Iterator[Node]:
    """The largest values in an expression that do not depend on a cell."""
    if all(one is not late for one in walk(node)):
        yield node
    elif node is not late:
        for argument in node.arguments:
            yield from _without(argument, late)


# ---------------------------------------------------------------- legality, and the choice

FIELDS = (
    "atom",
    "tile",
    "stages",
    "staging",
    "roles",
    "groups",
    "registers",
    "width",
    "resident",
    "epilogue",
)
"""Fields that these loops have; the others keep their default."""

SUMS = 188
"""Registers of a thread for scores, weights and sums, at most; the others hold addresses and the state."""

MOST_RUN = 128
"""Elements of the loop in one step, at most."""

BARRIER_BYTES = 256
"""Bytes of shared memory for transaction barriers."""


def proposal(form: FoldForm, extents: Mapping[Span, int], arch: Arch) -> Schedule | None:
    """The schedule that the rules propose; None for another form of loop."""
    if "wgmma" not in arch.features or next(against_form(form), None) is not None:
        return None
    assert form.depth is not None
    assert form.e is not None
    depth, width = (max(-(-extents[span] // 16) * 16, 16) for span in (form.depth, form.e))
    run = min(int((SUMS - width / 2) / 0.75) // 16 * 16, MOST_RUN)
    if run < 16 or depth > 256:
        return None
    groups = 1 if extents[form.m] <= ROWS else 2
    tile = (ROWS * groups, run, depth)
    made = Schedule(
        wgmma(form.element, run),
        tile,
        stages=2,
        staging="tma",
        roles="cooperative",
        groups=groups,
        width=width,
        resident=True,
        epilogue="staged",
    )
    return made if shared_bytes(made) <= arch.shared_bytes else None


def shared_bytes(schedule: Schedule) -> int:
    """Bytes of shared memory, for elements of 2 bytes."""
    rows, run, depth = schedule.tile
    deep, wide = (-(-columns // PANEL) * PANEL for columns in (depth, schedule.width))
    held = rows * (deep + wide if wide > deep else deep)
    return 2 * (held + schedule.stages * run * (deep + wide)) + BARRIER_BYTES


def against_form(form: FoldForm) -> Iterator[str]:
    """Reasons why warpgroups do not compute a loop."""
    if len(form.scores) != 1 or len(form.mixtures) != 1:
        yield f"a step has {len(form.scores)} and {len(form.mixtures)} products; warpgroups take one of each"
        return
    [score], [mixture] = form.scores, form.mixtures
    if form.element.name not in ("f16", "bf16") or form.total.name != "f32":
        yield f"the products are of {form.element}; warpgroups multiply f16 and bf16"
    for side in (score.a, score.b, mixture.b):
        part, _ = transposed(side)
        if not isinstance(part, ArrayPart) or part.dtype != form.element:
            yield "an operand is computed, and bulk copies decode nothing"
        elif part.operand.transforms:
            yield f"{part.operand.name} is a view"
        elif [span for span in part.at if span.kind != BATCH] != [*_order(form, side)]:
            yield f"{part.operand.name} has its rows and columns in another order"
    for step in form.fold.steps:
        if any(one is mixture for one in walk(step)) and not _is_added(step, mixture):
            yield "the product is not added to a carried value"


def _order(form: FoldForm, side: Node) -> tuple[Span, Span]:
    """The rows and the contiguous columns of an operand."""
    assert form.depth is not None
    assert form.e is not None
    if side is form.scores[0].a:
        return form.m, form.depth
    return (form.n, form.depth) if side is form.scores[0].b else (form.n, form.e)


def _is_added(step: Node, mixture: Sum) -> bool:
    """Whether a step is ``rest + product``, where the rest does not depend on the product."""
    if not isinstance(step, Map) or step.function != "add" or mixture not in step.given:
        return False
    return all(one is mixture or all(node is not mixture for node in walk(one)) for one in step.given)


def not_taken(schedule: Schedule, taken: Sequence[str], why: str, node: Node) -> Reasons:
    """A reason for each field that a schedule sets, although such loops do not take it.

    Args:
        schedule: the schedule.
        taken: names of the fields that they take.
        why: end of the sentence about a field and its value.
        node: the value to point at.
    """
    for one in fields(schedule):
        if one.name not in taken and getattr(schedule, one.name) != one.default:
            default = repr(one.default).replace("'", '"')
            text = f"{one.name}={schedule.spelled(one.name)} {why}"
            yield one.name, text, f"{one.name}={default}", node


def reasons(schedule: Schedule, form: FoldForm, specs: Mapping[str, TensorSpec], arch: Arch) -> Reasons:
    """Every reason to refuse a schedule of warpgroups."""
    step = form.fold.steps[0]
    if "wgmma" not in arch.features and arch.features:
        yield "staging", f'staging="tma"; {arch.name} has no warpgroups', 'staging="cp_async"', step
        return
    unfit = [*against_form(form)]
    for text in unfit:
        yield "staging", f'staging="tma"; {text}', 'staging="cp_async"', step
    yield from not_taken(schedule, (*FIELDS, "split_k"), "with warpgroups", step)
    if schedule.is_split:
        text = f"split_k={schedule.spelled('split_k')} with warpgroups; schedules without bulk copies split"
        yield "split_k", text, "split_k=1", step
    for field, wanted in (("roles", "cooperative"), ("epilogue", "staged"), ("resident", True)):
        if getattr(schedule, field) != wanted:
            spelled = f'"{wanted}"' if isinstance(wanted, str) else repr(wanted)
            yield field, f"{field}={schedule.spelled(field)} with warpgroups", f"{field}={spelled}", step
    if unfit:
        return
    rows, run, depth = schedule.tile
    if schedule.atom != wgmma(form.element, schedule.atom.shape[1]) or schedule.atom.shape[1] != run:
        yield "atom", f"{schedule.atom} in steps of {run}", f'tw.atoms.wgmma("{form.element}", {run})', step
    width = schedule.width
    if rows != ROWS * schedule.groups or run % 16 or depth % 16 or not 0 < width <= 256 or width % 16:
        near = (ROWS * schedule.groups, max(-(-run // 16) * 16, 16), max(-(-depth // 16) * 16, 16))
        text = f"tile={schedule.tile} and width={width} for {schedule.groups} groups of {ROWS} rows"
        yield "tile", text, f"tile={near}, and a width of 16 to 256, a multiple of 16", step
    if (used := shared_bytes(schedule)) > arch.shared_bytes > 0:
        yield (
            "tile",
            f"{used} bytes of shared memory; {arch.name} has {arch.shared_bytes}",
            "fewer stages",
            step,
        )
    for side in (form.scores[0].a, form.scores[0].b, form.mixtures[0].b):
        part, _ = transposed(side)
        assert isinstance(part, ArrayPart)
        spec = specs[part.operand.name]
        for why, _ in against_array(part.operand.name, spec):
            yield "staging", why, 'staging="cp_async"', part
        if spec.unit_dim is not None and spec.unit_dim != spec.rank - 1:
            why = f"{part.operand.name} is contiguous along dimension {spec.unit_dim}, not along its columns"
            yield "staging", why, 'staging="cp_async"', part
    for store in form.flow.stores:
        spans = [span for span in store.at if span.kind != BATCH]
        if spans == [form.m, form.e] and store.operand.dtype == form.element:
            for why in against_store(store.operand.name, specs[store.operand.name]):
                yield "epilogue", why, 'staging="cp_async"', store
