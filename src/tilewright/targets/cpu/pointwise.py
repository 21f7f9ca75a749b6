"""Rules of operations on single elements: fills, elementwise functions, copies between fragments."""

from __future__ import annotations

from tilewright.dtypes import DType, f32, i64
from tilewright.functions.conversions import clamped_in, saturation
from tilewright.functions.table import COMPARISON, CONVERSION
from tilewright.ir.fragment_ops import Coordinates
from tilewright.ir.ops import Copy, Elementwise, Fill, Fragment, Op
from tilewright.ir.types import Value
from tilewright.symbolic.nodes import Expr, Int
from tilewright.targets.cpu import functions
from tilewright.targets.cpu.conversions import STORAGE, computes_in
from tilewright.targets.cpu.elements import Loops
from tilewright.targets.cpu.emitter import CpuEmitter
from tilewright.targets.cpu.fuse import Pointwise, made_by
from tilewright.targets.cpu.literals import literal
from tilewright.targets.statements import Code, call, code, named, names_in


def emit_pointwise(emitter: CpuEmitter, op: Pointwise) -> None:
    """One loop over the elements; what is only used inside it stays in registers."""
    for one in op.ops:
        emitter.comment(one, describe(one))
    loops = Loops(emitter, op)
    with loops.open():
        present: dict[Value, Code] = {}
        for at, one in enumerate(op.ops):
            target = made_by(one)
            text = _value(emitter, one, present, loops)
            again = f"_{at}" if target in present else ""
            present[target] = emitter.local(f"{emitter.name(target)}_e{again}")
            emitter.constant(STORAGE[target.dtype.name], present[target], text)
        for value in op.stored:
            emitter.assign(loops.element(value), present[value])


def emit_scalar(emitter: CpuEmitter, op: Elementwise) -> None:
    """A function of the kernel's numbers, computed once."""
    emitter.comment(op, describe(op))
    kind = STORAGE[op.result.dtype.name]
    emitter.constant(kind, emitter.name(op.result), _value(emitter, op, {}, None))


def describe(op: Op) -> str:
    """An operation on single elements in words."""
    match op:
        case Elementwise():
            operands = ", ".join(str(operand) for operand in op.operands_)
            dtype = f", {op.dtype}" if op.dtype is not None else ""
            return f"{op.result} = {op.function}({operands}{dtype})"
        case Coordinates():
            return f"{op.result} = coordinates along {op.dim}"
        case Fill():
            return f"{op.target} = {op.value}"
        case Fragment():
            return f"{op.result} = {op.fill}"
        case _:
            return f"{op.written[0]} = {op.read[0]}"


def _value(emitter: CpuEmitter, op: Op, present: dict[Value, Code], loops: Loops | None) -> Code:
    """C++ for what an operation makes of one element."""
    match op:
        case Fragment():
            return literal(emitter, 0 if op.fill is None else op.fill, op.dtype)
        case Fill():
            if not isinstance(op.value, Value):
                return literal(emitter, op.value, op.target.dtype)
            return emitter.convert(emitter.name(op.value), op.value.dtype, op.target.dtype)
        case Copy():
            read = _element(emitter, op.source, present, loops)
            return emitter.convert(read, op.source.dtype, op.target.dtype)
        case Coordinates():
            assert loops is not None
            return code("(int)({})", loops.coordinate(op.dim))
        case Elementwise():
            return _function(emitter, op, present, loops)
        case _:
            raise TypeError(f"{op.name} is no operation on single elements")


def _element(emitter: CpuEmitter, value: Value, present: dict[Value, Code], loops: Loops | None) -> Code:
    if value in present:
        return present[value]
    return loops.element(value) if loops is not None and value.is_fragment else emitter.name(value)


def _function(emitter: CpuEmitter, op: Elementwise, present: dict[Value, Code], loops: Loops | None) -> Code:
    def operand(value: Value | float | Int, dtype: DType) -> Code:
        if isinstance(value, Value):
            return emitter.convert(_element(emitter, value, present, loops), value.dtype, dtype)
        if isinstance(value, Expr):
            text = emitter.spell(value)
            if dtype.is_float and computes_in(dtype) != dtype:  # its storage type is no number of C++
                return emitter.convert(code(f"({STORAGE['i64']})({{}})", text), i64, dtype)
            return code(f"({STORAGE[dtype.name]})({{}})", text)
        return literal(emitter, value, dtype)

    result = op.result.dtype
    if op.function == "saturate" and isinstance(source := op.operands_[0], Value):
        kind = clamped_in(computes_in(source.dtype), result)
        if (ends := saturation(kind, result)) is not None:
            low, high = (literal(emitter, end, kind) for end in ends)
            clamped = call("clamp", operand(source, kind), low, high, of=[named(STORAGE[kind.name])])
            return emitter.convert(clamped, kind, result)
    if op.function == "bitcast" and isinstance(source := op.operands_[0], Value):
        held = _element(emitter, source, present, loops)
        return code("__builtin_bit_cast({}, {})", named(STORAGE[result.name]), held)
    if op.function in CONVERSION:
        return operand(op.operands_[0], result)
    if op.function == "select":
        condition, left, right = op.operands_
        asked = condition if isinstance(condition, Value) else None
        test = Code(str(int(bool(condition))))
        if asked is not None:
            test = _element(emitter, asked, present, loops)
        if asked is not None and computes_in(asked.dtype) != asked.dtype:
            test = operand(asked, f32)
        return code("{} ? {} : {}", test, operand(left, result), operand(right, result))
    known = [value.dtype for value in op.operands_ if isinstance(value, Value)]
    wide = computes_in(known[0] if known else result)
    operands = [operand(value, wide) for value in op.operands_]
    text, needs = functions.spell(op.function, wide, operands)
    spelled = Code(text, names_in(operands) | {*needs})
    if op.function in COMPARISON:
        return spelled
    if result.is_float:
        return emitter.convert(spelled, wide, result)
    return code(f"({STORAGE[result.name]})({{}})", spelled)
