"""Counts of a schedule for a problem: tiles, blocks, parts of K, bytes and resident blocks.

Estimates of time use these counts, and so do the rules that split K.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, prod
from typing import NamedTuple

from tilewright.arch import Arch
from tilewright.ir.mma import TiledMma
from tilewright.schedule.fixup import FAN, REGISTER_BYTES
from tilewright.schedule.partition import MOST_SPLITS, parts_of_k
from tilewright.schedule.question import Question
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.sides import width
from tilewright.schedule.skipping import square
from tilewright.schedule.sources import MOST_STREAMED

BARRIERS_BYTES = 1024
"""Most bytes of shared memory for barriers and gaps between buffers."""

MOST_BLOCKS = 32
"""Most resident blocks of a multiprocessor."""

SYSTEM_BYTES = 1024
"""Bytes of shared memory that the system takes for each block.

A multiprocessor has this much more than one block may declare.
"""

VECTOR = 4
"""Elements along K that a thread reads at once for multiply-adds."""

FMA_REGISTERS = 48
"""Registers of a thread with multiply-adds, besides its sums and its operands of four steps."""

WHOLE_REGISTERS = 32
"""Like `FMA_REGISTERS`, for several products without split K."""

SUM_REGISTERS, TENSOR_REGISTERS = 4, 40
"""Registers of a thread that splits K with tensor cores: for each of its sums, because it also reads and adds
those of other parts; and for everything else."""

LOOP_REGISTERS = 40
"""Registers of a thread besides sums and operands, if the next tile waits in registers."""

PARTITIONS = 8
"""Most partitions (GPCs) of the multiprocessors of a Hopper GPU."""


class TileSide(NamedTuple):
    """An operand's share of a tile.

    Args:
        extent: rows or columns of a tile.
        inside: most rows or columns of a tile that lie in the array.
        row_bytes: bytes of a row of one step along K.
        array_bytes: bytes of the whole array.
    """

    extent: int
    inside: int
    row_bytes: int
    array_bytes: int


@dataclass(frozen=True)
class Load:
    """The work that a schedule gives to the processors for a problem.

    Args:
        question: the problem, on a machine.
        schedule: the schedule.
    """

    question: Question
    schedule: Schedule

    # ------------------------------------------------------------ tiles and parts

    @cached_property
    def extents(self) -> tuple[int, int]:
        """Rows and columns of a batch item, as the tiles lie on it."""
        m, n, _ = self.question.shape
        return (n, m) if self.schedule.swap_ab else (m, n)

    @cached_property
    def tiles_along(self) -> tuple[int, int]:
        """Tiles of a batch item along its rows and along its columns."""
        rows, columns, _ = self.schedule.tile
        m, n = self.extents
        return -(-m // rows), -(-n // columns)

    @cached_property
    def tiles(self) -> int:
        """Tiles of the result that are computed, in all batch items.

        Of a symmetric result, these are the tiles of the square blocks on and below the diagonal.
        """
        (across, beside), (rows, columns, _) = self.tiles_along, self.schedule.tile
        side = square((rows, columns)) if self.question.form.mirrored else 0
        if not side:
            return across * beside * self.question.items
        high, wide = side // rows, side // columns
        return self.question.items * sum(
            min(high, across - block * high) * min(wide * (block + 1), beside)
            for block in range(-(-across // high))
        )

    @cached_property
    def steps(self) -> int:
        """Steps of a tile along K."""
        return max(-(-self.question.shape[2] // self.schedule.block_k), 1)

    @cached_property
    def parts(self) -> int:
        """Parts of K; for a stream, the average number of parts of a tile, rounded up.

        Every launch computes the same number from its extents.
        """
        steps, schedule = self.steps, self.schedule
        if not schedule.is_split:
            return 1
        along = zip(self.tiles_along, schedule.cluster, strict=True)
        # Tiles that only fill a cluster count too.
        whole = prod(-(-count // blocks) * blocks for count, blocks in along)
        tiles, blocks = whole * self.question.items, schedule.blocks
        units = -(-steps // max(schedule.promote, 1))
        if schedule.is_streamed:
            return max(-(-min(blocks, tiles * steps) // max(tiles, 1)), 1)
        if schedule.split_k == "auto":
            found = parts_of_k(tiles, steps, blocks)
            assert isinstance(found, int)
            return min(found, units)
        assert isinstance(schedule.split_k, int)
        return max(min(schedule.split_k, units, MOST_SPLITS), 1)

    @property
    def read_parts(self) -> int:
        """Number of partial sums that the last block of a tile reads; many are added in two rounds."""
        return self.parts if self.parts <= FAN else FAN + -(-self.parts // FAN)

    @property
    def is_stream(self) -> bool:
        """Whether blocks share the steps of all tiles evenly (stream K); a block may begin within a tile."""
        return self.schedule.is_streamed

    # ------------------------------------------------------------ the busiest processor

    @property
    def processors(self) -> int:
        """Processors in use."""
        return max(self.question.processors, 1)

    @cached_property
    def blocks(self) -> int:
        """Blocks of the busiest multiprocessor."""
        if self.is_stream:
            return max(self.schedule.blocks // self.processors, 1)
        return max(-(-self.tiles * self.parts // self.processors), 1)

    @property
    def block_steps(self) -> int:
        """Steps along K of one block."""
        if self.is_stream:
            return -(-self.tiles * self.steps // self.schedule.blocks)
        return -(-self.steps // self.parts)

    @property
    def flops_per_us(self) -> float:
        """Peak operations of a multiprocessor in a microsecond; the machine's rates must be known."""
        atom, rates = self.schedule.atom, self.question.arch.rates
        assert rates is not None
        units = rates.fma_flops if atom.instruction == "fma" else rates.tensor_flops
        kind = "tf32" if atom.precision is not None else self.question.dtype.name
        return units.get(kind, rates.fma_flops["f32"]) * rates.boards[0].clock_mhz

    # ------------------------------------------------------------ bytes

    @cached_property
    def sides(self) -> tuple[TileSide, TileSide]:
        """The operands along the rows and along the columns of a tile."""
        form = self.question.form.arranged(self.schedule.swap_ab)
        k, (rows, columns, depth), (m, n) = self.question.shape[2], self.schedule.tile, self.extents
        a, b = form.a.dtype.bytes, form.b.dtype.bytes
        return (
            TileSide(rows, min(rows, m), depth * a, k * m * a),
            TileSide(columns, min(columns, n), depth * b, k * n * b),
        )

    @property
    def cut_rows(self) -> tuple[bool, bool]:
        """`Question.cut_rows` of the operands along the rows and along the columns of a tile."""
        a, b = self.question.cut_rows
        return (a, b) if self.schedule.swap_ab == self.question.form.swap_ab else (b, a)

    @property
    def step_bytes(self) -> int:
        """Bytes of the arrays that a step loads."""
        return sum(side.inside * side.row_bytes for side in self.sides)

    @property
    def held_bytes(self) -> int:
        """Approximate bytes of shared memory of a block: the ring and the results."""
        rows, columns, _ = self.schedule.tile
        ring = self.schedule.stages * sum(side.extent * side.row_bytes for side in self.sides)
        stored = sum(store.operand.dtype.bytes for store in self.question.form.stores)
        return ring + rows * columns * stored

    @property
    def streamed(self) -> float:
        """Share of the operands' bytes that only one block or cluster reads; these leave the cache first."""
        if not self.question.has_whole_operands:
            return 0.0
        once, sizes = 0, [side.array_bytes for side in self.sides]
        (across, beside), (blocks_m, blocks_n) = self.tiles_along, self.schedule.cluster
        for size, readers, blocks in zip(sizes, (beside, across), (blocks_n, blocks_m), strict=True):
            once += size if 0 < readers <= blocks and size <= MOST_STREAMED else 0
        return once / max(sum(sizes), 1)

    # ------------------------------------------------------------ occupancy

    @cached_property
    def case(self) -> ScheduleOnMachine:
        """The schedule on the machine, for the classes of the arrays."""
        return ScheduleOnMachine(self.schedule, self.question.form, self.question.classes, self.question.arch)

    @cached_property
    def operands(self) -> tuple[int, int]:
        """Number of arrays along the rows and along the columns of a tile."""
        form = self.question.form.arranged(self.schedule.swap_ab)
        return len(form.rows_m), len(form.rows_n)

    @property
    def read_depth(self) -> int:
        """Elements along K that a thread reads at once."""
        form, atom = self.question.form, self.schedule.atom
        if atom.instruction != "fma":
            return atom.shape[2]
        # All fitted times of single products assume `VECTOR`.
        is_deep = form.is_single or any(self.question.major(factor) == "k" for factor in form.factors)
        return VECTOR if is_deep else 1

    @cached_property
    def held_registers(self) -> int:
        """Estimate the registers that a thread would need, for a schedule without bulk copies."""
        of_a, of_b, sums = thread_values(self.schedule.mma, self.read_depth)
        sums *= len(self.question.form.totals) * (2 if self.schedule.promote else 1)
        if self.schedule.atom.instruction == "fma":
            a, b = self.operands
            is_whole = not self.schedule.is_split and not self.question.form.is_single
            others = WHOLE_REGISTERS if is_whole else FMA_REGISTERS
            return a * of_a + b * of_b + sums + others
        return int(SUM_REGISTERS * sums + TENSOR_REGISTERS)

    @property
    def registers(self) -> int:
        """Estimate the registers of a thread, for a schedule without bulk copies."""
        return min(self.held_registers, self.question.arch.thread_registers)

    @cached_property
    def resident(self) -> int:
        """Resident blocks of a multiprocessor, for a schedule without bulk copies."""
        schedule, mma, arch = self.schedule, self.schedule.mma, self.question.arch
        (rows, columns, depth), (a, b) = schedule.tile, self.operands
        held = schedule.stages * (rows * a + columns * b) * depth * self.question.dtype.bytes
        if schedule.epilogue_class.is_buffered:
            held = self.case.shared_bytes
        return resident_blocks(arch, held, threads=mma.threads, registers=self.registers)

    @property
    def spills(self) -> bool:
        """Whether registers certainly do not hold the sums and the next tile, if that waits in registers.

        An operand that does not begin at a multiple of 4 bytes is loaded in pieces that take a register each.
        """
        arch = self.question.arch
        if not self.schedule.staging_class.through_registers or not arch.thread_registers:
            return False
        case, held = self.case, 0
        for side in case.sides:
            loaded = side.rows * case.tile[2] * side.dtype.bytes / case.mma.threads
            held += ceil(loaded / min(width(side.spec), REGISTER_BYTES))
        return case.accumulators + held + LOOP_REGISTERS > arch.thread_registers


@dataclass(frozen=True)
class DealtLoad(Load):
    """The work if the steps of all tiles were dealt out to as many blocks as run at once.

    Its counts are those of a stream with this number of blocks.
    """

    @property
    def is_stream(self) -> bool:
        """True: blocks may begin within a tile."""
        return True

    @cached_property
    def blocks(self) -> int:
        """Blocks of each multiprocessor."""
        return self.resident

    @property
    def block_steps(self) -> int:
        """Steps along K of one block."""
        return -(-self.tiles * self.steps // (self.resident * self.processors))

    @cached_property
    def parts(self) -> int:
        """Parts of a tile on average, rounded up."""
        blocks = min(self.resident * self.processors, self.tiles * self.steps)
        return max(-(-blocks // max(self.tiles, 1)), 1)


@lru_cache(maxsize=1024)
def thread_values(mma: TiledMma, depth: int) -> tuple[int, int, int]:
    """Elements of A, of B and of the sums that a thread holds.

    Args:
        mma: the multiplication of a tile.
        depth: depth of A and B along K.
    """
    return mma.a(depth).size_values, mma.b(depth).size_values, mma.c().size_values


def resident_blocks(
    arch: Arch,
    shared_bytes: int,
    *,
    threads: int = 0,
    registers: int = 0,
    most: int = MOST_BLOCKS,
    reserved: int = SYSTEM_BYTES,
) -> int:
    """Blocks that a multiprocessor runs at once, at least 1: the occupancy.

    Args:
        arch: the machine.
        shared_bytes: shared memory of a block.
        threads: threads of a block.
        registers: registers of a thread; 0: they do not limit the blocks.
        most: largest number of blocks.
        reserved: shared memory that the system takes for each block.

    Example:
        >>> from tilewright.targets.target import CUDA
        >>> arch = CUDA.architecture("sm_90a")
        >>> resident_blocks(arch, 60_000), resident_blocks(arch, 60_000, threads=256, registers=200)
        (3, 1)
    """
    limits = [most, (arch.shared_bytes + reserved) // max(shared_bytes + reserved, 1)]
    if registers:
        unit = arch.register_unit
        limits.append(arch.registers // (threads * (-(-registers // unit) * unit)))
    return max(min(limits), 1)


def blocks_beside(schedule: Schedule, totals: int, arch: Arch) -> int:
    """Blocks that should share a multiprocessor if multiply-adds split K; 0: any number.

    Without a limit, a compiler takes registers to add up parts that the main loop does not need, so that
    fewer blocks run at once.

    Args:
        schedule: the schedule.
        totals: sums of the products for each element of the result.
        arch: the machine.
    """
    if not schedule.is_split or schedule.atom.instruction != "fma" or arch.rates is None:
        return 0
    of_a, of_b, sums = thread_values(schedule.mma, 1)
    held = totals * sums + of_a + of_b + FMA_REGISTERS
    most = resident_blocks(arch, 0, threads=schedule.mma.threads, registers=held)
    beside = -(-schedule.blocks // arch.rates.boards[0].multiprocessors)
    return min(beside, most) if beside > 1 else 0


def in_clusters(processors: int, size: int) -> int:
    """Blocks that certainly run at once, each alone on a multiprocessor, in clusters of 2 or more.

    A cluster lies in one partition of the GPU.  There are at most `PARTITIONS` of them, each with an even
    number of multiprocessors, so that each may leave ``size - 2`` multiprocessors idle.

    Example:
        >>> in_clusters(132, 2), in_clusters(132, 4), in_clusters(132, 8)
        (132, 116, 80)
    """
    return max(processors - PARTITIONS * (size - 2), 0) // size * size
