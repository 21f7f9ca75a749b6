"""Loops that carry a state, on Hopper: one warp issues bulk copies, and warpgroups compute with `wgmma`.

Each warpgroup has 64 rows.  Its products are asynchronous; it computes values while they run
(`tilewright.schedule.folds.group_products`).  Each operand has a ring; a tile is released as soon as its last
product is complete.

Blocks of a persistent grid (``blocks``) take one tile of rows after the other, in the order of `Items`.  The
operands of the next tile are loaded while the last product of this tile runs.  With an ``"overlapped"``
epilogue, results have their own shared memory, so the next rows are loaded while results are stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

from tilewright.dataflow.nodes import BATCH, Span, Store
from tilewright.dtypes import DType
from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import bulk_commit, bulk_wait, fence_async, tma_store
from tilewright.lang.control import let, unroll, var, when
from tilewright.lang.control import range as traced_range
from tilewright.lang.fragments import Fragment
from tilewright.lang.launch import require
from tilewright.lang.roles import role, role_barrier
from tilewright.lang.scalars import Index, Scalar, ceil_div, maximum, minimum
from tilewright.lang.tensors import Tensor
from tilewright.lang.transaction_barriers import arrive, wait
from tilewright.schedule.folds.block import FoldBlock
from tilewright.schedule.folds.form import read_first
from tilewright.schedule.folds.group_products import GroupProducts, mixtures_of
from tilewright.schedule.folds.group_rings import (
    PANEL,
    ROWS,
    WARPS,
    CopyRing,
    GroupRing,
    RowRing,
    columns_of,
    copied_operands,
    panel_buffers,
    panel_columns,
    panel_types,
)
from tilewright.schedule.folds.items import Items, RowTile
from tilewright.schedule.folds.kept import KeptStep
from tilewright.schedule.folds.operands import StepPlace
from tilewright.schedule.folds.parts import MergedStates
from tilewright.schedule.folds.rows import KEPT
from tilewright.schedule.folds.values import TileValues
from tilewright.schedule.form import array
from tilewright.schedule.pipeline import LoopStep, Verb, main_loop
from tilewright.schedule.provenance import FIELD_OF_VERB, made_by
from tilewright.schedule.work import Segment, Work
from tilewright.targets.atoms import wgmma

FEW = 40
"""Most registers of a thread of the copying warp."""

OF_LANES = 512
"""Registers of a multiprocessor divided by the 128 threads of a warpgroup."""


def role_registers(groups: int) -> int:
    """Return the sum of registers per thread over all roles.

    A launch gives each of the ``groups + 1`` warpgroups the same number of registers, a multiple of 8.
    """
    return OF_LANES // (groups + 1) // 8 * 8 * (groups + 1)


class GroupBlock(FoldBlock):
    """The work of one block: one warp copies, and warpgroups compute."""

    items: Items | None = None
    """The tiles of rows of a persistent block; None: the block has one tile."""

    group: Index = 0
    """Index of the computing warpgroup."""

    exchange: MergedStates | None = None
    """The merge of the cells of a row's parts; None: a block computes whole rows."""

    def _number(self) -> dict[Span, Index]:
        """Return the index of the block's tile along each span; `turns` sets those of a persistent block."""
        form, schedule = self.form, self.schedule
        if not schedule.blocks:
            return super()._number()
        groups = self.row_groups()
        tiles = ceil_div(self.place.integer(form.m.extent), schedule.tile[0])
        tiles = tiles if groups is None else groups.numbers
        leading = [self.place.integer(span.extent) for span in self.heads]
        band: Index | None = None
        if schedule.group_n:  # bands of equal width
            heads = maximum(prod(leading, start=1), 1)
            band = ceil_div(heads, ceil_div(heads, schedule.group_n))
        rises = [one.rises for mask in self.hiding for one in mask.comparisons]
        falling = bool(rises) and all(rises)
        self.tiles = prod(leading, start=tiles)
        self.parts = self._parts()
        if schedule.fold == KEPT:
            most = schedule.blocks
            require(self.parts <= most, f"a row has more than {most} blocks, which wait for each other")
        self.items = Items(leading, tiles * self.parts, schedule.blocks, band, falling=falling)
        return dict.fromkeys(form.columns, 0)

    @property
    def heads(self) -> list[Span]:
        """The batch spans, without the span of the groups of rows."""
        groups = self.form.m.groups
        return [span for span in self.form.batch if groups is None or span != groups.index]

    def read_bounds(self) -> None:
        """Do nothing: each role reads the bounds of its tiles in `turns`."""

    def turns(self) -> Iterator[RowTile]:
        """Yield the block's tiles of rows in order, each with its steps."""
        if self.items is None:
            super().read_bounds()
            yield RowTile(0, 0, self.at[self.form.m], *self.steps())
            return
        done, twice = var(0), 2 * self.schedule.stages
        again, inner = self.passes()
        groups = self.row_groups()
        for item in self.items.all():
            self.at.update(zip(self.heads, item.batch, strict=True))
            self.at[self.form.m] = item.tile
            if self.exchange is not None:  # the parts of a row follow each other
                self.at[self.form.m] = let(item.tile // self.parts)
            if groups is not None:
                self.find(groups, self.at)
            super().read_bounds()
            before = let(maximum(minimum(done.get(), twice - 1), 0))
            part = 0 if self.exchange is None else let(item.tile % self.parts)
            begin, count = self.steps(part)
            yield RowTile(item.parity, before, self.at[self.form.m], begin, count, part)
            # Stages and parities repeat after twice the stages of a ring.
            done.set((before + (count + again) * inner) % twice)

    def passes(self) -> tuple[Index, Index]:
        """The number of steps of the second pass over a row tile, and of tiles along the depth of a step."""
        form = self.form
        again: Index = 0
        if form.passing and self.schedule.fold != KEPT:
            again = let(ceil_div(self.place.integer(form.n.extent), self.length(form.n)))
        if self.schedule.resident or form.depth is None:
            return again, 1
        return again, let(ceil_div(self.place.integer(form.depth.extent), self.length(form.depth)))

    def multiply(self, columns: int) -> TiledMma:
        """The multiplication of one warpgroup that gives a tile with this number of columns."""
        return TiledMma(wgmma(self.form.element, columns))

    def run(self) -> None:
        """Write the kernel."""
        form, schedule = self.form, self.schedule
        groups = schedule.groups
        # Bulk copies store whole panels of 64 columns, so one block must have all columns of the result.
        for span in form.columns:
            self.require_covered(span, schedule.width, "width")
        with made_by("stages"):
            self.done = TileValues(self.place, {})
            self.lengths[form.m] = ROWS if schedule.resident else schedule.tile[0]
            self.rings: dict[int, GroupRing] = {}
            self.fixed: list[GroupRing] = []
            self.moved: list[CopyRing] = []
            for operand in copied_operands(form):
                moves = operand.moves or not schedule.resident
                stages, readers = (schedule.stages, groups * WARPS) if moves else (groups, WARPS)
                ring = GroupRing(self, operand, stages, readers)
                (self.moved if moves else self.fixed).append(ring)
                self.rings.update(dict.fromkeys(operand.nodes, ring))
            self.step_rows = RowRing.of(self, schedule.stages, groups * WARPS) if schedule.resident else None
            if self.step_rows is not None:
                self.moved.insert(1, self.step_rows)
            wide = -(-schedule.width // PANEL)
            self.outs = [ring.held for ring in self.fixed if wide <= int(ring.held.shape[1])]
            stores = any(map(self._is_bulk, form.flow.stores)) or (form.m.groups is None and form.columns)
            self.apart = not stores or schedule.epilogue == "overlapped" or not self.outs
            if self.apart and stores:
                shape = (groups, wide, ROWS, PANEL)
                self.outs = [tw.shared(shape, form.element, swizzle=128, name="sOut")]
            self.panels: dict[DType, Tensor] = {}
            for kind in panel_types(form, schedule):
                shape = (groups, panel_buffers(kind, schedule.tile[1]), ROWS, panel_columns(kind))
                self.panels[kind] = tw.shared(shape, kind, swizzle=128, name="sPanels")
            self.lengths[form.m] = schedule.tile[0]
            tw.barrier()
        with made_by("reduction"):
            if schedule.is_split:
                kinds = [(self.place.spread(cell.axes), cell.dtype) for cell in form.fold.cells]
                self.exchange = self.reduction(self.tiles * groups, kinds)
        few = min(FEW, role_registers(groups) - groups * schedule.registers) if schedule.registers else None
        with made_by("roles"), role(warps=WARPS, registers=few), role(warps=1):
            for copied in self.moved:
                copied.begin()
            for loaded in self.turns():
                (self._load if schedule.resident else self._load_in_parts)(loaded)
        with made_by("roles"), role(warps=WARPS, groups=groups, registers=schedule.registers or None) as own:
            for turn in self.turns():
                self._compute(own, turn)
            if self.panels or (self.apart and any(map(self._is_bulk, form.flow.stores))):
                bulk_wait(0)

    def _load(self, turn: RowTile) -> None:
        """Copy the operands of a tile of rows.

        Ring stages become free before the memory of the row operand, which the last product of the previous
        tile reads, or from which results are stored.  So the row operand is copied after the first ring tile.
        """
        groups = self.schedule.groups

        def load(ring: CopyRing) -> Verb:
            def load(step: LoopStep) -> None:
                stage, parity = ring.place(turn.before + step.index)
                wait(ring.empty[stage], 1 - parity)
                at = StepPlace(self, step.index + turn.begin)
                ring.load(stage, at.at(self.form.n), at)

            return Verb("load", 0, load)

        def load_rows() -> None:
            for g in unroll(groups):
                for ring in self.fixed:
                    if self.items is not None:
                        wait(ring.empty[g], 1 - turn.parity)
                    ring.load(g, turn.tile * groups + g, self.place)

        def load_first(step: LoopStep) -> None:
            with when(step.index == 0):
                load_rows()

        verbs = [load(ring) for ring in self.moved]
        verbs.insert(1 if self.apart else len(verbs), Verb("load", 0, load_first))
        main_loop(verbs, turn.count)
        if isinstance(turn.count, Scalar):
            with when(turn.count == 0):
                load_rows()

    def _load_in_parts(self, turn: RowTile) -> None:
        """Copy the operands of a row tile for both passes, in a loop over tiles of the scores' depth."""
        again, inner = self.passes()
        moved, n, m = self.moved, self.form.n, self.form.m

        def load(step: LoopStep, begin: Index, before: Index) -> None:
            def load_one(part: LoopStep) -> None:
                at = StepPlace(self, step.index + begin, part.index)
                number = before + step.index * inner + part.index
                for ring in moved:
                    stage, parity = ring.place(number)
                    wait(ring.empty[stage], 1 - parity)
                    is_fixed = isinstance(ring, GroupRing) and ring.operand.rows == m
                    ring.load(stage, turn.tile if is_fixed else at.at(n), at)

            main_loop([Verb("load", 0, load_one)], inner)

        passes = [(turn.count, turn.begin, turn.before)]
        if self.form.passing and self.schedule.fold != KEPT:
            passes.append((again, 0, let(turn.before + turn.count * inner)))
        for count, begin, before in passes:
            main_loop([Verb("load", 0, partial(load, begin=begin, before=before))], count)

    def _compute(self, g: Index, turn: RowTile) -> None:
        """Compute the rows of warpgroup ``g`` in a tile of rows."""
        form, count = self.form, turn.count
        self.lengths[form.m], self.group = ROWS, g
        self.at[form.m] = let(turn.tile * self.schedule.groups + g)
        mixed = {one.at for one in mixtures_of(form)}
        first = TileValues(self.place, {})
        cells: list[Fragment] = []
        for at, cell in enumerate(form.fold.cells):
            start = first.value(cell.start)
            if at in mixed and not isinstance(start, Fragment):
                tiled = self.tiled[next(span for span in form.columns if span in cell.axes)]
                cells.append(tw.accumulator(tiled, fill=start, name=cell.name))
            else:
                cells.append(first.repeated(start, cell.axes, cell.dtype))
        again, parts = self.passes()
        products = GroupProducts(self, self.rings, self.step_rows, g, turn, cells, parts)

        def release_rows() -> None:
            """Release the row operand, if results have other memory: all products with it are complete."""
            if self.items is not None and self.apart:
                for ring in self.fixed:
                    arrive(ring.empty[g], each="warp")

        own = count
        is_uneven = self.hiding and not form.fold.turns and self.exchange is None
        if is_uneven and self.schedule.tile[1] < self.schedule.tile[0] != ROWS:
            begin, own = self.steps()  # of the rows of this warpgroup
            if isinstance(begin, Scalar):  # fully masked rows begin after the last step
                own = let(minimum(begin + own - turn.begin, count))
        if self.schedule.fold == KEPT:
            step = LoopStep(0, 0, 0, 0)
            for verb in products.verbs():
                with made_by(FIELD_OF_VERB[verb.name]):
                    verb.do(step)
            kept = KeptStep(self, step.shared["values"], cells, StepPlace(self, turn.begin))
            if self.exchange is None:
                kept.store(cells)
            else:
                self.exchange.end_tile(self._part(turn, g), cells, (), kept, form.flow.stores[0])
            self.lengths[form.m] = self.schedule.tile[0]
            return
        for ring in self.fixed:
            wait(ring.full[g], turn.parity)
        main_loop(products.verbs(), own, issued=release_rows, peeled=True)
        if own is not count:
            for number in traced_range(own * parts, count * parts):  # ring tiles that only other groups read
                for moved in self.moved:
                    stage, parity = moved.place(turn.before + number)
                    wait(moved.full[stage], parity)
                    arrive(moved.empty[stage], each="warp")
        if self.exchange is not None:
            self.exchange.end_tile(self._part(turn, g), cells, (), self, form.flow.stores[0])
            self.lengths[form.m] = self.schedule.tile[0]
            return
        done = self.after(form.fold, cells, [store.value for store in form.passing])
        if form.passing:
            main_loop(products.second_pass(done), again)
        stores = [store for store in form.flow.stores if store not in form.passing]
        self.read_stored(stores, done)
        stores = sorted(stores, key=lambda one: not self._is_bulk(one))
        for one in read_first(stores, done.known):
            done.value(one)
        for number, store in enumerate(stores):
            if self._is_bulk(store):
                if number >= len(self.outs) or (self.items is not None and self.apart):
                    bulk_wait(0)  # earlier stores have read the memory
                self._store(store, done, g, number % len(self.outs))
            else:
                self.store_one(store, done)
        if not self.apart:
            bulk_wait(0)
            if self.items is not None:
                for ring in self.fixed:
                    arrive(ring.empty[g], each="warp")
        self.lengths[form.m] = self.schedule.tile[0]

    def _part(self, turn: RowTile, g: Index) -> Work:
        """The part of a row that warpgroup ``g`` has computed."""
        at: Index = 0
        for span in self.heads:
            at = at * self.place.integer(span.extent) + self.at[span]
        tiles = ceil_div(self.place.integer(self.form.m.extent), self.schedule.tile[0])
        row = let(at * tiles + turn.tile)
        number = let(row * self.schedule.groups + g)
        segment = Segment(0, row, turn.part, self.parts, lambda part: number * self.parts + part)
        return Work((), 0, 0, 0, turn.count, 0, g, segment)

    def _is_bulk(self, store: Store) -> bool:
        """Whether a result is stored by bulk copies from shared memory."""
        if self.form.m.groups is not None:  # a group may end inside a box, and bulk copies store whole boxes
            return False
        m, *columns = (span for span in store.at if span.kind != BATCH)
        in_columns = len(columns) == 1 and columns[0] in self.form.columns
        return m == self.form.m and in_columns and store.operand.dtype == self.form.element

    def store_one(self, store: Store, values: TileValues) -> None:
        """Store a result.  With a staged epilogue, bulk copies of panels store a result along the loop."""
        form, held = self.form, self.panels.get(store.operand.dtype)
        if held is None or store not in form.passing:
            super().store_one(store, values)
            return
        held, wide = held[self.group], int(held.shape[3])
        with made_by("epilogue", store):
            made = values.repeated(values.value(store.value), (form.m, form.n), store.value.dtype)
            batch = (self.at[span] if span.kind == BATCH else slice(None) for span in store.at)
            whole = array(self.arguments, store.operand)[tuple(batch)]
            count, buffers = self.length(form.n) // wide, int(held.shape[0])
            for p in unroll(count):
                bulk_wait(buffers - 1)  # earlier stores have read this buffer
                role_barrier(1 + self.group, threads=32 * WARPS)
                tw.copy(made[:, p * wide : (p + 1) * wide], held[p % buffers])
                fence_async()
                role_barrier(1 + self.group, threads=32 * WARPS)
                at = values.place.at(form.n) * count + p
                tma_store(held[p % buffers], whole.tile((ROWS, wide), (self.at[form.m], at)))
                bulk_commit()

    def _store(self, store: Store, values: TileValues, g: Index, out: int) -> None:
        """Store a result by bulk copies from the warpgroup's shared memory.

        Args:
            store: the result.
            values: the values after the loop.
            g: index of the warpgroup.
            out: index of the buffer in ``self.outs``.
        """
        held = self.outs[out][g]
        with made_by("epilogue", store):
            axes = tuple(span for span in store.at if span.kind != BATCH)
            made = values.repeated(values.value(store.value), axes, store.value.dtype)
            role_barrier(1 + g, threads=32 * WARPS)
            tw.copy(made, columns_of(held, self.schedule.width))
            fence_async()
            role_barrier(1 + g, threads=32 * WARPS)
            batch = (self.at[span] if span.kind == BATCH else slice(None) for span in store.at)
            whole = array(self.arguments, store.operand)[tuple(batch)]
            panels = -(-self.schedule.width // PANEL)
            for p in unroll(panels):
                tma_store(held[p], whole.tile((ROWS, PANEL), (self.at[self.form.m], p)))
            bulk_commit()
