"""Scales of sums: numbers by which a sum of products is multiplied when it is added to others.

All products of a run of places along K have their scales in common.  They are added up first, and the sum is
multiplied once, by the scale of its row times that of its column.  Threads load the scales of the next sum
behind the one that is added, into registers, so that they come under its multiplications; those of rows come
to shared memory with the operand where bulk copies bring both, and are read while a tile is multiplied.
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
from tilewright.schedule.partition import Work
from tilewright.schedule.provenance import made_by
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stages import MOST_ROWS, PlainStages, Share, plain_tiles
from tilewright.threads.distribution import Distribution

HeldScales: TypeAlias = tuple[tuple[Fragment, ...], ...]
"""For each operand that has them the fragments in which its scales are."""

FEW = 4
"""Columns that have a number in common are told apart by comparisons if they are so many parts of a tile."""


@dataclass(frozen=True)
class Columns:
    """Scales of rows in global memory, a column for each tile along K.

    Args:
        matrix: (rows, tiles), for a tile of the result.
        sample: the same, of any tile.
    """

    matrix: Callable[[Work], Tensor]
    sample: Tensor


@dataclass(frozen=True)
class ScaleSource:
    """The scales of an operand, with their place.

    Args:
        matrix: (rows, K) in global memory, for a tile of the result.
        scale: what the graph says of them.
        columns: the same, if bulk copies bring them with the operand.
    """

    matrix: Callable[[Work], Tensor]
    scale: Scale
    columns: Columns | None = None

    @property
    def part(self) -> ArrayPart:
        """The value of the graph."""
        return self.scale.part


def beside_tiles(schedule: Schedule, form: Form, factor: Factor) -> ArrayPart | None:
    """Scales of rows of which bulk copies may bring a column with each tile of the operand; None of others.

    Args:
        schedule: how all of it is computed.
        form: what is computed, as the schedule multiplies it.
        factor: the operand.

    Returns:
        The array, without the repetitions along K.
    """
    scale, along_rows = factor.scale, factor.row == form.m and form.flow.grouped is None and not form.lists
    is_copied = schedule.staging == "tma" and schedule.atom.asynchronous and factor.is_plain
    if scale is None or not is_copied or not along_rows or schedule.promote != 1:
        return None
    is_row = scale.rows == 1 and scale.view is scale.part and factor.row in scale.part.at
    if not is_row or run_along(scale.part, factor.depth) != schedule.block_k:
        return None
    part = without_repeats(scale.part)
    return None if part.operand.transforms or part.operand.dtype != f32 else part


def scale_tiles(schedule: Schedule, form: Form, specs: Mapping[str, TensorSpec]) -> Iterator[Buffer]:
    """The rings of the scales of rows that bulk copies load with their operand.

    Args:
        schedule: how all of it is computed.
        form: what is computed, as the schedule multiplies it.
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
    """A ring in shared memory of scales of rows: in each stage those of one tile of the operand.

    Args:
        source: where they are.
        columns: where they come from.
        schedule: how all of it is computed.
    """

    def __init__(self, source: ScaleSource, columns: Columns, schedule: Schedule) -> None:
        self.columns, self.part, self.rows = columns, source.part, schedule.mma.tile[0]
        name = f"s{source.part.operand.name}"
        along_rows = columns.sample.unit_dim == 0
        size = schedule.tile[0], 1, schedule.stages
        self.stages = PlainStages(plain_tiles(name, columns.sample.dtype, *size, along_rows=along_rows))

    @staticmethod
    def of(sources: Sequence[ScaleSource | None], schedule: Schedule) -> tuple[ScaleRing, ...]:
        """A ring for each operand of which bulk copies bring the scales."""
        return tuple(ScaleRing(one, one.columns, schedule) for one in sources if one and one.columns)

    @property
    def bytes(self) -> int:
        """Bytes of one stage."""
        return self.stages.shape[0] * f32.bytes

    def load(self, work: Work, step: Index, stage: Index, barrier: BarrierStage) -> None:
        """Copy those of a step."""
        at = work.segment.begin + step
        with made_by(node=self.part):
            for column, target in self.stages.pairs(self.columns.matrix(work), work.m, at, stage, Share()):
                tma_load(column, target, barrier)

    def column(self, stage: Index, group: Index) -> Tensor:
        """(rows, 1): those of one group."""
        tile: Tensor = self.stages.shared[stage].tile((self.rows, 1), (group, 0))
        return tile


@dataclass(frozen=True)
class ScaledTile:
    """The part of a tile that a group multiplies at once.

    Args:
        mma: the tiled MMA of one group.
        depth: of a tile along K.
        groups: that share the rows of a tile.
        is_aligned: whether tiles begin at multiples of their extents.
    """

    mma: TiledMma
    depth: int
    groups: int
    is_aligned: bool

    def parts(self, scale: Scale) -> int:
        """Numbers that scale the columns of a tile; 0: one for each column."""
        columns, threads = self.mma.tile[1], self.mma.threads
        unit = gcd(columns, scale.rows)
        is_few = unit > 1 and columns // unit <= FEW
        return columns // unit if is_few and self.is_aligned and threads > 1 else 0

    def maps(self, side: int, scale: Scale) -> tuple[Distribution, ...]:
        """The scales that each thread holds, for the sums that it holds."""
        spread, (rows, columns, _) = self.mma.c(), self.mma.tile
        if side == 0:
            return (spread.projected((rows, 1)),)
        return (spread.projected((1, 1)),) * self.parts(scale) or (spread.projected((1, columns)),)


def scaled_tile(schedule: Schedule) -> ScaledTile:
    """The part of a tile that a group multiplies at once under a schedule."""
    return ScaledTile(schedule.mma, schedule.block_k, schedule.cooperating, not schedule.balanced)


class Scales:
    """The scales of both operands, in the registers of those who multiply.

    Args:
        sources: where they are, of A and of B; None where there are none.
        tile: what a group multiplies.
    """

    def __init__(self, sources: Sequence[ScaleSource | None], tile: ScaledTile) -> None:
        self.tile = tile
        self.sources = [(side, one) for side, one in enumerate(sources) if one is not None]

    def __bool__(self) -> bool:
        return bool(self.sources)

    def begin(self) -> HeldScales:
        """Registers for the scales of a sum."""
        return tuple(
            tuple(
                tw.fragment(spread, f32, name=f"r{one.part.operand.name}")
                for spread in self.tile.maps(side, one.scale)
            )
            for side, one in self.sources
        )

    @property
    def come_with_tiles(self) -> bool:
        """Whether those of rows come to shared memory with the operand."""
        return any(one.columns is not None for _, one in self.sources)

    def read(self, held: HeldScales, column: Tensor) -> None:
        """Read the scales of rows that came with a step.

        Args:
            held: where the scales of a sum are.
            column: (rows, 1) in shared memory.
        """
        with made_by(node=self.sources[0][1].part):
            tw.copy(column, held[0][0])

    def load(self, held: HeldScales, work: Work, step: Index) -> None:
        """Ask for the scales of the products of a step that do not come with it; past the edge they are 0."""
        place = (work.segment.begin + step) * self.tile.depth
        rows, columns, _ = self.tile.mma.tile
        for (side, one), fragments in zip(self.sources, held, strict=True):
            if one.columns is not None:
                continue
            with made_by(node=one.part):
                whole = one.matrix(work)
                if side == 0:
                    row = work.m * self.tile.groups + (work.group if self.tile.groups > 1 else 0)
                    tw.copy(whole.tile((rows, 1), (row, place)), fragments[0])
                elif fragments[0].shape[1] > 1:
                    tw.copy(whole.tile((columns, 1), (work.n, place)).permute(1, 0), fragments[0])
                else:
                    width = columns // len(fragments)
                    for at, fragment in enumerate(fragments):
                        tw.copy(whole.tile((1, 1), (work.n * columns + at * width, place)), fragment)

    @property
    def have_factors(self) -> bool:
        """Whether a row has few products of its scale and those of columns: one for each part of a tile."""
        return len(self.sources) > 1 and self.tile.parts(self.sources[1][1].scale) > 0

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
            total: what is added up.
            held: the scales of a tile.
            part: which slice of its columns these are, of how many.
            factors: as `factors` made them.
        """
        found = {side: fragments for (side, _), fragments in zip(self.sources, held, strict=True)}
        by_row = found[0][0] if 0 in found else None
        if 1 not in found:
            return elementwise("fma", acc, by_row, total)
        if factors is None and self.have_factors:
            factors = self.factors(held)
        by_column = _of_slice(factors or found[1], *part)
        if len(by_column) == 1 and by_column[0].shape[1] > 1 and by_row is not None:
            if self.tile.mma.atom.asynchronous:
                # ptxas would compute products of scales while the sums are not there yet, and spill them.
                return elementwise("fma", elementwise("mul", acc, by_row), by_column[0], total)
            by_column = (elementwise("mul", _over_columns(by_row, acc), by_column[0]),)
        return elementwise("fma", acc, self._of_columns(by_column, acc), total)

    def _of_columns(self, factors: Sequence[Any], acc: Fragment) -> Any:
        """For each column the factor of the part of the tile that it lies in."""
        made, width = factors[-1], acc.shape[1] // len(factors)
        for at in range(len(factors) - 2, -1, -1):
            made = elementwise("select", coordinates(acc, 1) < (at + 1) * width, factors[at], made)
        return made


def _over_columns(by_row: Fragment, acc: Fragment) -> Any:
    """The scale of its row for each element of a sum: a choice between equals, which compilers leave out."""
    return elementwise("select", coordinates(acc, 1) < acc.shape[1], by_row, by_row)


def _of_slice(by_column: tuple[Fragment, ...], at: int, slices: int) -> tuple[Fragment, ...]:
    """The scales of a slice of a tile's columns: of each column, or of each part of them."""
    if slices == 1:
        return by_column
    width = by_column[0].shape[1]
    if width > 1:
        return (by_column[0][:, at * width // slices : (at + 1) * width // slices],)
    count = len(by_column)
    first = at * count // slices
    return by_column[first : max((at + 1) * count // slices, first + 1)]
