"""Buffers in shared memory between registers and global memory, and who moves tiles at their global side."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dataflow.nodes import Operand, Span
from tilewright.dtypes import DType
from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import tma_store
from tilewright.lang.control import unroll
from tilewright.lang.scalars import Index
from tilewright.lang.tensors import Tensor
from tilewright.schedule.engines import against_bulk, anywhere, aside
from tilewright.schedule.epilogue.values import Place, Views
from tilewright.schedule.partition import Work
from tilewright.schedule.stages import ROW_BYTES
from tilewright.views.view import View

ACCESS_BYTES = 16
"""The widest access of a thread; rows of buffers begin at multiples of it."""

LANES_OF_A_ROW = 4
"""Of a warp, that hold neighbours of one row of an accumulator, two each, in the maps of matrix units."""


class Side:
    """An array whose blocks pass through shared memory.

    Args:
        views: of the arrays.
        operand: the array.
        at: the spans that it is taken along.
    """

    def __init__(self, views: Views, operand: Operand, at: Sequence[Span]) -> None:
        self.views, self.operand, self.at = views, operand, at
        self.name = f"s{operand.name}"
        with aside():
            batch = tuple(anywhere(f"batch{i}") for i in range(len(views.form.batch)))
            m, n = (
                slice(anywhere("begin"), anywhere("end")) if span.groups else None
                for span in (views.form.m, views.form.n)
            )
            self._anywhere = Work(batch, anywhere("m"), anywhere("n"), 0, 0, 0, 0, cuts=(m, n))
            sample = self.block(self.sample((2, 2)))
            self.along_rows = sample.unit_dim == 0
            self.has_map = sample.value.tensor.map is not None
            """Whether the tensor maps of its arrays lie in memory."""

    def block(self, place: Place) -> Tensor:
        """(rows, columns) of it in global memory."""
        return self.views.block(self.operand, self.at, place)

    def sample(self, shape: tuple[int, int]) -> Place:
        """A block of which only the shape is known."""
        return Place(self._anywhere, shape, (self._anywhere.m, self._anywhere.n))


class Panels:
    """Buffers in rows of 128 bytes under the swizzle, which bulk copies take, and threads without conflicts.

    Args:
        side: the array.
        shape: rows and columns of a buffer.
        groups: of warps, each with buffers of its own.
        buffers: of each group.
    """

    def __init__(self, side: Side, shape: tuple[int, int], groups: int, buffers: int) -> None:
        self.side, self.shape = side, shape
        self.by_bulk = not why_no_bulk(side, shape, stored=True)
        self.panel, self.count = panel_of(side, shape)
        rows, columns = self.panel
        held = (columns, rows) if side.along_rows else (rows, columns)
        several = (self.count,) if self.count > 1 else ()
        extents = (groups, buffers, *several, *held)
        self.held = tw.shared(extents, side.operand.dtype, swizzle=ROW_BYTES, name=side.name)

    @property
    def bytes(self) -> int:
        """Of one buffer."""
        return self.shape[0] * self.shape[1] * self.side.operand.dtype.bytes

    def tile(self, group: Index, buffer: Index) -> Tensor:
        """(rows, columns): a buffer as threads write or read it."""
        held = self.held[group, buffer]
        if self.count == 1:
            return held.permute(1, 0) if self.side.along_rows else held
        return held.permute(0, 2, 1).merge(0) if self.side.along_rows else held.permute(1, 0, 2).merge(1)

    def pairs(
        self, group: Index, buffer: Index, place: Place, side: Side | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """The panels of a buffer, each with the part of the array that it holds.

        Args:
            group: whose buffer.
            buffer: which.
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
            found.append((held[i], as_held(side, Place(place.work, self.panel, at))))
        return found

    def send(self, group: Index, buffer: Index, place: Place, threads: int) -> None:
        """Store a buffer: by bulk copies that go on in the background, or by threads in whole rows."""
        if not self.by_bulk:
            tw.copy(self.tile(group, buffer), self.side.block(place), threads=threads)
            return
        for held, target in self.pairs(group, buffer, place):
            tma_store(held, target)


class Rows:
    """Buffers whose rows are a little longer than what they hold, so that accesses meet in no bank.

    Args:
        side: the array.
        shape: rows and columns of a buffer.
        groups: of warps, each with buffers of its own.
        buffers: of each group.
    """

    by_bulk = False

    def __init__(self, side: Side, shape: tuple[int, int], groups: int, buffers: int) -> None:
        self.side, self.shape = side, shape
        rows, columns = shape
        length, count = (rows, columns) if side.along_rows else (columns, rows)
        stride = length + spare(side.operand.dtype, along_rows=side.along_rows)
        strides = (1, stride) if side.along_rows else (stride, 1)
        size = count * stride
        view = View.strided((groups, buffers, rows, columns), (buffers * size, size, *strides))
        self.held = tw.shared(
            (groups, buffers, rows, columns), side.operand.dtype, layout=view, name=side.name
        )

    def tile(self, group: Index, buffer: Index) -> Tensor:
        """(rows, columns): a buffer."""
        return self.held[group, buffer]

    def send(self, group: Index, buffer: Index, place: Place, threads: int) -> None:
        """Store a buffer: consecutive threads store consecutive elements."""
        tw.copy(self.tile(group, buffer), self.side.block(place), threads=threads)


def spare(dtype: DType, *, along_rows: bool) -> int:
    """Elements behind each row of a buffer, so that accesses meet in no bank.

    They take as many bytes as the lanes that hold one row write at once, or one access.

    Args:
        dtype: of the elements.
        along_rows: whether the rows of the buffer are columns of the result.

    Example:
        >>> from tilewright.dtypes import f16, f32
        >>> spare(f16, along_rows=False), spare(f32, along_rows=False), spare(f32, along_rows=True)
        (8, 8, 4)
    """
    at_once = 0 if along_rows else LANES_OF_A_ROW * 2 * dtype.bytes
    return max(ACCESS_BYTES, at_once) // dtype.bytes


def panel_of(side: Side, shape: tuple[int, int]) -> tuple[tuple[int, int], int]:
    """The shape of the parts of a block that lie in rows of 128 bytes, and how many there are."""
    width = ROW_BYTES // side.operand.dtype.bytes
    rows, columns = shape
    if side.along_rows:
        return (width, columns), rows // width
    return (rows, width), columns // width


def in_panels(side: Side, shape: tuple[int, int]) -> bool:
    """Whether a block is a whole number of parts in rows of 128 bytes."""
    length = shape[0] if side.along_rows else shape[1]
    return length * side.operand.dtype.bytes % ROW_BYTES == 0


def why_no_bulk(side: Side, shape: tuple[int, int], *, stored: bool) -> tuple[str, ...]:
    """Why bulk copies do not move blocks of an array; nothing if they do."""
    if not in_panels(side, shape):
        return (f"blocks of {shape} are no whole number of rows of {ROW_BYTES} bytes",)
    panel, _ = panel_of(side, shape)
    with aside():
        return against_bulk(as_held(side, side.sample(panel)), side.operand.dtype, stored=stored)


def as_held(side: Side, place: Place) -> Tensor:
    """A part of the array with the dimension last that is contiguous."""
    block = side.block(place)
    return block.permute(1, 0) if side.along_rows else block
