"""Estimates of the time of a schedule: models with constants as data, and the choice of the model.

Each model is an `Estimate`: the time of a launch, a norm of times that overlap, and the time after the last
step.  The constants were fitted to measurements on an H200; `benchmarks/fit_times.py` fits them anew.  The
models of this file serve any schedule; each model of `tilewright.schedule.family_estimates` ranks one family
of proposals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, log2, prod

from tilewright.schedule.factors import pair_of
from tilewright.schedule.fixup import FAN, LEAST_SHARE, REGISTER_BYTES
from tilewright.schedule.form import has_slices
from tilewright.schedule.load import VECTOR, Load, resident_blocks, thread_values
from tilewright.schedule.needs import ROW_BYTES
from tilewright.schedule.sides import width

READ_MULTIPLY_ADDS = 4
"""Time of a CPU to write and read one partial sum, in multiply-adds; a guess."""

SCHEDULERS = 4
"""Warp schedulers of a multiprocessor, each with a quarter of its warps."""

WIDEST_BYTES = 16
"""Bytes of the widest access of a thread."""

WAVEFRONTS = 2
"""Wavefronts of a warp that reads 16 bytes a lane from shared memory, if lanes are paired."""


def joined_us(times: tuple[float, ...], power: float) -> float:
    """The time of actions that overlap: the norm of their times, or the longest if the power is infinite.

    Example:
        >>> joined_us((3.0, 4.0), 2), joined_us((3.0, 4.0), inf)
        (5.0, 4.0)
    """
    if power == inf:
        return max(times)
    found: float = sum(time**power for time in times) ** (1 / power)
    return found


@dataclass(frozen=True)
class Estimate:
    """A model of the time of a schedule, in us.

    Args:
        fixed_us: time of a launch.
        overlap: power of the norm that joins the times that overlap.
    """

    fixed_us: float
    overlap: float

    def applies(self, load: Load) -> bool:
        """Whether the model fits this schedule and machine."""
        raise NotImplementedError

    def waits(self, load: Load) -> tuple[float, ...]:
        """The times that overlap, for example of the multiplications and of the memory."""
        raise NotImplementedError

    def meeting_us(self, load: Load) -> float:
        """Time to add up the sums of the parts of K."""
        return 0.0

    def time_us(self, load: Load) -> float:
        """Estimated time of the schedule; 0 if the machine's rates are not known."""
        if load.question.arch.rates is None:
            return 0.0
        return self.fixed_us + joined_us(self.waits(load), self.overlap) + self.meeting_us(load)


# ---------------------------------------------------------------- the machine's rates alone


@dataclass(frozen=True)
class RatesEstimate(Estimate):
    """Lower bound by the machine's rates: rounds of whole tiles, and all bytes once."""

    fixed_us: float = 0.0
    overlap: float = inf

    def waits(self, load: Load) -> tuple[float, ...]:
        """Times of the multiplications and of the memory."""
        question, (rows, columns, _) = load.question, load.schedule.tile
        (m, n, k), rates = question.shape, question.arch.rates
        assert rates is not None
        rounds = -(-load.tiles // load.processors)
        multiply = rounds * 2 * rows * columns * k / load.flops_per_us
        moved = (m * k + k * n + m * n) * question.items * question.dtype.bytes
        return multiply, moved / rates.boards[0].memory_gbytes_per_s / 1e3


RATES = RatesEstimate()


# ---------------------------------------------------------------- bulk copies that wait for memory


@dataclass(frozen=True)
class BulkEstimate(Estimate):
    """Schedules with bulk copies that wait for memory: few rows, few tiles, K in parts.

    A block fetches stage after stage, as many at once as its ring has.  The time depends on how soon they
    arrive, how many bytes a multiprocessor and the second-level cache deliver, and how long the memory takes.

    Args:
        ramp_us: time until the memory delivers at its rate, because the cache writes back dirty lines; at
            most the time of all bytes.
        spared: share of that time that is saved if operands leave the cache first.
        arrival_us: time from the request of a stage to its arrival, without its bytes.
        bytes_per_us: rate into the shared memory of one multiprocessor.
        cached_bytes_per_us: rate from the second-level cache into all multiprocessors.
        cut_row: time of a row that lies in two lines of this cache, relative to a row in one.
        outside_us: time in which a bulk copy fills a line of `ROW_BYTES` outside the array with zeros; a line
            inside takes `ROW_BYTES` / `bytes_per_us`.
        line_us: time to multiply 64 rows by one column, along `ROW_BYTES` of K.
        decode_us: time to decode 64 rows of a line of `ROW_BYTES` in registers: along rows, and along K.
        shared_decode: relative additional time for each other group of a block that decodes.
        exposed_decode: share of the time to decode that does not overlap with multiplications.
        decoded_meeting_us: additional time to add up parts of K in memory if an operand is decoded.
        tile_us: time of a block besides its steps: its start, the first stage, and its results.
        clustered_us: additional time of a block in a cluster, if the grid has as many blocks as run at once.
        each_cluster_us: additional time of a block in a cluster, if the grid has a block for each tile.
        ticket_us: time to write the sums of a part to memory and take a ticket.
        read_bytes_per_us: rate at which a multiprocessor reads and adds the sums of the parts.
        cluster_us: time to add up the sums of a cluster of two blocks.
        doubled_us: additional time for each doubling of the cluster.
        scatter_us: time until the parts of a tile are written, without their bytes.
        scattered_bytes_per_us: rate at which all multiprocessors write these parts and read them again.
        part_us: time to read a share of each part.
    """

    fixed_us: float = 2.0
    overlap: float = 5
    ramp_us: float = 19.6
    spared: float = 0.33
    arrival_us: float = 0.79
    bytes_per_us: float = 1.45e5
    cached_bytes_per_us: float = 1.7e7
    cut_row: float = 3.5
    outside_us: float = 0.0015
    line_us: float = 0.00125
    decode_us: tuple[float, float] = (0.12, 0.081)
    shared_decode: float = 0.1
    exposed_decode: float = 0.59
    decoded_meeting_us: float = 0.6
    tile_us: float = 5.4
    clustered_us: float = 0.62
    each_cluster_us: float = 1.0
    ticket_us: float = 1.07
    read_bytes_per_us: float = 2.5e4
    cluster_us: float = 0.8
    doubled_us: float = 4.9
    scatter_us: float = 1.0
    scattered_bytes_per_us: float = 2.7e6
    part_us: float = 0.035

    def applies(self, load: Load) -> bool:
        """Whether bulk copies load the operands."""
        return load.schedule.by_bulk

    def waits(self, load: Load) -> tuple[float, ...]:
        """Times of the busiest multiprocessor, of the memory and of the second-level cache."""
        memory = load.question.memory_us
        ramp = min(self.ramp_us, memory) * (1 - self.spared * load.streamed)
        across, beside = load.schedule.cluster  # the blocks of a cluster share what the cache delivers
        shares = zip(load.sides, load.cut_rows, (beside, across), strict=True)
        fetched = sum(
            side.inside * side.row_bytes * (self.cut_row if is_cut else 1) / blocks
            for side, is_cut, blocks in shares
        )
        moved = load.tiles * load.steps * fetched
        return self._busiest_us(load), memory + ramp, moved / self.cached_bytes_per_us

    def _busiest_us(self, load: Load) -> float:
        """Time of the multiprocessor with most blocks."""
        schedule, processors = load.schedule, load.processors
        tiles, parts = max(load.tiles, 1), load.parts
        fits = 1
        if not schedule.blocks:
            fits = resident_blocks(load.question.arch, load.held_bytes, most=2, reserved=0)
        beside = min(fits, -(-tiles * parts // processors))
        rounds = -(-tiles * parts // (processors * beside))
        steps = rounds * -(-load.steps // parts)
        if load.is_stream:
            steps = -(-tiles * load.steps // processors)
        arrival = (self.arrival_us + load.step_bytes / self.bytes_per_us) / (schedule.stages - 1)
        rows, columns, depth = schedule.tile
        lines = depth * load.question.dtype.bytes // ROW_BYTES
        # Lines of `ROW_BYTES` outside the arrays, which the last tile along a dimension has.  A block with
        # several tiles has an average share of them.
        outside = 0.0
        for side, along, extent in zip(load.sides, load.tiles_along, load.extents, strict=True):
            lines_past = (along * side.extent - extent) * side.row_bytes / ROW_BYTES
            outside += lines_past / (max(along, 1) if rounds > 1 else 1)
        copied = load.step_bytes / self.bytes_per_us + outside * self.outside_us
        busy = copied, rows / 64 * columns * lines * self.line_us
        decoding = 0.0
        if load.question.decodes:  # each group decodes its rows of the tile
            decoded = rows // schedule.groups * (1 + self.shared_decode * (schedule.groups - 1))
            along_k = load.question.majors[1 if schedule.swap_ab else 0] == "k"
            decoding = lines * decoded / 64 * self.decode_us[along_k]
        copying, multiply = (beside * time for time in busy)
        step = max(arrival, copying, multiply + self.exposed_decode * decoding, decoding)
        tile = self.tile_us
        if schedule.cluster != (1, 1):
            tile += self.clustered_us if schedule.blocks else self.each_cluster_us
        return steps * step + (1 if schedule.blocks else rounds) * tile

    def meeting_us(self, load: Load) -> float:
        """Time to add up the sums of the parts of K; on a CPU, in multiply-adds."""
        question, schedule, parts = load.question, load.schedule, load.parts
        if parts <= 1 and not load.is_stream:
            return 0.0
        rows, columns, _ = schedule.mma.tile
        totals = len(question.form.totals)
        if question.arch.lanes == 1:
            return load.read_parts * rows * columns * totals * READ_MULTIPLY_ADDS
        tile_us = rows * columns * totals * schedule.atom.c_dtype.bytes / self.read_bytes_per_us
        if schedule.is_clustered:  # each block adds a share of the tile
            return self.cluster_us + self.doubled_us * (log2(parts) - 1) + tile_us
        decoded = self.decoded_meeting_us if question.decodes else 0.0
        if schedule.reduction_class.waits:  # each waits for all, and adds a share of the tile
            written = load.tiles * parts * tile_us * self.read_bytes_per_us / self.scattered_bytes_per_us
            if columns <= LEAST_SHARE or not has_slices(question.form):  # one adds all of it
                return decoded + self.scatter_us + written + parts * tile_us
            return decoded + self.scatter_us + written + parts * self.part_us + tile_us
        tiles = load.read_parts + load.is_stream  # a block of a stream has parts of two tiles
        return decoded + self.ticket_us * (1 + (parts > FAN)) + tiles * tile_us


BULK = BulkEstimate()
"""The model of bulk copies, fitted on an H200 with cold caches.

The fit used the 16-bit products of `h200_candidates.json` and `h200_fitted_tiles.json`, and 9 products of f16
by f8e4m3.  Near the fastest schedules the root mean square of log(estimate / time) is 0.10.
"""


# ---------------------------------------------------------------- copies by threads


@dataclass(frozen=True)
class CopiesEstimate(Estimate):
    """Schedules whose threads copy the operands on a GPU: the busiest multiprocessor, the memory, the cache.

    The time depends on how soon stage after stage arrives, how often blocks follow each other, and how many
    bytes the second-level cache delivers.

    Args:
        block_us: time of a block besides its steps: its start, the first stage, and its results.
        arrival_us: time from the request of a stage to its arrival.
        issued: time of a multiplication, relative to the machine's rate.
        cached_bytes_per_us: rate from the second-level cache into all multiprocessors.
        ticket_us: time to write the sums of a part to memory and take a ticket.
        written_bytes_per_us: rate at which all multiprocessors write the sums of the parts.
        read_bytes_per_us: rate at which a multiprocessor reads and adds the sums of the parts.
        read_us: latency of the sums of one part.
    """

    block_us: float
    arrival_us: float
    issued: float
    cached_bytes_per_us: float
    ticket_us: float
    written_bytes_per_us: float
    read_bytes_per_us: float
    read_us: float

    def applies(self, load: Load) -> bool:
        """Whether threads copy the operands, on a GPU whose rates are known."""
        arch = load.question.arch
        return not load.schedule.by_bulk and arch.lanes > 1 and arch.rates is not None

    def waits(self, load: Load) -> tuple[float, ...]:
        """Times of the busiest multiprocessor, of the memory and of the second-level cache."""
        (m, n, k), (a, b) = load.question.shape, load.operands
        rows, columns = (min(tile, most) for tile, most in zip(load.schedule.tile, (m, n), strict=False))
        moved = load.tiles * (rows * a + columns * b) * k * load.question.dtype.bytes
        return self._busiest_us(load), load.question.memory_us, moved / self.cached_bytes_per_us

    def _busiest_us(self, load: Load) -> float:
        """Time of the multiprocessor with most blocks."""
        rounds = -(-load.blocks // min(load.blocks, load.resident))
        return max(self._path_us(load, rounds)) + (rounds + load.is_stream) * self.block_us

    def _path_us(self, load: Load, rounds: int) -> tuple[float, float]:
        """Times of all multiplications, and of the arrival of all stages, of the busiest multiprocessor."""
        rows, columns, depth = load.schedule.tile
        work = 2 * rows * columns * depth * len(load.question.form.products)
        multiply = load.blocks * load.block_steps * work / load.flops_per_us
        arriving = rounds * load.block_steps * self.arrival_us / max(load.schedule.stages - 1, 1)
        return multiply * self.issued, arriving

    def meeting_us(self, load: Load) -> float:
        """Time of the last block of a tile, which adds up the sums of all parts."""
        if load.parts <= 1 and not load.is_stream:
            return 0.0
        rows, columns, _ = load.schedule.mma.tile
        tile = rows * columns * len(load.question.form.totals) * load.schedule.atom.c_dtype.bytes
        written = load.parts * load.tiles * tile / self.written_bytes_per_us
        # A block of a stream has parts of two tiles.
        reading = (load.read_parts + load.is_stream) * max(self.read_us, tile / self.read_bytes_per_us)
        return self.ticket_us * (1 + (load.parts > FAN)) + written + reading


@dataclass(frozen=True)
class FmaEstimate(CopiesEstimate):
    """Exact products of f32 by multiply-adds, with operands copied in the background.

    The blocks of the busiest multiprocessor run in rounds: as many at once as fit, and at last the rest.
    With few warps a scheduler waits for latencies, and with less than one warp it is idle.

    Args:
        issued: cycles of a multiply-add of a warp; more than 1, because its registers are not always ready.
        waiting: cycles that a scheduler's only warp waits for each multiply-add.
        hiding: power of the number of warps by which these cycles are divided.
        reading: cycles of each wavefront that is read from shared memory.
        copying: cycles of an access of a warp that copies an operand.
        narrow: cycles of each of these accesses in addition to those of 16 bytes a lane, if it is narrower.
        storing: cycles of an access of a warp that stores results from registers.
        in_rows: factor of these cycles if results are stored in whole rows, through shared memory.
        starting: cycles of a block before its first step, for each of these copies of one warp in all stages.
        several: whether the model serves forms of several products, such as complex ones, or of one.
    """

    waiting: float
    hiding: float
    reading: float
    copying: float
    narrow: float
    storing: float
    in_rows: float
    starting: float = 0.0
    several: bool = False

    def applies(self, load: Load) -> bool:
        """Whether f32 is multiplied and added exactly, on a GPU that copies in the background."""
        atom, arch = load.schedule.atom, load.question.arch
        kinds = {atom.a_dtype.name, atom.b_dtype.name, atom.c_dtype.name}
        known = load.schedule.staging == "cp_async" and atom.instruction == "fma" and kinds == {"f32"}
        fits = arch.rates is not None and "cp_async" in arch.features
        return known and fits and load.question.form.is_single != self.several

    def _busiest_us(self, load: Load) -> float:
        """Time of the multiprocessor with most blocks."""
        rates = load.question.arch.rates
        assert rates is not None
        at_once = min(load.blocks, load.resident)
        rounds, rest = divmod(load.blocks, at_once)
        step = rounds * self._step_cycles(load, at_once) + (self._step_cycles(load, rest) if rest else 0.0)
        tiles = load.blocks if load.is_stream else load.blocks / load.parts
        question, form = load.question, load.question.form
        specs = [form.spec(store.operand, question.classes) for store in form.stores]
        rows, columns = (side.inside for side in load.sides)
        in_rows = load.schedule.epilogue_class.is_buffered
        each = [WIDEST_BYTES if in_rows else min(width(spec), WIDEST_BYTES) for spec in specs]
        stored = sum(spec.dtype.bytes / at_once for spec, at_once in zip(specs, each, strict=True))
        # Accesses of warps that store a tile; whole rows count as accesses of 16 bytes a lane.
        accesses = rows * columns * stored * (self.in_rows if in_rows else 1.0) / question.arch.lanes
        cycles = load.block_steps * step + tiles * accesses * self.storing
        copies = sum(lanes / at_once for lanes, at_once in self._copies(load)) / prod(load.schedule.warps)
        cycles += self.starting * load.schedule.stages * copies
        return cycles / rates.boards[0].clock_mhz + self.block_us

    def _step_cycles(self, load: Load, blocks: int) -> float:
        """Cycles of a step of some blocks at once: to multiply and to copy, or until a stage arrives."""
        schedule, question, rates = load.schedule, load.question, load.question.arch.rates
        assert rates is not None
        (rows, columns, depth), along = schedule.tile, prod(schedule.warps)
        warps = blocks * along / SCHEDULERS  # on each scheduler
        multiply = rows * columns * depth * 2 * len(question.form.products) / rates.fma_flops["f32"]
        multiply *= (self.issued + self.waiting / max(warps, 1) ** self.hiding) / min(warps, 1)
        (a, b), (of_a, of_b, _) = load.operands, thread_values(schedule.mma, VECTOR)
        vectors = (a * of_a + b * of_b) / VECTOR
        reading = vectors * WAVEFRONTS * along * depth / VECTOR * self.reading
        copying = sum(
            lanes / at_once * self.copying + lanes * (1 / at_once - 1 / WIDEST_BYTES) * self.narrow
            for lanes, at_once in self._copies(load)
        )
        arriving = self.arrival_us * rates.boards[0].clock_mhz / max(schedule.stages - 1, 1)
        return max(float(blocks * (multiply + reading + copying)), arriving)

    def _copies(self, load: Load) -> Iterator[tuple[float, int]]:
        """Bytes that a lane copies in a step, and bytes at once, of each operand."""
        schedule, question = load.schedule, load.question
        form = question.form.arranged(schedule.swap_ab)
        for tile, factors in zip(schedule.tile, (form.rows_m, form.rows_n), strict=False):
            for factor in factors:
                both = pair_of(factor.part)  # copies move both numbers of a pair
                copied = factor.part.operand if both is None else both[0]
                at_once = min(width(form.spec(copied, question.classes)), WIDEST_BYTES)
                yield tile * schedule.block_k * factor.dtype.bytes / question.arch.lanes, at_once


FMA = FmaEstimate(
    fixed_us=4.3,
    overlap=2.4,
    block_us=0.42,
    arrival_us=0.7,
    issued=1.22,
    cached_bytes_per_us=8.0e6,
    ticket_us=1.9,
    written_bytes_per_us=1.85e6,
    read_bytes_per_us=7.5e4,
    read_us=0.0,
    waiting=0.59,
    hiding=3.24,
    reading=0.21,
    copying=3.9,
    narrow=5.8,
    storing=42.0,
    in_rows=1.5,  # a guess
)
"""The model of one product by multiply-adds.

Fitted to random products of f32 and of complex64 on an H200, with cold caches.
"""

FMA_OF_SEVERAL = replace(
    FMA,
    block_us=1.1,
    waiting=0.42,
    reading=0.045,
    copying=3.2,
    storing=32.0,
    starting=18.0,
    ticket_us=1.8,
    read_bytes_per_us=4.4e5,
    several=True,
)
"""The model of several products by multiply-adds.

Fitted to 24 random products of complex64 on an H200, up to eleven schedules each, with cold caches.
"""

RING = CopiesEstimate(
    fixed_us=5.0,
    overlap=4.4,
    block_us=4.0,
    arrival_us=0.69,
    issued=1.3,  # a guess
    cached_bytes_per_us=9.7e6,
    ticket_us=0.233,
    written_bytes_per_us=1.83e6,
    read_bytes_per_us=7.16e4,
    read_us=0.0874,
)
"""The model of rings by ``cp.async``, fitted to f16 by ``mma.sync`` in 1 to 132 parts of K on an H200."""


@dataclass(frozen=True)
class Tf32Estimate(CopiesEstimate):
    """Products of tf32 by ``mma.sync``, of operands that lie along M and N.

    Warps load the fragments of these operands element by element, and wait for them.

    Args:
        waiting: time that a scheduler's only warp waits, relative to the machine's rate of multiplication; of
            several warps each waits while the others multiply.
    """

    waiting: float

    def applies(self, load: Load) -> bool:
        """Whether ``mma.sync`` multiplies tf32 and an operand is not contiguous along K."""
        atom = load.schedule.atom
        is_tf32 = atom.precision is not None and not atom.asynchronous and atom.instruction != "fma"
        return super().applies(load) and is_tf32 and load.question.majors != ("k", "k")

    def _path_us(self, load: Load, rounds: int) -> tuple[float, float]:
        multiply, arriving = super()._path_us(load, rounds)
        beside = min(load.blocks, load.resident)
        warps = beside * prod(load.schedule.warps) / SCHEDULERS
        return multiply * (1 + self.waiting / self.issued / warps), arriving


TF32 = Tf32Estimate(**{**vars(RING), "issued": 4.0}, waiting=4.5)
"""The model of tf32, fitted to six products on an H200 with whole K; parts take the times of `RING`."""


@dataclass(frozen=True)
class ElementsEstimate(CopiesEstimate):
    """Asynchronous products of tiles that threads copy, because bulk copies cannot load the operands.

    The time depends on the number of accesses: one element, or a few, for each lane of a warp.

    Args:
        access_us: time of a warp to load from global memory, or to access shared memory, with all lanes.
        background_us: time of a warp to copy in the background.
        scattered: accesses for each result of a lane that is stored from registers, not in whole rows.
        other_registers: registers of a thread besides its sums and the next tile.
        background_registers: registers of a thread besides its sums if it copies in the background.
    """

    access_us: float
    background_us: float
    scattered: int
    other_registers: int
    background_registers: int

    def applies(self, load: Load) -> bool:
        """Whether threads copy the operands of an asynchronous multiply."""
        return super().applies(load) and load.schedule.atom.asynchronous

    def pieces(self, load: Load) -> float:
        """Registers of a thread for the next tile; an element that is loaded alone takes one of its own."""
        if load.schedule.copies_in_background:
            return 0.0
        held, depth = 0.0, load.schedule.block_k
        for side in load.case.sides:
            held += side.rows * depth * side.dtype.bytes / min(width(side.spec), REGISTER_BYTES)
        return held / load.case.threads

    def _busiest_us(self, load: Load) -> float:
        schedule, case, arch = load.schedule, load.case, load.question.arch
        in_background, depth = schedule.copies_in_background, schedule.block_k
        accesses = sum(
            side.rows * depth * side.dtype.bytes / min(width(side.spec), WIDEST_BYTES) / arch.lanes
            for side in case.sides
        )
        others = self.background_registers if in_background else self.other_registers
        taken = min(int(case.accumulators + self.pieces(load)) + others, arch.thread_registers)
        resident = resident_blocks(arch, case.shared_bytes, threads=case.threads, registers=taken)
        rounds, turns = -(-load.blocks // min(load.blocks, resident)), load.blocks * load.block_steps
        multiply, arriving = self._path_us(load, rounds)
        copying = turns * accesses * (self.background_us if in_background else 2 * self.access_us)
        whole = rounds * self.block_us + self.stored_us(load)
        return joined_us((copying, arriving, multiply), self.overlap) + whole

    def stored_us(self, load: Load) -> float:
        """Time of the busiest multiprocessor to store its tiles, if threads store them."""
        question, buffered = load.question, load.schedule.epilogue_class.is_buffered
        rows, columns = (side.inside for side in load.sides)
        accesses = 0.0
        for store in question.form.stores:
            spec = question.form.spec(store.operand, question.classes)
            at_once = min(width(spec), WIDEST_BYTES if buffered else REGISTER_BYTES)
            accesses += rows * columns * spec.dtype.bytes / at_once / question.arch.lanes
        tiles = load.blocks / load.parts
        return tiles * accesses * self.access_us * (2 if buffered else self.scattered)


ELEMENTS = ElementsEstimate(
    **{**vars(RING), "fixed_us": 4.0, "block_us": 0.5, "arrival_us": 0.955, "issued": 2.5},
    access_us=1.77e-3,
    background_us=4.4e-3,
    scattered=7,
    other_registers=56,
    background_registers=96,
)
"""The model of tiles copied by threads, fitted to 703 products of odd rows by ``wgmma`` on an H200.

The dtypes were f16 and bf16.  The median error is 11 per cent.  No product split K: parts take the times of
`RING`.
"""

ESTIMATES: tuple[Estimate, ...] = (BULK, FMA, FMA_OF_SEVERAL, ELEMENTS, TF32, RING)
"""The models of any schedule; the first that applies counts."""


def estimate_of(load: Load) -> Estimate | None:
    """The model of a schedule, or None."""
    return next((model for model in ESTIMATES if model.applies(load)), None)
