"""Replay of an execution's synchronisation in other schedules: its arrivals, waits and meetings.

A warp's steps depend neither on data nor on the schedule.  So the synchronisation of a cluster without
findings is replayed without its data: warps in order, in the opposite order, in random orders from fixed
seeds, and, if the cluster is small, in every order.  Each arrival, wait and copy must belong to the same
phase as in the execution, and every schedule must end.

The clocks of `TransactionBarrier` prove the same for all schedules at once: an arrival or a copy comes after
the end of the previous phase; a wait for a phase comes after the end of the previous one, and before the end
of the next one.  The replay tests this proof.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

from tilewright.ir.op import Op

SEEDS = (0, 1)
"""Seeds of the random orders."""

MOST_STATES = 1000
"""Largest number of states of a cluster for which every order is tried."""


@dataclass(frozen=True)
class SyncStep:
    """One step of a warp.

    Args:
        kind: ``"arrive"``, ``"load"``, ``"wait"``, ``"meet"``, ``"issue"`` or ``"issued"``.
        place: the barrier, or the unit whose MMAs are issued.
        amount: the announced or arriving bytes, the parity, the number of warps that meet, or of MMAs that
            must be issued.
        phase: the number of completed phases at its execution; for ``"issued"`` the number of warps.
        op: the operation.
    """

    kind: str
    place: Hashable
    amount: int
    phase: int
    op: Op


@dataclass
class Skeleton:
    """The steps of each warp of a cluster, and the number of arrivals per phase of each barrier."""

    warps: dict[Hashable, list[SyncStep]] = field(default_factory=dict)
    arrivals: dict[Hashable, int] = field(default_factory=dict)

    def note(self, warp: Hashable, step: SyncStep) -> None:
        """Add a step of a warp."""
        self.warps.setdefault(warp, []).append(step)


@dataclass(frozen=True)
class Fault:
    """A fault in a schedule.

    Args:
        warp: the warp of the step.
        step: the step.
        what: the fault, in words.
        order: the warp of each step so far; None: copies landed.
        schedule: the name of the schedule; empty if every order was tried.
    """

    warp: Hashable
    step: SyncStep
    what: str
    order: tuple[Hashable | None, ...]
    schedule: str = ""


def try_schedules(skeleton: Skeleton) -> Fault | None:
    """Return the first fault in the schedules that are tried, or None."""
    steps = [step for warp in skeleton.warps.values() for step in warp]
    if not any(step.kind in ("arrive", "wait", "load") for step in steps):
        return None  # meetings are the same in every order
    orders: dict[str, Callable[[list[int]], int]] = {
        "warps in order, copies as late as they can": lambda ready: min(ready, key=lambda i: (i < 0, i)),
        "warps in the opposite order, copies as soon as they can": lambda ready: min(
            ready, key=lambda i: (i >= 0, -i)
        ),
        **{f"the random order of seed {seed}": random.Random(seed).choice for seed in SEEDS},
    }
    for number, (name, choose) in enumerate(orders.items()):
        play, steps_of = Play(skeleton), random.Random(number)
        while play.fault is None and (ready := play.ready()):
            most = steps_of.randint(1, 8) if "seed" in name else 1 << 30
            play.take_up_to(most, choose(ready))
        if fault := play.ended(name):
            return fault
    # All orders, if there are few enough.
    if math.prod(len(steps) + 1 for steps in skeleton.warps.values()) > MOST_STATES:
        return None
    begun = Play(skeleton)
    seen, open_ = {begun.state}, [begun]
    while open_ and len(seen) <= MOST_STATES:
        play = open_.pop()
        ready = play.ready()
        if not ready and (fault := play.ended("")):
            return fault
        for choice in ready:
            after = play.copy()
            after.take(choice)
            if fault := after.fault:
                return fault
            if after.state not in seen:
                seen.add(after.state)
                open_.append(after)
    return None


@dataclass
class Counted:
    """The state of a barrier in one schedule: arrivals and bytes in the present phase."""

    arrivals: int
    phase: int = 0
    arrived: int = 0
    expected: int = 0
    came: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether all arrivals and bytes of the present phase have come or are pending."""
        return self.arrived >= self.arrivals and self.came >= self.expected

    def complete(self) -> None:
        """End the phase."""
        self.came -= self.expected
        self.phase, self.arrived, self.expected = self.phase + 1, 0, 0


class Play:
    """A schedule in progress.

    A choice ``w >= 0`` lets warp ``w`` take its next step.  A choice ``-1 - b`` lets the copies of barrier
    ``b`` land.
    """

    def __init__(self, skeleton: Skeleton) -> None:
        self.skeleton = skeleton
        self.fault: Fault | None = None
        self._names, self._steps = list(skeleton.warps), list(skeleton.warps.values())
        self._at = [0] * len(self._names)
        self._places = list(skeleton.arrivals)
        self._barriers = {place: Counted(count) for place, count in skeleton.arrivals.items()}
        self._met: dict[Hashable, list[int]] = {}
        self._issued: dict[tuple[Hashable, int], int] = {}
        self._path: list[int] = []

    def copy(self) -> Play:
        """Return a copy of the schedule so far."""
        other = copy.copy(self)
        other._at, other._path, other._issued = self._at.copy(), self._path.copy(), self._issued.copy()
        other._met = {place: met.copy() for place, met in self._met.items()}
        other._barriers = {place: copy.copy(counted) for place, counted in self._barriers.items()}
        return other

    @property
    def state(self) -> Hashable:
        """The state that decides how the schedule can go on."""
        counted = tuple((c.phase, c.arrived, c.expected, c.came) for c in self._barriers.values())
        return tuple(self._at), counted, tuple(sorted(i for met in self._met.values() for i in met))

    def ready(self) -> list[int]:
        """Return the possible choices."""
        found = [i for i in range(len(self._at)) if (step := self._step(i)) and self._may(i, step)]
        landing = (c.expected > 0 and c.is_complete for c in self._barriers.values())
        return found + [-1 - number for number, lands in enumerate(landing) if lands]

    def take(self, choice: int) -> None:
        """Execute one of the choices."""
        self._path.append(choice)
        if choice < 0:
            self._barriers[self._places[-1 - choice]].complete()
            return
        step = self._step(choice)
        assert step is not None
        if step.kind == "meet":
            self._meet(choice, step)
            return
        self._at[choice] += 1
        if step.kind == "issue":
            self._issued[step.place, choice] = self._issued.get((step.place, choice), 0) + 1
        elif step.kind != "issued":
            self._count(choice, step, self._barriers[step.place])

    def take_up_to(self, most: int, choice: int) -> None:
        """Execute one of the choices; a warp takes up to ``most`` steps, until it must wait."""
        self.take(choice)
        while choice >= 0 and most > 1 and self.fault is None:
            step = self._step(choice)
            if step is None or not self._may(choice, step):
                return
            self.take(choice)
            most -= 1

    def ended(self, name: str) -> Fault | None:
        """Return the fault of a schedule that has ended, with its name, or None."""
        if self.fault is None:
            stuck = [i for i in range(len(self._at)) if self._step(i) is not None]
            if stuck:
                self._fail(stuck[0], "waits for what never happens")
        return self.fault and replace(self.fault, schedule=name)

    def _step(self, warp: int) -> SyncStep | None:
        steps = self._steps[warp]
        return steps[self._at[warp]] if self._at[warp] < len(steps) else None

    def _may(self, warp: int, step: SyncStep) -> bool:
        match step.kind:
            case "wait":
                return self._barriers[step.place].phase % 2 != step.amount
            case "meet":
                return warp not in self._met.get(step.place, ())
            case "issued":
                warps = [count for (place, _), count in self._issued.items() if place == step.place]
                return sum(count >= step.amount for count in warps) >= step.phase
        return True

    def _meet(self, warp: int, step: SyncStep) -> None:
        met = self._met.setdefault(step.place, [])
        met.append(warp)
        if len(met) >= step.amount:
            for each in met:
                self._at[each] += 1
            met.clear()

    def _count(self, warp: int, step: SyncStep, barrier: Counted) -> None:
        if barrier.phase != step.phase:
            was = f"{_COUNTS[step.kind]} phase {step.phase - (step.kind == 'wait')} as executed"
            now = f"phase {barrier.phase - (step.kind == 'wait')}"
            self._fail(warp, f"{was}, and {now} in another schedule", step)
        elif step.kind == "arrive" and barrier.arrived == barrier.arrivals:
            self._fail(warp, f"is one arrival too many for phase {barrier.phase}", step)
        if step.kind == "wait":
            return
        if step.kind == "arrive":
            barrier.arrived += 1
            barrier.expected += step.amount
        else:
            barrier.came += step.amount
        if barrier.is_complete and not barrier.expected:
            barrier.complete()

    def _fail(self, warp: int, what: str, step: SyncStep | None = None) -> None:
        step = step or self._step(warp)
        assert step is not None
        order = tuple(None if choice < 0 else self._names[choice] for choice in self._path)
        self.fault = Fault(self._names[warp], step, what, order)


_COUNTS = {"arrive": "counts for", "load": "counts for", "wait": "is for"}
"""The verb of each kind of step in a message about its phase."""
