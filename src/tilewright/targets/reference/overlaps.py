"""Copies onto themselves: elements that one operation reads at one place of a tile and writes at another.

Accesses of one thread are in order, but a copy does not say in which: a target may move one vector after
another, or read all before it writes any.
"""

from __future__ import annotations

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir.ops import Copy
from tilewright.ir.types import Value
from tilewright.targets.reference import peers
from tilewright.targets.reference.agents import Agent
from tilewright.targets.reference.findings import Kind
from tilewright.targets.reference.machine import Machine
from tilewright.targets.reference.memory import Buffer
from tilewright.targets.reference.state import Warp
from tilewright.threads.distribution import Distribution

REASON = (
    "the same operation reads this element at another place of the tile, before or after it is written: "
    "bring all of it into registers first, with tw.load"
)


def find_overlap(machine: Machine, warp: Warp, op: Copy, agent: Agent) -> None:
    """Report elements that the lanes of a warp read and write in one copy, unless where they already are."""
    source, target = (peers.buffer(warp, value) for value in (op.source, op.target))
    if source is None or target is None:
        return
    if source.history is None or source.history is not target.history:
        return
    read = _places(machine, warp, op.source, op.spread, source)
    written = _places(machine, warp, op.target, op.spread, target)
    if read is None or written is None or not len(read[1]):
        return
    elements, places, inside, lanes = written
    _, known, known_inside, _ = read
    order = np.argsort(known, kind="stable")
    partner = order[np.searchsorted(known, places, sorter=order).clip(max=len(order) - 1)]
    moved = (known[partner] == places) & (known_inside[partner] != inside)
    if moved.any():
        site = machine.checker.site(op, op.target, "write")
        machine.checker.defect(Kind.OVERLAP, agent, site, target, elements[moved], lanes[moved], REASON)


def _places(
    machine: Machine, warp: Warp, value: Value, spread: Distribution, buffer: Buffer
) -> tuple[Array, Array, Array, Array] | None:
    """What a warp touches of a tensor: elements, their places in the history, in the tile, and the lanes."""
    footprint = machine.footprints.of(warp.rank, value, spread, machine.gathers.environment(warp, value))
    if footprint is None:
        return None
    usable = footprint.valid & ~buffer.outside(footprint.offsets.ravel()).reshape(footprint.valid.shape)
    elements = footprint.offsets[usable]
    inside = np.ravel_multi_index(tuple(np.moveaxis(footprint.coordinates[usable], -1, 0)), spread.shape)
    lanes = np.nonzero(usable)[0]
    at, places, lanes = buffer.places(elements, lanes)
    return at, places, np.repeat(inside, buffer.units), lanes
