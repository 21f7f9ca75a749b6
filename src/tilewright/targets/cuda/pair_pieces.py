"""Pieces of the prelude that convert two narrow numbers to halves at once."""

from __future__ import annotations

_INPUTS = {
    "e4m3": "const unsigned short x = from[0].bits | from[1].bits << 8;",
    "e5m2": "const unsigned short x = from[0].bits | from[1].bits << 8;",
    "i8": "const unsigned x = ((unsigned char)from[0] | (unsigned char)from[1] << 8) ^ 0x8080;",
}
"""The bits of two numbers, of integers less their sign: 128 more than the number."""

_OUTPUTS = """  to[0].bits = (unsigned short)y;
  to[1].bits = (unsigned short)(y >> 16);"""

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


PIECES = {
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
    name: tuple(f"{kind}_t" for kind in (name.partition("_")[0], name.rpartition("_")[2]) if kind != "i8")
    for name in PIECES
}
"""The types that each of them names."""
