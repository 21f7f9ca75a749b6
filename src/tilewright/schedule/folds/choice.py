"""Schedules of loops that carry a state: which are legal, and which one is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from math import lcm, prod

from tilewright.arch import Arch
from tilewright.dataflow.nodes import SUMMED, TF32, ArrayPart, Map, Node, Span
from tilewright.errors import Location, Origin, ScheduleError, Violation
from tilewright.ir.mma import MmaAtom
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.facts import Reasons
from tilewright.schedule.fixup import WorkspaceSums
from tilewright.schedule.folds import elementwise, group_choice
from tilewright.schedule.folds.block import is_exchanged
from tilewright.schedule.folds.form import FoldForm, is_computed, transposed
from tilewright.schedule.folds.group_choice import ROWS_OF_A_WARP
from tilewright.schedule.folds.group_rings import ROWS
from tilewright.schedule.folds.kept import against_kept
from tilewright.schedule.folds.parts import StateMerge
from tilewright.schedule.folds.rows import KEPT, TWO_PASSES
from tilewright.schedule.form import kept_rows
from tilewright.schedule.load import REGISTER_BYTES
from tilewright.schedule.needs import tickets
from tilewright.schedule.partition import parts_of_k
from tilewright.schedule.question import Candidate, LoopQuestion
from tilewright.schedule.schedule import Schedule
from tilewright.targets.atoms import TENSOR_CORE, dots, fma, spelled, wgmma
from tilewright.targets.matrix_cores import nearest
from tilewright.targets.target import CUDA, owner

STAGINGS = ("direct", "cp_async")
"""Stagings that these loops have."""

FIELDS = ("atom", "tile", "warps", "stages", "staging", "split_k", "blocks", "width", "resident", "fold")
"""Fields that these loops have; the others keep their default."""

MOST_RESIDENT = 256
"""Depth of the products of a step up to which the operand that stays the same is kept in shared memory."""

DEPTH = 64
"""Depth of a tile of longer sums inside of a step."""

MOST_WIDTH = 256
"""Columns of the result in one tile; more columns are computed by several blocks, each with its own loop."""

MOST_COVERED = 1024
"""Columns of the result in one tile if they are reduced."""

MORE_SCORES = 64
"""Columns of results that take as many registers as one more tile of scores, with the numbers of its rows."""

STAGES = (3, 2)
"""Stages of a ring, the best first."""

SCHEDULERS = 4
"""Warps that a multiprocessor issues from at once, so that it runs four blocks of one warp."""

LOADING_WARPS = 32
"""Warps of a multiprocessor that have enough loads under way if they do nothing else."""

FEW_ROWS, LONG_STEP = 8, 256
"""Rows up to which processors read the keys of scores in place, as dot products along K; and elements of the
loop in one step then: a step does much work, and its operands fit the second-level cache."""

LOADED_BYTES, ACROSS, MOST_SUMS = 16, 16, 64
"""Loops without products on GPUs: bytes that a lane loads at once, lanes along columns, sums of a lane."""

WINDOW_REGISTERS, MOST_STEPS = 176, 96
"""Registers of a thread for sums and elements of windows, and steps of its rows that it computes together."""

AMPERE_REGISTERS = 148
"""Registers of a thread for sums and all elements that it loads for the turns of a step, at most, for sm_80
to sm_89: there NVRTC 13.0 gives its warps 168, also for addresses, and spills more.  For sm_90a it gives
more."""

WIDE_SUMS = 16
"""Loops without products on processors: neighbouring sums."""

SCAN_SUMS = 160
"""Registers of a thread for the state, the scores and the results of a step, at most, if each step stores."""

AUTO = "auto"
"""Value of `Schedule.split_k` for as many parts as give each block one."""


# ---------------------------------------------------------------- legality


def reasons(
    schedule: Schedule, form: FoldForm, specs: Mapping[str, TensorSpec], arch: Arch
) -> list[Violation]:
    """Every reason why a schedule is refused; none if it is legal.

    Args:
        schedule: the schedule.
        form: the form of the computation.
        specs: the classes of the arrays, by name.
        arch: the machine.
    """
    found = []
    for field, message, near, node in _reasons(schedule, form, specs, arch):
        where = node.location
        if where is not None:
            where = Location(where.frames, Origin(node, where.frames, field, schedule.spelled(field)))
        found.append(Violation(field, message, near, where))
    return found


def check(schedule: Schedule, form: FoldForm, specs: Mapping[str, TensorSpec], arch: Arch) -> None:
    """Refuse a schedule that is not legal.

    Raises:
        ScheduleError: lists every reason, with the value, the limit and the nearest legal choice.
    """
    if found := reasons(schedule, form, specs, arch):
        raise ScheduleError(form.flow.name, arch.name, repr(schedule), found)


def _reasons(schedule: Schedule, form: FoldForm, specs: Mapping[str, TensorSpec], arch: Arch) -> Reasons:
    if form.is_elementwise:
        yield from elementwise.reasons(schedule, form, arch)
        return
    if schedule.by_bulk:
        yield from group_choice.reasons(schedule, form, specs, arch)
        return
    step = form.fold.steps[0]
    carried = f"in a loop over {form.n.name} that carries {form.fold.cells[0].name}"
    yield from group_choice.not_taken(schedule, FIELDS, carried, step)
    if form.alias is not None:
        yield from _scan(schedule, form)
    yield from _staging(schedule, form, specs, arch)
    yield from _split(schedule, form, arch)
    yield from _fold(schedule, form)
    wrong = [*_instruction(schedule, form, arch), *_tile(schedule, form)]
    yield from wrong
    if not wrong and arch.shared_bytes and (used := shared_bytes(schedule, form)) > arch.shared_bytes:
        rows, run, depth = schedule.tile
        near = f"tile={(rows, max(run // 2, 1), depth)}, or fewer stages"
        if form.alias is not None and next(
            _scan(replace(schedule, tile=(rows, run // 2, depth)), form), None
        ):
            near = f"a state with fewer rows along {form.m.name}"
        yield "tile", f"{used} bytes of shared memory; {arch.name} has {arch.shared_bytes}", near, step


def _scan(schedule: Schedule, form: FoldForm) -> Reasons:
    """Reasons to refuse a schedule of a loop whose steps store results."""
    step, (rows, run, depth), (down, _) = form.fold.steps[0], schedule.tile, schedule.warps
    unit = lcm(schedule.atom.shape[0] * down, *schedule.atom.shape[1:])
    if run % unit or not run:
        text = f"steps of {run}; rows of a step are rows of {down} warps, and multiples of {unit}"
        yield "tile", text, f"tile={(rows, max(-(-run // unit), 1) * unit, depth)}", step
    if rows != depth:
        text = f"tile={schedule.tile}; {form.m.name} are the rows of the state, and the depth of the products"
        yield "tile", text, f"tile={(max(rows, depth), run, max(rows, depth))}", step
    if not schedule.resident:
        yield "resident", "resident=False; a step has whole depths", "resident=True", step


def _fold(schedule: Schedule, form: FoldForm) -> Reasons:
    step, fold = form.fold.steps[0], schedule.spelled("fold")
    if schedule.fold == TWO_PASSES and not form.earlier:
        text = f"fold={fold}; everything along {form.n.name} is computed by one loop"
        yield "fold", text, 'fold="online"', step
    elif schedule.fold == KEPT and (why := against_kept(form)):
        yield "fold", f"fold={fold}; {why}", 'fold="online"', step


def _split(schedule: Schedule, form: FoldForm, arch: Arch) -> Reasons:
    step, split = form.fold.steps[0], schedule.spelled("split_k")
    if schedule.blocks and schedule.split_k != AUTO:
        text = f"blocks={schedule.blocks} with split_k={split}; each tile, or part, has its own block"
        yield "blocks", text, 'blocks=0, or split_k="auto"', step
    if not schedule.is_split:
        return
    if schedule.fold == KEPT and schedule.split_k != AUTO:
        text = f'split_k={split} with fold="kept"; a row has a block for each step'
        yield "split_k", text, 'split_k="auto"', step
    elif schedule.fold == KEPT and arch.vector_registers:
        text = f'split_k={split} with fold="kept"; {arch.name} does not run all blocks at the same time'
        yield "split_k", f"{text}, and those of a row wait for each other", "split_k=1", step
    elif schedule.fold != KEPT and (why := against_parts(form)):
        yield "split_k", f"split_k={split}; {why}", "split_k=1", step
    elif schedule.is_streamed:
        text = f"split_k={split}; the loop over {form.n.name} carries {form.fold.cells[0].name}"
        yield "split_k", text, 'split_k="auto"', step
    elif schedule.split_k == AUTO and not schedule.blocks:
        text = f"split_k={split} with blocks=0; it needs the number of blocks that run at the same time"
        yield "blocks", text, "blocks=132, or as many as the machine has multiprocessors", step


def against_parts(form: FoldForm) -> str:
    """Why a loop cannot be split into parts; empty if it can."""
    if form.alias is not None:
        return f"each step stores results that depend on all steps along {form.n.name} before it"
    if form.earlier:
        return f"{len(form.folds)} loops along {form.n.name} follow each other, and parts have one"
    if form.passing:
        name = form.passing[0].operand.name
        return f"{name} is stored along {form.n.name} in a second pass, which has whole rows"
    return StateMerge(form).against


def _staging(schedule: Schedule, form: FoldForm, specs: Mapping[str, TensorSpec], arch: Arch) -> Reasons:
    step, staging = form.fold.steps[0], schedule.spelled("staging")
    if schedule.staging not in STAGINGS:
        text = f"staging={staging}; the loop over {form.n.name} carries {form.fold.cells[0].name}"
        yield "staging", text, 'staging="direct"', step
        return
    if not schedule.copies_in_background:
        if schedule.stages != 1:
            text = f"{schedule.stages} stages; with staging={staging} shared memory holds one tile"
            yield "stages", text, "stages=1", step
        return
    if schedule.stages < 2:
        text = "1 stage; a ring fills one stage while another is multiplied, and needs at least 2"
        yield "stages", text, "stages=2", step
    if arch.vector_registers:  # a processor copies at once, from any address
        return
    if not arch.async_bytes:
        text = f"staging={staging}; {arch.name} has no copies in the background"
        yield "staging", text, 'staging="direct"', step
        return
    for product in form.products:
        for side in (product.a, product.b) if product in form.scores else (product.b,):
            part, _ = transposed(side)
            if isinstance(part, ArrayPart) and part.dtype == form.element:
                why = _against_copies(part, specs, min(arch.async_bytes))
                if why:
                    yield "staging", why, 'staging="direct"', part


def _against_copies(part: ArrayPart, specs: Mapping[str, TensorSpec], least: int) -> str:
    """Why copies of some bytes in the background cannot carry a part of an array; empty if they can."""
    name, spec = part.operand.name, specs[part.operand.name]
    kept = kept_rows(spec, part.operand.transforms)
    if kept is None or kept.unit_dim is None:
        return f"{name} has no contiguous rows, and copies in the background have at least {least} bytes"
    spec, size = kept, kept.dtype.bytes
    strides = (one * size for dim, one in enumerate(spec.stride_divisors) if dim != spec.unit_dim)
    begin = min(spec.align, *strides)
    if begin % least == 0:
        return ""
    return f"rows of {name} begin at multiples of {begin} bytes, and copies in the background of {least}"


def _instruction(schedule: Schedule, form: FoldForm, arch: Arch) -> Reasons:
    atom, product = schedule.atom, next(iter(form.products), form.fold.steps[0])
    near = spelled(atom_of(form, arch))
    if atom.asynchronous:
        yield "atom", f"{atom} multiplies in the background; the loop needs its sums at once", near, product
    elif why := _unfit(atom, form, arch):
        yield "atom", f"{atom} {why}", near, product


def _unfit(atom: MmaAtom, form: FoldForm, arch: Arch) -> str:
    """Why an instruction cannot multiply what the kernel multiplies on a machine; empty if it can."""
    if arch.features and atom.feature and atom.feature not in arch.features:
        return f"needs {atom.feature}, which {arch.name} lacks"
    if form.products and (atom.a_dtype, atom.c_dtype) != (form.element, form.total):
        found = f"multiplies {atom.a_dtype} and adds in {atom.c_dtype}"
        return f"{found}; the kernel has {form.element} and {form.total}"
    if atom.precision is not None and any(one.precision != TF32 for one in form.products):
        return f"multiplies {atom.precision} fraction bits of {atom.a_dtype}; the kernel asks for all of them"
    return ""


def _tile(schedule: Schedule, form: FoldForm) -> Reasons:
    step, (down, across) = form.fold.steps[0], schedule.warps
    if across != 1:
        text = f"warps={schedule.warps}; each warp has whole rows, because values are reduced along them"
        yield "warps", text, f"warps=({down * across}, 1)", step
        return
    m, n, k = schedule.atom.shape
    units = (m * down, lcm(n, k), k)
    if any(side == 0 or side % unit for side, unit in zip(schedule.tile, units, strict=True)):
        near = tuple(max(-(-s // unit), 1) * unit for s, unit in zip(schedule.tile, units, strict=True))
        text = f"{schedule.tile} is no multiple of {units}, one {schedule.atom} for each of {down} warps"
        yield "tile", text, f"tile={near}", step
    if not form.columns and schedule.width:
        yield "width", f"width={schedule.width}; the results have no columns", "width=0", step
    elif form.columns and (schedule.width == 0 or schedule.width % n):
        text = f"width={schedule.width} is no multiple of {n}, the columns of {schedule.atom}"
        yield "width", text, f"width={max(-(-schedule.width // n), 1) * n}", step


def shared_bytes(schedule: Schedule, form: FoldForm) -> int:
    """Bytes of shared memory of a schedule."""
    rows, run, depth = schedule.tile
    if form.alias is not None:
        return _scan_bytes(schedule, form)
    held = {id(transposed(side)[0]): side for one in form.scores for side in (one.a, one.b)}
    elements = 0
    for side in held.values():
        moves = form.n in side.axes
        elements += (
            (run if moves else rows) * depth * (schedule.stages if moves or not schedule.resident else 1)
        )
    elements += schedule.stages * run * schedule.width * len({id(one.b) for one in form.mixtures})
    if is_exchanged(schedule, form):
        elements += rows * run
    rounds = WorkspaceSums.rounds(schedule) if schedule.is_split else 0
    return elements * form.element.bytes + rounds * tickets(1).align


def tile_key(node: Node, along: Span) -> tuple[int, Span | None]:
    """The key of an operand in shared memory: a part of an array has one tile, whatever is summed along."""
    part, _ = transposed(node)
    return id(part), None if isinstance(part, ArrayPart) else along


def tiles_of_scan(form: FoldForm) -> list[tuple[Node, Span]]:
    """The operands of a loop whose steps store results that lie in shared memory, and the span of a sum."""
    sides = [(side, one.span) for one in form.products for side in (one.a, one.b) if not is_computed(side)]
    return [*{tile_key(*one): one for one in sides}.values()]


def copies_of_scan(schedule: Schedule, form: FoldForm) -> list[Node]:
    """The computed operands of such a loop that are copied to shared memory in each step."""
    sides = [one.b for one in form.products]
    sides += [one.a for one in form.products] if is_exchanged(schedule, form) else []
    return [*{id(side): side for side in sides if is_computed(side)}.values()]


def _scan_bytes(schedule: Schedule, form: FoldForm) -> int:
    """Bytes of shared memory of a loop whose steps store results."""
    rows, run, _ = schedule.tile
    lengths = {form.m: rows, form.n: run, form.alias: run} | dict.fromkeys(form.columns, schedule.width)
    elements = sum(
        schedule.stages * prod(lengths[span] for span in node.axes if span is not None)
        for node, _ in tiles_of_scan(form)
    )
    elements += sum(
        prod(lengths[span] for span in node.axes if span is not None)
        for node in copies_of_scan(schedule, form)
    )
    return elements * form.element.bytes


# ---------------------------------------------------------------- the choice


def atom_of(form: FoldForm, arch: Arch, run: int = 16) -> MmaAtom:
    """The instruction of a loop: at most 16 x 16, so that each warp has whole rows; else multiply-adds.

    Args:
        form: the form.
        arch: the machine.
        run: elements of the loop in one step.
    """
    element, total = form.element, form.total
    if form.products and not any(one.precision == SUMMED for one in form.products):
        found = nearest(element, total, arch.features, most=(16, 16)) or TENSOR_CORE.get(element.name)
        if found is not None and not _unfit(found, form, arch):
            return found
    each = 2 if total.bytes <= 4 else 1
    return fma(element, total, lanes=(max(arch.lanes // 8, 1), 8), each=(each, min(max(run // 8, 1), each)))


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
        processors: its processors; 0: unknown, and no loop is split.
    """
    if form.is_elementwise:
        yield from elementwise.proposals(form, specs, shapes, arch, processors)
        return
    extents = form.extents(shapes)
    if form.alias is not None:
        yield from _scans(form, extents, arch, processors)
        return
    # Few rows are limited by what the loop reads, of which more blocks read more at the same time.
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
    if arch.shared_bytes and form.element.bytes <= 2 and not form.mixtures:
        sizes = chain(((64, 128, 4),), sizes)  # each row of the scores is reduced once for more columns
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
        if not arch.vector_registers:  # processors copy at once
            ways[:0] = [replace(made, staging="cp_async", stages=stages) for stages in STAGES]
        for way in ways:
            yield from _kept(way, form, extents, arch, processors)
            yield from in_parts(way, form, extents, arch, processors)
            yield way


def _scans(form: FoldForm, extents: Mapping[Span, int], arch: Arch, processors: int) -> Iterator[Schedule]:
    """The schedules of a loop whose steps store results: the longest steps that fit.

    Blocks that share a sequence compute its scores each.  A step has products of the depth of the scores with
    its own elements, and three with the columns of the block.  The columns that take the fewest of them, in
    as many rounds as the blocks have on the machine, come first.

    Args:
        form: the form.
        extents: extents of all spans.
        arch: the machine.
        processors: its processors; 0: unknown.
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
    """Whether a value inside the loop varies along its span, so that a step has several elements of it."""
    return any(form.n in node.axes for node in form.inside())


def _by_taps(form: FoldForm, extents: Mapping[Span, int], arch: Arch) -> Schedule:
    """The schedule of a loop without products, each step of which has one element of each sum.

    Such a loop is limited by loads.  A thread loads the widest vector along columns, and has several rows, so
    that what varies along columns alone is loaded once for all of them.  The last tiles are full if possible.

    Args:
        form: the form.
        extents: extents of all spans.
        arch: the machine.
    """
    loaded = [one for one in form.inside() if isinstance(one, ArrayPart) and {*form.columns} & {*one.at}]
    narrowest = min((one.operand.dtype.bytes for one in loaded), default=form.total.bytes)
    count_of_lanes = 1 if arch.vector_registers else arch.lanes  # a block of a processor is one thread
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
    """Turns of the innermost loop that a thread computes together: those with the fewest loads.

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
        """Elements of a part that the turns of a step have, for one column."""
        if (steps := form.windows.get(id(node))) is not None:
            return len({row * steps[0] + tap * steps[1] for row in range(each) for tap in range(taps)})
        return (each if form.m in node.at else 1) * (taps if turn in node.at else 1)

    def held(taps: int) -> int:
        """Elements of all windows of a column."""
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
    """Neighbouring rows of one thread in a loop without products."""
    return prod(mode.extent for mode in schedule.atom.c.values if mode.dim == 0)


def shares_windows(schedule: Schedule, form: FoldForm) -> bool:
    """Whether threads load an element of a window once for several turns, the depth of the tile."""
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
    """The schedule of few rows on processors, without rows that only fill a tile; None if it does not suit.

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
    """The schedule with its loop split, if it has fewer tiles than the machine has processors.

    The number of parts follows from the extents of each launch, so that one kernel serves growing arrays.
    """
    rows = ROWS if schedule.by_bulk else schedule.tile[0]  # few blocks of warpgroups are fast enough
    tiles = prod(extents[span] for span in form.batch) * -(-extents[form.m] // rows)
    if form.columns:
        tiles *= -(-max(extents[span] for span in form.columns) // schedule.width)
    steps = -(-extents[form.n] // schedule.tile[1]) * prod(extents[span] for span in form.fold.turns)
    blocks, least = _at_once(schedule, form, arch, processors), processors
    if not form.products and arch.shared_bytes:  # such loops wait for loads alone
        least = blocks = processors * max(LOADING_WARPS // schedule.warps[0], 1)
    if tiles < least and parts_of_k(tiles, steps, blocks) > 1 and not against_parts(form):
        yield replace(schedule, split_k=AUTO, blocks=blocks)


def _at_once(schedule: Schedule, form: FoldForm, arch: Arch, processors: int) -> int:
    """Blocks that run at the same time."""
    if not arch.shared_bytes or schedule.by_bulk:
        return processors
    used = max(shared_bytes(schedule, form), 1)
    return processors * max(min(SCHEDULERS // schedule.warps[0], arch.shared_bytes // used), 1)


def _kept(
    schedule: Schedule, form: FoldForm, extents: Mapping[Span, int], arch: Arch, processors: int
) -> Iterator[Schedule]:
    """The schedule whose blocks keep the values of their only step, if all blocks run at the same time."""
    if against_kept(form):
        return
    steps = -(-extents[form.n] // schedule.tile[1])
    tiles = prod(extents[span] for span in form.batch) * -(-extents[form.m] // schedule.tile[0])
    blocks = _at_once(schedule, form, arch, processors)
    if steps == 1:
        yield replace(schedule, fold=KEPT)
    elif tiles * steps <= blocks and not arch.vector_registers:
        yield replace(schedule, fold=KEPT, split_k=AUTO, blocks=blocks)


def _sizes(form: FoldForm, columns: int, rows: int) -> Iterator[tuple[int, int, int]]:
    """Rows, elements of a step, and warps, the best first.

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
    """Processors of the best known product of an architecture; 0 if none is known."""
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
    """Schedules that differ from another one, each with the field that differs; some are illegal."""
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
"""Constants of `estimate`, which ranks candidates for measurements and decides no choice: clocks of a step
besides its work; multiply-adds that a function of an element takes as long as; the rate of instructions that
wait for their sums, relative to `wgmma`; and bytes that a processor loads in a clock."""


def parts_in(schedule: Schedule, question: LoopQuestion) -> int:
    """Number of parts of a loop, also if the schedule says ``"auto"``."""
    form, extents = question.form, question.of_spans
    if isinstance(schedule.split_k, int):
        return schedule.split_k
    columns = max((extents[span] for span in form.columns), default=1)
    tiles = prod(extents[span] for span in form.batch) * -(-extents[form.m] // schedule.tile[0])
    tiles *= -(-columns // schedule.width) if schedule.width else 1
    steps = -(-extents[form.n] // schedule.tile[1]) * prod(extents[span] for span in form.fold.turns)
    if schedule.fold == KEPT:
        return max(steps, 1)
    found = parts_of_k(tiles, max(steps, 1), schedule.blocks)
    assert isinstance(found, int), "extents are numbers"
    return found


def estimate(schedule: Schedule, question: LoopQuestion) -> float:
    """Time of a schedule of a loop, in clocks of one processor: work of whole tiles, by rounds of blocks.

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
    return rounds * -(-steps // max(parts, 1)) * step + merges
