"""Zero points and scales on the way from narrow numbers to operands, two halves at a time."""

from __future__ import annotations

from tilewright.ir.ops import Elementwise
from tilewright.ir.types import FragmentType, Value
from tilewright.symbolic.nodes import Sym
from tilewright.targets.cuda.spelling import CUDA_RULES
from tilewright.targets.simt.arithmetic import elementwise
from tilewright.targets.simt.dialect import Pair
from tilewright.targets.simt.emitter import SimtEmitter
from tilewright.targets.statements import Do, call, code
from tilewright.threads.registers import broadcast, indexed, registers_of

ARITHMETIC = {
    ("sub", "f16"): Pair("pair_sub_half", "sm_80"),
    ("mul", "f16"): Pair("pair_mul_half", "sm_80"),
    ("sub", "bf16"): Pair("pair_sub_bf16", "sm_80"),
    ("mul", "bf16"): Pair("pair_mul_bf16", "sm_80"),
}
"""By function and dtype: of two neighbours and a number that is the same for both.

What is rounded once in halves is what f32 gives that is rounded to them: it has more than twice their bits.
"""


@CUDA_RULES.rule(Elementwise)
def elementwise_in_pairs(emitter: SimtEmitter, op: Elementwise) -> None:
    """A function of every element; of neighbours and a number that they share two at a time."""
    if not _with_one(emitter, op):
        elementwise(emitter, op)


def _with_one(emitter: SimtEmitter, op: Elementwise) -> bool:
    """Write a function of neighbours and a number that they share, two at a time, if it is one."""
    kind, operands = op.result.type, op.operands_
    if not isinstance(kind, FragmentType) or len(operands) != 2:
        return False
    pair, (first, second) = ARITHMETIC.get((op.function, kind.dtype.name)), operands
    if pair is None or pair.feature not in emitter.arch.features:
        return False
    if not all(isinstance(one, Value) and one.is_fragment and one.dtype == kind.dtype for one in operands):
        return False
    assert isinstance(first, Value), "a fragment"
    assert isinstance(second, Value), "a fragment"
    spread = kind.distribution
    digits = broadcast(spread, second.fragment.distribution)
    if first.fragment.distribution != spread or spread.size_values % 2 or digits is None:
        return False
    shared = registers_of(digits, spread.size_values).reshape(-1, 2)
    if (shared[:, 0] != shared[:, 1]).any():
        return False
    emitter.comment(op, f"{op.result.name} = {op.function}({first}, {second}), two at a time")
    i = Sym(emitter.local("i"), 0, spread.size_values // 2 - 1)
    emitter.declare_registers(op.result)
    to, given = (code("&{}[{}]", emitter.name(one), emitter.spell(2 * i)) for one in (op.result, first))
    number = code("{}[{}]", emitter.name(second), emitter.spell(indexed(digits, 2 * i)))
    emitter.one_line((i,), Do(call(pair.function, to, given, number)))
    return True
