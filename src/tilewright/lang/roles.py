"""Warp roles and their barriers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from tilewright.errors import Location, TraceError
from tilewright.ir import async_ops as ops
from tilewright.ir.integer_ops import loop_index
from tilewright.ir.op import Block, Op
from tilewright.ir.ops import Barrier, WarpBarrier
from tilewright.lang.control import RecordedRegion
from tilewright.lang.scalars import Index, Scalar, constant, unwrap
from tilewright.lang.source import author_frame, here, stored_names
from tilewright.lang.tracer import current, verb
from tilewright.layout.limits import WARPS
from tilewright.symbolic.nodes import Int, Sym, bounds


@verb(warps=WARPS, groups=WARPS)
def role(
    warps: int, *, registers: int | None = None, groups: int = 1, first: int | None = None
) -> AbstractContextManager[Index]:
    """``with tw.role(warps=4):`` runs on the next ``warps`` warps of the block, alongside other roles.

    Operations inside are collective over the role's threads.  A nested role takes warps of the outer
    one: ``with tw.role(warps=4, registers=40), tw.role(warps=1):`` leaves three of four warps idle.
    ``with tw.role(warps=4, groups=2) as g:`` is executed by two groups of four warps in parallel.  Each group
    executes the operations collectively and separately; ``g`` is 0 in the first group and 1 in the second.

    Args:
        warps: number of warps of each group.  The first role takes warps from 0 on, and each next role takes
            the warps that follow.
        registers: registers that each thread may use from here on; whole warpgroups only, and only in the
            outermost role.  All roles together may not take more than the block is launched with.  On sm_90a
            a block has 65536: 384 threads get at most 168 each, or (40, 232, 232) for three warpgroups.
        groups: number of groups of warps that execute the role separately.
        first: the role's first warp, to give warps a second role after a barrier of all threads; default: the
            warp after those of the previous roles.

    Returns:
        A context manager; ``as g`` names the group's index, which is 0 if there is one group.

    Example:
        Each of two groups of one warp fills its own row:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N")
        ... def rows(X):
        ...     with tw.role(warps=1, groups=2) as g:
        ...         x = tw.fragment(tw.blocked((1, 32), (1, 32)), tw.f32)
        ...         tw.fill(x, 1.0)
        ...         tw.copy(x, X.tile((1, 32), (g, 0)))
        >>> x = np.zeros((2, 32), np.float32)
        >>> rows(x, target="reference").target, x.sum(1).tolist()
        ('reference', [32.0, 32.0])
    """
    tracer = current()
    count, many = constant("warps", warps), constant("groups", groups)
    budget = None if registers is None else constant("registers", registers)
    begin = tracer.warps[-1] if first is None else constant("first", first)
    tracer.warps[-1] = max(tracer.warps[-1], begin + count * many)
    made = _Role("role", lambda block, location: made.op(block, location))
    made.count, made.groups, made.first, made.registers = count, many, begin, budget
    return made


class _Role(RecordedRegion):
    """Records a role; nested roles take their warps from it."""

    first: int
    count: int
    groups: int
    registers: int | None
    index: Sym | None = None

    def op(self, block: Block, location: Location) -> Op:
        """Return the recorded operation."""
        return ops.Role(
            self.first, self.count, block, self.registers, self.groups, self.index, location=location
        )

    def enter(self) -> Index:
        """Name the index of the groups, and return it."""
        tracer = current()
        if self.groups > 1:
            name = (*(stored_names(author_frame()) or ()), "group")[0]
            self.index = loop_index(tracer.name(name), 0, self.groups, 1)
            tracer.groups.append((self.groups, self.index))
        tracer.warps.append(0)
        tracer.roles.append(self.count)
        return 0 if self.index is None else Scalar(self.index)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        current().warps.pop()
        current().roles.pop()
        if self.index is not None:
            current().groups.pop()
        super().__exit__(kind, error, traceback)


@verb
def role_barrier(number: Index, threads: int) -> None:
    """The ``threads`` threads that name barrier ``number`` (1 to 15) wait for each other.

    The groups of a role name a number each: ``tw.role_barrier(1 + g, threads=128)``.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N")
        ... def exchange_halves(X):
        ...     held = tw.shared((2, 64), tw.f32)
        ...     with tw.role(warps=2, groups=2) as g:
        ...         tw.copy(X.tile((1, 64), (g, 0)), held.tile((1, 64), (g, 0)), threads=64)
        ...         tw.role_barrier(1 + g, threads=64)
        ...         for half in tw.unroll(2):
        ...             tw.copy(held.tile((1, 32), (g, 1 - half)), X.tile((1, 32), (g, half)), threads=32)
        >>> x = np.arange(128, dtype=np.float32).reshape(2, 64)
        >>> exchange_halves(x, target="reference").target, x[:, ::32].tolist()
        ('reference', [[32.0, 0.0], [96.0, 64.0]])
    """
    meet(unwrap(number), constant("threads", threads))


def meet(number: Int, threads: int) -> None:
    """Record a numbered barrier."""
    low, high = bounds(number)
    last = min(high, current().arch.named_barriers)
    current().numbers.update(range(int(low), int(last) + 1) if low > 0 else ())
    current().emit(ops.RoleBarrier, number=number, threads=threads)


def meeting(barrier: Index | None, why: str) -> Callable[[], object]:
    """Return a function that records the barrier of the current threads: the block's, or their role's own.

    Args:
        barrier: the number of the barrier, for a role of several warps.
        why: the beginning of the error message: the threads that meet.

    Raises:
        TraceError: a role of several warps has no number, or a number is given outside of a role.
    """
    tracer = current()
    number = None if barrier is None else unwrap(barrier)
    if not tracer.roles:
        if number is not None:
            text = f"barrier={number} outside of a role; there a barrier is for all threads of the block"
            raise TraceError(text, here(), "no barrier")
        return lambda: tracer.emit(Barrier)
    if number is None and tracer.roles[-1] == 1:
        return lambda: tracer.emit(WarpBarrier)
    most = tracer.arch.named_barriers
    if not most:
        text = (
            f"{why} need a barrier of their own, which {tracer.arch.name} does not support inside of a role"
        )
        raise TraceError(text, here(), "a role of one warp, or none")
    if number is None or not 1 <= bounds(number)[0] <= bounds(number)[1] <= most:
        free = next((n for n in range(1, most + 1) if n not in tracer.numbers), 1)
        given = "" if number is None else f"barrier={number}: "
        text = f"{given}{why} need a numbered barrier, 1 to {most}, that no other warps use"
        raise TraceError(text, here(), f"barrier={free}")
    return lambda: meet(number, tracer.roles[-1] * tracer.lanes)
