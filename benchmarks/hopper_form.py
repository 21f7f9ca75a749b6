"""A form of the Hopper GEMM: how a block's tile is made, who takes which tile, what is staged and where."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import tilewright as tw

WARPS = 4  # of a warpgroup
ROW_BYTES = 128  # of a row in shared memory, which is what the swizzle takes
BOX_ROWS = 256  # of a box that TMA walks, at most
PROCESSORS = 132  # multiprocessors of an H200
SHARED_BYTES = 232448 - 1024  # of a block, without barriers


@dataclass(frozen=True)
class Form:
    """How a GEMM runs.

    Args:
        columns: of a warpgroup's tile, at most 256.
        rows: of a warpgroup's tile, a multiple of 64.
        groups: warpgroups that multiply; together they hold one tile, or with ``pingpong`` each its own.
        pingpong: whether two warpgroups take tiles in turns: one stores while the other multiplies.
        stages: of the ring; 0: as many as fit.
        buffers: panels of C that a warpgroup has in shared memory; 0: C is stored from registers.
        batch: panels of C that are stored together.
        cluster: blocks along M, which share B by multicast, and along N, which share A.
        band: tiles across the band in which tiles follow each other.
        band_along: the axis that a band cuts into pieces: ``"m"`` or ``"n"``.
        snake: whether every second band runs backwards.
        persistent: whether a block takes tile after tile; otherwise a block per tile.
        even: whether there are only as many blocks as finish together.
        registers: of a loading and of a multiplying thread; None: what the compiler takes, and one loading
            warp instead of four.
        pending: groups of MMAs that a warpgroup leaves unfinished when it releases a stage.
        period: steps after which partial sums are added to others in f32; None: never.
        partials: accumulators that take turns in holding partial sums of one step each.
        fresh: whether the first products overwrite sums, instead of being added to zeros.
        processors: multiprocessors on which blocks persist.
        slice: columns that an epilogue computes at once: it decides how many values need registers.
    """

    columns: int = 256
    rows: int = 64
    groups: int = 2
    pingpong: bool = False
    stages: int = 0
    buffers: int = 2
    batch: int = 1
    cluster: tuple[int, int] = (1, 1)
    band: int = 8
    band_along: str = "m"
    snake: bool = False
    persistent: bool = True
    even: bool = True
    registers: tuple[int, int] | None = (40, 232)
    pending: int = 1
    period: int | None = None
    partials: int = 1
    fresh: bool = True
    processors: int = PROCESSORS
    slice: int = 16

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a block's tile."""
        return self.rows * (1 if self.pingpong else self.groups), self.columns

    def panel(self, element: tw.DType) -> int:
        """Columns of C that are staged as one."""
        return gcd(self.columns, ROW_BYTES // element.bytes)

    def filled(self, out: tw.DType) -> Form:
        """With buffers that panels of a tile take equally often, and as many stages as there is room for."""
        panels = self.columns // self.panel(out)
        buffers = next((n for n in range(min(self.buffers, panels), 0, -1) if panels % n == 0), 0)
        batch = next(n for n in range(min(self.batch, max(buffers, 1)), 0, -1) if buffers % n == 0)
        held = self.groups * buffers * self.rows * self.panel(out) * out.bytes
        fitting = min((SHARED_BYTES - held) // (sum(self.tile) * ROW_BYTES), 8)
        return replace(self, buffers=buffers, batch=batch, stages=self.stages or fitting)


def tile_order(index: Any, tiles: Any, form: Form) -> tuple[Any, Any]:
    """Tile number -> (m, n): bands of tiles that follow each other, so that neighbours share operands."""
    cut, run = tiles if form.band_along == "m" else tiles[::-1]
    band = tw.let(index // (form.band * run))
    first = tw.let(band * form.band)
    width = tw.let(tw.minimum(cut - first, form.band))
    within = tw.let(index - first * run)
    i, j = tw.let(first + within % width), tw.let(within // width)
    if form.snake:
        j = tw.let(j + band % 2 * (run - 1 - 2 * j))
    return (i, j) if form.band_along == "m" else (j, i)
