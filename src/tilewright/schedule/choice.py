"""The choice of a schedule: the proposals of a target's rules in order, with the reasons against each.

This module adapts the proposals of a target to grouped rows, scales, reductions, lists of arrays, and to a
request to split K.  The first legal proposal is the choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import chain
from math import gcd, lcm
from typing import TypeAlias

from tilewright.errors import LaunchError, Violation
from tilewright.schedule.form import added_arrivals
from tilewright.schedule.inner import inner_unit
from tilewright.schedule.legality import reasons, with_fallback
from tilewright.schedule.load import Load, resident_blocks
from tilewright.schedule.machine_rules import begins_anywhere
from tilewright.schedule.question import BAND, Candidate, Question, Splitting
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.sides import width
from tilewright.schedule.skipping import is_masked, square
from tilewright.schedule.splitting import legal_way, runs_at_once, schedules_of, split_ways
from tilewright.targets.atoms import wgmma
from tilewright.targets.target import CPU, CUDA, HIP, REFERENCE, TargetParts, owner

Chooser = Callable[[Question], Iterator[Candidate]]
"""A function that proposes schedules for a dataflow kernel on one target; the first is the choice."""


def _reference() -> Chooser:
    from tilewright.schedule.proposals_cpu import for_reference

    return for_reference


def _cpu() -> Chooser:
    from tilewright.schedule.proposals_cpu import candidates

    return candidates


def _cuda() -> Chooser:
    from tilewright.schedule.proposals_cuda import candidates

    return candidates


def _hip() -> Chooser:
    from tilewright.schedule.proposals_hip import candidates

    return candidates


CHOOSERS: TargetParts[Chooser] = TargetParts(
    {REFERENCE.name: _reference, CPU.name: _cpu, CUDA.name: _cuda, HIP.name: _hip}
)
"""The chooser of each target."""

MOST_STAGES = 16
"""Most stages of a ring whose tiles are made shallower along K, to match the groups of its scales."""

MASKED_TILES = 8
"""Least number of tiles along an extent on a CPU if masks leave out tiles.

Tiles that a diagonal cuts are computed whole; with 8 tiles this adds an eighth of a triangle.
"""

SCALED_BAND = 16
"""Rows of tiles that follow each other if sums have scales: on an H200 1 to 5 per cent faster than 8."""


def choose(question: Question) -> Schedule:
    """Return the first proposed schedule for a problem on a machine."""
    return next(proposals(question)).schedule


def first_legal(question: Question) -> Schedule | None:
    """Return the first legal schedule among the proposals, or None.

    If bulk copies cannot carry an array, a proposal runs with its fallback engine, which must be legal.
    """
    asked = question.form, question.classes, question.arch
    found = (with_fallback(one.schedule, *asked)[0] for one in proposals(question))
    return next((schedule for schedule in found if not reasons(schedule, *asked)), None)


def candidates(question: Question) -> tuple[Candidate, ...]:
    """The proposals for a problem in the order of the rules, each once; the choice is the first.

    Args:
        question: the problem, on a machine.

    Returns:
        Each proposal as it would run: with the fallback engine if bulk copies cannot carry an array.
        If a proposal is not legal, its ``against`` has every reason.
    """
    asked = question.form, question.classes, question.arch
    found: dict[object, Candidate] = {}
    for proposed in proposals(question):
        schedule, _ = with_fallback(proposed.schedule, *asked)
        rule = proposed.rule
        if schedule != proposed.schedule:
            rule += f", with staging {schedule.staging}, because bulk copies cannot copy all arrays"
        broken = [f"{reason.message}; {reason.nearest}" for reason in reasons(schedule, *asked)]
        one = replace(proposed, schedule=schedule, rule=rule, against=(*proposed.against, *broken))
        found.setdefault(schedule, one)
    return tuple(found.values())


def proposals(question: Question) -> Iterator[Candidate]:
    """The proposals of the rules of the question's target; the first is the choice.

    Proposals are made lazily, and their legality is not checked yet.
    """
    if question.form.inner:
        main = question.of_longest_loop
        main = main.transposed if question.form.inner[0].side else main
        small = _changed(proposals(main), [partial(_with_inner, question, spills=False)])
        if (first := next(small)).schedule.width:
            return chain((first,), small)
        return _changed(proposals(main), [partial(_with_inner, question, spills=True)])
    found = CHOOSERS[owner(question.arch.name).name](question)
    changes: list[Callable[[Schedule], Schedule | None]] = []
    if question.across:  # each tile reduces its part of the rows or columns
        changes.append(lambda made: replace(made, across=True, cluster=(1, 1)))
    if question.form.scaled_every:
        changes.append(partial(_scaled, question))
    if question.form.flow.grouped is not None:
        changes.append(partial(_grouped, question))
    if question.form.bounded is not None:
        changes.append(partial(_bounded, question))
    if question.form.mirrored:
        changes.append(partial(_mirrored, question))
    elif is_masked(question.form):
        changes.append(partial(_masked, question))
    if question.form.flow.moved:
        changes.append(partial(_in_shards, question))
    if question.form.row_sums:
        changes.append(partial(_with_row_sums, question))
    if len(question.form.loops) > 1:
        changes.append(for_several_loops)
    if len(question.form.stores) > 1 and not question.form.mirrored:
        changes.append(partial(_with_several_results, question))
    return _changed(found, changes) if changes else found


def _changed(
    found: Iterator[Candidate], changes: Sequence[Callable[[Schedule], Schedule | None]]
) -> Iterator[Candidate]:
    """The candidates with changed schedules, each schedule once; a change may leave a candidate out.

    If all are left out, the first candidate is kept as it is, so that the rules of legality report reasons.
    """
    seen: set[Schedule] = set()
    first: Candidate | None = None
    for one in found:
        first = first or one
        made: Schedule | None = one.schedule
        for change in changes:
            made = change(made) if made is not None else None
        if made is not None and made not in seen:
            seen.add(made)
            yield replace(one, schedule=made)
    if first is not None and not seen:
        yield first


def _grouped(question: Question, schedule: Schedule) -> Schedule | None:
    """A schedule for grouped rows, or None. Group sizes are known only on the device."""
    made = replace(schedule, balanced=False, cluster=(1, 1), batches=1)
    rows = [one for one in question.form.factors if one.row == question.form.flow.grouped]
    if made.copies_in_background and "mn" in map(question.major, rows):  # rows of a group begin anywhere
        made = replace(made, staging="registers", stages=1)
    return None if made.roles == "ping-pong" else made


def _bounded(question: Question, schedule: Schedule) -> Schedule | None:
    """A schedule for groups along K, or None. Each block takes whole groups."""
    if schedule.along_k > 1:
        return None
    made = replace(schedule, split_k=1, batches=1, whole=schedule.whole.replace("k", ""))
    span, factors = question.form.bounded, question.form.factors
    assert span is not None, "a loop with bounds in memory"
    along = [one for one in factors if question.major(one) != "mn" and begins_anywhere(span, one.dtype)]
    return replace(made, staging="registers", stages=1) if along and made.copies_in_background else made


def for_several_loops(made: Schedule) -> Schedule | None:
    """A schedule for loops that follow each other; None for a stream of multiply-adds.

    The stream also holds its place in each loop in registers, so that sums spill.
    """
    return None if made.is_streamed and made.atom.instruction == "fma" else made


def _masked(question: Question, made: Schedule) -> Schedule:
    """A schedule whose tiles are whole, and small enough for masks to leave out some of them."""
    if made.is_streamed:
        return replace(made, split_k=1)
    if owner(question.arch.name) is not CPU:
        return made
    m, n, _ = question.shape
    units = [shape * warps for shape, warps in zip(made.atom.shape, made.warps, strict=False)]
    sides = zip(made.tile, (n, m) if made.swap_ab else (m, n), units, strict=False)
    rows, columns = (
        max(min(tile, -(-extent // (MASKED_TILES * unit)) * unit), unit) for tile, extent, unit in sides
    )
    return replace(made, tile=(rows, columns, made.tile[2]))


def _mirrored(question: Question, made: Schedule) -> Schedule | None:
    """A legal schedule whose tile extents divide each other; None if its instruction needs larger tiles."""
    whole = replace(made, split_k=1, balanced=False, batches=1)
    is_cpu = owner(question.arch.name) is CPU
    if is_cpu or not square(made.tile[:2]):
        units = [shape * warps for shape, warps in zip(made.atom.shape, made.warps, strict=False)]
        unit, most = lcm(*units), -(-question.shape[0] // MASKED_TILES)
        side = -(-min(most, min(made.tile[:2])) // unit) * unit
        if side > max(made.tile[:2]):
            return None
        whole = replace(whole, tile=(side, side, made.tile[2]))
    if is_cpu:
        return whole
    asked = question.form, question.specs, question.arch
    # The buffers of a result that is stored twice may leave room for fewer stages.
    fewer = (replace(whole, stages=stages) for stages in range(whole.stages, max(whole.stages - 3, 0), -1))
    return next((one for one in fewer if not reasons(with_fallback(one, *asked)[0], *asked)), None)


def _with_several_results(question: Question, made: Schedule) -> Schedule | None:
    """A legal schedule whose buffers for all results fit; None if another rule refuses it.

    It reduces the buffers of each result before the stages: a group waits for a buffer once for each slice
    of a tile, but for a stage in each step.
    """
    asked = question.form, question.classes, question.arch
    tried = [replace(made, buffers=count) for count in range(made.buffers, 0, -1)] or [made]
    tried += [replace(tried[-1], stages=count) for count in range(made.stages - 1, 1, -1)]
    for one in tried:
        broken = reasons(with_fallback(one, *asked)[0], *asked)
        if not broken:
            return one
        if any(reason.rule not in ("stages", "tile") for reason in broken):
            return None
    return None


def _in_shards(question: Question, schedule: Schedule) -> Schedule | None:
    """A schedule whose bands of tiles follow the shards of an array, or None."""
    if schedule.alternates or schedule.along_k > 1:
        return None
    form, made = question.form, replace(schedule, balanced=False, batches=1)
    m, n = (form.n, form.m) if made.swap_ab else (form.m, form.n)
    band = made.group_m or made.group_n
    if form.flow.departure is not None:  # threads store whole tiles
        made = replace(made, epilogue="direct", split_k=1, reduction="workspace", across=False)
    if added_arrivals(form):  # the warps that multiply wait
        kept = made.epilogue_class.without_helpers or made.epilogue
        made = replace(made, epilogue=kept, split_k=1, reduction="workspace", across=False)
    if form.flow.round == m:
        return replace(made, group_m=band, group_n=0)
    return replace(made, group_m=0, group_n=band) if form.flow.round == n else made


def _with_row_sums(question: Question, schedule: Schedule) -> Schedule | None:
    """A schedule that adds up rows of operands, or None. A block has all of K."""
    made = replace(schedule, split_k=1, reduction="workspace") if schedule.is_split else schedule
    made = replace(made, groups=1) if made.along_k > 1 else made
    asked = question.form, question.classes, question.arch
    # Operands that are multiplied from registers may be held by threads with other rows.
    through_memory = replace(made, staging="registers", stages=1)
    legal = (
        one
        for one in (made, *([through_memory] if made.staging == "fragments" else []))
        if not reasons(with_fallback(one, *asked)[0], *asked)
    )
    return next(legal, None)


MOST_INNER_SUMS = {True: 48, False: 160}
"""Most registers of a thread for all sums; the key says whether the instruction is ``fma``.

With 192, ptxas of CUDA 13.0 spilled 52 registers (128 x 128 tiles of bf16 on sm_80, 64 columns of an inner
product), and with 72 multiply-adds 261 (128 x 128 tiles of f32, 16 columns).
"""


def _with_inner(question: Question, schedule: Schedule, *, spills: bool) -> Schedule | None:
    """A legal schedule with inner products, or None: with fewer stages, if their tiles need the memory.

    Args:
        question: the problem.
        schedule: a schedule of the other products, or of the transposed ones if sums are operand B.
        spills: whether a thread may hold more sums than `MOST_INNER_SUMS`, if no tile is small enough.
    """
    if schedule.swap_ab:
        return None
    made = replace(schedule, split_k=1, reduction="workspace") if schedule.is_split else schedule
    made = replace(made, groups=1) if made.along_k > 1 else made
    made = replace(
        made, whole=made.whole.replace("k", ""), promote=0, bypass="", cluster=(made.cluster[0], 1)
    )
    made = replace(made, swap_ab=any(one.side for one in question.form.inner))
    asked = question.form, question.classes, question.arch
    case, unit = ScheduleOnMachine(made, *asked), inner_unit(made)
    inside = case.form.m, case.form.n
    rows = [one.width for one in case.sides if one.factor.row not in inside and one.along_rows]
    unit = lcm(unit, *(rows if case.is_swizzled else ()))
    made = replace(made, width=max(-(-question.inner // unit), 1) * unit)
    depth = made.block_k
    if case.is_swizzled and made.width > depth:
        made = replace(made, tile=(*made.tile[:2], -(-made.width // depth) * depth))
    # Fields that distribute the copies of the proposed tile may not suit this one: also try their defaults.
    plain = replace(made, k1=(0, 0), extra_rows=(0, 0), dealt=((0, 0), (0, 0)), turned="")
    tried = [*(replace(made, stages=stages) for stages in range(made.stages, 0, -1)), plain]
    if case.staging.by_parts:
        tried = [replace(plain, staging="cp_async"), replace(plain, staging="registers", stages=1)]
    for one in tried:
        found, _ = with_fallback(one, *asked)
        sums = 0 if found.atom.asynchronous else ScheduleOnMachine(found, *asked).accumulators
        most = MOST_INNER_SUMS[found.atom.instruction == "fma"]
        if not reasons(found, *asked) and (sums <= most or spills or not case.target.warps):
            return one
    return None


def _scaled(question: Question, made: Schedule) -> Schedule | None:
    """A legal schedule whose tiles are at most as deep as one scale reaches along K, or None."""
    every, asked = question.form.scaled_every, (question.form, question.specs, question.arch)
    depth = gcd(made.block_k, every)
    if depth < made.block_k:  # a ring of the same size
        stages = made.stages if made.stages == 1 else made.stages * made.block_k // depth
        made = replace(made, tile=(*made.tile[:2], depth), stages=min(stages, MOST_STAGES))
    if not made.promote or every // depth % made.promote:
        made = replace(made, promote=every // depth)
    if made.group_m:
        made = replace(made, group_m=SCALED_BAND)
    # Buffers of scales may leave room for one stage less.
    fewer = replace(made, stages=max(made.stages - 1, 1)) if made.by_bulk else made
    legal = (tried for tried in (made, fewer) if not reasons(with_fallback(tried, *asked)[0], *asked))
    return next(legal, None)


# ---------------------------------------------------------------- lists of arrays

LISTED_BLOCKS = 2
"""Most blocks on each processor in a grid for lists of arrays."""

LISTED_ROWS, LISTED_COLUMNS, LISTED_STAGES = 64, 128, 4
"""Rows of a warpgroup, columns of a tile, and stages, if threads copy lists; measured on an H200."""


def schedule_of_lists(question: Question) -> Schedule:
    """The first legal schedule for products of lists; if all are refused, the first proposal."""
    first: Schedule | None = None
    for one in list_proposals(question):
        if not one.against and not reasons(one.schedule, question.form, question.specs, question.arch):
            return one.schedule
        first = first or one.schedule
    assert first is not None, "every target has proposals"
    return first


def list_proposals(question: Question) -> Iterator[Candidate]:
    """The proposals for products of lists, computed by a persistent grid.

    They are derived from the proposals for a batch.  Bulk copies load the arrays if all of them can have
    tensor maps.  If not, threads copy: for the same asynchronous multiply if rows begin at multiples of 4
    bytes, else for ``mma.sync`` or multiply-adds.

    Args:
        question: the problem, of a form of lists; its extents are those of a typical product.
    """
    by_bulk: Candidate | None = None
    later: list[Candidate] = []
    arch = question.arch
    for one in proposals(replace(question, form=replace(question.form, lists=False))):
        made = replace(one.schedule, balanced=False, cluster=(1, 1), batches=1)
        if made.split_k != 1 or (made.atom.asynchronous and not made.by_bulk):
            continue  # the form of the asynchronous multiply follows below
        if made.by_bulk:
            by_bulk = by_bulk or one
            taken = ScheduleOnMachine(made, question.form, question.specs, arch).shared_bytes
            each = resident_blocks(arch, taken, most=LISTED_BLOCKS, reserved=0)
            found = replace(one, schedule=replace(made, blocks=question.processors * each))
            if made.blocks or question.shape[0] <= LISTED_ROWS:
                yield found
            else:  # not persistent by itself: later
                later.append(found)
            continue
        if by_bulk is not None:
            yield from later
            case = ScheduleOnMachine(by_bulk.schedule, question.form, question.specs, arch)
            if min(width(side.spec) for side in case.sides) >= min(arch.async_bytes, default=0):
                groups = 1 if question.shape[0] <= LISTED_ROWS else 2
                copied = Schedule(
                    wgmma(question.dtype, LISTED_COLUMNS),
                    (LISTED_ROWS * groups, LISTED_COLUMNS, by_bulk.schedule.block_k),
                    (groups, 1),
                    stages=LISTED_STAGES,
                    staging="cp_async",
                    blocks=question.processors,
                    group_m=BAND,
                    promote=by_bulk.schedule.promote,
                )
                rule = "wgmma, with copies by threads in the background"
                yield replace(by_bulk, schedule=copied, rule=rule)
            by_bulk = None
        yield replace(one, schedule=replace(made, blocks=LISTED_BLOCKS * question.processors))


# ---------------------------------------------------------------- a request to split K

Turn: TypeAlias = tuple[tuple[bool, bool, bool], float, int, Candidate, Candidate]
"""A queued candidate: doubts about its estimate, the estimate, its number, the candidate that does not split
K, and the candidate that does."""

INSTRUCTIONS = ("wgmma", "mma", "mfma", "wmma", "fma", "dots")
"""Instructions that multiply, the fastest for any number of rows first."""


def split_candidates(question: Question) -> Iterator[Candidate]:
    """The legal candidates that split K as requested, in the order of the estimates.

    A candidate is checked when its turn comes.  If the check shortens its ring, it is queued again.

    Args:
        question: the problem, with the request to split K.

    Raises:
        LaunchError: no proposal of the rules can split K as requested.
    """
    wanted = question.splitting
    assert wanted is not None
    waiting: list[Turn] = []

    def wait(plain: Candidate, way: Candidate, number: int) -> None:
        """Queue a candidate; candidates with less reliable estimates come later."""
        schedule = way.schedule
        # The model was not fitted to copies by threads, with or without blocks that share a tile's sums.
        is_copied = not schedule.by_bulk
        is_guessed = schedule.reduction_class.shares_tile and (is_copied or question.arch.rates is None)
        doubts = Load(question, schedule).spills, is_copied, is_guessed
        heappush(waiting, (doubts, way.estimate, number, plain, way))

    def legal() -> Iterator[Candidate]:
        judged: set[int] = set()
        while waiting:
            *_, number, plain, way = heappop(waiting)
            made = way if number in judged else legal_way(question, plain, way)
            if made is way:
                yield way
            elif made is not None:
                judged.add(number)
                wait(plain, made, number)

    plain = (one for one in candidates(replace(question, splitting=None)) if one.schedule.split_k == 1)
    ways = ((one, way) for one in plain for way in split_ways(question, one, wanted))
    for number, (one, way) in enumerate(ways):
        wait(one, way, number)
    found = legal()
    first = next(found, None)
    if first is None:
        raise _refusal(question, wanted)
    if wanted.batch_invariant:
        yield from _in_one_order(question, [first, *found])
    else:
        yield first
        yield from found


def _in_one_order(question: Question, found: list[Candidate]) -> list[Candidate]:
    """The candidates that share the best instruction and order of additions, whatever the number of rows.

    Threads of a GPU keep their sums from step to step.  CPUs and the reference add up the products of
    a step before they add the steps, so there the depth of a step is part of the order, and so is whether
    complex operands change places.
    """

    def order(one: Candidate) -> tuple[int, int, int, int, bool]:
        atom, period = one.schedule.atom, one.schedule.promote * one.schedule.block_k
        step = 0 if question.arch.registers else min(one.schedule.block_k, question.shape[2])
        is_turned = one.schedule.swap_ab and not (question.form.is_single or question.arch.registers)
        number = INSTRUCTIONS.index(atom.instruction.partition(".")[0])
        return number, -atom.shape[2], -period, -step, is_turned

    best = min(map(order, found), default=None)
    return [one for one in found if order(one) == best]


# ---------------------------------------------------------------- the error if K cannot be split

OF_PARTS = ("reduction", "split_k")
"""Fields that a request to split K names: a broken rule of one of them is about the request."""

WORKSPACE = 'reduction="workspace"'
"""Nearest choice that every machine has, for any number of parts."""

WAYS_OUT = ("split_k=1", WORKSPACE)
"""Nearest choices of broken rules that answer the request, the best first."""

ANOTHER = "split_k=None, or a schedule of your own"
"""Nearest choice if nothing better is known."""


def _refusal(question: Question, wanted: Splitting) -> LaunchError:
    """The error with the reason why no proposal of the rules splits K as requested."""
    named = {"split_k": wanted.split_k, "reduction": wanted.reduction}
    given = [f"{name}={value!r}" for name, value in named.items() if value is not None]
    given.append(f"batch_invariant={wanted.batch_invariant}")
    said = f"kernel {question.form.flow.name}: no proposed schedule splits K with {', '.join(given)}"
    asked = question.form, question.classes, question.arch
    known = candidates(replace(question, splitting=None))
    tried = [
        (one, reasons(one, *asked))
        for plain in known
        if not plain.against and plain.schedule.split_k == 1
        for one in schedules_of(question, plain.schedule, wanted)
    ]
    waiting = [load for one, broken in tried if not broken and not runs_at_once(load := Load(question, one))]
    found = [reason for _, broken in tried for reason in broken]
    if waiting:  # the only fault is that not all blocks run at once
        least = min(waiting, key=lambda one: one.tiles * one.parts)
        at_once, tiles, parts = question.processors, least.tiles, least.parts
        why = (
            f"its blocks wait for each other, so all must run at the same time; {tiles} "
            f"tile{'s' if tiles != 1 else ''} in {parts} parts need at least {tiles * parts} blocks, "
            f"and {at_once} can run at the same time, one on each multiprocessor"
        )
        most = max(at_once // one.tiles for one in waiting)
        nearest = f"split_k={most}, or {WORKSPACE}" if most > 1 else WORKSPACE
    elif found:
        counts = Counter(reason.rule for reason in found)

        def rank(one: Violation) -> tuple[bool, int, int]:
            """Sort key: rules about the request first, then rules with a way out, then frequent ones."""
            way_out = WAYS_OUT.index(one.nearest) if one.nearest in WAYS_OUT else len(WAYS_OUT)
            return one.rule not in OF_PARTS, way_out, -counts[one.rule]

        first = min(found, key=rank)
        why, nearest = first.message, first.nearest or ANOTHER
    else:
        why = next((why for one in known for why in one.against), "")
        why, nearest = why or "its blocks wait for each other, or form clusters", ANOTHER
    return LaunchError(f"{said}: {why}", nearest)
