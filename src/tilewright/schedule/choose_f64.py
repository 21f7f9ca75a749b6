"""Products of f64 on tensor cores of NVIDIA GPUs: ``mma.sync`` of what registers hold one part ahead.

Tensor cores multiply f64 at a sixteenth of the rate of f16, so that shared memory and the second-level cache
keep up with warps of 64 x 32 sums, and what counts is that nobody waits: for a part of a tile, for the end of
a block, for the last round of tiles.  Products of complex numbers are several products of each step, with two
totals or three, of which a warp holds fewer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tilewright.ir.mma import MmaAtom
from tilewright.schedule.choose import Candidate, Question, widened
from tilewright.schedule.choose_forms import BAND, BESIDE, items_of, overflows
from tilewright.schedule.choose_occupancy import MOST_BLOCKS, SYSTEM_BYTES
from tilewright.schedule.choose_reference import tensor_core
from tilewright.schedule.choose_waiting import is_carried
from tilewright.schedule.classes import coarse
from tilewright.schedule.memory import flops_of, memory_us
from tilewright.schedule.resources import Case
from tilewright.schedule.schedule import Schedule

SUMS_OF_A_WARP = 64 * 32
"""Of all totals together: 128 registers of a thread."""

TILES = (
    ((128, 128), (2, 4)),
    ((128, 64), (4, 2)),
    ((64, 128), (2, 4)),
    ((64, 64), (2, 2)),
    ((64, 32), (2, 2)),
    ((32, 64), (2, 2)),
    ((32, 32), (2, 2)),
    ((16, 64), (1, 4)),
    ((64, 16), (4, 1)),
)
"""Rows and columns of tiles, and the warps that share one."""

RINGS, RINGS_OF_SEVERAL = ((16, 4), (16, 3)), ((16, 3), (8, 4), (8, 3))
"""Along K, of a tile of one product, and of several, which have more operands; and stages.  Of complex128 on
an H200 tiles that are 16 deep are 5 per cent faster than those that are 8 deep."""

OTHER_REGISTERS = 64
"""Of a thread, besides its sums and both sets of its operands: addresses, mostly.  Seen with NVRTC 13.0."""

FIXED_US = 4.0
"""Of a launch."""

TILE_US = 2.5
"""From the start of a block to its first product, and from its last to the end of its stores."""

WAITING = 0.1
"""Of one warp for each scheduler: what it waits for each cycle that it multiplies in."""

SCHEDULERS = 4
"""Of a multiprocessor."""

CACHED_BYTES = 37
"""From the second-level cache into a multiprocessor, for each clock, where all ask for some."""

SHARED_BYTES = 128
"""From shared memory into the registers of a multiprocessor, for each clock."""

OVERLAP = 5
"""How well multiplying, memory and cache overlap: the power of the norm of their times."""


def is_f64(question: Question) -> bool:
    """Whether it is a product of f64 on a machine that has tensor cores for it.

    Args:
        question: the problem.
    """
    kinds = {question.dtype.name, question.form.b.view.dtype.name, question.form.sum.dtype.name}
    return kinds == {"f64"} and "f64_tensor" in question.arch.features


def candidates(question: Question) -> Iterator[Candidate]:
    """Tiles in the order of their estimates, all of which are legal; then the same with whole tiles ahead.

    What is loaded one part ahead comes first: between two tiles no warp waits for shared memory then.

    Args:
        question: a product of f64, or several.
    """
    atom = tensor_core(question)
    assert atom is not None, "there are tensor cores for f64"
    for staging in ("fragments",) if question.decodes else ("fragments", "cp_async"):
        rings = RINGS if question.form.is_single else RINGS_OF_SEVERAL
        made = [_candidate(question, atom, *tile, *ring, staging) for tile in TILES for ring in rings]
        fitting = (one for one in made if one is not None)
        for one in sorted(fitting, key=lambda one: one.estimate):
            if is_carried(question, one.schedule):
                yield one


def _candidate(
    question: Question,
    atom: MmaAtom,
    tile: tuple[int, int],
    warps: tuple[int, int],
    depth: int,
    stages: int,
    staging: str,
) -> Candidate | None:
    """A schedule; None where a warp does not hold its sums, or is shared by fewer columns than it has."""
    totals, (rows, columns) = len(question.form.totals), tile
    if rows * columns * totals > SUMS_OF_A_WARP * prod(warps):
        return None
    blocks = BESIDE * question.processors if overflows(question) else 0
    made = Schedule(atom, (rows, columns, depth), warps, stages, staging, blocks=blocks, group_m=BAND)
    made = widened(made, question)
    rule = f"f64 on tensor cores: a tile of {made.tile[0]} x {made.tile[1]}, {stages} stages, {staging}"
    return Candidate(made, f64_us(question, made), rule)


@dataclass(frozen=True)
class Load:
    """What the multiprocessors do under a schedule.

    Args:
        question: the problem.
        schedule: how it is computed.
    """

    question: Question
    schedule: Schedule

    @property
    def tiles(self) -> int:
        """Of all batch items."""
        m, n, _ = self.question.shape
        rows, columns, _ = self.schedule.tile
        return -(-m // rows) * -(-n // columns) * items_of(self.question)

    @property
    def resident(self) -> int:
        """Blocks that share a multiprocessor, by registers and shared memory."""
        question, arch = self.question, self.question.arch
        specs = {name: coarse(spec, arch) for name, spec in question.specs.items()}
        case = Case(self.schedule, question.form, specs, arch)
        asked = min(case.accumulators + case.held + OTHER_REGISTERS, arch.thread_registers)
        of_a_thread = -(-asked // arch.register_unit) * arch.register_unit
        of_registers = arch.registers // (self.schedule.mma.threads * of_a_thread)
        of_memory = (arch.shared_bytes + SYSTEM_BYTES) // (case.shared_bytes + SYSTEM_BYTES)
        return max(min(MOST_BLOCKS, of_registers, of_memory), 1)

    @property
    def blocks(self) -> int:
        """Of the multiprocessor with most of them."""
        return max(-(-self.tiles // max(self.question.processors, 1)), 1)

    def multiply_us(self) -> float:
        """Of the multiprocessor with most blocks."""
        question, (rows, columns, depth) = self.question, self.schedule.tile
        steps = max(-(-question.shape[2] // depth), 1)
        work = 2 * rows * columns * depth * steps * len(question.form.products)
        beside = min(self.blocks, self.resident)
        warps = beside * prod(self.schedule.warps) / SCHEDULERS
        slower = max(1.0, 1 / warps) * (1 + WAITING / warps)
        multiply = self.blocks * work / flops_of(question, self.schedule) * slower
        return multiply + -(-self.blocks // beside) * TILE_US

    def copied_us(self, along_m: int, along_n: int, rate: int) -> float:
        """What a multiprocessor takes for its operands.

        Args:
            along_m: how many times the rows of a tile are read.
            along_n: how many times its columns are.
            rate: bytes for each clock.
        """
        question, (rows, columns, _) = self.question, self.schedule.tile
        assert question.arch.rates is not None
        read = along_m * rows * sum(one.dtype.bytes for one in question.form.rows_m)
        read += along_n * columns * sum(one.dtype.bytes for one in question.form.rows_n)
        return self.blocks * read * question.shape[2] / rate / question.arch.rates.boards[0].clock_mhz


def f64_us(question: Question, schedule: Schedule) -> float:
    """Estimated time of a schedule on tensor cores for f64; 0 where the machine's rates are not known.

    Args:
        question: the problem.
        schedule: how it is computed.
    """
    if question.arch.rates is None:
        return 0.0
    load, (along_m, along_n) = Load(question, schedule), schedule.warps
    waits = (
        load.multiply_us(),
        load.copied_us(along_n, along_m, SHARED_BYTES),
        load.copied_us(1, 1, CACHED_BYTES),
        memory_us(question),
    )
    overlapped: float = sum(wait**OVERLAP for wait in waits) ** (1 / OVERLAP)
    return FIXED_US + overlapped
