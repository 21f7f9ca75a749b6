"""Element types: name, component width, component kind, component count, and the NumPy dtype.

A complex number is two components of a real type; `DType.component` gives that type, and tensors can be
recast between a complex element and two real ones.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.calls import Calls
from tilewright.errors import DTypeError, shown


@Calls(DTypeError)
@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    Args:
        name: short name, e.g. ``"f16"``; the name used in printed kernels.
        bits: width of the whole element, in bits.
        kind: ``"float"``, ``"int"``, ``"uint"`` or ``"bool"``, of each component.
        components: 1, or 2 for complex types.
        mantissa: stored fraction bits of a float component (0 for integers).

    Example:
        >>> f16.bits, f16.bytes, f16.is_float, c64.component
        (16, 2, True, f32)
    """

    name: str
    bits: int
    kind: str
    components: int = 1
    mantissa: int = 0

    @property
    def bytes(self) -> int:
        """Width of one element in bytes."""
        return self.bits // 8

    @property
    def component(self) -> DType:
        """The real type of one component; the type itself if it is real."""
        return self if self.components == 1 else _COMPONENTS[self.name]

    @property
    def is_float(self) -> bool:
        """Whether the components are floating point."""
        return self.kind == "float"

    @property
    def unit_roundoff(self) -> float:
        """Half the spacing of floats just above 1: the relative error of one rounding; 0 for integers."""
        return 2.0 ** -(self.mantissa + 1) if self.is_float else 0.0

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype with the same bits (``ml_dtypes`` for bf16 and fp8)."""
        return _NUMPY[self.name]

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


f64 = DType("f64", 64, "float", mantissa=52)
f32 = DType("f32", 32, "float", mantissa=23)
f16 = DType("f16", 16, "float", mantissa=10)
bf16 = DType("bf16", 16, "float", mantissa=7)
f8e4m3 = DType("f8e4m3", 8, "float", mantissa=3)
f8e5m2 = DType("f8e5m2", 8, "float", mantissa=2)
i64 = DType("i64", 64, "int")
i32 = DType("i32", 32, "int")
i16 = DType("i16", 16, "int")
i8 = DType("i8", 8, "int")
u32 = DType("u32", 32, "uint")
u16 = DType("u16", 16, "uint")
u8 = DType("u8", 8, "uint")
boolean = DType("boolean", 8, "bool")
c128 = DType("c128", 128, "float", components=2, mantissa=52)
c64 = DType("c64", 64, "float", components=2, mantissa=23)
c32 = DType("c32", 32, "float", components=2, mantissa=10)

ALL: dict[str, DType] = {
    t.name: t
    for t in (
        *(f64, f32, f16, bf16, f8e4m3, f8e5m2, i64, i32, i16, i8, u32, u16, u8, boolean),
        *(c128, c64, c32),
    )
}

_COMPONENTS = {"c128": f64, "c64": f32, "c32": f16}

_NUMPY: dict[str, np.dtype[Any]] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "u32": np.dtype(np.uint32),
    "u16": np.dtype(np.uint16),
    "u8": np.dtype(np.uint8),
    "boolean": np.dtype(np.bool_),
    "c128": np.dtype(np.complex128),
    "c64": np.dtype(np.complex64),
    "c32": np.dtype([("re", np.float16), ("im", np.float16)]),
}

_ALIASES = {
    "float64": f64,
    "double": f64,
    "float32": f32,
    "float": f32,
    "float16": f16,
    "half": f16,
    "bfloat16": bf16,
    "float8_e4m3fn": f8e4m3,
    "float8_e5m2": f8e5m2,
    "int64": i64,
    "int32": i32,
    "int16": i16,
    "int8": i8,
    "uint32": u32,
    "uint16": u16,
    "uint8": u8,
    "bool": boolean,
    "complex128": c128,
    "complex64": c64,
}
_BY_NUMPY = {numpy_dtype: ALL[name] for name, numpy_dtype in _NUMPY.items()}


def limits(kind: DType) -> tuple[float, float]:
    """The least and the largest finite number of an integer or real dtype.

    Example:
        >>> limits(f8e4m3), limits(i8)
        ((-448.0, 448.0), (-128, 127))
    """
    if kind.is_float:
        most = float(ml_dtypes.finfo(kind.numpy).max)  # type: ignore[no-untyped-call]
        return -most, most
    ends = np.iinfo(kind.numpy)
    return int(ends.min), int(ends.max)


def has_infinity(kind: DType) -> bool:
    """Whether a real dtype holds infinities.

    Example:
        >>> has_infinity(f8e5m2), has_infinity(f8e4m3), has_infinity(i8)
        (True, False, False)
    """
    return kind.is_float and kind != f8e4m3


def dtype(value: object) -> DType:
    """The `DType` that a name, a NumPy dtype, a framework's dtype or a `DType` stands for.

    NumPy's codes are no names here: ``"i8"`` has 8 bits.

    Raises:
        DTypeError: no such type; the message lists the known names, the nearest first.

    Example:
        >>> dtype("float16"), dtype(np.float32), dtype("bf16").bits
        (f16, f32, 16)
    """
    if isinstance(value, DType) and ALL.get(value.name) == value:
        return value
    name = value if isinstance(value, str) else shown(value).removeprefix("torch.")
    if found := ALL.get(name) or _ALIASES.get(name):
        return found
    try:
        if not isinstance(value, str):
            return _BY_NUMPY[np.dtype(value)]  # type: ignore[call-overload]
    except Exception:  # noqa: BLE001 what NumPy and a stranger say of what is none
        pass
    close = difflib.get_close_matches(name, [*ALL, *_ALIASES], 1)
    nearest = f"nearest: {close[0]}; " if close else ""
    raise DTypeError(f"unknown dtype {shown(value)}; {nearest}known: {', '.join(ALL)}")
