"""Fragments and the arithmetic on them: one statement per element, in loops over registers."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dtypes import DType, f32, f64
from tilewright.ir.elementwise import COMPARISON
from tilewright.ir.ops import Elementwise, Fill, Fragment, Redistribute
from tilewright.ir.types import FragmentType, Value
from tilewright.layout.distribution import registers
from tilewright.layout.expr import add, mul
from tilewright.layout.nodes import Int, Sym
from tilewright.targets.simt.conversion import compute_dtype, converted, widened
from tilewright.targets.simt.emitter import LOOPS, SIMT_RULES, SimtEmitter

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "less": "<", "less_equal": "<=", "equal": "=="}
_CALLS = {
    ("min", "f32"): "fminf",
    ("max", "f32"): "fmaxf",
    ("min", "f64"): "fmin",
    ("max", "f64"): "fmax",
    ("abs", "f32"): "fabsf",
    ("abs", "f64"): "fabs",
    ("exp", "f32"): "expf",
    ("exp", "f64"): "exp",
    ("log", "f32"): "logf",
    ("log", "f64"): "log",
    ("sqrt", "f32"): "sqrtf",
    ("sqrt", "f64"): "sqrt",
    ("tanh", "f32"): "tanhf",
    ("tanh", "f64"): "tanh",
}

MATH = frozenset({*_CALLS.values(), "min", "max", "abs", "fma", "fmaf"})
"""Functions of the language that generated text calls."""


def literal(value: float | int, dtype: DType) -> str:
    """A number in the dtype in which ``dtype`` computes."""
    kind = compute_dtype(dtype)
    if kind.kind == "bool":
        return "true" if value else "false"
    if not kind.is_float:
        number = int(value)
        text = {"i64": f"{number}ll", "u32": f"{number}u"}.get(kind.name, str(number))
        return f"({text})" if number < 0 else text
    number_ = float(value)
    if number_ != number_:
        text = "__int_as_float(0x7fc00000)"
    elif number_ in (float("inf"), -float("inf")):
        text = f"{'-' if number_ < 0 else ''}__int_as_float(0x7f800000)"
    else:
        return (
            f"{number_!r}{'f' if kind == f32 else ''}"
            if number_ >= 0
            else f"({number_!r}{'f' * (kind == f32)})"
        )
    return f"(double){text}" if kind == f64 else text


def stored(value: float | int, dtype: DType, types: dict[str, str]) -> str:
    """A number rounded to a dtype."""
    if dtype.components > 1:
        return f"{types[dtype.name]}{{{literal(value, dtype.component)}, {literal(0, dtype.component)}}}"
    return converted(literal(value, dtype), compute_dtype(dtype), dtype, types)


@SIMT_RULES.rule(Fragment)
def fragment(emitter: SimtEmitter, op: Fragment) -> None:
    """An array of registers."""
    name, count = emitter.name(op.result), op.distribution.size_values
    text = f"{op.result.name}: {op.dtype} {'x'.join(map(str, op.distribution.shape))}, {count} per thread"
    emitter.comment(op, text)
    declared = emitter.registers(op.result)
    if op.fill is None:
        emitter.line(f"{declared};")
    elif op.fill == 0:
        emitter.line(f"{declared} = {{}};")
    else:
        emitter.line(f"{declared};")
        i = Sym(emitter.local("i"), 0, count - 1)
        emitter.one_line((i,), f"{name}[{i.name}] = {stored(op.fill, op.dtype, emitter.dialect.types)};")


@SIMT_RULES.rule(Fill)
def fill(emitter: SimtEmitter, op: Fill) -> None:
    """One value in every register."""
    kind = op.target.fragment
    i = Sym(emitter.local("i"), 0, kind.distribution.size_values - 1)
    if isinstance(op.value, Value):
        value = converted(emitter.name(op.value), op.value.dtype, kind.dtype, emitter.dialect.types)
    else:
        value = stored(op.value, kind.dtype, emitter.dialect.types)
    emitter.comment(op, f"{op.target.name} = {op.value}")
    emitter.one_line((i,), f"{emitter.name(op.target)}[{i.name}] = {value};")


@SIMT_RULES.rule(Elementwise)
def elementwise(emitter: SimtEmitter, op: Elementwise) -> None:
    """A function of every element."""
    operands = ", ".join(str(operand) for operand in op.operands_)
    emitter.comment(op, f"{op.result.name} = {op.function}({operands})")
    kind = op.result.type
    name = emitter.name(op.result)
    if not isinstance(kind, FragmentType):
        emitter.line(f"const {emitter.type(op.result.dtype)} {name} = {expression(emitter, op, '')};")
        return
    i = Sym(emitter.local("i"), 0, kind.distribution.size_values - 1)
    emitter.line(f"{emitter.registers(op.result)};")
    emitter.one_line((i,), f"{name}[{i.name}] = {expression(emitter, op, i.name)};")


@SIMT_RULES.rule(Redistribute)
def redistribute(emitter: SimtEmitter, op: Redistribute) -> None:
    """Registers in another order."""
    chosen = registers(op.source.fragment.distribution, op.distribution, op.start)
    assert chosen is not None, "the verifier refuses what threads do not hold"
    box = ", ".join(f"{a}:{a + n}" for a, n in zip(op.start, op.distribution.shape, strict=True))
    emitter.comment(op, f"{op.result.name} = {op.source.name}[{box}]")
    emitter.line(f"{emitter.registers(op.result)};")
    loops = []
    to: Int = 0
    at: Int = chosen[0]
    weight = 1
    for name, (extent, step) in zip(LOOPS, _modes(chosen), strict=False):
        loops.append(Sym(emitter.local(name), 0, extent - 1))
        to, at = add(to, mul(loops[-1], weight)), add(at, mul(loops[-1], step))
        weight *= extent
    text = f"{emitter.name(op.result)}[{emitter.spell(to)}] = {emitter.name(op.source)}[{emitter.spell(at)}];"
    emitter.one_line(tuple(reversed(loops)), text)


def _modes(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Extents and steps, fastest first, of the nested loops that run through some numbers.

    Example:
        >>> _modes([4, 5, 8, 9])
        [(2, 1), (2, 4)]
    """
    count = len(numbers)
    if count == 1:
        return []
    step = numbers[1] - numbers[0]
    for run in range(count, 1, -1):
        if count % run == 0 and all(
            numbers[i] == numbers[i - i % run] + i % run * step for i in range(count)
        ):
            return [(run, step), *_modes(numbers[::run])]
    raise ValueError(f"no loops run through {numbers}")


def expression(emitter: SimtEmitter, op: Elementwise, index: str) -> str:
    """The function of element ``index`` of its operands, in the result's storage type."""
    types = emitter.dialect.types
    result = op.result.dtype
    known = [v.dtype for v in op.operands_ if isinstance(v, Value)]
    if op.function == "convert":
        [operand] = op.operands_
        if isinstance(operand, Value):
            return converted(_spelled(emitter, operand, index), operand.dtype, result, types)
        return stored(operand, result, types)
    if op.function == "select":
        condition, *arms = op.operands_
        texts = [_arm(emitter, arm, index, result) for arm in arms]
        test = (
            _spelled(emitter, condition, index)
            if isinstance(condition, Value)
            else literal(condition, result)
        )
        return f"{test} ? {texts[0]} : {texts[1]}"
    common = known[0] if known else result
    texts = [
        widened(_spelled(emitter, v, index), common) if isinstance(v, Value) else literal(v, common)
        for v in op.operands_
    ]
    kind = compute_dtype(common)
    value = _applied(op.function, texts, kind)
    return value if op.function in COMPARISON else _rounded(value, kind, result, types)


def _rounded(value: str, kind: DType, result: DType, types: dict[str, str]) -> str:
    if kind == result and not kind.is_float and kind.bits < 32:
        return f"({types[result.name]})({value})"
    return converted(value, kind, result, types)


def _spelled(emitter: SimtEmitter, value: Value, index: str) -> str:
    return f"{emitter.name(value)}[{index}]" if value.is_fragment else emitter.name(value)


def _arm(emitter: SimtEmitter, arm: Value | float | int, index: str, result: DType) -> str:
    if not isinstance(arm, Value):
        return stored(arm, result, emitter.dialect.types)
    return converted(_spelled(emitter, arm, index), arm.dtype, result, emitter.dialect.types)


def _applied(function: str, operands: list[str], kind: DType) -> str:
    """The function of widened operands."""
    if function in _INFIX:
        return f"{operands[0]} {_INFIX[function]} {operands[1]}"
    if function == "neg":
        return f"-{operands[0]}"
    if function == "rsqrt":
        one, root = ("1.0", "sqrt") if kind == f64 else ("1.0f", "sqrtf")
        return f"{one} / {root}({operands[0]})"
    return f"{_CALLS.get((function, kind.name), function)}({', '.join(operands)})"
