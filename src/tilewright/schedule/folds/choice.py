"""Rules that propose schedules of loops that carry a state, and the choice among their proposals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from math import lcm, prod

from tilewright.arch import Arch
from tilewright.dataflow.nodes import TF32, ArrayPart, Map, Span
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.fixup import REGISTER_BYTES
from tilewright.schedule.folds import elementwise, group_choice
from tilewright.schedule.folds.form import FoldForm
from tilewright.schedule.folds.group_choice import ROWS_OF_A_WARP
from tilewright.schedule.folds.group_rings import ROWS
from tilewright.schedule.folds.kept import against_kept
from tilewright.schedule.folds.legality import against_parts, atom_of, reasons, shared_bytes
from tilewright.schedule.folds.masks import masks_of
from tilewright.schedule.folds.parts import AUTO, parts_of_loop
from tilewright.schedule.folds.rows import KEPT
from tilewright.schedule.load import SYSTEM_BYTES, resident_blocks
from tilewright.schedule.question import Candidate, LoopQuestion
from tilewright.schedule.schedule import Schedule
from tilewright.targets.atoms import dots, fma, wgmma
from tilewright.targets.cpu.arch import LEAST_SUMS, micro_tile
from tilewright.targets.target import CUDA, owner

MOST_RESIDENT = 256
"""Greatest depth of a step's products at which shared memory holds a whole operand for all steps."""

DEPTH = 64
"""Depth of a tile of a step's products if they are deeper than `MOST_RESIDENT`."""

MOST_WIDTH = 256
"""Most columns of the result in one tile.  Several blocks, each with its own loop, compute more columns."""

MOST_COVERED = 1024
"""Most columns of the result in one tile if a reduction runs over them."""

MORE_SCORES = 64
"""Register cost of each further tile of scores with its row values, in columns of the result."""

MOST_LONG_SCORES = 2
"""Most tiles of scores of 64 x 128 elements that fit the registers of four warps, each with 64 per thread."""

STAGES = (3, 2)
"""Stages of a ring, the best first."""

SCHEDULERS = 4
"""Warp schedulers of a multiprocessor; it runs four blocks of one warp at once."""

LOADING_WARPS = 32
"""Warps of a multiprocessor that keep enough loads in flight if they only load."""

EXCHANGING_WARPS = 8
"""Warps of a multiprocessor for a loop whose steps store: each block reads the states of all parts before its
own, and eight blocks of one warp fit with any number of registers."""

FEW_ROWS, LONG_STEP = 8, 256
"""Most rows for which CPUs read the keys of scores in place, as dot products along K; and the elements of one
step of this loop, whose operands fit the L2 cache."""

TALL_ROWS, TILE_START = (48, 64, 96, 128, 144), 8
"""Rows of a tile on CPUs; and the fixed cost of a tile, which packs operands, in units of the time of a row.

Measured on a Zen 5, like the next ones, with 1024 rows and keys of f32, depth 64: tiles of 48 rows take 1.08
times as long as those of 96."""

LONG_STEPS, STEP_START = (32, 64, 128, 256), 9
"""Elements of the loop in one step on CPUs; and the fixed cost of a step, which rescales results and adds up
vectors, in units of the time of an element.  Steps of 256, 128, 64: 7.05, 7.29, 7.78 ms."""

LOADED_BYTES, ACROSS, MOST_SUMS = 16, 16, 64
"""Loops without products on GPUs: bytes of one load of a lane, lanes along columns, most sums of a lane."""

WINDOW_REGISTERS, MOST_STEPS = 176, 96
"""Most registers of a thread for sums and window elements, and most pairs of a row and a turn at once."""

AMPERE_REGISTERS = 148
"""Most registers of a thread on sm_80 to sm_89 for its sums and the elements that it loads for the turns of a
step.  There NVRTC 13.0 gives a thread 168 registers, also for addresses, and spills the rest.  For sm_90a it
gives more."""

WIDE_SUMS = 16
"""Neighbouring sums of loops without products on CPUs."""

SCAN_SUMS = 160
"""Most registers of a thread for the state, the scores and the results of a step, if each step stores."""


def proposals(
    form: FoldForm,
    specs: Mapping[str, TensorSpec],
    shapes: Mapping[str, tuple[int, ...]],
    arch: Arch,
    processors: int = 0,
) -> Iterator[Schedule]:
    """The schedules that the rules propose, the best first.

    Args:
        form: the form.
        specs: the classes of the arrays, by name.
        shapes: extents of the arrays.
        arch: the machine.
        processors: number of its multiprocessors or CPU cores; 0: unknown, and no loop is split.
    """
    if form.is_elementwise:
        yield from elementwise.proposals(form, specs, shapes, arch, processors)
        return
    extents = form.extents(shapes)
    if form.alias is not None:
        yield from _scans(form, extents, arch, processors)
        return
    # Reads limit loops over few rows, and more blocks keep more reads in flight.
    faster = group_choice.SPEEDUP if extents[form.m] > ROWS_OF_A_WARP else 1
    for bulk in group_choice.proposals(form, extents, arch, processors):
        if bulk.is_split or next(in_parts(bulk, form, extents, arch, processors // faster), None) is None:
            yield bulk  # enough tiles for the machine
    sums = max(len(form.mixtures), 1)  # tiles of results in registers
    most = MOST_COVERED if form.covered else MOST_WIDTH // sums
    columns = min(max((extents[span] for span in form.columns), default=0), most)
    deep = max((extents[span] for span in form.depths), default=0)
    resident = deep <= MOST_RESIDENT
    if form.columns and not form.products and not varies_along_loop(form):
        yield _by_taps(form, extents, arch)
    elif not (form.products or form.columns):
        for way in elementwise.reducing(form, specs, extents, arch, processors):
            yield from _kept(way, form, extents, arch, processors)
            yield from in_parts(way, form, extents, arch, processors)
            yield way
    if (low := _few_rows(form, extents, arch, deep, columns)) is not None:
        yield from in_parts(low, form, extents, arch, processors)
        yield low
    more = MORE_SCORES * max(len(form.scores) - sums, 0)
    held = max(columns * sums, deep if resident or form.mixtures else 0) + more
    sizes = _sizes(form, held, extents[form.m])
    short = arch.shared_bytes and form.element.bytes <= 2 and not form.mixtures
    if short and len(form.scores) <= MOST_LONG_SCORES:
        sizes = chain(((64, 128, 4),), sizes)  # each row of the scores is reduced once for more columns
    if arch.vector_registers and form.products:
        sizes = chain(_on_processors(form, extents, arch), sizes)
    for rows, run, warps in sizes:
        atom = atom_of(form, arch, run)
        m, n, k = atom.shape
        if (
            atom.instruction != "fma" and m * k < atom.a.size_values * atom.lanes
        ):  # several lanes hold each element of an operand
            rows //= 2
        few = -(-max(extents[form.m], 1) // m)  # atoms that cover all rows
        down = max(min(warps, rows // m, few), 1)
        high = max(min(rows, few * m) // (m * down), 1) * m * down
        width = 0 if not form.columns else max(-(-columns // n), 1) * n
        if atom.instruction == "fma" and width:  # with other numbers of columns, lanes spill sums to memory
            width = 1 << (width - 1).bit_length()
        depth = max(-(-(deep if resident else DEPTH) // lcm(k, 16)), 1) * lcm(k, 16)
        step = -(-run // lcm(n, k)) * lcm(n, k)
        made = Schedule(atom, (high, step, depth), (down, 1), width=width, resident=resident)
        ways = [made]
        if not arch.vector_registers:  # CPUs copy synchronously
            ways[:0] = [replace(made, staging="cp_async", stages=stages) for stages in STAGES]
        for way in ways:
            yield from _kept(way, form, extents, arch, processors)
            yield from in_parts(way, form, extents, arch, processors)
            yield way


def _scans(form: FoldForm, extents: Mapping[Span, int], arch: Arch, processors: int) -> Iterator[Schedule]:
    """The schedules of a loop whose steps store results: the longest steps that fit.

    Each block of a sequence computes the same scores again.  The cost of a step is proportional to
    ``run + 3 * width``: one product with ``run`` columns, three with the ``width`` columns of the block.  The
    width with the least cost, times the rounds of blocks on the machine, comes first.

    Args:
        form: the form.
        extents: extents of all spans.
        arch: the machine.
        processors: number of its multiprocessors or CPU cores; 0: unknown.
    """
    across = max(extents[span] for span in form.columns)
    sequences = prod(extents[span] for span in form.batch)

    def work(run: int, width: int) -> int:
        blocks = sequences * -(-across // width)
        return -(-blocks // max(processors, 1)) * (run + 3 * width) if processors else -width

    sizes = (
        (run, most, warps)
        for run in (64, 32, 16)
        for most in sorted((64, 32, 16), key=lambda width: work(run, width))
        for warps in (4, 2, 1)
    )
    for run, most, warps in sizes:
        atom = atom_of(form, arch, run)
        m, n, k = atom.shape
        down = 1 if arch.vector_registers else warps
        high = _padded(extents[form.m], lcm(m * down, k))
        step = _padded(run, lcm(m * down, n, k))
        width = _padded(min(across, most), n)
        sums = high * width + step * (step + 2 * width)
        if step > run or (sums > SCAN_SUMS * down * arch.lanes and not arch.vector_registers):
            continue
        made = Schedule(atom, (high, step, high), (down, 1), width=width, resident=True)
        if not arch.vector_registers:
            yield replace(made, staging="cp_async", stages=2)
        yield made
    atom = atom_of(form, arch)
    step = lcm(*atom.shape)
    high, width = _padded(extents[form.m], step), atom.shape[1]
    yield Schedule(atom, (high, step, high), width=width, resident=True)


def varies_along_loop(form: FoldForm) -> bool:
    """Whether a value of a step varies along the loop's span, so that a step has several elements of it."""
    return any(form.n in node.axes for node in form.inside())


def _by_taps(form: FoldForm, extents: Mapping[Span, int], arch: Arch) -> Schedule:
    """The schedule of a loop without products whose steps each add one term to each sum.

    Loads limit the loop.  A thread loads the widest vector along columns.  It has several rows, so it loads
    values that vary only along columns once for all of them.  The last tiles are full if possible.

    Args:
        form: the form.
        extents: extents of all spans.
        arch: the machine.
    """
    loaded = [one for one in form.inside() if isinstance(one, ArrayPart) and {*form.columns} & {*one.at}]
    narrowest = min((one.operand.dtype.bytes for one in loaded), default=form.total.bytes)
    count_of_lanes = 1 if arch.vector_registers else arch.lanes  # a CPU's block is one thread
    wide = LOADED_BYTES // narrowest if count_of_lanes > 1 else WIDE_SUMS
    columns, rows = max(extents[span] for span in form.columns), max(extents[form.m], 1)
    lanes = [1 << power for power in range(count_of_lanes.bit_length())]
    across = min(lanes, key=lambda count: (_padded(columns, count * wide), abs(count - ACROSS)))
    down = count_of_lanes // across
    each = min(range(1, MOST_SUMS // wide + 1), key=lambda count: (_padded(rows, count * down), -count))
    atoms = -(-rows // (each * down))
    warps = next(count for count in (4, 3, 2, 1) if atoms % count == 0) if count_of_lanes > 1 else 1
    atom = fma(form.element, form.total, lanes=(down, across), each=(each, wide))
    taps = _taps_at_once(form, extents, arch, each, wide) if count_of_lanes > 1 else 1
    m, n, _ = atom.shape
    return Schedule(atom, (m * warps, n, taps), (warps, 1), width=n, resident=True)


def _taps_at_once(form: FoldForm, extents: Mapping[Span, int], arch: Arch, each: int, wide: int) -> int:
    """The number of turns of the innermost loop that a thread computes together, for the fewest loads.

    Args:
        form: the form.
        extents: extents of all spans.
        arch: the machine.
        each: rows of a thread.
        wide: columns of a thread.
    """
    if not form.windows:
        return 1
    turn = form.fold.turns[-1]
    turns = max(extents[turn], 1)
    parts = [node for node in form.inside() if isinstance(node, ArrayPart)]

    def elements(node: ArrayPart, taps: int) -> int:
        """Elements of an array part that a thread needs for ``taps`` turns, in one column."""
        if (steps := form.windows.get(id(node))) is not None:
            return len({row * steps[0] + tap * steps[1] for row in range(each) for tap in range(taps)})
        return (each if form.m in node.at else 1) * (taps if turn in node.at else 1)

    def held(taps: int) -> int:
        """Elements of all windows that a thread needs for ``taps`` turns, in one column."""
        return sum(elements(node, taps) for node in parts if id(node) in form.windows)

    def loads(taps: int) -> int:
        return turns // taps * held(taps) + turns % taps * held(1)

    def fits(taps: int) -> bool:
        if each * len(form.fold.cells) + held(taps) > WINDOW_REGISTERS // wide:
            return False
        if owner(arch.name) is not CUDA or "wgmma" in arch.features:
            return True
        sums = each * wide * form.total.bytes * len(form.fold.cells)
        loaded = (
            (wide if {*form.columns} & {*node.at} else 1) * elements(node, taps) * node.operand.dtype.bytes
            for node in parts
        )
        return sums + sum(loaded) <= AMPERE_REGISTERS * REGISTER_BYTES

    able = (taps for taps in range(1, min(turns, MOST_STEPS // each) + 1) if taps == 1 or fits(taps))
    return min(able, key=lambda taps: (loads(taps), taps))


def rows_of_thread(schedule: Schedule) -> int:
    """Number of neighbouring rows of one thread in a loop without products."""
    return prod(mode.extent for mode in schedule.atom.c.values if mode.dim == 0)


def shares_windows(schedule: Schedule, form: FoldForm) -> bool:
    """Whether threads load a window's element once for several turns, as many as the depth of the tile."""
    (rows, _, taps), atom = schedule.tile, schedule.atom
    has_turns = taps > 1 and bool(form.windows) and not schedule.is_split and not schedule.by_bulk
    has_rows = (
        atom.instruction == "fma" and rows == atom.shape[0] * schedule.warps[0] and ".paired" not in atom.name
    )
    few = taps * rows_of_thread(schedule) <= MOST_STEPS
    return has_turns and has_rows and few and schedule.fold != KEPT and not schedule.copies_in_background


def _padded(extent: int, unit: int) -> int:
    """An extent, rounded up to whole units."""
    return -(-max(extent, 1) // unit) * unit


def _few_rows(
    form: FoldForm, extents: Mapping[Span, int], arch: Arch, deep: int, columns: int
) -> Schedule | None:
    """The schedule for few rows on CPUs, with few padding rows; None if the flow or the machine rules it out.

    Args:
        form: the form.
        extents: extents of all spans.
        arch: the machine.
        deep: depth of the products of a step.
        columns: columns of the result in one tile.
    """
    element, rows = form.element, max(extents[form.m], 1)
    is_plain = element.is_float and element.bits >= 16 and form.total == element.computed
    is_exact = all(one.precision != TF32 for one in form.products)
    if not (arch.vector_registers and form.scores and is_plain and is_exact) or rows > FEW_ROWS:
        return None
    lanes = max(arch.vector_bytes // form.total.bytes, 4)
    resident = deep <= MOST_RESIDENT
    depth = max(-(-(deep if resident else DEPTH) // lanes), 1) * lanes
    width = 1 << (max(columns, 4) - 1).bit_length() if form.columns else 0
    tile = 1 << (rows - 1).bit_length(), LONG_STEP, depth
    return Schedule(dots(element, (1, 4), lanes), tile, width=width, resident=resident)


def in_parts(
    schedule: Schedule, form: FoldForm, extents: Mapping[Span, int], arch: Arch, processors: int
) -> Iterator[Schedule]:
    """Yield the schedule with its loop split, if it has too few tiles to occupy the machine.

    The number of parts follows from the extents of each launch, so that one kernel serves growing arrays.
    """
    rows = ROWS if schedule.by_bulk else schedule.tile[0]  # few blocks of warpgroups are fast enough
    tiles = prod(extents[span] for span in form.batch) * -(-extents[form.m] // rows)
    if form.columns:
        tiles *= -(-max(extents[span] for span in form.columns) // schedule.width)
    steps = -(-extents[form.n] // schedule.tile[1]) * prod(extents[span] for span in form.fold.turns)
    blocks, least = _at_once(schedule, form, arch, processors), processors
    if form.fold.results and arch.vector_registers:  # a CPU cannot run parts that wait for each other
        return
    if not form.products and arch.shared_bytes:  # loads limit these loops
        warps = EXCHANGING_WARPS if form.fold.results else LOADING_WARPS
        each = max(warps // prod(schedule.warps), 1)
        if form.fold.results:  # all blocks run at once, with their shared memory
            system = SYSTEM_BYTES if owner(arch.name) is CUDA else 0
            each = resident_blocks(arch, shared_bytes(schedule, form), most=each, reserved=system)
        least = blocks = processors * each
    if tiles < least and parts_of_loop(form, tiles, steps, blocks) > 1 and not against_parts(form):
        yield replace(schedule, split_k=AUTO, blocks=blocks)


def _at_once(schedule: Schedule, form: FoldForm, arch: Arch, processors: int) -> int:
    """Number of blocks that the machine runs at once."""
    if not arch.shared_bytes or schedule.by_bulk:
        return processors
    used = max(shared_bytes(schedule, form), 1)
    return processors * max(min(SCHEDULERS // prod(schedule.warps), arch.shared_bytes // used), 1)


def _kept(
    schedule: Schedule, form: FoldForm, extents: Mapping[Span, int], arch: Arch, processors: int
) -> Iterator[Schedule]:
    """Yield the schedule whose blocks keep the values of their only step, if all blocks run at once."""
    if against_kept(form) or not extents[form.n]:  # each block takes one step, even along no elements
        return
    steps = -(-extents[form.n] // schedule.tile[1])
    tiles = prod(extents[span] for span in form.batch) * -(-extents[form.m] // schedule.tile[0])
    blocks = _at_once(schedule, form, arch, processors)
    if steps == 1:
        yield replace(schedule, fold=KEPT)
    elif tiles * steps <= blocks and not arch.vector_registers:
        yield replace(schedule, fold=KEPT, split_k=AUTO, blocks=blocks)


def _sizes(form: FoldForm, columns: int, rows: int) -> Iterator[tuple[int, int, int]]:
    """Rows of a tile, elements of a step, and number of warps, the best first.

    Args:
        form: the form.
        columns: columns of the tiles in registers.
        rows: rows of the result.
    """
    if form.element.bytes >= 4:
        yield from ((64, 32, 8), (64, 16, 8), (32, 16, 4), (16, 16, 2), (16, 8, 2))
    elif columns <= 64:
        yield from ((128, 64, 4), (64, 32, 4), (32, 16, 2))
    elif columns <= 128:
        if rows <= ROWS_OF_A_WARP:  # one warp has all rows, and registers for longer steps
            yield (16, 64, 1)
        yield from ((128, 32, 4), (64, 32, 4), (32, 16, 2))
    else:
        yield from ((128, 32, 8), (64, 32, 4), (32, 16, 2))


def _on_processors(form: FoldForm, extents: Mapping[Span, int], arch: Arch) -> Iterator[tuple[int, int, int]]:
    """Rows of a tile, elements of a step, and one warp, for CPUs; the fastest rows, the fastest step first.

    Only rows whose micro-tiles have enough sums count.  With a mask, a row needs half of the loop on average,
    and computes half a hidden step.
    """
    down, along = max(extents[form.m], 1), max(extents[form.n], 1)
    is_masked = bool(masks_of(form))

    def sums(rows: int) -> int:
        tile = micro_tile(arch, rows, LONG_STEPS[0], form.total.computed.bytes)
        return tile.rows * tile.vectors

    def time(run: int) -> float:
        steps = along / 2 / run + 0.5 if is_masked else -(-along // run)
        return steps * (run + STEP_START)

    enough = min(max(map(sums, TALL_ROWS)), LEAST_SUMS)
    high = [rows for rows in TALL_ROWS if sums(rows) >= enough]
    rows = min(high, key=lambda rows: (-(-down // rows) * (rows + TILE_START), -rows))
    yield from ((rows, run, 1) for run in sorted(LONG_STEPS, key=lambda run: (time(run), -run)))


def choose(
    form: FoldForm,
    specs: Mapping[str, TensorSpec],
    shapes: Mapping[str, tuple[int, ...]],
    arch: Arch,
    processors: int = 0,
) -> Schedule:
    """The first legal proposal; if none is legal, the last one, whose refusal says why."""
    found = [*proposals(form, specs, shapes, arch, processors or _known(arch))]
    return next((one for one in found if not reasons(one, form, specs, arch)), found[-1])


def _known(arch: Arch) -> int:
    """Multiprocessors of an architecture's first known board; 0 if none is known."""
    return 0 if arch.rates is None else arch.rates.boards[0].multiprocessors


# ---------------------------------------------------------------- candidates for measurements


def candidates(question: LoopQuestion) -> tuple[Candidate, ...]:
    """The proposals of the rules, the choice first; then legal schedules near them, by their estimates.

    Args:
        question: the loop, on a machine.

    Returns:
        Each schedule once.  If a proposal is not legal, its ``against`` has every reason.
    """
    form, arch = question.form, question.arch
    processors = question.processors or _known(arch)
    near: dict[Schedule, Candidate] = {}

    def candidate(schedule: Schedule, rule: str) -> Candidate:
        broken = reasons(schedule, form, question.specs, arch)
        against = tuple(f"{reason.message}; {reason.nearest}" for reason in broken)
        return Candidate(schedule, estimate(schedule, question), rule, against)

    proposed = {
        one: candidate(one, "proposed for loops that carry a state")
        for one in proposals(form, question.specs, question.shapes, arch, processors)
    }
    ranked = sorted(proposed.values(), key=lambda one: bool(one.against))  # stable: the choice is first
    for made in ranked:
        for field, one in () if made.against else _near(made.schedule, form):
            if one not in proposed and one not in near:
                tried = candidate(one, f"another {field} than a proposal")
                near |= {} if tried.against else {one: tried}
    return (*ranked, *sorted(near.values(), key=lambda one: one.estimate))


def _near(schedule: Schedule, form: FoldForm) -> Iterator[tuple[str, Schedule]]:
    """Variants of a schedule, each with the name of the field that differs; some are illegal."""
    rows, run, depth = schedule.tile
    unit = max(schedule.atom.shape[1:]) if not schedule.by_bulk else 16
    tiles = [(rows, run, depth)]
    runs = (run // 2, run * 2) if not schedule.by_bulk else (run - 32, run - 16, run + 16, run + 32)
    tiles += [(rows, step, depth) for step in runs if step >= unit and step % unit == 0]
    if not schedule.by_bulk:
        tiles += [(side, step, depth) for side in (rows // 2, rows * 2) for step in (run, run * 2) if side]
    for tile in tiles:
        atom = wgmma(form.element, tile[1]) if schedule.by_bulk else schedule.atom
        one = replace(schedule, atom=atom, tile=tile)
        if tile != schedule.tile:
            yield "tile", one
        for stages in STAGES if schedule.copies_in_background else ():
            yield "stages", replace(one, stages=stages)
    if schedule.by_bulk:
        for epilogue in group_choice.ENDINGS:
            yield "epilogue", replace(schedule, epilogue=epilogue)
    if schedule.split_k == AUTO:
        yield "split_k", replace(schedule, split_k=1, blocks=0)
    if form.earlier:
        yield "fold", replace(schedule, fold="two passes" if schedule.fold == "online" else "online")


STEP_COST, FUNCTION_COST, SYNCHRONOUS, LOADED = 400.0, 4.0, 0.6, 32.0
"""Constants of `estimate`, which only ranks candidates for measurements: fixed cost of a step, in clocks; the
cost of a function of one element, in multiply-adds; the rate of synchronous MMA instructions relative to
`wgmma`; and the bytes that a multiprocessor loads per clock."""


def parts_in(schedule: Schedule, question: LoopQuestion) -> int:
    """Number of parts of a loop; for ``split_k="auto"``, the number that a launch computes."""
    form, extents = question.form, question.of_spans
    if isinstance(schedule.split_k, int):
        return schedule.split_k
    columns = max((extents[span] for span in form.columns), default=1)
    tiles = prod(extents[span] for span in form.batch) * -(-extents[form.m] // schedule.tile[0])
    tiles *= -(-columns // schedule.width) if schedule.width else 1
    steps = -(-extents[form.n] // schedule.tile[1]) * prod(extents[span] for span in form.fold.turns)
    if schedule.fold == KEPT:
        return max(steps, 1)
    found = parts_of_loop(form, tiles, max(steps, 1), schedule.blocks)
    assert isinstance(found, int), "extents are numbers"
    return found


def estimate(schedule: Schedule, question: LoopQuestion) -> float:
    """Estimated time of a schedule of a loop, in clocks: rounds of blocks times the clocks of a whole tile.

    Args:
        schedule: the schedule.
        question: the loop, on a machine.
    """
    form, arch, extents = question.form, question.arch, question.of_spans
    rows, run, _ = schedule.tile
    columns = max((extents[span] for span in form.columns), default=1)
    wide = -(-columns // schedule.width) if schedule.width else 1
    tiles = prod(extents[span] for span in form.batch) * -(-extents[form.m] // rows) * wide
    turns = prod(extents[span] for span in form.fold.turns)
    steps, parts = max(-(-extents[form.n] // run) * turns, 1), parts_in(schedule, question)
    together = question.processors or _known(arch) or 1
    deep = sum(-(-extents[one.span] // 16) * 16 for one in form.scores)
    element = form.element
    lanes = float(max(arch.vector_bytes // max(element.bytes, 1), 1))
    tensor, scalar = lanes, lanes
    if arch.rates is not None:
        scalar = arch.rates.fma_flops.get("f32", 256) / 2
        tensor = scalar
        if schedule.atom.instruction != "fma":
            rate = arch.rates.tensor_flops.get(element.name, 2 * scalar) / 2
            tensor = rate * (1.0 if schedule.by_bulk else SYNCHRONOUS)
    functions = sum(isinstance(node, Map) and form.n in node.axes for node in form.inside())
    products = rows * run * (deep + len(form.mixtures) * (schedule.width or columns)) / tensor
    products += run * (deep + len(form.mixtures) * schedule.width) * element.bytes / LOADED
    step = STEP_COST / lanes + products + rows * run * FUNCTION_COST * functions / scalar
    rounds = -(-tiles * max(parts, 1) // together)
    merges = rows * (schedule.width or columns) * len(form.fold.cells) * (parts - 1) / scalar
    passes = 2 if form.fold.results and parts > 1 else 1
    return rounds * -(-steps // max(parts, 1)) * step * passes + merges
