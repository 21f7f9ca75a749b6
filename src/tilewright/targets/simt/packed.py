"""Bytes in registers that hold several numbers each, the first in the lowest bits."""

from __future__ import annotations

from tilewright.ir.packed_ops import AsBytes, Pack, Unpack
from tilewright.symbolic.expr import add, mul
from tilewright.symbolic.nodes import Int, Sym
from tilewright.targets.simt.conversion import converted
from tilewright.targets.simt.emitter import SIMT_RULES, Scope, SimtEmitter, element
from tilewright.targets.statements import code, joined
from tilewright.threads.registers import indexed


@SIMT_RULES.rule(AsBytes)
def as_bytes(emitter: SimtEmitter, op: AsBytes) -> None:
    """Where the bytes lie is said where they are accessed."""


def _registers(scope: Scope, op: Unpack | Pack, bytes_: int) -> tuple[Sym, list[Int]]:
    """The loop over the bytes of a thread, and the numbers of the registers of each byte's numbers."""
    i = Sym(scope.name("i"), 0, bytes_ - 1)
    each = op.packed.per_byte
    return i, [add(mul(i, each), part) for part in range(each)]


@SIMT_RULES.rule(Unpack)
def unpack(emitter: SimtEmitter, op: Unpack) -> None:
    """Each byte's numbers go into their registers, which mostly follow each other."""
    kind, bits, digits = op.packed, op.packed.bits, op.digits
    source, target = emitter.name(op.source), emitter.name(op.target)
    text = f"{op.source} -> {op.target}, {kind.per_byte} numbers of {kind} in each byte"
    with emitter.scope(op, text) as scope:
        i, numbers = _registers(scope, op, op.source.fragment.distribution.size_values)
        with emitter.loops((i,)):
            byte = element(source, i)
            for part, number in enumerate(numbers):
                found = (
                    code("{} >> {}", byte, bits * part) if part else code("{} & {}", byte, (1 << bits) - 1)
                )
                made = converted(found, kind, op.target.dtype, emitter.dialect.types)
                emitter.assign(code("{}[{}]", target, emitter.spell(indexed(digits, number))), made)


@SIMT_RULES.rule(Pack)
def pack(emitter: SimtEmitter, op: Pack) -> None:
    """The numbers of consecutive registers go into one byte."""
    kind, bits = op.packed, op.packed.bits
    source, target = emitter.name(op.source), emitter.name(op.target)
    text = f"{op.source} -> {op.target}, {kind.per_byte} numbers of {kind} in each byte"
    with emitter.scope(op, text) as scope:
        i, numbers = _registers(scope, op, op.target.fragment.distribution.size_values)
        with emitter.loops((i,)):
            parts = []
            for part, number in enumerate(numbers):
                given = code("{}[{}]", source, emitter.spell(number))
                made = converted(given, op.source.dtype, kind, emitter.dialect.types)
                low = code("({} & {})", made, (1 << bits) - 1)
                parts.append(code("{} << {}", low, bits * part) if part else low)
            emitter.assign(element(target, i), joined(" | ", parts))
