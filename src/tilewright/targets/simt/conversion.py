"""Conversions between dtypes as C expressions over the prelude's functions; every one rounds once.

Narrow floats are opaque storage types.  They widen to ``float`` exactly and are rounded from ``float``; from
f64, and from integers that f32 cannot hold, through a float rounded to odd, which keeps the second rounding
from seeing a tie.
"""

from __future__ import annotations

from tilewright.dtypes import DType, boolean, f32, f64, i32, limits
from tilewright.errors import DTypeError
from tilewright.targets.c_integers import called_in_names

NARROW = {"f16": "half", "bf16": "bf16", "f8e4m3": "e4m3", "f8e5m2": "e5m2"}
"""Floats without arithmetic of their own, and what the prelude's functions call them."""


def compute_dtype(dtype: DType) -> DType:
    """The dtype in which ``dtype`` computes: f32 for floats narrower than f32."""
    return f32 if dtype.name in NARROW else dtype


def widened(text: str, dtype: DType) -> str:
    """The expression in the dtype in which it computes; exact."""
    return f"{NARROW[dtype.name]}_to_float({text})" if dtype.name in NARROW else text


def converted(text: str, source: DType, target: DType, types: dict[str, str]) -> str:
    """The expression, rounded or truncated to another dtype.

    Args:
        text: an expression of the source dtype's storage type.
        source: its dtype.
        target: the dtype to convert to.
        types: the C type of each dtype.

    Raises:
        DTypeError: conversions of complex numbers.
    """
    if source == target:
        return text
    if source.components > 1 or target.components > 1:
        raise DTypeError(f"no conversion from {source} to {target} in generated text")
    wide, kind = widened(text, source), compute_dtype(source)
    if target == boolean:
        return f"({wide} != 0)"
    if target.name in NARROW:
        return _narrowed(wide, kind, target)
    if target.is_float:
        return wide if kind == target else f"({types[target.name]}){_operand(wide)}"
    if kind.is_float:
        return _integer(wide, kind, target)
    return f"({types[target.name]}){_operand(wide)}"


def _narrowed(wide: str, kind: DType, target: DType) -> str:
    name = NARROW[target.name]
    if kind == f64 and target.name == "f16":
        return f"double_to_half({wide})"
    if kind.bits == 64 and not kind.is_float and target.name != "f16":
        wide = f"{called_in_names(kind)}_to_float_odd({wide})"
    elif kind == f64 or (kind == i32 and target.name != "f16") or kind.name == "u32":
        wide = f"double_to_float_odd({wide})"
    elif kind != f32:
        wide = f"(float){_operand(wide)}"
    return f"float_to_{name}({wide})"


def _integer(wide: str, kind: DType, target: DType) -> str:
    """Truncated and saturated; NaN gives 0."""
    prefix = "double" if kind == f64 else "float"
    if target.bits >= 32:
        return f"{prefix}_to_{called_in_names(target)}({wide})"
    low, high = limits(target)
    return f"min(max({prefix}_to_int({wide}), {low}), {high})"


def _operand(text: str) -> str:
    """The expression as the operand of a cast."""
    simple = text.replace("_", "").replace("[", "").replace("]", "").isalnum() or text.endswith(")")
    return text if simple else f"({text})"
