"""Tiles of an operand in shared memory: rings of stages, or single tiles."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tilewright.dtypes import DType
from tilewright.ir.mma import MmaAtom
from tilewright.lang import operations as tw
from tilewright.lang.control import unroll
from tilewright.lang.scalars import Index
from tilewright.lang.tensors import Fragment, Tensor
from tilewright.layout.layout import Layout
from tilewright.schedule.needs import RING, ROW_BYTES, Buffer
from tilewright.targets.atoms import DOTS
from tilewright.threads.distribution import Distribution, raked

LINE_BYTES = 64
"""Bytes of a cache line of a CPU."""

VECTOR_BYTES = 16
"""Bytes that a thread clears at once."""

MOST_ROWS = 256
"""Most rows of a box of a bulk copy."""


@dataclass(frozen=True)
class Share:
    """The part of a tile that a block copies, if all blocks along one axis of a cluster need the tile.

    Args:
        parts: number of parts; each block copies one for all of them.
        part: index of the block's part.
        axis: axis of the cluster.
    """

    parts: int = 1
    part: Index = 0
    axis: int = 0

    @property
    def multicast(self) -> int | tuple[()]:
        """The axis of the cluster along which a copy goes to all blocks, or ()."""
        return self.axis if self.parts > 1 else ()


@dataclass(frozen=True)
class Together:
    """A layout (K0, rows, K1) of tiles in shared memory, which keeps neighbours along K together.

    Args:
        k1: number of neighbours; 0: the layout of global memory.
        extra_rows: unused rows of K1 between two K0.
    """

    k1: int = 0
    extra_rows: int = 0

    def layout(self, stages: int, rows: int, depth: int) -> Layout:
        """The layout of (stage, row, k).

        Example:
            >>> Together(8, 1).layout(1, 128, 64)
            Layout((1, 128, (8, 8)), (8256, 8, (1, 1032)))
        """
        k0, step = depth // self.k1, (rows + self.extra_rows) * self.k1
        return Layout((stages, rows, (self.k1, k0)), (k0 * step, self.k1, (1, step)))


def plain_tiles(
    name: str,
    dtype: DType,
    rows: int,
    depth: int,
    stages: int,
    *,
    along_rows: bool,
    together: Together = Together(),
    gap: int = 0,
) -> Buffer:
    """A ring of tiles with the same contiguous dimension as in global memory.

    Args:
        name: name of the tensor.
        dtype: dtype of its elements, into which copies convert.
        rows: rows of a tile.
        depth: depth of a tile.
        stages: number of stages.
        along_rows: whether the rows are the contiguous dimension in global memory.
        together: elements that stay together along K instead.
        gap: unused elements after each row, if K is contiguous.
    """
    shape = (stages, rows, depth)
    if 0 < together.k1 <= depth:
        return Buffer(name, RING, shape, dtype, layout=together.layout(stages, rows, depth))
    pitch = depth + gap
    strides = (rows * pitch, *((1, rows) if along_rows else (pitch, 1)))
    return Buffer(name, RING, shape, dtype, strides)


class PlainStages:
    """A ring of tiles with the layout of `plain_tiles`.

    Args:
        buffer: the ring.
    """

    def __init__(self, buffer: Buffer) -> None:
        _, rows, depth = buffer.shape
        self.shape = (rows, depth)
        self.shared = buffer.allocate()

    def pairs(
        self, source: Tensor, row: Index, step: Index, stage: Index, share: Share
    ) -> list[tuple[Tensor, Tensor]]:
        """Pairs of source and target for one step; blocks share nothing."""
        return [(source.tile(self.shape, (row, step)), self.shared[stage])]


class PairedStages:
    """A ring of tiles of pairs, whose two numbers are neighbours as in global memory.

    Args:
        dtype: dtype of one number of a pair.
        rows: rows of a tile.
        depth: depth of a tile.
        stages: number of stages.
        along_rows: whether neighbouring pairs are neighbours along the rows, not along K.
    """

    def __init__(
        self, dtype: DType, rows: int, depth: int, stages: int, name: str, *, along_rows: bool
    ) -> None:
        self.along_rows = along_rows
        self.tile = (depth, rows, 2) if along_rows else (rows, depth, 2)
        self.held = tw.shared((stages, *self.tile), dtype, name=name)

    def one(self, which: int) -> OneOfPairs:
        """The ring of the first numbers, whose copies move whole pairs, or of the second numbers."""
        part = self.held[:, :, :, which]
        return OneOfPairs(self, part.permute(0, 2, 1) if self.along_rows else part, which == 0)


@dataclass(frozen=True)
class OneOfPairs:
    """One number of each pair of a ring.

    Args:
        both: the ring of pairs.
        shared: (stages, rows, depth): the numbers.
        copies: whether its copies move the pairs.
    """

    both: PairedStages
    shared: Tensor
    copies: bool

    def pairs(
        self, source: Tensor, row: Index, step: Index, stage: Index, share: Share
    ) -> list[tuple[Tensor, Tensor]]:
        """Pairs of source and target for one step, for an array of pairs in the order of the ring."""
        place = (step, row, 0) if self.both.along_rows else (row, step, 0)
        return [(source.tile(self.both.tile, place), self.both.held[stage])] if self.copies else []


def is_widened(atom: MmaAtom, side: int, dtype: DType, *, along_k: bool) -> bool:
    """Whether packed elements are converted before they are written to shared memory.

    That is so if a lane multiplies fewer neighbours along K than share a byte, or if neighbours along K do
    not share bytes.

    Args:
        atom: the instruction.
        side: 0 for operand A, 1 for operand B.
        dtype: dtype of the operand's elements in memory.
        along_k: whether the operand is contiguous along K.
    """
    if not dtype.is_packed:
        return False
    dim, run = (atom.a, atom.b)[side].vector()
    return not along_k or dim != 1 or run % dtype.per_byte > 0


class HeldTile:
    """One tile that bypasses shared memory, in the registers for the multiplication.

    Args:
        source: (rows, K) in global memory.
        spread: threads that multiply its elements.
    """

    def __init__(self, source: Tensor, spread: Distribution, name: str) -> None:
        self.shape = spread.shape
        self.held = tw.fragment(spread, source.dtype, name=name)

    def pairs(
        self, source: Tensor, row: Index, step: Index, stage: Index, share: Share
    ) -> list[tuple[Tensor, Fragment]]:
        """Pairs of source and target for one step; warps share nothing."""
        return [(source.tile(self.shape, (row, step)), self.held)]


class PackedTile:
    """One tile, packed in the order in which one thread multiplies it.

    Args:
        buffer: the packed tile.
        narrow: the tile in the same order before it is converted; None: it is converted as it is packed.
    """

    def __init__(self, buffer: Buffer, narrow: Buffer | None) -> None:
        rows, depth = buffer.shape
        self.shape = (rows, depth)
        self.shared = buffer.allocate()
        self.narrow = None if narrow is None else narrow.allocate()

    def pairs(
        self, source: Tensor, row: Index, step: Index, stage: Index, share: Share
    ) -> list[tuple[Tensor, Tensor]]:
        """Pairs of source and target for one step."""
        return [(source.tile(self.shape, (row, step)), self.shared)]


def is_packed_first(source: DType, dtype: DType, unit: int, *, along_rows: bool) -> bool:
    """Whether a tile is packed first, and converted afterwards.

    Converting and transposing at once moves numbers one by one; one of the two alone moves vectors.
    Packed elements are not transposed.  Truth values are converted in vectors before they are transposed.

    Args:
        source: the dtype in memory.
        dtype: the dtype of the multiplication.
        unit: rows of a panel; see `packed`.
        along_rows: whether the operand is contiguous along its rows.
    """
    is_apart = source.kind == "bool" or source.is_packed
    return source != dtype and bool(unit) and not along_rows and not is_apart


def packed(rows: int, depth: int, unit: int, dtype: DType) -> Layout:
    """The layout of (row, k) of a tile for a thread that multiplies one micro-tile after the other.

    Args:
        rows: rows of the tile.
        depth: depth of the tile.
        unit: rows of a panel, in which k is slowest; 0: rows of contiguous k with a gap of a cache line, so
            that the rows of a micro-tile do not share a few sets of the cache.
        dtype: dtype of its elements.

    Example:
        >>> from tilewright.dtypes import f32
        >>> packed(96, 4, 32, f32), packed(6, 128, 0, f32)
        (Layout(((32, 3), 4), ((1, 128), 32)), Layout((6, 128), (144, 1)))
    """
    if unit:
        return Layout(((unit, rows // unit), depth), ((1, unit * depth), unit))
    return Layout((rows, depth), (depth + LINE_BYTES // dtype.bytes, 1))


def panel_rows(atom: MmaAtom, is_a: bool, along_rows: bool) -> int:
    """Rows of a panel that a thread multiplies by an atom; 0: it reads rows of contiguous k.

    Elements of A are broadcast, so that A gains from panels only if it is contiguous along M.
    """
    m, n, _ = atom.shape
    if atom.instruction == DOTS:
        return 0
    return (m if along_rows else 0) if is_a else n


def swizzled_tiles(
    name: str, dtype: DType, rows: int, depth: int, stages: int, groups: int, *, along_rows: bool
) -> Buffer:
    """A ring in rows of 128 bytes under the swizzle, for groups of warps that share the rows of a tile.

    Args:
        name: name of the tensor.
        dtype: dtype of its elements.
        rows: rows of one group's tile.
        depth: depth of a tile.
        stages: number of stages.
        groups: groups that share the rows; 0: all groups take the same tile.
        along_rows: whether rows of 128 bytes lie along the rows of the tile, not along K.
    """
    width = ROW_BYTES // dtype.bytes
    panels, panel = (-(-rows // width), (depth, width)) if along_rows else (-(-depth // width), (rows, width))
    shared_by = (groups,) if groups else ()
    several = (panels,) if along_rows or panels > 1 else ()
    # Boxes along K take the rows of all groups at once, so that these are neighbours in each panel.
    held = (*shared_by, *several) if along_rows else (*several, *shared_by)
    return Buffer(name, RING, (stages, *held, *panel), dtype, is_swizzled=True)


class SwizzledStages:
    """A ring with the layout of `swizzled_tiles`.

    Args:
        buffer: the ring.
        rows: rows of one group's tile.
        depth: depth of a tile.
        groups: groups that share the rows; 0: all groups take the same tile.
        along_rows: whether rows of 128 bytes lie along the rows of the tile.
    """

    def __init__(self, buffer: Buffer, rows: int, depth: int, groups: int, *, along_rows: bool) -> None:
        self.rows, self.depth, self.groups, self.along_rows = rows, depth, groups, along_rows
        self.width = ROW_BYTES // buffer.dtype.bytes
        self.panels = (rows if along_rows else depth) // self.width
        self.shared = buffer.allocate()

    @property
    def bytes(self) -> int:
        """Bytes of one stage."""
        return max(self.groups, 1) * self.rows * self.depth * self.shared.dtype.bytes

    def operand(self, stage: Index, group: Index) -> Tensor:
        """(rows, depth): the tile of a group in one stage."""
        if self.groups and self.panels > 1 and not self.along_rows:
            held = self.shared[stage].permute(1, 0, 2, 3)[group]
        else:
            held = self.shared[stage, group] if self.groups else self.shared[stage]
        if self.along_rows:
            return held.permute(0, 2, 1).merge(0)
        return held if self.panels == 1 else held.permute(1, 0, 2).merge(1)

    def pairs(
        self, source: Tensor, row: Index, step: Index, stage: Index, share: Share
    ) -> list[tuple[Tensor, Tensor]]:
        """Pairs of source and target for one step, a box each.

        Args:
            source: (rows, K).
            row: index of the tile along the rows, for all groups together.
            step: index of the tile along K.
            stage: the target stage.
            share: the part that this block copies for its cluster.
        """
        held = self.shared[stage]
        if self.along_rows:
            return self._along_rows(source, row, step, held, share)
        height = max(self.groups, 1) * self.rows // share.parts
        size = next(n for n in range(min(height, MOST_ROWS), 0, -1) if height % n == 0)
        found = []
        for panel in unroll(self.panels):
            rows = held if self.panels == 1 else held[panel]  # its name in emitted texts
            place = rows.merge(0) if self.groups else rows
            for box in unroll(height // size):
                number = share.part * (height // size) + box
                first = row * (share.parts * height // size) + number
                whole = height == size and share.parts == 1
                target = place if whole else place.tile((size, self.width), (number, 0))
                found.append((source.tile((size, self.width), (first, step * self.panels + panel)), target))
        return found

    def _along_rows(
        self, source: Tensor, row: Index, step: Index, held: Tensor, share: Share
    ) -> list[tuple[Tensor, Tensor]]:
        """Boxes of an array that is contiguous along the rows."""
        groups = max(self.groups, 1)
        count = groups * self.panels // share.parts
        panels = held.merge(0) if self.groups else held
        found = []
        for index in unroll(count):
            panel = share.part * count + index
            at = (step, row * groups * self.panels + panel)
            found.append((source.permute(1, 0).tile((self.depth, self.width), at), panels[panel]))
        return found


def zero_after(tile: Tensor, left: Index, threads: int) -> None:
    """``tile[:, left:] = 0``, by all threads of a group; rows are contiguous."""
    rows, depth = tile.shape
    widest = gcd(rows, VECTOR_BYTES // tile.dtype.bytes)
    halves = (widest >> power for power in range(widest.bit_length()))
    vector = next(size for size in halves if depth * gcd(rows // size, threads) % threads == 0)
    across = gcd(rows // vector, threads)
    spread = raked((rows, depth), (across, threads // across), vector, 0)
    rest = tile[:, left:]
    tw.copy(tw.fragment(spread, tile.dtype, 0, name="zeros"), rest.tile((rows, depth), (0, 0)))
