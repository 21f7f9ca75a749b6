"""Rules of a machine for schedules: instructions, roles, threads, shared memory and registers.

This includes the layout of operands in shared memory, the threads that copy them, and rows in groups.
"""

from __future__ import annotations

import math
from dataclasses import replace
from math import isqrt

from tilewright.arch import BULK, REFERENCE
from tilewright.dataflow.nodes import Span
from tilewright.dtypes import DType
from tilewright.schedule.bulk import COPYING_REGISTERS, COPYING_WARPS
from tilewright.schedule.facts import Reasons
from tilewright.schedule.partition import against_unknown_tiles
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.schedule.sides import OperandSide
from tilewright.targets.atoms import TENSOR_CORE, fma, is_listed, spelled


def fitting(case: ScheduleOnMachine) -> str:
    """Text of the argument ``atom=`` for an atom that multiplies the kernel's dtypes."""
    kind, product, arch = case.form.a.view.dtype, case.form.sum, case.arch
    listed = TENSOR_CORE.get(kind.name)
    if (
        listed is not None
        and (listed.b_dtype, listed.c_dtype) == (case.form.b.view.dtype, product.dtype)
        and (listed.feature in arch.features or not case.target.machine_code)
        and (listed.precision is None or case.form.precision == "tf32")
    ):
        return f"atom={spelled(listed)}"
    return f"atom={spelled(fma(kind, product.dtype))}"


def executed(case: ScheduleOnMachine) -> Reasons:
    """The machine executes the atom."""
    atom, arch, product = case.schedule.atom, case.arch, case.form.sum
    if case.target.warps:
        if not is_listed(atom) or (atom.feature and atom.feature not in arch.features):
            yield "atom", f"{arch.name} does not execute {atom}", fitting(case), product
        elif max(kind.components for kind in (atom.a_dtype, atom.b_dtype, atom.c_dtype)) > 1:
            text = f"{arch.name} has no instruction for complex products, which {atom} needs"
            yield "atom", text, "", product
        if not atom.asynchronous and atom.lanes != arch.lanes:
            text = f"{atom} needs {atom.lanes} lanes; a warp of {arch.name} has {arch.lanes}"
            yield "atom", text, f"an atom of {arch.lanes} lanes", product
    elif case.target.machine_code and atom.asynchronous:
        text = f"{arch.name} has no asynchronous MMA, which {atom} needs"
        yield "atom", text, fitting(case), product


def clusters(case: ScheduleOnMachine) -> Reasons:
    """The machine runs clusters with this number of blocks."""
    schedule, most, product = case.schedule, case.arch.cluster, case.form.sum
    if not case.target.warps:
        if case.target.machine_code and schedule.is_split and schedule.reduction_class.waits:
            text = (
                f'reduction="{schedule.reduction}"; {case.arch.name} does not run all blocks at the '
                "same time, and this reduction waits for other blocks"
            )
            yield "reduction", text, 'reduction="workspace"', product
        if case.target.machine_code and schedule.is_clustered:
            text = f'reduction="cluster"; {case.arch.name} has no clusters'
            yield "reduction", text, 'reduction="workspace"', product
        return
    has = f"at most {most}" if most > 1 else "no clusters"
    if (blocks := math.prod(schedule.cluster)) > most:
        text = f"clusters of {blocks} blocks; {case.arch.name} has {has}"
        yield "cluster", text, "cluster=(1, 1)" if most == 1 else "cluster=(2, 1)", product
    if schedule.is_clustered and isinstance(schedule.split_k, int) and schedule.split_k > most:
        text = f'split_k={schedule.split_k} with reduction="cluster"; {case.arch.name} has {has}'
        nearest = f'split_k={most}, or reduction="workspace"' if most > 1 else 'reduction="workspace"'
        yield "reduction", text, nearest, product


def storing_warps(case: ScheduleOnMachine) -> Reasons:
    """The role that gives registers away must hold the copying warp and all storing warps."""
    if not case.is_bulk or not case.schedule.registers:
        return
    warps, copying = case.epilogue.storing_warps(case), case.staging.copying_warps
    if copying + warps <= COPYING_WARPS or not warps:
        return
    who = "one warp that copies" if copying == 1 else f"{copying} warps that copy"
    text = f"{who} and {warps} warps that store; their role has {COPYING_WARPS} warps"
    near = f"groups={COPYING_WARPS - 1}" if copying == 1 else 'epilogue="staged"'
    yield "groups", text, f"{near}, or registers=0", case.form.stores[0]


def features(case: ScheduleOnMachine) -> Reasons:
    """The machine has roles and bulk copies."""
    schedule, arch, product = case.schedule, case.arch, case.form.sum
    on_cpu = case.target.machine_code and not case.target.warps
    if not on_cpu and (arch.bulk is not None or schedule.alternates):
        return
    instead = "direct" if on_cpu else "cp_async"
    if case.is_bulk:
        yield "staging", f"{arch.name} has no bulk copies", f'staging="{instead}"', product
    elif schedule.roles != "none":
        yield "roles", f"{arch.name} does not support warp roles", 'roles="none"', product


def threads(case: ScheduleOnMachine) -> Reasons:
    """Refuse blocks with more threads than the machine allows."""
    most, count = case.arch.threads, case.threads
    if most and count > most:
        text = f"{count} threads of a block; {case.arch.name} has at most {most}"
        field = "groups" if case.schedule.groups > 1 else "warps"
        yield field, text, f"fewer {field}: {most} threads", case.form.sum


def shared_bytes(case: ScheduleOnMachine) -> Reasons:
    """Shared memory holds the ring, the epilogue's buffers and the barriers."""
    most, count, schedule = case.arch.shared_bytes, case.shared_bytes, case.schedule
    if not most or count <= most:
        return
    parts = ", ".join(f"{buffer.name} {buffer.bytes}" for buffer in case.shared)
    text = f"{count} bytes of shared memory ({parts}); {case.arch.name} has {most}"
    for stages in range(schedule.stages - 1, 1, -1):
        if (
            ScheduleOnMachine(replace(schedule, stages=stages), case.form, case.specs, case.arch).shared_bytes
            <= most
        ):
            yield "stages", text, f"stages={stages}", case.form.sum
            return
    yield "tile", text, f"a smaller tile{_if_rows_fit(case)}", case.form.sum


def _if_rows_fit(case: ScheduleOnMachine) -> str:
    """The condition on a smaller tile if elements need a reduction over their whole row or column."""
    spans = (node.argument.axes[node.axis] for node in case.form.reductions)
    reduced = dict.fromkeys(span.name for span in spans if span is not None)
    if not reduced or case.schedule.across:
        return ""
    along = " and ".join(reduced)
    return (
        f" that covers all of {along}, because the kernel reduces along it; for more columns, store the "
        "reductions in a first kernel and read them in a second"
    )


def role_registers(case: ScheduleOnMachine) -> Reasons:
    """Roles set registers for whole warpgroups, in units, within the registers of the block."""
    registers, product = case.schedule.registers, case.form.sum
    if not case.is_bulk or not registers:
        return
    unit, (least, most) = REFERENCE.register_unit, REFERENCE.role_registers
    if registers % unit or not least <= registers <= most:
        inside = min(max(round(registers / unit) * unit, least), most)
        text = f"{registers} registers; a multiple of {unit} from {least} to {most}"
        yield "registers", text, f"registers={inside}", product
    warps = case.mma.threads // case.arch.lanes
    if warps % REFERENCE.role_warps:
        text = f"registers= applies to whole warpgroups; a group has {warps} warps"
        yield "registers", text, f"registers=0, or groups of {REFERENCE.role_warps} warps", product
    arch, copying = case.arch, case.copying
    if not case.target.warps or not 0 < case.threads <= arch.threads:
        return
    # All roles together take no more registers than all threads begin with.
    unit = arch.register_unit
    start = min(-(-arch.thread_registers // unit) * unit, arch.registers_of_each(case.threads))
    multiplying = case.threads - copying
    if COPYING_REGISTERS * copying + registers * multiplying <= start * case.threads:
        return
    fits = (start * case.threads - COPYING_REGISTERS * copying) // multiplying // unit * unit
    text = (
        f"{registers} registers in each of {multiplying} threads that multiply, and {COPYING_REGISTERS} in "
        f"each of {copying} that copy, exceed the {case.threads} x {start} registers of the block"
    )
    nearest = f"registers={fits}" if fits >= arch.role_registers[0] else "fewer groups"
    yield "registers", text, nearest, product


def fragments(case: ScheduleOnMachine) -> Reasons:
    """A thread holds its sums, and the operands in registers."""
    if not case.schedule.atom.asynchronous and not case.is_bulk and not case.schedule.alternates:
        yield from _accumulators(case)


def sums_beside(case: ScheduleOnMachine) -> Reasons:
    """Like `fragments`, for asynchronous atoms and for roles."""
    if case.schedule.atom.asynchronous or case.is_bulk or case.schedule.alternates:
        yield from _accumulators(case)


BESIDE_SUMS = 26
"""Registers of a thread besides the sums of ``wgmma``.

With fewer, ptxas of CUDA 13.0 and 13.5 refuses the instruction (for 128 sums, "register target of 154 or
higher"), or keeps sums in memory.
"""


def _accumulators(case: ScheduleOnMachine) -> Reasons:
    arch, schedule = case.arch, case.schedule
    if not case.target.warps or not 0 < case.threads <= arch.threads:
        return
    limit = min(arch.thread_registers, arch.registers_of_each(case.threads))
    if case.is_bulk and schedule.registers:
        limit = schedule.registers
    beside = BESIDE_SUMS if schedule.atom.asynchronous else 0
    taken = case.accumulators + case.held + beside
    if taken <= limit:
        return
    operands = f" and {case.held} for operands" if case.held else ""
    operands += f" and {beside} for addresses" if beside else ""
    promoted = ", half of them for promotion" if schedule.promote else ""
    text = f"{case.accumulators} registers per thread for sums{promoted}{operands}; a thread has {limit}"
    yield "tile", text, f"a smaller tile{_if_rows_fit(case)}, or more warps", case.form.sum


_TRIED_DIVISORS = 1 << 16
"""Largest trial divisor.  All divisors of a number below its square are found, in some milliseconds."""


def near_divisor(value: int, whole: int) -> int:
    """Return the divisor of ``whole`` that is nearest to ``value``; the smaller one of two equally near.

    The search takes as long for a whole of any size.  If both numbers are far beyond the extent of a tile (a
    value over 2^15, a whole over 2^32), the answer is a divisor, but a nearer one may exist.

    Example:
        >>> near_divisor(48, 128), near_divisor(300, 128), near_divisor(48, 3 << 62)
        (32, 128, 48)
    """
    small = [n for n in range(1, min(isqrt(whole), _TRIED_DIVISORS) + 1) if whole % n == 0]
    return min((*small, *(whole // n for n in small)), key=lambda n: (abs(n - value), n))


def together(case: ScheduleOnMachine) -> Reasons:
    """The depth of a tile is a multiple of K1, the staging can fill this layout, and extra rows need a K1."""
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
    """Grouped rows: refuse fields that need the sizes of groups, which are known only on the device."""
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
