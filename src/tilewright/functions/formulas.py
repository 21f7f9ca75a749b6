"""Functions in C++: exp, exp2, log, tanh and powers for targets without a mathematics library.

Largest errors, in units in the last place of the result (tests check them): exp, exp2 and log 1.1, tanh 2.5,
in f32 and in f64; powers, only in f32, are computed in f64 and rounded once.  The text needs
``bits_of_f32`` and ``f32_of_bits``, and a compiler that does not contract products and sums.

`Pieces` are texts that precede a generated one; each names the others that it uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import factorial

from tilewright.functions.table import FUNCTIONS


@dataclass(frozen=True)
class _Format:
    """Parameters of the algorithms for f32 or f64.

    Args:
        name: name of the dtype.
        real: C++ type.
        integer: C++ signed integer of the same width.
        suffix: suffix of literals.
        fraction: stored fraction bits.
        bias: bias of the exponent.
        exp_terms: degree of exp's Taylor polynomial on [-ln(2)/2, ln(2)/2].
        log_terms: terms of atanh's series on [0, (sqrt(2) - 1) / (sqrt(2) + 1)].
        ln2_high: the leading bits of ln 2, few enough that its multiples by exponents are exact.
        ln2_low: ln 2 - ln2_high.
        exp_low: bound below which exp gives 0.
        exp_high: bound above which exp gives infinity.
        tanh_one: bound above which tanh rounds to 1.
        exp2_low: bound below which exp2 gives 0.
        exp2_high: bound above which exp2 gives infinity.
    """

    name: str
    real: str
    integer: str
    suffix: str
    fraction: int
    bias: int
    exp_terms: int
    log_terms: int
    ln2_high: str
    ln2_low: str
    exp_low: str
    exp_high: str
    tanh_one: str
    exp2_low: str
    exp2_high: str

    def literal(self, value: Fraction | float) -> str:
        return f"{float(value)!r}{self.suffix}"


_F32 = _Format(
    *("f32", "float", "int", "f", 23, 127, 7, 4),
    *("0.693359375f", "-2.12194440054691e-4f", "-104.0f", "89.0f", "9.1f"),
    *("-151.0f", "129.0f"),
)
_F64 = _Format(
    *("f64", "double", "long long", "", 52, 1023, 14, 11),
    *("0.6931471803691238", "1.9082149292705877e-10", "-746.0", "710.0", "19.1"),
    *("-1077.0", "1025.0"),
)


_F64_BITS = """\
static inline long long bits_of_f64(double x) { return __builtin_bit_cast(long long, x); }
static inline double f64_of_bits(long long x) { return __builtin_bit_cast(double, x); }"""


def _polynomial(form: _Format, variable: str, coefficients: Sequence[Fraction]) -> str:
    """Horner's form, lowest coefficient first."""
    text = form.literal(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        text = (
            f"{form.literal(coefficient)} + {variable} * ({text})"
            if coefficient
            else f"{variable} * ({text})"
        )
    return text


def _texts(form: _Format) -> dict[str, str]:
    """The functions of one format, by name."""
    real, integer, name = form.real, form.integer, form.name
    shift, one, two = form.literal(1.5 * 2**form.fraction), form.literal(1.0), form.literal(2.0)
    of_reduced = _polynomial(form, "r", [Fraction(1, factorial(n)) for n in range(2, form.exp_terms + 1)])
    series = _polynomial(
        form, "z", [Fraction(0), *(Fraction(2, 2 * k + 1) for k in range(1, form.log_terms + 1))]
    )
    bits = {"f32": (0x3F3504F3, 0x7F800000), "f64": (0x3FE6A09E667F3BCD, 0x7FF0000000000000)}[form.name]
    tiny, scale = form.literal(2.0 ** (1 - form.bias)), form.fraction
    # x = n ln 2 + r; adding 1.5 * 2**fraction leaves round(x / ln 2) in the last bits.
    reduction = f"""\
  const {real} shifted = x * {form.literal(1.4426950408889634)} + {shift}, n = shifted - {shift};
  const {real} r = x - n * {form.ln2_high} - n * {form.ln2_low};"""
    # e**r * 2**n
    scaled = f"""\
  const {real} near = {one} + (r + r * r * ({of_reduced}));
  // Two factors: 2**n alone may be no normal number.
  const {integer} whole = bits_of_{name}(shifted) - bits_of_{name}({shift});
  const {integer} half = whole >> 1, rest = whole - half;
  return near * {name}_of_bits((half + {form.bias}) << {form.fraction}) *
         {name}_of_bits((rest + {form.bias}) << {form.fraction});"""
    exp = f"""\
static inline {real} exp_{name}({real} x) {{
  x = x < {form.exp_low} ? {form.exp_low} : x > {form.exp_high} ? {form.exp_high} : x;
{reduction}
{scaled}
}}"""
    exp2 = f"""\
static inline {real} exp2_{name}({real} x) {{
  x = x < {form.exp2_low} ? {form.exp2_low} : x > {form.exp2_high} ? {form.exp2_high} : x;
  // x = n + r / ln 2; adding 1.5 * 2**fraction leaves round(x) in the last bits.
  const {real} shifted = x + {shift}, n = shifted - {shift};
  const {real} r = (x - n) * {form.literal(0.6931471805599453)};
{scaled}
}}"""
    log = f"""\
static inline {real} log_{name}({real} x) {{
  const bool subnormal = x < {tiny};
  const {integer} bits = bits_of_{name}(subnormal ? x * {form.literal(2.0**scale)} : x);
  // x = m * 2**e with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh s with s = f / (2 + f), f = m - 1.
  const {integer} e = (bits - 0x{bits[0]:x}) >> {form.fraction};
  const {real} f = {name}_of_bits(bits - (e << {form.fraction})) - {one};
  const {real} s = f / ({two} + f), z = s * s;
  const {real} series = {series};
  const {real} n = ({real})(e - (subnormal ? {scale} : 0));
  const {real} near = n * {form.ln2_high} + (f - (s * (f - series) - n * {form.ln2_low}));
  const {real} infinity = {name}_of_bits(0x{bits[1]:x});
  const {real} edge = x == 0 ? -infinity : x < 0 ? infinity - infinity : x;
  return x > 0 && x < infinity ? near : edge;
}}"""
    tanh = f"""\
static inline {real} tanh_{name}({real} y) {{
  const {real} size = y < 0 ? -y : y;
  const {real} x = {two} * (size > {form.tanh_one} ? {form.tanh_one} : size);
{reduction}
  // e**x - 1 without cancellation, then tanh = (e**2y - 1) / (e**2y + 1).
  const {integer} whole = bits_of_{name}(shifted) - bits_of_{name}({shift});
  const {real} power = {name}_of_bits((whole + {form.bias}) << {form.fraction});
  const {real} above = power * (r + r * r * ({of_reduced})) + (power - {one});
  const {real} near = above / (above + {two});
  return y != y ? y : y < 0 ? -near : y == 0 ? y : near;
}}"""
    return {"exp": exp, "exp2": exp2, "log": log, "tanh": tanh}


_POW = """\
static inline float pow_f32(float x, float y) {
  if (y == 0 || x == 1) return 1;
  if (x != x || y != y) return x + y;
  const double size = x < 0 ? -(double)x : (double)x, height = y < 0 ? -(double)y : (double)y;
  // Every float from 2**24 on is even; no fraction begins at 2**23.
  const bool whole = height >= 8388608.0 || (double)(int)height == height;
  const bool odd = height < 16777216.0 && whole && ((int)height & 1);
  const bool negative = bits_of_f32(x) >> 31;
  const double infinity = __builtin_inf();
  double made = 0;
  if (negative && !whole && size != 0 && size != infinity) return __builtin_nanf("");
  if (size == 1) made = 1;
  else if (size == 0 || size == infinity || height == infinity) made = (size > 1) == (y > 0) ? infinity : 0;
  else made = exp_f64((double)y * log_f64(size));
  return (float)(negative && odd ? -made : made);
}"""
"""x ** y of f32: e ** (y log x) in f64, whose error vanishes when the result is rounded to f32."""


_TEXTS = {row.name: row.text for row in FUNCTIONS.values() if row.text}

FORMULAS = {
    "f64_bits": _F64_BITS,
    **{f"{name}_{form.name}": text for form in (_F32, _F64) for name, text in _texts(form).items()},
    **{
        f"{name}_{kind}": made
        for name, text in _TEXTS.items()
        for kind, made in (
            ("f64", text),
            ("f32", f"static inline float {name}_f32(float x) {{ return (float){name}_f64((double)x); }}"),
        )
    },
    "pow_f32": _POW,
}
"""``<function>_f32`` and ``<function>_f64``; ``bits`` converts between f32 and its bits."""


_DEFINED = re.compile(r"^(?:DEVICE|static)\b[^{;\n]*\b(\w+)\(", re.MULTILINE)
"""Pattern of a function definition; its group is the name."""

_UNREAD = re.compile(r'//[^\n]*|"[^"\n]*"')
"""Pattern of the comments and strings of a C++ text."""


@dataclass(frozen=True)
class Pieces:
    """Pieces of C++ text, each by the name of a function or type that it defines.

    Args:
        texts: the pieces, in an order that C++ accepts.
    """

    texts: Mapping[str, str]

    @cached_property
    def _piece_of(self) -> dict[str, str]:
        """For each function or type, the piece that defines it."""
        found: dict[str, str] = {}
        for name, text in self.texts.items():
            for defined in _DEFINED.findall(text) or (name,):
                found.setdefault(defined, name)
        return found

    def needed(self, names: Iterable[str]) -> list[str]:
        """Return the pieces of some names, and those that their texts use, in order.

        Example:
            >>> texts = {"one": "static int one() { return 1; }", "two": "static int two() { return one(); }"}
            >>> Pieces(texts).needed(["two", "x"])
            ['one', 'two']
        """
        wanted, found = [name for name in names if name in self.texts], set[str]()
        while wanted:
            name = wanted.pop()
            if name not in found:
                found.add(name)
                words = re.findall(r"[A-Za-z_]\w*", _UNREAD.sub("", self.texts[name]))
                wanted += {self._piece_of[word] for word in words if word in self._piece_of}
        return [name for name in self.texts if name in found]
