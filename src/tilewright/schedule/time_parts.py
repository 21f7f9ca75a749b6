"""An estimate of time with a named part, in us, for every engine of a GPU, from counts and a few constants.

`WorkCounts` counts the work of a schedule: blocks, rounds, and the work of each unit of a multiprocessor in
one step.  It has no fitted number.  `time_parts` turns it into microseconds with `TimeConstants`, which are
data of an architecture.  All rates come from the architecture's record.  `benchmarks/estimates.py` compares
the estimate with measured times, and fits the constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from tilewright.arch import Board, Rates, TimeConstants
from tilewright.schedule.factors import Factor
from tilewright.schedule.fixup import FAN
from tilewright.schedule.form import Form
from tilewright.schedule.load import MOST_BLOCKS, VECTOR, Load, TileSide, in_clusters, resident_blocks
from tilewright.schedule.needs import ROW_BYTES
from tilewright.schedule.question import Question
from tilewright.schedule.sides import width

OVERLAP = 5.0
"""Power of the norm that joins times that overlap; 4 to 6 fit as well."""

DOUBT = 1.03
"""Factor on an estimate with split K or clusters when schedules are compared: they must save this much."""

FILL_BYTES = 64
"""Bytes per clock from the second-level cache into a multiprocessor."""

ROLE_THREADS, BULK_THREADS = 128, 32
"""Threads that issue bulk copies: a group of warps if it gives registers away, else one warp."""

COPIED = 0.885
"""Share of a data sheet's memory rate that a copy reaches; measured on an H200."""

OTHER_REGISTERS, LOADED_REGISTERS = 40, 24
"""Registers of a thread besides its sums, and those of addresses if it copies in the background."""


def joined(*times: float) -> float:
    """The time of actions that overlap: the norm of their times with the power `OVERLAP`.

    Example:
        >>> round(joined(3.0, 3.0), 3), joined(4.0, 0.0)
        (3.446, 4.0)
    """
    total: float = sum(time**OVERLAP for time in times) ** (1 / OVERLAP)
    return total


@dataclass(frozen=True)
class TimeParts:
    """The estimated time of a kernel in named parts, in us.

    Multiplication, shared memory and instructions are those of the busiest multiprocessor, for all its steps.

    Args:
        launch: launch of the kernel, in clusters or not.
        multiply: multiplications.
        shared: reads and writes of shared memory that overlap with them.
        issue: instructions that compete with them: copies by threads, and reads of multiply-adds.
        chain: latency of all steps of the rounds, one after the other.
        queue: wait of a short ring for a busy memory.
        memory: all arrays once, at the rate of a copy.
        write_back: dirty lines of the second-level cache that leave it first.
        cache: lines from the second-level cache into all multiprocessors, with those of cut rows.
        stores: results that are stored between main loops.
        last_store: results that are stored after the last main loop.
        meeting: sums of the parts of K.
    """

    launch: float
    multiply: float
    shared: float
    issue: float
    chain: float
    queue: float
    memory: float
    write_back: float
    cache: float
    stores: float
    last_store: float
    meeting: float

    @property
    def main_loop(self) -> float:
        """Time of the main loops of the busiest multiprocessor: throughput and latency overlap."""
        return joined(joined(self.multiply, self.shared) + self.issue, self.chain + self.queue)

    @property
    def total(self) -> float:
        """Time of the kernel: main loops with their stores, memory and cache overlap; the rest adds up."""
        overlapping = joined(self.main_loop + self.stores, self.memory + self.write_back, self.cache)
        return self.launch + overlapping + self.last_store + self.meeting

    @property
    def limit(self) -> str:
        """The longest of the parts that overlap."""
        parts = {
            "multiplication": self.multiply,
            "shared memory": self.shared,
            "copies by threads": self.issue,
            "latency of the steps": self.chain + self.queue,
            "memory": self.memory + self.write_back,
            "second-level cache": self.cache,
            "stores": self.stores + self.last_store,
        }
        return max(parts, key=lambda name: parts[name])


# ---------------------------------------------------------------- the work of a schedule


@dataclass(frozen=True)
class WorkCounts:
    """Work of a schedule for a problem, counted from the known rates of a GPU, without fitted numbers.

    Args:
        load: the schedule for the problem.
        board_given: the model of card; None: the first one of the architecture.
    """

    load: Load
    board_given: Board | None = None

    @property
    def question(self) -> Question:
        """The problem."""
        return self.load.question

    @property
    def rates(self) -> Rates:
        """Rates of a multiprocessor."""
        rates = self.question.arch.rates
        assert rates is not None
        return rates

    @cached_property
    def board(self) -> Board:
        """The model of card whose rates are used; by default the first of the architecture."""
        return self.board_given or self.rates.boards[0]

    @cached_property
    def form(self) -> Form:
        """The computation as it is multiplied."""
        return self.question.form.arranged(self.load.schedule.swap_ab)

    @cached_property
    def sides(self) -> tuple[tuple[Factor, TileSide, int], tuple[Factor, TileSide, int]]:
        """Each operand, its share of a tile, and the blocks of a cluster that fetch it together."""
        a, b = self.load.sides
        across, beside = self.load.schedule.cluster if self.is_bulk else (1, 1)
        return (self.form.a, a, beside), (self.form.b, b, across)

    # ------------------------------------------------------------ kinds of schedules

    @property
    def is_bulk(self) -> bool:
        """Whether another role fills the ring by bulk copies."""
        return self.load.schedule.by_bulk

    @property
    def is_asynchronous(self) -> bool:
        """Whether the instruction multiplies asynchronously, from shared memory."""
        return self.load.schedule.atom.asynchronous

    @property
    def is_fma(self) -> bool:
        """Whether lanes multiply and add."""
        return self.load.schedule.atom.instruction == "fma"

    @property
    def is_persistent(self) -> bool:
        """Whether a block computes one tile after the other."""
        schedule = self.load.schedule
        return bool(schedule.blocks) and (not schedule.is_split or schedule.is_streamed)

    @property
    def is_alternating(self) -> bool:
        """Whether a group multiplies while another one stores."""
        return self.load.schedule.roles == "ping-pong"

    @cached_property
    def awaits_copies(self) -> bool:
        """Whether threads wait for the elements that they load: no instruction copies them asynchronously."""
        schedule = self.load.schedule
        if self.is_bulk:
            return False
        least = min(self.question.arch.async_bytes, default=ROW_BYTES)
        return not schedule.stages > 1 or min(self._access_bytes) < least

    # ------------------------------------------------------------ tiles, blocks and rounds

    @cached_property
    def tiles(self) -> int:
        """Tiles, also those that only fill a cluster, in all batch items."""
        along = zip(self.load.tiles_along, self.load.schedule.cluster, strict=True)
        return prod(-(-count // blocks) * blocks for count, blocks in along) * self.question.items

    @cached_property
    def units(self) -> int:
        """Number of tiles, or of all their parts of K; for a stream, of its blocks."""
        if self.load.is_stream:
            return max(min(self.load.schedule.blocks, self.tiles * self.load.steps), 1)
        return max(self.tiles * self.load.parts, 1)

    @cached_property
    def parts(self) -> int:
        """Parts of K of a tile; for a stream, on average and rounded up."""
        return max(-(-self.units // max(self.tiles, 1)), 1)

    @cached_property
    def unit_steps(self) -> int:
        """Steps along K of a unit."""
        return -(-self.tiles * self.load.steps // self.units)

    @cached_property
    def cluster_blocks(self) -> int:
        """Blocks of a cluster."""
        schedule = self.load.schedule
        return self.load.parts if schedule.is_clustered else prod(schedule.cluster)

    @cached_property
    def each(self) -> int:
        """Units of the busiest multiprocessor."""
        usable, size = self.load.processors, self.cluster_blocks
        if size > 1:
            usable = max(in_clusters(usable, size), size)
        if self.is_persistent:
            usable = min(usable, self.load.schedule.blocks)
        return -(-self.units // usable)

    @cached_property
    def at_once(self) -> int:
        """Units that a multiprocessor works on at once."""
        if self.is_alternating:
            return min(2, self.each)
        # Blocks for which a multiprocessor has shared memory, registers and threads.
        schedule, arch, (rows, columns, depth) = (
            self.load.schedule,
            self.question.arch,
            self.load.schedule.tile,
        )
        shared = schedule.stages * sum(side.extent * side.row_bytes for _, side, _ in self.sides)
        if schedule.epilogue != "direct":
            buffers = schedule.groups * schedule.buffers * 64 * ROW_BYTES
            shared += buffers if schedule.roles != "none" else rows * columns * self.result_bytes
        multiplying = arch.lanes * prod(schedule.warps) * (4 if self.is_asynchronous else 1)
        lanes = multiplying * schedule.groups
        copying = (ROLE_THREADS if schedule.registers else BULK_THREADS) if self.is_bulk else 0
        sums = rows * columns * len(self.form.totals) / lanes * (2 if schedule.promote else 1)
        if self.is_asynchronous:
            loaded = (rows + columns) * depth * self.question.dtype.bytes / 4 / lanes
            loaded = loaded if schedule.staging_class.through_registers else LOADED_REGISTERS
            registers = sums + OTHER_REGISTERS + (0 if self.is_bulk else loaded)
        else:
            registers = sums * (1 if self.is_fma else 2 if self.parts == 1 else 4) + 2 * OTHER_REGISTERS
        threads = multiplying * schedule.groups + copying
        by_threads = arch.simds * arch.simd_warps * arch.lanes // threads or 1
        registers = int(min(max(registers, 32), arch.thread_registers))
        most = min(by_threads, MOST_BLOCKS)
        resident = resident_blocks(arch, shared, threads=threads, registers=registers, most=most)
        asked = -(-schedule.blocks // self.load.processors) if schedule.blocks else MOST_BLOCKS
        return min(resident, max(asked, 1), self.each)

    @property
    def rounds(self) -> int:
        """Rounds of units that follow each other."""
        return -(-self.each // self.at_once)

    # ------------------------------------------------------------ one step of a unit, in us

    @property
    def result_bytes(self) -> int:
        """Bytes of an element of all results."""
        return sum(store.operand.dtype.bytes for store in self.form.stores)

    @cached_property
    def multiply_us(self) -> float:
        """Time of the multiplications of a step at the machine's rate."""
        return 2 * prod(self.load.schedule.tile) * len(self.form.products) / self.load.flops_per_us

    @cached_property
    def shared_us(self) -> float:
        """Time of a step's reads and writes of shared memory."""
        schedule, (rows, columns, depth) = self.load.schedule, self.load.schedule.tile
        (_, a, _), (_, b, _) = self.sides
        written = a.extent * a.row_bytes + b.extent * b.row_bytes
        if self.is_asynchronous:  # each instruction reads 64 rows of A and all columns of B
            read = a.extent * a.row_bytes + rows / 64 * b.extent * b.row_bytes
        elif self.is_fma:
            mma = schedule.mma
            threads = rows * columns / mma.c().size_values
            read = threads * (mma.a(VECTOR).size_values + mma.b(VECTOR).size_values) / VECTOR
            return read * depth * a.row_bytes / depth / 2 * self._per_shared_us  # two lanes share a read
        else:
            read = a.extent * a.row_bytes * schedule.warps[1] + b.extent * b.row_bytes * schedule.warps[0]
        return (read * len(self.form.products) + written) * self._per_shared_us

    @property
    def _per_shared_us(self) -> float:
        return 1 / (self.rates.shared_bytes * self.board.clock_mhz)

    @cached_property
    def fill_us(self) -> float:
        """Time in which the second-level cache fills a step's stage."""
        return self.load.step_bytes / FILL_BYTES / self.board.clock_mhz

    @cached_property
    def _access_bytes(self) -> tuple[int, int]:
        """Widest access of a thread to each operand."""
        classes, most = self.question.classes, self.question.arch.access_bytes
        a, b = (min(width(self.form.spec(f.part.operand, classes)), most) for f, _, _ in self.sides)
        return a, b

    def copy_clocks(self, outside: float) -> float:
        """Accesses of warps that copy a step, in clocks if each takes one.

        Args:
            outside: cost of an access outside the array, relative to one inside.
        """
        if self.is_bulk:
            return 0.0
        accesses = sum(
            (side.inside + outside * (side.extent - side.inside)) * side.row_bytes / access
            for (_, side, _), access in zip(self.sides, self._access_bytes, strict=True)
        )
        return (2 if self.awaits_copies else 1) * accesses / self.question.arch.lanes

    @cached_property
    def store_clocks(self) -> float:
        """Accesses of warps that store a tile's results, in clocks if each takes one."""
        found = 0.0
        (_, a, _), (_, b, _) = self.sides
        for store in self.form.stores:
            size = store.operand.dtype.bytes
            access = min(width(self.form.spec(store.operand, self.question.classes)), 16)
            if self.load.schedule.epilogue == "direct":
                access = min(access, 2 * size)
            found += a.inside * b.inside * size / access / self.question.arch.lanes
        return found

    # ------------------------------------------------------------ the whole kernel, in us

    @cached_property
    def cache_us(self) -> tuple[float, float]:
        """Times of the bytes from the second-level cache: all of them, and those of cut rows."""
        fetched = [(factor, side.inside * side.row_bytes, blocks) for factor, side, blocks in self.sides]
        us = self.units * self.unit_steps / self.load.processors / FILL_BYTES / self.board.clock_mhz
        cut = sum(moved for factor, moved, _ in fetched if self.question.is_cut(factor))
        return sum(moved / blocks for _, moved, blocks in fetched) * us, cut * us

    @property
    def bytes_per_us(self) -> float:
        """Bytes that a copy in memory moves in a us."""
        return 1e3 * (self.board.copied_gbytes_per_s or COPIED * self.board.memory_gbytes_per_s)

    @cached_property
    def memory_us(self) -> float:
        """Time of all arrays, once, at the rate of a copy."""
        (m, n, k), form = self.question.shape, self.question.form
        a, b = (sum(one.dtype.bytes for one in side) for side in (form.rows_m, form.rows_n))
        moved = ((m * a + n * b) * k + m * n * self.result_bytes) * self.question.items
        return moved / self.bytes_per_us

    @cached_property
    def sum_bytes(self) -> int:
        """Bytes of the sums of a tile; with ping-pong groups, of each group's tile."""
        rows, columns, _ = self.load.schedule.tile
        return rows * columns * len(self.form.totals) * self.load.schedule.atom.c_dtype.bytes


# ---------------------------------------------------------------- microseconds


def time_parts(load: Load) -> TimeParts | None:
    """The estimated time of a schedule in parts; None for machines without known rates, such as CPUs.

    Args:
        load: the schedule for a problem.

    Example:
        >>> import tilewright as tw
        >>> from tilewright.ops.products import plain
        >>> from tilewright.schedule.load import Load
        >>> given = (tw.like("bf16", 4096, 4096), tw.like("bf16", 4096, 4096, order="F"))
        >>> asked = plain(0).bind(precision="exact").question(
        ...     *given, tw.like("bf16", 4096, 4096), target="cuda", arch="sm_90a"
        ... )
        >>> wide = tw.Schedule(
        ...     tw.atoms.wgmma("bf16", 256), (128, 256, 64), stages=4, staging="tma", roles="cooperative",
        ...     groups=2, blocks=132, group_m=8, epilogue="staged",
        ... )
        >>> parts = time_parts(Load(asked, wide))
        >>> parts.limit in ("multiplication", "shared memory"), 150 < parts.total < 250
        (True, True)
    """
    if load.question.arch.rates is None:
        return None
    return parts_of(WorkCounts(load), load.question.arch.times)


def parts_of(work: WorkCounts, constants: TimeConstants) -> TimeParts:
    """The parts of a schedule's time, from its work and the constants of the machine."""
    load, schedule, clock = work.load, work.load.schedule, work.board.clock_mhz
    multiply, each_steps = work.multiply_us, work.each * work.unit_steps
    if not work.is_asynchronous and not work.is_fma and schedule.atom.a_dtype.name != "f64":
        multiply /= constants.synchronous
    copies = work.copy_clocks(constants.outside) * constants.access_clocks / clock
    issue = copies + (constants.reading * work.shared_us if work.is_fma else 0.0)
    shared = 0.0 if work.is_fma else joined(work.shared_us, work.fill_us)
    flight = max(schedule.stages - 1, 1)
    ring = 0.0 if work.awaits_copies else constants.arrival_us / flight
    if work.is_bulk or (not work.awaits_copies and not work.is_asynchronous):
        own = multiply / schedule.groups if work.is_asynchronous else 0.0
        chain = max(ring, own + constants.step_us)
    else:
        chain = constants.copied_step_us + ring + copies
    if schedule.stages == 1 and not schedule.staging_class.through_registers:  # nothing is loaded ahead
        chain += multiply
    memory = work.memory_us
    write_back = min(memory, work.board.l2_mbytes * 1e6 / work.bytes_per_us) * constants.dirty
    lines, cut = work.cache_us
    store = 0.0
    if not load.schedule.is_split or load.is_stream:
        store = work.store_clocks * constants.store_clocks / clock
    between: float = work.each - work.at_once
    if work.is_persistent:  # a block of a stream ends as many tiles as it has shares of
        between = work.tiles / work.units if load.is_stream else work.each - 1
    meeting, parts = 0.0, work.parts
    if schedule.is_split:
        # One block reads the sums of all parts of K, in two rounds if they are many; or each block adds up a
        # share of the tile.
        shares = schedule.has_shares and parts > 1
        read: float = min(parts, FAN + parts / FAN) + load.is_stream
        turns: float = 1 + (parts > FAN) + shares
        if shares and work.is_asynchronous:
            read, turns = 1.0, 1 + 0.04 * parts
        meeting = constants.ticket_us * turns + read * work.sum_bytes / constants.part_bytes_per_us
    return TimeParts(
        launch=constants.launch_us + constants.cluster_us * (work.cluster_blocks > 1),
        multiply=each_steps * multiply,
        shared=each_steps * shared,
        issue=each_steps * issue,
        chain=work.rounds * work.unit_steps * chain,
        queue=0.0 if work.awaits_copies else (memory + write_back) / flight,
        memory=memory,
        write_back=write_back,
        cache=lines + constants.cut * cut,
        stores=0.0 if work.is_alternating else between * store,
        last_store=(1 if work.is_persistent else work.at_once) * store,
        meeting=meeting,
    )


def doubt(load: Load) -> float:
    """Factor on an estimate when schedules are compared; at nearly equal times the simpler schedule wins."""
    return DOUBT if load.schedule.is_split or prod(load.schedule.cluster) > 1 else 1.0


def ranked_us(load: Load) -> float:
    """The estimated time for comparisons of schedules; 0 if the rates are unknown."""
    parts = time_parts(load)
    return parts.total * doubt(load) if parts is not None else 0.0
