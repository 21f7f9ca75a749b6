"""The tensor memory accelerator, which copies boxes between global and shared memory in the background.

A load lands as late as possible, when a warp needs the phase of its barrier.  A store lands when the issuing
thread waits for its group.  Until then the target holds poison.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir.async_legality import box_of, in_plain_numbers
from tilewright.ir.copies import MAP_WORDS, Copy, is_bulk_store
from tilewright.ir.op import Op
from tilewright.ir.types import MapInMemory, Value
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets.reference import edges
from tilewright.targets.reference.agents import Actor, Proxy, Visibility
from tilewright.targets.reference.barriers import PendingLoad, TransactionBarrier
from tilewright.targets.reference.checker import Batch
from tilewright.targets.reference.findings import Kind
from tilewright.targets.reference.footprint import box_at, whole
from tilewright.targets.reference.machine import Simulator
from tilewright.targets.reference.memory import Storage
from tilewright.targets.reference.state import BlockState, BulkStore, Warp
from tilewright.views.boxes import Box
from tilewright.views.questions import strides

# ---------------------------------------------------------------- tensor maps in memory
# A bulk copy must have acquired its map, and the map must describe the copied array.


def acquire(warp: Warp, source: Value) -> None:
    """Note that a warp sees the map of a tensor."""
    if (held := source.tensor.map) is not None:
        warp.acquired.add(_place(warp, held))


def look_at_map(machine: Simulator, warp: Warp, op: Copy) -> None:
    """Report a copy by a map that its warp has not acquired, or that describes another array or box."""
    held, box = op.ends[0].tensor.map, box_of(op)
    if held is None or not isinstance(box, Box):
        return
    table, at = _place(warp, held)
    if (table, at) not in warp.acquired:
        reason = (
            f"the tensor map at {_named(warp, held)} was written by the host, and nothing lets bulk copies "
            "see it: tw.hopper.acquire_map of the tensor is missing before, by this warp"
        )
        machine.checker.waiting(Kind.PROXY, warp.agent, op, None, reason, "read")
    steps = strides(held.array)
    assert steps is not None, "arrays have strides"
    start = warp.int(held.array.at((0,) * held.array.rank))
    extents, places = ([warp.int(one) for one in several] for several in (held.array.shape, steps))
    wanted = in_plain_numbers(start, extents, places, box.spans)
    elements = warp.block.buffers[table].elements
    found = tuple(int(word) for word in elements[max(at, 0) : at + MAP_WORDS])
    if found != wanted:
        reason = (
            f"the tensor map at {_named(warp, held)} is {found}, which is none of {op.ends[0]}: its begin, "
            f"extents, strides and box are {wanted}"
        )
        machine.checker.waiting(Kind.MAP, warp.agent, op, None, reason, "read")


def _place(warp: Warp, held: MapInMemory) -> tuple[Value, int]:
    """Return the table of a map, and its offset in the table."""
    return held.table.buffer, warp.int(held.table.tensor.view.at((held.row, held.column)))


def _named(warp: Warp, held: MapInMemory) -> str:
    return f"[{warp.int(held.row)}, {held.column}] of {held.table}"


# ---------------------------------------------------------------- boxes


ALIGNMENT = {True: 1024, False: 128}
"""Alignment in bytes of a box in shared memory: 8 rows of 128 bytes with a swizzle, otherwise one row."""

STORE_BYTES = 16
"""Bytes of the units that a bulk store writes, from the beginning of a row."""


def load_box(
    machine: Simulator, warp: Warp, op: Copy, targets: Sequence[tuple[BlockState, TransactionBarrier]]
) -> None:
    """Begin a load, whose bytes count for the present phase of the barrier.

    Args:
        machine: the machine.
        warp: the warp that issues the copy.
        op: the copy.
        targets: the blocks whose shared memory is written, each with its barrier.
    """
    if machine.check:
        look_at_map(machine, warp, op)
        if op.source.tensor.indices:  # the integers that choose the box
            first = np.zeros((1, 1, op.source.tensor.view.rank), np.int64)
            machine.gathers.read(machine.checker, warp, op, op.source, first)
    tile = machine.footprints.box(op.target, warp.env)
    at, exists = whole(op.source, machine.gathers.environment(warp, op.source))
    source = warp.block.buffers[op.source.buffer]
    for block, barrier in targets:
        name = "TMA load" + ("" if block is warp.block else f" into block {block.index}")
        into = (block.buffers[op.target.buffer], tile, name)
        _load_into(machine, warp, op, into, (source, at, exists), barrier)


def _load_into(
    machine: Simulator,
    warp: Warp,
    op: Copy,
    into: tuple[Storage, Array, str],
    box: tuple[Storage, Array, Array],
    barrier: TransactionBarrier,
) -> None:
    """Begin the copy into the shared memory of one block."""
    target, tile, name = into
    source, at, exists = box
    agent = Actor(
        barrier.slot,
        warp.agent.slot,
        warp.block.index,
        warp.index,
        name,
        warp.agent.clocks,
        Proxy.ASYNC,
        barrier.phase + 1,
        warp.agent.issues,
        issuer=warp.agent.clocks,
        missing=f"no wait for {barrier.name} phase {barrier.phase}, on which it completes, comes before",
        rank=warp.agent.rank,
        group=warp.agent.group,
        device=warp.agent.device,
    )
    first = len(machine.checker.events.agents)
    usable = _usable(machine, agent, op, op.target, target, tile)
    if machine.check:
        _keep_within(machine, warp, agent, op, (op.source, source, at[exists]), (op.target, target, tile))
        _check(machine, agent, op, op.source, source, at[exists], "read")
        _check(machine, agent, op, op.target, target, tile[usable], "write")
        edges.mark(target, tile[usable], None)
    target.elements[tile[usable]] = machine.numbers.poison(op.target.dtype, ())

    def land() -> None:
        values = np.zeros(tile.shape, machine.numbers.storage(op.target.dtype))
        values[exists] = source.elements[at[exists]]
        target.elements[tile[usable]] = values[usable]
        edges.mark(target, tile[usable], ~exists[usable] if machine.check else None)

    events = range(first, len(machine.checker.events.agents))
    barrier.told.tell_order(warp.agent)
    size = tile.size * op.target.dtype.bytes
    barrier.loads.append(PendingLoad(op, agent, size, land, events))
    warp.note("load", barrier.slot, size, barrier.phase, op)


def store_box(machine: Simulator, warp: Warp, op: Copy) -> None:
    """Begin a bulk store; elements outside of the target are left out."""
    if machine.check:
        look_at_map(machine, warp, op)
    tile = machine.footprints.box(op.source, warp.env)
    at, exists = whole(op.target, warp.env)
    box = box_of(op)
    starts = [warp.int(start) for start in box.starts] if isinstance(box, Box) else []
    if machine.check and min(starts, default=0) < 0:
        reason = (
            f"a store by TMA begins at ({', '.join(map(str, starts))}), before the tensor; a GPU stops there"
        )
        machine.checker.waiting(Kind.OUT_OF_BOUNDS, warp.agent, op, None, reason, "store")
    source, target = (warp.block.buffers[value.buffer] for value in (op.source, op.target))
    if machine.check and isinstance(box, Box):
        _find_row_ends(machine, warp, op, target, box)
    moved = exists & _usable(machine, warp.stores, op, op.source, source, tile)
    if machine.check:
        boxes = (op.source, source, tile), (op.target, target, at[moved])
        _keep_within(machine, warp, warp.stores, op, *boxes)
        _check(machine, warp.stores, op, op.source, source, tile[moved], "read")
        _check(machine, warp.landings, op, op.target, target, at[moved], "write")
    if op.reduction is None:
        target.elements[at[moved]] = machine.numbers.poison(op.target.dtype, ())
    warp.bulk.append(BulkStore(warp.stores.time, op, source, tile[moved], target, at[moved]))


def _find_row_ends(machine: Simulator, warp: Warp, op: Copy, target: Storage, box: Box) -> None:
    """Report elements after the ends of rows, which a store overwrites in units of 16 bytes, as on an H200.

    Legality refuses such a target.  This check is for kernels that run without legality.
    """
    array, row = op.target.array, box.inner
    unit = STORE_BYTES // op.target.dtype.bytes
    extents = [int(evaluate(size, warp.env)) for size in array.shape]
    starts, sides, extent = [warp.int(start) for start in box.starts], list(box.sides), extents[row]
    past = min(-(-extent // unit) * unit, starts[row] + sides[row]) - extent
    if past <= 0 or starts[row] >= extent:
        return
    starts[row], sides[row], extents[row] = extent, past, extent + past
    at, exists = box_at(array, starts, sides, warp.env, extents)
    reason = (
        f"a store by TMA writes whole units of {STORE_BYTES} bytes: rows of {extent} elements end within "
        f"one, and the {past} elements after each row are overwritten; use tw.copy, or an extent that is a "
        f"multiple of {unit}"
    )
    site = machine.checker.site(op, op.target, "write")
    found = Batch.of_first_lane(warp.landings, site, target, at[exists])
    machine.checker.defect(Kind.OUT_OF_BOUNDS, found, reason)


def finish_stores(machine: Simulator, warp: Warp, pending: int) -> None:
    """Complete bulk stores until at most ``pending`` groups are left, and let the first lane know."""
    done = warp.stores.time - 1 - pending
    for store in (store for store in warp.bulk if store.group <= done):
        moved = store.source.elements[store.at]
        if store.op.reduction is None:
            store.target.elements[store.to] = moved
        else:
            kind = store.op.target.dtype
            machine.numbers.reduce_into(kind, store.target.elements, store.to, moved, store.op.reduction)
    warp.bulk = [store for store in warp.bulk if store.group > done]
    warp.agent.learn_time(Visibility.LANE, warp.stores.slot, done)


def _usable(machine: Simulator, agent: Actor, op: Copy, value: Value, buffer: Storage, tile: Array) -> Array:
    """Return which elements of a box lie in the allocation, and report the others."""
    outside = buffer.outside(tile.ravel()).reshape(tile.shape)
    if not machine.check:
        return np.asarray(~outside)
    site = machine.checker.site(op, value, "read" if is_bulk_store(op) else "write")
    start = buffer.address + int(tile.flat[0]) * value.dtype.bytes
    box = box_of(op)
    unit = ALIGNMENT[not isinstance(box, Box) or box.is_swizzled]
    if start % unit:
        reason = f"a box in shared memory starts at a multiple of {unit} bytes; this one at byte {start}"
        found = Batch.of_first_lane(agent, site, buffer, tile.ravel()[:1])
        machine.checker.defect(Kind.MISALIGNED, found, reason)
    if outside.any():
        machine.checker.outside(Batch.of_first_lane(agent, site, buffer, tile[outside]))
    return np.asarray(~outside)


def _keep_within(
    machine: Simulator, warp: Warp, agent: Actor, op: Op, *boxes: tuple[Value, Storage, Array]
) -> None:
    """Report boxes of slices that leave their tensors."""
    for (value, buffer, at), action in zip(boxes, ("read", "write"), strict=True):
        machine.keep_within(warp, agent, machine.checker.site(op, value, action), buffer, at.ravel())


def _check(
    machine: Simulator, agent: Actor, op: Copy, value: Value, buffer: Storage, at: Array, action: str
) -> None:
    checker = machine.checker
    batch = Batch.of_first_lane(agent, checker.site(op, value, action), buffer, at)
    if action == "read":
        checker.reads(batch)
    elif op.reduction is not None:
        checker.reduces(batch, op.reduction)
    else:
        checker.writes(batch)
