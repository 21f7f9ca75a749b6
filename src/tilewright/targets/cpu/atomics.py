"""Reductions into global memory on the CPU: one function for each kind and element type.

Integers have instructions of their own; floats are exchanged for the new value until no other thread came in
between.
"""

from __future__ import annotations

from tilewright.dtypes import DType
from tilewright.targets.cpu.conversions import STORAGE, computes_in
from tilewright.targets.cpu.emitter import SELF, CpuEmitter
from tilewright.targets.statements import Code

_BITS = {8: "unsigned char", 16: "unsigned short", 32: "unsigned", 64: "unsigned long long"}

_COMBINED = {
    "add": "old + x",
    "min": "x < old || x != x ? x : old",
    "max": "x > old || x != x ? x : old",
}
"""What is computed; NaN stays."""


def reduction(emitter: CpuEmitter, kind: str, dtype: DType) -> Code:
    """The name of the function ``(address, value)`` that reduces an element."""
    stored = STORAGE[dtype.name]
    if not dtype.is_float and kind in ("add", "and", "or"):
        body = f"  __atomic_fetch_{kind}(to, given, __ATOMIC_RELAXED);"
    else:
        body = _exchanged(emitter, kind, dtype)
    text = f"static inline void {SELF}({stored}* to, {stored} given) {{\n{body}\n}}"
    return emitter.function(f"reduce_{kind}_{dtype}", text)


def _exchanged(emitter: CpuEmitter, kind: str, dtype: DType) -> str:
    stored, wide, bits = STORAGE[dtype.name], computes_in(dtype), _BITS[dtype.bits]
    old = emitter.convert(f"__builtin_bit_cast({stored}, seen)", dtype, wide)
    made = emitter.convert(f"({STORAGE[wide.name]})({_COMBINED[kind]})", wide, dtype)
    return f"""\
  typedef {bits} __attribute__((may_alias)) Word;
  constexpr int RELAXED = __ATOMIC_RELAXED;
  const {STORAGE[wide.name]} x = {emitter.convert("given", dtype, wide)};
  {bits} seen = __atomic_load_n((Word*)to, RELAXED), made;
  do {{
    const {STORAGE[wide.name]} old = {old};
    made = __builtin_bit_cast({bits}, {made});
  }} while (!__atomic_compare_exchange_n((Word*)to, &seen, made, false, RELAXED, RELAXED));"""
