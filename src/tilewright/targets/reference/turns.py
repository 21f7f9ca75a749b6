"""Turns of loops that stand for others: the first and the last of a steady state run, those between do not.

Turns of a loop are equal up to their place if nothing tells them apart (`rows`): not their control flow,
their stages and parities, nor where edges cut their tiles.  Where they repeat with some period, such as that
of a ring of stages, whole periods are left out: barriers and rings are then as if they had run.

Warps that work together must leave out the same.  So the loops of all roles that make the same turns at one
depth are looked at together, and so are all blocks of a cluster.  What was left out is counted: arrivals,
waits and meetings at every barrier must balance.  Where they do not, or where anything is found, all turns
run (`run`); and so they do where two turns meet at an element of global memory that one of them writes
(`writers`), whose places are not compared here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir.async_ops import Role
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Block, For, Op, SetVariable
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import evaluate, substitute, symbols
from tilewright.targets.reference.rows import Rows, classes, masks, named
from tilewright.targets.reference.sampling import fixed_symbols
from tilewright.targets.reference.state import ClusterState, Warp

BEFORE, BEHIND = 2, 1
"""How many periods run before what is left out, and at least behind it.  Accesses to one place in memory lie
at most a period apart, so each meets the one before it and the one behind it."""


@dataclass(frozen=True)
class Gap:
    """Turns of a loop that are left out.

    Args:
        first: the number of the first of them.
        period: after so many turns they repeat.
        periods: so many are left out.
    """

    first: int
    period: int
    periods: int

    @property
    def behind(self) -> int:
        """The number of the first turn that runs again."""
        return self.first + self.period * self.periods


def gap(alike: Sequence[int] | Array) -> Gap | None:
    """The longest gap in turns of which each has the number of its class; None if all of them run.

    Example:
        >>> gap([0, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 3])
        Gap(first=5, period=2, periods=2)
        >>> gap([0, 1, 2, 3, 4])
    """
    turns = np.asarray(alike)
    best: Gap | None = None
    for period in range(1, len(turns) // (BEFORE + BEHIND + 1) + 1):
        # Runs of turns that are as those one period before them.
        ends = np.flatnonzero(np.diff(np.concatenate([[0], turns[period:] == turns[:-period], [0]])))
        for first, end in ends.reshape(-1, 2).tolist():
            periods = (end - first + period) // period - BEFORE - BEHIND
            if periods > 0 and (best is None or periods * period > best.periods * best.period):
                best = Gap(first + BEFORE * period, period, periods)
    return best


class Turns:
    """Which turns the loops of a kernel leave out.

    Args:
        kernel: the kernel.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.left_out = 0
        """Turns that did not run, of the loops of all warps."""
        self.is_balanced = True
        self._lets, self._masks = named(kernel), masks(kernel)
        self._loops = {id(loop): (loop, around) for loop, around in _loops(kernel.body, ())}
        self._fixed = fixed_symbols(kernel)
        self._can = not kernel.splits_cluster_barriers
        self._known: dict[Hashable, Gap | None] = {}

    def gap(self, warp: Warp, loop: For, turns: range) -> Gap | None:
        """What a warp leaves out of a loop that it comes to."""
        if not self._can or len(turns) <= BEFORE + BEHIND:
            return None
        outer = tuple(warp.env[each.index] for each in self._loops[id(loop)][1] if isinstance(each, For))
        key = warp.block.cluster.blocks[0].index, outer, turns
        if key not in self._known:
            try:
                self._known[key] = self._found(warp, outer, turns)
            except ZeroDivisionError:  # which a run finds, and where
                self._known[key] = None
        return self._known[key]

    def _found(self, warp: Warp, outer: Sequence[int], turns: range) -> Gap | None:
        """The gap that all loops have which make these turns at this depth, in all blocks of the cluster."""
        columns: list[Array] = []
        for loop, around in self._loops.values():
            loops = [each.index for each in around if isinstance(each, For)]
            if len(loops) != len(outer):
                continue
            roles = [each for each in around if isinstance(each, Role)]
            for block in warp.block.cluster.blocks:
                env = {sym: block.warps[0].env[sym] for sym in self._fixed}
                env |= dict(zip(loops, outer, strict=True))
                if self._turns(loop, env) == turns:
                    if any(isinstance(op, SetVariable) for op in loop.body.walk()):
                        return None
                    own = {loop.index: np.asarray(turns)}
                    columns += Rows(loop.body, own, env, self._lets, self._masks, roles).columns()
        return gap(classes(columns, len(turns))) if columns else None

    def _turns(self, loop: For, env: Mapping[Sym, int]) -> range | None:
        """The turns that a loop makes; None if only a run can tell."""
        ends = [substitute(end, self._lets) for end in (loop.start, loop.stop)]
        if not all(symbols(end) <= env.keys() for end in ends):
            return None
        start, stop = (int(evaluate(end, env)) for end in ends)
        return range(start, stop, loop.step)

    def leave_out(self, warp: Warp, found: Gap, before: Mapping[Any, int]) -> None:
        """Count what a warp leaves out: for each period what it did in the last one, since ``before``."""
        once = Counter(warp.steps)
        once.subtract(before)
        for step, count in once.items():
            warp.steps[step] += count * found.periods
            warp.left_out[step] += count * found.periods
        self.left_out += found.periods * found.period

    def settle(self, cluster: ClusterState) -> None:
        """Note whether what the warps of a cluster have left out adds up."""
        warps = cluster.barrier.warps
        stages = (stage for b in cluster.blocks for each in b.mbarriers.values() for stage in each)
        phases: dict[Hashable, int] = {}
        for stage in stages:
            came = sum(warp.left_out["arrive", stage.slot] for warp in warps)
            phases[stage.slot] = came // stage.arrivals
            self.is_balanced &= came % (2 * stage.arrivals) == 0  # phases of both parities
        for warp in warps:
            for (kind, place), left in [(step, warp.left_out[step]) for step in warp.steps]:
                if kind == "wait":
                    self.is_balanced &= left == phases[place]
                elif kind == "meet":
                    self.is_balanced &= left == phases.setdefault(("meet", place), left)


def _loops(body: Block, around: tuple[Op, ...]) -> Iterator[tuple[For, tuple[Op, ...]]]:
    """Every loop, with the operations around it."""
    for op in body.ops:
        if isinstance(op, For):
            yield op, around
        for region in op.regions:
            yield from _loops(region, (*around, op))
