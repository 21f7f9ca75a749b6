"""Legality of schedules of loops by warpgroups, and the rules that propose these schedules."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from math import gcd, prod

import numpy as np

from tilewright.arch import Arch
from tilewright.dataflow.nodes import BATCH, ArrayPart, Map, Node, Operand, Span, walk
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.bulk_views import against_array, against_store, against_tiles
from tilewright.schedule.facts import Reasons
from tilewright.schedule.folds.form import FoldForm, transposed
from tilewright.schedule.folds.group_products import (
    AT_ONCE,
    SUMS,
    is_late,
    mixtures_of,
    most_tiles,
    registers_of,
)
from tilewright.schedule.folds.group_rings import (
    PANEL,
    ROW_ALIGN,
    ROWS,
    STAGED,
    copied_operands,
    in_panels,
    panel_buffers,
    panel_types,
    row_elements,
    step_rows,
)
from tilewright.schedule.folds.groups import role_registers
from tilewright.schedule.folds.items import longest
from tilewright.schedule.folds.kept import against_kept
from tilewright.schedule.folds.masks import masks_of
from tilewright.schedule.folds.parts import StateMerge
from tilewright.schedule.folds.rows import KEPT, TWO_PASSES
from tilewright.schedule.form import merged_rows, spec_of
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.time_parts import FILL_BYTES, joined
from tilewright.targets.atoms import wgmma

SPEEDUP = 2
"""Speed of a tile with warpgroups, relative to one with warps and `mma.sync`.

Source: three chains of 4096 rows, 128 and 256 columns, on an H200 (2026-11-28).  Warpgroups took 0.51 to
0.54 of the time of warps with a split loop on all multiprocessors.
"""

LEAST = 24
"""Fewest registers of a thread; also the registers that a computing thread needs for addresses."""

ENDINGS = ("staged", "overlapped")
"""Epilogues.  Results are staged in the shared memory of the row operand, or in memory of their own."""

FIELDS = (
    "atom",
    "tile",
    "stages",
    "staging",
    "roles",
    "groups",
    "blocks",
    "group_n",
    "registers",
    "width",
    "resident",
    "epilogue",
    "fold",
)
"""Fields of `Schedule` that apply to these loops; the others keep their default."""

ROWS_OF_A_WARP = 16
"""Rows of one MMA instruction of a warp.  Reads, not products, limit a loop for at most this many rows."""

MOST_COLUMNS = 256
"""Most columns of one `wgmma`."""

MOST_RUN = 128
"""Most elements of the loop in one step."""

LEAST_LATE = 64
"""Fewest elements of a step if mixtures run one step later; with fewer, reading rows from shared memory for
the scores takes as long as the products."""

REGISTERS = {1: 232, 2: 232, 3: 160}
"""Number of warpgroups -> registers of a computing thread."""

REGISTERS_AT_ONCE = 240
"""Registers of a computing thread of two warpgroups whose mixtures run at the end of their step."""

OTHERS = 32
"""Registers of a thread for addresses and the state, if a step has no register tiles besides its products."""

AS_EVEN = 1.02
"""Accepted time of the slowest block with a narrower band, which is cached better, over the best time."""

MOST_DEALT = 1 << 16
"""Number of row tiles above which all bands are balanced, so that their widths are not compared."""

ITEM = 0.6
"""Overhead of a row tile, in steps of the loop."""

MOST_BAND = 64
"""Most batch items of a band: this many have enough long and short tiles to balance all multiprocessors."""

BARRIER_BYTES = 256
"""Bytes of shared memory for transaction barriers."""


LANES = 128
"""Thread instructions that a multiprocessor issues per clock."""

VALUE_INSTRUCTIONS = 16
"""Instructions per element of a kept step: a maximum, a power, a sum, and two factors."""

CACHE_SHARE = 0.7
"""Fraction of the L2 cache that the loop's operands of all batch items of a band may fill."""

CACHE_BYTES = 40e6
"""Assumed L2 cache of an unknown machine, in bytes."""

STEP_OF_THREE = 1.24
"""Time of a step with three warpgroups over two, measured without a mask at 64 columns (0.81 per row)."""

OVERHANG = 1.05
"""Greatest ratio of padded rows with three warpgroups to padded rows with two at which three are used."""


def proposals(
    form: FoldForm, extents: Mapping[Span, int], arch: Arch, processors: int = 0
) -> Iterator[Schedule]:
    """The schedules that the rules propose; none if warpgroups cannot compute the loop.

    The first has the longest step whose ring fits.  Others have steps of whole panels, for arrays that are
    contiguous along the loop.

    Args:
        form: the form.
        extents: the extent of every span.
        arch: the machine.
        processors: number of its multiprocessors, one block on each; 0: unknown, and each tile has a block.
    """
    if "wgmma" not in arch.features or next(against_form(form), None) is not None:
        return
    rows = extents[form.m]
    if not form.mixtures:
        yield from _in_parts(form, extents, arch, processors)
        return
    depth, width = (
        max(-(-max(extents[span] for span in spans) // 16) * 16, 16) for spans in (form.depths, form.columns)
    )
    run, late = _step(form, width)
    chosen = (one.part.operand for one in copied_operands(form) if one.moves and one.part.operand.indices)
    within = gcd(*(_within_row(form, one) for one in chosen))
    run = next((step for step in range(run // 16 * 16, 0, -16) if within % step == 0), 0)
    if run < 16 or depth > 256:
        return
    is_masked = bool(processors and masks_of(form))
    is_small = len(form.products) == 2 and depth <= PANEL and not _has_tiles(form)
    is_small = is_small and run * 0.75 + width / 2 <= REGISTERS[3] - OTHERS
    groups = 1 if rows <= ROWS else 2
    bands = _bands(form, extents, arch, (ROWS * groups, run), processors) if is_masked else {}
    if groups == 2 and is_small and is_masked:
        of_three = _bands(form, extents, arch, (ROWS * 3, run), processors)
        if STEP_OF_THREE * min(of_three.values()) < min(bands.values()):
            groups, bands = 3, of_three
    elif groups == 2 and is_small:
        by_two, by_three = (-(-rows // side) * side for side in (2 * ROWS, 3 * ROWS))
        groups = 3 if by_three <= OVERHANG * by_two else 2
    least = min(bands.values(), default=0)
    made = Schedule(
        wgmma(form.element, run),
        (ROWS * groups, run, depth),
        stages=2,
        staging="tma",
        roles="cooperative",
        groups=groups,
        blocks=processors,
        group_n=min((width for width, time in bands.items() if time <= AS_EVEN * least), default=0),
        registers=REGISTERS[groups] if late else REGISTERS_AT_ONCE,
        width=width,
        resident=True,
    )
    moved = [one for one in copied_operands(form) if one.moves]
    rings = (3, 2) if any(one.is_scored and one.is_mixed for one in moved) else (2,)
    endings = ENDINGS[: 1 + bool(processors)][::-1]
    found: dict[Schedule, None] = {}  # each has the longest step whose ring fits
    every = tuple({one.part.operand.name: None for one in moved})
    # Assume that no array, every array, or one array is contiguous along the loop.
    for names in ((), every, *((one,) for one in every)):
        unit = PANEL if names else 16
        for step in (step for step in range(run // unit * unit, 0, -unit) if within % step == 0):
            one = replace(made, atom=wgmma(form.element, step), tile=(ROWS * groups, step, depth))
            ways = (
                replace(one, stages=stages, epilogue=epilogue) for stages in rings for epilogue in endings
            )
            fits = [way for way in ways if shared_bytes(way, form, names) <= arch.shared_bytes]
            if fits:
                found[fits[0]] = None
                break
    yield from found


def _within_row(form: FoldForm, operand: Operand) -> int:
    """Number of the loop's elements that share one gathered row of an array; 0 if no rows are gathered.

    Every group begins at a multiple of this number.
    """
    merged = merged_rows(form.flow, operand)
    return merged and gcd(merged, 0 if form.n.groups is None else form.n.groups.unit)


def _in_parts(form: FoldForm, extents: Mapping[Span, int], arch: Arch, processors: int) -> Iterator[Schedule]:
    """The schedule of a loop without mixtures, whose scores are sums of several tiles.

    Args:
        form: the form.
        extents: the extent of every span.
        arch: the machine.
        processors: its processors; 0: unknown.
    """
    yield from _kept(form, extents, arch, processors)
    run = min(int(AT_ONCE / (most_tiles(form, late=False) / 2)) // PANEL * PANEL, MOST_COLUMNS)
    rows = extents[form.m]
    tiles = prod(extents[span] for span in form.batch) * -(-rows // (2 * ROWS))
    split = tiles < processors and rows > ROWS_OF_A_WARP and not against_parts(form)
    groups = 1 if rows <= ROWS or (tiles < processors and not split) else 2  # few rows get more blocks
    for stages in (4, 3, 2):
        made = Schedule(
            wgmma(form.element, run),
            (ROWS * groups, run, PANEL),
            stages=stages,
            staging="tma",
            roles="cooperative",
            groups=groups,
            blocks=processors,
            registers=REGISTERS[groups],
            split_k="auto" if split else 1,
        )
        if shared_bytes(made, form) <= arch.shared_bytes:
            yield from _ended(made, form, arch)
            return


def _kept(form: FoldForm, extents: Mapping[Span, int], arch: Arch, processors: int) -> Iterator[Schedule]:
    """The schedules whose blocks keep the scores of their only step, the fastest first.

    The blocks of a row run at the same time, so a row has at most as many blocks as the machine has
    multiprocessors.  The estimated time of a tile has its products and loads from L2, the first loads, the
    exchange, and the values of each element.

    Args:
        form: the form.
        extents: the extent of every span.
        arch: the machine.
        processors: number of its multiprocessors; 0: unknown.
    """
    rates, constants = arch.rates, arch.times
    if not processors or rates is None or against_kept(form):
        return
    flops, clock = rates.tensor_flops[form.element.name], rates.boards[0].clock_mhz
    most = AT_ONCE / (most_tiles(form, late=False, kept=True) / 2)
    steps = -(-max(extents[span] for span in form.depths) // PANEL)
    found = []
    for groups, run in product((2, 1), range(MOST_COLUMNS, 0, -PANEL)):
        rows, parts = ROWS * groups, -(-extents[form.n] // run)
        if run > most or parts > processors:
            continue
        tiles = prod(extents[span] for span in form.batch) * -(-extents[form.m] // rows) * parts
        step = joined(2 * rows * run * PANEL / flops, (rows + run) * PANEL * form.element.bytes / FILL_BYTES)
        values = rows * run * VALUE_INSTRUCTIONS / LANES
        fixed = (constants.arrival_us + constants.ticket_us) * clock
        made = Schedule(
            wgmma(form.element, run),
            (rows, run, PANEL),
            staging="tma",
            roles="cooperative",
            groups=groups,
            blocks=processors,
            registers=REGISTERS[groups],
            split_k="auto",
            fold=KEPT,
        )
        found.append((-(-tiles // processors) * (steps * step + values + fixed), made))
    for _, made in sorted(found, key=lambda one: one[0]):
        ways = (replace(made, stages=stages) for stages in (4, 3, 2))
        for way in [way for way in ways if shared_bytes(way, form) <= arch.shared_bytes][:1]:
            yield from _ended(way, form, arch)


def _ended(made: Schedule, form: FoldForm, arch: Arch) -> Iterator[Schedule]:
    """A schedule of a loop without mixtures: first with results staged in shared memory, if they fit."""
    staged = replace(made, epilogue=STAGED)
    if form.passing and shared_bytes(staged, form) <= arch.shared_bytes:
        yield staged
    yield made


def _step(form: FoldForm, width: int) -> tuple[int, bool]:
    """Elements of the loop in one step, and whether its mixtures run one step later.

    Args:
        form: the form.
        width: columns of the result in a tile.
    """
    sums = len(form.mixtures) * width / 2
    runs = {
        late: min(int((most - sums) / (most_tiles(form, late=late) / 2)) // 16 * 16, MOST_RUN)
        for late, most in ((True, SUMS), (False, AT_ONCE))
    }
    late = runs[True] >= LEAST_LATE or not all(one.is_plain for one in mixtures_of(form))
    return runs[late], late


MASKED = "random_at_least"
"""The function that compares random numbers; its truth values take registers."""


def _has_tiles(form: FoldForm) -> bool:
    """Whether a step needs register tiles besides its products and the values that follow from them."""
    sides = [side for one in form.scores for side in (one.a, one.b)] + [one.b for one in form.mixtures]
    copied = {id(node) for side in sides for node in walk(side)}
    found = (
        node
        for node in form.inside()
        if (isinstance(node, ArrayPart) and form.n in node.axes)
        or (isinstance(node, Map) and node.function == MASKED)
    )
    return any(id(node) not in copied for node in found)


def _bands(
    form: FoldForm, extents: Mapping[Span, int], arch: Arch, tile: tuple[int, int], blocks: int
) -> dict[int, float]:
    """Candidate widths of a band, in batch items, with the time of the slowest block, in steps of the loop.

    Widths are powers of 2, so that few kernels serve growing arrays.  For the widest band, all operands that
    its loops copy fit the cache; batch items that share operands count once.  The second band is half as
    wide.  Times assume a causal mask.

    Args:
        form: the form.
        extents: the extent of every span.
        arch: the machine.
        tile: rows of a tile, and elements of a step.
        blocks: number of blocks that run at the same time.
    """
    moved = [one for one in copied_operands(form) if one.moves]
    boards = arch.rates.boards if arch.rates else ()
    cache = CACHE_SHARE * (boards[0].l2_mbytes * 1e6 if boards else CACHE_BYTES)
    turns = prod(extents[span] for span in form.fold.turns)
    of_item = sum(prod(extents[span] for span in one.part.at if span.kind != BATCH) for one in moved)
    of_item *= turns * form.element.bytes
    shared = max(prod(extents[span] for span in form.batch if span not in moved[0].part.at), 1)
    at_once = max(int(cache // max(of_item, 1)), 1) * shared
    items = max(prod(extents[span] for span in form.batch), 1)
    ends = np.arange(1, -(-extents[form.m] // tile[0]) + 1) * tile[0]
    most = min(at_once, MOST_BAND).bit_length() - 1
    lengths = turns * -(-np.minimum(ends, extents[form.n]) // tile[1]) + ITEM
    if items * ends.size > MOST_DEALT:
        return {1 << most: items * float(lengths.sum()) / blocks}
    times = {}
    for log2 in range(max(most - 1, 0), most + 1):
        wide = -(-items // -(-items // (1 << log2)))  # bands of equal width
        times[1 << log2] = longest(lengths, items, wide, blocks)
    return times


def shared_bytes(schedule: Schedule, form: FoldForm, by_row: Collection[str] = ()) -> int:
    """Bytes of shared memory for operands of 2 bytes, if bulk copies load all arrays of one dimension.

    Args:
        schedule: the schedule.
        form: the form.
        by_row: names of the arrays that are contiguous along the rows of their tiles.
    """
    rows, wide = schedule.tile[0], in_panels(schedule.width)
    operands = copied_operands(form)
    if not form.mixtures:
        tiles = sum(schedule.tile[one.moves] for one in operands) * schedule.tile[2]
        panels = sum(panel_buffers(kind, schedule.tile[1]) for kind in panel_types(form, schedule))
        return schedule.stages * 2 * tiles + panels * schedule.tile[0] * ROW_ALIGN + BARRIER_BYTES
    held = sum(one.elements(schedule, by_row) for one in operands)
    rooms = [one for one in operands if not one.moves and in_panels(one.columns(schedule)) >= wide]
    held += rows * wide if schedule.epilogue == "overlapped" or not rooms else 0
    rows_of = (row_elements(one, schedule.tile[1]) * one.dtype.bytes for one in step_rows(form))
    return 2 * held + schedule.stages * sum(rows_of) + BARRIER_BYTES


def against_form(form: FoldForm) -> Iterator[str]:
    """Reasons why warpgroups cannot compute a loop."""
    if form.earlier:
        yield f"{len(form.folds)} loops follow each other; warpgroups compute one"
        return
    if form.fold.results:
        stored = f"rows {form.alias.name}" if form.alias else f"results along {form.n.name}"
        yield f"each step stores {stored}; warpgroups store after the loop"
        return
    if form.repeats:
        yield f"a step repeats a computation for each {form.repeats[0].turns[0].name}"
    if not form.scores or (len(form.scores) > 1 and not form.mixtures):
        counts = f"{len(form.scores)} and {len(form.mixtures)}"
        yield f"a step has {counts} products; warpgroups take one or more of each, or one inside of it alone"
        return
    if form.columns and not form.mixtures:
        yield f"results have the columns {form.columns[0].name}, and a step has no product with these columns"
    if not form.mixtures and (form.fold.turns or form.m.groups is not None or form.n.groups is not None):
        yield "the loop has turns or groups, and a step has no product along it"
    if form.passing and form.mixtures:
        yield f"{form.passing[0].operand.name} is stored along {form.n.name}, which takes a second pass"
    if form.element.name not in ("f16", "bf16") or form.total.name != "f32":
        yield f"the products are of {form.element}; warpgroups multiply f16 and bf16"
    sides = [side for one in form.scores for side in (one.a, one.b)] + [one.b for one in form.mixtures]
    for side in {id(side): side for side in sides}.values():
        part, _ = transposed(side)
        if not isinstance(part, ArrayPart) or part.dtype != form.element:
            yield "an operand is computed, and bulk copies decode nothing"
        elif part.operand.transforms and (_within_row(form, part.operand) or 1) % PANEL:
            yield f"{part.operand.name} is a view"
        elif sum(span.kind != BATCH for span in part.at) != 2:
            yield f"{part.operand.name} is no matrix"
    mixtures = mixtures_of(form)
    inside = [node for one in mixtures for node in (*walk(one.rest), *walk(one.product.a))]
    others = [step for at, step in enumerate(form.fold.steps) if at not in {one.at for one in mixtures}]
    inside += [node for step in others for node in walk(step)]
    if len(mixtures) != len(form.mixtures) or any(node in form.mixtures for node in inside):
        yield "the product is not added to a carried value"
    cells = [one.cell for one in mixtures]
    if any(node in cells for one in mixtures for node in walk(one.product.a)):
        yield "a sum of products is multiplied again"


def against_parts(form: FoldForm) -> str:
    """The reason why warpgroups cannot split a loop into parts; empty if they can."""
    if form.mixtures:
        return "schedules without bulk copies split loops with products along them"
    if form.passing:
        return f"{form.passing[0].operand.name} is stored along {form.n.name}"
    merge = StateMerge(form)
    return merge.against or ("the author states a merge" if merge.is_stated else "")


def not_taken(schedule: Schedule, taken: Sequence[str], why: str, node: Node) -> Reasons:
    """A reason for each field that a schedule sets although it does not apply.

    Args:
        schedule: the schedule.
        taken: names of the fields that apply.
        why: end of the sentence about a field and its value.
        node: the value to point at.
    """
    for one in fields(schedule):
        if one.name not in taken and getattr(schedule, one.name) != one.default:
            default = repr(one.default).replace("'", '"')
            text = f"{one.name}={schedule.spelled(one.name)} {why}"
            yield one.name, text, f"{one.name}={default}", node


def reasons(schedule: Schedule, form: FoldForm, specs: Mapping[str, TensorSpec], arch: Arch) -> Reasons:
    """Every reason to refuse a schedule of warpgroups."""
    step = form.fold.steps[0]
    if "wgmma" not in arch.features and arch.features:
        yield "staging", f'staging="tma"; {arch.name} has no warpgroups', 'staging="cp_async"', step
        return
    unfit = [*against_form(form)]
    for text in unfit:
        yield "staging", f'staging="tma"; {text}', 'staging="cp_async"', step
    yield from not_taken(schedule, (*FIELDS, "split_k"), "with warpgroups", step)
    if schedule.fold == KEPT:
        if why := against_kept(form):
            yield "fold", f'fold="kept"; {why}', 'fold="online"', step
        if schedule.split_k not in (1, "auto"):
            text = f'split_k={schedule.split_k} with fold="kept"; a row has a block for each step'
            yield "split_k", text, 'split_k="auto"', step
        elif schedule.is_split and not schedule.blocks:
            text = 'split_k="auto" with blocks=0; the blocks of a row run at the same time'
            yield "blocks", text, "blocks=132, or as many as the machine has multiprocessors", step
    elif schedule.is_split and (why := against_parts(form)):
        text = f"split_k={schedule.spelled('split_k')} with warpgroups; {why}"
        yield "split_k", text, "split_k=1", step
    elif schedule.is_split and (schedule.is_streamed or not schedule.blocks):
        text = f"split_k={schedule.spelled('split_k')} with blocks={schedule.blocks}; each has parts of rows"
        yield "split_k", text, 'split_k="auto" and blocks=132, or as many as the machine runs', step
    if schedule.fold == TWO_PASSES and not form.earlier:
        text = f'fold="two passes"; everything along {form.n.name} is computed by one loop'
        yield "fold", text, 'fold="online"', step
    in_parts = ("direct", STAGED)[: 1 + bool(form.passing)]
    endings, kept = (ENDINGS, True) if form.mixtures or unfit else (in_parts, False)
    for field, wanted in (("roles", ("cooperative",)), ("epilogue", endings), ("resident", (kept,))):
        if getattr(schedule, field) not in wanted:
            legal = " or ".join(f'"{one}"' if isinstance(one, str) else repr(one) for one in wanted)
            yield field, f"{field}={schedule.spelled(field)} with warpgroups", f"{field}={legal}", step
    if schedule.group_n and not schedule.blocks:
        text = f"group_n={schedule.group_n} with blocks=0; bands order the tiles of a persistent grid"
        yield "group_n", text, "group_n=0, or blocks=132", step
    if schedule.registers and role_registers(schedule.groups) - schedule.groups * schedule.registers < LEAST:
        most = (role_registers(schedule.groups) - LEAST) // schedule.groups // 8 * 8
        text = f"{schedule.groups} groups with {schedule.registers} registers for each thread"
        yield "registers", text, f"registers={most}", step
    if unfit:
        return
    rows, run, depth = schedule.tile
    if schedule.atom != wgmma(form.element, schedule.atom.shape[1]) or schedule.atom.shape[1] != run:
        yield "atom", f"{schedule.atom} in steps of {run}", f'tw.atoms.wgmma("{form.element}", {run})', step
    width = schedule.width
    if not form.mixtures:
        if rows != ROWS * schedule.groups or run % PANEL or not 0 < run <= MOST_COLUMNS or depth != PANEL:
            near = (ROWS * schedule.groups, min(-(-run // PANEL) * PANEL, MOST_COLUMNS), PANEL)
            text = f"tile={schedule.tile} for {schedule.groups} groups of {ROWS} rows, and panels of {PANEL}"
            yield "tile", text, f"tile={near}", step
        if width:
            yield "width", f"width={width}; no product has the columns of a result", "width=0", step
    elif rows != ROWS * schedule.groups or run % 16 or depth % 16 or not 0 < width <= 256 or width % 16:
        near = (ROWS * schedule.groups, max(-(-run // 16) * 16, 16), max(-(-depth // 16) * 16, 16))
        text = f"tile={schedule.tile} and width={width} for {schedule.groups} groups of {ROWS} rows"
        yield "tile", text, f"tile={near}, and a width of 16 to 256, a multiple of 16", step
    used = registers_of(form, schedule, late=is_late(form, schedule))
    most = (schedule.registers or role_registers(schedule.groups) // (schedule.groups + 1)) - LEAST
    if used > most:
        text = f"{used} registers of a thread for scores, left operands and sums; it has {most} for them"
        yield "tile", text, f"tile={(rows, max(run // 32 * 16, 16), depth)}, or a smaller width", step
    by_row = set()
    for one in copied_operands(form):
        part = one.part
        name, spec = part.operand.name, specs[part.operand.name]
        for why, _ in against_array(name, spec):
            yield "staging", why, 'staging="cp_async"', part
        if part.operand.transforms:
            matrix = tuple(span for span in part.at if span.kind != BATCH)
            box = (run if matrix[0] == form.n else rows, PANEL)
            for why, _ in against_tiles(form.flow, part.operand, part.at, matrix, specs, box, stored=False):
                yield "staging", f"steps of {run}; {why}", 'staging="cp_async"', part
            if (unit := _within_row(form, part.operand)) % run:
                why = f"steps of {run} do not divide the {unit} neighbours in a chosen row of {name}"
                yield "tile", why, f"tile={(rows, gcd(unit, run), depth)}", part
            spec = spec_of(form.flow, part.operand, specs)
        along = part.at[spec.rank - 1 if spec.unit_dim is None else spec.unit_dim]
        by_row |= {name} if along == form.n else set()
        if along == form.m or along.kind == BATCH:
            why = f"{name} is contiguous along dimension {spec.unit_dim}, not along its columns"
            yield "staging", why, 'staging="cp_async"', part
        elif along == form.n and run % PANEL:
            why = f"steps of {run}; {name} is contiguous along its rows, and bulk copies move {PANEL} of them"
            whole = -(-run // PANEL) * PANEL
            yield "tile", why, f"tile={(rows, whole, depth)}, and an atom of {whole} columns", part
    if (used := shared_bytes(schedule, form, by_row)) > arch.shared_bytes > 0:
        why = f"{used} bytes of shared memory; {arch.name} has {arch.shared_bytes}"
        yield "tile", why, "fewer stages", step
    for store in form.flow.stores:
        spans = [span for span in store.at if span.kind != BATCH]
        is_bulk = spans[:1] == [form.m] and len(spans) == 2 and spans[1] in form.columns
        name = store.operand.name
        if is_bulk and store.operand.dtype == form.element and form.m.groups is None:
            for why in against_store(name, specs[name]):
                yield "epilogue", why, 'staging="cp_async"', store
        if schedule.epilogue == STAGED and store in form.passing and not form.mixtures:
            unfit = [*against_store(name, specs[name])]
            unfit += [f"{name} is a view"] if store.operand.transforms else []
            if specs[name].unit_dim not in (None, len(store.at) - 1) or store.at[-1] != form.n:
                unfit.append(f"{name} is not contiguous along {form.n.name}")
            for why in unfit:
                yield "epilogue", why, 'epilogue="direct"', store
