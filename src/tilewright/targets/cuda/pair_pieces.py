"""Pieces of the prelude that convert two narrow numbers to halves at once.

Each conversion is exact, as that of one number is.  fp8 has an instruction from sm_89 on; an integer of 8
bits becomes the low bits of a float whose last bit counts as 1, from which an offset is then taken away.

Source: PTX ISA, "cvt", "prmt".
"""

from __future__ import annotations

from tilewright.targets.simt.dialect import Pair

PAIRS = {
    ("f8e4m3", "f16"): Pair("e4m3_pair_to_half", "sm_89"),
    ("f8e5m2", "f16"): Pair("e5m2_pair_to_half", "sm_89"),
    ("f8e4m3", "bf16"): Pair("e4m3_pair_to_bf16", "sm_89"),
    ("f8e5m2", "bf16"): Pair("e5m2_pair_to_bf16", "sm_89"),
    ("i8", "f16"): Pair("i8_pair_to_half", "sm_80"),
    ("i8", "bf16"): Pair("i8_pair_to_bf16", "sm_80"),
}
"""By the dtypes from which and to which."""

_INPUTS = {
    "e4m3": "const unsigned short x = *(const unsigned short*)from;",
    "e5m2": "const unsigned short x = *(const unsigned short*)from;",
    "i8": "const unsigned x = *(const unsigned short*)from ^ 0x8080;",
}
"""The bits of two numbers, of integers less their sign: 128 more than the number."""

_OUTPUTS = "  *(unsigned*)to = y;"

_TO_HALVES = {
    "e4m3": '  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(x));',
    "e5m2": '  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(y) : "h"(x));',
    "i8": """  // The f16 of the bits 0x6400 + b is 1024 + b.
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(__byte_perm(x, 0x64646464, 0x4140)), "r"(0x64806480));""",
}

_FROM_HALVES = """  unsigned short low = halves, high = halves >> 16;
  float first, second;
  asm("cvt.f32.f16 %0, %1;" : "=f"(first) : "h"(low));
  asm("cvt.f32.f16 %0, %1;" : "=f"(second) : "h"(high));"""

_TO_FLOATS = {
    "e4m3": f"""  unsigned halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(x));
{_FROM_HALVES}""",
    "e5m2": f"""  unsigned halves;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(x));
{_FROM_HALVES}""",
    "i8": """  // The f32 of the bits 0x4b000000 + b is 2**23 + b.
  const float first = __uint_as_float(__byte_perm(x, 0x4b000000, 0x7650)) - 8388736.0f;
  const float second = __uint_as_float(__byte_perm(x, 0x4b000000, 0x7651)) - 8388736.0f;""",
}

_TO_BF16 = '  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));'

_STORAGE = {"e4m3": "e4m3_t", "e5m2": "e5m2_t", "i8": "signed char"}


def _piece(name: str, target: str, steps: str) -> str:
    lines = (
        f"DEVICE void {name}({target}_t* to, const {_STORAGE[name.partition('_')[0]]}* from) {{",
        f"  {_INPUTS[name.partition('_')[0]]}",
        "  unsigned y;",
        steps,
        _OUTPUTS,
        "}",
    )
    return "\n".join(lines)


INSTRUCTIONS = {
    "sub_f16x2": """DEVICE unsigned sub_f16x2(unsigned x, unsigned z) {
  unsigned y;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(z));
  return y;
}""",
    "mul_f16x2": """DEVICE unsigned mul_f16x2(unsigned x, unsigned z) {
  unsigned y;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(z));
  return y;
}""",
    "fma_f16x2": """DEVICE unsigned fma_f16x2(unsigned x, unsigned z, unsigned sum) {
  unsigned y;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(z), "r"(sum));
  return y;
}""",
    "fma_bf16x2": """DEVICE unsigned fma_bf16x2(unsigned x, unsigned z, unsigned sum) {
  unsigned y;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(z), "r"(sum));
  return y;
}""",
}
"""Instructions for two halves in a register, each by its bits."""

_ARITHMETIC = {
    ("sub", "half"): "sub_f16x2(x, z)",
    ("mul", "half"): "mul_f16x2(x, z)",
    ("sub", "bf16"): "fma_bf16x2(z, 0xbf80bf80, x)",
    ("mul", "bf16"): "fma_bf16x2(x, z, 0x80008000)",
}
"""Functions of two pairs: products less 0 in bf16, whose zeros keep their sign."""


def _arithmetic(name: str, kind: str, made: str) -> str:
    lines = (
        f"DEVICE void {name}({kind}_t* to, const {kind}_t* from, const {kind}_t other) {{",
        "  const unsigned x = *(const unsigned*)from, z = other.bits | other.bits << 16;",
        f"  *(unsigned*)to = {made};",
        "}",
    )
    return "\n".join(lines)


PIECES = {
    **INSTRUCTIONS,
    **{
        name: _arithmetic(name, kind, made)
        for (function, kind), made in _ARITHMETIC.items()
        for name in [f"pair_{function}_{kind}"]
    },
    **{
        name: _piece(name, "half", steps)
        for source, steps in _TO_HALVES.items()
        for name in [f"{source}_pair_to_half"]
    },
    **{
        name: _piece(name, "bf16", f"{steps}\n{_TO_BF16}")
        for source, steps in _TO_FLOATS.items()
        for name in [f"{source}_pair_to_bf16"]
    },
}
"""By the names that they define."""

NEEDS = {
    **{
        name: tuple(f"{kind}_t" for kind in (name.partition("_")[0], name.rpartition("_")[2]) if kind != "i8")
        for name in PIECES
        if "_pair_to_" in name
    },
    **{
        f"pair_{function}_{kind}": (f"{kind}_t", made.partition("(")[0])
        for (function, kind), made in _ARITHMETIC.items()
    },
}
"""What each of them names."""
