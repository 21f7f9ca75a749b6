"""Dtypes of what tiles of different dtypes make: the narrowest that holds the numbers of all."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dtypes import ALL, DType, f32, f64, i32, i64, u64
from tilewright.errors import DTypeError

_FLOATS = ("f16", "bf16", "f32", "f64")
_INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


def promoted(function: str, kinds: Sequence[DType]) -> DType:
    """The dtype that tiles of different dtypes are converted to, exactly, before they are combined.

    Raises:
        DTypeError: none holds the numbers of all.

    Example:
        >>> from tilewright.dtypes import bf16, f16, i8
        >>> promoted("add", [f32, f16]), promoted("add", [f16, bf16]), promoted("mul", [i8, f16])
        (f32, f32, f16)
    """
    floats = [kind.bits for kind in kinds if kind.is_float]
    mixed = len(floats) not in (0, len(kinds))  # whose floats no integer makes wider
    for name in (*_INTEGERS, *_FLOATS):
        candidate = ALL[name]
        if mixed and candidate.bits > max(floats):
            continue
        if holds_all(candidate, kinds):
            return candidate
    named = " and ".join(dict.fromkeys(map(str, kinds)))
    raise DTypeError(f"{function} of {named}: no dtype holds both; convert one first, e.g. with .to(tw.f32)")


def holds_all(wide: DType, kinds: Sequence[DType]) -> bool:
    """Whether a dtype holds all numbers of others.

    Example:
        >>> from tilewright.dtypes import bf16, f16
        >>> holds_all(f32, [f16, bf16]), holds_all(f16, [f16, bf16])
        (True, False)
    """
    return all(_holds(wide, kind) for kind in kinds)


def _holds(wide: DType, kind: DType) -> bool:
    """Whether a dtype holds all numbers of another."""
    if wide == kind:
        return True
    if kind.components > 1 or kind.kind == "bool":
        return False
    if wide.is_float:
        if not kind.is_float:
            return kind.bits - (kind.kind == "int") <= wide.mantissa + 1
        return kind.bits < wide.bits and kind.mantissa <= wide.mantissa
    signed = wide.kind == "int"
    return (
        not kind.is_float
        and (kind.bits < wide.bits if kind.kind != wide.kind else kind.bits <= wide.bits)
        and (signed or kind.kind == "uint")
    )


def sum_dtype(a: DType, b: DType) -> DType:
    """The dtype in which products are summed, if the author does not choose one: that of `atoms.fma`.

    Raises:
        DTypeError: operands of kinds that have no product.

    Example:
        >>> from tilewright.dtypes import bf16, f16, i8, u8
        >>> sum_dtype(f16, bf16), sum_dtype(f64, f64), sum_dtype(i8, u8)
        (f32, f64, i32)
    """
    if "bool" in (a.kind, b.kind):
        raise DTypeError(f"product of {a} and {b}: needs numbers; convert truth values with .to(tw.i8)")
    if a.components != b.components:
        raise DTypeError(f"product of {a} and {b}: both are complex, or none is")
    if a.is_float != b.is_float:
        raise DTypeError(f"product of {a} and {b}: convert one of them first, e.g. with .to(tw.f16)")
    wide = max(a.component.bits, b.component.bits)
    if a.is_float:
        kind = f64 if wide > 32 else f32
        return kind if a.components == 1 else ALL[f"c{2 * kind.bits}"]
    if a == b == u64:
        return u64
    return i64 if wide > 32 else i32
