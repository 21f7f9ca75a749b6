"""Pieces of the prelude that convert two narrow numbers to halves at once, by packed arithmetic.

Each conversion is exact, as that of one number is, and NaN stays NaN.
"""

from __future__ import annotations

from tilewright.targets.simt.dialect import Pair

_HALVES = "typedef _Float16 halves __attribute__((ext_vector_type(2)));"

_BITS = {
    "e4m3": "(unsigned)from[0].bits << 8 | (unsigned)from[1].bits << 24",
    "e5m2": "(unsigned)from[0].bits << 8 | (unsigned)from[1].bits << 24",
    "i8": "((unsigned char)from[0] | (unsigned)(unsigned char)from[1] << 16) ^ 0x64806480",
}
"""Two numbers, one in the bits of each half: fp8 in the upper byte, integers less their sign in the lower."""

_STEPS = {
    "e4m3": """  // The bits of an f16 whose exponent is 8 too small.  NaN, alone of all numbers, overflows
  // in the first product, and infinity times 0 is NaN.
  typedef short words __attribute__((ext_vector_type(2)));
  const words shifted = __builtin_bit_cast(words, x) >> (words)(short)1;
  const halves small = __builtin_bit_cast(halves, __builtin_bit_cast(unsigned, shifted) & 0xbf80bf80);
  const halves beyond = small * (halves)(_Float16)36864.0f, y = small * (halves)(_Float16)256.0f;
  const halves made = __builtin_elementwise_fma(beyond, (halves)(_Float16)0.0f, y);""",
    "e5m2": "  const halves made = __builtin_bit_cast(halves, x);",
    "i8": """  // The f16 of the bits 0x6400 + b is 1024 + b; the last 128 are those of the sign.
  const halves made = __builtin_bit_cast(halves, x) - (halves)(_Float16)1152.0f;""",
}

_STORAGE = {"e4m3": "e4m3_t", "e5m2": "e5m2_t", "i8": "signed char"}


def _piece(name: str) -> str:
    return f"""
DEVICE void {name}_pair_to_half(half_t* to, const {_STORAGE[name]}* from) {{
  {_HALVES}
  const unsigned x = {_BITS[name]};
{_STEPS[name]}
  __builtin_memcpy(to, &made, sizeof(made));
}}"""


PIECES = {f"{name}_pair_to_half": _piece(name) for name in _STEPS}
"""By the names that they define."""

NEEDS = {f"{name}_pair_to_half": ("half_t", *((f"{name}_t",) if name != "i8" else ())) for name in _STEPS}
"""What each of them names."""

PAIRS = {
    ("f8e4m3", "f16"): Pair("e4m3_pair_to_half"),
    ("f8e5m2", "f16"): Pair("e5m2_pair_to_half"),
    ("i8", "f16"): Pair("i8_pair_to_half"),
}
"""By the dtypes from which and to which."""
