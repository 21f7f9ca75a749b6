"""Proposals for NVIDIA GPUs: the families that are proposed for a problem, in their order.

Forms with ``wgmma`` come first if it takes the operands, from memory or decoded.  Otherwise ``mma.sync`` or
multiply-adds multiply, with copies in the background.

A kernel with several products, such as those of complex numbers, multiplies the operands of a step several
times.  Each total has its own sums in registers, and each operand its own tile in every stage: tiles are as
large as the registers allow, and rings as deep as shared memory allows.  All these proposals are legal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import inf, prod

from tilewright.schedule.family_estimates import COLUMN_US
from tilewright.schedule.legality import is_carried, reasons, with_fallback
from tilewright.schedule.load import BARRIERS_BYTES, Load
from tilewright.schedule.needs import ROW_BYTES
from tilewright.schedule.plans import takes_turns
from tilewright.schedule.proposals_mma import (
    EACH_PROCESSOR,
    background_copies,
    f64_tiles,
    is_f64,
    packed_weights,
    small_products,
    small_tiles,
)
from tilewright.schedule.proposals_wgmma import (
    copied_forms,
    decoded_forms,
    refused_forms,
    takes_wgmma,
    whole_forms,
)
from tilewright.schedule.question import BAND, Candidate, Question, tensor_core, widened
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.sides import width
from tilewright.schedule.wgmma_forms import WgmmaForm, cached_row_us, promoted_every
from tilewright.targets.atoms import fma, wgmma

# ---------------------------------------------------------------- several products


LEAST_STAGES, MOST_STAGES = 3, 8

MOST_SUMS, MOST_SUMS_COPIED, MOST_SUMS_ALONE = 192, 128, 96
"""Most registers of a thread for sums: if the warps that copy give registers away; if the threads that
multiply copy too; and if blocks share a multiprocessor."""

ALONE = WgmmaForm(64, 64, 1, MOST_STAGES, 1, persistent=False, fixed_us=1.9, tile_us=4.0)
"""A block for each tile."""

FORMS = (
    *(WgmmaForm(64, columns, 2, MOST_STAGES, 1) for columns in (256, 192, 128, 96, 64)),
    *(WgmmaForm(64, columns, 3, MOST_STAGES, 1) for columns in (256, 192, 128)),
    WgmmaForm(64, 192, 2, MOST_STAGES, 1, "ping-pong", tile_us=2.0),
    WgmmaForm(64, 128, 2, MOST_STAGES, 1, "ping-pong", tile_us=0.3),
    *(replace(ALONE, columns=columns, groups=2) for columns in (128, 64)),
    *(replace(ALONE, columns=columns) for columns in (128, 64, 32)),
)

SHARED_BYTES_PER_US = 128 / (COLUMN_US / 2)
"""Rate of the shared memory of a multiprocessor: 128 bytes in each clock.  A column takes two clocks."""

PROMOTED_US = 0.1
"""Wait of a group for sums that it adds to others, if no other group multiplies meanwhile."""

EQUAL, DEEP = 1.01, 4
"""Estimates up to this factor of the least count as equal; stages of a ring that hides the latency of loads.

Of equal estimates, the largest tile with a ring of `DEEP` stages is first.  It loads least, and estimates
leave out how fast shared memory is filled: an H200 multiplied two products of 64 groups of 512 rows, 4096 by
1408, at 400 Tflop/s with 64 columns, and two of 8 groups of 1024 rows, 4096 by 14336, at 565 with 128.
"""

DEPTHS = (ROW_BYTES, ROW_BYTES // 2)
"""Depths of a stage in bytes along K, the deepest first."""


def several_products(question: Question) -> Iterator[Candidate]:
    """Forms in the order of their estimates, then ``mma.sync`` or multiply-adds.

    Args:
        question: a problem of several products.
    """
    if takes_wgmma(question):
        # Rows of 128 bytes of an operand that is not contiguous along K are a whole step, so that stages may
        # have half of the depth.  If sums are promoted, several totals take turns at that depth.
        depths: tuple[int, ...] = (ROW_BYTES,)
        if all(question.major(factor) == "mn" for factor in question.form.factors):
            if not promoted_every(question):
                depths = DEPTHS
            elif len(question.form.totals) > 1:
                depths = DEPTHS[1:]
        found = []
        for shape in FORMS:
            tried = (_of_shape(question, shape, depth) for depth in depths)
            if (made := next(filter(None, tried), None)) is not None:
                found.append(made)
        found.sort(key=lambda one: one.estimate)
        if found:
            # The largest tile comes first among forms with equal estimates and the same roles.
            least = found[0]
            equal = (one for one in found if one.estimate <= least.estimate * EQUAL)
            alike = [one for one in equal if one.schedule.roles == least.schedule.roles]
            deep = [one for one in alike if one.schedule.stages >= DEEP]
            first = max([least, *deep], key=lambda one: prod(one.schedule.tile))
            found.sort(key=lambda one: one is not first)
        carried = [one for one in found if is_carried(question, one.schedule)]
        yield from carried or _by_threads(question, found)
    yield from small_tiles(question)
    copied = [*_copied(question)]
    legal = (one for one in copied if is_carried(question, one.schedule))
    first = next(legal, copied[0])  # if none is legal, its reasons go into the error
    yield first
    yield from legal


def _by_threads(question: Question, found: Sequence[Candidate]) -> Iterator[Candidate]:
    """Yield legal forms in which threads copy operands in the background.

    First come the forms in which bulk copies load the other operands.  There are no forms if the rows of an
    operand do not allow the widest asynchronous copies.

    Args:
        question: a problem of several products, with an operand that bulk copies cannot load.
        found: the forms, with bulk copies.
    """
    asked = question.form, question.classes, question.arch
    sides = (question.form.spec(factor.part.operand, question.classes) for factor in question.form.factors)
    if min(map(width, sides)) < max(question.arch.async_bytes, default=inf):
        return
    ways = [(one, with_fallback(one.schedule, *asked)[0]) for one in found]
    for one, made in ways:
        if made.by_bulk and not reasons(made, *asked):
            yield replace(one, schedule=made, rule=f"{one.rule}, partly copied by threads")
    for one, made in ways:
        sums = made.mma.c().size_values * len(question.form.totals)
        if sums > MOST_SUMS_COPIED or not (made.copies_in_background and made.atom.asynchronous):
            continue
        if not reasons(made, *asked):
            yield replace(one, schedule=made, rule=f"{one.rule}, copied by threads")


def _of_shape(question: Question, shape: WgmmaForm, depth: int) -> Candidate | None:
    """The schedule of a form; None if its sums, or `LEAST_STAGES` of its stages, do not fit.

    Args:
        question: the problem.
        shape: the form.
        depth: bytes along K of a stage; with half a row of 128 bytes, promoted totals take turns.
    """
    form, dtype, (rows, columns) = question.form, question.dtype, shape.tile
    every = promoted_every(question)
    promote = 1 if every and depth < ROW_BYTES else every * dtype.bytes // ROW_BYTES
    atom, totals = wgmma(dtype, columns), len(form.totals)
    in_turns = takes_turns(atom, totals, promote)
    if in_turns and shape.roles == "ping-pong":
        return None  # while a group waits for its sums, no other one multiplies
    sums = shape.rows * columns // 128 * (totals + 1 if in_turns else totals * (2 if promote else 1))
    if sums > (MOST_SUMS if shape.persistent else MOST_SUMS_ALONE) or shape.against(question):
        return None
    stage = depth * (rows * len(form.rows_m) + columns * len(form.rows_n))
    stored = [store.operand.dtype.bytes for store in form.stores]
    buffers = sum(shape.groups * shape.rows * min(ROW_BYTES, columns * size) for size in stored)
    stages = min((question.arch.shared_bytes - BARRIERS_BYTES - buffers) // stage, shape.stages)
    if stages < LEAST_STAGES:
        return None
    apart = shape.persistent and question.reads_result_sized and shape.roles == "cooperative"
    epilogue = "overlapped" if apart else "staged"
    block_k = depth // dtype.bytes
    fields = {"stages": stages, "promote": promote, "epilogue": epilogue, "group_m": BAND}
    made = shape.schedule(question, atom, block_k, **fields)
    asked = [sum(cached_row_us(question, one) for one in side) for side in (form.rows_m, form.rows_n)]
    # A stage is written to shared memory once, and read by each product of each group.
    read = len(form.products) * shape.groups * (shape.rows + columns) * ROW_BYTES
    busy_us = (stage * ROW_BYTES // depth + read) / SHARED_BYTES_PER_US if in_turns else shape.busy_us
    waits = -(-question.shape[2] // (depth * promote // dtype.bytes)) if promote else 0
    tile_us = shape.tile_us + (waits * PROMOTED_US if shape.roles == "ping-pong" else 0.0)
    timed = replace(shape, busy_us=busy_us, tile_us=tile_us)
    time = timed.time_us(question, made, (asked[0], asked[1]))
    how = f"{shape.rows} x {columns} for each of {shape.groups} groups, {shape.roles}"
    return Candidate(made, time, f"{len(form.products)} products of each step, {how}")


def _copied(question: Question) -> Iterator[Candidate]:
    """Schedules with copies in the background, the larger tile first if its blocks fill the machine."""
    (m, n, _), atom = question.shape, tensor_core(question)
    staging = "fragments" if question.decodes else "cp_async"
    sizes = [(64, 64), (32, 64), (32, 32)] if atom else [(64, 64), (32, 64)]
    if m * n < 64 * 64 * question.processors:
        del sizes[0]
    chosen = atom or fma(question.dtype, question.form.sum.dtype, each=(4, 4), paired=True)
    for tile, size, stages in product(sizes, DEPTHS, (3, 2)):
        depth = max(size // question.dtype.bytes // (1 if atom else 2), chosen.shape[2])
        made = Schedule(chosen, (*tile, depth), (2, 2), stages, staging, group_m=BAND)
        made = replace(made, blocks=EACH_PROCESSOR * question.processors if question.exceeds_grid else 0)
        made = widened(replace(made, promote=int(bool(atom) and promoted_every(question) > 0)), question)
        work, time = 2 * m * n * question.shape[2] * len(question.form.products), 0.0
        if question.arch.rates is not None:
            time = work / (Load(question, made).flops_per_us * max(question.processors, 1))
        rule = f"a tile of {tile[0]} x {tile[1]}, {stages} stages"
        yield Candidate(made, time, f"{'mma.sync' if atom else 'multiply-adds'}: {rule}")


def candidates(question: Question) -> Iterator[Candidate]:
    """Candidate schedules; the first is the choice.

    Small products of many batch items come first, then f64, packed weights and decoded operands, which have
    forms of their own.
    """
    if not question.form.is_single:
        if is_f64(question):
            yield from f64_tiles(question)
        yield from several_products(question)
        return
    yield from small_products(question)
    if is_f64(question):
        yield from f64_tiles(question)
    yield from packed_weights(question)
    if "wgmma" in question.arch.features and question.decodes:
        yield from decoded_forms(question)
    if not takes_wgmma(question):
        copies = background_copies(question)
        first = next(copies)
        yield from small_tiles(question, first.schedule)
        yield first
        yield from copies
        return
    yield from copied_forms(question)
    yield from whole_forms(question)
    yield next(background_copies(question))
    yield from refused_forms(question)
