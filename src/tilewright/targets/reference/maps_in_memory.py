"""Tensor maps in memory: a bulk copy by one has seen it, and it is of the array that the copy is of."""

from __future__ import annotations

from tilewright.ir.bulk_legality import box_of
from tilewright.ir.copies import Copy
from tilewright.ir.map_ops import MAP_WORDS
from tilewright.ir.maps_in_memory import in_plain_numbers
from tilewright.ir.types import MapInMemory, Value
from tilewright.targets.reference.findings import Kind
from tilewright.targets.reference.machine import Machine
from tilewright.targets.reference.state import Warp
from tilewright.views.boxes import Box
from tilewright.views.questions import strides


def acquire(warp: Warp, source: Value) -> None:
    """Note that a warp sees the map of a tensor."""
    if (held := source.tensor.map) is not None:
        warp.acquired.add(_place(warp, held))


def look_at_map(machine: Machine, warp: Warp, op: Copy) -> None:
    """Find a copy by a map that its warp has not acquired, or that is of another array or of other boxes."""
    tensor = op.ends[0]
    held, box = tensor.tensor.map, box_of(op)
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
            f"the tensor map at {_named(warp, held)} is {found}, which is none of {op.ends[0]}: where it "
            f"begins, its extents, its strides and the box are {wanted}"
        )
        machine.checker.waiting(Kind.MAP, warp.agent, op, None, reason, "read")


def _place(warp: Warp, held: MapInMemory) -> tuple[Value, int]:
    """The table, and where in it a map begins."""
    return held.table.buffer, warp.int(held.table.tensor.view.at((held.row, held.column)))


def _named(warp: Warp, held: MapInMemory) -> str:
    return f"[{warp.int(held.row)}, {held.column}] of {held.table}"
