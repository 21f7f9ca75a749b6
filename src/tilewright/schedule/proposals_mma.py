"""Proposals for GPUs by ``mma.sync`` or multiply-adds, with copies in the background.

Three families: products of f64 on tensor cores, small products of many batch items, and tiles for anything
else.

Tensor cores multiply f64 at a sixteenth of the rate of f16, so that shared memory and the second-level cache
keep up with warps of 64 x 32 sums.  What counts is that nobody waits: for a part of a tile, for the end of a
block, for the last round of tiles.

A block for each item of a large tile has a multiprocessor to itself, which then waits for one item after the
other.  For small products up to 32 blocks share a multiprocessor, each with an item on its way, and a block
takes several items one after the other, so that all blocks run at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod

from tilewright.schedule.estimate import RATES
from tilewright.schedule.estimate_forms import F64, SMALL
from tilewright.schedule.fallback import is_carried
from tilewright.schedule.load import Load
from tilewright.schedule.needs import ROW_BYTES
from tilewright.schedule.proposals_reference import tensor_core
from tilewright.schedule.proposals_wgmma import promoted_every
from tilewright.schedule.question import BAND, Candidate, Question, widened
from tilewright.schedule.schedule import Schedule
from tilewright.targets.atoms import fma

EACH_PROCESSOR = 4
"""Blocks of ``mma.sync`` for each multiprocessor if a grid cannot have one for each tile."""

# ---------------------------------------------------------------- f64 on tensor cores

SUMS_OF_A_WARP = 64 * 32
"""Sums of all totals together: 128 registers of a thread."""

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
"""Depth along K and stages: of a tile of one product, and of several, which have more operands.  For
complex128 on an H200 tiles that are 16 deep are 5 per cent faster than those that are 8 deep."""


def is_f64(question: Question) -> bool:
    """Whether it is a product of f64 on a machine that has tensor cores for it."""
    kinds = {question.dtype.name, question.form.b.view.dtype.name, question.form.sum.dtype.name}
    return kinds == {"f64"} and "f64_tensor" in question.arch.features


def f64_tiles(question: Question) -> Iterator[Candidate]:
    """Legal tiles in the order of their estimates; then the same with whole tiles ahead.

    Tiles that are loaded one part ahead come first: between two tiles no warp waits for shared memory then.
    Products of complex numbers have two totals or three, and a warp holds fewer sums of each.

    Args:
        question: a product of f64, or several.
    """
    atom, totals = tensor_core(question), len(question.form.totals)
    assert atom is not None, "there are tensor cores for f64"
    blocks = EACH_PROCESSOR * question.processors if question.exceeds_grid else 0
    for staging in ("fragments",) if question.decodes else ("fragments", "cp_async"):
        rings = RINGS if question.form.is_single else RINGS_OF_SEVERAL
        found: list[Candidate] = []
        for (tile, warps), (depth, stages) in product(TILES, rings):
            if prod(tile) * totals > SUMS_OF_A_WARP * prod(warps):
                continue
            made = Schedule(atom, (*tile, depth), warps, stages, staging, blocks=blocks, group_m=BAND)
            made = widened(made, question)
            sides = f"{made.tile[0]} x {made.tile[1]}"
            rule = f"f64 on tensor cores: a tile of {sides}, {stages} stages, {staging}"
            found.append(Candidate(made, F64.time_us(Load(question, made)), rule))
        for one in sorted(found, key=lambda one: one.estimate):
            if is_carried(question, one.schedule):
                yield one


# ---------------------------------------------------------------- small products of many batch items

SIDES, DEPTHS = (16, 32, 64), (16, 32)
"""Rows or columns, and depths, of the tiles of small products."""

OF_A_WARP = 32
"""Rows and columns of the part of a tile that one warp multiplies."""

MOST_K = 128
"""Depth of a small product along K, at most: a deeper one keeps a large tile busy."""

ITEMS = (1, 2, 4, 8, 16)
"""Batch items of a block, one after the other; if there are still more, blocks follow each other."""


def small_products(question: Question) -> Iterator[Candidate]:
    """The schedule for small products of many batch items; none for other problems."""
    m, n, k = question.shape
    items, kind = question.items, question.dtype
    promoted = kind.is_float and kind.bits == 8
    if items < question.processors or k > MOST_K or max(m, n) > SIDES[-1] or question.decodes or promoted:
        return
    atom = tensor_core(question) or fma(kind, each=(4, 4))
    rows, columns = (
        next(side for side in SIDES if side >= max(extent, unit))
        for extent, unit in zip((m, n), atom.shape, strict=False)
    )
    depth = next((depth for depth in DEPTHS if depth >= max(k, atom.shape[2])), DEPTHS[-1])
    warps = (max(rows // OF_A_WARP, 1), max(columns // OF_A_WARP, 1))
    alone = Schedule(atom, (rows, columns, depth), warps, stages=2, staging="cp_async", epilogue="staged")
    load = Load(question, alone)
    each = next((count for count in ITEMS if items <= count * SMALL.at_once(load)), ITEMS[-1])
    if -(-items // each) <= question.arch.grid[-1]:
        rule = f"small products: a tile that holds all of an item, {each} items for each block"
        yield Candidate(replace(alone, batches=each), SMALL.time_us(load), rule)


# ---------------------------------------------------------------- anything else


def background_copies(question: Question) -> Iterator[Candidate]:
    """Tensor cores if there is an atom, multiply-adds otherwise, with copies in the background."""
    chosen = _larger_if_full(question)
    if question.exceeds_grid:
        chosen = replace(chosen, blocks=EACH_PROCESSOR * question.processors)
    rule = "the larger tile" if chosen.tile[0] > 64 else "the tile of which there are more"
    proposed = {widened(chosen, question): rule}
    unit_m, unit_n, _ = chosen.atom.shape
    for rows, columns, stages in product((64, 128), (64, 128), (2, 3, 4)):
        warps = chosen.warps if (rows, columns) == (128, 128) else (2, 2)
        tile = (max(rows, unit_m * warps[0]), max(columns, unit_n * warps[1]), chosen.block_k)
        other = widened(replace(chosen, tile=tile, stages=stages, warps=warps), question)
        proposed.setdefault(other, f"a tile of {tile[0]} x {tile[1]}, {stages} stages")
    for schedule, what in proposed.items():
        time = RATES.time_us(Load(question, schedule))
        yield Candidate(schedule, time, f"mma.sync or multiply-adds: {what}")


def _larger_if_full(question: Question) -> Schedule:
    """A tile of 64 x 64, or a larger one if its blocks still fill the GPU."""
    m, n, _ = question.shape
    dtype = question.dtype
    atom = tensor_core(question)
    depth = ROW_BYTES // dtype.bytes
    side = 4 if dtype.bytes > 4 and not dtype.is_float else 8  # 64 sums of 64 bits fill a thread's registers
    staged = Schedule(atom or fma(dtype, each=(side, side), paired=True), (64, 64, depth), (2, 2), stages=3)
    staged = replace(staged, staging="fragments" if question.decodes else "cp_async", group_m=BAND)
    if atom is None:
        # Each part of a tile has its own text that decodes it, and many texts take long to compile.
        sides = (16 * side, 16 * side)
        return replace(staged, tile=(*sides, min(depth, 16 if question.decodes else 32)), warps=(4, 2))
    staged = replace(staged, promote=int(promoted_every(question) > 0))
    if m * n >= 128 * 128 * question.processors:
        warps = (4, 2) if dtype.bytes > 4 or staged.promote or question.decodes else (2, 2)
        # Decoded operands do not fit into registers together with sums that lie there twice.
        columns = 64 if question.decodes and staged.promote else 128
        return replace(staged, tile=(128, columns, depth), warps=warps)
    return replace(staged, stages=4)
