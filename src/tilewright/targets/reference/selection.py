"""Selection of the blocks that a run executes, and the report about the others."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir.async_ops import Role
from tilewright.ir.copies import Copy
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Block, For, If, Let, Op
from tilewright.ir.types import Value
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import evaluate, symbols
from tilewright.targets.reference.equivalence import (
    OmittedIterations,
    all_blocks,
    block_symbols,
    fixed_symbols,
    representatives,
)
from tilewright.targets.reference.memory import Storage, share

# ---------------------------------------------------------------- writers of global memory
# The places of the writes determine them, without a run of the kernel.


MOST_VISITS = 50_000
"""Largest number of accesses of all blocks that are examined."""

MOST_PAIRS = 4
"""Largest number of recorded pairs of blocks that access one element, for each order and kind of access."""


Path: TypeAlias = tuple[tuple[int, int], ...]
"""The identity and the index of each loop around an access."""


class UnknownError(Exception):
    """The elements that a block touches are unknown without running it."""


@dataclass
class Writers:
    """The block and the loop iteration that write each element.

    Args:
        of: for each written array, the number of the iteration that writes each element, from 1; 0 for
            elements that no block writes.
        clusters: number of each block's cluster.
        pairs: blocks that write, or read and write, one element: a few pairs of each kind, and all pairs in
            one cluster, because only a run shows whether a barrier orders them.
        meets_in_loops: whether two iterations, of one block or of two, access an element that one of them
            writes.  The findings then depend on the iterations that run.
    """

    of: dict[Value, Array]
    clusters: Array
    pairs: dict[tuple[bool, bool, bool], set[tuple[int, int]]] = field(default_factory=dict)
    meets_in_loops: bool = False
    _turns: dict[tuple[int, Path], int] = field(default_factory=dict)
    _blocks: Array = field(default_factory=lambda: np.zeros(1024, np.int32))
    _in_loops: Array = field(default_factory=lambda: np.zeros(1024, bool))
    _visits: int = 0

    @property
    def meeting(self) -> set[int]:
        """The blocks that appear in any pair."""
        return {block for pairs in self.pairs.values() for pair in pairs for block in pair}

    def visit(self, block: int, path: Path, value: Value, at: Array, writes: bool) -> None:
        """Record that a block accesses elements, in these iterations of the loops around the access."""
        self._visits += 1
        if self._visits > MOST_VISITS:
            raise UnknownError
        turn = self._turns.setdefault((block, path), len(self._turns) + 1)
        if turn == len(self._blocks):
            self._blocks = np.concatenate([self._blocks, np.zeros_like(self._blocks)])
            self._in_loops = np.concatenate([self._in_loops, np.zeros_like(self._in_loops)])
        self._blocks[turn], self._in_loops[turn] = block, len(path) > 0
        written = self.of[value.buffer]
        at = at[(at >= 0) & (at < len(written))]
        turns = written[at]
        turns = turns[(turns != 0) & (turns != turn)]
        self.meets_in_loops |= len(turns) > 0 and (len(path) > 0 or bool(self._in_loops[turns].any()))
        others = self._blocks[turns]
        others = others[others != block]
        within = self.clusters[others] == self.clusters[block]
        for is_near in (False, True):
            for other in others[within == is_near][:1].tolist():
                pairs = self.pairs.setdefault((writes, block < other, is_near), set())
                if is_near or len(pairs) < MOST_PAIRS:
                    pairs.add((block, other))
        if writes:
            written[at] = turn


def writers(
    kernel: Kernel, env: Mapping[Sym, int], extents: tuple[int, ...], elems: Mapping[Value, int]
) -> Writers | None:
    """Find the writer of each element of the arrays that a kernel writes; None if it is unknown before a run.

    Args:
        kernel: the kernel.
        env: its sizes.
        extents: extents of its grid.
        elems: number of elements of each written array.
    """
    blocks = all_blocks(extents)
    owners = {value: np.zeros(count, np.int32) for value, count in elems.items()}
    first = blocks.copy()
    for member in kernel.cluster:
        first[:, member.axis] //= member.extent
    found = Writers(owners, np.unique(first, axis=0, return_inverse=True)[1].reshape(-1))
    known = block_symbols(kernel, blocks)
    try:
        # The writes of all blocks come first, because a read also meets the write of a later block.
        for writes in (True, False):
            accesses = _Accesses(kernel, found.of.keys(), writes)
            for number in range(len(blocks)):
                mine = {**env, **{sym: int(values[number]) for sym, values in known.items()}}
                for path, value, at in accesses.of(kernel.body, mine):
                    found.visit(number, path, value, at, writes)
    except (UnknownError, KeyError, ZeroDivisionError):  # a mutable integer has no value here
        return None
    return found


class _Accesses:
    """The accesses of a kernel's blocks to some arrays: all writes, or all reads."""

    def __init__(self, kernel: Kernel, arrays: Collection[Value], writes: bool) -> None:
        self._arrays, self._writes = arrays, writes
        self._around = {
            id(op) for op in kernel.walk() if any(self._of(one) for body in op.regions for one in body.walk())
        }
        """The loops, branches and roles that contain some of these accesses."""

    def _of(self, op: Op) -> list[Value]:
        return [value for value in (op.written if self._writes else op.read) if value.buffer in self._arrays]

    def of(self, block: Block, env: dict[Sym, int], path: Path = ()) -> Iterator[tuple[Path, Value, Array]]:
        """Yield the accesses in a block of operations: iterations, view and elements."""
        for op in block.ops:
            if isinstance(op, Let):
                env[op.result] = int(evaluate(op.value, env))
            for value in self._of(op):
                yield path, value, _elements(op, value, env)
            if id(op) not in self._around:
                continue
            if isinstance(op, For):
                for index in range(int(evaluate(op.start, env)), int(evaluate(op.stop, env)), op.step):
                    yield from self.of(op.body, {**env, op.index: index}, (*path, (id(op), index)))
            elif isinstance(op, If):
                yield from self.of(op.then if evaluate(op.condition, env) else op.otherwise, dict(env), path)
            elif isinstance(op, Role) and op.index is not None:
                for group in range(op.groups):
                    yield from self.of(op.body, {**env, op.index: group}, path)
            else:
                for region in op.regions:
                    yield from self.of(region, dict(env), path)


def _elements(op: Op, value: Value, env: Mapping[Sym, int]) -> Array:
    """Return the offsets of the elements of a global tensor that an operation touches."""
    view = value.tensor.view
    shape = [extent for extent in view.shape if isinstance(extent, int)]
    if not isinstance(op, Copy) or len(shape) < view.rank:
        raise UnknownError
    mapping: dict[Sym, Any] = {**env, **dict(zip(view.coords, np.indices(shape, sparse=True), strict=True))}
    offsets = np.broadcast_to(np.asarray(evaluate(view.offset, mapping), np.int64), shape)
    exists = np.broadcast_to(np.asarray(evaluate(view.valid, mapping), bool), shape)
    return cast("Array", offsets[exists])


# ---------------------------------------------------------------- the selection


TURNS = (
    "loop iterations that are equal up to their place were omitted: at least two periods before them and one "
    "after them ran"
)
"""Sentence of a report about omitted iterations."""


class Selection:
    """Selects the blocks that run: all blocks up to an amount of work, then only representatives.

    Args:
        kernel: the kernel.
        env: its sizes.
        extents: extents of the grid.
        buffers: global memory.
        work: number of element accesses after which blocks are omitted; None: never.
        asked: whether the caller has named the blocks that run.
        leaves_turns_out: whether equal iterations of a loop may be omitted, too.
    """

    def __init__(
        self,
        kernel: Kernel,
        env: Mapping[Sym, int],
        extents: tuple[int, ...],
        buffers: Mapping[Value, Storage],
        work: int | None,
        asked: bool,
        leaves_turns_out: bool,
    ) -> None:
        self.has_stopped = False
        self._leaves_turns_out = leaves_turns_out
        self._kernel, self._env, self._extents, self._buffers = kernel, env, extents, buffers
        self._work, self._asked = work, asked
        self._done, self._most = 0, 0 if work is None else work_of(kernel, env)
        self.turns: OmittedIterations | None = None
        """The omitted loop iterations, once blocks are omitted; None if all iterations run."""
        self._chosen: set[tuple[int, ...]] | None = None
        self._is_sampled = False
        self._writers: Writers | None = None

    @property
    def knows_all(self) -> bool:
        """Whether the writes of all blocks are known."""
        known = not self._is_sampled or self._writers is not None
        return known and not self.has_stopped and not self._asked

    def leaves_out(self, indices: Sequence[tuple[int, ...]], accessed: int) -> bool:
        """Return whether a cluster need not run, after this number of element accesses."""
        self._most, self._done = max(self._most, accessed - self._done), accessed
        if self._work is None or accessed + self._most <= self._work:
            return False
        if not self._is_sampled:
            self._sample()
        return self._chosen is not None and not any(index in self._chosen for index in indices)

    def _sample(self) -> None:
        written = {value.buffer for op in self._kernel.walk() for value in op.written} & self._buffers.keys()
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
            self.turns = OmittedIterations(self._kernel)
        if self._writers is not None and self._writers.meeting:
            blocks = all_blocks(self._extents)
            self._chosen |= {tuple(blocks[number].tolist()) for number in self._writers.meeting}

    def unwritten(self, value: Value, missing: Array) -> Array | None:
        """Return which missing elements the omitted blocks do not write either; None: unknown."""
        if not self._is_sampled:
            return missing
        return None if self._writers is None else missing[self._writers.of[value][missing] == 0]

    def told(self, done: int) -> str:
        """Describe the blocks that did not run; empty if all ran."""
        rest = math.prod(self._extents) - done
        turns = 0 if self.turns is None else self.turns.left_out
        if self.has_stopped:
            return f"it stopped early: a block could not go on, and {rest} did not come to their end"
        if not rest:
            return TURNS if turns else ""
        which = f"{rest} block{'s' * (rest != 1)} did not run"
        if self._asked:
            return f"{which}: only those that were asked for did"
        if self._writers is None:
            known = 'the places of their writes are unknown without a run; blocks="all" runs all'
        elif self._writers.meeting:
            known = "some pairs of the blocks that touch one element of global memory ran"
        else:
            known = "by their places, no two blocks touch an element that one of them writes"
        told = f"{which}: each is equal, up to its place, to one that did; {known}"
        return f"{told}\n{TURNS}" if turns else told


def work_of(kernel: Kernel, env: Mapping[Sym, int]) -> int:
    """Estimate the number of elements in memory that the first block accesses."""
    try:
        return _work(kernel.body, {**env, **dict.fromkeys(fixed_symbols(kernel) - env.keys(), 0)})
    except ZeroDivisionError:  # a run reports it
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
