"""Loops that carry a state, by bulk copies and asynchronous multiplies: one warp copies, warpgroups compute.

Each warpgroup has 64 rows.  It issues the product with the next tiles of the loop together with the product
that its last weights wait for, and computes new values while the second one runs.  Operands of a step come in
two rings, whose tiles are released as soon as their product is complete.

Blocks of a persistent grid (``blocks``) take one tile of rows after the other, in the order of `Items`.  The
operands of the next tile are loaded while the last product of this tile runs.  Under an ``"overlapped"``
epilogue results have memory of their own, so that the next rows are loaded while results are stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any

import numpy as np

from tilewright.arch import Arch
from tilewright.dataflow.nodes import BATCH, ArrayPart, Map, Node, Span, Store, Sum, walk
from tilewright.functions.table import CONVERSION
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
from tilewright.lang.control import let, unroll, var, when
from tilewright.lang.control import range as traced_range
from tilewright.lang.fragments import Fragment
from tilewright.lang.launch import require
from tilewright.lang.roles import role, role_barrier
from tilewright.lang.scalars import Index, Scalar, ceil_div, maximum, minimum
from tilewright.lang.specs import TensorSpec
from tilewright.lang.tensors import Tensor
from tilewright.lang.transaction_barriers import arrive, mbarrier, wait
from tilewright.schedule.bulk_views import against_array, against_store
from tilewright.schedule.facts import Reasons
from tilewright.schedule.folds.block import FoldBlock, StepPlace
from tilewright.schedule.folds.form import FoldForm, transposed
from tilewright.schedule.folds.items import Items, longest
from tilewright.schedule.folds.masks import masks_of
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

SPEEDUP = 2
"""How many times as fast a tile is with warpgroups as with warps.

Source: three chains of 4096 rows, 128 and 256 columns, on an H200 (2026-11-28).  Warpgroups took 0.51 to
0.54 of the time of warps that had parts of the loop on all processors.
"""

FEW = 40
"""Registers of a thread of the warp that copies, at most."""

OF_LANES = 512
"""Registers of all threads of a multiprocessor with the same lane in their warpgroups."""

LEAST = 24
"""Registers of a thread, at least."""

ENDINGS = ("staged", "overlapped")
"""Epilogues: results leave through the memory of the queries, or through memory of their own."""


class GroupRing:
    """Tiles of an operand in shared memory, with the barriers that say when they are full and empty.

    The rows of a tile are along the first axis of the operand in the graph.  If the array is contiguous along
    its rows, panels of 64 rows are copied, otherwise panels of 64 columns.

    Args:
        block: the block.
        axes: the spans of the operand: rows and columns.
        node: the operand.
        stages: number of tiles.
        readers: number of warps that read a tile.
    """

    def __init__(
        self, block: GroupBlock, node: Node, axes: tuple[Span, Span], stages: int, readers: int
    ) -> None:
        part, _ = transposed(node)
        assert isinstance(part, ArrayPart), "bulk copies decode nothing"
        self.block, self.part, self.stages = block, part, stages
        self.rows, self.columns = map(block.length, axes)
        self.turned = [span for span in part.at if span.kind != BATCH] != [*axes]
        self.by_row = self.whole().unit_dim == 0
        along, across = (self.rows, self.columns) if self.by_row else (self.columns, self.rows)
        panels = -(-along // PANEL)
        name = f"s{part.operand.name}"
        self.held = tw.shared((stages, panels, across, PANEL), part.dtype, swizzle=128, name=name)
        self.full = mbarrier(stages, arrivals=1)
        self.empty = mbarrier(stages, arrivals=readers)

    def whole(self) -> Tensor:
        """The array without batches, as (rows, columns)."""
        block, operand = self.block, self.part.operand
        batch = (block.at.get(span, 0) if span.kind == BATCH else slice(None) for span in self.part.at)
        whole = array(block.arguments, operand)[tuple(batch)]
        spans = [span for span in self.part.at if span.kind != BATCH]
        if any(span in block.cuts for span in spans):  # boxes may reach into the next group
            whole = whole[tuple(block.place.cut(span, whole=True) for span in spans)]
        return whole.permute(1, 0) if self.turned else whole

    def load(self, stage: Index, at: Index) -> None:
        """Copy the tile of some rows into a stage that is empty."""
        held, full = self.held[stage], self.full[stage]
        panels, across = int(held.shape[0]), int(held.shape[1])
        arrive(full, expect_bytes=panels * across * PANEL * self.part.dtype.bytes)
        whole = self.whole()
        for p in unroll(panels):
            if self.by_row:
                source = whole.permute(1, 0).tile((across, PANEL), (0, at * panels + p))
            else:
                source = whole.tile((across, PANEL), (at, p))
            tma_load(source, held[p], full)

    def tile(self, stage: Index) -> Tensor:
        """A tile as (rows, columns)."""
        held = self.held[stage]
        return columns_of(held, self.rows).permute(1, 0) if self.by_row else columns_of(held, self.columns)

    def place(self, number: Index) -> tuple[Index, Index]:
        """The stage of a step, counted from the first step of the block, and the parity of its turn."""
        return let(number % self.stages), let(number // self.stages % 2)


def columns_of(panels: Tensor, columns: int) -> Tensor:
    """Panels side by side, cut to the columns in use."""
    whole = panels.permute(1, 0, 2).merge(1)
    return whole if whole.shape[1] == columns else whole.tile((whole.shape[0], columns), (0, 0))


@dataclass(frozen=True)
class RowTile:
    """One tile of rows of a block.

    Args:
        parity: parity of the number of tiles that the block has taken before.
        before: number of steps before the tile, modulo two turns of the rings.
        tile: its number along the rows.
        begin: its first step.
        count: number of its steps.
    """

    parity: Index
    before: Index
    tile: Index
    begin: Index
    count: Index


class GroupBlock(FoldBlock):
    """The work of one block of a warp that copies and of warpgroups that compute."""

    items: Items | None = None
    """The tiles of rows of the block; None: it has one, whose place is known."""

    def _number(self) -> dict[Span, Index]:
        """Return the index of the block's tile along each span; of a persistent block, none yet."""
        form, schedule = self.form, self.schedule
        if not schedule.blocks:
            return super()._number()
        assert form.e is not None, "the result has columns"
        groups = self.row_groups()
        tiles = ceil_div(self.place.integer(form.m.extent), schedule.tile[0])
        tiles = tiles if groups is None else groups.numbers
        leading = [self.place.integer(span.extent) for span in self.heads]
        band: Index | None = None
        if schedule.group_n:  # bands of equal width
            heads = maximum(prod(leading, start=1), 1)
            band = ceil_div(heads, ceil_div(heads, schedule.group_n))
        self.items = Items(leading, tiles, schedule.blocks, band)
        return {form.e: 0}

    @property
    def heads(self) -> list[Span]:
        """The leading spans besides that of groups of rows."""
        groups = self.form.m.groups
        return [span for span in self.form.batch if groups is None or span != groups.index]

    def read_bounds(self) -> None:
        """Nothing yet: each role reads the bounds of a tile."""

    def turns(self) -> Iterator[RowTile]:
        """The block's tiles, one after the other, each with its steps."""
        if self.items is None:
            super().read_bounds()
            yield RowTile(0, 0, self.at[self.form.m], *self.steps())
            return
        done, twice = var(0), 2 * self.schedule.stages
        groups = self.row_groups()
        for item in self.items.all():
            self.at.update(zip(self.heads, item.batch, strict=True))
            self.at[self.form.m] = item.tile
            if groups is not None:
                self.find(groups, self.at)
            super().read_bounds()
            before = let(maximum(minimum(done.get(), twice - 1), 0))
            begin, count = self.steps()
            yield RowTile(item.parity, before, self.at[self.form.m], begin, count)
            done.set((before + count) % twice)  # after two turns of a ring, stages and parities repeat

    def multiply(self, columns: int) -> TiledMma:
        """The multiplication of the tiles of one group with these columns."""
        return TiledMma(wgmma(self.form.element, columns))

    def run(self) -> None:
        """Write the kernel."""
        form, schedule = self.form, self.schedule
        [score], [mixture] = form.scores, form.mixtures
        groups = schedule.groups
        assert form.depth is not None
        assert form.e is not None
        # Bulk copies store whole panels of 64 columns, so that no other block may have columns of the result.
        require(
            self.place.integer(form.e.extent) <= schedule.width,
            f"{form.e.name} must be at most {schedule.width}: one tile of the schedule covers it (width)",
        )
        with made_by("stages"):
            self.lengths[form.m] = ROWS
            self.rows = GroupRing(self, score.a, (form.m, form.depth), groups, WARPS)
            self.ring = GroupRing(self, score.b, (form.n, form.depth), schedule.stages, groups * WARPS)
            self.late = GroupRing(self, mixture.b, (form.n, form.e), schedule.stages, groups * WARPS)
            wide = -(-schedule.width // PANEL)
            self.out = self.rows.held
            stores = any(map(self._is_bulk, form.flow.stores)) or form.m.groups is None
            self.apart = not stores or schedule.epilogue == "overlapped" or wide > int(self.out.shape[1])
            if self.apart and stores:
                shape = (groups, wide, ROWS, PANEL)
                self.out = tw.shared(shape, form.element, swizzle=128, name="sOut")
            self.lengths[form.m] = schedule.tile[0]
            tw.barrier()
        few = min(FEW, OF_LANES - groups * schedule.registers) if schedule.registers else None
        with made_by("roles"), role(warps=WARPS, registers=few), role(warps=1):
            for loaded in self.turns():
                self._load(loaded)
        with (
            made_by("roles"),
            role(warps=WARPS, groups=groups, registers=schedule.registers or None) as own,
        ):
            for turn in self.turns():
                self._compute(own, turn)
            if self.apart:
                bulk_wait(0)

    def _load(self, turn: RowTile) -> None:
        """Copy the operands of a tile of rows.

        Stages of the rings become free before the memory of the rows, which the last product of the previous
        tile reads, or from which results are stored: rows come after the first tile that waits less.
        """
        groups = self.schedule.groups

        def load(ring: GroupRing) -> Verb:
            def load(step: LoopStep) -> None:
                stage, parity = ring.place(turn.before + step.index)
                wait(ring.empty[stage], 1 - parity)
                ring.load(stage, step.index + turn.begin)

            return Verb("load", 0, load)

        def load_rows() -> None:
            for g in unroll(groups):
                if self.items is not None:
                    wait(self.rows.empty[g], 1 - turn.parity)
                self.rows.load(g, turn.tile * groups + g)

        def load_first(step: LoopStep) -> None:
            with when(step.index == 0):
                load_rows()

        verbs = [load(self.ring), load(self.late)]
        verbs.insert(1 if self.apart else 2, Verb("load", 0, load_first))
        main_loop(verbs, turn.count)
        if isinstance(turn.count, Scalar):
            with when(turn.count == 0):
                load_rows()

    def _compute(self, g: Index, turn: RowTile) -> None:
        """Compute the rows of one group in a tile."""
        form, count = self.form, turn.count
        self.lengths[form.m] = ROWS
        self.at[form.m] = let(turn.tile * self.schedule.groups + g)
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
            stage, parity = self.ring.place(turn.before + step.index)
            wait(self.ring.full[stage], parity)
            mma_fence()
            mma_async(self.rows.tile(g), self.ring.tile(stage), scores, self.tiled[form.n], fresh=True)
            mma_commit()

        def multiply_late(step: LoopStep) -> None:
            stage, parity = self.late.place(turn.before + step.index)
            wait(self.late.full[stage], parity)
            mma_fence()
            mma_async(weights, self.late.tile(stage).permute(1, 0), cells[number], self.mixing)
            mma_commit()

        def release(ring: GroupRing, step: LoopStep) -> None:
            arrive(ring.empty[ring.place(turn.before + step.index)[0]], each="warp")

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
            values = TileValues(StepPlace(self, step.index + turn.begin), known)
            late = form.fold.cells[number]
            made = [values.value(new) if at != number else None for at, new in enumerate(form.fold.steps)]
            for node in _without(rest, late):
                values.value(node)
            values.hidden(unconverted(mixture.a), 0)
            for at, (cell, held, new) in enumerate(zip(form.fold.cells, cells, made, strict=True)):
                if at != number and new is not held:
                    held.assign(values.carried(new, cell))
            step.shared["values"] = values

        def rescale(step: LoopStep) -> None:
            """Compute the values that depend on the product that is complete, and keep the weights."""
            values, cell = step.shared["values"], form.fold.cells[number]
            if rest is not cell:
                cells[number].assign(values.repeated(values.value(rest), cell.axes, cell.dtype))
            weights.assign(self.left(mixture, values))

        def release_rows() -> None:
            """All products with these rows are complete, and results are stored from another place."""
            if self.items is not None and self.apart:
                arrive(self.rows.empty[g], each="warp")

        own = count
        if self.hiding and self.schedule.tile[1] < self.schedule.tile[0] != ROWS:
            begin, own = self.steps()  # of the rows of this group
            own = let(begin + own - turn.begin) if isinstance(begin, Scalar) else own
        wait(self.rows.full[g], turn.parity)
        verbs = [
            Verb("multiply", 0, multiply_first),
            Verb("multiply", -1, multiply_late),
            Verb("retire", 0, retire_first),
            Verb("scale", 0, weigh),
            Verb("retire", -1, retire_late),
            Verb("scale", 0, rescale),
        ]
        main_loop(verbs, own, issued=release_rows, peeled=True)
        if own is not count:
            for step in traced_range(own, count):  # tiles that only other groups see
                for ring in (self.ring, self.late):
                    stage, parity = ring.place(turn.before + step)
                    wait(ring.full[stage], parity)
                    arrive(ring.empty[stage], each="warp")
        done = TileValues(self.place, {key: cells[at] for key, at in form.results.items()})
        stores = sorted(form.flow.stores, key=lambda one: not self._is_bulk(one))
        for number, store in enumerate(stores):
            if self._is_bulk(store):
                if number or (self.items is not None and self.apart):
                    bulk_wait(0)  # earlier stores have read the memory
                self._store(store, done, g)
            else:
                self.store_one(store, done)
        if not self.apart:
            bulk_wait(0)
            if self.items is not None:
                arrive(self.rows.empty[g], each="warp")
        self.lengths[form.m] = self.schedule.tile[0]

    def _is_bulk(self, store: Store) -> bool:
        """Whether a result leaves through shared memory by bulk copies."""
        if self.form.m.groups is not None:  # a group ends anywhere, and bulk copies store whole boxes
            return False
        spans = [span for span in store.at if span.kind != BATCH]
        return spans == [self.form.m, self.form.e] and store.operand.dtype == self.form.element

    def _store(self, store: Store, values: TileValues, g: Index) -> None:
        """Store a result by bulk copies, through shared memory of the group."""
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


def unconverted(node: Node) -> Node:
    """A value before it is converted: if it were converted here, ptxas would serialize the products."""
    while isinstance(node, Map) and node.function in CONVERSION:
        node = node.given[0]
    return node


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
    "blocks",
    "group_n",
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

REGISTERS = {1: 232, 2: 232, 3: 160}
"""Groups -> registers of a thread that computes."""

OTHERS = 32
"""Registers of a thread for addresses and the state, if a step has no tiles but those of its products."""

AS_EVEN = 1.02
"""Tolerated increase of the time of the longest block for a narrower band, which is cached better."""

MOST_DEALT = 1 << 16
"""Tiles of rows beyond which every band is balanced, so that widths are not compared."""

ITEM = 0.6
"""Overhead of a tile of rows, in steps of the loop."""

MOST_BAND = 64
"""Batch items of a band, at most: more have long and short tiles enough for all processors."""

BARRIER_BYTES = 256
"""Bytes of shared memory for transaction barriers."""


CACHE_SHARE = 0.7
"""Fraction of the L2 cache that the operands of the loop may fill, of all batch items of a band."""

CACHE_BYTES = 40e6
"""Assumed L2 cache of an unknown machine, in bytes."""

STEP_OF_THREE = 1.24
"""Time of a step of three groups, over that of two; measured without a mask at 64 columns (0.81 per row)."""

OVERHANG = 1.05
"""Rows of the tiles of three groups over those of two, at most: three pay if few rows are missing."""


def proposals(
    form: FoldForm, extents: Mapping[Span, int], arch: Arch, processors: int = 0
) -> Iterator[Schedule]:
    """The schedules that the rules propose; none for another form of loop.

    The second one has steps of whole panels: it serves arrays that are contiguous along the loop.

    Args:
        form: the form.
        extents: the extent of every span.
        arch: the machine.
        processors: its processors, each of which runs one block; 0: unknown, and each tile has a block.
    """
    if "wgmma" not in arch.features or next(against_form(form), None) is not None:
        return
    assert form.depth is not None
    assert form.e is not None
    rows = extents[form.m]
    depth, width = (max(-(-extents[span] // 16) * 16, 16) for span in (form.depth, form.e))
    run = min(int((SUMS - width / 2) / 0.75) // 16 * 16, MOST_RUN)
    if run < 16 or depth > 256:
        return
    is_masked = bool(processors and masks_of(form))
    is_small = depth <= PANEL and run * 0.75 + width / 2 <= REGISTERS[3] - OTHERS and not _has_tiles(form)
    groups = 1 if rows <= ROWS else 2
    bands = _bands(form, extents, arch, (ROWS * groups, run), processors) if is_masked else {}
    if groups == 2 and is_small and is_masked:
        of_three = _bands(form, extents, arch, (ROWS * 3, run), processors)
        if STEP_OF_THREE * min(of_three.values()) < min(bands.values()):
            groups, bands = 3, of_three
    elif groups == 2 and is_small:
        by_two, by_three = (-(-rows // side) * side for side in (2 * ROWS, 3 * ROWS))
        groups = 3 if by_three <= OVERHANG * by_two else 2
    least = min(bands.values(), default=0)
    made = Schedule(
        wgmma(form.element, run),
        (ROWS * groups, run, depth),
        stages=2,
        staging="tma",
        roles="cooperative",
        groups=groups,
        blocks=processors,
        group_n=min((width for width, time in bands.items() if time <= AS_EVEN * least), default=0),
        registers=REGISTERS[groups],
        width=width,
        resident=True,
    )
    for step, by_row in ((run, False), (run // PANEL * PANEL, True)):
        if (by_row and step == run) or not step:
            continue
        one = replace(made, atom=wgmma(form.element, step), tile=(ROWS * groups, step, depth))
        ways = [replace(one, epilogue=epilogue) for epilogue in reversed(ENDINGS[: 1 + bool(processors)])]
        yield from [way for way in ways if shared_bytes(way, (by_row, by_row)) <= arch.shared_bytes][:1]


def _has_tiles(form: FoldForm) -> bool:
    """Whether a step has tiles in registers besides its products and what is computed from them."""
    sides = [side for one in form.scores for side in (one.a, one.b)] + [one.b for one in form.mixtures]
    copied = {id(node) for side in sides for node in walk(side)}
    found = (node for node in form.inside() if isinstance(node, ArrayPart) and form.n in node.axes)
    return any(id(node) not in copied for node in found)


def _bands(
    form: FoldForm, extents: Mapping[Span, int], arch: Arch, tile: tuple[int, int], blocks: int
) -> dict[int, float]:
    """Widths of bands of tiles, in batch items, and the time of the slowest block in steps of the loop.

    Widths are powers of 2, so that few kernels serve growing arrays.  The operands that the loops of the
    widest band copy fit the cache.  Items that share them count once.  The other band is half as wide.  Times
    are those behind a mask along a diagonal.

    Args:
        form: the form.
        extents: the extent of every span.
        arch: the machine.
        tile: rows of a tile, and elements of a step.
        blocks: number of blocks that run at the same time.
    """
    assert form.depth is not None
    assert form.e is not None
    part, _ = transposed(form.scores[0].b)
    assert isinstance(part, ArrayPart), "bulk copies decode nothing"
    boards = arch.rates.boards if arch.rates else ()
    cache = CACHE_SHARE * (boards[0].l2_mbytes * 1e6 if boards else CACHE_BYTES)
    of_item = extents[form.n] * (extents[form.depth] + extents[form.e]) * form.element.bytes
    shared = max(prod(extents[span] for span in form.batch if span not in part.at), 1)
    at_once = max(int(cache // max(of_item, 1)), 1) * shared
    items = max(prod(extents[span] for span in form.batch), 1)
    ends = np.arange(1, -(-extents[form.m] // tile[0]) + 1) * tile[0]
    most = min(at_once, MOST_BAND).bit_length() - 1
    lengths = -(-np.minimum(ends, extents[form.n]) // tile[1]) + ITEM
    if items * ends.size > MOST_DEALT:
        return {1 << most: items * float(lengths.sum()) / blocks}
    times = {}
    for log2 in range(max(most - 1, 0), most + 1):
        wide = -(-items // -(-items // (1 << log2)))  # bands of equal width
        times[1 << log2] = longest(lengths, items, wide, blocks)
    return times


def shared_bytes(schedule: Schedule, by_row: Sequence[bool] = (False, False)) -> int:
    """Bytes of shared memory, for elements of 2 bytes.

    Args:
        schedule: the schedule.
        by_row: whether each operand that moves along the loop is contiguous along its rows.
    """
    rows, run, depth = schedule.tile
    deep, wide, long = (-(-side // PANEL) * PANEL for side in (depth, schedule.width, run))
    held = rows * (deep + wide if wide > deep or schedule.epilogue == "overlapped" else deep)
    keys, values = (
        long * columns if along else run * padded
        for along, columns, padded in zip(by_row, (depth, schedule.width), (deep, wide), strict=True)
    )
    return 2 * (held + schedule.stages * (keys + values)) + BARRIER_BYTES


def against_form(form: FoldForm) -> Iterator[str]:
    """Reasons why warpgroups do not compute a loop."""
    if form.earlier:
        yield f"{len(form.folds)} loops follow each other; warpgroups compute one"
        return
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
        elif sum(span.kind != BATCH for span in part.at) != 2:
            yield f"{part.operand.name} is no matrix"
    for step in form.fold.steps:
        if any(one is mixture for one in walk(step)) and not _is_added(step, mixture):
            yield "the product is not added to a carried value"


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
    for field, wanted in (("roles", ("cooperative",)), ("epilogue", ENDINGS), ("resident", (True,))):
        if getattr(schedule, field) not in wanted:
            legal = " or ".join(f'"{one}"' if isinstance(one, str) else repr(one) for one in wanted)
            yield field, f"{field}={schedule.spelled(field)} with warpgroups", f"{field}={legal}", step
    if schedule.group_n and not schedule.blocks:
        text = f"group_n={schedule.group_n} with blocks=0; bands order the tiles of a persistent grid"
        yield "group_n", text, "group_n=0, or blocks=132", step
    if schedule.registers and (OF_LANES - schedule.groups * schedule.registers < LEAST):
        most = (OF_LANES - LEAST) // schedule.groups // 8 * 8
        text = f"{schedule.groups} groups with {schedule.registers} registers for each thread"
        yield "registers", text, f"registers={most}", step
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
    by_row = []
    for side in (form.scores[0].a, form.scores[0].b, form.mixtures[0].b):
        part, _ = transposed(side)
        assert isinstance(part, ArrayPart)
        name, spec = part.operand.name, specs[part.operand.name]
        for why, _ in against_array(name, spec):
            yield "staging", why, 'staging="cp_async"', part
        along = part.at[spec.rank - 1 if spec.unit_dim is None else spec.unit_dim]
        by_row.append(along == form.n)
        if along in (form.m, *form.batch):
            why = f"{name} is contiguous along dimension {spec.unit_dim}, not along its columns"
            yield "staging", why, 'staging="cp_async"', part
        elif along == form.n and run % PANEL:
            why = f"steps of {run}; {name} is contiguous along its rows, and bulk copies move {PANEL} of them"
            whole = -(-run // PANEL) * PANEL
            yield "tile", why, f"tile={(rows, whole, depth)}, and an atom of {whole} columns", part
    if (used := shared_bytes(schedule, by_row[1:])) > arch.shared_bytes > 0:
        yield (
            "tile",
            f"{used} bytes of shared memory; {arch.name} has {arch.shared_bytes}",
            "fewer stages",
            step,
        )
    for store in form.flow.stores:
        spans = [span for span in store.at if span.kind != BATCH]
        if spans == [form.m, form.e] and store.operand.dtype == form.element and form.m.groups is None:
            for why in against_store(store.operand.name, specs[store.operand.name]):
                yield "epilogue", why, 'staging="cp_async"', store
