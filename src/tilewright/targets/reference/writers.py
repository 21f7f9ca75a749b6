"""Which block writes each element of global memory, from the places of the writes alone, without running."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
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
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets.reference.sampling import all_blocks, block_symbols

MOST_VISITS = 50_000
"""How many times the blocks of a grid together may come to an access that is looked at."""

MOST_PAIRS = 4
"""How many pairs of blocks that touch one element are kept: of writers, of a reader before or behind."""


Path: TypeAlias = tuple[tuple[int, int], ...]
"""Of each loop around an access, by identity, the index of the turn."""


class UnknownError(Exception):
    """The elements that a block touches cannot be told without running it."""


@dataclass
class Writers:
    """Who writes what: which turn of which block.

    Args:
        of: for each array that is written the number of the turn that writes each element, from 1; 0 for
            elements that no block writes.
        clusters: for each block the number of its cluster.
        pairs: blocks that write, or read and write, one element: a few pairs of each way to meet, and all
            pairs of one cluster, where only a run shows whether a barrier orders them.
        meets_in_loops: whether two turns, of one block or of two, access an element that one of them writes:
            which turns run then decides what is found.
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
        """The blocks of the pairs."""
        return {block for pairs in self.pairs.values() for pair in pairs for block in pair}

    def visit(self, block: int, path: Path, value: Value, at: Array, writes: bool) -> None:
        """A block accesses elements, in these turns of the loops around the access."""
        self._visits += 1
        if self._visits > MOST_VISITS:
            raise UnknownError
        turn = self._turn(block, path)
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

    def _turn(self, block: int, path: Path) -> int:
        """The number of a turn of a block, from 1."""
        number = self._turns.setdefault((block, path), len(self._turns) + 1)
        if number == len(self._blocks):
            self._blocks = np.concatenate([self._blocks, np.zeros_like(self._blocks)])
            self._in_loops = np.concatenate([self._in_loops, np.zeros_like(self._in_loops)])
        self._blocks[number], self._in_loops[number] = block, len(path) > 0
        return number


def writers(
    kernel: Kernel, env: Mapping[Sym, int], extents: tuple[int, ...], elems: Mapping[Value, int]
) -> Writers | None:
    """Who writes each element of the arrays that a kernel writes; None if only a run can tell.

    Args:
        kernel: the kernel.
        env: its sizes.
        extents: of its grid.
        elems: elements of each of the arrays that are written.
    """
    blocks = all_blocks(extents)
    owners = {value: np.zeros(count, np.int32) for value, count in elems.items()}
    found = Writers(owners, _clusters(kernel, blocks))
    known = block_symbols(kernel, blocks)
    try:
        # Writes of all blocks first: a read meets also what a later block writes.
        for writes in (True, False):
            accesses = _Accesses(kernel, found.of.keys(), writes)
            for number in range(len(blocks)):
                mine = {**env, **{sym: int(values[number]) for sym, values in known.items()}}
                for path, value, at in accesses.of(kernel.body, mine):
                    found.visit(number, path, value, at, writes)
    except (UnknownError, KeyError, ZeroDivisionError):  # a mutable integer has no value here
        return None
    return found


def _clusters(kernel: Kernel, blocks: Array) -> Array:
    """For each block the number of its cluster."""
    first = blocks.copy()
    for member in kernel.cluster:
        first[:, member.axis] //= member.extent
    return cast(Array, np.unique(first, axis=0, return_inverse=True)[1].reshape(-1))


class _Accesses:
    """The accesses of a kernel's blocks to some arrays: all writes, or else all reads."""

    def __init__(self, kernel: Kernel, arrays: Collection[Value], writes: bool) -> None:
        self._arrays, self._writes = arrays, writes
        self._around = {id(op) for op in kernel.walk() if any(map(self._touches, op.regions))}
        """The loops, branches and roles with such accesses in them."""

    def _of(self, op: Op) -> list[Value]:
        return [value for value in (op.written if self._writes else op.read) if value.buffer in self._arrays]

    def _touches(self, block: Block) -> bool:
        return any(self._of(op) for op in block.walk())

    def of(self, block: Block, env: dict[Sym, int], path: Path = ()) -> Iterator[tuple[Path, Value, Array]]:
        """Those of a block: in which turns, through which view, to which elements."""
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
    """Offsets of the elements that an operation touches of a tensor in global memory."""
    view = value.tensor.view
    shape = [extent for extent in view.shape if isinstance(extent, int)]
    if not isinstance(op, Copy) or len(shape) < view.rank:
        raise UnknownError
    mapping: dict[Sym, Any] = {**env, **dict(zip(view.coords, np.indices(shape, sparse=True), strict=True))}
    offsets = np.broadcast_to(np.asarray(evaluate(view.offset, mapping), np.int64), shape)
    exists = np.broadcast_to(np.asarray(evaluate(view.valid, mapping), bool), shape)
    return cast(Array, offsets[exists])
