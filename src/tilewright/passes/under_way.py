"""Pending access counts: how many accesses of a thread certainly started after a copy group, at each wait.

Some hardware counts accesses, which complete in the order in which they started, and has no groups.  A wait
may then leave pending the accesses that certainly started after the last one that must be complete.  This
number is the minimum over all paths through the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.copies import is_in_background
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import AsyncCommit, AsyncWait, Block, For, If, Op


@dataclass(frozen=True)
class _State:
    """Minimum numbers of started accesses over all paths to a point.

    Args:
        open: accesses since the last commit.
        groups: accesses in each of the last groups, the last group first.
    """

    open: int
    groups: tuple[int, ...]

    def or_(self, other: _State) -> _State:
        """Return the minimum over two paths."""
        return _State(min(self.open, other.open), tuple(map(min, self.groups, other.groups)))


class _Count:
    """A data-flow analysis that records the minimum number of accesses at each wait.

    Args:
        threads: threads of the block; an access by only some of them is not counted.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.found: dict[int, int] = {}

    def block(self, block: Block, state: _State) -> _State:
        """Return the state after a block."""
        for op in block.ops:
            state = self.op(op, state)
        return state

    def op(self, op: Op, state: _State) -> _State:
        """Return the state after one operation."""
        match op:
            case AsyncWait():
                left = state.open + sum(state.groups[: op.pending])
                self.found[id(op)] = min(left, self.found.get(id(op), left))
            case AsyncCommit():
                return _State(0, (state.open, *state.groups)[: len(state.groups)])
            case For():
                return self.loop(op, state)
            case If():
                return self.block(op.then, state).or_(self.block(op.otherwise, state))
            case _ if is_in_background(op) and op.spread.size_threads >= self.threads:
                each = op.spread.size_values // (op.vector or 1)
                return _State(state.open + each, state.groups)
            case _:
                for region in op.regions:
                    state = state.or_(self.block(region, state))
        return state

    def loop(self, op: For, state: _State) -> _State:
        """Return the state after a loop with any number of iterations, including none."""
        while (again := state.or_(self.block(op.body, state))) != state:
            state = again
        return state


def accesses_under_way(kernel: Kernel) -> list[int]:
    """Return, for each wait in program order, how many accesses of a thread may be pending after it.

    Args:
        kernel: the kernel; the vector widths of its copies must be known.
    """
    waits = [op for op in kernel.walk() if isinstance(op, AsyncWait)]
    count = _Count(kernel.threads)
    count.block(kernel.body, _State(0, (0,) * max((op.pending for op in waits), default=0)))
    return [count.found[id(op)] for op in waits]
