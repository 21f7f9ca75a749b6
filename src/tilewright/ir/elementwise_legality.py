"""Legality rules of arithmetic on fragments that hold on every target."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilewright.dtypes import DType, limits, nearest_held
from tilewright.errors import Violation
from tilewright.functions.table import CONVERSION, FUNCTIONS, TAKE
from tilewright.ir.fragment_ops import choice_dtype, widest_map
from tilewright.ir.op import Op
from tilewright.ir.ops import Elementwise, Fill, FragmentOp
from tilewright.ir.types import Value
from tilewright.symbolic.nodes import Expr, Int, bounds
from tilewright.threads.distribution import Distribution, registers
from tilewright.threads.registers import broadcast


def spelled(shape: tuple[Int, ...]) -> str:
    """Format a shape for messages."""
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"


def literal_obstacle(dtype: DType, value: object) -> tuple[str, str] | None:
    """Return why a dtype cannot hold a plain number, and the nearest value that it holds; None if it can."""
    if not isinstance(value, int | float):
        return None
    if (nearest := nearest_held(dtype, value)) is not None:
        return f"{value} becomes {'0' if abs(value) < 1 else 'infinite'} in {dtype}", str(nearest)
    if dtype.kind not in ("int", "uint"):
        return None
    low = -(2 ** (dtype.bits - 1)) if dtype.kind == "int" else 0
    high = low + 2**dtype.bits - 1
    if isinstance(value, float) and not value.is_integer():
        near = min(max(round(value), low), high) if math.isfinite(value) else "an integer"
        return f"{value} is not a value of {dtype}", f"{near}, or .to(tw.f32) first"
    if not low <= value <= high:
        text = f"{value} is not within {low} to {high}, the range of {dtype}"
        return text, str(low if value < low else high)
    return None


def verify_literals(op: Op, dtype: DType, values: tuple[object, ...]) -> Iterator[Violation]:
    """Require plain numbers to be values of the other operands' dtype."""
    for value in values:
        if (found := literal_obstacle(dtype, value)) is not None:
            yield op.violation("dtype", *found)


def verify_fragment(op: FragmentOp) -> Iterator[Violation]:
    """Require the dtype to hold the fragment's initial value."""
    yield from verify_literals(op, op.dtype, (op.fill,))


def verify_fill(op: Fill) -> Iterator[Violation]:
    """Require the dtype to hold the value."""
    yield from verify_literals(op, op.target.dtype, (op.value,))
    if isinstance(op.value, Value):
        yield from verify_conversion(op, op.value, op.target)


def verify_elementwise(op: Elementwise) -> Iterator[Violation]:
    """Require a known function with the right number of operands, and compatible distributions and dtypes."""
    if obstacle := FUNCTIONS[op.function].counts(len(op.operands_)):
        yield op.violation("elementwise", obstacle)
    values = [v for v in op.operands_ if isinstance(v, Value)]
    maps: dict[Distribution, Value] = {}
    for value in values:
        if value.is_fragment:
            maps.setdefault(value.fragment.distribution, value)
    if maps:
        widest = widest_map(list(maps))
        for spread, value in maps.items():
            if broadcast(widest, spread) is not None:
                continue
            full = maps[widest]
            shapes = " and ".join(f"{v} {spelled(v.fragment.shape)}" for v in (full, value))
            both = "; ".join(f"{v}: {v.fragment.distribution}" for v in (full, value))
            wanted, given = full.fragment.shape, value.fragment.shape
            nearest = moved(value, full)
            if len(wanted) != len(given) or any(g not in (1, w) for g, w in zip(given, wanted, strict=True)):
                nearest = f"fragments of shape {spelled(wanted)}, or 1 along dimensions to broadcast"
            elif wanted != given:
                projected = f"tw.load(tensor, {full}.distribution.projected({given}))"
                nearest = f"the result of a reduction of {full}, or {projected}"
            text = (
                f"{op.function} of {shapes}, whose elements are distributed differently over the "
                f"threads ({both})"
            )
            yield op.violation("elementwise", text, nearest)
            break
    if op.function in CONVERSION:
        for value in values:
            yield from verify_conversion(op, value, op.result)
    elif op.function == TAKE:
        yield from verify_literals(op, op.result.dtype, op.operands_[1:])
        if len(values) != 1 or len(op.table) != len(op.operands_) - 1:
            yield op.violation("elementwise", "take takes codes, and a table of plain numbers")
    elif values:
        of_choice = choice_dtype(op.function, op.operands_)
        kind = values[-1].dtype if of_choice is None else op.result.dtype
        yield from verify_literals(op, kind, op.operands_)
        if op.function != "select" or len(values) > 1 or of_choice is not None:
            yield from _verify_kinds(op, kind)


def _verify_kinds(op: Elementwise, kind: DType) -> Iterator[Violation]:
    """Combine truth values only with truth values; require kernel integers to fit the others' dtype."""
    is_mask = kind.kind == "bool"
    for operand in op.operands_:
        if isinstance(operand, Value | float):
            continue
        if isinstance(operand, bool):
            if not is_mask:
                yield op.violation("dtype", f"{operand} is not a value of {kind}", str(int(operand)))
        elif is_mask:
            yield op.violation(
                "dtype",
                f"{operand} is not a truth value",
                f"mask.to(tw.i32), or {bool(operand)}" if isinstance(operand, int) else "mask.to(tw.i32)",
            )
        elif isinstance(operand, Expr) and kind.kind in ("int", "uint") and kind.name not in ("i32", "i64"):
            low, high = bounds(operand)
            least, most = limits(kind)
            if low < least or high > most:
                yield op.violation(
                    "dtype",
                    f"the integer {operand}, {low} to {high}, need not be within {least} to {most}, the "
                    f"range of {kind}",
                    ".to(tw.i32) first",
                )


def moved(source: Value, like: Value) -> str:
    """Return the call that gives a fragment another fragment's map."""
    given, wanted = source.fragment.distribution, like.fragment.distribution
    local = registers(given, wanted, (0,) * given.rank)
    scratch = "" if local is not None else f", scratch=tw.shared({given.shape}, tw.{source.dtype})"
    return f"tw.redistribute({source}, like={like}{scratch})"


def verify_conversion(op: Op, source: Value, target: Value) -> Iterator[Violation]:
    """Refuse conversions to or from complex dtypes."""
    kinds = source.dtype, target.dtype
    if kinds[0] != kinds[1] and any(kind.components > 1 for kind in kinds):
        yield op.violation(
            "dtype",
            f"{op.verb} of {source} to {target} converts {kinds[0]} to {kinds[1]}; complex numbers are not "
            "converted",
            f"{kinds[0]} on both sides",
        )
