"""Elementwise functions as C++ expressions, and exp, exp2, log and tanh without a mathematics library.

Largest errors, in units in the last place of the result (tests hold them): exp, exp2 and log 1.1, tanh 2.5,
in f32 and in f64.  sqrt is correctly rounded; rsqrt is a division by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from tilewright.dtypes import DType
from tilewright.functions import philox
from tilewright.functions.table import FUNCTIONS
from tilewright.targets.cpu import activations, division, power
from tilewright.targets.cpu.conversions import STORAGE


@dataclass(frozen=True)
class _Format:
    """What the algorithms need to know of f32 or f64.

    Args:
        name: of the dtype.
        real: C++ type.
        integer: C++ signed integer of the same width.
        suffix: of literals.
        fraction: stored fraction bits.
        bias: of the exponent.
        exp_terms: degree of exp's Taylor polynomial on [-ln(2)/2, ln(2)/2].
        log_terms: terms of atanh's series on [0, (sqrt(2) - 1) / (sqrt(2) + 1)].
        ln2_high: ln 2 with so few bits that its multiples by exponents are exact.
        ln2_low: the rest.
        exp_low: exp gives 0 below.
        exp_high: exp gives infinity above.
        tanh_one: tanh rounds to 1 above.
        exp2_low: exp2 gives 0 below.
        exp2_high: exp2 gives infinity above.
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


def _factorials(count: int) -> list[Fraction]:
    found = [Fraction(1)]
    for n in range(1, count):
        found.append(found[-1] / n)
    return found


def _reduction(form: _Format) -> str:
    """``x = n ln 2 + r``; adding 1.5 * 2**fraction leaves round(x / ln 2) in the last bits."""
    shift = form.literal(1.5 * 2**form.fraction)
    return f"""\
  const {form.real} shifted = x * {form.literal(1.4426950408889634)} + {shift}, n = shifted - {shift};
  const {form.real} r = x - n * {form.ln2_high} - n * {form.ln2_low};"""


def _exp(form: _Format) -> str:
    return f"""\
static inline {form.real} exp_{form.name}({form.real} x) {{
  x = x < {form.exp_low} ? {form.exp_low} : x > {form.exp_high} ? {form.exp_high} : x;
{_reduction(form)}
{_scaled(form)}
}}"""


def _exp2(form: _Format) -> str:
    shift = form.literal(1.5 * 2**form.fraction)
    return f"""\
static inline {form.real} exp2_{form.name}({form.real} x) {{
  x = x < {form.exp2_low} ? {form.exp2_low} : x > {form.exp2_high} ? {form.exp2_high} : x;
  // x = n + r / ln 2; what adding 1.5 * 2**fraction leaves in the last bits is round(x).
  const {form.real} shifted = x + {shift}, n = shifted - {shift};
  const {form.real} r = (x - n) * {form.literal(0.6931471805599453)};
{_scaled(form)}
}}"""


def _scaled(form: _Format) -> str:
    """``e**r * 2**n``."""
    tail = _polynomial(form, "r", _factorials(form.exp_terms + 1)[2:])
    shift = form.literal(1.5 * 2**form.fraction)
    return f"""\
  const {form.real} near = {form.literal(1.0)} + (r + r * r * ({tail}));
  // Two factors: 2**n alone may be no normal number.
  const {form.integer} whole = bits_of_{form.name}(shifted) - bits_of_{form.name}({shift});
  const {form.integer} half = whole >> 1, rest = whole - half;
  return near * {form.name}_of_bits((half + {form.bias}) << {form.fraction}) *
         {form.name}_of_bits((rest + {form.bias}) << {form.fraction});"""


def _log(form: _Format) -> str:
    series = _polynomial(
        form, "z", [Fraction(0), *(Fraction(2, 2 * k + 1) for k in range(1, form.log_terms + 1))]
    )
    bits = {"f32": (0x3F3504F3, 0x7F800000), "f64": (0x3FE6A09E667F3BCD, 0x7FF0000000000000)}[form.name]
    tiny, scale = form.literal(2.0 ** (1 - form.bias)), form.fraction
    return f"""\
static inline {form.real} log_{form.name}({form.real} x) {{
  const bool subnormal = x < {tiny};
  const {form.integer} bits = bits_of_{form.name}(subnormal ? x * {form.literal(2.0**scale)} : x);
  // x = m * 2**e with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh s with s = f / (2 + f), f = m - 1.
  const {form.integer} e = (bits - 0x{bits[0]:x}) >> {form.fraction};
  const {form.real} f = {form.name}_of_bits(bits - (e << {form.fraction})) - {form.literal(1.0)};
  const {form.real} s = f / ({form.literal(2.0)} + f), z = s * s;
  const {form.real} series = {series};
  const {form.real} n = ({form.real})(e - (subnormal ? {scale} : 0));
  const {form.real} near = n * {form.ln2_high} + (f - (s * (f - series) - n * {form.ln2_low}));
  const {form.real} infinity = {form.name}_of_bits(0x{bits[1]:x});
  const {form.real} edge = x == 0 ? -infinity : x < 0 ? infinity - infinity : x;
  return x > 0 && x < infinity ? near : edge;
}}"""


def _tanh(form: _Format) -> str:
    tail = _polynomial(form, "r", _factorials(form.exp_terms + 1)[2:])
    shift = form.literal(1.5 * 2**form.fraction)
    one, two = form.literal(1.0), form.literal(2.0)
    return f"""\
static inline {form.real} tanh_{form.name}({form.real} y) {{
  const {form.real} size = y < 0 ? -y : y;
  const {form.real} x = {two} * (size > {form.tanh_one} ? {form.tanh_one} : size);
{_reduction(form)}
  // e**x - 1 without cancellation, then tanh = (e**2y - 1) / (e**2y + 1).
  const {form.integer} whole = bits_of_{form.name}(shifted) - bits_of_{form.name}({shift});
  const {form.real} power = {form.name}_of_bits((whole + {form.bias}) << {form.fraction});
  const {form.real} above = power * (r + r * r * ({tail})) + (power - {one});
  const {form.real} near = above / (above + {two});
  return y != y ? y : y < 0 ? -near : y == 0 ? y : near;
}}"""


def _table() -> dict[str, tuple[tuple[str, ...], str]]:
    found: dict[str, tuple[tuple[str, ...], str]] = {"f64_bits": ((), _F64_BITS)}
    for form, bits in ((_F32, "bits"), (_F64, "f64_bits")):
        for name, text in (
            *(("exp", _exp(form)), ("exp2", _exp2(form))),
            *(("log", _log(form)), ("tanh", _tanh(form))),
        ):
            found[f"{name}_{form.name}"] = ((bits,), text)
    for row in (row for row in FUNCTIONS.values() if row.text):
        narrow = f"static inline float {row.name}_f32(float x) {{ return (float){row.name}_f64((double)x); }}"
        found[f"{row.name}_f64"] = (row.needs, row.text)
        found[f"{row.name}_f32"] = ((f"{row.name}_f64",), narrow)
    found["random_bits"] = ((), f"static inline {philox.TEXT}")
    return {**found, **activations.SNIPPETS, **division.SNIPPETS, **power.SNIPPETS}


SNIPPETS = _table()
"""C++ functions by name, each with the names of those that it calls."""

_PLAIN = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "neg": "-{0}",
    # A NaN wins against a number.
    "min": "(({0} < {1}) | ({0} != {0}) ? {0} : {1})",
    "max": "(({0} > {1}) | ({0} != {0}) ? {0} : {1})",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "less": "({0} < {1})",
    "less_equal": "({0} <= {1})",
    "equal": "({0} == {1})",
    "not_equal": "({0} != {1})",
}


def spell(function: str, dtype: DType, operands: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """C++ for an elementwise function, and the names of the `SNIPPETS` that it calls.

    Args:
        function: a name of `tilewright.functions.table.FUNCTIONS` other than convert and select.
        dtype: what the operands are computed in.
        operands: names or literals.

    Example:
        >>> from tilewright.dtypes import f32
        >>> spell("rsqrt", f32, ["x"])
        ('1 / __builtin_sqrtf(x)', ())
    """
    suffix = "f" if dtype.name == "f32" else ""
    match function:
        case "sqrt":
            return f"__builtin_sqrt{suffix}({operands[0]})", ()
        case "fma":
            return f"__builtin_fma{suffix}({', '.join(operands)})", ()
        case "rsqrt":
            return f"1 / __builtin_sqrt{suffix}({operands[0]})", ()
        case "abs" if dtype.is_float:
            return f"__builtin_fabs{suffix}({operands[0]})", ()
        case "abs" if dtype.kind == "uint":
            return operands[0], ()
        case "abs":
            return f"({operands[0]} < 0 ? -{operands[0]} : {operands[0]})", ()
        case "invert":
            return f"{'!' if dtype.kind == 'bool' else '~'}{operands[0]}", ()
        case "div":
            return f"{operands[0]} / {operands[1]}", ()
        case "floordiv" | "mod":
            kind = dtype.name if dtype.bits >= 32 else "i32"
            return f"{function}_{kind}({', '.join(operands)})", (f"{function}_{kind}",)
        case "shift_left" | "shift_right":
            return f"{function}<{STORAGE[dtype.name]}>({', '.join(operands)})", (function,)
        case "random_bits":
            return f"random_bits({', '.join(operands)})", ("random_bits",)
        case "pow":
            return f"pow_f32({', '.join(operands)})", ("pow_f32",)
        case _ if f"{function}_{dtype.name}" in SNIPPETS:
            return f"{function}_{dtype.name}({operands[0]})", (f"{function}_{dtype.name}",)
        case _:
            return _PLAIN[function].format(*operands), ()
