"""Proposals for GPUs by ``mma.sync`` or multiply-adds, with copies in the background.

There are five families: products of f64 on tensor cores, small products of many batch items, small tiles for
exact products of f32, packed weights, and tiles for anything else.

Tensor cores multiply f64 at a sixteenth of the rate of f16, so shared memory and L2 keep up with warps of
64 x 32 sums.  Idle time costs most: it comes from partial tiles, from the ends of blocks, and from the last
round of tiles.

With large tiles, a block that computes one batch item fills a multiprocessor, which then waits for each item.
For small products up to 32 blocks share a multiprocessor, and each loads its own item.  A block takes several
items one after the other, so that all blocks run at once.

Packed weights are decoded between shared memory and ``mma.sync``.  They lie along the rows of the
instruction, whether they are A or B, so few rows of the other operand cost little.  Two things then decide
the speed: the number of warps that decode on each multiprocessor, and whether a block waits for the end of
another; so K is split if tiles are few.  The estimate models the rate of decoding and the bytes; it was
fitted to products of 1 to 64 rows on an H200.

For exact products of f32, the model of multiply-adds chooses the tile, and whether K is split.  This includes
kernels with several products, such as those of complex numbers.  A tile is not much larger than the result.
Several blocks share a multiprocessor: while one waits for its operands or at a barrier, the others multiply.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod

from tilewright.dtypes import f32
from tilewright.schedule.estimate import (
    FMA,
    FMA_OF_SEVERAL,
    RATES,
    RING,
    WIDEST_BYTES,
    FmaEstimate,
    estimate_of,
)
from tilewright.schedule.factors import pair_of
from tilewright.schedule.family_estimates import F64, SMALL, PackedEstimate
from tilewright.schedule.legality import is_carried, reasons
from tilewright.schedule.load import BARRIERS_BYTES, DealtLoad, Load, thread_values
from tilewright.schedule.needs import ROW_BYTES
from tilewright.schedule.question import BAND, Candidate, Question, tensor_core, widened
from tilewright.schedule.schedule import REDUCTIONS, Schedule
from tilewright.schedule.sides import row_gap, width
from tilewright.schedule.splitting import rule_of, split_schedule, with_more_blocks
from tilewright.schedule.wgmma_forms import promoted_every
from tilewright.targets.atoms import fma

EACH_PROCESSOR = 4
"""Blocks of ``mma.sync`` for each multiprocessor if a grid cannot have a block for each tile."""

# ---------------------------------------------------------------- f64 on tensor cores

SUMS_OF_A_WARP = 64 * 32
"""Sums of a warp for all totals together: 128 registers of a thread."""

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
"""Depth along K and stages, for one product and for several, which have more operands.  For complex128 on an
H200, depth 16 is 5 per cent faster than depth 8."""


def is_f64(question: Question) -> bool:
    """Whether it is a product of f64 on a machine that has tensor cores for it."""
    kinds = {question.dtype.name, question.form.b.view.dtype.name, question.form.sum.dtype.name}
    return kinds == {"f64"} and "f64_tensor" in question.arch.features


def f64_tiles(question: Question) -> Iterator[Candidate]:
    """Legal tiles in the order of their estimates: first those that load one part ahead, then whole tiles.

    With a part loaded ahead, no warp waits for shared memory between two tiles.  Products of complex numbers
    have two totals or three, and a warp holds fewer sums of each.

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
"""Largest depth of a small product along K: a deeper one keeps a large tile busy."""

ITEMS = (1, 2, 4, 8, 16)
"""Batch items of a block, one after the other; if there are still more, blocks follow each other."""


def small_products(question: Question) -> Iterator[Candidate]:
    """The schedule for small products of many batch items; none for other problems."""
    m, n, k = question.shape
    items, kind = question.items, question.dtype
    promoted = kind.is_float and kind.bits == 8
    if items < question.processors or k > MOST_K or max(m, n) > SIDES[-1] or question.decodes or promoted:
        return
    atom = tensor_core(question) or fma(kind, question.form.sum.dtype, each=(4, 4))
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


PARTS_PAY = 0.8
"""Largest time with K in parts, relative to whole K, at which K is split."""


def background_copies(question: Question) -> Iterator[Candidate]:
    """Tensor cores if there is an atom, multiply-adds otherwise, with copies in the background."""
    (m, n, _), dtype, atom = question.shape, question.dtype, tensor_core(question)
    side = 4 if dtype.bytes > 4 and not dtype.is_float else 8  # 64 sums of 64 bits fill a thread's registers
    depth = ROW_BYTES // dtype.bytes
    scalar = fma(dtype, question.form.sum.dtype, each=(side, side), paired=True)
    chosen = Schedule(atom or scalar, (64, 64, depth), (2, 2), stages=3)
    chosen = replace(chosen, staging="fragments" if question.decodes else "cp_async", group_m=BAND)
    if atom is None:
        # Each part of a tile has its own text that decodes it, and many texts take long to compile.
        tile = (16 * side, 16 * side, min(depth, 16 if question.decodes else 32))
        chosen = replace(chosen, tile=tile, warps=(4, 2))
    else:
        chosen = replace(chosen, promote=int(promoted_every(question) > 0), stages=4)
        if m * n >= 128 * 128 * question.processors:  # blocks of a larger tile still fill the GPU
            warps = (4, 2) if dtype.bytes > 4 or chosen.promote or question.decodes else (2, 2)
            # Decoded operands do not fit into registers together with sums that lie there twice.
            columns = 64 if question.decodes and chosen.promote else 128
            chosen = replace(chosen, tile=(128, columns, depth), warps=warps, stages=3)
    if question.exceeds_grid:
        chosen = replace(chosen, blocks=EACH_PROCESSOR * question.processors)
    rule = "the larger tile" if chosen.tile[0] > 64 else "the tile that makes more blocks"
    first = widened(chosen, question)
    yield from _in_parts(question, first)
    yield _rated(question, first, rule)
    seen = {first}
    unit_m, unit_n, _ = chosen.atom.shape
    for rows, columns, stages in product((64, 128), (64, 128), (2, 3, 4)):
        warps = chosen.warps if (rows, columns) == (128, 128) else (2, 2)
        tile = (max(rows, unit_m * warps[0]), max(columns, unit_n * warps[1]), chosen.block_k)
        other = widened(replace(chosen, tile=tile, stages=stages, warps=warps), question)
        if other not in seen:
            seen.add(other)
            yield _rated(question, other, f"a tile of {tile[0]} x {tile[1]}, {stages} stages")


def _rated(question: Question, schedule: Schedule, rule: str) -> Candidate:
    load = Load(question, schedule)
    model = estimate_of(load) or RATES
    return Candidate(schedule, model.time_us(load), f"mma.sync or multiply-adds: {rule}")


def _in_parts(question: Question, whole: Schedule) -> Iterator[Candidate]:
    """A schedule by ``mma.sync`` with K in parts, if that should pay."""
    form, is_tensor = question.form, whole.atom.instruction != "fma"
    if form.flow.grouped is not None or form.lists or not form.is_single or question.covered != (0, 0):
        return
    if not is_tensor or question.arch.rates is None:
        return
    made = split_schedule(whole, "auto", question.processors)
    found = [] if made is None else list(with_more_blocks(question, made))
    model = estimate_of(Load(question, whole)) or RING
    times = {one: model.time_us(Load(question, one)) for one in found if Load(question, one).parts > 1}
    least = PARTS_PAY * model.time_us(Load(question, whole))
    asked = form, question.classes, question.arch
    for one in sorted(times, key=lambda one: times[one]):
        if times[one] < least and not reasons(one, *asked):
            yield Candidate(one, times[one], f"mma.sync: {rule_of(Load(question, one))}")
            return


# ---------------------------------------------------------------- small tiles for exact products of f32

LEAST = 16
"""Rows, or columns, of the smallest tile."""

LEAST_ELEMENTS = 1024
"""Least number of elements of a tile, if there are several tiles: smaller ones read operands too often."""

SMALL_PAY = 0.95
"""Largest time of small tiles, relative to the large tile, at which they are proposed.

The same bound holds for stores of whole rows, relative to direct stores.
"""

ALIKE = 1.05
"""Estimates up to this factor of the least count as equal if rows of an array are no multiple of 16 bytes.
These arrays have eight classes, each with a kernel for each schedule, and the median error of `FMA` is 4 per
cent.
"""


@dataclass(frozen=True)
class FmaForm:
    """A tile, and how it is dealt out to the threads.

    Args:
        each: rows and columns of a thread.
        warps: warps of a block, along the rows and the columns.
        tile: extents of the tile.
        stages: stages of the ring.
        lanes: lanes of a warp, along the rows and the columns.
    """

    each: tuple[int, int]
    warps: tuple[int, int]
    tile: tuple[int, int, int]
    stages: int = 3
    lanes: tuple[int, int] = (4, 8)

    @property
    def schedule(self) -> Schedule:
        """The schedule that computes every tile as a whole."""
        return _of_form(self)

    def shared_by(self, operands: int) -> FmaForm:
        """The form whose stages hold several operands of each side in the same memory.

        Args:
            operands: operands of each side, at most.
        """
        rows, columns, depth = self.tile
        fits = 1 << (depth // operands).bit_length() - 1
        return replace(self, tile=(rows, columns, fits))

    @property
    def transposed(self) -> FmaForm:
        """The form for as few columns as this one has rows."""
        rows, columns, depth = self.tile
        if rows == columns:
            return self
        tile = (columns, rows, depth)
        return FmaForm(self.each[::-1], self.warps[::-1], tile, self.stages, self.lanes[::-1])


@lru_cache(maxsize=256)
def _of_form(form: FmaForm) -> Schedule:
    atom = fma("f32", lanes=form.lanes, each=form.each, paired=True)
    return Schedule(atom, form.tile, form.warps, form.stages, "cp_async", group_m=BAND)


FORMS = (
    FmaForm((4, 2), (1, 1), (16, 16, 64)),
    FmaForm((4, 2), (1, 1), (16, 16, 128)),
    FmaForm((4, 2), (1, 4), (16, 64, 32), 4),
    FmaForm((4, 4), (1, 4), (16, 128, 32), 4),
    FmaForm((4, 4), (1, 4), (16, 128, 64), 4),
    FmaForm((4, 4), (2, 1), (32, 32, 64)),
    FmaForm((4, 4), (2, 2), (32, 64, 64)),
    FmaForm((8, 4), (1, 4), (32, 128, 32)),
    FmaForm((8, 8), (1, 4), (32, 256, 32), 2),
    FmaForm((4, 4), (4, 2), (64, 64, 32)),
    FmaForm((8, 4), (2, 2), (64, 64, 32)),
    FmaForm((8, 8), (2, 1), (64, 64, 32)),
    FmaForm((8, 8), (2, 2), (64, 128, 32)),
    FmaForm((8, 8), (4, 2), (128, 128, 32), 4),
)
"""Forms of small tiles: few, so that few kernels are compiled."""

OF_SEVERAL = (FmaForm((4, 4), (2, 2), (32, 64, 32)),)
"""More forms of several products, whose operands share a stage: many small blocks hide each other's waits."""


MOST_SUMS = 64
"""Most sums of a thread, of all totals: with 128, NVRTC 13.0 spills, and an H200 takes 1.4 to 2 times as
long."""

MOST_STRIDED = 24
"""Most elements that a thread copies in a step from arrays that are contiguous along no dimension: each
takes an instruction.  With more, an H200 took 1.2 to 2 times as long as estimated."""

SPLIT_FORMS = 3
"""Number of forms that are tried with K in parts: those that should take least time if their steps are dealt
out to all blocks that run at once."""

SPLITS = ("auto", "stream")
"""Splits that are tried without a request; blocks that wait for each other took longer."""


def takes_small_tiles(question: Question) -> bool:
    """Whether exact products of f32 are added up, on a machine of known rates."""
    form = question.form
    kinds = {one.view.dtype.name for one in form.factors} | {form.sum.dtype.name}
    if kinds != {"f32"} or form.precision == "tf32" or question.decodes or question.covered != (0, 0):
        return False
    is_able = form.flow.grouped is None and not question.exceeds_grid
    return is_able and question.arch.rates is not None


def small_tiles(question: Question, large: Schedule | None = None) -> Iterator[Candidate]:
    """Tiles of all sizes by multiply-adds, each with its whole K or with K in parts, ranked by `FMA`.

    It yields nothing if the large tile should take nearly as little time.  Only the forms that should be the
    fastest come with K in parts.  If rows are no multiple of 16 bytes, several estimates may be nearly equal:
    then the schedule whose kernel serves most shapes comes first.  Only legal schedules are yielded.

    Args:
        question: the problem.
        large: the schedule with the large tile; None: propose all small tiles.
    """
    if not takes_small_tiles(question):
        return
    model = _model(question)
    dealt = {whole: model.time_us(DealtLoad(question, whole)) for whole in _fitting(question)}
    ranked = sorted(dealt, key=lambda one: dealt[one])
    times = {
        made: model.time_us(Load(question, made))
        for whole in ranked[:SPLIT_FORMS]
        for made in (*_stored(question, whole), *_parted(question, whole))
    }
    found = sorted(times, key=lambda one: times[one])
    if large is not None:
        large_us = model.time_us(Load(question, large))
        form = question.form
        arrays = (*(one.part.operand for one in form.factors), *(store.operand for store in form.stores))
        # Whether threads cannot copy or store 16 bytes of each array at once.
        if min(width(form.spec(array, question.classes)) for array in arrays) < WIDEST_BYTES:
            most = ALIKE * min(large_us, times[found[0]])
            alike = [one for one, us in {large: large_us, **times}.items() if us <= most]
            first = min(alike, key=_rareness)
            if first == large:
                return
            found.sort(key=lambda one: one is not first)
        elif times[found[0]] > SMALL_PAY * large_us:
            return
    asked = question.form, question.classes, question.arch
    for schedule in (*found, *ranked[SPLIT_FORMS:]):
        if reasons(schedule, *asked):
            continue
        load, (rows, columns, depth) = Load(question, schedule), schedule.tile
        rule = f"multiply-adds: a tile of {rows} x {columns}, {depth} deep"
        rule += f", {rule_of(load)}" if schedule.is_split else ""
        rule += ", results in whole rows" if schedule.epilogue_class.is_buffered else ""
        yield Candidate(schedule, model.time_us(load), rule)


def _model(question: Question) -> FmaEstimate:
    """The model that was fitted to one product, or to several."""
    return FMA if question.form.is_single else FMA_OF_SEVERAL


def _rareness(schedule: Schedule) -> tuple[bool, int, float, int]:
    """Sort key: schedules that suit many shapes first.

    A stream keeps all blocks busy with any number of tiles, and the fewest and largest blocks need the most
    work, which most shapes have.  A square tile serves results with more rows and with more columns.
    """
    rows, columns, _ = schedule.tile
    return not schedule.is_streamed, schedule.blocks, max(rows, columns) / min(rows, columns), -rows * columns


def _fitting(question: Question) -> list[Schedule]:
    """Schedules with whole K of the forms that are at least half full; if none is, of the first form."""
    (m, n, _), form = question.shape, question.form
    operands, totals = max(len(form.rows_m), len(form.rows_n)), len(form.totals)
    is_strided = any(question.major(one) == "" and pair_of(one.part) is None for one in form.factors)
    made = [one.shared_by(operands) for one in (*FORMS, *(OF_SEVERAL if operands > 1 else ()))]
    able = list[Schedule]()
    for whole in (one.schedule if m <= n else one.transposed.schedule for one in made):
        rows, columns, depth = whole.tile
        is_filled = rows < 2 * max(m, LEAST) and columns < 2 * max(n, LEAST)
        is_enough = (rows >= m and columns >= n) or rows * columns >= LEAST_ELEMENTS
        elements = (rows * len(form.rows_m) + columns * len(form.rows_n)) * depth
        fits = not is_strided or elements <= MOST_STRIDED * whole.mma.threads
        if is_filled and is_enough and fits and thread_values(whole.mma, 1)[2] * totals <= MOST_SUMS:
            able.append(whole)
    return able or [made[0].schedule]


def _stored(question: Question, whole: Schedule) -> Iterator[Schedule]:
    """The schedule; if threads cannot store 16 bytes at once, also a staged epilogue for it, if that pays."""
    yield whole
    stores = [question.form.spec(store.operand, question.classes) for store in question.form.stores]
    if min(map(width, stores)) < WIDEST_BYTES:
        in_rows = replace(whole, epilogue="staged")
        model = _model(question)
        if model.time_us(Load(question, in_rows)) < SMALL_PAY * model.time_us(Load(question, whole)):
            yield in_rows


def _parted(question: Question, whole: Schedule) -> Iterator[Schedule]:
    """The schedule with K in parts; a stream also if the tiles are not a multiple of the blocks."""
    tiles = Load(question, whole).tiles
    for split_k in SPLITS:
        made = split_schedule(whole, split_k, question.processors)
        for one in with_more_blocks(question, made) if made is not None else ():
            if Load(question, one).parts > 1 or (split_k == "stream" and tiles > one.blocks):
                yield one


# ---------------------------------------------------------------- packed weights

PACKED_COLUMNS = (8, 16, 32, 64)
"""Numbers of rows of the other operand in a tile: the smallest that holds all rows is taken."""

PARTS = (1, 2, 4, 8, 16)
"""Numbers of parts of K to try."""

MOST_SPLIT_ROWS = 64
"""Most rows of weights in a tile whose K is split; larger tiles took longer."""

LEAST_STEPS = 3
"""Fewest steps of a part of K; with fewer the ring is never full."""

LEAST_STAGES, MOST_STAGES = 3, 5

ROWS_TOO = 16
"""Rows of the other operand in a tile for which `_whole` declares these rows whole, too."""

PAIR = 2
"""Blocks of a cluster; with four and more a workspace was faster."""


@dataclass(frozen=True)
class PackedForm:
    """A tile of packed weights, and how warps and groups share it.

    Args:
        rows: columns of the weights in a tile.
        warps: warps that share them.
        depth: depth of a tile along K.
        beside: blocks that share a multiprocessor.
        groups: groups that share a tile along K, each with this number of warps.
        columns: rows of the other operand for which the form was measured; 0: any.
    """

    rows: int
    warps: int
    depth: int
    beside: int
    groups: int = 1
    columns: int = 0


PACKED_FORMS = (
    PackedForm(16, 1, 128, 2, groups=8, columns=8),
    PackedForm(32, 2, 256, 1, groups=4, columns=16),
    PackedForm(64, 2, 128, 1, groups=4, columns=16),
    PackedForm(64, 4, 256, 3),
    PackedForm(64, 4, 256, 4),
    PackedForm(64, 4, 256, 2),
    PackedForm(64, 4, 128, 4),
    PackedForm(64, 4, 128, 2),
    PackedForm(128, 4, 256, 2),
    PackedForm(128, 4, 128, 2),
    PackedForm(32, 2, 256, 6),
    PackedForm(32, 2, 256, 4),
)
"""Forms for few rows."""


def packed_weights(question: Question) -> Iterator[Candidate]:
    """Legal forms in the order of their estimates; none unless one operand is packed along K.

    Args:
        question: a problem with an operand that is decoded.
    """
    form = question.form
    packed = [factor.dtype.is_packed for factor in form.factors]
    if (
        form.sum.dtype != f32
        or packed.count(True) != 1
        or question.dtype.name not in ("f16", "bf16")
        or question.majors != ("k", "k")
    ):
        return
    swap = packed[1]
    asked = question.transposed if swap else question
    if asked.shape[1] <= PACKED_COLUMNS[-1]:
        made = [*_of_few_rows(asked, swap)]
    else:  # multiplications bound these tiles; if tiles are few, warps decode different rows
        n, m, _ = asked.shape
        forms = [((128, 128, 64), (4, 2), 3)]
        if -(-n // 128) * -(-m // 128) < asked.processors:
            forms = [((64, 64, 128), (4, 1), 4), ((64, 64, 64), (4, 1), 5), ((64, 64, 64), (2, 2), 4)]
        made = [
            Candidate(
                _packed_schedule(asked, tile, warps, stages, swap),
                1.0 + at,
                f"packed weights decoded for tiles of {tile[0]} x {tile[1]}",
            )
            for at, (tile, warps, stages) in enumerate(forms)
        ]
    made.sort(key=lambda one: (one.estimate, -one.schedule.stages))
    yield from (one for one in made if is_carried(question, one.schedule))


def _of_few_rows(asked: Question, swap: bool) -> Iterator[Candidate]:
    """Every form, with each number of parts of K."""
    (_, m, k), a = asked.shape, asked.form.a
    columns = next(count for count in PACKED_COLUMNS if m <= count)
    is_free = asked.splitting is None
    splits = PARTS if asked.splitting is None or asked.splitting.split_k is None else PARTS[:1]
    side_bytes = sum(part.operand.dtype.bytes for part in a.beside)
    for form, split in product(PACKED_FORMS, splits):
        rows, depth, shared = form.rows, form.depth, form.groups > 1
        # Seen with NVRTC 13: zero points do not fit into registers together with the scales, and spill.
        spills = len(a.beside) > 1 and columns > PACKED_COLUMNS[0] and (rows > MOST_SPLIT_ROWS or shared)
        if spills or form.columns not in (0, columns):
            continue
        if split > 1 and (k < split * LEAST_STEPS * depth or rows > MOST_SPLIT_ROWS):
            continue
        # Groups share K if each has enough steps, and nothing else splits K.
        if shared and (split > 1 or not is_free or k < form.groups * LEAST_STEPS * depth):
            continue
        # A stage holds scales and zero points of at most two groups along K.
        groups_along_k = max((1, *(depth // run for run in a.runs)))
        stage = a.dtype.bytes_of(rows * (depth + row_gap(a.dtype, depth)))
        stage += columns * depth * asked.dtype.bytes + side_bytes * rows * groups_along_k
        for reduction in ("cluster", "workspace") if split == PAIR and is_free else ("workspace",):
            room = asked.arch.shared_bytes // form.beside - BARRIERS_BYTES
            # Sums for the other block of a cluster, or for the first group.
            if REDUCTIONS[reduction].in_cluster or shared:
                room -= form.groups * rows * (columns + 8) * 4
            stages = min(room // (stage * form.groups), MOST_STAGES)
            if stages < LEAST_STAGES:
                continue
            tile = (rows, columns, depth)
            schedule = replace(
                _packed_schedule(asked, tile, (form.warps, 1), stages, swap),
                group_m=0,  # one tile holds all rows of the other operand: the order of tiles does not matter
                whole=_whole(asked, tile, form),
                split_k=split,
                reduction=reduction,
                groups=form.groups,
            )
            how = f", K in {split} parts" if split > 1 else ""
            how = f", {form.groups} groups that share K" if shared else how
            rule = f"{rows} packed rows by {columns}, {depth} deep, {form.beside} blocks at once{how}"
            time = PackedEstimate(beside=form.beside).time_us(Load(asked, schedule))
            yield Candidate(schedule, time, rule)


def _whole(asked: Question, tile: tuple[int, int, int], form: PackedForm) -> str:
    """Dimensions that are multiples of a tile, along which no access checks where an array ends.

    On an H200, this and the absence of an order of tiles save 0.1 to 0.4 us for 4096 x 4096 weights.  Rows of
    the other operand are declared whole only if there are 16 and groups share K, which gains 2 per cent.
    Elsewhere it gains nothing, some kernels spill, and each number of rows would have its own kernel.
    """
    if asked.form.flow.grouped is not None or asked.form.lists:
        return ""
    sides = zip("mnk", asked.shape, tile, strict=True)
    found = [dim for dim, extent, unit in sides if extent and extent % unit == 0]
    rows_too = form.groups > 1 and tile[1] == ROWS_TOO
    return "".join(dim for dim in found if dim != "n" or rows_too)


def _packed_schedule(
    asked: Question, tile: tuple[int, int, int], warps: tuple[int, int], stages: int, swap: bool
) -> Schedule:
    atom = tensor_core(asked)
    assert atom is not None, "halves have an atom"
    return Schedule(atom, tile, warps, stages=stages, staging="fragments", group_m=BAND, swap_ab=swap)
