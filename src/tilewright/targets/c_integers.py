"""Integers in C, by their kind and bits: what their types are called, how their constants end."""

from __future__ import annotations

from tilewright.dtypes import ALL, DType

_SIGNED = {8: "signed char", 16: "short", 32: "int", 64: "long long"}
_UNSIGNED = {8: "unsigned char", 16: "unsigned short", 32: "unsigned", 64: "unsigned long long"}

INTEGERS = tuple(made for made in ALL.values() if made.kind in ("int", "uint") and not made.is_packed)
"""Every integer dtype that C has too."""


def integer_type(dtype: DType) -> str:
    """The type of an integer dtype.

    Example:
        >>> from tilewright.dtypes import i8, u32
        >>> integer_type(i8), integer_type(u32)
        ('signed char', 'unsigned')
    """
    return (_UNSIGNED if dtype.kind == "uint" else _SIGNED)[dtype.bits]


def unsigned_type(dtype: DType) -> str:
    """The unsigned type of as many bits."""
    return _UNSIGNED[dtype.bits]


def suffix(dtype: DType) -> str:
    """How a constant of an integer dtype ends; narrow ones are constants of ``int``.

    Example:
        >>> from tilewright.dtypes import i64, u16, u32
        >>> suffix(i64), suffix(u16), suffix(u32)
        ('ll', '', 'u')
    """
    return "u" * (dtype.kind == "uint" and dtype.bits >= 32) + "ll" * (dtype.bits == 64)


INTEGER_TYPES: dict[str, str] = {made.name: integer_type(made) for made in INTEGERS}
"""The type of each integer dtype, by its name."""


def called_in_names(dtype: DType) -> str:
    """What names of functions call an integer dtype of at least 32 bits.

    Example:
        >>> from tilewright.dtypes import i32, i64, u32
        >>> called_in_names(i32), called_in_names(u32), called_in_names(i64)
        ('int', 'uint', 'll')
    """
    return "u" * (dtype.kind == "uint") + ("int" if dtype.bits == 32 else "ll")
