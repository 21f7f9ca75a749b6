"""Splitting K: what the schedules that the rules propose become, and how long they are estimated to take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tilewright.errors import LaunchError
from tilewright.schedule.candidates import candidates
from tilewright.schedule.choose import Candidate, Question, Splitting
from tilewright.schedule.classes import coarse
from tilewright.schedule.fixup import FAN
from tilewright.schedule.legality import reasons
from tilewright.schedule.memory import memory_us
from tilewright.schedule.partition import MOST_SPLITS, parts_of_k
from tilewright.schedule.schedule import SPLITS, Schedule

TICKET_US = 1.5
"""Writing the sums of a part and taking a ticket. An estimate."""

READ_BYTES_PER_US = 1e5
"""At which one multiprocessor reads the sums of other parts. An estimate: 64 bytes in a cycle."""

READ_MULTIPLY_ADDS = 4
"""What a processor could do while it writes and reads one sum of another part. An estimate."""

FIXED_US = 4.2
"""Of a launch on a GPU, which does not become less by splitting K."""

MOST_SPLIT_SUMS = 64 * 128
"""Of a group of warps whose blocks compute a part each: where registers are not dealt out to roles."""

PERIODS = 8
"""Parts of K, at most, whose order of addition is the same for all numbers of rows."""

SHORTEST_PERIOD = 512
"""Elements along K of such a part, at least."""


def split_candidates(question: Question) -> Iterator[Candidate]:
    """What is proposed for a problem whose K is to be split, in the order of the estimates.

    Args:
        question: the problem, with the way in which K is to be split.

    Raises:
        LaunchError: nothing that the rules propose can split K so.
    """
    wanted = question.splitting
    assert wanted is not None
    found = [
        made for plain in candidates(replace(question, splitting=None)) for made in _split(question, plain)
    ]
    if not found:
        raise LaunchError(
            f"kernel {question.form.flow.name}: no schedule that is known for these arrays splits K with "
            f"{_said(wanted)}; nearest legal choice: split_k=None, or a schedule of your own"
        )
    # Of other kernels than those with bulk copies what is estimated is what no kernel falls below.
    yield from sorted(found, key=lambda one: (one.schedule.staging != "tma", one.estimate))


def _said(wanted: Splitting) -> str:
    split = "" if wanted.split_k is None else f"split_k={wanted.split_k!r}, "
    return f"{split}reduction={wanted.reduction!r}, batch_invariant={wanted.batch_invariant}"


def _split(question: Question, plain: Candidate) -> Iterator[Candidate]:
    """The legal ways to split K under a schedule, as is wanted."""
    wanted, form, arch = question.splitting, question.form, question.arch
    assert wanted is not None
    specs = {name: coarse(spec, arch) for name, spec in question.specs.items()}
    for schedule in _schedules(question, plain.schedule, wanted):
        if not plain.against and not reasons(schedule, form, specs, arch):
            estimate = estimated(question, plain, schedule)
            yield Candidate(schedule, estimate, f"{plain.rule}, {rule_of(question, schedule)}")


def _schedules(question: Question, plain: Schedule, wanted: Splitting) -> Iterator[Schedule]:
    if wanted.batch_invariant:
        plain = replace(plain, promote=period_of(question.shape[2]) // plain.block_k)
        if wanted.split_k is None:
            yield plain
        wanted = replace(wanted, split_k=wanted.split_k or MOST_SPLITS)
    for split_k in SPLITS if wanted.split_k is None else (wanted.split_k,):
        made = split_schedule(plain, split_k, question.processors)
        if made is not None:
            yield replace(made, reduction=wanted.reduction)


def split_schedule(plain: Schedule, split_k: int | str, processors: int) -> Schedule | None:
    """A schedule that splits K, and is otherwise like one that does not; None if it cannot.

    Args:
        plain: the schedule.
        split_k: as a schedule has it.
        processors: how many blocks run at once.
    """
    if split_k == 1:
        return plain
    if plain.roles == "ping-pong" or plain.cluster != (1, 1):
        return None
    rows, columns, _ = plain.mma.tile
    if split_k != "stream" and plain.registers and plain.blocks and rows * columns > MOST_SPLIT_SUMS:
        return None
    return replace(
        plain,
        split_k=split_k,
        batches=1,
        blocks=processors if isinstance(split_k, str) else 0,
        balanced=plain.balanced and split_k != "stream",
        epilogue="staged" if plain.epilogue == "overlapped" else plain.epilogue,
        registers=plain.registers if split_k == "stream" or plain.staging != "tma" else 0,
    )


def period_of(depth: int) -> int:
    """Elements along K after which sums are added to others, where that must not depend on other extents.

    A power of 2, of which K has at most `PERIODS`.

    Example:
        >>> period_of(4096), period_of(4097), period_of(100), period_of(28672)
        (512, 1024, 512, 4096)
    """
    period = SHORTEST_PERIOD
    while period * PERIODS < depth:
        period *= 2
    return period


def parts_under(question: Question, schedule: Schedule) -> int:
    """How many parts K has under a schedule; of a stream, those of a tile on average, rounded up.

    The same is computed at every launch, from its extents.
    """
    steps = max(-(-question.shape[2] // schedule.block_k), 1)
    tiles, blocks = tiles_of(question, schedule), schedule.blocks
    units = -(-steps // max(schedule.promote, 1))
    if schedule.split_k == "stream":
        return max(-(-min(blocks, tiles * steps) // max(tiles, 1)), 1)
    if schedule.split_k == "auto":
        found = parts_of_k(tiles, steps, blocks)
        assert isinstance(found, int)
        return min(found, units)
    assert isinstance(schedule.split_k, int)
    return max(min(schedule.split_k, units, MOST_SPLITS), 1)


def rule_of(question: Question, schedule: Schedule) -> str:
    """How K is split, and why so, in words."""
    parts, tiles = parts_under(question, schedule), tiles_of(question, schedule)
    count = f"{parts} part{'s' if parts != 1 else ''}"
    if schedule.split_k == "auto":
        return f"K in {count}: {schedule.blocks} blocks for {tiles} tiles"
    if schedule.split_k == "stream":
        return f"steps of {tiles} tiles dealt out to {schedule.blocks} blocks"
    return f"K in {count}"


def tiles_of(question: Question, schedule: Schedule) -> int:
    """Tiles of the result."""
    m, n, _ = question.shape
    rows, columns, _ = schedule.tile
    m, n = (n, m) if schedule.swap_ab else (m, n)
    return -(-m // rows) * -(-n // columns) * prod(question.extents[:-3])


def estimated(question: Question, plain: Candidate, schedule: Schedule) -> float:
    """Estimated time of a schedule that splits K, from that of the one that does not.

    Args:
        question: the problem.
        plain: the schedule that it is made of, with its estimate.
        schedule: the one that splits K.
    """
    parts, tiles, blocks = parts_under(question, schedule), tiles_of(question, schedule), question.processors
    if schedule.split_k == 1:
        return plain.estimate
    rounds = max(-(-tiles // blocks), 1)
    if schedule.split_k == "stream":
        shared = max(tiles / blocks, 1 / parts) / rounds
    else:
        shared = -(-tiles * parts // blocks) / parts / rounds
    rows, columns, _ = schedule.mma.tile
    read = parts if parts <= FAN else FAN + -(-parts // FAN)
    if question.arch.lanes == 1:
        return plain.estimate * shared + read * rows * columns * READ_MULTIPLY_ADDS
    moved = read * rows * columns * schedule.atom.c_dtype.bytes
    meeting = (TICKET_US * (1 + (parts > FAN)) + moved / READ_BYTES_PER_US) if parts > 1 else 0.0
    return FIXED_US + max((plain.estimate - FIXED_US) * shared, memory_us(question)) + meeting
