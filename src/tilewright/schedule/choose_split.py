"""Splitting K: what the schedules that the rules propose become, and how long they are estimated to take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tilewright.errors import LaunchError
from tilewright.schedule.candidates import candidates
from tilewright.schedule.choose import Candidate, Question, Splitting
from tilewright.schedule.classes import coarse
from tilewright.schedule.fixup import FAN, is_clustered
from tilewright.schedule.legality import reasons
from tilewright.schedule.memory import memory_us
from tilewright.schedule.partition import MOST_SPLITS, parts_of_k
from tilewright.schedule.schedule import SPLITS, Schedule
from tilewright.schedule.settle import settle

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

CLUSTERS = (2, 4, 8)
"""Parts of K that are tried where the blocks that compute them are a cluster."""

CLUSTER_US = 1.0
"""Writing the sums of a part to shared memory, and two barriers of a cluster. An estimate."""

INSTRUCTIONS = ("wgmma", "mma", "fma")
"""What multiplies, the fastest first."""

PERIODS = 8
"""Parts of K, at most, whose order of addition is the same for all numbers of rows."""

SHORTEST_PERIOD = 512
"""Elements along K of such a part, at least."""


def split_candidates(question: Question) -> Iterator[Candidate]:
    """What is proposed for a problem whose K is to be split, in the order of the estimates.

    Behind all others stand those whose parts come together in clusters, which have not been measured, unless
    they are asked for.

    Args:
        question: the problem, with the way in which K is to be split.

    Raises:
        LaunchError: nothing that the rules propose can split K so.
    """
    wanted = question.splitting
    assert wanted is not None
    found = _sorted(question)
    if not found:
        nearest = 'reduction="workspace"' if wanted.reduction == "cluster" else "split_k=None"
        raise LaunchError(
            f"kernel {question.form.flow.name}: no schedule that is known for these arrays splits K with "
            f"{_said(wanted)}; nearest legal choice: {nearest}, or a schedule of your own"
        )
    yield from found
    if wanted.reduction == "workspace" and not wanted.batch_invariant:
        number = wanted.split_k if isinstance(wanted.split_k, int) else None
        clustered = replace(wanted, split_k=number, reduction="cluster")
        yield from _sorted(replace(question, splitting=clustered))


def _sorted(question: Question) -> list[Candidate]:
    """Of other kernels than those with bulk copies what is estimated is what no kernel falls below."""
    plain = candidates(replace(question, splitting=None))
    found = [made for one in plain for made in _split(question, one)]
    if question.splitting is not None and question.splitting.batch_invariant:
        found = _of_one_instruction(found)
    return sorted(found, key=lambda one: (one.schedule.staging != "tma", one.estimate))


def _of_one_instruction(found: list[Candidate]) -> list[Candidate]:
    """Those whose products are added up by the same instruction, whatever the number of rows."""

    def instruction(one: Candidate) -> tuple[int, int]:
        atom = one.schedule.atom
        return INSTRUCTIONS.index(atom.instruction.partition(".")[0]), -atom.shape[2]

    best = min(map(instruction, found), default=None)
    return [one for one in found if instruction(one) == best]


def _said(wanted: Splitting) -> str:
    split = "" if wanted.split_k is None else f"split_k={wanted.split_k!r}, "
    return f"{split}reduction={wanted.reduction!r}, batch_invariant={wanted.batch_invariant}"


def _split(question: Question, plain: Candidate) -> Iterator[Candidate]:
    """The legal ways to split K under a schedule, as is wanted."""
    wanted, form, arch = question.splitting, question.form, question.arch
    assert wanted is not None
    specs = {name: coarse(spec, arch) for name, spec in question.specs.items()}
    whole = plain.schedule
    if wanted.batch_invariant:  # which instruction it is must not depend on how rows of A are aligned
        whole, _ = settle(whole, form, specs, arch)
    for asked in _schedules(question, whole, wanted):
        tried = () if plain.against else _stages_of(asked)
        schedule = next((one for one in tried if not reasons(one, form, specs, arch)), None)
        if schedule is not None:
            estimate = estimated(question, plain, schedule)
            yield Candidate(schedule, estimate, f"{plain.rule}, {rule_of(question, schedule)}")


def _stages_of(schedule: Schedule) -> Iterator[Schedule]:
    """The schedule; of a cluster, whose blocks hold sums beside the ring, also with a shorter ring."""
    yield schedule
    if is_clustered(schedule):
        for stages in range(schedule.stages - 1, 1, -1):
            yield replace(schedule, stages=stages)


def _schedules(question: Question, plain: Schedule, wanted: Splitting) -> Iterator[Schedule]:
    if wanted.batch_invariant:
        depth = question.shape[2]
        if not plain.promote:  # sums of few bits are promoted more often, and always as often
            plain = replace(plain, promote=period_of(depth) // plain.block_k)
        if wanted.split_k is None:
            yield plain
        wanted = replace(wanted, split_k=_parts_of_periods(plain, depth, wanted))
    tried: tuple[int | str, ...] = SPLITS if wanted.split_k is None else (wanted.split_k,)
    if wanted.reduction == "cluster" and wanted.split_k in (None, "auto"):
        tried = CLUSTERS
    for split_k in tried:
        made = split_schedule(plain, split_k, question.processors)
        if made is not None:
            yield replace(made, reduction=wanted.reduction)


def _parts_of_periods(plain: Schedule, depth: int, wanted: Splitting) -> int | str:
    """A part for each period, so that sums are added in the order in which one block adds them."""
    if isinstance(wanted.split_k, int):
        return wanted.split_k
    if wanted.reduction == "cluster":
        return CLUSTERS[-1]
    periods = -(-depth // (plain.promote * plain.block_k))
    return MOST_SPLITS if periods <= FAN else 1


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
    return f"K in {count}" + (" among the blocks of a cluster" if is_clustered(schedule) else "")


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
    if is_clustered(schedule):
        # Each block reads a share of all parts.
        meeting = CLUSTER_US + moved / parts / READ_BYTES_PER_US
        return FIXED_US + max((plain.estimate - FIXED_US) * shared, memory_us(question)) + meeting
    meeting = (TICKET_US * (1 + (parts > FAN)) + moved / READ_BYTES_PER_US) if parts > 1 else 0.0
    return FIXED_US + max((plain.estimate - FIXED_US) * shared, memory_us(question)) + meeting
