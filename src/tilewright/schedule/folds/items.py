"""The order in which the blocks of a persistent kernel take tiles of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.lang.control import let, var, when
from tilewright.lang.control import range as traced_range
from tilewright.lang.launch import block_index, derived, require
from tilewright.lang.scalars import Index, ceil_div, maximum, minimum
from tilewright.schedule.partition import unflattened

MOST = (1 << 30) - 1
"""Most tiles of one launch: GPUs divide 32-bit numbers fast."""


@dataclass(frozen=True)
class Item:
    """One tile of rows of one batch item, e.g. of one head of attention.

    Args:
        parity: parity of the number of items that the block took before this one.
        batch: its index along each leading dimension.
        tile: its number along the rows.
    """

    parity: Index
    batch: tuple[Index, ...]
    tile: Index


@dataclass(frozen=True)
class RowTile:
    """One tile of rows of a block, with its steps.

    Args:
        parity: parity of the number of tiles that the block took before this one.
        before: number of steps of the block before this tile, modulo twice the stages of the rings.
        tile: its number along the rows.
        begin: its first step.
        count: number of its steps.
        part: the part of the loop to which they belong.
    """

    parity: Index
    before: Index
    tile: Index
    begin: Index
    count: Index
    part: Index = 0


class Items:
    """The tiles of rows that each block of a persistent kernel takes, in order.

    Without bands, blocks take the tiles head after head, so that they read the same keys at the same time.
    Here a head is an item of the batch.

    With a causal mask, later tiles take longer, or earlier ones if the loop runs over queries.  Blocks then
    finish the heads of one band before those of the next one; keys and values of a band fit the cache.  In a
    band, the longest tiles of all heads come first.
    The order of the blocks alternates from turn to turn: the block with the longest tile of one turn gets the
    shortest of the next.  The next band begins with the other order.

    Args:
        leading: extents of the leading dimensions.
        tiles: tiles of one head.
        blocks: number of blocks that run at the same time.
        band: number of heads in a band; None: no bands.
        falling: whether earlier tiles take longer.
    """

    def __init__(
        self,
        leading: Sequence[Index],
        tiles: Index,
        blocks: int,
        band: Index | None,
        *,
        falling: bool = False,
    ) -> None:
        self.falling = falling
        heads: Index = prod(leading, start=1)
        require(heads * tiles <= MOST, f"there are more than {MOST} tiles of rows")
        self.leading = [_bounded(maximum(extent, 1)) for extent in leading]
        self.tiles = _bounded(maximum(tiles, 1))
        self.heads, self.total = _bounded(heads), _bounded(heads * tiles)
        self.blocks = derived(maximum(minimum(self.total, blocks), 1))
        self.block = block_index(self.blocks)
        self.band = None if band is None else _bounded(maximum(minimum(band, self.heads), 1))

    def all(self) -> Iterator[Item]:
        """Yield the block's items in order."""
        taken = var(0)
        for head, tile in self._places():
            parity = let(maximum(minimum(taken.get(), 1), 0))
            batch = tuple(map(let, unflattened(head, self.leading))) if self.leading else ()
            yield Item(parity, batch, tile)
            taken.set(1 - parity)

    def _places(self) -> Iterator[tuple[Index, Index]]:
        """Yield heads and tiles: head after head, or band after band, the longest tiles of a band first."""
        if self.band is None:
            for turn in traced_range(let(ceil_div(self.total - self.block, self.blocks))):
                number = let(minimum(turn * self.blocks + self.block, MOST))
                yield let(number // self.tiles), let(number % self.tiles)
            return
        bands = _bounded(ceil_div(self.heads, self.band))
        turns = _bounded(maximum(ceil_div(self.band * self.tiles, self.blocks), 1))
        for number in traced_range(_bounded(bands * turns)):
            band, turn = let(number // turns), let(number % turns)
            back = (band + turn) % 2
            drawn = maximum(self.block + back * (self.blocks - 1 - 2 * self.block), 0)
            within = let(minimum(turn * self.blocks + drawn, MOST))
            first = let(minimum(band * self.band, MOST))
            heads = let(maximum(minimum(self.heads - first, self.band), 1))
            with when(within < heads * self.tiles):
                along = within // heads
                tile = let(along if self.falling else maximum(self.tiles - 1 - along, 0))
                yield let(minimum(first + within % heads, MOST)), tile


def longest(lengths: npt.NDArray[Any], heads: int, band: int, blocks: int) -> float:
    """Return the time of the slowest block if blocks take the tiles in bands.

    Args:
        lengths: time of each tile of a head, in order.
        heads: number of heads in all batches.
        band: number of heads in a band; the order of tiles is that of `Items`.
        blocks: number of blocks that run at the same time.
    """
    tiles = len(lengths)
    drawing = max(min(heads * tiles, blocks), 1)
    load = np.zeros(drawing)
    for number, first in enumerate(range(0, heads, band)):
        together = min(heads - first, band)
        within = np.arange(together * tiles)
        turn, drawn = within // drawing, within % drawing
        block = np.where((number + turn) % 2, drawing - 1 - drawn, drawn)
        np.add.at(load, block, lengths[tiles - 1 - within // together])
    return float(load.max())


def _bounded(count: Index) -> Index:
    """Let the host compute a count, clamped to 32 bits."""
    made: Index = derived(minimum(count, MOST))
    return made
