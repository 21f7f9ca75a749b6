"""Integers that a kernel reads from memory, and what a run shows of them."""

from __future__ import annotations

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir.integer_ops import ReadIndex
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets.reference import peers
from tilewright.targets.reference.agents import WHOLE_WARP
from tilewright.targets.reference.findings import Kind
from tilewright.targets.reference.machine import Machine
from tilewright.targets.reference.memory import Buffer
from tilewright.targets.reference.state import Warp


def read_index(machine: Machine, warp: Warp, op: ReadIndex) -> int:
    """The integer that all lanes of a warp read; 0 outside of the array, or where it cannot be read."""
    view = op.source.tensor.view
    buffer, agent = peers.reach(machine.checker, warp, op, op.source, "read", machine.check), warp.agent
    if buffer is None:
        return 0
    at = np.array([warp.int(view.offset)], np.int64)
    everyone = np.array([WHOLE_WARP], np.int16)
    site = machine.checker.site(op, op.source, "read")
    inside = machine.keep_within(warp, agent, site, buffer, at[:, None], np.ones((1, 1), bool))
    if not evaluate(view.valid, warp.env):
        return 0
    if buffer.outside(at).any():
        if inside:
            reason = f"{buffer.owner} has the elements 0 to {len(buffer.elements) - 1}"
            machine.checker.defect(Kind.OUT_OF_BOUNDS, agent, site, buffer, at, everyone, reason)
        return 0
    found = int(buffer.elements[at[0]])
    if not machine.check:
        return found
    is_unwritten = is_poison(buffer, at)
    machine.checker.reads(agent, site, buffer, at, everyone)
    return 0 if is_unwritten else _within(machine, warp, op, found, (site, buffer, at, everyone))


def is_poison(buffer: Buffer, at: Array) -> bool:
    """Whether an element has no value yet: what it holds would make loops without an end."""
    if buffer.written or buffer.history is None:
        return False
    _, places, _ = buffer.places(at, np.zeros(1, np.int16))
    return bool((buffer.history.writes.event[places] == 0).any())


def _within(
    machine: Machine, warp: Warp, op: ReadIndex, found: int, access: tuple[int, Buffer, Array, Array]
) -> int:
    """What was read, or the nearest integer that the author declared possible."""
    low, stop = (None if end is None else warp.int(end) for end in (op.low, op.stop))
    wrong = ""
    nearest = found
    if low is not None and found < low:
        wrong, nearest = f"{found} is read, which is less than {low}", low
    elif stop is not None and found >= stop:
        wrong, nearest = f"{found} is read, which is not less than {stop}", max(stop - 1, low or 0)
    elif found % op.multiple:
        wrong = f"{found} is read, which is no multiple of {op.multiple}"
    if wrong:
        site, buffer, at, lanes = access
        said = {"low": op.low, "stop": op.stop, "multiple": op.multiple if op.multiple > 1 else None}
        span = "".join(f", {name}={end}" for name, end in said.items() if end is not None)
        reason = f"{wrong}, but the kernel says tw.index({op.source}{span})"
        machine.checker.defect(Kind.RANGE, warp.agent, site, buffer, at, lanes, reason)
    return nearest
