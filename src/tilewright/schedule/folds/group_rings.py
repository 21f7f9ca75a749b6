"""Shared-memory rings that bulk copies fill for warpgroups, for operands and for arrays of one dimension.

If several products of a step have the same operand, it is copied once.  Scores sum along the columns of its
tile, mixtures along the rows: ``wgmma`` takes a swizzled tile of 16-bit elements in either order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from tilewright.dataflow.nodes import BATCH, ArrayPart, Node, Span
from tilewright.dtypes import DType
from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import fence_async, tma_load
from tilewright.lang.control import let, otherwise, unroll, var, when
from tilewright.lang.control import range as traced_range
from tilewright.lang.scalars import Index, ceil_div, minimum
from tilewright.lang.tensors import Tensor
from tilewright.lang.transaction_barriers import BarrierStage, arrive, mbarrier, wait
from tilewright.schedule.bulk_views import against_row, anywhere, aside
from tilewright.schedule.folds.block import FoldBlock
from tilewright.schedule.folds.form import FoldForm, transposed
from tilewright.schedule.folds.operands import StepPlace
from tilewright.schedule.form import array
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.work import natural
from tilewright.threads.distribution import raked

WARPS, ROWS = 4, 64
"""Warps and rows of a warpgroup."""

PANEL = 64
"""Columns of one bulk copy, for rows of 128 bytes."""


ROW_ALIGN = 128
"""Alignment in bytes of copied rows in shared memory."""

CLEARED = 16
"""Rows of a tile that a warp sets to 0 at once."""


STAGED = "staged"
"""The epilogue that stages results along the loop in shared-memory panels."""


def in_panels(extent: int) -> int:
    """An extent, rounded up to whole panels."""
    return -(-extent // PANEL) * PANEL


def panel_types(form: FoldForm, schedule: Schedule) -> tuple[DType, ...]:
    """The dtypes of the results along the loop that are stored through panels in shared memory."""
    staged = schedule.epilogue == STAGED and not form.mixtures
    return tuple(dict.fromkeys(store.operand.dtype for store in form.passing)) if staged else ()


def panel_columns(kind: DType) -> int:
    """Columns of a panel with rows of 128 bytes."""
    return ROW_ALIGN // kind.bytes


def panel_buffers(kind: DType, run: int) -> int:
    """Number of panel buffers of a warpgroup: 2 if a step has an even number of panels, otherwise 1.

    So a panel has the same buffer in every step.
    """
    return gcd(run // panel_columns(kind), 2)


@dataclass(frozen=True)
class CopiedOperand:
    """An operand of one or several products of a step, whose tiles are copied once for all of them.

    Args:
        part: the part of the array, in the order of memory.
        rows: the span of its rows.
        moves: whether each step has its own tile, because the rows are elements of the loop.
        nodes: the `id` of the operand's node in each product.
        is_scored: whether scores multiply it.
        is_mixed: whether mixtures do.
    """

    part: ArrayPart
    rows: Span
    moves: bool
    nodes: frozenset[int]
    is_scored: bool
    is_mixed: bool

    def columns(self, schedule: Schedule) -> int:
        """Columns of its tile."""
        sides = ((self.is_scored, schedule.tile[2]), (self.is_mixed, schedule.width))
        return max(side for is_read, side in sides if is_read)

    def elements(self, schedule: Schedule, by_row: Collection[str] = ()) -> int:
        """Elements of its tiles in shared memory.

        Args:
            schedule: the schedule.
            by_row: names of the arrays that are contiguous along the rows of their tiles.
        """
        rows, run, _ = schedule.tile
        columns = self.columns(schedule)
        if not self.moves:
            return rows * in_panels(columns)
        tile = in_panels(run) * columns if self.part.operand.name in by_row else run * in_panels(columns)
        return schedule.stages * tile


def copied_operands(form: FoldForm) -> tuple[CopiedOperand, ...]:
    """The operands that bulk copies load: first those for all steps, then those of each step in order of use.

    Two parts of one array that differ only in the span of their columns are one operand: a tile has all
    columns.
    """
    uses = [(one.a, form.m, True) for one in form.scores]
    uses += [(one.b, form.n, True) for one in form.scores]
    uses += [(one.b, form.n, False) for one in form.mixtures]
    found: dict[tuple[object, ...], list[tuple[Node, ArrayPart, Span, bool]]] = {}
    for node, rows, is_scored in uses:
        part, _ = transposed(node)
        assert isinstance(part, ArrayPart), "bulk copies decode nothing"
        at = (span if span == rows or span.kind == BATCH else None for span in part.at)
        found.setdefault((part.operand.name, part.operand.transforms, *at), []).append(
            (node, part, rows, is_scored)
        )
    return tuple(
        CopiedOperand(
            some[0][1],
            some[0][2],
            some[0][2] == form.n,
            frozenset(id(node) for node, *_ in some),
            any(is_scored for *_, is_scored in some),
            not all(is_scored for *_, is_scored in some),
        )
        for some in found.values()
    )


def step_rows(form: FoldForm) -> tuple[ArrayPart, ...]:
    """The arrays that vary only along the loop, such as a bias of keys: a step reads a row of each."""
    if form.n.groups is not None:  # a group may begin at any element, a bulk copy only at aligned ones
        return ()
    return tuple(
        node
        for node in form.inside()
        if isinstance(node, ArrayPart)
        and [span for span in node.at if span.kind != BATCH] == [form.n]
        and not node.operand.transforms
        and not node.dtype.is_packed
    )


def row_elements(part: ArrayPart, run: int) -> int:
    """Elements of shared memory for one row of a step, padded to `ROW_ALIGN`."""
    unit = ROW_ALIGN // part.dtype.bytes
    return -(-run // unit) * unit


class CopyRing:
    """Stages of shared memory, with the barriers that say when they are full and empty.

    Args:
        stages: number of stages.
        readers: number of warps that read a stage.
    """

    def __init__(self, stages: int, readers: int) -> None:
        self.stages = stages
        self.full = mbarrier(stages, arrivals=1)
        self.empty = mbarrier(stages, arrivals=readers)

    def place(self, number: Index) -> tuple[Index, Index]:
        """Return the stage and the phase's parity of step ``number``, counted from the block's first step."""
        return let(number % self.stages), let(number // self.stages % 2)

    def begin(self) -> None:
        """Set up the variables of the loading role; called once, at its start."""

    def load(self, stage: Index, at: Index, place: StepPlace) -> None:
        """Begin the copies of a step's tile to an empty stage.

        Args:
            stage: the stage.
            at: index of the tile along its rows.
            place: the step; it gives the indices of batches and turns, and of the tile along its columns.
        """
        raise NotImplementedError


class RowRing(CopyRing):
    """A shared-memory ring for arrays of one dimension.  A stage has one step's row of each array.

    Args:
        block: the block.
        parts: the arrays.
        stages: number of stages.
        readers: number of warps that read a stage.
    """

    def __init__(self, block: FoldBlock, parts: Sequence[ArrayPart], stages: int, readers: int) -> None:
        self.block, self.parts = block, parts
        self.held = [
            tw.shared(
                (stages, row_elements(part, block.length(block.form.n))),
                part.dtype,
                name=f"s{part.operand.name}",
            )
            for part in parts
        ]
        super().__init__(stages, readers)

    @staticmethod
    def of(block: FoldBlock, stages: int, readers: int) -> RowRing | None:
        """The ring of a block; None if its steps read no rows."""
        parts = []
        for part in step_rows(block.form):
            first = tuple(0 if span.kind == BATCH else slice(None) for span in part.at)
            whole = array(block.arguments, part.operand)[first]
            with aside():
                if not against_row(whole.tile((block.length(block.form.n),), (anywhere(),))):
                    parts.append(part)
        return RowRing(block, parts, stages, readers) if parts else None

    def load(self, stage: Index, at: Index, place: StepPlace) -> None:
        """Copy the rows of a step to a stage that is empty."""
        run, full = self.block.length(self.block.form.n), self.full[stage]
        arrive(full, expect_bytes=sum(run * part.dtype.bytes for part in self.parts))
        for part, held in zip(self.parts, self.held, strict=True):
            batch = (place.at(span) if span.kind == BATCH else slice(None) for span in part.at)
            source = array(self.block.arguments, part.operand)[tuple(batch)].tile((run,), (at,))
            tma_load(source, held[stage].tile((run,), (0,)), full)

    def row(self, stage: Index, part: ArrayPart) -> Tensor | None:
        """The row of an array, as (1, columns); None if the ring has no such array."""
        if part not in self.parts:
            return None
        held = self.held[self.parts.index(part)][stage]
        run = self.block.length(self.block.form.n)
        return held.tile((run,), (0,)).unmerge(0, (1, run))


class GroupRing(CopyRing):
    """A shared-memory ring of tiles of one operand, with the barriers that say when they are full and empty.

    The rows of a tile are along the first axis of the operand in the graph.  If the array is contiguous along
    its rows, bulk copies move panels of 64 rows, otherwise panels of 64 columns.

    The boxes of a group's last step reach beyond the group's end.  Elements there may be NaN, and mixtures
    multiply them by 0.  So the copying warp waits for these boxes, sets the elements past the end to 0, and
    then signals that the stage is full.

    Args:
        block: the block.
        operand: the operand.
        stages: number of tiles.
        readers: number of warps that read a tile.
    """

    def __init__(self, block: FoldBlock, operand: CopiedOperand, stages: int, readers: int) -> None:
        self.block, self.operand, part = block, operand, operand.part
        self.rows, self.columns = block.length(operand.rows), operand.columns(block.schedule)
        self.turned = next(span for span in part.at if span.kind != BATCH) != operand.rows
        self.by_row = self.whole({}).unit_dim == 0
        along, across = (self.rows, self.columns) if self.by_row else (self.columns, self.rows)
        panels = -(-along // PANEL)
        name = f"s{part.operand.name}"
        self.held = tw.shared((stages, panels, across, PANEL), part.dtype, swizzle=128, name=name)
        super().__init__(stages, readers)
        groups = operand.rows.groups if operand.moves and operand.is_mixed else None
        self.is_cut = groups is not None and groups.block % self.rows > 0
        """Whether a tile may have rows beyond the end of a group, which are cleared."""

        if self.is_cut:
            self.landed = mbarrier(1, arrivals=1)

    def whole(self, at: Mapping[Span, Index] | StepPlace) -> Tensor:
        """The matrix of one batch item, as (rows, columns).

        Args:
            at: the index along each batch span; 0 for missing spans.
        """
        part, block = self.operand.part, self.block
        index = (lambda span: at.get(span, 0)) if isinstance(at, Mapping) else at.at
        batch = (index(span) if span.kind == BATCH else slice(None) for span in part.at)
        whole = array(block.arguments, part.operand)[tuple(batch)]
        spans = [span for span in part.at if span.kind != BATCH]
        if any(span in block.cuts for span in spans):  # boxes may reach into the next group
            whole = whole[tuple(block.place.cut(span, whole=True) for span in spans)]
        return whole.permute(1, 0) if self.turned else whole

    def begin(self) -> None:
        """Define the parity of the barrier of tiles that are cleared."""
        if self.is_cut:
            self.cleared = var(0)

    def load(self, stage: Index, at: Index, place: StepPlace) -> None:
        """Copy a tile to an empty stage; set rows beyond the end of a group to 0."""
        if not self.is_cut:
            self._copy(stage, at, place, self.full[stage])
            return
        left = let(natural(place.extent(self.operand.rows) - at * self.rows))
        with when(left < self.rows):
            self._copy(stage, at, place, self.landed[0])
            parity = let(minimum(natural(self.cleared.get()), 1))
            wait(self.landed[0], parity)
            self.cleared.set(1 - parity)
            self._clear(stage, left)
            fence_async()
            arrive(self.full[stage], each="warp")
        with otherwise():
            self._copy(stage, at, place, self.full[stage])

    def _clear(self, stage: Index, left: Index) -> None:
        """Set the rows of a tile from ``left`` on to 0; the copying warp does this."""
        for p in unroll(int(self.held.shape[1])):
            panel = self.held[stage][p]
            first, shape, spread = 0, (CLEARED, PANEL), raked((CLEARED, PANEL), (4, 8), 8, 1)
            if self.by_row:  # element by element: rows are contiguous, and may begin at any address
                panel, first, spread = panel.permute(1, 0), p * PANEL, raked(shape, (1, 32), 1, 1)
                shape = (CLEARED, int(panel.shape[1]))
                spread = raked(shape, (CLEARED, 2), 1, 0)
            rest = panel[let(minimum(natural(left - first), panel.shape[0])) :]
            for i in traced_range(let(ceil_div(rest.shape[0], CLEARED))):
                zeros = tw.fragment(spread, panel.dtype, 0, name="zeros")
                tw.copy(zeros, rest.tile(shape, (i, 0)))

    def _copy(self, stage: Index, at: Index, place: StepPlace, full: BarrierStage) -> None:
        """Begin the bulk copies of a tile, which complete on the barrier ``full``."""
        held = self.held[stage]
        panels, across = int(held.shape[0]), int(held.shape[1])
        arrive(full, expect_bytes=panels * across * PANEL * self.operand.part.dtype.bytes)
        whole = self.whole(place)
        for p in unroll(panels):
            if self.by_row:
                source = whole.permute(1, 0).tile((across, PANEL), (place.inner, at * panels + p))
            else:
                source = whole.tile((across, PANEL), (at, place.inner * panels + p))
            tma_load(source, held[p], full)

    def tile(self, stage: Index, columns: int) -> Tensor:
        """The first columns of a tile, as (rows, columns)."""
        held = self.held[stage]
        if not self.by_row:
            return columns_of(held, columns)
        tile = columns_of(held, self.rows).permute(1, 0)
        return tile if columns == self.columns else tile.tile((self.rows, columns), (0, 0))


def columns_of(panels: Tensor, columns: int) -> Tensor:
    """A view of adjacent panels as one tile, with the first ``columns`` columns."""
    whole = panels.permute(1, 0, 2).merge(1)
    return whole if whole.shape[1] == columns else whole.tile((whole.shape[0], columns), (0, 0))
