"""What a launch has counted: the signals of every counter, and what a wait for them certainly comes after.

A wait until a counter is 3 passes after some three signals, and says nothing of which.  It comes after those
without which the others could not have taken the counter there: a signal that comes after another one cannot
stand in for it.  As many blocks as can go on do so before a wait is looked at, so that all signals that may
come before it have come; one that comes later all the same, and could have stood in, is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir.async_ops import FENCED
from tilewright.ir.op import Op
from tilewright.targets.reference.agents import Agent, Scope, learn_others
from tilewright.targets.reference.memory import Buffer


@dataclass(frozen=True, eq=False)
class Mark:
    """Something that was done with a counter: its bit among those that are seen, by whom, and where."""

    number: int
    agent: Agent
    op: Op

    def is_before(self, seen: int) -> bool:
        """Whether who has seen so much comes after it."""
        return bool(seen >> self.number & 1)


@dataclass(frozen=True, eq=False)
class Signalled(Mark):
    """One signal.

    Args:
        value: how much it counted.
        told: the times that all lanes of the block knew, for each of its clocks, by the group.
        seen: what it comes after, itself included.
    """

    value: int
    told: tuple[dict[int, Array], ...]
    seen: int


@dataclass(frozen=True, eq=False)
class Passed(Mark):
    """A wait that passed: for what value, and the signals that it counts on."""

    value: int
    certain: Sequence[Signalled]


@dataclass(eq=False)
class Count:
    """One counter: its signals since it was last 0, the waits that passed, and what made it 0."""

    buffer: Buffer
    at: int
    signals: list[Signalled] = field(default_factory=list)
    passed: list[Passed] = field(default_factory=list)
    zeroed: Mark | None = None

    @property
    def value(self) -> int:
        """Its present value."""
        return int(self.buffer.elements[self.at])

    def certain(self, value: int) -> list[Signalled]:
        """The signals without which the others do not come to a value."""
        return [one for one in self.signals if self._without(one) < value]

    def _without(self, one: Signalled) -> int:
        """How far the signals count that neither are this one nor come after it."""
        return sum(other.value for other in self.signals if not one.is_before(other.seen))

    def overtaken(self, late: Signalled) -> Passed | None:
        """A wait that a signal, which does not come after it, could have let pass too early."""
        for wait in self.passed:
            if not wait.is_before(late.seen) and any(self._without(s) >= wait.value for s in wait.certain):
                return wait
        return None

    def unsignalled(self, of: int) -> list[Passed]:
        """The waits that may still be under way when the last of so many signals comes.

        Who signals after a wait, and without whose signal there are not so many, has passed it by then.
        """
        after = 0
        for one in self.certain(of):
            after |= one.seen
        return [wait for wait in self.passed if not wait.is_before(after)]

    def unordered(self, agent: Agent, marks: Sequence[Mark]) -> Mark | None:
        """The first of some marks that an agent does not come after."""
        return next((mark for mark in marks if not mark.is_before(agent.seen)), None)

    def become_zero(self, mark: Mark) -> None:
        """It is 0 again."""
        self.signals.clear()
        self.passed.clear()
        self.zeroed = mark


class Counts:
    """All counters of a launch."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, int], Count] = {}
        self._numbers = 0

    def of(self, buffer: Buffer, at: int) -> Count:
        """The counter at an offset."""
        return self.known.setdefault((id(buffer), at), Count(buffer, at))

    def number(self, agent: Agent) -> int:
        """A fresh bit, which its agent has seen."""
        self._numbers += 1
        agent.seen |= 1 << self._numbers
        return self._numbers

    def signal(self, count: Count, agent: Agent, op: Op, value: int) -> Signalled:
        """Note a signal of a warp: it tells what all lanes know."""
        number = self.number(agent)
        told = tuple(dict(known) for known in agent.every_others)
        for clock, mine in enumerate(told):
            mine[agent.group] = agent.every[clock, Scope.BLOCK].copy()
        made = Signalled(number, agent, op, value, told, agent.seen)
        count.signals.append(made)
        agent.advance()
        return made


def learn(agent: Agent, signals: Sequence[Signalled]) -> None:
    """Let all lanes of a warp know what signals told."""
    for one in signals:
        agent.seen |= one.seen
        for clock in range(1 + len(FENCED)):
            others = dict(one.told[clock])
            own = others.pop(agent.group, None)
            if own is not None:
                for scope in Scope:
                    known = agent.every[clock, scope]
                    np.maximum(known, own, out=known)
            learn_others(agent.every_others[clock], others)
