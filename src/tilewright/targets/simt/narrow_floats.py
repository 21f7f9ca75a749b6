"""Conversions of floats of 8 bits as text, which follows from how they are encoded."""

from __future__ import annotations

import struct

from tilewright.dtypes import FP8, DType, Encoding, encoding


def spelled(kind: DType) -> str:
    """What functions and types of the text call a float of 8 bits.

    Example:
        >>> from tilewright.dtypes import f8e4m3fnuz
        >>> spelled(f8e4m3fnuz)
        'e4m3fnuz'
    """
    return kind.name.removeprefix("f8")


def widening(kind: DType) -> str:
    """To ``float``, exactly: the bits in their places give a number whose exponent is too small."""
    name, form = spelled(kind), encoding(kind)
    if form.has_one_zero:
        is_special, special = "x.bits == 0x80", "NOT_A_NUMBER"
    elif form.has_infinity:  # NaN keeps its fraction, with the largest exponent
        is_special = f"(x.bits & 0x7f) >= 0x{form.top:x}"
        special = "FLOAT_OF(scaled | 0x7f800000)"
    else:
        is_special, special = f"(x.bits & 0x7f) == 0x{form.nan:x}", "NOT_A_NUMBER"
    return f"""
DEVICE float {name}_to_float({name}_t x) {{
  // The exponent of the f32 with these bits is {127 - form.bias} too small.
  const unsigned scaled = (unsigned)(x.bits & 0x80) << 24 | (unsigned)(x.bits & 0x7f) << {23 - form.fraction};
  const float y = FLOAT_OF(scaled) * FLOAT_OF({254 - form.bias}u << 23);
  return {is_special} ? {special} : y;
}}"""


def narrowing(kind: DType) -> str:
    """Of ``float``, to the nearest, ties to even; what is beyond the range becomes infinity, or NaN."""
    name, form = spelled(kind), encoding(kind)
    down, least = 23 - form.fraction, 1 - form.bias - form.fraction
    half, normal = (1 << down - 1) - 1, _word(2.0 ** (1 - form.bias))
    sign = "y ? sign | y : 0" if form.has_one_zero else "sign | y"
    return f"""
DEVICE {name}_t float_to_{name}(float x) {{
  const unsigned sign = BITS_OF(x) >> 24 & 0x80;
  unsigned y = BITS_OF(x) & 0x7fffffff;
{_special(name, form)}
  }} else if (y < 0x{normal:x}) {{  // subnormal: the sum leaves multiples of 2**{least} in the last bits
    y = BITS_OF(FLOAT_OF(y) + {2.0 ** (least + 23)}f) - BITS_OF({2.0 ** (least + 23)}f);
  }} else {{
    y = (y + 0x{half:x} + (y >> {down} & 1) - ({127 - form.bias}u << 23)) >> {down};
  }}
  return {name}_t{{(unsigned char)({sign})}};
}}"""


def _special(name: str, form: Encoding) -> str:
    """The first branches: what is beyond the largest number, and NaN."""
    largest = form.top - form.has_infinity
    end = 2.0 ** ((largest >> form.fraction) - form.bias) * (
        1 + (largest % (1 << form.fraction) + 0.5) / (1 << form.fraction)
    )
    beyond = f"{'>' if largest % 2 == 0 else '>='} 0x{_word(end):x}"
    if form.has_one_zero:
        return f"""\
  if (y {beyond}) {{  // {end:g} and beyond, infinities, NaN
    return {name}_t{{0x80}};"""
    if not form.has_infinity:
        return f"""\
  if (y {beyond}) {{  // beyond {end:g}, the last number that rounds to the largest one
    y = 0x{form.nan:x};"""
    return f"""\
  if (y > 0x7f800000) {{
    y = 0x{form.nan:x};  // NaN
  }} else if (y {beyond}) {{
    y = 0x{form.top:x};  // {end:g} and beyond round to infinity"""


def _word(value: float) -> int:
    """The bits of an f32."""
    return int.from_bytes(struct.pack("<f", value), "little")


PIECES = {
    **{f"{spelled(kind)}_to_float": widening(kind) for kind in FP8},
    **{f"float_to_{spelled(kind)}": narrowing(kind) for kind in FP8},
}
"""Between floats of 8 bits and ``float``."""

NEEDS = {name: (f"{name.removeprefix('float_to_').removesuffix('_to_float')}_t",) for name in PIECES}
"""The types that they name."""
