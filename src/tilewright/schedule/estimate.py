"""Estimates of the time of a schedule: models with constants as data, and the choice of the model.

Each model is an `Estimate`: times that overlap, joined by a norm, between a launch and what follows the last
step.  The constants were fitted to measurements on an H200; `benchmarks/fit_times.py` fits them anew.  Models
of one family of proposals are in `estimate_forms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log2, prod

from tilewright.schedule.fixup import FAN, LEAST_SHARE, is_clustered
from tilewright.schedule.form import has_slices
from tilewright.schedule.load import VECTOR, Load, memory_us, resident_blocks

READ_MULTIPLY_ADDS = 4
"""Multiply-adds of a processor in the time in which it writes and reads a sum of another part; a guess."""

SCHEDULERS = 4
"""Warp schedulers of a multiprocessor, each with a quarter of its warps."""

WAVEFRONTS = 2
"""Wavefronts of a warp that reads 16 bytes a lane from shared memory, if lanes are paired."""


def joined_us(times: tuple[float, ...], power: float) -> float:
    """The time of actions that overlap: the norm of their times; with an infinite power the longest.

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
        """Whether the model was made for this schedule and machine."""
        raise NotImplementedError

    def waits(self, load: Load) -> tuple[float, ...]:
        """The times that overlap, such as those of the multiplications and of the memory."""
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
    """The least time by the machine's rates: rounds of whole tiles, and all bytes once."""

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

    A block fetches stage after stage, as many at once as its ring has.  What counts is how soon they arrive,
    how many bytes a multiprocessor and the second-level cache deliver, and how long the memory takes.

    Args:
        ramp_us: until the memory delivers at its rate, at most, because the cache writes back dirty lines;
            less than the time of all bytes.
        spared: share of that which is spared if operands leave the cache first.
        arrival_us: from the request of a stage to its arrival, besides its bytes.
        bytes_per_us: into the shared memory of one multiprocessor.
        cached_bytes_per_us: from the second-level cache into all multiprocessors.
        outside_us: a line of `ROW_BYTES` outside the array, which a bulk copy fills with zeros.
        line_us: the multiplication of 64 rows by one column, along `ROW_BYTES` of K.
        decode_us: to decode 64 rows of a line of `ROW_BYTES` in registers, by whether it lies along K.
        shared_decode: how much longer that takes for each other group of a block that decodes.
        decoded_meeting_us: what adding up parts of K in memory takes besides, if an operand is decoded.
        tile_us: a block besides its steps: its start, the first stage, and its results.
        ticket_us: to write the sums of a part to memory and take a ticket.
        read_bytes_per_us: rate at which a multiprocessor reads and adds the sums of the parts.
        cluster_us: meeting in a cluster of two blocks.
        doubled_us: what each doubling of the cluster adds.
        scatter_us: to wait until the parts of a tile are written.
        part_us: to read a share of each of them.
    """

    ramp_us: float
    spared: float
    arrival_us: float
    bytes_per_us: float
    cached_bytes_per_us: float
    outside_us: float
    line_us: float
    decode_us: tuple[float, float]
    shared_decode: float
    decoded_meeting_us: float
    tile_us: float
    ticket_us: float
    read_bytes_per_us: float
    cluster_us: float
    doubled_us: float
    scatter_us: float
    part_us: float

    def applies(self, load: Load) -> bool:
        """Whether bulk copies load the operands."""
        return load.schedule.staging == "tma"

    def waits(self, load: Load) -> tuple[float, ...]:
        """Times of the busiest multiprocessor, of the memory and of the second-level cache."""
        memory = memory_us(load.question)
        ramp = min(self.ramp_us, memory) * (1 - self.spared * load.streamed)
        moved = load.tiles * load.steps * load.fetched_bytes
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
        rows, columns, _ = schedule.tile
        multiply = rows / 64 * columns * load.lines * self.line_us
        step = max(
            arrival, beside * load.step_bytes / self.bytes_per_us, beside * multiply, self._decoding_us(load)
        )
        step += beside * load.outside * self.outside_us
        return steps * step + (1 if schedule.blocks else rounds) * self.tile_us

    def _decoding_us(self, load: Load) -> float:
        """Time of a step of a group that decodes the operand along the rows of a tile; 0 if none does."""
        if not load.question.decodes:
            return 0.0
        groups = load.schedule.groups
        rows = load.schedule.tile[0] // groups * (1 + self.shared_decode * (groups - 1))
        along_k = load.question.majors[1 if load.schedule.swap_ab else 0] == "k"
        return load.lines * rows / 64 * self.decode_us[along_k]

    def meeting_us(self, load: Load) -> float:
        """Time to add up the sums of the parts of K; on a processor in multiply-adds."""
        question, schedule, parts = load.question, load.schedule, load.parts
        if parts <= 1 and not load.is_stream:
            return 0.0
        rows, columns, _ = schedule.mma.tile
        totals = len(question.form.totals)
        if question.arch.lanes == 1:
            return load.read_parts * rows * columns * totals * READ_MULTIPLY_ADDS
        tile_us = rows * columns * totals * schedule.atom.c_dtype.bytes / self.read_bytes_per_us
        if is_clustered(schedule):  # each block adds a share of the tile
            return self.cluster_us + self.doubled_us * (log2(parts) - 1) + tile_us
        decoded = self.decoded_meeting_us if question.decodes else 0.0
        if schedule.reduction == "reduce-scatter":  # each waits for all, and adds a share of the tile
            if columns <= LEAST_SHARE or not has_slices(question.form):  # one adds all of it
                return decoded + self.scatter_us + parts * tile_us
            return decoded + self.scatter_us + parts * self.part_us + tile_us
        tiles = load.read_parts + load.is_stream  # a block of a stream has parts of two tiles
        return decoded + self.ticket_us * (1 + (parts > FAN)) + tiles * tile_us


BULK = BulkEstimate(
    fixed_us=2.0,
    overlap=5,
    ramp_us=14.0,
    spared=0.33,
    arrival_us=1.14,
    bytes_per_us=1.3e5,
    cached_bytes_per_us=1.75e7,
    outside_us=0.00043,
    line_us=0.00277 / 2,
    decode_us=(0.12, 0.085),
    shared_decode=0.1,
    decoded_meeting_us=0.6,
    tile_us=5.8,
    ticket_us=1.07,
    read_bytes_per_us=3.0e4,
    cluster_us=0.7,
    doubled_us=5.7,
    scatter_us=1.2,
    part_us=0.05,
)
"""Fitted to products of 1 to 512 rows on an H200, with operands that no cache held."""


# ---------------------------------------------------------------- copies by threads


@dataclass(frozen=True)
class CopiesEstimate(Estimate):
    """Schedules whose threads copy the operands: the busiest multiprocessor, the memory, and the cache.

    Args:
        block_us: a block besides its steps: its start, the first stage, and its results.
        arrival_us: from the request of a stage to its arrival.
        issued: cycles of a multiplication by the machine's rate, for each cycle at that rate.
        cached_bytes_per_us: from the second-level cache into all multiprocessors.
        ticket_us: to write the sums of a part to memory and take a ticket.
        written_bytes_per_us: rate at which all multiprocessors write the sums of the parts.
        read_bytes_per_us: rate at which a multiprocessor reads and adds the sums of the parts.
        read_us: until the sums of one part come.
    """

    block_us: float
    arrival_us: float
    issued: float
    cached_bytes_per_us: float
    ticket_us: float
    written_bytes_per_us: float
    read_bytes_per_us: float
    read_us: float

    def waits(self, load: Load) -> tuple[float, ...]:
        """Times of the busiest multiprocessor, of the memory and of the second-level cache."""
        m, n, k = load.question.shape
        rows, columns = (min(tile, most) for tile, most in zip(load.schedule.tile, (m, n), strict=False))
        moved = load.tiles * (rows + columns) * k * load.question.dtype.bytes
        return self._busiest_us(load), self._memory_us(load), moved / self.cached_bytes_per_us

    def _memory_us(self, load: Load) -> float:
        return memory_us(load.question)

    def _busiest_us(self, load: Load) -> float:
        """Time of the multiprocessor with most blocks."""
        rounds = -(-load.blocks // min(load.blocks, load.resident))
        return max(self._path_us(load, rounds)) + (rounds + load.is_stream) * self.block_us

    def _path_us(self, load: Load, rounds: int) -> tuple[float, float]:
        """Times of all multiplications, and of the arrival of all stages, of the busiest multiprocessor."""
        rows, columns, depth = load.schedule.tile
        multiply = load.blocks * load.block_steps * 2 * rows * columns * depth / load.flops_per_us
        arriving = rounds * load.block_steps * self.arrival_us / max(load.schedule.stages - 1, 1)
        return multiply * self.issued, arriving

    def meeting_us(self, load: Load) -> float:
        """Time of the last block of a tile, which adds up the sums of all parts."""
        if load.parts <= 1 and not load.is_stream:
            return 0.0
        rows, columns, _ = load.schedule.mma.tile
        tile = rows * columns * load.schedule.atom.c_dtype.bytes
        written = load.parts * load.tiles * tile / self.written_bytes_per_us
        # A block of a stream has parts of two tiles.
        reading = (load.read_parts + load.is_stream) * max(self.read_us, tile / self.read_bytes_per_us)
        return self.ticket_us * (1 + (load.parts > FAN)) + written + reading


@dataclass(frozen=True)
class RingEstimate(CopiesEstimate):
    """Schedules without bulk copies on a GPU.

    What counts is how soon stage after stage arrives, how often blocks follow each other, and how many bytes
    the second-level cache delivers.
    """

    def applies(self, load: Load) -> bool:
        """Whether threads copy the operands, on a GPU whose rates are known."""
        arch = load.question.arch
        return load.schedule.staging != "tma" and arch.lanes > 1 and arch.rates is not None


@dataclass(frozen=True)
class FmaEstimate(CopiesEstimate):
    """Exact products of f32 by multiply-adds, with operands copied in the background.

    What counts is how many cycles the lanes need, and how well the resident warps hide each other's waiting.

    Args:
        waiting: cycles that the only warp of a scheduler waits for each cycle that it multiplies in.
        hiding: power of the number of warps with which that becomes less.
        reading: cycles of each wavefront that is read from shared memory.
        short_bytes: bytes that could be read in the time that each row of a tile costs.
    """

    waiting: float
    hiding: float
    reading: float
    short_bytes: float

    def applies(self, load: Load) -> bool:
        """Whether f32 is multiplied and added exactly, on a GPU that copies in the background."""
        atom, arch = load.schedule.atom, load.question.arch
        kinds = {atom.a_dtype.name, atom.b_dtype.name, atom.c_dtype.name}
        known = load.schedule.staging == "cp_async" and atom.instruction == "fma" and kinds == {"f32"}
        return known and arch.rates is not None and "cp_async" in arch.features

    def _memory_us(self, load: Load) -> float:
        row = load.schedule.block_k * load.question.dtype.bytes
        return memory_us(load.question) * (1 + self.short_bytes / row)

    def _path_us(self, load: Load, rounds: int) -> tuple[float, float]:
        schedule, rates = load.schedule, load.question.arch.rates
        assert rates is not None
        turns, beside = load.blocks * load.block_steps, min(load.blocks, load.resident)
        cycles = turns * self._step_cycles(load, beside * prod(schedule.warps) / SCHEDULERS)
        arriving = turns / beside * self.arrival_us / (schedule.stages - 1)
        return cycles / rates.boards[0].clock_mhz, arriving

    def _step_cycles(self, load: Load, warps: float) -> float:
        """Cycles of a multiprocessor for one step of a tile, with this number of warps for each scheduler."""
        (rows, columns, depth), rates, mma = load.schedule.tile, load.question.arch.rates, load.schedule.mma
        assert rates is not None
        multiply = rows * columns * depth * 2 / rates.fma_flops["f32"]
        vectors = (mma.a(VECTOR).size_values + mma.b(VECTOR).size_values) / VECTOR
        read = vectors * WAVEFRONTS * prod(load.schedule.warps) * depth / VECTOR
        return float(multiply * (self.issued + self.waiting / warps**self.hiding) + read * self.reading)


FMA = FmaEstimate(
    fixed_us=8.81,
    overlap=4.4,
    block_us=0.559,
    arrival_us=1.21,
    issued=0.903,
    cached_bytes_per_us=9.7e6,
    ticket_us=0.233,
    written_bytes_per_us=1.83e6,
    read_bytes_per_us=7.16e4,
    read_us=0.0874,
    waiting=0.657,
    hiding=1.81,
    reading=0.696,
    short_bytes=40.6,
)
"""Fitted to products of few rows and of deep K on an H200, with operands that no cache held."""

RING = RingEstimate(
    fixed_us=5.0,
    overlap=FMA.overlap,
    block_us=4.0,
    arrival_us=0.69,
    issued=1.3,  # a guess
    cached_bytes_per_us=FMA.cached_bytes_per_us,
    ticket_us=FMA.ticket_us,
    written_bytes_per_us=FMA.written_bytes_per_us,
    read_bytes_per_us=FMA.read_bytes_per_us,
    read_us=FMA.read_us,
)
"""Fitted to products of f16 by ``mma.sync`` in 1 to 132 parts of K on an H200; parts meet as in `FMA`."""

ESTIMATES: tuple[Estimate, ...] = (BULK, FMA, RING)
"""The models of any schedule; the first that applies counts."""


def estimate_of(load: Load) -> Estimate | None:
    """The model of a schedule; None if none was made for it."""
    return next((model for model in ESTIMATES if model.applies(load)), None)
