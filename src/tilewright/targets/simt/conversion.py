"""Conversions between dtypes as C expressions over the prelude's functions; every one rounds once.

Narrow floats are opaque storage types.  They widen to ``float`` exactly and are rounded from ``float``; from
f64, and from integers that f32 cannot hold, through a float rounded to odd, which keeps the second rounding
from seeing a tie.
"""

from __future__ import annotations

from tilewright.dtypes import FP8, DType, boolean, f32, f64, i8, i32, limits
from tilewright.errors import DTypeError
from tilewright.targets.c_integers import called_in_names
from tilewright.targets.simt.narrow_floats import spelled
from tilewright.targets.statements import Code, call, code, named

NARROW = {
    "f16": "half",
    "bf16": "bf16",
    **{made.name: spelled(made) for made in FP8},
    "f4e2m1": "e2m1",
}
"""Floats without arithmetic of their own, and what the prelude's functions call them."""


def widened(text: Code, dtype: DType) -> Code:
    """The expression in the dtype in which it computes; exact.  Of packed numbers the bits are given."""
    if dtype.is_packed and not dtype.is_float:
        return call(f"{dtype}_to_int", text)
    return call(f"{NARROW[dtype.name]}_to_float", text) if dtype.name in NARROW else text


def converted(text: Code, source: DType, target: DType, types: dict[str, str]) -> Code:
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
    if source == boolean:
        return converted(call("truth", text), i8, target, types)
    wide, kind = widened(text, source), source.computed
    if target == boolean:
        return code("({} != 0)", wide)
    if target.name in NARROW:
        return _narrowed(wide, kind, target)
    if target.is_float:
        return wide if kind == target else cast(types[target.name], wide)
    if kind.is_float:
        return _integer(wide, kind, target)
    return cast(types[target.name], wide)


def cast(kind: str, text: Code) -> Code:
    """``(kind)text``."""
    simple = text.replace("_", "").replace("[", "").replace("]", "").isalnum() or text.endswith(")")
    return code("({}){}" if simple else "({})({})", named(kind), text)


def _narrowed(wide: Code, kind: DType, target: DType) -> Code:
    name = NARROW[target.name]
    if kind == f64 and target.name == "f16":
        return call("double_to_half", wide)
    if kind.bits == 64 and not kind.is_float and target.name != "f16":
        wide = call(f"{called_in_names(kind)}_to_float_odd", wide)
    elif kind == f64 or (kind == i32 and target.name != "f16") or kind.name == "u32":
        wide = call("double_to_float_odd", wide)
    elif kind != f32:
        wide = cast("float", wide)
    return call(f"float_to_{name}", wide)


def _integer(wide: Code, kind: DType, target: DType) -> Code:
    """Truncated and saturated; NaN gives 0."""
    prefix = "double" if kind == f64 else "float"
    if target.bits >= 32:
        return call(f"{prefix}_to_{called_in_names(target)}", wide)
    low, high = (Code(str(end)) for end in limits(target))
    return call("min", call("max", call(f"{prefix}_to_int", wide), low), high)
