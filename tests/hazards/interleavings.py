"""Small programs of roles, barriers and copies; an exhaustive search over all interleavings finds the truth.

This search shares no code with the checker.  A state records how far each warp has come, the counts of all
barriers, and the unfinished bulk copies.  From each state, every warp that can execute its next operation
does so, and every copy completes.  A program is wrong if some interleaving

- cannot continue (``"hang"``), or ends before a copy is complete (``"unfinished"``),
- lets an arrival, a wait or the bytes of a copy count for another phase than another interleaving does
  (``"phase"``: a wait that comes too early or misses its phase), or counts more than a phase takes,
- reaches a point where two accesses to one tensor can be next to each other and one of them writes
  (``"race"``).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

Step = tuple[str, *tuple[int, ...]]
"""One of the following.

- ``("write", tensor)``, ``("read", tensor)``
- ``("arrive", barrier, stage, boxes)``: announces the bytes of ``boxes`` bulk copies
- ``("wait", barrier, stage, parity)``
- ``("load", tensor, barrier, stage)``: a bulk copy
- ``("meet", number)``: a numbered barrier of two warps
"""

MEET = 2
"""Warps that a numbered barrier waits for."""


@dataclass(frozen=True)
class Small:
    """A program: stages and arrivals of its barriers, number of tensors, and operations of each role."""

    barriers: tuple[tuple[int, int], ...]
    tensors: int
    roles: tuple[tuple[Step, ...], ...]

    def __str__(self) -> str:
        lines = [f"barriers (stages, arrivals): {self.barriers}"]
        return "\n".join([*lines, *(f"role {i}: {', '.join(map(str, r))}" for i, r in enumerate(self.roles))])


Event = tuple[int, int]
"""A step of a program: the role and the step's number."""

Stage = tuple[int, int, int]
"""Completed phases; in the present one, the arrivals, and the boxes announced but not landed."""


@dataclass(frozen=True)
class State:
    """The progress of a schedule: positions of warps, counts of barriers, and unfinished copies."""

    at: tuple[int, ...]
    stages: tuple[Stage, ...]
    flying: frozenset[Event]
    met: tuple[frozenset[int], ...]
    opened: tuple[int, ...]


class Search:
    """All schedules of a program; its first fault ends the search.

    Args:
        program: the program.
        limit: states at most.
    """

    def __init__(self, program: Small, limit: int = 200_000) -> None:
        self.program = program
        self.limit = limit
        self.fault: str | None = None
        self.states = 0
        self._phases: dict[tuple[str, Event], int] = {}
        self._first = [0]
        for stages, _ in program.barriers:
            self._first.append(self._first[-1] + stages)
        self._arrivals = [arrivals for stages, arrivals in program.barriers for _ in range(stages)]

    def run(self) -> str | None:
        """Return the fault of some interleaving, or None."""
        roles = len(self.program.roles)
        start = State(
            (0,) * roles, ((0, 0, 0),) * self._first[-1], frozenset(), (frozenset(),) * roles, (0,) * roles
        )
        seen, open_ = {start}, [start]
        while open_ and self.fault is None:
            state = open_.pop()
            self._look(state)
            for after in self._after(state):
                if after not in seen:
                    seen.add(after)
                    open_.append(after)
            if len(seen) > self.limit:
                raise OverflowError(f"more than {self.limit} states")
        self.states = len(seen)
        return self.fault

    def _next(self, state: State, role: int) -> Step | None:
        steps = self.program.roles[role]
        return steps[state.at[role]] if state.at[role] < len(steps) else None

    def _look(self, state: State) -> None:
        """Find accesses that can be next to each other, and interleavings that end or hang here."""
        steps = [self._next(state, role) for role in range(len(state.at))]
        touches = [
            (s[0] != "read", s[1]) for s in steps if s is not None and s[0] in ("read", "write", "load")
        ]
        touches += [(True, self.program.roles[role][number][1]) for role, number in state.flying]
        for i, (writes, tensor) in enumerate(touches):
            for other_writes, other in touches[:i]:
                if tensor == other and (writes or other_writes):
                    self.fault = "race"
        if all(step is None for step in steps) and state.flying:
            self.fault = "unfinished"

    def _after(self, state: State) -> list[State]:
        found = [made for role in range(len(state.at)) if (made := self._step(state, role)) is not None]
        found += [self._land(state, event) for event in state.flying]
        if not found and any(self._next(state, role) is not None for role in range(len(state.at))):
            self.fault = "hang"
        return found

    def _counts_for(self, what: str, event: Event, phase: int) -> None:
        if self._phases.setdefault((what, event), phase) != phase:
            self.fault = "phase"

    def _step(self, state: State, role: int) -> State | None:
        """The state after a role's next step; None if it has to wait."""
        event = role, state.at[role]
        match self._next(state, role):
            case None:
                return None
            case ("read" | "write", _):
                return self._moved(state, role)
            case ("load", _, barrier, stage):
                return self._moved(state, role, flying=state.flying | {event})
            case ("arrive", barrier, stage, boxes):
                place = self._first[barrier] + stage
                count, arrived, balance = state.stages[place]
                self._counts_for("arrive", event, count)
                if arrived == self._arrivals[place]:
                    self.fault = "phase"
                counted = self._counted(place, count, arrived + 1, balance + boxes)
                return self._moved(state, role, stages=_with(state.stages, place, counted))
            case ("wait", barrier, stage, parity):
                count = state.stages[self._first[barrier] + stage][0]
                if count % 2 == parity:
                    return None
                self._counts_for("wait", event, count)
                return self._moved(state, role)
            case ("meet", number):
                return self._meet(state, role, number)
            case other:
                raise ValueError(other)

    def _meet(self, state: State, role: int, number: int) -> State | None:
        if role in state.met[number]:
            return None
        self._counts_for("meet", (role, state.at[role]), state.opened[number])
        here = state.met[number] | {role}
        if len(here) < MEET:
            return State(state.at, state.stages, state.flying, _with(state.met, number, here), state.opened)
        at = tuple(place + (i in here) for i, place in enumerate(state.at))
        opened = _with(state.opened, number, state.opened[number] + 1)
        return State(at, state.stages, state.flying, _with(state.met, number, frozenset()), opened)

    def _land(self, state: State, event: Event) -> State:
        role, number = event
        _, _, barrier, stage = self.program.roles[role][number]
        place = self._first[barrier] + stage
        count, arrived, balance = state.stages[place]
        self._counts_for("land", event, count)
        counted = self._counted(place, count, arrived, balance - 1)
        stages = _with(state.stages, place, counted)
        return State(state.at, stages, state.flying - {event}, state.met, state.opened)

    def _counted(self, place: int, count: int, arrived: int, balance: int) -> Stage:
        if arrived < self._arrivals[place]:
            return count, arrived, balance
        if balance < 0:
            self.fault = "phase"
        return (count + 1, 0, 0) if balance <= 0 else (count, arrived, balance)

    @staticmethod
    def _moved(
        state: State,
        role: int,
        stages: tuple[Stage, ...] | None = None,
        flying: frozenset[Event] | None = None,
    ) -> State:
        at = _with(state.at, role, state.at[role] + 1)
        return State(
            at,
            state.stages if stages is None else stages,
            state.flying if flying is None else flying,
            state.met,
            state.opened,
        )


def _with(values, place, value):
    return (*values[:place], value, *values[place + 1 :])


# ---------------------------------------------------------------- random programs


def random_program(seed: int) -> Small:
    """Return a program of 2 or 3 roles: half are random, half are rings with a few mistakes."""
    rng = random.Random(seed)
    return _unplanned(rng) if rng.random() < 0.5 else _ring(rng)


def _unplanned(rng: random.Random) -> Small:
    barriers = tuple((rng.randint(1, 2), rng.choice((1, 1, 2))) for _ in range(rng.randint(1, 3)))
    tensors = rng.randint(1, 2)

    def step() -> Iterator[Step]:
        barrier = rng.randrange(len(barriers))
        stage = rng.randrange(barriers[barrier][0])
        tensor = rng.randrange(tensors)
        match rng.choices(("arrive", "wait", "touch", "load", "meet"), (6, 7, 2, 2, 1))[0]:
            case "arrive":
                yield "arrive", barrier, stage, 0
            case "wait":
                yield "wait", barrier, stage, rng.choice((0, 0, 1))
            case "touch":
                yield rng.choice(("read", "write")), tensor
            case "load":
                boxes, loads = rng.choice(((1, 1), (1, 1), (1, 0), (0, 1), (2, 1)))
                if boxes:
                    yield "arrive", barrier, stage, boxes
                for _ in range(loads):
                    yield "load", tensor, barrier, stage
            case "meet":
                yield "meet", 1

    roles = tuple(
        tuple(s for _ in range(rng.randint(1, 5)) for s in step()) for _ in range(rng.choice((2, 2, 2, 3)))
    )
    return Small(barriers, tensors, roles)


def _ring(rng: random.Random) -> Small:
    """A producer and one or two consumers use a ring of stages, with up to two mistakes."""
    stages, readers = rng.randint(1, 3), rng.randint(1, 2)
    tiles = rng.randint(1, 2 * stages + 1 if readers == 1 else stages + 1)
    by_load, ahead = rng.random() < 0.5, rng.choice((0, 0, 0, 1))
    steps: list[Step] = []
    for tile in range(tiles):
        stage, phase = (tile + ahead) % stages, (tile + ahead) // stages % 2
        steps.append(("wait", 1, stage, 1 - phase))
        stage = tile % stages
        if by_load:
            steps += [("arrive", 0, stage, 1), ("load", stage, 0, stage)]
        else:
            steps += [("write", stage), ("arrive", 0, stage, 0)]
    roles = [steps]
    ahead = rng.choice((0, 0, 0, 1))
    for _ in range(readers):
        steps = [("wait", 0, 0, 0)] if ahead else []
        for tile in range(tiles):
            if not ahead:
                steps.append(("wait", 0, tile % stages, tile // stages % 2))
            elif tile + 1 < tiles:
                steps.append(("wait", 0, (tile + 1) % stages, (tile + 1) // stages % 2))
            steps += [("read", tile % stages), ("arrive", 1, tile % stages, 0)]
        roles.append(steps)
    for _ in range(rng.choice((0, 0, 1, 1, 1, 2))):
        _mistake(rng, roles, stages)
    return Small(((stages, 1), (stages, readers)), stages, tuple(map(tuple, roles)))


def _mistake(rng: random.Random, roles: list[list[Step]], stages: int) -> None:
    steps = rng.choice(roles)
    if not steps:
        return
    at = rng.randrange(len(steps))
    match rng.choice(
        ("leave out", "twice", "exchange", "another stage", "another parity", "another barrier")
    ):
        case "leave out":
            del steps[at]
        case "twice":
            steps.insert(at, steps[at])
        case "exchange" if at:
            steps[at - 1 : at + 1] = reversed(steps[at - 1 : at + 1])
        case "another stage":
            number = {"arrive": 2, "wait": 2, "load": 3}.get(steps[at][0], 1)
            steps[at] = _with(steps[at], number, (steps[at][number] + 1) % stages)
        case "another parity" if steps[at][0] == "wait":
            steps[at] = _with(steps[at], 3, 1 - steps[at][3])
        case "another barrier" if steps[at][0] in ("wait", "arrive"):
            steps[at] = _with(steps[at], 1, 1 - steps[at][1])
