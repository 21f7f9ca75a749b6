"""Buffers in shared memory between registers and global memory, and their copies to global memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tilewright.dataflow.nodes import Operand, Span
from tilewright.dtypes import DType
from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import tma_store
from tilewright.lang.control import unroll
from tilewright.lang.scalars import Index
from tilewright.lang.tensors import Tensor
from tilewright.schedule.bulk_views import against_bulk, anywhere, aside
from tilewright.schedule.epilogue.values import TilePlace, Views
from tilewright.schedule.needs import RESULT, ROW_BYTES, Buffer, spare
from tilewright.schedule.work import Work


class StagedResult(NamedTuple):
    """A result with rows and columns that passes through shared memory.

    Args:
        name: name of its buffers.
        dtype: dtype of its elements.
        along_rows: whether it is contiguous along the tile's rows dimension, so each column is contiguous.
    """

    name: str
    dtype: DType
    along_rows: bool


class StagedArray:
    """An array whose blocks pass through shared memory.

    Args:
        views: blocks of the arrays.
        operand: the array.
        at: the span of each of its dimensions.
        added: whether blocks are added to the array.
    """

    def __init__(self, views: Views, operand: Operand, at: Sequence[Span], *, added: bool = False) -> None:
        self.views, self.operand, self.at = views, operand, at
        self.reduction = "add" if added else None
        with aside():
            batch = tuple(anywhere(f"batch{i}") for i in range(len(views.form.batch)))
            m, n = (
                slice(anywhere("begin"), anywhere("end")) if span.groups else None
                for span in (views.form.m, views.form.n)
            )
            self._anywhere = Work(batch, anywhere("m"), anywhere("n"), 0, 0, 0, 0, cuts=(m, n, None))
            sample = self.block(self.sample((2, 2)))
            self.along_rows = sample.unit_dim == 0
            self.has_map = sample.value.tensor.map is not None
            """Whether the arrays have tensor maps in global memory."""
        self.result = StagedResult(f"s{operand.name}", operand.dtype, self.along_rows)

    def block(self, place: TilePlace) -> Tensor:
        """A block of the array in global memory, as (rows, columns)."""
        return self.views.block(self.operand, self.at, place)

    def sample(self, shape: tuple[int, int]) -> TilePlace:
        """A block with a known shape and an unknown place."""
        return TilePlace(self._anywhere, shape, (self._anywhere.m, self._anywhere.n))


class PanelBuffers:
    """Swizzled buffers with rows of 128 bytes, for bulk copies and conflict-free access by threads.

    Args:
        side: the array.
        shape: rows and columns of a buffer.
        buffer: the tensor of all buffers, from `result_tiles`.
    """

    def __init__(self, side: StagedArray, shape: tuple[int, int], buffer: Buffer) -> None:
        self.side, self.shape = side, shape
        self.by_bulk = not why_no_bulk(side, shape, stored=True)
        self.panel, self.count = panel_of(side.operand.dtype, shape, along_rows=side.along_rows)
        self.held = buffer.allocate()

    @property
    def bytes(self) -> int:
        """Bytes of one buffer."""
        return self.shape[0] * self.shape[1] * self.side.operand.dtype.bytes

    def tile(self, group: Index, buffer: Index) -> Tensor:
        """A buffer as (rows, columns), for access by threads."""
        held = self.held[group, buffer]
        if self.count == 1:
            return held.permute(1, 0) if self.side.along_rows else held
        return held.permute(0, 2, 1).merge(0) if self.side.along_rows else held.permute(1, 0, 2).merge(1)

    def pairs(
        self, group: Index, buffer: Index, place: TilePlace, side: StagedArray | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """The panels of a buffer, each with its part of the array.

        Args:
            group: the group of warps.
            buffer: the number of its buffer.
            place: the block.
            side: another array of the same dtype and order; default: the buffers' own.
        """
        held, (m, n) = self.held[group, buffer], place.at
        side = side or self.side
        if self.count == 1:
            return [(held, as_held(side, place))]
        found = []
        for i in unroll(self.count):
            at = (m * self.count + i, n) if side.along_rows else (m, n * self.count + i)
            found.append((held[i], as_held(side, TilePlace(place.work, self.panel, at))))
        return found

    def send(self, group: Index, buffer: Index, place: TilePlace, threads: int) -> None:
        """Store a buffer: begin bulk copies, or let threads store whole rows."""
        if not self.by_bulk:
            store_rows(self.tile(group, buffer), self.side, place, threads)
            return
        for held, target in self.pairs(group, buffer, place):
            tma_store(held, target)


class RowBuffers:
    """Buffers with padded rows, so that accesses have no bank conflicts.

    Args:
        side: the array.
        buffer: the tensor of all buffers, from `result_tiles`.
    """

    by_bulk = False

    def __init__(self, side: StagedArray, buffer: Buffer) -> None:
        self.side, self.held = side, buffer.allocate()

    def tile(self, group: Index, buffer: Index) -> Tensor:
        """Return a buffer, of shape (rows, columns)."""
        return self.held[group, buffer]

    def send(self, group: Index, buffer: Index, place: TilePlace, threads: int) -> None:
        """Store a buffer: consecutive threads store consecutive elements."""
        store_rows(self.tile(group, buffer), self.side, place, threads)


def store_rows(held: Tensor, side: StagedArray, place: TilePlace, threads: int) -> None:
    """Store a buffer by threads, or add it to the array."""
    tw.copy(held, side.block(place), threads=threads, reduction=side.reduction)


def panel_of(dtype: DType, shape: tuple[int, int], *, along_rows: bool) -> tuple[tuple[int, int], int]:
    """The shape of a panel of a block, which has rows of 128 bytes, and the number of panels."""
    width = ROW_BYTES // dtype.bytes
    rows, columns = shape
    return ((width, columns), rows // width) if along_rows else ((rows, width), columns // width)


def result_tiles(
    result: StagedResult, shape: tuple[int, int], groups: int, buffers: int, *, roles: bool
) -> Buffer:
    """Shared memory for blocks of a result.

    Groups of warps with roles store whole rows of 128 bytes by bulk copies, so their buffers are swizzled.
    All other buffers have padded rows.

    Args:
        result: the result.
        shape: rows and columns of a block.
        groups: groups of warps, each with buffers of its own.
        buffers: buffers of each group.
        roles: whether each group stores for itself.
    """
    name, dtype, along_rows = result
    rows, columns = shape
    if roles and in_panels(result, shape):
        (rows, columns), count = panel_of(dtype, shape, along_rows=along_rows)
        held = (columns, rows) if along_rows else (rows, columns)
        several = (count,) if count > 1 else ()
        return Buffer(name, RESULT, (groups, buffers, *several, *held), dtype, is_swizzled=True)
    length, count = (rows, columns) if along_rows else (columns, rows)
    stride = length + spare(dtype, along_rows=along_rows)
    strides = (1, stride) if along_rows else (stride, 1)
    size = count * stride
    return Buffer(name, RESULT, (groups, buffers, rows, columns), dtype, (buffers * size, size, *strides))


def in_panels(result: StagedResult, shape: tuple[int, int]) -> bool:
    """Whether a block consists of whole panels with rows of 128 bytes."""
    return shape[not result.along_rows] * result.dtype.bytes % ROW_BYTES == 0


def why_no_bulk(side: StagedArray, shape: tuple[int, int], *, stored: bool) -> tuple[str, ...]:
    """Reasons why bulk copies cannot move blocks of an array; empty if they can."""
    if not in_panels(side.result, shape):
        return (f"blocks of {shape} are no whole number of rows of {ROW_BYTES} bytes",)
    panel, _ = panel_of(side.operand.dtype, shape, along_rows=side.along_rows)
    with aside():
        return against_bulk(as_held(side, side.sample(panel)), side.operand.dtype, stored=stored)


def as_held(side: StagedArray, place: TilePlace) -> Tensor:
    """A part of the array, with its contiguous dimension last."""
    block = side.block(place)
    return block.permute(1, 0) if side.along_rows else block
