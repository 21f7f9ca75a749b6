"""Scales of sums: numbers by which a sum of products is multiplied when it is added to others.

All products of a run of places along K have their scales in common.  They are added up first, and the sum is
multiplied once, by the scale of its row times that of its column.  Threads load the scales of the next sum
behind the one that is added, into registers, so that they come under its multiplications.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, TypeAlias

from tilewright.dataflow.nodes import Part
from tilewright.dtypes import f32
from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.fragments import Fragment, elementwise
from tilewright.lang.scalars import Index
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import coordinates
from tilewright.schedule.factors import Scale
from tilewright.schedule.partition import Work
from tilewright.schedule.provenance import made_by
from tilewright.schedule.schedule import Schedule
from tilewright.threads.distribution import Distribution

HeldScales: TypeAlias = tuple[tuple[Fragment, ...], ...]
"""For each operand that has them the fragments in which its scales are."""

FEW = 4
"""Columns that have a number in common are told apart by comparisons if they are so many parts of a tile."""


@dataclass(frozen=True)
class ScaleSource:
    """Where the scales of an operand are.

    Args:
        matrix: (rows, K) in global memory, for a tile of the result.
        scale: what the graph says of them.
    """

    matrix: Callable[[Work], Tensor]
    scale: Scale

    @property
    def part(self) -> Part:
        """The value of the graph."""
        return self.scale.part


@dataclass(frozen=True)
class ScaledTile:
    """What a group multiplies at once.

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
        """Of how many numbers the columns of a tile are scaled; 0: of one for each column."""
        columns, threads = self.mma.tile[1], self.mma.threads
        unit = gcd(columns, scale.rows)
        is_few = unit > 1 and columns // unit <= FEW
        return columns // unit if is_few and self.is_aligned and threads > 1 else 0

    def maps(self, side: int, scale: Scale) -> tuple[Distribution, ...]:
        """Which threads hold which scales: those that hold the sums."""
        spread, (rows, columns, _) = self.mma.c(), self.mma.tile
        if side == 0:
            return (spread.projected((rows, 1)),)
        return (spread.projected((1, 1)),) * self.parts(scale) or (spread.projected((1, columns)),)


def scaled_tile(schedule: Schedule) -> ScaledTile:
    """What a group multiplies at once under a schedule."""
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

    def load(self, held: HeldScales, work: Work, step: Index) -> None:
        """Ask for the scales of the products of a step; past the edge they are 0."""
        place = (work.segment.begin + step) * self.tile.depth
        rows, columns, _ = self.tile.mma.tile
        for (side, one), fragments in zip(self.sources, held, strict=True):
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
        """Of each part of the columns the products of a row's scale and that of the part."""
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
        """What is added up and a sum, which is multiplied by the scale of its row and that of its column.

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
            return elementwise("fma", elementwise("mul", acc, by_row), by_column[0], total)
        return elementwise("fma", acc, self._of_columns(by_column, acc), total)

    def _of_columns(self, factors: Sequence[Any], acc: Fragment) -> Any:
        """For each column the factor of the part of the tile that it lies in."""
        made, width = factors[-1], acc.shape[1] // len(factors)
        for at in range(len(factors) - 2, -1, -1):
            made = elementwise("select", coordinates(acc, 1) < (at + 1) * width, factors[at], made)
        return made


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
