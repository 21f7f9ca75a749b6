"""Tiles of an operand in shared memory: a ring of stages, as those who copy and those who multiply see it."""

from __future__ import annotations

from tilewright.lang import operations as tw
from tilewright.lang.control import unroll
from tilewright.lang.scalars import Index
from tilewright.lang.tensors import Tensor
from tilewright.views.view import View

ROW_BYTES = 128
"""A row of shared memory under the swizzle that bulk copies and asynchronous multiplies take."""


class PlainStages:
    """A ring whose tiles lie as they lie in global memory: what is contiguous there is contiguous here.

    Args:
        source: (rows, K) in global memory.
        rows: of a tile.
        depth: of a tile.
        stages: tiles that it holds.
    """

    def __init__(self, source: Tensor, rows: int, depth: int, stages: int, name: str) -> None:
        self.shape, self.stages = (rows, depth), stages
        strides = (1, rows) if source.unit_dim == 0 else (depth, 1)
        layout = View.strided((stages, rows, depth), (rows * depth, *strides))
        self.shared = tw.shared((stages, rows, depth), source.dtype, layout=layout, name=name)

    def tile(self, index: Index) -> Tensor:
        """The tile of a step."""
        return self.shared[0] if self.stages == 1 else self.shared[index % self.stages]

    def pairs(self, source: Tensor, row: Index, step: Index, stage: Index) -> list[tuple[Tensor, Tensor]]:
        """What is copied to where for one step."""
        return [(source.tile(self.shape, (row, step)), self.shared[stage])]


class SwizzledStages:
    """A ring in rows of 128 bytes under the swizzle, for groups of warps that share the rows of a tile.

    Args:
        source: (rows, K) in global memory.
        rows: of one group's tile.
        depth: of a tile.
        stages: tiles that it holds.
        groups: how many groups there are; 0: they all take the same tile.
    """

    def __init__(self, source: Tensor, rows: int, depth: int, stages: int, groups: int, name: str) -> None:
        self.rows, self.depth, self.groups = rows, depth, groups
        self.along_rows = source.unit_dim == 0
        width = ROW_BYTES // source.dtype.bytes
        if self.along_rows:
            self.panels, panel = rows // width, (depth, width)
        else:
            self.panels, panel = depth // width, (rows, width)
        self.width = width
        shared_by = (groups,) if groups else ()
        several = (self.panels,) if self.along_rows or self.panels > 1 else ()
        shape = (stages, *shared_by, *several, *panel)
        self.shared = tw.shared(shape, source.dtype, swizzle=ROW_BYTES, name=name)

    @property
    def bytes(self) -> int:
        """Of one stage."""
        return max(self.groups, 1) * self.rows * self.depth * self.shared.dtype.bytes

    def operand(self, stage: Index, group: Index) -> Tensor:
        """(rows, depth): what a group multiplies of one stage."""
        held = self.shared[stage, group] if self.groups else self.shared[stage]
        if self.along_rows:
            return held.permute(0, 2, 1).merge(0)
        return held if self.panels == 1 else held.permute(1, 0, 2).merge(1)

    def pairs(self, source: Tensor, row: Index, step: Index, stage: Index) -> list[tuple[Tensor, Tensor]]:
        """The boxes that are copied to where for one step.

        Args:
            source: (rows, K).
            row: which tile along the rows, of all groups together.
            step: which tile along K.
            stage: where it goes.
        """
        groups, held = max(self.groups, 1), self.shared[stage]
        if not self.along_rows and self.panels == 1:
            whole = held.merge(0) if self.groups else held
            return [(source.tile((groups * self.rows, self.depth), (row, step)), whole)]
        found = []
        for group in unroll(groups):
            own = held[group] if self.groups else held
            first = row * groups + group if self.groups else row
            for panel in unroll(self.panels):
                if self.along_rows:
                    at = (step, first * self.panels + panel)
                    found.append((source.permute(1, 0).tile((self.depth, self.width), at), own[panel]))
                else:
                    at = (first, step * self.panels + panel)
                    found.append((source.tile((self.rows, self.width), at), own[panel]))
        return found
