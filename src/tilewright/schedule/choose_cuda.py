"""Schedules for NVIDIA GPUs, by rules and a model of their time.

With Hopper's operations: of a few forms the one that is estimated to finish first.  Elsewhere, and for
operands that Hopper's multiply does not take: ``mma.sync`` or multiply-adds, with copies in the background.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewright.schedule.choose import Question, widened
from tilewright.schedule.choose_reference import tensor_core
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stages import ROW_BYTES
from tilewright.targets.atoms import fma, wgmma

FP8 = ("f8e4m3", "f8e5m2")
PROMOTED_EVERY = 512
"""Elements along K after which sums of 8-bit floats, which keep 13 bits, are added to others in f32."""

PROMOTED_ELEMENTS = 64 * 192
"""Of a group's tile: more do not fit into the registers twice."""

BAND = 8
"""Rows of tiles that follow each other."""

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
        stages: of the ring, in units of 128 bytes of K.
        buffers: of each group's epilogue, of 128 bytes a row.
        roles: how the groups share the work.
        persistent: whether a block takes tile after tile.
        cluster: blocks that share operands.
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
    fixed_us: float = 5.0
    tile_us: float = 1.0
    latency_us: float = 0.0
    busy_us: float = 0.0

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of what is computed at once."""
        return (self.rows * (1 if self.roles == "ping-pong" else self.groups), self.columns)

    def fits(self, question: Question) -> bool:
        """Whether it can compute what is asked: a second accumulator, or a reduction within a tile."""
        rows, columns = question.covered
        promoted = question.dtype.name in FP8
        if promoted and self.rows * self.columns > PROMOTED_ELEMENTS:
            return False
        whole = self.roles == "ping-pong" or self.groups == 1
        return columns <= self.columns and (rows == 0 or (whole and rows <= self.rows))

    def time_us(self, question: Question, row_us: tuple[float, float]) -> float:
        """Estimated time of a problem.

        Args:
            question: the problem.
            row_us: of 128 bytes of a row of A, and of B.
        """
        m, n, k = question.shape
        (rows, columns), (across, beside) = self.tile, self.cluster
        tiles = -(-m // (rows * across)) * across * -(-n // (columns * beside)) * beside
        tiles *= prod(question.extents[:-3])
        processors = question.processors // (across * beside) * across * beside
        rounds = max(-(-tiles // processors), 1)
        steps = -(-k * question.dtype.bytes // ROW_BYTES)
        asked = rows / beside * row_us[0] + columns / across * row_us[1]
        multiply = rows / 64 * columns * COLUMN_US / 2
        step = max(multiply, min(tiles, processors) * asked, self.latency_us / rounds, self.busy_us)
        return self.fixed_us + rounds * (steps * step + self.tile_us)


SHAPES = (
    Shape(64, 256, 2, 4, 2),
    Shape(64, 256, 2, 4, 2, cluster=(2, 1), tile_us=1.2),
    Shape(128, 192, 2, 4, 2, "ping-pong", tile_us=0.3),
    Shape(64, 192, 2, 4, 3),
    Shape(64, 128, 2, 6, 2, busy_us=0.37),
    Shape(64, 128, 2, 6, 2, persistent=False, fixed_us=4.4, busy_us=0.42),
    Shape(64, 128, 1, 8, 1, persistent=False, fixed_us=4.2, tile_us=0.2, latency_us=0.285, busy_us=0.25),
    Shape(64, 64, 2, 8, 1, persistent=False, fixed_us=4.2, tile_us=0.2, latency_us=0.285, busy_us=0.28),
    Shape(64, 64, 1, 8, 1, persistent=False, fixed_us=4.2, tile_us=0.1, latency_us=0.235, busy_us=0.21),
)
"""Few, so that few kernels are compiled; the first of equals is taken."""


def choose(question: Question) -> Schedule:
    """The schedule that is estimated to take least time."""
    if "sm_90a" in question.arch.features and _takes_wgmma(question):
        shapes = [shape for shape in SHAPES if shape.fits(question)]
        if shapes:
            a, b = (_row_us(question, factor.name) for factor in (question.form.a, question.form.b))
            return hopper_schedule(question, min(shapes, key=lambda shape: shape.time_us(question, (a, b))))
    return widened(_ampere(question), question)


def _takes_wgmma(question: Question) -> bool:
    """Whether Hopper's multiply takes the operands as they lie in memory."""
    dtype, form = question.dtype, question.form
    if form.b.dtype != dtype or "" in question.majors or not (form.a.is_plain and form.b.is_plain):
        return False
    if dtype.name in ("f16", "bf16"):
        return True
    known = dtype.name in (*FP8, "i8", "u8") or (dtype.name == "f32" and form.precision == "tf32")
    return known and question.majors == ("k", "k")


def _row_us(question: Question, name: str) -> float:
    """What 128 bytes of an operand take: rows that begin off a line lie in two."""
    spec = question.specs[name]
    steps = [step for dim, step in enumerate(spec.stride_divisors) if dim != spec.unit_dim]
    # Divisors of strides are known up to 16 elements only; extents up to 256.
    unit = spec.extent_divisors[spec.unit_dim or 0] * spec.dtype.bytes
    whole = all(step * spec.dtype.bytes % ROW_BYTES == 0 for step in steps) or unit % ROW_BYTES == 0
    return ROW_US if whole else CUT_ROW_US


def hopper_schedule(question: Question, shape: Shape) -> Schedule:
    """The schedule of a form."""
    dtype, rows, columns = question.dtype, shape.tile[0], shape.columns
    # With a residual to read, warps of their own that bring it and store are worth their registers.
    apart = shape.persistent and shape.roles == "cooperative" and question.reads_result_sized
    made = Schedule(
        wgmma(dtype, columns),
        (rows, columns, ROW_BYTES // dtype.bytes),
        stages=shape.stages,
        staging="tma",
        roles=shape.roles,
        groups=shape.groups,
        blocks=question.processors if shape.persistent else 0,
        cluster=shape.cluster,
        group_m=BAND,
        epilogue="overlapped" if apart else "staged",
        buffers=shape.buffers,
        registers=232 if shape.persistent else 0,
    )
    return replace(made, promote=PROMOTED_EVERY * dtype.bytes // ROW_BYTES) if dtype.name in FP8 else made


def _ampere(question: Question) -> Schedule:
    """Tensor cores where there is an atom; a larger tile where its blocks still fill the GPU."""
    m, n, _ = question.shape
    dtype = question.dtype
    atom = tensor_core(question)
    depth = ROW_BYTES // dtype.bytes
    staged = Schedule(atom or fma(dtype, each=(8, 8), paired=True), (64, 64, depth), (2, 2), stages=3)
    staged = replace(staged, staging="cp_async", group_m=BAND)
    if atom is None:
        return replace(staged, tile=(128, 128, min(depth, 32)), warps=(4, 2))
    staged = replace(staged, promote=1 if dtype.name in FP8 else 0)
    if m * n >= 128 * 128 * question.processors:
        warps = (4, 2) if dtype.bytes > 4 or staged.promote else (2, 2)
        return replace(staged, tile=(128, 128, depth), warps=warps)
    return replace(staged, stages=4)
