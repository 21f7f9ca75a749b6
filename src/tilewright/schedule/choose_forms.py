"""Forms of the Hopper kernel for any number of rows, and how long they take, by what was measured of each."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.dataflow.nodes import SUMMED
from tilewright.schedule.choose import Question
from tilewright.schedule.choose_time import OVERLAP
from tilewright.schedule.factors import Factor
from tilewright.schedule.memory import memory_us
from tilewright.schedule.stages import ROW_BYTES

FP8 = ("f8e4m3", "f8e5m2")
PROMOTED_EVERY, SUMMED_EVERY = 512, 128
"""Elements along K after which sums are added to others: of 8-bit floats, which keep 13 bits, or where
they are to lose no more than f32.
"""

PROMOTED_ELEMENTS = 64 * 192
"""Of a group's tile: more do not fit into the registers twice."""

SLICES = 2
"""Of a group's columns, which are promoted from the same registers, where they do not fit there twice."""

PROMOTION = {False: 0.2, True: 0.1}
"""How much longer 128 bytes along K take that end with a promotion of all sums, and of slice after slice."""

BAND = 8
"""Rows of tiles that follow each other."""

BESIDE = 4
"""Blocks of ``mma.sync`` for each multiprocessor where a grid has not one for each tile."""

COLUMN_US = 0.00277
"""A column of 64 rows times 128 bytes of K, on one multiprocessor; for all types, whose rates go by bytes."""

ROW_US, CUT_ROW_US = 0.95e-5, 2.4e-5
"""128 bytes of a row from the second-level cache, shared by all multiprocessors; if they lie in two lines."""


@dataclass(frozen=True)
class Shape:
    """A form of the Hopper kernel, and what was measured of it on an H200.

    Args:
        rows: of one group's tile.
        columns: of a tile.
        groups: that multiply.
        stages: of the ring.
        buffers: of each group's epilogue, of 128 bytes a row.
        roles: how the groups share the work.
        persistent: whether a block takes tile after tile.
        cluster: blocks that share operands.
        depth: of a tile along K, in units of 128 bytes; more than 1 for sums that each tile promotes.
        fixed_us: what a launch takes besides its steps.
        tile_us: what a tile takes besides its steps.
        latency_us: of a step of a block that has a multiprocessor to itself.
        busy_us: of a step where several blocks share one.
    """

    rows: int
    columns: int
    groups: int
    stages: int
    buffers: int
    roles: str = "cooperative"
    persistent: bool = True
    cluster: tuple[int, int] = (1, 1)
    depth: int = 1
    fixed_us: float = 5.0
    tile_us: float = 1.0
    latency_us: float = 0.0
    busy_us: float = 0.0

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of what is computed at once."""
        return (self.rows * (1 if self.roles == "ping-pong" else self.groups), self.columns)

    def against(self, question: Question) -> str:
        """Why it cannot compute what is asked; empty if it can."""
        rows, columns = question.covered
        if self.depth > 1 and not self.promotes_slices(question):
            return "its tiles are deep for sums of 8-bit floats, which it promotes and stores slice by slice"
        elements = self.rows * self.columns
        held = elements + self.rows * self.promoted_columns(question)
        if promoted_every(question) and held > 2 * PROMOTED_ELEMENTS:
            return f"{elements} sums of a group lie twice in its registers, and {PROMOTED_ELEMENTS} fit"
        whole = self.roles == "ping-pong" or self.groups == 1
        if columns > self.columns:
            return f"{columns} columns are reduced together, and its tile has {self.columns}"
        if rows and not (whole and rows <= self.rows):
            return f"{rows} rows are reduced together, and a group has fewer of them"
        if not self.persistent and overflows(question):
            return (
                f"{items_of(question)} batch items, and an axis of a grid has {question.arch.grid[-1]} blocks"
            )
        return ""

    def promotes_slices(self, question: Question) -> bool:
        """Whether each tile along K promotes one slice of its columns after the other, in the same registers.

        So it is where not all sums fit there twice and blocks take one tile after the other: if 128 bytes
        along K have scales of their own, and for other sums of 8-bit floats if tiles are deep.
        """
        is_wide = self.rows * self.columns > PROMOTED_ELEMENTS
        if not (is_wide and self.persistent and self.roles == "cooperative"):
            return False
        return is_scaled_by_tile(question) if self.depth == 1 else _is_promoted_plain(question)

    def promoted_columns(self, question: Question) -> int:
        """Columns of a tile whose sums are promoted together."""
        return self.columns // (SLICES if self.promotes_slices(question) else 1)

    def time_us(self, question: Question, row_us: tuple[float, float]) -> float:
        """Estimated time of a problem.

        Args:
            question: the problem.
            row_us: of 128 bytes of a row of A, and of B, of all that are loaded.
        """
        m, n, k = question.shape
        (rows, columns), (across, beside) = self.tile, self.cluster
        tiles = -(-m // (rows * across)) * across * -(-n // (columns * beside)) * beside
        tiles *= items_of(question)
        processors = question.processors // (across * beside) * across * beside
        rounds = max(-(-tiles // processors), 1)
        steps = -(-k * question.dtype.bytes // (ROW_BYTES * self.depth)) * self.depth
        asked = rows / beside * row_us[0] + columns / across * row_us[1]
        multiply = rows / 64 * columns * COLUMN_US / 2 * len(question.form.products)
        step = max(multiply, min(tiles, processors) * asked, self.latency_us / rounds, self.busy_us)
        in_slices = self.promotes_slices(question)
        if in_slices or is_scaled_by_tile(question):
            step *= 1 + PROMOTION[in_slices] / self.depth
        waits = (rounds * (steps * step + self.tile_us), memory_us(question) * self.memory)
        overlapped: float = sum(wait**OVERLAP for wait in waits) ** (1 / OVERLAP)
        return self.fixed_us + overlapped

    @property
    def memory(self) -> float:
        """How many times as long as by memory's rate its operands are on their way from there."""
        return 1.2 if self.persistent else 1.12


def promoted_every(question: Question) -> int:
    """Elements along K after which sums are added to others; 0: never."""
    if question.form.scaled_every:
        return question.form.scaled_every
    if question.dtype.name in FP8:
        return PROMOTED_EVERY
    return SUMMED_EVERY if question.form.precision == SUMMED else 0


def is_scaled_by_tile(question: Question) -> bool:
    """Whether each 128 bytes along K have scales of their own, by which their sums are multiplied."""
    return question.form.scaled_every * question.dtype.bytes == ROW_BYTES


def _is_promoted_plain(question: Question) -> bool:
    """Whether sums of 8-bit floats have no scales of their own, and nothing large is read beside them.

    Results of one byte fill a buffer with a whole slice at once, which spills beside both slices' sums.
    """
    form = question.form
    is_plain = question.dtype.name in FP8 and not form.scaled_every and form.flow.grouped is None
    is_small = any(store.operand.dtype.bytes == 1 for store in form.stores)
    return is_plain and not is_small and not question.reads_result_sized


def items_of(question: Question) -> int:
    """Batch items of the problem."""
    return prod(question.extents[:-3])


def overflows(question: Question) -> bool:
    """Whether there are more batch items than a block for each tile of each of them could be counted."""
    return items_of(question) > question.arch.grid[-1]


def cached_row_us(question: Question, factor: Factor) -> float:
    """What 128 bytes of an operand take: rows that begin off a line lie in two."""
    spec = question.form.spec(factor.part.operand, question.specs)
    steps = [step for dim, step in enumerate(spec.stride_divisors) if dim != spec.unit_dim]
    # Divisors of strides are known up to 16 elements only; extents up to 256.
    unit = spec.extent_divisors[spec.unit_dim or 0] * spec.dtype.bytes
    whole = all(step * spec.dtype.bytes % ROW_BYTES == 0 for step in steps) or unit % ROW_BYTES == 0
    return ROW_US if whole else CUT_ROW_US
