"""Operand metadata: side arrays, such as scales and zero points, that decode an operand.

An operand has one main array, tiled over (row, k), which the ring loads, and optional side arrays.  Threads
read elements of side arrays when they decode a part of a tile.  If a side array has an element for each group
of neighbours along K, and the part lies within one group, they read one element for each row.
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
from tilewright.schedule.provenance import made_by
from tilewright.schedule.stages import PlainStages, Share, plain_tiles
from tilewright.schedule.work import Work

Moved: TypeAlias = tuple[ArrayPart, Tensor, Tensor]
"""The node of a tile, its source and its target."""


@dataclass(frozen=True)
class Spot:
    """Place of a decoded part of a tile of the operand.

    Args:
        work: the tile of the result.
        row: index of the part along the rows, in parts with this number of rows.
        step: index of the part along K, in parts of this depth.
        stage: the stage of the ring that holds it.
        part: index of the part in its tile.
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
        views: for each side array a function from a tile of the result to the array over (row, k), row or k.
        groups: for each side array with groups along K a function to the array over (row, group).
        first: any tile of the result, for the dtype and layout of a side array.
        rings: rings that hold tiles of side arrays with groups, by the name of the array.
    """

    factor: Factor
    views: tuple[tuple[ArrayPart, Callable[[Work], Tensor]], ...]
    groups: tuple[tuple[ArrayPart, Callable[[Work], Tensor]], ...]
    first: Work
    rings: dict[str, PlainStages] = field(default_factory=dict)

    def stage(self, rows: int, block_k: int, stages: int) -> None:
        """Allocate rings in shared memory for side arrays with groups along K.

        Args:
            rows: rows of a tile.
            block_k: depth of a tile.
            stages: number of stages.
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
            row: index of the operand's tile along its rows.
            step: index of the tile along K.
            stage: the target stage.
            block_k: depth of the tile.
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
        """Whether a leaf of the graph is the main array."""
        return same(node, self.factor.part)

    def elements(self, node: Node, held: Fragment, spot: Spot) -> Fragment:
        """The elements of a side array for a part of the operand.

        Args:
            node: the leaf of the graph.
            held: the part of the operand.
            spot: its place.

        Returns:
            A fragment with the same rows and k, or with extent 1 if it does not vary along rows or k.
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
            if run is None and not varies:  # a number for each batch
                tile = tensor.broadcast(0, 1).broadcast(0, 1)
            elif run is None:
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
    """Groups along K of a side array in a tile; 0 if a tile neither has whole groups nor lies in one.

    Args:
        part: the side array.
        depth: the span along K.
        block_k: depth of a tile.
    """
    run = run_along(part, depth)
    if run is None or run == 1 or len(part.at) < 2:
        return 0
    return block_k // run if block_k % run == 0 else int(run % block_k == 0)
