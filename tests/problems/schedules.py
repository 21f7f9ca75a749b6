"""Random schedules that are most likely legal, for a dtype, a target and a partition."""

from __future__ import annotations

import random

from tests.problems.partitions import placed_in

import tilewright as tw
from tilewright.schedule.schedule import Schedule
from tilewright.targets.atoms import MMA_SYNC, WGMMA

SUMS = {"f64": "f64", "i8": "i32"}
"""What products of a dtype are added in, where not in f32."""


def schedule_for(
    draw: random.Random,
    kind: str,
    target: str,
    partition: str,
    *,
    decodes: bool = False,
    reduces: bool = False,
    aligned: bool = False,
) -> Schedule:
    """Draw a schedule with a given partition that is most likely legal.

    Args:
        draw: the source of random numbers.
        kind: the dtype in which A is multiplied.
        target: the target.
        partition: one of `tests.problems.partitions.PARTITIONS`.
        decodes: whether an operand is decoded on its way.
        reduces: whether the result is reduced along its columns; a tile then holds all columns.
        aligned: whether rows begin at multiples of 16 bytes, so that bulk copies can load them.
    """
    if target == "cpu" or (not decodes and target == "reference" and draw.random() < 0.1):
        plain = _of_a_thread(draw, kind, balanced=not reduces)
    elif not decodes and draw.random() < (0.6 if target == "cuda" else 0.3) and _has_wgmma(kind):
        plain = _hopper(draw, kind, bulk=aligned and draw.random() < 0.8)
    else:
        plain = _of_warps(draw, kind, decodes)
    return placed_in(draw, partition, plain, target)


def _sums(kind: str) -> str:
    return SUMS.get(kind, "f32")


def _of_a_thread(draw: random.Random, kind: str, *, balanced: bool) -> Schedule:
    """For a processor: packed in panels for one thread, or divided among 32 threads that one plays."""
    if draw.random() < 0.5:
        atom = tw.atoms.fma(kind)
        m, n, _ = atom.shape
        tile = (m * draw.choice((1, 2, 5)), n * draw.choice((1, 2, 4)), draw.choice((16, 64, 256)))
        return Schedule(atom, tile, promote=draw.choice((0, 0, 2)))
    m, n = draw.choice(((6, 16), (8, 8), (1, 16)))
    tile = (m * draw.choice((1, 4, 8)), n * draw.choice((1, 2, 4)), draw.choice((16, 64, 256)))
    return Schedule(
        tw.atoms.fma(kind, lanes=(1, 1), each=(m, n)),
        tile,
        staging="panels",
        balanced=balanced and draw.random() < 0.5,
        promote=draw.choice((0, 0, 2)),
    )


def _of_warps(draw: random.Random, kind: str, decodes: bool) -> Schedule:
    """Draw a schedule for warps that all do the same."""
    fitting = [
        atom
        for atom in MMA_SYNC
        if atom.a_dtype == atom.b_dtype == tw.dtype(kind)
        and str(atom.c_dtype) == _sums(kind)
        and atom.precision is None
    ]
    atom = (
        draw.choice(fitting)
        if fitting
        else tw.atoms.fma(kind, each=draw.choice(((1, 1), (4, 4))), paired=False)
    )
    m, n, k = atom.shape
    warps = draw.choice(((1, 1), (2, 1), (2, 2)))
    tile = (m * warps[0] * draw.choice((1, 2)), n * warps[1] * draw.choice((1, 2, 4)))
    staging = (
        "fragments" if decodes else draw.choice(("direct", "registers", "cp_async", "cp_async", "fragments"))
    )
    ring = staging in ("cp_async", "fragments")
    return Schedule(
        atom,
        (*tile, max(k, 8) * draw.choice((2, 4))),
        warps,
        stages=draw.choice((3, 4) if decodes else (2, 3, 4)) if ring else 1,
        staging=staging,
        group_m=draw.choice((0, 1, 2, 8)),
        promote=draw.choice((0, 0, 1, 3)),
        epilogue=draw.choice(("direct", "direct", "staged")),
    )


def _has_wgmma(kind: str) -> bool:
    """Return whether Hopper's multiply keeps all bits of the products."""
    return kind != "f32" and any(
        row.a == row.b == tw.dtype(kind) and str(row.c) == _sums(kind) for row in WGMMA
    )


def _hopper(draw: random.Random, kind: str, *, bulk: bool) -> Schedule:
    """Draw a schedule for Hopper's multiply."""
    element = tw.dtype(kind)
    columns, width = draw.choice((64, 128)), 128 // element.bytes
    atom = tw.atoms.wgmma(element, columns)
    promote = draw.choice((1, 4)) if element.bits == 8 and element.is_float else draw.choice((0, 0, 2))
    if not bulk:
        staging = draw.choice(("direct", "registers", "cp_async"))
        stages = draw.choice((2, 3, 4)) if staging == "cp_async" else 1
        return Schedule(
            atom, (64, columns, width), stages=stages, staging=staging, group_m=1, promote=promote
        )
    roles = draw.choice(("cooperative", "ping-pong"))
    groups = draw.choice((1, 2)) if roles == "cooperative" else 2
    return Schedule(
        atom,
        (64 * (groups if roles == "cooperative" else 1), columns, width),
        stages=draw.choice((2, 3, 4)),
        staging="tma",
        roles=roles,
        groups=groups,
        blocks=16,
        cluster=draw.choice(((1, 1), (1, 1), (1, 1), (2, 1), (1, 2), (2, 2))),
        group_m=draw.choice((1, 4)),
        promote=promote,
        epilogue=draw.choice(("direct", "staged", "overlapped")),
        buffers=draw.choice((1, 2)),
        registers=232,
    )
