"""How many accesses of a thread are certainly under way behind a group of copies, at each wait for it.

Some hardware counts accesses, which end in the order in which they began, and knows no groups.  A wait may
then leave as many as certainly began behind the last one that must be complete: the fewest on any way
through the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.copies import is_in_background
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import AsyncCommit, AsyncWait, Block, For, If, Op


@dataclass(frozen=True)
class _State:
    """The fewest accesses that began, on any way here.

    Args:
        open: since the last group was closed.
        groups: of each of the last groups, the last one first.
    """

    open: int
    groups: tuple[int, ...]

    def or_(self, other: _State) -> _State:
        """What holds on both of two ways."""
        return _State(min(self.open, other.open), tuple(map(min, self.groups, other.groups)))


class _Count:
    """Follows a kernel, and remembers the fewest accesses at each wait.

    Args:
        threads: of the block; accesses of some of them alone are not certain.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.found: dict[int, int] = {}

    def block(self, block: Block, state: _State) -> _State:
        """The state behind some operations."""
        for op in block.ops:
            state = self.op(op, state)
        return state

    def op(self, op: Op, state: _State) -> _State:
        """The state behind one operation."""
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
        """The state behind a loop, which may turn as often as it likes, or not at all."""
        while (again := state.or_(self.block(op.body, state))) != state:
            state = again
        return state


def accesses_under_way(kernel: Kernel) -> list[int]:
    """For each wait, in program order, how many accesses of a thread may be under way behind it.

    Args:
        kernel: the kernel; the widths of its copies are known.
    """
    waits = [op for op in kernel.walk() if isinstance(op, AsyncWait)]
    count = _Count(kernel.threads)
    count.block(kernel.body, _State(0, (0,) * max((op.pending for op in waits), default=0)))
    return [count.found[id(op)] for op in waits]
