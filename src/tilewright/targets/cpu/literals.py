"""Numbers as C++ literals of a storage type."""

from __future__ import annotations

import math

import numpy as np

from tilewright.dtypes import DType, f32, f64
from tilewright.targets.c_integers import suffix
from tilewright.targets.cpu.conversions import STORAGE
from tilewright.targets.cpu.emitter import CpuEmitter
from tilewright.targets.statements import Code


def literal(emitter: CpuEmitter, value: float | int, dtype: DType) -> Code:
    """A number as a value of a dtype, rounded once."""
    if dtype.kind == "bool":
        return Code("true" if value else "false")
    if not dtype.is_float and isinstance(value, int):
        text = f"{value}{suffix(dtype)}"
        return Code(f"({STORAGE[dtype.name]}){text}" if value < 0 else text)
    with np.errstate(over="ignore"):
        near = dtype.component.numpy.type(value)
    if dtype.components > 1:  # the real part lies in the low bits, the imaginary one is 0
        return Code(f"({STORAGE[dtype.name]})0x{int.from_bytes(near.tobytes(), 'little'):x}ull")
    if dtype == f32 and math.isfinite(near):
        return Code(f"{float(near)!r}f")
    wide = f"{float(value)!r}"
    if not math.isfinite(value):
        wide = '__builtin_nan("")' if value != value else f"{'-' if value < 0 else ''}__builtin_inf()"
    return emitter.convert(Code(wide), f64, dtype)
