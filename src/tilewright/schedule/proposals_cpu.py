"""Proposals for CPUs: among a few tiles, the tile with the least estimated time; and for the reference."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from tilewright.dataflow.nodes import SUMMED
from tilewright.dtypes import DType
from tilewright.schedule.panels_ring import decoded_depth
from tilewright.schedule.partition import share
from tilewright.schedule.question import INTEGERS, SUPPORTED, Candidate, Question, tensor_core, widened
from tilewright.schedule.schedule import Schedule
from tilewright.targets.atoms import dots, fma
from tilewright.targets.cpu.arch import PANELS_OF_B, ROWS_IN_PLACE, has_masks, micro_tile

ROWS, COLUMNS, DEPTH = (48, 96, 192, 288, 384, 768), (32, 128, 256, 384, 512, 1024, 2048), 256
"""Rows, columns and depth of all tiles; the micro-tiles of all vector widths divide them.

A panel of B fits the first-level cache, and the rows of A fit the second-level cache.  Tiles of f64, and of
several products, are half as deep, so that the operands of all products fit.  A block that reaches past an
edge packs and multiplies only the part before it, so that few tiles are enough for all shapes.
"""

TOLERANCE = 1.01
"""Largest estimated time, relative to the fastest tile, at which a larger tile is preferred."""

PACK_ROW, PACK_COLUMN, WAKE = 28, 14, 300_000
"""Costs in multiply-adds of the micro-kernel: to pack an element of A or B, and to wake a second thread."""

COPIED, TURNED, STRIDED, SWAP_GAIN = 4, 8, 2, 1.1
"""Costs in multiply-adds of the micro-kernel: to copy an element that is in the caches, to copy it to a
transposed place, and to read it from an array in runs of a few rows; and how much faster the transposed
product must be to be chosen."""

PAIRED = 2
"""Cost of moving a part of a complex number, relative to a real one, because the parts are interleaved.

With this cost, 170 random products of complex64 took 2 % longer in the mean than with the faster choice for
each, on an Intel Xeon (model 207, AVX-512).
"""

HALF_VECTOR = 2 / 3
"""Time of half a vector of columns, relative to a whole one: loads of A, not multiply-adds, limit it."""

DOT, DOT_SUM = 1.6, 10
"""Costs in multiply-adds of the micro-kernel: a multiply-add of a dot product, which loads more; and to add
up a vector of partial sums, for each of its lanes.

The first one lies between two measurements with 2 to 12 rows of f32 and f64: 2.2 on a Zen 4, and 1.0 to 1.3
on an Intel Xeon (model 207).
"""

FEW_IN_PLACE = {True: 2, False: 4}
"""Most rows of A for which B is read from its array, not packed; the key: whether B is contiguous along N."""

DOT_ROWS, DOT_BYTES = 12, 2048
"""Most rows of A for dot products along K, and bytes along K of their tiles.

B must be contiguous along K.  A few rows of both operands fit the first-level cache.
"""

STREAM_COLUMNS, STREAM_BYTES = 1024, 16384
"""Columns, and bytes of a row, of a tile for one or two rows: half the first-level cache, so that columns are
read in long runs.  Measured on a Zen 4: 1 x 4000 x 4000 f32 takes 2.8 ms, and 3.7 with rows of 2048 bytes."""

DOTS_TOGETHER, LEAST_DOTS = (4, 4), 2
"""Rows and columns whose dot products are computed together; and the least number of lanes of a vector."""

WHOLE_ROWS, WHOLE_COLUMNS = 6, 16
"""Rows and columns of the part of a tile that is multiplied at once."""

DECODED, DECODED_DEPTH = (48, 128), 8
"""Rows and columns, and depth, of the tile if operands are decoded from a ring, not as panels are packed."""

LOW, WIDEST = 16, 512
"""Rows of the tile for products with no more rows, and most columns, if panels are decoded in packing.

The cache lines of these columns are prefetched one tile along K ahead.
"""

SMALL, SMALL_DEPTH = (32, 64), 64
"""Sides of the tiles for small products, and their depth if that is all of K."""

SEVERAL, TASKS = (16, 4), 4
"""Numbers of batch items of a block to try, and the least number of blocks for each thread."""

START = 40_000
"""Cost of a block besides its tile in multiply-adds of the micro-kernel: 0.4 us with AVX-512."""

FEW_ROWS, FEW_DEPTH = {"k": 6, "mn": 48}, 64
"""Most rows of A for shallow tiles of 8-bit weights, by the contiguous dimension of B; and their depth.

With these few rows it takes longer to widen weights than to multiply them.  At this depth the widened weights
stay in the first-level cache.
"""

FEW_BLOCKS = 64
"""Most blocks of each thread for which the estimate simulates which thread takes which block."""


def candidates(question: Question) -> Iterator[Candidate]:
    """The tile with the least estimated time, then all others in the order of their estimates.

    Before them come tiles for small products of many batch items, and for few rows.
    """
    yield from _small(question)
    yield from _few_rows(question)
    yield from _in_dots(question)
    yield from _transposed(question)
    yield from _tiles(question)


def _tiles(question: Question) -> Iterator[Candidate]:
    """The tile with the least estimated time, then all others in the order of their estimates."""
    form = question.form
    balanced = not question.stores_lines and form.flow.grouped is None and not form.reductions
    shape, threads = question.shape, question.processors
    chosen = tile_for(shape, threads, question.covered, balanced=balanced)
    start = START if question.items > 1 else 0
    times = {
        tile: tile_time(tile, shape, threads, balanced=balanced) + start
        for tile in (chosen, *tiles_for(question.covered))
    }
    rule = "the largest tile whose estimated time is close to the shortest"
    made = _schedule(question, chosen, balanced=balanced)
    yield Candidate(made, times.pop(chosen), rule)
    for tile, time in sorted(times.items(), key=lambda pair: (pair[1], pair[0])):
        against = []
        for extent, side, sides, name in zip(shape, tile, (ROWS, COLUMNS), ("rows", "columns"), strict=False):
            smaller = max((other for other in sides if other < side), default=0)
            if 0 < extent <= smaller:
                against.append(f"a tile of {smaller} {name} already covers all {extent}")
        made = _schedule(question, tile, balanced=balanced)
        yield Candidate(made, time, "another tile", tuple(against[:1]))


def _is_dense(question: Question) -> bool:
    """Whether the result is a whole matrix: no groups, lists, reductions or stores along one dimension."""
    form = question.form
    one_by_one = form.flow.grouped is None and not form.lists and not question.stores_lines
    return one_by_one and not form.reductions


def _in_dots(question: Question) -> Iterator[Candidate]:
    """Dot products along K for few rows, or few columns, if the other operand is contiguous along K.

    The sums have another order than those of tiles, so a batch-invariant product does not take them.
    """
    form = question.form
    dtypes = {one.view.dtype for one in form.factors}
    are_plain = all(one.is_plain for one in form.factors) and len(dtypes) == 1
    are_floats = all(one.is_float and one.bits >= 16 for one in dtypes)
    if not (
        are_plain and are_floats and form.is_single and form.precision == "exact" and _is_dense(question)
    ):
        return
    size = question.dtype.computed.bytes
    lanes = question.arch.vector_bytes // size
    for asked, swap in ((question, False), (question.transposed, True)):
        m, n, k = asked.shape
        if m > DOT_ROWS or m > n or k < 2 * lanes or asked.majors[1] != "k" or lanes < LEAST_DOTS:
            continue
        if m > FEW_IN_PLACE[True] and m * n * (DOT * k + DOT_SUM * lanes) >= min(_both_ways(question)):
            continue
        atom = dots(question.dtype, DOTS_TOGETHER, lanes)
        columns = tile_for(asked.shape, asked.processors, balanced=True)[1]
        depth = DOT_BYTES // size
        if m <= FEW_IN_PLACE[True]:
            columns, depth = min(columns, STREAM_COLUMNS), STREAM_BYTES // size
        tile = (DOT_ROWS, columns, depth)
        schedule = Schedule(atom, tile, staging="panels", balanced=True, swap_ab=swap)
        time = tile_time((ROWS[0], columns), asked.shape, asked.processors, balanced=True)
        yield Candidate(schedule, time, f"dot products along K for up to {DOT_ROWS} rows")


def _transposed(question: Question) -> Iterator[Candidate]:
    """The transposed product, if it fills micro-tiles better, or transposes fewer elements.

    It has the same bits, because the products of an element are added in the same order.  The imaginary part
    of a complex product does not keep its bits, so batch-invariant complex products are not transposed.
    """
    form, other = question.form, question.transposed
    dtypes = [one.view.dtype for one in form.factors]
    are_plain = all(one.is_plain for one in form.factors)
    are_floats = all(one.is_float and one.bits >= 16 for one in dtypes)
    is_known = form.is_single or _has_four_products(question)
    if not (is_known and are_plain and are_floats and form.precision == "exact" and _is_dense(question)):
        return
    here, there = _both_ways(question)
    if there * SWAP_GAIN >= here:
        return
    for one in _tiles(other):
        schedule = replace(one.schedule, swap_ab=True)
        yield replace(one, schedule=schedule, rule=f"{one.rule}; of the transposed product")
        return


def _has_four_products(question: Question) -> bool:
    """Whether four products share two operands on each side, and two sums, as those of complex numbers."""
    form = question.form
    return len(form.products) == 4 and (len(form.rows_m), len(form.rows_n), len(form.totals)) == (2, 2, 2)


def _both_ways(question: Question) -> tuple[float, float]:
    """Estimated times of a product and of the transposed product; see `way_time`."""
    other, size = question.transposed, question.dtype.computed.bytes
    lanes = max(question.arch.vector_bytes // size, 1)
    is_widened = any(one.view.dtype.computed != one.view.dtype for one in question.form.factors)
    has_four = _has_four_products(question)
    has_halves = has_masks(question.arch, lanes * size) and not has_four
    known = {"has_halves": has_halves, "is_widened": is_widened, "has_four_products": has_four}
    return (
        way_time(question.shape, question.majors, lanes, along_rows=True, **known),
        way_time(other.shape, other.majors, lanes, along_rows=False, **known),
    )


def way_time(
    shape: tuple[int, int, int],
    majors: tuple[str, str],
    lanes: int,
    *,
    along_rows: bool,
    has_halves: bool = False,
    is_widened: bool = False,
    has_four_products: bool = False,
) -> float:
    """Estimated time of a product by one thread, in multiply-adds, to compare it with the transposed product.

    Args:
        shape: extents (M, N, K).
        majors: the contiguous dimensions of A and B, as in `Question.majors`.
        lanes: elements of a vector.
        along_rows: whether the rows of the result are contiguous.
        has_halves: whether the last columns may be half a vector.
        is_widened: whether operands are halves: micro-kernels then read no panel of A from its array.
        has_four_products: whether both operands and the result have two parts: no panel of B is then read
            from its array.  Parts without a contiguous dimension are interleaved.

    Example:
        >>> tall = way_time((1000, 3, 500), ("mn", "mn"), 8, along_rows=True)
        >>> tall > way_time((3, 1000, 500), ("mn", "mn"), 8, along_rows=False)
        True
    """
    m, n, k = shape
    along = majors[1] == "mn"
    store = m * n * (COPIED if along_rows or min(m, n) == 1 else TURNED)
    if m <= FEW_IN_PLACE[along] and (along or not is_widened) and not has_four_products:
        return n * k * (COPIED if along else TURNED + m) + m * k * COPIED + store
    whole, rest = divmod(m, 2 * WHOLE_ROWS)
    last = rest if rest <= 1 else -(-rest // (WHOLE_ROWS // 2)) * (WHOLE_ROWS // 2)
    rows = 2 * WHOLE_ROWS * whole + last
    columns = float(-(-n // lanes) * lanes)
    if has_halves and 0 < n % lanes <= lanes // 2:
        columns += (HALF_VECTOR - 1) * lanes
    is_few = m <= ROWS_IN_PLACE, -(-n // (2 * lanes)) <= PANELS_OF_B
    if has_four_products:
        copied = (0 if is_few[1] else m * k) + n * k
        moved = 2 if any(majors) else 2 * PAIRED
        return 4 * m * columns * k + moved * (copied * COPIED + store)
    pack = 0 if along and is_few[0] else COPIED if along else TURNED
    copy = COPIED if not is_few[1] or is_widened else 0 if majors[0] == "k" else STRIDED
    return rows * columns * k + m * k * copy + n * k * pack + store


def _small(question: Question) -> Iterator[Candidate]:
    """One tile that holds a whole small product; a block computes several of them.

    A large tile would do more work for each item: it has to find the item, and loops over a single part.
    """
    m, n, k = question.shape
    side = next((side for side in SMALL if side >= max(m, n)), None)
    each = next((each for each in SEVERAL if question.items >= each * TASKS * question.processors), None)
    if side is None or each is None or question.decodes or question.form.precision == "tf32":
        return
    time = tile_time((side, side), question.shape, 1) + START / each
    schedule = _schedule(question, (side, side), balanced=False)
    depth = SMALL_DEPTH if k <= SMALL_DEPTH else schedule.block_k
    schedule = replace(schedule, tile=(side, side, depth), batches=each)
    yield Candidate(schedule, time, f"a tile that holds all of an item, {each} items for each block")


def _few_rows(question: Question) -> Iterator[Candidate]:
    """Shallow tiles for few rows by weights of 8 bits.

    A tile of many columns reads long runs of weights that are contiguous along their columns.  Of other
    weights a tile reads few columns at once, each as a stream.
    """
    (m, n, _), form = question.shape, question.form
    if not form.is_single or form.precision == "tf32" or not (form.a.is_plain and form.b.is_converted):
        return
    along = question.majors[1]
    if form.b.dtype.bits != 8 or m > FEW_ROWS.get(along, 0):
        return
    enough = (columns for columns in COLUMNS if n >= columns * question.processors)
    columns = max(enough, default=COLUMNS[0]) if along == "mn" else COLUMNS[0]
    schedule = _schedule(question, (ROWS[0], columns), balanced=True)
    schedule = replace(schedule, tile=(ROWS[0], columns, FEW_DEPTH))
    time = tile_time((ROWS[0], columns), question.shape, question.processors, balanced=True)
    yield Candidate(schedule, time, f"shallow tiles for up to {FEW_ROWS[along]} rows by weights of 8 bits")


def _schedule(question: Question, tile: tuple[int, int], *, balanced: bool) -> Schedule:
    """The schedule with a tile, or for decoded operands with the nearest tile that suits them."""
    (rows, columns), form, dtype = tile, question.form, question.dtype
    atom = tensor_core(question) if form.precision == "tf32" else None
    if not any(one.is_computed for one in form.factors):
        if atom is not None:
            return widened(Schedule(atom, (rows, columns, DEPTH), balanced=balanced), question)
        size = form.sum.dtype.computed.bytes
        together = {"factors": len(form.rows_n), "sums": len(form.totals), "products": len(form.products)}
        micro = micro_tile(question.arch, rows, columns, size, **together)
        depth = DEPTH // 2 if size > 4 or not form.is_single else DEPTH
        return _panels((dtype, form.sum.dtype), (micro.rows, micro.columns), (rows, columns, depth), balanced)
    depth = decoded_depth(form) if atom is None else 0  # 0: decoded from a ring, not as panels are packed
    if depth:
        rows, columns = LOW if question.shape[0] <= LOW else rows, min(columns, WIDEST)
    else:
        rows, columns = DECODED
    if atom is None:
        micro = micro_tile(question.arch, rows, columns, form.sum.dtype.computed.bytes)
        atom = fma(dtype, form.sum.dtype, lanes=(1, 1), each=(micro.rows, micro.columns))
    if depth:
        made = Schedule(atom, (rows, columns, depth), staging="panels", balanced=balanced)
    else:
        depth = max(DECODED_DEPTH, 2 * atom.shape[2])
        made = Schedule(atom, (rows, columns, depth), stages=3, staging="fragments")
    return widened(made, question)


@lru_cache(maxsize=1024)
def _panels(
    dtypes: tuple[DType, DType], micro: tuple[int, int], tile: tuple[int, int, int], balanced: bool
) -> Schedule:
    """The schedule that multiplies panels in micro-tiles, made once and shared by all problems.

    Args:
        dtypes: of the operands, and of their sums.
        micro: rows and columns that are multiplied at once.
        tile: rows, columns and depth of a block.
        balanced: as in `Schedule`.
    """
    atom = fma(*dtypes, lanes=(1, 1), each=micro)
    return Schedule(atom, tile, staging="panels", balanced=balanced)


def tiles_for(least: tuple[int, int] = (0, 0)) -> list[tuple[int, int]]:
    """The tiles with at least these rows and columns; if no tile is that large, the largest one.

    Example:
        >>> len(tiles_for()), tiles_for((700, 1025))
        (42, [(768, 2048)])
    """
    tall = [rows for rows in ROWS if rows >= least[0]] or ROWS[-1:]
    wide = [columns for columns in COLUMNS if columns >= least[1]] or COLUMNS[-1:]
    return [(rows, columns) for rows in tall for columns in wide]


def tile_for(
    shape: tuple[int, int, int], threads: int, least: tuple[int, int] = (0, 0), *, balanced: bool = False
) -> tuple[int, int]:
    """Rows and columns of a good tile for a problem.

    Among tiles that are about as fast it is the largest, so that more shapes share a kernel.  A tile that is
    computed as a whole is no larger than the problem.  Few rows get a low tile, whose sums are close together
    in memory.

    Args:
        shape: extents (M, N, K).
        threads: number of threads that draw blocks.
        least: rows and columns that the tile should hold.
        balanced: whether rows and columns are dealt out in equal shares.

    Example:
        >>> tile_for((2048, 2048, 2048), 2), tile_for((64, 64, 65536), 2)
        ((768, 1024), (96, 32))
        >>> tile_for((2048, 2048, 2048), 2, balanced=True), tile_for((8, 900, 900), 2, balanced=True)
        ((768, 1024), (48, 512))
    """
    tiles = tiles_for(least)
    if not balanced:
        tiles = [
            tile for tile in tiles if _fits(tile[0], ROWS, shape[0]) and _fits(tile[1], COLUMNS, shape[1])
        ]
    elif shape[0] <= ROWS[0]:
        tiles = [tile for tile in tiles if tile[0] == tiles[0][0]]
    times = {tile: tile_time(tile, shape, threads, balanced=balanced) for tile in tiles}
    enough = min(times.values()) * TOLERANCE
    return max((tile for tile, time in times.items() if time <= enough), key=lambda tile: tile[0] * tile[1])


def _fits(side: int, sides: tuple[int, ...], extent: int) -> bool:
    """Whether no smaller side holds the extent."""
    return not any(extent <= other < side for other in sides)


def tile_time(
    tile: tuple[int, int], shape: tuple[int, int, int], threads: int, *, balanced: bool = False
) -> float:
    """Estimated time of a product, in multiply-adds of the micro-kernel.

    Args:
        tile: rows and columns of a block's tile.
        shape: extents (M, N, K).
        threads: number of threads that draw blocks.
        balanced: whether rows and columns are dealt out in equal shares.

    Example:
        >>> tile_time((768, 256), (512, 512, 512), 2) < tile_time((768, 512), (512, 512, 512), 2)
        True
    """
    m, n, k = shape
    if balanced:
        tile = _share(m, tile[0], 2 * WHOLE_ROWS), _share(n, tile[1], 2 * WHOLE_COLUMNS)
    rows, columns = _parts(m, tile[0], WHOLE_ROWS), _parts(n, tile[1], WHOLE_COLUMNS)
    blocks = len(rows) * len(columns)
    if blocks == 0:
        return 0
    busy = min(threads, blocks)
    if blocks > FEW_BLOCKS * threads:  # all threads end at about the same time
        total = sum(_block(row, column) for row in rows for column in columns)
        return (total / busy + _block(rows[0], columns[0]) / 2) * k + WAKE
    until = [0.0] * busy
    for column in columns:
        for row in rows:
            heapq.heapreplace(until, until[0] + _block(row, column))
    return max(until) * k + (WAKE if busy > 1 else 0)


@lru_cache(maxsize=4096)
def _share(extent: int, tile: int, unit: int) -> int:
    found = share(extent, tile, unit)
    assert isinstance(found, int)
    return found


def _block(rows: int, columns: int) -> int:
    """Cost of one step along K of a block: one column of A times one row of B, and packing both."""
    return rows * columns + PACK_ROW * rows + PACK_COLUMN * columns


def _parts(extent: int, tile: int, unit: int) -> list[int]:
    """The extents of the tiles along one dimension; the last is rounded up to whole units."""
    whole, rest = divmod(extent, tile)
    return [tile] * whole + ([-(-rest // unit) * unit] if rest else [])


# ---------------------------------------------------------------- the reference

LARGE = 96
"""Most rows, or columns, of a result for which tiles have 32 of them; for more, tiles have 64."""


def for_reference(question: Question) -> Iterator[Candidate]:
    """One small tile, or a larger one for large results: the reference takes time for each operation."""
    known = question.dtype.name in (*SUPPORTED, *INTEGERS)
    atom = (tensor_core(question) if known else None) or fma(question.dtype, question.form.sum.dtype)
    m, n, k = atom.shape
    warps = (2, 2) if m > 1 else (1, 1)
    rows, columns = (32 if extent <= LARGE else 64 for extent in question.shape[:2])
    small = Schedule(atom, (max(rows, m * warps[0]), max(columns, n * warps[1]), max(32, k)), warps)
    if question.decodes:
        small = replace(small, tile=(*small.tile[:2], max(32, 2 * k)), stages=3, staging="fragments")
    summed = question.form.precision == SUMMED and atom.sum_bits is not None
    yield Candidate(widened(replace(small, promote=int(summed)), question), 1.0, "a small tile")
