"""Operand metadata: side arrays such as scales and zero points, with which an operand is decoded.

An operand has one main array, tiled over (row, k), which the ring loads, and optional side arrays.  Their
elements are read where they are needed: if an array has one for each group of neighbours along K, one for
each row, provided that the decoded part lies within a group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from tilewright.dataflow.nodes import ArrayPart, Node, Span
from tilewright.lang import operations as tw
from tilewright.lang.scalars import Index
from tilewright.lang.tensors import Fragment, Tensor
from tilewright.schedule.factors import Factor, run_along, same
from tilewright.schedule.partition import Work
from tilewright.schedule.provenance import made_by
from tilewright.schedule.stages import PlainStages, Share, plain_tiles

Moved: TypeAlias = tuple[ArrayPart, Tensor, Tensor]
"""The part of a tile in the graph, its source and its target."""


@dataclass(frozen=True)
class Spot:
    """Place of the elements that are decoded: a part of a tile of the operand.

    Args:
        work: the tile of the result.
        row: which part of so many rows of the operand.
        step: which part of so many k, counted from the first k of all.
        stage: the stage of the ring that it is in.
        part: which part of its tile it is.
    """

    work: Work
    row: Index
    step: Index
    stage: Index = 0
    part: int = 0


@dataclass(frozen=True)
class OperandMetadata:
    """The side arrays of an operand.

    Args:
        factor: the operand.
        views: each of them, at the places of a tile, with the dimensions that it has of rows and k.
        groups: of each that has elements for groups along K the same without repetitions, (rows, groups).
        first: any tile of the result.
        rings: of those the ring that tiles of it are loaded to, by the name of the array.
    """

    factor: Factor
    views: tuple[tuple[ArrayPart, Callable[[Work], Tensor]], ...]
    groups: tuple[tuple[ArrayPart, Callable[[Work], Tensor]], ...]
    first: Work
    rings: dict[str, PlainStages] = field(default_factory=dict)

    @property
    def runs(self) -> list[int]:
        """How many neighbours along K have an element of each in common."""
        return self.factor.runs

    def stage(self, rows: int, block_k: int, stages: int) -> None:
        """Let a ring in shared memory hold what belongs to the tiles of the operand.

        Args:
            rows: of a tile.
            block_k: how deep it is.
            stages: tiles that the ring holds.
        """
        for part, view in self.groups:
            with made_by(node=part):
                name, count = part.operand.name, groups_in(part, self.factor.depth, block_k)
                if count:
                    sample = view(self.first)
                    along_rows = sample.unit_dim == 0
                    size = rows, count, stages
                    self.rings[name] = PlainStages(
                        plain_tiles(f"s{name}", sample.dtype, *size, along_rows=along_rows)
                    )

    def moves(self, work: Work, row: Index, step: Index, stage: Index, block_k: int) -> list[Moved]:
        """The copies of side arrays for one tile of the operand.

        Args:
            work: the tile of the result.
            row: which of the operand's tiles along its rows.
            step: which along K.
            stage: where it goes.
            block_k: how deep it is.
        """
        found = []
        for part, view in self.groups:
            ring, run = self.rings.get(part.operand.name), run_along(part, self.factor.depth)
            if ring is None or run is None:
                continue
            at = step if run <= block_k else step * block_k // run
            found += [(part, *pair) for pair in ring.pairs(view(work), row, at, stage, Share())]
        return found

    def is_held(self, node: Node) -> bool:
        """Whether a leaf of the graph is the array of which the ring loads tiles."""
        return same(node, self.factor.part)

    def elements(self, node: Node, held: Fragment, spot: Spot) -> Fragment:
        """The elements of one of them that belong to a part of the operand.

        Args:
            node: what the graph says of it.
            held: the part of the operand.
            spot: where that lies.

        Returns:
            A fragment of the same rows and k, with extent 1 along what it does not vary along.
        """
        part, view = next(pair for pair in self.views if same(pair[0], node))
        rows, depth = held.shape
        with made_by(node=part):
            run = run_along(part, self.factor.depth)
            if (ring := self.rings.get(part.operand.name)) is not None and run is not None:
                at = spot.part * depth // run if ring.shape[1] > 1 else 0
                tile = ring.shared[spot.stage].tile((rows, 1), (0, at))
                return tw.load(tile, held.distribution.projected((rows, 1)), name=f"r{part.operand.name}")
            tensor, varies = view(spot.work), self.factor.row in part.at
            within = run is not None and run % depth == 0
            if run is None:
                tile = tensor.tile((rows,), (spot.row,)).unmerge(0, (rows, 1))
            elif not varies:
                tile = tensor.tile((1 if within else depth,), (spot.step * (depth if within else 1),))
                tile = tile.unmerge(0, (1, 1 if within else depth))
            elif within:
                tile = tensor.tile((rows, 1), (spot.row, spot.step * depth))
            else:
                tile = tensor.tile((rows, depth), (spot.row, spot.step))
            shape = tuple(int(extent) for extent in tile.shape)
            spread = held.distribution if shape == held.shape else held.distribution.projected(shape)
            return tw.load(tile, spread, name=f"r{part.operand.name}")


def groups_in(part: ArrayPart, depth: Span, block_k: int) -> int:
    """How many groups along K a tile of an operand has; 0 if these are not whole, and it does not lie in one.

    Args:
        part: an array beside the operand.
        depth: the span along K.
        block_k: how deep a tile is.
    """
    run = run_along(part, depth)
    if run is None or run == 1 or len(part.at) < 2:
        return 0
    return block_k // run if block_k % run == 0 else int(run % block_k == 0)
