"""Needs of a strategy: tensors and barriers in shared memory, threads, and registers.

A staging, a reduction and an epilogue each declare their needs.  The expanded kernel allocates from them, and
the resources of a schedule are their sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from tilewright.dtypes import DType, u32, u64
from tilewright.lang import operations as tw
from tilewright.lang.tensors import Tensor
from tilewright.lang.transaction_barriers import Barriers, mbarrier
from tilewright.layout.layout import Layout
from tilewright.views.view import View

ROW_BYTES = 128
"""Bytes of a row of shared memory under the swizzle that bulk copies and asynchronous multiplies take."""

RING, PARTIAL, RESULT, BARRIERS, TICKET, SUMS = "ring", "partial", "result", "barriers", "ticket", "sums"
INNER = "inner"
"""Kinds of buffers: tiles of operands, parts of reductions, slices of results, barriers, tickets, sums of
a part of K, and operands that follow from the sums of a product."""

ALIGN = {BARRIERS: 8, TICKET: 16}
"""Alignment of the address of a buffer in bytes, for kinds whose alignment is not 128."""


ACCESS_BYTES = 16
"""Bytes of the widest access of a thread; rows of buffers begin at multiples of it."""

LANES_OF_A_ROW = 4
"""Lanes of a warp that hold one row of an accumulator of a matrix unit, two neighbours each."""


@dataclass(frozen=True)
class Buffer:
    """A tensor in shared memory.

    Args:
        name: name of the tensor.
        kind: `RING`, `PARTIAL`, `RESULT`, `BARRIERS`, `TICKET`, `SUMS` or `INNER`.
        shape: its extents.
        dtype: dtype of its elements.
        strides: strides of its dimensions; empty: the layout has them.
        layout: its layout; None: the last dimension is contiguous.
        is_swizzled: whether it has rows of 128 bytes under the swizzle.
        memory: the tensor, if an earlier loop allocated it.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: DType
    strides: tuple[int, ...] = ()
    layout: Layout | None = None
    is_swizzled: bool = False
    memory: Tensor | None = field(default=None, compare=False)

    @property
    def elements(self) -> int:
        """Elements of memory from the first to the last."""
        if self.layout is not None:
            found = self.layout.cosize
            assert isinstance(found, int)
            return found
        if not self.strides:
            return prod(self.shape)
        return 1 + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))

    @property
    def bytes(self) -> int:
        """Bytes of memory."""
        return self.dtype.bytes_of(self.elements)

    @property
    def align(self) -> int:
        """Alignment of its address in bytes; the swizzle repeats after 8 rows of 128 bytes."""
        return 8 * ROW_BYTES if self.is_swizzled else ALIGN.get(self.kind, 128)

    def allocate(self) -> Tensor:
        """Allocate the tensor in the kernel, if no earlier loop has."""
        if self.memory is not None:
            return self.memory
        if self.is_swizzled:
            return tw.shared(self.shape, self.dtype, swizzle=ROW_BYTES, name=self.name)
        layout: Layout | View | None = self.layout
        if self.strides:
            layout = View.strided(self.shape, self.strides)
        return tw.shared(self.shape, self.dtype, layout=layout, name=self.name)

    def barriers(self, arrivals: int) -> Barriers:
        """Allocate the transaction barriers in the kernel.

        Args:
            arrivals: number of arrivals that complete a phase.
        """
        (count,) = self.shape
        return mbarrier(count, arrivals=arrivals)


def shared_by_loops(loops: Iterable[Sequence[Buffer]]) -> list[Buffer]:
    """The buffers of loops that follow each other: a loop takes those of earlier ones if they are equal.

    Args:
        loops: the buffers that each loop needs.

    Example:
        >>> from tilewright.dtypes import f16
        >>> a, b, c, d = (Buffer(f"s{x}", RING, (4, size, 64), f16) for x, size in zip("ABCD", (8, 4, 8, 8)))
        >>> [one.name for one in shared_by_loops([[a, b], [c, d]])]
        ['sA', 'sB', 'sD']
    """
    pool: list[Buffer] = []
    for needed in loops:
        free = [*pool]
        for one in needed:
            if (found := taken(free, one)) is None:
                pool.append(one)
            else:
                free.remove(found)
    return pool


def taken(free: Sequence[Buffer], wanted: Buffer) -> Buffer | None:
    """The first free buffer that equals the wanted one apart from its name, or None."""
    return next((one for one in free if replace(one, name=wanted.name) == wanted), None)


def barriers(name: str, count: int) -> Buffer:
    """Transaction barriers in shared memory."""
    return Buffer(name, BARRIERS, (count,), u64)


def tickets(count: int) -> Buffer:
    """Tickets that threads share; the operation that takes a ticket allocates them."""
    return Buffer("ticket", TICKET, (count,), u32)


@dataclass(frozen=True)
class Needs:
    """Needs of a strategy.

    Args:
        buffers: tensors in shared memory.
        barriers: transaction barriers in shared memory.
        tickets: tickets in shared memory.
        threads: threads of a block.
        registers: registers of each thread that multiplies.
    """

    buffers: tuple[Buffer, ...] = ()
    barriers: tuple[Buffer, ...] = ()
    tickets: tuple[Buffer, ...] = ()
    threads: int = 0
    registers: int = 0


def shared_of(staging: Needs, epilogue: Needs, reduction: Needs) -> Sequence[Buffer]:
    """Everything in shared memory, in the order in which the kernel allocates it."""
    return (
        *(*staging.buffers, *epilogue.buffers, *epilogue.barriers, *reduction.buffers),
        *(*staging.barriers, *reduction.tickets, *epilogue.tickets),
    )


def spare(dtype: DType, *, along_rows: bool) -> int:
    """Padding elements after each row of a buffer, which avoid bank conflicts.

    They take as many bytes as the lanes of one row write at once, but at least one access.

    Args:
        dtype: dtype of the elements.
        along_rows: whether the rows of the buffer are columns of the result.

    Example:
        >>> from tilewright.dtypes import f16, f32
        >>> spare(f16, along_rows=False), spare(f32, along_rows=False), spare(f32, along_rows=True)
        (8, 8, 4)
    """
    at_once = 0 if along_rows else LANES_OF_A_ROW * 2 * dtype.bytes
    return max(ACCESS_BYTES, at_once) // dtype.bytes
