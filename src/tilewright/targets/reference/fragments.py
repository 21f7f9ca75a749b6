"""Fragments: reading and writing registers, which asynchronous MMAs may be using at the same time."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir.ops import Op
from tilewright.ir.types import Value
from tilewright.targets.reference.findings import Kind
from tilewright.targets.reference.machine import Machine
from tilewright.targets.reference.state import Registers, Warp


def read(machine: Machine, warp: Warp, op: Op, value: Value) -> Array:
    """The values of a fragment, all of which must have been written; poison while an MMA uses it."""
    registers = held(machine, warp, value)
    _require_written(machine, warp, op, value, registers)
    if touch(machine, warp, op, value, "read"):
        return registers.values
    return machine.numbers.poison(value.dtype, (registers.values.shape[0], registers.values.shape[1]))


def held(machine: Machine, warp: Warp, value: Value) -> Registers:
    """A warp's part of a fragment; what was made in the role of other warps is there, and unwritten."""
    shape = machine.shape(warp, value.fragment.distribution)
    registers = warp.registers.get(value)
    if registers is None:
        registers = warp.registers[value] = Registers.blank(value.dtype, shape, machine.numbers)
    return registers.of_lanes(value.dtype, shape[0], machine.numbers)


def set_beyond(warp: Warp, value: Value, beyond: Array | None) -> None:
    """Remember which elements of a fragment lie beyond the edge of an array."""
    if beyond is not None and np.count_nonzero(beyond):
        warp.beyond[value] = beyond
    else:
        warp.beyond.pop(value, None)


def require_written(machine: Machine, warp: Warp, op: Op, value: Value) -> None:
    """Report elements of a fragment that nothing has written."""
    _require_written(machine, warp, op, value, held(machine, warp, value))


def _require_written(machine: Machine, warp: Warp, op: Op, value: Value, registers: Registers) -> None:
    if machine.check and np.count_nonzero(registers.written) < registers.written.size:
        missing = np.argwhere(~registers.written)
        lane, number = (int(i) for i in missing[0])
        thread = warp.rank * machine.lanes + lane
        element = tuple(int(i) for i in value.fragment.distribution.table[thread, number])
        machine.checker.registers(warp.agent, op, value, element, lane, len(missing))


def define(
    machine: Machine,
    warp: Warp,
    op: Op,
    value: Value,
    values: Array,
    *,
    fill: Any = None,
    beyond: Array | None = None,
) -> None:
    """Write all elements of a fragment.

    Args:
        machine: the machine.
        warp: whose part of it.
        op: what writes it.
        value: the fragment.
        values: its elements.
        fill: the number that they all are, in every thread.
        beyond: which of them lie beyond the edge of an array.
    """
    touch(machine, warp, op, value, "write")
    set_beyond(warp, value, beyond)
    warp.registers[value] = Registers(values, np.ones(values.shape, bool), fill=fill)


def touch(machine: Machine, warp: Warp, op: Op, value: Value, action: str) -> bool:
    """Note that an operation touches a fragment; whether no asynchronous MMA uses it."""
    warp.fenced.discard(value)
    flight = next((flight for flight in warp.flights if flight.value is value), None)
    if flight is None:
        return True
    if machine.check:
        closed = "mma_wait covers" if flight.group < warp.mma_group else "mma_commit closes"
        reason = f"the MMA may still be under way: no {closed} its group before this {action}"
        other = (flight.agent, flight.op)
        machine.checker.fragment(Kind.IN_FLIGHT, warp.agent, op, value, action, other, reason)
    return False
