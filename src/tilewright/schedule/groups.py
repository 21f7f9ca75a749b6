"""Rows that fall into groups, whose sizes lie in memory: which group a tile belongs to, and where it is.

A grid knows how many rows and groups there are, and not where groups end.  Tiles are numbered so that the
number of each group's first one follows from where it begins: group ``g`` of tiles of ``t`` rows has the
numbers ``begin // t + g`` to ``end // t + g``.  No two groups share a number, the group of a number is found
by halving, and what is numbered besides the tiles, one of each group at most, has no rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.lang.control import index, let, var
from tilewright.lang.control import range as traced_range
from tilewright.lang.launch import derived
from tilewright.lang.scalars import Index, maximum, minimum
from tilewright.lang.tensors import Tensor

MOST = 2**31 - 1
"""The largest count in 32 bits."""

MOST_GROUPS_LOG2 = 31
"""Binary logarithm of the number of groups, at most."""


@dataclass(frozen=True)
class Found:
    """A tile of a group.

    Args:
        group: which group.
        at: its place among the group's tiles.
        rows: those of the group.
        count: how many of them are in the tile or behind it; 0 where there is no tile.
    """

    group: Index
    at: Index
    rows: slice
    count: Index


@dataclass(frozen=True)
class RowGroups:
    """The groups of the rows, or of the columns, of a result.

    Args:
        ends: one more than the last row of each group.
        dim: 0 for rows, 1 for columns.
        extent: of all of them.
        tile: of a tile.
    """

    ends: Tensor
    dim: int
    extent: Index
    tile: Index

    @property
    def count(self) -> Index:
        """How many groups there are."""
        found: Index = self.ends.shape[0]
        return found

    @property
    def numbers(self) -> Index:
        """How many numbers tiles have; none without groups."""
        return (self.extent // self.tile + self.count) * minimum(self.count, 1)

    def find(self, number: Index) -> Found:
        """The tile of a number.

        Ends that are negative or behind the last row are taken as the nearest that are not.  Ends that
        descend make groups overlap, whose tiles then store the same rows.
        """
        group = last_not_after(number, self.count, lambda g: self._begin(g) // self.tile + g)
        begin = let(self._begin(group))
        end = let(maximum(self._end(group), begin))
        at = let(natural(number - begin // self.tile - group))
        return Found(group, at, slice(begin, end), let(natural(end - begin - at * self.tile)))

    def _begin(self, group: Index) -> Index:
        """The first row of a group."""
        return self._end(maximum(group - 1, 0)) * minimum(group, 1)

    def _end(self, group: Index) -> Index:
        """The end of the rows of a group."""
        return minimum(natural(index(self.ends[group])), self.extent)


def last_not_after(number: Index, count: Index, first_of: Callable[[Index], Index]) -> Index:
    """The last of the groups whose first number is not behind a number, found by halving.

    Args:
        number: the number.
        count: how many groups there are.
        first_of: group -> its first number, which does not descend.
    """
    low, left = var(0), var(count)
    # As many halvings as the count has binary digits.
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
    """The value, of which it is known that it is not negative and has 32 bits."""
    return minimum(maximum(value, 0), MOST)
