"""Scales of sums: factors of a sum of products when it is added to other sums.

All products of a run of neighbours along K share their scales.  They are added up first; then their sum is
multiplied once, by the scale of its row times the scale of its column.  After a sum is added, threads load
the scales of the next sum into registers, so the loads overlap its multiplications.  Bulk copies may load
scales of rows into shared memory together with the operand; threads read them while a tile is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, TypeAlias

from tilewright.dataflow.nodes import ArrayPart
from tilewright.dtypes import f32
from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import tma_load
from tilewright.lang.fragments import Fragment, elementwise
from tilewright.lang.scalars import Index
from tilewright.lang.specs import TensorSpec
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import coordinates
from tilewright.lang.transaction_barriers import BarrierStage
from tilewright.schedule.bulk_views import against_array
from tilewright.schedule.factors import Factor, Scale, run_along, without_repeats
from tilewright.schedule.form import Form
from tilewright.schedule.needs import Buffer
from tilewright.schedule.provenance import made_by
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stages import MOST_ROWS, PlainStages, Share, plain_tiles
from tilewright.schedule.work import Work
from tilewright.threads.distribution import Distribution

HeldScales: TypeAlias = tuple[tuple[Fragment, ...], ...]
"""Fragments with the scales of each operand that has scales."""

FEW = 4
"""Most parts of a tile's columns with one scale each; comparisons pick the scale of an element."""


@dataclass(frozen=True)
class Columns:
    """Scales of rows in global memory, a column for each tile along K.

    Args:
        matrix: (rows, tiles along K), for a tile of the result.
        sample: the same matrix for any tile.
    """

    matrix: Callable[[Work], Tensor]
    sample: Tensor


@dataclass(frozen=True)
class ScaleSource:
    """The scales of an operand in global memory.

    Args:
        matrix: (rows, K), for a tile of the result.
        scale: their node of the graph.
        columns: the same scales, if bulk copies bring them with the operand.
    """

    matrix: Callable[[Work], Tensor]
    scale: Scale
    columns: Columns | None = None

    @property
    def part(self) -> ArrayPart:
        """The array that holds the scales, or the part of it."""
        return self.scale.part


def beside_tiles(schedule: Schedule, form: Form, factor: Factor) -> ArrayPart | None:
    """Scales of rows, if bulk copies may bring a column of them with each tile of the operand; else None.

    Args:
        schedule: the schedule.
        form: the form, as the schedule multiplies it.
        factor: the operand.

    Returns:
        The array, without the repetitions along K.
    """
    scale, along_rows = factor.scale, factor.row == form.m and form.flow.grouped is None and not form.lists
    is_copied = schedule.by_bulk and schedule.atom.asynchronous and factor.is_plain
    if scale is None or not is_copied or not along_rows or schedule.promote != 1:
        return None
    is_row = scale.rows == 1 and scale.view is scale.part and factor.row in scale.part.at
    if not is_row or run_along(scale.part, factor.depth) != schedule.block_k:
        return None
    part = without_repeats(scale.part)
    return None if part.operand.transforms or part.operand.dtype != f32 else part


def scale_tiles(schedule: Schedule, form: Form, specs: Mapping[str, TensorSpec]) -> Iterator[Buffer]:
    """The rings for scales of rows that bulk copies load with their operand.

    Args:
        schedule: the schedule.
        form: the form, as the schedule multiplies it.
        specs: the classes of the arrays.
    """
    for factor in form.rows_m:
        if (part := beside_tiles(schedule, form, factor)) is None:
            continue
        spec, rows = specs[part.operand.name], schedule.tile[0]
        is_along = spec.unit_dim is not None and part.at[spec.unit_dim] == factor.row
        if is_along and rows <= MOST_ROWS and not any(against_array(part.operand.name, spec)):
            yield plain_tiles(f"s{part.operand.name}", f32, rows, 1, schedule.stages, along_rows=True)


class ScaleRing:
    """A ring in shared memory; each stage has the scales of the rows of one tile of an operand.

    Args:
        source: the scales.
        columns: their columns in global memory.
        schedule: the schedule.
    """

    def __init__(self, source: ScaleSource, columns: Columns, schedule: Schedule) -> None:
        self.columns, self.part, self.rows = columns, source.part, schedule.mma.tile[0]
        name = f"s{source.part.operand.name}"
        along_rows = columns.sample.unit_dim == 0
        size = schedule.tile[0], 1, schedule.stages
        self.stages = PlainStages(plain_tiles(name, columns.sample.dtype, *size, along_rows=along_rows))

    @staticmethod
    def of(sources: Sequence[ScaleSource | None], schedule: Schedule) -> tuple[ScaleRing, ...]:
        """A ring for each operand whose scales bulk copies bring."""
        return tuple(ScaleRing(one, one.columns, schedule) for one in sources if one and one.columns)

    @property
    def bytes(self) -> int:
        """Bytes of one stage."""
        return self.stages.shape[0] * f32.bytes

    def load(self, work: Work, step: Index, stage: Index, barrier: BarrierStage) -> None:
        """Copy the scales of a step."""
        at = work.segment.begin + step
        with made_by(node=self.part):
            for column, target in self.stages.pairs(self.columns.matrix(work), work.m, at, stage, Share()):
                tma_load(column, target, barrier)

    def column(self, stage: Index, group: Index) -> Tensor:
        """(rows, 1): the scales of one group."""
        tile: Tensor = self.stages.shared[stage].tile((self.rows, 1), (group, 0))
        return tile


def scale_parts(mma: TiledMma, scale: Scale, *, aligned: bool) -> int:
    """Parts of a group's columns that have one scale each, if there are few; 0: each column has its own.

    Args:
        mma: the tiled MMA of the group.
        scale: the scales of operand B.
        aligned: whether tiles begin at multiples of their extents.
    """
    columns = mma.tile[1]
    unit = gcd(columns, scale.rows)
    is_few = unit > 1 and columns // unit <= FEW
    return columns // unit if is_few and aligned and mma.threads > 1 else 0


def scale_maps(mma: TiledMma, side: int, scale: Scale, *, aligned: bool) -> tuple[Distribution, ...]:
    """The scales that each thread holds for its sums; ``side`` is 0 for operand A, 1 for B."""
    spread, (rows, columns, _) = mma.c(), mma.tile
    if side == 0:
        return (spread.projected((rows, 1)),)
    parts = scale_parts(mma, scale, aligned=aligned)
    return (spread.projected((1, 1)),) * parts or (spread.projected((1, columns)),)


class Scales:
    """The scales of both operands, in registers of the threads that multiply.

    Args:
        sources: the scales of A and of B; None for an operand without scales.
        schedule: the schedule.
    """

    def __init__(self, sources: Sequence[ScaleSource | None], schedule: Schedule) -> None:
        self.schedule, self.mma = schedule, schedule.mma
        self.sources = [(side, one) for side, one in enumerate(sources) if one is not None]

    def __bool__(self) -> bool:
        return bool(self.sources)

    def begin(self) -> HeldScales:
        """Registers for the scales of a sum."""
        return tuple(
            tuple(
                tw.fragment(spread, f32, name=f"r{one.part.operand.name}")
                for spread in scale_maps(self.mma, side, one.scale, aligned=not self.schedule.balanced)
            )
            for side, one in self.sources
        )

    @property
    def come_with_tiles(self) -> bool:
        """Whether bulk copies bring scales of rows with the operand."""
        return any(one.columns is not None for _, one in self.sources)

    def read(self, held: HeldScales, column: Tensor) -> None:
        """Read the scales of rows that bulk copies brought for a step.

        Args:
            held: registers for the scales of a sum.
            column: (rows, 1) in shared memory.
        """
        with made_by(node=self.sources[0][1].part):
            tw.copy(column, held[0][0])

    def load(self, held: HeldScales, work: Work, step: Index) -> None:
        """Load the scales of a step that no bulk copy brings; past the edge they are 0."""
        place = (work.segment.begin + step) * self.schedule.block_k
        (rows, columns, _), groups = self.mma.tile, self.schedule.cooperating
        for (side, one), fragments in zip(self.sources, held, strict=True):
            if one.columns is not None:
                continue
            with made_by(node=one.part):
                whole = one.matrix(work)
                if side == 0:
                    row = work.m * groups + (work.group if groups > 1 else 0)
                    tw.copy(whole.tile((rows, 1), (row, place)), fragments[0])
                elif fragments[0].shape[1] > 1:
                    tw.copy(whole.tile((columns, 1), (work.n, place)).permute(1, 0), fragments[0])
                else:
                    width = columns // len(fragments)
                    for at, fragment in enumerate(fragments):
                        tw.copy(whole.tile((1, 1), (work.n * columns + at * width, place)), fragment)

    @property
    def have_factors(self) -> bool:
        """Whether each row has a few products of both scales: one for each part of the tile's columns."""
        aligned = not self.schedule.balanced
        return len(self.sources) > 1 and scale_parts(self.mma, self.sources[1][1].scale, aligned=aligned) > 0

    def factors(self, held: HeldScales) -> tuple[Fragment, ...]:
        """The products of a row's scale and the scale of each part of the columns."""
        [by_row], by_column = held
        return tuple(elementwise("mul", by_row, one) for one in by_column)

    def scaled(
        self,
        acc: Fragment,
        total: Fragment,
        held: HeldScales,
        part: tuple[int, int] = (0, 1),
        factors: tuple[Fragment, ...] | None = None,
    ) -> Any:
        """The total plus a sum that is multiplied by the scales of its row and of its column.

        Both scales are multiplied with each other first, so that only their product must be a number of f32.
        With an asynchronous atom and a scale for each column the sum is multiplied by one after the other.

        Args:
            acc: the sum.
            total: the sum of all steps.
            held: the scales of a tile.
            part: index of the slice of the tile's columns, and the number of slices.
            factors: the result of `factors`.
        """
        found = {side: fragments for (side, _), fragments in zip(self.sources, held, strict=True)}
        by_row = found[0][0] if 0 in found else None
        if 1 not in found:
            return elementwise("fma", acc, by_row, total)
        if factors is None and self.have_factors:
            factors = self.factors(held)
        by_column, (at, slices) = factors or found[1], part
        width, count = by_column[0].shape[1], len(by_column)
        if slices > 1 and width > 1:  # a scale for each column
            by_column = (by_column[0][:, at * width // slices : (at + 1) * width // slices],)
        elif slices > 1:  # a scale for each part of the columns
            first = at * count // slices
            by_column = by_column[first : max((at + 1) * count // slices, first + 1)]
        if len(by_column) == 1 and by_column[0].shape[1] > 1 and by_row is not None:
            if self.mma.atom.asynchronous:
                # ptxas would compute products of scales while the sums are not there yet, and spill them.
                return elementwise("fma", elementwise("mul", acc, by_row), by_column[0], total)
            # Repeat the scale of the row for each element: a select between equals, which compilers remove.
            of_each = elementwise("select", coordinates(acc, 1) < acc.shape[1], by_row, by_row)
            by_column = (elementwise("mul", of_each, by_column[0]),)
        made, width = by_column[-1], acc.shape[1] // len(by_column)
        for at in range(len(by_column) - 2, -1, -1):
            made = elementwise("select", coordinates(acc, 1) < (at + 1) * width, by_column[at], made)
        return elementwise("fma", acc, made, total)
