"""Stream-K: the steps of all tiles are dealt out to the blocks."""

from __future__ import annotations

from tilewright.lang.control import let
from tilewright.lang.launch import derived
from tilewright.lang.scalars import Index, ceil_div, maximum, minimum
from tilewright.schedule.groups import natural
from tilewright.schedule.partition import Persistent, Segment, TiledProblem, TileOrder, Work


class Stream(Persistent):
    """The steps of tiles, one tile behind the other, dealt out to the blocks in equal shares.

    Of more tiles than two for each block, all but so many are computed as a whole: each block has its share
    of the steps of the first tiles, then whole tiles.  A block's share begins in one tile and ends in
    another, so that it has a part of each at most.

    Args:
        problem: what is computed.
        order: of tiles.
        most: how many blocks there are at most.

    Source: Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix
    Multiplication on the GPU", 2023.
    """

    def __init__(self, problem: TiledProblem, order: TileOrder, most: int) -> None:
        super().__init__(problem, order, (1, 1), most)
        rounds = derived(natural(self.total // self.blocks - minimum(self.total % self.blocks, 1)))
        streamed = derived(natural(self.total - rounds * self.blocks))
        depth = derived(natural(maximum(self.steps, 1)))
        share = derived(natural(streamed * depth // self.blocks))
        longer = derived(natural(streamed * depth % self.blocks))
        self.streamed, self.depth = streamed, depth
        """Tiles whose steps are dealt out, and how many steps each of them has."""
        self.share, self.longer = share, longer
        """Steps of a block's share, and how many blocks have one more."""
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
        """The block in whose share a step is."""
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
            """Of a block's two: the tile that its share begins in, and the one that it ends in."""
            return 2 * (owner + number) + 1 - minimum(number, 1)

        batch, m, n = self._numbered(tile)
        return Work(batch, m, n, first, steps, item, group, Segment(begin, tile, part, parts, slot))
