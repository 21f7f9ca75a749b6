"""Which blocks of a run are executed, and what the report says of the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilewright.functions.conversions import Array
from tilewright.ir.async_ops import Role
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Block, For, Let
from tilewright.ir.types import Value
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import evaluate, symbols
from tilewright.targets.reference.memory import Buffer, share
from tilewright.targets.reference.sampling import all_blocks, fixed_symbols, representatives
from tilewright.targets.reference.turns import Turns
from tilewright.targets.reference.writers import Writers, writers

TURNS = (
    "of turns of a loop that are equal up to their place the first and the last ran: "
    "of what repeats, two periods at least before those that were left out, and one behind"
)
"""What a report says of turns that were left out."""


class Selection:
    """Runs all blocks while that is little work, and then those that stand for the others.

    Args:
        kernel: what is executed.
        env: its sizes.
        extents: of the grid.
        buffers: global memory.
        work: after so many accesses to elements blocks are left out; None: never.
        asked: whether the caller has named the blocks that run.
        leaves_turns_out: whether of equal turns of a loop some may stand for the others, too.
    """

    def __init__(
        self,
        kernel: Kernel,
        env: Mapping[Sym, int],
        extents: tuple[int, ...],
        buffers: Mapping[Value, Buffer],
        work: int | None,
        asked: bool,
        leaves_turns_out: bool,
    ) -> None:
        self.has_stopped = False
        self._leaves_turns_out = leaves_turns_out
        self._kernel, self._env, self._extents, self._buffers = kernel, env, extents, buffers
        self._work, self._asked = work, asked
        self._done, self._most = 0, 0 if work is None else work_of(kernel, env)
        self.turns: Turns | None = None
        """Which turns of loops are left out, once blocks are; None: none."""
        self._chosen: set[tuple[int, ...]] | None = None
        self._is_sampled = False
        self._writers: Writers | None = None

    @property
    def knows_all(self) -> bool:
        """Whether it is known what all blocks write."""
        return (
            not self.has_stopped and not self._asked and (not self._is_sampled or self._writers is not None)
        )

    def leaves_out(self, indices: Sequence[tuple[int, ...]], accessed: int) -> bool:
        """Whether a cluster need not run, after so many accesses to elements."""
        self._most, self._done = max(self._most, accessed - self._done), accessed
        if self._work is None or accessed + self._most <= self._work:
            return False
        if not self._is_sampled:
            self._sample()
        return self._chosen is not None and not any(index in self._chosen for index in indices)

    def _sample(self) -> None:
        written = {value for value in self._buffers if self._is_written(value)}
        apart = not any(
            share(self._buffers[one], self._buffers[other])
            for one in written
            for other in self._buffers
            if one is not other
        )
        found = representatives(self._kernel, self._env, self._extents) if apart else None
        if found is None:
            self._work = None
            return
        self._is_sampled = True
        self._chosen = {tuple(row) for row in found.tolist()}
        elems = {value: len(self._buffers[value].elements) for value in written}
        self._writers = writers(self._kernel, self._env, self._extents, elems)
        if self._writers is not None and self._leaves_turns_out and not self._writers.meets_in_loops:
            self.turns = Turns(self._kernel)
        if self._writers is not None and self._writers.meeting:
            blocks = all_blocks(self._extents)
            self._chosen |= {tuple(blocks[number].tolist()) for number in self._writers.meeting}

    def _is_written(self, value: Value) -> bool:
        return any(value is known.buffer for op in self._kernel.walk() for known in op.written)

    def unwritten(self, value: Value, missing: Array) -> Array | None:
        """Of elements that no block has written, those that the others do not write either; None: unknown."""
        if not self._is_sampled:
            return missing
        return None if self._writers is None else missing[self._writers.of[value][missing] == 0]

    def told(self, done: int) -> str:
        """What is to be known of blocks that did not run, in a sentence; empty if there are none."""
        rest = math.prod(self._extents) - done
        turns = 0 if self.turns is None else self.turns.left_out
        if self.has_stopped:
            return f"it stopped early: a block could not go on, and {rest} did not come to their end"
        if turns and not rest:
            return TURNS
        if not rest:
            return ""
        which = f"{rest} block{'s' * (rest != 1)} did not run"
        if self._asked:
            return f"{which}: only those that were asked for did"
        if self._writers is None:
            known = 'where they write was not compared, as only a run can tell; blocks="all" runs all'
        elif self._writers.meeting:
            known = "of the blocks that touch one element of global memory some pairs ran"
        else:
            known = "by the places of their accesses, no two blocks touch an element that one of them writes"
        told = f"{which}: each is equal, up to its place, to one that did; {known}"
        return f"{told}\n{TURNS}" if turns else told


def work_of(kernel: Kernel, env: Mapping[Sym, int]) -> int:
    """About how many elements in memory the first block accesses."""
    try:
        return _work(kernel.body, {**env, **dict.fromkeys(fixed_symbols(kernel) - env.keys(), 0)})
    except ZeroDivisionError:  # which a run finds, and where
        return 0


def _work(block: Block, env: dict[Sym, int]) -> int:
    total = 0
    for op in block.ops:
        if isinstance(op, Let) and symbols(op.value) <= env.keys():
            env[op.result] = int(evaluate(op.value, env))
        values = [value for value in (*op.read, *op.written) if value.is_tensor]
        shapes = [value.tensor.view.shape for value in values if op.traits.engines]
        total += sum(math.prod(n for n in shape if isinstance(n, int)) for shape in shapes)
        times, inside = 1, dict(env)
        if isinstance(op, For) and symbols(op.start) | symbols(op.stop) <= env.keys():
            inside[op.index] = start = int(evaluate(op.start, env))
            times = len(range(start, int(evaluate(op.stop, env)), op.step))
        elif isinstance(op, Role):
            times = op.groups
            inside |= {} if op.index is None else {op.index: 0}
        total += times * max((_work(region, inside) for region in op.regions), default=0) if times else 0
    return total
