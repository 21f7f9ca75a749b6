"""Attention on Hopper: warp roles, bulk copies into rings, and ``wgmma`` that reads weights from registers.

The kernel is persistent: each block takes one tile of queries after the other.  One warp loads.  Each
warpgroup takes 64 queries.  It issues the products with the next keys and with the previous values together,
and computes weights while the second product runs.  The loads of the next item overlap the end of an item.
``examples/10_hopper_attention.py`` is the lesson that leads here.
"""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import f32
from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import (
    bulk_commit,
    bulk_wait,
    fence_async,
    mma_async,
    mma_commit,
    mma_fence,
    mma_wait,
    tma_load,
    tma_store,
)
from tilewright.lang.control import MutableIndex, let, unroll, var, when
from tilewright.lang.control import range as traced_range
from tilewright.lang.launch import derived
from tilewright.lang.roles import role, role_barrier
from tilewright.lang.scalars import Index, ceil_div, maximum, minimum
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import redistribute
from tilewright.lang.transaction_barriers import arrive, mbarrier, wait
from tilewright.ops.attending.softmax import BySoftmax, Softmax
from tilewright.ops.attending.tiles import PANEL, ByActivation, WarpgroupTiles
from tilewright.runtime.kernel import kernel
from tilewright.schedule.folds.items import Item, Items
from tilewright.targets.atoms import wgmma

PARAMETERS: dict[str, Any] = {
    "Q": "B H M D",
    "K": "B G N D",
    "V": "B G N E",
    "O": "B H M E",
    "L": "B H M ONE",
    "exponent": f32,
    "diagonal": int,
}
"""Queries, keys, values, results and logarithms; `BySoftmax.of`'s exponent; the mask's first diagonal."""

CHAINED: dict[str, Any] = {"A": "B H M K", "B": "B G N K", "C": "B G N P", "D": "B H M P"}
"""Parameters of a chain of two products: its factors, with B transposed as keys are, and the result."""

WARPS, ROWS = 4, 64
"""Warps and queries of a warpgroup."""

REGISTERS = {1: (40, 232), 2: (40, 232), 3: (32, 160)}
"""Number of math warpgroups -> registers of a loading thread, and of a computing thread."""

MOST_IN_ONE_TEXT = 128
"""Most columns for which all warpgroups execute the same code.

Shared code has half of the instructions, whose first fetch comes from memory: 2 to 9 % less time, most for
short rows.  With more columns, separate code for each group has constant addresses: 1 to 2 % less time
without a mask.
"""


@kernel(**PARAMETERS, band=int)
def attention(
    Q: Any,
    K: Any,
    V: Any,
    O: Any,
    L: Any,
    exponent: Any,
    diagonal: Any,
    band: Any,
    *,
    causal: bool,
    between: BySoftmax,
    with_lse: bool,
    tiles: WarpgroupTiles,
    blocks: int,
) -> None:
    """``O = softmax(scale Q Kᵀ) V``, and L the logarithms of the sums of exponentials.

    ``exponent`` is that of `BySoftmax.of`.  If ``causal``, row i sees the keys up to ``i + diagonal``, and
    ``band`` is the number of heads that the blocks compute at the same time.
    """
    masked = (diagonal, band) if causal else None
    _compute(_Block((Q, K, V, O), L if with_lse else None, exponent, masked, between, tiles, blocks))


@kernel(**CHAINED)
def gemm_chain(
    A: Any, B: Any, C: Any, D: Any, *, between: ByActivation, tiles: WarpgroupTiles, blocks: int
) -> None:
    """``D = function(A Bᵀ) C``."""
    _compute(_Block((A, B, C, D), None, 1.0, None, between, tiles, blocks))


def _compute(block: _Block) -> None:
    """Give every warp its role."""
    tiles = block.tiles
    tw.barrier()
    few, many = REGISTERS[tiles.groups]
    with role(warps=WARPS, registers=few), role(warps=1):
        block.load()
    if max(tiles.depth, tiles.width) <= MOST_IN_ONE_TEXT:
        with role(warps=WARPS, groups=tiles.groups, registers=many) as group:
            block.attend(group)
    else:
        for g in unroll(tiles.groups):
            with role(warps=WARPS, registers=many):
                block.attend(g)


class _Block:
    """State that the roles of a block share: arrays, tiles in shared memory, and barriers."""

    def __init__(
        self,
        arrays: tuple[Tensor, Tensor, Tensor, Tensor],
        L: Tensor | None,
        exponent: Any,
        masked: tuple[Index, Index] | None,
        between: BySoftmax | ByActivation,
        tiles: WarpgroupTiles,
        blocks: int,
    ) -> None:
        self.Q, self.K, self.V, self.O = Q, K, _, _ = arrays
        self.L, self.exponent, self.between, self.tiles = L, exponent, between, tiles
        self.diagonal: Index | None = None if masked is None else masked[0]
        self.rows = tiles.groups * ROWS
        band = None if masked is None else masked[1]
        self.items = Items(Q.shape[:2], ceil_div(Q.shape[2], self.rows), blocks, band)
        self.ratio = derived(Q.shape[1] // maximum(K.shape[1], 1))
        deep, wide = (-(-columns // PANEL) for columns in (tiles.depth, tiles.width))
        kind, groups, stages, keys = Q.dtype, tiles.groups, tiles.stages, tiles.keys
        self.deep, self.wide = deep, wide
        held = deep if tiles.own_output else max(deep, wide)  # results may be wider than queries
        self.sQ = tw.shared((groups, held, ROWS, PANEL), kind, swizzle=128)
        self.sO = tw.shared((groups, wide, ROWS, PANEL), kind, swizzle=128) if tiles.own_output else self.sQ
        beside = -(-keys // PANEL)
        side_by_side = (beside, tiles.depth) if tiles.keys_by_column else (deep, keys)
        self.sK = tw.shared((stages, *side_by_side, PANEL), kind, swizzle=128)
        self.sV = tw.shared((stages, wide, keys, PANEL), kind, swizzle=128)
        # Each group gets its next queries when it has finished its last ones, independently of other groups.
        self.full_q, self.empty_q = mbarrier(groups, arrivals=1), mbarrier(groups, arrivals=WARPS)
        self.full_k, self.full_v = mbarrier(stages, arrivals=1), mbarrier(stages, arrivals=1)
        self.empty_k, self.empty_v = (mbarrier(stages, arrivals=groups * WARPS) for _ in range(2))

    def count(self, item: Item) -> Index:
        """Number of key tiles that the item's last row sees."""
        return self.seen((item.tile + 1) * self.rows)

    def seen(self, end: Index) -> Index:
        """Number of key tiles that row ``end - 1`` sees."""
        seen = self.K.shape[2]
        if self.diagonal is not None:
            seen = minimum(seen, maximum(end + self.diagonal, 0))
        made: Index = let(ceil_div(seen, self.tiles.keys))
        return made

    def load(self) -> None:
        """Run the loading warp: load the queries of each item, and its keys and values tile by tile."""
        loaded, keys = var(0), self.tiles.keys
        rings = ((self.sK, self.full_k, self.empty_k), (self.sV, self.full_v, self.empty_v))
        for item in self.items.all():
            b, g = item.batch[0], let(item.batch[1] // self.ratio)
            count = self.count(item)
            # Stages of keys and values become free before the queries' buffer, which the last product with
            # keys reads, or from which the last results are stored.
            for j in traced_range(count, provenance="mainloop"):
                stage, parity = self.place(loaded, j)
                for held, full, empty in rings:
                    wait(empty[stage], 1 - parity)
                    arrive(full[stage], expect_bytes=_bytes(held, held.shape[1:]))
                    for p in unroll(held.shape[1]):
                        if held is self.sK and self.tiles.keys_by_column:
                            columns = self.K[b, g].permute(1, 0)
                            box = columns.tile(held.shape[2:], (0, j * held.shape[1] + p))
                        else:
                            box = (self.K if held is self.sK else self.V)[b, g].tile((keys, PANEL), (j, p))
                        tma_load(box, held[stage, p], full[stage])
                    if held is (self.sK if self.tiles.own_output else self.sV):
                        with when(j == 0):
                            self.load_queries(item)
            if self.diagonal is not None:
                with when(count == 0):
                    self.load_queries(item, needed=False)
            self.advance(loaded, count)

    def load_queries(self, item: Item, *, needed: bool = True) -> None:
        """Load an item's queries, for each group when its buffer is free; rows without keys need none."""
        for group in unroll(self.tiles.groups):
            full = self.full_q[group]
            wait(self.empty_q[group], 1 - item.parity)
            arrive(full, expect_bytes=_bytes(self.sQ, (self.deep, ROWS, PANEL)) if needed else 0)
            for p in unroll(self.deep if needed else 0):
                at = (item.tile * self.tiles.groups + group, p)
                tma_load(self.Q[item.batch].tile((ROWS, PANEL), at), self.sQ[group, p], full)

    def place(self, before: MutableIndex, j: Index) -> tuple[Index, Index]:
        """Stage and parity of an item's j-th key tile; ``before`` counts earlier tiles, see `advance`."""
        twice = 2 * self.tiles.stages
        number = let(maximum(minimum(before.get(), twice - 1), 0) + j)  # fits 32 bits
        return let(number % self.tiles.stages), let(number // self.tiles.stages % 2)

    def advance(self, before: MutableIndex, count: Index) -> None:
        """Count the tiles of an item, modulo two turns of the ring, after which stage and parity repeat."""
        twice = 2 * self.tiles.stages
        before.set((maximum(minimum(before.get(), twice - 1), 0) + count) % twice)

    @property
    def differs(self) -> bool:
        """Whether groups may see different numbers of key tiles."""
        groups, keys = self.tiles.groups, self.tiles.keys
        return self.diagonal is not None and groups > 1 and keys < groups * ROWS

    def attend(self, g: Index) -> None:
        """Run one math warpgroup: compute its 64 queries of each item."""
        done = var(0)
        for item in self.items.all():
            count = self.count(item)
            rows = _Rows(self, g, item, done)
            if self.differs:
                own = self.seen(rows.first + ROWS)
                rows.compute(own)
                rows.skip(own, count)
            else:
                rows.compute(count)
            self.advance(done, count)
        if self.tiles.own_output:
            bulk_wait(0)


class _Rows:
    """The 64 queries of one warpgroup in an item, and their state in registers.

    Args:
        block: the state that the roles share.
        g: the number of the warpgroup among those that compute.
        item: the item.
        before: number of key tiles before the item, modulo two turns of the ring.
    """

    def __init__(self, block: _Block, g: Index, item: Item, before: MutableIndex) -> None:
        self.block, self.g, self.item, self.before = block, g, item, before
        tiles, kind = block.tiles, block.Q.dtype
        by_keys, by_width = (TiledMma(wgmma(kind, n)) for n in (tiles.keys, tiles.width))
        self.q = _columns(block.sQ[g], tiles.depth)
        self.acc, self.scores = tw.accumulator(by_width), tw.accumulator(by_keys, fill=None)
        self.weights = tw.fragment(tw.operand_a(by_width, tiles.keys), kind)
        self.state = block.between.begin(by_keys, block.exponent)
        self.first = let((item.tile * tiles.groups + g) * ROWS)

    def compute(self, count: Index) -> None:
        """Compute the rows of the result from ``count`` key tiles."""
        block = self.block
        wait(block.full_q[self.g], self.item.parity)
        with when(count > 0):
            self.multiply_keys(0)
            mma_wait(0)
            arrive(block.empty_k[self.place(0)[0]], each="warp")
            self.weigh(0)
            self.keep_weights()
        for j in traced_range(1, count, provenance="mainloop"):
            self.multiply_keys(j)
            self.multiply_values(j - 1)
            mma_wait(1)
            arrive(block.empty_k[self.place(j)[0]], each="warp")
            self.weigh(j)
            mma_wait(0)
            arrive(block.empty_v[self.place(j - 1)[0]], each="warp")
            if self.state.decay is not None:
                self.acc.assign(self.acc * self.state.decay)
            self.keep_weights()
        if block.tiles.own_output:  # all products with these queries are complete
            arrive(block.empty_q[self.g], each="warp")
        with when(count > 0):
            self.multiply_values(count - 1)
            mma_wait(0)
            arrive(block.empty_v[self.place(count - 1)[0]], each="warp")
        self.store()

    def skip(self, begin: Index, end: Index) -> None:
        """Release key tiles that only other groups see."""
        block = self.block
        for j in traced_range(begin, end):
            stage, parity = self.place(j)
            wait(block.full_k[stage], parity)
            arrive(block.empty_k[stage], each="warp")
            wait(block.full_v[stage], parity)
            arrive(block.empty_v[stage], each="warp")

    def place(self, j: Index) -> tuple[Index, Index]:
        """Stage and parity of the item's j-th key tile."""
        return self.block.place(self.before, j)

    def multiply_keys(self, j: Index) -> None:
        """Issue the product of the queries with a key tile."""
        block, (stage, parity) = self.block, self.place(j)
        wait(block.full_k[stage], parity)
        mma_fence()
        mma_async(self.q, self.keys_of(stage), self.scores, fresh=True)
        mma_commit()

    def keys_of(self, stage: Index) -> Tensor:
        """Return a stage's key tile, cut to the columns in use."""
        tiles, held = self.block.tiles, self.block.sK[stage]
        if not tiles.keys_by_column:
            return _columns(held, tiles.depth)
        whole = held.permute(1, 0, 2).merge(1)
        return whole.tile((tiles.depth, tiles.keys), (0, 0)).permute(1, 0)

    def multiply_values(self, j: Index) -> None:
        """Issue the product of the weights with a value tile."""
        block, (stage, parity) = self.block, self.place(j)
        wait(block.full_v[stage], parity)
        mma_fence()
        mma_async(self.weights, _columns(block.sV[stage], block.tiles.width).permute(1, 0), self.acc)
        mma_commit()

    def weigh(self, j: Index) -> None:
        """Turn the scores of a key tile into weights."""
        block, begin = self.block, j * self.block.tiles.keys
        seen = None if block.diagonal is None else self.first + block.diagonal
        self.state.hide(self.scores, begin, block.K.shape[2], seen)
        self.state.weigh(self.scores)

    def keep_weights(self) -> None:
        """Round the weights, and move them to the fragment of operand A of the next product."""
        self.weights.assign(redistribute(self.scores.to(self.block.Q.dtype), self.weights))

    def store(self) -> None:
        """Store the averages through shared memory: their own buffer, or that of the queries."""
        block, item, held = self.block, self.item, self.block.sO[self.g]
        if block.tiles.own_output:
            bulk_wait(0)  # the last item's stores have read the buffer
        role_barrier(1 + self.g, threads=32 * WARPS)
        tw.copy(self.state.averages(self.acc), _columns(held, block.tiles.width))
        fence_async()
        role_barrier(1 + self.g, threads=32 * WARPS)
        at, tile = self.first // ROWS, block.O[item.batch]
        for p in unroll(block.wide):
            tma_store(held[p], tile.tile((ROWS, PANEL), (at, p)))
        bulk_commit()
        if block.L is not None and isinstance(self.state, Softmax):
            tw.copy(self.state.log_sum_exp(), block.L[item.batch].tile((ROWS, 1), (at, 0)))
        if not block.tiles.own_output:
            bulk_wait(0)
            arrive(block.empty_q[self.g], each="warp")


def _columns(panels: Tensor, columns: int) -> Tensor:
    """Merge panels side by side, and cut them to the columns in use."""
    whole = panels.permute(1, 0, 2).merge(1)
    return whole if whole.shape[1] == columns else whole.tile((whole.shape[0], columns), (0, 0))


def _bytes(held: Tensor, shape: tuple[Any, ...]) -> int:
    """Bytes of a tile."""
    count = held.dtype.bytes
    for extent in shape:
        count *= extent
    return count
