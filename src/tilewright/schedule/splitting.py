"""Splitting K: derives schedules that split K from a schedule that does not, and estimates their times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, prod

from tilewright.schedule.estimate import BULK, FMA, FMA_OF_SEVERAL, RING, TF32, estimate_of
from tilewright.schedule.fixup import FAN
from tilewright.schedule.legality import reasons, with_fallback
from tilewright.schedule.load import Load, in_clusters
from tilewright.schedule.partition import MOST_SPLITS
from tilewright.schedule.question import Candidate, Question, Splitting
from tilewright.schedule.schedule import REDUCTIONS, SPLITS, Schedule, changed

CLUSTERS = (2, 4, 8)
"""Numbers of parts of K to try if the blocks of the parts are a cluster."""

MORE_PAYS = 0.9
"""More blocks for each multiprocessor are proposed if their time, relative to one block, is below this."""

MOST_SPLIT_SUMS = 64 * 256
"""Most sums of a group of warps if blocks compute parts of K and roles set no registers."""

MOST_DECODED_SUMS = 64 * 128
"""Likewise, if the group decodes an operand; with 128 x 80 NVRTC 13.0 spills and serializes ``wgmma``."""

CLUSTERS_THAT_SHARE = ((2, 1), (1, 2), (2, 2), (4, 1), (1, 4))
"""Blocks along M and N of the clusters that are tried if all blocks of a cluster have the same part of K."""

PERIODS = 8
"""Largest number of parts of K whose order of addition is the same for all numbers of rows."""

SHORTEST_PERIOD = 512
"""Least number of elements along K of these parts; see `PERIODS`."""


# ---------------------------------------------------------------- a schedule that splits K


def split_schedule(
    plain: Schedule,
    split_k: int | str,
    processors: int,
    reduction: str = "workspace",
    *,
    decodes: bool = False,
) -> Schedule | None:
    """Return a schedule with K split; None if the schedule cannot split K.

    Args:
        plain: the schedule that does not split K.
        split_k: as in a schedule.
        processors: blocks that run at once.
        reduction: as in a schedule.
        decodes: whether groups decode an operand in registers.
    """
    if split_k == 1:
        return changed(plain, reduction=reduction)
    if plain.roles in ("ping-pong", "alternating") or plain.cluster != (1, 1):
        return None
    rows, columns, _ = plain.mma.tile
    if split_k != "stream" and plain.registers and plain.blocks and rows * columns > MOST_SPLIT_SUMS:
        return None
    keeps_registers = split_k == "stream" or (decodes and rows * columns > MOST_DECODED_SUMS)
    is_buffered = REDUCTIONS[reduction].takes_buffers
    return changed(
        plain,
        split_k=split_k,
        reduction=reduction,
        batches=1,
        blocks=processors if isinstance(split_k, str) else 0,
        balanced=plain.balanced and split_k != "stream",
        epilogue=plain.epilogue_without_helpers if is_buffered else "direct",
        buffers=plain.buffers if is_buffered or plain.roles == "none" else 1,
        registers=plain.registers if keeps_registers or not plain.by_bulk else 0,
    )


def period_of(depth: int) -> int:
    """Elements along K after which sums are promoted, if that may depend on K alone.

    It is a power of 2; K has at most `PERIODS` periods.

    Example:
        >>> period_of(4096), period_of(4097), period_of(100), period_of(28672)
        (512, 1024, 512, 4096)
    """
    period = SHORTEST_PERIOD
    while period * PERIODS < depth:
        period *= 2
    return period


def rule_of(load: Load) -> str:
    """How a schedule splits K, in words."""
    schedule, parts, tiles = load.schedule, load.parts, load.tiles
    count = f"{parts} part{'s' if parts != 1 else ''}"
    if schedule.split_k == "auto":
        across, beside = schedule.cluster
        shared = "" if across * beside == 1 else f", in clusters of {across} x {beside} that share operands"
        return f"K in {count}: {schedule.blocks} blocks for {tiles} tiles{shared}"
    if schedule.is_streamed:
        return f"steps of {tiles} tiles dealt out to {schedule.blocks} blocks"
    return f"K in {count}" + (" among the blocks of a cluster" if schedule.is_clustered else "")


def sharing(load: Load) -> Iterator[Schedule]:
    """Yield a split schedule with each cluster shape whose blocks share operands; tiles fill the clusters.

    Decoded operands get no clusters: their threads release each stage to the other blocks of the cluster with
    a memory fence, and the product took twice the time.
    """
    question, schedule = load.question, load.schedule
    if question.decodes or not schedule.blocks:
        return
    for cluster in CLUSTERS_THAT_SHARE:
        blocks = in_clusters(question.processors, prod(cluster))
        if blocks and not any(count % of for count, of in zip(load.tiles_along, cluster, strict=True)):
            yield changed(schedule, cluster=cluster, blocks=blocks)


def with_more_blocks(question: Question, schedule: Schedule) -> Iterator[Schedule]:
    """A schedule that splits K, and copies of it with more blocks for each multiprocessor.

    There are at most about as many blocks as run at once.  A schedule whose blocks wait for each other gets
    no more blocks.

    Args:
        question: the problem.
        schedule: has a block for each multiprocessor, or for each tile and part.
    """
    yield schedule
    load = Load(question, schedule)
    if not schedule.blocks or schedule.reduction_class.waits or not RING.applies(load):
        return
    model = TF32 if TF32.applies(load) else RING
    most = inf if FMA.applies(load) or FMA_OF_SEVERAL.applies(load) else MORE_PAYS * model.time_us(load)
    for beside in range(2, load.resident + 1):
        made = changed(schedule, blocks=beside * schedule.blocks)
        if most == inf or model.time_us(Load(question, made)) < most:
            yield made


# ---------------------------------------------------------------- schedules for a request


def split_ways(question: Question, plain: Candidate, wanted: Splitting) -> Iterator[Candidate]:
    """The candidates that split K under a schedule; their legality is not checked yet.

    Args:
        question: the problem.
        plain: a candidate that does not split K.
        wanted: the request.
    """
    for asked in () if plain.against else schedules_of(question, plain.schedule, wanted):
        load = Load(question, asked)
        if runs_at_once(load):
            yield Candidate(asked, estimated(load, plain), f"{plain.rule}, {rule_of(load)}")


def legal_way(question: Question, plain: Candidate, way: Candidate) -> Candidate | None:
    """Return a candidate that splits K if it is legal, perhaps with a shorter ring; else None.

    Args:
        question: the problem.
        plain: the schedule that does not split K.
        way: the candidate that does.
    """
    tried = [way.schedule]
    if way.schedule.is_clustered:  # whose blocks hold sums besides the ring
        tried += [changed(way.schedule, stages=stages) for stages in range(way.schedule.stages - 1, 1, -1)]
    asked = question.form, question.classes, question.arch
    schedule = next((one for one in tried if not reasons(one, *asked)), None)
    if schedule is None or schedule == way.schedule:
        return None if schedule is None else way
    return replace(way, schedule=schedule, estimate=estimated(Load(question, schedule), plain))


def schedules_of(question: Question, plain: Schedule, wanted: Splitting) -> Iterator[Schedule]:
    """The schedules that split K, derived from one that does not; their legality is not checked yet.

    Args:
        question: the problem.
        plain: the schedule that does not split K.
        wanted: the request.
    """
    for reduction in wanted.reductions:
        for made in _reduced_by(question, plain, wanted, reduction):
            yield from with_more_blocks(question, made)
            if wanted.reduction is None and made.by_bulk and not wanted.batch_invariant:
                yield from sharing(Load(question, made))


def _reduced_by(question: Question, plain: Schedule, wanted: Splitting, reduction: str) -> Iterator[Schedule]:
    """The schedules that split K with one reduction."""
    split_k, is_fixed = wanted.split_k, isinstance(wanted.split_k, int)
    if wanted.batch_invariant:
        depth = question.shape[2]
        # The instruction must not depend on how rows of A are aligned.
        plain, _ = with_fallback(plain, question.form, question.classes, question.arch)
        if not plain.promote:  # sums of few bits have a shorter, fixed period already
            promote = period_of(depth) // plain.block_k
            if not promote:  # a step is longer than a period
                return
            plain = changed(plain, promote=promote)
        if split_k is None:
            yield plain
        if question.form.scaled_every and not is_fixed:
            # One block multiplies and adds in one rounding, the parts of several blocks are only added.
            if split_k is not None:
                yield plain
            return
        if not is_fixed:  # a part for each period, so that sums are added in the order of a single block
            periods = -(-depth // (plain.promote * plain.block_k))
            split_k = MOST_SPLITS if periods <= FAN else 1
            split_k = CLUSTERS[-1] if REDUCTIONS[reduction].in_cluster else split_k
    tried: tuple[int | str, ...] = SPLITS if split_k is None else (split_k,)
    if REDUCTIONS[reduction].in_cluster and split_k in (None, "auto"):
        tried = CLUSTERS
    if REDUCTIONS[reduction].waits and split_k is None:
        tried = ("auto",)  # as many parts as can run at once
    for parts in tried:
        made = split_schedule(plain, parts, question.processors, reduction, decodes=question.decodes)
        if made is not None and not is_fixed and not runs_at_once(Load(question, made)):
            made = changed(plain, reduction=reduction)  # one part adds the periods in the same order
        if made is not None:
            yield made


def runs_at_once(load: Load) -> bool:
    """Whether all blocks run at once for certain, or do not wait for each other."""
    schedule, processors = load.schedule, load.question.processors
    if not schedule.reduction_class.waits or schedule.blocks or processors <= 1:
        return True
    return load.parts == 1 or load.tiles * load.parts <= processors


def estimated(load: Load, plain: Candidate) -> float:
    """Estimated time of a schedule that may split K.

    Args:
        load: the schedule for the problem.
        plain: the candidate from which it is made.
    """
    schedule, blocks = load.schedule, load.question.processors
    model = estimate_of(load) if load.question.form.is_single else None  # made for single products
    if not load.tiles or (schedule.split_k == 1 and model in (BULK, None)):
        return plain.estimate
    if model is not None:
        return model.time_us(load)
    rounds = max(-(-load.tiles // blocks), 1)
    if load.is_stream:
        shared = max(load.tiles / blocks, 1 / load.parts) / rounds
    else:
        shared = -(-load.tiles * load.parts // blocks) / load.parts / rounds
    return plain.estimate * shared + BULK.meeting_us(load)
