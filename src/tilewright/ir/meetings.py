"""How often each warp comes to the barriers at which all threads of a block meet, wherever they stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tilewright.errors import Violation
from tilewright.ir.async_ops import Role, RoleBarrier
from tilewright.ir.op import Block
from tilewright.ir.ops import For, If
from tilewright.symbolic.expr import add, floordiv, maximum, mul
from tilewright.symbolic.nodes import FALSE, TRUE, Int, Sym
from tilewright.symbolic.rebuilding import substitute, symbols

if TYPE_CHECKING:
    from tilewright.ir.kernel import Kernel

Index = Mapping[Sym, Int]
"""The indices of the groups that a warp is in."""


def violations(kernel: Kernel) -> Iterator[Violation]:
    """A barrier of all threads to which some warps certainly come more often than others: they wait for ever.

    Args:
        kernel: the traced kernel.
    """
    found = [op for op in kernel.walk() if isinstance(op, RoleBarrier) and op.threads == kernel.threads]
    if not found:
        return
    first = _count(kernel, kernel.body, 0, {})
    for warp in range(1, kernel.threads // kernel.lanes):
        other = _count(kernel, kernel.body, warp, {})
        more = None if first is None or other is None else add(other, mul(first, -1))
        if isinstance(more, int) and more:
            text = (
                f"warp {warp} meets all others {abs(more)} times {'more' if more > 0 else 'less'} than warp 0"
            )
            near = "as many tw.role_barrier of all threads in each role"
            yield found[0].violation("role_barrier", text, near)
            return


def _count(kernel: Kernel, block: Block, warp: int, index: Index) -> Int | None:
    """How often a warp of a block, or of a role, comes to them there; None: it is not known."""
    total: Int = 0
    for op in block.ops:
        count: Int | None = 0
        match op:
            case RoleBarrier():
                count = int(op.threads == kernel.threads)
            case Role() if op.first <= warp < op.first + op.warps:
                group, rank = divmod(warp - op.first, op.count)
                inside = index if op.index is None else {**index, op.index: group}
                count = _count(kernel, op.body, rank, inside)
            case For():
                count = _of_turns(op, _count(kernel, op.body, warp, index), index)
            case If():
                count = _of_branch(kernel, op, warp, index)
        if count is None:
            return None
        total = add(total, count)
    return total


def _of_turns(op: For, each: Int | None, index: Index) -> Int | None:
    if each == 0:
        return 0
    if each is None or op.index in symbols(each):
        return None
    first, stop = substitute(op.start, index), substitute(op.stop, index)
    turns = maximum(floordiv(add(stop, mul(first, -1), op.step - 1), op.step), 0)
    return mul(turns, each)


def _of_branch(kernel: Kernel, op: If, warp: int, index: Index) -> Int | None:
    condition = substitute(op.condition, index)
    then, otherwise = (_count(kernel, block, warp, index) for block in (op.then, op.otherwise))
    if condition in (TRUE, FALSE):
        return then if condition == TRUE else otherwise
    return then if then == otherwise else None
