"""The rules of operands that are computed from what lies in memory: where that is done, in which parts."""

from __future__ import annotations

from tilewright.ir.op import REGISTERS
from tilewright.schedule.facts import Reasons
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.schedule.sides import OperandSide


def decoded(case: ScheduleOnMachine) -> Reasons:
    """A staging has a place for operands that are computed: registers, between memory and the instruction."""
    for side in case.sides:
        if side.factor.is_plain or case.staging.decodes_operand(case, side):
            continue
        if case.is_bulk and case.schedule.atom.asynchronous:
            yield from _in_bulk(case, side)
        else:
            text = f"{side.label} is computed from {side.factor.name}, for which this staging has no place"
            yield "staging", text, 'staging="fragments"', case.form.sum


def _in_bulk(case: ScheduleOnMachine, side: OperandSide) -> Reasons:
    """An instruction that multiplies in the background takes operand A, and no other, from registers."""
    atom = case.schedule.atom
    if side.label == "A" and any(factor.is_plain for factor in case.form.rows_m):
        plain = next(factor for factor in case.form.rows_m if factor.is_plain)
        text = f"A is computed from {side.factor.name}, and is {plain.name} itself in another product"
        yield "staging", text, 'staging="fragments" and an atom of mma.sync', case.form.sum
        return
    computed = f"{side.label} is computed from {side.factor.name}"
    if side.label == "B":
        both = not all(factor.is_plain for factor in case.form.rows_m)
        nearest = (
            'staging="fragments" and an atom of mma.sync' if both else f"swap_ab={not case.form.swap_ab}"
        )
        text = f"{computed}; {atom} takes B from shared memory, where bulk copies put what lies in memory"
        yield "staging" if both else "swap_ab", text, nearest, case.form.sum
    elif REGISTERS not in atom.a_places:
        text = f"{computed}; {atom} takes no operand from registers"
        yield "staging", text, 'staging="fragments"', case.form.sum
