"""Schedules for NVIDIA GPUs, by rules.

With Hopper's operations: the tile with which the multiprocessors finish first, and as many blocks as
finish together.  Elsewhere, and for operands that Hopper's multiply does not take: ``mma.sync`` or
multiply-adds, with copies in the background.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.schedule.choose import Question
from tilewright.schedule.choose_reference import tensor_core
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stages import ROW_BYTES
from tilewright.targets.atoms import fma, wgmma

RINGS = {192: (4, 3), 256: (4, 2), 128: (6, 2), 64: (8, 1)}
"""Columns of a tile -> stages of the ring, buffers of each group's epilogue: what shared memory holds."""

PROMOTED = (128, 64)
"""Columns with which two accumulators fit into the registers."""

FP8 = ("f8e4m3", "f8e5m2")
GROUPS, ROWS = 2, 64
BAND = 8
"""Rows of tiles that follow each other."""


def choose(question: Question) -> Schedule:
    """The schedule that is estimated to take least time."""
    if "sm_90a" in question.arch.features and _takes_wgmma(question):
        return _hopper(question)
    return _ampere(question)


def _takes_wgmma(question: Question) -> bool:
    """Whether Hopper's multiply takes the operands as they lie in memory."""
    dtype, form = question.dtype, question.form
    if form.b.dtype != dtype or "" in question.majors:
        return False
    if dtype.name in ("f16", "bf16"):
        return True
    known = dtype.name in (*FP8, "i8", "u8") or (dtype.name == "f32" and form.precision == "tf32")
    return known and question.majors == ("k", "k")


def _hopper(question: Question) -> Schedule:
    """Persistent blocks of one group that copies and two that multiply.

    A step takes 4 cycles per column, or 2.2 for each row of A and B that the second-level cache must deliver:
    of all dtypes, for the tensor cores take as many bytes of each.
    """
    m, n, _ = question.shape
    dtype, processors = question.dtype, question.processors
    promote = 4 if dtype.name in FP8 else 0
    known = PROMOTED if promote else tuple(RINGS)
    batches = 1
    for extent in question.extents[:-3]:
        batches *= extent
    tiles = {columns: batches * -(-m // (GROUPS * ROWS)) * -(-n // columns) for columns in known}
    turns = {columns: max(-(-count // processors), 1) for columns, count in tiles.items()}
    best = min(known, key=lambda columns: turns[columns] * max(4 * columns, 2.2 * (GROUPS * ROWS + columns)))
    stages, buffers = RINGS[best]
    return Schedule(
        wgmma(dtype, best),
        (GROUPS * ROWS, best, ROW_BYTES // dtype.bytes),
        stages=stages,
        staging="tma",
        roles="cooperative",
        groups=GROUPS,
        blocks=max(-(-tiles[best] // turns[best]), 1),
        group_m=BAND,
        promote=promote,
        epilogue="staged",
        buffers=buffers,
    )


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
