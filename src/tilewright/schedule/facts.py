"""Facts about a schedule, a kernel and a machine, which decide resources and legality."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from tilewright.arch import Arch
from tilewright.dataflow.nodes import Arrival, Departure, Flow, Node, Store
from tilewright.ir.mma import TiledMma
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.bulk_views import against_tiles
from tilewright.schedule.form import Form
from tilewright.schedule.inner import MOST_INNER, inner_mma, inner_unit
from tilewright.schedule.schedule import Schedule, changed
from tilewright.schedule.sides import OperandSide, OperandTile, common_run, lanes_along_k
from tilewright.schedule.stages import MOST_ROWS
from tilewright.targets.target import Target, owner

Reasons: TypeAlias = Iterator[tuple[str, str, str, Node | Store | Arrival | Departure]]
"""Reasons to refuse a schedule: field, sentence with value and limit, nearest legal choice, and node."""


def against_waits(flow: Flow, arch: Arch) -> Reasons:
    """Reasons to refuse operands that arrive in shards: a CPU kernel does not wait for other processes."""
    target = owner(arch.name)
    if flow.arrivals and target.machine_code and not target.warps:
        first, text = flow.arrivals[0], f"blocks of {arch.name} wait only for blocks of the same launch"
        text = f"{first.operand.name} arrives in shards; {text}"
        yield "staging", text, "a GPU, or the reference", first


@dataclass(frozen=True)
class ScheduleFacts:
    """A schedule for a kernel, on arrays of some classes, on a machine.

    A tile that does not consist of whole atoms is replaced by the nearest one that does, so that all other
    reasons can be reported too.

    Args:
        schedule: the schedule.
        form: the form; transposed if the schedule transposes the product.
        specs: the classes of the arrays.
        arch: the machine.
    """

    schedule: Schedule
    form: Form
    specs: Mapping[str, TensorSpec]
    arch: Arch

    def __post_init__(self) -> None:
        object.__setattr__(self, "form", self.form.arranged(self.schedule.swap_ab))

    @cached_property
    def target(self) -> Target:
        """The target of the machine."""
        return owner(self.arch.name)

    @property
    def is_bulk(self) -> bool:
        """Whether bulk copies of a separate role fill the ring."""
        return self.schedule.by_bulk

    @property
    def is_persistent(self) -> bool:
        """Whether a block computes one tile after the other."""
        schedule = self.schedule
        whole = schedule.is_streamed or not schedule.is_split
        return schedule.batches > 1 or (bool(schedule.blocks) and whole)

    @property
    def is_swizzled(self) -> bool:
        """Whether operands have rows of 128 bytes under the swizzle."""
        return self.is_bulk or self.schedule.atom.asynchronous

    @property
    def units(self) -> tuple[int, int, int]:
        """Extents (m, n, k) of one atom for each warp of each group, which a tile has multiples of."""
        (m, n, k), (along_m, along_n) = self.schedule.atom.shape, self.schedule.warps
        return m * along_m * self.schedule.cooperating, n * along_n, k

    @cached_property
    def tile(self) -> tuple[int, int, int]:
        """The tile, or the nearest one of whole atoms."""
        m, n, k = (max((e + u // 2) // u, 1) * u for e, u in zip(self.schedule.tile, self.units, strict=True))
        return m, n, k

    @cached_property
    def rounded(self) -> Schedule:
        """The schedule with `tile`."""
        return self.schedule if self.tile == self.schedule.tile else changed(self.schedule, tile=self.tile)

    @cached_property
    def mma(self) -> TiledMma:
        """The tiled MMA of one group."""
        schedule = self.rounded
        if schedule.interleaved and schedule.atom.asynchronous:
            schedule = changed(schedule, interleaved=False)
        return schedule.mma

    @cached_property
    def inner_mma(self) -> TiledMma:
        """The tiled MMA of inner products of one group, with the nearest legal width."""
        unit = inner_unit(self.rounded)
        most = max(MOST_INNER // unit, 1)
        return inner_mma(
            changed(self.rounded, width=min(max(-(-self.schedule.width // unit), 1), most) * unit)
        )

    @cached_property
    def sides(self) -> tuple[OperandSide, ...]:
        """The operands, those along M first."""
        (rows, columns, _), form = self.mma.tile, self.form
        inner = self.inner_mma.tile[1] if form.inner else 0
        along_m = (
            ("A", one, rows if one.row == form.m else inner, self.schedule.sharing) for one in form.rows_m
        )
        along_n = (("B", one, columns if one.row == form.n else inner, 0) for one in form.rows_n)
        return tuple(
            OperandSide(label, factor, form.spec(factor.part.operand, self.specs), extent, groups)
            for label, factor, extent, groups in (*along_m, *along_n)
        )

    @cached_property
    def tiles(self) -> tuple[OperandTile, ...]:
        """The tiles of the operands, those along M first."""
        return tuple(side.tile for side in self.sides)

    def box_rows(self, side: OperandSide) -> int:
        """Rows of the box of a bulk copy, for an operand that is contiguous along K."""
        rows = max(side.sharing, 1) * side.rows // self.parts(side)
        return next((n for n in range(min(rows, MOST_ROWS), 0, -1) if rows % n == 0), 0)

    def against_load(self, side: OperandSide) -> Iterator[tuple[str, str]]:
        """Reasons why bulk copies do not load an operand, with a change of its array that would help."""
        factor, boxes = side.factor, (self.box_rows(side) or side.rows, side.width)
        spans = (factor.row, factor.depth)
        if side.along_rows:
            boxes, spans = (self.tile[2], side.width), (factor.depth, factor.row)
        part = factor.part
        yield from against_tiles(
            self.form.flow, part.operand, part.at, spans, self.specs, boxes, stored=False
        )
        extents = {factor.row: side.rows, factor.depth: self.tile[2]}
        if not part.operand.indices:
            return
        for span in (one for one in spans if one.groups is not None and one.groups.unit % extents[one]):
            text = f"{part.operand.name} has chosen rows along {span.name}, whose groups begin within blocks"
            yield text, f"bounds of groups in blocks of a multiple of {extents[span]}"

    def is_carried(self, side: OperandSide) -> bool:
        """Whether bulk copies load an operand."""
        return next(self.against_load(side), None) is None

    def has_parts(self, side: OperandSide) -> bool:
        """Whether the blocks of a cluster can copy equal parts of an operand."""
        return max(side.sharing, 1) * side.rows % self.parts(side) == 0

    def parts(self, side: OperandSide) -> int:
        """Number of blocks of a cluster that share an operand; each copies a part of it."""
        return self.schedule.cluster[1 if side.label == "A" else 0]

    def copied_rows(self, side: OperandSide) -> int:
        """Rows of an operand's tile that one alternating group copies, or else the block."""
        return side.rows // self.schedule.cooperating if self.schedule.alternates and side.at else side.rows

    def goes_past(self, side: OperandSide) -> bool:
        """Whether an operand bypasses shared memory."""
        return self.schedule.staging_class.through_registers and side.label.lower() in self.schedule.bypass

    @cached_property
    def run(self) -> int:
        """Neighbours along K of packed operands that a lane multiplies; 0: as the instruction orders them."""
        if not self.schedule.staging_class.by_parts:
            return 0
        return common_run(self.schedule.atom, self.tile[2], self.tiles)

    @property
    def part_depth(self) -> int:
        """Depth along K of a part of a tile; two sets of registers take turns at the parts."""
        atom = self.schedule.atom
        return self.run * lanes_along_k(atom.a) if self.run else atom.shape[2]
