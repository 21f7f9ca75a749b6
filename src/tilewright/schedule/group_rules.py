"""What rows in groups, whose sizes lie in memory, ask of a schedule, and lists of arrays."""

from __future__ import annotations

from tilewright.schedule.facts import Reasons
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.schedule.sides import OperandSide

ALIGNED = ("tma", "cp_async", "fragments")
"""Stagings that copy from multiples of 4 or of 16 bytes."""


def grouped(case: ScheduleOnMachine) -> Reasons:
    """Blocks find the tiles of groups by their numbers, one by one."""
    schedule, span = case.schedule, case.form.flow.grouped
    if span is None:
        return
    product, what = case.form.sum, f"the sizes of the groups of {span.name} lie in memory"
    if schedule.roles == "ping-pong" and not schedule.alternates:
        text = f'roles="ping-pong"; {what}, and no group of warps knows how many steps another one takes'
        yield "roles", text, 'roles="cooperative"', product
    if schedule.balanced:
        text = f"balanced=True; {what}, and shares are made before the launch"
        yield "balanced", text, "balanced=False", product
    if schedule.cluster != (1, 1):
        text = f"cluster={schedule.cluster}; {what}, and neighbours may be of two groups, which share nothing"
        yield "cluster", text, "cluster=(1, 1)", product
    if schedule.split_k != 1:
        text = f"split_k={schedule.split_k!r}; {what}, and parts of K belong to tiles that are counted before"
        yield "split_k", text, "split_k=1", product
    if schedule.batches != 1:
        yield "batches", f"batches={schedule.batches}; groups are the only batches", "batches=1", product
    for side in case.sides:
        if schedule.staging in ALIGNED and (text := against_groups(case, side)):
            yield "staging", text, f'staging="registers", or {side.factor.name} transposed', side.factor.part


def listed(case: ScheduleOnMachine) -> Reasons:
    """Blocks go through the tiles of arrays that lie anywhere, each with extents of its own."""
    schedule, product = case.schedule, case.form.sum
    if not case.form.lists:
        return
    what = "extents and places of the arrays lie in memory"
    if not schedule.blocks:
        text = f"blocks=0, a block for each tile; {what}, and with them how many tiles there are"
        yield "blocks", text, "blocks= of as many as run at once", product
    if schedule.balanced:
        text = f"balanced=True; {what}, and shares are made before the launch"
        yield "balanced", text, "balanced=False", product
    if schedule.cluster != (1, 1):
        text = f"cluster={schedule.cluster}; {what}, and neighbours may be tiles of two of them"
        yield "cluster", text, "cluster=(1, 1)", product
    if schedule.split_k != 1:
        text = f"split_k={schedule.split_k!r}; {what}, and parts of K belong to tiles that are counted before"
        yield "split_k", text, "split_k=1", product
    if schedule.batches != 1:
        yield "batches", f"batches={schedule.batches}; {what}", "batches=1", product


def against_groups(case: ScheduleOnMachine, side: OperandSide) -> str:
    """Why what copies from multiples of some bytes does not copy an operand; empty if it does."""
    span = case.form.flow.grouped
    if span is None or side.factor.row != span or not side.along_rows:
        return ""
    return f"{side.factor.name} is contiguous along {span.name}, where groups begin anywhere"
