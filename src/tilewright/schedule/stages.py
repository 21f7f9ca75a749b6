"""Tiles of an operand in shared memory: a ring of stages, as those who copy and those who multiply see it."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.ir.mma import MmaAtom
from tilewright.lang import operations as tw
from tilewright.lang.control import unroll
from tilewright.lang.scalars import Index
from tilewright.lang.tensors import Fragment, Tensor
from tilewright.layout.layout import Layout
from tilewright.schedule.needs import RING, ROW_BYTES, Buffer
from tilewright.threads.distribution import Distribution

LINE_BYTES = 64
"""A line of a processor's caches."""

MOST_ROWS = 256
"""Rows of a box of a bulk copy, at most."""


@dataclass(frozen=True)
class Share:
    """The part of a tile that a block copies, if all blocks along one axis of a cluster need the tile.

    Args:
        parts: how many blocks copy a part each, for all of them.
        part: which of the parts.
        axis: of the cluster, along which they lie.
    """

    parts: int = 1
    part: Index = 0
    axis: int = 0

    @property
    def multicast(self) -> int | tuple[()]:
        """Along which axis of the cluster a copy goes to all blocks."""
        return self.axis if self.parts > 1 else ()


@dataclass(frozen=True)
class Together:
    """Neighbours along K that stay together in shared memory, where a tile lies as (K0, rows, K1).

    Args:
        k1: how many; 0: the tile lies as in global memory.
        extra_rows: rows of K1 between two K0 that nothing lies in.
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
    """A ring of tiles that lie as they lie in global memory: what is contiguous there is contiguous here.

    Args:
        name: of the tensor.
        dtype: of its elements, into which tiles are converted as they are copied.
        rows: of a tile.
        depth: of a tile.
        stages: tiles that it holds.
        along_rows: whether neighbours along the rows are contiguous in global memory.
        together: elements that stay together along K instead.
        gap: unused elements after each row, of an operand along K.
    """
    shape = (stages, rows, depth)
    if 0 < together.k1 <= depth:
        return Buffer(name, RING, shape, dtype, layout=together.layout(stages, rows, depth))
    pitch = depth + gap
    strides = (rows * pitch, *((1, rows) if along_rows else (pitch, 1)))
    return Buffer(name, RING, shape, dtype, strides)


class PlainStages:
    """A ring of tiles as `plain_tiles` lays them out.

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
    """A ring whose tiles are of pairs that lie side by side, as in global memory.

    Args:
        dtype: of one number of a pair.
        rows: of a tile.
        depth: of a tile.
        stages: tiles that it holds.
        along_rows: whether neighbours along the rows follow each other, and not those along K.
    """

    def __init__(
        self, dtype: DType, rows: int, depth: int, stages: int, name: str, *, along_rows: bool
    ) -> None:
        self.along_rows = along_rows
        self.tile = (depth, rows, 2) if along_rows else (rows, depth, 2)
        self.held = tw.shared((stages, *self.tile), dtype, name=name)

    def one(self, which: int) -> OneOfPairs:
        """The ring of the first numbers, by which pairs are copied, or of the second ones."""
        part = self.held[:, :, :, which]
        return OneOfPairs(self, part.permute(0, 2, 1) if self.along_rows else part, which == 0)


@dataclass(frozen=True)
class OneOfPairs:
    """One number of each pair of a ring.

    Args:
        both: the ring.
        shared: (stages, rows, depth): the numbers.
        copies: whether the pairs are copied by it.
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
    """Whether an operand of packed elements is converted before it lies in shared memory.

    It is where a lane multiplies fewer neighbours along K than share a byte, or these share none.

    Args:
        atom: the instruction.
        side: 0 of operand A, 1 of operand B.
        dtype: of the operand's elements in memory.
        along_k: whether neighbours along K are neighbours there.
    """
    if not dtype.is_packed:
        return False
    dim, run = (atom.a, atom.b)[side].vector()
    return not along_k or dim != 1 or run % dtype.per_byte > 0


class HeldTile:
    """One tile that goes past shared memory, into the registers that it is multiplied from.

    Args:
        source: (rows, K) in global memory.
        spread: which thread multiplies what of it.
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
        buffer: where it lies.
        narrow: where it is packed before it is converted, element by element in the same order; None: it is
            converted as it is packed.
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
    """Whether a tile is packed as it lies in memory, and then converted.

    To convert numbers on their way from rows of contiguous k to panels takes them one by one; a transposition
    without a conversion, and a conversion without a transposition, take whole vectors.  Packed elements
    are not transposed.  Truth values are converted byte by byte in vectors before they are transposed.

    Args:
        source: the dtype in memory.
        dtype: that in which it is multiplied.
        unit: as `packed` takes it.
        along_rows: whether it is contiguous along its rows' dimension in memory.
    """
    is_apart = source.kind == "bool" or source.is_packed
    return source != dtype and bool(unit) and not along_rows and not is_apart


def packed(rows: int, depth: int, unit: int, dtype: DType) -> Layout:
    """The layout of (row, k) of a tile for a thread that multiplies one micro-tile after the other.

    Args:
        rows: of the tile.
        depth: of the tile.
        unit: rows of a panel, in which k is slowest; 0: rows of contiguous k, a cache line further apart than
            they are long, so that the rows of a micro-tile do not meet in the same few sets of the cache.
        dtype: of its elements.

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

    A's elements are broadcast, so that only an operand which is contiguous along M gains from panels.
    """
    m, n, _ = atom.shape
    return (m if along_rows else 0) if is_a else n


def swizzled_tiles(
    name: str, dtype: DType, rows: int, depth: int, stages: int, groups: int, *, along_rows: bool
) -> Buffer:
    """A ring in rows of 128 bytes under the swizzle, for groups of warps that share the rows of a tile.

    Args:
        name: of the tensor.
        dtype: of its elements.
        rows: of one group's tile.
        depth: of a tile.
        stages: tiles that it holds.
        groups: groups that share the rows; 0: all groups take the same tile.
        along_rows: whether rows of 128 bytes lie along the rows of the tile, not along K.
    """
    width = ROW_BYTES // dtype.bytes
    panels, panel = (-(-rows // width), (depth, width)) if along_rows else (-(-depth // width), (rows, width))
    shared_by = (groups,) if groups else ()
    several = (panels,) if along_rows or panels > 1 else ()
    # Boxes along K take the rows of all groups at once, which therefore follow each other in each panel.
    held = (*shared_by, *several) if along_rows else (*several, *shared_by)
    return Buffer(name, RING, (stages, *held, *panel), dtype, is_swizzled=True)


class SwizzledStages:
    """A ring as `swizzled_tiles` lays it out.

    Args:
        buffer: the ring.
        rows: of one group's tile.
        depth: of a tile.
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
        """(rows, depth): what a group multiplies of one stage."""
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
        """The boxes that are copied to where for one step.

        Args:
            source: (rows, K).
            row: which tile along the rows, of all groups together.
            step: which tile along K.
            stage: where it goes.
            share: the part of them that this block copies for its cluster.
        """
        held = self.shared[stage]
        if self.along_rows:
            return self._along_rows(source, row, step, held, share)
        rows = max(self.groups, 1) * self.rows // share.parts
        size = next(n for n in range(min(rows, MOST_ROWS), 0, -1) if rows % n == 0)
        found = []
        for panel in unroll(self.panels):
            place = self._panel(held, panel)
            for box in unroll(rows // size):
                number = share.part * (rows // size) + box
                first = row * (share.parts * rows // size) + number
                whole = rows == size and share.parts == 1
                target = place if whole else place.tile((size, self.width), (number, 0))
                found.append((source.tile((size, self.width), (first, step * self.panels + panel)), target))
        return found

    def _panel(self, held: Tensor, panel: int) -> Tensor:
        """All rows of one panel of a stage."""
        rows = held if self.panels == 1 else held[panel]
        return rows.merge(0) if self.groups else rows

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
