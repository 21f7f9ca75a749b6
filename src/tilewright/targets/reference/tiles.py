"""The rules of whole tiles in registers: reductions, other maps, coordinates.

Importing them adds them to `REFERENCE`.
"""

from __future__ import annotations

import numpy as np

from tilewright.ir import fragment_ops as ops
from tilewright.layout.distribution import registers
from tilewright.layout.registers import Reduction, registers_of
from tilewright.targets.reference.fragments import define, read
from tilewright.targets.reference.machine import Machine
from tilewright.targets.reference.numerics import REDUCTIONS, Array, narrowed, widen
from tilewright.targets.reference.rules import REFERENCE
from tilewright.targets.reference.state import Warp

__all__ = ["REFERENCE"]


@REFERENCE.rule(ops.Reduce)
def _reduce(machine: Machine, warp: Warp, op: ops.Reduce) -> None:
    """Registers by their number, then lanes in pairs."""
    plan, combine = op.plan, REDUCTIONS[op.function]
    values = widen(read(machine, warp, op, op.source), op.source.dtype)
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
    define(machine, warp, op, op.result, narrowed(total, op.result.dtype))


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
    define(machine, warp, op, op.result, values[:lanes, list(chosen)])


@REFERENCE.rule(ops.Coordinates)
def _coordinates(machine: Machine, warp: Warp, op: ops.Coordinates) -> None:
    threads = machine.footprints.threads(warp.rank, op.distribution)
    define(machine, warp, op, op.result, op.distribution.table[threads][..., op.dim].astype(np.int32))
