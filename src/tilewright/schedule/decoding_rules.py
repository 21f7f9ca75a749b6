"""The rules of operands that are computed from what lies in memory: where that is done, in which parts."""

from __future__ import annotations

from tilewright.dataflow.nodes import Node, Store
from tilewright.ir.op import REGISTERS
from tilewright.schedule.bulk_decoding import SETS, part_depth
from tilewright.schedule.machine_rules import Reasons
from tilewright.schedule.resources import Case
from tilewright.schedule.sides import Side


def decoded(case: Case) -> Reasons:
    """A staging has a place for operands that are computed: registers, between memory and the instruction."""
    for side in case.sides:
        is_packed = case.schedule.staging == "panels"
        is_held = case.schedule.staging == "registers" and not case.goes_past(side)
        is_held &= not side.dtype.is_packed  # whose bytes are turned and written whole
        is_held &= not case.schedule.atom.asynchronous  # whose tiles lie there in several boxes
        if side.factor.is_plain or case.schedule.staging == "fragments" or is_packed or is_held:
            continue
        if case.is_bulk and case.schedule.atom.asynchronous:
            yield from _in_bulk(case, side)
        else:
            text = f"{side.label} is computed from {side.factor.name}, for which this staging has no place"
            yield "staging", text, 'staging="fragments"', case.form.sum


def _in_bulk(case: Case, side: Side) -> Reasons:
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


def parts_in_bulk(case: Case) -> Reasons:
    """Sets of registers take turns at the parts of a tile, whose sums are complete with its last part."""
    if not case.is_decoding_bulk:
        return
    (m, n, k), depth = case.tile, SETS * part_depth(case.schedule.atom.a_dtype)
    product: Node | Store = case.form.sum
    if k % depth:
        text = f"a depth of {k} is no multiple of {depth}, for which {SETS} sets of registers take turns"
        yield "tile", text, f"tile={(m, n, max(round(k / depth), 1) * depth)}", product
