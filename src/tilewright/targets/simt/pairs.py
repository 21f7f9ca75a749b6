"""Conversions of two neighbouring numbers at once, as a dialect has them."""

from __future__ import annotations

from tilewright.ir.ops import Elementwise
from tilewright.ir.types import FragmentType, Value
from tilewright.symbolic.nodes import Sym
from tilewright.targets.simt.dialect import Pair
from tilewright.targets.simt.emitter import SimtEmitter
from tilewright.targets.statements import Do, call, code


def converted_in_pairs(emitter: SimtEmitter, op: Elementwise) -> Pair | None:
    """How an operation is done for two numbers at once; None if it is not."""
    kind = op.result.type
    if op.function != "convert" or not isinstance(kind, FragmentType):
        return None
    [source] = op.operands_
    if not isinstance(source, Value) or not source.is_fragment:
        return None
    spread = kind.distribution
    if source.fragment.distribution != spread or spread.size_values % 2:
        return None
    pair = emitter.dialect.pairs.get((source.dtype.name, kind.dtype.name))
    return pair if pair is not None and {pair.feature} <= {"", *emitter.arch.features} else None


def in_pairs(emitter: SimtEmitter, op: Elementwise, pair: Pair) -> None:
    """Convert two at a time."""
    [source] = op.operands_
    assert isinstance(source, Value), "a pair is of registers"
    emitter.comment(op, f"{op.result.name} = {op.function}({source}), two at a time")
    i = Sym(emitter.local("i"), 0, op.result.fragment.distribution.size_values // 2 - 1)
    emitter.declare_registers(op.result)
    places = (code("&{}[{}]", emitter.name(value), emitter.spell(2 * i)) for value in (op.result, source))
    emitter.one_line((i,), Do(call(pair.function, *places)))
