"""The work of a block: one tile of the result, a part of its K, and the group of rows that it belongs to.

The sizes of groups lie in memory.  The launch knows the number of rows and groups, but not where groups end.
So tiles are numbered in a way that needs only a group's own bounds: with tiles of ``t`` rows, group ``g`` has
the numbers ``begin // t + g`` to ``end // t + g``.  No two groups share a number, and bisection finds the
group of a number.  A group has at most one number without a tile, which has no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.dataflow.nodes import Arrival, Departure, Groups, Operand
from tilewright.lang.control import index, let, var, when
from tilewright.lang.control import range as traced_range
from tilewright.lang.launch import derived
from tilewright.lang.scalars import Condition, Index, ceil_div, maximum, minimum
from tilewright.lang.signals import await_, signal, ticket
from tilewright.lang.tensors import Tensor

MOST = 2**31 - 1
"""The largest count in 32 bits."""

MOST_GROUPS_LOG2 = 31
"""Binary logarithm of the largest number of groups."""


@dataclass(frozen=True)
class Segment:
    """A part of the steps along K of a tile.

    Args:
        begin: its first step along K.
        tile: number of the tile, among the tiles whose K is split.
        part: its number among the parts of the tile.
        parts: number of parts of the tile.
        slot: maps the number of a part to its place among the parts of all tiles.
        end: the first k after it; None if the block does not need it.
    """

    begin: Index = 0
    tile: Index = 0
    part: Index = 0
    parts: Index = 1
    slot: Callable[[Index], Index] = lambda part: part
    end: Index | None = None


@dataclass(frozen=True)
class Work:
    """One tile of the result.

    Args:
        batch: its index along each leading dimension.
        m: its place along the rows.
        n: its place along the columns.
        first: number of steps along K that the block has done before.
        steps: steps along K of this tile.
        item: tiles that the same warps took before.
        group: the group of warps that takes it.
        segment: the part of K; all of K if it is not split.
        cuts: the rows, the columns and the k that belong to its group; None: all of them.
        begins: whether the block's previous tile belongs to another batch item; True if that is not known.
    """

    batch: tuple[Index, ...]
    m: Index
    n: Index
    first: Index
    steps: Index
    item: Index
    group: Index
    segment: Segment = Segment()
    cuts: tuple[slice | None, slice | None, slice | None] = (None, None, None)
    begins: Condition | bool = True


@dataclass(frozen=True)
class Found:
    """A tile of a group.

    Args:
        group: number of the group.
        at: its place among the group's tiles.
        rows: rows of the group.
        count: rows of the group in the tile and after it; 0 if there is no tile.
    """

    group: Index
    at: Index
    rows: slice
    count: Index


@dataclass(frozen=True)
class RowGroups:
    """The groups of the rows, of the columns, or of the steps, of a result.

    Args:
        ends: end of the rows of each group.
        dim: 0 for rows, 1 for columns, 2 for k.
        extent: rows of all groups.
        tile: rows of a tile.
        starts: first row of each group; 0: all groups begin with row 0; None: a group begins at the end
            of the previous group.
        block: rows of one unit of a bound.
    """

    ends: Tensor
    dim: int
    extent: Index
    tile: Index
    starts: Tensor | int | None = None
    block: int = 1

    @staticmethod
    def of(groups: Groups, arguments: Mapping[str, Any], dim: int, extent: Index, tile: Index) -> RowGroups:
        """The groups of a span in the traced kernel."""
        starts = groups.starts
        first = arguments[starts.name] if isinstance(starts, Operand) else starts
        return RowGroups(arguments[groups.ends.name], dim, extent, tile, first, groups.block)

    @property
    def count(self) -> Index:
        """The number of groups."""
        found: Index = self.ends.shape[0]
        return found

    @property
    def numbers(self) -> Index:
        """How many numbers the groups have, with a tile or without; 0 without groups."""
        return (self.extent // self.tile + self.count) * minimum(self.count, 1)

    def find(self, number: Index) -> Found:
        """The tile with a number.

        A bound below 0, or after the last row, is replaced by the nearest legal one.  If bounds descend,
        groups overlap, and their tiles store the same rows.
        """
        if isinstance(self.starts, Tensor):  # no tiles have the numbers of the rows before the first group
            number = let(number + self._begin(0) // self.tile)
        group = last_not_after(number, self.count, lambda g: self._begin(g) // self.tile + g)
        rows = self.bounds(group)
        at = let(natural(number - rows.start // self.tile - group))
        return Found(group, at, rows, let(natural(rows.stop - rows.start - at * self.tile)))

    def bounds(self, group: Index) -> slice:
        """The rows of a group."""
        # Both bounds are read before either is used, so that the loads overlap. Emitted sums order their
        # terms by name, which decides what a compiler keeps in registers: with unnamed bounds, gradients of
        # packed attention spill 10 registers more on gfx1100 (`tests/ops/test_packed_attention.py`).
        first, last = self._begin(group), self._end(group)
        start = let(first)
        stop = let(maximum(last, start))
        return slice(start, stop)

    def _begin(self, group: Index) -> Index:
        """The first row of a group."""
        if isinstance(self.starts, int):
            return self.starts
        if self.starts is not None:
            return self._rows(index(self.starts[group]))
        return self._end(maximum(group - 1, 0)) * minimum(group, 1)

    def _end(self, group: Index) -> Index:
        """The end of the rows of a group."""
        return self._rows(index(self.ends[group]))

    def _rows(self, bound: Index) -> Index:
        """The number of rows before a bound, at most the extent; with blocks, the extent in whole blocks."""
        if self.block == 1:
            return minimum(natural(bound), self.extent)
        return minimum(natural(bound), ceil_div(self.extent, self.block)) * self.block


@dataclass(frozen=True)
class ShardOrder:
    """The order of tiles by the shards of an array, which begins with a chosen shard and wraps around.

    Args:
        dim: the part of a tile's place that numbers its rows: 0 for ``m``, 1 for ``n``; after these, the
            leading dimensions.
        rows: rows of a shard.
        tile: rows of a tile.
        first: the shard whose tiles come first.
    """

    dim: int
    rows: Index
    tile: Index
    first: Index

    def turned(self, number: Index, count: Index, unit: int = 1) -> Index:
        """The place along the rows of the tile that has a number in the order of blocks.

        Args:
            number: the number in the order of the blocks.
            count: tiles along the rows.
            unit: tiles that count as one, those of a cluster.
        """
        begin = derived(natural(self.first * self.rows // (self.tile * unit)))
        return let((number + begin) % maximum(count, 1))


@dataclass(frozen=True)
class Shards:
    """Shards of an array that arrive while the kernel runs: equal runs of its first dimension.

    Args:
        order: the rows of a shard and of a tile.
        counters: a counter for each shard.
        value: the value of a counter once its shard is there.
        extent: rows of all shards.
        in_ending: whether the ending reads them, not the main loop.
        made: the arrival in the graph, with the author's line.
    """

    order: ShardOrder
    counters: Tensor
    value: Index
    extent: Index
    in_ending: bool
    made: Arrival

    def wait(self, work: Work, barrier: Index | None = None) -> None:
        """Wait for the shards of a tile.

        Args:
            work: the tile.
            barrier: the barrier of the warps that wait, if they have a role.
        """
        tile, rows = self.order.tile, self.order.rows
        row = (work.m, work.n, *work.batch)[self.order.dim] * tile
        first = let(row // rows)
        last = (minimum(row + tile, self.extent) - 1) // rows
        for number in traced_range(natural(last + 1 - first)):
            await_(self.counters[first + number], self.value, barrier=barrier, scope="system")


@dataclass(frozen=True)
class SentShards:
    """Shards of a result that other ranks wait for, one for each index of the first batch.

    Args:
        counters: a counter for each shard, in the memory of the rank that waits.
        done: the number of complete parts of each shard, which blocks count up by tickets.
        parts: the parts of a shard: its tiles, for each group of warps that stores a share of a tile.
        has_roles: whether groups of warps store, each with a barrier of its own.
        made: the departure in the graph, with the author's line.
    """

    counters: Tensor
    done: Tensor
    parts: Index
    has_roles: bool
    made: Departure

    def count(self, work: Work) -> None:
        """Count a stored tile; the last one of a shard is told to the rank that waits."""
        barrier = 1 + work.group if self.has_roles else None
        last = ticket(self.done[work.batch[0]], of=self.parts, barrier=barrier) == self.parts - 1
        with when(last):
            signal(self.counters[work.batch[0]], scope="system", barrier=barrier)


def last_not_after(number: Index, count: Index, first_of: Callable[[Index], Index]) -> Index:
    """The last group whose first number is not above a number, found by bisection.

    Args:
        number: the number.
        count: the number of groups.
        first_of: group -> its first number; first numbers do not descend.
    """
    low, left = var(0), var(count)
    # One halving for each binary digit of the count.
    halvings = derived(sum(minimum(count // 2**i, 1) for i in range(MOST_GROUPS_LOG2)))
    for _ in traced_range(halvings):
        half, group = let(natural(left.get()) // 2), let(natural(low.get()))
        middle = let(group + half)
        first = let(first_of(middle))
        low.set(group + half * minimum(maximum(number + 1 - first, 0), 1))
        left.set(left.get() - half)
    group = let(minimum(natural(low.get()), count - 1))
    return group  # noqa: RET504 the kernel's variable is named after it


def natural(value: Index) -> Index:
    """The value, clipped to 0 ... 2^31 - 1, so that its range is known."""
    return minimum(maximum(value, 0), MOST)
