"""Legality of schedules of loops that carry a state, and the shared memory that the schedules need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import lcm, prod

from tilewright.arch import Arch
from tilewright.dataflow.nodes import SUMMED, TF32, ArrayPart, Node, Span, walk
from tilewright.errors import Location, Origin, ScheduleError, Violation
from tilewright.ir.mma import MmaAtom
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.facts import Reasons, against_waits
from tilewright.schedule.fixup import REGISTER_BYTES, WorkspaceSums
from tilewright.schedule.folds import elementwise, group_choice
from tilewright.schedule.folds.form import FoldForm, is_computed, may_replace, transposed
from tilewright.schedule.folds.kept import against_exchange, against_kept, exchanged_bytes
from tilewright.schedule.folds.operands import is_exchanged
from tilewright.schedule.folds.parts import AUTO, StateMerge
from tilewright.schedule.folds.rows import KEPT, TWO_PASSES
from tilewright.schedule.form import kept_rows
from tilewright.schedule.needs import tickets
from tilewright.schedule.schedule import Schedule
from tilewright.targets.atoms import TENSOR_CORE, fma, spelled
from tilewright.targets.matrix_cores import nearest

STAGINGS = ("direct", "cp_async")
"""Legal values of `Schedule.staging` for these loops."""

FIELDS = ("atom", "tile", "warps", "stages", "staging", "split_k", "blocks", "width", "resident", "fold")
"""Fields of `Schedule` that apply to these loops; the others keep their default."""


def reasons(
    schedule: Schedule, form: FoldForm, specs: Mapping[str, TensorSpec], arch: Arch
) -> list[Violation]:
    """Every reason why a schedule is refused; empty if it is legal.

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
    yield from against_waits(form.flow, arch)
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
    elif not wrong and arch.thread_registers and form.alias is None:
        threads = schedule.warps[0] * arch.lanes
        limit, used = (
            min(arch.thread_registers, arch.registers_of_each(threads)),
            mixed_registers(schedule, form),
        )
        if used > limit:
            rows, run, depth = schedule.tile
            near = f"tile={(rows, max(run // 2, 1), depth)}"
            text = f"{used} registers of a thread hold the state and the left operands of its products"
            yield "tile", f"{text}; with {threads} threads {arch.name} has {limit}", near, step


def mixed_registers(schedule: Schedule, form: FoldForm) -> int:
    """Registers of a thread for the state, and for the left operands of all products along the loop.

    A step computes the left operands from the old state, before the first product changes it.
    """
    (rows, run, _), atom = schedule.tile, schedule.atom
    m, n, k = atom.shape
    high = rows // (m * schedule.warps[0])
    sums = atom.c.size_values * high * (schedule.width // n)
    lines = sum(not {*form.columns} & {*cell.axes} for cell in form.fold.cells)
    state = (len(form.mixtures) * sums + lines * high) * form.total.bytes
    left = atom.a.size_values * high * (run // k) * form.element.bytes
    held = len({id(one.a) for one in form.mixtures})
    return -(-(state + held * left) // REGISTER_BYTES)


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
    kept = ' with fold="kept"' if schedule.fold == KEPT else ""
    is_exchanged = bool(kept or (form.fold.results and not against_parts(form)))
    if kept and schedule.split_k != AUTO:
        text = f"split_k={split}{kept}; a row has a block for each step"
        yield "split_k", text, 'split_k="auto"', step
    elif is_exchanged and arch.vector_registers:
        text = f"split_k={split}{kept}; {arch.name} does not run all blocks at the same time"
        yield "split_k", f"{text}, and those of a row wait for each other", "split_k=1", step
    elif is_exchanged and schedule.split_k != AUTO:
        text = f"split_k={split}; the parts of a loop that stores in each step wait for each other"
        yield "split_k", f"{text}, and only some blocks run at the same time", 'split_k="auto"', step
    elif schedule.fold != KEPT and (why := against_parts(form)):
        yield "split_k", f"split_k={split}; {why}", "split_k=1", step
    elif schedule.is_streamed:
        text = f"split_k={split}; the loop over {form.n.name} carries {form.fold.cells[0].name}"
        yield "split_k", text, 'split_k="auto"', step
    elif schedule.split_k == AUTO and not schedule.blocks:
        text = f"split_k={split} with blocks=0; it needs the number of blocks that run at the same time"
        yield "blocks", text, "blocks=132, or as many as the machine has multiprocessors", step


def against_parts(form: FoldForm) -> str:
    """The reason why a loop cannot be split into parts; empty if it can."""
    if form.alias is not None:
        return f"each step stores results that depend on all steps along {form.n.name} before it"
    if form.fold.results:
        if form.m.groups is not None or any(fold.turns for fold in form.folds):
            return "the loop has turns or groups"
        for cell in (one for fold in form.folds for one in fold.cells):
            if any(axis in form.columns for axis in cell.axes):
                return f"{cell.name} has columns, and blocks that store in each step exchange numbers of rows"
        if (pair := _replaced_rows(form)) is not None:
            read, stored = pair
            same = f", which may be {stored}," if read != stored else ""
            return f"each step reads {read}{same} and {stored} is stored after the loop"
        return next(filter(None, map(against_exchange, (replace(form, fold=one) for one in form.folds))), "")
    if form.earlier:
        return f"{len(form.folds)} loops along {form.n.name} follow each other, and parts have one"
    if form.passing:
        name = form.passing[0].operand.name
        return f"{name} is stored along {form.n.name} in a second pass, which has whole rows"
    return StateMerge(form).against


def _replaced_rows(form: FoldForm) -> tuple[str, str] | None:
    """The names of an array that steps read, and of a later result that may overwrite it; or None."""
    by_steps = {id(store) for store in form.kept.values()}
    later = [one for one in form.flow.stores if id(one) not in by_steps and one not in form.passing]
    seen: set[int] = set()
    nodes = [*form.inside(), *(node for store in form.passing for node in walk(store.value, seen))]
    pairs = ((part, store) for part in nodes if isinstance(part, ArrayPart) for store in later)
    same = ((part.operand.name, store.operand.name) for part, store in pairs if may_replace(store, part))
    return next(same, None)


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
    if arch.vector_registers:  # a CPU copies synchronously, from any address
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
    """The reason why async copies of at least ``least`` bytes cannot load a part of an array; or ""."""
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
    """The reason why an instruction cannot multiply the kernel's operands on a machine, or ""."""
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
    if across != 1 and (why := against_shared_rows(schedule, form)):
        text = f"warps={schedule.warps}; each warp has whole rows, because {why}"
        yield "warps", text, f"warps=({down * across}, 1)", step
        return
    m, n, k = schedule.atom.shape
    units = (m * down, lcm(n * across, k), k)
    if any(side == 0 or side % unit for side, unit in zip(schedule.tile, units, strict=True)):
        near = tuple(max(-(-s // unit), 1) * unit for s, unit in zip(schedule.tile, units, strict=True))
        text = f"{schedule.tile} is no multiple of {units}, one {schedule.atom} for each of {down} warps"
        yield "tile", text, f"tile={near}", step
    if not form.columns and schedule.width:
        yield "width", f"width={schedule.width}; the results have no columns", "width=0", step
    elif form.columns and (schedule.width == 0 or schedule.width % n):
        text = f"width={schedule.width} is no multiple of {n}, the columns of {schedule.atom}"
        yield "width", text, f"width={max(-(-schedule.width // n), 1) * n}", step


def against_shared_rows(schedule: Schedule, form: FoldForm) -> str:
    """Return the reason why warps cannot share the rows of a step; "" if they can, as in prefix sums."""
    if form.products or form.columns:
        return "values are reduced along them"
    if form.passing and form.alias is None:
        return ""
    if not form.fold.results or form.alias is not None:
        return f"no result is stored in the steps of the loop over {form.n.name}"
    return ""


def shared_bytes(schedule: Schedule, form: FoldForm) -> int:
    """Bytes of shared memory of a schedule."""
    rows, run, depth = schedule.tile
    if form.alias is not None:  # each step stores results
        lengths = {form.m: rows, form.n: run, form.alias: run} | dict.fromkeys(form.columns, schedule.width)
        held_nodes = [node for node, _ in tiles_of_scan(form)] * schedule.stages
        sides = [node.axes for node in (*held_nodes, *copies_of_scan(schedule, form))]
        elements = sum(prod(lengths[span] for span in axes if span is not None) for axes in sides)
        return elements * form.element.bytes + exchanged_bytes(form, schedule, lengths)
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
    lengths = {form.m: rows, form.n: run} | dict.fromkeys(form.columns, schedule.width)
    return (
        elements * form.element.bytes + rounds * tickets(1).align + exchanged_bytes(form, schedule, lengths)
    )


def tile_key(node: Node, along: Span) -> tuple[int, Span | None]:
    """The key of an operand's tile in shared memory.

    Sums along different spans share the tile of an array, but not the tile of computed values.
    """
    part, _ = transposed(node)
    return id(part), None if isinstance(part, ArrayPart) else along


def tiles_of_scan(form: FoldForm) -> list[tuple[Node, Span]]:
    """The operands that a loop whose steps store results loads to shared memory, each with a sum's span."""
    sides = [(side, one.span) for one in form.products for side in (one.a, one.b) if not is_computed(side)]
    return [*{tile_key(*one): one for one in sides}.values()]


def copies_of_scan(schedule: Schedule, form: FoldForm) -> list[Node]:
    """The computed operands that a loop whose steps store results copies to shared memory in each step."""
    sides = [one.b for one in form.products]
    sides += [one.a for one in form.products] if is_exchanged(schedule, form) else []
    return [*{id(side): side for side in sides if is_computed(side)}.values()]


def atom_of(form: FoldForm, arch: Arch, run: int = 16) -> MmaAtom:
    """The instruction of a loop: an MMA of at most 16 x 16 if the machine has one, otherwise scalar FMAs.

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
    if arch.vector_registers:  # a CPU's block is one thread
        return fma(element, total, lanes=(1, 1), each=(1, min(run, 16)))
    each = 2 if total.bytes <= 4 else 1
    return fma(element, total, lanes=(max(arch.lanes // 8, 1), 8), each=(each, min(max(run // 8, 1), each)))
