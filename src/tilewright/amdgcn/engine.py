"""Which waves go on: those at the lowest instruction, together, so that waves that diverged meet again."""

from __future__ import annotations

import numpy as np

from tilewright.amdgcn.faults import DeadlockError, MissedBarrierError
from tilewright.amdgcn.flow import Barrier, Branch
from tilewright.amdgcn.state import Array, Waves, register_name
from tilewright.amdgcn.steps import Step

RUNNING, WAITING, DONE = range(3)
FAIR = 64
"""Every so many turns those go on that have waited longest, so that waves that wait in a loop starve no
others."""


class Engine:
    """Executes the waves of some blocks.

    Args:
        waves: before their first instruction.
        steps: the kernel.
        block_of: the block of each wave.
        all_meet: whether a barrier that some waves of a block ended without is refused.
    """

    def __init__(self, waves: Waves, steps: list[Step], block_of: Array, *, all_meet: bool = False) -> None:
        self.waves, self.steps, self.block_of, self.all_meet = waves, steps, block_of, all_meet
        self.at = np.zeros(waves.count, np.int64)
        self.state = np.zeros(waves.count, np.int64)
        self.turn = np.zeros(waves.count, np.int64)
        self.counts = [0] * len(steps)

    def run(self, most: int) -> int:
        """Executes all waves to their end.

        Args:
            most: instructions of all waves that may be executed.

        Returns:
            How many of them are left.

        Raises:
            DeadlockError: no wave can go on, or too many instructions.
        """
        turn, left = 0, most
        while True:
            running = np.flatnonzero(self.state == RUNNING)
            if not len(running):
                if (self.state == DONE).all():
                    return left
                raise DeadlockError("waves wait at a barrier that others of their block never reach")
            turn += 1
            places = self.at[running]
            lowest = int(places.min())
            if turn % FAIR == 0:
                lowest = int(places[np.argmin(self.turn[running])])
            chosen = running[places == lowest]
            others = places[places > lowest]
            until = int(others.min()) if len(others) else len(self.steps)
            self.turn[chosen] = turn
            left -= self._go(chosen, lowest, until) * len(chosen)
            if left < 0:
                raise DeadlockError(
                    f"{most} instructions were executed and the kernel has not ended",
                    self.steps[lowest].line,
                    self.steps[lowest].text,
                )

    def _go(self, chosen: Array, place: int, until: int) -> int:
        """Executes chosen waves until they branch, wait, end or meet others; how many instructions."""
        waves, steps, counts = self.waves, self.steps, self.counts
        waves.select(chosen)
        first, size = place, len(chosen)
        while True:
            if place >= len(steps):
                raise DeadlockError(
                    f"the kernel runs beyond its end, behind line {steps[-1].line}",
                    steps[-1].line,
                    steps[-1].text,
                )
            step = steps[place]
            counts[place] += size
            if not waves.waits.pending.keys().isdisjoint(step.touched):
                waves.waits.check(step.touched, waves.at, step.line, step.text, register_name, step.loads)
            if step.ends:
                break
            if waves.undefined.isdisjoint(step.touched):
                step.run(waves)
            else:
                step.run_tracked(waves)
            place += 1
            if place == until:
                self.at[chosen] = place
                return place - first
        self._end(chosen, place, step)
        return place - first + 1

    def _end(self, chosen: Array, place: int, step: Step) -> None:
        self.at[chosen] = place + 1
        if isinstance(step, Branch):
            step.check(self.waves)
            self.at[chosen[step.jumps(self.waves)]] = step.target
            return
        if isinstance(step, Barrier):
            self.waves.lds.arrive(self.waves, self.waves.waits.on_way, step)
            self.state[chosen] = WAITING
        else:
            self.state[chosen] = DONE
        blocks = int(self.block_of.max()) + 1
        busy = np.bincount(self.block_of[self.state == RUNNING], minlength=blocks)
        free = (self.state == WAITING) & (busy[self.block_of] == 0)
        if self.all_meet and free.any() and (self.state == DONE).any():
            self._refuse_absent(free)
        self.state[free] = RUNNING

    def _refuse_absent(self, free: Array) -> None:
        """Refuses that waves go on from a barrier at which others of their block can no longer arrive."""
        ended = np.isin(self.block_of, self.block_of[free]) & (self.state == DONE)
        if ended.any():
            among = np.isin(self.block_of, self.block_of[ended])
            first = self.steps[int(self.at[free & among].min()) - 1]
            raise MissedBarrierError(
                f"{int((free & among).sum())} waves wait at a barrier that {int(ended.sum())} others of "
                "their block ended without",
                first.line,
                first.text,
            )
