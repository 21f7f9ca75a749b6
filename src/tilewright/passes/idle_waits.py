"""Removal of redundant waits and barriers: those that have nothing to wait for on any path.

A wait allows some groups to stay pending.  If no more groups can be pending whenever it is reached, it waits
for nothing; an example is a second wait for the same groups.  A barrier orders the accesses before it with
the accesses after it.  If the code since the previous barrier touched only registers and integers, that
barrier has already ordered everything.  Removing a redundant operation does not change the state after it, so
all of them can be removed at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.async_ops import BulkCommit, BulkWait, Role
from tilewright.ir.integer_ops import GetVariable, SetVariable, Variable
from tilewright.ir.kernel import Kernel
from tilewright.ir.op import NAMES
from tilewright.ir.ops import (
    AsyncCommit,
    AsyncWait,
    Barrier,
    Block,
    Elementwise,
    Fill,
    For,
    FragmentOp,
    If,
    Op,
)
from tilewright.passes.pipeline import Pass, Passed
from tilewright.passes.rewrite import rewrite_kernel

HARMLESS = (FragmentOp, Fill, Elementwise, Variable, SetVariable, GetVariable)
"""Operations without effects that a barrier orders. Operations that only name a value are harmless, too."""


@dataclass(frozen=True)
class _Pending:
    """Upper bounds on pending work over all paths to a point.

    Args:
        copies: committed groups of a thread's asynchronous copies that may be pending.
        stores: committed groups of bulk stores that may be pending.
        is_touched: whether memory, or anything else that a barrier orders, was touched since the last one.
    """

    copies: int = 0
    stores: int = 0
    is_touched: bool = False

    def or_(self, other: _Pending) -> _Pending:
        """Return the upper bounds over two paths."""
        copies, stores = max(self.copies, other.copies), max(self.stores, other.stores)
        return _Pending(copies, stores, self.is_touched or other.is_touched)


class _Flow:
    """A data-flow analysis that records the waits and barriers that may have something to wait for.

    Args:
        most: a bound above the pending count of every wait.
    """

    def __init__(self, most: int) -> None:
        self.needed: set[int] = set()
        self._unknown = _Pending(most, most, True)

    def block(self, block: Block, state: _Pending) -> _Pending:
        """Return the state after a block."""
        for op in block.ops:
            match op:
                case AsyncWait():
                    left = min(state.copies, op.pending)
                    state = self._waited(op, state, left < state.copies, copies=left)
                case BulkWait():
                    left = min(state.stores, op.pending)
                    state = self._waited(op, state, left < state.stores, stores=left)
                case Barrier():
                    if state.is_touched:
                        self.needed.add(id(op))
                    state = replace(state, is_touched=False)
                case AsyncCommit():
                    copies = min(state.copies + 1, self._unknown.copies)
                    state = replace(state, copies=copies, is_touched=True)
                case BulkCommit():
                    stores = min(state.stores + 1, self._unknown.stores)
                    state = replace(state, stores=stores, is_touched=True)
                case For():
                    while (again := state.or_(self.block(op.body, state))) != state:
                        state = again
                case If():
                    state = self.block(op.then, state).or_(self.block(op.otherwise, state))
                case Role():  # other warps: the analysis does not follow their earlier operations
                    self.block(op.body, self._unknown)
                    state = self._unknown
                case _:
                    for region in op.regions:
                        state = state.or_(self.block(region, self._unknown))
                    if not (isinstance(op, HARMLESS) or op.traits == NAMES):
                        state = replace(state, is_touched=True)
        return state

    def _waited(self, op: Op, state: _Pending, is_needed: bool, **changes: int) -> _Pending:
        if not is_needed:
            return state
        self.needed.add(id(op))
        return replace(state, is_touched=True, **changes)


def drop_idle_waits(kernel: Kernel) -> Passed:
    """Return the kernel without redundant waits and barriers, and a note for each removed one."""
    waits = [op for op in kernel.walk() if isinstance(op, AsyncWait | BulkWait | Barrier)]
    flow = _Flow(1 + max([op.pending for op in waits if not isinstance(op, Barrier)], default=0))
    flow.block(kernel.body, _Pending())
    idle = [op for op in waits if id(op) not in flow.needed]
    if not idle:
        return kernel, ()
    known = {id(op) for op in idle}
    made = rewrite_kernel(kernel, lambda op, rewriter: () if id(op) in known else None)
    return made, tuple(f"{op.verb} at {op.location}: nothing is left to wait for" for op in idle)


IDLE_WAITS = Pass(
    "idle-waits",
    "Waits and barriers that have nothing to wait for are removed.",
    lambda kernel, arch: drop_idle_waits(kernel),
)
