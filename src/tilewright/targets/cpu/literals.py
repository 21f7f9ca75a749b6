"""Numbers as C++ literals of a storage type."""

from __future__ import annotations

import math

import numpy as np

from tilewright.dtypes import DType, f32, f64
from tilewright.targets.c_integers import suffix
from tilewright.targets.cpu.conversions import STORAGE
from tilewright.targets.cpu.emitter import CpuEmitter


def literal(emitter: CpuEmitter, value: float | int, dtype: DType) -> str:
    """A number as a value of a dtype, rounded once."""
    if dtype.kind == "bool":
        return "true" if value else "false"
    if not dtype.is_float and isinstance(value, int):
        return f"({STORAGE[dtype.name]}){value}{suffix(dtype)}" if value < 0 else f"{value}{suffix(dtype)}"
    with np.errstate(over="ignore"):
        near = dtype.component.numpy.type(value)
    if dtype.components > 1:  # the real part lies in the low bits, the imaginary one is 0
        return f"({STORAGE[dtype.name]})0x{int.from_bytes(near.tobytes(), 'little'):x}ull"
    if dtype == f32 and math.isfinite(near):
        return f"{float(near)!r}f"
    wide = f"{float(value)!r}"
    if not math.isfinite(value):
        wide = '__builtin_nan("")' if value != value else f"{'-' if value < 0 else ''}__builtin_inf()"
    return emitter.convert(wide, f64, dtype)
