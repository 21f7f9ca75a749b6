"""Products with an operand that is decoded on its way, on Hopper: in registers, from which it is multiplied.

The operand that is decoded lies along the rows of ``wgmma``; where that is B, the transposed product is
computed.  The forms are those of other products, with fewer stages, each of which is twice as deep along K;
that they take as long is an assumption, until they are measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.schedule.bulk_decoding import SETS, part_depth
from tilewright.schedule.choose import Candidate, Question
from tilewright.schedule.choose_few_rows import BARRIERS_BYTES
from tilewright.schedule.choose_forms import BAND, Shape, cached_row_us
from tilewright.schedule.choose_waiting import is_carried, without_waiting
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stages import ROW_BYTES
from tilewright.targets.atoms import wgmma

MULTIPLIED = ("f16", "bf16")
"""Dtypes into which operands are decoded here."""

MOST_STAGES = 6

COPIES = 2
"""Of the main loop's body in each turn, where a block takes tile after tile: 1 per cent faster than one."""

MOST_BESIDE_INTEGERS = 128 * 96
"""Sums of a group that decodes integers in many registers: into bf16, or where they lie along its rows."""

FORMS = (
    Shape(128, 128, 2, MOST_STAGES, 1),
    Shape(128, 96, 2, MOST_STAGES, 1),
    Shape(64, 256, 2, MOST_STAGES, 1, tile_us=2.0),
    Shape(64, 192, 2, MOST_STAGES, 1, tile_us=1.5),
    Shape(64, 192, 2, MOST_STAGES, 1, "ping-pong", tile_us=0.5),
    Shape(64, 128, 2, MOST_STAGES, 1, busy_us=0.37),
    Shape(64, 128, 2, MOST_STAGES, 1, persistent=False, fixed_us=1.9, tile_us=3.5, busy_us=0.42),
    Shape(64, 64, 2, MOST_STAGES, 1, persistent=False, fixed_us=1.9, tile_us=2.5, busy_us=0.28),
    Shape(64, 64, 1, MOST_STAGES, 1, persistent=False, fixed_us=1.8, tile_us=2.5, busy_us=0.21),
    Shape(128, 64, 1, MOST_STAGES, 1, persistent=False, fixed_us=1.8, tile_us=2.5, busy_us=0.42),
)
"""Those of 128 rows of a group also take operands that are contiguous along their rows, not along K.

They have the most stages for their size, since it is the narrow operand that is long; others are taken to
lose more at the beginning of a tile.
"""


def candidates(question: Question) -> Iterator[Candidate]:
    """Forms in the order of their estimates, all of which are legal; none where nothing can be decoded so.

    Args:
        question: a problem with an operand that is computed from what lies in memory.
    """
    form = question.form
    kinds = {form.a.view.dtype.name, form.b.view.dtype.name}
    if form.a.is_plain == form.b.is_plain or len(kinds) > 1 or not kinds <= {*MULTIPLIED}:
        return
    asked, swap = (_transposed(question), True) if form.a.is_plain else (question, False)
    whole = [_of_shape(asked, shape, swap) for shape in FORMS if not _against(asked, shape)]
    legal = [one for one in whole if is_carried(question, one.schedule)]
    legal.sort(key=lambda one: one.estimate)
    yield from without_waiting(question, legal, 0)


def _against(asked: Question, shape: Shape) -> str:
    """Why a form cannot compute what is asked; empty if it can."""
    a, elements = asked.form.a, shape.rows * shape.columns
    # Seen with NVRTC 13.0: beside the sums what is decoded on the way does not fit, and is kept in memory.
    is_large = asked.majors[0] == "mn" or a.view.dtype.name == "bf16"
    if is_large and not a.dtype.is_float and elements > MOST_BESIDE_INTEGERS:
        return f"{elements} sums of a group, and {MOST_BESIDE_INTEGERS} fit beside integers that are decoded"
    return shape.against(asked)


def _transposed(question: Question) -> Question:
    """The problem whose operand A is B, in which rows are columns."""
    *batch, m, n, k = question.extents
    return replace(question, form=question.form.arranged(True), extents=(*batch, n, m, k))


def _of_shape(asked: Question, shape: Shape, swap: bool) -> Candidate:
    """The schedule of a form, for the problem as it is multiplied."""
    made = _schedule(asked, shape, swap)
    a, b = asked.form.a, asked.form.b
    narrow = a.dtype.bytes / a.view.dtype.bytes
    time = shape.time_us(asked, (cached_row_us(asked, a) * narrow, cached_row_us(asked, b)))
    how = f"{shape.rows} x {shape.columns} for each of {shape.groups} groups"
    return Candidate(made, time, f"decoded in registers, {how}, {shape.roles}")


def _schedule(asked: Question, shape: Shape, swap: bool) -> Schedule:
    a, b = asked.form.a.dtype, asked.form.b.dtype
    (rows, columns), kind = shape.tile, asked.dtype
    block_k = max(SETS * part_depth(kind), ROW_BYTES // a.bytes)
    stored = sum(store.operand.dtype.bytes for store in asked.form.stores)
    # A group's buffers hold rows of 128 bytes each, or narrow slices, of which two take as much.
    buffers = shape.groups * shape.buffers * min(shape.rows * ROW_BYTES, shape.rows * columns * stored)
    room = asked.arch.shared_bytes - BARRIERS_BYTES - buffers * max(len(asked.form.stores), 1)
    is_narrow = shape.persistent and _lie_along_rows(asked)
    stages = min(room // (block_k * (rows * a.bytes + columns * b.bytes)), shape.stages)
    return Schedule(
        wgmma(kind, columns),
        (rows, columns, block_k),
        stages=max(stages, 1),
        staging="tma",
        roles=shape.roles,
        groups=shape.groups,
        blocks=asked.processors if shape.persistent else 0,
        group_m=BAND,
        epilogue="staged",
        buffers=shape.buffers * (2 if is_narrow else 1),
        registers=232 if shape.persistent else 0,
        swap_ab=swap,
        unroll=COPIES if shape.persistent else 1,
    )


def _lie_along_rows(asked: Question) -> bool:
    """Whether all results are 16-bit ones that are contiguous along the rows of the tiles."""
    results = [(store, asked.form.spec(store.operand, asked.specs).unit_dim) for store in asked.form.stores]
    return all(
        unit is not None and store.at[unit] == asked.form.m and store.operand.dtype.bytes == asked.dtype.bytes
        for store, unit in results
    )
