"""Upper limits on tiles and thread maps, checked before any table is built."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.calls import Most
from tilewright.errors import LayoutError, shown

PAIRS = 1 << 22
"""(thread, value) pairs of one map. The check that a map is exact tables all of them."""

ELEMENTS = 1 << 24
"""Elements of one tile. Checks table all of them."""

THREADS = 1 << 16
"""Threads of one block. A GPU allows 1024; the reference runs each thread separately."""

SHARED_BYTES = 1 << 26
"""Bytes of one tensor in shared memory. No target has a hundredth of it; the reference allocates it."""

SWIZZLE_BITS = 40
"""Highest offset bit, in elements, that a swizzle may reach. No memory has larger offsets."""

WARPS = Most(1024, "a block of a GPU has 1024 threads at most")
REPEATS = Most(4096, "each is held in registers of its own")
UNROLLED = Most(1 << 16, "the body is traced once for each, and repeated in the generated text")
COPIES = Most(64, "the machine code has so many copies of the loop's body")
BARRIERS = Most(4096, "each takes 8 bytes of shared memory")
ARRIVALS = Most((1 << 20) - 1, "the hardware counts no further")
WIDEST = Most(128, "no access is wider than a line of 128 bytes")
LANES = Most(1024, "a block of a GPU has 1024 threads at most")
STAGES = Most(256, "each holds a tile of every operand in shared memory, and the first loads are unrolled")


def check_tile(shape: Sequence[int]) -> None:
    """Refuse a tile with an illegal extent or too many elements.

    Raises:
        LayoutError: an extent below 1, or more than `ELEMENTS` in all.
    """
    if any(extent < 1 for extent in shape):
        raise LayoutError(f"a tile of shape {tuple(shape)}; every extent is at least 1")
    if math.prod(shape) > ELEMENTS:
        raise LayoutError(
            f"a tile of shape {shown(tuple(shape))} has {shown(math.prod(shape))} elements; a map of threads "
            f"takes at most {ELEMENTS}, all of which are looked at"
        )


def check_rank(what: str, given: Sequence[object], rank: int) -> None:
    """Refuse a shape or index whose rank differs from the tile's."""
    if len(given) != rank:
        raise LayoutError(f"{what} {shown(tuple(given))} of rank {len(given)} for a tile of rank {rank}")


def check_pairs(threads: int, values: int) -> None:
    """Refuse a map with more threads than a block may have, or more pairs than can be tabled.

    Raises:
        LayoutError: more than `THREADS` threads, or more than `PAIRS` pairs.
    """
    if threads > THREADS:
        raise LayoutError(f"{shown(threads)} threads share a tile; at most {THREADS} threads are possible")
    if threads * values > PAIRS:
        raise LayoutError(
            f"{threads} threads hold {shown(values)} values each; a map has at most {PAIRS} such pairs, all "
            f"of which are looked at; nearest legal choice: {PAIRS // threads} values"
        )
