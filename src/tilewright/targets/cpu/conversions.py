"""Conversions between element types as C++: exact, or rounded once to nearest even.

f16, bf16 and fp8 are stored as unsigned integers.  The functions use only integer arithmetic and selections,
so compilers vectorise loops over them on every machine.  Overflow gives infinity, or NaN if the type has no
infinity (e4m3).  Conversions from floats to integers truncate and saturate, and turn NaN into 0.
"""

from __future__ import annotations

from tilewright.dtypes import FP8, PACKED, DType, bf16, boolean, encoding, f16, f32, f64, i8, i32
from tilewright.targets.dialect import (
    INTEGER_TYPES,
    INTEGERS,
    bits_of_float,
    float_of_bits,
    integer_of_bits,
    integer_type,
    suffix,
)

HALVES = (f16, bf16)
"""Floats of 16 bits, which are widened to f32 for computations."""

_STORED = {made.name: f"unsigned {'short' if made.bits == 16 else 'char'}" for made in (f16, bf16, *FP8)}

STORAGE = {
    "f64": "double",
    "f32": "float",
    **{name: name for name in _STORED},
    **INTEGER_TYPES,
    **{made.name: "unsigned char" for made in PACKED},
    "boolean": "bool",
    "c128": "c128",
    "c64": "c64",
    "c32": "c32",
}
"""The C++ storage type of each dtype."""

TYPEDEFS = {
    **{name: f"typedef {held} {name};" for name, held in _STORED.items()},
    # Complex numbers are moved, not computed with.
    "c128": "typedef unsigned __int128 c128;",
    "c64": "typedef unsigned long long c64;",
    "c32": "typedef unsigned c32;",
}
"""Declarations of the storage types that C++ lacks."""

_BITS = """\
static inline unsigned bits_of_f32(float x) { return __builtin_bit_cast(unsigned, x); }
static inline float f32_of_bits(unsigned x) { return __builtin_bit_cast(float, x); }"""

_ODD = """\
// Truncated, with the last bit set where anything was lost: rounding it again to fewer bits rounds x once.
static inline float odd_f32_of_f64(double x) {
  const float near = (float)x;
  const double back = near;
  const bool away = __builtin_fabs(back) > __builtin_fabs(x), lost = back != x && x == x;
  const unsigned bits = bits_of_f32(near) - (away ? 1 : 0);
  return f32_of_bits(lost && __builtin_fabs(x) <= 1.7976931348623157e308 ? bits | 1 : bits);
}"""


_F32_OF_BF16 = "static inline float f32_of_bf16(bf16 x) { return f32_of_bits((unsigned)x << 16); }"
_BF16_OF_F32 = """\
static inline bf16 bf16_of_f32(float x) {
  const unsigned bits = bits_of_f32(x), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return (bf16)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16 & 0x8000) | 0x7fc0 : rounded);
}"""

_TRUTH = """\
// Whether a byte in memory is not 0: a bool in C++ would have to be 0 or 1.
static inline int i32_of_boolean(const bool& x) {
  return *(const unsigned char*)&x != 0;
}"""

_PACKED_INTEGERS = tuple(made for made in PACKED if not made.is_float)


def _floats(kind: DType) -> tuple[str, str]:
    """Return the C++ functions that convert a narrow float to f32, and f32 to it.

    To f32: shift, correct the exponent, and renormalise subnormal numbers.  From f32: add half a unit.
    Subnormal numbers are aligned by adding a number whose last bit is their unit.  Numbers that overflow are
    capped at the number that would have the pattern of overflow; GCC vectorises no nest of selections.
    """
    narrow = encoding(kind)
    shift = 23 - narrow.fraction
    rebias, least = (127 - narrow.bias) << 23, (128 - narrow.bias) << 23
    half, aligner = (1 << (shift - 1)) - 1, (127 + 23 + 1 - narrow.bias - narrow.fraction) << 23
    if narrow.has_one_zero:  # the pattern of a negative zero is NaN
        most = (254 - narrow.bias) << 23
        past = ((0x80 << shift) - (1 << (shift - 1))) + rebias
        return (
            f"""\
static inline float f32_of_{kind}({kind} x) {{
  const unsigned scaled = (x & 0x80u) << 24 | (x & 0x7fu) << {shift};  // its exponent is too small
  const float finite = f32_of_bits(scaled) * f32_of_bits(0x{most:x});
  return x == 0x80 ? f32_of_bits(0x7fc00000) : finite;
}}""",
            f"""\
static inline {kind} {kind}_of_f32(float x) {{
  const unsigned bits = bits_of_f32(x), size = bits & 0x7fffffff, sign = bits >> 24 & 0x80;
  const unsigned half = 0x{half:x} + (size >> {shift} & 1);
  const unsigned normal = (size + half - 0x{rebias:x}) >> {shift};
  const unsigned tiny = bits_of_f32(f32_of_bits(size) + f32_of_bits(0x{aligner:x})) - 0x{aligner:x};
  const unsigned made = size < 0x{least:x} ? tiny : normal;
  return ({kind})(size >= 0x{past:x} ? 0x80 : made == 0 ? 0 : sign | made);
}}""",
        )
    magnitude, exponent = narrow.sign - 1, (narrow.sign - 1) >> narrow.fraction << narrow.fraction
    special, first = "0x7fc00000u", narrow.nan
    if narrow.has_infinity:  # correcting again gives the largest exponent
        special, first = f"finite + 0x{rebias:x}", narrow.top
    signed = {8: "signed char", 16: "short"}[kind.bits]
    most, place = (narrow.past << shift) + rebias, 32 - narrow.sign.bit_length()
    nan = f" | (size > 0x7f800000 ? 0x{narrow.nan ^ narrow.past:x} : 0)" if narrow.nan != narrow.past else ""
    return (
        f"""\
static inline float f32_of_{kind}({kind} x) {{
  const unsigned wide = (unsigned)(int)({signed})x << {shift};  // the sign is in its place
  const unsigned normal = (wide & 0x{magnitude << shift:x}) + 0x{rebias:x};
  const unsigned tiny = bits_of_f32(f32_of_bits(normal + 0x800000) - f32_of_bits(0x{least:x}));
  const unsigned finite = (x & 0x{exponent:x}) == 0 ? tiny : normal;
  return f32_of_bits((wide & 0x80000000) | ((x & 0x{magnitude:x}) >= 0x{first:x} ? {special} : finite));
}}""",
        f"""\
static inline {kind} {kind}_of_f32(float x) {{
  const unsigned bits = bits_of_f32(x), size = bits & 0x7fffffff, sign = bits >> {place} & 0x{narrow.sign:x};
  const unsigned capped = size < 0x{most:x} ? size : 0x{most:x};
  const unsigned half = 0x{half:x} + (capped >> {shift} & 1);
  const unsigned normal = (capped + half - 0x{rebias:x}) >> {shift};
  const unsigned tiny = bits_of_f32(f32_of_bits(capped) + f32_of_bits(0x{aligner:x})) - 0x{aligner:x};
  return ({kind})(sign | (capped < 0x{least:x} ? tiny : normal){nan});
}}""",
    )


def _table() -> dict[str, str]:
    """Return `SNIPPETS` in an order that C++ accepts: each function after those that it calls."""
    found = {**TYPEDEFS, "bits": _BITS, "i32_of_boolean": _TRUTH}
    for kind in _PACKED_INTEGERS:
        text = f"static inline int i32_of_{kind}(unsigned bits) {{ return {integer_of_bits(kind)}; }}"
        found[f"i32_of_{kind}"] = text
    for kind in (made for made in PACKED if made.is_float):
        (wide, why_wide), (narrow, why_narrow) = (
            float_of_bits(kind, "f32_of_bits("),
            bits_of_float(kind, "bits_of_f32("),
        )
        head = f"{why_wide}\nstatic inline float f32_of_{kind}(unsigned bits)"
        found[f"f32_of_{kind}"] = f"{head} {{\n  return {wide};\n}}"
        head = f"{why_narrow}\nstatic inline unsigned {kind}_of_f32(float x)"
        found[f"{kind}_of_f32"] = f"{head} {{\n{narrow}\n}}"
    found["odd_f32_of_f64"] = _ODD
    for kind in (made for made in INTEGERS if made.bits == 64):
        text = f"""\
// All but 53 bits folded into the last one, so that the conversion to double is exact.
static inline float odd_f32_of_{kind.name}({integer_type(kind)} x) {{
  const unsigned long long size = x < 0 ? 0ull - (unsigned long long)x : (unsigned long long)x;
  const unsigned long long kept = size >> 53 ? (size & ~0x7ffull) | ((size & 0x7ff) ? 0x800 : 0) : size;
  return odd_f32_of_f64(x < 0 ? -(double)kept : (double)kept);
}}"""
        found[f"odd_f32_of_{kind.name}"] = text
    found["f32_of_bf16"] = _F32_OF_BF16
    found["bf16_of_f32"] = _BF16_OF_F32
    for kind in (f16, *FP8):
        widening, narrowing = _floats(kind)
        found[f"f32_of_{kind}"] = widening
        found[f"{kind}_of_f32"] = narrowing
    for target in (*INTEGERS, *_PACKED_INTEGERS):
        # To integers: the ends are powers of two or 0, so they are exact in any float.
        low = -(2 ** (target.bits - 1)) if target.kind == "int" else 0
        high = 2 ** (target.bits - (target.kind == "int"))
        name = STORAGE[target.name]
        least = f"({name})({low + 1} - 1)" if low else "0"
        largest = f"({name}){high - 1}{suffix(target)}"
        for source, end in (("f32", "f"), ("f64", "")):
            real, text = STORAGE[source], f"{target.name}_of_{source}"
            found[text] = f"""\
static inline {name} {text}({real} x) {{
  const {real} inside = x > {float(low)!r}{end} && x < {float(high)!r}{end} ? x : 0;
  return x >= {float(high)!r}{end} ? {largest} : x <= {float(low)!r}{end} ? {least} : ({name})inside;
}}"""
    return found


SNIPPETS = _table()
"""C++ functions and types by name."""


def computes_in(dtype: DType) -> DType:
    """Return the dtype for computing with elements of a dtype: f32 for narrow floats, else itself."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


def convert(text: str, source: DType, target: DType) -> tuple[str, tuple[str, ...]]:
    """Return C++ that converts a value, and the names of the `SNIPPETS` that it calls.

    Args:
        text: an expression of the storage type of ``source``.
        source: its dtype.
        target: the dtype to convert to, rounding once.

    Example:
        >>> from tilewright.dtypes import bf16, f16
        >>> convert("x", f16, bf16)
        ('bf16_of_f32(f32_of_f16(x))', ('f32_of_f16', 'bf16_of_f32'))
    """
    if source == target:
        return text, ()
    if source in _PACKED_INTEGERS:
        outer, more = convert(f"i32_of_{source}({text})", i32, target)
        return outer, (f"i32_of_{source}", *more)
    if source == boolean:
        outer, more = convert(f"i32_of_boolean({text})", i8, target)
        return outer, ("i32_of_boolean", *more)
    if computes_in(source) != source:
        inner, needs = f"f32_of_{source.name}({text})", (f"f32_of_{source.name}",)
        outer, more = convert(inner, f32, target)
        return outer, (*needs, *more)
    if target == boolean:
        return f"({text} != 0)", ()
    if computes_in(target) != target:
        rounding = f"{target.name}_of_f32"
        if source == f64 or (source.bits == 32 and not source.is_float):
            odd = "odd_f32_of_f64"
        elif source.bits == 64:
            odd = f"odd_f32_of_{source.name}"
        else:
            return f"{rounding}({text if source == f32 else f'(float)({text})'})", (rounding,)
        return f"{rounding}({odd}({text}))", (odd, rounding)
    if source.is_float and target.kind in ("int", "uint"):
        name = f"{target.name}_of_{source.name}"
        return f"{name}({text})", (name,)
    return f"({STORAGE[target.name]})({text})", ()
