"""How long schedules with bulk copies take that wait for memory: few rows, few tiles, K in parts.

A block fetches stage after stage, as many at once as its ring has; what counts is how soon they arrive, how
many bytes a multiprocessor and the second-level cache deliver, and how long memory takes for all.  The
constants were fitted to products of 1 to 512 rows on an H200, with operands that no cache held.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from tilewright.schedule.choose import Question
from tilewright.schedule.choose_parts import parts_under, tiles_along, tiles_of
from tilewright.schedule.fixup import FAN, LEAST_SHARE, is_clustered
from tilewright.schedule.form import has_slices
from tilewright.schedule.memory import MOST_STREAMED, memory_us
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stages import ROW_BYTES

FIXED_US = 2.0
"""Of a launch, which does not become less by splitting K."""

RAMP_US = 14.0
"""Until memory delivers at its rate, at most, as the cache writes back what it held; less than all bytes then
take."""

SPARED = 0.33
"""What of that is spared where operands leave the cache first."""

ARRIVAL_US = 1.14
"""From the request of a stage to its arrival, besides its bytes."""

BYTES_PER_US = 1.3e5
"""Into the shared memory of one multiprocessor."""

CACHED_BYTES_PER_US = 1.75e7
"""From the second-level cache into all multiprocessors."""

OUTSIDE_US = 0.00043
"""A line of `ROW_BYTES` that lies outside the array, which a bulk copy fills with zeros."""

LINE_US = 0.00277 / 2
"""The multiply of 64 rows with one column, along `ROW_BYTES` of K."""

DECODE_US = {True: 0.085, False: 0.12}
"""To decode 64 rows of a line of `ROW_BYTES` in registers: contiguous along K, and otherwise."""

SHARED_DECODE = 0.1
"""How much longer that takes for each other group of a block that decodes."""

DECODED_MEETING_US = 0.6
"""What adding up parts of K in memory was measured to take besides, where an operand is decoded."""

TILE_US = 5.8
"""Of a block besides its steps: its start, the first stage, and its results."""

OVERLAP = 5
"""How well memory, cache and rings overlap: the power of the norm of their times."""

TICKET_US = 1.07
"""Writing the sums of a part to memory and taking a ticket."""

READ_BYTES_PER_US = 3.0e4
"""At which a multiprocessor reads and adds the sums of the parts."""

CLUSTER_US, DOUBLED_US = 0.7, 5.7
"""Meeting in a cluster of two blocks, and what each doubling of the cluster adds."""

SCATTER_US, PART_US = 1.2, 0.05
"""Waiting until the parts of a tile are written, and reading a share of each one of them."""

READ_MULTIPLY_ADDS = 4
"""What a processor could do while it writes and reads one sum of another part. An estimate."""


def meeting_us(question: Question, schedule: Schedule) -> float:
    """What it takes to add up the sums of the parts of K; on a processor in multiply-adds.

    Args:
        question: the problem.
        schedule: how it is computed; without parts it takes no time.
    """
    parts = parts_under(question, schedule)
    if parts <= 1 and schedule.split_k != "stream":
        return 0.0
    rows, columns, _ = schedule.mma.tile
    read, totals = parts if parts <= FAN else FAN + -(-parts // FAN), len(question.form.totals)
    if question.arch.lanes == 1:
        return read * rows * columns * totals * READ_MULTIPLY_ADDS
    tile_us = rows * columns * totals * schedule.atom.c_dtype.bytes / READ_BYTES_PER_US
    if is_clustered(schedule):  # each block adds a share of the tile
        return CLUSTER_US + DOUBLED_US * (log2(parts) - 1) + tile_us
    decoded = DECODED_MEETING_US if question.decodes else 0.0
    if schedule.reduction == "reduce-scatter":  # each waits for all, and adds a share of the tile
        if columns <= LEAST_SHARE or not has_slices(question.form):  # one adds all of it
            return decoded + SCATTER_US + parts * tile_us
        return decoded + SCATTER_US + parts * PART_US + tile_us
    # A block of a stream has parts of two tiles.
    tiles = read + (schedule.split_k == "stream")
    return decoded + TICKET_US * (1 + (parts > FAN)) + tiles * tile_us


@dataclass(frozen=True)
class _Side:
    """An operand of a schedule.

    Args:
        extent: of a tile.
        inside: how much of it lies in the array.
        row_bytes: of a row of a step.
        array_bytes: of the whole array.
    """

    extent: int
    inside: int
    row_bytes: int
    array_bytes: int


@dataclass(frozen=True)
class Load:
    """What the blocks of a schedule fetch.

    Args:
        question: the problem.
        schedule: with bulk copies.
    """

    question: Question
    schedule: Schedule

    @property
    def _sides(self) -> tuple[_Side, _Side]:
        """Of a tile, along its rows and its columns."""
        m, n, k = self.question.shape
        form = self.question.form.arranged(self.schedule.swap_ab)
        extents = (n, m) if self.schedule.swap_ab else (m, n)
        depth = self.schedule.block_k
        rows, columns = (
            _Side(tile, min(tile, most), depth * factor.dtype.bytes, k * most * factor.dtype.bytes)
            for tile, most, factor in zip(self.schedule.tile, extents, (form.a, form.b), strict=False)
        )
        return rows, columns

    @property
    def lines(self) -> int:
        """Of `ROW_BYTES` of what is multiplied along K, of a step."""
        return self.schedule.block_k * self.question.dtype.bytes // ROW_BYTES

    @property
    def step_bytes(self) -> int:
        """That a step brings from the arrays."""
        return sum(side.inside * side.row_bytes for side in self._sides)

    @property
    def fetched_bytes(self) -> float:
        """That the second-level cache delivers of a step for one block: those of a cluster share the rest."""
        across, beside = self.schedule.cluster
        shares = zip(self._sides, (beside, across), strict=True)
        return sum(side.inside * side.row_bytes / blocks for side, blocks in shares)

    @property
    def outside(self) -> int:
        """Lines of a step that lie outside the arrays."""
        return sum((side.extent - side.inside) * side.row_bytes for side in self._sides) // ROW_BYTES

    @property
    def held_bytes(self) -> int:
        """Shared memory of a block, about."""
        rows, columns, _ = self.schedule.tile
        ring = self.schedule.stages * sum(side.extent * side.row_bytes for side in self._sides)
        stored = sum(store.operand.dtype.bytes for store in self.question.form.stores)
        return ring + rows * columns * stored

    @property
    def steps(self) -> int:
        """Along K, of a tile."""
        return max(-(-self.question.shape[2] // self.schedule.block_k), 1)

    @property
    def streamed(self) -> float:
        """Of the operands' bytes, the share that one block or cluster reads, which leaves the cache first."""
        form = self.question.form
        if form.batch or any(factor.part.operand.transforms for factor in form.factors):
            return 0.0
        beside = zip(tiles_along(self.question, self.schedule), self.schedule.cluster, strict=True)
        across, along = (-(-tiles // blocks) for tiles, blocks in beside)
        readers = zip(self._sides, (along, across), strict=True)
        sizes = [(side.array_bytes, count) for side, count in readers]
        once = sum(size for size, count in sizes if count == 1 and size <= MOST_STREAMED)
        return once / max(sum(size for size, _ in sizes), 1)

    @property
    def decode_us(self) -> float:
        """Of a step, by a group that decodes the operand along the rows of a tile; 0 if none does."""
        if not self.question.decodes:
            return 0.0
        groups = self.schedule.groups
        rows = self.schedule.tile[0] // groups * (1 + SHARED_DECODE * (groups - 1))
        along_k = self.question.majors[1 if self.schedule.swap_ab else 0] == "k"
        return self.lines * rows / 64 * DECODE_US[along_k]

    def path_us(self) -> float:
        """Of the multiprocessor with most blocks."""
        schedule, processors = self.schedule, max(self.question.processors, 1)
        tiles = max(tiles_of(self.question, schedule), 1)
        parts = parts_under(self.question, schedule)
        fits = 1 if schedule.blocks else max(min(self.question.arch.shared_bytes // self.held_bytes, 2), 1)
        beside = min(fits, -(-tiles * parts // processors))
        rounds = -(-tiles * parts // (processors * beside))
        steps = rounds * -(-self.steps // parts)
        if schedule.split_k == "stream":
            steps = -(-tiles * self.steps // processors)
        arrival = (ARRIVAL_US + self.step_bytes / BYTES_PER_US) / (schedule.stages - 1)
        rows, columns, _ = schedule.tile
        multiply = rows / 64 * columns * self.lines * LINE_US
        step = max(arrival, beside * self.step_bytes / BYTES_PER_US, beside * multiply, self.decode_us)
        step += beside * self.outside * OUTSIDE_US
        return steps * step + (1 if schedule.blocks else rounds) * TILE_US

    def cached_us(self) -> float:
        """Of the second-level cache, for all blocks."""
        moved = tiles_of(self.question, self.schedule) * self.steps * self.fetched_bytes
        return moved / CACHED_BYTES_PER_US


def bulk_us(question: Question, schedule: Schedule) -> float:
    """Estimated time of a schedule with bulk copies.

    Args:
        question: the problem.
        schedule: how it is computed.
    """
    load = Load(question, schedule)
    memory = memory_us(question)
    ramp = min(RAMP_US, memory) * (1 - SPARED * load.streamed)
    waits = (load.path_us(), memory + ramp, load.cached_us())
    overlapped: float = sum(wait**OVERLAP for wait in waits) ** (1 / OVERLAP)
    return FIXED_US + overlapped + meeting_us(question, schedule)
