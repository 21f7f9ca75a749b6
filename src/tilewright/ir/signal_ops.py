"""Signals between blocks: counters in global memory that blocks increment, take tickets from, and wait for.

A counter is 0 when a kernel starts, and the kernel must leave it at 0: the last increment wraps it, or a
block resets it.  An increment is a release, and a wait is an acquire, at device scope: everything before the
increment is visible after the wait.  The first thread of the block or role increments, and its first warp
waits; a barrier before or after extends the order to the other threads.  A signal and a wait of scope
``"system"`` also order blocks on different GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tilewright.dtypes import i32, u32
from tilewright.errors import Violation, shown
from tilewright.ir.op import ADDRESSED, GLOBAL, SHARED, Op, Ordering, Traits
from tilewright.ir.types import Memory, Value
from tilewright.symbolic.expr import maximum
from tilewright.symbolic.nodes import Int, bounds

SCOPES = ("gpu", "system")
"""Scopes of signals and waits: the blocks of one GPU, or of all GPUs that share the memory."""


@dataclass(frozen=True)
class Signal(Op):
    """``counter += value`` by the first thread, after everything that is visible to it.

    With ``of``, the counter goes from ``of - 1`` to 0: the last of ``of`` signals resets it.
    """

    name = "signal"
    traits = Traits((GLOBAL,))
    orders = Ordering("device", ADDRESSED, half="release")
    roles: ClassVar = {"counter": "updates"}
    counter: Value
    value: Int = 1
    of: Int | None = None
    scope: str = "gpu"

    def verify(self) -> Iterator[Violation]:
        """Require one u32 in global memory, and a value of 1 or more."""
        yield from _verify_counter(self, self.counter)
        yield from _verify_scope(self, self.scope)
        yield from _verify_of(self, self.of)
        if bounds(self.value)[1] < 1:
            yield self.violation("counter", f"a signal of {self.value} counts nothing up", "value=1")
        elif self.of is not None and self.value != 1:
            text = f"value={self.value} with of={self.of}: a counter wraps round by ones"
            yield self.violation("counter", text, "value=1")


@dataclass(frozen=True)
class Ticket(Op):
    """``target = counter; counter += 1`` by the first thread, atomically.

    A ticket is also a signal; ``of`` is as in `Signal`.  The last of ``of`` tickets is ordered after all
    other tickets and signals.
    """

    name = "ticket"
    traits = Traits((GLOBAL, SHARED))
    orders = Ordering("device", ADDRESSED, half="release")
    roles: ClassVar = {"counter": "updates", "target": "writes"}
    counter: Value
    target: Value
    of: Int | None = None

    def verify(self) -> Iterator[Violation]:
        """Require one u32 in global memory, and one i32 in shared memory."""
        yield from _verify_counter(self, self.counter)
        yield from _verify_of(self, self.of)
        kind = self.target.tensor if self.target.is_tensor else None
        if kind is None or kind.memory is not Memory.SHARED or kind.dtype != i32 or kind.view.rank:
            yield self.violation(
                "counter", f"{self.target} is not an i32 in shared memory", "tw.shared(1, tw.i32)[0]"
            )


@dataclass(frozen=True)
class Await(Op):
    """The first warp waits until ``counter >= value``; later work comes after the signals that raised it."""

    name = "await_"
    traits = Traits((GLOBAL,))
    orders = Ordering("device", ADDRESSED, half="acquire")
    roles: ClassVar = {"counter": "reads"}
    counter: Value
    value: Int
    scope: str = "gpu"

    @property
    def least(self) -> Int:
        """The unsigned value that the counter must reach: 0, which is always true, for negative values."""
        return maximum(self.value, 0)

    def verify(self) -> Iterator[Violation]:
        """Require one u32 in global memory."""
        yield from _verify_counter(self, self.counter)
        yield from _verify_scope(self, self.scope)


@dataclass(frozen=True)
class Reset(Op):
    """``counter = 0`` by the first thread, for the next launch; all signals and waits must come before it."""

    name = "reset"
    traits = Traits((GLOBAL,))
    roles: ClassVar = {"counter": "writes"}
    counter: Value

    def verify(self) -> Iterator[Violation]:
        """Require one u32 in global memory."""
        yield from _verify_counter(self, self.counter)


def _verify_counter(op: Op, counter: Value) -> Iterator[Violation]:
    if not counter.is_tensor or counter.tensor.memory is not Memory.GLOBAL:
        yield op.violation("counter", f"{counter} does not lie in global memory", "tw.counter(n)[i]")
    elif counter.tensor.view.rank:
        text = f"{counter} has {counter.tensor.view.rank} dimensions; a counter is a single element"
        yield op.violation("counter", text, f"{counter.buffer}[{', '.join('i' * counter.tensor.view.rank)}]")
    elif counter.dtype != u32:
        yield op.violation("counter", f"{counter} is {counter.dtype}; counters are u32", "tw.counter(n)[i]")


def _verify_of(op: Op, of: Int | None) -> Iterator[Violation]:
    if of is not None and bounds(of)[1] < 1:
        yield op.violation("counter", f"of={of}: a counter wraps round after one signal or more", "of=1")


def _verify_scope(op: Op, scope: str) -> Iterator[Violation]:
    if scope not in SCOPES:
        near = "system" if str(scope).lower().startswith("s") else "gpu"
        yield op.violation("counter", f"scope={shown(scope)} is no scope of a counter", f'scope="{near}"')


SIGNAL_OPS: tuple[type[Op], ...] = (Signal, Ticket, Await, Reset)
