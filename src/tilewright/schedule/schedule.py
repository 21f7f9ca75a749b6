"""A schedule: how a dataflow kernel is computed, as one value."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from tilewright.ir.mma import TiledMma

STAGINGS = ("direct", "registers", "cp_async", "fragments", "tma")
"""How tiles of A and B come to where they are multiplied."""

ROLES = ("none", "cooperative", "ping-pong")
"""How the warps of a block share its work."""

EPILOGUES = ("direct", "staged")
"""How a tile of the result comes to global memory."""


@dataclass(frozen=True, repr=False)
class Schedule:
    """How a dataflow kernel is computed.

    Args:
        mma: the tiled MMA of one group of warps.
        block_k: how deep a tile of A and B is.
        stages: tiles of A and B that shared memory holds.
        staging: one of `STAGINGS`.
        roles: one of `ROLES`.
        groups: groups of warps that multiply; cooperative ones share a tile along its rows, groups that play
            ping-pong take a tile each.
        blocks: of a persistent grid; 0: a block for each tile.
        group_m: rows of tiles that follow each other column by column; 0: the grid's own order.
        promote: steps after which sums are added to others in f32; 0: never.
        epilogue: one of `EPILOGUES`.
        buffers: of each group, through which a staged epilogue writes.
        registers: of each thread that multiplies, where another role copies; 0: as the compiler finds.
    """

    mma: TiledMma
    block_k: int
    stages: int = 1
    staging: str = "direct"
    roles: str = "none"
    groups: int = 1
    blocks: int = 0
    group_m: int = 0
    promote: int = 0
    epilogue: str = "direct"
    buffers: int = 2
    registers: int = 232

    @property
    def tile(self) -> tuple[int, int, int]:
        """Extents (m, n, k) of the tile that is computed at once."""
        m, n, _ = self.mma.tile
        return (m * (self.groups if self.roles != "ping-pong" else 1), n, self.block_k)

    def __repr__(self) -> str:
        given = [(f.name, getattr(self, f.name), f.default) for f in fields(self)]
        said = [f"{name}={_spelled(value)}" for name, value, default in given if value != default]
        return f"tw.Schedule({', '.join(said)})"


def _spelled(value: Any) -> str:
    if isinstance(value, TiledMma):
        return f"tw.TiledMma({value.atom.name!r}, warps={value.warps}, repeats={value.repeats})"
    return repr(value)
