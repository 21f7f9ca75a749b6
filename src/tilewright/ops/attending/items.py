"""Which tiles of queries the blocks of a persistent kernel take, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.lang.control import let, var, when
from tilewright.lang.control import range as traced_range
from tilewright.lang.launch import block_index, derived, require
from tilewright.lang.scalars import Index, ceil_div, maximum, minimum

MOST = (1 << 30) - 1
"""Most tiles of one launch: GPUs divide 32-bit numbers fast."""


@dataclass(frozen=True)
class Item:
    """One tile of queries of one head.

    Args:
        parity: parity of the number of items that the block has taken before.
        batch: its batch.
        head: its head among the queries'.
        tile: its number along the queries.
    """

    parity: Index
    batch: Index
    head: Index
    tile: Index


class Items:
    """The tiles of queries that each block of a persistent kernel takes, in order.

    Without a mask, tiles take the same time.  Blocks take them head after head, so that they read the same
    keys at the same time.

    With a causal mask, later tiles take longer.  Blocks then finish ``band`` heads before the next ones; keys
    and values of a band fit the cache.  In a band, the last tiles of all heads come first.  The order of the
    blocks alternates from turn to turn: the block with the longest tile of one turn gets the shortest of the
    next.  The next band begins with the other order.

    Args:
        extents: batches, heads, and tiles of one head.
        blocks: number of blocks that run at the same time.
        band: number of heads in a band with a causal mask; None without a mask.
    """

    def __init__(self, extents: tuple[Index, Index, Index], blocks: int, band: Index | None) -> None:
        batches, heads, tiles = extents
        require(batches * heads * tiles <= MOST, f"there are more than {MOST} tiles of queries")
        self.heads, self.tiles = _bounded(maximum(heads, 1)), _bounded(maximum(tiles, 1))
        self.all_heads, self.total = _bounded(batches * heads), _bounded(batches * heads * tiles)
        self.blocks = derived(maximum(minimum(self.total, blocks), 1))
        self.block = block_index(self.blocks)
        self.band = None if band is None else _bounded(maximum(minimum(band, self.all_heads), 1))

    def all(self) -> Iterator[Item]:
        """Yield the block's items in order."""
        taken = var(0)
        for batch_head, tile in self._one_by_one() if self.band is None else self._in_bands():
            parity = let(maximum(minimum(taken.get(), 1), 0))
            yield Item(parity, let(batch_head // self.heads), let(batch_head % self.heads), tile)
            taken.set(1 - parity)

    def _one_by_one(self) -> Iterator[tuple[Index, Index]]:
        """Yield heads and tiles, head after head."""
        for turn in traced_range(let(ceil_div(self.total - self.block, self.blocks))):
            number = let(minimum(turn * self.blocks + self.block, MOST))
            yield let(number // self.tiles), let(number % self.tiles)

    def _in_bands(self) -> Iterator[tuple[Index, Index]]:
        """Yield heads and tiles, band after band, the longest tiles of each band first."""
        assert self.band is not None, "a banded mask needs its width"
        bands = _bounded(ceil_div(self.all_heads, self.band))
        turns = _bounded(maximum(ceil_div(self.band * self.tiles, self.blocks), 1))
        for number in traced_range(_bounded(bands * turns)):
            band, turn = let(number // turns), let(number % turns)
            back = (band + turn) % 2
            drawn = maximum(self.block + back * (self.blocks - 1 - 2 * self.block), 0)
            within = let(minimum(turn * self.blocks + drawn, MOST))
            first = let(minimum(band * self.band, MOST))
            beside = let(maximum(minimum(self.all_heads - first, self.band), 1))
            with when(within < beside * self.tiles):
                tile = let(maximum(self.tiles - 1 - within // beside, 0))
                yield let(minimum(first + within % beside, MOST)), tile


def longest(lengths: npt.NDArray[Any], heads: int, band: int, blocks: int) -> float:
    """Return the time of the slowest block with a causal mask.

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
        beside = min(heads - first, band)
        within = np.arange(beside * tiles)
        turn, drawn = within // drawing, within % drawing
        block = np.where((number + turn) % 2, drawing - 1 - drawn, drawn)
        np.add.at(load, block, lengths[tiles - 1 - within // beside])
    return float(load.max())


def _bounded(count: Index) -> Index:
    """Let the host compute a count, clamped to 32 bits."""
    made: Index = derived(minimum(count, MOST))
    return made
