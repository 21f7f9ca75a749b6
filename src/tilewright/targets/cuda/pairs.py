"""Steps on the way from narrow numbers to operands, two halves at a time: conversions, zero points, scales.

Each conversion is exact, as that of one number is.  fp8 has an instruction from sm_89 on; an integer of 8
bits becomes the low bits of a float whose last bit counts as 1, from which an offset is then taken away.

Source: PTX ISA, "cvt", "prmt".
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.ops import Elementwise
from tilewright.ir.types import FragmentType, Value
from tilewright.symbolic.nodes import Sym
from tilewright.targets.cuda.spelling import CUDA_RULES
from tilewright.targets.simt.arithmetic import elementwise
from tilewright.targets.simt.emitter import SimtEmitter
from tilewright.targets.statements import Do, call, code
from tilewright.threads.registers import broadcast, indexed, registers_of


@dataclass(frozen=True)
class Pair:
    """How two numbers are converted at once.

    Args:
        function: a piece of the prelude, of where two results go and where the numbers are.
        feature: what the machine must have.
    """

    function: str
    feature: str


PAIRS = {
    ("f8e4m3", "f16"): Pair("e4m3_pair_to_half", "sm_89"),
    ("f8e5m2", "f16"): Pair("e5m2_pair_to_half", "sm_89"),
    ("f8e4m3", "bf16"): Pair("e4m3_pair_to_bf16", "sm_89"),
    ("f8e5m2", "bf16"): Pair("e5m2_pair_to_bf16", "sm_89"),
    ("i8", "f16"): Pair("i8_pair_to_half", "sm_80"),
    ("i8", "bf16"): Pair("i8_pair_to_bf16", "sm_80"),
}
"""By the dtypes from which and to which."""


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
    """A function of every element; conversions that the machine does for two at a time are done so."""
    pair = _pair(emitter, op)
    if pair is None:
        if not _with_one(emitter, op):
            elementwise(emitter, op)
        return
    [source] = op.operands_
    assert isinstance(source, Value), "a pair is of registers"
    emitter.comment(op, f"{op.result.name} = {op.function}({source}), two at a time")
    count = op.result.fragment.distribution.size_values
    i = Sym(emitter.local("i"), 0, count // 2 - 1)
    emitter.declare_registers(op.result)
    places = (code("&{}[{}]", emitter.name(value), emitter.spell(2 * i)) for value in (op.result, source))
    emitter.one_line((i,), Do(call(pair.function, *places)))


def _pair(emitter: SimtEmitter, op: Elementwise) -> Pair | None:
    """How an operation is done for two numbers at once; None if it is not."""
    kind, source = op.result.type, op.operands_[0]
    if op.function != "convert" or not isinstance(kind, FragmentType):
        return None
    if not isinstance(source, Value) or not source.is_fragment:
        return None
    spread = kind.distribution
    if source.fragment.distribution != spread or spread.size_values % 2:
        return None
    pair = PAIRS.get((source.dtype.name, kind.dtype.name))
    return pair if pair is not None and pair.feature in emitter.arch.features else None


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
