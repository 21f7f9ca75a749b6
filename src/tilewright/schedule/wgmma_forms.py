"""Forms of the Hopper kernel: tiles, groups of warps, stages and clusters, with measured times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tilewright.dataflow.nodes import SUMMED
from tilewright.ir.mma import MmaAtom
from tilewright.schedule.estimate import BULK
from tilewright.schedule.factors import Factor
from tilewright.schedule.family_estimates import FormEstimate
from tilewright.schedule.load import Load
from tilewright.schedule.needs import ROW_BYTES
from tilewright.schedule.question import BAND, Question
from tilewright.schedule.schedule import Schedule

FP8 = ("f8e4m3", "f8e5m2")
PROMOTED_EVERY, SUMMED_EVERY = 512, 128
"""Elements along K after which sums are promoted: for 8-bit floats, whose sums keep 13 bits; and for the
precision of f32 sums."""

PROMOTED_ELEMENTS = 64 * 192
"""Elements of a group's tile that fit into the registers twice."""

SLICES = 2
"""Slices of a group's columns that are promoted in turn, if registers do not hold all sums twice."""

PROMOTION = {False: 0.2, True: 0.1}
"""Relative additional time of 128 bytes along K with a promotion of all sums, and with one of each slice."""

ROW_US, CUT_ROW_US = 0.95e-5, 2.4e-5
"""Time of 128 bytes of a row from the second-level cache, which all multiprocessors share; in one cache line,
and in two."""

UNIT = 8
"""Unit of the columns of ``wgmma``."""

DECODED_STAGES = 6


@dataclass(frozen=True)
class WgmmaForm:
    """A form of the Hopper kernel, with times measured on an H200.

    Args:
        rows: rows of one group's tile.
        columns: columns of a tile.
        groups: groups that multiply.
        stages: stages of the ring.
        buffers: buffers of each group's epilogue, with rows of 128 bytes.
        roles: how the groups share the work.
        persistent: whether a block takes tile after tile.
        cluster: blocks that share operands.
        depth: depth of a tile, in units of 128 bytes; more than 1 only if each tile promotes its sums.
        fixed_us: time of a launch besides its steps.
        tile_us: time of a tile besides its steps.
        latency_us: time of a step of a block that has a multiprocessor to itself.
        busy_us: time of a step if several blocks share a multiprocessor.
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

    def narrowed(self, columns: int, most: int = 0) -> WgmmaForm:
        """Return the form with the narrowest tile that still covers the columns with as many tiles.

        Args:
            columns: columns of the result.
            most: number of tiles along the columns that is allowed; at least the fewest are.

        Example:
            >>> wide = WgmmaForm(64, 192, 2, 4, 1)
            >>> wide.narrowed(312).columns, wide.narrowed(312, 3).columns, wide.narrowed(16).columns
            (160, 104, 192)
        """
        if columns <= self.columns // 2:
            return self
        tiles = max(-(-columns // self.columns), most)
        return replace(self, columns=-(-columns // tiles // UNIT) * UNIT)

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns that are computed at once."""
        return (self.rows * (1 if self.roles == "ping-pong" else self.groups), self.columns)

    def schedule(self, question: Question, atom: MmaAtom, block_k: int, **changed: Any) -> Schedule:
        """The schedule of the form with an atom and a depth, and with changes to the form's own fields."""
        fields: dict[str, Any] = {
            "stages": self.stages,
            "staging": "tma",
            "roles": self.roles,
            "groups": self.groups,
            "blocks": question.processors if self.persistent else 0,
            "cluster": self.cluster,
            "group_m": BAND,
            "epilogue": "staged",
            "buffers": self.buffers,
            "registers": 232 if self.persistent else 0,
        }
        return Schedule(atom, (*self.tile, block_k), **fields | changed)

    def against(self, question: Question) -> str:
        """Return the reason why the form cannot compute the problem, or ""."""
        rows, columns = question.covered
        if self.depth > 1 and not self.promotes_slices(question):
            return "its deep tiles are for 8-bit floats whose sums are promoted and stored slice by slice"
        elements = self.rows * self.columns
        held = elements + self.rows * self.promoted_columns(question)
        if promoted_every(question) and held > 2 * PROMOTED_ELEMENTS:
            return (
                f"promotion keeps the {elements} sums of a group twice in registers, and "
                f"{PROMOTED_ELEMENTS} fit"
            )
        whole = self.roles == "ping-pong" or self.groups == 1
        if columns > self.columns:
            return f"the reduction covers {columns} columns, and its tile has {self.columns}"
        if rows and not (whole and rows <= self.rows):
            return f"the reduction covers {rows} rows, and a group has fewer"
        if not self.persistent and question.exceeds_grid:
            return f"{question.items} batch items, and an axis of a grid has {question.arch.grid[-1]} blocks"
        return ""

    def promotes_slices(self, question: Question) -> bool:
        """Whether each tile along K promotes the slices of its columns in turn, through the same registers.

        It does so if the registers do not hold all sums twice and the grid is persistent.  In addition, each
        128 bytes along K must have their own scales, or tiles must be deep and operands 8-bit floats.
        """
        is_wide = self.rows * self.columns > PROMOTED_ELEMENTS
        if not (is_wide and self.persistent and self.roles == "cooperative"):
            return False
        if self.depth == 1:
            return is_scaled_by_tile(question)
        form = question.form
        is_plain = question.dtype.name in FP8 and not form.scaled_every and form.flow.grouped is None
        # Results of one byte fill a buffer with a whole slice at once, and both slices' sums spill.
        is_small = any(store.operand.dtype.bytes == 1 for store in form.stores)
        return is_plain and not is_small and not question.reads_result_sized

    def promoted_columns(self, question: Question) -> int:
        """Columns of a tile whose sums are promoted together."""
        return self.columns // (SLICES if self.promotes_slices(question) else 1)

    def time_us(self, question: Question, schedule: Schedule, row_us: tuple[float, float]) -> float:
        """Estimated time of a problem under the form's schedule.

        Args:
            question: the problem as it is multiplied.
            schedule: the schedule of the form.
            row_us: time of 128 bytes of a row of A, and of B, for all operands that are loaded.
        """
        in_slices = self.promotes_slices(question)
        is_promoted = in_slices or is_scaled_by_tile(question)
        model = FormEstimate(
            self.fixed_us,
            BULK.overlap,
            self.tile_us,
            self.latency_us,
            self.busy_us,
            self.depth,
            row_us,
            promotion=PROMOTION[in_slices] / self.depth if is_promoted else 0.0,
            memory=1.2 if self.persistent else 1.12,
        )
        return model.time_us(Load(question, schedule))


SHAPES = (
    WgmmaForm(64, 256, 2, 4, 2),
    WgmmaForm(64, 256, 2, 4, 2, cluster=(2, 1), tile_us=1.2),
    WgmmaForm(128, 192, 2, 4, 2, "ping-pong", tile_us=0.3),
    WgmmaForm(64, 192, 2, 4, 3),
    WgmmaForm(64, 128, 2, 6, 2, busy_us=0.37),
    WgmmaForm(64, 128, 2, 6, 2, persistent=False, fixed_us=1.9, tile_us=3.5, busy_us=0.42),
    WgmmaForm(64, 128, 1, 8, 1, persistent=False, fixed_us=1.9, tile_us=2.5, latency_us=0.285, busy_us=0.25),
    WgmmaForm(64, 64, 2, 8, 1, persistent=False, fixed_us=1.9, tile_us=2.5, latency_us=0.285, busy_us=0.28),
    WgmmaForm(64, 64, 1, 8, 1, persistent=False, fixed_us=1.8, tile_us=2.5, latency_us=0.235, busy_us=0.21),
    WgmmaForm(64, 256, 2, 2, 2, depth=2),
)
"""Few forms, so that few kernels are compiled; of equal estimates the first wins."""

DECODED_SHAPES = (
    *(WgmmaForm(128, columns, 2, DECODED_STAGES, 1) for columns in (128, 96)),
    *(WgmmaForm(64, columns, 2, DECODED_STAGES, 1) for columns in (256, 192)),
    WgmmaForm(64, 192, 2, DECODED_STAGES, 1, "ping-pong"),
    WgmmaForm(64, 128, 2, DECODED_STAGES, 1),
    *(WgmmaForm(64, columns, 2, DECODED_STAGES, 1, persistent=False) for columns in (128, 64)),
    *(WgmmaForm(rows, 64, 1, DECODED_STAGES, 1, persistent=False) for rows in (64, 128)),
)
"""Forms for a decoded operand, ranked by `BULK`; each is also tried with the narrowest width that takes as
many tiles.

Forms with 128 rows of a group also take operands that are contiguous along their rows, not along K.  They
have the most stages for their size, because the operand with fewer bits has the longer side of the tile.
"""


def promoted_every(question: Question) -> int:
    """Elements along K after which sums are promoted; 0: never."""
    if question.form.scaled_every:
        return question.form.scaled_every
    if question.dtype.name in FP8:
        return PROMOTED_EVERY
    return SUMMED_EVERY if question.form.precision == SUMMED else 0


def is_scaled_by_tile(question: Question) -> bool:
    """Whether each 128 bytes along K have their own scales."""
    return question.form.scaled_every * question.dtype.bytes == ROW_BYTES


def cached_row_us(question: Question, factor: Factor) -> float:
    """Time of 128 bytes of an operand from the cache; rows that do not begin at a line take two lines."""
    return CUT_ROW_US if question.is_cut(factor) else ROW_US
