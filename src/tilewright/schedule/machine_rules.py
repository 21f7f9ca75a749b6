"""Rules of a machine for schedules: instructions, roles, threads, shared memory and registers."""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright.arch import REFERENCE
from tilewright.dataflow.nodes import Reduce
from tilewright.schedule.bulk import COPYING_REGISTERS, COPYING_WARPS
from tilewright.schedule.facts import Reasons
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.targets.atoms import TENSOR_CORE, fma, is_listed, spelled


def fitting(case: ScheduleOnMachine) -> str:
    """The argument for an atom that multiplies the kernel's dtypes."""
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
            yield (
                "atom",
                (f"{arch.name} has no instruction for complex products, which {atom} needs"),
                "",
                product,
            )
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
    """The machine's blocks may have this number of threads."""
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
    spans = (node.argument.axes[node.axis] for node in case.form.flow.walk() if isinstance(node, Reduce))
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
