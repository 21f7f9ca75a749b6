"""Proposals for ``wgmma`` on Hopper: forms of one kernel, and forms for few rows or with K in parts.

``wgmma`` reads operands from shared memory, or it reads one operand from registers, where it was decoded.  A
decoded operand lies along the rows of ``wgmma``; if B is decoded, the kernel computes the transposed product.

If blocks are few or wait for memory, a form's rate of multiplication does not predict its time.  Then there
are also proposals for few rows, and proposals that split K if a form leaves multiprocessors idle.  The
estimate `BULK` ranks all of them.

With up to 64 rows of A, reading B once takes all the time.  The number of bytes in flight decides the speed:
steps have several times 128 bytes along K, and the ring fills the shared memory of a multiprocessor.  The
columns of B lie along the rows of ``wgmma``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from math import inf

from tilewright.dtypes import f32, i32
from tilewright.schedule.bulk import SETS, part_depth
from tilewright.schedule.estimate import BULK, ELEMENTS
from tilewright.schedule.legality import is_carried, reasons, with_fallback
from tilewright.schedule.load import BARRIERS_BYTES, Load
from tilewright.schedule.needs import ROW_BYTES
from tilewright.schedule.question import BAND, Candidate, Question
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.schedule.schedule import Schedule, changed
from tilewright.schedule.sides import width
from tilewright.schedule.skipping import square
from tilewright.schedule.splitting import CLUSTERS, rule_of, sharing, split_schedule
from tilewright.schedule.wgmma_forms import (
    DECODED_SHAPES,
    FP8,
    SHAPES,
    WgmmaForm,
    cached_row_us,
    is_scaled_by_tile,
    promoted_every,
)
from tilewright.targets.atoms import wgmma

SCALED_STAGES, SCALED_BUFFERS, SCALED_COPIES = 3, 4, 4
"""Stages, buffers and copies of the main loop's body if slices of sums are multiplied by scales.

On an H200 2 to 5 per cent faster than four stages, two buffers and one copy.
"""

GROUPS_M = (4, 8, 16)
"""Heights of the bands of tiles that are proposed for the fastest forms."""

NEIGHBOURS = 3
"""Number of fastest forms whose neighbours are proposed too."""

DECODED_DTYPES = ("f16", "bf16")
"""Dtypes into which operands are decoded in registers."""

DECODED_COPIES = 2
"""Copies of the main loop's body if a block decodes and takes tile after tile: 1 per cent faster than one."""

MOST_WITH_INTEGERS = 128 * 96
"""Most sums of a group that decodes integers, if the dtype is bf16 or they are contiguous along M."""


# ---------------------------------------------------------------- operands as they lie in memory


def takes_wgmma(question: Question) -> bool:
    """Whether wgmma can read the operands without a transposition, and add in the dtype of the sums."""
    dtype, form = question.dtype, question.form
    if "wgmma" not in question.arch.features or form.sum.dtype not in (f32, i32):
        return False
    is_mixed = dtype != question.b_dtype and {dtype.name, question.b_dtype.name} - {*FP8}
    if is_mixed or "" in question.majors or question.decodes:
        return False
    if dtype.name in ("f16", "bf16"):
        return True
    known = dtype.name in (*FP8, "i8", "u8") or (dtype.name == "f32" and form.precision == "tf32")
    return known and question.majors == ("k", "k")


def whole_forms(question: Question) -> Iterator[Candidate]:
    """The forms that can compute a problem, the fastest first; then, for many rows, their neighbours."""
    able = [(shape, _of_form(question, shape)) for shape in SHAPES if not _against(question, shape)]
    able.sort(key=lambda pair: pair[1].estimate)
    yield from without_waiting(question, [one for _, one in able], promoted_every(question))
    for shape, found in () if is_thin(question) else able[:NEIGHBOURS]:
        clusters = (cluster for cluster in ((1, 1), (2, 1), (1, 2)) if cluster != shape.cluster)
        near = [(replace(shape, cluster=cluster), f"in clusters of {cluster}") for cluster in clusters]
        stages = (shape.stages - 1, shape.stages + 1)
        near += [(replace(shape, stages=count), f"with {count} stages") for count in stages]
        for other, difference in near:
            yield replace(_of_form(question, other), rule=f"{found.rule} {difference}")
        for rows in GROUPS_M:
            bands = f"{found.rule} in bands of {rows} rows of tiles"
            yield replace(found, schedule=changed(found.schedule, group_m=rows), rule=bands)


def refused_forms(question: Question) -> Iterator[Candidate]:
    """The forms that cannot compute a problem, each with the reason."""
    for shape in SHAPES:
        if reason := _against(question, shape):
            found = _of_form(question, shape)
            estimate = _bulk_us(question, found.schedule) if is_thin(question) else found.estimate
            yield replace(found, estimate=estimate, against=(reason,))


def _against(question: Question, shape: WgmmaForm) -> str:
    """Reason to skip a form, or "". Slice promotion needs groups of warps and bulk copies."""
    reason = shape.against(question)
    if not reason and shape.depth > 1 and not is_carried(question, hopper_schedule(question, shape)):
        return "bulk copies cannot copy all arrays, or the epilogue cannot store slice by slice"
    return reason


def _of_form(question: Question, shape: WgmmaForm) -> Candidate:
    made, form = hopper_schedule(question, shape), question.form
    row_us = cached_row_us(question, form.a), cached_row_us(question, form.b)
    number = f" {SHAPES.index(shape) + 1}" if shape in SHAPES else ""
    return Candidate(made, shape.time_us(question, made, row_us), f"form{number} of the Hopper kernel")


def hopper_schedule(question: Question, shape: WgmmaForm) -> Schedule:
    """The schedule of a form."""
    dtype, in_slices = question.dtype, shape.promotes_slices(question)
    block_k = shape.depth * ROW_BYTES // dtype.bytes
    # If a residual is read, warps that load it and store are worth their registers: if groups load it
    # themselves, they hold its registers and all sums at once, and spill.
    apart = shape.persistent and question.reads_result_sized
    made = shape.schedule(
        question,
        wgmma(dtype, shape.promoted_columns(question), question.b_dtype),
        block_k,
        group_m=BAND,
        promote=1 if in_slices else promoted_every(question) // block_k,
        epilogue="overlapped" if apart else "staged",
    )
    if in_slices and is_scaled_by_tile(question):
        stages = min(made.stages, SCALED_STAGES)
        return changed(made, stages=stages, buffers=SCALED_BUFFERS, unroll=SCALED_COPIES)
    return made


# ---------------------------------------------------------------- operands that threads copy

COPIED_COLUMNS = (8, 16, 32, 64, 128, 192)
"""Columns of tiles that threads copy: the least that hold all columns, and fewer, down to `LEAST_COPIED`."""

LEAST_COPIED = 64
"""Fewest columns of a tile that does not hold all columns of the problem."""

DEEPER_BELOW = 64
"""Columns of a tile below which deeper tiles are tried too: there are registers to spare."""

COPIED_STAGES, WIDEST_STAGES = (8, 4), (8, 6, 4)
"""Stages of a ring that threads fill in the background: by any copies, and by the widest.

With 6 stages, an H200 multiplies 8192 x 4096 x 4096 in bf16, of chosen rows, in 467 us; with 4 in 530.
"""

BLOCKS_BESIDE = (1, 3)
"""Numbers of blocks per multiprocessor to try with split K."""

MOST_PIECES, MOST_HELD = 96, 200
"""Most registers of a thread for the next tile, and for it and the sums together.

NVRTC 13.0 spills a few bytes with 128 and 160, and with 96 and 224.
"""

MOST_COPIED = 16
"""Most schedules with copies by threads that are proposed."""

NEARLY = 1.08
"""Estimates up to this factor of the least count as equal, so that random shapes need few kernels."""


def copied_forms(question: Question) -> Iterator[Candidate]:
    """Tiles that threads copy, each with its whole K or with K in parts, in the order of their estimates.

    It yields legal schedules only, and nothing if bulk copies can load the operands.

    Args:
        question: the problem, whose operands ``wgmma`` takes.
    """
    form, asked = question.form, (question.form, question.classes, question.arch)
    if form.flow.grouped is not None or form.lists or form.scaled_every or question.covered != (0, 0):
        return
    bulk = hopper_schedule(question, SHAPES[-2])
    if question.arch.rates is None or with_fallback(bulk, *asked)[0].by_bulk:
        return
    found: list[tuple[float, Candidate]] = []
    for whole in _copied(question):
        load = Load(question, whole)
        if ELEMENTS.pieces(load) > min(MOST_PIECES, MOST_HELD - load.case.accumulators):
            continue
        loads = [load]
        for beside in BLOCKS_BESIDE:  # K in parts, for each number of parts that blocks have room for
            split = split_schedule(whole, "auto", beside * question.processors)
            if split is not None and (parted := Load(question, split)).parts > loads[-1].parts:
                loads.append(parted)
        for load in loads:
            schedule, (rows, columns, depth) = load.schedule, load.schedule.tile
            rule = f"threads copy tiles of {rows} x {columns}, {depth} deep, by {schedule.staging}"
            rule += f", {rule_of(load)}" if schedule.is_split else ""
            made = Candidate(schedule, ELEMENTS.time_us(load), rule)
            found.append((made.estimate * (DOUBT if schedule.is_split else 1), made))
    ranked = sorted(found, key=lambda one: one[0])
    legal = ((us, one) for us, one in ranked if not reasons(one.schedule, *asked))
    few = islice(legal, MOST_COPIED)
    if (fastest := next(few, None)) is None:
        return
    near = (one for us, one in found if us <= NEARLY * fastest[0])
    first = next(one for one in near if not reasons(one.schedule, *asked))
    yield first
    yield from (one for _, one in chain((fastest,), few) if one is not first)


def _copied(question: Question) -> Iterator[Schedule]:
    """The schedules with a whole K, legal or not."""
    unit = ROW_BYTES // question.dtype.bytes
    every = promoted_every(question)
    for swap in (False, True) if question.shape[0] <= ROWS[-1] else (False,):
        asked = question.transposed if swap else question
        sides = [asked.form.spec(factor.part.operand, asked.classes) for factor in asked.form.factors]
        stagings = [("registers", 1)]
        widths = asked.arch.async_bytes
        if (narrowest := min(map(width, sides))) >= min(widths, default=inf):
            depths = WIDEST_STAGES if narrowest >= max(widths) else COPIED_STAGES
            stagings += [("cp_async", stages) for stages in depths]
        m, n, _ = asked.shape
        widest = next((count for count in COPIED_COLUMNS if n <= count), COPIED_COLUMNS[-1])
        fitting = [count for count in COPIED_COLUMNS if min(widest, LEAST_COPIED) <= count <= widest]
        for warps, columns in product((1, 2) if m > ROWS[-1] else (1,), fitting):
            for lines, (staging, stages) in product((1, 2) if columns < DEEPER_BELOW else (1,), stagings):
                depth = lines * unit
                yield Schedule(
                    wgmma(asked.dtype, columns, asked.b_dtype),
                    (ROWS[-1] * warps, columns, depth),
                    (warps, 1),
                    stages=stages,
                    staging=staging,
                    group_m=BAND,
                    promote=max(every // depth, 1) if every else 0,
                    blocks=asked.processors if asked.exceeds_grid else 0,
                    epilogue="staged",
                    buffers=1,
                    registers=0,
                    swap_ab=swap,
                )


# ---------------------------------------------------------------- an operand decoded in registers


def decoded_forms(question: Question) -> Iterator[Candidate]:
    """Legal forms that decode one operand, in the order of their estimates; none if none can decode it.

    Args:
        question: a problem with an operand that is decoded inside the main loop.
    """
    form = question.form
    kinds = {form.a.view.dtype.name, form.b.view.dtype.name}
    if form.a.is_plain == form.b.is_plain or len(kinds) > 1 or not kinds <= {*DECODED_DTYPES}:
        return
    asked = question.transposed if form.a.is_plain else question
    found: list[Candidate] = []
    m, n, _ = asked.shape
    tried: dict[WgmmaForm, None] = {}
    for shape in DECODED_SHAPES:
        in_one_wave = question.processors // max(-(-m // shape.tile[0]) * question.items, 1)
        tried |= dict.fromkeys((shape, shape.narrowed(n), shape.narrowed(n, in_one_wave)))
    for shape in tried:
        elements = shape.rows * shape.columns
        # Seen with NVRTC 13.0: decoded integers do not fit into registers together with more sums, and spill.
        is_large = asked.majors[0] == "mn" or asked.dtype.name == "bf16"
        spills = is_large and not asked.form.a.dtype.is_float and elements > MOST_WITH_INTEGERS
        if spills or shape.against(asked):
            continue
        a, b, kind = asked.form.a.dtype, asked.form.b.dtype, asked.dtype
        block_k = max(SETS * part_depth(kind), ROW_BYTES // a.bytes)
        stored = sum(store.operand.dtype.bytes for store in asked.form.stores)
        results = [
            (store, asked.form.spec(store.operand, asked.specs).unit_dim) for store in asked.form.stores
        ]
        lie_along_rows = all(
            unit is not None and store.at[unit] == asked.form.m and store.operand.dtype.bytes == kind.bytes
            for store, unit in results
        )
        rows, columns = shape.tile
        # A group's buffer holds rows of 128 bytes, or two narrow slices of the same size together.
        buffers = shape.groups * shape.buffers * min(shape.rows * ROW_BYTES, shape.rows * columns * stored)
        room = asked.arch.shared_bytes - BARRIERS_BYTES - buffers * max(len(asked.form.stores), 1)
        stages = min(room // (block_k * (rows * a.bytes + columns * b.bytes)), shape.stages)
        if stages < 2:  # the buffers of several results leave no room for a ring
            continue
        made = shape.schedule(
            asked,
            wgmma(kind, columns),
            block_k,
            stages=stages,
            buffers=shape.buffers * (2 if shape.persistent and lie_along_rows else 1),
            swap_ab=form.a.is_plain,
            unroll=DECODED_COPIES if shape.persistent else 1,
        )
        how = f"{shape.rows} x {shape.columns} for each of {shape.groups} groups"
        rule = f"decoded in registers, {how}, {shape.roles}"
        found.append(Candidate(made, _bulk_us(question, made), rule))
    found.sort(key=lambda one: one.estimate)
    yield from (one for one in without_waiting(question, found, 0) if is_carried(question, one.schedule))


# ---------------------------------------------------------------- few rows, and K in parts

ROWS = (8, 16, 32, 64)
"""Numbers of rows of A in a tile: the smallest that holds all rows is taken."""

NARROW_COLUMNS = 32
"""Columns of B in a tile that holds up to 64 rows of A along the rows of the atom."""

MOST_STREAM_STAGES = 16

PAYS = 0.97
"""A schedule precedes the fastest form if its estimate, relative to that of the form, is below this."""

SPLITS: tuple[tuple[int | str, str], ...] = (
    ("auto", "workspace"),
    ("auto", "reduce-scatter"),
    *((parts, "cluster") for parts in CLUSTERS),
)
"""Splits and reductions that are tried unasked; streams were never the fastest."""

FITTED_HEIGHTS = ((128, 2), (64, 1), (192, 3), (256, 2))
"""Rows of a fitted tile, and the number of groups of warps that multiply it."""

FITTED_SUMS = 64 * 256
"""Most sums of a group in a fitted tile."""

FITTED_ROOM = 88
"""Fewest registers of a thread besides its sums if the epilogue reads an array of the size of the result.

With less, NVRTC 13.0 spills: up to 150 bytes with 192 x 192 tiles of 3 groups, 670 with 256 x 128 tiles of 2.
"""

FITTED_UNIT, FITTED_COLUMNS, FITTED_STAGES = 16, (48, 256), (4, 8)
"""Unit of the columns of a fitted tile, and its least and most columns and stages.

The unit is coarse so that few kernels are compiled.  With 9 or 10 stages an H200 took up to 10 per cent
longer, with 3 up to 30.
"""

FITTED_COUNTS = 2
"""Numbers of tiles along the columns that are tried, from the fewest on."""

FITTED_PARTS = 4
"""Fitted tiles with K in parts that are tried in clusters too, the fastest first."""

DOUBT = 1.02
"""Factor on estimates with K in parts or in clusters, because the model does not resolve smaller gains."""

SHORTEST_BYTES = 4096
"""Fewest bytes along K for which split K is proposed unasked; with less, parts cost more than they save."""


@dataclass(frozen=True)
class RowStream:
    """A form of the Hopper kernel for few rows of A.

    Args:
        groups: number of groups that multiply.
        depth: depth of a step, in units of 128 bytes of K.
        beside: blocks that share a multiprocessor, and its shared memory.
        each: columns of B that a group multiplies.
        most: largest number of stages.
        copies: copies of the main loop's body in each turn; with several, results are stored from registers.
    """

    groups: int
    depth: int
    beside: int = 1
    each: int = 64
    most: int = MOST_STREAM_STAGES
    copies: int = 1

    @property
    def columns(self) -> int:
        """Columns of B in a tile."""
        return self.each * self.groups

    def stages(self, question: Question, rows: int) -> int:
        """Stages for which shared memory has room in addition to the results."""
        room = question.arch.shared_bytes // self.beside - BARRIERS_BYTES
        room -= sum(store.operand.dtype.bytes for store in question.form.stores) * rows * self.columns
        a, b = question.form.a.dtype.bytes, question.form.b.dtype.bytes
        return min(room // (self.block_k(question) * (self.columns * b + rows * a)), self.most)

    def block_k(self, question: Question) -> int:
        """Elements along K of a step."""
        return self.depth * ROW_BYTES // question.form.b.dtype.bytes

    def schedule(self, question: Question, rows: int, promoted: int) -> Schedule:
        """The schedule of the form.

        Args:
            question: the problem.
            rows: rows of A in a tile.
            promoted: elements along K after which sums are promoted; 0: never.
        """
        block_k = self.block_k(question)
        return Schedule(
            wgmma(question.b_dtype, rows, question.dtype),
            (self.columns, rows, block_k),
            stages=self.stages(question, rows),
            staging="tma",
            roles="cooperative",
            groups=self.groups,
            promote=max(promoted // block_k, 1) if promoted else 0,
            epilogue="staged" if self.copies == 1 else "direct",
            buffers=1,
            registers=0,
            swap_ab=True,
            unroll=self.copies,
        )


STREAMS = (RowStream(1, 4), RowStream(2, 2), RowStream(1, 2, beside=2))
"""Forms for few rows; each step loads 16 to 32 KiB of B, and all rings have about 200 KiB."""

DECODED = (RowStream(1, 2, most=6, copies=4), *STREAMS)
"""Forms for a decoded B that is contiguous along K: few short stages were faster than more of them."""

ALONG_COLUMNS = (RowStream(1, 2, each=128), RowStream(1, 4, each=128))
"""Forms for a decoded B that is contiguous along N: a group decodes its rows of 128 bytes."""


def has_few_rows(question: Question) -> bool:
    """Whether a tile of `STREAMS` holds all rows, and the grid all batch items."""
    return question.shape[0] <= ROWS[-1] and question.covered == (0, 0) and not question.exceeds_grid


def is_thin(question: Question) -> bool:
    """Whether there are few rows; or few columns of one product of operands as they lie in memory."""
    is_plain = not question.decodes and question.items == 1
    return has_few_rows(question) or (is_plain and has_few_rows(question.transposed))


def without_waiting(question: Question, whole: Sequence[Candidate], promoted: int) -> Iterator[Candidate]:
    """Forms in the order in which they are tried: as given, or ranked by how long they wait for memory.

    Args:
        question: the problem, whose operands ``wgmma`` takes.
        whole: forms for any number of rows, the fastest by their own estimates first.
        promoted: elements along K after which sums are promoted; 0: never.
    """
    rated = [replace(one, estimate=_bulk_us(question, one.schedule)) for one in whole]
    if is_thin(question):
        if has_few_rows(question):
            few = [*_few_rows(question, promoted)]
        else:  # forms of the transposed product, whose rows are few
            few = []
            for one in _few_rows(question.transposed, promoted):
                turned = changed(one.schedule, swap_ab=not one.schedule.swap_ab)
                rule = f"of the transposed product, {one.rule}"
                few.append(replace(one, schedule=turned, estimate=_bulk_us(question, turned), rule=rule))
        found = _with_parts(question, rated, few, inf)
        found += _fitted(question, PAYS * min((_doubted_us(one) for one in found), default=0.0))
        yield from _ranked(question, found, rated)
        return
    if not rated:
        return
    # Times of forms that take several tiles or promote sums are measured; a block with one tile waits, which
    # `BULK` knows.
    first = rated[0]
    is_measured = promoted > 0 or Load(question, first.schedule).tiles > question.processors
    most = PAYS * first.estimate
    found = [one for one in _with_parts(question, rated, [], most) if not (is_measured and one in rated)]
    found += _fitted(question, most)
    yield from _ranked(question, [one for one in found if _doubted_us(one) < most], rated)
    yield from whole


def _fitted(question: Question, most: float) -> list[Candidate]:
    """Candidates whose tiles divide the columns evenly, in one wave or with K in parts.

    A tile has the fewest columns that make one wave, or a small number of tiles along the columns.  Both the
    product and the transposed one are tried.

    Args:
        question: the problem, whose operands ``wgmma`` takes.
        most: time below which a candidate is taken, in us.
    """
    wave: list[Candidate] = []
    parted: list[tuple[Candidate, Candidate]] = []
    for base in _fitted_tiles(question):
        is_split = base.schedule.groups <= 2 and _leaves_idle(Load(question, base.schedule))
        # A ring with fewer stages takes longer: a tile that is too slow with the most stages needs no ring.
        if not is_split and all(_doubted_us(one) >= most for one in _in_one_wave(question, base)):
            continue
        filled = _with_full_ring(question, base.schedule)
        if filled is None:
            continue
        base = replace(base, schedule=filled)
        wave += _in_one_wave(question, base)
        if is_split:
            ways = _parts(question, base, (("auto", "reduce-scatter"),), in_clusters=False)
            parted += ((one, base) for one in ways)
    found = [*wave, *(one for one, _ in parted)]
    for one, base in sorted(parted, key=lambda pair: _doubted_us(pair[0]))[:FITTED_PARTS]:
        made = _with_full_ring(question, one.schedule) or one.schedule
        loads = (Load(question, each) for each in (made, *sharing(Load(question, made))))
        found += (
            Candidate(load.schedule, BULK.time_us(load), f"{base.rule}, {rule_of(load)}")
            for load in loads
            if load.parts > 1
        )
    return [one for one in found if _doubted_us(one) < most]


def _in_one_wave(question: Question, base: Candidate) -> Iterator[Candidate]:
    """A schedule alone and in clusters of two, if all of its blocks run at once."""
    load = Load(question, base.schedule)
    for cluster in ((1, 1), (2, 1), (1, 2)) if load.tiles <= question.processors else ():
        if all(count % of == 0 for count, of in zip(load.tiles_along, cluster, strict=True)):
            made = changed(base.schedule, cluster=cluster)
            shared = "" if cluster == (1, 1) else f", in clusters of {cluster[0]} x {cluster[1]}"
            yield Candidate(made, _bulk_us(question, made), f"one wave: {base.rule}{shared}")


def _fitted_tiles(question: Question) -> Iterator[Candidate]:
    """Schedules with fitted tiles, a block for each, and the most stages; their times are not estimated."""
    form = question.form
    is_plain = form.is_single and form.flow.grouped is None and question.covered == (0, 0)
    if not is_plain or question.decodes or promoted_every(question) or question.exceeds_grid:
        return
    if 0 in (*question.shape[:2], question.items):  # nothing is computed
        return
    block_k = ROW_BYTES // question.dtype.bytes
    least, widest = FITTED_COLUMNS
    for swap in (False,) if form.mirrored else (False, True):
        asked = question.transposed if swap else question
        m, n, _ = asked.shape
        unit = FITTED_UNIT if asked.majors[1] == "k" else block_k  # bulk copies load rows of 128 bytes
        for rows, groups in FITTED_HEIGHTS:
            if rows > ROWS[-1] and 2 * m <= rows:
                continue
            sums = FITTED_SUMS  # most sums of a group
            if question.reads_result_sized:
                threads = question.arch.role_warps * question.arch.lanes
                held = question.arch.registers_of_each(threads * (groups + 1))  # another group copies
                sums = min(sums, threads * (held - FITTED_ROOM))
            most = min(sums * groups // rows, widest)
            if form.mirrored:  # few tiles of a symmetric result are computed
                squares = (n for n in range(unit, widest + 1, unit) if square((rows, n)))
                tried = ((n, Schedule(wgmma(asked.dtype, n), (rows, n, unit))) for n in squares)
                loads = ((n, Load(asked, one)) for n, one in tried)
                widths = [n for n, load in loads if load.tiles <= question.processors][:1]
            else:
                fewest = -(-n // most)
                counts = {*range(fewest, fewest + FITTED_COUNTS)}
                counts.add(question.processors // (-(-m // rows) * question.items))
                widths = sorted({-(-n // count // unit) * unit for count in counts if count})
            for columns in widths:
                if not least <= columns <= most:
                    continue
                shape = WgmmaForm(rows // groups, columns, groups, FITTED_STAGES[1], 1, persistent=False)
                atom = wgmma(asked.dtype, columns, asked.b_dtype)
                made = shape.schedule(asked, atom, block_k, swap_ab=swap)
                turned = ", of the transposed product" if swap else ""
                yield Candidate(made, inf, f"tiles of {rows} x {columns}{turned}")


def _with_full_ring(question: Question, schedule: Schedule) -> Schedule | None:
    """The schedule with the most stages for which shared memory has room; None if they are too few."""
    case = ScheduleOnMachine(schedule, question.form, question.specs, question.arch)
    stage = sum(side.extent * side.row_bytes for side in Load(question, schedule).sides)
    least, most = FITTED_STAGES
    stages = schedule.stages + (question.arch.shared_bytes - case.shared_bytes) // stage
    stages = min(stages, max(schedule.stages, most))
    return changed(schedule, stages=stages) if stages >= least else None


def _doubted_us(one: Candidate) -> float:
    """The estimate by which a candidate is ranked; `DOUBT` times longer with split K or clusters."""
    is_simple = one.schedule.split_k == 1 and one.schedule.cluster == (1, 1)
    return one.estimate * (1 if is_simple else DOUBT)


def _few_rows(question: Question, promoted: int) -> Iterator[Candidate]:
    """Forms for few rows."""
    rows = next(count for count in ROWS if count >= question.shape[0])
    if question.shape[0] > NARROW_COLUMNS and not question.decodes:
        # Tiles of 64 rows and few columns: as many as multiprocessors.
        block_k = 2 * ROW_BYTES // question.dtype.bytes
        narrow = Schedule(
            wgmma(question.dtype, NARROW_COLUMNS),
            (ROWS[-1], NARROW_COLUMNS, block_k),
            stages=8,
            staging="tma",
            roles="cooperative",
            group_m=8,
            promote=max(promoted // block_k, 1) if promoted else 0,
            epilogue="staged",
            buffers=1,
            registers=0,
        )
        rule = f"narrow tiles: {NARROW_COLUMNS} columns of B, steps of {2 * ROW_BYTES} bytes of K"
        yield Candidate(narrow, _bulk_us(question, narrow), rule)
    decoded = ALONG_COLUMNS if question.majors[1] == "mn" else DECODED
    for stream in decoded if question.decodes else STREAMS:
        if stream.stages(question, rows) > 1:
            schedule = stream.schedule(question, rows, promoted)
            deep = f"steps of {stream.depth * ROW_BYTES} bytes of K"
            rule = f"few rows: {stream.columns} columns of B along the rows of the atom, {deep}"
            yield Candidate(schedule, _bulk_us(question, schedule), rule)


def _with_parts(
    question: Question, whole: Sequence[Candidate], few: Sequence[Candidate], most: float
) -> list[Candidate]:
    """The schedules, and those with K in parts that should take less than `most`.

    At equal estimates the forms for few rows come first.
    """
    # A persistent form splits K like the form with the same tile and a block for each tile: skip it.
    simple = {one.schedule.tile for one in whole if not one.schedule.blocks}
    able = [one for one in whole if not one.schedule.blocks or one.schedule.tile not in simple]
    parted = (made for one in (*few, *able) for made in _parts(question, one) if _doubted_us(made) < most)
    return [*few, *whole, *parted]


def _ranked(
    question: Question, found: Sequence[Candidate], whole: Sequence[Candidate]
) -> Iterator[Candidate]:
    """Candidates in the order of their estimates; a candidate that is no form must be legal.

    Legality is checked late, so that few candidates need it; for symmetric results when their stages are
    known.
    """
    for one in sorted(found, key=_doubted_us):
        if one in whole or question.form.mirrored or is_carried(question, one.schedule):
            yield one
            continue
        # Sums that a cluster exchanges leave room for fewer stages.
        fewer = _with_full_ring(question, one.schedule) if one.schedule.is_clustered else None
        if fewer is not None and is_carried(question, fewer):
            yield replace(one, schedule=fewer)


def _parts(
    question: Question,
    whole: Candidate,
    splits: Sequence[tuple[int | str, str]] = SPLITS,
    *,
    in_clusters: bool = True,
) -> Iterator[Candidate]:
    """A schedule with K in parts, legal or not, if the schedule leaves multiprocessors idle.

    Args:
        question: the problem.
        whole: the schedule that does not split K.
        splits: splits and reductions to try.
        in_clusters: whether to try clusters whose blocks share operands.
    """
    for split_k, reduction in splits if _leaves_idle(Load(question, whole.schedule)) else ():
        asked = whole.schedule, split_k, question.processors, reduction
        made = split_schedule(*asked, decodes=question.decodes)
        if made is None:
            continue
        for one in (made, *(sharing(Load(question, made)) if in_clusters else ())):
            load = Load(question, one)
            if load.parts > 1:
                yield Candidate(one, BULK.time_us(load), f"{whole.rule}, {rule_of(load)}")


def _leaves_idle(load: Load) -> bool:
    """Whether K is long, and a schedule leaves at least half of the multiprocessors idle."""
    question = load.question
    is_long = question.shape[2] * question.dtype.bytes >= SHORTEST_BYTES
    return is_long and question.form.flow.grouped is None and load.tiles * 2 <= question.processors


def _bulk_us(question: Question, schedule: Schedule) -> float:
    return BULK.time_us(Load(question, schedule))
