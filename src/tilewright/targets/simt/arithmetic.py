"""Elementwise operations on fragments: one statement per element, in loops over registers."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from math import gcd

import numpy as np

from tilewright.dtypes import FP8, DType, encoding, f32, f64, i32, i64
from tilewright.functions.conversions import clamped_in, saturation
from tilewright.functions.table import COMPARISON, CONVERSION, FUNCTIONS, TAKE
from tilewright.ir.ops import Elementwise, Fill, FragmentOp
from tilewright.ir.types import FragmentType, Value
from tilewright.symbolic.expr import add, floordiv, mod, mul
from tilewright.symbolic.nodes import Expr, Int, Sym
from tilewright.symbolic.rebuilding import substitute
from tilewright.targets.dialect import suffix, unsigned_type
from tilewright.targets.simt.conversion import converted, widened
from tilewright.targets.simt.dialect import PairFunction, SimtDialect, TextFunction
from tilewright.targets.simt.emitter import SIMT_RULES, LocalNames, SimtEmitter, element
from tilewright.targets.simt.random_places import FOUR, RandomPlace
from tilewright.targets.simt.thread_values import split_offset, thread_coordinate
from tilewright.targets.statements import Assign, Code, Do, call, code, joined, named
from tilewright.threads.registers import Digit, broadcast, indexed

# ----------------------------------------------------------------
#
# Random masks: truth values as bits of words, made in short loops.
#
# Ten rounds of the generator take some seventy instructions.  Unrolled over the registers of a thread they
# would exceed the instruction cache.


WORD = 32
"""Bits of a word."""

AT_ONCE = 2
"""Number of unrolled generations: one proceeds while another waits for its product."""


def random_mask(emitter: SimtEmitter, op: Elementwise, place: RandomPlace) -> None:
    """Write ``random_at_least`` of a place: loops that fill words of bits, then unpack the truth values."""
    spread = op.result.fragment.distribution
    width = gcd(spread.size_values, WORD)
    each = FOUR if place.along is not None and width % FOUR == 0 else 1
    shared = "" if each == 1 else f", one generation for {FOUR}"
    emitter.comment(op, f"{op.result.name} = {op.function}({place.index}, ...){shared}")
    emitter.declare_registers(op.result)
    with emitter.indented():
        scope = LocalNames(emitter)
        lanes = place.lanes and each == FOUR
        thread: Int = emitter.thread(spread.size_threads)
        lane: Int = 0
        if lanes:  # the even lane of a pair holds the first two of four neighbours
            pair, lane = scope.constant("pair", floordiv(thread, 2)), scope.constant("lane", mod(thread, 2))
            thread = mul(pair, 2)
        word = Sym(scope.name("w"), 0, spread.size_values // width - 1)
        turn = Sym(scope.name("j"), 0, width // each - 1)
        bits, i = scope.name("bits"), Sym(scope.name("i"), 0, width - 1)
        register = add(mul(word, width), mul(turn, each), mul(lane, 2))
        at: dict[Sym, Int] = {}  # the coordinates of a register of a thread
        starts = thread_coordinate(spread.threads, spread.rank, thread)
        for dim, (coord, first) in enumerate(zip(place.at, starts, strict=True)):
            steps = [Digit(mode.extent, mode.step if mode.dim == dim else 0) for mode in spread.values]
            at[coord] = add(first, indexed(steps, register))
        start, step = split_offset(substitute(place.index, at), (word, turn), emitter.sizes)
        base = scope.name("first")
        emitter.constant("long long", base, emitter.spell_wide(start))
        index = code("{} + {}", base, emitter.spell_wide(step))
        function = op.function if each == 1 else "four_at_least"
        made = call(function, index, *(_key(emitter, one) for one in op.operands_[1:]))
        with emitter.loops((word,)):
            emitter.declare(named("unsigned"), bits, Code("0"))
            condition = code("{} < {}", named(turn.name), width // each)
            before = f"{emitter.dialect.unroll} {AT_ONCE}"
            with emitter.loop("int", named(turn.name), 0, condition, before=before):
                shift = emitter.spell(mul(turn, each), tight=True)
                emitter.assign(bits, code("(unsigned){} << {}", made, shift), "|=")
            if lanes:
                other = call(emitter.dialect.exchange, *map(Code, emitter.dialect.exchanging), bits, 1)
                emitter.assign(bits, call("between_lanes", bits, other, emitter.spell(lane)))
            to = emitter.spell(add(mul(word, width), i))
            target = code("{}[{}]", emitter.name(op.result), to)
            emitter.one_line((i,), Assign(target, code("{} >> {} & 1", bits, named(i.name))))


def _key(emitter: SimtEmitter, value: Value | float | Int) -> Code:
    """Return the text of a key, a counter or a threshold."""
    if isinstance(value, Value):
        return emitter.name(value)
    return emitter.spell_wide(value) if isinstance(value, Expr) else code("{}ull", int(value))


# ----------------------------------------------------------------
#
# Conversions of two neighbouring numbers at once, if the dialect has them.


def converted_in_pairs(emitter: SimtEmitter, op: Elementwise) -> PairFunction | None:
    """Return the function that converts two numbers at once, or None."""
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


def in_pairs(emitter: SimtEmitter, op: Elementwise, pair: PairFunction) -> None:
    """Convert two numbers at a time."""
    [source] = op.operands_
    assert isinstance(source, Value), "a pair is of registers"
    emitter.comment(op, f"{op.result.name} = {op.function}({source}), two at a time")
    i = Sym(emitter.local("i"), 0, op.result.fragment.distribution.size_values // 2 - 1)
    emitter.declare_registers(op.result)
    places = (code("&{}[{}]", emitter.name(value), emitter.spell(2 * i)) for value in (op.result, source))
    emitter.one_line((i,), Do(call(pair.function, *places)))


# ---------------------------------------------------------------- rules


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
"""Functions whose names differ from those of C's mathematics library."""

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
    """Return a number as a literal of the dtype in which ``dtype`` computes."""
    kind = dtype.computed
    if kind.kind == "bool":
        return Code("true" if value else "false")
    if not kind.is_float:
        number = int(value)
        text = f"{number}{suffix(kind)}"
        if wraps(kind) and number == -(1 << (kind.bits - 1)):
            text = f"{number + 1}{suffix(kind)} - 1"  # its absolute value does not fit the type
        return Code(f"({text})" if number < 0 else text)
    real = float(value)
    with np.errstate(over="ignore", under="ignore"):
        near = float(kind.numpy.type(real))
    if real and (near == 0 or math.isinf(near)):  # C refuses constants that are out of range
        real = near
    if math.isfinite(real):
        text = f"{real!r}{'f' if kind == f32 else ''}"
        return Code(text if real >= 0 else f"({text})")
    made = Code(dialect.not_a_number if real != real else dialect.infinity)
    if real < 0:
        made = code("-{}", made)
    return code("(double){}", made) if kind == f64 else made


def rounded(value: float | int, dtype: DType, dialect: SimtDialect) -> Code:
    """Return a number rounded to a dtype, in its storage type."""
    if dtype.components > 1:
        parts = literal(value, dtype.component, dialect), literal(0, dtype.component, dialect)
        return code("{}{{{}, {}}}", named(dialect.types[dtype.name]), *parts)
    return converted(literal(value, dtype, dialect), dtype.computed, dtype, dialect.types)


@SIMT_RULES.rule(FragmentOp)
def fragment(emitter: SimtEmitter, op: FragmentOp) -> None:
    """Declare an array of registers."""
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
    """Write one value to every register."""
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
    """Write a function of every element; of two elements at a time if the machine converts two at once."""
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
    """Return a function of element ``index`` of its operands, in the result's storage type."""
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
        texts = [
            converted(_spelled(emitter, op, arm, index), arm.dtype, result, types)
            if isinstance(arm, Value)
            else _number(emitter, arm, result, stored=True)
            for arm in arms
        ]
        test = (
            widened(_spelled(emitter, op, condition, index), condition.dtype)
            if isinstance(condition, Value)
            else _number(emitter, condition, result)
        )
        return code("{} ? {} : {}", test, *texts)
    if op.function == TAKE:
        [codes] = op.read
        kind, wide = result.computed, "u64" if codes.dtype.bits > 32 else "u32"
        table = emitter.defined(_table(emitter, op.table, kind, wide))
        return converted(call(table, _spelled(emitter, op, codes, index)), kind, result, types)
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
    value = _computed(op.function, texts, kind, types[kind.name])
    if op.function in COMPARISON:
        return value
    if kind == result and not kind.is_float and kind.bits < 32:
        return code("({})({})", named(types[result.name]), value)
    return converted(value, kind, result, types)


def _table(emitter: SimtEmitter, entries: tuple[float, ...], kind: DType, wide: str) -> TextFunction:
    """Return the function that looks up a code in a table in memory, and gives 0 for a code outside."""
    types, held = emitter.dialect.types, ", ".join(literal(one, kind, emitter.dialect) for one in entries)
    body = f"""({types[wide]} code) {{
  static const {types[kind.name]} table[{len(entries)}] = {{{held}}};
  return code < {len(entries)} ? table[code] : 0;
}}"""
    name = f"take_{kind}_{zlib.crc32(body.encode()):08x}"
    return TextFunction(name, f"DEVICE {types[kind.name]} {name}{body}")


def _spelled(emitter: SimtEmitter, op: Elementwise, value: Value, index: Sym | None) -> Code:
    """Return the text of a number, or of a register of a fragment, which may be broadcast."""
    if not value.is_fragment:
        return emitter.name(value)
    digits = broadcast(op.result.fragment.distribution, value.fragment.distribution)
    assert digits is not None, "verified"
    assert index is not None, "a fragment's function is a fragment"
    return code("{}[{}]", emitter.name(value), emitter.spell(indexed(digits, index)))


def _number(emitter: SimtEmitter, value: float | Int, dtype: DType, *, stored: bool = False) -> Code:
    """Return a literal or an integer of the kernel, in the compute dtype of ``dtype`` or in its storage."""
    if not isinstance(value, Expr):
        return rounded(value, dtype, emitter.dialect) if stored else literal(value, dtype, emitter.dialect)
    text, types = emitter.spell(value, tight=True), emitter.dialect.types
    made = i64 if emitter.int_type(value) == types["i64"] else i32
    return converted(text, made, dtype if stored else dtype.computed, types)


def _computed(function: str, operands: list[Code], kind: DType, spelled: str) -> Code:
    """Return the text of a function of widened operands of dtype ``kind``, whose C type is ``spelled``."""
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
    """Return the name in C of an elementwise function without an operator, by compute dtype.

    Example:
        >>> called("exp", f64), called("exp2", f32), called("max", i32)
        ('exp', 'fast_exp2', 'max')
    """
    in_c = FUNCTIONS[function].c_name(kind) if kind.is_float and FUNCTIONS[function].c else function
    return _CALLS.get((function, kind.name), in_c)


def wraps(kind: DType) -> bool:
    """Return whether sums of a dtype need `wrapping`: narrower integers are sums of ``int``, cut when stored.

    C++ compilers assume that signed integers never overflow: they replace ``x + 1 > x`` by true.
    """
    return kind.kind == "int" and kind.bits >= 32


def wrapping(sign: str, operands: Sequence[Code], kind: DType, spelled: str) -> Code:
    """Return a wrapping sum, difference or product of integers, or a negation.

    Args:
        sign: ``+``, ``-`` or ``*``.
        operands: expressions of the dtype.
        kind: the dtype.
        spelled: the dtype's type in C.
    """
    first, *second = operands
    unsigned = unsigned_type(kind)
    if second:
        return code(f"({{}})(({unsigned}){{}} {sign} {{}})", named(spelled), first, second[0])
    return code(f"({{}})({sign}({unsigned}){{}})", named(spelled), first)
