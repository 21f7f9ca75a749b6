"""Deadlocks: unequal barrier counts of warps, and blocks that wait for blocks that are not resident."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.errors import Violation
from tilewright.ir.async_ops import Role, RoleBarrier
from tilewright.ir.integer_ops import Let
from tilewright.ir.kernel import Kernel
from tilewright.ir.op import Block, Op
from tilewright.ir.ops import For, If
from tilewright.ir.signal_ops import Await, Signal, Ticket
from tilewright.symbolic.expr import add, floordiv, less, maximum, mul, negate, prove
from tilewright.symbolic.nodes import FALSE, TRUE, Int, Sym
from tilewright.symbolic.rebuilding import substitute, symbols

if TYPE_CHECKING:
    from tilewright.ir.kernel import Kernel

Index = Mapping[Sym, Int]
"""The group indices of a warp."""


def violations(kernel: Kernel) -> Iterator[Violation]:
    """Report a barrier of all threads that some warps certainly reach more often than others: a deadlock.

    Args:
        kernel: the traced kernel.
    """
    found = [op for op in kernel.walk() if is_of_all(op, kernel)]
    if not found:
        return
    first, *others = (warp.count(kernel.body, warp.number, {}, 0) for warp in _warps(kernel))
    for number, other in enumerate(others, 1):
        more = None if first is None or other is None else add(other, mul(first, -1))
        if isinstance(more, int) and more:
            much = f"{abs(more)} times {'more' if more > 0 else 'less'}"
            near = "equally many tw.role_barrier of all threads in each role"
            yield found[0].violation(
                "role_barrier", f"warp {number} reaches the barrier of all warps {much} than warp 0", near
            )
            return


def at_once(kernel: Kernel) -> frozenset[int]:
    """Return the identities of barriers, outside of loops, at which all threads are at the same time.

    Before each of them all warps pass the same number of others, for all sizes of the kernel.
    """
    if not any(is_of_all(op, kernel) for op in kernel.walk()):
        return frozenset()
    warps = _warps(kernel)
    for warp in warps:
        warp.count(kernel.body, warp.number, {}, 0)
    sizes = {param.sym for param in kernel.sizes}
    return frozenset(
        barrier
        for barrier, before in warps[0].before.items()
        if symbols(before) <= sizes and all(warp.before.get(barrier) == before for warp in warps)
    )


def is_of_all(op: Op, kernel: Kernel) -> bool:
    """Return whether an operation is a numbered barrier of all threads of the block."""
    return isinstance(op, RoleBarrier) and op.threads == kernel.threads


def _warps(kernel: Kernel) -> list[_Warp]:
    return [_Warp(kernel, number) for number in range(max(kernel.threads // kernel.lanes, 1))]


@dataclass
class _Warp:
    """A warp of a block, with the number of barriers that it has passed before each one, if known."""

    kernel: Kernel
    number: int
    before: dict[int, Int] = field(default_factory=dict)

    def count(self, block: Block, rank: int, index: Index, passed: Int | None) -> Int | None:
        """Return how many barriers of all threads the warp reaches in a block; None: unknown.

        Args:
            block: the operations.
            rank: the warp's number in the enclosing role.
            index: the warp's group indices.
            passed: number of barriers that it has passed before; None: the number varies.
        """
        total: Int = 0
        for op in block.ops:
            here = None if passed is None else add(passed, total)
            if is_of_all(op, self.kernel) and here is not None:
                self.before[id(op)] = here
            count = self._of(op, rank, index, here)
            if count is None:
                return None
            total = add(total, count)
        return total

    def _of(self, op: Op, rank: int, index: Index, here: Int | None) -> Int | None:
        """Return how many barriers of all threads the warp reaches in an operation; None: unknown."""
        match op:
            case RoleBarrier():
                return int(is_of_all(op, self.kernel))
            case Role() if op.first <= rank < op.first + op.warps:
                group, inside = divmod(rank - op.first, op.count)
                inner = index if op.index is None else {**index, op.index: group}
                return self.count(op.body, inside, inner, here)
            case For():
                each = self.count(op.body, rank, index, None)
                if each == 0:
                    return 0
                if each is None or op.index in symbols(each):
                    return None
                first, stop = substitute(op.start, index), substitute(op.stop, index)
                turns = maximum(floordiv(add(stop, mul(first, -1), op.step - 1), op.step), 0)
                return mul(turns, each)
            case If():
                condition = substitute(op.condition, index)
                if condition in (TRUE, FALSE):
                    return self.count(op.then if condition == TRUE else op.otherwise, rank, index, here)
                then, otherwise = (self.count(block, rank, index, None) for block in (op.then, op.otherwise))
                return then if then == otherwise else None
        return 0


# ---------------------------------------------------------------- residency check
# Whether blocks wait for blocks with higher numbers, which must then be resident, too.


def first_wait(kernel: Kernel, sizes: Mapping[Sym, int] | None = None) -> Await | None:
    """Return a wait in which the first block certainly waits for others, all with higher numbers.

    In a loop only the first iteration is examined, if it certainly exists.  Waits in later iterations, and
    waits that depend on data that the kernel reads, are not decided here.

    Args:
        kernel: the kernel.
        sizes: the known sizes.
    """
    first: dict[Sym, Int] = {**(sizes or {}), **{axis.sym: 0 for axis in kernel.grid}}
    # A grid without blocks has no first block, and expressions of its index may have no value.
    extents = [substitute(axis.extent, first) for axis in kernel.grid]
    if 0 in extents or not any(isinstance(op, Await) for op in kernel.walk()):
        return None
    return _first_wait(kernel.body, first, 0)


def _first_wait(block: Block, first: Mapping[Sym, Int], counted: Int) -> Await | None:
    """Return the wait in a block of operations; ``counted``: the block's own increments of any counter."""
    for op in block.ops:
        if isinstance(op, Let):
            first = {**first, op.result: substitute(op.value, first)}
        # Other GPUs, and their copies, end waits of scope "system".
        if (
            isinstance(op, Await)
            and op.scope == "gpu"
            and prove(substitute(less(counted, op.value), first)) is True
        ):
            return op
        # Nested operations that are certainly executed, with the known values there.
        taken, known = None, first
        if isinstance(op, Role):  # only its first group
            taken, known = op.body, first if op.index is None else {**first, op.index: 0}
        elif isinstance(op, If):
            condition = substitute(op.condition, first)
            taken = (
                op.then if prove(condition) is True else op.otherwise if prove(negate(condition)) else None
            )
        elif isinstance(op, For) and prove(substitute(less(op.start, op.stop), first)) is True:
            taken, known = op.body, {**first, op.index: substitute(op.start, first)}
        found = None if taken is None else _first_wait(taken, known, counted)
        if found is not None:
            return found
        for inner in Block((op,)).walk():
            if isinstance(inner, Signal | Ticket):
                if inner is not op and not isinstance(op, If):
                    return None  # a loop may increment any number of times
                counted = add(counted, inner.value if isinstance(inner, Signal) else 1)
    return None
