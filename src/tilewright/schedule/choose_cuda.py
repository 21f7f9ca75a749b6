"""Schedules for NVIDIA GPUs, by rules and a model of their time.

With Hopper's operations: of a few forms the one that is estimated to finish first.  Elsewhere, and for
operands that Hopper's multiply takes neither from memory nor decoded: ``mma.sync`` or multiply-adds, with
copies in the background.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from tilewright.schedule.choose import Candidate, Question, widened
from tilewright.schedule.choose_decoded import candidates as decoded_in_bulk
from tilewright.schedule.choose_f64 import candidates as of_f64
from tilewright.schedule.choose_f64 import is_f64
from tilewright.schedule.choose_few_rows import has_few_rows
from tilewright.schedule.choose_fma import small_tiles
from tilewright.schedule.choose_forms import (
    BAND,
    BESIDE,
    FP8,
    Shape,
    cached_row_us,
    is_scaled_by_tile,
    items_of,
    overflows,
    promoted_every,
)
from tilewright.schedule.choose_packed import candidates as packed_weights
from tilewright.schedule.choose_reference import tensor_core
from tilewright.schedule.choose_several import candidates as several
from tilewright.schedule.choose_small import small
from tilewright.schedule.choose_time import bulk_us
from tilewright.schedule.choose_waiting import is_carried, without_waiting
from tilewright.schedule.memory import flops_of
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stages import ROW_BYTES
from tilewright.targets.atoms import fma, wgmma

GROUPED_BAND = 4
"""Rows of tiles that follow each other, of groups of rows, where a block takes tile after tile."""

SCALED_STAGES, SCALED_BUFFERS, SCALED_COPIES = 3, 4, 4
"""Stages, buffers and copies of the main loop's body where slices of sums are multiplied by scales.

On an H200 2 to 5 per cent faster than four stages, two buffers and one copy.
"""

SHAPES = (
    Shape(64, 256, 2, 4, 2),
    Shape(64, 256, 2, 4, 2, cluster=(2, 1), tile_us=1.2),
    Shape(128, 192, 2, 4, 2, "ping-pong", tile_us=0.3),
    Shape(64, 192, 2, 4, 3),
    Shape(64, 128, 2, 6, 2, busy_us=0.37),
    Shape(64, 128, 2, 6, 2, persistent=False, fixed_us=1.9, tile_us=3.5, busy_us=0.42),
    Shape(64, 128, 1, 8, 1, persistent=False, fixed_us=1.9, tile_us=2.5, latency_us=0.285, busy_us=0.25),
    Shape(64, 64, 2, 8, 1, persistent=False, fixed_us=1.9, tile_us=2.5, latency_us=0.285, busy_us=0.28),
    Shape(64, 64, 1, 8, 1, persistent=False, fixed_us=1.8, tile_us=2.5, latency_us=0.235, busy_us=0.21),
    Shape(64, 256, 2, 2, 2, depth=2),
)
"""Few, so that few kernels are compiled; the first of equals is taken."""


GROUPS_M = (4, 8, 16)
"""Heights of the bands in which tiles follow each other."""

NEIGHBOURS = 3
"""Of how many of the fastest forms those are proposed that differ in one respect."""


def candidates(question: Question) -> Iterator[Candidate]:
    """Forms of the Hopper kernel in the order of their estimates, those near them, and ``mma.sync``.

    What is for small products of many batch items comes first.
    """
    if is_f64(question) and not question.form.is_single:
        yield from of_f64(question)
    if not question.form.is_single:
        yield from several(question, "wgmma" in question.arch.features and _takes_wgmma(question))
        return
    few = small(question)
    if few is not None:
        yield few
    if is_f64(question):
        yield from of_f64(question)
    yield from packed_weights(question)
    if "wgmma" in question.arch.features and question.decodes:
        yield from decoded_in_bulk(question)
    if "wgmma" not in question.arch.features or not _takes_wgmma(question):
        yield from small_tiles(question)
        yield from _ampere(question)
        return
    against = {shape: _against(question, shape) for shape in SHAPES}
    yield from _hopper(question, [shape for shape in SHAPES if not against[shape]])
    yield next(_ampere(question))
    for shape, reason in against.items():
        if reason:
            yield replace(_of_form(question, shape), against=(reason,))


def _hopper(question: Question, shapes: Sequence[Shape]) -> Iterator[Candidate]:
    """Forms that can compute what is asked, the fastest first; then, of many rows, what is near them."""
    ranked = sorted(shapes, key=lambda shape: _time_us(question, shape))
    whole = [_of_form(question, shape) for shape in ranked]
    yield from without_waiting(question, whole, promoted_every(question))
    for shape in () if has_few_rows(question) else ranked[:NEIGHBOURS]:
        for near, difference in _neighbours(shape):
            yield replace(_of_form(question, near), rule=f"{_name(shape)} {difference}")
        found = _of_form(question, shape)
        for rows in GROUPS_M:
            bands = f"{found.rule} in bands of {rows} rows of tiles"
            yield replace(found, schedule=replace(found.schedule, group_m=rows), rule=bands)


def _against(question: Question, shape: Shape) -> str:
    """Why a form is not tried: without groups of warps, and bulk copies, no slices are promoted."""
    said = shape.against(question)
    if not said and shape.depth > 1 and not is_carried(question, hopper_schedule(question, shape)):
        return "bulk copies do not carry all arrays, or sums are not stored slice by slice"
    return said


def _of_form(question: Question, shape: Shape) -> Candidate:
    made = hopper_schedule(question, shape)
    time = bulk_us(question, made) if has_few_rows(question) else _time_us(question, shape)
    return Candidate(made, time, _name(shape))


def _name(shape: Shape) -> str:
    number = f" {SHAPES.index(shape) + 1}" if shape in SHAPES else ""
    return f"form{number} of the Hopper kernel"


def _time_us(question: Question, shape: Shape) -> float:
    a, b = (cached_row_us(question, factor) for factor in (question.form.a, question.form.b))
    return shape.time_us(question, (a, b))


def _neighbours(shape: Shape) -> Iterator[tuple[Shape, str]]:
    """Forms that differ from one in a single respect, and in which."""
    for cluster in ((1, 1), (2, 1), (1, 2)):
        if cluster != shape.cluster:
            yield replace(shape, cluster=cluster), f"in clusters of {cluster}"
    for stages in (shape.stages - 1, shape.stages + 1):
        yield replace(shape, stages=stages), f"with {stages} stages"


def _takes_wgmma(question: Question) -> bool:
    """Whether Hopper's multiply takes the operands as they lie in memory."""
    dtype, form = question.dtype, question.form
    is_mixed = dtype != question.b_dtype and {dtype.name, question.b_dtype.name} - {*FP8}
    if is_mixed or "" in question.majors or question.decodes:
        return False
    if dtype.name in ("f16", "bf16"):
        return True
    known = dtype.name in (*FP8, "i8", "u8") or (dtype.name == "f32" and form.precision == "tf32")
    return known and question.majors == ("k", "k")


def hopper_schedule(question: Question, shape: Shape) -> Schedule:
    """The schedule of a form."""
    dtype, rows, columns = question.dtype, shape.tile[0], shape.columns
    # With a residual to read, warps of their own that bring it and store are worth their registers: where
    # groups load it themselves its registers lie beside all sums, and spill.
    apart = shape.persistent and question.reads_result_sized
    made = Schedule(
        wgmma(dtype, shape.promoted_columns(question), question.b_dtype),
        (rows, columns, shape.depth * ROW_BYTES // dtype.bytes),
        stages=shape.stages,
        staging="tma",
        roles=shape.roles,
        groups=shape.groups,
        blocks=question.processors if shape.persistent else 0,
        cluster=shape.cluster,
        group_m=GROUPED_BAND if shape.persistent and question.form.flow.grouped is not None else BAND,
        epilogue="overlapped" if apart else "staged",
        buffers=shape.buffers,
        registers=232 if shape.persistent else 0,
    )
    if not shape.promotes_slices(question):
        return replace(made, promote=promoted_every(question) // made.block_k)
    if not is_scaled_by_tile(question):
        return replace(made, promote=1)
    return replace(
        made, promote=1, stages=min(made.stages, SCALED_STAGES), buffers=SCALED_BUFFERS, unroll=SCALED_COPIES
    )


def _ampere(question: Question) -> Iterator[Candidate]:
    """Tensor cores where there is an atom, multiply-adds elsewhere, with copies in the background."""
    chosen = _ampere_schedule(question)
    if overflows(question):
        chosen = replace(chosen, blocks=BESIDE * question.processors)
    rule = "the larger tile" if chosen.tile[0] > 64 else "the tile of which there are more"
    proposed = {widened(chosen, question): rule}
    unit_m, unit_n, _ = chosen.atom.shape
    for rows, columns, stages in product((64, 128), (64, 128), (2, 3, 4)):
        warps = chosen.warps if (rows, columns) == (128, 128) else (2, 2)
        tile = (max(rows, unit_m * warps[0]), max(columns, unit_n * warps[1]), chosen.block_k)
        other = widened(replace(chosen, tile=tile, stages=stages, warps=warps), question)
        proposed.setdefault(other, f"a tile of {tile[0]} x {tile[1]}, {stages} stages")
    for schedule, what in proposed.items():
        yield Candidate(schedule, _least_us(question, schedule), f"mma.sync or multiply-adds: {what}")


def _least_us(question: Question, schedule: Schedule) -> float:
    """Time by the machine's rates alone, below which no kernel is: rounds of whole tiles, all bytes once."""
    (m, n, k), rates = question.shape, question.arch.rates
    if rates is None:
        return 0.0
    tiles = -(-m // schedule.tile[0]) * -(-n // schedule.tile[1]) * items_of(question)
    rounds = -(-tiles // max(question.processors, 1))
    multiply = rounds * 2 * schedule.tile[0] * schedule.tile[1] * k / flops_of(question, schedule)
    moved = (m * k + k * n + m * n) * items_of(question) * question.dtype.bytes
    return max(multiply, moved / rates.boards[0].memory_gbytes_per_s / 1e3)


def _ampere_schedule(question: Question) -> Schedule:
    """Tensor cores where there is an atom; a larger tile where its blocks still fill the GPU."""
    m, n, _ = question.shape
    dtype = question.dtype
    atom = tensor_core(question)
    depth = ROW_BYTES // dtype.bytes
    side = 4 if dtype.bytes > 4 and not dtype.is_float else 8  # 64 sums of 64 bits fill a thread's registers
    staged = Schedule(atom or fma(dtype, each=(side, side), paired=True), (64, 64, depth), (2, 2), stages=3)
    staged = replace(staged, staging="fragments" if question.decodes else "cp_async", group_m=BAND)
    if atom is None:
        # Each part of a tile is decoded by a text of its own, of which many take long to compile.
        sides = (16 * side, 16 * side)
        return replace(staged, tile=(*sides, min(depth, 16 if question.decodes else 32)), warps=(4, 2))
    staged = replace(staged, promote=int(promoted_every(question) > 0))
    if m * n >= 128 * 128 * question.processors:
        warps = (4, 2) if dtype.bytes > 4 or staged.promote or question.decodes else (2, 2)
        # What is decoded, and sums that lie in registers twice, do not fit beside each other.
        columns = 64 if question.decodes and staged.promote else 128
        return replace(staged, tile=(128, columns, depth), warps=warps)
    return replace(staged, stages=4)
