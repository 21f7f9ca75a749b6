"""Which block writes each element of global memory, from the places of the writes alone, without running."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

import numpy as np

from tilewright.functions.conversions import Array
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


class UnknownError(Exception):
    """The elements that a block touches cannot be told without running it."""


@dataclass
class Writers:
    """Who writes what.

    Args:
        of: for each array that is written the number of the block that writes each element, from 1; 0 for
            elements that no block writes.
        clusters: for each block the number of its cluster.
        pairs: blocks that write, or read and write, one element: a few pairs of each way to meet, and all
            pairs of one cluster, where only a run shows whether a barrier orders them.
    """

    of: dict[Value, Array]
    clusters: Array
    pairs: dict[tuple[bool, bool, bool], set[tuple[int, int]]] = field(default_factory=dict)
    _visits: int = 0

    @property
    def meeting(self) -> set[int]:
        """The blocks of the pairs."""
        return {block for pairs in self.pairs.values() for pair in pairs for block in pair}

    def visit(self, block: int, op: Op, value: Value, at: Array, writes: bool) -> None:
        """A block accesses elements."""
        self._visits += 1
        if self._visits > MOST_VISITS:
            raise UnknownError
        owner = self.of[value.buffer]
        at = at[(at >= 0) & (at < len(owner))]
        others = owner[at]
        others = others[(others != 0) & (others != block + 1)] - 1
        within = self.clusters[others] == self.clusters[block]
        for is_near in (False, True):
            for other in others[within == is_near][:1].tolist():
                pairs = self.pairs.setdefault((writes, block < other, is_near), set())
                if is_near or len(pairs) < MOST_PAIRS:
                    pairs.add((block, other))
        if writes:
            owner[at] = block + 1


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
            for number in range(len(blocks)):
                mine = {**env, **{sym: int(values[number]) for sym, values in known.items()}}
                for op, value, at in _accesses(kernel.body, mine, found.of.keys(), writes):
                    found.visit(number, op, value, at, writes)
    except (UnknownError, KeyError):  # a mutable integer has no value here
        return None
    return found


def _clusters(kernel: Kernel, blocks: Array) -> Array:
    """For each block the number of its cluster."""
    first = blocks.copy()
    for member in kernel.cluster:
        first[:, member.axis] //= member.extent
    return cast(Array, np.unique(first, axis=0, return_inverse=True)[1].reshape(-1))


def _accesses(
    block: Block, env: dict[Sym, int], arrays: Collection[Value], writes: bool
) -> Iterator[tuple[Op, Value, Array]]:
    """The elements of some arrays that a block's operations write, or else read."""
    if not _touches(block, frozenset(arrays), writes):
        return
    for op in block.ops:
        if isinstance(op, Let):
            env[op.result] = int(evaluate(op.value, env))
        for value in op.written if writes else op.read:
            if value.buffer in arrays:
                yield op, value, _elements(op, value, env)
        if isinstance(op, For) and _touches(op.body, frozenset(arrays), writes):
            for index in range(int(evaluate(op.start, env)), int(evaluate(op.stop, env)), op.step):
                yield from _accesses(op.body, {**env, op.index: index}, arrays, writes)
        elif isinstance(op, If):
            taken = op.then if evaluate(op.condition, env) else op.otherwise
            yield from _accesses(taken, dict(env), arrays, writes)
        elif not isinstance(op, For):
            for region in op.regions:
                yield from _accesses(region, dict(env), arrays, writes)


@lru_cache(maxsize=4096)
def _touches(block: Block, arrays: frozenset[Value], writes: bool) -> bool:
    return any(v.buffer in arrays for op in block.walk() for v in (op.written if writes else op.read))


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
