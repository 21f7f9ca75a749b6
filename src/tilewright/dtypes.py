"""Element types: name, component width, component kind, component count, and the NumPy dtype.

A complex number has two components of a real type, `DType.component`. Tensors can be recast between a complex
element and two real ones.

A float of 8 bits is one line of this file: `encoding` reads its bit patterns from its NumPy dtype, and
targets generate their conversions from the encoding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tilewright.argument_checks import is_integer
from tilewright.calls import Calls
from tilewright.errors import DTypeError, nearest_name, shown


@Calls(DTypeError)
@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    Args:
        name: short name, e.g. ``"f16"``; the name used in printed kernels.
        bits: width of the whole element, in bits.
        kind: kind of each component: ``"float"``, ``"int"``, ``"uint"`` or ``"bool"``; ``"exponent"`` for
            scales that are powers of 2, with which kernels do not compute.
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
        """Width of one element in bytes; 1 for packed types."""
        return max(self.bits // 8, 1)

    @property
    def per_byte(self) -> int:
        """Elements in one byte: 1, unless they are narrower.

        Example:
            >>> i4.per_byte, f4e2m1.per_byte, i8.per_byte, f64.per_byte
            (2, 2, 1, 1)
        """
        return max(8 // self.bits, 1)

    @property
    def is_packed(self) -> bool:
        """Whether several elements share a byte, the first in its lowest bits; see `tilewright.packed`."""
        return self.bits < 8

    def bytes_of(self, count: int) -> int:
        """Return the bytes of a number of elements.

        Example:
            >>> f16.bytes_of(3), i4.bytes_of(6)
            (6, 3)
        """
        if type(count) is not int and not is_integer(count):
            raise DTypeError(f"{self}.bytes_of(count={shown(count)}): count must be an integer")
        return -(-count * self.bits // 8)

    @property
    def component(self) -> DType:
        """The real type of one component; the type itself if it is real."""
        return self if self.components == 1 else ALL[f"f{self.bits // 2}"]

    @property
    def computed(self) -> DType:
        """The type in which kernels compute: f32 for narrower floats, i32 for packed integers, else itself.

        >>> bf16.computed, f64.computed, i8.computed, c32.computed
        (f32, f64, i8, c64)
        """
        if self.is_packed and not self.is_float:
            return ALL["i32"]
        narrow = self.is_float and self.bits < 32 * self.components
        return ALL["f32" if self.components == 1 else "c64"] if narrow else self

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
        """The NumPy dtype of its arrays (``ml_dtypes`` for bf16 and fp8, bytes for packed types)."""
        return _BYTES if self.is_packed else _NUMPY[self.name]

    @property
    def numbers(self) -> np.dtype[Any]:
        """The NumPy dtype of single numbers; it differs from that of arrays only for packed types."""
        return _NUMPY[self.name]

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


ALL: dict[str, DType] = {}
"""Every element type by its name."""

IN_TORCH: dict[str, str] = {}
"""Names of element types in PyTorch."""

IN_DLPACK: dict[str, int] = {}
"""DLPack's codes of types whose code does not follow from their kind."""

_NUMPY: dict[str, np.dtype[Any]] = {}
_ALIASES: dict[str, DType] = {}
_MEANT = {
    "f2": "f16",
    "f4": "f32",
    "f8": "f64, or of 8 bits f8e4m3",
    "float8": "f8e4m3",
    "fp8": "f8e4m3",
    "int": "i32",
    "long": "i64",
    "single": "f32",
}
"""Advice for common names that are ambiguous, or unlike the name of the type."""

_BYTES = np.dtype(np.uint8)
_PAIR_OF_HALVES = np.dtype([("re", np.float16), ("im", np.float16)])


def _record(
    name: str,
    bits: int,
    kind: str,
    numpy: npt.DTypeLike,
    *aliases: str,
    components: int = 1,
    mantissa: int = 0,
    dlpack: int | None = None,
) -> DType:
    """Make an element type and add it to the list; targets derive its C name from kind and bits.

    Args:
        name: its short name.
        bits: width of the whole element.
        kind: the kind of each component, as in `DType`.
        numpy: the NumPy dtype of its numbers.
        aliases: other names, PyTorch's first; empty: PyTorch's name is NumPy's.
        components: 2 for complex types.
        mantissa: stored fraction bits of a float component.
        dlpack: DLPack's code, if it does not follow from the kind.
    """
    made = ALL[name] = DType(name, bits, kind, components, mantissa)
    _NUMPY[name] = np.dtype(numpy)
    IN_TORCH[name], *others = aliases or (_NUMPY[name].name,)
    if dlpack is not None:
        IN_DLPACK[name] = dlpack
    _ALIASES.update(dict.fromkeys((IN_TORCH[name], *others), made))
    return made


f64 = _record("f64", 64, "float", np.float64, "float64", "double", mantissa=52)
f32 = _record("f32", 32, "float", np.float32, "float32", "float", mantissa=23)
f16 = _record("f16", 16, "float", np.float16, "float16", "half", mantissa=10)
bf16 = _record("bf16", 16, "float", ml_dtypes.bfloat16, "bfloat16", mantissa=7, dlpack=4)
f8e4m3 = _record("f8e4m3", 8, "float", ml_dtypes.float8_e4m3fn, mantissa=3, dlpack=10)
f8e5m2 = _record("f8e5m2", 8, "float", ml_dtypes.float8_e5m2, mantissa=2, dlpack=12)
f8e4m3fnuz = _record("f8e4m3fnuz", 8, "float", ml_dtypes.float8_e4m3fnuz, mantissa=3, dlpack=11)
f8e5m2fnuz = _record("f8e5m2fnuz", 8, "float", ml_dtypes.float8_e5m2fnuz, mantissa=2, dlpack=13)
f8e8m0 = _record("f8e8m0", 8, "exponent", ml_dtypes.float8_e8m0fnu, dlpack=14)
f4e2m1 = _record("f4e2m1", 4, "float", ml_dtypes.float4_e2m1fn, mantissa=1)
i64 = _record("i64", 64, "int", np.int64, "int64")
i32 = _record("i32", 32, "int", np.int32, "int32")
i16 = _record("i16", 16, "int", np.int16, "int16")
i8 = _record("i8", 8, "int", np.int8, "int8")
i4 = _record("i4", 4, "int", ml_dtypes.int4, "int4")
u4 = _record("u4", 4, "uint", ml_dtypes.uint4, "uint4")
u64 = _record("u64", 64, "uint", np.uint64, "uint64")
u32 = _record("u32", 32, "uint", np.uint32, "uint32")
u16 = _record("u16", 16, "uint", np.uint16, "uint16")
u8 = _record("u8", 8, "uint", np.uint8, "uint8")
boolean = _record("boolean", 8, "bool", np.bool_, "bool")
c128 = _record("c128", 128, "float", np.complex128, "complex128", components=2, mantissa=52, dlpack=5)
c64 = _record("c64", 64, "float", np.complex64, "complex64", components=2, mantissa=23, dlpack=5)
c32 = _record("c32", 32, "float", _PAIR_OF_HALVES, "complex32", components=2, mantissa=10, dlpack=5)

FP8 = tuple(made for made in ALL.values() if made.is_float and made.bits == 8)
"""Floats of 8 bits."""

PACKED = tuple(made for made in ALL.values() if made.is_packed)
"""Packed types: several elements share a byte."""

_BY_NUMPY = {numpy_dtype: ALL[name] for name, numpy_dtype in _NUMPY.items()}


def limits(kind: DType) -> tuple[float, float]:
    """Return the least and the largest finite number of an integer or real dtype.

    Example:
        >>> limits(f8e4m3), limits(i8)
        ((-448.0, 448.0), (-128, 127))
    """
    if kind.is_float:
        most = float(ml_dtypes.finfo(kind.numbers).max)  # type: ignore[no-untyped-call]
        return -most, most
    ends = ml_dtypes.iinfo(kind.numbers)  # type: ignore[no-untyped-call]
    return int(ends.min), int(ends.max)


def nearest_held(kind: DType, number: float) -> float | None:
    """Return the nearest number that a dtype holds, if conversion would give infinity, NaN or 0; else None.

    Example:
        >>> nearest_held(f16, 1e5), nearest_held(f32, -1e-50), nearest_held(f32, 0.1)
        (65504.0, -1.401298464324817e-45, None)
        >>> nearest_held(c32, 1e5), nearest_held(c64, 1.5)
        (65504.0, None)
    """
    if not kind.is_float or not number or not math.isfinite(number):
        return None
    part = kind.component.numbers
    with np.errstate(over="ignore", under="ignore"):
        held = float(np.float64(number).astype(part))
    if held and math.isfinite(held):
        return None
    info = ml_dtypes.finfo(part)  # type: ignore[no-untyped-call]
    return math.copysign(float(info.max if abs(number) > 1 else info.smallest_subnormal), number)


def has_infinity(kind: DType) -> bool:
    """Return whether a real dtype has infinities.

    Example:
        >>> has_infinity(f8e5m2), has_infinity(f8e4m3), has_infinity(i8)
        (True, False, False)
    """
    return kind.is_float and bool(np.isinf(np.array(np.inf, np.float32).astype(kind.component.numbers)))


@dataclass(frozen=True, slots=True)
class Encoding:
    """The encoding of a float of at most 16 bits.

    Args:
        fraction: stored fraction bits.
        bias: the bias of the exponent.
        sign: mask of the sign bit.
        nan: the pattern of NaN.
        top: the largest positive pattern except NaN: infinity, or the largest number.
        past: the pattern that overflow gives.
    """

    fraction: int
    bias: int
    sign: int
    nan: int
    top: int
    past: int

    @property
    def has_infinity(self) -> bool:
        """Whether overflow gives infinity instead of NaN."""
        return self.past == self.top

    @property
    def has_one_zero(self) -> bool:
        """Whether the pattern of negative zero is the only NaN."""
        return self.nan == self.sign


@cache
def encoding(kind: DType) -> Encoding:
    """Return the encoding of a float of at most 16 bits, from its NumPy dtype.

    Example:
        >>> encoding(f8e4m3)
        Encoding(fraction=3, bias=7, sign=128, nan=127, top=126, past=127)
        >>> encoding(f8e5m2).has_infinity, encoding(f8e4m3fnuz).has_one_zero
        (True, True)
    """
    word = np.dtype(f"u{kind.bytes}")
    positive = np.arange(1 << kind.bits - 1, dtype=word).view(kind.numbers).astype(np.float64)
    nan, past = (int(np.array(one, np.float32).astype(kind.numbers).view(word)) for one in (np.nan, np.inf))
    bias = 1 - round(math.log2(positive[1 << kind.mantissa]))
    top = int(np.flatnonzero(~np.isnan(positive))[-1])
    return Encoding(kind.mantissa, bias, 1 << kind.bits - 1, nan, top, past)


def holds(wide: DType, narrow: DType) -> bool:
    """Return whether a real dtype converts to another without rounding.

    Example:
        >>> holds(f16, f8e4m3), holds(f16, i8), holds(bf16, f16), holds(f16, bf16)
        (True, True, False, False)
    """
    if wide == narrow or "bool" in (wide.kind, narrow.kind) or wide.components + narrow.components > 2:
        return wide == narrow
    (low, high), (least, most) = limits(narrow), limits(wide)
    if low < least or high > most or (narrow.is_float and not wide.is_float):
        return False
    if not narrow.is_float:
        return not wide.is_float or max(-low, high) <= 2 ** (wide.mantissa + 1)
    if narrow.mantissa > wide.mantissa or (has_infinity(narrow) and not has_infinity(wide)):
        return False
    tiny, least = (float(ml_dtypes.finfo(kind.numbers).smallest_subnormal) for kind in (narrow, wide))  # type: ignore[no-untyped-call]
    return least <= tiny


def dtype(value: object) -> DType:
    """Return the `DType` of a name, a NumPy dtype, a framework's dtype or a `DType`.

    NumPy's type codes are not accepted: ``"i8"`` has 8 bits.

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
    except Exception:  # noqa: BLE001 NumPy and a user's type may raise anything
        pass
    lowered = name.lower()
    near = _MEANT.get(lowered) or nearest_name(lowered, [*ALL, *_ALIASES], 0.6)
    nearest = f"nearest: {near}; " if near else ""
    raise DTypeError(f"unknown dtype {shown(value)}; {nearest}known: {', '.join(ALL)}")
