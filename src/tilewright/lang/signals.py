"""Signals between blocks: counters that blocks increment, take tickets from, and wait for."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.dtypes import i32, u32
from tilewright.ir.ops import ReadIndex, Shared
from tilewright.ir.signal_ops import Await, Reset, Signal, Ticket
from tilewright.lang.launch import launcher_memory, packed
from tilewright.lang.roles import meeting
from tilewright.lang.scalars import Index, Scalar, unwrap, wrap
from tilewright.lang.source import here
from tilewright.lang.tensors import Tensor
from tilewright.lang.tracer import current, verb
from tilewright.views.view import View

TOGETHER = "the warps of a role signal and wait together, and"
"""Start of the error message for a role without a barrier."""


@verb
def counter(shape: Index | Sequence[Index]) -> Tensor:
    """Counters that all blocks share (u32, in global memory); each is 0 when a launch begins.

    The kernel must reset its counters to zero for the next launch: by ``of=`` of `signal` and `ticket`, or by
    `reset`.  Counters are cleared only when they are allocated, so a launch has no extra cost.  The reference
    reports counters with another value at the end.  Each stream has its own counters, and so has each launch
    that a graph captures.  Two instances of one graph must not run at the same time.

    Args:
        shape: extents, over the kernel's sizes.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", TOTAL="K")
        ... def total(X, TOTAL):
        ...     blocks = tw.ceil_div(X.shape[0], 32)
        ...     block, parts, done = tw.block_index(blocks), tw.workspace(1024, tw.f32), tw.counter(1)
        ...     x = tw.load(X.tile((32,), (block,)).partition((32,)))
        ...     tw.copy(tw.reduce_sum(x, dim=0), parts[block:block + 1])
        ...     last = tw.ticket(done[0], of=blocks) == blocks - 1
        ...     with tw.when(last):  # it comes after all others
        ...         sums = tw.fragment(tw.blocked((1,), (1,)), tw.f32, 0)
        ...         for part in tw.range(blocks):
        ...             sums += tw.load(parts[part:part + 1], sums)
        ...         tw.copy(sums, TOTAL.tile((1,), (0,)))
        >>> x, result = np.ones(100, np.float32), np.zeros(1, np.float32)
        >>> for _ in range(2):
        ...     _ = total(x, result, target="reference")
        >>> float(result[0])
        100.0
    """
    return launcher_memory(shape, u32, resets=True)


@verb
def signal(
    counter: Tensor,
    value: Index = 1,
    *,
    of: Index | None = None,
    barrier: Index | None = None,
    scope: str = "gpu",
) -> None:
    """``counter += value``, ordered after all earlier operations of the block, or of the role inside one.

    The threads meet at a barrier, then one thread increments the counter.  A block that sees the new value by
    `await_` also sees everything before the signal, on any multiprocessor.

    Args:
        counter: one element: ``ready[i]``.
        value: the number to add.
        of: 1 or more: the counter goes from ``of - 1`` to 0 instead of ``of``, ready for the next launch.
        barrier: inside a role of several warps, the number of the barrier at which they meet; as in
            `reduce_sum`.
        scope: ``"system"`` if a block on another GPU waits; the counter is then an array of u32 that both
            GPUs can address.

    Raises:
        LegalityError: the counter is not a single u32 in global memory, ``value`` is not 1 with ``of``, or
            another scope.
        TraceError: a role of several warps has no ``barrier``, or ``barrier`` is given outside of a role.

    Source: PTX ISA, "Memory Consistency Model: Release and Acquire Patterns"; "red".

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="B")
        ... def running_sums(X, Y):
        ...     block, turn = tw.block_index(Y.shape[0]), tw.counter(1)
        ...     total = tw.reduce_sum(tw.load(X.tile((32,), (block,)).partition((32,))), dim=0)
        ...     tw.await_(turn[0], block)  # block 0 waits for none, block 1 for block 0, ...
        ...     with tw.when(block > 0):
        ...         total += tw.load(Y[block - 1:block], total)
        ...     tw.copy(total, Y[block:block + 1])
        ...     tw.signal(turn[0], of=Y.shape[0])
        >>> x, y = np.ones(96, np.float32), np.zeros(3, np.float32)
        >>> running_sums(x, y, target="reference").target, y.tolist()
        ('reference', [32.0, 64.0, 96.0])
    """
    tracer = current()
    meeting(barrier, TOGETHER)()
    end = None if of is None else unwrap(of)
    tracer.emit(Signal, counter=counter.value, value=unwrap(value), of=end, scope=scope)


@verb
def ticket(counter: Tensor, *, of: Index | None = None, barrier: Index | None = None) -> Scalar:
    """``n = counter; counter += 1`` atomically; all threads of the block or role get the same n.

    It also signals, as `signal` does.  The block with the last of ``of`` tickets, ``of - 1``, sees everything
    before all other tickets and signals: the last block to finish can read the results of all blocks.

    Args:
        counter: one element: ``done[0]``.
        of: number of tickets; the last one resets the counter.  Default: no end, and no order.
        barrier: as in `signal`.

    Raises:
        LegalityError: the counter is not a single u32 in global memory.
        TraceError: as in `signal`.

    Source: PTX ISA, "Memory Consistency Model: Release and Acquire Patterns"; "atom".

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def last_block(X):
        ...     done = tw.counter(1)
        ...     block = tw.block_index(8)
        ...     with tw.when(tw.ticket(done[0], of=8) == 7):
        ...         tw.copy(tw.fragment(tw.blocked((1,), (1,)), tw.f32, 1), X.tile((1,), (0,)))
        >>> text = tw.ir.print_kernel(last_block(np.ones(64, np.float32), target="reference").kernel)
        >>> "ticket(done_slice, ticket_slice, of=8)" in text
        True
    """
    tracer, end = current(), None if of is None else unwrap(of)
    groups = tracer.groups  # each group has its own element
    shape = tuple(count for count, _ in groups) or (1,)
    elems = math.prod(shape)
    view = View.strided(shape, packed(shape))
    held = tracer.define(Shared, "ticket", dtype=i32, view=view, elems=elems, align=16)
    number = Tensor(held)[tuple(wrap(index) for _, index in groups) or 0].value
    meeting(barrier, TOGETHER)()
    tracer.emit(Ticket, counter=counter.value, target=number, of=end)
    meeting(barrier, TOGETHER)()
    sym = ReadIndex.symbol(tracer.names(("ticket",))[0], number, 0, end)
    tracer.data.add(sym)
    tracer.builder.append(ReadIndex(sym, number, 0, end, location=here()))
    return Scalar(sym)


@verb
def await_(counter: Tensor, value: Index, *, barrier: Index | None = None, scope: str = "gpu") -> None:
    """Wait until ``counter >= value``; later operations are ordered after the signals that raised it.

    The first warp waits, then all threads meet at a barrier.  On a GPU every block that others wait for must
    eventually run.  Blocks start in order, so a wait for blocks with lower numbers always ends.  Any other
    wait, for example of all blocks for all blocks, needs a grid whose blocks are all resident at the same
    time.  On a CPU a block may wait only for blocks with lower numbers.

    Args:
        counter: one element: ``ready[i]``.
        value: the value to wait for; 0 or less does not wait.
        barrier: as in `signal`.
        scope: ``"system"`` for signals of another GPU or of its copies.

    Raises:
        LegalityError: the counter is not a single u32 in global memory, or another scope.
        TraceError: as in `signal`.

    Source: PTX ISA, "Memory Consistency Model: Release and Acquire Patterns"; "ld".

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="N")
        ... def hand_over(X, Y):
        ...     block, ready = tw.block_index(2), tw.counter(1)
        ...     half = tw.fragment(tw.blocked((32,), (32,)), tw.f32)
        ...     with tw.when(block == 0):
        ...         tw.copy(tw.load(X.tile((32,), (0,)), half), Y.tile((32,), (0,)))
        ...         tw.signal(ready[0])
        ...     with tw.otherwise():
        ...         tw.await_(ready[0], 1)
        ...         tw.copy(tw.load(Y.tile((32,), (0,)), half), Y.tile((32,), (1,)))
        ...         tw.reset(ready[0])
        >>> x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
        >>> hand_over(x, y, target="reference").target, float(y.sum())
        ('reference', 64.0)
    """
    current().emit(Await, counter=counter.value, value=unwrap(value), scope=scope)
    meeting(barrier, TOGETHER)()


@verb
def reset(counter: Tensor) -> None:
    """``counter = 0`` for the next launch, by one thread.

    Call it after all signals and waits of the launch: in the block that waited for the last signal.

    Args:
        counter: one element: ``ready[i]``.

    Raises:
        LegalityError: the counter is not a single u32 in global memory.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="K")
        ... def after_all(X, Y):
        ...     block, ready = tw.block_index(4), tw.counter(1)
        ...     one = tw.blocked((1,), (1,))
        ...     with tw.when(block < 3):
        ...         tw.copy(tw.load(X[block:block + 1], one), Y[0:1], reduction="add")
        ...         tw.signal(ready[0])
        ...     with tw.otherwise():
        ...         tw.await_(ready[0], 3)
        ...         tw.copy(tw.load(Y[0:1], one), Y[1:2])
        ...         tw.reset(ready[0])
        >>> x, y = np.ones(3, np.float32), np.zeros(2, np.float32)
        >>> after_all(x, y, target="reference").target, y.tolist()
        ('reference', [3.0, 3.0])
    """
    current().emit(Reset, counter=counter.value)
