"""Fragments and the arithmetic on them: one statement per element, in loops over registers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.dtypes import FP8, DType, encoding, f32, f64, i32, i64
from tilewright.functions.conversions import clamped_in, saturation
from tilewright.functions.table import COMPARISON, CONVERSION, FUNCTIONS
from tilewright.ir.ops import Elementwise, Fill, Fragment
from tilewright.ir.types import FragmentType, Value
from tilewright.symbolic.nodes import Expr, Int, Sym
from tilewright.targets.c_integers import suffix, unsigned_type
from tilewright.targets.simt.conversion import converted, widened
from tilewright.targets.simt.dialect import SimtDialect
from tilewright.targets.simt.emitter import SIMT_RULES, SimtEmitter, element
from tilewright.targets.simt.pairs import converted_in_pairs, in_pairs
from tilewright.targets.simt.random_masks import random_mask
from tilewright.targets.statements import Assign, Code, call, code, joined, named
from tilewright.threads.registers import broadcast, indexed

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "and": "&",
    "or": "|",
    "xor": "^",
    "less": "<",
    "less_equal": "<=",
    "equal": "==",
    "not_equal": "!=",
}
_CALLS = {
    ("min", "f32"): "min_or_nan",
    ("max", "f32"): "max_or_nan",
    ("min", "f64"): "min_or_nan",
    ("max", "f64"): "max_or_nan",
    ("floordiv", "f32"): "floor_quotient_float",
    ("floordiv", "f64"): "floor_quotient_double",
    ("mod", "f32"): "floor_remainder_float",
    ("mod", "f64"): "floor_remainder_double",
    ("exp2", "f32"): "fast_exp2",
    **{(name, "f32"): f"fast_{name}" for name in ("sigmoid", "silu", "gelu", "gelu_tanh")},
}
"""What is not called as C's mathematics library calls it."""

_OF_INTEGERS = {
    "floordiv": "floor_quotient",
    "mod": "floor_remainder",
    "shift_left": "shifted_left",
    "shift_right": "shifted_right",
}
"""Functions of integers, which take their type as a template argument."""

_WRAPPING = ("add", "sub", "mul", "neg")

MATH = frozenset(
    {
        *(*_CALLS.values(), "min", "max", "abs"),
        *(row.c_name(kind) for row in FUNCTIONS.values() if row.c for kind in (f32, f64)),
    }
)
"""Functions of the language that generated text calls."""


def literal(value: float | int, dtype: DType, dialect: SimtDialect) -> Code:
    """A number in the dtype in which ``dtype`` computes."""
    kind = dtype.computed
    if kind.kind == "bool":
        return Code("true" if value else "false")
    if not kind.is_float:
        number = int(value)
        text = f"{number}{suffix(kind)}"
        if wraps(kind) and number == -(1 << (kind.bits - 1)):
            text = f"{number + 1}{suffix(kind)} - 1"  # its absolute value is a number of another type
        return Code(f"({text})" if number < 0 else text)
    number_ = _in_range(float(value), kind)
    if math.isfinite(number_):
        text = f"{number_!r}{'f' if kind == f32 else ''}"
        return Code(text if number_ >= 0 else f"({text})")
    made = Code(dialect.not_a_number if number_ != number_ else dialect.infinity)
    if number_ < 0:
        made = code("-{}", made)
    return code("(double){}", made) if kind == f64 else made


def _in_range(value: float, kind: DType) -> float:
    """The number, or the infinity or zero that it rounds to: a constant out of range is an error in C."""
    with np.errstate(over="ignore", under="ignore"):
        near = float(kind.numpy.type(value))
    return near if value and (near == 0 or math.isinf(near)) else value


def rounded(value: float | int, dtype: DType, dialect: SimtDialect) -> Code:
    """A number rounded to a dtype."""
    if dtype.components > 1:
        parts = literal(value, dtype.component, dialect), literal(0, dtype.component, dialect)
        return code("{}{{{}, {}}}", named(dialect.types[dtype.name]), *parts)
    return converted(literal(value, dtype, dialect), dtype.computed, dtype, dialect.types)


@SIMT_RULES.rule(Fragment)
def fragment(emitter: SimtEmitter, op: Fragment) -> None:
    """An array of registers."""
    name, count = emitter.name(op.result), op.distribution.size_values
    text = f"{op.result.name}: {op.dtype} {'x'.join(map(str, op.distribution.shape))}, {count} per thread"
    emitter.comment(op, text)
    is_zero = op.fill is not None and op.fill == 0 and math.copysign(1.0, op.fill) > 0
    emitter.declare_registers(op.result, Code("{}") if is_zero else None)
    if op.fill is not None and not is_zero:
        i = Sym(emitter.local("i"), 0, count - 1)
        value = rounded(op.fill, op.dtype, emitter.dialect)
        emitter.one_line((i,), Assign(element(name, i), value))


@SIMT_RULES.rule(Fill)
def fill(emitter: SimtEmitter, op: Fill) -> None:
    """One value in every register."""
    kind = op.target.fragment
    i = Sym(emitter.local("i"), 0, kind.distribution.size_values - 1)
    if isinstance(op.value, Value):
        value = converted(emitter.name(op.value), op.value.dtype, kind.dtype, emitter.dialect.types)
    else:
        value = rounded(op.value, kind.dtype, emitter.dialect)
    emitter.comment(op, f"{op.target} = {op.value}")
    emitter.one_line((i,), Assign(element(emitter.name(op.target), i), value))


@SIMT_RULES.rule(Elementwise)
def elementwise(emitter: SimtEmitter, op: Elementwise) -> None:
    """A function of every element; conversions that the machine does for two at a time are done so."""
    if (pair := converted_in_pairs(emitter, op)) is not None:
        in_pairs(emitter, op, pair)
        return
    if (place := emitter.random.of.get(op.result)) is not None:
        random_mask(emitter, op, place)
        return
    operands = ", ".join(str(operand) for operand in op.operands_)
    emitter.comment(op, f"{op.result.name} = {op.function}({operands})")
    kind = op.result.type
    name = emitter.name(op.result)
    if not isinstance(kind, FragmentType):
        emitter.constant(emitter.type(op.result.dtype), name, expression(emitter, op, None))
        return
    i = Sym(emitter.local("i"), 0, kind.distribution.size_values - 1)
    emitter.declare_registers(op.result)
    emitter.one_line((i,), Assign(element(name, i), expression(emitter, op, i)))


SIGNED_BITS = ("f16", "bf16", *(made.name for made in FP8 if not encoding(made).has_one_zero))
"""Types without arithmetic of their own whose first bit is the sign."""


def expression(emitter: SimtEmitter, op: Elementwise, index: Sym | None) -> Code:
    """The function of element ``index`` of its operands, in the result's storage type."""
    types = emitter.dialect.types
    result = op.result.dtype
    known = [v.dtype for v in op.operands_ if isinstance(v, Value)]
    if op.function in CONVERSION:
        [operand] = op.operands_
        if not isinstance(operand, Value):
            return _number(emitter, operand, result, stored=True)
        text, source = _spelled(emitter, op, operand, index), operand.dtype
        if op.function == "bitcast":
            return call(emitter.dialect.bits, named(types[result.name]), text)
        kind = clamped_in(source.computed, result)
        if op.function == "saturate" and (ends := saturation(kind, result)) is not None:
            text, source = converted(text, source, kind, types), kind
            low, high = (literal(end, source, emitter.dialect) for end in ends)
            text = call("clamp", text, low, high, of=[named(types[source.name])])
        return converted(text, source, result, types)
    if op.function == "select":
        condition, *arms = op.operands_
        texts = [_arm(emitter, op, arm, index) for arm in arms]
        test = (
            widened(_spelled(emitter, op, condition, index), condition.dtype)
            if isinstance(condition, Value)
            else _number(emitter, condition, result)
        )
        return code("{} ? {} : {}", test, *texts)
    common = known[0] if known else result
    first = op.operands_[0]
    if op.function == "neg" and isinstance(first, Value) and common.name in SIGNED_BITS:
        return call("negated", _spelled(emitter, op, first, index))
    texts = [
        widened(_spelled(emitter, op, v, index), common)
        if isinstance(v, Value)
        else _number(emitter, v, common)
        for v in op.operands_
    ]
    kind = common.computed
    value = _applied(op.function, texts, kind, types[kind.name])
    return value if op.function in COMPARISON else _rounded(value, kind, result, types)


def _rounded(value: Code, kind: DType, result: DType, types: dict[str, str]) -> Code:
    if kind == result and not kind.is_float and kind.bits < 32:
        return code("({})({})", named(types[result.name]), value)
    return converted(value, kind, result, types)


def _spelled(emitter: SimtEmitter, op: Elementwise, value: Value, index: Sym | None) -> Code:
    """A number, or the register of a fragment, which may be broadcast."""
    if not value.is_fragment:
        return emitter.name(value)
    digits = broadcast(op.result.fragment.distribution, value.fragment.distribution)
    assert digits is not None, "verified"
    assert index is not None, "a fragment's function is a fragment"
    return code("{}[{}]", emitter.name(value), emitter.spell(indexed(digits, index)))


def _arm(emitter: SimtEmitter, op: Elementwise, arm: Value | float | Int, index: Sym | None) -> Code:
    if not isinstance(arm, Value):
        return _number(emitter, arm, op.result.dtype, stored=True)
    return converted(_spelled(emitter, op, arm, index), arm.dtype, op.result.dtype, emitter.dialect.types)


def _number(emitter: SimtEmitter, value: float | Int, dtype: DType, *, stored: bool = False) -> Code:
    """A plain number or an integer of the kernel, in the dtype in which ``dtype`` computes, or stored."""
    if not isinstance(value, Expr):
        return rounded(value, dtype, emitter.dialect) if stored else literal(value, dtype, emitter.dialect)
    text, types = emitter.spell(value, tight=True), emitter.dialect.types
    made = i64 if emitter.int_type(value) == types["i64"] else i32
    return converted(text, made, dtype if stored else dtype.computed, types)


def _applied(function: str, operands: list[Code], kind: DType, spelled: str) -> Code:
    """The function of widened operands, which have a type that is spelled like that."""
    if not kind.is_float and function in _OF_INTEGERS:
        return call(_OF_INTEGERS[function], *operands, of=[named(spelled)])
    if wraps(kind) and function in _WRAPPING:
        return wrapping("-" if function == "neg" else _INFIX[function], operands, kind, spelled)
    if function in _INFIX:
        return joined(f" {_INFIX[function]} ", operands)
    if function == "neg":
        return code("-{}", *operands)
    if function == "invert":
        return code(f"{'!' if kind.kind == 'bool' else '~'}{{}}", *operands)
    if function == "abs" and kind.kind == "uint":
        return operands[0]
    return call(called(function, kind), *operands)


def called(function: str, kind: DType) -> str:
    """What is called for a function that is no operator, of operands that compute in a dtype.

    Example:
        >>> called("exp", f64), called("exp2", f32), called("max", i32)
        ('exp', 'fast_exp2', 'max')
    """
    in_c = FUNCTIONS[function].c_name(kind) if kind.is_float and FUNCTIONS[function].c else function
    return _CALLS.get((function, kind.name), in_c)


def wraps(kind: DType) -> bool:
    """Whether sums of a dtype need `wrapping`: narrower integers are sums of ``int``, cut when stored.

    Of signed integers C++ says that they never overflow, and a compiler makes true of ``x + 1 > x``.
    """
    return kind.kind == "int" and kind.bits >= 32


def wrapping(sign: str, operands: Sequence[Code], kind: DType, spelled: str) -> Code:
    """A sum, difference or product of integers that wraps, or with one operand what is left to 0.

    Args:
        sign: ``+``, ``-`` or ``*``.
        operands: expressions of the dtype.
        kind: the dtype.
        spelled: its type in C.
    """
    first, *second = operands
    unsigned = unsigned_type(kind)
    if second:
        return code(f"({{}})(({unsigned}){{}} {sign} {{}})", named(spelled), first, second[0])
    return code(f"({{}})({sign}({unsigned}){{}})", named(spelled), first)
