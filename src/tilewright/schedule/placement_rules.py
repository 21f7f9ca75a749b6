"""Rules of the layout of operands in shared memory, of the threads that copy them, and of rows in groups."""

from __future__ import annotations

from math import isqrt

from tilewright.arch import BULK
from tilewright.dataflow.nodes import Span
from tilewright.dtypes import DType
from tilewright.schedule.facts import Reasons
from tilewright.schedule.partition import against_unknown_tiles
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.schedule.sides import OperandSide

_TRIED_DIVISORS = 1 << 16
"""Largest trial divisor.  All divisors of a number below its square are found, in some milliseconds."""


def near_divisor(value: int, whole: int) -> int:
    """Return the divisor of a whole that is nearest to a value; the smaller of two.

    The search takes as long for a whole of any size.  If both numbers are far beyond the extent of a tile (a
    value over 2^15, a whole over 2^32), the answer is a divisor, but a nearer one may exist.

    Example:
        >>> near_divisor(48, 128), near_divisor(300, 128), near_divisor(48, 3 << 62)
        (32, 128, 48)
    """
    small = [n for n in range(1, min(isqrt(whole), _TRIED_DIVISORS) + 1) if whole % n == 0]
    return min((*small, *(whole // n for n in small)), key=lambda n: (abs(n - value), n))


def together(case: ScheduleOnMachine) -> Reasons:
    """Tiles consist of whole K1, and threads fill them."""
    schedule, product = case.schedule, case.form.sum
    for side in case.sides:
        k1, extra, depth = schedule.k1[side.at], schedule.extra_rows[side.at], case.tile[2]
        if not k1 and not extra:
            continue
        if against := _against(case, side):
            yield "k1", f"k1={schedule.k1}: {against}", "k1=(0, 0) and extra_rows=(0, 0)", product
        elif not k1:
            text = f"extra_rows has {extra} for {side.label}, and k1 has 0; extra rows need a K1"
            yield "extra_rows", text, f"extra_rows=(0, 0), or a divisor of {depth} in k1", product
        elif depth % k1:
            text = f"the tile of {side.label} has depth {depth}, which is no multiple of its K1, {k1}"
            yield "k1", text, f"{near_divisor(k1, depth)} instead of {k1}", product


def dealt(case: ScheduleOnMachine) -> Reasons:
    """All threads copy equal parts of a tile."""
    schedule, product = case.schedule, case.form.sum
    for side in case.sides:
        rows, along_k = schedule.dealt[side.at]
        if not rows and not along_k:
            continue
        near = f"(0, 0) instead of {(rows, along_k)}"
        if against := _against(case, side):
            yield "dealt", f"dealt={schedule.dealt}: {against}", near, product
        elif rows * along_k != case.mma.threads:
            who = "a group" if schedule.alternates else "a block"
            text = f"{rows} x {along_k} threads copy {side.label}; {who} has {case.mma.threads}"
            yield "dealt", text, f"{near}, or {case.mma.threads} threads", product
        elif case.copied_rows(side) % rows or case.tile[2] % along_k:
            tile = f"{case.copied_rows(side)} x {case.tile[2]} of {side.label}"
            text = f"{rows} x {along_k} threads do not divide {tile} equally"
            yield "dealt", text, near, product


def turned(case: ScheduleOnMachine) -> Reasons:
    """Transposing an operand on its way needs registers, a distribution to threads, and a K1."""
    schedule, product = case.schedule, case.form.sum
    for side in case.sides:
        if side.label.lower() not in schedule.turned:
            continue
        what = f'turned="{schedule.turned}"'
        near = f'turned="{schedule.turned.replace(side.label.lower(), "")}"'
        if not case.staging.through_registers:
            text = f'{what}; only staging="registers" holds a tile in registers before it is in shared memory'
            yield "turned", text, near, product
        elif not schedule.k1[side.at] or not all(schedule.dealt[side.at]):
            text = f"{what}; it needs k1 and dealt for {side.label}"
            yield "turned", text, f"{near}, or set k1 and dealt for {side.label}", product


def interleaved(case: ScheduleOnMachine) -> Reasons:
    """Warps interleave only atoms that read their operands from registers."""
    if case.schedule.interleaved and case.schedule.atom.asynchronous:
        text = f"interleaved=True; {case.schedule.atom} reads a block of consecutive rows from shared memory"
        yield "interleaved", text, "interleaved=False", case.form.sum


def whole(case: ScheduleOnMachine) -> Reasons:
    """Refuse `whole` if tiles do not divide extents of arrays: for bulk copies, groups and lists."""
    schedule, form = case.schedule, case.form
    if schedule.whole and case.is_bulk:
        text = f'whole="{schedule.whole}"; bulk copies check the bounds of arrays themselves'
        yield "whole", text, 'whole=""', form.sum
    if schedule.whole and (form.lists or form.flow.grouped is not None or schedule.balanced):
        cut = "balanced shares end" if schedule.balanced else "groups and the arrays of lists end"
        text = f'whole="{schedule.whole}"; {cut} anywhere, not only after whole tiles'
        yield "whole", text, 'whole=""', form.sum


def _against(case: ScheduleOnMachine, side: OperandSide) -> str:
    """Return the reason why a schedule cannot choose an operand's layout, or ""."""
    schedule = case.schedule
    if case.goes_past(side):
        return f"{side.label} bypasses shared memory"
    if schedule.atom.asynchronous:
        return f"{schedule.atom} needs the swizzled layout"
    if not case.staging.takes_layout:
        return f'staging="{schedule.staging}" has a fixed layout'
    return ""


# ---------------------------------------------------------------- rows in groups


def grouped(case: ScheduleOnMachine) -> Reasons:
    """Blocks find the tiles of groups by their numbers, one by one."""
    schedule, span = case.schedule, case.form.flow.grouped
    if span is None:
        return
    what = f"the sizes of the groups of {span.name} are known only on the device"
    if schedule.roles == "ping-pong":
        text = (
            f'roles="ping-pong"; {what}, so a group of warps does not know how many steps another one takes'
        )
        yield "roles", text, 'roles="cooperative"', case.form.sum
    near = "neighbouring tiles may belong to two groups, which share no operand"
    yield from against_unknown_tiles(case, what, near, "a kernel with groups has no other batches")
    for side in case.sides:
        if case.staging.is_aligned and (text := against_groups(case, side)):
            yield "staging", text, f'staging="registers", or {side.factor.name} transposed', side.factor.part


def bounded(case: ScheduleOnMachine) -> Reasons:
    """A block takes all steps of a group along K, whose bounds lie in memory."""
    schedule, span, product = case.schedule, case.form.bounded, case.form.sum
    if span is None:
        return
    what = f"the bounds of {span.name} lie in memory, and a block takes all steps between them"
    if schedule.is_split:
        yield "split_k", f"split_k={schedule.split_k!r}; {what}", "split_k=1", product
    if schedule.along_k > 1:
        yield "groups", f"groups={schedule.groups} that share steps; {what}", "groups=1", product
    if schedule.batches != 1:
        yield "batches", f"batches={schedule.batches}; {what}", "batches=1", product
    if "k" in schedule.whole:
        yield "whole", f"whole={schedule.whole!r}; {what}", "whole without k", product
    for side in case.sides:
        if case.staging.is_aligned and (text := against_groups(case, side)):
            yield "staging", text, f'staging="registers", or {side.factor.name} transposed', side.factor.part


def begins_anywhere(span: Span, dtype: DType) -> bool:
    """Whether groups along a contiguous span may begin between accesses of the widest copies."""
    assert span.groups is not None, "a span with groups"
    return span.groups.unit * dtype.bytes % BULK.unit_bytes > 0


def against_groups(case: ScheduleOnMachine, side: OperandSide) -> str:
    """Return the reason why aligned copies cannot load an operand of groups, or ""."""
    rows, depth, name = case.form.flow.grouped, case.form.bounded, side.factor.name
    if rows is not None and side.factor.row == rows and side.along_rows:
        return f"{name} is contiguous along {rows.name}, and groups may begin at any row"
    if depth is None:
        return ""
    if side.along_k and begins_anywhere(depth, side.dtype):
        return f"{name} is contiguous along {depth.name}, and groups may begin anywhere"
    if case.is_bulk and not side.factor.is_plain:
        return f"{name} is decoded, and boxes of bulk copies reach into the next group along {depth.name}"
    return ""
