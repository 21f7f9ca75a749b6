"""Pieces of text that any dialect of per-thread programs may need before its kernel.

A piece is emitted only if the text names it, or if a piece that is emitted does.  Conversions follow the
reference: one rounding to nearest even.  A dialect adds its own pieces, with the same placeholders:
``DEVICE`` stands for the qualifiers of a function, ``ALIGN(4)`` for an attribute, ``FLOAT_OF(x)`` and
``BITS_OF(x)`` for the float of some bits and the bits of a float, ``NOT_A_NUMBER`` for such a float.
"""

from __future__ import annotations

from tilewright.dtypes import FP8, PACKED, DType, f32, f64
from tilewright.functions import philox
from tilewright.functions.function import horner
from tilewright.functions.table import GELU, GELU_TANH, LOWEST, SILU_SLOPE
from tilewright.targets.dialect import INTEGER_TYPES, bits_of_float, float_of_bits, integer_of_bits, shifts
from tilewright.targets.simt import conversion
from tilewright.targets.simt.conversion import spelled

STORAGE: dict[str, str] = {
    "f64": "double",
    "f32": "float",
    "f16": "half_t",
    "bf16": "bf16_t",
    **{made.name: f"{spelled(made)}_t" for made in FP8},
    **INTEGER_TYPES,
    **{made.name: "unsigned char" for made in PACKED},
    "boolean": "bool",
    "c128": "double2",
    "c64": "float2",
    "c32": "half2_t",
}
"""The type of each dtype in memory and registers, by the dtype's name."""

TYPES = {
    "half_t": "struct half_t { unsigned short bits; };",
    "bf16_t": "struct bf16_t { unsigned short bits; };",
    **{f"{spelled(made)}_t": f"struct {spelled(made)}_t {{ unsigned char bits; }};" for made in FP8},
    "half2_t": "struct ALIGN(4) half2_t { half_t re, im; };",
}
"""Storage types without arithmetic."""


def _of_packed(kind: DType) -> dict[str, str]:
    """Return the conversions from the bits of a packed number, and to those of a packed float."""
    if not kind.is_float:
        return {
            f"{kind}_to_int": f"""
DEVICE int {kind}_to_int(unsigned bits) {{
  return {integer_of_bits(kind)};
}}"""
        }
    name = spelled(kind)
    (wide, why_wide), (narrow, why_narrow) = float_of_bits(kind, "FLOAT_OF("), bits_of_float(kind, "BITS_OF(")
    return {
        f"{name}_to_float": f"""
DEVICE float {name}_to_float(unsigned bits) {{
  {why_wide}
  return {wide};
}}""",
        f"float_to_{name}": f"""
DEVICE unsigned float_to_{name}(float x) {{
  {why_narrow}
{narrow}
}}""",
    }


CONVERSIONS = {
    **conversion.PIECES,
    "bf16_to_float": """
DEVICE float bf16_to_float(bf16_t x) {
  return FLOAT_OF((unsigned)x.bits << 16);
}""",
    "truth": """
DEVICE int truth(const bool& x) {
  // Whether a byte in memory is not 0: a bool in C++ would have to be 0 or 1.
  return *(const unsigned char*)&x != 0;
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
    **{
        name: text
        for made in sorted(PACKED, key=lambda one: one.is_float)
        for name, text in _of_packed(made).items()
    },
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
"""Conversions between these types and ``float``.  Two of them call the dialect's ``half_to_float``."""

EXTREMES = {
    f"{name}_or_nan": f"""
template <class T>
DEVICE T {name}_or_nan(T a, T b) {{
  return a {sign} b || a != a ? a : b;
}}"""
    for name, sign in (("max", ">"), ("min", "<"))
}
"""The greater or lesser of two numbers, or NaN; dialects place it among their conversions."""

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
"""Loads of elements that may not exist."""

RANDOM = {
    **{name: f"\nDEVICE {text}" for name, text in philox.PIECES.items()},
    "between_lanes": """
DEVICE unsigned between_lanes(unsigned own, unsigned other, bool is_odd) {
  // Of four bits for each of two rows each lane of a pair has one row, and wants two columns of both.
  return is_odd ? (own & 0xccccccccu) | (other >> 2 & 0x33333333u)
                : (own & 0x33333333u) | (other << 2 & 0xccccccccu);
}""",
}
"""Random numbers that are a function of a counter."""

_INDICES = {
    "floor_div": """
template <class A, class B>
DEVICE auto floor_div(A a, B b) {
  return a / b - (a % b != 0 && a < 0);
}""",
    "floor_mod": """
template <class A, class B>
DEVICE auto floor_mod(A a, B b) {
  return (a % b + b) % b;
}""",
    "quotient": """
DEVICE int quotient(int n, long long inverse) {
  // n / d, with inverse = (2^63 - 1) / d
  const unsigned long long twice = 2u * (unsigned)n + 2u;
  return (twice * (unsigned)(inverse >> 32) + (twice * (unsigned)inverse >> 32)) >> 32;
}""",
    "remainder": """
DEVICE int remainder(int n, int d, long long inverse) {
  return n - quotient(n, inverse) * d;
}""",
    "min_int": """
template <class A, class B>
DEVICE decltype(A() + B()) min_int(A a, B b) {
  return a < b ? a : b;
}""",
    "max_int": """
template <class A, class B>
DEVICE decltype(A() + B()) max_int(A a, B b) {
  return a > b ? a : b;
}""",
}

_WHOLE = {
    "floor_quotient": """
template <class T>
DEVICE T floor_quotient(T a, T b) {
  // Rounded down; 0 for b = 0, and the least a over -1 is itself.
  if (b == 0) return 0;
  if (b == (T)-1 && (T)-1 < 0) return (T)(0 - (unsigned long long)a);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}""",
    "floor_remainder": """
template <class T>
DEVICE T floor_remainder(T a, T b) {
  // With the sign of b; 0 for b = 0.
  if (b == 0 || (b == (T)-1 && (T)-1 < 0)) return 0;
  const T rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}""",
    **{name: f"\n{text}" for name, text in shifts("shifted_left", "shifted_right", "DEVICE").items()},
}


def _of_floats(real: str, suffix: str) -> dict[str, str]:
    """Return the quotient and remainder of one float type, by the steps of NumPy and Python."""
    return {
        f"floor_remainder_{real}": f"""
DEVICE {real} floor_remainder_{real}({real} a, {real} b) {{
  const {real} rest = fmod{suffix}(a, b);
  if (rest == 0) return copysign{suffix}(({real})0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}}""",
        f"floor_quotient_{real}": f"""
DEVICE {real} floor_quotient_{real}({real} a, {real} b) {{
  if (b == 0) return a / b;
  const {real} rest = fmod{suffix}(a, b);
  const {real} near = (a - rest) / b - (rest != 0 && (rest < 0) != (b < 0) ? 1 : 0);
  if (near == 0) return copysign{suffix}(({real})0, a / b);
  const {real} below = floor{suffix}(near);
  return near - below > ({real})0.5 ? below + 1 : below;
}}""",
    }


DIVISION: dict[str, str] = {**_INDICES, **_WHOLE, **_of_floats("float", "f"), **_of_floats("double", "")}
"""Quotients, remainders and shifts with the results of the reference; divisors of indices are positive."""

_FMA = "fmaf({sum}, {x}, {term})"

_FINITE_BELOW = f"fmaxf(x, {LOWEST[f32]!r}f)"
"""x, or the lowest finite number if x is -inf or NaN; the other factor of NaN is NaN."""

_FINITE_BELOW_F64 = f"fmax(x, {LOWEST[f64]!r})"


def _share(name: str, slope: str) -> str:
    return f"""
DEVICE float {name}(float x) {{
  // x / (1 + 2**t)
  const float t = x * {slope};
  return {_FINITE_BELOW} * fast_reciprocal(1.0f + fast_exp2(t));
}}"""


ACTIVATIONS: dict[str, str] = {
    "fast_sigmoid": """
DEVICE float fast_sigmoid(float x) {
  // Within 5 units in the last place; results below the least normal number become 0.
  return fast_reciprocal(1.0f + expf(-x));
}""",
    "fast_silu": _share("fast_silu", f"{SILU_SLOPE!r}f"),
    "fast_gelu": _share("fast_gelu", horner("(x * x)", GELU, "f", _FMA)),
    "fast_gelu_tanh": _share("fast_gelu_tanh", horner("(x * x)", GELU_TANH, "f", _FMA)),
    "sigmoid": """
DEVICE double sigmoid(double x) {
  const double small = exp(-fabs(x));
  return (x < 0 ? small : 1.0) / (1.0 + small);
}""",
    "silu": f"""
DEVICE double silu(double x) {{
  return {_FINITE_BELOW_F64} * sigmoid(x);
}}""",
    "gelu": f"""
DEVICE double gelu(double x) {{
  return {_FINITE_BELOW_F64} * (0.5 + 0.5 * erf(x * {0.5**0.5!r}));
}}""",
    "gelu_tanh": f"""
DEVICE double gelu_tanh(double x) {{
  return {_FINITE_BELOW_F64} / (1.0 + exp2(x * ({GELU_TANH[0]!r} + {GELU_TANH[1]!r} * (x * x))));
}}""",
}
"""Activations.  Those of f32 use the dialect's ``fast_exp2`` and ``fast_reciprocal``.

These two are within 2 and 1 units in the last place, and 0 for results below the least normal number.
"""
