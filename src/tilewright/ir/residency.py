"""Residency check: whether blocks wait for blocks with higher numbers, which must then be resident, too."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.async_ops import Role
from tilewright.ir.integer_ops import Let
from tilewright.ir.kernel import Kernel
from tilewright.ir.op import Block, Op
from tilewright.ir.ops import For, If
from tilewright.ir.signal_ops import Await, Signal, Ticket
from tilewright.symbolic.expr import add, less, negate, prove
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import substitute


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
    """Return this wait in a block of operations, given the block's own earlier increments of any counter."""
    for op in block.ops:
        if isinstance(op, Let):
            first = {**first, op.result: substitute(op.value, first)}
        if isinstance(op, Await) and prove(substitute(less(counted, op.value), first)) is True:
            return op
        taken, known = _certain(op, first)
        found = None if taken is None else _first_wait(taken, known, counted)
        if found is not None:
            return found
        for inner in Block((op,)).walk():
            if isinstance(inner, Signal | Ticket):
                if inner is not op and not isinstance(op, If):
                    return None  # a loop may increment any number of times
                counted = add(counted, inner.value if isinstance(inner, Signal) else 1)
    return None


def _certain(op: Op, first: Mapping[Sym, Int]) -> tuple[Block | None, Mapping[Sym, Int]]:
    """Yield nested operations that are certainly executed, with the known values there.

    Only the first group of a role is examined.
    """
    if isinstance(op, Role):
        return op.body, first if op.index is None else {**first, op.index: 0}
    if isinstance(op, If):
        condition = substitute(op.condition, first)
        if prove(condition) is True:
            return op.then, first
        return (op.otherwise if prove(negate(condition)) is True else None), first
    if isinstance(op, For) and prove(substitute(less(op.start, op.stop), first)) is True:
        return op.body, {**first, op.index: substitute(op.start, first)}
    return None, first
