"""Pieces of text that any dialect of per-thread programs may need before its kernel.

A piece is emitted only if the text names it, or if a piece that is emitted does.  Conversions follow the
reference: one rounding to nearest even.  A dialect has pieces of its own besides, written in the same words:
``DEVICE`` stands for the qualifiers of a function, ``ALIGN(4)`` for an attribute, ``FLOAT_OF(x)`` and
``BITS_OF(x)`` for the float of some bits and the bits of a float, ``NOT_A_NUMBER`` for such a float.
"""

from __future__ import annotations

from tilewright.dtypes import ALL
from tilewright.functions import philox
from tilewright.targets.c_integers import INTEGER_TYPES
from tilewright.targets.simt import activations, division

STORAGE: dict[str, str] = {
    "f64": "double",
    "f32": "float",
    "f16": "half_t",
    "bf16": "bf16_t",
    "f8e4m3": "e4m3_t",
    "f8e5m2": "e5m2_t",
    "f8e4m3fnuz": "e4m3fnuz_t",
    "f8e5m2fnuz": "e5m2fnuz_t",
    **INTEGER_TYPES,
    **{made.name: "unsigned char" for made in ALL.values() if made.is_packed},
    "boolean": "bool",
    "c128": "double2",
    "c64": "float2",
    "c32": "half2_t",
}
"""The type of each dtype in memory and registers, by the dtype's name."""

TYPES = {
    "half_t": "struct half_t { unsigned short bits; };",
    "bf16_t": "struct bf16_t { unsigned short bits; };",
    "e4m3_t": "struct e4m3_t { unsigned char bits; };",
    "e5m2_t": "struct e5m2_t { unsigned char bits; };",
    "e4m3fnuz_t": "struct e4m3fnuz_t { unsigned char bits; };",
    "e5m2fnuz_t": "struct e5m2fnuz_t { unsigned char bits; };",
    "half2_t": "struct ALIGN(4) half2_t { half_t re, im; };",
}
"""Storage types without arithmetic."""

CONVERSIONS = {
    "bf16_to_float": """
DEVICE float bf16_to_float(bf16_t x) {
  return FLOAT_OF((unsigned)x.bits << 16);
}""",
    "e4m3_to_float": """
DEVICE float e4m3_to_float(e4m3_t x) {
  // The bits of an f16 whose exponent is 8 too small; 0x7f is NaN.
  const half_t scaled = {(unsigned short)((x.bits & 0x80) << 8 | (x.bits & 0x7f) << 7)};
  const float y = 256.0f * half_to_float(scaled);  // before the choice, which is a select then, not a branch
  return (x.bits & 0x7f) == 0x7f ? NOT_A_NUMBER : y;
}""",
    "e5m2_to_float": """
DEVICE float e5m2_to_float(e5m2_t x) {
  return half_to_float(half_t{(unsigned short)(x.bits << 8)});
}""",
    "float_to_e4m3": """
DEVICE e4m3_t float_to_e4m3(float x) {
  const unsigned sign = BITS_OF(x) >> 24 & 0x80;
  unsigned y = BITS_OF(x) & 0x7fffffff;
  if (y > 0x43e80000) {  // beyond 464, the last number that rounds to 448
    y = 0x7f;
  } else if (y < 0x3c800000) {  // subnormal: adding 2**14 leaves multiples of 2**-9 in the last bits
    y = BITS_OF(FLOAT_OF(y) + 16384.0f) - BITS_OF(16384.0f);
  } else {
    y = (y + 0x7ffff + (y >> 20 & 1) - (120u << 23)) >> 20;
  }
  return e4m3_t{(unsigned char)(sign | y)};
}""",
    "float_to_e5m2": """
DEVICE e5m2_t float_to_e5m2(float x) {
  const unsigned sign = BITS_OF(x) >> 24 & 0x80;
  unsigned y = BITS_OF(x) & 0x7fffffff;
  if (y > 0x7f800000) {
    y = 0x7e;  // NaN
  } else if (y >= 0x47700000) {
    y = 0x7c;  // 61440 and beyond round to infinity
  } else if (y < 0x38800000) {  // subnormal: adding 2**7 leaves multiples of 2**-16 in the last bits
    y = BITS_OF(FLOAT_OF(y) + 128.0f) - BITS_OF(128.0f);
  } else {
    y = (y + 0xfffff + (y >> 21 & 1) - (112u << 23)) >> 21;
  }
  return e5m2_t{(unsigned char)(sign | y)};
}""",
    "e4m3fnuz_to_float": """
DEVICE float e4m3fnuz_to_float(e4m3fnuz_t x) {
  // The exponent of the f32 with these bits is 119 too small; what would be the negative zero is NaN.
  const unsigned scaled = (unsigned)(x.bits & 0x80) << 24 | (unsigned)(x.bits & 0x7f) << 20;
  const float y = FLOAT_OF(scaled) * FLOAT_OF(246u << 23);
  return x.bits == 0x80 ? NOT_A_NUMBER : y;
}""",
    "e5m2fnuz_to_float": """
DEVICE float e5m2fnuz_to_float(e5m2fnuz_t x) {
  // The exponent of the f32 with these bits is 111 too small; what would be the negative zero is NaN.
  const unsigned scaled = (unsigned)(x.bits & 0x80) << 24 | (unsigned)(x.bits & 0x7f) << 21;
  const float y = FLOAT_OF(scaled) * FLOAT_OF(238u << 23);
  return x.bits == 0x80 ? NOT_A_NUMBER : y;
}""",
    "float_to_e4m3fnuz": """
DEVICE e4m3fnuz_t float_to_e4m3fnuz(float x) {
  const unsigned sign = BITS_OF(x) >> 24 & 0x80;
  unsigned y = BITS_OF(x) & 0x7fffffff;
  if (y >= 0x43780000) {  // 248 and beyond, infinities, NaN
    return e4m3fnuz_t{0x80};
  } else if (y < 0x3c000000) {  // subnormal: adding 2**13 leaves multiples of 2**-10 in the last bits
    y = BITS_OF(FLOAT_OF(y) + 8192.0f) - BITS_OF(8192.0f);
  } else {
    y = (y + 0x7ffff + (y >> 20 & 1) - (119u << 23)) >> 20;
  }
  return e4m3fnuz_t{(unsigned char)(y ? sign | y : 0)};
}""",
    "float_to_e5m2fnuz": """
DEVICE e5m2fnuz_t float_to_e5m2fnuz(float x) {
  const unsigned sign = BITS_OF(x) >> 24 & 0x80;
  unsigned y = BITS_OF(x) & 0x7fffffff;
  if (y >= 0x47700000) {  // 61440 and beyond, infinities, NaN
    return e5m2fnuz_t{0x80};
  } else if (y < 0x38000000) {  // subnormal: adding 2**6 leaves multiples of 2**-17 in the last bits
    y = BITS_OF(FLOAT_OF(y) + 64.0f) - BITS_OF(64.0f);
  } else {
    y = (y + 0xfffff + (y >> 21 & 1) - (111u << 23)) >> 21;
  }
  return e5m2fnuz_t{(unsigned char)(y ? sign | y : 0)};
}""",
    "i4_to_int": """
DEVICE int i4_to_int(unsigned bits) {
  return (int)(bits << 28) >> 28;
}""",
    "e2m1_to_float": """
DEVICE float e2m1_to_float(unsigned bits) {
  // The exponent of the f32 with these bits is 126 too small.
  return FLOAT_OF((bits & 8) << 28 | (bits & 7) << 22) * FLOAT_OF(253u << 23);
}""",
    "float_to_e2m1": """
DEVICE unsigned float_to_e2m1(float x) {
  // One more for each middle between two numbers that is passed; ties go to the even one, NaN to 6.
  const float y = x < 0 ? -x : x;
  const unsigned size = !(y <= 0.25f) + !(y < 0.75f) + !(y <= 1.25f) + !(y < 1.75f) + !(y <= 2.5f)
      + !(y < 3.5f) + !(y <= 5.0f);
  return size | (x == x ? BITS_OF(x) >> 28 & 8 : 0);
}""",
    "negated": """
template <class T>
DEVICE T negated(T x) {
  x.bits ^= 1u << (8 * sizeof(x.bits) - 1);  // the sign
  return x;
}""",
    "clamp": """
template <class T>
DEVICE T clamp(T x, T low, T high) {
  return x < low ? low : x > high ? high : x;  // NaN stays
}""",
}
"""Between those and ``float``, given ``half_to_float``."""

MOVES = {
    "load_if": """
template <class Word>
DEVICE Word load_if(bool exists, const void* from) {
  Word word = {};
  if (exists) word = *(const Word*)from;
  return word;
}""",
    "load_or": """
template <class Word>
DEVICE Word load_or(bool exists, const void* from, Word other) {
  if (exists) other = *(const Word*)from;
  return other;
}""",
}
"""Loads of what may not exist."""

RANDOM = {
    **{name: f"\nDEVICE {text}" for name, (_, text) in philox.PIECES.items()},
    "between_lanes": """
DEVICE unsigned between_lanes(unsigned own, unsigned other, bool is_odd) {
  // Of four bits for each of two rows each lane of a pair has one row, and wants two columns of both.
  return is_odd ? (own & 0xccccccccu) | (other >> 2 & 0x33333333u)
                : (own & 0x33333333u) | (other << 2 & 0xccccccccu);
}""",
}
"""Random numbers that are a function of a counter."""

DIVISION = division.PIECES
"""Quotients, rests and shifts as the reference has them."""

ACTIVATIONS = activations.PIECES
"""Activations, given ``fast_exp2`` and ``fast_reciprocal``."""

REALS = (("float", "f"), ("double", ""))
"""Types with arithmetic, and how the names of the language's functions of them end."""

_SIXTEEN_BITS = ("half", "bf16")
_OCP = ("e4m3", "e5m2")
_FNUZ = ("e4m3fnuz", "e5m2fnuz")

NEEDS: dict[str, tuple[str, ...]] = {
    "half2_t": ("half_t",),
    "remainder": ("quotient",),
    **{name: needs for name, (needs, _) in philox.PIECES.items()},
    **activations.NEEDS,
    **{f"{name}_to_float": (f"{name}_t",) for name in _SIXTEEN_BITS + _FNUZ},
    **{f"{name}_to_float": (f"{name}_t", "half_t", "half_to_float") for name in _OCP},
    **{f"float_to_{name}": (f"{name}_t",) for name in _SIXTEEN_BITS + _OCP + _FNUZ},
    "double_to_half": ("half_t",),
    **{f"floor_remainder_{real}": (f"fmod{end}", f"copysign{end}") for real, end in REALS},
    **{f"floor_quotient_{real}": (f"fmod{end}", f"copysign{end}", f"floor{end}") for real, end in REALS},
}
"""The pieces that a piece names, here and in every dialect; all others name none."""
