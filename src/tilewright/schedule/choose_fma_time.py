"""How long exact products of f32 take on GPUs by multiply-adds, with operands copied in the background.

The multiprocessor with most blocks is followed: how many cycles its lanes need, and how well the warps that
it runs at once hide each other's waiting.  The constants were fitted to products of few rows and of deep K on
an H200, with operands that no cache held.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.schedule.choose import Question
from tilewright.schedule.choose_occupancy import VECTOR, resident
from tilewright.schedule.choose_parts import parts_under, tiles_of
from tilewright.schedule.fixup import FAN
from tilewright.schedule.memory import memory_us
from tilewright.schedule.schedule import Schedule

FEW = 64
"""Rows, or columns, that large tiles leave half empty."""

LARGE = 128
"""Rows and columns of a large tile."""

IDLE = 4
"""Large tiles are few where there is not one for every so many multiprocessors."""

HALF = 0.55
"""Of the multiprocessors, in all rounds: large tiles that keep no more of them busy are split."""

FIXED_US = 8.81
"""Of a launch."""

BLOCK_US = 0.559
"""Of a block besides its steps: its start, the first stage, and its results."""

ARRIVAL_US = 1.21
"""From the request of a stage to its arrival."""

WAITING = 0.657
"""Of one warp for each scheduler: the cycles that it waits for each one that it multiplies in."""

HIDING = 1.81
"""The power of the number of warps with which that becomes less."""

ISSUED = 0.903
"""Cycles for each multiply-add of a warp, however many warps there are."""

READING = 0.696
"""The same for each wavefront that is read from shared memory."""

CACHED_BYTES_PER_US = 9.7e6
"""From the second-level cache into all multiprocessors."""

SHORT_BYTES = 40.6
"""Of a row of a tile, about: what could be read in the time that each row costs."""

OVERLAP = 4.4
"""How well multiplying, memory and cache overlap: the power of the norm of their times."""

TICKET_US = 0.233
"""Writing the sums of a part to memory and taking a ticket."""

WRITTEN_BYTES_PER_US = 1.83e6
"""At which all multiprocessors write the sums of the parts."""

READ_BYTES_PER_US = 7.16e4
"""At which a multiprocessor reads and adds the sums of the parts."""

READ_US = 0.0874
"""Until the sums of one part come."""

WAVEFRONTS = 2
"""Of a warp that reads 16 bytes a lane from shared memory, where lanes are paired."""

SCHEDULERS = 4
"""Of a multiprocessor, each with a quarter of its warps."""


@dataclass(frozen=True)
class Load:
    """What the multiprocessors do under a schedule.

    Args:
        question: the problem.
        schedule: with multiply-adds of f32.
    """

    question: Question
    schedule: Schedule

    @property
    def steps(self) -> int:
        """Along K."""
        return max(-(-self.question.shape[2] // self.schedule.block_k), 1)

    def step_cycles(self, warps: float) -> float:
        """Of a multiprocessor for one step of a tile.

        Args:
            warps: for each of its schedulers.
        """
        (rows, columns, depth), rates, mma = self.schedule.tile, self.question.arch.rates, self.schedule.mma
        assert rates is not None
        multiply = rows * columns * depth * 2 / rates.fma_flops["f32"]
        vectors = (mma.a(VECTOR).size_values + mma.b(VECTOR).size_values) / VECTOR
        read = vectors * WAVEFRONTS * prod(self.schedule.warps) * depth / VECTOR
        return float(multiply * (ISSUED + WAITING / warps**HIDING) + read * READING)

    def multiply_us(self) -> float:
        """Of the multiprocessor with most blocks."""
        schedule, processors, rates = (
            self.schedule,
            max(self.question.processors, 1),
            self.question.arch.rates,
        )
        assert rates is not None
        parts, tiles = parts_under(self.question, schedule), tiles_of(self.question, schedule)
        blocks = max(-(-tiles * parts // processors), 1)
        is_stream = schedule.split_k == "stream"  # whose blocks begin and end within tiles
        if is_stream:
            blocks = max(schedule.blocks // processors, 1)
            turns = -(-tiles * self.steps // schedule.blocks) * blocks
        else:
            turns = blocks * -(-self.steps // parts)
        beside = min(blocks, resident(self.question, schedule))
        cycles = turns * self.step_cycles(beside * prod(schedule.warps) / SCHEDULERS)
        arriving = turns / beside * ARRIVAL_US / (schedule.stages - 1)
        rounds = -(-blocks // beside)
        return max(cycles / rates.boards[0].clock_mhz, arriving) + (rounds + is_stream) * BLOCK_US

    def memory_us(self) -> float:
        """Of the memory: of rows that are read piece by piece, and of the sums of parts."""
        row = self.schedule.block_k * self.question.dtype.bytes
        return memory_us(self.question) * (1 + SHORT_BYTES / row)

    def cached_us(self) -> float:
        """Of the second-level cache, for all blocks."""
        m, n, k = self.question.shape
        rows, columns = (min(tile, most) for tile, most in zip(self.schedule.tile, (m, n), strict=False))
        moved = tiles_of(self.question, self.schedule) * (rows + columns) * k * self.question.dtype.bytes
        return moved / CACHED_BYTES_PER_US

    def meeting_us(self) -> float:
        """Of the last block of a tile, which adds up the sums of all parts; others count alike."""
        parts, is_stream = parts_under(self.question, self.schedule), self.schedule.split_k == "stream"
        if parts <= 1 and not is_stream:
            return 0.0
        rows, columns, _ = self.schedule.mma.tile
        read = parts if parts <= FAN else FAN + -(-parts // FAN)
        tile = rows * columns * self.schedule.atom.c_dtype.bytes
        written = parts * tiles_of(self.question, self.schedule) * tile / WRITTEN_BYTES_PER_US
        # A block of a stream has parts of two tiles.
        reading = (read + is_stream) * max(READ_US, tile / READ_BYTES_PER_US)
        return TICKET_US * (1 + (parts > FAN)) + written + reading


def fma_us(question: Question, schedule: Schedule) -> float:
    """Estimated time of a schedule with multiply-adds of f32; 0 where the machine's rates are not known.

    Args:
        question: the problem.
        schedule: how it is computed.
    """
    if question.arch.rates is None:
        return 0.0
    load = Load(question, schedule)
    waits = (load.multiply_us(), load.memory_us(), load.cached_us())
    overlapped: float = sum(wait**OVERLAP for wait in waits) ** (1 / OVERLAP)
    return FIXED_US + overlapped + load.meeting_us()


def is_known(question: Question, schedule: Schedule) -> bool:
    """Whether it is a schedule that `fma_us` knows the time of, on such a machine."""
    atom = schedule.atom
    kinds = {atom.a_dtype.name, atom.b_dtype.name, atom.c_dtype.name}
    known = schedule.staging == "cp_async" and atom.instruction == "fma" and kinds == {"f32"}
    return known and question.arch.rates is not None and "cp_async" in question.arch.features


def is_few_tiles(question: Question) -> bool:
    """Whether a product is one of exact f32, for which large tiles would be few or half empty.

    Args:
        question: the problem.
    """
    form, (m, n, _) = question.form, question.shape
    kinds = {question.dtype.name, form.b.view.dtype.name, form.sum.dtype.name}
    if kinds != {"f32"} or form.precision == "tf32" or question.decodes or question.covered != (0, 0):
        return False
    if form.flow.grouped is not None or question.arch.rates is None:
        return False
    tiles = -(-m // LARGE) * -(-n // LARGE) * prod(question.extents[:-3])
    rounds = -(-tiles // question.processors)
    is_uneven = rounds > 1 and tiles <= HALF * rounds * question.processors
    return min(m, n) <= FEW or tiles * IDLE <= question.processors or is_uneven
