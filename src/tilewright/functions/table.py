"""All elementwise functions by name: operands, NumPy meaning, C name or C text, and error in ulp.

Derivatives of the activations are composed of these functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from tilewright.dtypes import DType, f32, f64, limits
from tilewright.functions.function import (
    Function,
    anything,
    bits,
    complex_numbers,
    floats,
    fused,
    horner,
    integers,
    numbers,
    parts,
    real_numbers,
)
from tilewright.functions.philox import RANDOM

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def _through_f64(function: Callable[[Array], Any]) -> Callable[[Array], Array]:
    """Return a function that computes f32 in f64, because NumPy's f32 version is less exact."""
    return lambda x: np.asarray(function(np.asarray(x, np.result_type(x, np.float64))), x.dtype)


# ---------------------------------------------------------------- arithmetic, bits, comparisons


def _shift(function: Callable[..., Any], left: Array, count: Array) -> Array:
    """Shift ``left``; a negative or too large count shifts all bits out."""
    width = left.dtype.itemsize * 8
    count = np.asarray(count, left.dtype)
    inside = (count >= 0) & (count < width)
    near = function(left, np.where(inside, count, np.asarray(width - 1, left.dtype)))
    away = near if function is np.right_shift and left.dtype.kind == "i" else np.zeros_like(near)
    return np.asarray(np.where(inside, near, away), left.dtype)


def _rounding_down(function: Callable[..., Any], left: Array, right: Array) -> Array:
    """Floor quotient or remainder as in Python; integers divided by 0 give 0."""
    if left.dtype.kind not in "iu":
        return np.asarray(function(left, right))
    zero = np.equal(right, 0)
    made = function(left, np.where(zero, np.asarray(1, right.dtype), right))
    return np.asarray(np.where(zero, 0, made), left.dtype)


def fma(x: Array, y: Array, z: Array) -> Array:
    """``x * y + z`` of f32 or f64 arrays, rounded once.

    Example:
        >>> one = np.float32([1 + 2**-23])
        >>> float((one * one - one)[0]), float(fma(one, one, -one)[0])
        (1.1920928955078125e-07, 1.1920930376163597e-07)
    """
    x, y, z = np.broadcast_arrays(x, y, z)
    plain: Array = np.asarray(x.astype(np.float64) * y + z)
    finite = np.asarray(np.isfinite(x) & np.isfinite(y) & np.isfinite(z))
    if x.dtype == np.float64:
        for at in (at for at in np.ndindex(plain.shape) if finite[at]):
            (a, i), (b, j), (c, k) = (float(value[at]).as_integer_ratio() for value in (x, y, z))
            plain[at] = _nearest(a * b * k + c * i * j, i * j * k, zero=float(plain[at]))
        return plain
    # The product is exact; an odd last bit of the sum keeps the second rounding from seeing a tie.
    product = x.astype(np.float64) * y
    other = plain - product
    lost = np.where(finite, (product - (plain - other)) + (z - other), 0.0)
    even = plain.view(np.int64) % 2 == 0
    odd = np.where((lost != 0) & even, np.nextafter(plain, np.copysign(np.inf, lost)), plain)
    return np.asarray(odd.astype(x.dtype))


def _nearest(above: int, below: int, zero: float) -> float:
    """Return the f64 nearest to a fraction; ``zero`` if the fraction is 0."""
    try:
        return above / below if above else zero
    except OverflowError:
        return math.inf if above > 0 else -math.inf


TAKE = "take"
"""The function ``take(code, *table) = table[code]``, with a table of 1 to `MOST_ENTRIES` numbers."""

MOST_ENTRIES = 256
"""Most entries of a table: those that a code of a byte selects."""


def looked_up(codes: Array, table: Array) -> Array:
    """``table[codes]``, and 0 for codes outside of the table.

    Example:
        >>> looked_up(np.int8([2, 0, 3, -1]), np.float32([0.5, 1, 4])).tolist()
        [4.0, 0.5, 0.0, 0.0]
    """
    inside = (codes >= 0) & (codes < len(table))
    return np.where(inside, table[np.where(inside, codes, 0).astype(np.int64)], np.zeros((), table.dtype))


ARITHMETIC = (
    # Integers wrap.
    Function("add", 2, numbers, np.add, keeps_sign=all),
    Function("sub", 2, numbers, np.subtract),
    Function("mul", 2, numbers, np.multiply, keeps_sign=all),
    # A maximum or minimum with a NaN is NaN.
    Function("min", 2, numbers, np.minimum, keeps_sign=all),
    Function("max", 2, numbers, np.maximum, keeps_sign=any),
    Function("neg", 1, numbers, np.negative),
    Function("abs", 1, numbers, np.abs, c="fabs", non_negative=True, gives="part"),
    # The quotient is rounded down, and the remainder has the divisor's sign.  Integers divided by 0 give 0
    # for both; the least integer divided by -1 gives itself.
    Function("floordiv", 2, real_numbers, partial(_rounding_down, np.floor_divide)),
    Function("mod", 2, real_numbers, partial(_rounding_down, np.remainder)),
    Function("fma", 3, fused, fma, c="fma", keeps_sign=all),
    Function("and", 2, bits, np.bitwise_and),
    Function("or", 2, bits, np.bitwise_or),
    Function("xor", 2, bits, np.bitwise_xor),
    Function("invert", 1, bits, np.invert),
    # A count outside of the dtype's bits shifts all of them out: the result is 0, or -1 if a negative
    # integer is shifted right.
    Function("shift_left", 2, integers, partial(_shift, np.left_shift)),
    Function("shift_right", 2, integers, partial(_shift, np.right_shift)),
    Function("less", 2, anything, np.less, gives="truth"),
    Function("less_equal", 2, anything, np.less_equal, gives="truth"),
    Function("equal", 2, anything, np.equal, gives="truth"),
    Function("not_equal", 2, anything, np.not_equal, gives="truth"),
    Function("convert", 1, anything, gives="asked"),
    Function("saturate", 1, anything, gives="asked"),
    Function("bitcast", 1, anything, gives="asked"),
    Function("select", 3, anything),
    # The first operand is the code, the others are the table.
    Function(TAKE, 1 + MOST_ENTRIES, integers, gives="asked", fewest=2),
)


def _complex(re: Array, im: Array) -> Array:
    """``re + 1j * im``, without products of infinities."""
    made = np.empty(re.shape, np.result_type(re, np.complex64))
    made.real, made.imag = re, im
    return made


COMPLEX = (
    Function("real", 1, complex_numbers, np.real, gives="part"),
    Function("imag", 1, complex_numbers, np.imag, gives="part"),
    Function("conj", 1, complex_numbers, np.conjugate),
    Function("complex", 2, parts, _complex, gives="pair"),
)
"""Functions of complex numbers and of their parts, for dataflow kernels."""


# ---------------------------------------------------------------- functions of floats
# The texts compute functions that not every target has.


def _powers(kind: DType) -> str:
    lost = "which loses as many bits as the integer part of y * log(x) has"
    if kind == f64:
        return f"no target has it; nearest legal choice: tw.exp(y * tw.log(x)), {lost}"
    return floats(kind) or ("needs real numbers" if kind.components > 1 else "")


def erf(x: Any) -> Any:
    """The error function of an array.

    Example:
        >>> erf(np.float64([0, 0.5])).round(4).tolist()
        [0.0, 0.5205]
    """
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)


_ERF_NEAR = [2 / math.sqrt(math.pi) * (-1) ** k / (math.factorial(k) * (2 * k + 1)) for k in range(18)]
"""The Taylor series of erf(x) / x in x**2, for |x| < 0.875."""

_ERFCX = (
    *(0.21711627311807302, -0.1695687561767031, 0.0581735011931321, -0.015754189355256493),
    *(0.003229153309185736, -0.0004485251719668658, 2.5992191459845714e-05, 3.981684362135936e-06),
    *(-8.639471641658629e-07, -1.8529008003607575e-08, 2.01356075846877e-08, -1.5402180897133378e-10),
    *(-5.128420571985109e-10, 1.0762360791458454e-12, 1.4532223554357854e-11, 4.860432853236188e-13),
    *(-3.806187587700898e-13, -3.3454376683285246e-14),
)
"""e**(x**2) * (1 - erf(x)) for x in [0.875, 6], interpolated at 18 Chebyshev nodes in (x - 3) / (x + 3)."""

_ERF_TEXT = f"""\
static inline double erf_f64(double y) {{
  const double size = y < 0 ? -y : y;
  const double x = size < 6.0 ? size : 6.0, z = x * x;
  const double near = x + x * ({horner("z", [_ERF_NEAR[0] - 1, *_ERF_NEAR[1:]])});
  const double u = 2.268292682926829 * ((x - 3.0) / (x + 3.0) + 0.10752688172043011);
  const double far = 1.0 - exp_f64(-z) * ({horner("u", _ERFCX)});
  const double made = x < 0.875 ? near : far;
  return y != y ? y : y < 0 ? -made : y == 0 ? y : made;
}}"""

_LOG2_TEXT = """\
static inline double log2_f64(double x) {
  const bool subnormal = x < 2.2250738585072014e-308;
  const long long bits = bits_of_f64(subnormal ? x * 4503599627370496.0 : x);
  // x = m * 2**e with m in [sqrt(1/2), sqrt(2)), as in log.
  const long long e = (bits - 0x3fe6a09e667f3bcdll) >> 52;
  const double m = f64_of_bits(bits - (e << 52));
  const double near = (double)(e - (subnormal ? 52 : 0)) + log_f64(m) * 1.4426950408889634;
  return x > 0 && x < __builtin_inf() ? near : log_f64(x);
}"""

# Adding and then subtracting 2**52 rounds to an integer, ties to even.
_ROUND_TEXT = """\
static inline double round_f64(double x) {
  const double size = x < 0 ? -x : x, near = (size + 4503599627370496.0) - 4503599627370496.0;
  return !(size < 4503599627370496.0) ? x : near == 0 ? x * 0.0 : x < 0 ? -near : near;
}"""

_FLOOR_TEXT = """\
static inline double floor_f64(double x) {
  const double near = round_f64(x);
  return near > x ? near - 1.0 : near;
}"""

FLOATING = (
    Function("div", 2, floats, np.divide, keeps_sign=all),
    Function("pow", 2, _powers, np.power, c="pow", ulp=4.0, keeps_sign=all),
    # NumPy's exp and log of f32 are the least exact: 2.52 and 3.83 ulp according to its documentation.
    Function("exp", 1, floats, np.exp, c="exp", ulp=3.0, non_negative=True),
    Function("exp2", 1, floats, np.exp2, c="exp2", ulp=2.0, non_negative=True),
    Function("log", 1, floats, np.log, c="log", ulp=4.0),
    Function("sqrt", 1, floats, np.sqrt, c="sqrt", non_negative=True),
    Function(
        "rsqrt", 1, floats, lambda x: (1 / np.sqrt(x)).astype(x.dtype), c="rsqrt", ulp=2.0, keeps_sign=all
    ),
    Function("tanh", 1, floats, np.tanh, c="tanh", ulp=2.5),
    Function("erf", 1, floats, erf, c="erf", ulp=2.0, text=_ERF_TEXT),
    Function(
        *("log2", 1, floats, _through_f64(np.log2)),
        c="log2",
        ulp=2.0,
        text=_LOG2_TEXT,
    ),
    Function("round", 1, floats, np.rint, c="rint", text=_ROUND_TEXT, keeps_sign=all),
    Function("floor", 1, floats, np.floor, c="floor", text=_FLOOR_TEXT, keeps_sign=all),
)


# ---------------------------------------------------------------- sine and cosine
# The text reduces an argument of any size to [-pi/4, pi/4], as the sum of two doubles. For arguments up to
# 2**20 it subtracts a multiple of pi/2 in three parts. For larger ones it multiplies the argument's bits by
# the 192 bits of 2/pi that determine the result.
#
# Source: M. H. Payne, R. N. Hanek, "Radian reduction for trigonometric functions", SIGNUM Newsletter 18
# (1983).


_TWO_OVER_PI = (
    *(0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561, 0xB7246E3A424DD2E0),
    *(0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41, 0x3991D639835339F4),
    *(0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7, 0x4F463F669E5FEA2D),
    *(0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB),
)
"""Binary digits of 2/pi after the point, 64 per word."""


def _chosen(first: int, words: tuple[int, ...]) -> str:
    """Return C text that selects word ``at`` by comparisons, without a table in memory."""
    if len(words) == 1:
        return f"0x{words[0]:x}ull"
    half = len(words) // 2
    low, high = _chosen(first, words[:half]), _chosen(first + half, words[half:])
    return f"(at < {first + half} ? {low} : {high})"


_REDUCE = f"""\
static inline unsigned long long two_over_pi(int at) {{
  return {_chosen(-1, (0, *_TWO_OVER_PI, 0))};
}}

struct Quarter {{ double near, rest; int turns; }};

// x - turns * pi/2 as a sum of two doubles, for |x| up to 2**20.
static inline Quarter small_quarter(double x) {{
  const double shift = {1.5 * 2**52!r}, n = (x * {2 / math.pi!r} + shift) - shift;
  // The first two parts of pi/2 have 33 bits: multiples of them are exact.
  const double left = x - n * 1.5707963267341256, step = n * 6.077100506303966e-11;
  const double near = left - step, back = near - left;
  const double rest = (left - (near - back)) - (step + back) - n * 2.0222662487959506e-21;
  const double sum = near + rest;
  return Quarter{{sum, rest - (sum - near), (int)n & 3}};
}}

// The same for larger numbers.
static inline Quarter large_quarter(double x) {{
  const long long bits = bits_of_f64(x < 0 ? -x : x);
  const unsigned long long whole = (bits & ((1ll << 52) - 1)) | 1ll << 52;
  // Digits that make multiples of four quarters with |x| = whole * 2**exponent are left out.
  const int exponent = (int)(bits >> 52) - 1075, skipped = exponent - 2 + 64;
  const int word = skipped / 64, rest = skipped % 64;
  unsigned long long part[3];
  for (int i = 0; i < 3; ++i) {{
    const int at = word + i - 1;
    const unsigned long long high = two_over_pi(at), low = two_over_pi(at + 1);
    part[i] = rest ? high << rest | low >> (64 - rest) : high;
  }}
  const unsigned __int128 low = (unsigned __int128)whole * part[2];
  const unsigned __int128 middle = (unsigned __int128)whole * part[1] + (unsigned long long)(low >> 64);
  const unsigned long long high = whole * part[0] + (unsigned long long)(middle >> 64);
  // Two bits of quarters, then their fraction, as a signed number in [-1/2, 1/2).
  const unsigned __int128 fraction = ((unsigned __int128)high << 64 | (unsigned long long)middle) << 2 |
                                     (unsigned long long)low >> 62;
  const __int128 turned = (__int128)fraction;
  const int turns = (int)(high >> 62) + (turned < 0);
  const long long top = (long long)(turned >> 66);
  const double next = (double)(unsigned long long)(turned >> 2) * 5.421010862427522e-20;  // 2**-64
  // The first 26 bits make exact products with the first 26 of pi/2.
  const double kept = f64_of_bits(bits_of_f64((double)top) & ~((1ll << 27) - 1));
  const double scale = 2.168404344971009e-19;  // 2**-62
  const double a = kept * scale, b = ((double)(top - (long long)kept) + next) * scale;
  const double large = a * 1.5707963109016418, small = a * 1.5893254773528196e-08 + b * {math.pi / 2!r};
  const double near = large + small, tail = small - (near - large);
  return x < 0 ? Quarter{{-near, -tail, -turns & 3}} : Quarter{{near, tail, turns & 3}};
}}

static inline double sine_after(double x, int ahead) {{
  const double size = x < 0 ? -x : x;
  if (!(size < __builtin_inf())) return x - x;
  const Quarter q = size < 1048576.0 ? small_quarter(x) : large_quarter(x);
  const int turns = (q.turns + ahead) & 3;
  const double y = q.near, z = y * y;
  const double sine = {horner("z", [(-1) ** n / math.factorial(2 * n + 1) for n in range(1, 9)])};
  const double cosine = {horner("z", [(-1) ** n / math.factorial(2 * n) for n in range(2, 10)])};
  const double half = 0.5 * z, most = 1.0 - half;
  const double made = turns & 1 ? most + (((1.0 - most) - half) + (z * z * cosine - y * q.rest))
                                : y + (q.rest * most + y * z * sine);
  return turns & 2 ? -made : made;
}}

static inline double sin_f64(double x) {{ return x == 0 ? x : sine_after(x, 0); }}"""


CIRCLE = (
    Function("sin", 1, floats, _through_f64(np.sin), c="sin", ulp=2.0, text=_REDUCE),
    Function(
        *("cos", 1, floats, _through_f64(np.cos)),
        c="cos",
        ulp=2.0,
        text="static inline double cos_f64(double x) { return sine_after(x, 1); }",
    ),
)


# ---------------------------------------------------------------- activations
# Silu and gelu multiply x by a share between 0 and 1. They are computed as ``x / (1 + 2**t)``, which
# subtracts no nearly equal numbers; if ``2**t`` overflows, the result is 0. For x = -inf the share is 0 and
# the product would be NaN, so x is clamped to `LOWEST`. NaN stays NaN, because its share is NaN too.


LOWEST: dict[DType, float] = {kind: limits(kind)[0] for kind in (f32, f64)}
"""The lowest finite number, which replaces -inf before it is multiplied by a share."""

SILU_SLOPE = -1 / math.log(2)
"""``t / x`` of silu."""

GELU_TANH = tuple(-2 / math.log(2) * math.sqrt(2 / math.pi) * c for c in (1.0, 0.044715))
"""``t / x`` of gelu with the hyperbolic tangent, a polynomial in ``x**2``, the lowest coefficient first."""

GELU = (
    *(-2.3022093772888184, -0.10483512282371521, 9.404923184774816e-05, 0.000159579940373078),
    *(-1.1439833542681299e-05, 3.8163125282153487e-07, -5.0672355200731545e-09),
)
"""``t / x`` of gelu in f32, a polynomial in ``x**2``, the lowest coefficient first.

``t`` approximates log2 of (1 - P(x)) / P(x), with P the normal distribution.  The largest error of
``1 / (1 + 2**t)`` is 2**-25, the least that a polynomial of this degree has.  The last coefficient is
negative, so that large numbers need no special case."""


@np.errstate(over="ignore")
def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, small, 1.0) / (1.0 + small))


def _activation(compute: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    """Return the function that calls ``compute`` with ``maximum(x, LOWEST)`` and with x; NaN stays NaN."""

    @np.errstate(over="ignore", invalid="ignore")
    def function(x: Array) -> Array:
        return np.asarray(compute(np.asarray(np.maximum(x, np.finfo(x.dtype).min)), x))

    return _through_f64(function)


_SILU = _activation(lambda finite, x: finite * _sigmoid(x))
_GELU = _activation(lambda finite, x: finite * (0.5 + 0.5 * erf(x * math.sqrt(0.5))))
_GELU_TANH = _activation(
    lambda finite, x: finite / (1.0 + np.exp2(x * (GELU_TANH[0] + GELU_TANH[1] * (x * x))))
)

ACTIVATIONS = (
    Function("sigmoid", 1, floats, _through_f64(_sigmoid), ulp=5.0, non_negative=True),
    Function("silu", 1, floats, _SILU, ulp=4.0, of_operand=True, keeps_sign=all),
    Function("gelu", 1, floats, _GELU, ulp=4.0, of_operand=True, keeps_sign=all),
    Function("gelu_tanh", 1, floats, _GELU_TANH, ulp=4.0, of_operand=True, keeps_sign=all),
)


FUNCTIONS: dict[str, Function] = {
    row.name: row for row in (*ARITHMETIC, *COMPLEX, *FLOATING, *CIRCLE, *ACTIVATIONS, *RANDOM)
}

COMPARISON = tuple(name for name, row in FUNCTIONS.items() if row.gives == "truth")
ASKED = tuple(name for name, row in FUNCTIONS.items() if row.gives == "asked")
CONVERSION = tuple(name for name in ASKED if name != TAKE)


# ---------------------------------------------------------------- derivatives of the activations
#
# They are composed of the other functions, so that every target has them.  A derivative near 0 is a product
# of small numbers, not a difference of nearly equal ones.  Terms cancel only where a derivative crosses 0,
# and for `gelu` far below 0.

Call: TypeAlias = Callable[..., Any]
"""Computes a row of the table, by its name."""

_BEND = 0.044715
"""Cubic coefficient in `gelu` with the hyperbolic tangent."""


def _slope_of_sigmoid(x: Any, call: Call) -> Any:
    """s(x) s(-x), with s the sigmoid."""
    return call("sigmoid", x) * call("sigmoid", -x)


def _slope_of_silu(x: Any, call: Call) -> Any:
    """s(x) + x s(x) s(-x)."""
    x = _within(x, 1000.0, call)
    return call("sigmoid", x) * (1.0 + x * call("sigmoid", -x))


def _slope_of_gelu(x: Any, call: Call) -> Any:
    """P(x) + x p(x), of the normal distribution."""
    x = _within(x, 40.0, call)
    density = call("exp", -0.5 * (x * x)) * (1 / math.sqrt(2 * math.pi))
    return 0.5 + 0.5 * call("erf", x * math.sqrt(0.5)) + x * density


def _slope_of_gelu_tanh(x: Any, call: Call) -> Any:
    """s(t) + x s(t) s(-t) t', where gelu is x s(t)."""
    x = _within(x, 16.0, call)
    scale, square = 2 * math.sqrt(2 / math.pi), x * x
    t = scale * (x + _BEND * (square * x))
    slope = scale * (1.0 + 3 * _BEND * square)
    return call("sigmoid", t) * (1.0 + x * slope * call("sigmoid", -t))


def _within(x: Any, most: float, call: Call) -> Any:
    """Clamp x to a range outside of which the derivative is 0 or 1: infinity times 0 would be NaN."""
    return call("max", call("min", x, most), -most)


DERIVATIVES: dict[str, Callable[[Any, Call], Any]] = {
    "relu": lambda x, call: -call("floor", -call("min", call("max", x, 0.0), 1.0)),  # 1 above 0, else 0
    "gelu": _slope_of_gelu,
    "gelu_tanh": _slope_of_gelu_tanh,
    "silu": _slope_of_silu,
    "sigmoid": _slope_of_sigmoid,
    "tanh": lambda x, call: 4.0 * _slope_of_sigmoid(2.0 * x, call),  # 1 - tanh(x)**2 = 4 s(2x) s(-2x)
}
"""Derivatives by the name of the activation."""
