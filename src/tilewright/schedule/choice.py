"""The choice of a schedule: what the rules of a target propose, in order, with the reasons against each.

The proposals of a target are fitted to grouped rows, to scales, to reductions, to lists of arrays, and to a
request to split K.  The first legal one is the choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import gcd
from typing import TypeAlias

from tilewright.errors import LaunchError, Violation
from tilewright.schedule.fallback import width, with_fallback
from tilewright.schedule.legality import reasons
from tilewright.schedule.load import Load, resident_blocks
from tilewright.schedule.question import BAND, Candidate, Question, Splitting
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.splitting import legal_way, runs_at_once, schedules_of, split_ways
from tilewright.targets.atoms import wgmma
from tilewright.targets.target import CPU, CUDA, HIP, REFERENCE, TargetParts, owner

Chooser = Callable[[Question], Iterator[Candidate]]
"""Proposes schedules for a dataflow kernel on one target; the first is the choice."""


def _reference() -> Chooser:
    from tilewright.schedule.proposals_reference import candidates

    return candidates


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
"""Stages of a ring whose tiles are less deep than proposed, at most."""

SCALED_BAND = 16
"""Rows of tiles that follow each other if sums have scales: on an H200 1 to 5 per cent faster than 8."""


def choose(question: Question) -> Schedule:
    """A good schedule for a problem on a machine."""
    return next(proposals(question)).schedule


def candidates(question: Question) -> tuple[Candidate, ...]:
    """The proposals for a problem in the order of the rules, each once; the choice is the first.

    Args:
        question: the problem, on a machine.

    Returns:
        Each proposal as it would run: with the fallback engine if bulk copies cannot carry an array.
        ``against`` of one that is not legal has every reason.
    """
    asked = question.form, question.classes, question.arch
    found: dict[object, Candidate] = {}
    for proposed in proposals(question):
        schedule, _ = with_fallback(proposed.schedule, *asked)
        rule = proposed.rule
        if schedule != proposed.schedule:
            rule += f", with staging {schedule.staging}, as bulk copies cannot carry an array"
        broken = [f"{reason.message}; {reason.nearest}" for reason in reasons(schedule, *asked)]
        one = replace(proposed, schedule=schedule, rule=rule, against=(*proposed.against, *broken))
        found.setdefault(schedule, one)
    return tuple(found.values())


def proposals(question: Question) -> Iterator[Candidate]:
    """The proposals of the rules of the question's target; the first is the choice.

    They are made when they are asked for, and their legality is not checked yet.
    """
    found = CHOOSERS[owner(question.arch.name).name](question)
    if question.across:
        found = _once(_across(found))
    if question.form.scaled_every:
        found = _once(_scaled(question, found))
    return found if question.form.flow.grouped is None else _once(_grouped(question, found))


def _once(found: Iterator[Candidate]) -> Iterator[Candidate]:
    """The candidates with different schedules."""
    seen: set[Schedule] = set()
    for one in found:
        if one.schedule not in seen:
            seen.add(one.schedule)
            yield one


def _across(found: Iterator[Candidate]) -> Iterator[Candidate]:
    """Candidate schedules whose tiles reduce a part of the rows or columns each."""
    return (replace(one, schedule=replace(one.schedule, across=True, cluster=(1, 1))) for one in found)


def _grouped(question: Question, found: Iterator[Candidate]) -> Iterator[Candidate]:
    """Candidate schedules for grouped rows. Group sizes are known only on the device."""
    begins_anywhere = question.majors[0] == "mn"
    for one in found:
        made = replace(one.schedule, balanced=False, cluster=(1, 1), batches=1)
        if begins_anywhere and made.staging in ("cp_async", "fragments"):
            made = replace(made, staging="registers", stages=1)
        if made.roles != "ping-pong":
            yield replace(one, schedule=made)


def _scaled(question: Question, found: Iterator[Candidate]) -> Iterator[Candidate]:
    """Candidate schedules for sums that are multiplied by scales: as deep as the scales allow."""
    every, asked = question.form.scaled_every, (question.form, question.specs, question.arch)
    for one in found:
        made = one.schedule
        depth = gcd(made.block_k, every)
        if depth < made.block_k:  # a ring of as many bytes
            stages = made.stages if made.stages == 1 else made.stages * made.block_k // depth
            made = replace(made, tile=(*made.tile[:2], depth), stages=min(stages, MOST_STAGES))
        if not made.promote or every // depth % made.promote:
            made = replace(made, promote=every // depth)
        if made.group_m:
            made = replace(made, group_m=SCALED_BAND)
        # Scales that come with their operand may leave room for one stage less.
        fewer = replace(made, stages=max(made.stages - 1, 1)) if made.staging == "tma" else made
        legal = (tried for tried in (made, fewer) if not reasons(with_fallback(tried, *asked)[0], *asked))
        if (fitting := next(legal, None)) is not None:
            yield replace(one, schedule=fitting)


# ---------------------------------------------------------------- lists of arrays

LISTED_BLOCKS = 2
"""Blocks for each processor that go through the tiles of lists of arrays, at most."""

LISTED_ROWS, LISTED_COLUMNS, LISTED_STAGES = 64, 128, 4
"""Rows of a group of four warps, columns and stages of tiles that threads copy; measured on an H200."""


def schedule_of_lists(question: Question) -> Schedule:
    """The first legal schedule for products of lists; if there is none, a schedule that is refused."""
    found = list_proposals(question)
    first = next(found)
    for one in (first, *found):
        if not one.against and not reasons(one.schedule, question.form, question.specs, question.arch):
            return one.schedule
    return first.schedule


def list_proposals(question: Question) -> Iterator[Candidate]:
    """The proposals for products of lists, whose tiles a grid of a known size goes through.

    The proposals for the items of a batch are changed to that.  If tensor maps can be made of all arrays,
    bulk copies load them.  If not, threads copy for the same asynchronous multiply, if rows begin at
    multiples of 4 bytes, and else for the multiplies of a warp.

    Args:
        question: the problem, of a form of lists; its extents are those of a typical product.
    """
    by_bulk: Candidate | None = None
    later: list[Candidate] = []
    arch = question.arch
    for one in proposals(replace(question, form=replace(question.form, lists=False))):
        made = replace(one.schedule, balanced=False, cluster=(1, 1), batches=1)
        if made.split_k != 1:
            continue
        if made.staging == "tma":
            by_bulk = by_bulk or one
            taken = ScheduleOnMachine(made, question.form, question.specs, arch).shared_bytes
            each = resident_blocks(arch, taken, most=LISTED_BLOCKS, reserved=0)
            found = replace(one, schedule=replace(made, blocks=question.processors * each))
            if made.blocks or question.shape[0] <= LISTED_ROWS:
                yield found
            else:  # a form for a block for each tile can take one tile after the other all the same
                later.append(found)
            continue
        if by_bulk is not None:
            yield from later
            yield from _copied_by_threads(question, by_bulk)
            by_bulk = None
        yield replace(one, schedule=replace(made, blocks=LISTED_BLOCKS * question.processors))


def _copied_by_threads(question: Question, by_bulk: Candidate) -> Iterator[Candidate]:
    """The asynchronous multiply of a schedule, with operands that threads copy in the background."""
    case = ScheduleOnMachine(by_bulk.schedule, question.form, question.specs, question.arch)
    if min(width(side.spec) for side in case.sides) < min(question.arch.async_bytes, default=0):
        return
    groups = 1 if question.shape[0] <= LISTED_ROWS else 2
    made = Schedule(
        wgmma(question.dtype, LISTED_COLUMNS),
        (LISTED_ROWS * groups, LISTED_COLUMNS, by_bulk.schedule.block_k),
        (groups, 1),
        stages=LISTED_STAGES,
        staging="cp_async",
        blocks=question.processors,
        group_m=BAND,
        promote=by_bulk.schedule.promote,
    )
    yield replace(by_bulk, schedule=made, rule="wgmma, with copies by threads in the background")


# ---------------------------------------------------------------- a request to split K

Doubts: TypeAlias = tuple[bool, bool, bool]

INSTRUCTIONS = ("wgmma", "mma", "mfma", "wmma", "fma")
"""Kinds of instructions that multiply, the fastest first."""

SHARED = ("reduce-scatter", "cluster")
"""Reductions in which all blocks of a tile add up a share of it."""


def split_candidates(question: Question) -> Iterator[Candidate]:
    """The candidates for a problem whose K is to be split, in the order of the estimates.

    Args:
        question: the problem, with the request to split K.

    Raises:
        LaunchError: no proposal of the rules can split K as requested.
    """
    wanted = question.splitting
    assert wanted is not None
    plain = (one for one in candidates(replace(question, splitting=None)) if one.schedule.split_k == 1)
    ways = [(one, way) for one in plain for way in split_ways(question, one, wanted)]
    found = _legal(question, ways)
    first = next(found, None)
    if first is None:
        raise _refusal(question, wanted)
    if wanted.batch_invariant:
        yield from _in_one_order(question, [first, *found])
    else:
        yield first
        yield from found


def _legal(question: Question, ways: Sequence[tuple[Candidate, Candidate]]) -> Iterator[Candidate]:
    """The legal ones of pairs of a schedule and a way to split K under it, in the order of their estimates.

    Each is checked when it is its turn; if its ring is shorter then, its turn comes again.
    """

    def turn(way: Candidate, number: int) -> tuple[Doubts, float, int]:
        return _doubts(question, way.schedule), way.estimate, number

    waiting = [(turn(way, number), plain, way) for number, (plain, way) in enumerate(ways)]
    judged: set[int] = set()
    heapify(waiting)
    while waiting:
        (_, _, number), plain, way = heappop(waiting)
        made = way if number in judged else legal_way(question, plain, way)
        if made is way:
            yield way
        elif made is not None:
            judged.add(number)
            heappush(waiting, (turn(made, number), plain, made))


def _doubts(question: Question, schedule: Schedule) -> Doubts:
    """Reasons to trust an estimate less: the schedule spills, or the model was not fitted to it.

    Not fitted are schedules without bulk copies, and among them blocks that meet otherwise than in a
    workspace.
    """
    is_copied = schedule.staging != "tma"
    is_guessed = schedule.reduction in SHARED and (is_copied or question.arch.rates is None)
    return Load(question, schedule).spills, is_copied, is_guessed


def _in_one_order(question: Question, found: list[Candidate]) -> list[Candidate]:
    """The candidates that share the best instruction and order of additions, whatever the number of rows.

    Threads of a GPU keep their sums from step to step.  Processors and the reference add up the products of
    one step first, so there the depth of a step decides the order too.
    """

    def order(one: Candidate) -> tuple[int, int, int, int]:
        atom, period = one.schedule.atom, one.schedule.promote * one.schedule.block_k
        step = 0 if question.arch.registers else min(one.schedule.block_k, question.shape[2])
        return INSTRUCTIONS.index(atom.instruction.partition(".")[0]), -atom.shape[2], -period, -step

    best = min(map(order, found), default=None)
    return [one for one in found if order(one) == best]


# ---------------------------------------------------------------- the error if K cannot be split

OF_PARTS = ("reduction", "split_k")
"""Fields that a request to split K names: a rule that they break speaks of the request."""

WORKSPACE = 'reduction="workspace"'
"""Nearest choice that every machine has, for any number of parts."""

NO_SPLIT = "split_k=1"
"""Nearest choice if no way to split K will do."""

ANOTHER = "split_k=None, or a schedule of your own"
"""Nearest choice if nothing better is known."""


def _refusal(question: Question, wanted: Splitting) -> LaunchError:
    """The error that says why no proposal of the rules splits K as requested."""
    named = {"split_k": wanted.split_k, "reduction": wanted.reduction}
    given = [f"{name}={value!r}" for name, value in named.items() if value is not None]
    given.append(f"batch_invariant={wanted.batch_invariant}")
    said = f"kernel {question.form.flow.name}: no schedule that is known splits K with {', '.join(given)}"
    asked = question.form, question.classes, question.arch
    tried = [
        (one, reasons(one, *asked))
        for plain in candidates(replace(question, splitting=None))
        if not plain.against and plain.schedule.split_k == 1
        for one in schedules_of(question, plain.schedule, wanted)
    ]
    waiting = [load for one, broken in tried if not broken and not runs_at_once(load := Load(question, one))]
    why, nearest = _of_waiting(waiting) if waiting else _of_rules(question, tried)
    return LaunchError(f"{said}: {why}; nearest legal choice: {nearest}")


def _of_waiting(waiting: Sequence[Load]) -> tuple[str, str]:
    """Reason and nearest choice, if the only fault of schedules is that not all blocks run at once."""
    least = min(waiting, key=lambda one: one.tiles * one.parts)
    at_once, tiles, parts = least.question.processors, least.tiles, least.parts
    why = (
        f"its blocks wait for each other, so that all of them must run at once; {parts} parts of {tiles} "
        f"tile{'s' if tiles != 1 else ''} are {tiles * parts} blocks at least, and {at_once} run at once, "
        "one on each multiprocessor"
    )
    most = max(at_once // one.tiles for one in waiting)
    return why, f"split_k={most}, or {WORKSPACE}" if most > 1 else WORKSPACE


def _of_rules(question: Question, tried: Sequence[tuple[Schedule, list[Violation]]]) -> tuple[str, str]:
    """Reason and nearest choice of a broken rule, best of one that no split or a workspace keeps."""
    found = [reason for _, broken in tried for reason in broken]
    if not found:
        plain = candidates(replace(question, splitting=None))
        why = next((why for one in plain for why in one.against), "")
        return why or "its blocks take turns, or share operands in clusters", ANOTHER
    counts = Counter(reason.rule for reason in found)
    ways_out = (NO_SPLIT, WORKSPACE)
    first = min(
        found,
        key=lambda one: (
            one.rule not in OF_PARTS,
            ways_out.index(one.nearest) if one.nearest in ways_out else len(ways_out),
            -counts[one.rule],
        ),
    )
    return first.message, first.nearest or ANOTHER
