"""Tiles of the kernels of attention: what registers and shared memory hold, by head dimension."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.arch import Arch
from tilewright.ir.mma import TiledMma
from tilewright.lang.fragments import Fragment
from tilewright.lang.scalars import Index
from tilewright.ops.ending import ACTIVATIONS

MOST_COLUMNS = 256
"""Most columns of queries, keys and values."""

PANEL = 64
"""Columns of one bulk copy: rows of 128 bytes."""

BARRIER_BYTES = 256
"""Bytes of shared memory for transaction barriers."""

ROWS_OF_KEYS = {64: 128, 128: 128, 192: 112, 256: 80}
"""Columns of values -> rows of a key tile, so that scores, weights and sums fit registers."""


@dataclass(frozen=True)
class WarpgroupTiles:
    """How the kernel for warpgroups cuts a problem.

    Args:
        depth: columns of queries and keys, a multiple of 16.
        width: columns of values, a multiple of 16.
        keys: rows of a tile of keys.
        stages: stages of the ring of key tiles, and of that of value tiles.
        groups: warpgroups that compute, of 64 queries each.
        own_output: whether results have their own buffer, so that loads of queries overlap their store.
        keys_by_column: whether keys are contiguous along their columns instead of rows.
    """

    depth: int
    width: int
    keys: int
    stages: int
    groups: int
    own_output: bool
    keys_by_column: bool = False

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory, for elements of 2 bytes."""
        deep, wide, long = (-(-side // PANEL) * PANEL for side in (self.depth, self.width, self.keys))
        rows = 64 * self.groups
        held = rows * (deep + wide if self.own_output else max(deep, wide))
        keys = long * self.depth if self.keys_by_column else self.keys * deep
        return 2 * (held + self.stages * (keys + self.keys * wide)) + BARRIER_BYTES


def _covering(columns: int) -> int:
    """Round columns up to a multiple of 16, the K of one MMA."""
    return max(-(-columns // 16) * 16, 16)


def for_warpgroups(
    columns: tuple[int, int], rows: int, arch: Arch, *, plain: bool, keys_by_column: bool = False
) -> WarpgroupTiles:
    """Return the tiles for warpgroups, for elements of 2 bytes.

    Args:
        columns: columns of queries and keys, and of values.
        rows: queries of one head.
        arch: the architecture; 0 bytes of shared memory mean no limit.
        plain: whether registers suffice for a third group, which a mask prevents.
        keys_by_column: whether keys are contiguous along their columns, 64 of which are loaded together.
    """
    depth, width = map(_covering, columns)
    most = next(keys for least, keys in ROWS_OF_KEYS.items() if width <= least)
    # Three groups pay if tiles of 192 rows hang over by at most 5 % more than tiles of 128.
    by_three, by_two = (-(-rows // side) * side for side in (192, 128))
    groups = 3 if max(depth, width) <= PANEL and plain and by_three <= 1.05 * by_two else 2
    unit = PANEL if keys_by_column else 16

    def sizes() -> Iterator[WarpgroupTiles]:
        for keys in range(most // unit * unit, 0, -unit):
            for own_output in (True, False):
                yield WarpgroupTiles(depth, width, keys, 2, groups, own_output, keys_by_column)

    return next(tiles for tiles in sizes() if _fits(tiles.shared_bytes, arch))


def _fits(shared_bytes: int, arch: Arch) -> bool:
    return not arch.shared_bytes or shared_bytes <= arch.shared_bytes


# ---------------------------------------------------------------- chains: a function in place of the softmax


@dataclass(frozen=True)
class ByActivation:
    """Weights are a function of the scores; rows have no state.

    Args:
        activation: the name of the function; None: scores themselves.
    """

    activation: str | None
    decay = None
    """Earlier sums are not rescaled."""

    def begin(self, mma: TiledMma, exponent: Any) -> ByActivation:
        """Return the state of a tile: this object, as rows have no state."""
        return self

    def hide(self, scores: Fragment, begin: Index, keys: Index, seen: Index | None) -> None:
        """Do nothing: rows beyond the second matrix are loaded as zeros."""

    def weigh(self, scores: Fragment) -> None:
        """Apply the function."""
        if self.activation is not None:
            scores.assign(ACTIVATIONS[self.activation](scores))

    def averages(self, sums: Fragment) -> Fragment:
        """Return the sums, which are the result."""
        return sums
