"""The rules of schedules: closed formulas that say what is wrong, of which value, and what would be right.

`OF_KERNELS` predict which rules the expanded kernel would break, which a test compares for many schedules;
`OF_MEANING` refuse what it would get silently wrong: products of fewer bits than the kernel asks for, groups
that wait for each other for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from tilewright.arch import BULK, REFERENCE
from tilewright.dataflow.nodes import Node, Reduce, Store
from tilewright.schedule.bulk import COPYING_REGISTERS, COPYING_WARPS
from tilewright.schedule.bulk_arrays import against_array
from tilewright.schedule.resources import Case
from tilewright.targets.atoms import TENSOR_CORE, fma, is_listed, spelled

REPEATED_ROWS = 8
"""Rows of 128 bytes after which the swizzle repeats."""

Reasons = Iterator[tuple[str, str, str, Node | Store]]
"""What is wrong: the field, in a sentence with the value and the limit, the nearest legal choice, of what."""


# ---------------------------------------------------------------- the tile and its instruction


def _whole_atoms(case: Case) -> Reasons:
    """The tile is made of whole atoms of each warp of each group."""
    schedule, units = case.schedule, case.units
    if case.tile == schedule.tile:
        return
    parts = f"one {schedule.atom} for each of {schedule.warps[0]} x {schedule.warps[1]} warps"
    groups = f" of {case.cooperating} groups" if case.cooperating > 1 else ""
    text = f"{schedule.tile} is no multiple of {units}, {parts}{groups}"
    yield "tile", text, f"tile={case.tile}", case.form.sum


def _operands(case: Case) -> Reasons:
    """The atom multiplies what the kernel multiplies."""
    atom, product = case.schedule.atom, case.form.sum
    for side, kind in zip(case.sides, (atom.a_dtype, atom.b_dtype), strict=True):
        view = side.factor.view.dtype
        if view != kind:
            text = f"{atom} takes {side.label} of {kind}; {side.factor.name} is multiplied as {view}"
            yield "atom", text, _fitting(case), product


def _exactness(case: Case) -> Reasons:
    """Products are as exact as the kernel asks, sums are added in its dtype, and operands are decoded."""
    atom, product = case.schedule.atom, case.form.sum
    for side in case.sides:
        if not side.factor.is_plain and case.schedule.staging != "fragments":
            text = f"{side.label} is computed from {side.factor.name}, for which this staging has no place"
            yield "staging", text, 'staging="fragments"', product
    if atom.c_dtype != product.dtype:
        yield "atom", f"{atom} adds in {atom.c_dtype}, the kernel in {product.dtype}", _fitting(case), product
    if atom.precision is not None and case.form.precision == "exact":
        text = f"{atom} multiplies {atom.precision} fraction bits of {atom.a_dtype}; the kernel asks for all"
        yield "atom", text, _fitting(case), product


def _fitting(case: Case) -> str:
    """An atom that multiplies what the kernel does."""
    kind, product, arch = case.form.a.view.dtype, case.form.sum, case.arch
    listed = TENSOR_CORE.get(kind.name)
    if (
        listed is not None
        and (listed.b_dtype, listed.c_dtype) == (case.form.b.view.dtype, product.dtype)
        and (listed.feature in arch.features or not case.target.machine_code)
        and (listed.precision is None or case.form.precision != "exact")
    ):
        return f"atom={spelled(listed)}"
    return f"atom={spelled(fma(kind, product.dtype))}"


def _executed(case: Case) -> Reasons:
    """The machine executes the atom."""
    atom, arch, product = case.schedule.atom, case.arch, case.form.sum
    if case.target.warps:
        if not is_listed(atom) or (atom.feature and atom.feature not in arch.features):
            yield "atom", f"{arch.name} does not execute {atom}", _fitting(case), product
        elif max(kind.components for kind in (atom.a_dtype, atom.b_dtype, atom.c_dtype)) > 1:
            yield "atom", f"{arch.name} multiplies no complex numbers at once, as {atom} does", "", product
        if not atom.asynchronous and atom.lanes != arch.lanes:
            text = f"{atom} is executed by {atom.lanes} lanes, a warp of {arch.name} has {arch.lanes}"
            yield "atom", text, f"an atom of {arch.lanes} lanes", product
    elif case.target.machine_code and atom.asynchronous:
        text = f"{arch.name} multiplies nothing in the background, as {atom} does"
        yield "atom", text, _fitting(case), product


def _alone(case: Case) -> Reasons:
    """What is packed for one thread is multiplied by one thread."""
    atom, schedule = case.schedule.atom, case.schedule
    threads = case.mma.threads
    if schedule.staging == "panels" and threads > 1:
        text = f"{threads} threads; what lies in panels is packed and multiplied by one"
        one = f'tw.atoms.fma("{atom.a_dtype}", acc="{atom.c_dtype}", lanes=(1, 1), each=(6, 16))'
        yield "staging", text, f'staging="direct", or atom={one} and warps=(1, 1)', case.form.sum


def _asynchronous(case: Case) -> Reasons:
    """What an asynchronous atom asks of its operands in shared memory."""
    atom, schedule = case.schedule.atom, case.schedule
    if not atom.asynchronous:
        return
    if schedule.staging == "fragments":
        text = f"{atom} takes B from shared memory, not from registers"
        yield "staging", text, 'staging="cp_async"', case.form.sum
    for side, unit in zip(case.sides, atom.shape[:2], strict=True):
        if side.along_rows and "mn" not in atom.majors:
            text = (
                f"{side.factor.name} is contiguous along {side.factor.row.name}; {atom} takes operands that "
                f"are contiguous along {side.factor.depth.name}"
            )
            yield "atom", text, f"{_fitting(case)}, or {side.factor.name} transposed", side.factor.part
        elif side.along_rows and unit < side.rows and unit % side.width:
            text = (
                f"{side.factor.name} is contiguous along {side.factor.row.name} and lies in rows of "
                f"{side.width}, of which {atom} takes {unit} at a time"
            )
            yield "atom", text, f"an atom of {-(-unit // side.width) * side.width}", side.factor.part


def _rows_of_128_bytes(case: Case) -> Reasons:
    """Operands under the swizzle consist of whole rows of 128 bytes, in whole repeats of 8 rows."""
    depth = case.schedule.tile[2]
    if not case.is_swizzled:
        return
    for side in case.sides:
        m, n, k = case.tile
        if side.along_rows and "mn" in case.schedule.atom.majors and side.rows % side.width:
            rows = -(-side.rows // side.width) * side.width * max(side.sharing, 1)
            text = (
                f"{side.rows} rows of {side.factor.name}, which is contiguous along them, are no multiple of "
                f"{side.width} {side.dtype}, 128 bytes"
            )
            near = (rows, n, k) if side.label == "A" else (m, rows, k)
            yield "tile", text, f"tile={near}", side.factor.part
        elif not side.along_rows and depth % side.width:
            near = (m, n, max(round(depth / side.width), 1) * side.width)
            text = f"a depth of {depth} {side.dtype} is no multiple of {side.width} {side.dtype}, 128 bytes"
            yield "tile", text, f"tile={near}", side.factor.part


# ---------------------------------------------------------------- stages, roles, blocks


def _stages(case: Case) -> Reasons:
    """A ring holds what it needs, and a staging without a ring one tile."""
    stages, staging = case.schedule.stages, case.schedule.staging
    if staging in ("direct", "panels", "registers") and stages > 1:
        text = f'{stages} stages; with staging="{staging}" shared memory holds one tile'
        yield "stages", text, "stages=1", case.form.sum
    elif staging in ("cp_async", "fragments", "tma") and stages < 2:
        text = f"{stages} stage; a ring needs one that is filled while another is multiplied"
        yield "stages", text, "stages=2", case.form.sum


def _parts(case: Case) -> Reasons:
    """Two sets of registers take turns at the parts of a tile, which therefore are even in number."""
    if case.schedule.staging != "fragments":
        return
    (m, n, k), depth = case.tile, case.schedule.atom.shape[2]
    parts = k // depth
    if parts % 2:
        text = f"a depth of {k} is {parts} of {depth}, for which two sets of registers take turns"
        yield "tile", text, f"tile={(m, n, k + depth)}", case.form.sum
    decodes = not all(side.factor.is_plain for side in case.sides)
    if decodes and parts == 2 and case.schedule.stages == 2:
        text = f"2 stages of {parts} parts; what is decoded is loaded two parts before it is multiplied"
        yield "stages", text, f"stages=3, or tile={(m, n, 2 * k)}", case.form.sum


def _roles(case: Case) -> Reasons:
    """Who copies by bulk copies has a role of its own; groups play ping-pong over several tiles."""
    schedule, product = case.schedule, case.form.sum
    roles, groups = schedule.roles, schedule.groups
    if roles == "none" and case.is_bulk:
        text = 'roles="none"; bulk copies are issued by a warp that does nothing else'
        yield "roles", text, 'roles="cooperative"', product
    if roles != "none" and not case.is_bulk:
        text = f'roles="{roles}" with staging="{schedule.staging}", in which all warps copy'
        yield "roles", text, 'roles="none", or staging="tma"', product
    if groups > 1 and roles == "none":
        yield "groups", f"{groups} groups without roles", "groups=1", product
    if roles == "ping-pong" and groups < 2:
        yield "groups", f"{groups} group; ping-pong is played by several", "groups=2", product
    if roles == "ping-pong" and not schedule.blocks:
        text = "a block for each tile; groups that play ping-pong take one tile after the other"
        yield "blocks", text, "blocks=132, or as many as the machine has multiprocessors", product
    if schedule.group_m and schedule.group_n:
        text = f"bands of {schedule.group_m} rows and of {schedule.group_n} columns of tiles at once"
        yield "group_n", text, "group_n=0, or group_m=0", product
    if roles == "none" and schedule.epilogue == "overlapped":
        text = 'warps of their own store under multiplications, and roles="none" has none'
        yield "epilogue", text, 'epilogue="staged"', case.form.stores[0]


def _shared_by_clusters(case: Case) -> Reasons:
    """Blocks of a cluster copy equal parts of the operands that they share."""
    schedule = case.schedule
    if schedule.cluster == (1, 1):
        return
    if not case.is_bulk:
        text = f"{schedule.cluster} blocks of a cluster share operands by bulk copies alone"
        yield "cluster", text, "cluster=(1, 1)", case.form.sum
        return
    for side in case.sides:
        parts, rows = case.parts(side), max(side.sharing, 1) * side.rows
        unit = side.width if side.along_rows else 1
        if rows % (parts * unit):
            units = f", which come in units of {unit}" if unit > 1 else ""
            text = f"{parts} blocks share {rows} rows of {side.factor.name}{units}: no equal parts"
            yield "cluster", text, "cluster=(1, 1)", side.factor.part


def _clusters(case: Case) -> Reasons:
    """The machine runs as many blocks together."""
    blocks, most = math.prod(case.schedule.cluster), case.arch.cluster
    if case.target.warps and blocks > most:
        has = f"at most {most}" if most > 1 else "no clusters"
        text = f"clusters of {blocks} blocks; {case.arch.name} has {has}"
        yield "cluster", text, "cluster=(1, 1)" if most == 1 else "cluster=(2, 1)", case.form.sum


def _storing_warps(case: Case) -> Reasons:
    """Warps that store find room beside the one that copies, in the role that gives its registers away."""
    if not case.is_bulk or not case.schedule.registers or 1 + case.storing_warps <= COPYING_WARPS:
        return
    text = f"a warp that copies and {case.storing_warps} that store; their role has {COPYING_WARPS}"
    yield "groups", text, f"groups={COPYING_WARPS - 1}, or registers=0", case.form.stores[0]


def _features(case: Case) -> Reasons:
    """The machine has what roles and bulk copies are made of."""
    schedule, arch, product = case.schedule, case.arch, case.form.sum
    on_cpu = case.target.machine_code and not case.target.warps
    if not on_cpu and arch.bulk is not None:
        return
    instead = "direct" if on_cpu else "cp_async"
    if case.is_bulk:
        yield "staging", f"{arch.name} has no bulk copies", f'staging="{instead}"', product
    elif schedule.roles != "none":
        yield "roles", f"{arch.name} has no roles of warps", 'roles="none"', product


# ---------------------------------------------------------------- resources


def _threads(case: Case) -> Reasons:
    """A block has no more threads than the machine's have."""
    most, count = case.arch.threads, case.threads
    if most and count > most:
        text = f"{count} threads of a block; {case.arch.name} has at most {most}"
        field = "groups" if case.schedule.groups > 1 else "warps"
        yield field, text, f"fewer {field}: {most} threads", case.form.sum


def _shared_bytes(case: Case) -> Reasons:
    """Shared memory holds the ring, the epilogue's buffers and the barriers."""
    most, count, schedule = case.arch.shared_bytes, case.shared_bytes, case.schedule
    if not most or count <= most:
        return
    parts = ", ".join(f"{buffer.name} {buffer.bytes}" for buffer in case.shared)
    text = f"{count} bytes of shared memory ({parts}); {case.arch.name} has {most}"
    for stages in range(schedule.stages - 1, 1, -1):
        if Case(replace(schedule, stages=stages), case.form, case.specs, case.arch).shared_bytes <= most:
            yield "stages", text, f"stages={stages}", case.form.sum
            return
    yield "tile", text, "a smaller tile", case.form.sum


def _role_registers(case: Case) -> Reasons:
    """What roles set: whole warpgroups, in units, and no more than the block is launched with."""
    registers, product = case.schedule.registers, case.form.sum
    if not case.is_bulk or not registers:
        return
    unit, (least, most) = REFERENCE.register_unit, REFERENCE.role_registers
    if registers % unit or not least <= registers <= most:
        nearest = min(max(round(registers / unit) * unit, least), most)
        text = f"{registers} registers; a multiple of {unit} from {least} to {most}"
        yield "registers", text, f"registers={nearest}", product
    warps = case.mma.threads // case.arch.lanes
    if warps % REFERENCE.role_warps:
        text = f"registers are set for whole warpgroups; a group has {warps} warps"
        yield "registers", text, f"registers=0, or groups of {REFERENCE.role_warps} warps", product
    if case.target.warps and 0 < case.threads <= case.arch.threads:
        yield from _register_file(case)


def _register_file(case: Case) -> Reasons:
    """All roles together take no more than all threads begin with."""
    arch, schedule = case.arch, case.schedule
    unit, copying = arch.register_unit, case.copying
    start = min(-(-arch.thread_registers // unit) * unit, arch.registers_of_each(case.threads))
    multiplying = case.threads - copying
    if COPYING_REGISTERS * copying + schedule.registers * multiplying <= start * case.threads:
        return
    fits = (start * case.threads - COPYING_REGISTERS * copying) // multiplying // unit * unit
    text = (
        f"{schedule.registers} registers of {multiplying} threads that multiply and {COPYING_REGISTERS} of "
        f"{copying} that copy; {case.threads} threads of {arch.name} begin with {start} each"
    )
    nearest = f"registers={fits}" if fits >= arch.role_registers[0] else "fewer groups"
    yield "registers", text, nearest, case.form.sum


def _fragments(case: Case) -> Reasons:
    """A thread holds its sums, and the operands that are there with them."""
    if not case.schedule.atom.asynchronous and not case.is_bulk:
        yield from _accumulators(case)


def _sums_beside(case: Case) -> Reasons:
    """The same of what is multiplied in the background, or by a role."""
    if case.schedule.atom.asynchronous or case.is_bulk:
        yield from _accumulators(case)


def _accumulators(case: Case) -> Reasons:
    arch, schedule = case.arch, case.schedule
    if not case.target.warps or not 0 < case.threads <= arch.threads:
        return
    limit = min(arch.thread_registers, arch.registers_of_each(case.threads))
    if case.is_bulk and schedule.registers:
        limit = schedule.registers
    taken = case.accumulators + case.held
    if taken <= limit:
        return
    operands = f" and {case.held} of operands" if case.held else ""
    promoted = ", half of them for promotion" if schedule.promote else ""
    text = f"{case.accumulators} registers of a thread for sums{promoted}{operands}; it has {limit}"
    yield "tile", text, "a smaller tile, or more warps", case.form.sum


# ---------------------------------------------------------------- arrays


def _bulk_operands(case: Case) -> Reasons:
    """Bulk copies load the operands, in boxes of up to 256 rows."""
    if not case.is_bulk:
        return
    for side in case.sides:
        part = side.factor.part
        for text, change in against_array(side.factor.name, side.spec):
            yield "staging", text, 'staging="cp_async"' + (f", or {change}" if change else ""), part
        if side.along_rows and case.tile[2] > BULK.extent:
            text = f"boxes of {case.tile[2]} elements of {side.factor.name} along {side.factor.depth.name}"
            near = f"tile={(*case.tile[:2], BULK.extent)}"
            yield "tile", f"{text}; bulk copies take at most {BULK.extent}", near, part
        elif not side.along_rows and case.box_rows(side) % REPEATED_ROWS and case.has_parts(side):
            rows = case.box_rows(side)
            text = f"boxes of {rows} rows of {side.factor.name}; under the swizzle they are multiples of 8"
            yield "tile", text, "an extent of the tile that is a multiple of 64", part


def _reductions(case: Case) -> Reasons:
    """What is reduced lies in the tile of one group, which is more than one element long."""
    for node in case.form.flow.walk():
        if not isinstance(node, Reduce):
            continue
        dim = 0 if node.argument.axes[node.axis] == case.form.m else 1
        what = f"{node.combine} along {(case.form.m, case.form.n)[dim].name}"
        if dim == 0 and case.cooperating > 1:
            text = f"{what}: groups that share a tile along its rows hold no column as a whole"
            yield "roles", text, 'roles="ping-pong", or groups=1', node
        if case.mma.tile[dim] == 1:
            yield (
                "tile",
                f"{what}: a tile of {case.tile} has nothing to reduce",
                "a tile that covers it",
                node,
            )


OF_KERNELS: tuple[Callable[[Case], Reasons], ...] = (
    _whole_atoms,
    _operands,
    _executed,
    _asynchronous,
    _rows_of_128_bytes,
    _features,
    _threads,
    _shared_bytes,
    _role_registers,
    _fragments,
    _bulk_operands,
    _clusters,
    _storing_warps,
    _reductions,
)
"""What an expanded kernel would break."""

OF_MEANING: tuple[Callable[[Case], Reasons], ...] = (
    _exactness,
    _alone,
    _stages,
    _parts,
    _roles,
    _shared_by_clusters,
    _sums_beside,
)
"""What an expanded kernel would get wrong though it breaks no rule."""
