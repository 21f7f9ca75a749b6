"""Legality of a schedule for a kernel, its arrays and a machine, checked before anything is expanded.

The rules in `OF_KERNELS` predict the violations of the expanded kernel; a test compares both for many
schedules.  The rules in `OF_MEANING` refuse kernels without violations that would compute wrong results or
never end.  A rule of one strategy is in its class (`against`).  `with_fallback` replaces bulk copies if they
cannot load an array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import chain

from tilewright.arch import BULK, Arch
from tilewright.dataflow.nodes import SUMMED, TF32
from tilewright.errors import Location, Origin, ScheduleError, Violation
from tilewright.ir.op import REGISTERS
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.facts import Reasons, against_waits
from tilewright.schedule.form import Form, added_arrivals, reduced_in_parts
from tilewright.schedule.inner import MOST_INNER, inner_unit
from tilewright.schedule.machine_rules import (
    against_groups,
    bounded,
    clusters,
    dealt,
    executed,
    features,
    fitting,
    fragments,
    grouped,
    interleaved,
    role_registers,
    shared_bytes,
    storing_warps,
    sums_beside,
    threads,
    together,
    turned,
    whole,
)
from tilewright.schedule.plans import multiplied_from_registers, slices
from tilewright.schedule.question import Question
from tilewright.schedule.resources import PARTITIONS, ScheduleOnMachine
from tilewright.schedule.row_sums import rows_of_a_are_of_c
from tilewright.schedule.schedule import Schedule, changed
from tilewright.schedule.sides import width
from tilewright.schedule.skipping import kept_results, square

# ---------------------------------------------------------------- reductions along rows and columns


def reduced(case: ScheduleOnMachine) -> Reasons:
    """A reduced dimension lies within the tile of one group, which has more than one element along it."""
    for node in case.form.reductions:
        dim = 0 if node.argument.axes[node.axis] == case.form.m else 1
        what = f"{node.combine} along {(case.form.m, case.form.n)[dim].name}"
        if dim == 0 and case.schedule.cooperating > 1 and not case.schedule.across:
            text = f"{what}: groups share the rows of a tile, so no group holds a whole column"
            yield "roles", text, 'roles="ping-pong", or groups=1', node
        if case.mma.tile[dim] == 1:
            text = f"{what}: a tile of {case.tile} has extent 1 in that direction"
            yield "tile", text, "a tile that covers it", node


def rows_added_up(case: ScheduleOnMachine) -> Reasons:
    """Sums of rows of operands need warps with all of K, and with the same rows as the accumulators."""
    schedule, form = case.schedule, case.form
    for node in form.row_sums:
        what = f"{node.variable or 'a value'} is the sum of rows of {node.part.operand.name}"
        if schedule.is_split or schedule.along_k > 1:
            text = f"{what}; split_k={schedule.split_k!r} and groups={schedule.groups} divide K among warps"
            yield "split_k", text, 'split_k=1, and groups=1 with roles="none"', node
        side = 0 if node.row == form.m else 1
        if multiplied_from_registers(schedule, side) and not (side == 0 and rows_of_a_are_of_c(case.mma)):
            text = f"{what}, operand {'AB'[side]}, and its threads hold other rows than the accumulators"
            yield "staging", text, 'staging="cp_async" or "registers", without bypass', node
    if form.row_sums and case.run:
        text = "rows are added up, and another operand is packed, so that lanes hold runs along K"
        yield "staging", text, 'staging="cp_async"', form.row_sums[0]


def inner_products(case: ScheduleOnMachine) -> Reasons:
    """One group of warps has all of K and all columns of an inner product, and reads it as operand A."""
    schedule, atom = case.schedule, case.schedule.atom
    for one in case.form.inner:
        node, unit = one.sum, inner_unit(case.rounded)
        most = case.tile[2] if case.is_swizzled else MOST_INNER
        what = f"{node.variable or 'a product'} is an operand of the product over {one.columns.name}"
        if one.side:
            text = f"{what}, as operand B; a schedule computes it as operand A only"
            yield "swap_ab", text, f"swap_ab={not schedule.swap_ab}", node
        if schedule.is_split or schedule.along_k > 1:
            text = f"{what}; split_k={schedule.split_k!r} and groups={schedule.groups} divide K among warps"
            yield "split_k", text, 'split_k=1, and groups=1 with roles="none"', node
        if schedule.promote:
            text = f"{what}; promote={schedule.promote} would promote its sums, too"
            yield "promote", text, "promote=0", node
        if schedule.alternates:
            text = f'{what}; roles="alternating": each group has only half of the tile of the other operand'
            yield "roles", text, 'roles="none", groups=1 and stages=1', node
        if schedule.cluster[1] > 1:
            text = (
                f"cluster={schedule.cluster}; {what}, whose loop has no operand A that blocks along N share"
            )
            yield "cluster", text, f"cluster={(schedule.cluster[0], 1)}", node
        if case.staging.by_parts or schedule.bypass:
            text = f"{what}; its operands are multiplied from shared memory"
            yield "staging", f"{text}, and not from registers", 'staging="cp_async", bypass=""', node
        if atom.asynchronous and not all(factor.is_plain for factor in case.form.factors):
            text = f"{what}, and another operand is decoded, which {atom} takes from registers"
            yield "atom", text, fitting(case), node
        if "k" in schedule.whole:
            text = f'whole="{schedule.whole}"; {what}, whose columns seldom fill a tile'
            yield "whole", text, f'whole="{schedule.whole.replace("k", "")}"', node
        if schedule.width % unit or not 0 < schedule.width <= most:
            near = min(max(-(-schedule.width // unit) * unit, unit), max(most // unit, 1) * unit)
            text = f"width={schedule.width}; {what}, and its columns are multiples of {unit} up to {most}"
            other = f", or a kernel of its own for {node.variable or 'it'}, if it has more columns"
            yield "width", text, f"width={near}{other if not schedule.width else ''}", node


def reduced_across(case: ScheduleOnMachine) -> Reasons:
    """Reductions across tiles combine one result of each tile, so the kernel must allow partial results."""
    schedule, form = case.schedule, case.form
    if not schedule.across:
        return
    if not reduced_in_parts(form):
        text = "across=True; the kernel must reduce, and may only store each reduction along one dimension"
        yield "across", text, "across=False", form.stores[0]
    if schedule.cluster != (1, 1):
        text = f"across=True with cluster={schedule.cluster}; some blocks of a cluster may have no tile"
        yield "cluster", text, "cluster=(1, 1)", form.stores[0]


# ---------------------------------------------------------------- promoted sums and their scales


def scaled(case: ScheduleOnMachine) -> Reasons:
    """The products that are added before they are scaled share one scale."""
    every, (m, n, depth) = case.form.scaled_every, case.tile
    if not every:
        return
    schedule, product = case.schedule, case.form.sum
    if every % depth:
        near = next(k for k in range(min(every, depth), 0, -1) if every % k == 0 and k % case.units[2] == 0)
        text = f"tiles of depth {depth}, and each scale covers {every} elements along K"
        yield "tile", text, f"tile={(m, n, near)}, promote={every // near}", product
        return
    most = every // depth
    if not schedule.promote or most % schedule.promote:
        count = schedule.promote * depth or "all"
        rule = f"each scale covers {every} products"
        text = f"promote={schedule.promote} adds up {count} products before scaling, and {rule}"
        yield "promote", text, f"promote={most}", product
    elif schedule.promote > 1 and schedule.is_streamed:
        text = (
            f'split_k="stream" with promote={schedule.promote}; the share of a block may end between '
            "these tiles"
        )
        yield "split_k", text, 'split_k="auto"', product


def sliced(case: ScheduleOnMachine) -> Reasons:
    """Sums that are promoted slice by slice are stored slice by slice: no fragment holds a whole row."""
    columns = case.mma.tile[1]
    count = slices(case.mma, case.schedule.promote)
    if count == 1:
        return
    if case.epilogue.stores_slices(case, columns // count):
        return
    text = (
        f"{count} slices of {columns // count} columns (the width of the atom) are promoted one after the "
        "other, and the epilogue must store them slice by slice"
    )
    near = f'an atom of {columns} columns, or promote=2, or roles, epilogue="staged" and split_k=1'
    yield "atom", text, near, case.form.sum


# ---------------------------------------------------------------- operands decoded inside the main loop


def decoded(case: ScheduleOnMachine) -> Reasons:
    """The staging can decode operands in registers, between memory and the instruction."""
    atom, form, by_threads = case.schedule.atom, case.form, 'staging="fragments" and an atom of mma.sync'
    for side in case.sides:
        if side.factor.is_plain or case.staging.decodes_operand(case, side):
            continue
        computed = f"{side.label} is computed from {side.factor.name}"
        plain_a = [one.name for one in form.rows_m if one.is_plain and one.depth == side.factor.depth]
        if not (case.is_bulk and atom.asynchronous):
            text = f"{computed}, and this staging cannot decode operands"
            yield "staging", text, 'staging="fragments"', form.sum
        # An asynchronous instruction takes operand A from registers, and B only from shared memory.
        elif side.label == "A" and plain_a:
            text = f"{computed} in one product and is {plain_a[0]} itself in another"
            yield "staging", text, by_threads, form.sum
        elif side.label == "B":
            text = (
                f"{computed}; {atom} reads B from shared memory, and bulk copies cannot decode it on the way"
            )
            if all(factor.is_plain for factor in form.rows_m):
                yield "swap_ab", text, f"swap_ab={not form.swap_ab}", form.sum
            else:
                yield "staging", text, by_threads, form.sum
        elif REGISTERS not in atom.a_places:
            text = f"{computed}; {atom} takes no operand from registers"
            yield "staging", text, 'staging="fragments"', form.sum


REPEATED_ROWS = 8
"""Rows of 128 bytes after which the swizzle repeats."""


# ---------------------------------------------------------------- the tile and its instruction


def whole_atoms(case: ScheduleOnMachine) -> Reasons:
    """The tile is made of whole atoms of each warp of each group."""
    schedule, units = case.schedule, case.units
    if case.tile == schedule.tile:
        return
    parts = f"one {schedule.atom} for each of {schedule.warps[0]} x {schedule.warps[1]} warps"
    groups = f" of {case.schedule.cooperating} groups" if case.schedule.cooperating > 1 else ""
    text = f"{schedule.tile} is no multiple of {units}, {parts}{groups}"
    yield "tile", text, f"tile={case.tile}", case.form.sum


def whole_parts(case: ScheduleOnMachine) -> Reasons:
    """A tile that is multiplied part by part consists of whole parts; the rest would be left out."""
    if case.staging.by_parts and case.schedule.tile[2] % case.units[2]:
        yield from whole_atoms(case)


def operands(case: ScheduleOnMachine) -> Reasons:
    """The atom must multiply the dtypes of the kernel's operands."""
    atom, product = case.schedule.atom, case.form.sum
    for side in case.sides:
        view, kind = side.factor.view.dtype, (atom.a_dtype, atom.b_dtype)[side.at]
        if view != kind:
            text = f"{atom} takes {side.label} as {kind}; the kernel multiplies {side.factor.name} as {view}"
            yield "atom", text, fitting(case), product


def exactness(case: ScheduleOnMachine) -> Reasons:
    """Products are as exact as the kernel asks, and sums are added in its dtype."""
    atom, product = case.schedule.atom, case.form.sum
    if atom.c_dtype != product.dtype:
        yield "atom", f"{atom} adds in {atom.c_dtype}, the kernel in {product.dtype}", fitting(case), product
    if case.form.precision == SUMMED and atom.sum_bits is not None and not case.schedule.promote:
        text = f"{atom} keeps {atom.sum_bits} bits of its sums; the kernel asks for sums in full f32"
        yield "promote", text, "promote=2", product
    yield from scaled(case)
    yield from sliced(case)
    if atom.precision is not None and case.form.precision != TF32:
        rule = "the kernel asks for all fraction bits"
        text = f"{atom} multiplies {atom.precision} fraction bits of {atom.a_dtype}; {rule}"
        yield "atom", text, fitting(case), product


def asynchronous(case: ScheduleOnMachine) -> Reasons:
    """Rules of an asynchronous atom for its operands in shared memory."""
    atom = case.schedule.atom
    if not atom.asynchronous:
        return
    if case.staging.by_parts:
        text = f"{atom} takes B from shared memory, not from registers"
        yield "staging", text, 'staging="cp_async"', case.form.sum
    for side in case.sides:
        if not side.factor.is_plain:
            continue  # the instruction does not see its layout in memory
        unit = atom.shape[side.at]
        if side.along_rows and "mn" not in atom.majors:
            rule = f"{atom} takes operands that are contiguous along {side.factor.depth.name}"
            text = f"{side.factor.name} is contiguous along {side.factor.row.name}; {rule}"
            yield "atom", text, f"{fitting(case)}, or {side.factor.name} transposed", side.factor.part
        elif side.along_rows and unit < side.rows and unit % side.width:
            text = (
                f"{side.factor.name} is contiguous along {side.factor.row.name} and is stored in rows of "
                f"{side.width} elements; {atom} takes {unit} at a time"
            )
            yield "atom", text, f"an atom of {-(-unit // side.width) * side.width}", side.factor.part


def rows_of_128_bytes(case: ScheduleOnMachine) -> Reasons:
    """Operands under the swizzle consist of whole rows of 128 bytes, in whole repeats of 8 rows."""
    depth = case.schedule.tile[2]
    if not case.is_swizzled:
        return
    for side in case.sides:
        m, n, k = case.tile
        taken = "mn" in case.schedule.atom.majors or not side.factor.is_plain
        if side.along_rows and taken and side.rows % side.width:
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


def ring_length(case: ScheduleOnMachine) -> Reasons:
    """A ring has the stages that it needs, and a staging without a ring has one."""
    stages, staging = case.schedule.stages, case.schedule.staging
    if case.schedule.alternates:
        return
    if case.staging.most_stages == 1 and stages > 1:
        text = f'{stages} stages; with staging="{staging}" shared memory holds one tile'
        yield "stages", text, "stages=1", case.form.sum
    elif stages < case.staging.least_stages:
        text = f"{stages} stage; a ring fills one stage while another is multiplied, and needs at least 2"
        yield "stages", text, "stages=2", case.form.sum


def strategies(case: ScheduleOnMachine) -> Reasons:
    """Each strategy has its own rules; partitions also refuse schedules that ask for two of them."""
    yield from case.staging.against(case)
    for partition in PARTITIONS:
        yield from partition.against(case)
    yield from case.epilogue.against(case)


def bypassed(case: ScheduleOnMachine) -> Reasons:
    """An operand that bypasses shared memory is multiplied from the registers of the threads that load it."""
    bypass, product = case.schedule.bypass, case.form.sum
    if not bypass:
        return
    if not case.staging.through_registers:
        text = f'bypass="{bypass}" with staging="{case.schedule.staging}", which fills shared memory'
        yield "bypass", text, 'bypass="", or staging="registers"', product
    if case.schedule.atom.asynchronous:
        text = f'bypass="{bypass}"; {case.schedule.atom} takes its operands from shared memory'
        yield "bypass", text, f'bypass="", or {fitting(case)}', product


def roles_of_warps(case: ScheduleOnMachine) -> Reasons:
    """Bulk copies need their own role, ping-pong groups several tiles, alternating groups their staging."""
    schedule, product = case.schedule, case.form.sum
    roles, groups = schedule.roles, schedule.groups
    if roles == "none" and case.is_bulk:
        text = 'roles="none"; a separate warp must issue the bulk copies'
        yield "roles", text, 'roles="cooperative"', product
    if roles == "alternating" and not schedule.alternates:
        text = f'roles="alternating" with staging="{schedule.staging}", which does not support it'
        yield "roles", text, 'roles="none", or staging="registers"', product
    elif roles != "none" and not case.is_bulk and not schedule.alternates:
        text = f'roles="{roles}" with staging="{schedule.staging}"; with this staging all warps copy'
        other = "alternating" if schedule.staging_class.alternates and roles == "ping-pong" else "none"
        yield "roles", text, f'roles="{other}", or staging="tma"', product
    if groups > 1 and roles == "none" and schedule.along_k == 1:
        yield "groups", f'groups={groups} with roles="none"', "groups=1", product
    if roles in ("ping-pong", "alternating") and groups < 2:
        yield "groups", f'{groups} group; roles="{roles}" needs at least two', "groups=2", product
    if roles == "ping-pong" and not schedule.blocks:
        rule = "ping-pong groups need a persistent block that computes several tiles"
        text = f"blocks=0, one block for each tile; {rule}"
        yield "blocks", text, "blocks=132, or as many as the machine has multiprocessors", product
    if schedule.group_m and schedule.group_n:
        rule = "tiles are traversed in bands of rows or in bands of columns"
        text = f"group_m={schedule.group_m} and group_n={schedule.group_n}; {rule}"
        yield "group_n", text, "group_n=0, or group_m=0", product


def split_k(case: ScheduleOnMachine) -> Reasons:
    """Split K must agree with the blocks, roles, clusters and reduction of the schedule."""
    schedule, product = case.schedule, case.form.sum
    split = schedule.split_k
    if not schedule.is_split:
        return
    if isinstance(split, str) and not schedule.blocks:
        text = f'split_k="{split}" with blocks=0; it needs the number of blocks that run at the same time'
        yield "blocks", text, "blocks=132, or as many as the machine has multiprocessors", product
    if not isinstance(split, str) and schedule.blocks:
        rule = "a fixed number of parts has one block for each part"
        text = f"split_k={split} with blocks={schedule.blocks}; {rule}"
        yield "split_k", text, 'blocks=0, or split_k="auto" or "stream"', product
    if schedule.roles == "ping-pong":
        text = 'roles="ping-pong"; ping-pong groups take whole tiles, and split K gives parts of tiles'
        yield "roles", text, 'roles="cooperative"', product
    if schedule.cluster != (1, 1) and (schedule.is_streamed or schedule.is_clustered):
        alone = 'split_k="stream"' if schedule.is_streamed else f'reduction="{schedule.reduction}"'
        rule = "blocks that share operands must compute the same part of K"
        text = f"cluster={schedule.cluster} with {alone}; {rule}"
        yield "cluster", text, 'cluster=(1, 1), or split_k="auto" with another reduction', product
    yield from case.reduction.against(case)


def shared_by_clusters(case: ScheduleOnMachine) -> Reasons:
    """Blocks of a cluster copy equal parts of the operands that they share."""
    schedule = case.schedule
    if schedule.cluster == (1, 1):
        return
    if not case.is_bulk:
        text = f"cluster={schedule.cluster}; the blocks of a cluster share operands only by bulk copies"
        yield "cluster", text, "cluster=(1, 1)", case.form.sum
        return
    for side in case.sides:
        parts, rows = case.parts(side), max(side.sharing, 1) * side.rows
        unit = side.width if side.along_rows else 1
        if rows % (parts * unit):
            units = f", which come in units of {unit}" if unit > 1 else ""
            text = f"{parts} blocks share {rows} rows of {side.factor.name}{units}; the parts must be equal"
            yield "cluster", text, "cluster=(1, 1)", side.factor.part


# ---------------------------------------------------------------- arrays


def bulk_operands(case: ScheduleOnMachine) -> Reasons:
    """Bulk copies load the operands, in boxes of up to 256 rows."""
    if not case.is_bulk:
        return
    copied_too = case.schedule.staging_class.copies_too
    for side in (one for one in case.sides if not copied_too or case.is_carried(one)):
        part = side.factor.part
        for text, change in case.against_load(side):
            yield "staging", text, 'staging="cp_async"' + (f", or {change}" if change else ""), part
        if side.along_rows and case.tile[2] > BULK.extent:
            text = f"boxes of {case.tile[2]} elements of {side.factor.name} along {side.factor.depth.name}"
            near = f"tile={(*case.tile[:2], BULK.extent)}"
            yield "tile", f"{text}; bulk copies take at most {BULK.extent}", near, part
        elif side.along_rows and case.tile[2] % REPEATED_ROWS:
            text = f"boxes of {case.tile[2]} rows of {side.factor.name}"
            text += "; the swizzle needs a multiple of 8 rows"
            near = f"tile={(*case.tile[:2], -(-case.tile[2] // REPEATED_ROWS) * REPEATED_ROWS)}"
            yield "tile", text, near, part
        elif not side.along_rows and case.box_rows(side) % REPEATED_ROWS and case.has_parts(side):
            rows = case.box_rows(side)
            text = f"boxes of {rows} rows of {side.factor.name}; the swizzle needs a multiple of 8 rows"
            yield "tile", text, "an extent of the tile that is a multiple of 64", part


def mirrored(case: ScheduleOnMachine) -> Reasons:
    """A symmetric result needs whole tiles of a square grid; tiles below the diagonal are stored twice."""
    schedule, second = case.schedule, case.form.mirrored
    if not second:
        return
    name, form = second[0].operand.name, case.form
    kept = kept_results(form, form.n)
    lines = [{(frozenset(line.factors), line.integers) for line in (one.line for one in kept)}]
    exchanged = {form.m: form.n, form.n: form.m}
    lines += [{(frozenset((exchanged[span], by) for span, by in line), rest) for line, rest in lines[0]}]
    if lines[0] != lines[1]:
        text = f"{name} is stored below and above the diagonal, and its mask is not symmetric"
        near = "a value without a mask, which is masked where the result is read, or one store with a mask"
        yield "tile", text, near, second[0]
    if schedule.is_split or schedule.along_k > 1:
        text = f"split_k={schedule.split_k!r} and groups={schedule.groups} divide K among warps"
        text += f"; tiles of {name} are stored twice, each by the warps that have all of K"
        yield "split_k", text, 'split_k=1, and groups=1 with roles="none"', second[0]
    if schedule.balanced:
        text = (
            f"balanced=True; shares of rows and of columns differ, and {name} has a diagonal of square blocks"
        )
        yield "balanced", text, "balanced=False", second[0]
    (rows, columns), (across, beside) = schedule.tile[:2], schedule.cluster
    if not square((rows * across, columns * beside)):
        side = min(rows * across, columns * beside)
        text = f"tiles of {rows * across} rows and {columns * beside} columns, those of a cluster as one"
        text += f"; {name} is stored below and above the diagonal, and one extent must divide the other"
        yield "tile", text, f"tile={(side // across, side // beside, schedule.tile[2])}", second[0]


# ---------------------------------------------------------------- arrays in shards


def in_shards(case: ScheduleOnMachine) -> Reasons:
    """One block or one warp waits for shards; blocks store whole tiles, and count them."""
    schedule, form = case.schedule, case.form
    yield from against_waits(form.flow, case.arch)
    for one in form.flow.arrivals[:1]:
        what, along = f"{one.operand.name} arrives in shards", form.flow.round
        for dim, name in enumerate("mn"):
            other = f"group_{'nm'[dim]}"
            if along == (form.m, form.n)[dim] and getattr(schedule, other):
                text = f"{other}={getattr(schedule, other)}; {what} along {name}, and bands along {'nm'[dim]}"
                yield other, f"{text} need all of them at once", f"{other}=0, or group_{name}=8", one
        if schedule.balanced:
            text = f"balanced=True; {what}, whose tiles come in their order, and shares in that of the grid"
            yield "balanced", text, "balanced=False", one
        if schedule.staging_class.copies_too:
            text = f'staging="{schedule.staging}"; {what}: one warp waits for them, and four warps copy'
            yield "staging", text, 'staging="cp_async"', one
    for moved in form.flow.moved[:1]:
        what = f"{moved.operand.name} consists of shards"
        if schedule.batches > 1:
            text = f"batches={schedule.batches}; {what}, and a block takes tiles of one item"
            yield "batches", text, "batches=1", moved
        if schedule.alternates or schedule.along_k > 1:
            text = f"groups={schedule.groups}; {what}: warps that wait meet at a barrier"
            yield "groups", f"{text}, and such groups have none", 'groups=1 with roles="none"', moved
    for one in added_arrivals(form)[:1]:
        what = f"{one.operand.name} arrives in shards, and the warps that multiply wait before they read it"
        if schedule.is_split:
            text = f"split_k={schedule.split_k!r}; {what}: here several blocks compute a tile"
            yield "split_k", text, "split_k=1", one
        if schedule.epilogue_class.hands_over:
            text = f'epilogue="{schedule.epilogue}"; {what}: here other warps read it'
            yield "epilogue", text, f'epilogue="{schedule.epilogue_class.without_helpers}"', one
        if schedule.across:
            yield "across", f"across=True; {what}: here several blocks share rows", "across=False", one
    if (sent := form.flow.departure) is not None:
        what = f"{sent.operand.name} leaves in shards, and a block counts each tile that it stores"
        if schedule.is_split:
            text = f"split_k={schedule.split_k!r}; {what}: here several blocks compute a tile"
            yield "split_k", text, "split_k=1", sent
        if schedule.epilogue != "direct":
            text = f'epilogue="{schedule.epilogue}"; {what}: only epilogue="direct" stores it at once'
            yield "epilogue", text, 'epilogue="direct"', sent
        if schedule.across:
            yield "across", f"across=True; {what}: here several blocks share rows", "across=False", sent


OF_KERNELS: tuple[Callable[[ScheduleOnMachine], Reasons], ...] = (
    whole_atoms,
    operands,
    executed,
    asynchronous,
    rows_of_128_bytes,
    features,
    threads,
    shared_bytes,
    role_registers,
    fragments,
    bulk_operands,
    clusters,
    storing_warps,
    reduced,
)
"""Rules that the expanded kernel would break."""

OF_MEANING: tuple[Callable[[ScheduleOnMachine], Reasons], ...] = (
    decoded,
    exactness,
    ring_length,
    bypassed,
    together,
    dealt,
    turned,
    interleaved,
    whole,
    rows_added_up,
    inner_products,
    reduced_across,
    strategies,
    whole_parts,
    roles_of_warps,
    split_k,
    grouped,
    bounded,
    shared_by_clusters,
    sums_beside,
    mirrored,
    in_shards,
)
"""Rules without which the expanded kernel would be legal and wrong."""


def reasons(schedule: Schedule, form: Form, specs: Mapping[str, TensorSpec], arch: Arch) -> list[Violation]:
    """Every reason why a schedule is refused; none if it is legal.

    Args:
        schedule: the schedule.
        form: the form of the computation.
        specs: the classes of the arrays, by name.
        arch: the machine.

    Returns:
        The broken rules, each named by its field, with the author's line; no more than one of a kind.
    """
    # The same schedule is judged when it is proposed, chosen and expanded.
    key = (schedule, tuple(specs.items()), id(arch))
    if key not in form.judged:
        case = ScheduleOnMachine(schedule, form, specs, arch)
        rules, found = (*OF_MEANING, *OF_KERNELS), list[Violation]()
        for field, message, nearest, node in dict.fromkeys(reason for rule in rules for reason in rule(case)):
            where = node.location
            if where is not None:
                origin = Origin(node, where.frames, field, schedule.spelled(field))
                where = Location(where.frames, origin)
            found.append(Violation(field, message, nearest, where))
        form.judged[key] = arch, found
    return [*form.judged[key][1]]


def check(schedule: Schedule, form: Form, specs: Mapping[str, TensorSpec], arch: Arch) -> None:
    """Refuse a schedule that is not legal.

    Raises:
        ScheduleError: lists every reason, with the value, the limit and the nearest legal choice.
    """
    if found := reasons(schedule, form, specs, arch):
        raise ScheduleError(form.flow.name, arch.name, repr(schedule), found)


# ---------------------------------------------------------------- the fallback engine


def with_fallback(
    schedule: Schedule, form: Form, specs: Mapping[str, TensorSpec], arch: Arch
) -> tuple[Schedule, tuple[str, ...]]:
    """Replace bulk copies by the fallback engine if they cannot carry an operand.

    The instruction and the tile stay.  If bulk copies carry one operand, and rows of the other begin at
    multiples of 16 bytes, threads of the copying warps copy the other one by ``cp.async``
    (``staging="mixed"``).  Grouped rows do not use this staging: on an H200 two products of 8 groups of 1024
    chosen rows, 4096 by 14336, take 4825 us with it, and 3728 us without.  Otherwise the groups of warps that
    multiplied become one group that also copies: by ``cp.async`` if rows begin at multiples of 4 bytes, else
    through registers.  The ring keeps the stages for which shared memory has room in addition to the
    epilogue's buffers.

    Args:
        schedule: the schedule.
        form: the form.
        specs: the classes of the arrays, by name.
        arch: the machine.

    Returns:
        The schedule, and a note for each array that bulk copies do not move.  The schedule is unchanged, and
        will be refused, if no other engine is legal or the machine has no bulk copies.
    """
    case = ScheduleOnMachine(schedule, form, specs, arch)
    if not case.is_bulk or arch.bulk is None:
        return schedule, ()
    obstacles = {side.factor.name: next(case.against_load(side), None) for side in case.sides}
    kept = [reason for reason, _ in filter(None, obstacles.values())]
    kept += filter(None, (against_groups(case, side) for side in case.sides))
    if not kept:  # threads store some results: the schedule stays, and gets notes
        why: dict[str, str] = {}
        for store, reason in case.epilogue.against_bulk(case):
            why.setdefault(store.operand.name, reason)
        by = "is stored by threads, row by row, instead of TMA"
        return schedule, tuple(f"{name} {by}: {reason}" for name, reason in why.items())
    warps = (schedule.warps[0] * schedule.cooperating, schedule.warps[1])
    alone = changed(schedule, roles="none", groups=1, warps=warps, cluster=(1, 1))
    widest, least = min(width(side.spec) for side in case.sides), min(arch.async_bytes, default=math.inf)
    epilogues = dict.fromkeys((schedule.epilogue_without_helpers, "direct"))
    others = [width(side.spec) for side in case.sides if obstacles[side.factor.name] is not None]
    mixed = [
        changed(schedule, staging="mixed", epilogue=schedule.epilogue_without_helpers, cluster=cluster)
        for cluster in dict.fromkeys((schedule.cluster, (1, 1)))
        if min(others, default=0) >= max(arch.async_bytes, default=math.inf)
        and (form.flow.grouped is None or schedule.staging == "mixed")
    ]
    rings = (
        changed(alone, staging="cp_async", stages=stages, epilogue=epilogue)
        for stages in range(schedule.stages, 1, -1)
        for epilogue in epilogues
        if widest >= least
    )
    plain = (
        changed(alone, stages=1, epilogue="direct", staging=staging) for staging in ("registers", "direct")
    )
    tried = chain(mixed, rings, plain)
    found = next((one for one in tried if not reasons(one, form, specs, arch)), None)
    if found is None:
        return schedule, ()
    if found in mixed:
        pairs = ((name, reason) for name, reason in obstacles.items() if reason is not None)
        by = "is loaded by cp_async instead of TMA"
        return found, tuple(f"{name} {by}: {text}" for name, (text, _) in pairs)
    by = "through registers" if found.staging_class.through_registers else f"by {found.staging}"
    way = f"{' and '.join(side.factor.name for side in case.sides)} are loaded {by} instead of TMA"
    return found, tuple(f"{way}: {reason}" for reason in kept)


def is_carried(question: Question, schedule: Schedule) -> bool:
    """Whether a schedule is legal for a problem, and needs no fallback engine."""
    asked = question.form, question.classes, question.arch
    return with_fallback(schedule, *asked)[0] == schedule and not reasons(schedule, *asked)
