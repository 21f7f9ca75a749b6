"""Partitions: the part of a result that a block computes, by name, and schedules drawn for one of them.

A problem drawn for a partition is computed by it, or its schedule is refused.  So a campaign can try any
number of problems of each.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tilewright.schedule.fixup import FAN
from tilewright.schedule.partition import MOST_SPLITS, parts_of_k
from tilewright.schedule.question import Splitting
from tilewright.schedule.schedule import REDUCTIONS, Schedule
from tilewright.targets.atoms import wgmma

HOLDS: Mapping[str, Callable[[Schedule], bool]] = {
    "data-parallel": lambda one: not one.blocks and one.split_k == 1 and one.batches == 1,
    "persistent": lambda one: one.blocks > 0 and one.split_k == 1,
    "split": lambda one: one.split_k not in (1, "stream"),
    "stream": lambda one: one.split_k == "stream",
    "batches": lambda one: one.batches > 1,
    "swapped": lambda one: one.swap_ab,
}
"""Whether a schedule computes by a partition; the transposed product does so by another one as well."""

PARTITIONS = tuple(HOLDS)
CHOSEN = ("data-parallel", "split", "stream", "batches")
"""Those that a schedule may have which the rules choose, for a processor and for the reference."""

PARTS = (2, 3, 5, 7, FAN, FAN + 1, 25, 40)
"""Into which K is split; of more than `FAN` the sums come together in two steps."""

OF_A_CLUSTER = tuple(parts for parts in PARTS if parts <= 8)
"""Those that the blocks of a cluster compute."""

OF_BLOCKS_AT_ONCE = ("cluster", "reduce-scatter")
"""Ways in which the blocks of parts wait for each other: a processor does not run all of them at once."""

FEW_ROWS = (8, 16, 32, 64)


def partitions_of(schedule: Schedule) -> list[str]:
    """Return the partitions of a schedule."""
    return [name for name, holds in HOLDS.items() if holds(schedule)]


def reductions_of(target: str) -> tuple[str, ...]:
    """Return the reductions that a target has."""
    return tuple(name for name in REDUCTIONS if target != "cpu" or name not in OF_BLOCKS_AT_ONCE)


def way_of(draw: random.Random, partition: str, target: str) -> Splitting | None:
    """Return what the rules are told about the split of K; None: nothing.

    Args:
        draw: where the numbers come from.
        partition: one of `CHOSEN`.
        target: what runs it.
    """
    if partition == "stream":
        return _perhaps_unnamed(draw, Splitting("stream", draw.choice(("workspace", "atomic"))))
    if partition == "split":
        reduction, invariant = draw.choice(reductions_of(target)), draw.random() < 0.3
        reduction = "workspace" if invariant and reduction == "atomic" else reduction
        parts = OF_A_CLUSTER if reduction == "cluster" else PARTS
        made = Splitting(draw.choice((*parts, "auto", "auto")), reduction, invariant)
        return _perhaps_unnamed(draw, made)
    return Splitting(batch_invariant=True) if partition == "data-parallel" and draw.random() < 0.2 else None


def _perhaps_unnamed(draw: random.Random, way: Splitting) -> Splitting:
    """Return the way; one in two that use a workspace names no reduction."""
    return replace(way, reduction=None) if way.reduction == "workspace" and draw.random() < 0.5 else way


def placed_in(draw: random.Random, partition: str, plain: Schedule, target: str) -> Schedule:
    """Return a schedule with a partition; its other fields come from another one.

    Args:
        draw: where the numbers come from.
        partition: one of `PARTITIONS`.
        plain: the schedule.
        target: what runs it.
    """
    if partition == "persistent":
        return replace(plain, blocks=draw.choice((1, 2, 3, 7, 16, 132)), balanced=False)
    if partition == "data-parallel":
        return _with_a_block_each(plain)
    if partition == "batches":
        made = replace(_with_a_block_each(plain), batches=draw.choice((2, 3, 4, 7, 16)), balanced=False)
        return replace(made, swap_ab=draw.random() < 0.2)
    if partition == "swapped":
        made = _few_rows(draw, plain) if plain.atom.asynchronous else replace(plain, swap_ab=True)
        return _split(draw, made, draw.choice(("split", "stream")), target) if draw.random() < 0.4 else made
    made = _split(draw, plain, partition, target)
    return replace(made, swap_ab=draw.random() < 0.2)


def _with_a_block_each(plain: Schedule) -> Schedule:
    """Give each tile a block; groups that took turns become one group without turns."""
    groups = 1 if plain.roles == "ping-pong" else plain.groups
    roles = "cooperative" if plain.roles == "ping-pong" else plain.roles
    registers = 0 if plain.staging == "tma" else plain.registers
    return replace(plain, blocks=0, roles=roles, groups=groups, registers=registers)


def _split(draw: random.Random, plain: Schedule, partition: str, target: str) -> Schedule:
    """Give parts of K blocks of their own, which know nothing of others."""
    made = replace(_with_a_block_each(plain), cluster=(1, 1))
    if made.epilogue == "overlapped":
        made = replace(made, epilogue="staged")
    if partition == "stream":
        blocks, reduction = draw.choice((1, 2, 3, 5, 7, 16, 132)), draw.choice(("workspace", "atomic"))
        registers = plain.registers
        return replace(
            made,
            split_k="stream",
            blocks=blocks,
            reduction=reduction,
            balanced=False,
            registers=registers,
        )
    split_k: int | str = draw.choice((*PARTS, "auto", "auto"))
    reduction = draw.choice(reductions_of(target))
    if reduction == "cluster":
        split_k = draw.choice(OF_A_CLUSTER)
    blocks = draw.choice((2, 8, 16, 132)) if split_k == "auto" else 0
    cluster = plain.cluster if reduction != "cluster" else (1, 1)
    return replace(made, split_k=split_k, blocks=blocks, reduction=reduction, cluster=cluster)


def _few_rows(draw: random.Random, plain: Schedule) -> Schedule:
    """Put the columns of B along the 64 rows of ``wgmma``, and few rows of A along its columns."""
    made = _with_a_block_each(plain)
    rows = draw.choice(FEW_ROWS)
    m, _, k = made.tile
    depth = k * draw.choice((1, 2)) if made.staging == "tma" else k
    atom = wgmma(made.atom.a_dtype, rows)
    return replace(made, atom=atom, tile=(m, rows, depth), cluster=(1, 1), swap_ab=True)


def parts_of(schedule: Schedule, extents: Mapping[str, int]) -> int:
    """Return the number of parts of K, except for a stream.

    Args:
        schedule: which splits K, or not.
        extents: by the names L (of batch items), M, N and K.
    """
    m, n = (extents[name] for name in ("NM" if schedule.swap_ab else "MN"))
    tiles = -(-m // schedule.tile[0]) * -(-n // schedule.tile[1]) * extents["L"]
    steps = -(-extents["K"] // schedule.block_k)
    wanted: Any = (
        parts_of_k(tiles, steps, schedule.blocks) if schedule.split_k == "auto" else schedule.split_k
    )
    return max(min(wanted, -(-steps // max(schedule.promote, 1)), MOST_SPLITS), 1)
