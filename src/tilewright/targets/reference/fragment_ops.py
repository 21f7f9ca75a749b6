"""The rules of whole tiles in registers: reductions, other maps, coordinates.

Importing them adds them to `REFERENCE`.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir import fragment_ops as ops
from tilewright.targets.reference import edges
from tilewright.targets.reference.fragments import define, read
from tilewright.targets.reference.machine import Machine
from tilewright.targets.reference.meaning import REFERENCE
from tilewright.targets.reference.state import Padded, Warp
from tilewright.threads.distribution import registers
from tilewright.threads.registers import Reduction, registers_of

__all__ = ["REFERENCE"]


@REFERENCE.rule(ops.Reduce)
def _reduce(machine: Machine, warp: Warp, op: ops.Reduce) -> None:
    """Registers by their number, then lanes in pairs."""
    plan, numbers = op.plan, machine.numbers
    combine = numbers.combine(op.function, op.source.dtype)
    values = numbers.widen(read(machine, warp, op, op.source), op.source.dtype)
    beyond = _beyond(machine, warp, op, values) if op.source in warp.beyond else None
    parts = values[:, _registers(plan)]
    with np.errstate(all="ignore"):
        total = parts[..., 0]
        for part in range(1, parts.shape[-1]):
            total = combine(total, parts[..., part])
        lanes = np.arange(len(total))
        for digit in plan.lanes:
            apart = digit.weight
            while apart < digit.weight * digit.extent:
                total = combine(total, total[lanes ^ apart])
                apart *= 2
    define(machine, warp, op, op.result, numbers.narrowed(total, op.result.dtype), beyond=beyond)


def _beyond(machine: Machine, warp: Warp, op: ops.Reduce, values: Array) -> Array:
    """Which results lie beyond the edge of an array; those that mix what does with others are found."""
    registers, marks = _registers(op.plan), warp.beyond[op.source]
    neutral = edges.is_neutral(op, values, marks, machine.signs)
    made, mixed = edges.of_reduce(op, marks[:, registers], neutral[:, registers])
    if mixed.any():
        wrong = (marks & ~neutral)[:, registers] & mixed[..., None]
        if op.function == "sum" and machine.signs.sole_user(op.result) is not None:
            _defer(machine, warp, op, values, wrong, mixed)
        elif wrong.any():  # else another warp's lane shows it
            _report(machine, warp, op, values, wrong)
    return made


def _report(machine: Machine, warp: Warp, op: ops.Reduce, values: Array, wrong: Array) -> None:
    registers = _registers(op.plan)
    lane, result, part = (int(i) for i in np.argwhere(wrong)[0])
    number = int(registers[result, part])
    thread = warp.rank * machine.lanes + lane
    element = tuple(int(i) for i in op.source.fragment.distribution.table[thread, number])
    changed = f"which changes the {op.function} of elements inside"
    what, place = f"{edges.spelled(values[lane, number])}, {changed}", (element, lane)
    edges.report(machine.checker, warp.agent, op, op.source, place, what, int(wrong.sum()))


def _defer(machine: Machine, warp: Warp, op: ops.Reduce, values: Array, wrong: Array, mixed: Array) -> None:
    """Let the operation that uses a sum take off what elements beyond an edge added to it."""
    parts = np.where(wrong, values[:, _registers(op.plan)].astype(np.float64), 0)
    share, sizes = parts.sum(-1), np.abs(parts).sum(-1)
    lanes = np.arange(len(share))
    for digit in op.plan.lanes:
        apart = digit.weight
        while apart < digit.weight * digit.extent:
            share, sizes = share + share[lanes ^ apart], sizes + sizes[lanes ^ apart]
            apart *= 2
    extent = op.source.fragment.shape[op.dim]
    report = partial(_report, machine, warp, op, values, wrong) if wrong.any() else None
    warp.padded[op.result] = Padded(share, sizes, mixed, extent, report)


def _registers(plan: Reduction) -> Array:
    """The source's register for each register of the result and each value that is reduced to it."""
    kept = registers_of(plan.kept, plan.result.size_values)
    return kept[:, None] + registers_of(plan.reduced, plan.count)


@REFERENCE.rule(ops.Redistribute)
def _redistribute(machine: Machine, warp: Warp, op: ops.Redistribute) -> None:
    values = read(machine, warp, op, op.source)
    chosen = registers(op.source.fragment.distribution, op.distribution, [warp.int(at) for at in op.start])
    assert chosen is not None, "the verifier refuses what threads do not hold"
    lanes = machine.shape(warp, op.distribution)[0]
    beyond = warp.beyond.get(op.source)
    beyond = None if beyond is None else beyond[:lanes, list(chosen)]
    define(machine, warp, op, op.result, values[:lanes, list(chosen)], beyond=beyond)


@REFERENCE.rule(ops.Coordinates)
def _coordinates(machine: Machine, warp: Warp, op: ops.Coordinates) -> None:
    threads = machine.footprints.threads(warp.rank, op.distribution)
    define(machine, warp, op, op.result, op.distribution.table[threads][..., op.dim].astype(np.int32))
