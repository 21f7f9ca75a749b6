"""Elementwise functions as C++ expressions: sqrt is correctly rounded, rsqrt is a division by it."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dtypes import DType, f32, f64
from tilewright.functions import philox
from tilewright.functions.formulas import FORMULAS
from tilewright.functions.function import horner
from tilewright.functions.table import GELU, GELU_TANH, LOWEST, SILU_SLOPE
from tilewright.targets.cpu.conversions import STORAGE
from tilewright.targets.dialect import INTEGERS, integer_type, shifts, unsigned_type

_FINITE_BELOW = {
    name: f"(x < {LOWEST[kind]!r}{end} ? {LOWEST[kind]!r}{end} : x)"
    for name, kind, end in (("f32", f32, "f"), ("f64", f64, ""))
}
"""x, or the lowest finite number for -inf, by dtype; NaN stays NaN."""


def _share(function: str, name: str, real: str, slope: str) -> str:
    """``x / (1 + 2**t)``; ``slope`` is ``t / x`` as a function of ``z``, the square of x."""
    return f"""\
static inline {real} {function}_{name}({real} x) {{
  const {real} z = x * x, t = x * ({slope});
  return {_FINITE_BELOW[name]} / (1 + exp2_{name}(t));
}}"""


_ACTIVATIONS = {
    **{
        f"sigmoid_{name}": f"""\
static inline {real} sigmoid_{name}({real} x) {{
  const {real} small = exp_{name}(x < 0 ? x : -x);
  return (x < 0 ? small : 1) / (1 + small);
}}"""
        for name, real in (("f32", "float"), ("f64", "double"))
    },
    "silu_f32": _share("silu", "f32", "float", f"{SILU_SLOPE!r}f"),
    "silu_f64": f"""\
static inline double silu_f64(double x) {{ return {_FINITE_BELOW["f64"]} * sigmoid_f64(x); }}""",
    "gelu_f32": _share("gelu", "f32", "float", horner("z", GELU, "f")),
    "gelu_f64": f"""\
static inline double gelu_f64(double x) {{
  return {_FINITE_BELOW["f64"]} * (0.5 + 0.5 * erf_f64(x * {0.5**0.5!r}));
}}""",
    "gelu_tanh_f32": _share("gelu_tanh", "f32", "float", horner("z", GELU_TANH, "f")),
    "gelu_tanh_f64": _share("gelu_tanh", "f64", "double", horner("z", GELU_TANH)),
}
"""Activations, without branches so that they vectorise."""

_EXP2_TERMS = (0.5, 0.16666576266288757, 0.04166646674275398, 0.008363181725144386, 0.0013933652080595493)
"""``(exp(r) - 1 - r) / r**2`` on [-ln(2)/2, ln(2)/2]: in f32 exp is off by less than 2**-26 of its value."""

_EXP2 = f"""\
static inline float exp2_f32(float x) {{
  // x = n + r / ln 2; adding 1.5 * 2**23 leaves round(x) in the last bits.
  const float shifted = x + 12582912.0f, r = (x - (shifted - 12582912.0f)) * 0.6931471805599453f;
  const float near = 1.0f + fused(r * r, {horner("r", _EXP2_TERMS, "f", "fused({x}, {sum}, {term})")}, r);
  // Two factors: 2**n alone may be no normal number.
  const int whole = bits_of_f32(shifted) - bits_of_f32(12582912.0f);
  const int half = whole >> 1, rest = whole - half;
  const float made = near * f32_of_bits((half + 127) << 23) * f32_of_bits((rest + 127) << 23);
  const float low = x < -151.0f ? 0.0f : made;
  return x > 129.0f ? __builtin_inff() : low;
}}"""
"""The formula of `FORMULAS` with fewer terms and fused products.

Results are chosen at the end: if x were clamped, GCC would compute both factors for each end as well.
"""

_WIDE = tuple(made for made in INTEGERS if made.bits >= 32)
"""Integer dtypes that compute in their own type."""


def _of_integers(dtype: DType) -> dict[str, str]:
    name, kind, unsigned = dtype.name, integer_type(dtype), unsigned_type(dtype)
    if kind == unsigned:
        return {
            f"floordiv_{name}": f"static inline {kind} floordiv_{name}({kind} a, {kind} b) "
            "{ return b == 0 ? 0 : a / b; }",
            f"mod_{name}": f"static inline {kind} mod_{name}({kind} a, {kind} b) "
            "{ return b == 0 ? 0 : a % b; }",
        }
    return {
        f"floordiv_{name}": f"""\
static inline {kind} floordiv_{name}({kind} a, {kind} b) {{
  if (b == 0) return 0;
  if (b == -1) return ({kind})(0 - ({unsigned})a);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}}""",
        f"mod_{name}": f"""\
static inline {kind} mod_{name}({kind} a, {kind} b) {{
  if (b == 0 || b == -1) return 0;
  const {kind} rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}}""",
    }


def _of_floats(name: str, real: str, bits: str, fraction: int, exponent: int) -> dict[str, str]:
    width = 1 + exponent + fraction
    sign, infinity = f"(({bits})1 << {width - 1})", f"((({bits})1 << {exponent}) - 1 << {fraction})"
    return {
        f"significand_{name}": f"""\
// The significand of a number that is not 0, first bit at {fraction}; e becomes its exponent, biased.
static inline {bits} significand_{name}({bits} a, int& e) {{
  e = (int)(a >> {fraction});
  if (e) return (a & ((({bits})1 << {fraction}) - 1)) | (({bits})1 << {fraction});
  for (e = 1; !(a >> {fraction}); a <<= 1) --e;
  return a;
}}""",
        f"fmod_{name}": f"""\
// Long division, a bit at a time: exact.
static inline {real} fmod_{name}({real} x, {real} y) {{
  const {bits} signed_x = __builtin_bit_cast({bits}, x), sign = signed_x & {sign};
  const {bits} a = signed_x ^ sign, b = __builtin_bit_cast({bits}, y) & ~{sign};
  if (b == 0 || a >= {infinity} || b > {infinity}) return (x * y) / (x * y);
  if (a < b || b == {infinity}) return x;
  int e = 0, f = 0;
  {bits} rest = significand_{name}(a, e);
  const {bits} divisor = significand_{name}(b, f);
  for (; e > f; --e) {{
    if (rest >= divisor) rest -= divisor;
    rest <<= 1;
  }}
  if (rest >= divisor) rest -= divisor;
  if (rest == 0) return __builtin_bit_cast({real}, sign);
  for (; !(rest >> {fraction}); rest <<= 1) --e;
  const {bits} size =
      e > 0 ? (rest ^ (({bits})1 << {fraction})) | (({bits})e << {fraction}) : rest >> (1 - e);
  return __builtin_bit_cast({real}, sign | size);
}}""",
        f"mod_{name}": f"""\
static inline {real} mod_{name}({real} a, {real} b) {{
  const {real} rest = fmod_{name}(a, b);
  if (rest == 0) return b < 0 ? -({real})0 : ({real})0;
  return (rest < 0) != (b < 0) ? rest + b : rest;
}}""",
        f"floordiv_{name}": f"""\
static inline {real} floordiv_{name}({real} a, {real} b) {{
  if (b == 0) return a / b;
  const {real} rest = fmod_{name}(a, b);
  const {real} near = (a - rest) / b - (rest != 0 && (rest < 0) != (b < 0) ? 1 : 0);
  if (near == 0) return (a < 0) != (b < 0) ? -({real})0 : ({real})0;
  // From 2**{fraction} on every number is whole.
  const bool has_fraction = near < ({real})(1ll << {fraction}) && near > -({real})(1ll << {fraction});
  {real} below = has_fraction ? ({real})(long long)near : near;
  if (below > near) below -= 1;
  return near - below > ({real})0.5 ? below + 1 : below;
}}""",
    }


_DIVISION = {
    **shifts("shift_left", "shift_right", "static inline"),
    **{name: text for kind in _WIDE for name, text in _of_integers(kind).items()},
    **_of_floats("f32", "float", "unsigned", 23, 8),
    **_of_floats("f64", "double", "unsigned long long", 52, 11),
}
"""Division rounded down, its remainder, and shifts.

An integer divided by 0 gives 0 and remainder 0; the least integer divided by -1 gives itself.  Floats follow
the steps of NumPy and Python, over an exact ``fmod``.
"""

SNIPPETS = {
    **FORMULAS,
    "exp2_f32": _EXP2,
    **{name: f"static inline {text}" for name, text in philox.PIECES.items()},
    **_ACTIVATIONS,
    **_DIVISION,
}
"""C++ functions by name."""

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
    """Return C++ for an elementwise function, and the names of the `SNIPPETS` that it calls.

    Args:
        function: a name of `tilewright.functions.table.FUNCTIONS` other than convert and select.
        dtype: the dtype of the operands.
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
        case "random_bits" | "random_at_least":
            return f"{function}({', '.join(operands)})", (function,)
        case "pow":
            return f"pow_f32({', '.join(operands)})", ("pow_f32",)
        case _ if f"{function}_{dtype.name}" in SNIPPETS:
            return f"{function}_{dtype.name}({operands[0]})", (f"{function}_{dtype.name}",)
        case _:
            return _PLAIN[function].format(*operands), ()
