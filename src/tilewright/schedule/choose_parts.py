"""Parts of K: how many there are under a schedule, and the schedule that splits K like one that does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tilewright.schedule.choose import Question
from tilewright.schedule.fixup import is_clustered
from tilewright.schedule.partition import MOST_SPLITS, parts_of_k
from tilewright.schedule.schedule import Schedule

MOST_SPLIT_SUMS = 64 * 128
"""Of a group of warps whose blocks compute a part each: where registers are not dealt out to roles."""

CLUSTERS_THAT_SHARE = ((2, 1), (1, 2), (2, 2), (4, 1), (1, 4))
"""Blocks along M and N of clusters that are tried where all of them have the same part of K."""

PARTITIONS = 8
"""Into which the multiprocessors of a Hopper GPU fall, at most (GPCs)."""

PERIODS = 8
"""Parts of K, at most, whose order of addition is the same for all numbers of rows."""

SHORTEST_PERIOD = 512
"""Elements along K of such a part, at least."""


def split_schedule(
    plain: Schedule, split_k: int | str, processors: int, reduction: str = "workspace"
) -> Schedule | None:
    """A schedule that splits K, and is otherwise like one that does not; None if it cannot.

    Args:
        plain: the schedule.
        split_k: as a schedule has it.
        processors: how many blocks run at once.
        reduction: as a schedule has it.
    """
    if split_k == 1:
        return replace(plain, reduction=reduction)
    if plain.roles == "ping-pong" or plain.cluster != (1, 1):
        return None
    rows, columns, _ = plain.mma.tile
    if split_k != "stream" and plain.registers and plain.blocks and rows * columns > MOST_SPLIT_SUMS:
        return None
    return replace(
        plain,
        split_k=split_k,
        reduction=reduction,
        batches=1,
        blocks=processors if isinstance(split_k, str) else 0,
        balanced=plain.balanced and split_k != "stream",
        epilogue=_epilogue(plain, reduction),
        buffers=1 if reduction == "reduce-scatter" and plain.roles != "none" else plain.buffers,
        registers=plain.registers if split_k == "stream" or plain.staging != "tma" else 0,
    )


def _epilogue(plain: Schedule, reduction: str) -> str:
    """Shares of a tile are narrow, and leave their threads directly."""
    if reduction == "reduce-scatter":
        return "direct"
    return "staged" if plain.epilogue == "overlapped" else plain.epilogue


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
    along = zip(tiles_along(question, schedule), schedule.cluster, strict=True)
    whole = prod(
        -(-count // blocks) * blocks for count, blocks in along
    )  # with those that only fill a cluster
    tiles, blocks = whole * prod(question.extents[:-3]), schedule.blocks
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
        across, beside = schedule.cluster
        shared = "" if across * beside == 1 else f", in clusters of {across} x {beside} that share operands"
        return f"K in {count}: {schedule.blocks} blocks for {tiles} tiles{shared}"
    if schedule.split_k == "stream":
        return f"steps of {tiles} tiles dealt out to {schedule.blocks} blocks"
    return f"K in {count}" + (" among the blocks of a cluster" if is_clustered(schedule) else "")


def tiles_of(question: Question, schedule: Schedule) -> int:
    """Tiles of the result."""
    return prod(tiles_along(question, schedule)) * prod(question.extents[:-3])


def tiles_along(question: Question, schedule: Schedule) -> tuple[int, int]:
    """Tiles of a batch item along its rows and along its columns."""
    m, n, _ = question.shape
    rows, columns, _ = schedule.tile
    m, n = (n, m) if schedule.swap_ab else (m, n)
    return -(-m // rows), -(-n // columns)


def sharing(question: Question, schedule: Schedule) -> Iterator[Schedule]:
    """A schedule whose blocks have parts of K, with clusters that its tiles fill, which share operands.

    None where an operand is decoded: a stage that threads have read is released to the other blocks of a
    cluster with the memory's order, which took twice the time of the product.
    """
    if question.decodes:
        return
    tiles = tiles_along(question, schedule)
    for cluster in CLUSTERS_THAT_SHARE:
        blocks = in_clusters(question.processors, prod(cluster))
        if (
            schedule.blocks
            and blocks
            and not any(count % of for count, of in zip(tiles, cluster, strict=True))
        ):
            yield replace(schedule, cluster=cluster, blocks=blocks)


def in_clusters(processors: int, size: int) -> int:
    """How many blocks certainly run at once, each alone on a multiprocessor, in clusters of 2 or more.

    A cluster lies in one of the at most `PARTITIONS` partitions of a GPU, each an even number of
    multiprocessors, so that each may leave ``size - 2`` of them idle.

    Example:
        >>> in_clusters(132, 2), in_clusters(132, 4), in_clusters(132, 8)
        (132, 116, 80)
    """
    return max(processors - PARTITIONS * (size - 2), 0) // size * size
