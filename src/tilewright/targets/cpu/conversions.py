"""Conversions between element types as C++: exact, or rounded once to nearest even.

f16, bf16 and fp8 are stored as unsigned integers.  The functions use integer arithmetic and selections only,
so loops over them become vector code on every machine.  Overflow gives infinity, or NaN where the type has no
infinity (e4m3); floats become integers truncated and saturated, NaN as 0.
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


def _odd_of_integer(kind: DType) -> str:
    """From a 64-bit integer to f32, rounded to odd."""
    return f"""\
// All but 53 bits folded into the last one, so that the conversion to double is exact.
static inline float odd_f32_of_{kind.name}({integer_type(kind)} x) {{
  const unsigned long long size = x < 0 ? 0ull - (unsigned long long)x : (unsigned long long)x;
  const unsigned long long kept = size >> 53 ? (size & ~0x7ffull) | ((size & 0x7ff) ? 0x800 : 0) : size;
  return odd_f32_of_f64(x < 0 ? -(double)kept : (double)kept);
}}"""


_BF16 = {
    "f32_of_bf16": (
        ("bits",),
        "static inline float f32_of_bf16(bf16 x) { return f32_of_bits((unsigned)x << 16); }",
    ),
    "bf16_of_f32": (
        ("bits",),
        """\
static inline bf16 bf16_of_f32(float x) {
  const unsigned bits = bits_of_f32(x), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return (bf16)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16 & 0x8000) | 0x7fc0 : rounded);
}""",
    ),
}


_TRUTH = """\
// Whether a byte in memory is not 0: a bool in C++ would have to be 0 or 1.
static inline int i32_of_boolean(const bool& x) {
  return *(const unsigned char*)&x != 0;
}"""

_PACKED_INTEGERS = tuple(made for made in PACKED if not made.is_float)


def _of_packed(kind: DType) -> dict[str, tuple[tuple[str, ...], str]]:
    """From the bits of a packed number, and to those of a packed float."""
    if not kind.is_float:
        text = f"static inline int i32_of_{kind}(unsigned bits) {{ return {integer_of_bits(kind)}; }}"
        return {f"i32_of_{kind}": ((), text)}
    wide, why_wide = float_of_bits(kind, "f32_of_bits(")
    narrow, why_narrow = bits_of_float(kind, "bits_of_f32(")
    return {
        f"f32_of_{kind}": (
            ("bits",),
            f"""\
{why_wide}
static inline float f32_of_{kind}(unsigned bits) {{
  return {wide};
}}""",
        ),
        f"{kind}_of_f32": (
            ("bits",),
            f"""\
{why_narrow}
static inline unsigned {kind}_of_f32(float x) {{
{narrow}
}}""",
        ),
    }


def _widening(kind: DType) -> str:
    """From a narrow format to f32: shift, correct the exponent, renormalise what was subnormal."""
    narrow = encoding(kind)
    up = 23 - narrow.fraction
    magnitude, exponent = narrow.sign - 1, (narrow.sign - 1) >> narrow.fraction << narrow.fraction
    rebias, least = (127 - narrow.bias) << 23, (128 - narrow.bias) << 23
    special, first = "0x7fc00000u", narrow.nan
    if narrow.has_infinity:  # correcting again gives the largest exponent
        special, first = f"finite + 0x{rebias:x}", narrow.top
    signed = {8: "signed char", 16: "short"}[kind.bits]
    return f"""\
static inline float f32_of_{kind}({kind} x) {{
  const unsigned wide = (unsigned)(int)({signed})x << {up};  // the sign is in its place
  const unsigned normal = (wide & 0x{magnitude << up:x}) + 0x{rebias:x};
  const unsigned tiny = bits_of_f32(f32_of_bits(normal + 0x800000) - f32_of_bits(0x{least:x}));
  const unsigned finite = (x & 0x{exponent:x}) == 0 ? tiny : normal;
  return f32_of_bits((wide & 0x80000000) | ((x & 0x{magnitude:x}) >= 0x{first:x} ? {special} : finite));
}}"""


def _narrowing(kind: DType) -> str:
    """From f32: add half a unit; subnormals are aligned by adding a number whose last bit is their unit.

    What overflows is capped at the number that would have the pattern of overflow: a nest of selections
    instead, gcc does not make into vector code.
    """
    narrow = encoding(kind)
    down = 23 - narrow.fraction
    shift = 32 - narrow.sign.bit_length()
    rebias, least = (127 - narrow.bias) << 23, (128 - narrow.bias) << 23
    aligner = (127 + 23 + 1 - narrow.bias - narrow.fraction) << 23
    most = (narrow.past << down) + rebias
    nan = f" | (size > 0x7f800000 ? 0x{narrow.nan ^ narrow.past:x} : 0)" if narrow.nan != narrow.past else ""
    return f"""\
static inline {kind} {kind}_of_f32(float x) {{
  const unsigned bits = bits_of_f32(x), size = bits & 0x7fffffff, sign = bits >> {shift} & 0x{narrow.sign:x};
  const unsigned capped = size < 0x{most:x} ? size : 0x{most:x};
  const unsigned half = 0x{(1 << (down - 1)) - 1:x} + (capped >> {down} & 1);
  const unsigned normal = (capped + half - 0x{rebias:x}) >> {down};
  const unsigned tiny = bits_of_f32(f32_of_bits(capped) + f32_of_bits(0x{aligner:x})) - 0x{aligner:x};
  return ({kind})(sign | (capped < 0x{least:x} ? tiny : normal){nan});
}}"""


def _from_one_zero(kind: DType) -> str:
    """From a format whose negative zero is NaN to f32."""
    narrow = encoding(kind)
    up, most = 23 - narrow.fraction, (254 - narrow.bias) << 23
    return f"""\
static inline float f32_of_{kind}({kind} x) {{
  const unsigned scaled = (x & 0x80u) << 24 | (x & 0x7fu) << {up};  // its exponent is too small
  const float finite = f32_of_bits(scaled) * f32_of_bits(0x{most:x});
  return x == 0x80 ? f32_of_bits(0x7fc00000) : finite;
}}"""


def _to_one_zero(kind: DType) -> str:
    """From f32; numbers beyond the largest become NaN, and zero has no sign."""
    narrow = encoding(kind)
    down, rebias = 23 - narrow.fraction, (127 - narrow.bias) << 23
    least, aligner = (128 - narrow.bias) << 23, (127 + 23 + 1 - narrow.bias - narrow.fraction) << 23
    past = ((0x80 << down) - (1 << (down - 1))) + rebias
    return f"""\
static inline {kind} {kind}_of_f32(float x) {{
  const unsigned bits = bits_of_f32(x), size = bits & 0x7fffffff, sign = bits >> 24 & 0x80;
  const unsigned half = 0x{(1 << (down - 1)) - 1:x} + (size >> {down} & 1);
  const unsigned normal = (size + half - 0x{rebias:x}) >> {down};
  const unsigned tiny = bits_of_f32(f32_of_bits(size) + f32_of_bits(0x{aligner:x})) - 0x{aligner:x};
  const unsigned made = size < 0x{least:x} ? tiny : normal;
  return ({kind})(size >= 0x{past:x} ? 0x80 : made == 0 ? 0 : sign | made);
}}"""


def _to_integer(target: DType, source: str) -> str:
    """Truncated and saturated.  The ends are powers of two or 0, so they are exact in any float."""
    low = -(2 ** (target.bits - 1)) if target.kind == "int" else 0
    high = 2 ** (target.bits - (target.kind == "int"))
    end = "f" if source == "f32" else ""
    kind, name = STORAGE[source], STORAGE[target.name]
    least = f"({name})({low + 1} - 1)" if low else "0"
    largest = f"({name}){high - 1}{suffix(target)}"
    return f"""\
static inline {name} {target.name}_of_{source}({kind} x) {{
  const {kind} inside = x > {float(low)!r}{end} && x < {float(high)!r}{end} ? x : 0;
  return x >= {float(high)!r}{end} ? {largest} : x <= {float(low)!r}{end} ? {least} : ({name})inside;
}}"""


def _table() -> dict[str, tuple[tuple[str, ...], str]]:
    found: dict[str, tuple[tuple[str, ...], str]] = {name: ((), text) for name, text in TYPEDEFS.items()}
    found["bits"] = ((), _BITS)
    found["i32_of_boolean"] = ((), _TRUTH)
    for kind in sorted(PACKED, key=lambda made: made.is_float):
        found |= _of_packed(kind)
    found["odd_f32_of_f64"] = (("bits",), _ODD)
    for kind in (made for made in INTEGERS if made.bits == 64):
        found[f"odd_f32_of_{kind.name}"] = (("odd_f32_of_f64",), _odd_of_integer(kind))
    found |= {name: ((*needs, "bf16"), text) for name, (needs, text) in _BF16.items()}
    for kind in (f16, *FP8):
        there = (_from_one_zero, _to_one_zero) if encoding(kind).has_one_zero else (_widening, _narrowing)
        names = f"f32_of_{kind}", f"{kind}_of_f32"
        found |= {name: (("bits", kind.name), made(kind)) for name, made in zip(names, there, strict=True)}
    for target in (*INTEGERS, *_PACKED_INTEGERS):
        for source in ("f32", "f64"):
            found[f"{target.name}_of_{source}"] = ((), _to_integer(target, source))
    return found


SNIPPETS = _table()
"""C++ functions by name, each with the names of those that it calls."""


def computes_in(dtype: DType) -> DType:
    """The dtype in which elements of a dtype are computed with: f32 for narrow floats, else itself."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


def convert(text: str, source: DType, target: DType) -> tuple[str, tuple[str, ...]]:
    """C++ that converts a value, and the names of the `SNIPPETS` that it calls.

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
    wide = computes_in(source)
    if wide != source:
        inner, needs = f"f32_of_{source.name}({text})", (f"f32_of_{source.name}",)
        outer, more = convert(inner, f32, target)
        return outer, (*needs, *more)
    if target == boolean:
        return f"({text} != 0)", ()
    if computes_in(target) != target:
        return _narrow(text, source, target)
    if source.is_float and target.kind in ("int", "uint"):
        name = f"{target.name}_of_{source.name}"
        return f"{name}({text})", (name,)
    return f"({STORAGE[target.name]})({text})", ()


def _narrow(text: str, source: DType, target: DType) -> tuple[str, tuple[str, ...]]:
    rounding = f"{target.name}_of_f32"
    through: tuple[str, ...] = ()
    if source == f64 or (source.bits == 32 and not source.is_float):
        through = ("odd_f32_of_f64",)
    elif source.bits == 64:
        through = (f"odd_f32_of_{source.name}",)
    inner = f"{through[0]}({text})" if through else text if source == f32 else f"(float)({text})"
    return f"{rounding}({inner})", (*through, rounding)
