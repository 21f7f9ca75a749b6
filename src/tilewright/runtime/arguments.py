"""How a kernel's arguments are packed: one buffer, C struct alignment, in launch order."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.dtypes import DType, has_infinity, limits, nearest_held
from tilewright.errors import LaunchError, shown
from tilewright.ir.kernel import Kernel, ScalarParam, SizeParam, passed_params

SMALLEST = 2.0**-149
"""The least positive number of f32: smaller ones may be rounded to 0."""

_FLOATS = {64: "d", 32: "f", 16: "H", 8: "B"}  # of those narrower than f32, the bits
_INTEGERS = {64: "q", 32: "i", 16: "h", 8: "b"}


def _code(kind: DType) -> str:
    """How `struct` writes a number of a dtype."""
    if kind.kind == "bool":
        return "?"
    code = (_FLOATS if kind.is_float else _INTEGERS)[kind.bits]
    return code.upper() if kind.kind == "uint" else code


@dataclass(frozen=True)
class Number:
    """Where one of the author's numbers goes in the buffer.

    Args:
        position: its position among the author's arguments.
        name: its name.
        dtype: its dtype.
        offset: bytes from the start of the buffer.
    """

    position: int
    name: str
    dtype: DType
    offset: int

    def write(self, buffer: Any, arguments: Sequence[Any]) -> None:
        """Write the caller's value, as the dtype stores it.

        Raises:
            LaunchError: it is no number, or one that the dtype does not hold.
        """
        stored = number(self.name, self.dtype, arguments[self.position]).tobytes()
        struct.pack_into(f"{len(stored)}s", buffer, self.offset, stored)


class NumberWriter:
    """Writes one number into one buffer, and not again when the same value comes next."""

    def __init__(self, number: Number) -> None:
        self._number = number
        self._position = number.position
        self._last: object = None
        code = _code(number.dtype)
        # Packed natively, a number beyond f32 would be infinite and no error.
        self._pack = struct.Struct(f"={code}").pack_into if code in ("f", "d") else None

    def write(self, buffer: Any, arguments: Sequence[Any]) -> None:
        """Write the caller's value, as `Number.write` does."""
        value = arguments[self._position]
        # Other kinds of numbers may change without becoming another object.
        if value is self._last and type(value) in (int, float):
            return
        if not self._is_packed(buffer, value):
            self._number.write(buffer, arguments)
        self._last = value

    def _is_packed(self, buffer: Any, value: object) -> bool:
        """Whether the value was written the short way, as a float of the kernel's own width is rounded."""
        if self._pack is None or type(value) is not float:
            return False
        try:
            self._pack(buffer, self._number.offset, value)
        except OverflowError:  # which `number` refuses
            return False
        return abs(value) >= SMALLEST or not value or value != value


def number(name: str, dtype: DType, value: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """A caller's number as a dtype holds it: rounded if it is a float, else a whole number in range.

    A number that would be rounded to infinity or to 0 is refused; infinities, zeros and NaN are held.

    Raises:
        LaunchError: the dtype does not hold it; names the argument.

    Example:
        >>> from tilewright.dtypes import i8
        >>> number("shift", i8, 300)
        Traceback (most recent call last):
        tilewright.errors.LaunchError: shift=300 does not fit i8, which holds -128 to 127
    """
    plain = _plain(name, dtype, value)
    if (nearest := nearest_held(dtype, plain)) is not None:
        becomes = "0" if abs(plain) < 1 else "infinite" if has_infinity(dtype) else "NaN"
        raise LaunchError(
            f"{name}={shown(value)} becomes {becomes} in {dtype}; nearest legal choice: {nearest}"
        )
    return np.asarray(plain).astype(dtype.numpy)


def _plain(name: str, dtype: DType, value: Any) -> float | int:
    if dtype.is_float:
        try:
            if hasattr(type(value), "__float__") or hasattr(type(value), "__index__"):
                return float(value)
        except OverflowError:  # of an integer
            most = math.copysign(limits(dtype)[1], 1 if value > 0 else -1)
            text = f"{name}={shown(value)} must be a number, which {dtype} holds"
            raise LaunchError(f"{text}; nearest legal choice: {most}") from None
        except Exception:  # noqa: BLE001 whatever a stranger's __float__ raises
            pass
        raise LaunchError(f"{name}={shown(value)} must be a number, which {dtype} holds")
    try:
        whole = operator.index(value)
    except Exception:  # noqa: BLE001 what a stranger's __index__ raises
        raise LaunchError(f"{name}={shown(value)} must be an integer, to be passed as {dtype}") from None
    low, high = (0, 1) if dtype.kind == "bool" else (np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max)
    if not low <= whole <= high:
        raise LaunchError(f"{name}={whole} does not fit {dtype}, which holds {low} to {high}")
    return whole


@dataclass(frozen=True)
class Packing:
    """A `struct` format with native alignment, and the byte offset of every argument.

    Example:
        >>> Packing(("P", "P", "i", "q")).offsets, Packing(("P", "P", "i", "q")).format
        ((0, 8, 16, 24), '@PPiq')
    """

    codes: tuple[str, ...]

    @cached_property
    def format(self) -> str:
        """The `struct` format string."""
        return "@" + "".join(self.codes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Byte offset of each argument."""
        found, at = [], 0
        for code in self.codes:
            at = -(-at // struct.calcsize(code)) * struct.calcsize(code)
            found.append(at)
            at += struct.calcsize(code)
        return tuple(found)


def packing(kernel: Kernel) -> Packing:
    """The packing of a kernel's parameters."""
    codes = []
    for param in passed_params(kernel):
        if isinstance(param, SizeParam):
            codes.append("q" if param.bits == 64 else "i")
        elif isinstance(param, ScalarParam):
            codes.append(_code(param.value.dtype))
        else:
            codes.append("P")
    return Packing(tuple(codes))
