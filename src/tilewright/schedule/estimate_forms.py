"""Estimates of the time of one family of proposals each, with constants that belong to the family.

They rank the members of a family. `tilewright.schedule.estimate` has the models of any schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod

from tilewright.schedule.estimate import BULK, SCHEDULERS, Estimate
from tilewright.schedule.load import Load, memory_us, resident_blocks
from tilewright.schedule.needs import ROW_BYTES

COLUMN_US = 0.00277
"""Time of a column of 64 rows times 128 bytes of K on one multiprocessor; the same for all dtypes."""


@dataclass(frozen=True)
class FormEstimate(Estimate):
    """A form of the Hopper kernel for any number of rows, by what was measured of it.

    Args:
        tile_us: a tile besides its steps.
        latency_us: a step of a block that has a multiprocessor to itself.
        busy_us: a step if several blocks share a multiprocessor.
        depth: of a tile along K, in units of 128 bytes.
        row_us: 128 bytes of a row of A, and of B, from the second-level cache, shared by all multiprocessors.
        promotion: how much longer 128 bytes along K take because of promoted sums.
        memory: how many times as long as by the memory's rate its operands are on their way.
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
        tiles *= question.items
        processors = question.processors // (across * beside) * across * beside
        rounds = max(-(-tiles // processors), 1)
        steps = -(-k * question.dtype.bytes // (ROW_BYTES * self.depth)) * self.depth
        asked = rows / beside * self.row_us[0] + columns / across * self.row_us[1]
        multiply = rows / 64 * columns * COLUMN_US / 2 * len(question.form.products)
        step = max(multiply, min(tiles, processors) * asked, self.latency_us / rounds, self.busy_us)
        step *= 1 + self.promotion
        return rounds * (steps * step + self.tile_us), memory_us(question) * self.memory


@dataclass(frozen=True)
class F64Estimate(Estimate):
    """Products of f64 on tensor cores of NVIDIA GPUs.

    Args:
        tile_us: from the start of a block to its first product, and from its last to the end of its stores.
        waiting: what the only warp of a scheduler waits for each cycle that it multiplies in.
        other_registers: registers of a thread besides its sums and both sets of its operands.
        shared_bytes: from shared memory into the registers of a multiprocessor, for each clock.
        cached_bytes: from the second-level cache into a multiprocessor, for each clock, if all ask for some.
    """

    tile_us: float
    waiting: float
    other_registers: int
    shared_bytes: int
    cached_bytes: int

    def waits(self, load: Load) -> tuple[float, ...]:
        """Times of the multiplications, of shared memory, of the second-level cache and of the memory."""
        along_m, along_n = load.schedule.warps
        return (
            self._multiply_us(load),
            self._copied_us(load, along_n, along_m, self.shared_bytes),
            self._copied_us(load, 1, 1, self.cached_bytes),
            memory_us(load.question),
        )

    def _multiply_us(self, load: Load) -> float:
        """Time of the multiplications of the multiprocessor with most blocks."""
        question, arch, (rows, columns, depth) = load.question, load.question.arch, load.schedule.tile
        registers = min(load.case.accumulators + load.case.held + self.other_registers, arch.thread_registers)
        resident = resident_blocks(
            arch, load.case.shared_bytes, threads=load.schedule.mma.threads, registers=registers
        )
        work = 2 * rows * columns * depth * load.steps * len(question.form.products)
        beside = min(load.blocks, resident)
        warps = beside * prod(load.schedule.warps) / SCHEDULERS
        slower = max(1.0, 1 / warps) * (1 + self.waiting / warps)
        return load.blocks * work / load.flops_per_us * slower + -(-load.blocks // beside) * self.tile_us

    def _copied_us(self, load: Load, along_m: int, along_n: int, rate: int) -> float:
        """Time of the operands of a multiprocessor.

        Args:
            load: the schedule for a problem.
            along_m: how many times the rows of a tile are read.
            along_n: how many times its columns are.
            rate: bytes for each clock.
        """
        question, (rows, columns, _) = load.question, load.schedule.tile
        assert question.arch.rates is not None
        read = along_m * rows * sum(one.dtype.bytes for one in question.form.rows_m)
        read += along_n * columns * sum(one.dtype.bytes for one in question.form.rows_n)
        return load.blocks * read * question.shape[2] / rate / question.arch.rates.boards[0].clock_mhz


F64 = F64Estimate(
    fixed_us=4.0,
    overlap=BULK.overlap,
    tile_us=2.5,
    waiting=0.1,
    other_registers=64,  # addresses, mostly; seen with NVRTC 13.0
    shared_bytes=128,
    cached_bytes=37,
)


@dataclass(frozen=True)
class SmallEstimate(Estimate):
    """Small products of many batch items, of which up to 32 blocks share a multiprocessor.

    Args:
        item_us: a block from the first load of an item to its store; a guess.
        registers: of a thread.
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
        return -(-load.question.items // self.at_once(load)) * self.item_us, memory_us(load.question)


SMALL = SmallEstimate(fixed_us=4.2, overlap=inf, item_us=1.5, registers=64)


@dataclass(frozen=True)
class PackedEstimate(Estimate):
    """Few rows by packed weights that warps decode, fitted to products of 1 to 64 rows on an H200.

    Args:
        beside: blocks that share a multiprocessor.
        again_us: a block that begins when another one ends.
        meeting_us_of: that parts of K meet, by reduction.
        part_us: each part of K.
        groups_us: that the groups of a block meet.
        decoded_per_clock: weights that any number of warps of a multiprocessor would decode, with no columns
            to multiply by.
        waiting_warps: warps that decode half as much.
        most_warps: warps that decode as much as more of them.
        columns_as_decoding: columns that leave half of that.
        wide_rows: rows of a warp that loads the other operand less often.
        wider: what such a warp reaches of the rate.
        deep: depth of a tile along K from which on the rate is reached.
        shallow: what shallower tiles reach of it.
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
        """Time in which the parts of K meet, and the groups of a block."""
        schedule, split = load.schedule, load.schedule.split_k
        assert isinstance(split, int)
        parts = dict(self.meeting_us_of)[schedule.reduction] + split * self.part_us if split > 1 else 0.0
        return parts + (self.groups_us if schedule.groups > 1 else 0.0)


@dataclass(frozen=True)
class AmdEstimate(Estimate):
    """Time by the rates of an AMD GPU: multiplying, reading shared memory, memory; nothing was measured.

    Several blocks share a multiprocessor. If there are many of them, they end one by one.

    Args:
        tile_us: a tile besides its multiplications.
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
        tiles = prod(load.tiles_along)
        rounds = tiles / processors if tiles >= 2 * processors else -(-tiles // processors)
        multiplied = 2 * rows * columns * k / load.flops_per_us
        # Each row of warps reads all columns of the tile, and each column of them all rows.
        shared = (rows * schedule.warps[1] + columns * schedule.warps[0]) * k * size
        served = shared / (rates.shared_bytes * board.clock_mhz)
        read = (m * n // rows + m * n // columns) * k * size / self.band
        return rounds * (max(multiplied, served) + self.tile_us), read / (board.memory_gbytes_per_s * 1e3)


AMD = AmdEstimate()
