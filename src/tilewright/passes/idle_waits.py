"""Waits and barriers that find nothing to wait for, on any way through the kernel: they are left out.

A wait lets some groups go on.  If no more can be under way wherever it is reached, as behind another wait for
the same groups, it waits for nothing.  A barrier orders what stands before it with what stands behind it; if
nothing but registers and integers was touched since the barrier before, that one has ordered it all.  Neither
changes what is known behind it, so all that are found may go at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.async_ops import BulkCommit, BulkWait, Role
from tilewright.ir.integer_ops import GetVariable, SetVariable, Variable
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import (
    AsyncCommit,
    AsyncWait,
    Barrier,
    Block,
    Elementwise,
    Fill,
    For,
    Fragment,
    If,
    Op,
)
from tilewright.ir.traits import NAMES
from tilewright.passes.pipeline import Passed
from tilewright.passes.rewrite import rewrite_kernel

HARMLESS = (Fragment, Fill, Elementwise, Variable, SetVariable, GetVariable)
"""Operations that touch nothing that a barrier orders; so do those that only name something."""


@dataclass(frozen=True)
class _State:
    """The most that may be under way, on any way here.

    Args:
        copies: groups of asynchronous copies of a thread that are closed and not waited for.
        stores: groups of bulk stores likewise.
        is_touched: whether memory, or what else a barrier orders, was touched since the last barrier.
    """

    copies: int = 0
    stores: int = 0
    is_touched: bool = False

    def or_(self, other: _State) -> _State:
        """What may be on one of two ways."""
        copies, stores = max(self.copies, other.copies), max(self.stores, other.stores)
        return _State(copies, stores, self.is_touched or other.is_touched)


class _Flow:
    """Follows a kernel, and remembers the waits and barriers that may have something to wait for.

    Args:
        most: more groups than any wait lets go on.
    """

    def __init__(self, most: int) -> None:
        self.needed: set[int] = set()
        self._unknown = _State(most, most, True)

    def block(self, block: Block, state: _State) -> _State:
        """The state behind some operations."""
        for op in block.ops:
            state = self._op(op, state)
        return state

    def _op(self, op: Op, state: _State) -> _State:
        match op:
            case AsyncWait():
                left = min(state.copies, op.pending)
                return self._waited(op, state, left < state.copies, copies=left)
            case BulkWait():
                left = min(state.stores, op.pending)
                return self._waited(op, state, left < state.stores, stores=left)
            case Barrier():
                if state.is_touched:
                    self.needed.add(id(op))
                return replace(state, is_touched=False)
            case AsyncCommit():
                return replace(state, copies=min(state.copies + 1, self._unknown.copies), is_touched=True)
            case BulkCommit():
                return replace(state, stores=min(state.stores + 1, self._unknown.stores), is_touched=True)
            case For():
                while (again := state.or_(self.block(op.body, state))) != state:
                    state = again
                return state
            case If():
                return self.block(op.then, state).or_(self.block(op.otherwise, state))
            case Role():  # other warps: what they, or their first thread, did before is not followed
                self.block(op.body, self._unknown)
                return self._unknown
        is_harmless = isinstance(op, HARMLESS) or op.traits == NAMES
        for region in op.regions:
            state = state.or_(self.block(region, self._unknown))
        return state if is_harmless else replace(state, is_touched=True)

    def _waited(self, op: Op, state: _State, is_needed: bool, **changes: int) -> _State:
        if not is_needed:
            return state
        self.needed.add(id(op))
        return replace(state, is_touched=True, **changes)


def drop_idle_waits(kernel: Kernel) -> Passed:
    """The kernel without waits and barriers that find nothing to wait for; a note for each."""
    waits = [op for op in kernel.walk() if isinstance(op, AsyncWait | BulkWait | Barrier)]
    pending = [op.pending for op in waits if not isinstance(op, Barrier)]
    flow = _Flow(1 + max(pending, default=0))
    flow.block(kernel.body, _State())
    idle = [op for op in waits if id(op) not in flow.needed]
    if not idle:
        return kernel, ()
    known = {id(op) for op in idle}
    made = rewrite_kernel(kernel, lambda op, rewriter: () if id(op) in known else None)
    return made, tuple(f"{op.verb} at {op.location}: nothing is left to wait for" for op in idle)
