"""What a launch has counted: the signals of every counter, and what a wait for them certainly comes after.

A wait until a counter is 3 passes after some three signals, and says nothing of which.  It comes after those
without which the others could not have taken the counter there: a signal that comes after another one cannot
stand in for it.  As many blocks as can go on do so before a wait is looked at, so that the signals that may
come before it have come.  A block that begins later may still signal in time to stand in for one of them.
The kernel is then executed once more, and the wait comes after those signals alone without which it could not
have passed with that one: accesses that need more are races.  A wait after which nothing is accessed that the
signallers wrote is legal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

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

    def certain(self, value: int, late: Iterable[Signalled] = ()) -> list[Signalled]:
        """The signals without which the others, and some that come later, do not take it to a value."""
        every = [*self.signals, *late]
        return [one for one in self.signals if _without(one, every) < value]

    def overtaken(self, late: Signalled) -> list[Passed]:
        """The waits that a signal, which does not come after them, could have let pass too early."""
        return [
            wait
            for wait in self.passed
            if not wait.is_before(late.seen)
            and any(_without(one, self.signals) >= wait.value for one in wait.certain)
        ]

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


def _without(one: Signalled, signals: Iterable[Signalled]) -> int:
    """How far signals count that neither are a certain one nor come after it."""
    return sum(other.value for other in signals if not one.is_before(other.seen))


Late: TypeAlias = dict[int, dict[int, Signalled]]
"""For waits, by their numbers, the signals that come later and could end them, by theirs."""


class Counts:
    """All counters of a launch.

    Args:
        late: late signals that executions before this one have shown; events have the same numbers in all.
    """

    def __init__(self, late: Late) -> None:
        self.known: dict[tuple[int, int], Count] = {}
        self.late = late
        self.is_settled = True
        """Whether all late signals of this execution were known before it."""
        self.orderless: dict[Op, None] = {}
        """The waits for which no signal is certain."""
        self._numbers = 0

    def of(self, buffer: Buffer, at: int) -> Count:
        """The counter at an offset."""
        return self.known.setdefault((id(buffer), at), Count(buffer, at))

    def number(self, agent: Agent) -> int:
        """A fresh bit, which its agent has seen."""
        self._numbers += 1
        agent.seen |= 1 << self._numbers
        return self._numbers

    def wait(self, count: Count, agent: Agent, op: Op, value: int) -> None:
        """Note a wait that passes: its warp learns what the signals told that are certain."""
        number = self.number(agent)
        certain = count.certain(value, self.late.get(number, {}).values())
        if not certain:
            self.orderless[op] = None
        learn(agent, certain)
        count.passed.append(Passed(number, agent, op, value, certain))

    def signal(self, count: Count, agent: Agent, op: Op, value: int) -> Signalled:
        """Note a signal of a warp: it tells what all lanes know."""
        number = self.number(agent)
        told = tuple(dict(known) for known in agent.every_others)
        for clock, mine in enumerate(told):
            mine[agent.group] = agent.every[clock, Scope.BLOCK].copy()
        made = Signalled(number, agent, op, value, told, agent.seen)
        count.signals.append(made)
        for wait in count.overtaken(made):
            self.late.setdefault(wait.number, {})[number] = made
            self.is_settled = False
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
