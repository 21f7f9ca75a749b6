"""Small products of many batch items on NVIDIA GPUs: a tile holds all of an item, a warp or four multiply it.

A block for each item of a large tile has a multiprocessor to itself, which then waits for one item after the
other.  Here up to 32 blocks share a multiprocessor, each with an item on its way, and a block takes several
items one after the other, so that all blocks run at once.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.schedule.choose import Candidate, Question
from tilewright.schedule.choose_reference import tensor_core
from tilewright.schedule.memory import memory_us
from tilewright.schedule.schedule import Schedule
from tilewright.targets.atoms import fma

SIDES, DEPTHS = (16, 32, 64), (16, 32)
"""Rows or columns, and depths, of the tiles."""

OF_A_WARP = 32
"""Rows and columns of the part of a tile that one warp multiplies."""

MOST_K = 128
"""Along K: a deeper product keeps a large tile busy."""

BLOCKS, WARPS = 32, 32
"""Blocks, and warps of 64 registers a thread, that a multiprocessor runs at once."""

ITEMS = (1, 2, 4, 8, 16)
"""Batch items of a block, one after the other; where there are still more, blocks follow each other."""

FIXED_US = 4.2
"""What a launch takes; as measured of other forms."""

ITEM_US = 1.5
"""What a block takes from the first load of an item to its store. An estimate."""


def small(question: Question) -> Candidate | None:
    """The schedule for small products of many batch items; None for other problems.

    Args:
        question: the problem.
    """
    m, n, k = question.shape
    items, kind = prod(question.extents[:-3]), question.dtype
    promoted = kind.is_float and kind.bits == 8
    if items < question.processors or k > MOST_K or max(m, n) > SIDES[-1] or question.decodes or promoted:
        return None
    atom = tensor_core(question) or fma(kind, each=(4, 4))
    rows, columns = (
        next(side for side in SIDES if side >= max(extent, unit))
        for extent, unit in zip((m, n), atom.shape, strict=False)
    )
    depth = next((depth for depth in DEPTHS if depth >= max(k, atom.shape[2])), DEPTHS[-1])
    warps = (max(rows // OF_A_WARP, 1), max(columns // OF_A_WARP, 1))
    alone = Schedule(atom, (rows, columns, depth), warps, stages=2, staging="cp_async", epilogue="staged")
    at_once = question.processors * _beside(question, alone)
    each = next((count for count in ITEMS if items <= count * at_once), ITEMS[-1])
    if -(-items // each) > question.arch.grid[-1]:
        return None
    time = FIXED_US + max(-(-items // at_once) * ITEM_US, memory_us(question))
    rule = f"small products: a tile that holds all of an item, {each} items for each block"
    return Candidate(replace(alone, batches=each), time, rule)


def _beside(question: Question, schedule: Schedule) -> int:
    """Blocks that a multiprocessor runs at once, by threads, registers and, about, shared memory."""
    rows, columns, depth = schedule.tile
    held = schedule.stages * (rows + columns) * depth * question.dtype.bytes
    held += rows * columns * sum(store.operand.dtype.bytes for store in question.form.stores)
    return max(min(BLOCKS, WARPS // prod(schedule.warps), question.arch.shared_bytes // held), 1)
