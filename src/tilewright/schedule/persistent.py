"""Persistent partitions: a fixed number of blocks; each computes one tile after the other.

`Persistent` gives a block whole tiles.  `Stream` also splits K: the steps of the tiles are divided into equal
shares, so that all blocks end together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.lang.control import MutableIndex, let, unroll, var, when
from tilewright.lang.control import range as traced_range
from tilewright.lang.launch import derived
from tilewright.lang.scalars import Index, ceil_div, maximum, minimum
from tilewright.schedule.facts import Reasons, ScheduleFacts
from tilewright.schedule.form import Form
from tilewright.schedule.partition import TiledProblem, TilePartition, unflattened
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.work import Segment, Work, natural


class Persistent(TilePartition):
    """A persistent grid: as many blocks as finish together, each with one tile after the other."""

    @classmethod
    def takes(cls, form: Form, schedule: Schedule) -> bool:
        """Whether the number of blocks is given, and each has whole tiles."""
        return bool(schedule.blocks) and not schedule.is_split

    def __init__(self, problem: TiledProblem, schedule: Schedule) -> None:
        super().__init__(problem, schedule)
        self.total = self.count
        for extent in problem.batch:
            self.total = self.total * extent
        self.blocks = self._blocks(max(schedule.blocks // (self.cluster[0] * self.cluster[1]), 1))
        self.block = self._declare(self.blocks)
        self.turns = ceil_div(self.total - self.block, self.blocks)

    def _blocks(self, most: int) -> Index:
        """The number of blocks."""
        rounds = maximum(ceil_div(self.total, most), 1)
        blocks = derived(maximum(minimum(ceil_div(self.total, rounds), most), 1))
        return blocks  # noqa: RET504 the kernel's parameter is named after it

    def items(self, each: int = 1, group: Index = 0) -> Iterator[Work]:
        """The block's tiles; if groups take turns, every ``each``-th tile from the group's first on."""
        turns = self.turns if each == 1 else (self.turns + each - 1 - group) // each
        bounds = self.problem.groups, self.problem.along_k, self.skips
        is_uneven = any(one is not None for one in bounds)
        done = var(0) if is_uneven else None
        for turn in traced_range(turns):
            number = turn if each == 1 else let(turn * each + group)
            if done is not None:  # the tiles of groups that come first in this turn
                self._pass(done, number - group, number, each - 1)
            work = self._of_group(self._work(number, turn, group))
            if done is not None:  # a tile may have fewer steps, or none
                work = replace(work, first=let(done.get()))
                done.set(done.get() + work.steps)
            yield work
            if done is not None:
                self._pass(done, number + 1, minimum(number - group + each, self.turns), each - 1)

    def _pass(self, done: MutableIndex, begin: Index, end: Index, most: int) -> None:
        """Add the steps of tiles that other groups take.

        Args:
            done: number of the block's steps before them; it is increased.
            begin: the number of the first of the block's tiles that are passed.
            end: one more than the last.
            most: the largest number of them.
        """
        for ahead in unroll(most):
            with when(begin + ahead < end):
                work = self._of_group(self._work(let(natural(begin + ahead)), 0, 0))
                done.set(done.get() + work.steps)

    def _work(self, turn: Index, item: Index, group: Index) -> Work:
        batch, m, n = self._numbered(self.block + turn * self.blocks)
        begin, steps = self._steps_of(m, n)
        return Work(batch, m, n, turn * steps, steps, item, group, Segment(begin))

    def _numbered(self, index: Index) -> tuple[tuple[Index, ...], Index, Index]:
        """The batch, row and column of a tile."""
        batch: tuple[Index, ...] = ()
        if self.problem.batch:
            index = let(index)
            batch = self._turned(unflattened(let(index // self.count), self.problem.batch))
            index = index % self.count
        m, n = self._tile(index)
        return batch, m, n


class Stream(Persistent):
    """Stream-K: the blocks get equal shares of the steps of all tiles, in the order of the tiles.

    If there are more than two tiles for each block, only the first tiles are divided by steps: each block
    computes its share of their steps, then whole tiles.  A block's share may begin in one tile and end in
    another; the block then has a part of both.

    Source: Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix
    Multiplication on the GPU", 2023.
    """

    in_clusters, takes_whole_tiles = False, False

    @classmethod
    def takes(cls, form: Form, schedule: Schedule) -> bool:
        """Whether the steps of all tiles are divided among the blocks."""
        return schedule.is_streamed

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """A reason against ``balanced``: shares of steps are no shares of rows and columns."""
        if facts.schedule.is_streamed and facts.schedule.balanced:
            yield "split_k", 'split_k="stream" with balanced=True', 'split_k="auto"', facts.form.sum

    def __init__(self, problem: TiledProblem, schedule: Schedule) -> None:
        super().__init__(problem, schedule)
        rounds = derived(natural(self.total // self.blocks - minimum(self.total % self.blocks, 1)))
        streamed = derived(natural(self.total - rounds * self.blocks))
        depth = derived(natural(maximum(self.steps, 1)))
        share = derived(natural(streamed * depth // self.blocks))
        longer = derived(natural(streamed * depth % self.blocks))
        self.streamed, self.depth = streamed, depth
        """Tiles that are divided by steps, and the number of steps of each."""
        self.share, self.longer = share, longer
        """Steps of a block's share, and the number of blocks that have one more."""
        self.begin = let(self.block * share + minimum(self.block, longer))
        self.own = let(share + minimum(maximum(longer - self.block, 0), 1))
        self.first = let(self.begin // depth)
        self.segments = let(maximum(ceil_div(self.begin + self.own, depth) - self.first, 0))
        self.turns = self.segments + rounds
        self.split = streamed, 2 * self.blocks

    def _blocks(self, most: int) -> Index:
        blocks = derived(maximum(minimum(self.total * maximum(self.steps, 1), most), 1))
        return blocks  # noqa: RET504 as above

    def _owner(self, step: Index) -> Index:
        """The block whose share contains a step."""
        of_longer = self.longer * (self.share + 1)
        behind = maximum(step - of_longer, 0) // maximum(self.share, 1)
        return minimum(step // (self.share + 1), self.longer) + behind

    def _work(self, turn: Index, item: Index, group: Index) -> Work:
        streams = let(minimum(maximum(self.segments - turn, 0), 1))  # 0: the tile is computed as a whole
        after = let(maximum(turn - self.segments, 0))
        whole = self.streamed + after * self.blocks + self.block
        tile = let(streams * (self.first + turn) + (1 - streams) * whole)
        start = let(tile * self.depth)
        begin = let(streams * maximum(self.begin - start, 0))
        past = streams * maximum(start + self.depth - self.begin - self.own, 0)
        steps = let(maximum(minimum(self.steps, self.depth - past) - begin, 0))
        before = streams * maximum(start + begin - self.begin, 0)
        first = let(before + (1 - streams) * (self.own + after * self.steps))
        owner = let(self._owner(start))
        parts = let(1 + streams * maximum(self._owner(start + self.depth - 1) - owner, 0))
        part = let(streams * maximum(self.block - owner, 0))

        def slot(number: Index) -> Index:
            """The slot of a block's sums: for the tile in which its share begins, or in which it ends."""
            return 2 * (owner + number) + 1 - minimum(number, 1)

        batch, m, n = self._numbered(tile)
        return Work(batch, m, n, first, steps, item, group, Segment(begin, tile, part, parts, slot))
