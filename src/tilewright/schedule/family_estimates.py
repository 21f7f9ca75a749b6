"""Estimates of launch times; each ranks the members of one family of proposals.

The constants were fitted to measurements, like those of `tilewright.schedule.estimate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod

from tilewright.schedule.estimate import BULK, SCHEDULERS, Estimate
from tilewright.schedule.load import Load, resident_blocks
from tilewright.schedule.needs import ROW_BYTES

COLUMN_US = 0.00277 / 2
"""Time of 64 rows by one column along 128 bytes of K on one multiprocessor; the same for all dtypes."""


@dataclass(frozen=True)
class FormEstimate(Estimate):
    """A form of the Hopper kernel for any number of rows, with measured times.

    Args:
        tile_us: time of a tile besides its steps.
        latency_us: time of a step of a block that has a multiprocessor to itself.
        busy_us: time of a step if several blocks share a multiprocessor.
        depth: depth of a tile along K, in units of 128 bytes.
        row_us: time to load 128 bytes of a row of A, and of B, from the second-level cache, which all
            multiprocessors share.
        promotion: relative additional time of 128 bytes along K if sums are promoted.
        memory: time of the operands' bytes, relative to the memory's rate.
    """

    tile_us: float
    latency_us: float
    busy_us: float
    depth: int
    row_us: tuple[float, float]
    promotion: float
    memory: float

    def waits(self, load: Load) -> tuple[float, ...]:
        """Times of all rounds of tiles, and of the memory."""
        question, (rows, columns, _) = load.question, load.schedule.tile
        across, beside = load.schedule.cluster
        m, n, k = question.shape
        tiles = -(-m // (rows * across)) * across * -(-n // (columns * beside)) * beside
        tiles = load.tiles if question.form.mirrored else tiles * question.items
        processors = max(question.processors // (across * beside), 1) * across * beside
        rounds = max(-(-tiles // processors), 1)
        steps = -(-k * question.dtype.bytes // (ROW_BYTES * self.depth)) * self.depth
        asked = rows / beside * self.row_us[0] + columns / across * self.row_us[1]
        multiply = rows / 64 * columns * COLUMN_US * len(question.form.products)
        step = max(multiply, min(tiles, processors) * asked, self.latency_us / rounds, self.busy_us)
        step *= 1 + self.promotion
        return rounds * (steps * step + self.tile_us), question.memory_us * self.memory


@dataclass(frozen=True)
class F64Estimate(Estimate):
    """Products of f64 on tensor cores of NVIDIA GPUs.

    Args:
        tile_us: time from the start of a block to its first product, and from its last one to its end.
        waiting: cycles that a scheduler's only warp waits for each cycle in which it multiplies.
        other_registers: registers of a thread besides its sums and both sets of its operands.
        shared_bytes: bytes from shared memory into the registers of a multiprocessor, in each clock.
        cached_bytes: bytes from the second-level cache into each multiprocessor in each clock, if all of them
            read.
    """

    fixed_us: float = 4.0
    overlap: float = BULK.overlap
    tile_us: float = 2.5
    waiting: float = 0.1
    other_registers: int = 64  # addresses, mostly; seen with NVRTC 13.0
    shared_bytes: int = 128
    cached_bytes: int = 37

    def waits(self, load: Load) -> tuple[float, ...]:
        """Times of the multiplications, of shared memory, of the second-level cache and of the memory."""
        question, arch, (rows, columns, depth) = load.question, load.question.arch, load.schedule.tile
        along_m, along_n = load.schedule.warps
        registers = min(load.case.accumulators + load.case.held + self.other_registers, arch.thread_registers)
        resident = resident_blocks(
            arch, load.case.shared_bytes, threads=load.schedule.mma.threads, registers=registers
        )
        work = 2 * rows * columns * depth * load.steps * len(question.form.products)
        beside = min(load.blocks, resident)
        warps = beside * along_m * along_n / SCHEDULERS
        slower = max(1.0, 1 / warps) * (1 + self.waiting / warps)
        return (
            load.blocks * work / load.flops_per_us * slower + -(-load.blocks // beside) * self.tile_us,
            self._copied_us(load, along_n, along_m, self.shared_bytes),
            self._copied_us(load, 1, 1, self.cached_bytes),
            question.memory_us,
        )

    def _copied_us(self, load: Load, along_m: int, along_n: int, rate: int) -> float:
        """Time of the operands of a multiprocessor.

        Args:
            load: the schedule for a problem.
            along_m: number of times that the rows of a tile are read.
            along_n: number of times that its columns are read.
            rate: bytes in each clock.
        """
        question, (rows, columns, _) = load.question, load.schedule.tile
        assert question.arch.rates is not None
        read = along_m * rows * sum(one.dtype.bytes for one in question.form.rows_m)
        read += along_n * columns * sum(one.dtype.bytes for one in question.form.rows_n)
        return load.blocks * read * question.shape[2] / rate / question.arch.rates.boards[0].clock_mhz


F64 = F64Estimate()


@dataclass(frozen=True)
class SmallEstimate(Estimate):
    """Small products of many batch items; up to 32 blocks share a multiprocessor.

    Args:
        item_us: time of a block from the first load of an item to its store; a guess.
        registers: registers of a thread.
    """

    item_us: float
    registers: int

    def at_once(self, load: Load) -> int:
        """Blocks that the machine runs at once."""
        return load.question.processors * resident_blocks(
            load.question.arch,
            load.held_bytes,
            threads=load.schedule.mma.threads,
            registers=self.registers,
            reserved=0,
        )

    def waits(self, load: Load) -> tuple[float, ...]:
        """Times of all items, and of the memory."""
        return -(-load.question.items // self.at_once(load)) * self.item_us, load.question.memory_us


SMALL = SmallEstimate(fixed_us=4.2, overlap=inf, item_us=1.5, registers=64)


@dataclass(frozen=True)
class PackedEstimate(Estimate):
    """Few rows by packed weights that warps decode, fitted to products of 1 to 64 rows on an H200.

    Args:
        beside: blocks that share a multiprocessor.
        again_us: additional time of a block that begins when another one ends.
        meeting_us_of: time to add up parts of K, by reduction.
        part_us: time for each part of K.
        groups_us: time to add up the sums of the groups of a block.
        decoded_per_clock: limit of the weights that the warps of a multiprocessor decode, without columns to
            multiply by.
        waiting_warps: number of warps that decode at half of that rate.
        most_warps: number of warps from which on more warps decode no faster.
        columns_as_decoding: number of columns that halve the rate.
        wide_rows: rows of a warp from which on it loads the other operand less often.
        wider: rate of a warp with these rows, relative to others.
        deep: depth of a tile along K from which on the rate is reached.
        shallow: rate of shallower tiles, relative to deep ones.
        clocks_per_us: clock of the multiprocessors.
        reached: share of the memory's rate that streams reach.
    """

    beside: int = 1
    fixed_us: float = 5.4
    overlap: float = inf
    again_us: float = 3.0
    meeting_us_of: tuple[tuple[str, float], ...] = (("cluster", 0.0), ("workspace", 0.6))
    part_us: float = 0.4
    groups_us: float = 0.8
    decoded_per_clock: float = 63.5
    waiting_warps: int = 6
    most_warps: int = 10
    columns_as_decoding: int = 22
    wide_rows: int = 32
    wider: float = 1.15
    deep: int = 256
    shallow: float = 0.88
    clocks_per_us: int = 1700
    reached: float = 0.85

    def waits(self, load: Load) -> tuple[float, ...]:
        """Times of the memory, and of the multiprocessor with most blocks by the weights that it decodes."""
        asked, schedule, split = load.question, load.schedule, load.schedule.split_k
        assert asked.arch.rates is not None
        assert isinstance(split, int)
        n, _, k = asked.shape
        rows = schedule.tile[0]
        each = -(-(-(-n // rows) * split) // asked.processors)
        turns, rest = divmod(each, self.beside)
        block = rows * -(-k // split)
        decoding = sum(
            blocks * block / self._decoded(load, blocks) / self.clocks_per_us
            for blocks in (*[self.beside] * turns, rest)
            if blocks
        )
        waiting = self.again_us * (-(-each // self.beside) - 1)
        rate = asked.arch.rates.boards[0].memory_gbytes_per_s * 1e3 * self.reached
        return asked.form.a.dtype.bytes_of(n * k) / rate, decoding + waiting

    def _decoded(self, load: Load, blocks: int) -> float:
        """Weights per clock that the warps of this number of blocks decode, and multiply by the columns."""
        (rows, columns, depth), warps = load.schedule.tile, load.schedule.warps[0]
        at_once = min(blocks * warps * load.schedule.groups, self.most_warps)
        reached = self.wider if rows // warps >= self.wide_rows else 1.0
        reached *= self.shallow if depth < self.deep else 1.0
        decoded = reached * self.decoded_per_clock * at_once / (at_once + self.waiting_warps)
        return decoded / (1 + columns / self.columns_as_decoding)

    def meeting_us(self, load: Load) -> float:
        """Time to add up the parts of K, and the sums of the groups of a block."""
        schedule, split = load.schedule, load.schedule.split_k
        assert isinstance(split, int)
        parts = dict(self.meeting_us_of)[schedule.reduction] + split * self.part_us if split > 1 else 0.0
        return parts + (self.groups_us if schedule.groups > 1 else 0.0)


@dataclass(frozen=True)
class AmdEstimate(Estimate):
    """Time by the rates of an AMD GPU: multiplications, shared memory, memory; nothing was measured.

    Several blocks share a multiprocessor. If there are many of them, they end one by one.

    Args:
        tile_us: time of a tile besides its multiplications.
        band: rows of tiles that read an operand from a cache together.
    """

    fixed_us: float = 0.0
    overlap: float = inf
    tile_us: float = 0.1
    band: int = 8

    def waits(self, load: Load) -> tuple[float, ...]:
        """Times of all rounds, and of the memory."""
        (m, n, k), schedule, rates = load.question.shape, load.schedule, load.question.arch.rates
        assert rates is not None
        board, size = rates.boards[0], load.question.dtype.bytes
        processors = load.question.processors or board.multiprocessors
        rows, columns, _ = schedule.tile
        tiles = load.tiles if load.question.form.mirrored else prod(load.tiles_along)
        rounds = tiles / processors if tiles >= 2 * processors else -(-tiles // processors)
        multiplied = 2 * rows * columns * k / load.flops_per_us
        # Each row of warps reads all columns of the tile, and each column of them all rows.
        shared = (rows * schedule.warps[1] + columns * schedule.warps[0]) * k * size
        served = shared / (rates.shared_bytes * board.clock_mhz)
        read = (m * n // rows + m * n // columns) * k * size / self.band
        return rounds * (max(multiplied, served) + self.tile_us), read / (board.memory_gbytes_per_s * 1e3)


AMD = AmdEstimate()
